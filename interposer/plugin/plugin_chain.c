/*
 * plugin_chain.c: calls the profiler plugin that the user already had. NCCL takes only one plugin, so ours passes
 * events on to the user's.
 *
 * The user's plugin is told what NCCL would tell it alone, with its own context and handles. Descriptors are handed on
 * as they are, except for the parents: these are our handles, and are replaced by the user's for the time of the call
 * (the descriptor lives on NCCL's stack, and nobody else looks at it). A copy of the descriptor was rejected: newer
 * releases may append members that we do not know.
 */
#include "interposer/plugin/plugin.h"

#include "interposer/bind/compat.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static const struct roll_profiler *plugin;
static int spoken; /* version of the user's table that is used */

#define PROXY (ROLL_EVENT_PROXY_OP | ROLL_EVENT_PROXY_STEP | ROLL_EVENT_NET)
#define COLL  (ROLL_EVENT_COLL | PROXY | ROLL_EVENT_KERNEL_CH)
#define P2P   (ROLL_EVENT_P2P | PROXY | ROLL_EVENT_KERNEL_CH)
#define CE    (ROLL_EVENT_CE_COLL | ROLL_EVENT_CE_SYNC | ROLL_EVENT_CE_BATCH)

/* Which bits of a mask make NCCL tell of a kind of event: the bit of that kind, and the bits of kinds whose parent it
 * is. */
static const struct {
    uint64_t type;
    int bits;
} told[] = {
    {ROLL_EVENT_GROUP, ROLL_EVENT_GROUP | COLL | P2P},
    {ROLL_EVENT_COLL, COLL},
    {ROLL_EVENT_P2P, P2P},
    {ROLL_EVENT_PROXY_OP, PROXY},
    {ROLL_EVENT_PROXY_STEP, ROLL_EVENT_PROXY_STEP | ROLL_EVENT_NET},
    {ROLL_EVENT_PROXY_CTRL, ROLL_EVENT_PROXY_CTRL},
    {ROLL_EVENT_KERNEL_CH, ROLL_EVENT_KERNEL_CH | ROLL_EVENT_KERNEL_PHASE},
    {ROLL_EVENT_NET, ROLL_EVENT_NET},
    {ROLL_EVENT_GROUP_API, ROLL_EVENT_GROUP_API | ROLL_EVENT_COLL_API | ROLL_EVENT_P2P_API | ROLL_EVENT_KERNEL_LAUNCH |
                               ROLL_EVENT_GROUP | COLL | P2P | CE},
    {ROLL_EVENT_COLL_API, ROLL_EVENT_COLL_API | COLL | CE},
    {ROLL_EVENT_P2P_API, ROLL_EVENT_P2P_API | P2P},
    {ROLL_EVENT_KERNEL_LAUNCH, ROLL_EVENT_KERNEL_LAUNCH},
    {ROLL_EVENT_CE_COLL, CE},
    {ROLL_EVENT_CE_SYNC, ROLL_EVENT_CE_SYNC | ROLL_EVENT_CE_BATCH},
    {ROLL_EVENT_CE_BATCH, ROLL_EVENT_CE_BATCH},
    {ROLL_EVENT_KERNEL_PHASE, ROLL_EVENT_KERNEL_PHASE},
};

/* The events that a version has. */
static uint64_t known(int version)
{
    return version <= 4   ? ROLL_EVENT_NET * 2 - 1
           : version == 5 ? ROLL_EVENT_KERNEL_LAUNCH * 2 - 1
           : version == 6 ? ROLL_EVENT_CE_BATCH * 2 - 1
                          : UINT64_MAX;
}

/* Opens the plugin that the variable names, as NCCL would: a path, a file, or the suffix of a file. */
static void *open_plugin(const char *name)
{
    char file[512];
    void *handle = roll_dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL && snprintf(file, sizeof(file), "libnccl-profiler-%s.so", name) < (int)sizeof(file)) {
        handle = roll_dlopen(file, RTLD_NOW | RTLD_LOCAL);
    }
    return handle;
}

/* Loads the user's plugin, at the first communicator: the one that is named, else the one that NCCL would have looked
 * for. Takes its newest table that is not newer than NCCL's version and that can be served: a table of versions 1 to 3
 * only by an NCCL of the same version. */
