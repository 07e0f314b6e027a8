/*
 * agent_talk.c: see agent_talk.h. Real agents and roots were rejected: when they look at a ring is theirs to say, and
 * these tests are about what is sent at each look.
 */
#include "tests/daemon/agent_talk.h"

#include "tests/trace/cmocka_all.h"
#include "tests/trace/scratch.h"

#include <string.h>

static int take(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    struct agent_talk *t = ctx;
    struct roll_record last;
    struct roll_frame_status status;
    if (head.type == ROLL_FRAME_RECORDS || head.type == ROLL_FRAME_UPDATES) {
        memcpy(&last, (const uint8_t *)payload + bytes - sizeof(last), sizeof(last));
        uint64_t ticket = roll_seal_ticket(last.seal);
        bool updates = head.type == ROLL_FRAME_UPDATES;
        t->next = updates ? t->next : ticket + 1;
        t->came += updates ? 0 : head.count;
        t->update = updates ? ticket : t->update;
        t->updates += updates ? head.count : 0;
    } else if (head.type == ROLL_FRAME_STATUS) {
        memcpy(&status, payload, sizeof(status));
        t->ends += status.proc_state == ROLL_PROC_DEAD || status.proc_state == ROLL_PROC_FINISHED;
    }
    t->rings += head.type == ROLL_FRAME_RING;
    *seq = ++t->seq;
    return 0;
}

void agent_talk_begin(struct agent_talk *t, const char *job, uint32_t records)
{
    memset(t, 0, sizeof(*t));
    t->now = UINT64_C(1000000000);
    scratch_make(t->dir);
    assert_int_equal(synth_open(&t->rank, t->dir, job, 0, 2, records), 0);
    t->comm = synth_comm(&t->rank, 7);
    assert_int_equal(roll_agent_ring_new(t->rank.path, &t->ring), 0);
}

void agent_talk_end(struct agent_talk *t)
{
    roll_agent_ring_destroy(&t->ring);
    synth_close(&t->rank);
    scratch_remove(t->dir);
}

void agent_talk_restart(struct agent_talk *t)
{
    roll_agent_ring_destroy(&t->ring);
    assert_int_equal(roll_agent_ring_new(t->rank.path, &t->ring), 0);
}

uint64_t agent_talk_calls(struct agent_talk *t, unsigned n)
{
    uint64_t ticket = 0;
    for (unsigned i = 0; i < n; i++) {
        ticket = synth_allreduce(&t->rank, &(struct synth_call){.comm = t->comm, .count = 1});
    }
    return ticket;
}

void agent_talk_pump(struct agent_talk *t, int turns, uint64_t step_ns)
{
    struct roll_agent_out out = {.send = take, .ctx = t, .buffer = t->buffer};
    for (int turn = 0; turn < turns; turn++) {
        t->now += step_ns;
        t->ring->upto = roll_agent_ring_head(t->ring);
        assert_true(roll_agent_ring_pump(t->ring, &out, t->now) >= 0);
    }
}

void agent_talk_acknowledge(struct agent_talk *t, uint64_t next, uint64_t open, uint32_t flags)
{
    struct roll_frame_ack ack = {.next_ticket = next};
    struct roll_frame frame = {
        .head = {.type = ROLL_FRAME_ACK, .flags = flags, .payload = sizeof(ack), .first = open, .seq = t->seq},
        .payload = (const uint8_t *)&ack};
    roll_agent_ring_ack(t->ring, &frame);
}

void agent_talk_converse(struct agent_talk *t, int turns, uint64_t step_ns, uint64_t next, uint64_t open,
                         uint32_t flags)
{
    t->ring->link = ROLL_LINK_NEW;
    agent_talk_pump(t, turns, step_ns);
    assert_int_equal(t->ring->link, ROLL_LINK_ANNOUNCED);
    agent_talk_acknowledge(t, next, open, flags);
    assert_int_equal(t->ring->link, ROLL_LINK_LIVE);
}
