/*
 * dispatch_ranks.h: a token dispatcher over many ranks (threads of this process, on hostnccl), with a linear expert,
 * and the record of what it issued.
 *
 * The expert is y = W_e x, times the row's probability where they travel; with expert tensor parallelism each rank has
 * every etp-th column of W. Simple on purpose: the dispatcher is what is under test. The program defines the NCCL calls
 * itself and passes them on, so it sees what a preloaded tool sees. The reference is one process, double precision,
 * token by token.
 */
#ifndef ROLL_TESTS_MOE_CORE_DISPATCH_RANKS_H
#define ROLL_TESTS_MOE_CORE_DISPATCH_RANKS_H

#include "tests/moe_core/support.h"

#include "moe_core/include/moe/dispatcher.h"

#include <stdbool.h>

#define DR_ALL UINT32_MAX

enum {
    DR_RANKS = 16,
    DR_LOCAL = 2,
    DR_EXPERTS = 16,
    DR_HIDDEN = 6,
    DR_TOPK = 2,
    DR_TOKENS = 6,
    DR_UNITS = 24,
    DR_STEPS = 8,
    DR_ROWS = DR_RANKS * DR_TOKENS * DR_TOPK,
    DR_SHARED_FFN = 8,
    DR_SHARED_NUMBERS = 3 * DR_SHARED_FFN * DR_HIDDEN
};

/* An operation as one unit: a group of sends and receives is an all-to-all, a group of broadcasts an AllGather, of
 * reduces a ReduceScatter. */
enum dr_op { DR_NOTHING, DR_ALLREDUCE, DR_ALLGATHER, DR_REDUCESCATTER, DR_ALLTOALL };
enum dr_role { DR_NO_ROLE, DR_EP, DR_ETP, DR_TP_EP, DR_TP };

struct dr_unit {
    enum dr_op op; /* DR_NOTHING: an empty group */
    enum dr_role role;
    uint64_t bytes;                              /* what all members together contribute; 0 for an all-to-all */
    uint64_t sent[DR_RANKS], received[DR_RANKS]; /* of an all-to-all, by rank of the communicator */
};

struct dr_record {
    size_t units;
    struct dr_unit unit[DR_UNITS];
};

enum dr_tokens { DR_EQUAL, DR_DIFFERENT, DR_ONE_WITHOUT, DR_SINGLE /* one on rank 0, none on every other */ };

/* A shared expert over all ranks of tp_ep: inside the dispatcher, or run whole by the test after it. */
enum dr_shared { DR_NO_SHARED, DR_SHARED_INSIDE, DR_SHARED_AFTER };

/* The mistakes that the test makes in the arguments of moe_dispatcher_new, or on rank 0 in those of prepare. */
enum dr_wrong {
    DR_NOTHING_WRONG,
    DR_TP_EP_TOO_SMALL,
    DR_TP_EP_REVERSED,
    DR_NO_TP_EP,
    DR_EXPERTS_DO_NOT_DIVIDE,
    DR_TOO_MANY_TOKENS
};

struct dr_case {
    enum moe_dispatcher_kind kind;
    int etp, ep;
    int local;         /* experts of an ep rank; 0: DR_LOCAL */
    uint32_t empty;    /* a bit for each ep rank whose experts no token chooses */
    uint32_t unchosen; /* a bit for each expert that no token chooses */
    uint32_t masked;   /* bit for each rank: some of its choices are -1 */
    uint32_t mute;     /* bit for each rank: all of its choices are -1 */
    bool travel;
    enum moe_dtype type;
    enum dr_tokens tokens;
    int64_t capacity, row_multiple, token_bound, row_budget;
    enum moe_uneven uneven;
    struct moe_dispatcher_legacy legacy;
    uint32_t proposed[DR_RANKS];
    int from_step[DR_RANKS]; /* the step from which a rank proposes it */
    unsigned delay_us;       /* before each step a rank sleeps a random time up to this */
    uint32_t detach;         /* bit for each rank that detaches its experts */
    uint32_t granted;        /* remedies that moe_remedies gives */
    bool spoil_counts;       /* rank 0 gives counts that do not fit */
    unsigned patience_ms; /* 0: a hang fails the test; otherwise all communicators are aborted after this time without
                             progress */
    bool use_tp_ep;       /* with etp 1: tp_ep is a communicator of its own */
    enum dr_shared shared;
    enum dr_wrong wrong;
    int steps; /* forwards and backwards; 0: one. The record is the last one's */
};

struct dr_result {
    int rc;
    char message[256];
    bool hung; /* had not come to an end when the communicators were aborted */
    bool forward_done;
    int64_t tokens;
    uint32_t agreed, agreed_at[DR_STEPS]; /* in the last step, in each */
    size_t units_at[DR_STEPS];            /* of forward */
    struct moe_dispatch_plan plan;        /* the plan of the last step, whose splits are sent and received below */
    int64_t sent[DR_RANKS], received[DR_RANKS];
    struct dr_record forward, backward;
    size_t obligations;
    struct dr_unit obligation[DR_UNITS]; /* in the order of backward; bytes = the count given */
    int64_t m[DR_LOCAL];
    double y[DR_TOKENS * DR_HIDDEN], dx[DR_TOKENS * DR_HIDDEN], d_probs[DR_TOKENS * DR_EXPERTS];
    double d_w[DR_LOCAL * DR_HIDDEN * DR_HIDDEN];
    float d_shared[DR_SHARED_NUMBERS];
};

/* results [DR_RANKS]. Fails the test on a hang unless patience was given. */
void dr_run(const struct dr_case *c, struct dr_result *results);
/* Outputs and all gradients of a run without errors against the reference. */
void dr_check_reference(const struct dr_case *c, const struct dr_result *results);
/* What an all-to-all carries from one rank to another, counted from the data and not from the dispatcher's plan. */
enum dr_each {
    DR_PLAN,      /* not fixed here */
    DR_BY_CHOICE, /* a row for each choice of a local expert of the receiver */
    DR_BY_TOKEN   /* a row for each token that chose any of them: the Flex dispatchers */
};
/* The records of all ranks: `forward` and `backward` list the wanted units; v-operations that leave nothing to a rank
 * may be empty there. */
struct dr_want {
    enum dr_op op;
    enum dr_role role;
    uint64_t bytes; /* what all members together contribute; 0: not fixed */
    bool back;      /* an all-to-all that brings plan.sent rows back to where they came from */
    uint64_t
        row_bytes; /* bytes of a row, where the rows are plan.sent (all-to-all) or plan.received (over etp); else 0 */
    enum dr_each each;
};
void dr_check_sequence(const struct dr_case *c, const struct dr_result *results, const struct dr_want *forward,
                       size_t forwards, const struct dr_want *backward, size_t backwards);
int dr_ranks(const struct dr_case *c);
void dr_describe(const struct dr_case *c, char *text, size_t room);

#endif
