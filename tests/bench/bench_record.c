/*
 * bench_record.c: what recording one collective costs in the rank: `roll_bench record`.
 *
 * Starts roll_bench_rank (tests/interposer/bench_rank.c) with the real preload, as a job would be started: once with
 * the library and an LTTng-UST session that really records, once with the nop build, which forwards and does not
 * record. The session is a snapshot session: its ring overwrites the oldest, as ours does, and nothing writes to disk
 * meanwhile. A session daemon that runs already is used and left alone; one that we start is ended. Measuring in this
 * process was rejected: a dlopened library does not stand before calls as a preloaded one does.
 */
#include "tests/bench/bench.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GOAL_P50   60.0
#define GOAL_P99   250.0
#define GOAL_RATIO 0.4

struct bench {
    char top[PATH_MAX];  /* the build tree: what is above bin/ or tests/ of this program */
    char work[PATH_MAX]; /* scratch: rings, the session's output */
    char session[64];
    bool own_daemon; /* we started the session daemon */
    bool tracing;
};

/* Runs argv with its output dropped, or caught into out; the wait status, or -1. */
static int run(char *const argv[], char *out, size_t size)
{
    int pipes[2] = {-1, -1};
    size_t used = 0;
    if (out != NULL && pipe2(pipes, O_CLOEXEC) != 0) {
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(out != NULL ? pipes[1] : null, 1);
        if (out == NULL) {
            dup2(null, 2);
        }
        execvp(argv[0], argv);
        _exit(127);
    }
    if (out != NULL) {
        close(pipes[1]);
        for (ssize_t n = 1; n > 0 && used + 1 < size;) {
            n = read(pipes[0], out + used, size - 1 - used);
            used += n > 0 ? (size_t)n : 0;
        }
        out[used] = '\0';
        close(pipes[0]);
    }
    int status = -1;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

#define RUN(...) (run((char *[]){__VA_ARGS__, NULL}, NULL, 0) == 0)

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *walk)
{
    (void)st;
    (void)kind;
    (void)walk;
    return remove(path);
}

static int find_products(struct bench *bench)
{
    ssize_t n = readlink("/proc/self/exe", bench->top, sizeof(bench->top) - 1);
    for (int up = 0; up < 2 && n > 0; up++) {
        bench->top[n] = '\0';
        char *slash = strrchr(bench->top, '/');
        n = slash != NULL ? slash - bench->top : -1;
    }
    if (n <= 0) {
        return -1;
    }
    bench->top[n] = '\0';
    snprintf(bench->work, sizeof(bench->work), "/tmp/roll-bench-XXXXXX");
    return mkdtemp(bench->work) != NULL ? 0 : -1;
}

/* Starts a session that records rollcall_bench:call; false, and why on the table, when that cannot be had. */
static bool start_tracing(struct bench *bench, FILE *table)
{
    char output[PATH_MAX + 16];
    if (!RUN("lttng", "--version")) {
        fprintf(table, "  LTTng-UST comparison left out: lttng is not installed (Debian package lttng-tools)\n");
        return false;
    }
    if (!RUN("lttng", "-n", "list")) {
        bench->own_daemon = RUN("lttng-sessiond", "--daemonize", "--no-kernel");
        if (!bench->own_daemon) {
            fprintf(table, "  LTTng-UST comparison left out: lttng-sessiond does not start\n");
            return false;
        }
    }
    snprintf(bench->session, sizeof(bench->session), "roll-bench-%d", (int)getpid());
    snprintf(output, sizeof(output), "--output=%s/trace", bench->work);
    bench->tracing =
        RUN("lttng", "-n", "create", bench->session, "--snapshot", output) &&
        RUN("lttng", "-n", "enable-channel", "-u", "-s", bench->session, "--overwrite", "--subbuf-size=1M",
            "--num-subbuf=4", "bench") &&
        RUN("lttng", "-n", "enable-event", "-u", "-s", bench->session, "-c", "bench", "rollcall_bench:call") &&
        RUN("lttng", "-n", "start", bench->session);
    if (!bench->tracing) {
        fprintf(table, "  LTTng-UST comparison left out: the session could not be set up\n");
    }
    return bench->tracing;
}

