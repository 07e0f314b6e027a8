/*
 * dispatcher_flex.c: rows to ranks and back, forward and backward, for both Flex dispatchers.
 *
 * No function of this file waits or reads a count: the kind's prepare has put the numbers, exact ones or bounds, into
 * struct moe_flex. Rows on the wire are in memory of the pool, or with a row budget in the group's buffer, which other
 * layers use in between. What backward needs is kept: the two maps, and the choices and probabilities that were
 * received. A separate backward for probabilities was rejected: their gradients travel back as rows of k numbers over
 * the same maps.
 */
#include "moe_core/dispatch/dispatcher_flex.h"

#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/remedy.h"
#include "moe_core/include/moe/uneven.h"

#include <stdlib.h>
#include <string.h>

enum { AREA_ALIGN = 256 };

static struct moe_flex *flex_of(moe_dispatcher_t *d)
{
    return d->state;
}

static size_t row_bytes(const moe_dispatcher_t *d)
{
    return (size_t)d->config.hidden * moe_dtype_bytes(d->config.type);
}

static size_t rows_area(const moe_dispatcher_t *d, int64_t rows)
{
    return ((size_t)rows * row_bytes(d) + AREA_ALIGN - 1) / AREA_ALIGN * AREA_ALIGN;
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

static int take_area(moe_dispatcher_t *d, struct moe_flex *f, enum moe_flex_area area)
{
    bool sent = area == MOE_FLEX_SENT_ROWS || area == MOE_FLEX_SENT_WORDS;
    bool words = area == MOE_FLEX_SENT_WORDS || area == MOE_FLEX_CAME_WORDS;
    if (d->standing) { /* growing moves the buffer, so the place is asked for at each use */
        f->area[area] = in_buffer(d, f, area);
        return 0;
    }
    return moe_dispatcher_take(d, (size_t)(sent ? f->sent : f->came) * (words ? words_row(d) : row_bytes(d)),
                               &f->area[area]);
}

static void give_area(moe_dispatcher_t *d, struct moe_flex *f, enum moe_flex_area area)
{
    moe_dispatcher_give(d, &f->area[area]);
}

/* Takes `numbers` numbers of four bytes for each token, or for each row that came. */
static int take_numbers(moe_dispatcher_t *d, int64_t rows, int64_t numbers, void *at)
{
    return moe_dispatcher_take(d, (size_t)(rows * numbers) * sizeof(int32_t), at);
}

static int take_d_probs(moe_dispatcher_t *d)
{
    return take_numbers(d, d->routing.tokens, d->config.experts, &d->d_probs);
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
    rc = rc ? rc : take_numbers(d, f->most, 2 * k, &f->words);
    rc = rc ? rc : moe_dispatcher_take_rows(d, f->most, &f->pad);
    rc = rc ? rc : take_numbers(d, f->max_came, k, &f->in_index);
    rc = rc ? rc : moe_dispatcher_take(d, (size_t)(f->max_came * d->local), &f->in_mask);
    rc = rc ? rc : take_numbers(d, f->max_came, d->local, &f->in_probs);
    rc = rc ? rc : take_numbers(d, f->max_came, d->local, &f->d_in_probs);
    return rc ? rc : take_numbers(d, f->most, k, &f->d_choice);
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

int moe_flex_create(moe_dispatcher_t *d, struct moe_flex *f, int64_t most, int64_t rows_per_token, int failed)
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
        give_area(d, f, (enum moe_flex_area)i);
    }
}

