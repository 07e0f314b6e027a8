/*
 * profiler.c: loads a profiler plugin as NCCL does, and tells it what happens.
 *
 * NCCL_PROFILER_PLUGIN is a path, a file name, or the suffix of libnccl-profiler-<suffix>.so; "none" is none, and unset
 * means libnccl-profiler.so; "STATIC_PLUGIN" is the program itself. Of the tables ncclProfiler_v1 to v7 the newest is
 * taken. HOSTNCCL_PROFILER_NEWEST (1 to 7) says which is the newest that this library knows: each release of NCCL knows
 * others.
 *
 * A process has one plugin and one mask. A plugin that refuses a communicator is not told of that communicator again.
 */
#include "hostnccl/nccl/profiler.h"

#include "hostnccl/nccl/profiler_abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "hostnccl/cuda/private.h"

/* An event is told when one of these is in the mask: those below it need it as their parent. */
#define WANT_PROXY     (HN_EVENT_PROXY_OP | HN_EVENT_PROXY_STEP | HN_EVENT_NET)
#define WANT_COLL      (HN_EVENT_COLL | WANT_PROXY | HN_EVENT_KERNEL_CH)
#define WANT_P2P       (HN_EVENT_P2P | WANT_PROXY | HN_EVENT_KERNEL_CH)
#define WANT_GROUP     (HN_EVENT_GROUP | WANT_COLL | WANT_P2P)
#define WANT_COLL_API  (HN_EVENT_COLL_API | WANT_COLL)
#define WANT_P2P_API   (HN_EVENT_P2P_API | WANT_P2P)
#define WANT_GROUP_API (HN_EVENT_GROUP_API | HN_EVENT_KERNEL_LAUNCH | WANT_COLL_API | WANT_P2P_API | HN_EVENT_GROUP)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *library;
static struct hn_profiler *plugin;
static int version, users, mask;
static bool failed;

/* The group API event of this thread. */
static _Thread_local void *group_event;
static _Thread_local bool group_open;

static const char *const func_names[HN_KIND_COUNT] = {
    [HN_ALLREDUCE] = "AllReduce", [HN_BROADCAST] = "Broadcast",         [HN_REDUCE] = "Reduce",
    [HN_ALLGATHER] = "AllGather", [HN_REDUCESCATTER] = "ReduceScatter",
};
/* NCCL's own numbers, in version 1. */
enum { FUNC_SEND = 6, FUNC_RECV = 7 };
static const uint8_t func_numbers[HN_KIND_COUNT] = {
    [HN_BROADCAST] = 0, [HN_REDUCE] = 1, [HN_ALLGATHER] = 2, [HN_REDUCESCATTER] = 3, [HN_ALLREDUCE] = 4,
};

static const char *type_name(ncclDataType_t type)
{
    static const char *const names[] = {"ncclInt8",    "ncclUint8",    "ncclInt32",      "ncclUint32",
                                        "ncclInt64",   "ncclUint64",   "ncclFloat16",    "ncclFloat32",
                                        "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
    return (unsigned)type < sizeof(names) / sizeof(names[0]) ? names[type] : "Unknown";
}

static void *open_library(void)
{
    char name[4096];
    const char *wanted = getenv("NCCL_PROFILER_PLUGIN");
    void *handle;

    if (wanted && *wanted) {
        if (!strcasecmp(wanted, "none")) {
            return NULL;
        }
        handle = dlopen(strcasecmp(wanted, "STATIC_PLUGIN") ? wanted : NULL, RTLD_NOW | RTLD_LOCAL);
        if (handle) {
            return handle;
        }
        hn_debug("profiler plugin: %s", dlerror());
        snprintf(name, sizeof(name), "libnccl-profiler-%s.so", wanted);
    } else {
        snprintf(name, sizeof(name), "libnccl-profiler.so");
    }
    handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        hn_debug("profiler plugin: %s", dlerror());
    }
    return handle;
}

static int newest(void)
{
    const char *text = getenv("HOSTNCCL_PROFILER_NEWEST");
    int n = text ? atoi(text) : HN_PROFILER_NEWEST;

    return n >= 1 && n <= HN_PROFILER_NEWEST ? n : HN_PROFILER_NEWEST;
}

