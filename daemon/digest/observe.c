/*
 * observe.c: see observe.h.
 *
 * The first report of a member about a topic in a step meets the first reports of the others, the second the second
 * ones: so the engine compares (compare.c), and so a place is made of step, topic, layer, microbatch and how often. The
 * numbers of a step say nothing where records of the step are missing, nor where a fold began in the middle of it. To
 * count all observations of a communicator, as collectives are counted, was rejected: a fold that was started anew
 * would never know its number again.
 */
#include "daemon/base/array.h"
#include "daemon/digest/observe_state.h"
#include "trace/op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define UNIFORMS    3u /* kinds of equal numbers that the engine knows */
#define COUNT_MOST  UINT16_MAX
#define OBLIGATIONS 1u /* topics; those of tensors and numbers bear what they are about below the hundreds */
#define NUMBERS     0x100u
#define REPLICAS    0x200u
#define SUMS        0x300u
#define OF_PART     0x10000u /* parts and sums are counted apart, and meet by number */
#define SEEN_ANEW   4096u    /* slots of a map that are emptied with a step; a larger one is made anew */

enum { FACT_REPLICA, FACT_PART, FACT_SUM, FACT_NOTFINITE }; /* the values of enum moe_tensor_fact */

static struct roll_observed_line *line_of(struct roll_observed *o, const struct roll_record *rec)
{
    if (ROLL_GROW_ZERO(o->line, o->lines, (size_t)rec->comm + 1) != 0) {
        return NULL;
    }
    if (!o->line[rec->comm]) {
        o->line[rec->comm] = calloc(1, sizeof(struct roll_observed_line));
    }
    return o->line[rec->comm];
}

void roll_observed_forget(struct roll_observed *o, uint32_t comm)
{
    struct roll_observed_line *l = o && comm < o->lines ? o->line[comm] : NULL;
    if (l) {
        roll_map_fini(&l->seen);
        free(l->count);
        free(l->like);
        free(l->share);
        free(l);
        o->line[comm] = NULL;
    }
}

void roll_observed_destroy(struct roll_observed **pointer)
{
    struct roll_observed *o = *pointer;
    for (size_t i = 0; o && i < o->lines; i++) {
        roll_observed_forget(o, (uint32_t)i);
    }
    if (o) {
        roll_map_fini(&o->route_at);
        free(o->line);
        free(o->route);
        free(o);
    }
    *pointer = NULL;
}

void roll_observed_lost(struct roll_observed *o)
{
    if (!o) {
        return;
    }
    o->gap = o->list_broken = o->outside_lost = true;
}

/* places */

/* The member is in the record's step; false: what it tells cannot be compared. */
static bool moment(struct roll_observed *o, struct roll_observed_line *l, const struct roll_record *rec)
{
    if (!roll_observed_certain(o, rec)) {
        return false;
    }
    if (rec->step == ROLL_STEP_NONE) {
        return !o->outside_lost;
    }
    if (!l->spoken || rec->step != l->step) {
        l->turn += l->spoken && rec->step < l->step;
        l->step = rec->step;
        l->spoken = true;
        l->counts = 0;
        if (l->seen.slots > SEEN_ANEW) {
            roll_map_fini(&l->seen);
        } else if (l->seen.used != 0) {
            memset(l->seen.slot, 0, l->seen.slots * sizeof(*l->seen.slot));
            l->seen.used = 0;
        }
    }
    return true;
}

/* How often the member has told of this in the step, counting from 0; negative: that is not known. */
static int64_t times(struct roll_observed_line *l, uint64_t what)
{
    uint32_t at = roll_map_get(&l->seen, what);
    if (at == ROLL_MAP_NONE) {
        if (l->counts == COUNT_MOST || ROLL_GROW(l->count, l->room, l->counts + 1) != 0 ||
            roll_map_add(&l->seen, what, (uint32_t)l->counts) != 0) {
            return ROLL_E_NOMEM;
        }
        l->count[l->counts++] = 1;
        return 0;
    }
    return l->count[at] < UINT16_MAX ? l->count[at]++ : ROLL_E_LIMIT;
}

