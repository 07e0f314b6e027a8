/*
 * rows.c: programs that are kept as text, shrunk failures, and a report of the most frequent ones.
 */
#include "tests/simulation/run.h"

#include <string.h>

static void print_row(const char *name, const struct program *p, const struct mutation *k, uint64_t seed)
{
    printf("row %s\nmistake %s by %s on c%d act %u seed %llu\n", name, mutation_name(k->kind), mask_text(k->who),
           k->comm, k->mark, (unsigned long long)seed);
    if (mutation_is_double(k)) {
        printf("then %s by %s on c%d act %u\n", mutation_name(k->then.kind), mask_text(k->then.who), k->then.comm,
               k->then.mark);
    }
    program_print(p, stdout);
}

int rows_shrink(uint64_t seed, const struct options *o)
{
    static struct failure f;
    struct mutation k;
    uint32_t order;
    if (!run_make(seed, o, &k) || execute_mutated(&run_sick, &run_story, &k, seed) != 0) {
        return 2;
    }
    f = (struct failure){.mutation = k, .seed = seed, .orders = o->orders};
    f.base = run_base;
    f.outcome = run_all(seed, o, &k, false, &order);
    if (f.outcome == OUTCOME_RIGHT) {
        printf("seed %llu: right\n", (unsigned long long)seed);
        return 0;
    }
    f.orders = f.orders < 8 ? 8 : f.orders;
    shrink(&f);
    if (!failure_sick(&f, &run_sick, &k) || execute_mutated(&run_sick, &run_story, &k, seed) != 0) {
        return 2;
    }
    char name[64];
    snprintf(name, sizeof(name), "open %s-%llu %s", mutation_name(k.kind), (unsigned long long)seed,
             outcome_name[f.outcome]);
    print_row(name, &run_sick, &k, f.seed);
    run_show_story();
    struct options all = *o;
    all.orders = f.orders;
    (void)run_all(seed, &all, &k, true, &order);
    return 0;
}

#define ROW_ORDERS 16u

/* A row: "row open|closed NAME ...", "mistake KIND by RANKS on cN act N seed N", a program. Lines of other kinds
 * between rows are comments. */
int rows_run(const char *path, bool show)
{
    FILE *in = fopen(path, "r");
    char line[256], state[16] = "", name[64] = "", kind[32], who[64];
    int rc = 0;
    if (!in) {
        perror(path);
        return 2;
    }
    while (rc != 2 && fgets(line, sizeof(line), in)) {
        struct mutation k = {.comm = -1};
        int comm;
        unsigned long long seed;
        uint32_t order;
        (void)sscanf(line, "row %15s %63s", state, name);
        if (sscanf(line, "mistake %31s by %63s on c%d act %u seed %llu", kind, who, &comm, &k.mark, &seed) != 5) {
            continue;
        }
        k.kind = mutation_by_name(kind);
        k.comm = (int8_t)comm;
        bool bad = mask_parse(who, &k.who) != 0;
        if (mutation_is_double(&k)) {
            bad = bad || !fgets(line, sizeof(line), in) ||
                  sscanf(line, "then %31s by %63s on c%d act %u", kind, who, &comm, &k.then.mark) != 4 ||
                  mask_parse(who, &k.then.who) != 0;
            k.then.kind = mutation_by_name(kind);
            k.then.comm = (int8_t)comm;
        }
        if (bad || !program_parse(&run_sick, in) || execute_mutated(&run_sick, &run_story, &k, seed) != 0 ||
            !program_valid(&run_sick)) {
            printf("%s: row %s is malformed\n", path, name);
            rc = 2;
            break;
        }
        struct options o = {.orders = ROW_ORDERS};
        enum outcome outcome = run_all(seed, &o, &k, false, &order);
        bool open = strcmp(state, "open") == 0;
        printf("%-7s %-40s %s%s\n", state, name, outcome_name[outcome],
               open && outcome == OUTCOME_RIGHT ? ": can be closed" : "");
        if (!open && outcome != OUTCOME_RIGHT) {
            rc = 1;
            program_print(&run_sick, stdout);
        }
        if (show || (!open && outcome != OUTCOME_RIGHT)) {
            run_show_story();
            (void)run_all(seed, &o, &k, true, &order);
        }
    }
    fclose(in);
    return rc;
}

