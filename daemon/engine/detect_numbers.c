/*
 * detect_numbers.c: tensors whose numbers do not agree between ranks, or are none.
 *
 * Nothing hangs when a router's gradient is partial on each tensor-parallel rank and is used as if it were whole: the replicas drift apart and the run is lost
 * (torchtitan #2416, hazard H15). Ranks report facts about such tensors once per step (moe_core/include/moe/observe.h, MOE_TENSOR), and here they meet:
 *   - checksums of replicas must be equal: bit for bit, so a difference is proven. Ranks named: not the commonest; with two, both;
 *   - what is used as a gradient must be the sum of the shares (of their elements with fixed signs, which is linear): proven when it differs by more than
 *     rounding can. Rounding is bounded by the sum of the shares' absolute values: in float32 each of the additions that reduce n shares loses at most
 *     2^-24 of what it adds up, whatever cancels, so n x 2^-24 of it; 1e-4 of it is for the sums themselves and for a scaling. Never summed, and summed
 *     twice, are told apart;
 *   - elements that are not finite: proven by the report. Where they lie in experts without rows, memory was never written (pytorch #154557, H14).
 * Comparing a checksum with the step before was rejected: every healthy step changes it.
 */
#include "daemon/engine/detector.h"
#include "daemon/engine/meeting.h"

#include <math.h>
#include <string.h>

#define REPLICAS 0x200u
#define SUMS     0x300u
#define ROUNDING 1e-4
#define PER_RANK 0x1p-24 /* each addition of the reduction */
#define SMALLEST 1e-30   /* below this sums lose more than a share of themselves: denormal numbers */

enum { FACT_REPLICA, FACT_PART, FACT_SUM, FACT_NOTFINITE }; /* enum moe_tensor_fact */
enum { AT_PART, AT_SUM, AT_SIZE, HAVE_BOTH = 1 << AT_PART | 1 << AT_SUM };

static const char *const tensors[] = {"router weight",    "router bias",   "expert bias",  "shared expert",
                                      "experts' weights", "dense weights", "gradient norm"};

enum { TENSOR_NORM = 6 }; /* enum moe_tensor: one number, no elements */

/* What is summed over the ranks, by the same numbers. */
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

static void words_where(struct words *w, uint32_t step, uint16_t microbatch, uint16_t layer)
{
    if (layer == ROLL_LAYER_NONE) {
        words_add(w, "step %u", step);
    } else {
        words_place(w, step, microbatch, layer);
    }
}

static void side_of(struct roll_engine *e, struct roll_verdict *v, const struct meeting *m,
                    const struct roll_rankset *ranks)
{
    for (uint32_t r = 0; r < m->members; r++) {
        const struct word_of *word = &m->by[r];
        if (word->have != 0 && roll_rankset_has(ranks, e->source[word->source]->world)) {
            const struct entry *entry = source_entry(e->source[word->source], word->ticket);
            say_side(v, e->source[word->source], word->source, ranks, entry ? &entry->rec : NULL);
            return;
        }
    }
}

static struct roll_verdict *speak(struct roll_engine *e, const struct comm *c, const struct meeting *m,
                                  enum roll_verdict_code code, const struct roll_rankset *culprits)
{
    struct roll_verdict *v = say_once(e, say_key(code, c->key, m->layer, m->topic)) ? say(e, code, ROLL_PROVEN) : NULL;
    if (v) {
        say_comm(v, c, 0);
        (void)roll_rankset_copy(&v->culprits, culprits);
        v->step = m->step;
        v->microbatch = m->microbatch;
        v->layer = m->layer;
        v->phase = ROLL_PHASE_REDUCE;
    }
    return v;
}

/* --- replicas --- */

static void judge_replicas(struct roll_engine *e, struct comm *c, struct meeting *m)
{
    struct roll_rankset minor = {0}, major = {0};
    uint64_t common = 0;
    bool tie;
    struct roll_verdict *v = NULL;
    bool differ = meeting_vote(e, m, 0, &common, &minor, &major, &tie);
    m->told = differ;
    if (differ && tie) {
        (void)roll_rankset_union(&minor, &major); /* nobody can say who is right */
    }
    v = differ ? speak(e, c, m, ROLL_VERDICT_REPLICA_MISMATCH, &minor) : NULL;
    if (v) {
        struct words w = {.used = 0};
        side_of(e, v, m, &minor);
        if (!tie) {
            side_of(e, v, m, &major);
        }
        words_add(&w, "The %s of ", tensor_name(m->topic - REPLICAS));
        words_where(&w, m->step, m->microbatch, m->layer);
        words_add(&w, " should be the same on all ranks of ");
        words_comm(&w, c);
        words_add(&w, " and is not: ");
        words_ranks(&w, &minor);
        words_add(&w, tie                               ? " differ, and no majority says who is right."
                      : roll_rankset_count(&minor) == 1 ? " differs from "
                                                        : " differ from ");
        if (!tie) {
            words_ranks(&w, &major);
            words_add(&w, ".");
        }
        words_add(&w, " A gradient that was not reduced over this communicator does this, one that was reduced in "
                      "another order, or another seed.");
        v->remedy = m->topic - REPLICAS == 0 ? ROLL_REMEDY_ROUTER_SUM : 0;
        say_text(e, v, "%s", w.text);
    }
    roll_rankset_fini(&minor);
    roll_rankset_fini(&major);
}

