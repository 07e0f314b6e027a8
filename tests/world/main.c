/*
 * main.c: roll_world: plans from seeds, played in the simulated world. docs/SIMULATION.md; `roll_world --help` lists
 * the options.
 */
#include "tests/world/play.h"
#include "tests/world/world.h"

#include "daemon/base/bus_guard.h"

#include <getopt.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define HANGS_S 120 /* of processor time for one plan: only an endless loop takes so long */

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
    "  --failures N   ends after N failures; 5 when not given\n"
    "  --no-shrink    failures are printed as they come\n"
    "  --each         a line for each plan: its verdict, and how its runs went, which is the same on every machine\n"
    "  --loud         the program and what the daemons log are shown\n"
    "  --help         this text\n"
    "\n"
    "Exit codes: 0 all invariants held; 1 one did not; 2 usage.\n";

static struct {
    uint64_t plans, bad, unusable, deaths, lossy, written, lost;
    double world_s, host_s, rank_s;
    size_t agent_most, root_most, relay_most;
} sum;

static char playing[PLAN_BYTES];
static bool says_each;

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

static void add(const struct played *p)
{
    sum.deaths += p->deaths;
    sum.lossy += p->lost > 0;
    sum.written += p->written;
    sum.lost += p->lost;
    sum.world_s += (double)p->world_ns / 1e9;
    sum.host_s += (double)p->host_ns / 1e9;
    sum.rank_s += (double)p->rank_ns / 1e9;
    sum.agent_most = p->agent_most > sum.agent_most ? p->agent_most : sum.agent_most;
    sum.root_most = p->root_most > sum.root_most ? p->root_most : sum.root_most;
    sum.relay_most = p->relay_most > sum.relay_most ? p->relay_most : sum.relay_most;
}

/* Plays one; true: all is well. */
static bool try_one(struct plan *plan, bool shrinks)
{
    static const char *const verdicts[] = {"good", "bad", "left out"};
    static struct played calm, run;
    char why[512], text[PLAN_BYTES];
    plan_text(plan, playing);
    struct itimerval timer = {.it_value.tv_sec = HANGS_S};
    setitimer(ITIMER_PROF, &timer, NULL);
    enum verdict_of_plan verdict = plan_try(plan, why, &calm, &run);
    timer.it_value.tv_sec = 0;
    setitimer(ITIMER_PROF, &timer, NULL);
    sum.unusable += verdict == PLAN_UNUSABLE;
    sum.plans += verdict != PLAN_UNUSABLE;
    add(&calm);
    add(&run);
    if (says_each) {
        printf("%s: %s, prints %016llx %016llx, turns %llu %llu\n", plan_text(plan, text), verdicts[verdict],
               (unsigned long long)calm.print, (unsigned long long)run.print, (unsigned long long)calm.turns,
               (unsigned long long)run.turns);
    }
    if (verdict != PLAN_BAD) {
        return true;
    }
    sum.bad++;
    printf("%s\n  %s\n", plan_text(plan, text), why);
    fflush(stdout);
    if (shrinks) {
        plan_shrink(plan, why);
        (void)plan_try(plan, why, NULL, NULL);
        printf("shrunk: roll_world --plan '%s'\n  %s\n", plan_text(plan, text), why);
        fflush(stdout);
    }
    return false;
}

