/*
 * nccl_types.h: NCCL's and the CUDA runtime's types as far as a forwarder needs them: same ABI, no header of either
 * needed.
 *
 * The library must build where neither is installed, and must load next to any release of both; what the vendor's own
 * header says is checked against the table in api_check.c. Only the leading members of ncclConfig_t are named: they
 * have kept their places since they appeared, and a member is read only if the caller's `size` covers it.
 */
#ifndef ROLL_INTERPOSER_WRAP_NCCL_TYPES_H
#define ROLL_INTERPOSER_WRAP_NCCL_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    ncclSuccess = 0,
    ncclSystemError = 2,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclInProgress = 7,
} ncclResult_t;

typedef enum { ncclInt8 = 0, ncclNumTypes = 12 } ncclDataType_t;
typedef enum { ncclSum = 0, ncclNumOps = 5, ncclMaxRedOp = 0x7fffffff } ncclRedOp_t;
typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;
typedef int ncclCommMemStat_t;

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct ncclSimInfo ncclSimInfo_t;
typedef struct ncclCollConfig ncclCollConfig_t;
typedef struct ncclWaitSignalDesc ncclWaitSignalDesc_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef int cudaError_t;

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

#define ROLL_NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_SPLIT_NOCOLOR     (-1)

typedef struct {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int blocking;
    int cgaClusterSize;
    int minCTAs;
    int maxCTAs;
    const char *netName;
    int splitShare;
    int trafficClass;
    const char *commName;
} ncclConfig_t;

#endif
