/*
 * form_ranks.h: one MoE layer on four ranks (threads of this process, on hostnccl), in every layout that frameworks use
 * and with every option of its configuration, held against the reference in double precision.
 *
 * The program that links it defines NCCL's calls and the tool interface: what a rank issues is seen from outside, not
 * reported by the library. The back end's functions of gradients are counted likewise. Every output is poisoned before
 * it is written, and gradients begin with a number of their own, so that what was left alone and what was added to
 * show.
 */
#ifndef ROLL_TESTS_MOE_CORE_FORM_RANKS_H
#define ROLL_TESTS_MOE_CORE_FORM_RANKS_H

#include "tests/moe_core/support.h"

#include "moe_core/include/moe/layer.h"
#include "moe_core/include/moe/observe.h"
#include "moe_core/reference/ref_layer.h"

enum {
    FORM_RANKS = 4,
    FORM_T = 6, /* the most tokens of a rank */
    FORM_E = 8,
    FORM_H = 12,
    FORM_F = 4,
    FORM_S = 4, /* ffn of the shared expert */
    FORM_BATCHES = 4,
    FORM_LAYERS = 3,
    FORM_CALLS = 160,
    FORM_OBLIGATIONS = 24,
    FORM_MOST = FORM_E * 2 * FORM_F * FORM_H /* elements of the largest parameter */
};

/* How four ranks are arranged; neighbours (0 and 1, 2 and 3) are a pair. */
enum form_layout {
    FORM_EP,    /* ep 4 */
    FORM_ETP,   /* etp 2: a pair shares its experts; ep 2 */
    FORM_SEQ,   /* ep 4; a pair is a tp group, each rank with its own tokens */
    FORM_SPLIT, /* ep 4; a pair is a tp group with the same tokens, each rank works on half of them */
    FORM_SHARD, /* ep 2; a pair is a tp group with the same tokens, each rank with half of every expert's F */
    FORM_LAYOUTS
};

struct form_case {
    enum form_layout layout;
    struct moe_layer_config config; /* what is not set by the layout and the sizes above; topk 0: 2 */
    int layers;                     /* alike, each with the same tokens; 0: one */
    uint32_t empty;                 /* a bit for each ep rank whose experts no token chooses */
    int64_t tokens[FORM_RANKS];     /* of each rank, equal on a pair with the same tokens; all zero: FORM_T */
    uint32_t frozen[FORM_RANKS];    /* bits of moe_layer_weights.frozen */
    int thawed;                     /* microbatches from this one on freeze nothing; 0: all of them freeze */
    int freezes;                    /* microbatches before this one freeze nothing */
    bool steps;                     /* each microbatch is a step of its own */
    bool null;                      /* gradients of frozen parameters are NULL */
    int insists;                    /* so many forwards that are refused are made again */
    bool alone;                     /* moe_step.alone */
    bool streams;                   /* the device is on the caller's stream, and tokens come on it, with no wait */
    bool unnamed;                   /* moe_layer_backward, which names no microbatch */
    const char *order; /* a capital letter is the forward of a microbatch, a small one its backward; NULL: "Aa" */
    float loss_scale;  /* 0: 1 */
    uint32_t granted;  /* remedies that are granted where their hazard is met */
};

struct form_call {
    char op;   /* 'R' AllReduce, 'N' one that agrees on a layer, 'G' AllGather, 'S' ReduceScatter, 'A' a group */
    char kind; /* 'f' float32, 'h' 16 bits, 'i' int64, 'm' int32, 'b' bytes */
    bool on_tp;
    size_t count;
};

struct form_result {
    int rc;
    char message[256];
    float y[FORM_BATCHES][FORM_T * FORM_H], dx[FORM_BATCHES][FORM_T * FORM_H];
    float grad[MOE_LAYER_PARAMETERS][FORM_MOST]; /* without the number that they began with */
    int hooks[MOE_LAYER_PARAMETERS];
    struct form_call call[FORM_CALLS];
    size_t calls;
    size_t sent; /* calls before the first backward */
    struct moe_event obligation[FORM_OBLIGATIONS];
    size_t obligations;
    uint32_t asked;                               /* hazards that moe_remedies was asked about */
    int wgrads, bgrads, gate_products, bias_sums; /* work for gradients of parameters */
    uint32_t remedies;
};

/* Runs all ranks to the end. results: [FORM_RANKS]. A rank that fails has its code and message there. */
void form_run(const struct form_case *c, struct form_result *results);

/* Outputs, dx and the gradients of all parameters that are not frozen, against the reference; no rank failed. */
void form_check(const struct form_case *c, const struct form_result *results, double tolerance);
/* The same of outputs and gradients in every bit. */
void form_equal(const struct form_case *c, const struct form_result *a, const struct form_result *b);

/* The case's name of its place in a table, for messages. */
const char *form_name(enum form_layout layout);

/* What ranks and reference share. */
struct form_model {
    double parameter[MOE_LAYER_PARAMETERS][FORM_MOST]; /* whole, not sliced */
    double expert_bias[FORM_E];
};
void form_make_model(const struct form_case *c, struct form_model *m);
/* Tokens of rank r and their upstream gradients in a microbatch, as the row type has them. */
void form_make_tokens(const struct form_case *c, int rank, int batch, double *x, double *dy);
int64_t form_tokens(const struct form_case *c, int rank);
bool form_on_tp(const struct form_case *c);
bool form_has(const struct form_case *c, enum moe_layer_parameter p);
/* How a rank's part of a parameter is cut out of the whole. */
struct form_cut {
    int64_t blocks, height, first_row, rows, width, first_column, columns;
    int64_t skip; /* elements before the first block */
};
struct form_cut form_cut_of(const struct form_case *c, int rank, enum moe_layer_parameter p);
int64_t form_cut_count(const struct form_cut *cut);
double form_cut_get(const struct form_cut *cut, const double *whole, int64_t i);
/* The microbatches whose backward the order names. */
bool form_goes_back(const struct form_case *c, int batch);
bool form_goes(const struct form_case *c, int batch);
/* The frozen parameters of a rank in a microbatch. */
uint32_t form_frozen(const struct form_case *c, int rank, int batch);

/* form_calls.c: the rank whose thread this is, or NULL; on_tp: that communicator. */
struct form_self {
    struct form_result *result;
    const struct form_case *scenario;
    ncclComm_t tp;
};
extern _Thread_local struct form_self *form_self;
/* Makes the device count the back end's work for gradients. */
void form_count_work(moe_device_t *device);

#endif
