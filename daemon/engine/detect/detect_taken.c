/*
 * detect_taken.c: a message without a partner that a message of a collective was taken for.
 *
 * NCCL makes AlltoAll, Gather and Scatter of sends and receives (match/lowered.c). A message whose partner is missing
 * meets a message of such a collective instead, and is over. So no host waits in it; what hangs is the collective, for
 * which everyone has arrived. The records still show the mistake: one side of a pair made its message before the
 * collective, and the other side made the collective without the message. The verdict is said when a host waits and
 * neither side goes on. Until then the other side may still come, and only the order is wrong (detect_lowered.c).
 *
 * It is certain that the data went to the wrong call. Which call is missing or is one too many is not, so nobody is
 * named and the verdict is suspected. Asking about the host that waits in such a collective (judge/waitgraph.c) was
 * rejected: in the model nothing is missing there. So the pairs themselves are looked at, PAIRS_A_TICK of them in a
 * tick, while some host waits.
 */
#include "daemon/engine/detect/detector.h"

#define PAIRS_A_TICK 4096u

static const struct source *end_source(const struct roll_engine *e, const struct pair *p, unsigned side)
{
    uint32_t source = p->comm->member[p->end[side]].source;
    return source == NO_SOURCE ? NULL : e->source[source];
}

/* The side of the pair whose message was answered by a collective of the other side; -1: no such message. */
static int taken_side(const struct pair *p)
{
    unsigned maker = p->issued[1] > p->issued[0];
    uint32_t index = p->issued[!maker];
    if (p->issued[0] == p->issued[1] || p->end[0] == p->end[1] || !p2p_known(p, 0) || !p2p_known(p, 1) ||
        index - p->base > p->mask) {
        return -1;
    }
    const struct member *end = p->comm->member;
    if (end[p->end[0]].zeros != end[p->end[1]].zeros) {
        return -1; /* one of them made a collective of no elements, which NCCL drops: detect_zero.c */
    }
    uint32_t before = p2p_node(p, index)->before[maker];
    for (unsigned side = 0; side < 2; side++) { /* both sides have made a later such collective */
        uint32_t last = lowered_before(&p->comm->member[p->end[side]], p->end[0], p->end[1]);
        if (before == LOWERED_UNKNOWN || last == LOWERED_UNKNOWN || last <= before) {
            return -1;
        }
    }
    return (int)maker;
}

static bool host_waits(const struct roll_engine *e, const struct source *s)
{
    for (uint32_t i = 0; source_alive(s) && i < s->threads; i++) {
        const struct thread *t = &s->thread[i];
        const struct entry *in = t->inside ? source_entry(s, t->inside - 1) : NULL;
        if (in && e->clock - t->since >= e->config.stall_ns && source_wait(e, s, t, &in->rec).waits) {
            return true;
        }
    }
    return false;
}

/* Neither side goes on, and one of them waits for no reason that has been told. */
static bool stands_still(const struct roll_engine *e, const struct pair *p)
{
    bool waits = false, goes_on = false;
    for (unsigned side = 0; side < 2; side++) {
        const struct source *s = end_source(e, p, side);
        const struct member *m = &p->comm->member[p->end[side]];
        bool stands = s && host_waits(e, s);
        waits = waits || (stands && !source_explained(s));
        goes_on = goes_on || !s || s->unheard || (!stands && source_alive(s) && !m->gone);
    }
    return waits && !goes_on;
}

