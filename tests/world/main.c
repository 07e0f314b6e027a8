/*
 * main.c: roll_world: plans from seeds, played in the simulated world. docs/SIMULATION.md; `roll_world --help` lists
 * the options.
 */
#include "tests/world/crew.h"
#include "tests/world/hours.h"
#include "tests/world/play.h"
#include "tests/world/world.h"

#include "daemon/base/bus_guard.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Of processor time, for one plan and for each of its hours: only an endless loop takes so long. */
#define HANGS_S      120
#define HANGS_HOUR_S 30

static const char help[] =
    "usage: roll_world [--seeds A-B] [OPTION...]   plans from seeds: a cluster with faults, and what must hold in it\n"
    "       roll_world --plan 'TEXT'               one plan, as a failure prints it\n"
    "       roll_world --plans FILE                plans of a file, one a line (regressions.txt)\n"
    "\n"
    "  --seeds A-B    these seeds; 1-100 when not given\n"
    "  --long N       N seeds behind those that the tests run\n"
    "  --healthy      correct programs only\n"
    "  --sick         programs with a mistake only\n"
    "  --calm         without faults\n"
    "  --stream       no digests, no relays\n"
    "  --digest       always by digests\n"
    "  --hours N      each plan goes on for so many hours, with pauses of its jobs and faults here and there\n"
    "  --slack MS     and where nothing stirs for long, timers of daemons end together, so many ms apart\n"
    "  --failures N   ends after N failures; 5 when not given\n"
    "  --jobs N       processes side by side; as many as there are processors when not given\n"
    "  --no-shrink    failures are printed as they come\n"
    "  --each         a line for each plan: its verdict, and how its runs went, which is the same on every machine\n"
    "  --loud         the program and what the daemons log are shown\n"
    "  --help         this text\n"
    "\n"
    "Exit codes: 0 all invariants held; 1 one did not; 2 usage.\n";

static struct {
    uint64_t from, to, failures;
    uint32_t hours; /* that a plan goes on for at least */
    uint32_t slack; /* ms; 0: none */
    unsigned jobs;  /* 0: as many as there are processors */
    bool calm, healthy, sick, stream, digest;
    bool keeps; /* failures are not shrunk */
    bool says_each, file;
} o = {.from = 1, .to = 100, .failures = 5};

static struct plan *lines; /* plans that were given as text */
static size_t lines_used;
static char playing[PLAN_BYTES];

static void on_hang(int number)
{
    static const char text[] = "\nroll_world: this plan hangs: ";
    ssize_t n = write(STDOUT_FILENO, text, sizeof(text) - 1);
    n += write(STDOUT_FILENO, playing, strlen(playing));
    n += write(STDOUT_FILENO, "\n", 1);
    (void)n;
    signal(number, SIG_DFL);
    abort();
}

static void add(struct tally *tally, const struct played *p)
{
    struct tally one = {.deaths = p->deaths,
                        .lossy = p->lost > 0,
                        .written = p->written,
                        .lost = p->lost,
                        .world_s = (double)p->world_ns / 1e9,
                        .host_s = (double)p->host_ns / 1e9,
                        .rank_s = (double)p->rank_ns / 1e9,
                        .agent_most = p->agent_most,
                        .root_most = p->root_most,
                        .relay_most = p->relay_most};
    tally_add(tally, &one);
}

