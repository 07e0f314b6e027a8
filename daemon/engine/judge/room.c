/*
 * room.c: where there is no room for a call: in its rank's log, in the window of its communicator, in that of its pair.
 *
 * Complete calls are swept out first; then the place grows, up to config.window; then the incomplete calls on the
 * communicator are given up, and nothing more is judged on it. To let the place grow on was rejected: a rank whose
 * peers are not traced would make the engine grow for ever.
 */
#include "daemon/engine/judge/judge.h"
#include "daemon/engine/model/budget.h"

#include <inttypes.h>

#define LOG_REST  4096u /* entries of a log that is not made shorter: 350 KiB */
#define LOG_SLACK 3u    /* a job that comes apart now and then is not to make its log anew each time */

static void tell_window(struct roll_engine *e, const struct comm *c)
{
    struct roll_verdict *v = say(e, ROLL_VERDICT_DATA_INCOMPLETE, ROLL_NOTE);
    if (!v) {
        return;
    }
    struct words w = {.used = 0};
    say_comm(v, c, c->high);
    words_add(&w, "More than %u calls on ", e->config.window);
    words_comm(&w, c);
    words_add(&w, " are incomplete, so it is judged no more. ");
    if (c->seen < c->size) {
        words_add(&w, "Of its members %u have never been seen: not started, or not preloaded.", c->size - c->seen);
    } else {
        words_add(&w, "Some member is that far behind, or its records are missing.");
    }
    say_text(e, v, "%s", w.text);
}

void comm_give_up(struct roll_engine *e, struct comm *c)
{
    align_drop(e, c);
    for (uint32_t seq = c->base; seq < c->high; seq++) {
        slot_release(e, comm_slot(c, seq));
    }
    c->base = c->high;
    comm_stir(c);
    if (!c->overflow && !c->muted && !c->aborted) {
        tell_window(e, c);
    }
    c->overflow = true;
}

/*
 * An abort is an event of one member: calls that it had not made stay undone for its peers. When the last member that
 * could still call has left, the job has taken the communicator down, and nothing more is judged there; a disagreement
 * that is being judged is decided by what is known.
 */
void comm_ended(struct roll_engine *e, struct member *m, enum roll_op op)
{
    struct comm *c = m->comm;
    if (m->ended == 0) {
        m->ended_calm = m->comm->ended_calm = e->calm;
        e->aborts++;
    }
    m->ended = (uint8_t)op;
    for (uint32_t r = 0; r < c->size; r++) {
        const struct member *o = &c->member[r];
        if (o->source == NO_SOURCE && !c->open) {
            return; /* the first record of this member may come late */
        }
        if (o->source != NO_SOURCE && o->ended == 0 && !o->gone && source_alive(e->source[o->source])) {
            return;
        }
    }
    if (c->held != NO_SEQ) {
        bool finishing = e->finishing;
        e->finishing = true;
        align_step(e, c);
        e->finishing = finishing;
    }
    c->aborted = true;
    comm_give_up(e, c);
    comm_is_over(e, c);
}

/* The log has reached its bound: the pending calls of the source are given up, and their communicators are judged no
 * more. */
static void log_overflow(struct roll_engine *e, struct source *s)
{
    for (uint32_t i = 0; i < s->queues; i++) {
        s->queue[i].head = s->queue[i].tail = 0;
        s->queue[i].marked = false;
    }
    for (uint32_t i = 0; i < s->members; i++) {
        if (s->member[i] && comm_behind(s->member[i])) {
            comm_give_up(e, s->member[i]->comm);
        }
    }
}

/* Bytes of the log when it is doubled beyond what it has. */
static uint64_t log_bytes(const struct source *s)
{
    return (s->log_mask + 1) * (sizeof(struct entry) + sizeof(struct brief));
}

/*
 * A log that has filled up several times, and of which little was needed each time, becomes shorter. It had become long
 * when records were lost or came late, and at its longest it takes 22 MiB: a root that runs for months would keep that
 * of each rank that was ever apart from its peers. A log of LOG_REST entries stays, which detectors look through.
 */
static void let_log_shrink(struct roll_engine *e, struct source *s, uint64_t ticket)
{
    uint64_t room = s->log_mask + 1, bytes = log_bytes(s) / 2;
    s->slack = room > LOG_REST && ticket - s->safe < room / 16 ? s->slack + 1 : 0;
    if (s->slack >= LOG_SLACK && source_log_shrink(s) == 0) {
        s->slack = 0;
        budget_give_back(e, s, bytes);
    }
}

int room_in_log(struct roll_engine *e, struct source *s, uint64_t ticket)
{
    int rc = s->log ? 0 : source_log_open(s, ticket);
    if (rc != 0) {
        return rc;
    }
    if (source_log_spans(s, ticket)) {
        return source_log_place(s, ticket);
    }
    s->safe = source_log_needed(s, ticket);
    if (!source_log_spans(s, ticket)) {
        source_stir(e, s->number);
        sweep_stirred(e);
        s->safe = source_log_needed(s, ticket);
    }
    if (source_log_spans(s, ticket)) {
        let_log_shrink(e, s, ticket);
    }
    while (rc == 0 && !source_log_spans(s, ticket)) {
        if (s->log_mask + 1 >= (uint64_t)e->config.window * 4) {
            log_overflow(e, s);
            s->safe = ticket;
        } else {
            budget_charge(e, s, log_bytes(s)); /* the log has a bound of its own, and is full of what was sent */
            rc = source_log_grow(s);
        }
    }
    return rc ? rc : source_log_place(s, ticket);
}

