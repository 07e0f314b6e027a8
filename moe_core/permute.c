/*
 * permute.c: row maps and the four movements over one map.
 *
 * The handle carries kind, tokens, experts and rows, so that every shape is an argument and a map that was never built
 * is refused; deriving them from the operands, as the originals do, is what broke with zero rows (moe.md 2.4).
 */
#include "moe_core/include/moe/permute.h"

#include "moe_core/fail.h"
#include "moe_core/include/moe/ops.h"

#include <stdlib.h>

enum map_kind {
    MAP_NONE = 0, /* never built */
    MAP_MASK = 1,
};

struct moe_row_map {
    moe_device_t *device;
    enum map_kind kind;
    int64_t max_tokens, experts;
    int64_t tokens, rows;
    int32_t *cells; /* [T, 2E+1] */
};

int moe_row_map_new(moe_device_t *device, int64_t max_tokens, int64_t experts, moe_row_map_t **out)
{
    *out = NULL;
    if (max_tokens < 0 || experts < 1) {
        return moe_fail(MOE_E_SHAPE, MOE_NO_RANK, MOE_NO_LAYER, "a map of %lld tokens and %lld experts",
                        (long long)max_tokens, (long long)experts);
    }
    moe_row_map_t *map = calloc(1, sizeof *map);
    if (map == NULL) {
        return moe_fail(MOE_E_NOMEM, MOE_NO_RANK, MOE_NO_LAYER, "a row map");
    }
    map->device = device;
    map->max_tokens = max_tokens;
    map->experts = experts;
    int rc = moe_device_alloc(device, (size_t)max_tokens * (size_t)(2 * experts + 1) * sizeof(int32_t),
                              (void **)&map->cells);
    if (rc != 0) {
        free(map);
        return rc;
    }
    *out = map;
    return 0;
}

void moe_row_map_destroy(moe_row_map_t **map)
{
    if (*map != NULL) {
        moe_device_free((*map)->device, &(*map)->cells);
        free(*map);
        *map = NULL;
    }
}

int moe_row_map_build(moe_row_map_t *map, const int32_t *index, int32_t k, int64_t tokens, const int64_t *counts,
                      int64_t rows)
{
    map->kind = MAP_NONE;
    if (tokens < 0 || tokens > map->max_tokens || k < 1 || k > map->experts) {
        return moe_fail(MOE_E_SHAPE, MOE_NO_RANK, MOE_NO_LAYER,
                        "%lld tokens with top-%d; the map is for %lld tokens, %lld experts", (long long)tokens, k,
                        (long long)map->max_tokens, (long long)map->experts);
    }
    if (rows < 0 || rows > INT32_MAX || tokens * k > rows) {
        return moe_fail(MOE_E_CAPACITY, MOE_NO_RANK, MOE_NO_LAYER, "%lld tokens x %d in %lld rows", (long long)tokens,
                        k, (long long)rows);
    }
    struct moe_row_map_build build = {.tokens = tokens,
                                      .experts = map->experts,
                                      .k = k,
                                      .rows = rows,
                                      .index = index,
                                      .counts = counts,
                                      .map = map->cells};
    int rc = moe_device_ops(map->device)->row_map_build(map->device, &build);
    if (rc == 0) {
        map->kind = MAP_MASK;
        map->tokens = tokens;
        map->rows = rows;
    }
    return rc;
}

static int check(const moe_row_map_t *map, const char *what)
{
    if (map->kind != MAP_MASK) {
        return moe_fail(MOE_E_MAP, MOE_NO_RANK, MOE_NO_LAYER, "%s without a built map", what);
    }
    return 0;
}

int moe_permute(moe_row_map_t *map, const float *x, int64_t hidden, float *out)
{
    struct moe_map_gather gather = {.tokens = map->tokens,
                                    .experts = map->experts,
                                    .rows = map->rows,
                                    .width = hidden,
                                    .map = map->cells,
                                    .from = x,
                                    .to = out};
    int rc = check(map, "permute");
    return rc ? rc : moe_device_ops(map->device)->map_gather(map->device, &gather);
}

int moe_permute_backward(moe_row_map_t *map, const float *d_out, int64_t hidden, float *dx, float beta)
{
    struct moe_map_scatter scatter = {.tokens = map->tokens,
                                      .experts = map->experts,
                                      .rows = map->rows,
                                      .width = hidden,
                                      .map = map->cells,
                                      .from = d_out,
                                      .to = dx,
                                      .beta = beta};
    int rc = check(map, "permute backward");
    return rc ? rc : moe_device_ops(map->device)->map_scatter(map->device, &scatter);
}

int moe_unpermute(moe_row_map_t *map, const float *in, const float *probs, int64_t hidden, float *y)
{
    struct moe_map_scatter scatter = {.tokens = map->tokens,
                                      .experts = map->experts,
                                      .rows = map->rows,
                                      .width = hidden,
                                      .map = map->cells,
                                      .probs = probs,
                                      .from = in,
                                      .to = y};
    int rc = check(map, "unpermute");
    return rc ? rc : moe_device_ops(map->device)->map_scatter(map->device, &scatter);
}

int moe_unpermute_backward(moe_row_map_t *map, const float *dy, const float *in, const float *probs, int64_t hidden,
                           float *d_in, float *d_probs)
{
    struct moe_map_scatter_backward back = {.tokens = map->tokens,
                                            .experts = map->experts,
                                            .rows_count = map->rows,
                                            .width = hidden,
                                            .map = map->cells,
                                            .probs = probs,
                                            .dy = dy,
                                            .rows = in,
                                            .d_rows = d_in,
                                            .d_probs = d_probs};
    int rc = check(map, "unpermute backward");
    return rc ? rc : moe_device_ops(map->device)->map_scatter_backward(map->device, &back);
}