/* The place of what the record tells; `apart`: a topic that is counted for itself. 0: it is not known. */
static uint64_t place_of(struct roll_observed_line *l, const struct roll_record *rec, uint32_t topic, uint32_t apart)
{
    bool list = topic == OBLIGATIONS; /* these are compared whatever the phase */
    uint64_t what = roll_observed_mix((uint64_t)topic << 32 | (list ? 0 : rec->phase),
                                      (uint64_t)rec->microbatch << 16 | rec->layer);
    int64_t count = rec->step == ROLL_STEP_NONE ? (int64_t)l->outside++ : times(l, roll_observed_mix(what, apart));
    if (count < 0) {
        return 0;
    }
    uint64_t when = (uint64_t)l->turn << 32 | rec->step;
    return roll_observed_mix(roll_observed_mix(what, when), (uint64_t)count) | 1;
}

static int tell(struct roll_observed_line *l, uint64_t key, uint64_t place, uint64_t hash, uint32_t step)
{
    if (place == 0) {
        return 0;
    }
    l->like = l->like ? l->like : calloc(ROLL_OBSERVED_LIKES, sizeof(*l->like));
    if (!l->like) {
        return ROLL_E_NOMEM;
    }
    l->like[l->likes++ % ROLL_OBSERVED_LIKES] = (struct roll_digest_like){
        .key = key, .place = place, .hash = hash, .why = ROLL_HINT_OBSERVED, .seq = roll_observed_step(step)};
    return 0;
}

/* lists of obligations */

static void take_obligation(struct roll_observed *o, const struct roll_record *rec)
{
    if (rec->seq == 0) {
        o->listed = 0;
        o->list_broken = false;
    }
    o->list_any = true;
    o->list_step = rec->step;
    o->list_microbatch = rec->microbatch;
    o->list_layer = rec->layer;
    if (o->listed != rec->seq || o->listed == ROLL_OBSERVED_LIST) {
        o->list_broken = true;
        return;
    }
    o->list[o->listed].op = (uint32_t)rec->peer;
    o->list[o->listed++].comm = rec->comm;
}

static int take_list(struct roll_observed *o, const struct roll_record *rec, uint64_t key, uint32_t size)
{
    bool whole = !o->list_broken && o->listed == rec->count &&
                 (o->listed == 0 ||
                  (o->list_step == rec->step && o->list_layer == rec->layer && o->list_microbatch == rec->microbatch));
    uint64_t hash = rec->count;
    for (uint32_t i = 0; i < o->listed; i++) { /* other communicators differ from member to member by design */
        hash = roll_observed_mix(hash, (uint64_t)o->list[i].op << 1 | (o->list[i].comm == rec->comm));
    }
    o->listed = 0;
    o->list_broken = false;
    struct roll_observed_line *l = size != 0 ? line_of(o, rec) : NULL;
    if (!l) {
        return size != 0 ? ROLL_E_NOMEM : 0;
    }
    if (!moment(o, l, rec)) {
        return 0;
    }
    if (!whole) { /* the rank's later lists would be compared with the wrong ones */
        o->gap = true;
        return 0;
    }
    return tell(l, key, place_of(l, rec, OBLIGATIONS, 0), hash, rec->step);
}

/* numbers */

