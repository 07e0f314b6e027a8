/*
 * legacy.c: the table of the wrong behaviours that --legacy switches on by name; the comment of each member says what
 * it does.
 *
 * One option with names was preferred to an option for each: the catalogue of faults uses the names, and a new
 * behaviour is one row here.
 */
#include "moe_core/train/legacy.h"

#include <stddef.h>
#include <string.h>

static const struct {
    const char *name;
    size_t member; /* a bool of struct legacy */
    const char *help;
} table[] = {
    {"skip-empty", offsetof(struct legacy, layer.legacy_skip_empty), "H1: a rank without tokens skips its experts"},
    {"bucket-wait", offsetof(struct legacy, bucket_wait),
     "H2: with --overlap, a gradient bucket that is not complete is never reduced"},
    {"only-with-grad", offsetof(struct legacy, bucket_only_with_grad),
     "H3: gradient buckets hold only parameters that got a gradient"},
    {"empty-unpermute", offsetof(struct legacy, layer.dispatcher.empty_unpermute),
     "H4: combine of a rank without rows gives no rows"},
    {"empty-from-input", offsetof(struct legacy, layer.dispatcher.empty_from_input),
     "H5: a rank without rows takes them from its own input"},
    {"empty-returns-early", offsetof(struct legacy, layer.dispatcher.empty_returns_early),
     "H6: a rank without rows leaves dispatch early"},
    {"recompute-flip", offsetof(struct legacy, layer.legacy_recompute_flip),
     "H9: with --recompute, a tie falls the other way the second time"},
    {"static-rows", offsetof(struct legacy, layer.dispatcher.static_rows),
     "H12: the buffers have tokens times top-k rows, whatever the routing map says"},
    {"local-capacity", offsetof(struct legacy, layer.dispatcher.local_capacity),
     "H13: the capacity is computed from the rank's own tokens"},
    {"wgrad-uninitialised", offsetof(struct legacy, layer.legacy_wgrad_uninitialised),
     "H14: weight gradients of experts without rows are what the memory held"},
    {"slack-uninitialised", offsetof(struct legacy, layer.dispatcher.slack_uninitialised),
     "H14: rows that no token fills are what the memory held"},
    {"router-unsummed", offsetof(struct legacy, layer.legacy_router_unsummed),
     "H15: with --tp, no rank sums the router's gradient"},
    {"router-summed-twice", offsetof(struct legacy, layer.legacy_router_summed_twice),
     "the opposite of H15: the router's gradient is summed twice"},
};
enum { ROWS = sizeof(table) / sizeof(table[0]) };

int legacy_parse(const char *name, struct legacy *legacy)
{
    for (size_t i = 0; i < ROWS; i++) {
        if (strcmp(table[i].name, name) == 0) {
            *(bool *)((char *)legacy + table[i].member) = true;
            return 0;
        }
    }
    fprintf(stderr, "moe_train: --legacy '%s': no such behaviour; --help lists them\n", name);
    return -1;
}

void legacy_help(FILE *out)
{
    for (size_t i = 0; i < ROWS; i++) {
        fprintf(out, "  %-20s %s\n", table[i].name, table[i].help);
    }
}
