/*
 * detect_moe_route.c: what a rank reports about its own routing contradicts itself.
 *
 * Two things are compared within one rank, so its records alone prove a contradiction, and no peer is needed:
 *
 *   - The rows that the rank will send to its peers (MOE_SPLIT of forward) do not add up to the rows of the buffer that
 *     it sends (MOE_COUNTS). Frameworks that size the buffer as tokens times top-k, while the routing map has fewer
 *     entries, raise an error there or send rows that nobody wrote (Megatron-LM #5542).
 *   - The splits of a recomputed forward differ from those of the first forward (top-k ties that flip: Automodel
 *     #3140). The peers expect the first ones.
 *
 * Only complete lists are compared: one MOE_SPLIT per member, in order, with no record lost between them. A recomputed
 * forward is compared only where it can repeat only one forward of its step, microbatch and layer. Where several
 * forwards wait to be recomputed (layers or microbatches without numbers), nobody can say which one it repeats.
 */
#include "daemon/base/array.h"
#include "daemon/engine/detect/detector.h"
#include "daemon/engine/detect/gather.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCHES 64u /* microbatches of one layer that may be under way at once (pipelining) */

/* The list of splits that is being read for one layer and microbatch, and the last complete list of a forward. */
struct split_note {
    uint32_t step, next; /* `next`: the peer whose split must come next; NO_SEQ: a split is missing */
    uint16_t microbatch, comm;
    uint8_t phase;
    uint32_t pending; /* forwards that have not been recomputed yet */
    bool known;       /* `forward` and `ticket` are those of the only forward that has not been recomputed */
    bool compares;    /* the current list is a recomputation, and can only repeat the forward of `forward` */
    uint64_t buffer;  /* rows of the buffer that is sent; 0 = not known */
    uint64_t sum;     /* rows of the splits that have come so far */
    uint64_t hash, forward;
    uint64_t ticket; /* ticket of the last split of the forward */
};

struct moe_route_source {
    struct split_note *note; /* by layer, BATCHES for each; owned */
    size_t notes;
};
STATE_OF_SOURCE(moe_route)

static struct split_note *note_of(struct source *s, const struct roll_record *rec)
{
    if (rec->layer == ROLL_LAYER_NONE || rec->layer >= 1024) {
        return NULL;
    }
    struct moe_route_source *t = moe_route_make_source(s);
    size_t at = (size_t)rec->layer * BATCHES + rec->microbatch % BATCHES;
    return t && ROLL_GROW_ZERO(t->note, t->notes, at + 1) == 0 ? &t->note[at] : NULL;
}

/* The split for this peer, in the list whose last split has this ticket; NULL: it is not in the log any more. */
static const struct entry *split_to(const struct source *s, uint64_t ticket, uint32_t peer, uint32_t members)
{
    const struct entry *last = source_entry(s, ticket);
    uint64_t low = ticket > members * 4u + 64u ? ticket - members * 4u - 64u : 0;
    for (uint64_t t = ticket + 1; last && t-- > low;) {
        const struct entry *at = source_entry(s, t);
        if (at && at->rec.op == ROLL_OP_MOE_SPLIT && at->rec.layer == last->rec.layer &&
            at->rec.phase == last->rec.phase && at->rec.comm == last->rec.comm && at->rec.peer == (int32_t)peer) {
            return at;
        }
    }
    return NULL;
}

static void words_recompute(const struct roll_engine *e, const struct gathered *g, struct words *w)
{
    bool one = roll_rankset_count(&g->culprits) == 1;
    words_ranks(w, &g->culprits);
    words_add(w, " ran the forward of ");
    gather_place(g, w);
    words_add(w, " again in backward (recomputation), and routed %s tokens differently from the first time",
              one ? "its" : "their");
    if (g->sides == 2 && g->side[0].rec.op != ROLL_OP_NONE && g->side[1].rec.op != ROLL_OP_NONE) {
        uint32_t from = roll_rankset_at(&g->side[0].ranks, 0), member = (uint32_t)g->side[0].rec.peer;
        uint32_t to = g->comm && member < g->comm->size ? comm_world(e, g->comm, member) : NO_SOURCE;
        char peer[32];
        (void)snprintf(peer, sizeof(peer), to == NO_SOURCE ? "member %u" : "rank %u", to == NO_SOURCE ? member : to);
        words_add(w,
                  ": in MoE layer %u rank %u sends %" PRIu64 " rows to %s in the recomputed forward, %" PRIu64
                  " in the first one",
                  g->layer, from, g->side[0].rec.count, from == to ? "itself" : peer, g->side[1].rec.count);
    }
    words_add(w, ". Whoever exchanges tokens with such a rank expects the numbers of the first forward, unless its own "
                 "changed in the same way: the exchange waits for ever, or rows go to the wrong tokens. Top-k choices "
                 "between equal scores do this when ties are not broken in a fixed order.");
}

static void words_split_sum(const struct roll_engine *e, const struct gathered *g, struct words *w)
{
    bool one = roll_rankset_count(&g->culprits) == 1, fewer = g->number_of[0] < g->number_of[1];
    (void)e;
    words_ranks(w, &g->culprits);
    words_add(w, one ? " sends" : " send");
    words_add(w, " %s rows than the buffer of the all-to-all has, in ", fewer ? "fewer" : "more");
    gather_place(g, w);
    words_add(w,
              ": %u of %u%s. The routing map has %s entries than tokens times top-k, which the buffer was sized for. ",
              g->number_of[0], g->number_of[1], one ? "" : " on the first of them", fewer ? "fewer" : "more");
    words_add(w, fewer ? "The all-to-all is refused, or sends rows that nobody wrote."
                       : "The all-to-all is refused, or reads beyond the buffer.");
}