/* Under the lock. */
static void load(void)
{
    char symbol[32];

    library = open_library();
    for (int v = newest(); library && v >= 1 && !plugin; v--) {
        snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", v);
        plugin = dlsym(library, symbol);
        version = v;
    }
    if (!plugin) {
        failed = true;
        if (library) {
            dlclose(library);
        }
        library = NULL;
        return;
    }
    hn_debug("profiler plugin: %s, version %d", plugin->name, version);
}

static int nodes(ncclComm_t comm)
{
    (void)comm;
    return 1;
}

static int call_init(ncclComm_t comm)
{
    if (version >= 5) {
        return plugin->init.v5(&comm->profiler, comm->hash, &mask, comm->name, nodes(comm), comm->nranks, comm->rank,
                               NULL);
    }
    if (version == 4) {
        return plugin->init.v4(&comm->profiler, &mask, comm->name, comm->hash, nodes(comm), comm->nranks, comm->rank,
                               NULL);
    }
    return plugin->init.v1(&comm->profiler, &mask);
}

/* Under the lock. */
static void release(void)
{
    if (--users == 0) {
        dlclose(library);
        library = NULL;
        plugin = NULL;
        mask = 0;
    }
}

void hn_profiler_init(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    if (!plugin && !failed) {
        load();
    }
    if (plugin) {
        users++;
        comm->profiled = call_init(comm) == 0;
        if (!comm->profiled) {
            release();
        }
    }
    pthread_mutex_unlock(&lock);
}

void hn_profiler_finalize(ncclComm_t comm)
{
    if (!comm->profiled) {
        return;
    }
    comm->profiled = false;
    if (comm->profiler) {
        plugin->finalize(comm->profiler);
    }
    pthread_mutex_lock(&lock);
    release();
    pthread_mutex_unlock(&lock);
}

static bool wants(ncclComm_t comm, int events)
{
    return comm->profiled && (mask & events) != 0;
}

static bool api_events(ncclComm_t comm, int events)
{
    return version >= 5 && wants(comm, events);
}

static bool is_captured(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;

    return hn_cuda()->cudaStreamIsCapturing(stream, &status) == cudaSuccess && status == cudaStreamCaptureStatusActive;
}

static void group_call(ncclComm_t comm, bool captured, int depth)
{
    if (group_open || !api_events(comm, WANT_GROUP_API)) {
        return;
    }
    struct hn_descr_v7 d = {.type = HN_EVENT_GROUP_API, .group_api = {captured, depth}};
    group_open = true;
    group_event = NULL;
    plugin->start(comm->profiler, &group_event, &d);
    if (group_event) {
        plugin->state(group_event, HN_STATE_GROUP_START_API_STOP, NULL);
    }
}

/* The rank of API events is 0 up to version 7, as in NCCL. */
void hn_profiler_coll_call(ncclComm_t comm, struct hn_coll *coll, cudaStream_t stream, int depth)
{
    bool captured = comm->profiled && is_captured(stream);

    if (comm->nranks == 1) {
        return; /* the call is a copy, about which NCCL tells nothing */
    }
    group_call(comm, captured, depth);
    if (!api_events(comm, WANT_COLL_API)) {
        return;
    }
    struct hn_descr_v7 d = {.type = HN_EVENT_COLL_API,
                            .parent = group_event,
                            .rank = version >= 7 ? comm->rank : 0,
                            .coll_api = {.func = func_names[coll->kind],
                                         .count = coll->count,
                                         .datatype = type_name(coll->type),
                                         .root = coll->root < 0 ? 0 : coll->root,
                                         .stream = stream,
                                         .captured = captured}};
    plugin->start(comm->profiler, &coll->api_event, &d);
    if (coll->api_event) {
        plugin->stop(coll->api_event);
    }
}

void hn_profiler_p2p_call(ncclComm_t comm, struct hn_p2p *op, cudaStream_t stream, int depth)
{
    bool captured = comm->profiled && is_captured(stream);

    group_call(comm, captured, depth);
    if (!api_events(comm, WANT_P2P_API)) {
        return;
    }
    struct hn_descr_v7 d = {.type = HN_EVENT_P2P_API,
                            .parent = group_event,
                            .rank = version >= 7 ? comm->rank : 0,
                            .p2p_api = {.func = op->is_send ? "Send" : "Recv",
                                        .count = op->count,
                                        .datatype = type_name(op->type),
                                        .stream = stream,
                                        .captured = captured}};
    plugin->start(comm->profiler, &op->api_event, &d);
    if (op->api_event) {
        plugin->stop(op->api_event);
    }
}

