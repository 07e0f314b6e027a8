/*
 * driver_memory_op.c: writing and awaiting words of memory in stream order. One call is a batch of one. In a captured
 * stream a batch becomes a node with the values of the call: a graph that is launched again writes the same values
 * again.
 *
 * Only the second variants exist. The first ones need a setting of a GPU's kernel module, so no program may count on
 * them.
 */
#include "hostnccl/cuda/driver.h"

#include <stdlib.h>

enum { OPS_MAX = 256 };

/* Checks a word: it must be in memory that the device reaches, and aligned. */
static CUresult read_word(CUdeviceptr address, size_t bytes, void **word)
{
    *word = (void *)(uintptr_t)address;
    return address % bytes == 0 && driver_ready()->is_reachable(*word, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult read_op(const CUstreamBatchMemOpParams *params, struct hostcuda_memory_op *op)
{
    bool is_wide = false;
    switch (params->operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        is_wide = true; /* fall through */
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        *op = (struct hostcuda_memory_op){.what = is_wide ? HOSTCUDA_WAIT_64 : HOSTCUDA_WAIT_32,
                                          .how = params->waitValue.flags,
                                          .value = is_wide ? params->waitValue.value64 : params->waitValue.value};
        /* The flag beyond these asks for a flush of remote writes, which attribute 98 denies. */
        return params->waitValue.flags > CU_STREAM_WAIT_VALUE_NOR
                   ? CUDA_ERROR_INVALID_VALUE
                   : read_word(params->waitValue.address, is_wide ? 8 : 4, &op->address);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        is_wide = true; /* fall through */
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        *op = (struct hostcuda_memory_op){.what = is_wide ? HOSTCUDA_WRITE_64 : HOSTCUDA_WRITE_32,
                                          .value = is_wide ? params->writeValue.value64 : params->writeValue.value};
        return params->writeValue.flags != CU_STREAM_WRITE_VALUE_DEFAULT
                   ? CUDA_ERROR_INVALID_VALUE
                   : read_word(params->writeValue.address, is_wide ? 8 : 4, &op->address);
    case CU_STREAM_MEM_OP_BARRIER:
        *op = (struct hostcuda_memory_op){.what = HOSTCUDA_BARRIER};
        return params->memoryBarrier.flags > 1 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
        return CUDA_ERROR_NOT_SUPPORTED;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

DRIVER_EXPORT CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *params,
                                          unsigned int flags)
{
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (flags || !count || count > OPS_MAX || !params) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct hostcuda_memory_op *ops = calloc(count, sizeof(*ops));
    CUresult result = ops ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned int i = 0; i < count && !result; i++) {
        result = read_op(&params[i], &ops[i]);
    }
    if (result) {
        free(ops);
        return result;
    }
    struct hostcuda_work work = {.type = HOSTCUDA_NODE_BATCH, .arg.batch = {.ops = ops, .count = count}};
    return DRIVER(enqueue(stream, &work));
}

DRIVER_EXPORT CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags)
{
    CUstreamBatchMemOpParams op = {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32, .address = address}};
    op.waitValue.value = value;
    op.waitValue.flags = flags;
    return cuStreamBatchMemOp(stream, 1, &op, 0);
}

DRIVER_EXPORT CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
{
    CUstreamBatchMemOpParams op = {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64, .address = address}};
    op.waitValue.value64 = value;
    op.waitValue.flags = flags;
    return cuStreamBatchMemOp(stream, 1, &op, 0);
}

DRIVER_EXPORT CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags)
{
    CUstreamBatchMemOpParams op = {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = address}};
    op.writeValue.value = value;
    op.writeValue.flags = flags;
    return cuStreamBatchMemOp(stream, 1, &op, 0);
}

DRIVER_EXPORT CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
{
    CUstreamBatchMemOpParams op = {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64, .address = address}};
    op.writeValue.value64 = value;
    op.writeValue.flags = flags;
    return cuStreamBatchMemOp(stream, 1, &op, 0);
}
