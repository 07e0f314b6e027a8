/*
 * shim.c: another library between us and NCCL: the functions that static_job.c's "same" job calls, each handed on to
 * what lies behind. So nothing that our wrappers forward to is in NCCL itself.
 */
#include <dlfcn.h>
#include <nccl.h>
#include <stdint.h>
#include <string.h>

#define SHIM(name, params, args)                                                                                       \
    ncclResult_t name params                                                                                           \
    {                                                                                                                  \
        ncclResult_t(*real) params;                                                                                    \
        void *found = dlsym(RTLD_NEXT, #name);                                                                         \
        memcpy(&real, &found, sizeof(real));                                                                           \
        return real != NULL ? real args : ncclSystemError;                                                             \
    }
SHIM(ncclGetUniqueId, (ncclUniqueId * id), (id))
SHIM(ncclCommInitRank, (ncclComm_t * comm, int size, ncclUniqueId id, int rank), (comm, size, id, rank))
SHIM(ncclAllReduce,
     (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
      cudaStream_t stream),
     (send, recv, count, type, op, comm, stream))
SHIM(ncclCommDestroy, (ncclComm_t comm), (comm))
