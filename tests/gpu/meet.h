/*
 * meet.h: how the ranks of a GPU check find each other: RANK and WORLD_SIZE, and the unique id through a file in
 * CHECK_DIR.
 */
#ifndef ROLL_TESTS_GPU_MEET_H
#define ROLL_TESTS_GPU_MEET_H

#include <cuda_runtime.h>
#include <nccl.h>

struct gpu_rank {
    int rank, size;
    ncclComm_t comm;
    cudaStream_t stream;
};

/* Ends the program with status 9 and one line when a call fails: a broken check must not look like a finding. */
void gpu_nccl(ncclResult_t result, const char *what);
void gpu_cuda(cudaError_t error, const char *what);
#define NCCL(call) gpu_nccl((call), #call)
#define CUDA(call) gpu_cuda((call), #call)

/* The driver, which the vendor's runtime has loaded already; NULL without one. The stand-in's learns here what it runs
 * for the interposer's counting kernel. Before gpu_meet. */
void *gpu_driver(void);

/* Takes a device (ranks may share one), makes a stream, joins the communicator of all ranks. Ends the program when it
 * cannot. */
void gpu_meet(struct gpu_rank *self);

#endif
