/*
 * plugin.c: records what NCCL tells its profiler plugin, in the same ring as the wrappers.
 *
 * NCCL keeps one opaque handle per event and gives it back as the parent of others, long after the event has stopped (a
 * captured graph repeats it). So a handle is a place in a table and the number of that place's use: a handle that is
 * out of date is recognised, where a pointer would be followed into the next event. The table also keeps the handle of
 * the user's own plugin.
 *
 * Versions 5 and later tell of the call itself (API events) and, at launch, of the task, which alone names a peer:
 * collectives are recorded when called, sends and receives when launched. Versions 1 to 4 know only launches, in
 * groups. An event on a thread that is inside a wrapper is recorded by the wrapper, not here. Communicators begin and
 * end in plugin_comm.c.
 */
#include "interposer/plugin/plugin.h"

#include <errno.h>

#define EVENTS     32768u /* a power of two: sends and receives of one group, at most */
#define TRIES      64u
#define INDEX_BITS 16

enum kind {
    KIND_NONE, /* nothing to record */
    KIND_DONE,
    KIND_CALL,      /* the record returns when the event stops */
    KIND_GROUP,     /* a group of calls (API) */
    KIND_P2P,       /* a send or receive whose peer its task will name */
    KIND_TASKGROUP, /* a group of tasks: versions 1 to 4 */
};

struct event {
    _Atomic uint32_t serial; /* number of the place's use; 0 = never used */
    _Atomic bool open;       /* the place must not be used again yet */
    _Atomic uint8_t kind;
    struct roll_call call;
    void *theirs; /* the handle of the user's plugin */
    /* Members of a group event: */
    bool is_explicit;
    _Atomic bool stopped, ended; /* the last call was made; the GroupEnd is written */
    _Atomic uint32_t group, calls, waiting;
    /* Members of a send or receive: */
    void *parent;
    uint64_t count;
    uint16_t stream;
    uint8_t op, dtype;
};

static struct event *events;
static _Atomic uint32_t cursor;

bool roll_plugin_events_start(void)
{
    if (events == NULL) {
        events = roll_session_alloc(EVENTS * sizeof(*events));
    }
    return events != NULL;
}

static void *handle_of(const struct event *e)
{
    uintptr_t serial = atomic_load_explicit(&e->serial, memory_order_relaxed);
    return (void *)(serial << INDEX_BITS | ((uintptr_t)(e - events) + 1));
}

/* The event of a handle; NULL when its place has been used again since. */
static struct event *event_of(const void *handle)
{
    uintptr_t bits = (uintptr_t)handle;
    uintptr_t index = bits & ((1u << INDEX_BITS) - 1);
    if (events == NULL || index == 0 || index > EVENTS) {
        return NULL;
    }
    struct event *e = &events[index - 1];
    return atomic_load_explicit(&e->serial, memory_order_acquire) == (uint32_t)(bits >> INDEX_BITS) ? e : NULL;
}

/* Takes a place in the table. When all are in use, the oldest is given away: those of failed groups would stay in use
 * for ever. */
static struct event *take(void)
{
    struct event *e = NULL;
    for (uint32_t i = 0; i < TRIES; i++) {
        e = &events[atomic_fetch_add_explicit(&cursor, 1, memory_order_relaxed) & (EVENTS - 1)];
        bool open = false;
        if (atomic_compare_exchange_strong(&e->open, &open, true)) {
            break;
        }
    }
    atomic_store_explicit(&e->open, true, memory_order_relaxed);
    uint32_t serial = atomic_load_explicit(&e->serial, memory_order_relaxed) + 1;
    atomic_store_explicit(&e->kind, KIND_NONE, memory_order_relaxed);
    e->call = (struct roll_call){0};
    e->theirs = NULL;
    e->is_explicit = false;
    atomic_store_explicit(&e->stopped, false, memory_order_relaxed);
    atomic_store_explicit(&e->ended, false, memory_order_relaxed);
    atomic_store_explicit(&e->group, 0, memory_order_relaxed);
    atomic_store_explicit(&e->calls, 0, memory_order_relaxed);
    atomic_store_explicit(&e->waiting, 0, memory_order_relaxed);
    e->parent = NULL;
    atomic_store_explicit(&e->serial, serial != 0 ? serial : 1, memory_order_release);
    return e;
}