/* The log would have to hold everything from its oldest call that is needed to this ticket, and there is no room. */
static bool is_gap_too_wide(struct roll_engine *e, struct source *s, uint64_t upto)
{
    uint64_t room = s->log_mask + 1, most = (uint64_t)e->config.window * 4;
    s->safe = source_log_needed(s, upto);
    while (room < most && upto >= room && upto - (room - 1) > s->safe) {
        room *= 2;
    }
    uint64_t bytes = (room - s->log_mask - 1) * (sizeof(struct entry) + sizeof(struct brief));
    return bytes > 0 && !budget_has(e, s, bytes);
}

void room_for_gap(struct roll_engine *e, struct source *s, uint64_t upto)
{
    if (s->log && (upto - s->next >= (uint64_t)e->config.window * 4 || is_gap_too_wide(e, s, upto))) {
        /* No log is so long, or may be. A rank that has made so many calls since has finished those before them. */
        struct roll_record back = {.seal = roll_seal(s->next, ROLL_STATE_RETURNED), .op = ROLL_OP_DEVICE_SYNC};
        sweep_waited(e, s, &back);
        s->safe = s->kept = upto;
    } else if (s->log &&
               room_in_log(e, s, upto) != 0) { /* there is no memory, and what is behind the gap is not held any more */
        log_overflow(e, s);
        s->safe = upto;
    }
}

/* There is no room for what a source asks for. LIMIT. */
static int refuse(struct roll_engine *e, struct source *s)
{
    budget_refuse(e, s);
    return ROLL_E_LIMIT;
}

int room_for_collective(struct roll_engine *e, struct member *m, uint32_t seq)
{
    struct comm *c = m->comm;
    struct source *s = e->source[m->source];
    while (seq - c->base > c->slot_mask) {
        if (c->slot_mask + 1 < e->config.window && seq - c->base < e->config.window) {
            uint64_t bytes = (c->slot_mask + 1) * sizeof(*c->slot);
            if (!budget_take(e, s, bytes)) {
                return refuse(e, s);
            }
            int rc = comm_grow(c);
            if (rc != 0) {
                budget_give_back(e, s, bytes);
                return rc;
            }
            m->windows += (uint32_t)bytes;
            continue;
        }
        sweep(e);
        if (seq - c->base > c->slot_mask) {
            comm_give_up(e, c);
            c->base = c->high = seq;
        }
    }
    if (seq >= c->high) {
        comm_open_slots(c, seq + 1);
    }
    return 0;
}

int room_for_message(struct roll_engine *e, const struct member *m, struct pair *p, uint32_t index)
{
    struct source *s = e->source[m->source];
    while (!pair_fits(p, index)) {
        if (p->mask + 1 < e->config.window) {
            if (!budget_take(e, s, (p->mask + 1) * sizeof(*p->node))) {
                p->unsure = true;
                comm_stir(p->comm);
                return refuse(e, s);
            }
            int rc = pair_grow(p, index);
            if (rc != 0) {
                return rc;
            }
            continue;
        }
        sweep(e);
        if (!pair_fits(p, index)) {
            comm_give_up(e, p->comm);
            p->unsure = true;
            comm_stir(p->comm);
            return 0;
        }
    }
    return 0;
}

/* The first source that was set aside. */
static const struct source *first_without(const struct roll_engine *e)
{
    uint32_t i = 0;
    while (i < e->sources && !e->source[i]->no_room) {
        i++;
    }
    return i < e->sources ? e->source[i] : NULL;
}

void room_tell(struct roll_engine *e)
{
    const struct source *s = e->no_rooms > 0 && !e->room_told ? first_without(e) : NULL;
    if (!s) {
        return;
    }
    e->room_told = true;
    struct roll_verdict *v = say(e, ROLL_VERDICT_DATA_INCOMPLETE, ROLL_NOTE);
    if (!v) {
        return;
    }
    struct roll_rankset rank = {0};
    (void)roll_rankset_add(&rank, s->world);
    say_side(v, s, s->number, &rank, NULL);
    roll_rankset_fini(&rank);
    v->event_ns = s->last_ns;
    say_text(
        e, v,
        "Rank %u asks for more room than there is: of all that a run's ranks define beyond what they send, %" PRIu64
        " MiB are kept here, and %" PRIu64 " MiB for one rank. What does not fit is refused and counted (no_room), "
        "and the rank is set aside: nobody is named for waiting for it, and what is found from here on is not "
        "proven. Further ranks of which that is so are counted, and not told.",
        s->world, e->config.memory >> 20, budget_most(e) >> 20);
}
