/*
 * callsite.c: gives call sites their ids, off the hot path: a thread comes here with a stack that no thread has used
 * lately. A call site is its return addresses and the lines of Python behind them (pysite.h).
 *
 * Addresses that lie in no loaded object are cut off, with everything above them: they come from frames without frame
 * pointers, or from generated code. So the definition that is kept is what a reader can turn into names, and random
 * words on a stack do not fill the table. Symbols are not looked up here: that is the agent's work.
 *
 * roll_callsite_known (callsite.h), which is read without a lock, is asked before this table.
 */
#include "interposer/record/callsite.h"

#include "interposer/record/pydump.h"
#include "interposer/record/pymain.h"
#include "interposer/record/pysite.h"
#include "interposer/record/pystack.h"
#include "interposer/record/session.h"
#include "trace/ident.h"

#include <errno.h>
#include <string.h>

#define SITES      16384u /* a power of two */
#define SITE_LIMIT (SITES / 4 * 3)
#define STANDS     2048u /* call sites with a stand of the main thread, which may stand at another place each time */

static struct {
    uint64_t hash; /* of the addresses and lines kept; 0 = free */
    uint32_t id;
} sites[SITES];
_Atomic uint64_t roll_callsite_known[ROLL_CALLSITE_BUCKETS][ROLL_CALLSITE_WAYS] __attribute__((aligned(64)));
static uint32_t known, stands;
static bool full;

void roll_callsite_lost(void)
{
    atomic_fetch_add_explicit(&roll_session->ring.header->losses[ROLL_LOSS_CALLSITE], 1, memory_order_relaxed);
}

/* What a definition holds behind its head, and where the main thread stood. */
struct place {
    uint32_t depth, lines, stand_lines;
    uint64_t pc[ROLL_CALLSITE_DEPTH];
    struct roll_callsite_line line[ROLL_CALLSITE_LINES], stand[ROLL_CALLSITE_LINES];
};

static uint32_t append(const struct place *p)
{
    struct roll_def_callsite def = {.depth = p->depth, .lines = p->lines};
    struct roll_def_stand stand = {.lines = p->stand_lines};
    uint8_t tail[sizeof(p->pc) + sizeof(p->line)];
    size_t pcs = p->depth * sizeof(p->pc[0]), lines = p->lines * sizeof(p->line[0]);
    memcpy(tail, p->pc, pcs);
    memcpy(tail + pcs, p->line, lines);
    struct roll_ring *ring = &roll_session->ring;
    if (!roll_def_is_roomy(ring) ||
        (stand.lines > 0 && roll_def_append(ring, ROLL_DEF_STAND, known + 1, &stand, sizeof(stand), p->stand,
                                            stand.lines * sizeof(p->stand[0])) != 0) ||
        roll_def_append(ring, ROLL_DEF_CALLSITE, known + 1, &def, sizeof(def), tail, pcs + lines) != 0) {
        full = true;
        return 0;
    }
    stands += stand.lines > 0;
    roll_ptracer_refresh(NULL); /* here, because new call sites are rare, but come again and again while a job starts */
    return ++known;
}

/* How much of a call site is looked at. */
enum look {
    LOOK_FIRST, /* a call site that depends on where the main thread stands is told apart, and not defined */
    LOOK_LAST,  /* with the stand that the caller gives, NULL for none */
};