#define KINDS_MAX 4000u

/* Failures of one kind: the mistake, the outcome, and what was said. */
static struct kind_of_failure {
    enum mutation_kind mutation;
    enum outcome outcome;
    char said[160];
    uint64_t count, seed; /* of the program with the fewest acts */
    uint32_t acts;
} kinds[KINDS_MAX];
static uint32_t kinds_used;

static void say_codes(const struct findings *f, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < f->founds && i < 3; i++) {
        const struct found *one = &f->found[i];
        if (one->superseded && !one->withdrawn) {
            continue;
        }
        used +=
            (size_t)snprintf(out + used, size - used, "%s%s %s%s", i ? "; " : "", roll_certainty_name(one->certainty),
                             roll_verdict_name(one->code), one->culprits ? "" : " (nobody)");
    }
    if (f->founds > 3) {
        snprintf(out + used, size - used, "; ...");
    }
}

void report_add(uint64_t seed, const struct mutation *k, enum outcome outcome, const struct findings *f)
{
    char said[160];
    say_codes(f, said, sizeof(said));
    uint32_t i = 0;
    while (i < kinds_used &&
           (kinds[i].mutation != k->kind || kinds[i].outcome != outcome || strcmp(kinds[i].said, said) != 0)) {
        i++;
    }
    if (i == KINDS_MAX) {
        return;
    }
    struct kind_of_failure *kind = &kinds[i];
    if (i == kinds_used) {
        kinds_used++;
        *kind = (struct kind_of_failure){.mutation = k->kind, .outcome = outcome, .acts = UINT32_MAX};
        memcpy(kind->said, said, sizeof(said));
    }
    kind->count++;
    if (run_sick.acts < kind->acts) {
        kind->acts = run_sick.acts;
        kind->seed = seed;
    }
}

/* Shrinks while exactly this is said, and prints the row and one order that shows it. */
static void show_kind(const struct kind_of_failure *kind, const struct options *o)
{
    static struct failure f;
    struct options one = *o;
    struct mutation k;
    one.only = kind->mutation;
    one.healthy = kind->mutation == MUTATION_NONE;
    one.sick = !one.healthy;
    one.report = 0;
    if (!run_make(kind->seed, o, &k) && !run_make(kind->seed, &one, &k)) {
        return;
    }
    f = (struct failure){.mutation = k, .seed = kind->seed, .orders = 12, .outcome = kind->outcome};
    f.base = run_base;
    shrink(&f);
    if (!failure_sick(&f, &run_sick, &k) || execute_mutated(&run_sick, &run_story, &k, f.seed) != 0) {
        return;
    }
    char name[96];
    snprintf(name, sizeof(name), "open %s-%llu %s", mutation_name(k.kind), (unsigned long long)kind->seed,
             outcome_name[f.outcome]);
    print_row(name, &run_sick, &k, f.seed);
    run_show_story();
    for (uint32_t order = 0; order < f.orders; order++) {
        struct findings found;
        enum outcome outcome = run_order(f.seed, order, &k, false, &found);
        findings_fini(&found);
        if (outcome == f.outcome) {
            (void)run_order(f.seed, order, &k, true, &found);
            findings_fini(&found);
            break;
        }
    }
}

void report_show(const struct options *o)
{
    for (uint32_t n = 0; n < o->report && n < kinds_used; n++) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < kinds_used; i++) {
            best = kinds[i].count > kinds[best].count ? i : best;
        }
        struct kind_of_failure kind = kinds[best];
        kinds[best].count = 0;
        printf("\n#%u: %llu runs of %s end %s: %s\n", n + 1, (unsigned long long)kind.count,
               mutation_name(kind.mutation), outcome_name[kind.outcome], kind.said[0] ? kind.said : "nothing is said");
        show_kind(&kind, o);
    }
}