/* Releases a place for its next use. Of two threads that end a group at once, only one releases it. */
static void release(struct event *e, uint8_t kind)
{
    if (atomic_compare_exchange_strong(&e->kind, &kind, KIND_DONE)) {
        atomic_store_explicit(&e->open, false, memory_order_release);
    }
}

bool roll_plugin_begin(struct roll_thread *t, int *saved)
{
    if (!roll_active() || t->depth != 0) {
        return false;
    }
    *saved = errno;
    roll_enter_begin(t);
    return true;
}

void roll_plugin_end(struct roll_thread *t, int saved)
{
    roll_enter_end(t);
    t->depth = 0;
    errno = saved;
}

void roll_plugin_write(struct roll_thread *t, struct roll_call *call, struct roll_fill *fill, enum roll_state state)
{
    fill->redop = ROLL_RED_NONE;
    fill->flags |= ROLL_FLAG_PLUGIN;
    roll_record_write(t, call, fill, 0, state);
}

static void return_record(struct roll_thread *t, struct roll_call *call)
{
    if (call->rec != NULL) {
        uint64_t took = roll_clock_now(t) - call->enter_ns;
        roll_ring_return(&roll_session->ring, call->rec, call->ticket, took < UINT32_MAX ? (uint32_t)took : UINT32_MAX,
                         0);
        call->rec = NULL;
    }
}

static uint32_t group_of(struct event *g)
{
    uint32_t none = 0, id = atomic_load_explicit(&g->group, memory_order_relaxed);
    if (id == 0) {
        id = atomic_fetch_add_explicit(&roll_session->groups, 1, memory_order_relaxed) + 1;
        if (!atomic_compare_exchange_strong(&g->group, &none, id)) {
            id = none;
        }
    }
    return id;
}

/* Whether the calls of a group are a unit: the calls from ncclGroupStart to ncclGroupEnd, and the messages that an
 * AlltoAll, Gather or Scatter is made of. */
static bool is_unit(const struct event *g)
{
    return g != NULL && (g->is_explicit || atomic_load_explicit(&g->calls, memory_order_relaxed) > 1);
}

/* Writes the record of one call, in the group g (NULL: none). */
static void write_call(struct roll_thread *t, struct roll_plugin_comm *c, struct roll_call *out,
                       const struct roll_plugin_call *call, uint16_t stream, struct event *g, enum roll_state state)
{
    struct roll_comm *comm = atomic_load_explicit(&c->comm, memory_order_acquire);
    struct roll_kind kind = {.op = call->op, .class = ROLL_CLASS_COLL};
    struct roll_fill fill = {
        .count = call->count, .peer = call->peer, .op = call->op, .dtype = call->dtype, .stream = stream};
    if (roll_op_class(call->op) == ROLL_CLASS_P2P) {
        kind.class = ROLL_CLASS_P2P;
        fill.flags = ROLL_FLAG_BYTES;
    } else if (!roll_op_has(call->op, ROLL_TRAIT_REDOP)) {
        fill.flags = ROLL_FLAG_BYTES;
    }
    if (call->captured) {
        fill.flags |= ROLL_FLAG_CAPTURED;
    }
    if (comm != NULL) {
        fill.comm = (uint16_t)atomic_load_explicit(&comm->id, memory_order_relaxed);
        fill.seq = roll_next_seq(comm, &kind, call->count, call->peer);
    }
    if (is_unit(g)) {
        fill.group = group_of(g);
        fill.flags |= ROLL_FLAG_IN_GROUP;
    }
    roll_plugin_write(t, out, &fill, state);
}

static void write_group_end(struct roll_thread *t, struct event *g, enum roll_state state)
{
    uint32_t calls = atomic_load_explicit(&g->calls, memory_order_relaxed);
    struct roll_fill fill = {
        .group = group_of(g),
        .peer = ROLL_PEER_NONE,
        .op = ROLL_OP_GROUP_END,
        .dtype = ROLL_DTYPE_NONE,
        .aux = (uint16_t)(calls < UINT16_MAX ? calls : UINT16_MAX),
    };
    if (calls > 0 && !atomic_exchange(&g->ended, true)) {
        roll_plugin_write(t, &g->call, &fill, state);
    }
}