/* Plays one, and prints what is to be said. */
static void play_one(struct plan *plan, bool shrinks, struct tally *tally)
{
    static const char *const verdicts[] = {"good", "bad", "left out"};
    static struct played calm, run;
    char why[512], text[PLAN_BYTES];
    plan_text(plan, playing);
    struct itimerval timer = {.it_value.tv_sec = HANGS_S + HANGS_HOUR_S * (time_t)plan->hours};
    setitimer(ITIMER_PROF, &timer, NULL);
    enum verdict_of_plan verdict = plan_try(plan, why, &calm, &run);
    timer.it_value.tv_sec = 0;
    setitimer(ITIMER_PROF, &timer, NULL);
    tally->unusable = verdict == PLAN_UNUSABLE;
    tally->plans = verdict != PLAN_UNUSABLE;
    tally->bad = verdict == PLAN_BAD;
    add(tally, &calm);
    add(tally, &run);
    if (o.says_each) {
        printf("%s: %s, prints %016llx %016llx, turns %llu %llu\n", plan_text(plan, text), verdicts[verdict],
               (unsigned long long)calm.print, (unsigned long long)run.print, (unsigned long long)calm.turns,
               (unsigned long long)run.turns);
    }
    if (verdict != PLAN_BAD) {
        return;
    }
    printf("%s\n  %s\n", plan_text(plan, text), why);
    fflush(stdout);
    if (shrinks) {
        plan_shrink(plan, why);
        (void)plan_try(plan, why, NULL, NULL);
        printf("shrunk: roll_world --plan '%s'\n  %s\n", plan_text(plan, text), why);
        fflush(stdout);
    }
}

static void play_seed(uint64_t i, struct tally *tally)
{
    struct plan plan;
    plan_make(&plan, o.from + i);
    plan.faults = o.calm ? 0 : plan.faults;
    plan.relays = o.stream ? 0 : plan.relays;
    plan.digest = (plan.digest || o.digest) && !o.stream;
    plan.sick = o.sick || (plan.sick && !o.healthy);
    if (o.hours > 0) {
        hours_plan(&plan, o.hours);
    }
    plan.slack = o.slack;
    play_one(&plan, !o.keeps, tally);
}

static void play_line(uint64_t i, struct tally *tally)
{
    struct plan plan = lines[i];
    char text[PLAN_BYTES];
    play_one(&plan, false, tally);
    if (tally->unusable > 0) {
        printf("a plan that says nothing any more: %s\n", plan_text(&lines[i], text));
    }
}

