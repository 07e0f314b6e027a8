/*
 * layer_ranks.h: one MoE layer over several ranks (threads of this process, on hostnccl), and what it reports.
 *
 * The program that links it defines moe_observe and moe_remedies, as a preloaded tool does, so it also proves that the
 * library calls them through the PLT. Which ranks are empty is decided by the input: token features are the experts
 * that they want.
 */
#ifndef ROLL_TESTS_MOE_CORE_LAYER_RANKS_H
#define ROLL_TESTS_MOE_CORE_LAYER_RANKS_H

#include "tests/moe_core/support.h"

#include "moe_core/include/moe/layer.h"
#include "moe_core/include/moe/observe.h"

enum {
    LAYER_RANKS = 4,
    LAYER_T = 6,
    LAYER_L = 2,
    LAYER_H = 12,
    LAYER_F = 5,
    LAYER_E = LAYER_RANKS * LAYER_L,
    LAYER_EVENTS = 64
};

struct layer_case {
    int ranks;
    int32_t topk;
    uint32_t empty; /* bit per rank that must receive no token */
    bool legacy;
    bool backward;
    uint32_t remedies[LAYER_RANKS]; /* what each rank is told is on */
    uint32_t granted;               /* local remedies granted when the hazard is met */
    enum moe_dispatcher_kind kind;
    int64_t row_multiple, row_budget;
    bool delay_wgrad;
    enum moe_dtype weight; /* of the experts; FP8 with a scale of LAYER_SCALE */
};
#define LAYER_SCALE 0.125

struct layer_result {
    struct moe_event event[LAYER_EVENTS];
    size_t events;
    float y[LAYER_T * LAYER_H], dx[LAYER_T * LAYER_H], d_gate[LAYER_E * LAYER_H], d_w1[LAYER_L * 2 * LAYER_F * LAYER_H],
        d_w2[LAYER_L * LAYER_H * LAYER_F];
    int64_t rows;
    bool skipped;
    int rc;
};

/* The model and the tokens of one rank, the same in float and double. */
struct layer_data {
    double x[LAYER_T * LAYER_H], dy[LAYER_T * LAYER_H], gate[LAYER_E * LAYER_H], w1[LAYER_E * 2 * LAYER_F * LAYER_H],
        w2[LAYER_E * LAYER_H * LAYER_F];
};

struct layer_rank {
    const struct layer_case *scenario;
    ncclUniqueId id;
    int rank;
    struct layer_result *result;
};

/* The rank whose thread this is: its case and its result are used when the library reports or asks. */
extern _Thread_local struct layer_rank *layer_self;

void layer_make_data(const struct layer_case *s, int rank, struct layer_data *d);
/* Runs the layer on all ranks. results: [LAYER_RANKS]. */
void layer_run(const struct layer_case *s, struct layer_result *results);

#endif
