/*
 * dispatcher_flex.c: what both Flex dispatchers make, and the numbers of a layer-forward that follow from all ranks'
 * counts. dispatcher_flex_steps.c moves the rows.
 *
 * Rows on the wire are in memory of the pool, or with a row budget in the group's buffer, which other layers use in
 * between. A buffer of each layer's own for them was rejected with a budget: it is as large as the most that may come.
 */
#include "moe_core/dispatch/dispatcher_flex.h"

#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/remedy.h"

#include <stdlib.h>

enum { AREA_ALIGN = 256 };

static size_t rows_area(const moe_dispatcher_t *d, int64_t rows)
{
    return ((size_t)rows * moe_flex_row_bytes(d) + AREA_ALIGN - 1) / AREA_ALIGN * AREA_ALIGN;
}

static size_t words_row(const moe_dispatcher_t *d)
{
    return 2 * (size_t)d->config.topk * sizeof(int32_t);
}

/* memory */

/* Where an area lies in the group's buffer. */
static void *in_buffer(const moe_dispatcher_t *d, const struct moe_flex *f, enum moe_flex_area area)
{
    bool sent = area == MOE_FLEX_SENT_ROWS || area == MOE_FLEX_SENT_WORDS;
    bool words = area == MOE_FLEX_SENT_WORDS || area == MOE_FLEX_CAME_WORDS;
    char *at = sent ? moe_ep_buffer_send(f->buffer) : moe_ep_buffer_receive(f->buffer);
    return at + (words ? rows_area(d, sent ? f->max_sent : f->max_came) : 0);
}

int moe_flex_take_area(moe_dispatcher_t *d, struct moe_flex *f, enum moe_flex_area area)
{
    bool sent = area == MOE_FLEX_SENT_ROWS || area == MOE_FLEX_SENT_WORDS;
    bool words = area == MOE_FLEX_SENT_WORDS || area == MOE_FLEX_CAME_WORDS;
    if (d->standing) { /* growing moves the buffer, so the place is asked for at each use */
        f->area[area] = in_buffer(d, f, area);
        return 0;
    }
    return moe_dispatcher_take(d, (size_t)(sent ? f->sent : f->came) * (words ? words_row(d) : moe_flex_row_bytes(d)),
                               &f->area[area]);
}

void moe_flex_give_area(moe_dispatcher_t *d, struct moe_flex *f, enum moe_flex_area area)
{
    moe_dispatcher_give(d, &f->area[area]);
}

int moe_flex_take_numbers(moe_dispatcher_t *d, int64_t rows, int64_t numbers, void *at)
{
    return moe_dispatcher_take(d, (size_t)(rows * numbers) * sizeof(int32_t), at);
}

int64_t moe_flex_max_rows(const moe_dispatcher_t *d, int64_t most)
{
    int64_t per_token = d->config.topk < d->local ? d->config.topk : d->local;
    int64_t align = d->config.row_multiple > 1 ? d->config.row_multiple : 1;
    return most * d->tp_ep.size * per_token + d->local * (align - 1) + align; /* the last: remedy PAD */
}

static int refuse(const moe_dispatcher_t *d)
{
    const struct moe_dispatcher_legacy *l = &d->config.legacy;
    if (!(d->config.budget_factor >= 0.0f) || d->config.node_ranks < 0) {
        return DISPATCHER_FAIL(d, MOE_E_SHAPE, "a budget factor of %g, %d ranks on this node",
                               (double)d->config.budget_factor, d->config.node_ranks);
    }
    const char *what = d->config.expert_capacity > 0 ? "drop-and-pad"
                       : d->config.shared != NULL    ? "an overlapped shared expert"
                       : l->static_rows              ? "legacy static_rows"
                       : l->slack_uninitialised      ? "legacy slack_uninitialised"
                       : d->config.type > MOE_F16    ? "rows of this type"
                                                     : NULL;
    return what == NULL ? 0 : DISPATCHER_FAIL(d, MOE_E_UNSUPPORTED, "%s with the %s dispatcher", what, d->kind->name);
}

