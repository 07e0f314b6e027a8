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
 * Where it goes is another part: bench_job_causes.c.
 */
#include "tests/bench/bench_job.h"
#include "tests/bench/bench.h"

#include "trace/err.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAIRS = 25, MOST_ARGS = 24, OUTPUT = 1 << 16 };

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

/* In the child: what the job is to have and what not. */
static void set_up(const struct roll_bench_job *job)
{
    char preload[PATH_MAX];
    unsetenv("ROLLCALL_DAEMON");
    unsetenv("LD_PRELOAD");
    if (job->cpus) {
        sched_setaffinity(0, sizeof(*job->cpus), job->cpus);
    }
    if (job->dir && beside("../lib/librollcall.so", preload) == 0) {
        setenv("LD_PRELOAD", preload, 1);
        setenv("ROLLCALL_DIR", job->dir, 1);
        setenv("ROLLCALL_QUIET", "1", 1);
    }
}

/* Runs a command to its end; its output, and the processor time of it and all it has waited for. */
static int run(char *const argv[], const struct roll_bench_job *job, char *out, double *cpu_s)
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
        set_up(job);
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

int roll_bench_job_run(const struct roll_bench_job *job, struct roll_bench_job_cost *cost)
{
    static char out[OUTPUT];
    char rollcall[PATH_MAX], train[PATH_MAX];
    const char *argv[MOST_ARGS] = {NULL};
    int n = 0;
    if (beside("rollcall", rollcall) != 0 || beside("moe_train", train) != 0) {
        fprintf(stderr, "bench: rollcall and moe_train are not beside this program\n");
        return ROLL_E_NOTFOUND;
    }
    if (job->watched) {
        argv[n++] = rollcall;
        argv[n++] = "run";
        argv[n++] = "--hostnccl";
        argv[n++] = "--";
    }
    argv[n++] = train;
    argv[n++] = "--spawn";
    argv[n++] = "8";
    for (const char *const *o = job->options; *o; o++) {
        argv[n++] = *o;
    }
    int err = run((char *const *)(uintptr_t)argv, job, out, &cost->cpu_s);
    const char *said = err ? NULL : strstr(out, " steps in ");
    if (!err && (!said || sscanf(said, " steps in %*f s, %lf ms a step", &cost->step_ms) != 1)) {
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
    struct roll_bench_job_cost sample[2];
    for (int pair = 0; pair < PAIRS; pair++) {
        for (int turn = 0; turn < 2; turn++) {
            int watched = (turn + pair) % 2;
            const struct roll_bench_job one = {.options = jobs[job].options, .watched = watched != 0};
            int err = roll_bench_job_run(&one, &sample[watched]);
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

int roll_bench_job(json_t *out, FILE *table)
{
    int err = 0;
    for (size_t job = 0; job < JOBS && !err; job++) {
        err = one_job(job, out, table);
    }
    return err;
}
