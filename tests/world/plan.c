/*
 * plan.c: see plan.h. What goes into a plan is chosen here and nowhere else, so that a plan that was shrunk or written
 * by hand is played like one from a seed.
 */
#include "tests/world/plan.h"

#include "tests/simulation/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *word;
    char whom;
} kinds[] = {
#define FAULT_ROW(name, word, whom, a, b) {word, whom},
#include "tests/world/fault.def"
#undef FAULT_ROW
};

const char *fault_word(enum fault_kind kind)
{
    return kinds[kind].word;
}

char fault_whom(enum fault_kind kind)
{
    return kinds[kind].whom;
}

/* making */

static void choose_numbers(struct rng *rng, struct fault *f)
{
    uint32_t wait = rng_chance(rng, 70) ? rng_below(rng, 1000) : rng_below(rng, 9000);
    switch (f->kind) {
    case FAULT_KILL:
        f->a = wait;
        f->b = rng_chance(rng, 60) ? 1 + rng_below(rng, 60) : 0;
        break;
    case FAULT_RESTART:
        f->a = wait;
        break;
    case FAULT_STOP:
        f->a = 50 + (rng_chance(rng, 70) ? rng_below(rng, 3000) : rng_below(rng, 30000));
        break;
    case FAULT_SLOW:
        f->a = 100 + rng_below(rng, 20000);
        f->b = rng_below(rng, 5000);
        break;
    case FAULT_CUT:
        f->a = 20 + (rng_chance(rng, 60) ? rng_below(rng, 3000) : rng_below(rng, 15000));
        break;
    case FAULT_DELAY:
        f->a = 1000 + rng_below(rng, 200000);
        f->b = rng_below(rng, 5000);
        break;
    case FAULT_LOSE:
    case FAULT_DOUBLE:
    case FAULT_FLIP:
        f->a = 1 + rng_below(rng, 3);
        f->b = rng_chance(rng, 35);
        break;
    case FAULT_CLOCK:
        f->a = 1 + rng_below(rng, rng_chance(rng, 50) ? 10 : 7200);
        f->b = rng_chance(rng, 50);
        break;
    case FAULT_FULL:
        f->a = 100 + rng_below(rng, 8000);
        break;
    case FAULT_WILD:
        f->a = 1 + rng_below(rng, 5);
        break;
    default:
        break;
    }
}

/* In place of no other: in many clusters inotify is refused in containers, whatever else happens there. */
static void choose_unwatch(struct rng *rng, struct plan *plan)
{
    if (!rng_chance(rng, 15)) {
        return;
    }
    bool always = rng_chance(rng, 80);
    plan->fault[plan->faults++] = (struct fault){.kind = FAULT_UNWATCH,
                                                 .at_ms = always ? 0 : rng_below(rng, 600),
                                                 .target = rng_below(rng, 16),
                                                 .a = always ? 0 : 1 + rng_below(rng, 20000),
                                                 .b = rng_chance(rng, 60)};
}

void plan_make(struct plan *plan, uint64_t seed)
{
    /* Not by a multiple of what the generator adds: the numbers of two seeds would be the same, a step apart. */
    struct rng rng = {.state = (seed + 1) * 0xd6e8feb86659fd93u};
    /* Mostly rings as long as jobs have them. An agent glances at a short one every 2 to 4 ms, lest it be filled: most
     * of the world's work would be glances at rings into which nobody writes. */
    static const uint32_t records[] = {64, 256, 1024, 16384};
    *plan = (struct plan){.seed = seed};
    plan->sick = rng_chance(&rng, 50);
    plan->per_node = 1 + rng_below(&rng, 8);
    plan->per_node = plan->per_node < 3 && rng_chance(&rng, 50) ? 4 : plan->per_node;
    plan->relays = rng_chance(&rng, 30) ? 1 + rng_below(&rng, 2) : 0;
    plan->digest = rng_chance(&rng, plan->relays ? 70 : 25);
    plan->trace = rng_chance(&rng, 50);
    uint32_t size = rng_below(&rng, 24);
    plan->records = size < 4 ? records[size] : PLAN_RECORDS;
    plan->statuses = !rng_chance(&rng, 15);
    plan->second = rng_chance(&rng, 30);
    plan->faults = rng_chance(&rng, 10) ? 0 : 1 + rng_below(&rng, rng_chance(&rng, 70) ? 3 : 8);
    for (uint32_t i = 0; i < plan->faults; i++) {
        struct fault *f = &plan->fault[i];
        do {
            f->kind = (enum fault_kind)rng_below(&rng, FAULT_UNWATCH);
        } while ((fault_whom(f->kind) == 'R' && !plan->second) || (f->kind == FAULT_FULL && !plan->trace) ||
                 (f->kind == FAULT_FLIP && !plan->second));
        f->at_ms = rng_chance(&rng, 60) ? rng_below(&rng, 600) : rng_below(&rng, 8000);
        f->target = rng_below(&rng, 16);
        choose_numbers(&rng, f);
    }
    choose_unwatch(&rng, plan);
}