/* Makes the memory of a dispatcher whose sizes are the same in every forward. */
static int stand(moe_dispatcher_t *d, struct moe_flex *f)
{
    int64_t k = d->config.topk, ranks = d->tp_ep.size;
    int rc = moe_dispatcher_take(d, (size_t)(f->most * ranks), &f->to_ranks);
    rc = rc ? rc : moe_flex_take_numbers(d, f->most, 2 * k, &f->words);
    rc = rc ? rc : moe_dispatcher_take_rows(d, f->most, &f->pad);
    rc = rc ? rc : moe_flex_take_numbers(d, f->max_came, k, &f->in_index);
    rc = rc ? rc : moe_dispatcher_take(d, (size_t)(f->max_came * d->local), &f->in_mask);
    rc = rc ? rc : moe_flex_take_numbers(d, f->max_came, d->local, &f->in_probs);
    rc = rc ? rc : moe_flex_take_numbers(d, f->max_came, d->local, &f->d_in_probs);
    return rc ? rc : moe_flex_take_numbers(d, f->most, k, &f->d_choice);
}

static int new_map(moe_dispatcher_t *d, int64_t tokens, int64_t experts, moe_row_map_t **out)
{
    const struct moe_row_map_config config = {
        .kind = MOE_MAP_MASK, .max_tokens = tokens, .experts = experts, .pooled = !d->standing};
    return moe_row_map_create(d->device, &config, out);
}

static int allocate(moe_dispatcher_t *d, struct moe_flex *f)
{
    size_t ranks = (size_t)d->tp_ep.size, local = (size_t)d->local;
    f->split_sent = calloc(2 * ranks, sizeof(*f->split_sent));
    if (f->split_sent == NULL) {
        return DISPATCHER_FAIL(d, MOE_E_NOMEM, "splits");
    }
    f->split_came = f->split_sent + ranks;
    int rc = moe_device_alloc(d->device, local * sizeof(int64_t), (void **)&f->chosen);
    rc = rc ? rc : moe_device_alloc(d->device, local * sizeof(int64_t), (void **)&f->pad_rows);
    rc = rc ? rc : new_map(d, f->most, d->tp_ep.size, &f->out);
    rc = rc ? rc : new_map(d, f->max_came, d->local, &f->in);
    rc = rc || !d->standing ? rc : stand(d, f);
    struct moe_fill_counts one = {
        .count = 1, .value = d->config.row_multiple > 1 ? d->config.row_multiple : 1, .to = f->pad_rows};
    return rc ? rc : moe_device_ops(d->device)->fill_counts(d->device, &one);
}

int moe_flex_open(moe_dispatcher_t *d, struct moe_flex *f, int64_t most, int64_t rows_per_token)
{
    int rc = refuse(d);
    if (rc != 0) {
        return rc;
    }
    f->first = d->ep.rank * d->local;
    f->most = most;
    f->numbers = d->tp_ep.size + d->config.experts + 1;
    if (most > INT32_MAX / (rows_per_token > d->tp_ep.size ? rows_per_token : d->tp_ep.size)) {
        return DISPATCHER_FAIL(d, MOE_E_SHAPE, "%lld tokens from each of %d ranks", (long long)most, d->tp_ep.size);
    }
    f->max_sent = most * rows_per_token;
    f->max_came = most * d->tp_ep.size;
    return moe_ep_buffer_open(d->device, d->tp_ep.comm, &f->opened);
}

int moe_flex_create(moe_dispatcher_t *d, struct moe_flex *f, int failed)
{
    const struct moe_ep_buffer_want want = {
        .failed = failed ? failed : allocate(d, f), /* peers meet in the exchange below, and must not wait there */
        .receive_bytes = rows_area(d, f->max_came) + (size_t)f->max_came * words_row(d),
        .send_bytes = rows_area(d, f->max_sent) + (size_t)f->max_sent * words_row(d),
        .node_ranks = d->config.node_ranks,
        .proposed = f->proposed,
        .bounds = !d->standing};
    return moe_ep_buffer_acquire_as(d->device, d->tp_ep.comm, &want, &f->buffer);
}

static void give_all(moe_dispatcher_t *d, struct moe_flex *f, void (*give)(moe_dispatcher_t *, void *))
{
    void *arrays[] = {&f->to_ranks, &f->words,    &f->pad,        &f->in_index,
                      &f->in_mask,  &f->in_probs, &f->d_in_probs, &f->d_choice};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        give(d, arrays[i]);
    }
    for (int i = 0; i < MOE_FLEX_AREAS; i++) {
        moe_flex_give_area(d, f, (enum moe_flex_area)i);
    }
}

void moe_flex_release(moe_dispatcher_t *d)
{
    struct moe_flex *f = moe_flex_of(d);
    give_all(d, f, moe_dispatcher_give);
    moe_row_map_drop(f->out);
    moe_row_map_drop(f->in);
}

