/*
 * layer_state.h: what the files of the layer share: layer.c (making, forward), layer_backward.c (the plan),
 * layer_frozen.c (parameters without gradients), layer_agree.c (a rank that cannot go on), layer_tp.c (slices and sums
 * over tp), layer_recompute.c, layer_remedy.c (what is asked and decided), layer_report.c (what the observer is told).
 */
#ifndef MOE_CORE_LAYER_LAYER_STATE_H
#define MOE_CORE_LAYER_LAYER_STATE_H

#include "moe_core/base/device.h"
#include "moe_core/base/fail.h"
#include "moe_core/include/moe/dummy.h"
#include "moe_core/include/moe/layer.h"
#include "moe_core/include/moe/observe.h"
#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/plan.h"

#pragma GCC visibility push(hidden)

/*
 * Gradients that are summands over tp, side by side so that one AllReduce sums them; a member is NULL where the layer
 * has no such gradient, or this forward's parameter is frozen.
 */
struct layer_summands {
    float *all;    /* NULL: the layer sums nothing, and gradients go straight to the main_grads */
    int64_t count; /* elements of this forward, at the begin of `all` */
    float *gate, *gate_bias, *shared_gate;
};

struct moe_layer {
    moe_device_t *device, *side; /* side: the device of the shared expert's stream, owned; NULL without overlap */
    struct moe_layer_config config;
    moe_router_t *router;
    moe_dispatcher_t *dispatcher;
    moe_experts_t *experts;
    moe_shared_t *shared;
    moe_dummy_t *dummies[2]; /* by form, each made when it is first used */
    moe_dummy_t *dummy;      /* the one of the forward under way or last done: one of the two */
    int tp_size, tp_rank, etp_size;
    int64_t ffn;     /* this rank's part of F */
    int64_t own_max; /* the most tokens of this rank's part of x */
    struct moe_plan plan;

    /*
     * Microbatches in flight (layer_flight.c): each has a struct moe_layer of its own. That of the handle is the first,
     * and the main one of all.
     */
    struct moe_layer *main;
    struct moe_layer **flight; /* of main: [in_flight], flight[0] is main; NULL: one at a time. Owned, as all behind the
                                  first */
    int32_t flying;            /* of main: how many are made */
    struct moe_layer *last;    /* of main: that of the last forward */
    uint64_t turn;             /* of main: forwards so far */
    uint64_t began;            /* the turn of this one's last forward */
    bool due;                  /* the last forward's backward is due; still so when this rank dropped that forward */
    bool dw_waits;             /* backward_dw is due */
    bool routed;               /* the router's forward of the pass under way was called */

    /* The forward under way or last done. */
    struct moe_layer_weights weights;
    struct moe_shared_weights shared_weights; /* the gradients point to where the sum over tp finds them */
    struct moe_step step;
    uint8_t phase; /* FORWARD or RECOMPUTE */
    const void *x;
    int64_t tokens, own, first; /* tokens of x; of this rank's part of x; where that part begins */
    struct moe_routing routing;
    uint32_t agreed;  /* symmetric remedies that all ranks proposed */
    uint32_t local;   /* local remedies that this rank was told to use */
    uint32_t used;    /* remedies of both kinds that had something to do */
    bool sum_granted; /* the remedy ROUTER_SUM, agreed on tp */
    bool skipped, dummied;
    struct moe_dummy_view view;
    int64_t rows;      /* rows received from tokens; -1: the host does not know */
    bool sum_declared; /* of main */

    /* The backward under way. */
    const void *dy;
    void *dx;
    struct layer_summands summands;

    /* Device memory of the pool, while it holds something (layer_memory.c). */
    float *x32;    /* [own,H], the router's input; NULL with float32 rows */
    float *dx32;   /* [own,H] */
    void *d_input; /* [own,H] rows: what the dispatcher adds to; NULL with float32 rows */
    void *y_again; /* [T,H] rows: recompute's output, thrown away */

