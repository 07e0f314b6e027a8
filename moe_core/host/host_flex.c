/*
 * host_flex.c: the host back end's layout of the Flex dispatchers, and the words that travel beside the rows.
 *
 * All decisions about tokens are made in this file, when the stream runs: the host knows only T_pad when it enqueues.
 */
#include "moe_core/base/fail.h"
#include "moe_core/host/device_host.h"

#include <stdlib.h>
#include <string.h>

/* Counts one chosen expert of a token, and marks the ranks that the token goes to. */
static void enter(const struct moe_flex_layout *a, int64_t e, uint8_t *to, int64_t *counts)
{
    int64_t local = a->experts * a->etp / a->ranks, first = e / local * a->etp;
    counts[a->ranks + e]++;
    for (int64_t g = first; g < first + a->etp; g++) {
        to[g] = 1;
    }
}

/* Enters all choices of token t of a block. Errors: EXPERT. */
static int enter_token(const struct moe_flex_layout *a, const uint8_t *mask, int64_t t, uint8_t *to, int64_t *counts)
{
    if (mask != NULL) {
        const uint8_t *line = mask + t * a->mask_row;
        for (int64_t e = 0; e < a->experts; e++) {
            if (line[e] != 0) {
                enter(a, e, to, counts);
            }
        }
        return 0;
    }
    for (int32_t j = 0; j < a->k; j++) {
        int64_t e = a->index[t * a->k + j];
        if (e < -1 || e >= a->experts) {
            return MOE_E_EXPERT;
        }
        for (int32_t i = 0; e >= 0 && i < j; i++) {
            if (a->index[t * a->k + i] == e) {
                return MOE_E_EXPERT;
            }
        }
        if (e >= 0) {
            enter(a, e, to, counts);
            if (a->map != NULL) {
                a->map[t * a->mask_row + e] = 1;
            }
        }
    }
    return 0;
}

/* Finds the ranks that token t goes to, in the caller's map or, without one, in `scratch`. */
static int lay_out_token(const struct moe_flex_layout *a, const uint8_t *mask, int64_t t, uint8_t *scratch,
                         int64_t *counts)
{
    uint8_t *to = a->to_ranks != NULL ? a->to_ranks + t * a->ranks : scratch;
    memset(to, 0, (size_t)a->ranks);
    if (a->map != NULL) {
        memset(a->map + t * a->mask_row, 0, (size_t)a->mask_row);
    }
    if (t >= a->tokens) {
        return 0;
    }
    int rc = enter_token(a, mask, t, to, counts);
    for (int64_t g = 0; g < a->ranks; g++) {
        counts[g] += to[g];
    }
    return rc;
}

int moe_host_flex_layout(const void *args)
{
    const struct moe_flex_layout *a = args;
    int64_t numbers = a->ranks + a->experts;
    uint8_t *scratch = malloc((size_t)a->ranks);
    int rc = scratch == NULL ? MOE_E_NOMEM : 0;
    for (int64_t b = 0; b < a->blocks && rc == 0; b++) {
        const uint8_t *mask = a->mask != NULL ? a->mask + b * a->mask_stride : NULL;
        int64_t *counts = a->counts + b * (numbers + 1);
        memset(counts, 0, (size_t)numbers * sizeof(*counts));
        for (int64_t t = 0; t < a->padded && rc == 0; t++) {
            rc = lay_out_token(a, mask, t, scratch, counts);
        }
        if (mask != NULL) {
            memcpy(counts + numbers, mask + a->padded * a->mask_row, sizeof(*counts));
        }
        if (rc != 0) {
            counts[0] = -1;
        }
    }
    free(scratch);
    return rc;
}

int moe_host_flex_pack(const void *args)
{
    const struct moe_flex_pack *a = args;
    for (int64_t t = 0; t < a->padded; t++) {
        int32_t *expert = a->words + t * 2 * a->k, *bits = expert + a->k;
        for (int32_t j = 0; j < a->k; j++) {
            int32_t e = t < a->tokens ? a->index[t * a->k + j] : -1;
            expert[j] = e + 1;
            bits[j] = 0;
            if (e >= 0) {
                memcpy(&bits[j], &a->probs[t * a->experts + e], sizeof(bits[j]));
            }
        }
    }
    return 0;
}

int moe_host_flex_unpack(const void *args)
{
    const struct moe_flex_unpack *a = args;
    memset(a->probs, 0, (size_t)(a->rows * a->local) * sizeof(*a->probs));
    memset(a->mask, 0, (size_t)(a->rows * a->local));
    for (int64_t r = 0; r < a->rows; r++) {
        const int32_t *expert = a->words + r * 2 * a->k, *bits = expert + a->k;
        for (int32_t j = 0; j < a->k; j++) {
            int64_t e = expert[j] - 1 - a->first;
            bool here = expert[j] > 0 && e >= 0 && e < a->local;
            a->index[r * a->k + j] = here ? (int32_t)e : -1;
            if (here) {
                a->mask[r * a->local + e] = 1;
                memcpy(&a->probs[r * a->local + e], &bits[j], sizeof(bits[j]));
            }
        }
    }
    return 0;
}

int moe_host_flex_choices(const void *args)
{
    const struct moe_flex_choices *a = args;
    if (!a->inverse) {
        memset(a->by_expert, 0, (size_t)(a->rows * a->experts) * sizeof(*a->by_expert));
    }
    for (int64_t r = 0; r < a->rows; r++) {
        for (int32_t j = 0; j < a->k; j++) {
            int64_t e = a->index[r * a->k + j];
            float *choice = a->by_choice + r * a->k + j;
            if (a->inverse) {
                *choice = e >= 0 ? a->by_expert[r * a->experts + e] : 0.0f;
            } else if (e >= 0) {
                a->by_expert[r * a->experts + e] = *choice;
            }
        }
    }
    return 0;
}

int moe_host_flex_dropped(const void *args)
{
    const struct moe_flex_dropped *a = args;
    for (int64_t i = 0; i < a->groups; i++) {
        a->dropped[0] += a->chosen[i] > a->m[i] ? a->chosen[i] - a->m[i] : 0;
    }
    return 0;
}
