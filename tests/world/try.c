/*
 * try.c: one plan, judged: its script, the same without faults, and what the faults have changed.
 *
 * What is right is known three times: by the program's own truth (tests/simulation/judge.c), by what an engine says
 * that is fed without any daemon, and by the world without faults. A plan whose program the engine itself does not tell
 * right in each order says nothing about the daemons, and is left out (the limits of tests/simulation/ count those).
 */
#include "tests/simulation/generate.h"
#include "tests/simulation/shrink.h"
#include "tests/world/hours.h"
#include "tests/world/play.h"

#include <stdio.h>
#include <string.h>

#define ORDERS 3u
#define MORE   80u /* orders in which the engine is asked whether it errs as the world does */

static struct script first, second;
static struct script lasting[2]; /* the same, with pauses */

/* The program of a seed, with a mistake or without, and without what the plan leaves out. */
static bool make_script(const struct plan *plan, uint64_t seed, bool sick, bool drops, struct script *out)
{
    static struct program changed;
    struct rng rng = {.state = seed ^ 0x5bd1e995};
    struct mutation *k = &out->mutation;
    generate(&out->program, seed);
    *k = (struct mutation){.kind = MUTATION_NONE, .comm = -1};
    for (int tries = 0; sick && tries < 12; tries++) {
        enum mutation_kind kind = (enum mutation_kind)rng_below(&rng, MUTATION_KINDS);
        changed = out->program;
        if (mutation_choose(&changed, kind, &rng, k) && mutation_apply(&changed, k)) {
            break;
        }
        *k = (struct mutation){.kind = MUTATION_NONE, .comm = -1};
    }
    if (sick && k->kind == MUTATION_NONE) {
        return false;
    }
    for (uint32_t i = 0; drops && i < plan->drops; i++) {
        const struct drop *d = &plan->drop[i];
        if (d->rank ? !program_drop_rank(&out->program, k, d->first)
                    : !program_drop_units(&out->program, k, d->first, d->count)) {
            return false;
        }
    }
    if (plan->drops > 0 && drops) {
        program_tidy(&out->program);
    }
    if (program_correct(&out->program, &out->story, seed) != 1) {
        return false;
    }
    if (k->kind == MUTATION_NONE) {
        return true;
    }
    if (!mutation_apply(&out->program, k)) {
        return false;
    }
    program_tidy(&out->program);
    return execute_mutated(&out->program, &out->story, k, seed) == 0;
}

/* How the engine tells it when it is fed in this order. */
static enum outcome engine_outcome(uint64_t seed, uint32_t order, const struct script *script, bool digest)
{
    struct findings found;
    struct latency latency;
    struct feed_options how = feed_how(seed, order, &script->mutation);
    how.losses = false;
    how.levels = digest ? 1 + order % 2 : 0;
    how.history = 512;
    if (feed(&script->program, &script->story, seed * 1000 + order, &how, &found) != 0) {
        return OUTCOMES;
    }
    enum outcome outcome = judge(&script->program, &script->mutation, &script->story, &found, &latency);
    findings_fini(&found);
    return outcome;
}

static bool engine_tells_it_right(uint64_t seed, const struct script *script, bool digest)
{
    bool right = true;
    for (uint32_t order = 0; order < ORDERS && right; order++) {
        right = engine_outcome(seed, order, script, digest) == OUTCOME_RIGHT;
    }
    return right;
}

/* The engine alone errs in the same way, in some order of arrival. Never asked for what must not be in any order, nor,
 * with faults, for what is missed. */
static bool engine_errs_alike(uint64_t seed, const struct script *script, bool digest, bool faults,
                              enum outcome outcome)
{
    bool alike = false, may = outcome != OUTCOME_FALSE && outcome != OUTCOME_INNOCENT;
    may = may && (outcome != OUTCOME_MISSED || !faults);
    for (uint32_t order = ORDERS; may && order < MORE && !alike; order++) {
        alike = engine_outcome(seed, order, script, digest) == outcome;
    }
    return alike;
}

static void tell(char why[512], const char *when, const struct played *p, const struct script *script)
{
    int n = snprintf(why, 512, "%s: %s by %s: %s", when, mutation_name(script->mutation.kind),
                     mask_text(script->mutation.who), outcome_name[p->outcome]);
    for (uint32_t i = 0; i < p->found.founds && n < 400; i++) {
        const struct found *f = &p->found.found[i];
        n += snprintf(why + n, 512 - (size_t)n, "; %s %s %s%s", roll_certainty_name(f->certainty),
                      roll_verdict_name(f->code), mask_text(f->culprits), f->superseded ? " (over)" : "");
    }
}

/* What is played, and where each rank stands in the end. */
static void show(const struct script *script)
{
    program_print(&script->program, stdout);
    printf("mistake: %s by %s\n", mutation_name(script->mutation.kind), mask_text(script->mutation.who));
    for (uint32_t r = 0; r < script->program.ranks; r++) {
        uint16_t act = script->story.rank[r].stuck[0];
        if (act != NO_ACT) {
            printf("rank %u is stuck in act %u\n", r, act);
        }
    }
    fflush(stdout);
}

/* The script as it is played: where the plan takes hours, its job pauses. */
static const struct script *played(const struct plan *plan, const struct script *script)
{
    struct script *lasts = &lasting[script == &second];
    if (plan->hours == 0) {
        return script;
    }
    *lasts = *script;
    hours_pause(&lasts->story, lasts->program.ranks, plan->seed + (script == &second), plan->hours);
    return lasts;
}

static enum verdict_of_plan play_both(const struct plan *plan, char why[512], struct played *calm, struct played *run)
{
    if (!make_script(plan, plan->seed, plan->sick, true, &first) ||
        (plan->second && !make_script(plan, plan->seed + 1000000007u, false, false, &second)) ||
        !engine_tells_it_right(plan->seed, &first, plan->digest)) {
        return PLAN_UNUSABLE;
    }
    if (play_loud) {
        show(&first);
    }
    const struct script *one = played(plan, &first), *other = plan->second ? played(plan, &second) : NULL;
    play(plan, one, other, false, calm);
    if (calm->trouble[0]) {
        snprintf(why, 512, "without faults: %.400s", calm->trouble);
        return PLAN_BAD;
    }
    if (calm->outcome != OUTCOME_RIGHT) {
        if (engine_errs_alike(plan->seed, &first, plan->digest, false, calm->outcome)) {
            return PLAN_UNUSABLE;
        }
        tell(why, "without faults", calm, &first);
        return PLAN_BAD;
    }
    if (plan->faults == 0) {
        return PLAN_GOOD;
    }
    play(plan, one, other, true, run);
    if (run->trouble[0]) {
        snprintf(why, 512, "%.500s", run->trouble);
        return PLAN_BAD;
    }
    if (run->outcome != OUTCOME_RIGHT) {
        if (engine_errs_alike(plan->seed, &first, plan->digest, true, run->outcome)) {
            return PLAN_UNUSABLE;
        }
        tell(why, "with faults", run, &first);
        return PLAN_BAD;
    }
    return PLAN_GOOD;
}

enum verdict_of_plan plan_try(const struct plan *plan, char why[512], struct played *calm, struct played *run)
{
    static struct played one, other;
    calm = calm ? calm : &one;
    run = run ? run : &other;
    memset(calm, 0, sizeof(*calm));
    memset(run, 0, sizeof(*run));
    why[0] = '\0';
    enum verdict_of_plan verdict = play_both(plan, why, calm, run);
    findings_fini(&calm->found);
    findings_fini(&run->found);
    return verdict;
}
