/*
 * comms.c: the communicators of this process.
 *
 * An open-addressing table of (handle, entry) pairs, fixed in size so that readers need no lock: a writer (under
 * roll_lock) stores the entry first and the handle last, and a reader believes a pair only if the entry names the same
 * handle. A removed pair leaves a tombstone, which becomes free again when nothing follows it.
 *
 * A handle is not always there when the creating call returns: inside a group it belongs to the application only after
 * the outermost ncclGroupEnd, and a nonblocking communicator may get it later still. Such communicators wait in a short
 * list until the group ends, until the parent's state says that the child is there, or until a call comes on an unknown
 * handle: then the list is searched for the place that holds this handle. The application's places are read through the
 * kernel, because their memory may be gone.
 */
#include "interposer/record/comms.h"

#include "interposer/record/clock.h"
#include "interposer/record/session.h"
#include "trace/compare.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define TABLE_SLOTS   16384u /* a power of two; communicators alive at once stay below three quarters of it */
#define TABLE_LIMIT   (TABLE_SLOTS / 4 * 3)
#define TOMBSTONE     ((uintptr_t)1)
#define PENDING       256u
#define RANKS_LIMIT   (1 << 24)
#define PRESENT_LIMIT 4096 /* ranks of a communicator of hostnccl */

static struct {
    _Atomic uintptr_t handle;
    _Atomic(struct roll_comm *) comm;
} table[TABLE_SLOTS];
static uint32_t bound;

static struct {
    ncclComm_t *where;
    struct roll_comm *comm;
    uint32_t group;
    uintptr_t parent;
} pending[PENDING];
static _Atomic uint32_t
    pendings; /* entries of the list; read without the lock, so that calls look only when there are some */

static _Atomic uint32_t ids;

/* Blocks of counts that belonged to destroyed communicators, kept for the next one. */
struct counts_block {
    struct counts_block *next;
    size_t words;
};
static struct counts_block *spare;

static uint32_t slot_of(uintptr_t handle)
{
    return (uint32_t)((handle * UINT64_C(0x9e3779b97f4a7c15)) >> 40) & (TABLE_SLOTS - 1);
}

struct roll_comm *roll_comm_find(ncclComm_t handle)
{
    uintptr_t key = (uintptr_t)handle;
    if (key <= TOMBSTONE) {
        return NULL;
    }
    for (uint32_t i = 0, at = slot_of(key); i < TABLE_SLOTS; i++, at = (at + 1) & (TABLE_SLOTS - 1)) {
        uintptr_t seen = atomic_load_explicit(&table[at].handle, memory_order_acquire);
        if (seen == 0) {
            return NULL;
        }
        if (seen == key) {
            struct roll_comm *comm = atomic_load_explicit(&table[at].comm, memory_order_acquire);
            return comm != NULL && atomic_load_explicit(&comm->handle, memory_order_relaxed) == key ? comm : NULL;
        }
    }
    return NULL;
}

struct roll_comm *roll_comm_by_id(uint32_t id)
{
    for (uint32_t at = 0; at < TABLE_SLOTS; at++) {
        struct roll_comm *comm = atomic_load_explicit(&table[at].handle, memory_order_acquire) > TOMBSTONE
                                     ? atomic_load_explicit(&table[at].comm, memory_order_acquire)
                                     : NULL;
        if (comm != NULL && atomic_load_explicit(&comm->id, memory_order_relaxed) == id) {
            return comm;
        }
    }
    return NULL;
}

static void remove_locked(struct roll_comm *comm)
{
    uintptr_t key = atomic_load_explicit(&comm->handle, memory_order_relaxed);
    if (key <= TOMBSTONE) {
        return;
    }
    atomic_store_explicit(&comm->handle, 0, memory_order_relaxed);
    for (uint32_t i = 0, at = slot_of(key); i < TABLE_SLOTS; i++, at = (at + 1) & (TABLE_SLOTS - 1)) {
        uintptr_t seen = atomic_load_explicit(&table[at].handle, memory_order_relaxed);
        if (seen == 0) {
            return;
        }
        if (seen != key) {
            continue;
        }
        bound--;
        uint32_t next = (at + 1) & (TABLE_SLOTS - 1);
        bool free_it = atomic_load_explicit(&table[next].handle, memory_order_relaxed) == 0;
        atomic_store_explicit(&table[at].handle, TOMBSTONE, memory_order_release);
        while (free_it && atomic_load_explicit(&table[at].handle, memory_order_relaxed) == TOMBSTONE) {
            atomic_store_explicit(&table[at].handle, 0, memory_order_release);
            at = (at - 1) & (TABLE_SLOTS - 1);
        }
        return;
    }
}

