/*
 * detect_race.c: two host threads of one rank use one communicator at the same time.
 *
 * A unit is what must not be interrupted: a call outside of groups, or everything that a group does on the
 * communicator, from its first call to the return of the group's end. Two units of different threads whose times
 * overlap are proven to race, because both times are from the rank's own clock and were taken inside the wrappers: a
 * lock around each unit always shows as a gap. An overlap of a few microseconds is not believed. A group need not have
 * ended, because its newest call says that it lasts at least until then. A unit whose end is not known is taken to go
 * on only when its end has had stall_ns to be reported, and only while its thread is known to be inside it. Destroy,
 * abort and revoke are left out: they are meant to come from other threads.
 *
 * The two newest units are kept for each thread, because threads make the calls of their groups in turn. With one
 * memory for all threads, a group that goes on after another thread's call looked like a new one, and groups that
 * interleave were never seen to overlap.
 *
 * The detector looks only at ranks in which a second thread has made calls. Judging by thread ids alone was rejected:
 * forward and backward run in different threads of every PyTorch job, one after the other.
 */
#include "daemon/engine/detect/detector.h"

#define MARGIN_NS 5000u /* a shorter overlap may come from the clock */
#define LANES     4u    /* threads remembered per communicator: the newest */
/* Units remembered per thread: the record of how a unit ended may come after the thread has begun the next one. */
#define LANE 2u

struct race_unit {
    struct roll_record rec; /* the first call of the unit */
    uint64_t until;         /* the thread was in the unit at least until then */
    uint64_t since;         /* patience clock at which the unit was first seen */
    bool used, ended;       /* `ended`: the unit ended at `until` */
};

/* The newest units of one thread on a communicator. */
struct lane {
    uint16_t thread;
    struct race_unit unit[LANE]; /* newest first */
};

/* The units of a rank's threads on a communicator, where there are several threads. */
struct race_member {
    struct lane lane[LANES];
    uint32_t lanes;
    bool told;
};
STATE_OF_MEMBER(race)

struct race_engine {
    struct due due;    /* ranks with a unit whose end may have had its time to be reported */
    uint64_t stall_ns; /* that time when `due` was found */
};
STATE_OF_ENGINE(race)

/* Until when a record says that its thread was in the call. */
static uint64_t reach(const struct roll_record *rec)
{
    return rec->enter_ns + (roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED ? rec->call_ns : 0);
}

static bool has_returned(const struct roll_record *rec)
{
    return roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
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

/* Until when the thread was in the unit, as far as is known; UINT64_MAX: the thread still is. */
static uint64_t known_end(const struct roll_engine *e, const struct source *s, const struct race_unit *u)
{
    bool settled = !u->ended && e->clock - u->since > e->config.stall_ns;
    return settled && still_inside(s, u) ? UINT64_MAX : u->until;
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
    words_add(&w, ". NCCL does not allow that: which call takes its place first is left to chance, and may be another "
                  "on other ranks. The records do not say whether this is the cause of what follows.");
    (void)roll_rankset_copy(&v->culprits, &rank);
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&rank);
}

/* True: the threads of two units were in them at the same time, which has been said. */
static bool judge_two(struct roll_engine *e, struct member *m, const struct race_unit *a, const struct race_unit *b)
{
    const struct source *s = e->source[m->source];
    if (!a->used || !b->used) {
        return false;
    }
    const struct race_unit *first = a->rec.enter_ns <= b->rec.enter_ns ? a : b, *second = first == a ? b : a;
    uint64_t end_first = known_end(e, s, first), end_second = known_end(e, s, second);
    uint64_t end = end_first < end_second ? end_first : end_second;
    if (end == UINT64_MAX || end > second->rec.enter_ns + MARGIN_NS) {
        race_of_member(m)->told = true;
        tell(e, m, first, second, end == UINT64_MAX ? UINT64_MAX : end - second->rec.enter_ns);
    }
    return race_of_member(m)->told;
}

/* Compares the units of one thread with those of all other threads. */
static void judge(struct roll_engine *e, struct member *m, const struct lane *lane)
{
    struct race_member *r = race_of_member(m);
    for (uint32_t i = 0; i < r->lanes; i++) {
        for (uint32_t k = 0; &r->lane[i] != lane && k < LANE * LANE; k++) {
            if (r->told || judge_two(e, m, &lane->unit[k / LANE], &r->lane[i].unit[k % LANE])) {
                return;
            }
        }
    }
}

#define LOOK_BACK 256u /* records in which the last unit of the first thread is looked for */

/*
 * Begins to follow a member whose second thread makes its first call. The first thread was not followed until now, so
 * its newest unit here is read from the log: the last call, or the calls of the last group, with the return of the
 * group's end where it has come.
 */
static struct race_member *race_new(const struct roll_engine *e, struct member *m, const struct roll_record *rec)
{
    const struct source *s = e->source[m->source];
    struct race_member *r = race_make_member(m);
    uint64_t ticket = roll_seal_ticket(rec->seal), low = ticket > LOOK_BACK ? ticket - LOOK_BACK : 0;
    struct race_unit *u = r ? &r->lane[0].unit[0] : NULL;
    struct roll_record end = {.group = 0}; /* the newest group end that was seen */
    while (r && ticket-- > low && !(u->used && u->rec.group == 0)) {
        const struct entry *entry = source_entry(s, ticket);
        const struct roll_record *seen = entry ? &entry->rec : NULL;
        if (!seen || seen->thread == rec->thread || (u->used && seen->thread != u->rec.thread)) {
            continue;
        }
        enum roll_op_class class = roll_op_class(seen->op);
        bool here = (class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P) && source_member(s, seen->comm) == m;
        if (u->used && seen->group != u->rec.group) {
            break;
        }
        if (class == ROLL_CLASS_GROUP && !u->used) {
            end = *seen;
        } else if (here && u->used) {
            u->rec = *seen;
        } else if (here) {
            bool over = end.group != 0 && source_same_unit(&end, seen);
            *u = (struct race_unit){.rec = *seen, .since = e->clock, .used = true};
            u->until = reach(over ? &end : seen);
            u->ended = over ? has_returned(&end) : seen->group == 0 && has_returned(seen);
            r->lane[0].thread = seen->thread;
            r->lanes = 1;
        }
    }
    return r;
}

