/*
 * detect_zero.c: some ranks make a collective of zero elements, which NCCL drops silently on those ranks, and the
 * others wait for it.
 *
 * Source: NCCL's enqueue discards empty collectives locally. Proven in two ways. Either the rank's next call disagrees
 * with its peers', while the dropped call would have agreed. Or peers wait for the rank at the very place of its
 * dropped call, also where that wait is part of a circle; when all calls look alike they may wait at a later place,
 * because the rank is behind by as many calls as were dropped. Two cases are healthy, and nothing is said: all ranks
 * make the empty call, or some make an additional empty call and their next calls agree.
 */
#include "daemon/engine/detect/detector.h"
#include "daemon/engine/detect/moe.h"

/* f: the disagreement; NULL: somebody waits. */
static void speak(struct roll_engine *e, struct comm *c, uint32_t seq, const struct source *minor,
                  uint64_t minor_ticket, const struct roll_rankset *minors, const struct source *major,
                  const struct roll_record *major_rec, const struct roll_rankset *majors, const struct finding *f)
{
    const struct entry *dropped = source_entry(minor, minor_ticket);
    comm_mute(e, c, seq);
    comm_explained(e, c);
    bool fresh = say_once(e, say_key(ROLL_VERDICT_ZERO_COUNT, c->key, c->era, 0));
    if (!fresh && (!f || f->earlier == 0)) {
        return;
    }
    struct roll_verdict *v = say(e, ROLL_VERDICT_ZERO_COUNT, ROLL_PROVEN);
    if (!v) {
        return;
    }
    say_comm(v, c, seq);
    v->field = "count";
    say_side(v, minor, source_index(e, minor), minors, dropped ? &dropped->rec : NULL);
    say_side(v, major, source_index(e, major), majors, major_rec);
    struct words w = {.used = 0};
    words_ranks(&w, minors);
    words_add(&w, " called %s with zero elements on ", roll_op_name(major_rec->op));
    words_comm(&w, c);
    words_add(&w, "; NCCL drops such a call on that rank alone. ");
    words_ranks(&w, majors);
    words_add(&w, " called ");
    words_call(&w, major_rec);
    words_add(&w, " as #%u and %s for it. Call it with the same count on every rank, or on none.", seq,
              roll_rankset_count(majors) == 1 ? "waits" : "wait");
    /* Where all calls look alike the others may wait in a later step than the one of the dropped call. */
    v->remedy = words_left_out_experts(&w, e, minors, dropped ? dropped->rec.step : major_rec->step);
    if (v->remedy != 0) {
        words_remedy(&w, e, v->remedy, ROLL_LAYER_NONE);
    }
    if (f) {
        finding_life(e, v, f, &w);
    } else {
        (void)roll_rankset_copy(&v->culprits, minors);
        (void)roll_rankset_copy(&v->waiting, majors);
    }
    say_text(e, v, "%s", w.text);
}

static bool zero_disagree(struct roll_engine *e, const struct finding *f)
{
    const struct entry *major = source_entry(f->major_source, f->major_ticket);
    if (f->kind != ALIGN_ZERO || !major) {
        return f->kind == ALIGN_ZERO;
    }
    speak(e, f->comm, f->seq, f->minor_source, f->minor_ticket, &f->minor, f->major_source, &major->rec, &f->major, f);
    return true;
}

/* The waiter has dropped the same call at the same place, which is healthy. */
static bool dropped_both(const struct member *waiter, uint64_t sig, uint32_t seq)
{
    for (uint32_t i = 0; i < ZEROS_MAX && i < waiter->zeros; i++) {
        uint32_t at = (waiter->zeros - 1 - i) % ZEROS_MAX;
        if (waiter->zero[at].sig == sig && waiter->zero[at].seq == seq) {
            return true;
        }
    }
    return false;
}

