/*
 * dispatcher_flex_steps.c: rows to ranks and back, forward and backward, for both Flex dispatchers.
 *
 * No function of this file waits or reads a count: the kind's prepare has put the numbers, exact ones or bounds, into
 * struct moe_flex. What backward needs is kept: the two maps, and the choices and probabilities that were received. A
 * separate backward for probabilities was rejected: their gradients travel back as rows of k numbers over the same
 * maps.
 */
#include "moe_core/dispatch/dispatcher_flex.h"

#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/uneven.h"

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
    int rc = moe_flex_take_area(d, f, to);
    rc = rc ? rc : moe_all_to_all_v(&c, f->area[from], f->split_sent, f->area[to], f->split_came);
    moe_flex_give_area(d, f, from);
    return rc;
}

static int to_tokens(moe_dispatcher_t *d, struct moe_flex *f, const char *what, bool words)
{
    enum moe_flex_area from = words ? MOE_FLEX_CAME_WORDS : MOE_FLEX_CAME_ROWS;
    enum moe_flex_area to = words ? MOE_FLEX_SENT_WORDS : MOE_FLEX_SENT_ROWS;
    struct moe_collective c =
        moe_dispatcher_collective(d, &d->tp_ep, what, words ? ncclFloat32 : moe_nccl_type(d->config.type),
                                  words ? d->config.topk : d->config.hidden);
    int rc = moe_flex_take_area(d, f, to);
    rc = rc ? rc : moe_all_to_all_v(&c, f->area[from], f->split_came, f->area[to], f->split_sent);
    moe_flex_give_area(d, f, from);
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
    return rc ? rc : moe_uneven_pad(d->device, from, f->tokens, f->padded, moe_flex_row_bytes(d), f->pad);
}

/* Sends the rows of tokens, ordered by rank. */
static int send_rows(moe_dispatcher_t *d, struct moe_flex *f, const void *from, const char *what)
{
    struct moe_movement out = over_out(d, f);
    const void *padded = NULL;
    int rc = pad(d, f, from, &padded);
    rc = rc ? rc : moe_flex_take_area(d, f, MOE_FLEX_SENT_ROWS);
    rc = rc ? rc : moe_map_permute(f->out, &out, padded, NULL, f->area[MOE_FLEX_SENT_ROWS], NULL);
    moe_dispatcher_give(d, &f->pad);
    return rc ? rc : to_experts(d, f, what, false);
}

static int send_words(moe_dispatcher_t *d, struct moe_flex *f)
{
    struct moe_movement out = over_out(d, f);
    out.type = MOE_F32; /* moved as they are: a word is as wide */
    out.hidden = 2 * d->config.topk;
    int rc = moe_flex_take_numbers(d, f->padded, out.hidden, &f->words);
    rc = rc ? rc : moe_flex_take_area(d, f, MOE_FLEX_SENT_WORDS);
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
    int rc = moe_flex_take_numbers(d, f->came, d->config.topk, &f->in_index);
    rc = rc ? rc : moe_dispatcher_take(d, (size_t)(f->came * d->local), &f->in_mask);
    rc = rc ? rc : moe_flex_take_numbers(d, f->came, d->local, &f->in_probs);
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
    moe_flex_give_area(d, f, MOE_FLEX_CAME_WORDS);
    rc = rc ? rc : moe_row_map_build_from(f->in, &source, 0, f->came, d->plan.received);
    moe_dispatcher_give(d, &f->in_mask);
    return rc;
}

int moe_flex_forward(moe_dispatcher_t *d, const void *x)
{
    struct moe_flex *f = moe_flex_of(d);
    bool travel = d->config.probs_travel;
    int rc = send_rows(d, f, x, "dispatch of rows");
    rc = rc ? rc : send_words(d, f);
    rc = rc ? rc : read_words(d, f);
    rc = rc ? rc : moe_dispatcher_take_received(d, &d->rows, &d->row_probs);
    struct moe_movement in = over_in(d, f);
    rc = rc ? rc
            : moe_map_permute(f->in, &in, f->area[MOE_FLEX_CAME_ROWS], travel ? f->in_probs : NULL, d->rows,
                              travel ? d->row_probs : NULL);
    moe_flex_give_area(d, f, MOE_FLEX_CAME_ROWS);
    if (travel) { /* otherwise combine weights with them */
        moe_dispatcher_give(d, &f->in_probs);
    }
    return rc ? rc : moe_dispatcher_take_rows(d, d->plan.received, &d->expert_out);
}