static double processor_s(void)
{
    double seconds = 0;
    for (int who = RUSAGE_CHILDREN; who <= RUSAGE_SELF; who++) { /* -1, 0 */
        struct rusage used;
        getrusage((enum __rusage_who)who, &used);
        seconds += (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                   (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    }
    return seconds;
}

static void show(const struct tally *sum, double seconds)
{
    printf("%llu plans, %llu bad, %llu left out; %llu processes killed; %llu runs with losses (%llu of %llu records)\n",
           (unsigned long long)sum->plans, (unsigned long long)sum->bad, (unsigned long long)sum->unusable,
           (unsigned long long)sum->deaths, (unsigned long long)sum->lossy, (unsigned long long)sum->lost,
           (unsigned long long)sum->written);
    double processors = processor_s(), hours = sum->world_s / 3600;
    printf(
        "%.1f hours of cluster (%.1f of hosts, %.1f of ranks) in %.1f s: %.0f hours a minute, and %.0f hours a minute "
        "of a processor\n",
        hours, sum->host_s / 3600, sum->rank_s / 3600, seconds, hours * 60 / seconds, hours * 60 / processors);
    printf("memory at most: an agent %.1f MiB, the root %.1f MiB, a relay %.1f MiB\n",
           (double)sum->agent_most / (1 << 20), (double)sum->root_most / (1 << 20),
           (double)sum->relay_most / (1 << 20));
}

/* A-B, both whole numbers, A not behind B. */
static bool range(const char *text, uint64_t *from, uint64_t *to)
{
    char end = 0;
    unsigned long long a, b;
    if (sscanf(text, "%llu-%llu%c", &a, &b, &end) != 2 || a > b) {
        return false;
    }
    *from = a;
    *to = b;
    return true;
}

static bool add_line(const char *text)
{
    struct plan *more = realloc(lines, (lines_used + 1) * sizeof(*lines));
    if (!more) {
        return false;
    }
    lines = more;
    return plan_parse(&lines[lines_used++], text);
}

/* Takes the lines of a file that are no comments. False: one of them is no plan, or there is no such file. */
static bool add_file(const char *path)
{
    char line[PLAN_BYTES];
    FILE *file = fopen(path, "re");
    bool well = file != NULL;
    while (well && fgets(line, sizeof(line), file)) {
        well = line[0] == '#' || line[0] == '\n' || add_line(line);
    }
    if (file) {
        fclose(file);
    }
    return well;
}

/* Reads the options. 0; 2: usage; -1: help was shown. */
static int read_options(int argc, char **argv)
{
    static const struct option names[] = {
        {"seeds", 1, NULL, 's'},  {"long", 1, NULL, 'g'},     {"plan", 1, NULL, 'p'},      {"plans", 1, NULL, 'P'},
        {"calm", 0, NULL, 'c'},   {"healthy", 0, NULL, 'h'},  {"sick", 0, NULL, 'i'},      {"stream", 0, NULL, 't'},
        {"digest", 0, NULL, 'd'}, {"failures", 1, NULL, 'f'}, {"no-shrink", 0, NULL, 'n'}, {"loud", 0, NULL, 'l'},
        {"each", 0, NULL, 'e'},   {"jobs", 1, NULL, 'j'},     {"hours", 1, NULL, 'o'},     {"help", 0, NULL, 'H'},
        {"slack", 1, NULL, 'k'},  {NULL, 0, NULL, 0}};
    int c, rc = 0;
    while (rc == 0 && (c = getopt_long(argc, argv, "", names, NULL)) != -1) {
        switch (c) {
        case 's':
            rc = range(optarg, &o.from, &o.to) ? 0 : 2;
            if (rc != 0) {
                fprintf(stderr, "roll_world: '%s' is no range of seeds, like 1-1000\n", optarg);
            }
            break;
        case 'g': /* behind the seeds that the tests run */
            o.from = 100001;
            o.to = 100000 + strtoull(optarg, NULL, 10);
            break;
        case 'p':
            rc = add_line(optarg) ? 0 : 2;
            break;
        case 'P':
            o.file = true;
            rc = add_file(optarg) ? 0 : 2;
            break;
        case 'f':
            o.failures = strtoull(optarg, NULL, 10);
            break;
        case 'j':
            o.jobs = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'o':
            o.hours = (uint32_t)strtoul(optarg, NULL, 10);
            rc = o.hours >= 1 && o.hours <= HOURS_MAX ? 0 : 2;
            break;
        case 'k':
            o.slack = (uint32_t)strtoul(optarg, NULL, 10);
            rc = o.slack >= 1 && o.slack <= SLACK_MAX ? 0 : 2;
            break;
        case 'c':
            o.calm = true;
            break;
        case 'h':
            o.healthy = true;
            break;
        case 'i':
            o.sick = true;
            break;
        case 't':
            o.stream = true;
            break;
        case 'd':
            o.digest = true;
            break;
        case 'n':
            o.keeps = true;
            break;
        case 'e':
            o.says_each = true;
            break;
        case 'l':
            play_loud = true;
            break;
        case 'H':
            fputs(help, stdout);
            rc = -1;
            break;
        default:
            rc = 2;
            break;
        }
    }
    return rc;
}

int main(int argc, char **argv)
{
    struct tally sum = {0};
    int rc = read_options(argc, argv);
    if (rc != 0) {
        return rc < 0 ? 0 : rc;
    }
    world_init();
    signal(SIGPROF, on_hang);
    roll_guard();
    bool listed = lines_used > 0 || o.file;
    unsigned jobs = o.jobs ? o.jobs : crew_processors();
    struct crew crew = {.workers = jobs < CREW_MOST ? jobs : CREW_MOST,
                        .failures = listed ? UINT64_MAX : o.failures,
                        .play = listed ? play_line : play_seed,
                        .clean = play_clean};
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    if (crew_play(&crew, listed ? lines_used : o.to - o.from + 1, &sum) != 0) {
        fprintf(stderr, "roll_world: a process that plays has ended, or cannot be had\n");
        rc = 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    show(&sum, (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9);
    free(lines);
    return sum.bad > 0 || rc != 0 ? 1 : o.file && sum.unusable > 0 ? 2 : 0;
}
