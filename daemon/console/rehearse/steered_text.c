/*
 * steered_text.c: what the notes of a steered job say, for people: the member "steered" of the report in sentences.
 */
#include "daemon/console/rehearse/steered.h"

#include "daemon/base/json.h"
#include "daemon/console/text.h"
#include "trace/rankset.h"
#include "trace/source_line.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MOST       20 /* of the table; the JSON has all */
#define OPERATIONS_MOST 5  /* that failed or were left out, in the text */
static long long number_of(const json_t *object, const char *name)
{
    return (long long)json_integer_value(json_object_get(object, name));
}

/* " (aten::mm 7, aten::cat)": the first of the operations; a number where there is more than one of it. */
static void print_names(const json_t *operations, FILE *out)
{
    size_t i;
    json_t *one;
    json_array_foreach((json_t *)operations, i, one)
    {
        if (i == OPERATIONS_MOST) {
            fprintf(out, ", ...");
            break;
        }
        fprintf(out, "%s%s", i == 0 ? " (" : ", ", json_string_value(json_object_get(one, "operation")));
        if (number_of(one, "count") > 1) {
            fprintf(out, " %lld", number_of(one, "count"));
        }
    }
    fprintf(out, i > 0 ? ")" : "");
}

static void print_operations(const json_t *steered, FILE *out)
{
    const json_t *operations = json_object_get(steered, "operations");
    long long captured = number_of(operations, "captured"), refused = number_of(operations, "failed");
    long long compiled = number_of(operations, "compiled");
    fprintf(out, "Operations on CUDA tensors: %lld computed on the host (up to %lld bytes each), %lld left out",
            number_of(operations, "computed"), number_of(steered, "size_bytes"), number_of(operations, "left"));
    print_names(json_object_get(steered, "left"), out);
    if (compiled > 0) {
        fprintf(out, ", %lld kernels that the job has compiled left out", compiled);
    }
    if (captured > 0) {
        fprintf(out, ", %lld captured in graphs", captured);
    }
    if (refused > 0) {
        fprintf(out, ", %lld that the host cannot compute", refused);
        print_names(json_object_get(steered, "failed"), out);
    }
    long long size = number_of(steered, "size_bytes");
    bool offers = number_of(operations, "left") > 0 && size > 0;
    fprintf(out, !offers          ? ".\n"
                 : size < 1 << 20 ? ". With --compute 1M more are computed.\n"
                                  : ". A larger --compute "
                                    "computes more.\n");
}

/* The way in which a rank ended, as the report says it: its code, 128 + signal; `otherwise` where it does not say. */
static int code_of(const json_t *ended, int64_t rank, int otherwise)
{
    size_t i, k;
    json_t *one, *member;
    json_array_foreach((json_t *)ended, i, one)
    {
        json_array_foreach(json_object_get(one, "ranks"), k, member)
        {
            if (json_integer_value(member) == rank) {
                long long signal = number_of(one, "signal");
                return signal > 0 ? 128 + (int)signal : (int)number_of(one, "code");
            }
        }
    }
    return otherwise;
}

/* The line of the job that an entry of the report names. */
static const char *line_of(const json_t *entry, char *out, size_t size)
{
    return roll_source_line_text(out, size, roll_json_text(entry, "file", ""), (uint32_t)number_of(entry, "line"),
                                 roll_json_text(entry, "function", ""));
}

/* One line for the ranks that read the same at the same place and ended alike. */
static void print_one_odd(const json_t *odd, const struct roll_rankset *ranks, bool is_failed, FILE *out)
{
    const char *value = json_string_value(json_object_get(odd, "value")),
               *read = json_string_value(json_object_get(odd, "read"));
    char who[128] = "", at[512];
    if (roll_rankset_count(ranks) > 0) {
        roll_rankset_format(ranks, who, sizeof(who));
    }
    fprintf(out, "%s%s %s %s had read %s at %s (value: %s%s).\n",
            who[0] == '\0'                  ? "A rank"
            : roll_rankset_count(ranks) > 1 ? "Ranks "
                                            : "Rank ",
            who, is_failed ? "stopped after" : "ended just after", roll_rankset_count(ranks) > 1 ? "they" : "it", read,
            line_of(odd, at, sizeof(at)), value,
            roll_steered_is_doubtful(value) ? ", so the rehearsal's own: see --compute, and rollcall.rehearse.value_at"
                                            : "");
}