int moe_flex_combine(moe_dispatcher_t *d, void *y)
{
    struct moe_flex *f = moe_flex_of(d);
    struct moe_movement in = over_in(d, f), out = over_out(d, f);
    bool trim = f->padded != f->tokens;
    if (f->left) {
        return moe_device_ops(d->device)->zero(d->device, y, (size_t)f->tokens * moe_flex_row_bytes(d));
    }
    int rc = moe_flex_take_area(d, f, MOE_FLEX_CAME_ROWS);
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
    moe_flex_give_area(d, f, MOE_FLEX_SENT_ROWS);
    rc = rc || !trim ? rc : moe_uneven_trim(d->device, f->pad, f->tokens, moe_flex_row_bytes(d), y);
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
    struct moe_flex *f = moe_flex_of(d);
    struct moe_movement in = over_in(d, f);
    bool travel = d->config.probs_travel;
    int rc = begun(d);
    rc = rc ? rc : send_rows(d, f, d->dy, "combine backward");
    rc = rc ? rc : moe_dispatcher_take_rows(d, d->plan.received, &d->d_expert_out);
    rc = rc || travel ? rc : moe_flex_take_numbers(d, f->came, d->local, &f->d_in_probs);
    rc = rc ? rc
            : moe_map_unpermute_backward(f->in, &in, f->area[MOE_FLEX_CAME_ROWS], travel ? NULL : d->expert_out,
                                         travel ? NULL : f->in_probs, d->d_expert_out, travel ? NULL : f->d_in_probs);
    moe_flex_give_area(d, f, MOE_FLEX_CAME_ROWS);
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
    struct moe_flex *f = moe_flex_of(d);
    struct moe_movement in = over_in(d, f);
    bool travel = d->config.probs_travel;
    int rc = begun(d);
    rc = rc ? rc : moe_flex_take_area(d, f, MOE_FLEX_CAME_ROWS);
    rc = rc || !travel ? rc : moe_flex_take_numbers(d, f->came, d->local, &f->d_in_probs);
    rc = rc ? rc
            : moe_map_permute_backward(f->in, &in, d->d_rows, travel ? d->d_row_probs : NULL, NULL, 0.0f,
                                       f->area[MOE_FLEX_CAME_ROWS], travel ? f->d_in_probs : NULL);
    moe_dispatcher_give(d, &d->d_rows);
    moe_dispatcher_give(d, &d->d_row_probs);
    moe_row_map_drop(f->in);
    rc = rc ? rc : moe_flex_take_area(d, f, MOE_FLEX_CAME_WORDS);
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
    rc = rc || dx == d->dx ? rc : moe_uneven_trim(d->device, dx, f->tokens, moe_flex_row_bytes(d), d->dx);
    moe_flex_give_area(d, f, MOE_FLEX_SENT_ROWS);
    moe_dispatcher_give(d, &f->pad);
    return rc;
}

static int back_dispatch(void *arg)
{
    moe_dispatcher_t *d = arg;
    struct moe_flex *f = moe_flex_of(d);
    struct moe_movement out = over_out(d, f);
    out.type = MOE_F32;
    out.hidden = d->config.topk;
    int rc = begun(d);
    rc = rc ? rc : to_tokens(d, f, "dispatch backward", false);
    rc = rc ? rc : add_rows(d, f);
    rc = rc ? rc : moe_flex_take_numbers(d, f->padded, d->config.topk, &f->d_choice);
    rc = rc ? rc : moe_map_unpermute(f->out, &out, f->area[MOE_FLEX_SENT_WORDS], NULL, f->d_choice);
    moe_flex_give_area(d, f, MOE_FLEX_SENT_WORDS);
    moe_row_map_drop(f->out);
    rc = rc ? rc : moe_flex_take_d_probs(d);
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
    int rc = moe_flex_take_d_probs(d);
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
