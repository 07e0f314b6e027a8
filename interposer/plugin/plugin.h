/*
 * plugin.h: this library as NCCL's profiler plugin: for an NCCL whose functions no preload can stand before, because it
 * is linked statically.
 *
 * The structs through which NCCL and a plugin talk, written from the facts of the interface; only members that are read
 * here are named. The seven versions differ in init and in the descriptors of events; everything else has kept its
 * shape.
 */
#ifndef ROLL_INTERPOSER_PLUGIN_PLUGIN_H
#define ROLL_INTERPOSER_PLUGIN_PLUGIN_H

#include "interposer/wrap/call.h"

#define ROLL_PROFILER_NEWEST 7
#define ROLL_PROFILER_NAME   "rollcall"

/* Kinds of events: bits of the activation mask, and the type in a descriptor. Up to NET in versions 1 to 4, up to
 * KERNEL_LAUNCH in 5, up to CE_BATCH in 6, all in 7. */
enum roll_profile_event {
    ROLL_EVENT_GROUP = 1 << 0,
    ROLL_EVENT_COLL = 1 << 1,
    ROLL_EVENT_P2P = 1 << 2,
    ROLL_EVENT_PROXY_OP = 1 << 3,
    ROLL_EVENT_PROXY_STEP = 1 << 4,
    ROLL_EVENT_PROXY_CTRL = 1 << 5,
    ROLL_EVENT_KERNEL_CH = 1 << 6,
    ROLL_EVENT_NET = 1 << 7,
    ROLL_EVENT_GROUP_API = 1 << 8,
    ROLL_EVENT_COLL_API = 1 << 9,
    ROLL_EVENT_P2P_API = 1 << 10,
    ROLL_EVENT_KERNEL_LAUNCH = 1 << 11,
    ROLL_EVENT_CE_COLL = 1 << 12,
    ROLL_EVENT_CE_SYNC = 1 << 13,
    ROLL_EVENT_CE_BATCH = 1 << 14,
    ROLL_EVENT_KERNEL_PHASE = 1 << 15,
};

/* The state of a group API event when the outermost ncclGroupEnd begins. */
#define ROLL_STATE_GROUP_END_STARTS 24

/* The beginning of every descriptor. In versions 1 to 4 `type` has one byte, and the other bytes are padding. */
struct roll_descr {
    uint64_t type;
    void *parent;
    int rank;
};

/* The table of functions that a plugin gives to NCCL. */
struct roll_profiler {
    const char *name;
    union {
        int (*v1)(void **context, int *mask);
        int (*v4)(void **context, int *mask, const char *name, uint64_t hash, int nodes, int nranks, int rank,
                  void *logger);
        int (*v5)(void **context, uint64_t hash, int *mask, const char *name, int nodes, int nranks, int rank,
                  void *logger);
    } init;
    int (*start)(void *context, void **handle, void *descr);
    int (*stop)(void *handle);
    int (*state)(void *handle, int state, void *args);
    int (*finalize)(void *context);
};

/* What NCCL tells of a communicator. hash and nranks are 0 in versions 1 to 3, which do not tell them. */
struct roll_plugin_comm {
    int version; /* version of the interface that NCCL uses */
    uint64_t hash;
    const char *name; /* borrowed for the call */
    int nodes, nranks, rank;
    void *logger;
    bool ours; /* the plugin records it; false where the wrappers have seen it created */
    struct roll_comm *_Atomic comm;
    void *theirs; /* the context of the user's plugin */
    int theirs_mask;
    bool has_theirs;
};

/* A call as an event tells it. */
struct roll_plugin_call {
    uint8_t op, dtype; /* op ROLL_OP_NONE: the call is not recorded */
    bool captured;
    uint64_t count;
    int peer;
    void *stream;
    uint64_t hash; /* hash of the communicator, in versions 1 to 3 */
    const char *name;
};

/* plugin_read.c: what a descriptor says. Pure. */
uint64_t roll_plugin_type(int version, const void *descr);
void roll_plugin_read(int version, const void *descr, struct roll_plugin_call *out);
/* The depth of the group in which a group API event began: 1 = the implicit one of a single call. */
int roll_plugin_depth(const void *descr);

/* plugin_comm.c and plugin.c: our tables' callbacks. Return 0, or what the user's plugin said. */
int roll_plugin_init(const struct roll_plugin_comm *said, void **context, int *mask, uintptr_t caller);
int roll_plugin_finalize(void *context);
int roll_plugin_start(void *context, void **handle, void *descr);
int roll_plugin_stop(void *handle);
int roll_plugin_state(void *handle, int state, void *args);

/* plugin.c, for plugin_comm.c: records are written in this thread between roll_plugin_begin and roll_plugin_end. False
 * where a wrapper is open. Keeps errno. */
bool roll_plugin_begin(struct roll_thread *t, int *saved);
void roll_plugin_end(struct roll_thread *t, int saved);
void roll_plugin_write(struct roll_thread *t, struct roll_call *call, struct roll_fill *fill, enum roll_state state);
/* Makes the table of events, once. Under roll_lock. False without memory. */
bool roll_plugin_events_start(void);

/* plugin_comm.c, for plugin.c: roll_plugin_mask is the set of events that we want of this version; roll_plugin_learn
 * takes what versions 1 to 3 tell of a communicator only in its events. */
int roll_plugin_mask(int version);
void roll_plugin_learn(struct roll_plugin_comm *c, const struct roll_plugin_call *call, int rank);

/* Called by life.c when a communicator is created through a wrapper of this set: the plugin then need not record it. */
void roll_plugin_wrapped(unsigned set);

/*
 * plugin_chain.c: the plugin of the user, ROLLCALL_CHAIN_PROFILER, loaded at the first communicator.
 *
 * The user's plugin is called in its newest version that is not newer than NCCL's. Where NCCL uses version 5 or later
 * and the plugin has version 4, API events are kept from the plugin and the group becomes the parent, as NCCL itself
 * does. The `kinds` of a mask are the events that NCCL tells of when only that mask is asked for: parents come with
 * their children.
 */
int roll_chain_init(struct roll_plugin_comm *comm, const struct roll_plugin_comm *said, int *mask);
/* parent and group: the user's own handles of the event's parent and group. */
int roll_chain_start(struct roll_plugin_comm *comm, void **handle, void *descr, void *parent, void *group);
int roll_chain_stop(void *handle);
int roll_chain_state(void *handle, int state, void *args);
int roll_chain_finalize(struct roll_plugin_comm *comm);
/* Whether the user's plugin would be told of this event. */
bool roll_chain_wants(const struct roll_plugin_comm *comm, uint64_t type);
/* Where coll and p2p descriptors of version 5 and later hold the group; NULL for other events. */
void **roll_chain_group(int version, void *descr);

#endif