/* The process id of the session daemon, from its pid file; 0 when there is none. */
static pid_t daemon_pid(void)
{
    char path[PATH_MAX];
    const char *home = getenv("LTTNG_HOME") != NULL ? getenv("LTTNG_HOME") : getenv("HOME");
    snprintf(path, sizeof(path), geteuid() == 0 ? "/var/run/lttng/lttng-sessiond.pid" : "%s/.lttng/lttng-sessiond.pid",
             home != NULL ? home : "");
    FILE *file = fopen(path, "re");
    int pid = 0;
    if (file != NULL) {
        pid = fscanf(file, "%d", &pid) == 1 ? pid : 0;
        fclose(file);
    }
    return pid;
}

static void stop_tracing(struct bench *bench)
{
    if (bench->session[0] != '\0') {
        (void)RUN("lttng", "-n", "destroy", bench->session);
    }
    pid_t pid = bench->own_daemon ? daemon_pid() : 0;
    if (pid > 0 && kill(pid, SIGTERM) == 0) {
        const struct timespec pause = {0, 10000000};
        for (int i = 0; i < 500 && kill(pid, 0) == 0; i++) {
            nanosleep(&pause, NULL);
        }
    }
}

/* One run of the rank under this preload; an owned object, NULL when it failed. */
static json_t *measure(const struct bench *bench, const char *library, const char *mode)
{
    char preload[PATH_MAX + 64], tool[PATH_MAX + 64], dir[PATH_MAX + 64], program[PATH_MAX + 64], out[4096];
    snprintf(preload, sizeof(preload), "LD_PRELOAD=%s/lib/%s", bench->top, library);
    snprintf(tool, sizeof(tool), "NVTX_INJECTION64_PATH=%s/lib/%s", bench->top, library);
    snprintf(dir, sizeof(dir), "ROLLCALL_DIR=/dev/shm/rollcall-bench-%d", (int)getpid());
    snprintf(program, sizeof(program), "%s/bin/roll_bench_rank", bench->top);
    char *argv[] = {(char *)(uintptr_t) "env",
                    (char *)(uintptr_t) "-u",
                    (char *)(uintptr_t) "ROLLCALL_DAEMON",
                    preload,
                    tool,
                    dir,
                    program,
                    (char *)(uintptr_t)mode,
                    NULL};
    int status = run(argv, out, sizeof(out));
    nftw(dir + strlen("ROLLCALL_DIR="), remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    json_t *result = status == 0 ? json_loads(out, 0, NULL) : NULL;
    if (result == NULL) {
        fprintf(stderr, "roll_bench: %s under %s gave no figures (status %d)\n", program, preload, status);
    }
    return result;
}

static double figure(json_t *run, const char *variant, const char *name)
{
    return json_real_value(json_object_get(json_object_get(run, variant), name));
}

/* What a variant costs over the bare call: medians against medians; the 99th percentile against the bare median. */
static json_t *over_bare(json_t *run, const char *variant)
{
    json_t *out = json_object();
    static const char *const names[][2] = {{"batch_p50", "batch_p50"},   {"batch_p99", "batch_p50"},
                                           {"single_p50", "single_p50"}, {"single_p90", "single_p50"},
                                           {"single_p99", "single_p50"}, {"single_p999", "single_p50"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        double value = figure(run, variant, names[i][0]) - figure(run, "bare", names[i][1]);
        json_object_set_new(out, names[i][0], json_real(value));
    }
    return out;
}

/* A batch that is preempted counts its neighbour's time: the 99th percentile is judged by single calls. */
static void print_over(FILE *table, const char *what, json_t *over, const char *batch_goal, const char *single_goal)
{
    char text[64];
    snprintf(text, sizeof(text), "p50 %.1f ns, p99 %.1f ns", json_real_value(json_object_get(over, "batch_p50")),
             json_real_value(json_object_get(over, "batch_p99")));
    char name[96];
    snprintf(name, sizeof(name), "%s, batches of 500", what);
    roll_bench_line(table, name, text, batch_goal);
    snprintf(text, sizeof(text), "p50 %.1f ns, p99 %.1f ns", json_real_value(json_object_get(over, "single_p50")),
             json_real_value(json_object_get(over, "single_p99")));
    snprintf(name, sizeof(name), "%s, single calls", what);
    roll_bench_line(table, name, text, single_goal);
}

/* One poll of a loop over cudaStreamQuery, over the same bare. */
static void report_poll(json_t *out, FILE *table, json_t *full)
{
    double bare = figure(full, "poll", "bare_p50"), p50 = figure(full, "poll", "preloaded_p50") - bare;
    double p99 = figure(full, "poll", "preloaded_p99") - bare;
    char text[64];
    snprintf(text, sizeof(text), "p50 %.1f ns, p99 %.1f ns", p50, p99);
    roll_bench_line(table, "one poll of a loop over cudaStreamQuery", text, "p50 <= 30 ns");
    json_object_set_new(out, "poll_over_bare_ns",
                        json_pack("{s:f,s:f,s:b}", "p50", p50, "p99", p99, "reached", p50 <= 30.0));
}

/* An event is recorded, and a stream waits for it, over the same two calls bare: with a call of NCCL before the event,
 * or without one. */
static void report_order(json_t *out, FILE *table, json_t *full)
{
    double without = figure(full, "order_without", "preloaded_p50") - figure(full, "order_without", "bare_p50");
    double with = figure(full, "order_with", "preloaded_p50") - figure(full, "order_with", "bare_p50");
    char text[64];
    snprintf(text, sizeof(text), "p50 %.1f ns", without);
    roll_bench_line(table, "cudaEventRecord and cudaStreamWaitEvent, no NCCL call before", text, "p50 <= 30 ns");
    snprintf(text, sizeof(text), "p50 %.1f ns", with);
    roll_bench_line(table, "the same behind a call of NCCL", text, "p50 <= 60 ns");
    json_object_set_new(out, "order_over_bare_ns", json_pack("{s:f,s:f}", "without", without, "with", with));
}

/* A group of 64 sends and as many receives: each message, the group's own two calls spread over them, over the same
 * bare. */
static void report_group(json_t *out, FILE *table, json_t *full)
{
    double bare = figure(full, "group", "bare_p50"), p50 = figure(full, "group", "preloaded_p50") - bare;
    double p99 = figure(full, "group", "preloaded_p99") - bare;
    char text[64];
    snprintf(text, sizeof(text), "p50 %.1f ns, p99 %.1f ns", p50, p99);
    roll_bench_line(table, "group of 2 x 64 sends and receives, each of them", text, "p50 <= 60 ns");
    json_object_set_new(
        out, "group_over_bare_ns",
        json_pack("{s:i,s:f,s:f,s:b}", "messages", 128, "p50", p50, "p99", p99, "reached", p50 <= GOAL_P50));
}

/* A range of NVTX, begun and ended, where steps are read from ranges (--nvtx), and where not. */
static void report_range(json_t *out, FILE *table, json_t *full)
{
    static const char *const names[][2] = {{"unseen", "one range of NVTX, steps not read"},
                                           {"step", "the same, steps read, its name a step"},
                                           {"other", "the same, steps read, another name"}};
    json_t *range = json_object();
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char text[64], member[32];
        snprintf(member, sizeof(member), "%s_p50", names[i][0]);
        double p50 = figure(full, "range", member);
        snprintf(member, sizeof(member), "%s_p99", names[i][0]);
        snprintf(text, sizeof(text), "p50 %.1f ns, p99 %.1f ns", p50, figure(full, "range", member));
        roll_bench_line(table, names[i][1], text, "(push and pop)");
        json_object_set_new(range, names[i][0], json_real(p50));
    }
    json_object_set_new(out, "range_ns", range);
}

/* Compute calls seen from outside: one line each, in the order in which they were measured. */
static void report_products(json_t *out, FILE *table, json_t *full)
{
    static const struct {
        const char *name, *text;
    } rows[] = {
        {"te_8_groups", "nvte_multi_tensor_gemm, 8 groups"},
        {"cublas_8_groups", "cublasSgemmGroupedBatched, 8 groups"},
        {"dense_left_out", "nvte_cublas_gemm that is only counted"},
        {"noted", "nvte_ep_prepare, noted"},
    };
    json_t *products = json_object();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[32];
        double ns = figure(full, "products", rows[i].name);
        snprintf(text, sizeof(text), "p50 %.1f ns", ns);
        roll_bench_line(table, rows[i].text, text, "(over the bare call)");
        json_object_set_new(products, rows[i].name, json_real(ns));
    }
    json_object_set_new(out, "products_over_bare_ns", products);
}

