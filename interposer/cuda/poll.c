/*
 * poll.c: see poll.h. Here is the work at the ends of a loop of polls, and within the loop five times a second; the
 * older the loop is, the more rarely. A reader keeps a few hundred records of each rank, and the calls before a loop of
 * twenty minutes must still be among them.
 *
 * The new record is written before the old one returns, so a reader of the ring always sees a thread that polls, never
 * one that does nothing. A record for each poll was rejected: it floods the ring. A counter inside the record was
 * rejected: an agent takes a record only when it is entered and when it has returned, and would not see the counter.
 */
#include "interposer/cuda/poll.h"

#include "interposer/wrap/call.h"

#include <errno.h>

#define FIRST_NS UINT64_C(100000000) /* shorter loops are not recorded */
#define AGAIN_NS UINT64_C(200000000) /* between two records of a young loop */

unsigned roll_poll_find(const struct roll_poll *poll, uintptr_t key)
{
    for (unsigned i = 0; i < poll->things; i++) {
        if (poll->key[i] == key) {
            return i;
        }
    }
    return ROLL_POLL_THINGS;
}

void roll_poll_join(struct roll_thread *t, uintptr_t key)
{
    struct roll_poll old = t->poll;
    roll_poll_over(t);
    uint64_t now = roll_clock_now(t);
    t->poll = (struct roll_poll){.since_ns = now, .next_ns = now + FIRST_NS, .polls = 1};
    for (unsigned i = 0; i < old.things && old.key[0] != 0 && old.things < ROLL_POLL_THINGS; i++) {
        t->poll.key[t->poll.things++] = old.key[i];
    }
    t->poll.asked = (uint8_t)(1u << t->poll.things);
    t->poll.key[t->poll.things++] = key;
}

/* Takes the things out of the loop that no poll has asked about since the last record. Returns the new place of
 * `thing`, which stays.
 */
static unsigned drop_left(struct roll_poll *poll, unsigned thing)
{
    unsigned kept = 0, place = 0;
    for (unsigned i = 0; i < poll->things; i++) {
        if ((poll->asked & 1u << i) != 0) {
            place = i == thing ? kept : place;
            poll->key[kept++] = poll->key[i];
        }
    }
    if (kept < poll->things) {
        poll->things = (uint8_t)kept;
        poll->asked = (uint8_t)((1u << kept) - 1);
        poll->told = 0;
    }
    return place;
}

/* Closes the loop's record, as roll_ring_return does. Where the ring has overwritten the record meanwhile, that is not
 * counted: nobody needs it. */
static void give_back(const struct roll_poll *poll, enum roll_poll_end how, uint64_t now)
{
    uint64_t seal = roll_seal(poll->ticket, ROLL_STATE_ENTERED);
    struct roll_record *rec = poll->rec;
    if (rec == NULL || !roll_active() || __atomic_load_n(&rec->seal, __ATOMIC_RELAXED) != seal) {
        return;
    }
    uint64_t took = now - poll->said_ns;
    __atomic_store_n(&rec->call_ns, took < UINT32_MAX ? (uint32_t)took : UINT32_MAX, __ATOMIC_RELAXED);
    __atomic_store_n(&rec->result, (uint8_t)how, __ATOMIC_RELAXED);
    __atomic_compare_exchange_n(&rec->seal, &seal, roll_seal(poll->ticket, ROLL_STATE_RETURNED), false,
                                __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

void roll_poll_end(struct roll_thread *t, enum roll_poll_end how)
{
    struct roll_poll poll = t->poll;
    t->poll.key[0] = 0;
    t->poll.things = 0;
    t->poll.rec = NULL;
    if (poll.rec != NULL) {
        give_back(&poll, how, roll_clock_now(t));
    }
}

/* The time until the next record: a fifth of the loop's age, from 0.2 s to 1 s; for a loop older than a minute a
 * sixtieth of its age, up to 30 s. */
static uint64_t until_next(uint64_t age)
{
    const uint64_t second = UINT64_C(1000000000);
    if (age >= 60 * second) {
        return age < 1800 * second ? age / 60 : 30 * second;
    }
    return age < 5 * AGAIN_NS ? AGAIN_NS : age < 5 * second ? age / 5 : second;
}

void roll_poll_say(struct roll_thread *t, unsigned thing, uint8_t op, uintptr_t what, bool per_thread, uintptr_t pc,
                   const uintptr_t *frame)
{
    int saved = errno;
    thing = drop_left(&t->poll, thing);
    if ((t->poll.told & 1u << thing) != 0) {
        return; /* it is the turn of another thing, which will be polled soon */
    }
    roll_enter_begin(t);
    struct roll_poll poll = t->poll;
    t->poll.key[0] =
        0; /* roll_record_write ends any open loop; this record is the loop's own, so the loop is hidden from it */
    uint64_t lasts_ms = (roll_clock_now(t) - poll.since_ns) / 1000000;
    uint32_t rounds = poll.polls / poll.things;
    struct roll_fill fill = {.seq = lasts_ms < UINT32_MAX ? (uint32_t)lasts_ms : UINT32_MAX,
                             .peer = poll.things > 1 ? poll.things : ROLL_PEER_NONE,
                             .aux = (uint16_t)(rounds < UINT16_MAX ? rounds : UINT16_MAX),
                             .op = op,
                             .dtype = ROLL_DTYPE_NONE,
                             .redop = ROLL_RED_NONE};
    struct roll_comm *comm = op == ROLL_OP_COMM_QUERY ? roll_comm_find((ncclComm_t)what) : NULL;
    if (op == ROLL_OP_STREAM_QUERY) {
        fill.stream = roll_stream_id(t, (cudaStream_t)what, per_thread);
    } else if (op == ROLL_OP_EVENT_QUERY) {
        fill.stream = roll_event_stream((cudaEvent_t)what, &fill.count);
    } else if (comm != NULL) {
        fill.comm = (uint16_t)roll_comm_define(comm);
    }
    struct roll_call call;
    roll_record_write(t, &call, &fill, roll_callsite(t, pc, frame), ROLL_STATE_ENTERED);
    give_back(&poll, ROLL_POLL_GOES_ON, call.enter_ns);
    poll.rec = call.rec;
    poll.ticket = call.ticket;
    poll.said_ns = call.enter_ns;
    poll.said = (uint8_t)thing;
    poll.told |= (uint8_t)(1u << thing);
    poll.told = poll.told + 1u == 1u << poll.things ? 0 : poll.told;
    poll.asked = 0;
    poll.next_ns = call.enter_ns + until_next(call.enter_ns - poll.since_ns);
    t->poll = poll;
    roll_enter_end(t);
    t->depth = 0;
    errno = saved;
}
