/*
 * bench_job.c: how much slower a job becomes that is watched: `roll_bench job`.
 *
 * moe_train with 8 ranks, alone and under `rollcall run` (recording, agent, root, verdicts: everything), in pairs whose
 * order alternates, so that a drift of the machine meets both sides. What is compared is the time of a step as the job
 * itself measures it: start and end of the processes are not in it. Each pair gives one ratio; the figure is their
 * median, with the 95 % confidence interval of a median, which assumes nothing about how they are distributed, and the
 * quartiles as spread. The mean was rejected: one neighbour who compiles something ruins it. Beside it stands the
 * processor time of the whole process tree, daemon included, which a busy machine disturbs less.
 *
 * Two sizes, because the share depends on how much a job computes between its calls: the model that the tests use,
 * which does next to nothing, and a larger one.
 *
 * For the first, where it goes: rounds of the job alone, with the preload and nobody who reads what it records, and
 * with a daemon beside it that streams, or compares by digests. Ranks and daemon are accounted apart, start and end of
 * the ranks included. Where there are more CPUs than ranks, the daemon has the last one, and the ranks have the others.
 */
#include "tests/bench/bench.h"
#include "tests/bench/bench_daemon.h"

#include "trace/err.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAIRS = 25, ROUNDS = 15, RANKS = 8, MOST_ARGS = 24, OUTPUT = 1 << 16 };

static const struct {
    const char *name, *json;
    const char *options[8]; /* of moe_train */
} jobs[] = {
    {"slowdown, 8 ranks, smallest model", "small", {"--steps", "40", NULL}},
    {"slowdown, 8 ranks, hidden 192, experts of 256",
     "larger",
     {"--steps", "6", "--hidden", "192", "--ffn", "256", NULL}},
};
#define JOBS (sizeof(jobs) / sizeof(jobs[0]))

struct sample {
    double step_ms, cpu_s;
};

/* Where roll_bench stands: rollcall and moe_train stand beside it. */
static int beside(const char *name, char path[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 32);
    if (n <= 0) {
        return ROLL_E_NOTFOUND;
    }
    path[n] = '\0';
    strcpy(strrchr(path, '/') + 1, name);
    return access(path, X_OK) == 0 ? 0 : ROLL_E_NOTFOUND;
}

/* Where there are more CPUs than ranks: this process runs on the last one, or on all others. */
static void bind_apart(bool last)
{
    cpu_set_t all, part;
    if (sched_getaffinity(0, sizeof(all), &all) != 0 || CPU_COUNT(&all) <= RANKS) {
        return;
    }
    size_t cpu = CPU_SETSIZE - 1;
    while (!CPU_ISSET(cpu, &all)) {
        cpu--;
    }
    CPU_ZERO(&part);
    CPU_SET(cpu, &part);
    CPU_CLR(cpu, &all);
    sched_setaffinity(0, sizeof(all), last ? &part : &all);
}

/* Runs a command to its end; its output, and the processor time of it and all it has waited for. dir: its ranks write
 * rings there, and are bound apart from a daemon; NULL: not so. */
static int run(char *const argv[], const char *dir, char *out, double *cpu_s)
{
    int ends[2], status = -1;
    size_t used = 0;
    struct rusage usage;
    if (pipe(ends) != 0) {
        return ROLL_E_IO;
    }
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(ends[1], 1);
        dup2(null, 2);
        close(ends[0]);
        close(ends[1]);
        unsetenv("ROLLCALL_DAEMON");
        unsetenv("LD_PRELOAD");
        if (dir) {
            char preload[PATH_MAX];
            bind_apart(false);
            if (dir[0] && beside("../lib/librollcall.so", preload) == 0) {
                setenv("LD_PRELOAD", preload, 1);
                setenv("ROLLCALL_DIR", dir, 1);
                setenv("ROLLCALL_QUIET", "1", 1);
            }
        }
        execv(argv[0], argv);
        _exit(127);
    }
    close(ends[1]);
    for (ssize_t n = 1; n > 0 && used + 1 < OUTPUT;) {
        n = read(ends[0], out + used, OUTPUT - 1 - used);
        used += n > 0 ? (size_t)n : 0;
    }
    out[used] = '\0';
    close(ends[0]);
    if (pid < 0 || wait4(pid, &status, 0, &usage) != pid || status != 0) {
        fprintf(stderr, "bench: %s ended with status %d\n", argv[0], status);
        return ROLL_E_IO;
    }
    *cpu_s = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
             (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
    return 0;
}

