/*
 * plugin_comm.c: communicators as NCCL tells them to its profiler plugin: decides which are recorded, and writes their
 * first and last record.
 *
 * A communicator is not recorded when the wrappers see it: it is made on a thread inside a wrapper, or by an NCCL whose
 * communicators the wrappers have seen created (such an NCCL also makes communicators on threads of its own). Asking
 * the user which NCCL is linked in was rejected: one process may hold both kinds.
 */
#include "interposer/bind/compat.h"
#include "interposer/plugin/plugin.h"

#include <errno.h>
#include <string.h>

/* The size that is recorded for a communicator whose size the interface does not tell (versions 1 to 3): an upper
 * bound. */
#define RANKS_UNKNOWN 8192

#define OURS_V1 (ROLL_EVENT_GROUP | ROLL_EVENT_COLL | ROLL_EVENT_P2P)
#define OURS_V5 (ROLL_EVENT_GROUP_API | ROLL_EVENT_COLL_API | ROLL_EVENT_P2P_API | ROLL_EVENT_P2P)

static _Atomic bool wrapped[ROLL_API_SETS]; /* wrappers of this NCCL have seen a communicator created */
static _Atomic uint32_t recorded;           /* communicators recorded by the plugin so far */

void roll_plugin_wrapped(unsigned set)
{
    atomic_store_explicit(&wrapped[set], true, memory_order_relaxed);
}

static struct roll_comm *new_comm(uint64_t hash, const char *name, int nranks, int rank)
{
    const struct {
        char tag[8];
        uint64_t hash;
    } id = {"profiler", hash};
    struct roll_def_comm def = {
        .key = roll_key_unique_id(&id, sizeof(id)),
        .rank = rank,
        .nranks = nranks,
        .color = ROLL_COLOR_NONE,
        .origin = ROLL_COMM_INIT,
        .device = -1,
    };
    ncclConfig_t config = {.size = sizeof(config), .magic = ROLL_NCCL_CONFIG_MAGIC, .blocking = 1, .commName = name};
    if (nranks <= 0) {
        int world = roll_session->ring.header->world_size;
        def.nranks = world > rank ? world : RANKS_UNKNOWN;
    }
    struct roll_comm *comm = roll_comm_new(0, &def, &config, 0);
    if (comm != NULL) {
        comm->def.flags |= nranks <= 0 ? ROLL_DEF_COMM_OPEN : 0;
        roll_comm_define(comm);
    }
    return comm;
}

void roll_plugin_learn(struct roll_plugin_comm *c, const struct roll_plugin_call *call, int rank)
{
    if (c->version <= 3 && atomic_load_explicit(&c->comm, memory_order_acquire) == NULL) {
        atomic_store_explicit(&c->comm, new_comm(call->hash, call->name, 0, rank), memory_order_release);
    }
}

/*
 * Whether the wrappers see the communicators of the NCCL that calls from `caller`. One function of that NCCL to which
 * the wrappers forward is enough: other functions may lead to a shim that stands between.
 */
static bool is_wrapped(uintptr_t caller)
{
    const void *nccl = roll_object_of((const void *)caller);
    for (unsigned set = 0; set < ROLL_API_SETS; set++) {
        for (unsigned id = 0; atomic_load(&wrapped[set]) && id < ROLL_API_LIMIT; id++) {
            roll_function_t real = __atomic_load_n(&roll_api_real[set][id], __ATOMIC_ACQUIRE);
            const void *at;
            memcpy(&at, &real, sizeof(at));
            if (real != NULL && roll_object_of(at) == nccl && nccl != NULL) {
                return true;
            }
        }
    }
    return false;
}

int roll_plugin_mask(int version)
{
    return version >= 5 ? OURS_V5 : OURS_V1;
}

/* The events that we ask NCCL for. NCCL has one mask for the whole process, whatever a later communicator says. */
static int our_mask(int version)
{
    return atomic_load_explicit(&recorded, memory_order_relaxed) == 0 ? 0 : roll_plugin_mask(version);
}

static struct roll_plugin_comm *keep(const struct roll_plugin_comm *said)
{
    pthread_mutex_lock(&roll_lock);
    struct roll_plugin_comm *c = roll_session_alloc(sizeof(*c));
    bool events = roll_plugin_events_start();
    pthread_mutex_unlock(&roll_lock);
    if (c == NULL || !events) {
        return NULL;
    }
    *c = *said;
    c->name = NULL; /* NCCL owns the name only during this call */
    return c;
}

int roll_plugin_init(const struct roll_plugin_comm *said, void **context, int *mask, uintptr_t caller)
{
    struct roll_thread *t = &roll_thread_self;
    int saved = errno, theirs = 0, rc = 0;
    if (context == NULL || mask == NULL) {
        return 0;
    }
    roll_session_start();
    struct roll_plugin_comm *c = keep(said);
    *context = c;
    *mask = 0;
    if (c == NULL) {
        errno = saved;
        return 0;
    }
    if (!is_wrapped(caller) && roll_plugin_begin(t, &saved)) {
        c->ours = true;
        atomic_fetch_add_explicit(&recorded, 1, memory_order_relaxed);
        if (said->version >= 4) {
            struct roll_comm *comm = new_comm(said->hash, said->name, said->nranks, said->rank);
            atomic_store_explicit(&c->comm, comm, memory_order_release);
            struct roll_call call;
            struct roll_fill fill = {
                .count = (uint64_t)said->nranks,
                .peer = said->rank,
                .comm = comm != NULL ? (uint16_t)atomic_load_explicit(&comm->id, memory_order_relaxed) : 0,
                .op = ROLL_OP_COMM_INIT,
                .dtype = ROLL_DTYPE_NONE,
            };
            roll_plugin_write(t, &call, &fill, ROLL_STATE_RETURNED);
        }
        roll_plugin_end(t, saved);
    }
    rc = roll_chain_init(c, said, &theirs);
    *mask = our_mask(said->version) | theirs;
    if (!c->ours && !c->has_theirs) {
        *context = NULL;
    }
    errno = saved;
    return c->ours ? 0 : rc;
}

int roll_plugin_finalize(void *context)
{
    struct roll_thread *t = &roll_thread_self;
    struct roll_plugin_comm *c = context;
    int saved;
    if (c == NULL) {
        return 0;
    }
    struct roll_comm *comm = atomic_load_explicit(&c->comm, memory_order_acquire);
    if (c->ours && comm != NULL && roll_plugin_begin(t, &saved)) {
        struct roll_call call;
        struct roll_fill fill = {
            .peer = ROLL_PEER_NONE,
            .comm = (uint16_t)atomic_load_explicit(&comm->id, memory_order_relaxed),
            .op = ROLL_OP_COMM_DESTROY,
            .dtype = ROLL_DTYPE_NONE,
        };
        roll_plugin_write(t, &call, &fill, ROLL_STATE_RETURNED);
        roll_comm_unbind(comm);
        roll_plugin_end(t, saved);
    }
    return roll_chain_finalize(c);
}
