/*
 * detect_race.c: two host threads of one rank use one communicator at the same time.
 *
 * A unit is what must not be interrupted: a call outside a group, or everything that a group does on the communicator, from the first call to the
 * return of its end. Two units of different threads that overlap in time are proven to race: the times are the rank's own, from one clock, taken
 * inside the wrappers, so a lock around each unit always shows as a gap; a few microseconds of overlap are not believed. A unit that has not
 * ended counts only while its thread is known to be inside it, and only when its end has had a stall's time to be
 * reported. Destroy, abort and revoke are left out: they are made to come from other threads.
 *
 * Looked at only in ranks where a second thread has made calls. Judging by thread ids alone was rejected: forward and backward run in
 * different threads of every PyTorch job, one after the other.
 */
#include "daemon/engine/detector.h"

#include <stdlib.h>

#define MARGIN_NS 5000u /* below this an overlap may come from the clock */

struct race_unit {
    struct roll_record rec; /* its first call */
    uint64_t end;           /* 0 = not ended */
    uint64_t since;         /* patience clock */
    bool used;
};

/* The last unit, and the last one before it that another thread made. */
struct race {
    struct race_unit last, other;
    bool told;
};

static uint64_t end_of(const struct roll_record *rec)
{
    return roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED ? rec->enter_ns + rec->call_ns : 0;
}

static bool still_inside(const struct source *s, const struct race_unit *u)
{
    for (uint32_t i = 0; i < s->threads; i++) {
        const struct thread *t = &s->thread[i];
        const struct entry *in = t->id == u->rec.thread && t->inside ? source_entry(s, t->inside - 1) : NULL;
        if (in) {
            return u->rec.group == 0 ? in->rec.seal >> 8 == u->rec.seal >> 8
                                     : in->rec.op == ROLL_OP_GROUP_END && in->rec.group == u->rec.group;
        }
    }
    return false;
}

/* The end of a unit, UINT64_MAX when it goes on; 0 when nothing can be said yet. */
static uint64_t known_end(const struct roll_engine *e, const struct source *s, const struct race_unit *u)
{
    bool settled = e->clock - u->since > e->config.stall_ns;
    return u->end != 0 ? u->end : settled && still_inside(s, u) ? UINT64_MAX : 0;
}

static void tell(struct roll_engine *e, struct member *m, const struct race_unit *first, const struct race_unit *second,
                 uint64_t overlap)
{
    const struct source *s = e->source[m->source];
    if (!say_once(e, say_key(ROLL_VERDICT_THREAD_RACE, m->comm->key, s->world, 0))) {
        return;
    }
    struct roll_verdict *v = say(e, ROLL_VERDICT_THREAD_RACE, ROLL_PROVEN);
    if (!v) {
        return;
    }
    struct words w = {.used = 0};
    struct roll_rankset rank = {0};
    (void)roll_rankset_add(&rank, s->world);
    say_comm(v, m->comm, first->rec.seq);
    v->field = "thread";
    say_side(v, s, m->source, &rank, &first->rec);
    say_side(v, s, m->source, &rank, &second->rec);
    words_ranks(&w, &rank);
    words_add(&w, " used ");
    words_comm(&w, m->comm);
    words_add(&w, " from two host threads at once: thread %u was inside ", first->rec.thread);
    words_call(&w, &first->rec);
    words_add(&w, "%s when thread %u entered ", first->rec.group ? " and its group" : "", second->rec.thread);
    words_call(&w, &second->rec);
    if (overlap != UINT64_MAX) {
        words_add(&w, "; both were under way for %.1f us", (double)overlap / 1e3);
    }
    words_add(
        &w,
        ". NCCL does not allow that: which call takes its place first is left to chance, and may be another on other "
        "ranks. Whether it is the cause of what follows, the records do not say.");
    (void)roll_rankset_copy(&v->culprits, &rank);
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&rank);
}

static void judge(struct roll_engine *e, struct member *m)
{
    struct race *r = m->race;
    const struct source *s = e->source[m->source];
    if (r->told || !r->other.used || !r->last.used) {
        return;
    }
    uint64_t end_a = known_end(e, s, &r->other), end_b = known_end(e, s, &r->last);
    if (end_a == 0 || end_b == 0) {
        return;
    }
    bool in_order = r->other.rec.enter_ns <= r->last.rec.enter_ns;
    const struct race_unit *first = in_order ? &r->other : &r->last, *second = in_order ? &r->last : &r->other;
    uint64_t end = end_a < end_b ? end_a : end_b;
    if (end == UINT64_MAX || end > second->rec.enter_ns + MARGIN_NS) {
        r->told = true;
        tell(e, m, first, second, end == UINT64_MAX ? UINT64_MAX : end - second->rec.enter_ns);
    }
}