static double number(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static double magnitude(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return (double)value;
}

/* The share of this place, to which the other side may have been told already. */
static struct roll_observed_share *share_at(struct roll_observed_line *l, uint64_t key, uint64_t place, uint32_t step)
{
    uint64_t oldest = l->shares > ROLL_OBSERVED_SHARES ? l->shares - ROLL_OBSERVED_SHARES : 0;
    for (uint64_t i = l->shares; l->share && i-- > oldest;) {
        if (l->share[i % ROLL_OBSERVED_SHARES].said.place == place) {
            return &l->share[i % ROLL_OBSERVED_SHARES];
        }
    }
    l->share = l->share ? l->share : calloc(ROLL_OBSERVED_SHARES, sizeof(*l->share));
    if (!l->share) {
        return NULL;
    }
    struct roll_observed_share *s = &l->share[l->shares++ % ROLL_OBSERVED_SHARES];
    *s = (struct roll_observed_share){
        .said = {.key = key, .place = place, .members = 1, .seq = roll_observed_step(step)}};
    return s;
}

static int take_share(struct roll_observed_line *l, const struct roll_record *rec, uint64_t key)
{
    bool part = rec->aux == FACT_PART;
    uint64_t place = place_of(l, rec, SUMS | (uint32_t)rec->peer, part ? OF_PART : 0);
    struct roll_observed_share *s = place != 0 ? share_at(l, key, place, rec->step) : NULL;
    if (!s) {
        return place != 0 ? ROLL_E_NOMEM : 0;
    }
    double value = number(rec->count);
    if (part) {
        s->said.part = value;
        s->said.size = magnitude(rec->group);
        s->part = isfinite(value) && isfinite(s->said.size); /* else rounding explains everything */
    } else {
        s->said.least = isfinite(value) ? value : INFINITY;
        s->said.most = isfinite(value) ? value : -INFINITY;
        s->sum = true;
    }
    return 0;
}

static int take_tensor(struct roll_observed *o, const struct roll_record *rec, uint64_t key, uint32_t size)
{
    if (rec->peer < 0 || rec->peer > 0xff) {
        return 0;
    }
    if (rec->aux == FACT_NOTFINITE) {
        return 1;
    }
    if (size == 0 || rec->aux > FACT_NOTFINITE) {
        return 0;
    }
    struct roll_observed_line *l = line_of(o, rec);
    if (!l) {
        return ROLL_E_NOMEM;
    }
    if (!moment(o, l, rec)) {
        return 0;
    }
    if (rec->aux != FACT_REPLICA) {
        return take_share(l, rec, key);
    }
    return tell(l, key, place_of(l, rec, REPLICAS | (uint32_t)rec->peer, 0), rec->count, rec->step);
}

static int take_uniform(struct roll_observed *o, const struct roll_record *rec, uint64_t key, uint32_t size)
{
    if (rec->peer < 0 || (uint32_t)rec->peer >= UNIFORMS || size == 0) {
        return 0;
    }
    struct roll_observed_line *l = line_of(o, rec);
    if (!l) {
        return ROLL_E_NOMEM;
    }
    return moment(o, l, rec) ? tell(l, key, place_of(l, rec, NUMBERS | (uint32_t)rec->peer, 0), rec->count, rec->step)
                             : 0;
}

/* records */

static void note_step(struct roll_observed *o, const struct roll_record *rec)
{
    uint64_t newest = (o->steps - 1) % ROLL_OBSERVED_STEPS;
    if (rec->step != ROLL_STEP_NONE && (o->steps == 0 || o->begin[newest].step != rec->step)) {
        uint64_t at = o->steps++ % ROLL_OBSERVED_STEPS;
        o->begin[at].ticket = o->last;
        o->begin[at].step = rec->step;
    }
    o->last = roll_seal_ticket(rec->seal);
}

int roll_observed_record(struct roll_observed **pointer, const struct roll_record *rec, uint64_t key, uint32_t size,
                         bool whole)
{
    struct roll_observed *o = *pointer;
    if (!o) {
        o = *pointer = calloc(1, sizeof(*o));
        if (!o) {
            return ROLL_E_NOMEM;
        }
        o->gap = o->outside_lost = !whole;
        o->last = whole ? 0 : roll_seal_ticket(rec->seal);
    }
    note_step(o, rec);
    switch (rec->op) {
    case ROLL_OP_MOE_OBLIGE:
        take_obligation(o, rec);
        return 0;
    case ROLL_OP_MOE_OBLIGE_END:
        return take_list(o, rec, key, size);
    case ROLL_OP_MOE_UNIFORM:
        return take_uniform(o, rec, key, size);
    case ROLL_OP_MOE_TENSOR:
        return take_tensor(o, rec, key, size);
    case ROLL_OP_MOE_COUNTS:
    case ROLL_OP_MOE_SPLIT:
        return roll_observed_route(o, rec, size);
    case ROLL_OP_MOE_REMEDY: {
        bool news = !o->remedied;
        o->remedied = true; /* once: what acts in every step is told once as well */
        return news;
    }
    default:
        return 0;
    }
}

uint64_t roll_observed_begin(const struct roll_observed *o, uint32_t step)
{
    if (!o || step == 0) {
        return UINT64_MAX;
    }
    if (step == ROLL_OBSERVED_OUTSIDE) {
        return 0;
    }
    uint64_t oldest = o->steps > ROLL_OBSERVED_STEPS ? o->steps - ROLL_OBSERVED_STEPS : 0;
    bool before = false;
    for (uint64_t i = o->steps; i-- > oldest;) {
        uint32_t at = roll_observed_step(o->begin[i % ROLL_OBSERVED_STEPS].step);
        if (at == step) {
            return o->begin[i % ROLL_OBSERVED_STEPS].ticket;
        }
        before = before || at > step;
    }
    return before && o->steps > oldest ? o->begin[oldest % ROLL_OBSERVED_STEPS].ticket : UINT64_MAX;
}

bool roll_observed_forgot(const struct roll_observed *o, uint32_t step)
{
    uint64_t oldest = o && o->steps > ROLL_OBSERVED_STEPS ? o->steps - ROLL_OBSERVED_STEPS : 0;
    bool before = false; /* a later step is known */
    for (uint64_t i = o && oldest > 0 && step > ROLL_OBSERVED_OUTSIDE ? o->steps : oldest; i-- > oldest;) {
        uint32_t at = roll_observed_step(o->begin[i % ROLL_OBSERVED_STEPS].step);
        if (at == step || (before && at < step)) { /* known, or left out by the rank */
            return false;
        }
        before = before || at > step;
    }
    return before;
}

/* cuts */

void roll_observed_cut(struct roll_observed *o, struct roll_digest *out)
{
    for (size_t i = 0; o && i < o->lines; i++) {
        struct roll_observed_line *l = o->line[i];
        if (!l) {
            continue;
        }
        uint64_t from = l->likes > ROLL_OBSERVED_LIKES ? l->likes - ROLL_OBSERVED_LIKES : 0;
        for (uint64_t k = l->likes_told > from ? l->likes_told : from; k < l->likes; k++) {
            roll_digest_add_like(out, &l->like[k % ROLL_OBSERVED_LIKES]);
        }
        l->likes_told = l->likes;
        from = l->shares > ROLL_OBSERVED_SHARES ? l->shares - ROLL_OBSERVED_SHARES : 0;
        uint64_t next = l->shares;
        for (uint64_t k = l->shares_told > from ? l->shares_told : from; k < l->shares; k++) {
            struct roll_observed_share *s = &l->share[k % ROLL_OBSERVED_SHARES];
            bool both = s->part && s->sum;
            if (both && !s->told) {
                roll_digest_add_share(out, &s->said);
            }
            s->told = both;
            next = both || next < k ? next : k; /* the other side is still to come */
        }
        l->shares_told = next;
    }
}

void roll_observed_again(struct roll_observed *o)
{
    for (size_t i = 0; o && i < o->lines; i++) {
        struct roll_observed_line *l = o->line[i];
        if (l) {
            l->likes_told = l->shares_told = 0;
            for (size_t k = 0; l->share && k < ROLL_OBSERVED_SHARES; k++) {
                l->share[k].told = false;
            }
        }
    }
}