void hn_profiler_group_ends(void)
{
    if (group_open && group_event) {
        plugin->state(group_event, HN_STATE_GROUP_END_API_START, NULL);
    }
}

void hn_profiler_group_ended(void)
{
    if (group_open && group_event && plugin) {
        plugin->stop(group_event);
    }
    group_open = false;
    group_event = NULL;
}

/* The count and type of a collective as NCCL reports them: AllGather and Broadcast have become bytes. */
static void as_bytes(const struct hn_coll *c, size_t *count, ncclDataType_t *type)
{
    bool bytes = c->kind == HN_ALLGATHER || c->kind == HN_BROADCAST;

    *count = bytes ? c->bytes : c->count;
    *type = bytes ? ncclInt8 : c->type;
}

static void describe_coll(ncclComm_t comm, const struct hn_coll *c, void *group, union hn_descr *d)
{
    const char *func = func_names[c->kind];
    int root = c->root < 0 ? 0 : c->root;
    size_t count;
    ncclDataType_t type;

    as_bytes(c, &count, &type);
    if (version == 1) {
        d->v1 = (struct hn_descr_v1){.type = HN_EVENT_COLL, .parent = group, .rank = comm->rank};
        d->v1.coll.name = comm->name;
        d->v1.coll.comm_hash = comm->hash;
        d->v1.coll.seq = comm->profiled_colls;
        d->v1.coll.func = func_numbers[c->kind];
        d->v1.coll.send = c->send;
        d->v1.coll.recv = c->recv;
        d->v1.coll.count = count;
        d->v1.coll.root = root;
        d->v1.coll.datatype = (uint8_t)type;
    } else if (version == 2) {
        d->v2 = (struct hn_descr_v2){.type = HN_EVENT_COLL, .parent = group, .rank = comm->rank};
        d->v2.coll.name = comm->name;
        d->v2.coll.comm_hash = comm->hash;
        d->v2.coll.func = func;
        d->v2.coll.count = count;
        d->v2.coll.root = root;
        d->v2.coll.datatype = type_name(type);
    } else if (version == 3) {
        d->v3 = (struct hn_descr_v3){.type = HN_EVENT_COLL, .parent = group, .rank = comm->rank};
        d->v3.coll.name = comm->name;
        d->v3.coll.comm_hash = comm->hash;
        d->v3.coll.func = func;
        d->v3.coll.count = count;
        d->v3.coll.root = root;
        d->v3.coll.datatype = type_name(type);
    } else if (version == 4) {
        d->v4 = (struct hn_descr_v4){.type = HN_EVENT_COLL, .parent = group, .rank = comm->rank};
        d->v4.coll.func = func;
        d->v4.coll.count = count;
        d->v4.coll.root = root;
        d->v4.coll.datatype = type_name(type);
    } else {
        d->v7 = (struct hn_descr_v7){.type = HN_EVENT_COLL, .parent = c->api_event, .rank = comm->rank};
        d->v7.coll.func = func;
        d->v7.coll.count = count;
        d->v7.coll.root = root;
        d->v7.coll.datatype = type_name(type);
        d->v7.coll.group = group;
    }
}

static void describe_p2p(ncclComm_t comm, const struct hn_p2p *op, void *group, union hn_descr *d)
{
    const char *func = op->is_send ? "Send" : "Recv";

    if (version == 1) {
        d->v1 = (struct hn_descr_v1){.type = HN_EVENT_P2P, .parent = group, .rank = comm->rank};
        d->v1.p2p.name = comm->name;
        d->v1.p2p.comm_hash = comm->hash;
        d->v1.p2p.func = op->is_send ? FUNC_SEND : FUNC_RECV;
        d->v1.p2p.datatype = (uint8_t)op->type;
        d->v1.p2p.count = op->count;
        d->v1.p2p.peer = op->peer;
    } else if (version <= 3) { /* alike in both, and of the same size up to here */
        d->v3 = (struct hn_descr_v3){.type = HN_EVENT_P2P, .parent = group, .rank = comm->rank};
        d->v3.p2p.name = comm->name;
        d->v3.p2p.comm_hash = comm->hash;
        d->v3.p2p.func = func;
        d->v3.p2p.datatype = type_name(op->type);
        d->v3.p2p.count = op->count;
        d->v3.p2p.peer = op->peer;
    } else if (version == 4) {
        d->v4 = (struct hn_descr_v4){.type = HN_EVENT_P2P, .parent = group, .rank = comm->rank};
        d->v4.p2p.func = func;
        d->v4.p2p.datatype = type_name(op->type);
        d->v4.p2p.count = op->count;
        d->v4.p2p.peer = op->peer;
    } else {
        d->v7 = (struct hn_descr_v7){.type = HN_EVENT_P2P, .parent = op->api_event, .rank = comm->rank};
        d->v7.p2p.func = func;
        d->v7.p2p.datatype = type_name(op->type);
        d->v7.p2p.count = op->count;
        d->v7.p2p.peer = op->peer;
        d->v7.p2p.group = group;
    }
}