static void tell(struct roll_engine *e, const struct pair *p, unsigned maker)
{
    struct comm *c = p->comm;
    uint32_t index = p->issued[!maker], before = p2p_node(p, index)->before[maker];
    const struct source *s = end_source(e, p, maker), *other = end_source(e, p, !maker);
    const struct entry *made = source_entry(s, p2p_node(p, index)->ticket[maker]);
    bool known = made && made->pair == p;
    if (known) {
        comm_mute_at(e, c, s, &made->rec);
    }
    comm_explained(e, c);
    /* Once: all messages behind this one are shifted. */
    if (!say_once(e, say_key(ROLL_VERDICT_P2P_UNMATCHED, c->key, 9, 0))) {
        return;
    }
    struct roll_verdict *v = say(e, ROLL_VERDICT_P2P_UNMATCHED, ROLL_SUSPECTED);
    if (!v) {
        return;
    }
    struct roll_rankset mine = {0}, theirs = {0};
    say_comm(v, c, index);
    (void)roll_rankset_add(&mine, s->world);
    (void)roll_rankset_add(&theirs, other->world);
    say_side(v, s, source_index(e, s), &mine, known ? &made->rec : NULL);
    say_side(v, other, source_index(e, other), &theirs, NULL);
    for (unsigned side = 0; side < 2; side++) {
        if (host_waits(e, end_source(e, p, side))) {
            (void)roll_rankset_add(&v->waiting, end_source(e, p, side)->world);
        }
    }
    struct words w = {.used = 0};
    words_add(&w, "On ");
    words_comm(&w, c);
    words_add(&w, " rank %u has made ", s->world);
    if (known) {
        words_call(&w, &made->rec);
    } else {
        words_add(&w, "a %s", maker ? "receive" : "send");
    }
    words_add(&w, ", message %u of this pair, and rank %u has not %s it, but has gone on to a collective behind it",
              index, other->world, maker ? "sent" : "received");
    if (before) {
        words_add(&w, " (the last one before it was #%u)", before - 1);
    }
    words_add(&w, ". NCCL makes AlltoAll, Gather and Scatter of sends and receives: a message of that collective was "
                  "taken for the "
                  "one that is missing, the data is in the wrong place, and what is left of the collective waits. The "
                  "calls alone "
                  "do not say which side is wrong: one is missing there, or one is too many here.");
    say_may_be(v, ROLL_VERDICT_CALLS_REORDERED);
    say_may_be(v, ROLL_VERDICT_CALL_ADDED);
    words_may_be(&w, v);
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&mine);
    roll_rankset_fini(&theirs);
}

static bool may_be_judged(const struct comm *c)
{
    return c->pair && !c->open && !c->muted && !c->aborted && !c->overflow && c->refusals == 0 && c->held == NO_SEQ &&
           !c->blamed;
}

static bool anyone_waits(const struct roll_engine *e)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        if (host_waits(e, e->source[i])) {
            return true;
        }
    }
    return false;
}

/* The round through the pairs of all communicators. */
struct taken_engine {
    uint32_t comm, pair; /* the pair that is looked at next; comm UINT32_MAX: no round is under way */
    uint64_t ns;         /* patience clock at which it was last looked whether any host waits */
};
STATE_OF_ENGINE(taken)

/* Looks at the pairs of all communicators in turn. A round begins when some host waits. */
static void taken_tick(struct roll_engine *e)
{
    struct taken_engine *round = taken_of_engine(e);
    if (round->comm >= e->comms) {
        round->comm = UINT32_MAX;
        if (e->clock - round->ns < e->config.stall_ns / 2) {
            return;
        }
        round->ns = e->clock;
        if (!anyone_waits(e)) {
            return;
        }
        round->comm = round->pair = 0;
    }
    for (uint32_t n = 0; round->comm < e->comms && n < PAIRS_A_TICK; n++) {
        const struct comm *c = e->comm[round->comm];
        if (!may_be_judged(c) || round->pair > c->pair_mask) {
            round->comm++;
            round->pair = 0;
            continue;
        }
        const struct pair *p = c->pair[round->pair++];
        int maker = p ? taken_side(p) : -1;
        if (maker >= 0 && stands_still(e, p)) {
            tell(e, p, (unsigned)maker);
        }
    }
}

const struct detector detect_taken = {.name = "taken", ENGINE_STATE(taken), .tick = taken_tick};
