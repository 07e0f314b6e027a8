/*
 * agent_calls.c: see agent_calls.h.
 *
 * A root that compares by digests has no calls, and one that is streamed keeps none once they are judged: the ring has
 * them, for as long as they are not written over, also when the process is dead. So whoever wants to see them asks
 * here, of few ranks, and gets few of each. A second copy at the root was rejected: it would be there for all ranks,
 * and nobody looks at most of them.
 */
#include "daemon/agent/agent_calls.h"

#include "daemon/base/log.h"
#include "daemon/feed/call_rows.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUESTIONS  16u
#define RINGS_MOST 64u  /* of one question */
#define CALLS      256u /* of each ring, where nobody says how many */
#define CALLS_MOST 512u
#define BATCH      64u
#define MS_NS      UINT64_C(1000000)

struct question {
    uint64_t number, part, around_ms; /* around_ms 0: the newest calls */
    uint32_t calls;
    size_t rings, next;
    uint64_t epoch[RINGS_MOST];
};

struct roll_agent_calls {
    struct question queue[QUESTIONS]; /* [0] is the question being answered */
    size_t used;
    json_t *out; /* an answer that waits for room in the socket; owned */
};

roll_agent_calls_t *roll_agent_calls_new(void)
{
    return calloc(1, sizeof(roll_agent_calls_t));
}

void roll_agent_calls_forget(roll_agent_calls_t *c)
{
    c->used = 0;
    json_decref(c->out);
    c->out = NULL;
}

void roll_agent_calls_destroy(roll_agent_calls_t **self)
{
    if (*self) {
        roll_agent_calls_forget(*self);
        free(*self);
        *self = NULL;
    }
}

bool roll_agent_calls_waits(const roll_agent_calls_t *c)
{
    return c->used > 0;
}

void roll_agent_calls_ask(roll_agent_calls_t *c, const struct roll_frame *ask)
{
    json_t *json = roll_net_json(ask), *streams = json_object_get(json, "streams"), *epoch;
    const char *op = json_string_value(json_object_get(json, "op"));
    size_t i, n = json_array_size(streams);
    if (op && strcmp(op, "calls") == 0 && c->used < QUESTIONS && n > 0 && n <= RINGS_MOST) {
        json_int_t calls = json_integer_value(json_object_get(json, "calls"));
        json_int_t around = json_integer_value(json_object_get(json, "around_ms"));
        struct question *q = &c->queue[c->used++];
        *q = (struct question){
            .number = ask->head.seq,
            .around_ms = around > 0 ? (uint64_t)around : 0,
            .calls = calls < 1            ? CALLS
                     : calls > CALLS_MOST ? CALLS_MOST
                                          : (uint32_t)calls,
        };
        json_array_foreach(streams, i, epoch)
        {
            const char *text = json_string_value(epoch);
            q->epoch[q->rings++] = text ? strtoull(text, NULL, 16) : 0;
        }
    }
    json_decref(json);
}

/* reading */

/* What is added to a record's time to make it wall clock. */
static uint64_t offset_of(const struct roll_ring *ring)
{
    return atomic_load_explicit(&ring->header->clock_real_ns, memory_order_relaxed) -
           atomic_load_explicit(&ring->header->clock_mono_ns, memory_order_relaxed);
}

/* The first ticket from `oldest` on whose record is younger; what has been written over counts as older. Records are
 * nearly in the order of their times. */
static uint64_t find_moment(const struct roll_ring *ring, uint64_t oldest, uint64_t head, uint64_t real_ns)
{
    uint64_t low = oldest, high = head, offset = offset_of(ring);
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        struct roll_record rec;
        bool older = roll_ring_get(ring, middle, &rec) != 0 || rec.enter_ns + offset <= real_ns;
        low = older ? middle + 1 : low;
        high = older ? high : middle;
    }
    return low;
}

/* Where to begin: with three quarters of the calls before the moment, and one behind it, as far as there are so many.
 */
static uint64_t first_of(const struct roll_ring *ring, const struct question *q, uint64_t oldest, uint64_t head)
{
    uint64_t end = head;
    if (q->around_ms != 0) {
        uint64_t at = find_moment(ring, oldest, head, q->around_ms * MS_NS + MS_NS) + q->calls / 4;
        end = at < head ? at : head;
    }
    return end - oldest > q->calls ? end - q->calls : oldest;
}

static bool is_done(const struct roll_ring *ring, const struct roll_record *rec)
{
    return rec->stream < ROLL_RING_DONE_STREAMS &&
           roll_seal_ticket(rec->seal) < atomic_load_explicit(&ring->header->done[rec->stream], memory_order_acquire);
}

