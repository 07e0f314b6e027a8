/*
 * detect_numbers.c: tensors whose numbers do not agree between ranks, or are not finite.
 *
 * Nothing hangs when a router's gradient is partial on each tensor-parallel rank and is used as if it were whole: the
 * replicas drift apart, and the run is lost (torchtitan #2416, hazard H15). Ranks report facts about such tensors once
 * per step (moe_core/include/moe/observe.h, MOE_TENSOR), and the facts are compared here:
 *
 *   - Checksums of replicas must be equal bit for bit, so a difference is proven. The ranks that do not have the most
 *     common checksum are named, and nobody where there is a tie. Where the gradient of the same tensor was not summed,
 *     that is the cause, and the replicas are a note. They are a note as well where another tensor's gradient was not
 *     summed in an earlier step on the same ranks: everything that is trained together with that tensor drifts with it.
 *   - What is used as a gradient must be the sum of the ranks' shares (of their elements with fixed signs, which is
 *     linear). A difference is proven when rounding cannot explain it. Rounding is bounded by the sum of the absolute
 *     values of all shares: in float32 each addition that reduces n shares loses at most 2^-24 of what it adds up,
 *     whatever cancels, so all of them lose at most n x 2^-24 of that sum; another 1e-4 of it allows for the sums
 *     themselves and for a scaling. The text tells apart a gradient that was never summed and one that was summed
 *     twice.
 *   - Elements that are not finite are proven by the report. Where they lie in experts without rows, memory was never
 *     written (pytorch #154557, H14).
 *
 * The same case in several layers, on several ranks and on communicators of one kind is one finding (gather.h).
 * Comparing a checksum with that of the step before was rejected: every healthy step changes it.
 */
#include "daemon/engine/detect/compare.h"
#include "daemon/engine/detect/detector.h"
#include "daemon/engine/detect/gather.h"

#include <math.h>
#include <string.h>

#define REPLICAS 0x200u
#define SUMS     0x300u
#define ROUNDING 1e-4
#define PER_RANK 0x1p-24 /* the share that each addition of the reduction may lose */
#define SMALLEST 1e-30   /* below this, sums lose more than a share of themselves: denormal numbers */

enum { FACT_REPLICA, FACT_PART, FACT_SUM, FACT_NOTFINITE }; /* the values of enum moe_tensor_fact */
enum { AT_PART, AT_SUM, AT_SIZE, HAVE_BOTH = 1 << AT_PART | 1 << AT_SUM };

static const char *const tensors[] = {"router weight",    "router bias",   "expert bias",  "shared expert",
                                      "experts' weights", "dense weights", "gradient norm"};

/* Values of enum moe_tensor: the tensor of the expert bias; the gradient norm, one number without elements. */
enum { TENSOR_COUNTS = 2, TENSOR_NORM = 6 };

/* What is summed over the ranks, by the same values as `tensors`. */
static const char *const summed[] = {"gradient of the router weight",    "gradient of the router bias",
                                     "count of tokens per expert",       "gradient of the shared expert",
                                     "gradient of the experts' weights", "gradient of the dense weights",
                                     "square of the gradient norm"};

static const char *summed_name(uint32_t tensor)
{
    return tensor < sizeof(summed) / sizeof(summed[0]) ? summed[tensor] : "gradient";
}

static const char *tensor_name(uint32_t tensor)
{
    return tensor < sizeof(tensors) / sizeof(tensors[0]) ? tensors[tensor] : "tensor";
}