void moe_flex_release(moe_dispatcher_t *d)
{
    struct moe_flex *f = flex_of(d);
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

/* The movements: over `out` and over `in`, of rows of the dispatcher's type, and of words and float32 numbers. */

static struct moe_movement over_out(const moe_dispatcher_t *d, const struct moe_flex *f)
{
    return (struct moe_movement){
        .type = d->config.type, .tokens = f->padded, .rows = f->sent, .hidden = d->config.hidden};
}

static struct moe_movement over_in(const moe_dispatcher_t *d, const struct moe_flex *f)
{
    return (struct moe_movement){
        .type = d->config.type, .tokens = f->came, .rows = d->plan.received, .hidden = d->config.hidden};
}

/* Sends rows or words to the experts' ranks: takes where they come to, and gives back where they came from. */
static int to_experts(moe_dispatcher_t *d, struct moe_flex *f, const char *what, bool words)
{
    enum moe_flex_area from = words ? MOE_FLEX_SENT_WORDS : MOE_FLEX_SENT_ROWS;
    enum moe_flex_area to = words ? MOE_FLEX_CAME_WORDS : MOE_FLEX_CAME_ROWS;
    struct moe_collective c =
        moe_dispatcher_collective(d, &d->tp_ep, what, words ? ncclInt32 : moe_nccl_type(d->config.type),
                                  words ? 2 * d->config.topk : d->config.hidden);
    int rc = take_area(d, f, to);
    rc = rc ? rc : moe_all_to_all_v(&c, f->area[from], f->split_sent, f->area[to], f->split_came);
    give_area(d, f, from);
    return rc;
}

static int to_tokens(moe_dispatcher_t *d, struct moe_flex *f, const char *what, bool words)
{
    enum moe_flex_area from = words ? MOE_FLEX_CAME_WORDS : MOE_FLEX_CAME_ROWS;
    enum moe_flex_area to = words ? MOE_FLEX_SENT_WORDS : MOE_FLEX_SENT_ROWS;
    struct moe_collective c =
        moe_dispatcher_collective(d, &d->tp_ep, what, words ? ncclFloat32 : moe_nccl_type(d->config.type),
                                  words ? d->config.topk : d->config.hidden);
    int rc = take_area(d, f, to);
    rc = rc ? rc : moe_all_to_all_v(&c, f->area[from], f->split_came, f->area[to], f->split_sent);
    give_area(d, f, from);
    return rc;
}

/* Gives `from` [T,H] with padding tokens behind it; `from` itself where no tokens are padded. */
static int pad(moe_dispatcher_t *d, struct moe_flex *f, const void *from, const void **padded)
{
    *padded = from;
    if (f->padded == f->tokens) {
        return 0;
    }
    int rc = moe_dispatcher_take_rows(d, f->padded, &f->pad);
    *padded = f->pad;
    return rc ? rc : moe_uneven_pad(d->device, from, f->tokens, f->padded, row_bytes(d), f->pad);
}

/* Sends the rows of tokens, ordered by rank. */
static int send_rows(moe_dispatcher_t *d, struct moe_flex *f, const void *from, const char *what)
{
    struct moe_movement out = over_out(d, f);
    const void *padded = NULL;
    int rc = pad(d, f, from, &padded);
    rc = rc ? rc : take_area(d, f, MOE_FLEX_SENT_ROWS);
    rc = rc ? rc : moe_map_permute(f->out, &out, padded, NULL, f->area[MOE_FLEX_SENT_ROWS], NULL);
    moe_dispatcher_give(d, &f->pad);
    return rc ? rc : to_experts(d, f, what, false);
}

static int send_words(moe_dispatcher_t *d, struct moe_flex *f)
{
    struct moe_movement out = over_out(d, f);
    out.type = MOE_F32; /* moved as they are: a word is as wide */
    out.hidden = 2 * d->config.topk;
    int rc = take_numbers(d, f->padded, out.hidden, &f->words);
    rc = rc ? rc : take_area(d, f, MOE_FLEX_SENT_WORDS);
    if (rc != 0) {
        return rc;
    }
    struct moe_flex_pack pack = {.tokens = f->tokens,
                                 .padded = f->padded,
                                 .experts = d->config.experts,
                                 .k = d->config.topk,
                                 .index = d->routing.index,
                                 .probs = d->routing.probs,
                                 .words = f->words};
    rc = moe_device_ops(d->device)->flex_pack(d->device, &pack);
    rc = rc ? rc : moe_map_permute(f->out, &out, f->words, NULL, f->area[MOE_FLEX_SENT_WORDS], NULL);
    moe_dispatcher_give(d, &f->words);
    return rc ? rc : to_experts(d, f, "dispatch of choices", true);
}

/* Makes the local choices from the words received, and the map from the rows received to the experts. */
static int read_words(moe_dispatcher_t *d, struct moe_flex *f)
{
    int rc = take_numbers(d, f->came, d->config.topk, &f->in_index);
    rc = rc ? rc : moe_dispatcher_take(d, (size_t)(f->came * d->local), &f->in_mask);
    rc = rc ? rc : take_numbers(d, f->came, d->local, &f->in_probs);
    if (rc != 0) {
        return rc;
    }
    struct moe_flex_unpack unpack = {.rows = f->came,
                                     .first = f->first,
                                     .local = d->local,
                                     .k = d->config.topk,
                                     .words = f->area[MOE_FLEX_CAME_WORDS],
                                     .index = f->in_index,
                                     .mask = f->in_mask,
                                     .probs = f->in_probs};
    struct moe_map_source source = {.mask = f->in_mask,
                                    .counts = d->plan.padded > 0 ? f->pad_rows : NULL,
                                    .align = d->config.row_multiple,
                                    .drop = f->drop,
                                    .chosen = f->chosen,
                                    .m = d->m};
    rc = moe_device_ops(d->device)->flex_unpack(d->device, &unpack);
    give_area(d, f, MOE_FLEX_CAME_WORDS);
    rc = rc ? rc : moe_row_map_build_from(f->in, &source, 0, f->came, d->plan.received);
    moe_dispatcher_give(d, &f->in_mask);
    return rc;
}

int moe_flex_forward(moe_dispatcher_t *d, const void *x)
{
    struct moe_flex *f = flex_of(d);
    bool travel = d->config.probs_travel;
    int rc = send_rows(d, f, x, "dispatch of rows");
    rc = rc ? rc : send_words(d, f);
    rc = rc ? rc : read_words(d, f);
    rc = rc ? rc : moe_dispatcher_take_received(d, &d->rows, &d->row_probs);
    struct moe_movement in = over_in(d, f);
    rc = rc ? rc
            : moe_map_permute(f->in, &in, f->area[MOE_FLEX_CAME_ROWS], travel ? f->in_probs : NULL, d->rows,
                              travel ? d->row_probs : NULL);
    give_area(d, f, MOE_FLEX_CAME_ROWS);
    if (travel) { /* otherwise combine weights with them */
        moe_dispatcher_give(d, &f->in_probs);
    }
    return rc ? rc : moe_dispatcher_take_rows(d, d->plan.received, &d->expert_out);
}

int moe_flex_combine(moe_dispatcher_t *d, void *y)
{
    struct moe_flex *f = flex_of(d);
    struct moe_movement in = over_in(d, f), out = over_out(d, f);
    bool trim = f->padded != f->tokens;
    if (f->left) {
        return moe_device_ops(d->device)->zero(d->device, y, (size_t)f->tokens * row_bytes(d));
    }
    int rc = take_area(d, f, MOE_FLEX_CAME_ROWS);
    rc = rc ? rc
            : moe_map_unpermute(f->in, &in, d->expert_out, d->config.probs_travel ? NULL : f->in_probs,
                                f->area[MOE_FLEX_CAME_ROWS]);
    if (d->config.probs_travel) { /* weights need it for their gradient */
        moe_dispatcher_give(d, &d->expert_out);
    }
    rc = rc ? rc : to_tokens(d, f, "combine", false);
    rc = rc || !f->view_fails
             ? rc
             : DISPATCHER_FAIL(d, MOE_E_SHAPE, "0 rows were unpermuted to 0 rows; the output has %lld tokens",
                               (long long)f->tokens);
    rc = rc || !trim ? rc : moe_dispatcher_take_rows(d, f->padded, &f->pad);
    rc = rc ? rc : moe_map_unpermute(f->out, &out, f->area[MOE_FLEX_SENT_ROWS], NULL, trim ? f->pad : y);
    give_area(d, f, MOE_FLEX_SENT_ROWS);
    rc = rc || !trim ? rc : moe_uneven_trim(d->device, f->pad, f->tokens, row_bytes(d), y);
    moe_dispatcher_give(d, &f->pad);
    return rc;
}

/* Backward. */

static int begun(const moe_dispatcher_t *d)
{
    return d->backward ? 0 : DISPATCHER_FAIL(d, MOE_E_STATE, "backward before begin_backward");
}

static int back_combine(void *arg)
{
    moe_dispatcher_t *d = arg;
    struct moe_flex *f = flex_of(d);
    struct moe_movement in = over_in(d, f);
    bool travel = d->config.probs_travel;
    int rc = begun(d);
    rc = rc ? rc : send_rows(d, f, d->dy, "combine backward");
    rc = rc ? rc : moe_dispatcher_take_rows(d, d->plan.received, &d->d_expert_out);
    rc = rc || travel ? rc : take_numbers(d, f->came, d->local, &f->d_in_probs);
    rc = rc ? rc
            : moe_map_unpermute_backward(f->in, &in, f->area[MOE_FLEX_CAME_ROWS], travel ? NULL : d->expert_out,
                                         travel ? NULL : f->in_probs, d->d_expert_out, travel ? NULL : f->d_in_probs);
    give_area(d, f, MOE_FLEX_CAME_ROWS);
    moe_dispatcher_give(d, &d->expert_out);
    moe_dispatcher_give(d, &f->in_probs);
    return rc ? rc : moe_dispatcher_take_received(d, &d->d_rows, &d->d_row_probs);
}

/*
 * Carries the experts' gradients back to the rows received, and sends the gradients of probabilities to the tokens'
 * ranks.
 */
static int back_choices(void *arg)
{
    moe_dispatcher_t *d = arg;
    struct moe_flex *f = flex_of(d);
    struct moe_movement in = over_in(d, f);
    bool travel = d->config.probs_travel;
    int rc = begun(d);
    rc = rc ? rc : take_area(d, f, MOE_FLEX_CAME_ROWS);
    rc = rc || !travel ? rc : take_numbers(d, f->came, d->local, &f->d_in_probs);
    rc = rc ? rc
            : moe_map_permute_backward(f->in, &in, d->d_rows, travel ? d->d_row_probs : NULL, NULL, 0.0f,
                                       f->area[MOE_FLEX_CAME_ROWS], travel ? f->d_in_probs : NULL);
    moe_dispatcher_give(d, &d->d_rows);
    moe_dispatcher_give(d, &d->d_row_probs);
    moe_row_map_drop(f->in);
    rc = rc ? rc : take_area(d, f, MOE_FLEX_CAME_WORDS);
    struct moe_flex_choices choices = {.rows = f->came,
                                       .experts = d->local,
                                       .k = d->config.topk,
                                       .inverse = true,
                                       .index = f->in_index,
                                       .by_choice = f->area[MOE_FLEX_CAME_WORDS],
                                       .by_expert = f->d_in_probs};
    rc = rc ? rc : moe_device_ops(d->device)->flex_choices(d->device, &choices);
    moe_dispatcher_give(d, &f->in_index);
    moe_dispatcher_give(d, &f->d_in_probs);
    return rc ? rc : to_tokens(d, f, "dispatch backward of probabilities", true);
}

/* Adds to dx the sum, over ranks, of the gradient rows that came back. */
static int add_rows(moe_dispatcher_t *d, struct moe_flex *f)
{
    struct moe_movement out = over_out(d, f);
    const void *padded = NULL;
    int rc = pad(d, f, d->dx, &padded);
    void *dx = padded == d->dx ? d->dx : f->pad;
    rc = rc ? rc : moe_map_permute_backward(f->out, &out, f->area[MOE_FLEX_SENT_ROWS], NULL, NULL, 1.0f, dx, NULL);
    rc = rc || dx == d->dx ? rc : moe_uneven_trim(d->device, dx, f->tokens, row_bytes(d), d->dx);
    give_area(d, f, MOE_FLEX_SENT_ROWS);
    moe_dispatcher_give(d, &f->pad);
    return rc;
}

static int back_dispatch(void *arg)
{
    moe_dispatcher_t *d = arg;
    struct moe_flex *f = flex_of(d);
    struct moe_movement out = over_out(d, f);
    out.type = MOE_F32;
    out.hidden = d->config.topk;
    int rc = begun(d);
    rc = rc ? rc : to_tokens(d, f, "dispatch backward", false);
    rc = rc ? rc : add_rows(d, f);
    rc = rc ? rc : take_numbers(d, f->padded, d->config.topk, &f->d_choice);
    rc = rc ? rc : moe_map_unpermute(f->out, &out, f->area[MOE_FLEX_SENT_WORDS], NULL, f->d_choice);
    give_area(d, f, MOE_FLEX_SENT_WORDS);
    moe_row_map_drop(f->out);
    rc = rc ? rc : take_d_probs(d);
    struct moe_flex_choices choices = {.rows = f->tokens,
                                       .experts = d->config.experts,
                                       .k = d->config.topk,
                                       .index = d->routing.index,
                                       .by_choice = f->d_choice,
                                       .by_expert = d->d_probs};
    rc = rc ? rc : moe_device_ops(d->device)->flex_choices(d->device, &choices);
    moe_dispatcher_give(d, &f->d_choice);
    return rc;
}

static int back_nothing(void *arg)
{
    moe_dispatcher_t *d = arg;
    size_t count = (size_t)(d->routing.tokens * d->config.experts);
    int rc = take_d_probs(d);
    return rc || count == 0 ? rc : moe_device_ops(d->device)->zero(d->device, d->d_probs, count * sizeof(float));
}

/* What of a forward has a backward: legacy behaviours, and a layer that left its experts out, take some of it away. */

int moe_flex_push_dispatch(moe_dispatcher_t *d, struct moe_plan *plan)
{
    const struct moe_flex *f = d->state;
    if (d->detached || f->left) {
        return 0;
    }
    if (f->foreign) {
        return moe_dispatcher_push(d, plan, "no dispatch", back_nothing, MOE_OBLIGE_NONE, &d->tp_ep, 0);
    }
    int rc = moe_dispatcher_push(d, plan, "dispatch", back_dispatch, MOE_OBLIGE_ALLTOALL, &d->tp_ep, 0);
    return rc ? rc : moe_dispatcher_push(d, plan, "dispatch choices", back_choices, MOE_OBLIGE_ALLTOALL, &d->tp_ep, 0);
}

int moe_flex_push_combine(moe_dispatcher_t *d, struct moe_plan *plan)
{
    const struct moe_flex *f = d->state;
    if (d->detached || f->left) {
        return moe_dispatcher_push(d, plan, "no combine", back_nothing, MOE_OBLIGE_NONE, &d->tp_ep, 0);
    }
    return moe_dispatcher_push(d, plan, "combine", back_combine, MOE_OBLIGE_ALLTOALL, &d->tp_ep, 0);
}