static void insert_locked(struct roll_comm *comm, uintptr_t key)
{
    struct roll_comm *old = roll_comm_find((ncclComm_t)key);
    if (old == comm) {
        return;
    }
    if (old != NULL) {
        remove_locked(old); /* the old one's destruction was not seen: NCCL freed it, and the address was used again */
    }
    if (bound >= TABLE_LIMIT) {
        return;
    }
    for (uint32_t i = 0, at = slot_of(key); i < TABLE_SLOTS; i++, at = (at + 1) & (TABLE_SLOTS - 1)) {
        uintptr_t seen = atomic_load_explicit(&table[at].handle, memory_order_relaxed);
        if (seen <= TOMBSTONE) {
            atomic_store_explicit(&comm->handle, key, memory_order_relaxed);
            atomic_store_explicit(&table[at].comm, comm, memory_order_release);
            atomic_store_explicit(&table[at].handle, key, memory_order_release);
            bound++;
            return;
        }
    }
}

void roll_comm_bind(struct roll_comm *comm, ncclComm_t handle)
{
    if (comm == NULL || (uintptr_t)handle <= TOMBSTONE) {
        return;
    }
    pthread_mutex_lock(&roll_lock);
    insert_locked(comm, (uintptr_t)handle);
    pthread_mutex_unlock(&roll_lock);
}

void roll_comm_unbind(struct roll_comm *comm)
{
    if (comm == NULL) {
        return;
    }
    pthread_mutex_lock(&roll_lock);
    remove_locked(comm);
    uint32_t *p2p = atomic_exchange_explicit(&comm->p2p, NULL, memory_order_relaxed);
    if (p2p != NULL) {
        struct counts_block *block = (struct counts_block *)(void *)p2p - 1;
        block->next = spare;
        spare = block;
    }
    pthread_mutex_unlock(&roll_lock);
}

/* Room for one number per peer and direction, zeroed. Under roll_lock. */
static uint32_t *new_counts(size_t words)
{
    for (struct counts_block **at = &spare; *at != NULL; at = &(*at)->next) {
        if ((*at)->words >= words) {
            struct counts_block *block = *at;
            *at = block->next;
            memset(block + 1, 0, words * sizeof(uint32_t));
            return (uint32_t *)(void *)(block + 1);
        }
    }
    struct counts_block *block = roll_session_alloc(sizeof(*block) + words * sizeof(uint32_t));
    if (block == NULL) {
        return NULL;
    }
    block->words = words;
    return (uint32_t *)(void *)(block + 1);
}

struct roll_comm *roll_comm_new(unsigned set, const struct roll_def_comm *def, const ncclConfig_t *config,
                                uint8_t inherited)
{
    pthread_mutex_lock(&roll_lock);
    struct roll_comm *comm = roll_session_alloc(sizeof(*comm));
    pthread_mutex_unlock(&roll_lock);
    if (comm == NULL) {
        return NULL;
    }
    comm->def = *def;
    comm->set = (uint8_t)set;
    comm->rank = def->rank;
    comm->nranks = def->nranks;
    comm->flags = inherited;
    comm->born = roll_compare_moment(roll_clock_monotonic());
    /* A member is read only if the caller's struct is long enough to have it. */
    if (config != NULL && config->magic == ROLL_NCCL_CONFIG_MAGIC) {
        if (config->size >= offsetof(ncclConfig_t, blocking) + sizeof(config->blocking)) {
            comm->flags = config->blocking == 0 ? ROLL_FLAG_NONBLOCKING : 0;
        }
        if (config->size >= offsetof(ncclConfig_t, commName) + sizeof(config->commName) && config->commName != NULL) {
            size_t n = strnlen(config->commName, sizeof(comm->label));
            memcpy(comm->label, config->commName, n);
            comm->def.label_bytes = (uint32_t)n;
        }
    }
    comm->def.flags = (comm->flags & ROLL_FLAG_NONBLOCKING) != 0 ? 1 : 0;
    return comm;
}

