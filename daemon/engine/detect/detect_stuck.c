/*
 * detect_stuck.c: everyone has arrived and nothing completes: the device, the network, or a kernel that does not end.
 *
 * The matcher takes such a call for complete: all members have made it, and nothing before it on their streams is
 * missing. Only the hosts show that the call does not end: they do not return from a wait behind it. A wait of a host
 * proves no more than that the host waits. Device work is not recorded, so a long kernel before or behind the call
 * looks the same. Hence three rules:
 *
 *   - All members must stand in the call: inside a wait that covers the call and that no incomplete call explains, or
 *     inside the call itself. A member without a wait counts only when nothing at all has come from it for as long.
 *   - Some members may have left the call: their host has returned from a wait behind it, or the device has said so.
 *     Then the others must be ranks that learn completion, and nobody may leave the operation before all have arrived.
 *     In this case no kernel before or behind the call can be the reason.
 *   - The patience is long and grows with the job's own waits: stuck_patience.
 *
 * The verdict is suspected, never proven, and says which calls it may be about. A shorter patience (suspect_ns) was
 * rejected: in healthy jobs, hosts that run a whole step ahead of their device and wait at its end wait longer than
 * that, and so do all hosts in the first step with its set-up.
 *
 * On the path of records the detector only notes a few numbers for each wait of a host that has returned.
 */
#include "daemon/engine/detect/stuck.h"

#include <stdlib.h>
#include <string.h>

/*
 * The host of s has returned in good order from a wait that a verdict was said about. When the last host of that
 * verdict has returned, the call was slow, and the verdict is withdrawn. Where a member has aborted the communicator,
 * the verdict stays: an abort releases the hosts as well.
 */
static void came_back(struct roll_engine *e, const struct source *s, struct stuck_source *w)
{
    struct stuck_engine *own = stuck_of_engine(e);
    uint64_t number = w->verdict;
    w->verdict = 0;
    /* The source that was found waiting last time still waits, as a rule. */
    for (uint32_t i = 0; i < e->sources; i++) {
        uint32_t at = (own->waiter + i) % e->sources;
        const struct stuck_source *other = stuck_of_source(e->source[at]);
        if (other && other->verdict == number) {
            own->waiter = at;
            return;
        }
    }
    for (uint32_t i = 0; e->aborts > 0 && i < s->members; i++) {
        for (uint32_t r = 0; s->member[i] && r < s->member[i]->comm->size; r++) {
            if (s->member[i]->comm->member[r].ended != 0) {
                return;
            }
        }
    }
    stuck_case_close(e, number);
    (void)say_withdraw(e, number, "all ranks have come back from their waits: it was slow, not stuck");
}

void stuck_returned(struct roll_engine *e, struct source *s, const struct roll_record *rec, uint64_t since)
{
    struct stuck_source *w = stuck_measure(e, s, rec, since);
    if (w && w->verdict != 0 && roll_seal_ticket(rec->seal) + 1 == w->told && rec->result == 0) {
        came_back(e, s, w);
    }
}

/* The number of calls of s between this one and its wait that the wait covers as well. */
static uint32_t calls_behind(struct stuck *k, const struct source *s, const struct thread *t, uint64_t ticket)
{
    const struct entry *in = source_entry(s, t->inside - 1);
    uint32_t n = 0;
    for (uint64_t at = ticket + 1; in && at < t->inside - 1 && spend(&k->work); at++) {
        const struct entry *entry = source_entry(s, at);
        n += entry && stuck_is_call(&entry->rec) && stuck_covers(k, s, &in->rec, t->inside - 1, &entry->rec, at);
    }
    return n;
}

/* There is memory to mark every source whose host is inside a call. */
static bool can_be_marked(struct roll_engine *e)
{
    bool can = true;
    for (uint32_t i = 0; i < e->sources && can; i++) {
        can = !stuck_is_inside(e->source[i]) || stuck_make_source(e->source[i]);
    }
    return can;
}

/* Marks all waits of this moment as told, so that the verdict is said once: as far as is known, they all wait for this
 * call. */
static void mark_told(struct stuck *k, uint64_t number)
{
    for (uint32_t i = 0; i < k->e->sources; i++) {
        struct source *s = k->e->source[i];
        for (uint32_t t = 0; t < s->threads; t++) {
            struct stuck_source *w = s->thread[t].inside != 0 ? stuck_make_source(s) : NULL;
            if (w && s->thread[t].inside > w->told) {
                w->told = s->thread[t].inside;
                w->verdict = roll_rankset_has(&k->in, s->world) ? number : 0;
            }
        }
    }
}

static bool may_be_stuck(const struct roll_engine *e, const struct source *s, const struct thread *t)
{
    const struct stuck_source *w = stuck_of_source(s);
    return t->inside != 0 && !(w && t->inside <= w->told) && e->unheard == 0 && rank_has_room(e, s) && !s->unheard &&
           e->calm - t->calm >= e->config.suspect_ns;
}

/* creations: all members are inside, and none returns */