void moe_flex_destroy(moe_dispatcher_t *d, struct moe_flex *f)
{
    give_all(d, f, moe_dispatcher_free);
    moe_device_free(d->device, &f->chosen);
    moe_device_free(d->device, &f->pad_rows);
    moe_row_map_destroy(&f->out);
    moe_row_map_destroy(&f->in);
    moe_ep_buffer_release(&f->opened);
    moe_ep_buffer_release(&f->buffer);
    free(f->split_sent);
}

int moe_flex_lay_out(moe_dispatcher_t *d, struct moe_flex *f, uint8_t *map, int64_t map_row, int64_t *counts)
{
    int rc = moe_dispatcher_take(d, (size_t)(f->padded * d->tp_ep.size), &f->to_ranks);
    if (rc != 0) {
        return rc;
    }
    struct moe_flex_layout layout = {.blocks = 1,
                                     .tokens = f->tokens,
                                     .padded = f->padded,
                                     .experts = d->config.experts,
                                     .ranks = d->tp_ep.size,
                                     .etp = d->etp.size,
                                     .k = d->config.topk,
                                     .mask_row = map_row,
                                     .index = d->routing.index,
                                     .map = map,
                                     .to_ranks = f->to_ranks,
                                     .counts = counts};
    return moe_device_ops(d->device)->flex_layout(d->device, &layout);
}

static int check_counts(const moe_dispatcher_t *d, const struct moe_flex *f, const int64_t *counts)
{
    int64_t numbers = f->numbers - 1;
    for (int64_t p = 0; p < d->tp_ep.size; p++) {
        for (int64_t i = 0; i < numbers; i++) {
            int64_t c = counts[p * f->numbers + i];
            if (c < 0 || c > f->most) {
                return DISPATCHER_FAIL(d, MOE_E_COUNT,
                                       "rank %lld of the group has %lld tokens for %s %lld, %lld are possible",
                                       (long long)p, (long long)c, i < d->tp_ep.size ? "rank" : "expert",
                                       (long long)(i < d->tp_ep.size ? i : i - d->tp_ep.size), (long long)f->most);
            }
        }
    }
    return 0;
}

int moe_flex_derive(moe_dispatcher_t *d, struct moe_flex *f, const int64_t *counts, bool pad)
{
    int rc = check_counts(d, f, counts);
    if (rc != 0) {
        return rc;
    }
    int64_t ranks = d->tp_ep.size, align = d->config.row_multiple > 1 ? d->config.row_multiple : 1, received = 0;
    f->sent = f->came = f->slot = 0;
    for (int64_t p = 0; p < ranks; p++) {
        f->split_sent[p] = counts[d->tp_ep.rank * f->numbers + p];
        f->split_came[p] = counts[p * f->numbers + d->tp_ep.rank];
        f->sent += f->split_sent[p];
        f->came += f->split_came[p];
    }
    d->plan.empty_experts = 0;
    for (int64_t i = 0; i < d->local; i++) {
        int64_t rows = 0;
        for (int64_t p = 0; p < ranks; p++) {
            rows += counts[p * f->numbers + ranks + f->first + i];
        }
        received += (rows + align - 1) / align * align;
        d->plan.filler += (align - rows % align) % align;
        d->plan.empty_experts += rows == 0;
    }
    d->plan.padded = pad && received == 0 ? align : 0;
    d->plan.empty_experts -= d->plan.padded > 0;
    d->plan.received = received + d->plan.padded;
    d->plan.exact = true;
    f->view_fails =
        d->config.legacy.empty_unpermute && f->sent == 0 && f->tokens > 0 && !moe_dispatcher_cured(d, MOE_REMEDY_FILL);
    bool hazard = (d->config.legacy.empty_returns_early || d->config.legacy.empty_from_input) &&
                  d->plan.received == 0 && !moe_dispatcher_cured(d, MOE_REMEDY_FILL);
    f->left = hazard && d->config.legacy.empty_returns_early;
    f->foreign = hazard && !f->left;
    return 0;
}

uint32_t moe_flex_agreed(moe_dispatcher_t *d, const struct moe_flex *f, const int64_t *counts)
{
    return moe_dispatcher_agreed(d, counts + f->numbers - 1, f->numbers);
}

int moe_flex_build_out(moe_dispatcher_t *d, struct moe_flex *f)
{
    struct moe_map_source source = {.mask = f->to_ranks, .capacity = f->slot};
    d->plan.sent = f->sent;
    d->plan.peers = d->tp_ep.size;
    d->plan.split_sent = f->split_sent;
    d->plan.split_received = f->split_came;
    int rc = moe_row_map_build_from(f->out, &source, 0, f->padded, f->sent);
    moe_dispatcher_give(d, &f->to_ranks);
    return rc;
}