static void load(int version)
{
    static _Atomic bool tried;
    const char *named = getenv("ROLLCALL_CHAIN_PROFILER");
    const char *name = named != NULL && named[0] != '\0' ? named : "libnccl-profiler.so";
    char symbol[32];
    if (strcasecmp(name, "none") == 0 || atomic_exchange(&tried, true)) {
        return;
    }
    void *handle = open_plugin(name);
    if (handle == NULL && name != named) {
        return;
    }
    if (handle == NULL) {
        roll_say("cannot load the profiler plugin %s (ROLLCALL_CHAIN_PROFILER)", name);
        return;
    }
    for (int v = version; v >= 1; v--) {
        snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", v);
        const struct roll_profiler *table = roll_dlsym(handle, symbol);
        if (table != NULL && strcmp(table->name, ROLL_PROFILER_NAME) == 0) {
            roll_say("ROLLCALL_CHAIN_PROFILER=%s is rollcall itself: nothing is chained", name);
            return; /* the plugin is this library itself, which would call itself for ever */
        }
        if (table != NULL && (v >= 4 || v == version)) {
            spoken = v;
            __atomic_store_n(&plugin, table, __ATOMIC_RELEASE);
            return;
        }
    }
    roll_say("the profiler plugin %s has no table that can share version %d with ours", name, version);
}

int roll_chain_init(struct roll_plugin_comm *comm, const struct roll_plugin_comm *said, int *mask)
{
    int rc;
    *mask = 0;
    load(said->version);
    const struct roll_profiler *p = __atomic_load_n(&plugin, __ATOMIC_ACQUIRE);
    if (p == NULL || p->init.v1 == NULL) {
        return 0;
    }
    if (spoken >= 5) {
        rc = p->init.v5(&comm->theirs, said->hash, mask, said->name, said->nodes, said->nranks, said->rank,
                        said->logger);
    } else if (spoken == 4) {
        rc = p->init.v4(&comm->theirs, mask, said->name, said->hash, said->nodes, said->nranks, said->rank,
                        said->logger);
    } else {
        rc = p->init.v1(&comm->theirs, mask);
    }
    comm->has_theirs = rc == 0;
    *mask = rc == 0 ? *mask & (int)known(spoken) : 0;
    comm->theirs_mask = *mask;
    return rc;
}

bool roll_chain_wants(const struct roll_plugin_comm *comm, uint64_t type)
{
    for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
        if (told[i].type == type) {
            return (comm->theirs_mask & told[i].bits) != 0 && (type & known(spoken)) != 0;
        }
    }
    return comm->theirs_mask != 0 && (type & known(spoken)) != 0;
}

/* Whether the parent of an event is a handle of another process. A proxy may work for another process; its parent is
 * only a number here. */
static bool is_foreign(int version, const void *descr)
{
    pid_t pid;
    if (roll_plugin_type(version, descr) != ROLL_EVENT_PROXY_OP) {
        return false;
    }
    memcpy(&pid, (const char *)descr + sizeof(struct roll_descr), sizeof(pid));
    return pid != getpid();
}

int roll_chain_start(struct roll_plugin_comm *comm, void **handle, void *descr, void *parent, void *group)
{
    struct roll_descr *head = descr;
    void **place = roll_chain_group(comm->version, descr);
    void *own = head->parent, *own_group = place != NULL ? *place : NULL;
    if (plugin->start == NULL) {
        return 0;
    }
    if (!is_foreign(comm->version, descr)) {
        head->parent = place != NULL && spoken <= 4 ? group : parent;
    }
    if (place != NULL) {
        *place = group;
    }
    int rc = plugin->start(comm->theirs, handle, descr);
    head->parent = own;
    if (place != NULL) {
        *place = own_group;
    }
    return rc;
}

int roll_chain_stop(void *handle)
{
    return plugin->stop != NULL ? plugin->stop(handle) : 0;
}

int roll_chain_state(void *handle, int state, void *args)
{
    return plugin->state != NULL ? plugin->state(handle, state, args) : 0;
}

int roll_chain_finalize(struct roll_plugin_comm *comm)
{
    bool has = comm->has_theirs;
    comm->has_theirs = false;
    return has && plugin->finalize != NULL ? plugin->finalize(comm->theirs) : 0;
}
