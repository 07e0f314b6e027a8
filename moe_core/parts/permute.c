/*
 * permute.c: row maps and the four movements over one map.
 *
 * The handle carries kind, tokens, experts, k and rows, so that every shape is an argument and a map of another shape
 * or kind, or one that was never built, is refused before anything is enqueued; deriving shapes from the operands, as
 * the originals do, is what broke with zero rows (Megatron-LM #3626). What only the stream can see (a build that
 * failed, a buffer that was overwritten) the stream refuses, by the header in the buffer itself.
 */
#include "moe_core/include/moe/permute.h"

#include "moe_core/base/fail.h"
#include "moe_core/base/memory.h"
#include "moe_core/include/moe/ops.h"

#include <stdlib.h>

#define HANDLE_MAGIC 0x726f774d61700001ull

struct moe_row_map {
    uint64_t magic; /* 0 once destroyed */
    moe_device_t *device;
    struct moe_row_map_config config;
    bool built;
    int32_t k;
    int64_t tokens, rows;
    struct moe_map_header *buffer;
};

#define FAIL(code, ...) moe_fail(code, MOE_NO_RANK, MOE_NO_LAYER, __VA_ARGS__)

const char *moe_map_kind_name(enum moe_map_kind kind)
{
    static const char *const names[MOE_MAP_KINDS] = {"mask", "index", "sorted", "chunk"};
    return (unsigned)kind < MOE_MAP_KINDS ? names[kind] : "?";
}

size_t moe_map_bytes(enum moe_map_kind kind, int64_t tokens, int64_t experts, int32_t k, int64_t rows)
{
    size_t t = (size_t)tokens, choices = 2 * (size_t)k * t, cells = 0;
    switch (kind) {
    case MOE_MAP_MASK:
        cells = t * (2 * (size_t)experts + 1);
        break;
    case MOE_MAP_INDEX:
        cells = choices;
        break;
    case MOE_MAP_SORTED:
        cells = choices + (size_t)rows;
        break;
    default:
        cells = (size_t)rows;
    }
    return sizeof(struct moe_map_header) + cells * sizeof(int32_t);
}

int moe_row_map_create(moe_device_t *device, const struct moe_row_map_config *config, moe_row_map_t **out)
{
    struct moe_row_map_config c = *config;
    *out = NULL;
    if ((unsigned)c.kind >= MOE_MAP_CHUNK || c.max_tokens < 0 || c.experts < 1 || c.experts > INT32_MAX / 2 ||
        (c.kind != MOE_MAP_MASK && (c.k < 1 || c.k > c.experts || c.max_tokens > INT32_MAX / c.k)) || c.max_rows < 0 ||
        c.max_rows > INT32_MAX) {
        return FAIL(MOE_E_SHAPE, "a %s map of %lld tokens with %d of %lld experts and %lld rows",
                    moe_map_kind_name(c.kind), (long long)c.max_tokens, c.k, (long long)c.experts,
                    (long long)c.max_rows);
    }
    if (c.kind == MOE_MAP_SORTED && c.max_rows == 0) {
        c.max_rows = c.max_tokens * c.k;
    }
    moe_row_map_t *map = calloc(1, sizeof(*map));
    if (map == NULL) {
        return FAIL(MOE_E_NOMEM, "a row map");
    }
    map->device = device;
    map->config = c;
    size_t bytes = moe_map_bytes(c.kind, c.max_tokens, c.experts, c.k, c.max_rows);
    int rc = c.pooled ? 0 : moe_device_alloc(device, bytes, (void **)&map->buffer);
    if (rc != 0) {
        free(map);
        return rc;
    }
    map->magic = HANDLE_MAGIC;
    *out = map;
    return 0;
}

int moe_row_map_new(moe_device_t *device, int64_t max_tokens, int64_t experts, moe_row_map_t **out)
{
    struct moe_row_map_config config = {.kind = MOE_MAP_MASK, .max_tokens = max_tokens, .experts = experts};
    return moe_row_map_create(device, &config, out);
}