void roll_comm_present(struct roll_comm *comm, const ncclConfig_t *config)
{
    typedef int (*present_t)(int, int, const ncclConfig_t *, int *);
    const char *set = getenv("HOSTNCCL_PRESENT");
    present_t present = set != NULL && set[0] != '\0' && comm != NULL
                            ? (present_t)roll_symbol_resolve("hostncclPresent", "libnccl.so")
                            : NULL;
    if (present == NULL || comm->nranks <= 1 || comm->nranks > PRESENT_LIMIT || comm->rank < 0 ||
        comm->rank >= comm->nranks) {
        return;
    }
    pthread_mutex_lock(&roll_lock);
    int32_t *place = roll_session_alloc((size_t)comm->nranks * sizeof(*place));
    pthread_mutex_unlock(&roll_lock);
    int places = place != NULL ? present(comm->nranks, comm->rank, config, place) : 0;
    if (places <= 0 || places >= comm->nranks) {
        return;
    }
    for (int32_t r = 0, absent = places; r < comm->nranks; r++) {
        place[r] = place[r] < 0 ? absent++ : place[r];
    }
    comm->own = comm->rank;
    comm->place = place;
    comm->believed = comm->nranks;
    comm->rank = place[comm->own];
    comm->nranks = places;
    comm->def.flags |= (uint32_t)comm->believed << ROLL_DEF_COMM_BELIEVED_SHIFT;
}

/* Asks NCCL for rank and size of a child, which are known only when the child exists. */
static bool ask_shape(struct roll_comm *comm)
{
    typedef ncclResult_t (*query_t)(ncclComm_t, int *);
    ncclComm_t handle = (ncclComm_t)atomic_load_explicit(&comm->handle, memory_order_relaxed);
    query_t count = ROLL_REAL_OF(comm->set, ncclCommCount, query_t);
    query_t rank = ROLL_REAL_OF(comm->set, ncclCommUserRank, query_t);
    int nranks = 0, mine = -1;
    if (handle == NULL || count == NULL || rank == NULL || count(handle, &nranks) != ncclSuccess ||
        rank(handle, &mine) != ncclSuccess) {
        return false;
    }
    comm->rank = mine;
    comm->nranks = nranks;
    return true;
}

uint32_t roll_comm_define(struct roll_comm *comm)
{
    uint32_t id = comm == NULL ? 0 : atomic_load_explicit(&comm->id, memory_order_acquire);
    if (comm == NULL || id != 0 || atomic_load_explicit(&comm->undefinable, memory_order_relaxed)) {
        return id;
    }
    if (comm->nranks <= 0 && !ask_shape(comm)) {
        return 0;
    }
    pthread_mutex_lock(&roll_lock);
    id = atomic_load_explicit(&comm->id, memory_order_relaxed);
    bool tried = atomic_load_explicit(&comm->undefinable, memory_order_relaxed);
    if (id == 0 && !tried && comm->nranks > 0 && comm->nranks <= RANKS_LIMIT && comm->rank >= 0 &&
        comm->rank < comm->nranks) {
        uint32_t next = atomic_load_explicit(&ids, memory_order_relaxed) + 1;
        comm->def.rank = comm->rank;
        comm->def.nranks = comm->nranks;
        if (next <= UINT16_MAX && roll_def_append(&roll_session->ring, ROLL_DEF_COMM, next, &comm->def,
                                                  sizeof(comm->def), comm->label, comm->def.label_bytes) == 0) {
            atomic_store_explicit(&ids, next, memory_order_relaxed);
            atomic_store_explicit(&comm->p2p, new_counts((size_t)comm->nranks * 2), memory_order_relaxed);
            atomic_store_explicit(&comm->id, next, memory_order_release);
            id = next;
        } else {
            atomic_store_explicit(&comm->undefinable, true, memory_order_relaxed);
        }
    }
    pthread_mutex_unlock(&roll_lock);
    return id;
}

/* Under roll_lock. */
static void forget_pending(uint32_t i)
{
    pending[i].comm = NULL;
    atomic_fetch_sub_explicit(&pendings, 1, memory_order_relaxed);
}