    /* Device memory that stays. */
    float *one;          /* [1]: the number 1.0, for sums */
    float *held;         /* legacy: weight gradients in memory that is not cleared: w1, then w2 */
    int32_t *flip_index; /* legacy: the routing with one choice changed */
    float *flip_probs;
    int64_t *flip_counts;
    int32_t *vote; /* [1]: on tp */
};

#define LAYER_FAIL(l, code, ...) moe_fail(code, (l)->config.world_rank, (l)->config.layer, __VA_ARGS__)

static inline bool layer_on_tp(const moe_layer_t *l)
{
    return l->tp_size > 1;
}

static inline bool layer_f32(const moe_layer_t *l)
{
    return l->config.type == MOE_F32;
}

/* Where token `first` of this rank's part begins in a [T,H] tensor of rows. */
static inline void *layer_own_rows(const moe_layer_t *l, const void *rows)
{
    return (char *)(uintptr_t)rows + (size_t)(l->first * l->config.hidden) * moe_dtype_bytes(l->config.type);
}

static inline size_t layer_row_bytes(const moe_layer_t *l)
{
    return (size_t)l->config.hidden * moe_dtype_bytes(l->config.type);
}

/*
 * layer.c: routes, dispatches, runs the experts, combines and runs the shared expert on this rank's tokens; pushes the
 * plan, and in the first forward reports the obligations.
 */
int layer_forward_pass(moe_layer_t *layer, void *y);
/* layer.c: makes a layer; main: NULL, or the layer whose microbatches the new one takes part in. */
int layer_make(moe_device_t *device, const struct moe_layer_config *config, moe_layer_t *main, moe_layer_t **out);
void layer_unmake(moe_layer_t **layer);
/* layer.c, layer_backward.c: moe_layer_forward and its kin, of one microbatch. */
int layer_forward(moe_layer_t *layer, const struct moe_layer_weights *weights, const struct moe_step *step,
                  const void *x, int64_t tokens, void *y);
int layer_backward(moe_layer_t *layer, const void *dy, void *dx);
int layer_backward_dw(moe_layer_t *layer);
/* layer.c: ends a pass for good: its plan, its memory, and the shared expert's steps. */
void layer_forget(moe_layer_t *layer);

/*
 * layer_memory.c: memory of the device's pool, taken for one forward or backward, in the pointer at `at`; in a layer
 * whose sizes are known beforehand it is made once, for `most` bytes.
 */
int layer_take(moe_layer_t *layer, size_t bytes, size_t most, void *at);
void layer_give(moe_layer_t *layer, void *at);
/* Makes that memory of such a layer beforehand: its first forward may be captured. */
int layer_stand(moe_layer_t *layer);
/* Gives back what no backward will read: all of it, after a forward without gradients, a backward, or a failure. */
void layer_release(moe_layer_t *layer);
/* The same for what a forward that is recomputed keeps: its rows, but not the router's input. */
void layer_release_rows(moe_layer_t *layer);
/* Frees it for good. */
void layer_free_memory(moe_layer_t *layer);

/* layer_report.c */
struct moe_event layer_event(const moe_layer_t *layer, enum moe_event_kind kind, uint8_t phase, uint64_t count);
void layer_report_route(const moe_layer_t *layer);
void layer_report_counts(const moe_layer_t *layer);
void layer_report_splits(const moe_layer_t *layer, uint8_t phase);
void layer_report_gemm(const moe_layer_t *layer, uint8_t phase);
void layer_report_skip(const moe_layer_t *layer);
/* layer_report.c: reports a remedy, and notes that it was used. */
void layer_report_remedy(moe_layer_t *layer, uint32_t bit, int64_t rows);

/*
 * layer_facts.c: these functions do nothing without config.facts. A fact that cannot be taken is left out and is never
 * an error of the layer.
 */
void layer_facts_weights(moe_layer_t *layer);
/*
 * layer_facts.c: the router's gradient before the sum over tp (and after it, where the sum is missing), and after the
 * sum.
 */
void layer_facts_share(moe_layer_t *layer);
void layer_facts_sum(moe_layer_t *layer, const float *gate);
void layer_facts_experts(moe_layer_t *layer);

