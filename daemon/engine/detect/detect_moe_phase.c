/*
 * detect_moe_phase.c: a rank left the backward of an MoE layer without making the calls in which its peers wait.
 *
 * The rank promised these calls in forward like its peers (otherwise detect_moe_obligation.c has told). Then the peers
 * wait in the backward of a layer, while the rank has reported that it reduces gradients, or is in a later step
 * (judge/waitgraph.c: has_passed). Proven when the rank's host waits as well. Otherwise suspected, because a phase is
 * only what the job says of itself. A rank that runs far ahead of its peers is healthy and is never shown to this
 * detector, because it has made its calls.
 */
#include "daemon/engine/detect/detector.h"
#include "daemon/engine/detect/gather.h"
#include "daemon/engine/detect/moe.h"

#define PLACES 3u /* so many places of the program are told apart */

/* The process is that of one of these ranks, and no earlier one of the same rank. */
static bool is_one_of(const struct roll_engine *e, const struct source *s, const struct roll_rankset *ranks)
{
    return roll_rankset_has(ranks, s->world) && source_newest(e, s->world) == s;
}

/* Where a rank is by its own account, or was when it ended. */
static bool is_beside(const struct source *a, const struct source *b)
{
    return a->phase == b->phase && a->step == b->step && source_alive(a) == source_alive(b);
}

static void words_where(struct words *w, const struct source *s, bool one)
{
    words_add(w, source_alive(s) ? one ? " is in " : " are in " : one ? " was last in " : " were last in ");
    if (s->phase != ROLL_PHASE_NONE) {
        words_add(w, "%s of ", roll_phase_name(s->phase));
    }
    words_add(w, "step %u", s->step);
}

/* Adds where the ranks that have left the backward are now, those at one place together. A place of one of them for all
 * was rejected: each rank runs on at its own pace until it waits. */
static void words_places(struct words *w, const struct roll_engine *e, const struct roll_rankset *ranks)
{
    struct roll_rankset told = {0}, same = {0};
    for (uint32_t i = 0, places = 0; i < e->sources; i++) {
        const struct source *s = e->source[i];
        if (!is_one_of(e, s, ranks) || roll_rankset_has(&told, s->world)) {
            continue;
        }
        roll_rankset_clear(&same);
        for (uint32_t k = i; k < e->sources; k++) {
            const struct source *o = e->source[k];
            bool here = is_one_of(e, o, ranks) && !roll_rankset_has(&told, o->world);
            if (here && (places == PLACES || is_beside(s, o))) {
                (void)roll_rankset_add(&same, o->world);
            }
        }
        bool one = roll_rankset_count(&same) == 1;
        words_add(w, places == 0 ? " " : ", ");
        if (places == 0 && roll_rankset_count(&same) == roll_rankset_count(ranks)) {
            words_add(w, one ? "it" : "they");
        } else {
            words_ranks(w, &same);
        }
        if (places == PLACES) {
            words_add(w, one ? " is elsewhere" : " are elsewhere, not all at one place");
        } else {
            words_where(w, s, one);
        }
        (void)roll_rankset_union(&told, &same);
        places++;
    }
    words_add(w, ".");
    roll_rankset_fini(&told);
    roll_rankset_fini(&same);
}

static void words_phase(const struct roll_engine *e, const struct gathered *g, struct words *w)
{
    bool one = roll_rankset_count(&g->culprits) == 1;
    words_wait(w, &g->side[g->sides - 1].ranks);
    words_add(w, " in ");
    words_call(w, &g->side[g->sides - 1].rec);
    words_add(w, " on ");
    gather_comm(g, w);
    words_add(w, ", in the backward of ");
    gather_place(g, w);
    words_add(w, ". ");
    words_ranks(w, &g->culprits);
    words_add(w, one ? " has left that backward without its side of it:"
                     : " have left that backward without their side of it:");
    words_places(w, e, &g->culprits);
    (void)words_left_out_experts(w, e, &g->culprits, g->step);
    if (g->certainty == ROLL_SUSPECTED) {
        words_add(w, " Suspected: only the report of the job says so; such a rank was not seen to wait.");
    }
}

/* The last calls of both ranks are one and the same. */
static bool is_last_alike(const struct source *a, const struct source *b)
{
    const struct member *mine = source_member(a, a->last.comm), *theirs = source_member(b, b->last.comm);
    return a->last.op == b->last.op && a->last.seq == b->last.seq && a->last.count == b->last.count &&
           (mine ? mine->comm : NULL) == (theirs ? theirs->comm : NULL);
}

/* Shows what the ranks that have left the backward called last, those that called the same as one side; those for which
 * there is no room as one side without a call. */
static void show_last(struct gathered *g, const struct roll_engine *e, const struct roll_rankset *left)
{
    struct roll_rankset told = {0}, same = {0};
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct source *s = e->source[i];
        if (!is_one_of(e, s, left) || roll_rankset_has(&told, s->world)) {
            continue;
        }
        bool room = g->sides + 2 < ROLL_VERDICT_SIDES; /* the side of those who wait comes last */
        roll_rankset_clear(&same);
        for (uint32_t k = i; k < e->sources; k++) {
            const struct source *o = e->source[k];
            bool here = is_one_of(e, o, left) && !roll_rankset_has(&told, o->world);
            if (here && (!room || is_last_alike(s, o))) {
                (void)roll_rankset_add(&same, o->world);
            }
        }
        bool shown = (room || roll_rankset_count(&same) == 1) && s->last.op != ROLL_OP_NONE;
        gather_side(g, s, i, &same, shown ? &s->last : NULL);
        (void)roll_rankset_union(&told, &same);
    }
    roll_rankset_fini(&told);
    roll_rankset_fini(&same);
}

static void speak(struct roll_engine *e, const struct block *b)
{
    const struct entry *waits = source_entry(b->waiter, b->ticket);
    if (waits) {
        comm_mute_at(e, b->comm, b->waiter, &waits->rec);
    }
    comm_explained(e, b->comm);
    if (!waits) {
        return;
    }
    bool fresh;
    enum roll_certainty certainty = b->hard ? ROLL_PROVEN : ROLL_SUSPECTED;
    uint64_t which = (uint64_t)waits->rec.microbatch << 8 | ((uint64_t)certainty + 16);
    uint64_t key = say_key(ROLL_VERDICT_MOE_OBLIGATION, gather_family(b->comm), waits->rec.step, which);
    struct gathered *g = gather_open(e, key, ROLL_VERDICT_MOE_OBLIGATION, certainty, &fresh);
    if (!g) {
        return;
    }
    struct roll_rankset left = {0}, waiter = {0};
    (void)roll_rankset_copy(&left, &b->absent); /* all that have left it, and not only the first */
    say_beside(e, b->waiter, waits, &waiter);
    if (fresh) {
        struct words none = {.used = 0};
        show_last(g, e, &left);
        gather_side(g, b->waiter, source_index(e, b->waiter), &waiter, &waits->rec);
        g->phase = ROLL_PHASE_BACKWARD;
        g->remedy = words_left_out_experts(&none, e, &left, waits->rec.step);
        g->words = words_phase;
    }
    gather_add(e, g, b->comm, waits->rec.step, waits->rec.microbatch, waits->rec.layer, &left, b->waiting);
    roll_rankset_fini(&left);
    roll_rankset_fini(&waiter);
}

static bool phase_block(struct roll_engine *e, const struct block *b)
{
    if (b->kind == BLOCK_PASSED) {
        speak(e, b);
    }
    return b->kind == BLOCK_PASSED;
}

const struct detector detect_moe_phase = {.name = "moe_phase", .block = phase_block};
