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
 * The rule is trace/route.h, which says what is compared with what.
 */
#include "daemon/base/array.h"
#include "daemon/engine/detect/detector.h"
#include "daemon/engine/detect/gather.h"
#include "trace/route.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct split_note {
    struct roll_route route;
    uint64_t ticket; /* of the last split of the newest forward that was whole */
};

struct moe_route_source {
    struct split_note *note; /* by roll_route_place; owned */
    size_t notes;
};
STATE_OF_SOURCE(moe_route)

static struct split_note *note_of(struct source *s, const struct roll_record *rec)
{
    int64_t at = roll_route_place(rec);
    struct moe_route_source *t = at >= 0 ? moe_route_make_source(s) : NULL;
    return t && ROLL_GROW_ZERO(t->note, t->notes, (size_t)at + 1) == 0 ? &t->note[at] : NULL;
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
        g->number_of[0] = (uint32_t)n->route.sum;
        g->number_of[1] = n->route.buffer;
    }
    gather_add(e, g, m->comm, rec->step, rec->microbatch, rec->layer, &rank, NULL);
    comm_mute_behind(e, m, s, rec); /* what follows in this exchange is a consequence */
    comm_explained(e, m->comm);
    roll_rankset_fini(&rank);
}

static void route_record(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                         bool first)
{
    struct split_note *n = first ? note_of(e->source[source], rec) : NULL;
    const struct member *m = n ? source_member(e->source[source], rec->comm) : NULL;
    if (!m || m->comm->size == 0 || m->comm->open) {
        return;
    }
    if (!source_certain(e->source[source], rec)) {
        roll_route_lost(&n->route);
        return;
    }
    enum roll_route_says says = roll_route_take(&n->route, rec, m->comm->size);
    if (says == ROLL_ROUTE_FORWARD || says == ROLL_ROUTE_SPLIT_SUM) {
        n->ticket = ticket;
    }
    if (says == ROLL_ROUTE_SPLIT_SUM) {
        speak(e, source, rec, ROLL_VERDICT_MOE_SPLIT_SUM, n);
    } else if (says == ROLL_ROUTE_RECOMPUTE) {
        speak(e, source, rec, ROLL_VERDICT_MOE_RECOMPUTE, n);
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
