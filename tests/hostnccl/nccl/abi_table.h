/* abi_table.h: the numbers of an nccl.h: sizes, offsets, values. Compiled once per header; the including file names the
 * table. */
#include <stddef.h>

struct abi_row {
    const char *name;
    long long value;
};

#define VALUE(x)                                                                                                       \
    {                                                                                                                  \
#x, (long long)(x)                                                                                             \
    }
#define SIZE(type)                                                                                                     \
    {                                                                                                                  \
        "sizeof " #type, (long long)sizeof(type)                                                                       \
    }
#define MEMBER(type, member)                                                                                           \
    {                                                                                                                  \
#type "." #member, (long long)offsetof(type, member)                                                           \
    }

static const ncclConfig_t abi_config = NCCL_CONFIG_INITIALIZER;
static const ncclSimInfo_t abi_sim = NCCL_SIM_INFO_INITIALIZER;

size_t ABI_FUNCTION(struct abi_row *out);
size_t ABI_FUNCTION(struct abi_row *out)
{
    const struct abi_row rows[] = {
        VALUE(NCCL_MAJOR),
        VALUE(NCCL_MINOR),
        VALUE(NCCL_PATCH),
        VALUE(NCCL_VERSION_CODE),
        VALUE(sizeof(NCCL_SUFFIX)),
        VALUE(NCCL_VERSION(2, 8, 3)),
        VALUE(NCCL_VERSION(2, 9, 6)),
        VALUE(NCCL_VERSION(2, 28, 9)),
        VALUE(NCCL_VERSION(3, 1, 2)),
        VALUE(NCCL_UNIQUE_ID_BYTES),
        VALUE(NCCL_CONFIG_UNDEF_INT),
        VALUE(NCCL_SPLIT_NOCOLOR),
        VALUE(NCCL_UNDEF_FLOAT * 10),
        VALUE(NCCL_WIN_DEFAULT),
        VALUE(NCCL_WIN_COLL_SYMMETRIC),
        VALUE(NCCL_WIN_REQUIRED_ALIGNMENT),
        VALUE(NCCL_CTA_POLICY_DEFAULT),
        VALUE(NCCL_CTA_POLICY_EFFICIENCY),
        VALUE(NCCL_CTA_POLICY_ZERO),
        VALUE(NCCL_SHRINK_DEFAULT),
        VALUE(NCCL_SHRINK_ABORT),
        VALUE(NCCL_REVOKE_DEFAULT),
        VALUE(ncclSuccess),
        VALUE(ncclUnhandledCudaError),
        VALUE(ncclSystemError),
        VALUE(ncclInternalError),
        VALUE(ncclInvalidArgument),
        VALUE(ncclInvalidUsage),
        VALUE(ncclRemoteError),
        VALUE(ncclInProgress),
        VALUE(ncclNumResults),
        VALUE(ncclSum),
        VALUE(ncclProd),
        VALUE(ncclMax),
        VALUE(ncclMin),
        VALUE(ncclAvg),
        VALUE(ncclNumOps),
        VALUE(ncclMaxRedOp),
        VALUE(ncclNumOps_dummy),
        VALUE(ncclInt8),
        VALUE(ncclChar),
        VALUE(ncclUint8),
        VALUE(ncclInt32),
        VALUE(ncclInt),
        VALUE(ncclUint32),
        VALUE(ncclInt64),
        VALUE(ncclUint64),
        VALUE(ncclFloat16),
        VALUE(ncclHalf),
        VALUE(ncclFloat32),
        VALUE(ncclFloat),
        VALUE(ncclFloat64),
        VALUE(ncclDouble),
        VALUE(ncclBfloat16),
        VALUE(ncclFloat8e4m3),
        VALUE(ncclFloat8e5m2),
        VALUE(ncclNumTypes),
        VALUE(ncclScalarDevice),
        VALUE(ncclScalarHostImmediate),
        SIZE(ncclUniqueId),
        SIZE(ncclResult_t),
        SIZE(ncclRedOp_t),
        SIZE(ncclRedOp_dummy_t),
        SIZE(ncclDataType_t),
        SIZE(ncclScalarResidence_t),
        SIZE(ncclConfig_t),
        SIZE(ncclSimInfo_t),
        SIZE(ncclComm_t),
        SIZE(ncclWindow_t),
        VALUE(_Alignof(ncclUniqueId)),
        MEMBER(ncclConfig_t, size),
        MEMBER(ncclConfig_t, magic),
        MEMBER(ncclConfig_t, version),
        MEMBER(ncclConfig_t, blocking),
        MEMBER(ncclConfig_t, cgaClusterSize),
        MEMBER(ncclConfig_t, minCTAs),
        MEMBER(ncclConfig_t, maxCTAs),
        MEMBER(ncclConfig_t, netName),
        MEMBER(ncclConfig_t, splitShare),
        MEMBER(ncclConfig_t, trafficClass),
        MEMBER(ncclConfig_t, commName),
        MEMBER(ncclConfig_t, collnetEnable),
        MEMBER(ncclConfig_t, CTAPolicy),
        MEMBER(ncclConfig_t, shrinkShare),
        MEMBER(ncclConfig_t, nvlsCTAs),
        MEMBER(ncclConfig_t, nChannelsPerNetPeer),
        MEMBER(ncclConfig_t, nvlinkCentricSched),
        VALUE(abi_config.size),
        VALUE(abi_config.magic),
        VALUE(abi_config.version),
        VALUE(abi_config.blocking),
        VALUE(abi_config.netName == NULL),
        VALUE(abi_config.commName == NULL),
        VALUE(abi_config.trafficClass),
        VALUE(abi_config.nvlinkCentricSched),
        MEMBER(ncclSimInfo_t, size),
        MEMBER(ncclSimInfo_t, magic),
        MEMBER(ncclSimInfo_t, version),
        MEMBER(ncclSimInfo_t, estimatedTime),
        VALUE(abi_sim.size),
        VALUE(abi_sim.magic),
        VALUE(abi_sim.version),
        VALUE(abi_sim.estimatedTime * 10),
    };
    const size_t n = sizeof(rows) / sizeof(rows[0]);

    for (size_t i = 0; i < n; i++) {
        out[i] = rows[i];
    }
    return n;
}
