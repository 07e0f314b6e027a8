/*
 * dispatch_inside.h: what the files behind dispatch_ranks.h share.
 */
#ifndef ROLL_TESTS_MOE_CORE_DISPATCH_INSIDE_H
#define ROLL_TESTS_MOE_CORE_DISPATCH_INSIDE_H

#include "tests/moe_core/dispatch_ranks.h"

#include <stdatomic.h>

struct dr_rank {
    const struct dr_case *c;
    ncclUniqueId id;
    int rank, ep_rank, etp_rank;
    ncclComm_t world, ep, etp, tp;
    uint32_t proposal;        /* of the step under way */
    struct dr_record *record; /* what is being recorded into; NULL: nothing */
    struct dr_unit group;     /* of the open ncclGroupStart */
    int depth;
    struct dr_result *result;
    atomic_bool started, done, aborted;
};

struct dr_data {
    int64_t tokens;
    double x[DR_TOKENS * DR_HIDDEN], dy[DR_TOKENS * DR_HIDDEN], probs[DR_TOKENS * DR_EXPERTS];
    int32_t index[DR_TOKENS * DR_TOPK];
    int64_t counts[DR_EXPERTS];
    double w[DR_EXPERTS * DR_HIDDEN * DR_HIDDEN];
};

struct dr_work {
    struct dr_rank *r;
    moe_device_t *device;
    moe_dispatcher_t *dispatcher;
    const struct dr_data *data;
    enum moe_dtype type;
    float *wide; /* device, [DR_ROWS * DR_HIDDEN] */
    float x[DR_ROWS * DR_HIDDEN], row[DR_ROWS * DR_HIDDEN], probs[DR_ROWS];
};

/* dispatch_calls.c */

/* The rank whose thread this is; NULL: none. */
extern _Thread_local struct dr_rank *dr_self;
/* How often anything moved on any rank: calls of NCCL, and what else takes time. */
extern atomic_uint dr_progress;
/* Which of this rank's communicators it is. */
enum dr_role dr_role_of(ncclComm_t comm);

/* dispatch_data.c */

/* Experts of one ep rank, and of all. */
int64_t dr_local(const struct dr_case *c);
int64_t dr_experts(const struct dr_case *c);
/* A random number that every row type holds exactly. */
double dr_eighth(uint64_t *state);
void dr_make_data(const struct dr_case *c, int rank, struct dr_data *d);
/* Rows that rank r has for the experts of ep rank p: its choices of them, or the tokens that have any. */
int64_t dr_rows_for(const struct dr_case *c, int r, int p, enum dr_each each);

/* dispatch_expert.c */

/* Rows of the dispatcher's type, to and from floats, by the device's own cast. `count`: numbers. MOE_OK or the device's
 * error. */
int dr_widen(struct dr_work *w, const void *from, int64_t count, float *to);
int dr_narrow(struct dr_work *w, const float *from, int64_t count, void *to);
/* The expert on the rows that the dispatcher has received. */
int dr_expert_forward(struct dr_work *w);
/* The backward of the expert, as a node of a plan: `arg` is a struct dr_work. */
int dr_expert_backward(void *arg);

#endif
