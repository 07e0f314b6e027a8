/*
 * flex_inside.h: what the files behind flex_ranks.h share.
 */
#ifndef ROLL_TESTS_MOE_CORE_FLEX_INSIDE_H
#define ROLL_TESTS_MOE_CORE_FLEX_INSIDE_H

#include "tests/moe_core/flex_ranks.h"

#include <pthread.h>
#include <stdatomic.h>

struct flex_rank {
    const struct flex_case *c;
    struct flex_result *out;
    ncclUniqueId id;
    int rank;
    _Atomic(ncclComm_t) world, ep, etp;
    moe_device_t *device;
    moe_dispatcher_t *d;
    float *x, *dy, *dx, *y, *probs;
    void *narrow_x, *narrow_y, *narrow_dy, *narrow_dx;
    int32_t *index;
    int64_t *counts;
    /*
     * A rank that wakes up because its communicators were aborted must not use them again: as in a real job, the thread
     * that aborts says so first.
     */
    pthread_mutex_t gate;
    bool ended;
};

struct flex_model {
    double x[FLEX_T * FLEX_H], dy[FLEX_T * FLEX_H], probs[FLEX_T * FLEX_E];
    int32_t index[FLEX_T * 4];
    int64_t counts[FLEX_E];
};

/* flex_calls.c */

/* The rank whose thread this is; NULL: none. */
extern _Thread_local struct flex_rank *flex_self;
/* How often this thread has waited for the device. */
extern _Thread_local int flex_waits;
/* From now on the rank calls NCCL no more; returns when no call of it is under way. */
void flex_end_rank(struct flex_rank *r);

/* flex_model.c */

int flex_etp(const struct flex_case *c);
int64_t flex_experts(const struct flex_case *c);
/* The numbers a and b of expert e: it is a x + b x x. */
double flex_a(int64_t e);
double flex_b(int64_t e);
/* The part of each expert that etp rank q has. */
double flex_share(const struct flex_case *c, int q);
void flex_make_model(const struct flex_case *c, int rank, struct flex_model *m);
/* Number i of rows of the case's type. */
float flex_get(const struct flex_case *c, const void *rows, int64_t i);
void flex_put(const struct flex_case *c, void *rows, int64_t i, float value);

/* flex_experts.c */

/* The experts on the rows that the dispatcher has received. */
void flex_experts_forward(struct flex_rank *r);
/* The backward of the experts, as a node of a plan: `arg` is a struct flex_rank. */
int flex_experts_backward(void *arg);
/* Fills rows that nothing may read. */
void flex_poison(const struct flex_rank *r, void *rows);
/* Counts the rows beyond the received ones that were written, which nothing may do. */
void flex_count_stray(struct flex_rank *r);

#endif
