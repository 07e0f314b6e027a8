/*
 * dummy.c: puts zero rows in for experts without rows, and takes them out again.
 *
 * Both forms give the experts an ordinary input, so nothing else in the library knows of dummy rows. The device form
 * copies the rows into a larger buffer, because a row in their middle moves those behind it; leaving gaps in every
 * buffer instead would make every other part read a row map. The host form copies nothing: where it acts, there is
 * nothing to copy.
 */
#include "moe_core/include/moe/dummy.h"

#include "moe_core/base/fail.h"
#include "moe_core/base/memory.h"
#include "moe_core/include/moe/ops.h"

#include <stdbool.h>
#include <stdlib.h>

#define FAIL(code, ...) moe_fail(code, MOE_NO_RANK, MOE_NO_LAYER, __VA_ARGS__)

/* Row buffers, [max_rows + L, H]; pooled: [rows + L, H]. */
enum buffer { X, Y, DY, DX, BUFFERS };

struct moe_dummy {
    moe_device_t *device;
    struct moe_dummy_config config;
    void *buffer[BUFFERS];
    float *probs, *d_probs; /* as many rows */
    int64_t *m, *map;       /* [L]; as many rows */
    int64_t rows;           /* real rows of the last forward; -1 before any */
    bool padded;            /* HOST: the rows of the last forward are dummy rows */
    bool has_probs;
};

static size_t row_bytes(const moe_dummy_t *d)
{
    return (size_t)d->config.hidden * moe_dtype_bytes(d->config.type);
}

static int get_fixed(moe_device_t *device, size_t bytes, void *at)
{
    return moe_device_alloc(device, bytes, at);
}

/* The memory that is there for max_rows, or taken for the rows of a forward. */
static int make(moe_dummy_t *d, int64_t real_rows)
{
    int (*get)(moe_device_t *, size_t, void *) = d->config.pooled ? moe_pool_take : get_fixed;
    size_t rows = (size_t)(real_rows + d->config.experts), row = row_bytes(d);
    int rc = get(d->device, rows * sizeof(*d->map), &d->map);
    rc = rc ? rc : get(d->device, rows * sizeof(*d->probs), &d->probs);
    rc = rc ? rc : get(d->device, rows * sizeof(*d->d_probs), &d->d_probs);
    for (int b = 0; b < BUFFERS && rc == 0; b++) {
        rc = get(d->device, rows * row, &d->buffer[b]);
    }
    return rc;
}

static void drop(moe_dummy_t *d)
{
    void (*give)(moe_device_t *, void *) = d->config.pooled ? moe_pool_give : moe_device_free;
    for (int b = 0; b < BUFFERS; b++) {
        give(d->device, &d->buffer[b]);
    }
    give(d->device, &d->map);
    give(d->device, &d->probs);
    give(d->device, &d->d_probs);
}

void moe_dummy_release(moe_dummy_t *d)
{
    if (d != NULL && d->config.pooled) {
        drop(d);
        d->rows = -1;
    }
}

int moe_dummy_new(moe_device_t *device, const struct moe_dummy_config *config, moe_dummy_t **out)
{
    *out = NULL;
    const struct moe_dummy_config *c = config;
    if (c->max_rows < 0 || c->hidden < 1 || c->experts < 1) {
        return FAIL(MOE_E_SHAPE, "dummy rows of %lld experts, hidden %lld, %lld rows", (long long)c->experts,
                    (long long)c->hidden, (long long)c->max_rows);
    }
    if ((unsigned)c->type > MOE_F16 || (unsigned)c->form > MOE_DUMMY_DEVICE) {
        return FAIL(MOE_E_ARG, "dummy rows of type %s, form %d", moe_dtype_name(c->type), (int)c->form);
    }
    moe_dummy_t *d = calloc(1, sizeof(*d));
    if (d == NULL) {
        return FAIL(MOE_E_NOMEM, "dummy rows");
    }
    d->device = device;
    d->config = *c;
    d->rows = -1;
    int rc = moe_device_alloc(device, (size_t)c->experts * sizeof(*d->m), (void **)&d->m);
    rc = rc || c->pooled ? rc : make(d, c->max_rows);
    if (rc != 0) {
        moe_dummy_destroy(&d);
    }
    *out = d;
    return rc;
}

void moe_dummy_destroy(moe_dummy_t **dummy)
{
    moe_dummy_t *d = *dummy;
    if (d == NULL) {
        return;
    }
    drop(d);
    moe_device_free(d->device, &d->m);
    free(d);
    *dummy = NULL;
}

/* Moves rows of `bytes` bytes each between the real rows and the padded ones. */
static int pick(moe_dummy_t *d, bool inverse, size_t bytes, const void *from, void *to)
{
    struct moe_pick_rows rows = {.rows = d->rows + d->config.experts,
                                 .row_bytes = (int64_t)bytes,
                                 .inverse = inverse,
                                 .map = d->map,
                                 .from = from,
                                 .to = to};
    return moe_device_ops(d->device)->pick_rows(d->device, &rows);
}

static int zero_rows(moe_dummy_t *d, void *to, size_t bytes)
{
    return moe_device_ops(d->device)->zero(d->device, to, (size_t)d->config.experts * bytes);
}

/* the two forms */

