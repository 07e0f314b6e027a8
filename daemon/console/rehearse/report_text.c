/*
 * report_text.c: the report of a rehearsal for people: three tables and the findings.
 */
#include "daemon/base/text.h"
#include "daemon/base/units.h"
#include "daemon/console/console.h"
#include "daemon/console/rehearse/rehearse.h"
#include "daemon/console/rehearse/steered.h"
#include "daemon/console/text.h"
#include "daemon/verdict/verdict_text.h"
#include "trace/rankset.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#define ROWS_MOST 60 /* of a table; the JSON has all */

/* The columns of the terminal; 0: it is none, and lines may have any width. */
static size_t width_of(FILE *out)
{
    struct winsize size = {0};
    return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

static void print_table(struct roll_columns *table, FILE *out)
{
    size_t rows = roll_columns_rows(table), width = width_of(out);
    char line[1024];
    for (size_t i = 0; i < rows && i <= ROWS_MOST; i++) {
        roll_columns_line(table, i, width, line, sizeof(line));
        fprintf(out, "%s\n", line);
    }
    if (rows > ROWS_MOST + 1) {
        fprintf(out, "and %zu more: --json has them\n", rows - ROWS_MOST - 1);
    }
    fputc('\n', out);
    roll_columns_fini(table);
}

/* What a communicator is called; "" where nothing tells. */
static const char *name_of(const json_t *comm)
{
    return roll_json_text(comm, "name", "");
}

/* A number that connects the two tables, as many communicators have no name: that of the first one of a row. */
static const char *number_text(const json_t *comm, char out[24])
{
    snprintf(out, 24, "%" PRId64, roll_json_int(comm, "number", 0));
    return out;
}

static void print_communicators(const json_t *comms, FILE *out)
{
    struct roll_columns table = {.columns = 4, .right = 1, .shrink = 4};
    size_t i;
    json_t *comm;
    char number[24], ranks[256];
    roll_columns_row(&table, (const char *const[]){"#", "COMMUNICATOR", "RANKS", "MADE BY"});
    json_array_foreach((json_t *)comms, i, comm)
    {
        int64_t of = roll_json_int(comm, "of", 0);
        snprintf(ranks, sizeof(ranks), of > 0 ? "%s of %" PRId64 : "%s", roll_json_text(comm, "ranks", ""), of);
        roll_columns_row(&table, (const char *const[]){number_text(comm, number), name_of(comm), ranks,
                                                       roll_json_text(comm, "made", "")});
    }
    print_table(&table, out);
}

static void add_call(struct roll_columns *table, const char *number, const json_t *comm, const json_t *call,
                     bool has_steps)
{
    char calls[64], bytes[32], step_calls[32] = "", step_bytes[32] = "", count[32], least[32];
    uint64_t most = (uint64_t)roll_json_int(call, "calls", 0), fewest = (uint64_t)roll_json_int(call, "calls_least", 0);
    snprintf(calls, sizeof(calls), most == fewest ? "%s" : "%s-%s",
             roll_count_text(most == fewest ? most : fewest, least, sizeof(least)),
             roll_count_text(most, count, sizeof(count)));
    if (has_steps) {
        roll_mean_text(json_number_value(json_object_get(call, "calls_per_step")), step_calls, sizeof(step_calls));
        roll_units_bytes_text(json_number_value(json_object_get(call, "bytes_per_step")), step_bytes,
                              sizeof(step_bytes));
    }
    roll_columns_row(table, (const char *const[]){
                                number, name_of(comm), roll_json_text(call, "op", ""), calls,
                                roll_units_bytes_text((double)roll_json_int(call, "bytes", 0), bytes, sizeof(bytes)),
                                step_calls, step_bytes});
}

/* Whether it is known what a step is: of a single step nothing says where it begins. */
static bool has_step_figures(const json_t *comms)
{
    size_t i, k;
    json_t *comm, *call;
    json_array_foreach((json_t *)comms, i, comm)
    {
        json_array_foreach(json_object_get(comm, "calls"), k, call)
        {
            if (json_object_get(call, "calls_per_step") != NULL) {
                return true;
            }
        }
    }
    return false;
}

/* Calls and bytes are those of one rank; where the ranks differ, of the one with the most. */
static void print_calls(const json_t *comms, bool has_steps, FILE *out)
{
    struct roll_columns table = {.columns = has_steps ? 7 : 5, .right = 1 | 8 | 16 | 32 | 64, .shrink = 2};
    size_t i, k;
    json_t *comm, *call;
    char number[24];
    roll_columns_row(
        &table, (const char *const[]){"#", "COMMUNICATOR", "OPERATION", "CALLS", "BYTES", "CALLS/STEP", "BYTES/STEP"});
    json_array_foreach((json_t *)comms, i, comm)
    {
        json_array_foreach(json_object_get(comm, "calls"), k, call)
        {
            add_call(&table, number_text(comm, number), comm, call, has_steps);
        }
    }
    print_table(&table, out);
}

/* "0: 64.0 MiB of 80.0 GiB, ..." for the devices of a rank. */
static void devices_text(const json_t *devices, bool is_allocator, char *out, size_t room)
{
    size_t k, used = 0;
    json_t *device;
    out[0] = '\0';
    json_array_foreach((json_t *)devices, k, device)
    {
        const json_t *bytes = json_object_get(device, is_allocator ? "allocator_peak_bytes" : "peak_bytes");
        char peak[32], size[32], of[48] = "";
        if (used + 80 >= room || !json_is_integer(bytes)) {
            continue;
        }
        if (!is_allocator) {
            snprintf(of, sizeof(of), " of %s",
                     roll_units_bytes_text((double)roll_json_int(device, "size_bytes", 0), size, sizeof(size)));
        }
        used += (size_t)snprintf(out + used, room - used, "%s%d: %s%s", used > 0 ? ", " : "",
                                 (int)roll_json_int(device, "device", 0),
                                 roll_units_bytes_text((double)json_integer_value(bytes), peak, sizeof(peak)), of);
    }
}

/* has_pytorch: there is a column of what PyTorch's own allocator gave out; "-" where it keeps no account. */
static void print_memory(const json_t *memory, bool has_pytorch, FILE *out)
{
    struct roll_columns table = {.columns = has_pytorch ? 4 : 3, .shrink = 3};
    size_t i;
    json_t *rank;
    roll_columns_row(&table, (const char *const[]){"RANK", "HOST MEMORY", "DEVICE MEMORY", "PYTORCH'S OWN"});
    json_array_foreach((json_t *)memory, i, rank)
    {
        const json_t *devices = json_object_get(rank, "devices");
        char number[16] = "?", host[32] = "", seen[512] = "", own[512] = "";
        if (json_is_integer(json_object_get(rank, "rank"))) {
            snprintf(number, sizeof(number), "%d", (int)roll_json_int(rank, "rank", 0));
        }
        if (json_is_integer(json_object_get(rank, "host_peak_bytes"))) {
            roll_units_bytes_text((double)roll_json_int(rank, "host_peak_bytes", 0), host, sizeof(host));
        }
        devices_text(devices, false, seen, sizeof(seen));
        devices_text(devices, true, own, sizeof(own));
        roll_columns_row(&table, (const char *const[]){number, host, seen, own[0] != '\0' ? own : "-"});
    }
    if (json_array_size(memory) > 0) {
        print_table(&table, out);
    } else {
        roll_columns_fini(&table);
    }
}

/* What differs from an earlier rehearsal, a line each. */
static void print_difference(const json_t *difference, FILE *out)
{
    int64_t count = roll_json_int(difference, "count", 0);
    size_t i, width = width_of(out) > 0 ? width_of(out) : SIZE_MAX / 2;
    json_t *change;
    if (difference == NULL) {
        return;
    }
    fprintf(out, count > 0 ? "Differences: %lld\n" : "Differences: none\n", (long long)count);
    json_array_foreach(json_object_get(difference, "changes"), i, change)
    {
        if (i == ROWS_MOST) {
            fprintf(out, "and %zu more: --json has them\n", (size_t)count - i);
            break;
        }
        fputs("    ", out);
        roll_text_wrap(roll_json_text(change, "text", ""), 4, width, out);
    }
}

/* One line of words for people, broken to the terminal's width. */
static void print_words(const char *text, FILE *out)
{
    size_t width = width_of(out);
    roll_text_wrap(text, 0, width > 0 ? width : SIZE_MAX / 2, out);
}

#define ORDER_MOST 24 /* calls of a step that are printed; the JSON has all */

/* The number of the row in which a communicator stands. */
static long long row_of(const json_t *numbers, int64_t comm)
{
    const json_t *row = comm > 0 ? json_array_get(numbers, (size_t)comm - 1) : NULL;
    return row != NULL ? (long long)json_integer_value(row) : (long long)comm;
}

/* The order of a step over the communicators, which have the numbers of the tables. */
static void print_order(const json_t *order, const json_t *numbers, FILE *out)
{
    const json_t *calls = json_object_get(order, "calls"), *together = json_object_get(order, "together");
    char text[4096];
    size_t used, i, n = json_array_size(calls);
    json_t *one;
    if (order == NULL) {
        return;
    }
    used = (size_t)snprintf(text, sizeof(text), "A step of rank %lld:", (long long)roll_json_int(order, "rank", 0));
    json_array_foreach(calls, i, one)
    {
        if (i < ORDER_MOST && used < sizeof(text) - 128) {
            long long times = (long long)roll_json_int(one, "calls", 1);
            used += (size_t)snprintf(text + used, sizeof(text) - used,
                                     times > 1 ? "%s #%lld %.40s x%lld" : "%s #%lld %.40s", i > 0 ? "," : "",
                                     row_of(numbers, roll_json_int(one, "communicator", 0)),
                                     roll_json_text(one, "op", ""), times);
        }
    }
    snprintf(text + used, sizeof(text) - used, n > ORDER_MOST ? ", and so on: --json has all %zu." : ".", n);
    print_words(text, out);
    used = (size_t)snprintf(text, sizeof(text), "In flight together (other streams, no host waits between):");
    json_array_foreach(together, i, one)
    {
        if (i < ORDER_MOST) {
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s #%lld and #%lld", i > 0 ? "," : "",
                                     row_of(numbers, json_integer_value(json_array_get(one, 0))),
                                     row_of(numbers, json_integer_value(json_array_get(one, 1))));
        }
    }
    snprintf(text + used, sizeof(text) - used, "%s", i == 0 ? " none." : i > ORDER_MOST ? ", ..." : ".");
    print_words(text, out);
}

