/*
 * detect_rehearsed.c: a rank's calls are not those that were rehearsed.
 *
 * `rollcall rehearse --save` keeps what each rank does on each communicator; a live job is followed call by call beside
 * it, from each communicator's beginning on. Where a rank leaves what was rehearsed, one note says which rank, which
 * communicator, its which call, what was expected and what came. It is a note and never a finding: the live job may
 * have other data, arguments or hardware, and all ranks may leave alike and be healthy. So a note waits a moment for
 * the other members, and all that left at the same call in the same way are told together. Behind it the rank is out of
 * step, and falls in step again with a whole repetition (rehearsed_follow.c); what was told is not told again.
 *
 * Where the members' own votes are a tie, the judge asks which side's call is the one rehearsed (judge.h). Healthy, and
 * told as little as they can be: amounts that follow the data, which the rehearsal marks (expected.h); a rank whose
 * first calls were not seen, or of which records were lost: it is out of step and nothing is said of it.
 */
#include "daemon/base/array.h"
#include "daemon/engine/detect/rehearsed.h"

#define NOTES_MOST 4u /* on one communicator: a job that differs in each step has said so by then */

struct rehearsed_comm {
    bool fresh;     /* it stands in the engine's list */
    uint32_t notes; /* told */
    uint64_t since; /* patience clock at which the first member left that was not told yet */
};
STATE_OF_COMM(rehearsed)

struct rehearsed_engine {
    uint32_t *comm; /* owned: communicators on which somebody has left */
    size_t comms, room;
    bool counted; /* the number of ranks has been compared */
};
STATE_OF_ENGINE(rehearsed)

/* A member has left: it is told in one of the next ticks. Of many times the first few are kept. */
static void note_left(struct roll_engine *e, struct comm *c, struct rehearsed_member *r,
                      const struct rehearsed_left *left)
{
    struct rehearsed_engine *all = rehearsed_of_engine(e);
    struct rehearsed_comm *state = rehearsed_make_comm(c);
    if (r->lefts < REHEARSED_LEFTS) {
        r->left[r->lefts++] = *left;
    }
    if (state && !state->fresh && ROLL_GROW(all->comm, all->room, all->comms + 1) == 0) {
        all->comm[all->comms++] = c->id;
        state->fresh = true;
        state->since = e->clock;
    }
}

/* The member is out of step. */
static void lose_step(struct rehearsed_member *r)
{
    r->stand = REHEARSED_OUT;
    r->fits = r->fails = r->pause = 0;
}

/* The first call of a member. */
static void begin(struct roll_engine *e, const struct source *s, const struct member *m, const struct roll_record *rec,
                  uint64_t ticket, struct rehearsed_member *r)
{
    r->since = ticket;
    if (!rehearsed_bind(e, s, m, rec->comm, r)) {
        const struct rehearsed_left left = {.ticket = ticket, .unknown = true};
        note_left(e, m->comm, r, &left);
    }
}

void rehearsed_call(struct roll_engine *e, const struct source *s, struct member *m, const struct roll_record *rec,
                    uint64_t ticket)
{
    const struct roll_expected *x = e->expected;
    struct rehearsed_member *r = roll_expected_counts(rec) ? rehearsed_make_member(m) : NULL;
    uint32_t want;
    if (!r) {
        return;
    }
    if (r->stand == REHEARSED_NEW) {
        begin(e, s, m, rec, ticket, r);
    }
    bool message = roll_op_class(rec->op) == ROLL_CLASS_P2P;
    if (r->stand == REHEARSED_OFF || (message && !x->comm[r->comm].messages)) {
        return;
    }
    struct roll_expected_call came = roll_expected_of(rec, (uint32_t)m->rank, m->comm->size);
    r->calls++;
    if (r->stand == REHEARSED_OUT) {
        if (rehearsed_again(x, r, &came)) {
            r->stand = REHEARSED_IN_STEP;
            r->since = ticket + 1;
        }
    } else if (!rehearsed_follow(x, r, &came, &want)) {
        if (want == ROLL_EXPECTED_NONE && !x->repeats) { /* one step was rehearsed: that says nothing about a second */
            r->stand = REHEARSED_OFF;
            return;
        }
        if (r->crowded) { /* the place where the member was may be one that was dropped */
            lose_step(r);
            r->since = UINT64_MAX;
            return;
        }
        const struct rehearsed_left left = {.ticket = ticket, .calls = r->calls, .want = want, .came = came};
        r->last = ticket + 1;
        lose_step(r);
        note_left(e, m->comm, r, &left);
    }
}

