/*
 * view_ripe.c: a suspicion that ripens: a rank waits, nothing has been found, and only time is lacking.
 *
 * Who looks at a job that stands for three seconds wants to know whether rollcall has seen it, and how long to wait for
 * its word. The time that counts is that of the detectors: by the clock of suspicion, on which a second without a CPU
 * is none, so what is told here is what they compare. The two waits that are common are told: for a rank that is inside
 * no call (waitgraph.c), and in a call that everybody has made (detect_stuck.c). A rank that is inside another call
 * waits for somebody in turn, and the end of that chain is told by its own rank.
 *
 * That the detectors keep what they are waiting for was rejected: they look at what is old enough, and at nothing else.
 */
#include "daemon/engine/detect/stuck.h"
#include "daemon/engine/judge/judge.h"
#include "daemon/engine/view.h"

#include <inttypes.h>
#include <stdio.h>

#define SHOWN_NS    UINT64_C(1000000000) /* healthy ranks wait for one another all the time */
#define SHOWN_SHARE 5u

/* How far the patience with one wait has come. */
struct patience {
    uint64_t counted_ns, needed_ns;
    uint64_t passed_ns; /* by the clock on which a second without a CPU is one like any other */
};

static bool is_seen(const struct roll_engine *e, const struct source *s)
{
    return s && source_alive(s) && s->proc == ROLL_PROC_RUNNING && !s->unheard && rank_has_room(e, s);
}

static uint64_t since(const struct roll_engine *e, uint64_t calm)
{
    return e->calm > calm ? e->calm - calm : 0;
}

/* Of the ranks that have not made the call, the one that has been silent for longest outside any call: it is the first
 * that may be suspected. NULL: there is none. */
static const struct source *first_absent(const struct roll_engine *e, const struct roll_rankset *missing,
                                         struct patience *p)
{
    const struct source *first = NULL;
    size_t n = roll_rankset_count(missing);
    for (size_t i = 0; i < n; i++) {
        const struct source *t = source_newest(e, roll_rankset_at(missing, i));
        if (is_seen(e, t) && !source_blocked(e, t) && t->init == 0 && (!first || since(e, t->calm) > p->counted_ns)) {
            first = t;
            *p =
                (struct patience){since(e, t->calm), e->config.suspect_ns, e->clock > t->seen ? e->clock - t->seen : 0};
        }
    }
    return first;
}

/* The thread of the rank that has been inside a call for longest, in which everybody seems to be. */
static bool stands(const struct roll_engine *e, const struct source *s, struct patience *p)
{
    bool any = false;
    for (uint32_t i = 0; i < s->threads; i++) {
        const struct thread *t = &s->thread[i];
        const struct entry *in = t->inside != 0 ? source_entry(s, t->inside - 1) : NULL;
        if (in && (!any || since(e, t->calm) > p->counted_ns)) {
            *p = (struct patience){since(e, t->calm), stuck_patience(e, s, &in->rec),
                                   e->clock > t->since ? e->clock - t->since : 0};
            any = true;
        }
    }
    return any;
}

/* "5 s, of which 2.8 s count so far"; where CPUs were short, and time counted less, that and how long it has been. */
static void words_patience(struct words *w, const struct roll_engine *e, const struct patience *p)
{
    words_add(w, "%.3g s, of which %.1f s count so far", (double)p->needed_ns / 1e9, (double)p->counted_ns / 1e9);
    if (patience_is_stretched(p->passed_ns, p->counted_ns)) {
        words_add(w, " (%.1f s have passed, but CPUs were short: what a rank may have lacked them for does not count",
                  (double)p->passed_ns / 1e9);
        if (e->starved > 0) {
            words_add(w, ", now %u %% of the time", (e->starved + 9) / 10);
        }
        words_add(w, ")");
    }
}

static bool is_shown(const struct patience *p)
{
    uint64_t least = p->needed_ns / SHOWN_SHARE < SHOWN_NS ? p->needed_ns / SHOWN_SHARE : SHOWN_NS;
    bool news = p->counted_ns >= least || p->passed_ns >= p->needed_ns; /* of a wait this long people want to know */
    return news && p->counted_ns < p->needed_ns;
}

/* One queue; true when something was told. */
static bool tell(struct words *w, const struct roll_engine *e, const struct source *s, const struct queue *q,
                 bool alone)
{
    struct roll_rankset missing = {0};
    struct patience p = {0};
    uint32_t unknown = 0;
    struct entry *entry = view_in_the_way(e, s, q, &missing, &unknown);
    const struct member *m = entry ? source_member(s, entry->rec.comm) : NULL;
    bool lacks = roll_rankset_count(&missing) > 0, told = false;
    const struct source *absent = lacks ? first_absent(e, &missing, &p) : NULL;
    roll_rankset_fini(&missing);
    if (!m || m->comm->muted || unknown > 0) {
        return false; /* a finding about this communicator is out, or nobody knows whom it lacks */
    }
    if (absent && is_shown(&p)) {
        if (alone) {
            words_add(w, "rank %u has not made ", absent->world);
            words_call_at(w, s, &entry->rec);
            words_add(w, ", in which rank %u waits; a suspicion", s->world);
        } else {
            words_add(w, " Nothing has been found about that yet: a suspicion");
        }
        words_add(w, " is told once rank %u has been silent for ", absent->world);
        words_patience(w, e, &p);
        told = true;
    } else if (!lacks && stands(e, s, &p) && is_shown(&p)) {
        if (alone) {
            words_add(w, "every rank has made ");
            words_call_at(w, s, &entry->rec);
            words_add(w, ", and rank %u waits for it to be done; a suspicion", s->world);
        } else {
            words_add(w, " Nothing has been found about that yet: a suspicion");
        }
        words_add(w, " is told once this has lasted for ");
        words_patience(w, e, &p);
        told = true;
    }
    return told;
}

int roll_engine_ripening(roll_engine_t *e, uint32_t world_rank, bool alone, char *out, size_t size)
{
    const struct source *s = source_newest(e, world_rank);
    struct words w = {.used = 0};
    if (!is_seen(e, s) || e->unheard > 0) {
        return ROLL_E_NOTFOUND;
    }
    for (uint32_t i = 0; i < s->queues; i++) {
        if (tell(&w, e, s, &s->queue[i], alone)) {
            words_add(&w, alone ? "" : ".");
            snprintf(out, size, "%s", w.text);
            return (int)w.used;
        }
    }
    return ROLL_E_NOTFOUND;
}
