/*
 * rows.c: chunk maps, padding and trimming: what can be checked before the stream runs is checked here.
 */
#include "moe_core/include/moe/rows.h"

#include "moe_core/base/fail.h"
#include "moe_core/include/moe/ops.h"

#include <stdlib.h>

#define FAIL(code, ...) moe_fail(code, MOE_NO_RANK, MOE_NO_LAYER, __VA_ARGS__)

struct moe_chunks {
    moe_device_t *device;
    int64_t max_rows, rows; /* rows: -1 until built */
    struct moe_map_header *map;
};

int moe_chunks_new(moe_device_t *device, int64_t max_rows, moe_chunks_t **out)
{
    *out = NULL;
    if (max_rows < 0 || max_rows > INT32_MAX) {
        return FAIL(MOE_E_SHAPE, "a chunk map of %lld rows", (long long)max_rows);
    }
    moe_chunks_t *chunks = calloc(1, sizeof(*chunks));
    if (chunks == NULL) {
        return FAIL(MOE_E_NOMEM, "a chunk map");
    }
    chunks->device = device;
    chunks->max_rows = max_rows;
    chunks->rows = -1;
    int rc = moe_device_alloc(device, moe_map_bytes(MOE_MAP_CHUNK, 0, 0, 0, max_rows), (void **)&chunks->map);
    if (rc != 0) {
        free(chunks);
        return rc;
    }
    *out = chunks;
    return 0;
}

void moe_chunks_destroy(moe_chunks_t **chunks)
{
    if (*chunks != NULL) {
        moe_device_free((*chunks)->device, &(*chunks)->map);
        free(*chunks);
        *chunks = NULL;
    }
}

/* Marks the map as not built; it stays so until the build succeeds. */
static int begin(moe_chunks_t *chunks, int64_t rows)
{
    if (chunks == NULL) {
        return FAIL(MOE_E_MAP, "the chunk map is NULL");
    }
    chunks->rows = -1;
    if (rows < 0 || rows > chunks->max_rows) {
        return FAIL(MOE_E_CAPACITY, "chunks of %lld rows; the map is for %lld", (long long)rows,
                    (long long)chunks->max_rows);
    }
    return 0;
}

int moe_chunks_order(moe_chunks_t *chunks, const int64_t *split, const int32_t *order, int64_t n, int64_t rows,
                     bool slack)
{
    int rc = begin(chunks, rows);
    if (rc == 0 && (n < 0 || n > INT32_MAX)) {
        rc = FAIL(MOE_E_SHAPE, "%lld chunks", (long long)n);
    }
    if (rc == 0) {
        const struct moe_chunk_order args = {
            .chunks = n, .rows = rows, .slack = slack, .split = split, .order = order, .map = chunks->map};
        rc = moe_device_ops(chunks->device)->chunk_order(chunks->device, &args);
        chunks->rows = rc == 0 ? rows : -1;
    }
    return rc;
}

int moe_chunks_counts(moe_chunks_t *chunks, const struct moe_chunk_counts *c, int64_t rows, bool slack)
{
    int rc = begin(chunks, rows);
    if (rc == 0 && (c->ranks < 1 || c->experts < 1 || c->experts % c->ranks != 0 || c->stride < c->experts ||
                    c->rank < 0 || c->rank >= c->ranks)) {
        rc = FAIL(MOE_E_SHAPE, "counts of %lld ranks and %lld experts, %lld apart, seen from rank %lld",
                  (long long)c->ranks, (long long)c->experts, (long long)c->stride, (long long)c->rank);
    }
    if (rc == 0) {
        const struct moe_chunk_map args = {.ranks = c->ranks,
                                           .experts = c->experts,
                                           .stride = c->stride,
                                           .rank = c->rank,
                                           .rows = rows,
                                           .slack = slack,
                                           .counts = c->counts,
                                           .m = c->m,
                                           .map = chunks->map};
        rc = moe_device_ops(chunks->device)->chunk_map(chunks->device, &args);
        chunks->rows = rc == 0 ? rows : -1;
    }
    return rc;
}

static int check_type(enum moe_dtype type, int64_t width)
{
    if (moe_dtype_bytes(type) == 0) {
        return FAIL(MOE_E_ARG, "rows of type %d", (int)type);
    }
    return width < 0 ? FAIL(MOE_E_SHAPE, "rows of %lld elements", (long long)width) : 0;
}

int moe_chunks_sort(moe_chunks_t *chunks, enum moe_dtype type, int64_t rows, int64_t width, bool inverse,
                    const void *from, void *to, const float *probs_from, float *probs_to)
{
    if (chunks == NULL || chunks->rows < 0 || chunks->rows != rows) {
        return FAIL(MOE_E_MAP, "a sort of %lld rows over a chunk map of %lld", (long long)rows,
                    (long long)(chunks != NULL ? chunks->rows : -1));
    }
    if ((probs_from == NULL) != (probs_to == NULL)) {
        return FAIL(MOE_E_ARG, "probabilities on one side of a sort only");
    }
    int rc = check_type(type, width);
    if (rc != 0) {
        return rc;
    }
    const struct moe_chunk_sort args = {.rows = rows,
                                        .width = width,
                                        .type = type,
                                        .inverse = inverse,
                                        .map = chunks->map,
                                        .from = from,
                                        .to = to,
                                        .probs_from = probs_from,
                                        .probs_to = probs_to};
    return moe_device_ops(chunks->device)->chunk_sort(chunks->device, &args);
}

static int pad(moe_device_t *device, const struct moe_pad_rows *args)
{
    int rc = check_type(args->type, args->width);
    if (rc == 0 && (args->rows < 0 || args->padded < 0)) {
        rc = FAIL(MOE_E_SHAPE, "%lld rows, %lld padded", (long long)args->rows, (long long)args->padded);
    }
    if (rc == 0 && args->groups == 0 && args->padded < args->rows) {
        rc = FAIL(MOE_E_CAPACITY, "%lld rows padded to %lld", (long long)args->rows, (long long)args->padded);
    }
    return rc ? rc : moe_device_ops(device)->pad_rows(device, args);
}

int moe_rows_pad(moe_device_t *device, enum moe_dtype type, int64_t rows, int64_t padded, int64_t width,
                 const void *from, void *to)
{
    const struct moe_pad_rows args = {
        .type = type, .rows = rows, .padded = padded, .width = width, .from = from, .to = to};
    return pad(device, &args);
}

int moe_rows_trim(moe_device_t *device, enum moe_dtype type, int64_t rows, int64_t padded, int64_t width,
                  const void *from, void *to)
{
    const struct moe_pad_rows args = {
        .type = type, .trim = true, .rows = rows, .padded = padded, .width = width, .from = from, .to = to};
    return pad(device, &args);
}

int moe_rows_pad_groups(moe_device_t *device, enum moe_dtype type, const struct moe_row_groups *groups, bool trim,
                        int64_t rows, int64_t padded, int64_t width, const void *from, void *to)
{
    if (groups->groups < 1 || groups->m == NULL || groups->align < 0 || groups->align > INT32_MAX) {
        return FAIL(MOE_E_ARG, "%lld groups, aligned to %lld", (long long)groups->groups, (long long)groups->align);
    }
    const struct moe_pad_rows args = {.type = type,
                                      .trim = trim,
                                      .rows = rows,
                                      .padded = padded,
                                      .width = width,
                                      .groups = groups->groups,
                                      .m = groups->m,
                                      .align = groups->align,
                                      .padded_m = groups->padded_m,
                                      .from = from,
                                      .to = to};
    return pad(device, &args);
}