void moe_row_map_destroy(moe_row_map_t **map)
{
    if (*map != NULL) {
        (*map)->magic = 0;
        moe_row_map_drop(*map);
        if (!(*map)->config.pooled) {
            moe_device_free((*map)->device, &(*map)->buffer);
        }
        free(*map);
        *map = NULL;
    }
}

void moe_row_map_drop(moe_row_map_t *map)
{
    if (map != NULL && map->config.pooled) {
        map->built = false;
        moe_pool_give(map->device, &map->buffer);
    }
}

static bool is_handle(const moe_row_map_t *map)
{
    return map != NULL && map->magic == HANDLE_MAGIC;
}

const struct moe_map_header *moe_row_map_buffer(const moe_row_map_t *map)
{
    return is_handle(map) && map->built ? map->buffer : NULL;
}

enum moe_map_kind moe_row_map_kind(const moe_row_map_t *map)
{
    return is_handle(map) ? map->config.kind : MOE_MAP_KINDS;
}

static int check_build(const moe_row_map_t *map, const struct moe_map_source *source, int32_t k, int64_t tokens,
                       int64_t rows)
{
    const struct moe_row_map_config *c = &map->config;
    bool any_k = c->kind == MOE_MAP_MASK && source->mask != NULL && k == 0;
    if (tokens < 0 || tokens > c->max_tokens || (!any_k && k < 1) || k > c->experts ||
        (c->kind != MOE_MAP_MASK && k > c->k) || (!any_k && tokens > INT32_MAX / k)) {
        return FAIL(MOE_E_SHAPE, "%lld tokens with top-%d; the %s map is for %lld tokens, %lld experts, top-%d",
                    (long long)tokens, k, moe_map_kind_name(c->kind), (long long)c->max_tokens, (long long)c->experts,
                    c->k);
    }
    if ((source->index != NULL && source->mask != NULL) ||
        (source->index == NULL && source->mask == NULL && tokens > 0) || source->align < 0 ||
        source->align > INT32_MAX || source->capacity < 0) {
        return FAIL(MOE_E_ARG, "a map from %s, align %lld, capacity %lld",
                    source->index != NULL && source->mask != NULL   ? "both index and mask"
                    : source->index == NULL && source->mask == NULL ? "neither index nor mask"
                                                                    : "one source",
                    (long long)source->align, (long long)source->capacity);
    }
    if (rows < 0 || rows > INT32_MAX || (c->kind == MOE_MAP_SORTED && rows > c->max_rows) ||
        source->capacity > rows / c->experts) {
        return FAIL(MOE_E_CAPACITY, "%lld rows (%lld for each of %lld experts); the %s map is for %lld",
                    (long long)rows, (long long)source->capacity, (long long)c->experts, moe_map_kind_name(c->kind),
                    (long long)(c->kind == MOE_MAP_SORTED ? c->max_rows : INT32_MAX));
    }
    return 0;
}

int moe_row_map_build_from(moe_row_map_t *map, const struct moe_map_source *source, int32_t k, int64_t tokens,
                           int64_t rows)
{
    if (!is_handle(map)) {
        return FAIL(MOE_E_MAP, "the row map is NULL or was destroyed");
    }
    map->built = false;
    int rc = check_build(map, source, k, tokens, rows);
    if (rc == 0 && map->config.pooled) {
        rc = moe_pool_take(map->device, moe_map_bytes(map->config.kind, tokens, map->config.experts, k, rows),
                           &map->buffer);
    }
    if (rc != 0) {
        return rc;
    }
    struct moe_row_map_build build = {.kind = map->config.kind,
                                      .tokens = tokens,
                                      .experts = map->config.experts,
                                      .k = k,
                                      .rows = rows,
                                      .index = source->index,
                                      .mask = source->mask,
                                      .counts = source->counts,
                                      .align = source->align,
                                      .capacity = source->capacity,
                                      .drop = source->drop,
                                      .chosen = source->chosen,
                                      .m = source->m,
                                      .map = map->buffer};
    rc = moe_device_ops(map->device)->row_map_build(map->device, &build);
    if (rc == 0) {
        map->built = true;
        map->k = map->config.kind == MOE_MAP_MASK ? 0 : k;
        map->tokens = tokens;
        map->rows = rows;
    }
    return rc;
}