static uint32_t intern_locked(const uintptr_t *pc, uint32_t depth, enum look look, const struct roll_pymain *main)
{
    struct place p = {.depth = 1, .pc = {pc[0]}};
    bool user = false;
    p.lines = full ? 0 : roll_pysite_lines(p.line, &user);
    if (look == LOOK_FIRST && !full && !user && stands < STANDS && roll_pymain_is_other()) {
        return ROLL_CALLSITE_STANDS;
    }
    roll_module_define(pc[0], false);
    while (p.depth < depth && roll_module_define(pc[p.depth], true)) {
        p.pc[p.depth] = pc[p.depth];
        p.depth++;
    }
    p.stand_lines = main != NULL && !full && stands < STANDS ? roll_pysite_stand(main, p.stand) : 0;
    uint64_t hash = roll_hash64(p.depth, p.pc, p.depth * sizeof(p.pc[0]));
    hash = roll_hash64(hash, p.line, p.lines * sizeof(p.line[0]));
    hash = p.stand_lines > 0 ? roll_hash64(hash, p.stand, p.stand_lines * sizeof(p.stand[0])) : hash;
    hash += hash == 0;
    for (uint32_t i = 0, at = (uint32_t)hash & (SITES - 1); i < SITES; i++, at = (at + 1) & (SITES - 1)) {
        if (sites[at].hash == hash) {
            return sites[at].id;
        }
        if (sites[at].hash == 0) {
            uint32_t id = full || known >= SITE_LIMIT ? 0 : append(&p);
            if (id != 0) {
                sites[at].hash = hash;
                sites[at].id = id;
            }
            return id;
        }
    }
    return 0;
}

static bool find_shared(uint64_t hash, uint32_t *id)
{
    for (unsigned way = 0; way < ROLL_CALLSITE_WAYS; way++) {
        uint64_t word =
            atomic_load_explicit(&roll_callsite_known[hash & (ROLL_CALLSITE_BUCKETS - 1)][way], memory_order_relaxed);
        if (word != 0 && (word ^ hash) >> 16 == 0) {
            *id = (uint32_t)(word & UINT16_MAX);
            return true;
        }
    }
    return false;
}

/* Keeps the id of a call site in a free place of the shared table, else in one that the hash picks. Under roll_lock. */
static void keep_shared(uint64_t hash, uint32_t id)
{
    _Atomic uint64_t *bucket = roll_callsite_known[hash & (ROLL_CALLSITE_BUCKETS - 1)];
    unsigned way = 0;
    while (way < ROLL_CALLSITE_WAYS && atomic_load_explicit(&bucket[way], memory_order_relaxed) != 0) {
        way++;
    }
    way = way < ROLL_CALLSITE_WAYS ? way : (unsigned)(hash >> 12) & (ROLL_CALLSITE_WAYS - 1);
    atomic_store_explicit(&bucket[way], (hash & ~(uint64_t)UINT16_MAX) | id, memory_order_relaxed);
}

/* The id of a call site that depends on where the main thread stands. */
static uint32_t intern_stand(uint64_t hash, const uintptr_t *pc, uint32_t depth)
{
    struct roll_pymain main;
    uint64_t stand = roll_pymain_read(&main);
    uint32_t id = 0;
    hash = roll_hash64(hash, &stand, sizeof(stand));
    if (!find_shared(hash, &id)) {
        pthread_mutex_lock(&roll_lock);
        id = intern_locked(pc, depth, LOOK_LAST, stand != 0 ? &main : NULL);
        keep_shared(hash, id);
        pthread_mutex_unlock(&roll_lock);
    }
    return id;
}

uint16_t roll_callsite_other(uint64_t hash, uint16_t id, const uintptr_t *pc, uint32_t depth)
{
    int saved = errno;
    uint32_t found = id == ROLL_CALLSITE_STANDS ? intern_stand(hash, pc, depth) : 0;
    if (found == 0) {
        roll_callsite_lost();
    }
    errno = saved;
    return (uint16_t)found;
}

uint16_t roll_callsite_intern(uint64_t hash, const uintptr_t *pc, uint32_t depth)
{
    int saved = errno;
    uint32_t id = 0;
    if (!find_shared(hash, &id)) {
        pthread_mutex_lock(&roll_lock);
        if (atomic_load_explicit(&roll_pystack_ready, memory_order_relaxed) == 0) {
            roll_pystack_find();
            hash = roll_pystack_mix(hash); /* as the next call of this thread will come */
        }
        id = intern_locked(pc, depth, LOOK_FIRST, NULL);
        keep_shared(hash, id);
        pthread_mutex_unlock(&roll_lock);
    }
    errno = saved;
    return id == 0 || id == ROLL_CALLSITE_STANDS ? roll_callsite_other(hash, (uint16_t)id, pc, depth) : (uint16_t)id;
}
