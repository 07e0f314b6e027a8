/*
 * report_text.c: the report of a rehearsal for people: three tables and the findings.
 */
#include "daemon/base/units.h"
#include "daemon/console/rehearse/rehearse.h"
#include "daemon/console/rehearse/steered.h"
#include "daemon/console/text.h"
#include "daemon/verdict/verdict_text.h"

#include <stdio.h>

#define ROWS_MOST 60 /* of a table; the JSON has all */

static void print_table(struct roll_columns *table, FILE *out)
{
    size_t rows = roll_columns_rows(table);
    char line[1024];
    for (size_t i = 0; i < rows && i <= ROWS_MOST; i++) {
        roll_columns_line(table, i, 0, line, sizeof(line));
        fprintf(out, "%s\n", line);
    }
    if (rows > ROWS_MOST + 1) {
        fprintf(out, "and %zu more: --json has them\n", rows - ROWS_MOST - 1);
    }
    fputc('\n', out);
    roll_columns_fini(table);
}

/* What a communicator is called: as the job named it, else by its role; "" where neither is known. */
static const char *name_of(const json_t *comm)
{
    const char *label = roll_json_text(comm, "label", "");
    return label[0] != '\0' ? label : roll_json_text(comm, "role", "");
}

/* A number that connects the two tables, as many communicators have no name. */
static const char *number_text(size_t i, char out[24])
{
    snprintf(out, 24, "%zu", i + 1);
    return out;
}

static void print_communicators(const json_t *comms, FILE *out)
{
    struct roll_columns table = {.columns = 4, .right = 1};
    size_t i;
    json_t *comm;
    char number[24];
    roll_columns_row(&table, (const char *const[]){"#", "COMMUNICATOR", "RANKS", "MADE BY"});
    json_array_foreach((json_t *)comms, i, comm)
    {
        roll_columns_row(&table,
                         (const char *const[]){number_text(i, number), name_of(comm), roll_json_text(comm, "ranks", ""),
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
        snprintf(step_calls, sizeof(step_calls), "%.4g", json_number_value(json_object_get(call, "calls_per_step")));
        roll_units_bytes_text(json_number_value(json_object_get(call, "bytes_per_step")), step_bytes,
                              sizeof(step_bytes));
    }
    roll_columns_row(table, (const char *const[]){
                                number, name_of(comm), roll_json_text(call, "op", ""), calls,
                                roll_units_bytes_text((double)roll_json_int(call, "bytes", 0), bytes, sizeof(bytes)),
                                step_calls, step_bytes});
}

/* Calls and bytes are those of one rank; where the ranks differ, of the one with the most. */
static void print_calls(const json_t *comms, bool has_steps, FILE *out)
{
    struct roll_columns table = {.columns = has_steps ? 7 : 5, .right = 1 | 8 | 16 | 32 | 64};
    size_t i, k;
    json_t *comm, *call;
    char number[24];
    roll_columns_row(
        &table, (const char *const[]){"#", "COMMUNICATOR", "OPERATION", "CALLS", "BYTES", "CALLS/STEP", "BYTES/STEP"});
    json_array_foreach((json_t *)comms, i, comm)
    {
        json_array_foreach(json_object_get(comm, "calls"), k, call)
        {
            add_call(&table, number_text(i, number), comm, call, has_steps);
        }
    }
    print_table(&table, out);
}

static void print_memory(const json_t *memory, FILE *out)
{
    struct roll_columns table = {.columns = 3};
    size_t i, k;
    json_t *rank, *device;
    roll_columns_row(&table, (const char *const[]){"RANK", "HOST MEMORY", "DEVICE MEMORY"});
    json_array_foreach((json_t *)memory, i, rank)
    {
        char number[16] = "?", host[32] = "", devices[512] = "", peak[32], size[32];
        int n = 0;
        if (json_is_integer(json_object_get(rank, "rank"))) {
            snprintf(number, sizeof(number), "%d", (int)roll_json_int(rank, "rank", 0));
        }
        if (json_is_integer(json_object_get(rank, "host_peak_bytes"))) {
            roll_units_bytes_text((double)roll_json_int(rank, "host_peak_bytes", 0), host, sizeof(host));
        }
        json_array_foreach(json_object_get(rank, "devices"), k, device)
        {
            if (n < (int)sizeof(devices) - 80) {
                n +=
                    snprintf(devices + n, sizeof(devices) - (size_t)n, "%s%d: %s of %s", n > 0 ? ", " : "",
                             (int)roll_json_int(device, "device", 0),
                             roll_units_bytes_text((double)roll_json_int(device, "peak_bytes", 0), peak, sizeof(peak)),
                             roll_units_bytes_text((double)roll_json_int(device, "size_bytes", 0), size, sizeof(size)));
            }
        }
        roll_columns_row(&table, (const char *const[]){number, host, devices});
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
    size_t i;
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
        fprintf(out, "    %s\n", roll_json_text(change, "text", ""));
    }
}

void roll_rehearse_print(const json_t *report, FILE *out)
{
    const json_t *comms = json_object_get(report, "communicators"), *kernels = json_object_get(report, "kernels");
    bool has_steps = json_is_integer(json_object_get(report, "steps"));
    size_t i;
    json_t *finding;
    fprintf(out, "\nRehearsal of %s\n\n", roll_json_text(report, "job", "?"));
    if (json_array_size(comms) > 0) {
        print_communicators(comms, out);
        print_calls(comms, has_steps, out);
    }
    print_memory(json_object_get(report, "memory"), out);
    long long skipped = roll_json_int(kernels, "skipped", 0), run = roll_json_int(kernels, "run", 0),
              refused = roll_json_int(kernels, "refused", 0);
    if (skipped + run + refused > 0) {
        fprintf(out, "Kernels: %lld skipped, %lld run on the host, %lld refused.\n", skipped, run, refused);
    }
    if (has_steps) {
        fprintf(out, "Steps: %lld.\n", (long long)roll_json_int(report, "steps", 0));
    }
    roll_steered_print(json_object_get(report, "steered"), out);
    int64_t findings = roll_json_int(report, "findings_count", 0);
    fprintf(out, findings > 0 ? "Findings: %lld\n" : "Findings: none\n", (long long)findings);
    if (findings > 0 && skipped > 0) {
        fprintf(out,
                "What skipped kernels would have computed reads as zero: look whether a finding comes from that.\n");
    }
    json_array_foreach(json_object_get(report, "findings"), i, finding)
    {
        roll_verdict_print_line(out, finding, false);
    }
    print_difference(json_object_get(report, "difference"), out);
}
