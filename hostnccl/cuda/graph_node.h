/* graph_node.h: turns a program's description of a node into work, for nodes of graphs (graph_node.c) and of executable
 * graphs (exec_update.c). */
#ifndef ROLL_HOSTNCCL_CUDA_GRAPH_NODE_H
#define ROLL_HOSTNCCL_CUDA_GRAPH_NODE_H

#include "hostnccl/cuda/graph.h"

/*
 * Each function makes the work, or returns cudaErrorInvalidValue (cudaErrorNotSupported for arrays; for a kernel, the
 * errors of a launch). Only the work of an event or a kernel owns something.
 */
cudaError_t hostcuda_work_of_kernel(struct hostcuda_work *work, const struct cudaKernelNodeParams *params);
cudaError_t hostcuda_work_of_host(struct hostcuda_work *work, const struct cudaHostNodeParams *params);
cudaError_t hostcuda_work_of_copy(struct hostcuda_work *work, const struct cudaMemcpy3DParms *params);
cudaError_t hostcuda_work_of_line(struct hostcuda_work *work, void *dst, const void *src, size_t bytes,
                                  enum cudaMemcpyKind kind);
cudaError_t hostcuda_work_of_fill(struct hostcuda_work *work, const struct cudaMemsetParams *params);
cudaError_t hostcuda_work_of_event(struct hostcuda_work *work, int type, cudaEvent_t handle);

#endif