static bool all_inside(struct stuck *k, const struct source *s)
{
    struct roll_engine *e = k->e;
    for (uint32_t r = 0; r < k->comm->size; r++) {
        const struct member *o = &k->comm->member[r];
        const struct source *os = o->source == NO_SOURCE ? NULL : e->source[o->source];
        const struct entry *own = os && os->init ? source_entry(os, os->init - 1) : NULL;
        if (!own || source_member(os, own->rec.comm) != o || os->proc != ROLL_PROC_RUNNING || os->unheard ||
            e->calm - os->init_calm < STUCK_CREATION * e->config.suspect_ns) {
            return false;
        }
        (void)roll_rankset_add(&k->in, os->world);
        k->since = os->init_since > k->since ? os->init_since : k->since;
    }
    k->first = s;
    k->first_since = s->init_since;
    return true;
}

static void look_at_creation(struct stuck *run, struct source *s)
{
    struct roll_engine *e = run->e;
    const struct entry *entry = s->init ? source_entry(s, s->init - 1) : NULL;
    const struct member *m = entry ? source_member(s, entry->rec.comm) : NULL;
    if (!m || entry->rec.op != ROLL_OP_COMM_INIT || e->calm - s->init_calm < STUCK_CREATION * e->config.suspect_ns ||
        m->comm->open || m->comm->size < 2) {
        return;
    }
    struct stuck_comm *own = stuck_make_comm(m->comm);
    if (!own || own->looked_ns == e->clock + 1) {
        return;
    }
    own->looked_ns = e->clock + 1; /* one member is looked at for all */
    uint64_t key = say_key(ROLL_VERDICT_COLLECTIVE_STUCK, m->comm->key, ROLL_OP_COMM_INIT, 0);
    struct stuck k = {.e = e, .comm = m->comm, .rec = entry->rec, .work = run->work};
    if (!say_is_said(e, key) && all_inside(&k, s) && !stuck_is_troubled(&k) && say_once(e, key)) {
        stuck_say_creation(&k);
    }
    run->work = k.work;
    stuck_fini(&k);
}

/* Some host has waited for long. Otherwise nothing else is looked at. */
static bool anyone_is_patient(const struct roll_engine *e)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct source *s = e->source[i];
        if (s->init != 0) {
            return true;
        }
        for (uint32_t t = 0; t < s->threads; t++) {
            if (may_be_stuck(e, s, &s->thread[t])) {
                return true;
            }
        }
    }
    return false;
}

/* Says the verdict about the call in which this host stands, if all members stand in it, the patience of each has run
 * out, and no other trouble may be the reason. */
static void look_at_wait(struct stuck *k, struct source *s, const struct thread *t)
{
    struct roll_engine *e = k->e;
    uint64_t ticket;
    if (!may_be_stuck(e, s, t)) {
        return;
    }
    if (e->dirty) {
        sweep(e);
    }
    k->stands = false;
    bool found = stuck_find(k, s, t, &ticket) || (!k->stands && stuck_find_last(k, s, t, &ticket));
    if (found && k->ripe && !stuck_is_troubled(k) && can_be_marked(e)) {
        mark_told(k, stuck_say(k, calls_behind(k, s, t, ticket)));
        stuck_of_engine(e)->said++;
    }
    k->lax = false;
    stuck_lone_note(k, s, t, found || k->stands || k->unsure);
}

static void stuck_tick(struct roll_engine *e)
{
    struct stuck_engine *own = stuck_of_engine(e);
    stuck_case_tick(e);
    stuck_lone_returned(e);
    if (e->finishing || e->clock - own->run_ns < e->config.stall_ns / 2) {
        return;
    }
    own->run_ns = e->clock;
    if (!anyone_is_patient(e)) {
        return;
    }
    struct stuck k = {.e = e, .work = stuck_work(e)};
    uint32_t from = own->next % e->sources, n = 0;
    while (n < e->sources && k.work > 0) { /* where the bound is met, the next run goes on from here */
        struct source *s = e->source[(from + n++) % e->sources];
        if (s->init != 0) {
            look_at_creation(&k, s);
        }
        for (uint32_t t = 0; t < s->threads; t++) {
            look_at_wait(&k, s, &s->thread[t]);
        }
    }
    own->next = n < e->sources ? from + n : 0;
    stuck_lone_tell(&k);
    own->work = k.work;
    stuck_fini(&k);
}

/* Others wait for a rank that itself stands in a call with all members. True: this detector speaks of that call when
 * the patience has run out, and nobody calls the rank blocked or busy. */
static bool stuck_block(struct roll_engine *e, const struct block *b)
{
    /* Of a snapshot's host nothing is known, so it stands nowhere. */
    return (b->kind == BLOCK_STUCK || b->kind == BLOCK_BUSY) && !b->rank->snapshot && stuck_stands(e, b->rank);
}

static void stuck_end(struct roll_engine *e)
{
    stuck_case_close(e, 0);
}

const struct detector detect_stuck = {
    .name = "stuck", ENGINE_STATE(stuck), .block = stuck_block, .tick = stuck_tick, .fini = stuck_end};
