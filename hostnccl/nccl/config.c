/*
 * config.c: ncclConfig_t: reads the members that the caller's version of the structure has.
 *
 * Callers are compiled against many versions. Only min(their size, ours) bytes are read, and members that their version
 * did not have are taken as unset. Unset members take the parent's value, or the default.
 */
#include "hostnccl/nccl/internal.h"

#include <limits.h>
#include <stddef.h>
#include <string.h>

enum { CONFIG_MAGIC = (int)0xcafebeefu, DEFAULT_BLOCKING = 1 };

static void blank_newer(ncclConfig_t *c, unsigned version)
{
    const ncclConfig_t unset = NCCL_CONFIG_INITIALIZER;

    if (version < NCCL_VERSION(2, 14, 0)) {
        c->blocking = unset.blocking;
    }
    if (version < NCCL_VERSION(2, 17, 0)) {
        c->cgaClusterSize = unset.cgaClusterSize;
        c->minCTAs = unset.minCTAs;
        c->maxCTAs = unset.maxCTAs;
        c->netName = unset.netName;
    }
    if (version < NCCL_VERSION(2, 18, 0)) {
        c->splitShare = unset.splitShare;
    }
    if (version < NCCL_VERSION(2, 26, 0)) {
        c->trafficClass = unset.trafficClass;
    }
    if (version < NCCL_VERSION(2, 27, 0)) {
        c->commName = unset.commName;
        c->collnetEnable = unset.collnetEnable;
        c->CTAPolicy = unset.CTAPolicy;
        c->shrinkShare = unset.shrinkShare;
        c->nvlsCTAs = unset.nvlsCTAs;
    }
    if (version < NCCL_VERSION(2, 28, 0)) {
        c->nChannelsPerNetPeer = unset.nChannelsPerNetPeer;
        c->nvlinkCentricSched = unset.nvlinkCentricSched;
    }
}

static bool in_range(int value, int low, int high)
{
    return value == NCCL_CONFIG_UNDEF_INT || (value >= low && value <= high);
}

static ncclResult_t check(const ncclConfig_t *c)
{
    const struct {
        const char *name;
        int value, low, high;
    } rules[] = {
        {"blocking", c->blocking, 0, 1},
        {"cgaClusterSize", c->cgaClusterSize, 0, 8},
        {"minCTAs", c->minCTAs, 1, INT_MAX},
        {"maxCTAs", c->maxCTAs, 1, INT_MAX},
        {"splitShare", c->splitShare, 0, 1},
        {"collnetEnable", c->collnetEnable, 0, 1},
        {"CTAPolicy", c->CTAPolicy, 0, NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO},
        {"shrinkShare", c->shrinkShare, 0, 1},
        {"nvlsCTAs", c->nvlsCTAs, 1, INT_MAX},
        {"nChannelsPerNetPeer", c->nChannelsPerNetPeer, 1, INT_MAX},
        {"nvlinkCentricSched", c->nvlinkCentricSched, 0, 1},
    };

    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        if (!in_range(rules[i].value, rules[i].low, rules[i].high)) {
            return hn_fail(ncclInvalidArgument, "ncclConfig_t: %s is %d", rules[i].name, rules[i].value);
        }
    }
    if (c->minCTAs != NCCL_CONFIG_UNDEF_INT && c->maxCTAs != NCCL_CONFIG_UNDEF_INT && c->minCTAs > c->maxCTAs) {
        return hn_fail(ncclInvalidArgument, "ncclConfig_t: minCTAs %d above maxCTAs %d", c->minCTAs, c->maxCTAs);
    }
    return ncclSuccess;
}

ncclResult_t hn_config_read(ncclConfig_t *out, const ncclConfig_t *given, const ncclConfig_t *base)
{
    const ncclConfig_t unset = NCCL_CONFIG_INITIALIZER;
    ncclConfig_t c = unset;
    ncclResult_t rc;

    if (given) {
        size_t size = given->size < sizeof(c) ? given->size : sizeof(c);
        if (given->magic != (unsigned)CONFIG_MAGIC) {
            return hn_fail(ncclInvalidArgument, "ncclConfig_t was not made with NCCL_CONFIG_INITIALIZER");
        }
        if (size < offsetof(ncclConfig_t, blocking)) {
            return hn_fail(ncclInvalidArgument, "ncclConfig_t: size is %zu", given->size);
        }
        memcpy(&c, given, size);
        blank_newer(&c, c.version);
        c.size = sizeof(c);
        c.version = unset.version;
    } else if (base) {
        c = *base;
    }
    rc = check(&c);
    if (rc != ncclSuccess) {
        return rc;
    }
    if (c.blocking == NCCL_CONFIG_UNDEF_INT) {
        c.blocking = base ? base->blocking : DEFAULT_BLOCKING;
    }
    *out = c;
    return ncclSuccess;
}
