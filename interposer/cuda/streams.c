/*
 * streams.c: see streams.h. The table is read without a lock: a writer (under roll_lock) stores the id first and the
 * key last. Ids are given once per handle value: a stream that is destroyed and another that gets the same address
 * share an id, which is what a reader of the records expects of an address anyway.
 *
 * Events are kept in a direct-mapped table of single words (48 bits of address, 16 of stream id): a collision forgets
 * the older event, and the wait is then recorded without a stream. A chained table was rejected: events come by the
 * thousand and are hardly ever waited for by the host.
 */
#include "interposer/cuda/streams.h"

#include "interposer/record/session.h"
#include "trace/def.h"

#include <errno.h>

#define STREAMS 4096u /* a power of two */
#define EVENTS  4096u

static struct {
    _Atomic uint64_t key;
    uint16_t id;
} streams[STREAMS];
static uint32_t known;
static _Atomic bool full; /* the table, or the room for definitions, is full, and it is not tried again at each call */

static _Atomic uint64_t events[EVENTS];
static _Atomic uint64_t places[EVENTS]; /* 48 bits of place, 16 of the event's address, so that another event's place is
                                           not taken for this one's */

static uint64_t hash_of(uint64_t key)
{
    return key * UINT64_C(0x9e3779b97f4a7c15);
}

/* The place of the key, or the free place where it would be. There always is one: the table never fills. */
static uint32_t place_of(uint64_t key)
{
    for (uint32_t at = (uint32_t)(hash_of(key) >> 40);; at++) {
        uint64_t seen = atomic_load_explicit(&streams[at & (STREAMS - 1)].key, memory_order_acquire);
        if (seen == key || seen == 0) {
            return at & (STREAMS - 1);
        }
    }
}

static uint16_t make_id(uint64_t key)
{
    pthread_mutex_lock(&roll_lock);
    uint32_t at = place_of(key);
    uint16_t id = streams[at].id;
    if (id == 0 && !full) {
        struct roll_def_stream def = {.handle = key & UINT64_C(0x0000ffffffffffff)};
        uint32_t next = ROLL_STREAM_LEGACY + known + 1;
        if (roll_def_append(&roll_session->ring, ROLL_DEF_STREAM, next, &def, sizeof(def), NULL, 0) == 0) {
            known++;
            id = (uint16_t)next;
            streams[at].id = id;
            atomic_store_explicit(&streams[at].key, key, memory_order_release);
        }
        full = id == 0 || known == STREAMS / 4 * 3;
    }
    pthread_mutex_unlock(&roll_lock);
    return id;
}

uint16_t roll_stream_id_slow(struct roll_thread *t, uint64_t key)
{
    int saved = errno;
    uint32_t place = place_of(key);
    bool there = atomic_load_explicit(&streams[place].key, memory_order_relaxed) == key;
    uint16_t id = there ? streams[place].id : full ? 0 : make_id(key);
    if (id == 0) {
        atomic_fetch_add_explicit(&roll_session->ring.header->losses[ROLL_LOSS_STREAM], 1, memory_order_relaxed);
    } else {
        unsigned at = (unsigned)(hash_of(key) >> 61) & (ROLL_STREAM_CACHE - 1);
        t->stream[at].handle = key;
        t->stream[at].id = id;
    }
    errno = saved;
    return id;
}

uint16_t roll_stream_known(cudaStream_t stream)
{
    uint32_t place = place_of((uint64_t)(uintptr_t)stream);
    bool there = atomic_load_explicit(&streams[place].key, memory_order_acquire) == (uint64_t)(uintptr_t)stream;
    return there ? streams[place].id : 0;
}

static unsigned event_slot(uint64_t event)
{
    return (unsigned)((event * UINT64_C(0x9e3779b97f4a7c15)) >> 44) & (EVENTS - 1);
}

static uint64_t tag_of(uint64_t event)
{
    return (event >> 4 ^ event >> 20) & 0xffff;
}

void roll_event_note(cudaEvent_t event, uint16_t stream, uint64_t place)
{
    uint64_t key = (uint64_t)(uintptr_t)event;
    unsigned at = event_slot(key);
    atomic_store_explicit(&places[at], place << 16 | tag_of(key), memory_order_relaxed);
    atomic_store_explicit(&events[at], key << 16 | stream, memory_order_relaxed);
}

uint16_t roll_event_stream(cudaEvent_t event, uint64_t *place)
{
    uint64_t key = (uint64_t)(uintptr_t)event;
    unsigned at = event_slot(key);
    uint64_t seen = atomic_load_explicit(&events[at], memory_order_relaxed);
    uint64_t where = atomic_load_explicit(&places[at], memory_order_relaxed);
    bool same = seen >> 16 == (key << 16) >> 16;
    *place = same && (where & 0xffff) == tag_of(key) ? where >> 16 : 0;
    return same ? (uint16_t)seen : 0;
}
