/*
 * bench_scale.c: roll_bench scale: a large job as its daemons see it: real agents, relays and a root over real sockets,
 * rings that are written at the pace of a job.
 *
 * Two cores cannot do the work of thousands of nodes, so the larger jobs run in slow time (slow_clock.c): each row says
 * by which factor, and what is used is what processors were busy, over the job's time. Rows that are computed from
 * smaller jobs were rejected: what grows faster than the job would not be seen. Each row is a process of its own,
 * because the library is to be loaded before anything else.
 *
 *   ROLL_BENCH_SCALE=16384:32:4:8[:w] a row of 16,384 ranks, 32 times slower, with 4 wrong calls, 8 ranks below each
 *                                     agent; several with commas
 *
 * Behind the last colon, what is done: wrong calls (w; with q one soon after the other, with g all on the communicator
 * of all ranks), a stall (s), the death of an agent (a), of the root (r), of a node (n); all of these when there is
 * none. With d there are no relays: all agents come to the root by tcp with CURVE.
 */
#include "tests/bench/bench_scale.h"
#include "tests/bench/bench.h"

#include "daemon/base/log.h"
#include "trace/err.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROWS     "64:1:8:8,1024:4:4:8,4096:12:4:32,16384:24:3:64"
#define ROW_NAME "ROLL_BENCH_SCALE_ROW"

extern char **environ;

/* one row, in slow time */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static json_t *row_json(struct scale_measured *m)
{
    json_t *row = json_pack("{s:i,s:i,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "ranks", (int)m->ranks, "per_node",
                            (int)m->per_node, "factor", (int)m->factor, "rings_s", m->rings_s, "begin_s", m->begin_s,
                            "begin_cpu_s", m->begin_cpu, "calls_per_s", m->calls, "root_core", m->root, "relay_core",
                            m->relay, "relay_most_core", m->relay_most, "agent_core", m->agent, "into_root_bytes_per_s",
                            m->into_root, "writers_late_ms", m->late_ms);
    json_t *rest = json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:i,s:i,s:i,s:i,s:i}", "root_mib", m->root_mib, "relay_mib",
                             m->relay_mib, "agent_mib", m->agent_mib, "status_ms", m->status_ms, "why_ms", m->why_ms,
                             "runs_ms", m->runs_ms, "tried", (int)m->tried, "told", (int)m->told, "named",
                             (int)m->named, "others", (int)m->others, "opened", (int)m->opened);
    json_t *faults = json_pack(
        "{s:f,s:f,s:s,s:f,s:f,s:b,s:i,s:i,s:f,s:s,s:s,s:i}", "still_s", m->still_s, "still_cpu_s", m->still_cpu_s,
        "still_code", m->still_code, "again_s", m->again_s, "again_cpu_s", m->again_cpu, "again_whole",
        (int)m->again_whole, "again_others", (int)m->again_others, "agent_others", (int)m->agent_others, "dead_s",
        m->dead_s, "dead_code", m->dead_code, "dead_ranks", m->dead_ranks, "dead_others", (int)m->dead_others);
    json_t *told = json_array(), *sorted = json_array(), *cpu = json_array();
    for (uint32_t i = 0; i < m->told; i++) {
        m->told_cpu_ms[i] += m->told_ms[i];
        json_array_append_new(told, json_real(m->told_ms[i]));
    }
    qsort(m->told_cpu_ms, m->told, sizeof(m->told_cpu_ms[0]), by_size);
    qsort(m->told_ms, m->told, sizeof(m->told_ms[0]), by_size);
    for (uint32_t i = 0; i < m->told; i++) {
        json_array_append_new(sorted, json_real(m->told_ms[i]));
        json_array_append_new(cpu, json_real(m->told_cpu_ms[i]));
    }
    json_object_update(row, rest);
    json_object_update(row, faults);
    json_decref(rest);
    json_decref(faults);
    json_object_set_new(row, "told_ms", told);
    json_object_set_new(row, "told_sorted_ms", sorted);
    json_object_set_new(row, "told_with_cpu_ms", cpu); /* the processor time of the root added, in order */
    return row;
}

static int run_row(const char *spec)
{
    unsigned ranks = 0, factor = 1, trials = 4, per_node = 8;
    int fd = -1;
    char only[16] = "";
    if (sscanf(spec, "%d:%u:%u:%u:%u:%15s", &fd, &ranks, &factor, &trials, &per_node, only) < 4 ||
        trials + 1 >= SCALE_TRIALS || per_node == 0 || SCALE_RELAY % per_node != 0 || ranks % per_node != 0) {
        return ROLL_E_ARG;
    }
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    roll_log_init(true);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct scale_measured m = {.ranks = ranks, .per_node = per_node, .factor = factor};
    int err = scale_measure(trials, only[0] ? only : NULL, &m);
    json_t *row = row_json(&m);
    if (json_dumpfd(row, fd, JSON_COMPACT) != 0) {
        err = err ? err : ROLL_E_IO;
    }
    json_decref(row);
    return err;
}

/* the rows */

static void put(const char *name, int64_t value)
{
    char text[32];
    snprintf(text, sizeof(text), "%lld", (long long)value);
    setenv(name, text, 1);
}

static void begin_slow(unsigned factor)
{
    struct timespec mono, real;
    clock_gettime(CLOCK_MONOTONIC, &mono);
    clock_gettime(CLOCK_REALTIME, &real);
    put("ROLL_SLOW_FACTOR", factor);
    put("ROLL_SLOW_MONO", mono.tv_sec * INT64_C(1000000000) + mono.tv_nsec);
    put("ROLL_SLOW_REAL", real.tv_sec * INT64_C(1000000000) + real.tv_nsec);
    setenv("LD_PRELOAD", ROLL_SLOW_CLOCK, 1);
}