void roll_steered_print_odd(const json_t *steered, const json_t *ended, int code, FILE *out)
{
    const json_t *odd = json_object_get(steered, "odd");
    size_t i, k, count = json_array_size(odd);
    json_t *one, *other;
    bool *is_told = calloc(count + 1, sizeof(*is_told));
    /* Where it is known how each rank ended, a rank that is not named there ended with 0, or was ended with the job
     * that did not move (124), of which nothing can be said. */
    int otherwise = code == 124 ? -1 : json_array_size(ended) > 0 ? 0 : code;
    json_array_foreach((json_t *)odd, i, one)
    {
        struct roll_rankset ranks = {0};
        int how = code_of(ended, number_of(one, "rank"), otherwise);
        bool is_failed = how > 0;
        bool is_nan = strcmp(json_string_value(json_object_get(one, "read")), "nan") == 0;
        if (is_told == NULL || is_told[i] || how < 0 || (!is_failed && !is_nan)) {
            continue; /* a job that reads inf and goes on to its end has a reason for it */
        }
        for (k = i; k < count; k++) {
            other = json_array_get(odd, k);
            int other_how = code_of(ended, number_of(other, "rank"), otherwise);
            bool same = other_how >= 0 && (other_how > 0) == is_failed;
            static const char *const names[] = {"read", "value", "file", "line", "function"};
            for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
                same = same && json_equal(json_object_get(one, names[n]), json_object_get(other, names[n]));
            }
            is_told[k] = is_told[k] || same;
            if (same && json_is_integer(json_object_get(other, "rank"))) {
                (void)roll_rankset_add(&ranks, (uint32_t)number_of(other, "rank"));
            }
        }
        print_one_odd(one, &ranks, is_failed, out);
        roll_rankset_fini(&ranks);
    }
    free(is_told);
}

static void print_reads(const json_t *steered, FILE *out)
{
    struct roll_columns table = {.columns = 5, .right = 1};
    size_t i, rows = 0, doubtful = 0;
    json_t *one;
    char line[1024], reads[24], at[512];
    roll_columns_row(&table, (const char *const[]){"READS", "RANKS", "VALUE", "HOW", "READ BACK AT"});
    json_array_foreach(json_object_get(steered, "read_at"), i, one)
    {
        const char *value = json_string_value(json_object_get(one, "value"));
        if (!roll_steered_is_doubtful(value) || ++doubtful > ROWS_MOST) {
            continue;
        }
        snprintf(reads, sizeof(reads), "%lld", number_of(one, "reads"));
        line_of(one, at, sizeof(at));
        roll_columns_row(&table, (const char *const[]){reads, json_string_value(json_object_get(one, "ranks")), value,
                                                       json_string_value(json_object_get(one, "how")), at});
    }
    rows = roll_columns_rows(&table);
    if (doubtful > 0) {
        fprintf(out, "\nRead back, and nobody computed it: a branch on it is the rehearsal's own (docs/REHEARSE.md, "
                     "\"Values that steer\"):\n\n");
        for (i = 0; i < rows; i++) {
            roll_columns_line(&table, i, 0, line, sizeof(line));
            fprintf(out, "%s\n", line);
        }
        if (doubtful > ROWS_MOST) {
            fprintf(out, "and %zu more: --json has them\n", doubtful - ROWS_MOST);
        }
        fputc('\n', out);
    }
    roll_columns_fini(&table);
}

bool roll_steered_is_computed(const json_t *steered)
{
    const json_t *reads = json_object_get(steered, "reads");
    const char *name;
    json_t *number;
    json_object_foreach((json_t *)reads, name, number)
    {
        if (strcmp(name, "computed") != 0 && strcmp(name, "copied") != 0 && strcmp(name, "supplied") != 0) {
            return false;
        }
    }
    return json_object_size(reads) > 0;
}

bool roll_steered_is_whole(const json_t *steered)
{
    const json_t *operations = json_object_get(steered, "operations");
    return json_object_size(json_object_get(steered, "reads")) == 0 && number_of(operations, "computed") > 0 &&
           number_of(operations, "left") == 0 && number_of(operations, "compiled") == 0 &&
           number_of(operations, "captured") == 0 && number_of(operations, "failed") == 0;
}

void roll_steered_print(const json_t *steered, FILE *out)
{
    const json_t *reads = json_object_get(steered, "reads"), *stopped = json_object_get(steered, "stopped");
    const char *name;
    json_t *number;
    bool is_first = true;
    if (!json_is_object(steered)) {
        return;
    }
    if (json_object_size(reads) > 0 || number_of(json_object_get(steered, "operations"), "computed") > 0) {
        print_operations(steered, out);
        fprintf(out, "Values that the host read back: ");
        json_object_foreach((json_t *)reads, name, number)
        {
            fprintf(out, "%s%lld %s", is_first ? "" : ", ", (long long)json_integer_value(number), name);
            is_first = false;
        }
        fprintf(out, is_first ? "none.\n" : ".\n");
        print_reads(steered, out);
    }
    if (json_is_object(stopped)) {
        const char *ranks = json_string_value(json_object_get(stopped, "ranks"));
        long long steps = number_of(stopped, "steps");
        fprintf(out, "Stopped after %lld step%s: rank%s %s.\n", steps, steps == 1 ? "" : "s",
                strpbrk(ranks, ",-") != NULL ? "s" : "", ranks);
    }
}
