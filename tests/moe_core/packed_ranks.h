/*
 * packed_ranks.h: packed sequences on 16 ranks (threads of this process): tensor, context, pipeline and expert parallel
 * 2 each, two replicas. packed_ranks.c runs them, test_packed_4816.c holds them against the whole model.
 */
#ifndef ROLL_TESTS_MOE_CORE_PACKED_RANKS_H
#define ROLL_TESTS_MOE_CORE_PACKED_RANKS_H

#include "tests/moe_core/form_ranks.h"

enum {
    PACKED_RANKS = 16,
    PACKED_STAGE = 8, /* ranks of a stage */
    PACKED_BATCHES = 3,
    PACKED_LAYERS = 4, /* two in each stage */
    PACKED_E = 4,
    PACKED_H = 8,
    PACKED_F = 4,
    PACKED_K = 2,
    PACKED_MOST = 16, /* tokens of a rank */
    PACKED_UNIT = 8   /* 2 cp tp: sequences are padded to a multiple */
};

struct packed_model {
    double gate[PACKED_LAYERS][PACKED_E * PACKED_H], w1[PACKED_LAYERS][PACKED_E * 2 * PACKED_F * PACKED_H],
        w2[PACKED_LAYERS][PACKED_E * PACKED_H * PACKED_F];
};

struct packed_scenario {
    enum moe_dispatcher_kind kind;
    bool over_dp; /* ep pairs are over dp, not over cp */
    bool recompute;
};

struct packed_result {
    int rc;
    char message[256];
    float y[PACKED_BATCHES][PACKED_MOST * PACKED_H], dx[PACKED_BATCHES][PACKED_MOST * PACKED_H];
    float d_gate[2][PACKED_E * PACKED_H], d_w1[2][PACKED_E * 2 * PACKED_F * PACKED_H],
        d_w2[2][PACKED_E * PACKED_H * PACKED_F];
    struct form_result calls;
};

/* Of an MoE layer's output in the sum with its input. */
extern const double packed_share;
/* Elements of this rank's part of the gate, w1 and w2. */
extern const int64_t packed_sizes[3];

/* Where a rank is in each of its groups. */
int packed_tp_of(int rank);
int packed_cp_of(int rank);
int packed_dp_of(int rank);
int packed_stage_of(int rank);
/* The owner of experts that a rank is in its pair. */
int packed_owner_of(const struct packed_scenario *s, int rank);
/* Writes x and the gradient of the model's output of a rank's packed tokens, and returns how many there are. */
int64_t packed_tokens(int rank, int batch, double *x, double *dy);
void packed_make_model(struct packed_model *m);
/* Runs all ranks to the end. results: [PACKED_RANKS]. */
void packed_run(const struct packed_scenario *s, const struct packed_model *m, struct packed_result *results);

#endif
