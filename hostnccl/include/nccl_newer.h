/*
 * nccl_newer.h: what NCCL 2.29 to 2.32 added to the public interface, for programs of this project that call it beside
 * a header of 2.28.9. After a header of those releases only the prototypes are declared again, and the compiler
 * compares them. What each call means is in NCCL's documentation; what this library does differently is in
 * docs/HOSTNCCL.md.
 */
#ifndef ROLL_HOSTNCCL_INCLUDE_NCCL_NEWER_H
#define ROLL_HOSTNCCL_INCLUDE_NCCL_NEWER_H

#include <nccl.h>
#include <stdint.h>

#if NCCL_VERSION_CODE < 22902
typedef struct {
    int opCnt;
    int peer;
    int sigIdx;
    int ctx;
} ncclWaitSignalDesc_t;
#endif

#if NCCL_VERSION_CODE < 22907
#define NCCL_SUSPEND_MEM 0x01

typedef enum {
    ncclStatGpuMemSuspend = 0,   /* bytes that a suspension gives back */
    ncclStatGpuMemSuspended = 1, /* 1 while suspended */
    ncclStatGpuMemPersist = 2,   /* bytes that it does not give back */
    ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;
#endif

#if NCCL_VERSION_CODE < 23102
typedef struct ncclCollConfig ncclCollConfig_t;
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define HOSTNCCL_DECLARE(type, name, arguments)                                                                        \
    type name arguments;                                                                                               \
    type p##name arguments

/* 2.29 */
HOSTNCCL_DECLARE(ncclResult_t, ncclCommGetUniqueId, (ncclComm_t comm, ncclUniqueId *uniqueId));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommGrow,
                 (ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t *newcomm,
                  ncclConfig_t *config));
HOSTNCCL_DECLARE(ncclResult_t, ncclWinGetUserPtr, (ncclComm_t comm, ncclWindow_t win, void **outUserPtr));
HOSTNCCL_DECLARE(ncclResult_t, ncclPutSignal,
                 (const void *localbuff, size_t count, ncclDataType_t datatype, int peer, ncclWindow_t peerWin,
                  size_t peerWinOffset, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream));
HOSTNCCL_DECLARE(ncclResult_t, ncclSignal,
                 (int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm, cudaStream_t stream));
HOSTNCCL_DECLARE(ncclResult_t, ncclWaitSignal,
                 (int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm, cudaStream_t stream));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommSuspend, (ncclComm_t comm, int flags));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommResume, (ncclComm_t comm));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommMemStats, (ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value));

/* 2.31: the collectives once more, with settings of one call. */
HOSTNCCL_DECLARE(ncclResult_t, ncclAllReduceConfig,
                 (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                  ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config));
HOSTNCCL_DECLARE(ncclResult_t, ncclBroadcastConfig,
                 (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                  ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config));
HOSTNCCL_DECLARE(ncclResult_t, ncclReduceConfig,
                 (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,
                  ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config));
HOSTNCCL_DECLARE(ncclResult_t, ncclAllGatherConfig,
                 (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
                  cudaStream_t stream, const ncclCollConfig_t *config));
HOSTNCCL_DECLARE(ncclResult_t, ncclReduceScatterConfig,
                 (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op,
                  ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config));
HOSTNCCL_DECLARE(ncclResult_t, ncclAlltoAllConfig,
                 (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                  cudaStream_t stream, const ncclCollConfig_t *config));
HOSTNCCL_DECLARE(ncclResult_t, ncclGatherConfig,
                 (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                  ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config));
HOSTNCCL_DECLARE(ncclResult_t, ncclScatterConfig,
                 (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                  ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config));

#undef HOSTNCCL_DECLARE

#ifdef __cplusplus
}
#endif

#endif