void roll_comm_pend(struct roll_comm *comm, ncclComm_t *where, uint32_t group, ncclComm_t parent)
{
    if (comm == NULL || where == NULL) {
        return;
    }
    uint32_t place = PENDING;
    pthread_mutex_lock(&roll_lock);
    for (uint32_t i = 0; i < PENDING; i++) {
        /* The application now uses the place for another communicator: the handle that it held before is lost. */
        if (pending[i].comm != NULL && pending[i].where == where) {
            forget_pending(i);
        }
        place = pending[i].comm == NULL && place == PENDING ? i : place;
    }
    if (place < PENDING) {
        pending[place].where = where;
        pending[place].comm = comm;
        pending[place].group = group;
        pending[place].parent = (uintptr_t)parent;
        atomic_fetch_add_explicit(&pendings, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&roll_lock);
}

bool roll_comm_any_pending(void)
{
    return atomic_load_explicit(&pendings, memory_order_relaxed) != 0;
}

/* The handle that a place of the application holds; NULL when that memory is gone. Seccomp filters may forbid the first
 * way of reading it. */
static ncclComm_t look_at(ncclComm_t *where)
{
    ncclComm_t seen = NULL;
    struct iovec local = {.iov_base = &seen, .iov_len = sizeof(seen)};
    struct iovec remote = {.iov_base = where, .iov_len = sizeof(seen)};
    ssize_t n = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
    if (n < 0 && errno != EFAULT) {
        int fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
        n = fd < 0 ? -1 : pread(fd, &seen, sizeof(seen), (off_t)(uintptr_t)where);
        close(fd);
    }
    return n == (ssize_t)sizeof(seen) ? seen : NULL;
}

/* Ties the communicators of the list whose handle is there: those of one group, or (group 0) of one parent. */
static void settle(uint32_t group, uintptr_t parent, bool failed)
{
    struct roll_comm *settled[PENDING];
    uint32_t n = 0;
    pthread_mutex_lock(&roll_lock);
    for (uint32_t i = 0; i < PENDING; i++) {
        if (pending[i].comm == NULL || pending[i].group != group || (group == 0 && pending[i].parent != parent)) {
            continue;
        }
        ncclComm_t handle = failed ? NULL : look_at(pending[i].where);
        if (handle != NULL) {
            insert_locked(pending[i].comm, (uintptr_t)handle);
            settled[n++] = pending[i].comm;
        }
        if (handle != NULL || failed) {
            forget_pending(i);
        } else {
            pending[i].group = 0;
        }
    }
    pthread_mutex_unlock(&roll_lock);
    for (uint32_t i = 0; i < n; i++) {
        roll_comm_define(settled[i]);
    }
}

void roll_comm_settle(uint32_t group, bool failed)
{
    if (group != 0 && roll_comm_any_pending()) {
        settle(group, 0, failed);
    }
}

void roll_comm_settle_children(ncclComm_t parent)
{
    if (parent != NULL) {
        settle(0, (uintptr_t)parent, false);
    }
}

static struct roll_comm *find_pending(ncclComm_t handle)
{
    struct roll_comm *found = NULL;
    if (!roll_comm_any_pending()) {
        return NULL;
    }
    pthread_mutex_lock(&roll_lock);
    for (uint32_t i = 0; i < PENDING && found == NULL; i++) {
        if (pending[i].comm != NULL && pending[i].group == 0 && look_at(pending[i].where) == handle) {
            found = pending[i].comm;
            forget_pending(i);
            insert_locked(found, (uintptr_t)handle);
        }
    }
    pthread_mutex_unlock(&roll_lock);
    return found;
}

struct roll_comm *roll_comm_get_slow(struct roll_thread *t, ncclComm_t handle)
{
    int saved = errno;
    struct roll_comm *comm = roll_comm_find(handle);
    if (comm == NULL && handle != NULL) {
        comm = find_pending(handle);
    }
    if (comm != NULL && roll_comm_define(comm) != 0) {
        t->comm_handle = (uintptr_t)handle;
        t->comm = comm;
    } else {
        comm = NULL;
        atomic_fetch_add_explicit(&roll_session->ring.header->losses[ROLL_LOSS_COMM_UNKNOWN], 1, memory_order_relaxed);
    }
    errno = saved;
    return comm;
}
