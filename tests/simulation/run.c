/*
 * run.c: see run.h.
 */
#include "tests/simulation/run.h"

#include <stdlib.h>
#include <string.h>

static struct table {
    uint64_t outcome[MUTATION_KINDS + 1][OUTCOMES];
    uint64_t looked;                         /* runs in which an engine saw records */
    uint64_t why[32];                        /* by what the first hints said */
    uint64_t programs, runs, refused, hung;  /* hung: the correct program hangs, which is the simulator's own fault */
    uint32_t *latency_us[MUTATION_KINDS][2]; /* owned; since the mistake, since the job stands still */
    uint32_t latencies[MUTATION_KINDS], room[MUTATION_KINDS];
} table;

uint32_t run_levels, run_history = 512;
bool run_faults, run_scoped, run_narrow;
uint64_t run_room;
struct program run_base, run_sick;
struct story run_story;

/* Odd seeds are sick where they can be. */
bool run_make(uint64_t seed, const struct options *o, struct mutation *k)
{
    struct rng rng = {.state = seed ^ 0x5bd1e995};
    generate(&run_base, seed);
    *k = (struct mutation){.kind = MUTATION_NONE, .comm = -1};
    run_sick = run_base;
    bool wanted = o->only != MUTATION_NONE || o->sick || (!o->healthy && seed % 2 == 1);
    for (int tries = 0; wanted && tries < 12; tries++) {
        enum mutation_kind kind =
            o->only != MUTATION_NONE ? o->only : (enum mutation_kind)rng_below(&rng, MUTATION_KINDS);
        run_sick = run_base;
        if (mutation_choose(&run_sick, kind, &rng, k) && mutation_apply(&run_sick, k)) {
            program_tidy(&run_sick);
            return true;
        }
    }
    k->kind = MUTATION_NONE;
    run_sick = run_base;
    return !wanted;
}

static void note_latency(const struct mutation *k, const struct latency *latency)
{
    uint32_t i = k->kind;
    if (table.latencies[i] == table.room[i]) {
        uint32_t room = table.room[i] ? table.room[i] * 2 : 256;
        for (int n = 0; n < 2; n++) {
            uint32_t *more = realloc(table.latency_us[i][n], room * sizeof(*more));
            if (!more) {
                return;
            }
            table.latency_us[i][n] = more;
        }
        table.room[i] = room;
    }
    table.latency_us[i][0][table.latencies[i]] = (uint32_t)(latency->event_ns / 1000);
    table.latency_us[i][1][table.latencies[i]++] = (uint32_t)(latency->still_ns / 1000);
}

static void show_findings(const struct findings *f)
{
    if (f->founds == 0) {
        printf("    no finding\n");
    }
    for (uint32_t i = 0; i < f->founds; i++) {
        const struct found *one = &f->found[i];
        printf("    %.3f s: %s %s %s: %s\n", (double)(one->now_ns - START_NS) / 1e9,
               roll_certainty_name(one->certainty), roll_verdict_name(one->code), mask_text(one->culprits),
               one->text ? one->text : "");
    }
}

void run_show_story(void)
{
    printf("  %s; event at %.6f s, still at %.6f s\n", run_story.hangs ? "hangs" : "comes to its end",
           run_story.event_ns == NEVER ? 0.0 : (double)(run_story.event_ns - START_NS) / 1e9,
           (double)(run_story.still_ns - START_NS) / 1e9);
    for (uint32_t r = 0; r < run_sick.ranks; r++) {
        for (uint32_t t = 0; t < THREADS_MAX; t++) {
            uint16_t act = run_story.rank[r].stuck[t];
            if (act != NO_ACT) {
                printf("    rank %u waits in act %u (unit %u)\n", r, act, run_sick.act[act].unit);
            }
        }
        if (run_story.rank[r].end_ns != NEVER && run_story.hangs) {
            printf("    rank %u ended at %.6f s, status %d\n", r, (double)(run_story.rank[r].end_ns - START_NS) / 1e9,
                   run_story.rank[r].status);
        }
    }
}

