/* cuda_profiler_api.h: the profiler's switch: hostcuda has no profiler, and both calls succeed. See cuda_runtime_api.h.
 */
#ifndef HOSTNCCL_CUDA_PROFILER_API_H
#define HOSTNCCL_CUDA_PROFILER_API_H

#include "driver_types.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStop(void);

#ifdef __cplusplus
}
#endif

#endif
