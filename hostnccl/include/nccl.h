/*
 * nccl.h: NCCL's public interface, version 2.28.9, for building where the vendor's header is absent. Same names,
 * values, layouts and calling conventions; checked against the vendor's header by tests/hostnccl/nccl where that is
 * present. What each call means is in NCCL's documentation; what this library does differently is in docs/HOSTNCCL.md.
 *
 * With HOSTNCCL_PROTOTYPES_ONLY, after another nccl.h, only the prototypes are declared (again): the compiler compares
 * them.
 */
#if !defined(NCCL_H_) || defined(HOSTNCCL_PROTOTYPES_ONLY)

#ifndef NCCL_H_
#define NCCL_H_

#include <cuda_runtime.h>
#include <limits.h>
#include <stddef.h>

#define NCCL_MAJOR        2
#define NCCL_MINOR        28
#define NCCL_PATCH        9
#define NCCL_SUFFIX       ""
#define NCCL_VERSION_CODE 22809
/* Two digits per part since 2.9; one for the minor version before. */
#define NCCL_VERSION(X, Y, Z) ((X) * ((X) > 2 || (Y) > 8 ? 10000 : 1000) + (Y)*100 + (Z))

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
#define NCCL_COMM_NULL NULL

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
    ncclSuccess,
    ncclUnhandledCudaError,
    ncclSystemError,
    ncclInternalError,
    ncclInvalidArgument,
    ncclInvalidUsage,
    ncclRemoteError,
    ncclInProgress,
    ncclNumResults
} ncclResult_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_SPLIT_NOCOLOR    -1
#define NCCL_UNDEF_FLOAT      -1.0f

#define NCCL_WIN_DEFAULT            0x00
#define NCCL_WIN_COLL_SYMMETRIC     0x01
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

#define NCCL_CTA_POLICY_DEFAULT    0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO       0x02

#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT   0x01

#define NCCL_REVOKE_DEFAULT 0x00

typedef struct ncclConfig_v22800 {
    size_t size; /* these three are set by NCCL_CONFIG_INITIALIZER */
    unsigned int magic;
    unsigned int version;
    int blocking; /* from here on the caller's; unset: NCCL_CONFIG_UNDEF_INT or _PTR */
    int cgaClusterSize;
    int minCTAs;
    int maxCTAs;
    const char *netName;
    int splitShare;
    int trafficClass;
    const char *commName;
    int collnetEnable;
    int CTAPolicy;
    int shrinkShare;
    int nvlsCTAs;
    int nChannelsPerNetPeer;
    int nvlinkCentricSched;
} ncclConfig_t;

/* By position, so that C++ before 20 can use it too. */
#define NCCL_CONFIG_INITIALIZER                                                                                        \
    {                                                                                                                  \
        sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,             \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT,                \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,                \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT                 \
    }

typedef struct ncclSimInfo_v22200 {
    size_t size;
    unsigned int magic;
    unsigned int version;
    float estimatedTime;
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER                                                                                      \
    {                                                                                                                  \
        sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION_CODE, NCCL_UNDEF_FLOAT                                         \
    }

typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
typedef enum {
    ncclSum,
    ncclProd,
    ncclMax,
    ncclMin,
    ncclAvg,
    ncclNumOps,               /* handles of created operations start here */
    ncclMaxRedOp = 0x7fffffff /* and end here */
} ncclRedOp_t;

typedef enum {
    ncclInt8 = 0,
    ncclChar = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclInt = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclHalf = 6,
    ncclFloat32 = 7,
    ncclFloat = 7,
    ncclFloat64 = 8,
    ncclDouble = 8,
    ncclBfloat16 = 9,
    ncclFloat8e4m3 = 10,
    ncclFloat8e5m2 = 11,
    ncclNumTypes = 12
} ncclDataType_t;

typedef enum {
    ncclScalarDevice = 0,       /* read while the collective runs */
    ncclScalarHostImmediate = 1 /* read before the call that takes it returns */
} ncclScalarResidence_t;

#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Every function has a twin with the prefix p, for tools that wrap the first. */
#define HOSTNCCL_DECLARE(type, name, arguments)                                                                        \
    type name arguments;                                                                                               \
    type p##name arguments

/* Memory, version, texts. */
HOSTNCCL_DECLARE(ncclResult_t, ncclMemAlloc, (void **ptr, size_t size));
HOSTNCCL_DECLARE(ncclResult_t, ncclMemFree, (void *ptr));
HOSTNCCL_DECLARE(ncclResult_t, ncclGetVersion, (int *version));
HOSTNCCL_DECLARE(const char *, ncclGetErrorString, (ncclResult_t result));
HOSTNCCL_DECLARE(const char *, ncclGetLastError, (ncclComm_t comm));
#ifndef HOSTNCCL_PROTOTYPES_ONLY
HOSTNCCL_DECLARE(__attribute__((deprecated)) void, ncclResetDebugInit, (void));
#endif

/* Life of a communicator. */
HOSTNCCL_DECLARE(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * uniqueId));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommInitRankConfig,
                 (ncclComm_t * comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommInitRankScalable,
                 (ncclComm_t * newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds, ncclConfig_t *config));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommInitAll, (ncclComm_t * comm, int ndev, const int *devlist));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommSplit,
                 (ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommShrink,
                 (ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,
                  ncclConfig_t *config, int shrinkFlags));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommFinalize, (ncclComm_t comm));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommDestroy, (ncclComm_t comm));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommAbort, (ncclComm_t comm));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommRevoke, (ncclComm_t comm, int revokeFlags));

