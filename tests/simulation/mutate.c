/*
 * mutate.c: see mutate.h: which mistake, and where. A mistake is described by unit, communicator and ranks, so that it
 * can be made again in a smaller version of the program. mutate_make.c makes it.
 */
#include "tests/simulation/mutate.h"

#include <string.h>

static const char *const names[MUTATION_KINDS] = {
#define MUTATION_ROW(name, text) text,
#include "tests/simulation/mutation.def"
#undef MUTATION_ROW
};

const char *mutation_name(enum mutation_kind kind)
{
    return kind < MUTATION_KINDS ? names[kind] : "none";
}

enum mutation_kind mutation_by_name(const char *name)
{
    for (unsigned i = 0; i < MUTATION_KINDS; i++) {
        if (strcmp(names[i], name) == 0) {
            return (enum mutation_kind)i;
        }
    }
    return MUTATION_NONE;
}

bool mutation_is_double(const struct mutation *k)
{
    return k->kind == MUTATION_AFTER_REDOP || k->kind == MUTATION_AFTER_PAUSE;
}

struct mutation mutation_first(const struct mutation *k)
{
    struct mutation one = *k;
    one.kind = k->kind == MUTATION_AFTER_REDOP ? MUTATION_REDOP : MUTATION_SPIN;
    return one;
}

struct mutation mutation_second(const struct mutation *k)
{
    return (struct mutation){.kind = k->then.kind,
                             .unit = k->then.unit,
                             .nth = k->then.nth,
                             .who = k->then.who,
                             .comm = k->then.comm,
                             .param = k->then.param,
                             .mark = k->then.mark};
}

static void set_second(struct mutation *k, const struct mutation *second)
{
    k->then.kind = second->kind;
    k->then.unit = second->unit;
    k->then.nth = second->nth;
    k->then.who = second->who;
    k->then.comm = second->comm;
    k->then.param = second->param;
    k->then.mark = second->mark;
}

/* places */

static bool in_group(const struct program *p, uint32_t at)
{
    uint16_t unit = p->act[at].unit;
    for (uint32_t i = at; i > 0 && p->act[i - 1].unit == unit; i--) {
        if (p->act[i - 1].kind == ACT_GROUP) {
            return true;
        }
    }
    return false;
}

/* Does this act fit a mistake of this kind? */
static bool fits(const struct program *p, enum mutation_kind kind, uint32_t at)
{
    const struct act *a = &p->act[at];
    bool grouped = in_group(p, at);
    bool reduces = a->redop != ROLL_RED_NONE;
    switch (kind) {
    case MUTATION_SKIP:
    case MUTATION_COUNT:
    case MUTATION_DTYPE:
    case MUTATION_OP:
    case MUTATION_ZERO:
        return act_is_collective(a);
    case MUTATION_REDOP:
    case MUTATION_AFTER_REDOP:
        return act_is_collective(a) && reduces;
    case MUTATION_ROOT:
        return act_is_collective(a) && a->peer >= 0;
    case MUTATION_RACE:
        return act_is_collective(a) && a->thread == 0 && !p->comm[a->comm].nonblocking;
    case MUTATION_AFTER_PAUSE:
    case MUTATION_ADD:
    case MUTATION_SWAP_SAME:
    case MUTATION_SWAP_COMMS:
    case MUTATION_EXIT_UNDONE:
    case MUTATION_REFUSED_EXIT:
    case MUTATION_REFUSED_ON:
    case MUTATION_WRONG_COMM:
    case MUTATION_LONE:
        return act_is_collective(a) && !grouped;
    case MUTATION_EXTRA_GROUP:
        return act_is_collective(a) && grouped;
    case MUTATION_BYTES:
        return (a->kind == ACT_SEND || a->kind == ACT_RECV) && a->peer != (int)mask_first(a->ranks);
    case MUTATION_NO_SEND:
        return a->kind == ACT_SEND && a->peer != (int)mask_first(a->ranks);
    case MUTATION_NO_RECV:
        return a->kind == ACT_RECV && a->peer != (int)mask_first(a->ranks);
    case MUTATION_NO_EXCHANGE:
    case MUTATION_NO_EMPTY:
        return a->kind == ACT_SEND && grouped && a->peer == (int)mask_first(a->ranks); /* an all-to-all-v has these */
    case MUTATION_HEAD_TO_HEAD:
        return a->kind == ACT_SEND && !grouped;
    case MUTATION_EXIT:
    case MUTATION_EXIT_CODE:
    case MUTATION_KILL_HOST:
    case MUTATION_STOP:
    case MUTATION_SPIN:
        return act_is_call(a) && a->error == 0 && !grouped;
    case MUTATION_DESTROY:
    case MUTATION_ABORT:
        return act_is_collective(a) && !grouped;
    case MUTATION_KILL_WAIT:
        return a->kind == ACT_STREAM || a->kind == ACT_DEVICE || a->kind == ACT_EVENT || a->kind == ACT_POLL;
    case MUTATION_JAM:
        return act_is_collective(a);
    case MUTATION_UNGROUPED:
        return a->kind == ACT_SEND && grouped && a->ranks == BIT(mask_first(p->comm[a->comm].members));
    case MUTATION_REFUSED_P2P:
        return (a->kind == ACT_SEND || a->kind == ACT_RECV) && !grouped;
    case MUTATION_NO_INIT:
        return a->kind == ACT_INIT && a->comm > 0;
    case MUTATION_NO_SPLIT:
    case MUTATION_SKIP_SPLIT:
        return a->kind == ACT_SPLIT;
    case MUTATION_KINDS:
        break;
    }
    return false;
}