/* Adds L zero rows, one for each expert, when all counts are zero. */
static int pad_on_host(moe_dummy_t *d)
{
    struct moe_fill_counts ones = {.count = d->config.experts, .value = 1, .to = d->m};
    int rc = zero_rows(d, d->buffer[X], row_bytes(d));
    rc = rc ? rc : zero_rows(d, d->probs, sizeof(*d->probs));
    return rc ? rc : moe_device_ops(d->device)->fill_counts(d->device, &ones);
}

static int pad_on_device(moe_dummy_t *d, const void *x, const float *row_probs, const int64_t *m)
{
    struct moe_dummy_rows rows = {.groups = d->config.experts, .rows = d->rows, .m = m, .padded = d->m, .map = d->map};
    int rc = moe_device_ops(d->device)->dummy_rows(d->device, &rows);
    rc = rc ? rc : pick(d, false, row_bytes(d), x, d->buffer[X]);
    return rc || row_probs == NULL ? rc : pick(d, false, sizeof(*d->probs), row_probs, d->probs);
}

/* The sum of the host's counts; -1 when a count is impossible. */
static int64_t host_sum(const int64_t *m, int64_t groups, int64_t rows)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < groups; i++) {
        if (m[i] < 0 || m[i] > rows - sum) {
            return -1;
        }
        sum += m[i];
    }
    return sum;
}

int moe_dummy_forward(moe_dummy_t *d, const void *x, const float *row_probs, const int64_t *m, const int64_t *host_m,
                      int64_t rows, struct moe_dummy_view *out)
{
    bool on_host = d->config.form == MOE_DUMMY_HOST;
    if (rows < 0 || rows > d->config.max_rows) {
        return FAIL(MOE_E_CAPACITY, "%lld rows for dummy rows made for %lld", (long long)rows,
                    (long long)d->config.max_rows);
    }
    if (m == NULL || (host_m != NULL) != on_host) {
        return FAIL(MOE_E_ARG, "dummy rows: the host form needs the host's counts, the device form takes none");
    }
    int64_t sum = on_host ? host_sum(host_m, d->config.experts, rows) : rows;
    if (sum < 0) {
        return FAIL(MOE_E_COUNT, "dummy rows: counts that are negative or more than the %lld rows", (long long)rows);
    }
    int rc = d->config.pooled ? make(d, rows) : 0;
    if (rc != 0) {
        moe_dummy_release(d);
        return rc;
    }
    d->rows = rows;
    d->has_probs = row_probs != NULL;
    d->padded = !on_host || sum == 0;
    *out = (struct moe_dummy_view){.x = x,
                                   .row_probs = row_probs,
                                   .m = m,
                                   .rows = rows,
                                   .y = d->buffer[Y],
                                   .dy = d->buffer[DY],
                                   .dx = d->buffer[DX],
                                   .d_row_probs = row_probs != NULL ? d->d_probs : NULL};
    if (!d->padded) {
        return 0;
    }
    out->x = d->buffer[X];
    out->row_probs = row_probs != NULL ? d->probs : NULL;
    out->m = d->m;
    out->rows = on_host ? d->config.experts : rows + d->config.experts;
    return on_host ? pad_on_host(d) : pad_on_device(d, x, row_probs, m);
}

/* out and back */

/* Copies the real rows of `from` into `to`: all rows, no row, or those that the map names. */
static int take_out(moe_dummy_t *d, const void *from, void *to, size_t bytes)
{
    if (d->config.form == MOE_DUMMY_DEVICE) {
        return pick(d, true, bytes, from, to);
    }
    return d->padded ? 0 : moe_device_copy(d->device, to, from, (size_t)d->rows * bytes);
}

static int check_state(const moe_dummy_t *d)
{
    return d->rows < 0 ? FAIL(MOE_E_STATE, "dummy rows: nothing was padded yet") : 0;
}

int moe_dummy_strip(moe_dummy_t *d, void *y)
{
    int rc = check_state(d);
    return rc ? rc : take_out(d, d->buffer[Y], y, row_bytes(d));
}

int moe_dummy_strip_backward(moe_dummy_t *d, const void *dy)
{
    int rc = check_state(d);
    if (rc != 0) {
        return rc;
    }
    if (d->config.form == MOE_DUMMY_DEVICE) {
        return pick(d, false, row_bytes(d), dy, d->buffer[DY]);
    }
    return d->padded ? zero_rows(d, d->buffer[DY], row_bytes(d))
                     : moe_device_copy(d->device, d->buffer[DY], dy, (size_t)d->rows * row_bytes(d));
}

int moe_dummy_backward(moe_dummy_t *d, void *dx, float *d_row_probs)
{
    int rc = check_state(d);
    if (rc == 0 && d_row_probs != NULL && !d->has_probs) {
        rc = FAIL(MOE_E_ARG, "a gradient of probabilities that were not given");
    }
    rc = rc ? rc : take_out(d, d->buffer[DX], dx, row_bytes(d));
    return rc || d_row_probs == NULL ? rc : take_out(d, d->d_probs, d_row_probs, sizeof(*d_row_probs));
}

int64_t moe_dummy_count(const moe_dummy_t *d)
{
    return d->config.form == MOE_DUMMY_DEVICE ? -1 : d->padded && d->rows >= 0 ? d->config.experts : 0;
}