static double number(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static double magnitude(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float value;
    memcpy(&value, &low, sizeof(value));
    return (double)value;
}

/* Adds a side that shows one of these ranks. The record of a rank that has just reported is still in its log, so such a
 * rank is preferred. */
static void side_of(struct roll_engine *e, struct gathered *g, const struct comparison *m,
                    const struct roll_rankset *ranks)
{
    const struct report *shown = NULL;
    const struct entry *entry = NULL;
    for (uint32_t r = 0; r < m->members && !entry; r++) {
        const struct report *word = &m->by[r];
        if (word->have != 0 && roll_rankset_has(ranks, e->source[word->source]->world)) {
            shown = shown ? shown : word;
            entry = source_entry(e->source[word->source], word->ticket);
            shown = entry ? word : shown;
        }
    }
    if (shown) {
        gather_side(g, e->source[shown->source], shown->source, ranks, entry ? &entry->rec : NULL);
    }
}

static uint64_t key_of(const struct comm *c, enum roll_verdict_code code, uint32_t topic)
{
    return say_key(code, gather_family(c), topic, 0);
}

static struct gathered *open_finding(struct roll_engine *e, const struct comm *c, const struct comparison *m,
                                     enum roll_verdict_code code, enum roll_certainty certainty, bool *fresh)
{
    struct gathered *g = gather_open(e, key_of(c, code, m->topic), code, certainty, fresh);
    if (g && *fresh) {
        g->phase = ROLL_PHASE_REDUCE;
        g->kind = m->topic & 0xffu;
    }
    return g;
}

/* Adds "MoE layers 0-3, step 2", or only the step for what belongs to no layer. */
static void words_of_place(const struct gathered *g, struct words *w)
{
    if (g->layer == ROLL_LAYER_NONE) {
        words_add(w, "step %u%s", g->step, g->many_steps ? " and later" : "");
    } else {
        gather_place(g, w);
    }
}

/* replicas */

/* The finding whose consequence it is that replicas of this tensor differ since that step: one about the gradient of
 * the tensor itself, or one about another tensor in an earlier step on the same ranks. NULL: none. */
static const struct gathered *reason_to_drift(const struct roll_engine *e, const struct comm *c, uint32_t tensor,
                                              uint32_t step, const struct roll_rankset *ranks)
{
    const struct gathered *own = gather_find(e, key_of(c, ROLL_VERDICT_GRADIENT_NOT_SUMMED, SUMS | tensor));
    for (const struct gathered *g = gather_of_engine(e)->first; !own && g; g = g->next) {
        bool earlier = g->code == ROLL_VERDICT_GRADIENT_NOT_SUMMED && g->kind != TENSOR_NORM && g->step < step;
        for (size_t i = 0; earlier && !own && i < roll_rankset_count(ranks); i++) {
            own = roll_rankset_has(&g->culprits, roll_rankset_at(ranks, i)) ? g : NULL;
        }
    }
    return own;
}

static void words_replica(const struct roll_engine *e, const struct gathered *g, struct words *w)
{
    const struct gathered *sums =
        g->certainty == ROLL_NOTE ? reason_to_drift(e, g->comm, g->kind, g->step, &g->culprits) : NULL;
    words_add(w, "The %s of ", tensor_name(g->kind));
    words_of_place(g, w);
    words_add(w, " should be the same on all ranks of ");
    gather_comm(g, w);
    words_add(w, ": ");
    words_ranks(w, &g->culprits);
    if (g->unnamed) {
        words_add(w, " differ from each other, and no majority says who is right.");
    } else {
        words_add(w, roll_rankset_count(&g->culprits) == 1 ? " has other bits than " : " have other bits than ");
        words_ranks(w, &g->waiting);
        words_add(w, ".");
    }
    if (sums && sums->kind == g->kind) {
        words_add(w, " This is a consequence of the %s, which is not the sum of the shares%s.", summed_name(g->kind),
                  sums->number ? " (told before)" : "");
    } else if (sums) {
        words_add(w,
                  " As far as is known, this is a consequence of the %s, which has not been the sum of the shares "
                  "since step %u%s: what is trained together with it drifts with it.",
                  summed_name(sums->kind), sums->step, sums->number ? " (told before)" : "");
    } else {
        words_add(w, " Three things do this: a gradient that was not reduced over this communicator, a gradient that "
                     "was reduced in another order, and another seed.");
    }
}

static void judge_replicas(struct roll_engine *e, struct comm *c, struct comparison *m)
{
    struct roll_rankset minor = {0}, major = {0};
    uint64_t common = 0;
    bool tie, fresh;
    bool differ = compare_vote(e, m, 0, &common, &minor, &major, &tie);
    if (differ && tie) {
        (void)roll_rankset_union(&minor, &major); /* nobody can say who is right */
    }
    /* Replicas whose gradient was not summed drift apart; that finding is the cause. */
    const struct gathered *sums = differ ? reason_to_drift(e, c, m->topic & 0xffu, m->step, &minor) : NULL;
    struct gathered *g =
        differ ? open_finding(e, c, m, ROLL_VERDICT_REPLICA_MISMATCH, sums ? ROLL_NOTE : ROLL_PROVEN, &fresh) : NULL;
    m->told = differ;
    if (g && fresh && sums) {
        gather_flush_code(e, ROLL_VERDICT_GRADIENT_NOT_SUMMED); /* the cause is said first */
    }
    if (g && fresh) {
        side_of(e, g, m, &minor);
        if (!tie) {
            side_of(e, g, m, &major);
        }
        g->words = words_replica;
        g->unnamed = tie;
        g->remedy = g->kind == 0 && !sums ? ROLL_REMEDY_ROUTER_SUM : 0;
    }
    if (g) {
        g->unnamed = g->unnamed || tie;
        gather_add(e, g, c, m->step, m->microbatch, m->layer, &minor, tie ? NULL : &major);
    }
    roll_rankset_fini(&minor);
    roll_rankset_fini(&major);
}

/* sums */

/* The shares of all ranks added up, and what the ranks use as the sum. */
struct sums {
    double total, bound; /* sum of the shares; how much rounding may change */
    uint32_t own, twice; /* ranks whose gradient is their own share; ranks whose gradient is size times the total */
    uint32_t wrong;
    double got; /* the gradient of the first rank in `wrong` */
};

/* A gradient that is not finite is not counted here: another verdict tells it. */
static bool beyond(const struct sums *s, double got)
{
    return isfinite(got) && fabs(got - s->total) > s->bound;
}

static struct sums add_up(const struct comm *c, const struct comparison *m)
{
    struct sums s = {0};
    for (uint32_t r = 0; r < m->members; r++) {
        s.total += number(m->by[r].value[AT_PART]);
        s.bound += (ROUNDING + PER_RANK * c->size) * magnitude(m->by[r].value[AT_SIZE]);
    }
    s.bound += SMALLEST;
    for (uint32_t r = 0; r < m->members; r++) {
        double part = number(m->by[r].value[AT_PART]), got = number(m->by[r].value[AT_SUM]);
        if (!beyond(&s, got)) {
            continue;
        }
        s.got = s.wrong == 0 ? got : s.got;
        s.wrong++;
        s.own += fabs(got - part) <= s.bound;
        s.twice += fabs(got - c->size * s.total) <= c->size * s.bound;
    }
    return s;
}

/* What may make the sum of such a number wrong, for a reader who knows the training. */
static const char *hint(uint32_t tensor, bool more, bool rounded)
{
    switch (tensor) {
    case TENSOR_COUNTS:
        return more ? "Counts that are taken again in recomputation do this, or that are reduced once too often. The "
                      "bias is then moved by the wrong load."
               : rounded ? "Counts reduced in bfloat16 (which holds 8 bits of them) do this. The bias is then moved by "
                           "the wrong load."
                         : "Counts reduced over another group than all ranks that share the experts' bias do this, or "
                           "in bfloat16 (which holds 8 bits of them). The bias is then moved by the wrong load.";
    case TENSOR_NORM:
        return more ? "A parameter that several ranks hold a copy of was counted more than once: experts are copied "
                      "over "
                      "the expert-data-parallel ranks, not over all data-parallel ones. All gradients are then clipped "
                      "too much."
                    : "A parameter that lies on one rank only was left out. Gradients are then clipped too little.";
    default:
        return "A reduction over another group, in another datatype, or with another scaling does this.";
    }
}

enum { NEVER, TWICE, OTHERWISE }; /* number_of[0] of a gathering about sums */

static void words_sums(const struct roll_engine *e, const struct gathered *g, struct words *w)
{
    double total = g->amount[0], got = g->amount[1];
    bool one = roll_rankset_count(&g->culprits) == 1;
    (void)e;
    if (g->kind == TENSOR_NORM) {
        words_add(w, "The gradient norm of ");
        words_of_place(g, w);
        words_add(w, " is not that of the gradients: their squares on all ranks of ");
        gather_comm(g, w);
        words_add(w, " add up to %.5g, ", total);
        words_ranks(w, &g->culprits);
        words_add(w, one ? " works with %.5g" : " work with %.5g", got);
        if (total > 0) {
            words_add(w, " (%.2g %% %s)", fabs(got - total) / total * 100, got > total ? "more" : "less");
        }
        words_add(w, ". %s", hint(g->kind, got > total, false));
        return;
    }
    words_add(w, "Each rank of ");
    gather_comm(g, w);
    words_add(w, " has only its share of the %s of ", summed_name(g->kind));
    words_of_place(g, w);
    if (g->number_of[0] == NEVER) {
        words_add(w, ", and ");
        words_ranks(w, &g->culprits);
        words_add(w, one ? " uses its own share without the others': it was never summed."
                         : " use their own shares without the others': they were never summed.");
    } else if (g->number_of[0] == TWICE) {
        words_add(w, ", and what is used is %u times their sum: it was reduced once more than it should be.",
                  g->comm->size);
    } else if (total != 0 && fabs(got / total - 2) < ROUNDING) {
        words_add(w, ", and what is used is twice their sum: something was added a second time. %s",
                  hint(g->kind, true, false));
    } else {
        words_add(w, ", and what ");
        words_ranks(w, &g->culprits);
        words_add(w, one ? " uses is not their sum" : " use is not their sum");
        double off = total != 0 ? fabs(got - total) / fabs(total) * 100 : 100;
        if (total != 0) {
            words_add(w,
                      off < 1 ? " (a checksum of it is off by %.2f %%: more than rounding explains)"
                              : " (a checksum of it is off by %.0f %%)",
                      off);
        }
        words_add(w, ". %s", hint(g->kind, false, off < 1));
    }
}

static void judge_sums(struct roll_engine *e, struct comm *c, struct comparison *m)
{
    struct sums s = add_up(c, m);
    bool fresh;
    m->told = s.wrong > 0;
    if (s.wrong == 0 || c->size < 2) {
        return;
    }
    struct roll_rankset culprits = {0};
    for (uint32_t r = 0; r < m->members; r++) {
        if (beyond(&s, number(m->by[r].value[AT_SUM]))) {
            (void)roll_rankset_add(&culprits, e->source[m->by[r].source]->world);
        }
    }
    struct gathered *g = open_finding(e, c, m, ROLL_VERDICT_GRADIENT_NOT_SUMMED, ROLL_PROVEN, &fresh);
    if (g && fresh) {
        side_of(e, g, m, &culprits);
        g->words = words_sums;
        g->number_of[0] = s.own == s.wrong && s.twice < s.wrong ? NEVER : s.twice == s.wrong ? TWICE : OTHERWISE;
        g->remedy = g->number_of[0] == NEVER && g->kind == 0 ? ROLL_REMEDY_ROUTER_SUM : 0;
        g->amount[0] = s.total;
        g->amount[1] = s.got;
    }
    if (g) {
        gather_add(e, g, c, m->step, m->microbatch, m->layer, &culprits, NULL);
    }
    roll_rankset_fini(&culprits);
}

/* numbers that are not finite */

static void words_not_finite(const struct roll_engine *e, const struct gathered *g, struct words *w)
{
    bool one = roll_rankset_count(&g->culprits) == 1;
    (void)e;
    words_add(w, "On ");
    words_ranks(w, &g->culprits);
    words_add(w, " the gradient of the %s of ", tensor_name(g->kind));
    words_of_place(g, w);
    words_add(w, " holds elements that are no finite number (NaN or infinity), before it was reduced: %u%s.",
              g->number_of[0], one && roll_rankset_count(&g->layers) < 2 ? "" : " in the first case");
    if (g->number_of[1] > 0) {
        words_add(w,
                  " %s belong to experts that received no rows in this step: nobody wrote their gradient, and what lay "
                  "in that memory was taken for it.",
                  g->number_of[1] >= g->number_of[0] ? "They all" : "Some of them");
    } else {
        words_add(w, " The first rank, layer and step that report it are where it began: look there for an overflow, a "
                     "division by zero, or memory that nobody wrote.");
    }
}

static void tell_not_finite(struct roll_engine *e, uint32_t source, const struct roll_record *rec)
{
    const struct source *s = e->source[source];
    struct member *m = source_member(s, rec->comm);
    bool fresh, unwritten = rec->group > 0;
    uint64_t key = say_key(ROLL_VERDICT_GRADIENT_NOT_FINITE, (uint64_t)rec->peer, unwritten, 0);
    struct gathered *g = gather_open(e, key, ROLL_VERDICT_GRADIENT_NOT_FINITE, ROLL_PROVEN, &fresh);
    if (!g) {
        return;
    }
    struct roll_rankset rank = {0};
    (void)roll_rankset_add(&rank, s->world);
    if (fresh) {
        gather_side(g, s, source, &rank, rec);
        g->phase = rec->phase;
        g->kind = (uint32_t)rec->peer;
        g->number_of[0] = (uint32_t)rec->count;
        g->number_of[1] = rec->group;
        g->remedy = unwritten ? ROLL_REMEDY_ZERO_WGRAD : 0;
        g->words = words_not_finite;
    }
    gather_add(e, g, m ? m->comm : NULL, rec->step, rec->microbatch, rec->layer, &rank, NULL);
    roll_rankset_fini(&rank);
}

/* the detector */

static void judge(struct roll_engine *e, struct comm *c, struct comparison *m)
{
    bool sums = (m->topic & ~0xffu) == SUMS;
    if (!compare_whole(c, m)) {
        /* A sum needs all shares; and replicas that differ hang nothing, so waiting for the last one loses nothing. */
        return;
    }
    if (sums) {
        judge_sums(e, c, m);
    } else {
        judge_replicas(e, c, m);
    }
    compare_drop(c, m);
}

static void numbers_record(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                           bool first)
{
    if (!first || rec->op != ROLL_OP_MOE_TENSOR || rec->peer < 0 || rec->peer > 0xff) {
        return;
    }
    uint32_t tensor = (uint32_t)rec->peer;
    struct comparison *m = NULL;
    switch (rec->aux) {
    case FACT_REPLICA:
        m = compare_say(e, source, rec, ticket, REPLICAS | tensor, 0, rec->count, 1);
        break;
    case FACT_PART:
        (void)compare_say(e, source, rec, ticket, SUMS | tensor, AT_SIZE, rec->group, HAVE_BOTH);
        m = compare_say(e, source, rec, ticket, SUMS | tensor, AT_PART, rec->count, HAVE_BOTH);
        break;
    case FACT_SUM:
        m = compare_say(e, source, rec, ticket, SUMS | tensor, AT_SUM, rec->count, HAVE_BOTH);
        break;
    case FACT_NOTFINITE:
        tell_not_finite(e, source, rec);
        break;
    default:
        break;
    }
    if (m) {
        judge(e, source_member(e->source[source], rec->comm)->comm, m);
    }
}

const struct detector detect_numbers = {.name = "numbers", .record = numbers_record};
