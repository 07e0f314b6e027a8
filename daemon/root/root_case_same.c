/*
 * root_case_same.c: what is found now is what an earlier case has found.
 *
 * To compare kinds and ranks alone was rejected: the next wrong call of the same rank would never be told. So was to
 * compare whole verdicts: another engine sees one trouble from another of its ends, and each end would be told.
 */
#include "daemon/root/root_digest.h"

#include "daemon/base/clock.h"
#include "daemon/base/map.h"
#include "daemon/verdict/verdict.h"
#include "trace/op.h"

#define REST_NS  (5000 * ROLL_MS) /* what is no collective goes on, where it is hinted at so often */
#define NEXT_NS  (1000 * ROLL_MS) /* another process of the rank has made its last call so much later at least */
#define CLOCK_NS (10 * ROLL_MS)   /* one call has the same time in two engines, but for the clock pairs of its ring */
#define APART    (2 * ROLL_DIGEST_WINDOW) /* the same of a collective: the calls of a window between have agreed */

bool roll_case_is_of_collective(const struct roll_verdict *v)
{
    enum roll_family family = roll_verdict_family(v->code);
    return v->comm_key != 0 && (family == ROLL_FAMILY_SEQUENCE || family == ROLL_FAMILY_ALIGNMENT);
}

/* What is found now is what was found then, at the same place or going on from there. */
static bool is_same_thing(const struct roll_digested *d, const struct digested_finding *f, const struct roll_verdict *v)
{
    const struct roll_verdict *c = &f->copy->said;
    if (f->engine == d->number) { /* the engine that has said the one says the other: it knows of both */
        return false;
    }
    if (c->seq >= v->seq) {
        return true;
    }
    if (roll_case_is_of_collective(c)) {
        return v->seq <= (uint64_t)f->upto + APART;
    }
    return !f->awaits && (v->comm_key == 0 || roll_mono_ns() - f->seen_ns <= REST_NS);
}

/* Both tell of the end of one process: that is one thing, whatever communicator shows that others wait for it. Not so
 * of what may come again, a pause; nor of the rank's next process, whose last call is a later one. */
static bool is_same_end(const struct roll_verdict *c, const struct roll_verdict *v)
{
    bool end = v->code == ROLL_VERDICT_RANK_DEAD || v->code == ROLL_VERDICT_RANK_FINISHED;
    return end && c->code == v->code && c->certainty >= v->certainty && roll_rankset_count(&v->culprits) > 0 &&
           roll_rankset_equal(&c->culprits, &v->culprits) && v->event_ns <= c->event_ns + NEXT_NS;
}

static bool has_ended(const struct roll_digested *d, size_t at, uint64_t rings)
{
    return at < rings && d->ring[at].ended;
}

static bool is_stopped_since(const struct roll_digested *d, size_t at, uint64_t ns)
{
    return d->ring[at].stopped_ns != 0 && d->ring[at].stopped_ns <= ns;
}

/* So it is of the newest process of each of these ranks. Rings are gone through once, the newest first: a whole job may
 * end at once. Without memory it is not. */
static bool are_all(const struct roll_digested *d, const struct roll_rankset *ranks,
                    bool (*is)(const struct roll_digested *d, size_t at, uint64_t bound), uint64_t bound)
{
    size_t n = roll_rankset_count(ranks), found = 0;
    struct roll_map seen = {0};
    bool all = n > 0;
    for (size_t i = d->rings; i > 0 && all && found < n; i--) {
        int32_t rank = roll_digested_rank(&d->ring[i - 1]);
        bool newest = rank >= 0 && roll_rankset_has(ranks, (uint32_t)rank) &&
                      roll_map_get(&seen, (uint64_t)rank) == ROLL_MAP_NONE;
        if (newest) {
            found++;
            all = is(d, i - 1, bound) && roll_map_add(&seen, (uint64_t)rank, 0) == 0;
        }
    }
    roll_map_fini(&seen);
    return all && found == n;
}

bool roll_case_have_ended(const struct roll_digested *d, const struct roll_rankset *ranks, size_t rings)
{
    return are_all(d, ranks, has_ended, rings);
}

/* Both tell of processes that are stopped, and have been since that was told: one stop, whoever waits for them. */
static bool is_same_stop(const struct roll_digested *d, const struct digested_finding *f, const struct roll_verdict *v)
{
    const struct roll_verdict *c = &f->copy->said;
    return v->code == ROLL_VERDICT_RANK_STOPPED && c->code == v->code && c->certainty >= v->certainty &&
           roll_rankset_equal(&c->culprits, &v->culprits) && are_all(d, &v->culprits, is_stopped_since, f->seen_ns);
}