enum outcome run_order(uint64_t seed, uint32_t order, const struct mutation *k, bool show, struct findings *f)
{
    struct latency latency;
    struct feed_options how = feed_how(seed, order, k);
    how.texts = show;
    how.levels = run_levels;
    how.history = run_history;
    how.faults = run_faults;
    how.scoped = run_scoped;
    how.narrow = run_narrow;
    how.room = run_room;
    if (feed(&run_sick, &run_story, seed * 1000 + order, &how, f) != 0) {
        exit(2);
    }
    enum outcome outcome = judge(&run_sick, k, &run_story, f, &latency);
    table.runs++;
    table.looked += f->looked;
    for (uint32_t i = 0; i < 32; i++) {
        table.why[i] += f->looked && (f->hints >> i & 1) != 0;
    }
    table.outcome[k->kind][outcome]++;
    if (latency.known && f->live) {
        note_latency(k, &latency);
    }
    if (show) {
        printf("  order %u (%s%s): %s\n", order, f->style, f->lossy ? ", losses" : "", outcome_name[outcome]);
        show_findings(f);
    }
    return outcome;
}

enum outcome run_all(uint64_t seed, const struct options *o, const struct mutation *k, bool show, uint32_t *worst_order)
{
    enum outcome worst = OUTCOME_RIGHT;
    *worst_order = 0;
    for (uint32_t order = 0; order < o->orders; order++) {
        struct findings f;
        enum outcome outcome = run_order(seed, order, k, show, &f);
        if (outcome != OUTCOME_RIGHT && o->report > 0) {
            report_add(seed, k, outcome, &f);
        }
        if (outcome > worst) {
            worst = outcome;
            *worst_order = order;
        }
        findings_fini(&f);
    }
    return worst;
}

