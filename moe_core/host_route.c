/*
 * host_route.c: the host back end's row maps and chunk order.
 *
 * All loops run in a fixed order, tokens before experts, so that results are bitwise reproducible.
 */
#include "moe_core/device_host.h"
#include "moe_core/fail.h"

#include <string.h>

static size_t floats(int64_t rows, int64_t width)
{
    return (size_t)rows * (size_t)width * sizeof(float);
}

int moe_host_row_map_build(const void *args)
{
    const struct moe_row_map_build *a = args;
    int64_t stride = 2 * a->experts + 1;
    int64_t start = 0, routed = 0, wanted = 0;
    /* Expert by expert: the row of a token is its expert's start plus the tokens before it, so one pass over the
     * tokens fills one column. */
    for (int64_t t = 0; t < a->tokens; t++) {
        a->map[t * stride + 2 * a->experts] = 0;
        for (int32_t j = 0; j < a->k; j++) {
            wanted += a->index[t * a->k + j] != -1;
        }
    }
    for (int64_t e = 0; e < a->experts; e++) {
        int64_t row = start;
        if (a->counts[e] < 0) {
            return MOE_E_COUNT;
        }
        if (a->counts[e] > a->rows - start) {
            return MOE_E_CAPACITY;
        }
        start += a->counts[e];
        for (int64_t t = 0; t < a->tokens; t++) {
            bool chosen = false;
            for (int32_t j = 0; j < a->k; j++) {
                chosen = chosen || a->index[t * a->k + j] == e;
            }
            if (!chosen) {
                continue;
            }
            if (row >= start) {
                return MOE_E_SPLIT;
            }
            int32_t *line = a->map + t * stride, n = line[2 * a->experts];
            line[n] = (int32_t)row++;
            line[a->experts + n] = (int32_t)e;
            line[2 * a->experts] = n + 1;
            routed++;
        }
    }
    /* Rows were found in ascending order; the map keeps them descending. */
    for (int64_t t = 0; t < a->tokens; t++) {
        int32_t *line = a->map + t * stride, n = line[2 * a->experts];
        for (int32_t i = 0; i < n / 2; i++) {
            int32_t *low = line + i, *high = line + n - 1 - i, keep = *low;
            *low = *high;
            *high = keep;
            low = line + a->experts + i;
            high = line + a->experts + n - 1 - i;
            keep = *low;
            *low = *high;
            *high = keep;
        }
    }
    return routed == wanted ? 0 : MOE_E_EXPERT;
}

/* Rows that tokens map to; the others are padding. */
static int64_t mapped_rows(const int32_t *map, int64_t tokens, int64_t experts)
{
    int64_t rows = 0;
    for (int64_t t = 0; t < tokens; t++) {
        rows += map[t * (2 * experts + 1) + 2 * experts];
    }
    return rows;
}

int moe_host_map_gather(const void *args)
{
    const struct moe_map_gather *a = args;
    int64_t stride = 2 * a->experts + 1;
    if (mapped_rows(a->map, a->tokens, a->experts) != a->rows) {
        memset(a->to, 0, floats(a->rows, a->width));
    }
    for (int64_t t = 0; t < a->tokens; t++) {
        const int32_t *line = a->map + t * stride;
        for (int32_t i = 0; i < line[2 * a->experts]; i++) {
            memcpy(a->to + line[i] * a->width, a->from + t * a->width, floats(1, a->width));
        }
    }
    return 0;
}

int moe_host_map_scatter(const void *args)
{
    const struct moe_map_scatter *a = args;
    int64_t stride = 2 * a->experts + 1;
    for (int64_t t = 0; t < a->tokens; t++) {
        const int32_t *line = a->map + t * stride;
        float *to = a->to + t * a->width;
        if (a->beta == 0.0f) {
            memset(to, 0, floats(1, a->width));
        }
        for (int32_t i = 0; i < line[2 * a->experts]; i++) {
            const float *from = a->from + line[i] * a->width;
            float p = a->probs != NULL ? a->probs[t * a->experts + line[a->experts + i]] : 1.0f;
            for (int64_t h = 0; h < a->width; h++) {
                to[h] += p * from[h];
            }
        }
    }
    return 0;
}

int moe_host_map_scatter_backward(const void *args)
{
    const struct moe_map_scatter_backward *a = args;
    int64_t stride = 2 * a->experts + 1;
    if (mapped_rows(a->map, a->tokens, a->experts) != a->rows_count) {
        memset(a->d_rows, 0, floats(a->rows_count, a->width));
    }
    memset(a->d_probs, 0, floats(a->tokens, a->experts));
    for (int64_t t = 0; t < a->tokens; t++) {
        const int32_t *line = a->map + t * stride;
        const float *dy = a->dy + t * a->width;
        for (int32_t i = 0; i < line[2 * a->experts]; i++) {
            int64_t cell = t * a->experts + line[a->experts + i];
            const float *row = a->rows + line[i] * a->width;
            float *d_row = a->d_rows + line[i] * a->width;
            float p = a->probs[cell], dot = 0.0f;
            for (int64_t h = 0; h < a->width; h++) {
                d_row[h] = p * dy[h];
                dot += dy[h] * row[h];
            }
            a->d_probs[cell] = dot;
        }
    }
    return 0;
}

int moe_host_chunk_map(const void *args)
{
    const struct moe_chunk_map *a = args;
    int64_t local = a->experts / a->ranks, first = a->rank * local, start = 0;
    memset(a->m, 0, (size_t)local * sizeof *a->m);
    /* Received order: by source rank, then by expert. Wanted: by expert, then by source rank. */
    for (int64_t i = 0; i < local; i++) {
        int64_t before = 0; /* rows received ahead of this (source, expert) chunk */
        for (int64_t p = 0; p < a->ranks; p++) {
            const int64_t *counts = a->counts + p * a->stride + first;
            for (int64_t j = 0; j < i; j++) {
                before += counts[j];
            }
            if (counts[i] < 0 || counts[i] > a->rows - start) {
                return MOE_E_SPLIT;
            }
            for (int64_t r = 0; r < counts[i]; r++) {
                a->map[before + r] = (int32_t)(start + r);
            }
            start += counts[i];
            a->m[i] += counts[i];
            for (int64_t j = i; j < local; j++) {
                before += counts[j];
            }
        }
    }
    return start == a->rows ? 0 : MOE_E_SPLIT;
}

int moe_host_chunk_sort(const void *args)
{
    const struct moe_chunk_sort *a = args;
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t from = a->inverse ? a->map[r] : r, to = a->inverse ? r : a->map[r];
        memcpy(a->to + to * a->width, a->from + from * a->width, floats(1, a->width));
    }
    return 0;
}

int moe_host_pad_counts(const void *args)
{
    const struct moe_pad_counts *a = args;
    int64_t local = a->experts / a->ranks;
    for (int64_t r = 0; r < a->ranks; r++) {
        int64_t rows = 0;
        for (int64_t p = 0; p < a->ranks; p++) {
            for (int64_t i = 0; i < local; i++) {
                rows += a->counts[p * a->stride + r * local + i];
            }
        }
        if (rows == 0) {
            a->counts[(r + 1) % a->ranks * a->stride + r * local]++;
        }
    }
    return 0;
}