static void report(json_t *out, FILE *table, json_t *full, json_t *nop)
{
    json_t *recorded = over_bare(full, "preloaded"), *forwarded = over_bare(nop, "preloaded");
    print_over(table, "rollcall over the bare call", recorded, "p50 <= 60 ns", "p50 <= 60 ns, p99 <= 250 ns");
    report_group(out, table, full);
    report_poll(out, table, full);
    report_range(out, table, full);
    report_order(out, table, full);
    report_products(out, table, full);
    print_over(table, "nop build over the bare call", forwarded, "(forwarding alone)", "(forwarding alone)");
    double p50 = json_real_value(json_object_get(recorded, "batch_p50"));
    double single = json_real_value(json_object_get(recorded, "single_p50"));
    double p99 = json_real_value(json_object_get(recorded, "single_p99"));
    bool reached = p50 <= GOAL_P50 && single <= GOAL_P50 && p99 <= GOAL_P99;
    if (json_is_true(json_object_get(full, "lttng"))) {
        json_t *traced = over_bare(full, "tracepoint");
        char text[64];
        print_over(table, "LTTng-UST, same fields", traced, "(recording, snapshot session)",
                   "(recording, snapshot session)");
        double ratio = p50 / json_real_value(json_object_get(traced, "batch_p50"));
        snprintf(text, sizeof(text), "%.2f", ratio);
        roll_bench_line(table, "rollcall / LTTng-UST, p50 of batches", text, "<= 0.4");
        json_object_set_new(out, "lttng_over_bare_ns", traced);
        json_object_set_new(out, "ratio_to_lttng", json_real(ratio));
        reached = reached && ratio <= GOAL_RATIO;
    }
    json_object_set_new(out, "over_bare_ns", recorded);
    json_object_set_new(out, "nop_over_bare_ns", forwarded);
    json_object_set_new(out, "bare_ns", json_real(figure(full, "bare", "batch_p50")));
    json_object_set(out, "lttng_recorded", json_object_get(full, "lttng"));
    json_object_set_new(out, "reached", json_boolean(reached));
}

int roll_bench_record(json_t *out, FILE *table)
{
    struct bench bench = {.own_daemon = false};
    if (find_products(&bench) != 0) {
        fprintf(stderr, "roll_bench: cannot find the build tree or make a scratch directory\n");
        return -1;
    }
    bool traced = start_tracing(&bench, table);
    json_t *full = measure(&bench, "librollcall.so", traced ? "lttng" : "plain");
    stop_tracing(&bench);
    json_t *nop = measure(&bench, "librollcall_nop.so", "plain");
    if (traced && full != NULL && !json_is_true(json_object_get(full, "lttng"))) {
        fprintf(
            table,
            "  LTTng-UST comparison left out: the rank was built without lttng-ust, or not reached by the session\n");
    }
    int rc = full != NULL && nop != NULL ? 0 : -1;
    if (rc == 0) {
        report(out, table, full, nop);
    }
    json_decref(full);
    json_decref(nop);
    nftw(bench.work, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    return rc;
}

#ifdef ROLL_BENCH_MAIN
int main(void)
{
    json_t *out = json_object();
    int rc = roll_bench_record(out, stdout);
    json_dumpf(out, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(out);
    return rc == 0 ? 0 : 1;
}
#endif