/* --- sums --- */

struct sums {
    double total, bound; /* sum of the shares; what rounding may change */
    uint32_t own, twice; /* ranks whose gradient is their own share; is size x the total */
    uint32_t wrong;
    double got; /* of the first wrong one */
};

/* What is no number, or too large for one, is another verdict's. */
static bool beyond(const struct sums *s, double got)
{
    return isfinite(got) && fabs(got - s->total) > s->bound;
}

static struct sums add_up(const struct comm *c, const struct meeting *m)
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

static void judge_sums(struct roll_engine *e, struct comm *c, struct meeting *m)
{
    struct sums s = add_up(c, m);
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
    struct roll_verdict *v = speak(e, c, m, ROLL_VERDICT_GRADIENT_NOT_SUMMED, &culprits);
    if (v) {
        struct words w = {.used = 0};
        side_of(e, v, m, &culprits);
        words_add(&w, "The %s of ", summed_name(m->topic - SUMS));
        words_where(&w, m->step, m->microbatch, m->layer);
        words_add(&w, " is partial on each rank of ");
        words_comm(&w, c);
        if (s.own == s.wrong && s.twice < s.wrong) {
            words_add(&w, ", and ");
            words_ranks(&w, &culprits);
            words_add(&w, roll_rankset_count(&culprits) == 1 ? " uses its own share" : " use their own shares");
            words_add(&w, " without the others': it was never summed.");
            v->remedy = m->topic - SUMS == 0 ? ROLL_REMEDY_ROUTER_SUM : 0;
        } else if (s.twice == s.wrong) {
            words_add(&w, ", and what is used is %u times the sum of the shares: it was reduced twice.", c->size);
        } else {
            words_add(&w, ", and what is used is not the sum of the shares: they add up to %.6g, %.6g is used%s.",
                      s.total, s.got, m->topic - SUMS == TENSOR_NORM ? "" : " (elements taken with fixed signs)");
        }
        if (v->remedy != 0) {
            words_remedy(&w, e, v->remedy, c->key, m->layer);
        }
        say_text(e, v, "%s", w.text);
    }
    roll_rankset_fini(&culprits);
}

/* --- not finite --- */

static void tell_not_finite(struct roll_engine *e, uint32_t source, const struct roll_record *rec)
{
    const struct source *s = e->source[source];
    const struct member *m = source_member(s, rec->comm);
    struct roll_verdict *v =
        say_once(e, say_key(ROLL_VERDICT_GRADIENT_NOT_FINITE, s->world, rec->layer, (uint64_t)rec->peer))
            ? say(e, ROLL_VERDICT_GRADIENT_NOT_FINITE, ROLL_PROVEN)
            : NULL;
    if (!v) {
        return;
    }
    struct words w = {.used = 0};
    (void)roll_rankset_add(&v->culprits, s->world);
    say_side(v, s, source, &v->culprits, rec);
    if (m) {
        say_comm(v, m->comm, 0);
    }
    v->step = rec->step;
    v->microbatch = rec->microbatch;
    v->layer = rec->layer;
    v->phase = rec->phase;
    words_add(&w, "Rank %u: %llu elements of the gradient of the %s are no finite number, in ", s->world,
              (unsigned long long)rec->count, tensor_name((uint32_t)rec->peer));
    words_where(&w, rec->step, rec->microbatch, rec->layer);
    if (rec->group > 0) {
        v->remedy = ROLL_REMEDY_ZERO_WGRAD;
        words_add(&w, ". %u of them belong to experts that received no rows: their gradient was never written.",
                  rec->group);
        words_remedy(&w, e, v->remedy, m ? m->comm->key : 0, rec->layer);
    } else {
        words_add(&w, ", before it was reduced: the first rank, layer and step that report it are where it began.");
    }
    say_text(e, v, "%s", w.text);
}

/* --- the detector --- */

static void judge(struct roll_engine *e, struct comm *c, struct meeting *m)
{
    bool sums = (m->topic & ~0xffu) == SUMS;
    if (!meeting_whole(c, m)) {
        return; /* a sum needs all shares; replicas that differ are no hang: nothing is lost by waiting for the last one */
    }
    if (sums) {
        judge_sums(e, c, m);
    } else {
        judge_replicas(e, c, m);
    }
    meeting_drop(c, m);
}

static void numbers_record(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                           bool first)
{
    if (!first || rec->op != ROLL_OP_MOE_TENSOR || rec->peer < 0 || rec->peer > 0xff) {
        return;
    }
    uint32_t tensor = (uint32_t)rec->peer;
    struct meeting *m = NULL;
    switch (rec->aux) {
    case FACT_REPLICA:
        m = meeting_say(e, source, rec, ticket, REPLICAS | tensor, 0, rec->count, 1);
        break;
    case FACT_PART:
        (void)meeting_say(e, source, rec, ticket, SUMS | tensor, AT_SIZE, rec->group, HAVE_BOTH);
        m = meeting_say(e, source, rec, ticket, SUMS | tensor, AT_PART, rec->count, HAVE_BOTH);
        break;
    case FACT_SUM:
        m = meeting_say(e, source, rec, ticket, SUMS | tensor, AT_SUM, rec->count, HAVE_BOTH);
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
