/*
 * main.c: roll_sim: programs from seeds, through the engine, against their truth.
 *
 *   roll_sim --seeds A-B [--orders N] [--healthy | --sick] [--only MUTATION] [--failures N] [--limits FILE]
 *              a table of outcomes by mistake; --limits fails when a row has more that is not right than the file allows
 *   roll_sim --print SEED      the program of a seed, its mistake, and what the engine says in each order
 */
#include "tests/simulation/generate.h"
#include "tests/simulation/judge.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct options {
    uint64_t first, last;
    uint32_t orders, failures;
    bool healthy, sick, print;
    const char *limits;
    enum mutation_kind only;
};

static struct table {
    uint64_t outcome[MUTATION_KINDS + 1][OUTCOMES];
    uint64_t programs, runs, refused;
    uint32_t *latency_us[MUTATION_KINDS]; /* owned */
    uint32_t latencies[MUTATION_KINDS], room[MUTATION_KINDS];
} table;

static struct program base, sick;
static struct story story;

/* Odd seeds are sick where they can be. */
static bool make(uint64_t seed, const struct options *o, struct mutation *k)
{
    struct rng rng = {.state = seed ^ 0x5bd1e995};
    generate(&base, seed);
    *k = (struct mutation){.kind = MUTATION_NONE, .comm = -1};
    sick = base;
    bool wanted = o->only != MUTATION_NONE || o->sick || (!o->healthy && seed % 2 == 1);
    for (int tries = 0; wanted && tries < 12; tries++) {
        enum mutation_kind kind =
            o->only != MUTATION_NONE ? o->only : (enum mutation_kind)rng_below(&rng, MUTATION_KINDS);
        sick = base;
        if (mutation_choose(&sick, kind, &rng, k) && mutation_apply(&sick, k)) {
            program_tidy(&sick);
            return true;
        }
    }
    k->kind = MUTATION_NONE;
    sick = base;
    return !wanted;
}

static void note_latency(const struct mutation *k, uint64_t ns)
{
    uint32_t i = k->kind;
    if (table.latencies[i] == table.room[i]) {
        uint32_t room = table.room[i] ? table.room[i] * 2 : 256;
        uint32_t *more = realloc(table.latency_us[i], room * sizeof(*more));
        if (!more) {
            return;
        }
        table.latency_us[i] = more;
        table.room[i] = room;
    }
    table.latency_us[i][table.latencies[i]++] = (uint32_t)(ns / 1000);
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

static void show_story(void)
{
    printf("  %s; event at %.6f s, still at %.6f s\n", story.hangs ? "hangs" : "comes to its end",
           story.event_ns == NEVER ? 0.0 : (double)(story.event_ns - START_NS) / 1e9,
           (double)(story.still_ns - START_NS) / 1e9);
    for (uint32_t r = 0; r < sick.ranks; r++) {
        for (uint32_t t = 0; t < THREADS_MAX; t++) {
            uint16_t act = story.rank[r].stuck[t];
            if (act != NO_ACT) {
                printf("    rank %u waits in act %u (unit %u)\n", r, act, sick.act[act].unit);
            }
        }
        if (story.rank[r].end_ns != NEVER && story.hangs) {
            printf("    rank %u ended at %.6f s, status %d\n", r, (double)(story.rank[r].end_ns - START_NS) / 1e9,
                   story.rank[r].status);
        }
    }
}

/* One program in all orders. Returns the worst outcome of them. */
static enum outcome run_program(uint64_t seed, const struct options *o, const struct mutation *k, bool show)
{
    enum outcome worst = OUTCOME_RIGHT;
    for (uint32_t order = 0; order < o->orders; order++) {
        struct findings f;
        uint64_t latency = 0;
        bool losses = order > 0 && (seed + order) % 7 == 0;
        if (feed(&sick, &story, seed * 1000 + order, losses, show, &f) != 0) {
            exit(2);
        }
        enum outcome outcome = judge(&sick, k, &story, &f, &latency);
        table.runs++;
        table.outcome[k->kind][outcome]++;
        worst = outcome > worst ? outcome : worst;
        if (latency != 0 && f.live) {
            note_latency(k, latency);
        }
        if (show) {
            printf("  order %u (%s%s): %s\n", order, f.style, f.lossy ? ", losses" : "", outcome_name[outcome]);
            show_findings(&f);
        }
        findings_fini(&f);
    }
    return worst;
}

static int one_seed(uint64_t seed, const struct options *o, uint32_t *failures)
{
    struct mutation k;
    if (!make(seed, o, &k)) {
        return 0;
    }
    if (execute(&base, &story, 0, 0, seed) != 0) {
        table.refused++;
        return 0;
    }
    if (story.hangs) {
        printf("seed %llu: the correct program hangs\n", (unsigned long long)seed);
        program_print(&base, stdout);
        show_story();
        return 2;
    }
    if (k.kind != MUTATION_NONE && execute(&sick, &story, k.mark, k.who, seed) != 0) {
        table.refused++;
        return 0;
    }
    table.programs++;
    if (o->print) {
        program_print(&sick, stdout);
        printf("mistake: %s by %s on c%d in unit %u, act %u\n", mutation_name(k.kind), mask_text(k.who), k.comm, k.unit,
               k.mark);
        show_story();
    }
    enum outcome outcome = run_program(seed, o, &k, o->print);
    if (outcome != OUTCOME_RIGHT && *failures > 0) {
        --*failures;
        printf("seed %llu: %s by %s: %s\n", (unsigned long long)seed, mutation_name(k.kind), mask_text(k.who),
               outcome_name[outcome]);
    }
    return 0;
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
        qsort(table.latency_us[kind], n, sizeof(uint32_t), by_number);
        printf(" %8.0f %8.0f", table.latency_us[kind][n / 2] / 1e3, table.latency_us[kind][n - 1 - n / 100] / 1e3);
    }
    printf("\n");
}

