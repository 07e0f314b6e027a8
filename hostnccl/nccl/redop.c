/*
 * redop.c: reduction operations: the built-in ones, and those that ncclRedOpCreatePreMulSum makes.
 *
 * A created operation belongs to one communicator and one type. Its handle is mixed with a value of the communicator,
 * so that a communicator refuses the handle of another one instead of taking it for its own. A scalar in device memory
 * is read when the collective runs; one in host memory is read at once.
 */
#include "hostnccl/nccl/internal.h"

#include <stdlib.h>
#include <string.h>

/* Bits 20 to 29 of a handle are the communicator's; the index is below. All handles stay within ncclMaxRedOp. */
enum { INDEX_BITS = 20 };

static int tag_of(ncclComm_t comm)
{
    return (int)(hn_hash(0, &comm, sizeof(comm)) & 0x3ff) << INDEX_BITS;
}

static int find_op(ncclComm_t comm, ncclRedOp_t op)
{
    int index = ((int)op ^ tag_of(comm)) - ncclNumOps;

    return (int)op >= ncclNumOps && index >= 0 && (size_t)index < comm->nops && comm->ops[index].used ? index : -1;
}

/* Finds a free place, and returns its index; -1 without one. Under the lock. */
static int new_op(ncclComm_t comm)
{
    for (size_t i = 0; i < comm->nops; i++) {
        if (!comm->ops[i].used) {
            return (int)i;
        }
    }
    size_t more = comm->nops ? 2 * comm->nops : 4;
    struct hn_user_op *bigger = more < 1u << INDEX_BITS ? realloc(comm->ops, more * sizeof(*bigger)) : NULL;
    if (!bigger) {
        return -1;
    }
    memset(bigger + comm->nops, 0, (more - comm->nops) * sizeof(*bigger));
    int index = (int)comm->nops;
    comm->ops = bigger;
    comm->nops = more;
    return index;
}

HN_API(ncclResult_t, ncclRedOpCreatePreMulSum, ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
       ncclScalarResidence_t residence, ncclComm_t comm)
{
    ncclResult_t rc = hn_comm_ready(comm, "ncclRedOpCreatePreMulSum");
    size_t size = hn_type_size(datatype);

    if (rc != ncclSuccess) {
        return rc;
    }
    if (!op || !scalar || !size || (unsigned)residence > ncclScalarHostImmediate) {
        return hn_fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: op %p scalar %p type %d residence %d",
                       (void *)op, scalar, (int)datatype, (int)residence);
    }
    pthread_mutex_lock(&comm->lock);
    int index = new_op(comm);
    if (index >= 0) {
        struct hn_user_op *o = &comm->ops[index];
        *o = (struct hn_user_op){.used = true, .type = datatype};
        if (residence == ncclScalarHostImmediate) {
            memcpy(o->immediate, scalar, size);
        } else {
            o->device_scalar = scalar;
        }
        *op = (ncclRedOp_t)((index + ncclNumOps) ^ tag_of(comm));
    }
    pthread_mutex_unlock(&comm->lock);
    return index >= 0 ? ncclSuccess : hn_fail(ncclSystemError, "ncclRedOpCreatePreMulSum: out of memory");
}

HN_API(ncclResult_t, ncclRedOpDestroy, ncclRedOp_t op, ncclComm_t comm)
{
    ncclResult_t rc = hn_comm_check(comm, "ncclRedOpDestroy");

    if (rc != ncclSuccess) {
        return rc;
    }
    if ((int)op >= 0 && (int)op < ncclNumOps) {
        return hn_fail(ncclInvalidArgument, "ncclRedOpDestroy: %d is a built-in operation", (int)op);
    }
    pthread_mutex_lock(&comm->lock);
    int index = find_op(comm, op);
    if (index >= 0) {
        comm->ops[index].used = false;
    }
    pthread_mutex_unlock(&comm->lock);
    return index >= 0
               ? ncclSuccess
               : hn_fail(ncclInvalidArgument, "ncclRedOpDestroy: %d is not an operation of this communicator", (int)op);
}

static bool is_integer(ncclDataType_t type)
{
    return type <= ncclUint64;
}

static void average(ncclComm_t comm, ncclDataType_t type, struct hn_redop *out)
{
    if (is_integer(type)) {
        out->divisor = comm->nranks;
    } else {
        out->scaled = true;
        hn_scalar_from_double(out->immediate, 1.0 / comm->nranks, type);
    }
}

static ncclResult_t resolve_user(ncclComm_t comm, ncclRedOp_t op, ncclDataType_t type, struct hn_redop *out,
                                 const char *call)
{
    ncclResult_t rc = ncclSuccess;

    pthread_mutex_lock(&comm->lock);
    int index = find_op(comm, op);
    if (index < 0) {
        rc = hn_fail(ncclInvalidArgument, "%s: reduction operation %d", call, (int)op);
    } else if (comm->ops[index].type != type) {
        rc = hn_fail(ncclInvalidArgument, "%s: the reduction operation was made for type %d, the call has %d", call,
                     (int)comm->ops[index].type, (int)type);
    } else {
        out->scaled = true;
        out->scalar = comm->ops[index].device_scalar;
        memcpy(out->immediate, comm->ops[index].immediate, sizeof(out->immediate));
    }
    pthread_mutex_unlock(&comm->lock);
    return rc;
}

ncclResult_t hn_redop_resolve(ncclComm_t comm, ncclRedOp_t op, ncclDataType_t type, struct hn_redop *out,
                              const char *call)
{
    static const enum hn_reduce KINDS[] = {
        [ncclSum] = HN_SUM, [ncclProd] = HN_PROD, [ncclMax] = HN_MAX, [ncclMin] = HN_MIN, [ncclAvg] = HN_SUM};

    *out = (struct hn_redop){.kind = HN_SUM};
    if ((int)op < 0 || (int)op >= ncclNumOps) {
        return resolve_user(comm, op, type, out, call);
    }
    out->kind = KINDS[op];
    if (op == ncclAvg) {
        average(comm, type, out);
    }
    return ncclSuccess;
}