/* Runs a row in a process of its own, which writes what it has measured; owned. */
static json_t *row(const char *spec, unsigned factor)
{
    int ends[2], rc = -1;
    char name[128];
    pid_t pid;
    if (pipe(ends) != 0) {
        return NULL;
    }
    snprintf(name, sizeof(name), "%d:%s", ends[1], spec);
    setenv(ROW_NAME, name, 1);
    begin_slow(factor);
    char *argv[] = {"roll_bench", "--json", "/dev/null", "scale", NULL};
    posix_spawn_file_actions_t quiet; /* the table is ours */
    bool runs = posix_spawn_file_actions_init(&quiet) == 0;
    if (runs) {
        runs = posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0) == 0 &&
               posix_spawn(&pid, "/proc/self/exe", &quiet, NULL, argv, environ) == 0;
        posix_spawn_file_actions_destroy(&quiet);
    }
    unsetenv("LD_PRELOAD");
    unsetenv(ROW_NAME);
    close(ends[1]);
    json_t *measured = runs ? json_loadfd(ends[0], 0, NULL) : NULL;
    close(ends[0]);
    if (runs && waitpid(pid, &rc, 0) == pid && rc != 0) {
        fprintf(stderr, "bench: the row %s has ended with %d\n", spec, rc);
    }
    return measured;
}

static double real_of(const json_t *row, const char *name)
{
    return json_number_value(json_object_get(row, name));
}

static const char *text_of(const json_t *row, const char *name)
{
    const char *text = json_string_value(json_object_get(row, name));
    return text ? text : "";
}

/* The value below which so much of the list lies. */
static double share(const json_t *list, double part)
{
    size_t n = json_array_size(list), at = (size_t)(part * (double)n);
    return n ? json_number_value(json_array_get(list, at < n ? at : n - 1)) : -1;
}

static void print_row(const json_t *r, FILE *table)
{
    const json_t *told = json_object_get(r, "told_sorted_ms"), *cpu = json_object_get(r, "told_with_cpu_ms");
    fprintf(table,
            "  %.0f ranks, %.0f below each agent, %.0f times slower than real time: %.0f calls/s (writers late by %.0f "
            "ms at most)\n",
            real_of(r, "ranks"), real_of(r, "per_node"), real_of(r, "factor"), real_of(r, "calls_per_s"),
            real_of(r, "writers_late_ms"));
    fprintf(table,
            "    of a core: root %.2f %%, a relay %.2f %% (busiest %.2f %%), an agent %.2f %%; %.3f MB/s into root\n",
            real_of(r, "root_core") * 100, real_of(r, "relay_core") * 100, real_of(r, "relay_most_core") * 100,
            real_of(r, "agent_core") * 100, real_of(r, "into_root_bytes_per_s") * 1e-6);
    fprintf(
        table,
        "    memory, most: root %.0f MiB, relay %.0f MiB, agent %.2f MiB; status %.0f ms, why %.0f ms, runs %.0f ms\n",
        real_of(r, "root_mib"), real_of(r, "relay_mib"), real_of(r, "agent_mib"), real_of(r, "status_ms"),
        real_of(r, "why_ms"), real_of(r, "runs_ms"));
    fprintf(table, "    all begin at once: %.2f s, root busy %.2f s (rings made in %.0f s); cases for nothing: %.0f\n",
            real_of(r, "begin_s"), real_of(r, "begin_cpu_s"), real_of(r, "rings_s"), real_of(r, "opened"));
    fprintf(table,
            "    wrong calls told: %.0f of %.0f, %.0f with the rank at once, p50 %.0f ms, p99 %.0f ms (with the "
            "processor time of "
            "the root %.0f, %.0f); others told %.0f\n",
            real_of(r, "told"), real_of(r, "tried"), real_of(r, "named"), share(told, 0.5), share(told, 0.99),
            share(cpu, 0.5), share(cpu, 0.99), real_of(r, "others"));
    fprintf(table, "    a rank stands: %s after %.2f s, root busy %.2f s; an agent dies and is back: %.0f told\n",
            text_of(r, "still_code"), real_of(r, "still_s"), real_of(r, "still_cpu_s"), real_of(r, "agent_others"));
    fprintf(table, "    root killed: all back after %.2f s, root busy %.2f s, calls %s; others %.0f\n",
            real_of(r, "again_s"), real_of(r, "again_cpu_s"),
            json_is_true(json_object_get(r, "again_whole")) ? "whole" : "MISSING", real_of(r, "again_others"));
    fprintf(table, "    a node dies: %s of '%s' after %.2f s; others %.0f\n", text_of(r, "dead_code"),
            text_of(r, "dead_ranks"), real_of(r, "dead_s"), real_of(r, "dead_others"));
    fflush(table);
}

int roll_bench_scale(json_t *out, FILE *table)
{
    const char *own = getenv(ROW_NAME), *asked = getenv("ROLL_BENCH_SCALE");
    if (own) {
        return run_row(own);
    }
    json_t *rows = json_array();
    int err = 0;
    json_object_set_new(out, "scale", rows);
    char *list = strdup(asked ? asked : ROWS), *rest = NULL;
    for (char *spec = list ? strtok_r(list, ",", &rest) : NULL; spec && !err; spec = strtok_r(NULL, ",", &rest)) {
        unsigned ranks, factor = 1;
        json_t *r = sscanf(spec, "%u:%u", &ranks, &factor) == 2 ? row(spec, factor) : NULL;
        err = r ? 0 : ROLL_E_IO;
        if (r) {
            print_row(r, table);
            json_array_append_new(rows, r);
        }
    }
    free(list);
    return err;
}
