/*
 * flex_calls.c: what a preloaded tool sees: the calls of NCCL, counted and passed on, the host's waits, and the tool
 * interface.
 */
#include "tests/moe_core/flex_inside.h"

#include "moe_core/include/moe/observe.h"
#include "moe_core/include/moe/remedy.h"

#include <dlfcn.h>

/* The vendor's header declares them without a prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

_Thread_local struct flex_rank *flex_self;
_Thread_local int flex_waits;
static _Thread_local int in_group;
static _Thread_local bool passed; /* this thread holds its rank's gate */

static void *next(const char *name)
{
    void *fn = dlsym(RTLD_NEXT, name);
    if (fn == NULL) {
        fprintf(stderr, "no %s\n", name);
        abort();
    }
    return fn;
}

/* Whether this rank may call NCCL. If so, its communicators are not aborted before leave(). Groups enter once. */
static bool enter(void)
{
    if (flex_self != NULL && in_group == 0) {
        pthread_mutex_lock(&flex_self->gate);
        passed = !flex_self->ended;
        if (!passed) {
            pthread_mutex_unlock(&flex_self->gate);
        }
    }
    return flex_self == NULL || passed;
}

static ncclResult_t leave(ncclResult_t result)
{
    if (flex_self != NULL && in_group == 0 && passed) {
        passed = false;
        pthread_mutex_unlock(&flex_self->gate);
    }
    return result;
}

void flex_end_rank(struct flex_rank *r)
{
    pthread_mutex_lock(&r->gate);
    r->ended = true;
    pthread_mutex_unlock(&r->gate);
}

static void note(char op, size_t bytes)
{
    if (flex_self != NULL && flex_self->d != NULL && flex_self->out->calls < FLEX_CALLS) {
        flex_self->out->call[flex_self->out->calls] = (struct flex_call){op, bytes};
        flex_self->out->calls++;
    }
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    note(op == ncclMax && type == ncclInt64 && count == 1 ? 'R' : '?', count);
    return !enter()
               ? ncclInvalidUsage
               : leave(((__typeof__(ncclAllReduce) *)next("ncclAllReduce"))(send, recv, count, type, op, comm, stream));
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    note('G', count * (type == ncclInt64 ? 8 : type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1));
    return !enter()
               ? ncclInvalidUsage
               : leave(((__typeof__(ncclAllGather) *)next("ncclAllGather"))(send, recv, count, type, comm, stream));
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    note('S', count * (type == ncclFloat32 ? 4 : 2));
    return !enter() ? ncclInvalidUsage
                    : leave(((__typeof__(ncclReduceScatter) *)next("ncclReduceScatter"))(send, recv, count, type, op,
                                                                                         comm, stream));
}

ncclResult_t ncclGroupStart(void)
{
    bool may = enter();
    in_group++;
    return may ? ((__typeof__(ncclGroupStart) *)next("ncclGroupStart"))() : ncclInvalidUsage;
}

ncclResult_t ncclGroupEnd(void)
{
    bool may = flex_self == NULL || passed;
    if (--in_group == 0) {
        note('A', 0);
    }
    return may ? leave(((__typeof__(ncclGroupEnd) *)next("ncclGroupEnd"))()) : ncclInvalidUsage;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    flex_waits++;
    return ((__typeof__(cudaStreamSynchronize) *)next("cudaStreamSynchronize"))(stream);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    flex_waits++;
    return ((__typeof__(cudaEventSynchronize) *)next("cudaEventSynchronize"))(event);
}

uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard)
{
    (void)comm;
    (void)layer;
    return flex_self != NULL ? hazard & flex_self->c->granted : 0;
}

void moe_observe(const struct moe_event *event)
{
    if (flex_self != NULL && event->kind == MOE_EV_OBLIGE) {
        flex_self->out->obligations++;
    }
    if (flex_self != NULL && event->kind == MOE_EV_UNIFORM) {
        flex_self->out->uniform[event->peer]++;
        flex_self->out->said[event->peer] = event->count;
        assert_non_null(event->comm);
    }
}