/* Whom others miss: who is named, or, of a message that has no partner and of which nobody is named, the rank that has
 * not made its call. */
const struct roll_rankset *roll_case_missed(const struct roll_verdict *v)
{
    bool unnamed = v->code == ROLL_VERDICT_P2P_UNMATCHED && roll_rankset_count(&v->culprits) == 0;
    for (uint32_t i = 0; unnamed && i < v->sides; i++) {
        if (v->side[i].rec.op == 0) {
            return &v->side[i].ranks;
        }
    }
    return &v->culprits;
}

/* Both tell that others wait for what these processes have not done and will never do. One end is told once, however
 * many calls miss the process, as one engine tells it; another engine may see another of these calls first. Who is not
 * named then is named later, as one engine does (roll_case_said_worse). */
static bool is_same_lack(const struct roll_digested *d, const struct digested_finding *f, const struct roll_verdict *v)
{
    const struct roll_verdict *c = &f->copy->said;
    bool lack = v->code == ROLL_VERDICT_RANK_FINISHED || v->code == ROLL_VERDICT_P2P_UNMATCHED;
    bool told = c->code == ROLL_VERDICT_RANK_FINISHED || c->code == ROLL_VERDICT_P2P_UNMATCHED ||
                c->code == ROLL_VERDICT_CALL_REFUSED; /* because of which it ended */
    return lack && told && c->certainty >= v->certainty &&
           roll_rankset_equal(roll_case_missed(c), roll_case_missed(v)) &&
           roll_case_have_ended(d, roll_case_missed(v), f->ended);
}

static bool names_more(const struct roll_verdict *v, const struct roll_verdict *c)
{
    return roll_rankset_count(&v->culprits) > 0 && roll_rankset_count(&c->culprits) == 0;
}

/* Both tell of one call that NCCL refused, and others wait for it at several places. */
static bool is_same_refusal(const struct roll_verdict *c, const struct roll_verdict *v)
{
    uint64_t apart = c->event_ns > v->event_ns ? c->event_ns - v->event_ns : v->event_ns - c->event_ns;
    return v->code == ROLL_VERDICT_CALL_REFUSED && c->code == v->code && c->certainty >= v->certainty &&
           roll_rankset_count(&v->culprits) > 0 && roll_rankset_equal(&c->culprits, &v->culprits) && apart <= CLOCK_NS;
}

/* These ranks are on a side of c; in_call: in the very call in which they are on this side. */
static bool has_side(const struct roll_verdict *c, const struct roll_verdict_side *side, bool in_call)
{
    bool found = false;
    for (uint32_t i = 0; i < c->sides && !found; i++) {
        const struct roll_record *a = &c->side[i].rec, *b = &side->rec;
        bool same = b->op != 0 && a->op == b->op && roll_seal_ticket(a->seal) == roll_seal_ticket(b->seal);
        found = roll_ranks_are_part(&side->ranks, &c->side[i].ranks) && (same || !in_call);
    }
    return found;
}

static bool is_circle(const struct roll_verdict *c)
{
    return c->code == ROLL_VERDICT_CIRCULAR_WAIT || c->code == ROLL_VERDICT_CROSSED_WAIT ||
           c->code == ROLL_VERDICT_P2P_DEADLOCK;
}

/* The circle passes through the very call of one side of v. *all: and through the ranks of all sides. */
static bool passes_through(const struct roll_verdict *circle, const struct roll_verdict *v, bool *all)
{
    bool any = false;
    *all = true;
    for (uint32_t i = 0; i < v->sides; i++) {
        any = any || has_side(circle, &v->side[i], true);
        *all = *all && has_side(circle, &v->side[i], false);
    }
    return any;
}

/* A circle that is certain passes through the very call that v suspects to be wrong, and through all ranks of v: that
 * is why they wait, as one engine says that has found the circle first. It names nobody, and neither does v. */
static bool is_in_circle(const struct roll_verdict *c, const struct roll_verdict *v)
{
    bool all;
    return is_circle(c) && c->certainty == ROLL_PROVEN && v->certainty == ROLL_SUSPECTED &&
           roll_rankset_count(&v->culprits) == 0 && passes_through(c, v, &all) && all;
}

