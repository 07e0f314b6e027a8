/*
 * dispatcher_flex.c: rows to ranks and back, forward and backward, for both Flex dispatchers.
 *
 * No function of this file waits or reads a count: the kind's prepare has put the numbers, exact ones or bounds, into
 * struct moe_flex. Rows are staged in the group's buffer, which other layers use in between. The dispatcher itself
 * keeps what backward needs: the two maps, and the choices and probabilities that it received. A separate backward for
 * probabilities was rejected: their gradients travel back as rows of k numbers over the same maps.
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

/* The four places in the group's buffer: rows sent, words sent, rows received, words received. */
static void *sent_rows(const struct moe_flex *f)
{
    return moe_ep_buffer_send(f->buffer);
}

static void *sent_words(const moe_dispatcher_t *d, const struct moe_flex *f)
{
    return (char *)moe_ep_buffer_send(f->buffer) + rows_area(d, f->max_sent);
}

static void *came_rows(const struct moe_flex *f)
{
    return moe_ep_buffer_receive(f->buffer);
}

static void *came_words(const moe_dispatcher_t *d, const struct moe_flex *f)
{
    return (char *)moe_ep_buffer_receive(f->buffer) + rows_area(d, f->max_came);
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

static int allocate(moe_dispatcher_t *d, struct moe_flex *f)
{
    size_t most = (size_t)f->most, came = (size_t)f->max_came, ranks = (size_t)d->tp_ep.size, local = (size_t)d->local,
           k = (size_t)d->config.topk, word = sizeof(int32_t);
    struct {
        void *at;
        size_t bytes;
    } arrays[] = {
        {&f->to_ranks, most * ranks},          {&f->words, most * words_row(d)},
        {&f->pad, most * row_bytes(d)},        {&f->in_index, came * k * word},
        {&f->in_mask, came * local},           {&f->in_probs, came * local * word},
        {&f->d_in_probs, came * local * word}, {&f->d_choice, most * k * word},
        {&f->chosen, local * sizeof(int64_t)}, {&f->pad_rows, local * sizeof(int64_t)},
    };
    int rc = 0;
    f->split_sent = calloc(2 * ranks, sizeof(*f->split_sent));
    if (f->split_sent == NULL) {
        return DISPATCHER_FAIL(d, MOE_E_NOMEM, "splits");
    }
    f->split_came = f->split_sent + ranks;
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]) && rc == 0; i++) {
        rc = moe_device_alloc(d->device, arrays[i].bytes, arrays[i].at);
    }
    rc = rc ? rc : moe_row_map_new(d->device, f->most, d->tp_ep.size, &f->out);
    rc = rc ? rc : moe_row_map_new(d->device, f->max_came, d->local, &f->in);
    struct moe_fill_counts one = {
        .count = 1, .value = d->config.row_multiple > 1 ? d->config.row_multiple : 1, .to = f->pad_rows};
    return rc ? rc : moe_device_ops(d->device)->fill_counts(d->device, &one);
}

int moe_flex_create(moe_dispatcher_t *d, struct moe_flex *f, int64_t most, int64_t rows_per_token)
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
    rc = allocate(d, f);
    return rc ? rc
              : moe_ep_buffer_acquire(
                    d->device, d->tp_ep.comm, rows_area(d, f->max_came) + (size_t)f->max_came * words_row(d),
                    rows_area(d, f->max_sent) + (size_t)f->max_sent * words_row(d), d->config.node_ranks, &f->buffer);
}

void moe_flex_destroy(moe_dispatcher_t *d, struct moe_flex *f)
{
    void *arrays[] = {&f->to_ranks, &f->words,      &f->pad,      &f->in_index, &f->in_mask,
                      &f->in_probs, &f->d_in_probs, &f->d_choice, &f->chosen,   &f->pad_rows};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(d->device, arrays[i]);
    }
    moe_row_map_destroy(&f->out);
    moe_row_map_destroy(&f->in);
    moe_ep_buffer_release(&f->buffer);
    free(f->split_sent);
}