static void show_table(double seconds)
{
    printf("%-15s %7s %7s", "mistake", "runs", "right");
    for (unsigned i = 1; i < OUTCOMES; i++) {
        printf(" %7.7s", outcome_name[i]);
    }
    printf(" %8s %8s\n", "p50 ms", "p99 ms");
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
}

/* A line of the file: a mistake (or "healthy") and how many of its runs may be other than right. Returns 0, or 1 when one has more. */
static int check_limits(const char *path)
{
    FILE *in = fopen(path, "r");
    char line[128], name[32];
    unsigned long long limit;
    int rc = 0;
    if (!in) {
        perror(path);
        return 2;
    }
    while (fgets(line, sizeof(line), in)) {
        if (line[0] == '#' || sscanf(line, "%31s %llu", name, &limit) != 2) {
            continue;
        }
        unsigned kind = mutation_by_name(name); /* MUTATION_NONE for "healthy" */
        unsigned long long wrong = 0;
        for (unsigned i = 1; i < OUTCOMES; i++) {
            wrong += table.outcome[kind][i];
        }
        if (wrong > limit) {
            printf("%s: %llu runs are not right, %llu are allowed\n", name, wrong, limit);
            rc = 1;
        } else if (wrong < limit) {
            printf("%s: %llu runs are not right; the limit of %llu can be lowered\n", name, wrong, limit);
        }
    }
    fclose(in);
    return rc;
}

static int usage(void)
{
    fprintf(
        stderr,
        "usage: roll_sim --seeds A-B [--orders N] [--healthy|--sick] [--only MUTATION] [--failures N] [--limits FILE]\n"
        "       roll_sim --print SEED [--healthy|--sick|--only MUTATION]\n");
    return 2;
}

int main(int argc, char **argv)
{
    struct options o = {.orders = 3, .failures = 20, .only = MUTATION_NONE, .first = 1, .last = 1000};
    static const struct option names[] = {{"seeds", 1, NULL, 's'}, {"orders", 1, NULL, 'o'}, {"healthy", 0, NULL, 'h'},
                                          {"sick", 0, NULL, 'i'},  {"only", 1, NULL, 'm'},   {"failures", 1, NULL, 'f'},
                                          {"print", 1, NULL, 'p'}, {"limits", 1, NULL, 'l'}, {NULL, 0, NULL, 0}};
    unsigned long long a = 1, b = 1000;
    int c;
    while ((c = getopt_long(argc, argv, "", names, NULL)) != -1) {
        switch (c) {
        case 's':
            if (sscanf(optarg, "%llu-%llu", &a, &b) != 2) {
                return usage();
            }
            break;
        case 'o':
            o.orders = (uint32_t)atoi(optarg);
            break;
        case 'h':
            o.healthy = true;
            break;
        case 'i':
            o.sick = true;
            break;
        case 'm':
            o.only = mutation_by_name(optarg);
            if (o.only == MUTATION_NONE) {
                return usage();
            }
            break;
        case 'f':
            o.failures = (uint32_t)atoi(optarg);
            break;
        case 'l':
            o.limits = optarg;
            break;
        case 'p':
            o.print = true;
            a = b = strtoull(optarg, NULL, 10);
            break;
        default:
            return usage();
        }
    }
    o.first = a;
    o.last = b;
    clock_t begin = clock();
    int rc = 0;
    uint32_t failures = o.failures;
    for (uint64_t seed = o.first; seed <= o.last && rc == 0; seed++) {
        rc = one_seed(seed, &o, &failures);
    }
    if (!o.print) {
        show_table((double)(clock() - begin) / CLOCKS_PER_SEC);
    }
    return rc == 0 && o.limits ? check_limits(o.limits) : rc;
}
