/*
 * detect_zero.c: zero elements on some ranks: NCCL drops their call without a word, and the others wait for it.
 *
 * Source: NCCL's enqueue discards empty collectives locally. Proven in two ways: the rank's next call disagrees with its peers'
 * while the dropped one would have agreed; or peers wait for this rank at the very place of its dropped call (or at a later one,
 * when all calls look alike: then the rank is behind by as many calls as were dropped). All ranks empty, or an extra empty
 * call whose successor agrees, is healthy and stays silent.
 */
#include "daemon/engine/detector.h"

/* f: NULL where somebody waits. */
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

static bool zero_block(struct roll_engine *e, const struct block *b)
{
    if (!b->waiter || !b->comm || b->kind == BLOCK_BLAMED) {
        return false;
    }
    /* Somebody waits for the rank in a collective: is the rank behind because its calls were dropped? */
    const struct entry *waits = source_entry(b->waiter, b->ticket);
    struct comm *c = b->comm;
    if (!waits || roll_op_class(waits->rec.op) != ROLL_CLASS_COLL) {
        return false;
    }
    struct member *waiter = source_member(b->waiter, waits->rec.comm);
    if (!waiter || waiter->comm != c) {
        return false;
    }
    struct roll_rankset minors = {0};
    const struct member *minor = NULL;
    uint64_t ticket = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        struct member *m = &c->member[r];
        if (m->source == NO_SOURCE || comm_member_issued(m, waits->rec.seq) || m->zeros <= waiter->zeros) {
            continue;
        }
        uint32_t at = (m->zeros - 1) % ZEROS_MAX;
        bool done = b->kind == BLOCK_FINISHED || b->kind == BLOCK_GONE || (b->kind == BLOCK_CYCLE && b->hard);
        if (!done && (m->zero[at].seq != m->next || b->kind == BLOCK_DEAD || b->kind == BLOCK_STOPPED)) {
            continue; /* it has gone on since, and may only be late */
        }
        const struct entry *dropped = source_entry(e->source[m->source], m->zero[at].ticket);
        if (dropped && dropped->rec.op == waits->rec.op) {
            minor = m;
            ticket = m->zero[at].ticket;
            (void)roll_rankset_add(&minors, e->source[m->source]->world);
        }
    }
    if (minor) {
        struct roll_rankset majors = {0};
        for (uint32_t r = 0; r < c->size; r++) {
            uint32_t world = comm_world(e, c, r);
            if (world != NO_SOURCE && comm_member_issued(&c->member[r], waits->rec.seq)) {
                (void)roll_rankset_add(&majors, world);
            }
        }
        speak(e, c, waits->rec.seq, e->source[minor->source], ticket, &minors, b->waiter, &waits->rec, &majors, NULL);
        roll_rankset_fini(&majors);
    }
    roll_rankset_fini(&minors);
    return minor != NULL;
}

const struct detector detect_zero = {.name = "zero", .disagree = zero_disagree, .block = zero_block};
