/*
 * What hostcuda gives to hostnccl and to the driver interface beside the public calls. It is asked for through
 * cudaGetExportTable, as the vendor's libraries do among themselves: no symbol of ours appears in the library's list.
 */
#ifndef HOSTNCCL_CUDA_PRIVATE_H
#define HOSTNCCL_CUDA_PRIVATE_H

#include "hostnccl/cuda/hostcuda.h"

/* The name of the table: 16 bytes. Changed with the table. */
#define HOSTCUDA_PRIVATE_ID "hostcuda table 1"

struct hostcuda_private {
    size_t bytes; /* of this struct */

    /* Enqueues a host function that is told of every launch, or adds it to the capture of the stream. `how` must stay. Errors
     * of cudaLaunchHostFunc. Any thread. */
    cudaError_t (*launch_prepared)(cudaStream_t stream, const struct hostcuda_prepared *how, void *data);
};

#endif