int moe_flex_lay_out(moe_dispatcher_t *d, struct moe_flex *f, uint8_t *map, int64_t map_row, int64_t *counts)
{
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

uint32_t moe_flex_agreed(const moe_dispatcher_t *d, const struct moe_flex *f, const int64_t *counts)
{
    uint32_t agreed = UINT32_MAX;
    for (int64_t p = 0; p < d->tp_ep.size; p++) {
        agreed &= (uint32_t)counts[(p + 1) * f->numbers - 1];
    }
    return agreed;
}

int moe_flex_build_out(moe_dispatcher_t *d, struct moe_flex *f)
{
    struct moe_map_source source = {.mask = f->to_ranks, .capacity = f->slot};
    d->plan.sent = f->sent;
    d->plan.peers = d->tp_ep.size;
    d->plan.split_sent = f->split_sent;
    d->plan.split_received = f->split_came;
    return moe_row_map_build_from(f->out, &source, 0, f->padded, f->sent);
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

static int to_experts(moe_dispatcher_t *d, struct moe_flex *f, const char *what, bool words)
{
    struct moe_collective c =
        moe_dispatcher_collective(d, &d->tp_ep, what, words ? ncclInt32 : moe_nccl_type(d->config.type),
                                  words ? 2 * d->config.topk : d->config.hidden);
    return moe_all_to_all_v(&c, words ? sent_words(d, f) : sent_rows(f), f->split_sent,
                            words ? came_words(d, f) : came_rows(f), f->split_came);
}

static int to_tokens(moe_dispatcher_t *d, struct moe_flex *f, const char *what, bool words)
{
    struct moe_collective c =
        moe_dispatcher_collective(d, &d->tp_ep, what, words ? ncclFloat32 : moe_nccl_type(d->config.type),
                                  words ? d->config.topk : d->config.hidden);
    return moe_all_to_all_v(&c, words ? came_words(d, f) : came_rows(f), f->split_came,
                            words ? sent_words(d, f) : sent_rows(f), f->split_sent);
}

/* Gives `from` [T,H] with padding tokens behind it; `from` itself where no tokens are padded. */
static int pad(moe_dispatcher_t *d, struct moe_flex *f, const void *from, const void **padded)
{
    *padded = from;
    if (f->padded == f->tokens) {
        return 0;
    }
    *padded = f->pad;
    return moe_uneven_pad(d->device, from, f->tokens, f->padded, row_bytes(d), f->pad);
}

/* Sends the rows of tokens, ordered by rank. */
static int send_rows(moe_dispatcher_t *d, struct moe_flex *f, const void *from, const char *what)
{
    struct moe_movement out = over_out(d, f);
    const void *padded = NULL;
    int rc = pad(d, f, from, &padded);
    rc = rc ? rc : moe_map_permute(f->out, &out, padded, NULL, sent_rows(f), NULL);
    return rc ? rc : to_experts(d, f, what, false);
}

static int send_words(moe_dispatcher_t *d, struct moe_flex *f)
{
    struct moe_flex_pack pack = {.tokens = f->tokens,
                                 .padded = f->padded,
                                 .experts = d->config.experts,
                                 .k = d->config.topk,
                                 .index = d->routing.index,
                                 .probs = d->routing.probs,
                                 .words = f->words};
    struct moe_movement out = over_out(d, f);
    out.type = MOE_F32; /* moved as they are: a word is as wide */
    out.hidden = 2 * d->config.topk;
    int rc = moe_device_ops(d->device)->flex_pack(d->device, &pack);
    rc = rc ? rc : moe_map_permute(f->out, &out, f->words, NULL, sent_words(d, f), NULL);
    return rc ? rc : to_experts(d, f, "dispatch of choices", true);
}

/* Makes the experts' rows from the words received: local choices, their map, the rows in expert order. */
static int sort_rows(moe_dispatcher_t *d, struct moe_flex *f)
{
    struct moe_flex_unpack unpack = {.rows = f->came,
                                     .first = f->first,
                                     .local = d->local,
                                     .k = d->config.topk,
                                     .words = came_words(d, f),
                                     .index = f->in_index,
                                     .mask = f->in_mask,
                                     .probs = f->in_probs};
    struct moe_map_source source = {.mask = f->in_mask,
                                    .counts = d->plan.padded > 0 ? f->pad_rows : NULL,
                                    .align = d->config.row_multiple,
                                    .drop = f->drop,
                                    .chosen = f->chosen,
                                    .m = d->m};
    struct moe_movement in = over_in(d, f);
    bool travel = d->config.probs_travel;
    int rc = moe_device_ops(d->device)->flex_unpack(d->device, &unpack);
    rc = rc ? rc : moe_row_map_build_from(f->in, &source, 0, f->came, d->plan.received);
    return rc ? rc
              : moe_map_permute(f->in, &in, came_rows(f), travel ? f->in_probs : NULL, d->rows,
                                travel ? d->row_probs : NULL);
}

int moe_flex_forward(moe_dispatcher_t *d, const void *x)
{
    struct moe_flex *f = flex_of(d);
    int rc = send_rows(d, f, x, "dispatch of rows");
    rc = rc ? rc : send_words(d, f);
    return rc ? rc : sort_rows(d, f);
}

int moe_flex_combine(moe_dispatcher_t *d, void *y)
{
    struct moe_flex *f = flex_of(d);
    struct moe_movement in = over_in(d, f), out = over_out(d, f);
    bool trim = f->padded != f->tokens;
    if (f->left) {
        return moe_device_ops(d->device)->zero(d->device, y, (size_t)f->tokens * row_bytes(d));
    }
    int rc = moe_map_unpermute(f->in, &in, d->expert_out, d->config.probs_travel ? NULL : f->in_probs, came_rows(f));
    rc = rc ? rc : to_tokens(d, f, "combine", false);
    rc = rc || !f->view_fails
             ? rc
             : DISPATCHER_FAIL(d, MOE_E_SHAPE, "0 rows were unpermuted to 0 rows; the output has %lld tokens",
                               (long long)f->tokens);
    rc = rc ? rc : moe_map_unpermute(f->out, &out, sent_rows(f), NULL, trim ? f->pad : y);
    return rc || !trim ? rc : moe_uneven_trim(d->device, f->pad, f->tokens, row_bytes(d), y);
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
    return rc ? rc
              : moe_map_unpermute_backward(f->in, &in, came_rows(f), travel ? NULL : d->expert_out,
                                           travel ? NULL : f->in_probs, d->d_expert_out, travel ? NULL : f->d_in_probs);
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
    struct moe_flex_choices choices = {.rows = f->came,
                                       .experts = d->local,
                                       .k = d->config.topk,
                                       .inverse = true,
                                       .index = f->in_index,
                                       .by_choice = came_words(d, f),
                                       .by_expert = f->d_in_probs};
    int rc = begun(d);
    rc = rc ? rc
            : moe_map_permute_backward(f->in, &in, d->d_rows, travel ? d->d_row_probs : NULL, NULL, 0.0f, came_rows(f),
                                       travel ? f->d_in_probs : NULL);
    rc = rc ? rc : moe_device_ops(d->device)->flex_choices(d->device, &choices);
    return rc ? rc : to_tokens(d, f, "dispatch backward of probabilities", true);
}

/* Adds to dx the sum, over ranks, of the gradient rows that came back. */
static int add_rows(moe_dispatcher_t *d, struct moe_flex *f)
{
    struct moe_movement out = over_out(d, f);
    const void *padded = NULL;
    int rc = pad(d, f, d->dx, &padded);
    void *dx = padded == d->dx ? d->dx : f->pad;
    rc = rc ? rc : moe_map_permute_backward(f->out, &out, sent_rows(f), NULL, NULL, 1.0f, dx, NULL);
    return rc || dx == d->dx ? rc : moe_uneven_trim(d->device, dx, f->tokens, row_bytes(d), d->dx);
}

static int back_dispatch(void *arg)
{
    moe_dispatcher_t *d = arg;
    struct moe_flex *f = flex_of(d);
    struct moe_movement out = over_out(d, f);
    out.type = MOE_F32;
    out.hidden = d->config.topk;
    struct moe_flex_choices choices = {.rows = f->tokens,
                                       .experts = d->config.experts,
                                       .k = d->config.topk,
                                       .index = d->routing.index,
                                       .by_choice = f->d_choice,
                                       .by_expert = d->d_probs};
    int rc = begun(d);
    rc = rc ? rc : to_tokens(d, f, "dispatch backward", false);
    rc = rc ? rc : add_rows(d, f);
    rc = rc ? rc : moe_map_unpermute(f->out, &out, sent_words(d, f), NULL, f->d_choice);
    return rc ? rc : moe_device_ops(d->device)->flex_choices(d->device, &choices);
}

static int back_nothing(void *arg)
{
    moe_dispatcher_t *d = arg;
    size_t count = (size_t)(d->routing.tokens * d->config.experts);
    return count == 0 ? 0 : moe_device_ops(d->device)->zero(d->device, d->d_probs, count * sizeof(float));
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
