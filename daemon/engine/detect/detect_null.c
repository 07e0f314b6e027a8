/*
 * detect_null.c: the template: a detector that never says anything. Copy it to begin a new one; docs/ADDING.md has the
 * steps. It is compiled and tested so that it stays correct, and it is not in the table, so nobody asks it.
 *
 * The head comment of a detector says four things: which mistake it finds, from which evidence, how sure it is and why,
 * and which healthy behaviour looks alike. The last is the one that matters: say how the two are told apart.
 */
#include "daemon/engine/detect/detector.h"

#include <stdlib.h>

/*
 * The states of the detector, one for each kind of object. The detector's row in detectors.def says which of the four
 * exist; a state that the row does not name does not compile. Delete what is not needed.
 */
struct null_engine {
    uint64_t run_ns; /* patience clock of the last run */
};
STATE_OF_ENGINE(null) /* null_of_engine(e) is never NULL: the state is made with the engine */

struct null_source {
    uint32_t lost; /* how often records of this source were lost */
};
STATE_OF_SOURCE(null) /* null_of_source(s): NULL where none was made yet; null_make_source(s): NULL without memory */

struct null_comm {
    uint32_t *seen; /* by rank; owned */
};
STATE_OF_COMM(null)

/* There may be millions of members. Make a state only for members that are special, and keep it small. */
struct null_member {
    struct roll_record *first; /* a copy of the member's first record; owned */
};
STATE_OF_MEMBER(null)

/* The engine begins. The state exists, all zero; init is for what must not begin as zero. Returns 0 or a negative code.
 */
static int null_init(struct roll_engine *e)
{
    null_of_engine(e)->run_ns = e->clock;
    return 0;
}

/* Ranks disagree at one place of a communicator. Return true when this case is this detector's, also when it decides to
 * stay silent. */
static bool null_disagree(struct roll_engine *e, const struct finding *f)
{
    (void)e;
    (void)f;
    /*
     * A verdict is built in four steps:
     *   if (!say_once(e, say_key(CODE, comm key, ...)))  return true;     one verdict per cause
     *   struct roll_verdict *v = say(e, CODE, certainty);                 NULL when out of memory
     *   say_comm, say_side (culprits first), roll_rankset_copy(&v->culprits, ...)
     *   say_text(e, v, ...)                                               last: words from explain.c
     */
    return false;
}

/* A send and a receive that have met differ in bytes; index: the number of the message in its pair. Return true as
 * above. */
static bool null_pair(struct roll_engine *e, struct pair *p, uint32_t index)
{
    (void)e;
    (void)p;
    (void)index;
    return false;
}

/* Ranks wait, and *b says why. The wait graph has found the reason; most detectors handle only some kinds of reasons.
 * Return true as above. */
static bool null_block(struct roll_engine *e, const struct block *b)
{
    (void)e;
    return b->kind == BLOCK_KINDS; /* no block is of this kind */
}

/* A record of class MOE, EXT or COMM has come; first: for the first time, else in a later state. */
static void null_record(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                        bool first)
{
    struct member *m = source_member(e->source[source], rec->comm); /* NULL: the communicator is not known */
    (void)ticket;
    if (!m || !first) {
        return;
    }
    struct null_comm *of_comm = null_make_comm(m->comm);
    struct null_member *of_member = null_make_member(m);
    if (!of_comm || !of_member) {
        return; /* without memory the record is not judged */
    }
    if (!of_comm->seen) {
        of_comm->seen = calloc(m->comm->room, sizeof(*of_comm->seen));
    }
    if (of_comm->seen) {
        of_comm->seen[m->rank]++;
    }
    if (!of_member->first && (of_member->first = malloc(sizeof(*rec)))) {
        *of_member->first = *rec;
    }
}

/* `count` records of this source are lost. What the source did in them is not known, so nothing may be concluded from
 * their absence. */
static void null_lost(struct roll_engine *e, uint32_t source, uint64_t count)
{
    struct null_source *own = null_make_source(e->source[source]);
    (void)count;
    if (own) {
        own->lost++;
    }
}

/* Time has passed. This is called at every tick, so it must be cheap when there is nothing to do. Work over all sources
 * or communicators is done a few times a second, and within a bound. */
static void null_tick(struct roll_engine *e)
{
    struct null_engine *own = null_of_engine(e);
    if (e->finishing || e->clock - own->run_ns < e->config.stall_ns / 2) {
        return;
    }
    own->run_ns = e->clock;
}

/* The engine ends. These hooks free what the states own; the states are freed afterwards. Only objects are shown of
 * which some detector has a state, so the state of this detector may still be NULL. */
static void null_source_fini(struct source *s)
{
    (void)s; /* the state owns nothing: leave this hook out */
}

static void null_member_fini(struct member *m)
{
    if (null_of_member(m)) {
        free(null_of_member(m)->first);
    }
}

static void null_comm_fini(struct comm *c)
{
    if (null_of_comm(c)) {
        free(null_of_comm(c)->seen);
    }
}

/* Called before the other three. */
static void null_fini(struct roll_engine *e)
{
    null_of_engine(e)->run_ns = 0; /* the state owns nothing: leave this hook out */
}

/* Leave out what is not needed: absent functions are not called. */
const struct detector detect_null = {
    .name = "null",
    ENGINE_STATE(null),
    .init = null_init,
    .disagree = null_disagree,
    .pair = null_pair,
    .block = null_block,
    .record = null_record,
    .lost = null_lost,
    .tick = null_tick,
    .fini = null_fini,
    .source_fini = null_source_fini,
    .member_fini = null_member_fini,
    .comm_fini = null_comm_fini,
};