/* Somewhere in what was rehearsed for this member stands such a call. */
static bool is_known(const struct roll_expected *x, const struct rehearsed_member *r, const struct member *m,
                     const struct roll_record *rec)
{
    const struct roll_expected_sequence *s = &x->sequence[r->sequence];
    struct roll_expected_call came = roll_expected_of(rec, (uint32_t)m->rank, m->comm->size);
    for (uint32_t p = 0; p < s->parts; p++) {
        const struct roll_expected_part *part = &x->part[s->first + p];
        for (uint32_t i = 0; i < part->calls; i++) {
            if (roll_expected_fits(&x->call[x->item[part->first + i]], &came)) {
                return true;
            }
        }
    }
    return false;
}

enum rehearsed rehearsed_of(const struct member *m, uint64_t ticket)
{
    const struct rehearsed_member *r = rehearsed_of_member(m);
    if (!r || r->stand == REHEARSED_OFF || r->stand == REHEARSED_NEW || r->calls == 0) {
        return REHEARSED_UNKNOWN;
    }
    if (r->last == ticket + 1) {
        const struct roll_engine *e = m->comm->engine;
        const struct entry *entry = source_entry(e->source[m->source], ticket);
        return entry && is_known(e->expected, r, m, &entry->rec) ? REHEARSED_LEAVES : REHEARSED_UNHEARD;
    }
    bool before = r->last != 0 && ticket + 1 < r->last;
    return ticket >= r->since && (before || r->stand == REHEARSED_IN_STEP) ? REHEARSED_FITS : REHEARSED_UNKNOWN;
}

/* what is told */

/* A call of the rehearsal, in words. */
static void words_expected(struct words *w, const struct roll_expected_call *call, const struct member *m)
{
    bool message = roll_op_class(call->op) == ROLL_CLASS_P2P;
    struct roll_record rec = {.op = call->op, .dtype = call->dtype, .redop = call->redop, .count = call->count};
    rec.peer = message ? (int32_t)(((uint32_t)m->rank + (uint32_t)call->peer) % m->comm->size) : call->peer;
    rec.flags = call->captured ? ROLL_FLAG_CAPTURED : 0;
    if (call->count == ROLL_EXPECTED_ANY) {
        words_add(w, "%s of any size", roll_op_name(call->op));
    } else {
        words_call(w, &rec);
    }
}

static bool left_alike(const struct rehearsed_left *a, const struct rehearsed_left *b)
{
    return a->unknown == b->unknown && a->want == b->want && a->calls == b->calls &&
           (a->unknown || (roll_expected_fits(&a->came, &b->came) && a->came.count == b->came.count));
}

static uint64_t key_of(const struct comm *c, const struct rehearsed_left *left, const struct roll_rankset *ranks)
{
    uint64_t call =
        say_key(left->came.count, (uint32_t)left->came.peer,
                (uint64_t)left->came.op << 16 | (uint64_t)left->came.dtype << 8 | left->came.redop, left->unknown);
    return say_key(ROLL_VERDICT_REHEARSAL_LEFT, c->key, say_key(call, left->want, 0, 0),
                   say_key(roll_rankset_at(ranks, 0), roll_rankset_count(ranks), 0, 0));
}

