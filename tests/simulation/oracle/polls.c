/*
 * polls.c: threads that wait by asking again and again, and the records that say so.
 */
#include "tests/simulation/oracle/machine.h"

void polls_begin(struct host *h, enum roll_op op, uint16_t stream, uint16_t comm, uint64_t place)
{
#ifndef ROLL_SIM_BEFORE /* an engine from before polls were recorded */
    sim.polls = true;
#endif
    h->poll = (struct poll){.since_ns = sim.now,
                            .next_ns = sim.now + POLL_FIRST_NS,
                            .log = UINT32_MAX,
                            .op = (uint8_t)op,
                            .stream = stream,
                            .comm = comm,
                            .place = place,
                            .on = true};
}

void polls_end(uint32_t rank, struct host *h, uint64_t at)
{
    if (h->poll.on && h->poll.log != UINT32_MAX) {
        struct log *log = &sim.out->rank[rank].log[h->poll.log];
        log->back_ns = at;
        log->rec.result = 0;
    }
    h->poll.on = false;
}

void story_poll(struct log *out, const struct poll *poll, uint32_t thread)
{
    uint64_t lasts_ms = (poll->next_ns - poll->since_ns) / MS_;
    *out = (struct log){.rec = {.enter_ns = poll->next_ns,
                                .count = poll->place,
                                .seq = (uint32_t)lasts_ms,
                                .peer = ROLL_PEER_NONE,
                                .step = ROLL_STEP_NONE,
                                .comm = poll->comm,
                                .stream = poll->stream,
                                .thread = (uint16_t)(thread + 1),
                                .layer = ROLL_LAYER_NONE,
                                .op = poll->op,
                                .dtype = ROLL_DTYPE_NONE,
                                .redop = ROLL_RED_NONE,
                                .aux = (uint16_t)(lasts_ms < UINT16_MAX ? lasts_ms : UINT16_MAX)},
                        .enter_ns = poll->next_ns,
                        .back_ns = NEVER,
                        .done_ns = NEVER};
}

/* As interposer/cuda/poll.c does it: the older the loop is, the more rarely. */
void story_poll_on(struct poll *poll)
{
    uint64_t age = poll->next_ns - poll->since_ns;
    uint64_t again = age >= 60 * S_ ? age / 60 : age / 5 < S_ ? age / 5 : S_;
    again = again > 30 * S_ ? 30 * S_ : again;
    poll->next_ns += again > 200 * MS_ ? again : 200 * MS_;
}

void polls_write(uint32_t rank, uint32_t thread)
{
    struct host *h = &sim.proc[rank].host[thread];
    struct log *log = record_write(rank, thread, h->act, (enum roll_op)h->poll.op);
    uint32_t before = h->poll.log;
    story_poll(log, &h->poll, thread);
    log->act = h->act;
    h->poll.log = record_last(rank);
    if (before != UINT32_MAX) {
        sim.out->rank[rank].log[before].back_ns = h->poll.next_ns;
        sim.out->rank[rank].log[before].rec.result = POLL_GOES_ON;
    }
    story_poll_on(&h->poll);
}

uint64_t polls_next(uint32_t *rank, uint32_t *thread)
{
    uint64_t at = NEVER;
    for (uint32_t r = 0; r < sim.p->ranks; r++) {
        const struct process *q = &sim.proc[r];
        for (uint32_t t = 0; sim.polls && !q->over && !q->stopped && t < sim.threads; t++) {
            const struct host *h = &q->host[t];
            if (h->poll.on && h->poll.next_ns < at) {
                at = h->poll.next_ns;
                *rank = r;
                *thread = t;
            }
        }
    }
    return at;
}