int moe_row_map_build_index(moe_row_map_t *map, const int32_t *index, int32_t k, int64_t tokens, const int64_t *counts,
                            int64_t rows)
{
    const struct moe_map_source source = {.index = index, .counts = counts};
    if (is_handle(map) && k > 0 && tokens > rows / k) {
        map->built = false;
        if (tokens <= map->config.max_tokens) {
            return FAIL(MOE_E_CAPACITY, "%lld tokens x %d in %lld rows", (long long)tokens, k, (long long)rows);
        }
    }
    return moe_row_map_build_from(map, &source, k, tokens, rows);
}

/* Compares the handle with what the caller says of it, and checks the caller's numbers for themselves. */
static int check(const moe_row_map_t *map, const struct moe_movement *move, float beta, const char *what)
{
    if (!is_handle(map) || !map->built) {
        return FAIL(MOE_E_MAP, "%s without a built map", what);
    }
    if (move->kind != map->config.kind || move->tokens != map->tokens || move->rows != map->rows) {
        return FAIL(MOE_E_MAP, "%s over a %s map of %lld tokens and %lld rows; it is a %s map of %lld and %lld", what,
                    moe_map_kind_name(move->kind), (long long)move->tokens, (long long)move->rows,
                    moe_map_kind_name(map->config.kind), (long long)map->tokens, (long long)map->rows);
    }
    if ((unsigned)move->type > MOE_F16 || (unsigned)move->layout > MOE_PROBS_BY_CHOICE ||
        (move->layout == MOE_PROBS_BY_CHOICE && move->kind == MOE_MAP_MASK) || (beta != 0.0f && beta != 1.0f)) {
        return FAIL(MOE_E_ARG, "%s of %s rows, probabilities by %s, beta %g over a %s map", what,
                    moe_dtype_name(move->type), move->layout == MOE_PROBS_BY_CHOICE ? "choice" : "expert", (double)beta,
                    moe_map_kind_name(move->kind));
    }
    if (move->hidden < 0) {
        return FAIL(MOE_E_SHAPE, "%s of rows of %lld elements", what, (long long)move->hidden);
    }
    return 0;
}

static int refuse(const char *what, const char *why)
{
    return FAIL(MOE_E_ARG, "%s: %s", what, why);
}

static struct moe_map_view view_of(const moe_row_map_t *map)
{
    return (struct moe_map_view){.kind = map->config.kind,
                                 .k = map->k,
                                 .tokens = map->tokens,
                                 .experts = map->config.experts,
                                 .rows = map->rows,
                                 .map = map->buffer};
}

int moe_map_permute(moe_row_map_t *map, const struct moe_movement *move, const void *x, const float *probs, void *out,
                    float *row_probs)
{
    int rc = check(map, move, 0.0f, "permute");
    if (rc != 0) {
        return rc;
    }
    if ((move->zero_by_prob || row_probs != NULL) && probs == NULL) {
        return refuse("permute", "probabilities are asked for, none are given");
    }
    struct moe_map_gather gather = {.view = view_of(map),
                                    .type = move->type,
                                    .width = move->hidden,
                                    .from = x,
                                    .to = out,
                                    .layout = move->layout,
                                    .zero_by_prob = move->zero_by_prob,
                                    .probs = probs,
                                    .row_probs = row_probs};
    return moe_device_ops(map->device)->map_gather(map->device, &gather);
}

