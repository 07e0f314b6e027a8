/*
 * runtime.c: the CUDA runtime beside this library. NCCL's own library has a runtime inside; this one finds the
 * program's, of whichever release, and calls it through the private table.
 */
#include "hostnccl/nccl/internal.h"

#include "hostnccl/cuda/private.h"

const struct hostcuda_private *hn_cuda(void)
{
    static _Atomic(const struct hostcuda_private *) known;
    const struct hostcuda_private *table = atomic_load(&known);

    if (!table) {
        table = hostcuda_find();
        if (table && table->is_started()) { /* else the program may still start the other one of two runtimes */
            atomic_store(&known, table);
        }
    }
    return table;
}

ncclResult_t hn_cuda_check(void)
{
    return hn_cuda() ? ncclSuccess
                     : hn_fail(ncclUnhandledCudaError, "no CUDA runtime, or one that is not hostcuda (libcudart.so.12 "
                                                       "and .13 lie beside this library)");
}