static int read_definitions(const struct roll_ring *ring, roll_call_rows_t *rows)
{
    uint64_t used = atomic_load_explicit(&ring->header->defs_used, memory_order_acquire);
    size_t limit = (size_t)(used < ring->defs_bytes ? used : ring->defs_bytes), at = 0;
    struct roll_def def;
    int err = 0;
    while (err != ROLL_E_NOMEM && at < limit && roll_def_decode(ring->defs, limit, &at, &def) == 0) {
        err = roll_call_rows_define(rows, &def);
    }
    return err == ROLL_E_NOMEM ? err : 0;
}

/* Adds the calls from ticket `first` on. What is being written just now ends the look, but for a process that has ended
 * within it. */
static int read_calls(const struct roll_ring *ring, uint64_t first, uint64_t head, uint32_t most,
                      roll_call_rows_t *rows)
{
    struct roll_record rec[BATCH];
    uint64_t at = first, offset = offset_of(ring), end = first + most < head ? first + most : head;
    int err = 0;
    while (!err && at < end) {
        uint64_t next = at, lost = 0;
        size_t n = roll_ring_read(ring, at, rec, end - at < BATCH ? (size_t)(end - at) : BATCH, &next, &lost);
        for (size_t i = 0; !err && i < n; i++) {
            err = roll_record_check(&rec[i]) != 0
                      ? 0
                      : roll_call_rows_add(rows, &rec[i], rec[i].enter_ns + offset, is_done(ring, &rec[i]));
        }
        at = next > at ? next : at + 1;
    }
    return err;
}

static json_t *calls_of(const struct roll_agent_ring *r, const struct question *q)
{
    const struct roll_ring *ring = &r->map;
    uint64_t head = roll_ring_head(ring), slots = ring->mask + 1, oldest = head > slots ? head - slots : 0;
    uint64_t first = first_of(ring, q, oldest, head);
    roll_call_rows_t *rows = roll_call_rows_new();
    json_t *calls = NULL;
    int err = rows ? 0 : ROLL_E_NOMEM;
    err = err ? err : read_definitions(ring, rows);
    err = err ? err : read_calls(ring, first, head, q->calls, rows);
    if (!err && (calls = roll_call_rows_json(rows)) != NULL) {
        json_object_set_new(calls, "first", json_integer((json_int_t)first));
        json_object_set_new(calls, "oldest", json_integer((json_int_t)oldest));
        json_object_set_new(calls, "made", json_integer((json_int_t)head));
        if (q->around_ms != 0 && first == oldest && oldest > 0) {
            json_object_set_new(calls, "over", json_true()); /* the moment, or what was before it, is written over */
        }
    }
    roll_call_rows_destroy(&rows);
    return calls;
}

/* answering */

static json_t *answer_for(const struct question *q, uint64_t epoch, struct roll_agent_ring *const *rings, size_t used)
{
    char text[24];
    json_t *calls = NULL;
    bool there = false;
    for (size_t i = 0; i < used && !there; i++) {
        there = rings[i]->epoch == epoch;
        calls = there ? calls_of(rings[i], q) : NULL;
    }
    snprintf(text, sizeof(text), "%016llx", (unsigned long long)epoch);
    if (!calls) {
        calls = json_pack("{s:s,s:s}", "schema", "rollcall.calls/1", "error",
                          there ? "its agent has no memory" : "its ring is not here any more");
    }
    return json_pack("{s:s,s:s,s:o}", "op", "calls", "stream", text, "calls", calls);
}

void roll_agent_calls_pump(roll_agent_calls_t *c, struct roll_agent_ring *const *rings, size_t used, void *socket)
{
    if (c->used == 0) {
        return;
    }
    struct question *q = &c->queue[0];
    c->out = c->out ? c->out : answer_for(q, q->epoch[q->next], rings, used);
    struct roll_frame_head head = {.type = ROLL_FRAME_ANSWER, .seq = q->number, .first = q->part};
    int err = c->out ? roll_net_send_json(socket, NULL, 0, &head, c->out) : ROLL_E_NOMEM;
    if (err == ROLL_E_BUSY) {
        return; /* the socket is full: the next turn tries again */
    }
    if (err) {
        roll_log(ROLL_LOG_WARNING, "agent: calls cannot be sent to the root: %s", roll_strerror(err));
    }
    json_decref(c->out);
    c->out = NULL;
    q->part++;
    if (++q->next == q->rings) {
        memmove(c->queue, c->queue + 1, --c->used * sizeof(c->queue[0]));
    }
}
