/*
 * form_calls.c: what a rank issues, seen from outside: NCCL's calls, the events and questions of the tool interface,
 * and the back end's functions that make gradients of parameters.
 */
#include "tests/moe_core/form_ranks.h"

#include "moe_core/base/device.h"

#include <dlfcn.h>
#include <pthread.h>

/* The vendor's header declares them without a prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

_Thread_local struct form_self *form_self;
static _Thread_local int in_group;

static void *next(const char *name)
{
    void *fn = dlsym(RTLD_NEXT, name);
    if (fn == NULL) {
        fprintf(stderr, "no %s\n", name);
        abort();
    }
    return fn;
}

static char letter(ncclDataType_t type)
{
    return type == ncclFloat32 ? 'f'
           : type == ncclInt64 ? 'i'
           : type == ncclInt32 ? 'm'
           : type == ncclUint8 ? 'b'
                               : 'h';
}

static void note(char op, ncclDataType_t type, ncclComm_t comm, size_t count)
{
    if (form_self != NULL && in_group == 0 && form_self->result->calls < FORM_CALLS) {
        form_self->result->call[form_self->result->calls++] =
            (struct form_call){op, letter(type), comm != NULL && comm == form_self->tp, count};
    }
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    note(op == ncclMin && type == ncclInt64 ? 'N' : 'R', type, comm, count);
    return ((__typeof__(ncclAllReduce) *)next("ncclAllReduce"))(send, recv, count, type, op, comm, stream);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    note('G', type, comm, count);
    return ((__typeof__(ncclAllGather) *)next("ncclAllGather"))(send, recv, count, type, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    note('S', type, comm, count);
    return ((__typeof__(ncclReduceScatter) *)next("ncclReduceScatter"))(send, recv, count, type, op, comm, stream);
}

ncclResult_t ncclGroupStart(void)
{
    in_group++;
    return ((__typeof__(ncclGroupStart) *)next("ncclGroupStart"))();
}

ncclResult_t ncclGroupEnd(void)
{
    in_group--;
    note('A', ncclUint8, NULL, 0); /* an all-to-all-v has other sizes on every rank */
    return ((__typeof__(ncclGroupEnd) *)next("ncclGroupEnd"))();
}

uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard)
{
    (void)comm;
    (void)layer;
    if (form_self == NULL) {
        return 0;
    }
    form_self->result->asked |= hazard;
    return hazard & form_self->scenario->granted;
}

void moe_observe(const struct moe_event *event)
{
    struct form_result *r = form_self != NULL ? form_self->result : NULL;
    if (r != NULL && event->kind == MOE_EV_OBLIGE && r->obligations < FORM_OBLIGATIONS) {
        r->obligation[r->obligations++] = *event;
    }
}

/* the back end's work */

static const struct moe_ops *plain;

static int count_linear(moe_device_t *device, const struct moe_linear_pass *pass)
{
    if (form_self != NULL) {
        form_self->result->wgrads += pass->kind == MOE_LINEAR_WGRAD;
        form_self->result->bgrads += pass->kind == MOE_LINEAR_BGRAD;
    }
    return plain->linear(device, pass);
}

static int count_gemm(moe_device_t *device, const struct moe_gemm *args)
{
    if (form_self != NULL) {
        form_self->result->gate_products += args->ta; /* only a weight gradient has its first factor transposed */
    }
    return plain->gemm(device, args);
}

static int count_column_sum(moe_device_t *device, const struct moe_column_sum *args)
{
    if (form_self != NULL) {
        form_self->result->bias_sums++;
    }
    return plain->column_sum(device, args);
}

static int count_token_gate(moe_device_t *device, const struct moe_token_gate *args)
{
    if (form_self != NULL) {
        form_self->result->gate_products += args->d_gate != NULL;
    }
    return plain->token_gate_backward(device, args);
}

static struct moe_ops counted;

static const struct moe_ops *counted_ops(void)
{
    return &counted;
}

/* Every rank writes the same into the two tables before it uses them. */
void form_count_work(moe_device_t *device)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct moe_backend backend;
    pthread_mutex_lock(&lock);
    if (plain == NULL) {
        backend = *device->backend;
        plain = backend.ops();
        backend.ops = counted_ops;
        counted = *plain;
        counted.linear = count_linear;
        counted.gemm = count_gemm;
        counted.column_sum = count_column_sum;
        counted.token_gate_backward = count_token_gate;
    }
    device->backend = &backend;
    pthread_mutex_unlock(&lock);
}