static bool find_place(const struct program *p, const struct mutation *k, uint32_t *at)
{
    uint32_t nth = 0;
    for (uint32_t i = 0; i < p->acts; i++) {
        if (p->act[i].unit == k->unit && p->act[i].comm == k->comm && fits(p, k->kind, i) && nth++ == k->nth) {
            *at = i;
            return true;
        }
    }
    return false;
}

/* More than one rank is wrong in the same way now and then: a minority, or exactly half. */
static mask_t choose_who(struct rng *rng, mask_t members)
{
    uint32_t n = mask_count(members), wanted = 1;
    if (n >= 4 && rng_chance(rng, 25)) {
        wanted = rng_chance(rng, 40) && n % 2 == 0 ? n / 2 : 1 + rng_below(rng, (n - 1) / 2);
    }
    mask_t who = 0;
    while (mask_count(who) < wanted) {
        who = (mask_t)(who | BIT(mask_at(members, rng_below(rng, n))));
    }
    return who;
}

static bool one_rank_only(enum mutation_kind kind)
{
    return (kind >= MUTATION_BYTES && kind <= MUTATION_UNGROUPED) || kind == MUTATION_REFUSED_P2P;
}

/* A place in unit `from` or later. */
static bool choose_from(const struct program *p, enum mutation_kind kind, struct rng *rng, uint32_t from,
                        struct mutation *out)
{
    uint32_t places = 0;
    for (uint32_t i = 0; i < p->acts; i++) {
        places += p->act[i].unit >= from && fits(p, kind, i);
    }
    if (places == 0) {
        return false;
    }
    uint32_t chosen = rng_below(rng, places), at = 0;
    for (uint32_t i = 0; i < p->acts; i++) {
        if (p->act[i].unit >= from && fits(p, kind, i) && chosen-- == 0) {
            at = i;
            break;
        }
    }
    const struct act *a = &p->act[at];
    if (program_unit_refused(p, a->unit)) { /* the call made again would be a second mistake */
        return false;
    }
    *out = (struct mutation){.kind = kind, .unit = a->unit, .comm = a->comm, .param = rng_next(rng)};
    for (uint32_t i = 0; i < at; i++) {
        out->nth = (uint8_t)(out->nth + (p->act[i].unit == a->unit && p->act[i].comm == a->comm && fits(p, kind, i)));
    }
    out->who = one_rank_only(kind) ? a->ranks : choose_who(rng, a->ranks);
    return out->who != 0;
}

bool mutation_choose(const struct program *p, enum mutation_kind kind, struct rng *rng, struct mutation *out)
{
    static const enum mutation_kind later[] = {MUTATION_SKIP, MUTATION_COUNT, MUTATION_ZERO,      MUTATION_KILL_HOST,
                                               MUTATION_EXIT, MUTATION_STOP,  MUTATION_KILL_WAIT, MUTATION_SPIN};
    struct mutation second;
    if (!choose_from(p, kind, rng, 0, out)) {
        return false;
    }
    if (!mutation_is_double(out)) {
        return true;
    }
    out->who = BIT(mask_first(out->who));
    if (!choose_from(p, later[rng_below(rng, 8)], rng, out->unit + 2u, &second)) {
        return false;
    }
    set_second(out, &second);
    return true;
}

static bool apply_one(struct program *p, struct mutation *mutation)
{
    uint32_t at = 0;
    if (!find_place(p, mutation, &at)) {
        return false;
    }
    mutation->who = (mask_t)(mutation->who & ((1u << p->ranks) - 1));
    if (!one_rank_only(mutation->kind)) {
        mutation->who = (mask_t)(mutation->who & p->act[at].ranks);
    }
    if (mutation->who == 0) {
        return false;
    }
    return mutation_make(p, mutation, at);
}

bool mutation_apply(struct program *p, struct mutation *mutation)
{
    if (!mutation_is_double(mutation)) {
        return apply_one(p, mutation);
    }
    struct mutation second = mutation_second(mutation);
    if (!apply_one(p, mutation) || !apply_one(p, &second) || second.mark < mutation->mark) {
        return false;
    }
    set_second(mutation, &second);
    return true;
}