int moe_map_permute_backward(moe_row_map_t *map, const struct moe_movement *move, const void *d_out,
                             const float *d_row_probs, const float *probs, float beta, void *dx, float *d_probs)
{
    int rc = check(map, move, beta, "permute backward");
    if (rc != 0) {
        return rc;
    }
    if ((d_row_probs == NULL) != (d_probs == NULL) || (move->zero_by_prob && probs == NULL)) {
        return refuse("permute backward", "a gradient of probabilities without its other side, or no probabilities");
    }
    struct moe_map_scatter scatter = {.view = view_of(map),
                                      .type = move->type,
                                      .width = move->hidden,
                                      .layout = move->layout,
                                      .zero_by_prob = move->zero_by_prob,
                                      .probs = move->zero_by_prob ? probs : NULL,
                                      .from = d_out,
                                      .to = dx,
                                      .beta = beta,
                                      .d_row_probs = d_row_probs,
                                      .d_probs = d_probs};
    return moe_device_ops(map->device)->map_scatter(map->device, &scatter);
}

int moe_map_unpermute(moe_row_map_t *map, const struct moe_movement *move, const void *in, const float *probs, void *y)
{
    int rc = check(map, move, 0.0f, "unpermute");
    if (rc != 0) {
        return rc;
    }
    struct moe_map_scatter scatter = {.view = view_of(map),
                                      .type = move->type,
                                      .width = move->hidden,
                                      .layout = move->layout,
                                      .probs = probs,
                                      .from = in,
                                      .to = y};
    return moe_device_ops(map->device)->map_scatter(map->device, &scatter);
}

int moe_map_unpermute_backward(moe_row_map_t *map, const struct moe_movement *move, const void *dy, const void *in,
                               const float *probs, void *d_in, float *d_probs)
{
    int rc = check(map, move, 0.0f, "unpermute backward");
    if (rc != 0) {
        return rc;
    }
    const struct moe_ops *ops = moe_device_ops(map->device);
    if (probs == NULL) {
        struct moe_map_gather gather = {
            .view = view_of(map), .type = move->type, .width = move->hidden, .from = dy, .to = d_in};
        return d_probs != NULL ? refuse("unpermute backward", "a gradient of probabilities that were not there")
                               : ops->map_gather(map->device, &gather);
    }
    if (d_probs == NULL || (in == NULL && map->rows > 0)) {
        return refuse("unpermute backward", "probabilities without the forward's rows, or without their gradient");
    }
    struct moe_map_scatter_backward back = {.view = view_of(map),
                                            .type = move->type,
                                            .width = move->hidden,
                                            .layout = move->layout,
                                            .probs = probs,
                                            .dy = dy,
                                            .from = in,
                                            .d_from = d_in,
                                            .d_probs = d_probs};
    return ops->map_scatter_backward(map->device, &back);
}

/* A movement in float32 over the map as it was built. */
static struct moe_movement plain(const moe_row_map_t *map, int64_t hidden)
{
    return is_handle(map) ? (struct moe_movement){.kind = map->config.kind,
                                                  .tokens = map->tokens,
                                                  .rows = map->rows,
                                                  .hidden = hidden}
                          : (struct moe_movement){.hidden = hidden};
}

int moe_permute(moe_row_map_t *map, const float *x, int64_t hidden, float *out)
{
    const struct moe_movement move = plain(map, hidden);
    return moe_map_permute(map, &move, x, NULL, out, NULL);
}

int moe_permute_backward(moe_row_map_t *map, const float *d_out, int64_t hidden, float *dx, float beta)
{
    const struct moe_movement move = plain(map, hidden);
    return moe_map_permute_backward(map, &move, d_out, NULL, NULL, beta, dx, NULL);
}

int moe_unpermute(moe_row_map_t *map, const float *in, const float *probs, int64_t hidden, float *y)
{
    const struct moe_movement move = plain(map, hidden);
    return moe_map_unpermute(map, &move, in, probs, y);
}

int moe_unpermute_backward(moe_row_map_t *map, const float *dy, const float *in, const float *probs, int64_t hidden,
                           float *d_in, float *d_probs)
{
    const struct moe_movement move = plain(map, hidden);
    return moe_map_unpermute_backward(map, &move, dy, in, probs, d_in, d_probs);
}