static void say_unknown(struct roll_engine *e, struct roll_verdict *v, const struct comm *c)
{
    struct words w = {.used = 0};
    words_add(&w, "The job uses ");
    words_comm(&w, c);
    words_add(&w, ", which the rehearsal did not have: no rank of it had a communicator of this name, size and place. "
                  "Nothing is compared there.");
    say_text(e, v, "%s", w.text);
}

static void say_left(struct roll_engine *e, struct roll_verdict *v, const struct comm *c, const struct member *m,
                     const struct rehearsed_left *left, const struct roll_rankset *ranks)
{
    const struct roll_expected *x = e->expected;
    const struct source *s = e->source[m->source];
    const struct entry *entry = source_entry(s, left->ticket);
    bool one = roll_rankset_count(ranks) == 1;
    /* The number that all other words have, where the call has one on its communicator. */
    bool numbered = entry && roll_op_class(entry->rec.op) == ROLL_CLASS_COLL;
    uint64_t number = numbered ? entry->rec.seq : left->calls - 1;
    struct words w = {.used = 0};
    say_comm(v, c, entry ? entry->rec.seq : 0);
    (void)roll_rankset_copy(&v->culprits, ranks);
    if (entry) {
        say_side(v, s, m->source, ranks, &entry->rec);
    }
    words_ranks(&w, ranks);
    words_add(&w, " %s what was rehearsed on ", one ? "leaves" : "leave");
    words_comm(&w, c);
    words_add(&w, ": as %s call #%llu there came ", one ? "its" : "their", (unsigned long long)number);
    words_expected(&w, &left->came, m);
    if (left->want == ROLL_EXPECTED_NONE) {
        words_add(&w, ", and in the rehearsal no further call followed.");
    } else {
        words_add(&w, ", and in the rehearsal it was ");
        words_expected(&w, &x->call[left->want], m);
        words_add(&w, ".");
    }
    words_add(&w, " This is no mistake by itself: the program, its arguments or its data are not those of the "
                  "rehearsal. Calls there are compared again when all calls of a repetition have been made.");
    say_text(e, v, "%s", w.text);
}

/* All members that know their place know the same one. */
static bool is_one_place(const struct comm *c)
{
    uint32_t comm = ROLL_EXPECTED_NONE;
    for (uint32_t i = 0; i < c->size; i++) {
        const struct rehearsed_member *r = rehearsed_of_member(&c->member[i]);
        if (r && (r->stand == REHEARSED_IN_STEP || r->stand == REHEARSED_OUT)) {
            if (comm != ROLL_EXPECTED_NONE && r->comm != comm) {
                return false;
            }
            comm = r->comm;
        }
    }
    return true;
}

/* Tells one leaving of a member, and with it the ranks that left alike. */
static void tell_one(struct roll_engine *e, struct comm *c, uint32_t rank, const struct rehearsed_left *left)
{
    struct rehearsed_comm *state = rehearsed_of_comm(c);
    struct roll_rankset ranks = {0};
    for (uint32_t i = rank; i < c->size; i++) {
        struct rehearsed_member *r = rehearsed_of_member(&c->member[i]);
        for (uint32_t k = 0; r && k < r->lefts; k++) {
            if (!r->left[k].told && left_alike(&r->left[k], left)) {
                (void)roll_rankset_add(&ranks, e->source[c->member[i].source]->world);
                r->left[k].told = true;
            }
        }
    }
    struct roll_verdict *v =
        say_once(e, key_of(c, left, &ranks)) ? say(e, ROLL_VERDICT_REHEARSAL_LEFT, ROLL_NOTE) : NULL;
    state->notes += v != NULL;
    if (v && left->unknown) {
        say_comm(v, c, 0);
        say_unknown(e, v, c);
    } else if (v) {
        say_left(e, v, c, &c->member[rank], left, &ranks);
    }
    roll_rankset_fini(&ranks);
}

/* Tells what was left on a communicator. Where its members take it for several of the rehearsal, communicators were
 * made in another order, and nothing is compared. */
