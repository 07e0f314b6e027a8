/*
 * comms.h: what is known of each communicator of this process, found by its handle without a lock.
 */
#ifndef ROLL_INTERPOSER_RECORD_COMMS_H
#define ROLL_INTERPOSER_RECORD_COMMS_H

#include "interposer/record/thread.h"
#include "interposer/wrap/api.h"
#include "trace/def.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * One communicator. Entries are never freed or reused: a thread that races with the destruction of its communicator
 * reads stale numbers, never foreign memory. seq, children and p2p are advanced by plain loads and stores: NCCL itself
 * forbids two threads to use one communicator at once, and in a job that does it nonetheless the numbers show it.
 */
struct roll_comm {
    _Atomic uintptr_t handle; /* 0: not bound yet, or destroyed */
    _Atomic uint32_t id;      /* of its definition; 0 = not defined yet */
    _Atomic bool undefinable; /* there was no room for the definition, and it is not tried again at each call */
    _Atomic uint8_t async;    /* last answer of ncclCommGetAsyncError: a call in progress, an error; 0 = neither */
    _Atomic uint32_t seq;     /* collectives with a non-zero count so far */
    int32_t rank, nranks;
    int32_t believed;        /* where some ranks are stood in for: the ranks that the job believes in; 0 = all run */
    int32_t own;             /* with `believed`: this process's rank as the job knows it */
    int32_t *place;          /* with `believed`: of each rank, its number in records */
    uint8_t flags;           /* ROLL_FLAG_NONBLOCKING */
    uint8_t set;             /* set (api.h) of the NCCL that the communicator belongs to */
    _Atomic(uint32_t *) p2p; /* [2 * peer + direction]: sends (0) and receives (1) so far */
    _Atomic uint32_t children;
    /* For failfast.c. */
    _Atomic bool aborted; /* fail-fast has aborted the communicator, so NCCL has freed it */
    bool messages;        /* this rank has sent or received on the communicator */
    bool common_id;       /* the communicator, or its parent, was made from an id that others share: never compared */
    uint8_t zero_op;
    uint32_t zero_seq; /* number + 1 that the last call without elements would have taken; 0 = none */
    bool shrunk;       /* a child was made without some ranks, and those may number later children differently */
    uint32_t born;     /* moment (roll_compare_moment) at which the creation was entered */
    uint32_t lowered, captured;
    uint64_t launched, without, compare_key; /* see rekey in failfast.c; key 0: not yet known */
    struct roll_def_comm def;
    char label[ROLL_NAME_BYTES];
} __attribute__((aligned(64)));

/* Makes the entry of a communicator from what is known before the creating call. `set` is that of the NCCL that makes
 * the communicator. Label and flags come from config, which may be NULL. */
struct roll_comm *roll_comm_new(unsigned set, const struct roll_def_comm *def, const ncclConfig_t *config,
                                uint8_t inherited);

/* Asks the stand-in for NCCL which members are stood in for, before the communicator is defined (HOSTNCCL_PRESENT). The
 * records of such a communicator know its other members only, and are numbered among them. */
void roll_comm_present(struct roll_comm *comm, const ncclConfig_t *config);

/* The number in records of a root or peer of a communicator of which some ranks are stood in for. */
static inline int32_t roll_comm_place(const struct roll_comm *comm, int32_t peer)
{
    return peer >= 0 && peer < comm->believed ? comm->place[peer] : peer;
}

/* Writes the definition of a communicator once; asks NCCL for rank and size where they are not known. Returns the id, 0
 * when the communicator cannot be defined (yet). */
uint32_t roll_comm_define(struct roll_comm *comm);

/* roll_comm_bind ties a handle to an entry, so that calls on the handle are known; roll_comm_unbind takes the tie away.
 * With entry or handle NULL nothing happens. */
void roll_comm_bind(struct roll_comm *comm, ncclComm_t handle);
void roll_comm_unbind(struct roll_comm *comm);

/* The entry of a handle, NULL when it was never seen created. Lock-free. */
struct roll_comm *roll_comm_find(ncclComm_t handle);

/* The entry with this id among those that are bound to a handle; NULL when there is none. Lock-free, slow. */
struct roll_comm *roll_comm_by_id(uint32_t id);

/* Notes a communicator whose handle NCCL has yet to write to *where: in a group, or (group 0) because it is
 * nonblocking. Then the state of `parent` says when NCCL has written it; NULL for none. */
void roll_comm_pend(struct roll_comm *comm, ncclComm_t *where, uint32_t group, ncclComm_t parent);
/* Whether any communicator waits for its handle. Lock-free. */
bool roll_comm_any_pending(void);
/* Called when the outermost group has ended: ties the handles that are there. `failed`: forgets the communicators of
 * this group that still wait. */
void roll_comm_settle(uint32_t group, bool failed);
/* Called when NCCL says that `parent` has nothing in progress any more: ties the children that waited for that. */
void roll_comm_settle_children(ncclComm_t parent);

/* The slow half of roll_comm_get, for a handle that is not in this thread's cache or not yet defined. */
struct roll_comm *roll_comm_get_slow(struct roll_thread *t, ncclComm_t handle);

/* The entry of a handle for a call to be recorded, defined; NULL (and the loss counted) when unknown. */
static inline struct roll_comm *roll_comm_get(struct roll_thread *t, ncclComm_t handle)
{
    struct roll_comm *comm = t->comm;
    if (ROLL_LIKELY(t->comm_handle == (uintptr_t)handle && comm != NULL &&
                    atomic_load_explicit(&comm->handle, memory_order_relaxed) == (uintptr_t)handle &&
                    atomic_load_explicit(&comm->id, memory_order_relaxed) != 0)) {
        return comm;
    }
    return roll_comm_get_slow(t, handle);
}

#endif