/* Questions to a communicator. */
HOSTNCCL_DECLARE(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *asyncError));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommCount, (const ncclComm_t comm, int *count));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommCuDevice, (const ncclComm_t comm, int *device));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommUserRank, (const ncclComm_t comm, int *rank));

/* Registered memory, windows, created reductions. */
HOSTNCCL_DECLARE(ncclResult_t, ncclCommRegister, (const ncclComm_t comm, void *buff, size_t size, void **handle));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommDeregister, (const ncclComm_t comm, void *handle));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommWindowRegister,
                 (ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags));
HOSTNCCL_DECLARE(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t win));
HOSTNCCL_DECLARE(ncclResult_t, ncclRedOpCreatePreMulSum,
                 (ncclRedOp_t * op, void *scalar, ncclDataType_t datatype, ncclScalarResidence_t residence,
                  ncclComm_t comm));
HOSTNCCL_DECLARE(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm));

/* Collectives. */
HOSTNCCL_DECLARE(ncclResult_t, ncclReduce,
                 (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,
                  ncclComm_t comm, cudaStream_t stream));
HOSTNCCL_DECLARE(ncclResult_t, ncclBcast,
                 (void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream));
HOSTNCCL_DECLARE(ncclResult_t, ncclBroadcast,
                 (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                  ncclComm_t comm, cudaStream_t stream));
HOSTNCCL_DECLARE(ncclResult_t, ncclAllReduce,
                 (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                  ncclComm_t comm, cudaStream_t stream));
HOSTNCCL_DECLARE(ncclResult_t, ncclReduceScatter,
                 (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op,
                  ncclComm_t comm, cudaStream_t stream));
HOSTNCCL_DECLARE(ncclResult_t, ncclAllGather,
                 (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
                  cudaStream_t stream));
HOSTNCCL_DECLARE(ncclResult_t, ncclAlltoAll,
                 (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclComm_t comm,
                  cudaStream_t stream));
HOSTNCCL_DECLARE(ncclResult_t, ncclGather,
                 (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                  ncclComm_t comm, cudaStream_t stream));
HOSTNCCL_DECLARE(ncclResult_t, ncclScatter,
                 (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                  ncclComm_t comm, cudaStream_t stream));

/* Point-to-point. */
HOSTNCCL_DECLARE(ncclResult_t, ncclSend,
                 (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                  cudaStream_t stream));
HOSTNCCL_DECLARE(ncclResult_t, ncclRecv,
                 (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                  cudaStream_t stream));

/* Groups. */
HOSTNCCL_DECLARE(ncclResult_t, ncclGroupStart, (void));
HOSTNCCL_DECLARE(ncclResult_t, ncclGroupEnd, (void));
HOSTNCCL_DECLARE(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t * simInfo));

#undef HOSTNCCL_DECLARE

#ifdef __cplusplus
}
#endif

#endif