static void tell(struct roll_engine *e, struct comm *c)
{
    bool one_place = is_one_place(c);
    for (uint32_t i = 0; i < c->size; i++) {
        struct rehearsed_member *r = rehearsed_of_member(&c->member[i]);
        for (uint32_t k = 0; one_place && r && k < r->lefts; k++) {
            if (!r->left[k].told && rehearsed_of_comm(c)->notes < NOTES_MOST) {
                tell_one(e, c, i, &r->left[k]);
            }
        }
    }
    for (uint32_t i = 0; i < c->size; i++) {
        struct rehearsed_member *r = rehearsed_of_member(&c->member[i]);
        if (r) {
            r->lefts = 0;
            r->stand = one_place ? r->stand : REHEARSED_OFF;
        }
    }
}

/* Each member has made as many calls as those that left: no other will leave at these calls. */
static bool is_whole(const struct comm *c)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < c->size; i++) {
        const struct rehearsed_member *r = rehearsed_of_member(&c->member[i]);
        most = r && r->lefts > 0 && r->left[r->lefts - 1].calls > most ? r->left[r->lefts - 1].calls : most;
    }
    for (uint32_t i = 0; i < c->size; i++) {
        const struct rehearsed_member *r = rehearsed_of_member(&c->member[i]);
        if (!r || r->calls < most || (most == 0 && r->lefts == 0)) {
            return false;
        }
    }
    return true;
}

/* A job of another number of ranks was not rehearsed at all. */
static void count_ranks(struct roll_engine *e, struct rehearsed_engine *all)
{
    uint32_t ranks = 0;
    for (uint32_t i = 0; i < e->sources && ranks == 0; i++) {
        ranks = e->source[i]->info.world_size > 0 ? (uint32_t)e->source[i]->info.world_size : 0;
    }
    ranks = ranks == 0 && e->finishing ? e->sources : ranks;
    if (ranks == 0) {
        return;
    }
    all->counted = true;
    struct roll_verdict *v = ranks != e->expected->ranks ? say(e, ROLL_VERDICT_REHEARSAL_LEFT, ROLL_NOTE) : NULL;
    if (v) {
        say_text(e, v, "The job has %u ranks, and %u were rehearsed: nothing is compared with the rehearsal.", ranks,
                 e->expected->ranks);
    }
}

static void rehearsed_tick(struct roll_engine *e)
{
    struct rehearsed_engine *all = rehearsed_of_engine(e);
    if (!e->expected) {
        return;
    }
    if (!all->counted) {
        count_ranks(e, all);
    }
    for (size_t i = 0; i < all->comms;) {
        struct comm *c = e->comm[all->comm[i]];
        struct rehearsed_comm *state = rehearsed_of_comm(c);
        if (e->finishing || e->clock - state->since >= e->config.suspect_ns || is_whole(c)) {
            tell(e, c);
            state->fresh = false;
            all->comm[i] = all->comm[--all->comms];
        } else {
            i++;
        }
    }
}

/* Which calls the rank has made meanwhile is not known. */
static void rehearsed_lost(struct roll_engine *e, uint32_t source, uint64_t count)
{
    const struct source *s = e->source[source];
    struct member *m;
    (void)count;
    for (size_t i = 0; e->expected && (m = source_touched(s, &i)) != NULL;) {
        struct rehearsed_member *r = rehearsed_of_member(m);
        if (r && r->stand == REHEARSED_IN_STEP) {
            lose_step(r);
            r->since = UINT64_MAX;
        }
    }
}

static void rehearsed_fini(struct roll_engine *e)
{
    free(rehearsed_of_engine(e)->comm);
}

const struct detector detect_rehearsed = {.name = "rehearsed",
                                          ENGINE_STATE(rehearsed),
                                          .tick = rehearsed_tick,
                                          .lost = rehearsed_lost,
                                          .fini = rehearsed_fini};
