/*
 * tp_ranks.h: a layer over the ranks of a tensor parallel group (threads of this process, on hostnccl), for two steps
 * of two microbatches with an optimizer of the test's own behind each step.
 *
 * Which collectives each rank issues on tp is seen from outside: the program defines NCCL's calls and passes them on.
 * Written with `float` for the library's numbers, so that it can be compiled with numbers of 64 bits (wide_float.h).
 */
#ifndef ROLL_TESTS_MOE_CORE_TP_RANKS_H
#define ROLL_TESTS_MOE_CORE_TP_RANKS_H

#include "tests/moe_core/support.h"

#include "moe_core/include/moe/layer.h"

/* T can be divided by the ranks of tp, and each part by the sequences of the loss. */
enum { TP_T = 8, TP_H = 6, TP_F = 8, TP_S = 8, TP_E = 4, TP_K = 2, TP_SEQUENCES = 2 };
enum { TP_RANKS = 4, TP_SETS = 4, TP_STEPS = 2, TP_BATCHES = 2, TP_RUNS = TP_STEPS * TP_BATCHES };

/*
 * TP2EP      each tp rank works on a slice of the tokens, experts sharded over the same ranks
 * DP2EP      experts' F sharded over tp, experts themselves over ep, whose ranks have other tokens
 * TP_ONLY    F sharded, all experts everywhere
 * SEQUENCE   each tp rank has tokens of its own, experts sharded over the same ranks
 */
enum tp_layout { TP2EP, DP2EP, TP_ONLY, SEQUENCE };
enum tp_sums { LAYER_SUMS, NOBODY_SUMS, TWICE, CALLER_SUMS };

struct tp_case {
    enum tp_layout layout;
    int tp, ep; /* ranks: DP2EP tp x ep, else tp */
    enum moe_score score;
    bool before, shared;
    bool extras; /* gate bias, auxiliary losses, the experts' biases, the shared expert's gate */
    enum tp_sums sums;
};

/* Gradients that are summands over tp, side by side: of the gate, its bias and the shared expert's gate. */
enum { TP_BIAS_AT = TP_E * TP_H, TP_SHARED_AT = TP_BIAS_AT + TP_E, TP_SUMMANDS = TP_SHARED_AT + TP_H };

/* Every parameter of the model, which the ranks take their parts of, and the tokens of each set in each run. */
struct tp_model {
    double replica[TP_SUMMANDS]; /* the parameters of the summands */
    double w1[TP_E * 2 * TP_F * TP_H], w2[TP_E * TP_H * TP_F], s1[2 * TP_S * TP_H], s2[TP_H * TP_S];
    double b1[TP_E * 2 * TP_F], b2[TP_E * TP_H];
    double x[TP_RUNS][TP_SETS][TP_T * TP_H], dy[TP_RUNS][TP_SETS][TP_T * TP_H];
};

/* Calls on tp, by phase: AllReduce, AllGather, ReduceScatter and anything else. */
enum { TP_FORWARD, TP_BACKWARD, TP_PHASES };
struct tp_calls {
    int reduce, gather, scatter, other;
    size_t reduced; /* elements of the AllReduces */
};

/* What forward says that backward will issue on tp. */
struct tp_obliged {
    int reduce, gather, scatter;
    uint64_t reduced;
};

/* Facts about the router's gate, of all runs, and the numbers of the first. */
struct tp_facts {
    int replica, part, sum;
    uint64_t checksum;
    double part_sum, sum_sum;
};

struct tp_result {
    int rc;
    int declared[2]; /* what declaring a sum of the caller's own gave, once and again */
    float y[TP_RUNS][TP_T * TP_H], dx[TP_RUNS][TP_T * TP_H];
    float summand[TP_STEPS][TP_SUMMANDS]; /* gradients of both microbatches, as the layer left them */
    float replica[TP_STEPS][TP_SUMMANDS]; /* the parameters after each step */
    float d_w1[TP_STEPS][TP_E * 2 * TP_F * TP_H], d_w2[TP_STEPS][TP_E * TP_H * TP_F];
    float d_b1[TP_STEPS][TP_E * 2 * TP_F], d_b2[TP_STEPS][TP_E * TP_H];
    float d_s1[TP_STEPS][2 * TP_S * TP_H], d_s2[TP_STEPS][TP_H * TP_S];
    struct tp_calls calls[TP_PHASES]; /* of all runs */
    struct tp_obliged obliged;        /* likewise */
    struct tp_facts facts;
};

/* The part of the experts and of the shared expert that a rank has. */
struct tp_part {
    int64_t expert, experts, f, fs, s, ss; /* first expert, experts; first column of F, columns; the same of S */
};

static const double tp_rate = 0.25;
static const double tp_losses[MOE_LOSSES] = {0.5, 0.25, 0.75, 0.125};

int tp_size(const struct tp_case *c);
/* Rank = number of the set of tokens x tp + tp rank, where the ranks of tp share a set. */
int tp_set_of(const struct tp_case *c, int rank);
int tp_sets(const struct tp_case *c);
struct tp_part tp_part_of(const struct tp_case *c, int rank);
void tp_make_model(struct tp_model *m, uint64_t seed);

/* Rows first .. first + rows of each of `blocks` blocks of `height` rows, and columns likewise: how F and S are cut. */
void tp_cut_rows(float *to, const double *from, int64_t blocks, int64_t height, int64_t first, int64_t rows,
                 int64_t width);
void tp_cut_columns(float *to, const double *from, int64_t rows, int64_t width, int64_t first, int64_t columns);

/* Runs all ranks to the end; fails the test when one reports an error. results: [TP_RANKS]. */
void tp_run(const struct tp_case *c, const struct tp_model *m, struct tp_result *results);

#endif