/* dir: as for run. */
static int measure(size_t job, bool watched, const char *dir, struct sample *sample)
{
    static char out[OUTPUT];
    char rollcall[PATH_MAX], train[PATH_MAX];
    const char *argv[MOST_ARGS] = {NULL};
    int n = 0;
    if (beside("rollcall", rollcall) != 0 || beside("moe_train", train) != 0) {
        fprintf(stderr, "bench: rollcall and moe_train are not beside this program\n");
        return ROLL_E_NOTFOUND;
    }
    if (watched) {
        argv[n++] = rollcall;
        argv[n++] = "run";
        argv[n++] = "--hostnccl";
        argv[n++] = "--";
    }
    argv[n++] = train;
    argv[n++] = "--spawn";
    argv[n++] = "8";
    for (const char *const *o = jobs[job].options; *o; o++) {
        argv[n++] = *o;
    }
    int err = run((char *const *)(uintptr_t)argv, dir, out, &sample->cpu_s);
    const char *said = err ? NULL : strstr(out, " steps in ");
    if (!err && (!said || sscanf(said, " steps in %*f s, %lf ms a step", &sample->step_ms) != 1)) {
        fprintf(stderr, "bench: moe_train did not say how long a step takes\n");
        err = ROLL_E_CORRUPT;
    }
    return err;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Percent over 1 of the ratio at this place of the sorted ones. */
static double percent(const double *ratios, int at)
{
    return (ratios[at < 0 ? 0 : at >= PAIRS ? PAIRS - 1 : at] - 1) * 100;
}

static json_t *report(FILE *table, const char *figure, const char *goal, double *ratios)
{
    char measured[64], name[96];
    /* Order statistics: the number of ratios below the true median is binomial with p = 1/2. */
    int half = (int)ceil(0.98 * sqrt(PAIRS)), middle = PAIRS / 2;
    qsort(ratios, PAIRS, sizeof(*ratios), by_size);
    double median = percent(ratios, middle), low = percent(ratios, middle - half),
           high = percent(ratios, middle + half);
    snprintf(measured, sizeof(measured), "%+.2f %% (%+.2f..%+.2f)", median, low, high);
    roll_bench_line(table, figure, measured, goal);
    snprintf(name, sizeof(name), "  its spread over %d pairs: quartiles, extremes", PAIRS);
    char spread[64];
    snprintf(spread, sizeof(spread), "%+.1f..%+.1f, %+.1f..%+.1f", percent(ratios, PAIRS / 4),
             percent(ratios, PAIRS * 3 / 4), percent(ratios, 0), percent(ratios, PAIRS - 1));
    roll_bench_line(table, name, spread, "");
    return json_pack("{s:i,s:f,s:[f,f],s:[f,f],s:[f,f]}", "pairs", PAIRS, "median_percent", median, "ci95_percent", low,
                     high, "quartiles_percent", percent(ratios, PAIRS / 4), percent(ratios, PAIRS * 3 / 4),
                     "extremes_percent", percent(ratios, 0), percent(ratios, PAIRS - 1));
}

static int one_job(size_t job, json_t *out, FILE *table)
{
    double steps[PAIRS], cpu[PAIRS], alone_ms = 0;
    struct sample sample[2];
    for (int pair = 0; pair < PAIRS; pair++) {
        for (int turn = 0; turn < 2; turn++) {
            int watched = (turn + pair) % 2;
            int err = measure(job, watched != 0, NULL, &sample[watched]);
            if (err) {
                return err;
            }
        }
        steps[pair] = sample[1].step_ms / sample[0].step_ms;
        cpu[pair] = sample[1].cpu_s / sample[0].cpu_s;
        alone_ms += sample[0].step_ms / PAIRS;
    }
    char name[96];
    snprintf(name, sizeof(name), "%s (%.0f ms a step)", jobs[job].name, alone_ms);
    json_t *part = json_object();
    json_object_set_new(part, "alone_ms_a_step", json_real(alone_ms));
    json_object_set_new(part, "step_time", report(table, name, "<= 0.5 %", steps));
    json_object_set_new(part, "processor_time",
                        report(table, "  processor time, start, end and daemon included", "", cpu));
    json_object_set_new(out, jobs[job].json, part);
    return 0;
}

/* causes */

static const struct {
    const char *name, *json;
    bool preload;
    const char *mode; /* of the daemon beside it; NULL: there is none */
} causes[] = {
    {"  alone", "alone", false, NULL},
    {"  preload, and nobody reads", "preload", true, NULL},
    {"  preload, agent and root, streamed", "streamed", true, "--stream"},
    {"  preload, agent and root, digests", "digests", true, "--digest"},
};
#define CAUSES (sizeof(causes) / sizeof(causes[0]))

struct part {
    double step_ms, ranks_s, daemon_s;
};

static double processor_s(pid_t pid)
{
    clockid_t clock;
    struct timespec ts = {0};
    bool known = clock_getcpuclockid(pid, &clock) == 0 && clock_gettime(clock, &ts) == 0;
    return known ? (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9 : 0;
}

/* One run. Of the daemon what it needs while the job runs, without its own start. */
static int measure_part(size_t cause, struct part *part)
{
    struct roll_bench_daemons b;
    struct sample sample = {0};
    char endpoint[256];
    int err = roll_bench_open(&b);
    if (!err && causes[cause].mode) {
        cpu_set_t before;
        sched_getaffinity(0, sizeof(before), &before);
        bind_apart(true);
        err = roll_bench_start(&b, 0, (const char *const[]){"--standalone", causes[cause].mode, NULL}, endpoint,
                               sizeof(endpoint));
        sched_setaffinity(0, sizeof(before), &before);
    }
    double began_s = b.daemon[0] > 0 ? processor_s(b.daemon[0]) : 0;
    err = err ? err : measure(0, false, causes[cause].preload ? b.dir : "", &sample);
    *part = (struct part){.step_ms = sample.step_ms,
                          .ranks_s = sample.cpu_s,
                          .daemon_s = b.daemon[0] > 0 ? processor_s(b.daemon[0]) - began_s : 0};
    roll_bench_close(&b);
    return err;
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof(*values), by_size);
    return values[ROUNDS / 2];
}

/* Each round runs every kind once, beginning with another one. */
static int by_cause(json_t *out, FILE *table)
{
    static struct part part[CAUSES][ROUNDS];
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < CAUSES; i++) {
            size_t cause = (round + i) % CAUSES;
            int err = measure_part(cause, &part[cause][round]);
            if (err) {
                return err;
            }
        }
    }
    fprintf(table, "  by cause: step over alone; processor time of ranks over alone; of the daemon over the ranks'\n");
    for (size_t cause = 1; cause < CAUSES; cause++) {
        double step[ROUNDS], ranks[ROUNDS], daemon[ROUNDS];
        char measured[64];
        for (size_t i = 0; i < ROUNDS; i++) {
            step[i] = part[cause][i].step_ms / part[0][i].step_ms;
            ranks[i] = part[cause][i].ranks_s / part[0][i].ranks_s;
            daemon[i] = part[cause][i].daemon_s / part[0][i].ranks_s;
        }
        double step_percent = (median(step) - 1) * 100, ranks_percent = (median(ranks) - 1) * 100,
               daemon_percent = median(daemon) * 100;
        snprintf(measured, sizeof(measured), "%+.1f %%; %+.1f %%; %.1f %%", step_percent, ranks_percent,
                 daemon_percent);
        roll_bench_line(table, causes[cause].name, measured, "");
        json_object_set_new(out, causes[cause].json,
                            json_pack("{s:f,s:f,s:f,s:[f,f]}", "step_percent", step_percent, "ranks_percent",
                                      ranks_percent, "daemon_percent", daemon_percent, "step_quartiles_percent",
                                      (step[ROUNDS / 4] - 1) * 100, (step[ROUNDS * 3 / 4] - 1) * 100));
    }
    return 0;
}

int roll_bench_job(json_t *out, FILE *table)
{
    int err = 0;
    for (size_t job = 0; job < JOBS && !err; job++) {
        err = one_job(job, out, table);
    }
    json_t *parts = json_object();
    err = err ? err : by_cause(parts, table);
    json_object_set_new(out, "causes", parts);
    return err;
}
