/*
 * flex_ranks.h: one layer-forward and backward of a dispatcher on several ranks (threads of this process), with experts
 * so simple that the reference is a loop: f_e(x) = a_e x + b_e x x, element by element.
 *
 * The program that links it defines the NCCL calls that it counts and forwards them: what a rank issues is seen from
 * outside, not reported by the library.
 */
#ifndef ROLL_TESTS_MOE_CORE_FLEX_RANKS_H
#define ROLL_TESTS_MOE_CORE_FLEX_RANKS_H

#include "tests/moe_core/support.h"

#include "moe_core/include/moe/dispatcher.h"
#include "moe_core/include/moe/flex.h"
#include "moe_core/include/moe/observe.h"

#include <stdatomic.h>

enum { FLEX_RANKS = 8, FLEX_L = 2, FLEX_E = FLEX_RANKS * FLEX_L, FLEX_H = 5, FLEX_T = 70, FLEX_CALLS = 64 };

struct flex_case {
    int ranks, etp; /* etp 0: 1 */
    enum moe_dispatcher_kind kind;
    enum moe_uneven uneven;
    int64_t max_tokens; /* 0: FLEX_T */
    int64_t bound;
    int64_t tokens[FLEX_RANKS];
    uint32_t empty; /* a bit for each ep rank whose experts no token chooses */
    int32_t topk;
    bool masked; /* every third choice is -1 */
    bool travel;
    enum moe_dtype type; /* float32 or bfloat16 */
    int64_t row_multiple, row_budget;
    float budget_factor;
    int32_t node_ranks;
    int forwards;    /* 0: 1 */
    bool recomputed; /* all but the first are recomputed forwards of one microbatch */
    bool no_backward;
    uint32_t proposed[FLEX_RANKS];
    uint32_t granted;     /* local remedies, when a hazard is met */
    bool alone;           /* the overflow is answered rank by rank */
    int64_t first_tokens; /* the first of several forwards has the first so many tokens on every rank; 0: no */
    bool capture;         /* prepare and forward are captured while nothing is routed, then replayed with the tokens */
    struct moe_dispatcher_legacy legacy;
};

/* One call, as the comparison of sequences needs it: all-to-alls have other bytes on every rank. */
struct flex_call {
    char op; /* 'R' AllReduce MAX, 'G' AllGather, 'A' a group of sends and receives, '?' anything else */
    size_t bytes;
};

struct flex_result {
    _Atomic int done, ready; /* with everything; has a dispatcher */
    _Atomic size_t calls;    /* of all forwards and backward */
    int rc;
    int64_t tokens, received, padded, empty_experts, pad_rows, sent;
    uint32_t remedied; /* of the last forward */
    bool exact;
    uint32_t agreed[4];
    float y[FLEX_T * FLEX_H], dx[FLEX_T * FLEX_H], d_probs[FLEX_T * FLEX_E];
    double d_a[FLEX_L], d_b[FLEX_L];
    int64_t m[FLEX_L];
    int64_t canaries; /* rows beyond those received, all still what they were */
    int64_t stray;    /* rows beyond those received that were written */
    int64_t dropped;  /* of this rank's last forward */
    bool replay;
    int64_t most_dropped;
    struct moe_ep_buffer_info buffer;
    uint32_t obligations;
    uint32_t uniform[3];  /* MOE_UNIFORM reports of each number */
    uint64_t said[3];     /* the last one */
    int forward_waits;    /* host waits inside prepare and forward and combine of the last forward */
    size_t forward_calls; /* before backward */
    struct flex_call call[FLEX_CALLS];
    char message[256];
};

/* Runs all ranks to the end; fails the test when they do not come to it within 20 s. results: [FLEX_RANKS]. */
void flex_run(const struct flex_case *c, struct flex_result *results);

/* Runs them where a hang is expected: true when all ranks had a dispatcher and then, for `ms`, those that are not done
 * made no call; then all are aborted and joined. */
bool flex_hangs(const struct flex_case *c, struct flex_result *results, int ms);

/* Outputs and all gradients against the reference in double, which leaves out the choices that row_budget (etp 1) has
 * no row for. */
void flex_check(const struct flex_case *c, const struct flex_result *results, double tolerance);

/* Outputs and all gradients of real rows: equal in every bit. */
void flex_equal(const struct flex_case *c, const struct flex_result *a, const struct flex_result *b);

/* Every rank issued the same calls, forward and backward. */
void flex_same_calls(const struct flex_case *c, const struct flex_result *results);

/* How many calls of this letter rank r issued. */
size_t flex_count(const struct flex_result *r, char op);

#endif