/* Starts and stops one channel of the kernel that would run a task, for plugins that ask for channels. */
static void kernel_channel(ncclComm_t comm, void *task)
{
    void *handle = NULL;
    union hn_descr d;

    if (version < 3 || !task || !wants(comm, HN_EVENT_KERNEL_CH)) {
        return;
    }
    memset(&d, 0, sizeof(d));
    if (version <= 4) {
        d.v4.type = HN_EVENT_KERNEL_CH;
    } else {
        d.v5.type = HN_EVENT_KERNEL_CH;
    }
    d.v5.parent = task; /* at the same place in all */
    d.v5.rank = comm->rank;
    plugin->start(comm->profiler, &handle, &d);
    if (handle) {
        uint64_t timer = 0;
        plugin->state(handle, HN_STATE_KERNEL_CH_STOP, &timer);
        plugin->stop(handle);
    }
}

static void proxy_op(ncclComm_t comm, void *task)
{
    struct hn_proxy_op op = {.pid = getpid(), .steps = 1};
    void *handle = NULL;
    union hn_descr d;

    if (!task || !wants(comm, WANT_PROXY)) {
        return;
    }
    memset(&d, 0, sizeof(d));
    if (version <= 4) {
        d.v4.type = HN_EVENT_PROXY_OP;
        d.v4.proxy_op = op;
    } else {
        d.v5.type = HN_EVENT_PROXY_OP;
        d.v5.proxy_op = op;
    }
    d.v5.parent = task;
    d.v5.rank = comm->rank;
    plugin->start(comm->profiler, &handle, &d);
    if (handle) {
        if (version >= 4) {
            plugin->state(handle, HN_STATE_PROXY_OP_IN_PROGRESS, NULL);
        }
        plugin->stop(handle);
    }
}

/* Starts and stops one task, after `describe` was called. */
static void task(ncclComm_t comm, union hn_descr *d, void **event)
{
    *event = NULL;
    plugin->start(comm->profiler, event, d);
    kernel_channel(comm, *event);
    proxy_op(comm, *event);
}

void hn_profiler_tasks(struct hn_plan *plan)
{
    ncclComm_t comm = plan->comm;
    void *group = NULL;
    union hn_descr d;

    /*
     * Captured calls are launched later, with their graph. NCCL reports some of those launches; this library reports
     * none.
     */
    if (!wants(comm, WANT_GROUP) || plan->graph || (comm->nranks == 1 && plan->np2ps == 0)) {
        return;
    }
    memset(&d, 0, sizeof(d));
    if (version <= 4) {
        d.v4.type = HN_EVENT_GROUP;
    } else {
        d.v5.type = HN_EVENT_GROUP;
    }
    plugin->start(comm->profiler, &group, &d);
    for (size_t i = 0; i < plan->ncolls && comm->nranks > 1 && wants(comm, WANT_COLL); i++) {
        memset(&d, 0, sizeof(d));
        describe_coll(comm, &plan->colls[i], group, &d);
        task(comm, &d, &plan->colls[i].event);
        comm->profiled_colls++;
    }
    for (size_t i = 0; i < plan->np2ps && wants(comm, WANT_P2P); i++) {
        memset(&d, 0, sizeof(d));
        describe_p2p(comm, &plan->p2ps[i], group, &d);
        task(comm, &d, &plan->p2ps[i].event);
    }
    for (size_t i = 0; i < plan->ncolls; i++) {
        if (plan->colls[i].event) {
            plugin->stop(plan->colls[i].event);
        }
    }
    for (size_t i = 0; i < plan->np2ps; i++) {
        if (plan->p2ps[i].event) {
            plugin->stop(plan->p2ps[i].event);
        }
    }
    if (group) {
        plugin->stop(group);
    }
}