#define LOOK_BACK 256u /* records among which the first thread's last unit is looked for */

/*
 * The first call of a second thread: the first one was not watched until now. Its newest unit here is found in the log: the last call, or
 * the first one of the last group, with the return of that group's end where it has come.
 */
static struct race *race_new(const struct roll_engine *e, const struct member *m, const struct roll_record *rec)
{
    const struct source *s = e->source[m->source];
    struct race *r = calloc(1, sizeof(*r));
    uint64_t ticket = roll_seal_ticket(rec->seal), low = ticket > LOOK_BACK ? ticket - LOOK_BACK : 0, end = 0;
    uint32_t ended = 0; /* the group that `end` is about */
    while (r && ticket-- > low) {
        const struct entry *entry = source_entry(s, ticket);
        const struct roll_record *seen = entry ? &entry->rec : NULL;
        if (!seen || seen->thread == rec->thread) {
            continue;
        }
        enum roll_op_class class = roll_op_class(seen->op);
        bool here = (class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P) && source_member(s, seen->comm) == m;
        if (class == ROLL_CLASS_GROUP && !r->last.used) {
            ended = seen->group;
            end = end_of(seen);
        } else if (r->last.used && (seen->thread != r->last.rec.thread || seen->group != r->last.rec.group)) {
            break;
        } else if (here) {
            uint64_t own = seen->group == 0 ? end_of(seen) : seen->group == ended ? end : 0;
            r->last = (struct race_unit){.rec = *seen, .end = own, .since = e->clock, .used = true};
        }
        if (r->last.used && r->last.rec.group == 0) {
            break;
        }
    }
    return r;
}

void race_call(struct roll_engine *e, struct member *m, const struct roll_record *rec)
{
    if ((rec->flags & ROLL_FLAG_PLUGIN) != 0) {
        return; /* told by a thread of NCCL's own, perhaps */
    }
    if (!m->race && !(m->race = race_new(e, m, rec))) {
        return;
    }
    struct race *r = m->race;
    bool same = r->last.used && r->last.rec.thread == rec->thread;
    if (same && rec->group != 0 && r->last.rec.group == rec->group) {
        return;
    }
    if (r->last.used && !same) {
        r->other = r->last;
    }
    r->last =
        (struct race_unit){.rec = *rec, .end = rec->group == 0 ? end_of(rec) : 0, .since = e->clock, .used = true};
    judge(e, m);
}

static void unit_ended(struct race_unit *u, const struct roll_record *rec)
{
    bool call = u->rec.group == 0 && u->rec.seal >> 8 == rec->seal >> 8;
    bool group = rec->op == ROLL_OP_GROUP_END && u->rec.group == rec->group && u->rec.thread == rec->thread;
    if (u->used && u->end == 0 && (call || group)) {
        u->end = end_of(rec);
    }
}

void race_returned(struct roll_engine *e, struct source *s, const struct roll_record *rec)
{
    bool group = rec->op == ROLL_OP_GROUP_END;
    for (uint32_t i = 0; i < s->members; i++) {
        struct member *m = s->member[i];
        if (m && m->race && (group || i == rec->comm)) {
            unit_ended(&m->race->last, rec);
            unit_ended(&m->race->other, rec);
            judge(e, m);
        }
    }
}

/* What was under way when records were lost may have ended unseen. */
void race_forget(struct source *s)
{
    for (uint32_t i = 0; i < s->members; i++) {
        if (s->member[i] && s->member[i]->race) {
            s->member[i]->race->last.used = s->member[i]->race->other.used = false;
        }
    }
}

static void race_tick(struct roll_engine *e)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct source *s = e->source[i];
        for (uint32_t k = 0; s->threads > 1 && k < s->members; k++) {
            if (s->member[k] && s->member[k]->race) {
                judge(e, s->member[k]);
            }
        }
    }
}

const struct detector detect_race = {.name = "race", .tick = race_tick};