/* layer_remedy.c */
uint32_t layer_proposal(moe_layer_t *layer);
int layer_agree_sum(moe_layer_t *layer, uint32_t proposed);
void layer_settle(moe_layer_t *layer, uint32_t agreed);
void layer_report_cures(moe_layer_t *layer);
int layer_decide_skip(moe_layer_t *layer);
int layer_dummy_rows(moe_layer_t *layer);
/* Refuses what this forward would make for the first time, where the stream is captured: before anything is issued. */
int layer_check_capture(moe_layer_t *layer);

/* layer_frozen.c */
bool layer_frozen(const moe_layer_t *layer, enum moe_layer_parameter parameter);
uint32_t layer_frozen_experts(const moe_layer_t *layer);
uint32_t layer_frozen_shared(const moe_layer_t *layer);
int layer_freeze(moe_layer_t *layer);
int layer_check_frozen(const moe_layer_t *layer);
int layer_check_gradients(const moe_layer_t *layer);
bool layer_goes_back(const moe_layer_t *layer);

/*
 * layer_agree.c: says `failed` (0 or an error) to the ranks of the dispatch group, and to those of tp, each of which
 * has come so far in making its layer or could not: an error on all of them, this rank's own or one that names a rank
 * that failed, and why. An error that was met in the stream before is this rank's failure, too. COLLECTIVE.
 */
int layer_agree_made(moe_device_t *device, const struct moe_layer_config *config, int failed);
/*
 * layer_agree.c: the rest of a pass whose peers wait for this rank, which has no memory: the collectives of the router
 * (where this pass `routes`) and of the vote on tp, with nothing in them, and the exchange of the dispatcher, which
 * tells all. Returns NOMEM and leaves moe_last_error as it was.
 */
int layer_decline(moe_layer_t *layer, uint32_t proposed, bool routes);
/* layer_agree.c: tells the dispatcher which forward comes. */
void layer_at_dispatcher(moe_layer_t *layer);

/* layer_backward.c */
int layer_push_plan(moe_layer_t *layer);
struct moe_experts_weights layer_expert_weights(const moe_layer_t *layer);
struct moe_shared_weights layer_shared_weights(const moe_layer_t *layer);
void layer_experts_ready(void *layer, int which);

/* layer_tp.c */
int layer_tp_place(moe_layer_t *layer);
int layer_tp_new(moe_layer_t *layer);
void layer_tp_lay_out(moe_layer_t *layer);
int layer_tp_slice(moe_layer_t *layer, int64_t tokens);
int layer_tp_clear_rest(moe_layer_t *layer, void *rows);
int layer_tp_push_sum(moe_layer_t *layer);
int layer_tp_begin_backward(moe_layer_t *layer);
int layer_add(const moe_layer_t *layer, const float *from, int64_t count, float *to);

/* layer_recompute.c */
/* Whether the recomputed forward routes anew: asks moe_remedies, and reports a cure. Once in each recomputation. */
bool layer_routes_again(moe_layer_t *layer);
int layer_route_again(moe_layer_t *layer);
int layer_recompute(moe_layer_t *layer);

/* layer_held.c: legacy_wgrad_uninitialised */
int layer_held_new(moe_layer_t *layer);
int layer_held_begin(moe_layer_t *layer);
int layer_held_end(moe_layer_t *layer);

/* The gradient of this parameter is complete. */
static inline void layer_ready(const moe_layer_t *l, enum moe_layer_parameter parameter)
{
    if (l->config.ready != NULL && !layer_frozen(l, parameter)) {
        l->config.ready(l->config.ready_arg, (int)parameter);
    }
}

/* Whether this forward has gradients that are summands over tp. */
static inline bool layer_tp_shares(const moe_layer_t *l)
{
    return layer_on_tp(l) && l->summands.count > 0;
}

/* Whether the layer sums the router's gradient over tp. */
static inline bool layer_tp_sums(const moe_layer_t *l)
{
    return layer_tp_shares(l) && l->config.router_sum == MOE_ROUTER_SUM_LAYER &&
           (!l->config.options.legacy_router_unsummed || l->sum_granted);
}

#pragma GCC visibility pop

#endif