void run_seed(uint64_t seed, const struct options *o, uint32_t *failures)
{
    struct mutation k;
    uint32_t order;
    if (!run_make(seed, o, &k)) {
        return;
    }
    int correct = program_correct(&run_base, &run_story, seed);
    if (correct < 0) {
        table.refused++;
        return;
    }
    if (!correct) {
        printf("seed %llu: the correct program hangs\n", (unsigned long long)seed);
        program_print(&run_base, stdout);
        run_show_story();
        table.hung++;
        return;
    }
    if (k.kind != MUTATION_NONE && execute_mutated(&run_sick, &run_story, &k, seed) != 0) {
        table.refused++;
        return;
    }
    table.programs++;
    if (o->print) {
        program_print(&run_sick, stdout);
        printf("mistake: %s by %s on c%d in unit %u, act %u\n", mutation_name(k.kind), mask_text(k.who), k.comm, k.unit,
               k.mark);
        if (mutation_is_double(&k)) {
            printf("then: %s by %s on c%d, act %u\n", mutation_name(k.then.kind), mask_text(k.then.who), k.then.comm,
                   k.then.mark);
        }
        run_show_story();
    }
    enum outcome outcome = run_all(seed, o, &k, o->print, &order);
    if (outcome != OUTCOME_RIGHT && *failures > 0) {
        --*failures;
        printf("seed %llu: %s by %s: %s\n", (unsigned long long)seed, mutation_name(k.kind), mask_text(k.who),
               outcome_name[outcome]);
    }
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void show_row(const char *name, const uint64_t *outcome, uint32_t kind)
{
    uint64_t all = 0;
    for (unsigned i = 0; i < OUTCOMES; i++) {
        all += outcome[i];
    }
    if (all == 0) {
        return;
    }
    printf("%-15s %7llu %6.2f%%", name, (unsigned long long)all, 100.0 * (double)outcome[OUTCOME_RIGHT] / (double)all);
    for (unsigned i = 1; i < OUTCOMES; i++) {
        printf(" %7llu", (unsigned long long)outcome[i]);
    }
    if (kind < MUTATION_KINDS && table.latencies[kind] > 0) {
        uint32_t n = table.latencies[kind];
        for (int k = 0; k < 2; k++) {
            uint32_t *us = table.latency_us[kind][k];
            qsort(us, n, sizeof(*us), by_number);
            printf(" %6.0f %6.0f", us[n / 2] / 1e3, us[n - 1 - n / 100] / 1e3);
        }
    }
    printf("\n");
}

/* By enum roll_digest_why. */
static const char *const why_name[] = {"",        "differs", "stands", "messages", "inside",
                                       "refused", "threads", "life",   "other",    "quiet"};

void table_show(double seconds)
{
    printf("%-15s %7s %7s", "mistake", "runs", "right");
    for (unsigned i = 1; i < OUTCOMES; i++) {
        printf(" %7.7s", outcome_name[i]);
    }
    printf(" %13s %13s\n", "ms p50,99", "since still");
    uint64_t all[OUTCOMES] = {0};
    for (uint32_t k = 0; k < MUTATION_KINDS; k++) {
        show_row(mutation_name((enum mutation_kind)k), table.outcome[k], k);
        for (unsigned i = 0; i < OUTCOMES; i++) {
            all[i] += table.outcome[k][i];
        }
    }
    show_row("all mistakes", all, MUTATION_KINDS);
    show_row("healthy", table.outcome[MUTATION_NONE], MUTATION_KINDS);
    printf("%llu programs, %llu runs, %.1f s: %.0f programs/s (%llu did not fit)\n", (unsigned long long)table.programs,
           (unsigned long long)table.runs, seconds, (double)table.programs / seconds,
           (unsigned long long)table.refused);
    if (run_levels != 0) {
        printf("records were looked at in %llu runs, and in the other %llu the digests agreed\n",
               (unsigned long long)table.looked, (unsigned long long)(table.runs - table.looked));
        for (uint32_t i = 1; i < sizeof(why_name) / sizeof(*why_name); i++) {
            printf("  %-9s %llu\n", why_name[i], (unsigned long long)table.why[i]);
        }
    }
    if (table.hung > 0) {
        printf("%llu correct programs hang: the generator or the oracle is wrong\n", (unsigned long long)table.hung);
    }
}

/* One limit of a line against what there is. Returns 1 when there is more. */
static int check_limit(const char *name, const char *what, unsigned long long found, unsigned long long limit)
{
    if (found > limit) {
        printf("%s: %llu %s, %llu are allowed\n", name, found, what, limit);
    } else if (found < limit) {
        printf("%s: %llu %s; the limit of %llu can be lowered\n", name, found, what, limit);
    }
    return found > limit;
}

/* A line of the file: a mistake (or "healthy"), how many of its runs may be other than right, and how many of those may
 * prove that somebody did it who did not: none, where no number stands. Returns 0, or 1 when one has more. */
int table_check(const char *path)
{
    FILE *in = fopen(path, "r");
    char line[128], name[32];
    int rc = 0;
    if (!in) {
        perror(path);
        return 2;
    }
    while (fgets(line, sizeof(line), in)) {
        unsigned long long limit, innocents = 0;
        if (line[0] == '#' || sscanf(line, "%31s %llu %llu", name, &limit, &innocents) < 2) {
            continue;
        }
        unsigned kind = mutation_by_name(name); /* MUTATION_NONE for "healthy" */
        unsigned long long wrong = 0;
        for (unsigned i = 1; i < OUTCOMES; i++) {
            wrong += table.outcome[kind][i];
        }
        rc |= check_limit(name, "runs are not right", wrong, limit);
        rc |= check_limit(name, "runs prove it of an innocent rank", table.outcome[kind][OUTCOME_INNOCENT], innocents);
    }
    fclose(in);
    return rc;
}

uint64_t table_hung(void)
{
    return table.hung;
}

uint64_t table_programs(void)
{
    return table.programs;
}