static void show(double seconds)
{
    printf("%llu plans, %llu bad, %llu left out; %llu processes killed; %llu runs with losses (%llu of %llu records)\n",
           (unsigned long long)sum.plans, (unsigned long long)sum.bad, (unsigned long long)sum.unusable,
           (unsigned long long)sum.deaths, (unsigned long long)sum.lossy, (unsigned long long)sum.lost,
           (unsigned long long)sum.written);
    printf("%.1f hours of cluster (%.1f of hosts, %.1f of ranks) in %.1f s of a processor: %.0f hours a minute (%.0f, "
           "%.0f)\n",
           sum.world_s / 3600, sum.host_s / 3600, sum.rank_s / 3600, seconds, sum.world_s / 60 / seconds,
           sum.host_s / 60 / seconds, sum.rank_s / 60 / seconds);
    printf("memory at most: an agent %.1f MiB, the root %.1f MiB, a relay %.1f MiB\n",
           (double)sum.agent_most / (1 << 20), (double)sum.root_most / (1 << 20), (double)sum.relay_most / (1 << 20));
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

/* Plays the lines of a file that are no comments. 0; 2: one of them is no plan, or there is no such file. */
static int try_file(const char *path)
{
    char line[PLAN_BYTES];
    struct plan plan;
    FILE *file = fopen(path, "re");
    int rc = file ? 0 : 2;
    while (rc == 0 && fgets(line, sizeof(line), file)) {
        if (line[0] == '#' || line[0] == '\n') {
            continue;
        }
        rc = plan_parse(&plan, line) ? 0 : 2;
        if (rc == 0 && try_one(&plan, false) && sum.unusable > 0) {
            printf("a plan that says nothing any more: %s", line);
            rc = 2;
        }
    }
    if (file) {
        fclose(file);
    }
    return rc;
}

int main(int argc, char **argv)
{
    static const struct option names[] = {
        {"seeds", 1, NULL, 's'},  {"long", 1, NULL, 'g'},     {"plan", 1, NULL, 'p'},      {"plans", 1, NULL, 'P'},
        {"calm", 0, NULL, 'c'},   {"healthy", 0, NULL, 'h'},  {"sick", 0, NULL, 'i'},      {"stream", 0, NULL, 't'},
        {"digest", 0, NULL, 'd'}, {"failures", 1, NULL, 'f'}, {"no-shrink", 0, NULL, 'n'}, {"loud", 0, NULL, 'l'},
        {"each", 0, NULL, 'e'},   {"help", 0, NULL, 'H'},     {NULL, 0, NULL, 0}};
    uint64_t from = 1, to = 100, failures = 5;
    bool calm = false, healthy = false, sick = false, stream = false, digest = false, shrinks = true;
    const char *text = NULL, *plans = NULL;
    int c;
    while ((c = getopt_long(argc, argv, "", names, NULL)) != -1) {
        switch (c) {
        case 's':
            if (!range(optarg, &from, &to)) {
                fprintf(stderr, "roll_world: '%s' is no range of seeds, like 1-1000\n", optarg);
                return 2;
            }
            break;
        case 'g': /* behind the seeds that the tests run */
            from = 100001;
            to = 100000 + strtoull(optarg, NULL, 10);
            break;
        case 'p':
            text = optarg;
            break;
        case 'P':
            plans = optarg;
            break;
        case 'f':
            failures = strtoull(optarg, NULL, 10);
            break;
        case 'c':
            calm = true;
            break;
        case 'h':
            healthy = true;
            break;
        case 'i':
            sick = true;
            break;
        case 't':
            stream = true;
            break;
        case 'd':
            digest = true;
            break;
        case 'n':
            shrinks = false;
            break;
        case 'e':
            says_each = true;
            break;
        case 'l':
            play_loud = true;
            break;
        case 'H':
            fputs(help, stdout);
            return 0;
        default:
            return 2;
        }
    }
    world_init();
    signal(SIGPROF, on_hang);
    roll_guard();
    struct plan plan;
    struct timespec begin, end;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    if (plans) {
        int rc = try_file(plans);
        if (rc != 0) {
            return rc;
        }
    } else if (text) {
        if (!plan_parse(&plan, text)) {
            return 2;
        }
        (void)try_one(&plan, false);
    }
    for (uint64_t seed = from; !text && !plans && seed <= to && sum.bad < failures; seed++) {
        plan_make(&plan, seed);
        plan.faults = calm ? 0 : plan.faults;
        plan.relays = stream ? 0 : plan.relays;
        plan.digest = (plan.digest || digest) && !stream;
        plan.sick = sick || (plan.sick && !healthy);
        (void)try_one(&plan, shrinks);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    show((double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9);
    return sum.bad > 0;
}