static void speak(struct roll_engine *e, uint32_t source, const struct roll_record *rec, enum roll_verdict_code code,
                  const struct split_note *n)
{
    const struct source *s = e->source[source];
    struct member *m = source_member(s, rec->comm);
    bool fresh, recompute = code == ROLL_VERDICT_MOE_RECOMPUTE;
    struct gathered *g = gather_open(e, say_key(code, gather_family(m->comm), 0, 0), code, ROLL_PROVEN, &fresh);
    if (!g) {
        return;
    }
    struct roll_rankset rank = {0};
    (void)roll_rankset_add(&rank, s->world);
    if (fresh) {
        uint64_t ticket = roll_seal_ticket(rec->seal);
        const struct entry *before = NULL, *now = NULL;
        for (uint32_t peer = 0; recompute && peer < m->comm->size; peer++) {
            now = split_to(s, ticket, peer, m->comm->size);
            before = split_to(s, n->ticket, peer, m->comm->size);
            if (now && before && now->rec.count != before->rec.count) {
                break;
            }
        }
        gather_side(g, s, source, &rank, now ? &now->rec : rec);
        if (recompute) {
            gather_side(g, s, source, &rank, before ? &before->rec : NULL);
        }
        g->phase = rec->phase;
        g->remedy = recompute ? ROLL_REMEDY_ROUTING : ROLL_REMEDY_SPLITS;
        g->words = recompute ? words_recompute : words_split_sum;
        g->number_of[0] = (uint32_t)n->sum;
        g->number_of[1] = (uint32_t)n->buffer;
    }
    gather_add(e, g, m->comm, rec->step, rec->microbatch, rec->layer, &rank, NULL);
    comm_mute_at(e, m->comm, s, rec); /* what follows in this exchange is a consequence */
    comm_explained(e, m->comm);
    roll_rankset_fini(&rank);
}

static void list_whole(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                       struct split_note *n)
{
    if (rec->phase == ROLL_PHASE_FORWARD) {
        n->forward = n->hash;
        n->known = n->pending == 1;
        n->ticket = ticket;
        /* UINT32_MAX: the rows may be more than the field can hold */
        if (n->buffer != 0 && n->buffer != UINT32_MAX && n->sum != n->buffer) {
            speak(e, source, rec, ROLL_VERDICT_MOE_SPLIT_SUM, n);
        }
    } else if (n->compares && n->hash != n->forward) {
        speak(e, source, rec, ROLL_VERDICT_MOE_RECOMPUTE, n);
    }
}

/* MOE_COUNTS has come: a new list begins. */
static void begin(struct split_note *n, const struct roll_record *rec)
{
    if (n->step != rec->step || n->microbatch != rec->microbatch) {
        n->pending = 0;
        n->known = false;
    }
    if (rec->phase == ROLL_PHASE_FORWARD) {
        n->pending++;
        n->known = n->compares = false;
    } else {
        n->compares = n->known && n->pending == 1;
        n->pending -= n->pending > 0;
        n->known = false;
    }
    n->step = rec->step;
    n->microbatch = rec->microbatch;
    n->comm = rec->comm;
    n->phase = rec->phase;
    n->buffer = rec->group;
    n->next = 0;
    n->sum = n->hash = 0;
}

static void route_record(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                         bool first)
{
    bool phase = rec->phase == ROLL_PHASE_FORWARD || rec->phase == ROLL_PHASE_RECOMPUTE;
    bool wanted = first && phase && (rec->op == ROLL_OP_MOE_COUNTS || rec->op == ROLL_OP_MOE_SPLIT);
    struct split_note *n = wanted ? note_of(e->source[source], rec) : NULL;
    const struct member *m = n ? source_member(e->source[source], rec->comm) : NULL;
    if (!m || m->comm->size == 0 || m->comm->open) {
        return;
    }
    if (!source_certain(e->source[source], rec)) {
        *n = (struct split_note){.next = NO_SEQ};
        return;
    }
    if (rec->op == ROLL_OP_MOE_COUNTS) {
        begin(n, rec);
        return;
    }
    bool follows = n->step == rec->step && n->microbatch == rec->microbatch && n->phase == rec->phase &&
                   n->comm == rec->comm && rec->peer >= 0 && (uint32_t)rec->peer == n->next;
    if (!follows) {
        n->next = NO_SEQ; /* a split is missing: the list says nothing */
        return;
    }
    n->next++;
    n->sum += rec->count;
    n->hash = say_key(n->hash, rec->count, rec->group, (uint64_t)rec->peer);
    if (n->next == m->comm->size) {
        list_whole(e, source, rec, ticket, n);
    }
}

static void route_source_fini(struct source *s)
{
    if (moe_route_of_source(s)) {
        free(moe_route_of_source(s)->note);
    }
}

const struct detector detect_moe_route = {
    .name = "moe_route", .record = route_record, .source_fini = route_source_fini};
