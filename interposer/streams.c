/*
 * streams.c: see streams.h. Ids are given once per handle value: a stream that is destroyed and another that gets the
 * same address share an id, which is what a reader of the records expects of an address anyway.
 *
 * Events are kept in a direct-mapped table of single words (48 bits of address, 16 of stream id): a collision forgets
 * the older event, and the wait is then recorded without a stream. A chained table was rejected: events come by the
 * thousand and are hardly ever waited for by the host.
 */
#include "interposer/streams.h"

#include "interposer/session.h"
#include "trace/def.h"

#include <errno.h>

#define STREAMS 4096u /* a power of two */
#define EVENTS  4096u

static struct {
    uint64_t key;
    uint16_t id;
} streams[STREAMS];
static uint32_t known;

static _Atomic uint64_t events[EVENTS];

uint16_t roll_stream_id_slow(struct roll_thread *t, uint64_t key)
{
    int saved = errno;
    uint64_t hash = key * UINT64_C(0x9e3779b97f4a7c15);
    uint16_t id = 0;
    pthread_mutex_lock(&roll_lock);
    for (uint32_t i = 0, at = (uint32_t)(hash >> 40); i < STREAMS; i++, at++) {
        at &= STREAMS - 1;
        if (streams[at].key == key) {
            id = streams[at].id;
            break;
        }
        if (streams[at].key == 0) {
            struct roll_def_stream def = {.handle = key & UINT64_C(0x0000ffffffffffff)};
            uint32_t next = ROLL_STREAM_LEGACY + known + 1;
            if (known < STREAMS / 4 * 3 &&
                roll_def_append(&roll_session->ring, ROLL_DEF_STREAM, next, &def, sizeof def, NULL, 0) == 0) {
                known++;
                id = (uint16_t)next;
                streams[at].key = key;
                streams[at].id = id;
            }
            break;
        }
    }
    pthread_mutex_unlock(&roll_lock);
    if (id == 0) {
        atomic_fetch_add_explicit(&roll_session->ring.header->losses[ROLL_LOSS_STREAM], 1, memory_order_relaxed);
    } else {
        unsigned at = (unsigned)(hash >> 61) & (ROLL_STREAM_CACHE - 1);
        t->stream[at].handle = key;
        t->stream[at].id = id;
    }
    errno = saved;
    return id;
}

static unsigned event_slot(uint64_t event)
{
    return (unsigned)((event * UINT64_C(0x9e3779b97f4a7c15)) >> 44) & (EVENTS - 1);
}

void roll_event_note(cudaEvent_t event, uint16_t stream)
{
    uint64_t key = (uint64_t)(uintptr_t)event;
    atomic_store_explicit(&events[event_slot(key)], key << 16 | stream, memory_order_relaxed);
}

uint16_t roll_event_stream(cudaEvent_t event)
{
    uint64_t key = (uint64_t)(uintptr_t)event;
    uint64_t seen = atomic_load_explicit(&events[event_slot(key)], memory_order_relaxed);
    return seen >> 16 == (key << 16) >> 16 ? (uint16_t)seen : 0;
}