/* Which ranks did not end with 0, a line for each way. */
static void print_ended(const json_t *ended, FILE *out)
{
    size_t i, k;
    json_t *one, *rank;
    json_array_foreach((json_t *)ended, i, one)
    {
        struct roll_rankset set = {0};
        char ranks[128], text[256];
        int64_t signal = roll_json_int(one, "signal", 0);
        json_array_foreach(json_object_get(one, "ranks"), k, rank)
        {
            (void)roll_rankset_add(&set, (uint32_t)json_integer_value(rank));
        }
        roll_rankset_format(&set, ranks, sizeof(ranks));
        const char *many = roll_rankset_count(&set) > 1 ? "Ranks" : "Rank";
        if (signal > 0) {
            const char *name = sigabbrev_np((int)signal);
            snprintf(text, sizeof(text), "%s %s ended by signal %" PRId64 " (SIG%s).", many, ranks, signal,
                     name != NULL ? name : "?");
        } else {
            snprintf(text, sizeof(text), "%s %s ended with code %" PRId64 ".", many, ranks,
                     roll_json_int(one, "code", 0));
        }
        print_words(text, out);
        roll_rankset_fini(&set);
    }
}

/* That some ranks were stood in for. */
static void print_represent(const json_t *represent, FILE *out)
{
    char text[1400];
    struct roll_rankset run = {0};
    const char *ranks = roll_json_text(represent, "ranks", "");
    if (ranks[0] == '\0') {
        return;
    }
    size_t count = roll_rankset_parse(ranks, &run) == 0 ? roll_rankset_count(&run) : 0;
    snprintf(text, sizeof(text),
             "%zu of %" PRId64
             " ranks run (%s), the others are stood in for: what they give is a copy of what ranks that "
             "run gave.",
             count, roll_json_int(represent, "of", 0), ranks);
    print_words(text, out);
    fputc('\n', out);
    roll_rankset_fini(&run);
}