/* text */

const char *plan_text(const struct plan *plan, char out[PLAN_BYTES])
{
    size_t n = (size_t)snprintf(out, PLAN_BYTES,
                                "seed=%llu sick=%d node=%u relays=%u digest=%d trace=%d records=%u statuses=%d "
                                "second=%d",
                                (unsigned long long)plan->seed, plan->sick, plan->per_node, plan->relays, plan->digest,
                                plan->trace, plan->records, plan->statuses, plan->second);
    if (plan->hours > 0) {
        n += (size_t)snprintf(out + n, PLAN_BYTES - n, " hours=%u", plan->hours);
    }
    if (plan->slack > 0) {
        n += (size_t)snprintf(out + n, PLAN_BYTES - n, " slack=%u", plan->slack);
    }
    for (uint32_t i = 0; i < plan->faults && n < PLAN_BYTES; i++) {
        const struct fault *f = &plan->fault[i];
        n += (size_t)snprintf(out + n, PLAN_BYTES - n, " %s:%u@%u,%u,%u", fault_word(f->kind), f->target, f->at_ms,
                              f->a, f->b);
    }
    for (uint32_t i = 0; i < plan->drops && n < PLAN_BYTES; i++) {
        const struct drop *d = &plan->drop[i];
        n += (size_t)snprintf(out + n, PLAN_BYTES - n, d->rank ? " rank=%u" : " units=%u+%u", d->first, d->count);
    }
    return out;
}

static bool parse_fault(struct plan *plan, const char *word)
{
    struct fault f = {0};
    const char *colon = strchr(word, ':');
    for (unsigned k = 0; colon && k < FAULT_KINDS && plan->faults < FAULTS_MAX; k++) {
        size_t n = strlen(kinds[k].word);
        if (n == (size_t)(colon - word) && strncmp(word, kinds[k].word, n) == 0 &&
            sscanf(colon, ":%u@%u,%u,%u", &f.target, &f.at_ms, &f.a, &f.b) == 4) {
            f.kind = (enum fault_kind)k;
            plan->fault[plan->faults++] = f;
            return true;
        }
    }
    return false;
}

static bool parse_word(struct plan *plan, const char *word)
{
    char name[16];
    unsigned long long n;
    if (sscanf(word, "%15[a-z]=%llu", name, &n) != 2) {
        return parse_fault(plan, word);
    }
    const struct {
        const char *name;
        uint32_t *number;
        bool *flag;
    } known[] = {{"node", &plan->per_node, NULL},     {"relays", &plan->relays, NULL},
                 {"hours", &plan->hours, NULL},       {"records", &plan->records, NULL},
                 {"slack", &plan->slack, NULL},       {"sick", NULL, &plan->sick},
                 {"digest", NULL, &plan->digest},     {"trace", NULL, &plan->trace},
                 {"statuses", NULL, &plan->statuses}, {"second", NULL, &plan->second}};
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        if (strcmp(known[i].name, name) == 0) {
            *(known[i].number ? known[i].number : &(uint32_t){0}) = (uint32_t)n;
            *(known[i].flag ? known[i].flag : &(bool){0}) = n != 0;
            return true;
        }
    }
    if ((strcmp(name, "rank") == 0 || strcmp(name, "units") == 0) && plan->drops < DROPS_MAX) {
        const char *plus = strchr(word, '+');
        plan->drop[plan->drops++] = (struct drop){
            .rank = name[0] == 'r', .first = (uint16_t)n, .count = (uint16_t)(plus ? strtoul(plus + 1, NULL, 10) : 1)};
        return true;
    }
    plan->seed = strcmp(name, "seed") == 0 ? n : plan->seed;
    return strcmp(name, "seed") == 0;
}

bool plan_parse(struct plan *plan, const char *text)
{
    char copy[PLAN_BYTES], *rest = NULL;
    snprintf(copy, sizeof(copy), "%s", text);
    *plan = (struct plan){.per_node = 4, .records = 4096, .statuses = true};
    for (char *word = strtok_r(copy, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
        if (!parse_word(plan, word)) {
            fprintf(stderr, "roll_world: '%s' is no part of a plan\n", word);
            return false;
        }
    }
    plan->per_node += plan->per_node == 0;
    plan->relays = plan->relays > 2 ? 2 : plan->relays;
    plan->hours = plan->hours > HOURS_MAX ? HOURS_MAX : plan->hours;
    plan->slack = plan->slack > SLACK_MAX ? SLACK_MAX : plan->slack;
    return true;
}