/* The units of a thread. A thread that is new here takes the place of the one that has been quiet longest when all
 * places are taken. */
static struct lane *lane_of(struct race_member *r, uint16_t thread)
{
    struct lane *oldest = &r->lane[0];
    for (uint32_t i = 0; i < r->lanes; i++) {
        if (r->lane[i].thread == thread) {
            return &r->lane[i];
        }
        oldest = r->lane[i].unit[0].since < oldest->unit[0].since ? &r->lane[i] : oldest;
    }
    struct lane *lane = r->lanes < LANES ? &r->lane[r->lanes++] : oldest;
    *lane = (struct lane){.thread = thread};
    return lane;
}

void race_call(struct roll_engine *e, struct member *m, const struct roll_record *rec)
{
    if ((rec->flags & ROLL_FLAG_PLUGIN) != 0) {
        return; /* the record may come from one of NCCL's own threads */
    }
    struct race_member *r = race_of_member(m) ? race_of_member(m) : race_new(e, m, rec);
    if (!r) {
        return;
    }
    struct lane *lane = lane_of(r, rec->thread);
    struct race_unit *u = &lane->unit[0];
    if (u->used && rec->group != 0 && u->rec.group == rec->group) {
        u->until = reach(rec) > u->until ? reach(rec) : u->until; /* the group goes on */
    } else {
        lane->unit[1] = *u;
        *u = (struct race_unit){.rec = *rec,
                                .until = reach(rec),
                                .since = e->clock,
                                .used = true,
                                .ended = rec->group == 0 && has_returned(rec)};
    }
    judge(e, m, lane);
}

/* Takes in a record of one of the unit's calls, or of the end of its group. True: the record belongs to the unit. */
static bool unit_heard(struct race_unit *u, const struct roll_record *rec)
{
    bool call = u->rec.group == 0 && u->rec.seal >> 8 == rec->seal >> 8;
    bool group = u->rec.group != 0 && u->rec.group == rec->group;
    if (!u->used || u->ended || !(call || group)) {
        return false;
    }
    u->until = reach(rec) > u->until ? reach(rec) : u->until;
    u->ended = has_returned(rec) && (call || rec->op == ROLL_OP_GROUP_END);
    return true;
}

void race_returned(struct roll_engine *e, struct source *s, const struct roll_record *rec)
{
    bool group = rec->op == ROLL_OP_GROUP_END;
    for (uint32_t i = 0; i < s->members; i++) {
        struct race_member *r = s->member[i] && (group || i == rec->comm) ? race_of_member(s->member[i]) : NULL;
        for (uint32_t k = 0; r && k < r->lanes; k++) {
            struct lane *lane = &r->lane[k];
            if (lane->thread == rec->thread && (unit_heard(&lane->unit[0], rec) || unit_heard(&lane->unit[1], rec))) {
                judge(e, s->member[i], lane);
            }
        }
    }
}

/* The units that were open when records were lost may have ended unseen. */
static void race_lost(struct roll_engine *e, uint32_t source, uint64_t count)
{
    const struct source *s = e->source[source];
    struct member *m;
    (void)count;
    for (size_t i = 0; (m = source_touched(s, &i)) != NULL;) {
        struct race_member *r = race_of_member(m);
        if (r) {
            r->lanes = 0;
        }
    }
}

/* Judges the units of a rank. Returns when some unit that has not ended will have had its time. */
static uint64_t race_source(struct roll_engine *e, const struct source *s)
{
    uint64_t due = e->clock + e->config.stall_ns; /* units that begin from now on */
    for (uint32_t k = 0; s->threads > 1 && k < s->members; k++) {
        const struct race_member *r = s->member[k] ? race_of_member(s->member[k]) : NULL;
        for (uint32_t n = 0; r && !r->told && n < r->lanes; n++) {
            for (uint32_t i = 0; i < LANE; i++) {
                const struct race_unit *u = &r->lane[n].unit[i];
                bool first = u->used && !u->ended && u->since + e->config.stall_ns < due;
                due = first ? u->since + e->config.stall_ns : due;
            }
            judge(e, s->member[k], &r->lane[n]);
        }
    }
    return due;
}

/* Two units are compared when one of them changes. Time alone only shows that a unit which has not ended goes on. */
static void race_tick(struct roll_engine *e)
{
    struct race_engine *own = race_of_engine(e);
    if (own->stall_ns != e->config.stall_ns) {
        own->stall_ns = e->config.stall_ns;
        due_anew(&own->due);
    }
    if (due_room(&own->due, e->sources) != 0) {
        return; /* a race is told later or not at all, and the next tick tries again */
    }
    for (uint32_t i = due_next(&own->due, 0, e->sources, e->clock); i < e->sources;
         i = due_next(&own->due, i + 1, e->sources, e->clock)) {
        e->looks++;
        own->due.at[i] = race_source(e, e->source[i]);
    }
}

static void race_fini(struct roll_engine *e)
{
    due_fini(&race_of_engine(e)->due);
}

const struct detector detect_race = {
    .name = "race", ENGINE_STATE(race), .tick = race_tick, .lost = race_lost, .fini = race_fini};