/* Writes the GroupEnd of a group that the application has ended, and whose calls have all been launched. */
static void close_group(struct roll_thread *t, struct event *g)
{
    if (is_unit(g)) {
        write_group_end(t, g, ROLL_STATE_RETURNED);
    }
    release(g, KIND_GROUP);
}

/* events */

/* Called when a call is made (version 5 and later). */
static void start_call(struct roll_thread *t, struct roll_plugin_comm *c, struct event *e, void *descr, uint64_t type)
{
    void *parent = ((struct roll_descr *)descr)->parent;
    struct event *g = event_of(parent);
    struct roll_plugin_call call;
    roll_plugin_read(c->version, descr, &call);
    /* A send into a graph is launched with the graph; its peer is told then, or never. */
    if (call.op == ROLL_OP_NONE || (type == ROLL_EVENT_P2P_API && call.captured)) {
        return;
    }
    if (g != NULL) {
        atomic_fetch_add_explicit(&g->calls, 1, memory_order_relaxed);
    }
    uint16_t stream = roll_stream_id(t, (cudaStream_t)call.stream, false);
    if (type == ROLL_EVENT_P2P_API) {
        e->parent = parent;
        e->count = call.count;
        e->op = call.op;
        e->dtype = call.dtype;
        e->stream = stream;
        if (g != NULL) {
            atomic_fetch_add(&g->waiting, 1);
        }
        atomic_store_explicit(&e->kind, KIND_P2P, memory_order_release);
    } else if (g == NULL || g->is_explicit) {
        write_call(t, c, &e->call, &call, stream, g, ROLL_STATE_ENTERED);
        atomic_store_explicit(&e->kind, KIND_CALL, memory_order_release);
    } else {
        /* The call is alone in its implicit group, and returns when the group does. */
        write_call(t, c, &g->call, &call, stream, NULL, ROLL_STATE_ENTERED);
    }
}

/* Called when a send or receive is launched, and its peer is known. It is recorded once: a graph's replays tell of it
 * again. */
static void start_p2p_task(struct roll_thread *t, struct roll_plugin_comm *c, void *descr)
{
    struct event *api = event_of(((struct roll_descr *)descr)->parent);
    struct roll_plugin_call call;
    struct roll_call written;
    uint8_t kind = KIND_P2P;
    if (api == NULL || !atomic_compare_exchange_strong(&api->kind, &kind, KIND_CALL)) {
        return;
    }
    struct event *g = event_of(api->parent);
    roll_plugin_read(c->version, descr, &call);
    call.op = api->op;
    call.dtype = api->dtype;
    call.count = api->count;
    call.captured = false;
    write_call(t, c, &written, &call, api->stream, g, ROLL_STATE_RETURNED);
    release(api, KIND_CALL);
    if (g != NULL && atomic_fetch_sub(&g->waiting, 1) == 1 && atomic_load(&g->stopped)) {
        close_group(t, g);
    }
}

/* Called when a task of versions 1 to 4 starts. */
static void start_task(struct roll_thread *t, struct roll_plugin_comm *c, struct event *e, void *descr)
{
    const struct roll_descr *head = descr;
    struct event *g = event_of(head->parent);
    struct roll_plugin_call call;
    roll_plugin_read(c->version, descr, &call);
    if (call.op == ROLL_OP_NONE) {
        return;
    }
    roll_plugin_learn(c, &call, head->rank);
    if (g != NULL) {
        atomic_fetch_add_explicit(&g->calls, 1, memory_order_relaxed);
    }
    write_call(t, c, &e->call, &call, 0, g, ROLL_STATE_ENTERED);
    atomic_store_explicit(&e->kind, KIND_CALL, memory_order_release);
}

static void start_event(struct roll_thread *t, struct roll_plugin_comm *c, struct event *e, void *descr, uint64_t type)
{
    if (type == ROLL_EVENT_COLL_API || type == ROLL_EVENT_P2P_API) {
        start_call(t, c, e, descr, type);
    } else if (type == ROLL_EVENT_GROUP_API) {
        e->is_explicit = roll_plugin_depth(descr) > 1;
        atomic_store_explicit(&e->kind, KIND_GROUP, memory_order_release);
    } else if (c->version >= 5) {
        start_p2p_task(t, c, descr);
    } else if (type == ROLL_EVENT_GROUP) {
        e->is_explicit = true;
        atomic_store_explicit(&e->kind, KIND_TASKGROUP, memory_order_release);
    } else {
        start_task(t, c, e, descr);
    }
}