void roll_rehearse_print(const json_t *report, FILE *out)
{
    const json_t *kernels = json_object_get(report, "kernels");
    json_t *numbers, *comms = roll_rehearse_fold(report, &numbers);
    bool tells_steps = json_is_integer(json_object_get(report, "steps"));
    int64_t learned = roll_json_int(report, "steps_learned", 0);
    char text[256];
    size_t i;
    json_t *finding;
    fprintf(out, "\nRehearsal of %s\n\n", roll_json_text(report, "job", "?"));
    print_represent(json_object_get(report, "represent"), out);
    if (json_array_size(comms) > 0) {
        print_communicators(comms, out);
        print_calls(comms, has_step_figures(comms), out);
    }
    print_memory(json_object_get(report, "memory"), json_is_object(json_object_get(report, "steered")), out);
    long long skipped = roll_json_int(kernels, "skipped", 0), run = roll_json_int(kernels, "run", 0),
              refused = roll_json_int(kernels, "refused", 0);
    if (skipped + run + refused > 0) {
        fprintf(out, "Kernels: %lld skipped, %lld run on the host, %lld refused.\n", skipped, run, refused);
    }
    if (tells_steps) {
        fprintf(out, "Steps: %lld.\n", (long long)roll_json_int(report, "steps", 0));
    } else if (learned > 0) {
        snprintf(text, sizeof(text),
                 "Steps: the job tells none; its calls repeat %" PRId64
                 " times, and one repetition is taken for a step.",
                 learned);
        print_words(text, out);
    }
    print_order(json_object_get(report, "order"), numbers, out);
    print_ended(json_object_get(report, "ended"), out);
    roll_steered_print_odd(json_object_get(report, "steered"), json_object_get(report, "ended"),
                           (int)roll_json_int(report, "code", 0), out);
    roll_steered_print(json_object_get(report, "steered"), out);
    int64_t findings = roll_json_int(report, "findings_count", 0);
    if (findings > 0) {
        fprintf(out, "Findings: %lld\n", (long long)findings);
    } else if (roll_json_int(report, "code", 0) == ROLL_EXIT_TIMEOUT) {
        print_words("Findings: none yet, and the job hung: --timeout ended it before anybody could say why. With a "
                    "longer --timeout the reason may come.",
                    out);
    } else {
        fprintf(out, "Findings: none\n");
    }
    if (findings > 0 && skipped > 0 && !roll_steered_is_whole(json_object_get(report, "steered"))) {
        fprintf(out, roll_steered_is_computed(json_object_get(report, "steered"))
                         ? "All values that the host read back through PyTorch were computed.\n"
                         : "What skipped kernels would have computed reads as zero: look whether a finding comes from "
                           "that.\n");
    }
    json_array_foreach(json_object_get(report, "findings"), i, finding)
    {
        roll_verdict_print_line(out, finding, ROLL_VERDICT_COLUMNS(roll_columns_terminal(fileno(out))));
    }
    print_difference(json_object_get(report, "difference"), out);
    json_decref(comms);
    json_decref(numbers);
}