/*
 * Ticket + 1 of the dropped call because of which m is behind the call `waits`; 0: none. stuck: m will not come any
 * more. Without `stuck` only a call that m dropped at its last place counts, because m may have gone on since and only
 * be late. With `stuck`, m may have a collective at the place of `waits`: it is behind all the same when it dropped the
 * call of this place.
 */
static uint64_t dropped_of(const struct roll_engine *e, const struct member *m, const struct member *waiter,
                           const struct roll_record *waits, bool stuck)
{
    bool issued = comm_member_issued(m, waits->seq);
    /* Among lost records of the waiter may be an empty call, too. */
    bool more = waiter->gaps == 0 && m->zeros > waiter->zeros;
    for (uint32_t i = 0; i < ZEROS_MAX && i < m->zeros && more; i++) {
        uint32_t at = (m->zeros - 1 - i) % ZEROS_MAX;
        const struct entry *dropped = source_entry(e->source[m->source], m->zero[at].ticket);
        bool here = issued ? stuck && m->zero[at].seq == waits->seq : stuck || m->zero[at].seq == m->next;
        if (here && zero_stands_for(e->source[m->source], dropped, m->zero[at].sig, e->source[waiter->source], waits) &&
            !dropped_both(waiter, m->zero[at].sig, m->zero[at].seq)) {
            return m->zero[at].ticket + 1;
        }
    }
    return 0;
}

/* True: a rank lacks the collective in which `waits_in` waits because its own call was dropped; that has been said. */
static bool is_behind(struct roll_engine *e, const struct block *b, const struct source *waits_in, uint64_t at_ticket)
{
    const struct entry *waits = source_entry(waits_in, at_ticket);
    const struct member *waiter = waits ? source_member(waits_in, waits->rec.comm) : NULL;
    if (!waiter || roll_op_class(waits->rec.op) != ROLL_CLASS_COLL || b->kind == BLOCK_DEAD ||
        b->kind == BLOCK_STOPPED) {
        return false;
    }
    struct comm *c = waiter->comm;
    struct roll_rankset minors = {0}, majors = {0};
    const struct member *minor = NULL;
    uint64_t ticket = 0;
    bool stuck = b->kind == BLOCK_FINISHED || b->kind == BLOCK_GONE || b->kind == BLOCK_ABORTED ||
                 (b->kind == BLOCK_CYCLE && b->hard);
    for (uint32_t r = 0; r < c->size; r++) {
        const struct member *m = &c->member[r];
        uint32_t world = comm_world(e, c, r);
        uint64_t dropped = world == NO_SOURCE ? 0 : dropped_of(e, m, waiter, &waits->rec, stuck);
        if (dropped != 0) {
            minor = m;
            ticket = dropped - 1;
            (void)roll_rankset_add(&minors, world);
        } else if (world != NO_SOURCE && comm_member_issued(m, waits->rec.seq)) {
            (void)roll_rankset_add(&majors, world);
        }
    }
    if (minor) {
        speak(e, c, waits->rec.seq, e->source[minor->source], ticket, &minors, waits_in, &waits->rec, &majors, NULL);
    }
    roll_rankset_fini(&majors);
    roll_rankset_fini(&minors);
    return minor != NULL;
}

/* A circle has one wait for each of its calls: the wait for the dropped call is one of them. */
static bool zero_block(struct roll_engine *e, const struct block *b)
{
    bool found = false;
    if (b->kind == BLOCK_BLAMED) {
        return false;
    }
    for (uint32_t i = 0; b->kind == BLOCK_CYCLE && !found && i < b->steps; i++) {
        found = is_behind(e, b, b->step[i].rank, b->step[i].ticket);
    }
    const struct entry *waits = !found && b->waiter && b->comm ? source_entry(b->waiter, b->ticket) : NULL;
    const struct member *waiter = waits ? source_member(b->waiter, waits->rec.comm) : NULL;
    return found || (waiter && waiter->comm == b->comm && is_behind(e, b, b->waiter, b->ticket));
}

const struct detector detect_zero = {.name = "zero", .disagree = zero_disagree, .block = zero_block};