/* The user's handle that belongs to one of ours. A handle of another process (a proxy's parent) is left alone. */
static void *theirs_of(void *handle)
{
    struct event *e = event_of(handle);
    return e != NULL ? e->theirs : NULL;
}

int roll_plugin_start(void *context, void **handle, void *descr)
{
    struct roll_thread *t = &roll_thread_self;
    struct roll_plugin_comm *c = context;
    int saved, rc = 0;
    if (handle == NULL) {
        return 0;
    }
    *handle = NULL;
    if (c == NULL || descr == NULL) {
        return 0;
    }
    uint64_t type = roll_plugin_type(c->version, descr);
    bool mine = c->ours && (type & (uint64_t)roll_plugin_mask(c->version)) != 0;
    bool theirs = c->has_theirs && roll_chain_wants(c, type);
    if (!mine && !theirs) {
        return 0;
    }
    struct event *e = take();
    if (mine && roll_plugin_begin(t, &saved)) {
        start_event(t, c, e, descr, type);
        roll_plugin_end(t, saved);
    }
    if (theirs) {
        void **group = roll_chain_group(c->version, descr);
        rc = roll_chain_start(c, &e->theirs, descr, theirs_of(((struct roll_descr *)descr)->parent),
                              group != NULL ? theirs_of(*group) : NULL);
    }
    if (atomic_load_explicit(&e->kind, memory_order_relaxed) == KIND_NONE && e->theirs == NULL) {
        release(e, KIND_NONE);
        return rc;
    }
    *handle = handle_of(e);
    return mine ? 0 : rc;
}

static void stop_event(struct roll_thread *t, struct event *e, uint8_t kind)
{
    switch (kind) {
    case KIND_CALL:
        return_record(t, &e->call);
        break;
    case KIND_TASKGROUP:
        write_group_end(t, e, ROLL_STATE_RETURNED);
        break;
    case KIND_GROUP:
        return_record(t, &e->call); /* the call of an implicit group, or the end of an explicit one */
        atomic_store(&e->stopped, true);
        if (atomic_load(&e->waiting) == 0 && is_unit(e)) {
            write_group_end(t, e, ROLL_STATE_RETURNED);
        }
        break;
    default:
        break;
    }
}

int roll_plugin_stop(void *handle)
{
    struct roll_thread *t = &roll_thread_self;
    struct event *e = event_of(handle);
    int saved;
    if (e == NULL) {
        return 0;
    }
    void *theirs = e->theirs;
    uint8_t kind = atomic_load_explicit(&e->kind, memory_order_acquire);
    if (kind > KIND_DONE && roll_plugin_begin(t, &saved)) {
        stop_event(t, e, kind);
        roll_plugin_end(t, saved);
    }
    /* A send waits for its task, a group for its sends; their places are released when these have come. */
    if (kind != KIND_P2P && !(kind == KIND_GROUP && atomic_load(&e->waiting) != 0)) {
        release(e, kind);
    }
    return theirs != NULL ? roll_chain_stop(theirs) : 0;
}

int roll_plugin_state(void *handle, int state, void *args)
{
    struct roll_thread *t = &roll_thread_self;
    struct event *e = event_of(handle);
    int saved;
    if (e == NULL) {
        return 0;
    }
    /* The end of a group of collectives is recorded as it begins. Where the group holds sends, their records have to
     * come first. */
    if (state == ROLL_STATE_GROUP_END_STARTS && atomic_load_explicit(&e->kind, memory_order_acquire) == KIND_GROUP &&
        e->is_explicit && atomic_load(&e->waiting) == 0 && roll_plugin_begin(t, &saved)) {
        write_group_end(t, e, ROLL_STATE_ENTERED);
        roll_plugin_end(t, saved);
    }
    return e->theirs != NULL ? roll_chain_state(e->theirs, state, args) : 0;
}