/* A circle was told before the call came that is wrong: v tells of a call in which a rank of the circle waits. Of a
 * circle that is certain, v has to be so as well, and about its ranks alone. One engine has seen the wrong call first,
 * and tells no circle. What comes of a circle, the end of a process, is no such call; nor is one that hangs nobody. */
static bool is_why_in_circle(const struct roll_verdict *c, const struct roll_verdict *v)
{
    bool all, sure = v->certainty == ROLL_PROVEN;
    bool calls = roll_case_is_of_collective(v) || (sure && roll_verdict_family(v->code) == ROLL_FAMILY_P2P);
    return is_circle(c) && !is_circle(v) && calls && v->code != ROLL_VERDICT_REDOP_MISMATCH &&
           c->comm_key == v->comm_key && roll_rankset_count(&c->culprits) == 0 && passes_through(c, v, &all) &&
           (c->certainty != ROLL_PROVEN || (sure && all));
}

bool roll_ranks_are_part(const struct roll_rankset *a, const struct roll_rankset *b)
{
    size_t k = 0;
    for (size_t i = 0; i < a->used; i++) {
        while (k < b->used && b->range[k].last < a->range[i].last) {
            k++;
        }
        if (k == b->used || b->range[k].first > a->range[i].first) {
            return false;
        }
    }
    return true;
}

/* Both tell what gather.c tells together, of several steps, layers and ranks, and v from an earlier step on, or of more
 * ranks in that step: the records of the engine that has said c began later, or ended before the other layers. */
static bool is_fuller(const struct roll_verdict *c, const struct roll_verdict *v)
{
    enum roll_family family = roll_verdict_family(v->code);
    bool together = family == ROLL_FAMILY_MOE || family == ROLL_FAMILY_NUMBERS;
    bool step = v->step == c->step || (v->step < c->step && c->step != ROLL_STEP_NONE);
    return together && step && c->certainty == v->certainty && roll_rankset_count(&c->culprits) > 0 &&
           roll_ranks_are_part(&c->culprits, &v->culprits);
}

/* A verdict like this one that stands, or one that says more of the same place: a case that is opened for the same
 * thing finds it again. */
struct digested_finding *roll_case_said_before(struct roll_digested *d, const struct roll_verdict *v)
{
    for (size_t i = d->findings; i-- > 0;) {
        struct digested_finding *f = &d->finding[i];
        const struct roll_verdict *c = &f->copy->said;
        bool ranks = roll_rankset_equal(&c->culprits, &v->culprits);
        bool place = c->code == v->code && c->comm_key == v->comm_key; /* what costs nothing is compared first */
        bool less = place && f->engine != d->number && c->seq == v->seq &&
                    (ranks ? v->certainty < c->certainty
                           : v->certainty <= c->certainty && roll_ranks_are_part(&v->culprits, &c->culprits));
        bool back = c->code == v->code && ranks && c->certainty == v->certainty &&
                    roll_verdict_retires(v) == c->number; /* the engine has come to what was said */
        if (back) {
            return f;
        }
        bool same = is_same_end(c, v) || (is_same_lack(d, f, v) && !names_more(v, c)) || is_same_refusal(c, v) ||
                    is_same_stop(d, f, v) || is_in_circle(c, v);
        if (same && f->engine != d->number) {
            return f;
        }
        bool again = ranks && c->certainty == v->certainty && !(is_fuller(c, v) && v->step < c->step);
        if (place && ((again && is_same_thing(d, f, v)) || less)) {
            return f;
        }
    }
    return NULL;
}

/* What an earlier engine has said of the same place, or of the same end, with less certainty, less fully or without a
 * name, or of what follows from it; 0: nothing. */
uint64_t roll_case_said_worse(const struct roll_digested *d, const struct roll_verdict *v)
{
    for (size_t i = d->findings; i-- > 0;) {
        const struct digested_finding *f = &d->finding[i];
        const struct roll_verdict *c = &f->copy->said;
        bool ranks = roll_rankset_equal(&c->culprits, &v->culprits);
        bool worse =
            ranks ? c->certainty < v->certainty : roll_rankset_count(&c->culprits) == 0 && c->certainty <= v->certainty;
        bool place = c->code == v->code && c->comm_key == v->comm_key && c->seq == v->seq;
        if (f->engine != d->number &&
            ((place && ((worse && c->comm_key != 0) || is_fuller(c, v))) ||
             (is_same_lack(d, f, v) && c->certainty == v->certainty && names_more(v, c)) || is_why_in_circle(c, v))) {
            return c->number;
        }
    }
    return 0;
}
