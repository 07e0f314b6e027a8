/*
 * bench_job_causes.c: what a job loses, and to whom: `roll_bench job_causes`.
 *
 * moe_train with 8 ranks and the smallest model: alone, with the preload and nobody who reads, and with agent and root
 * beside it, which stream or compare by digests. Each kind runs twice, once short and once long: their difference is
 * what a step costs when the job goes, and the rest is its start and end. One run alone says neither.
 *
 * All kinds are run in one round, the next one in the opposite order, so that a drift of the machine meets all of them;
 * what is compared is a ratio within a round, and its median and quartiles are printed. Ranks, agent and root are
 * accounted apart, by the kernel's own account. All this once with everybody on all CPUs, and once with the ranks on
 * all but the last one, alone as well, and the daemons on that one.
 *
 * Eight ranks on fewer CPUs wake one another all the time, so a step's time varies by tenths between runs of the same
 * kind; processor time varies less, and it is what the job loses where CPUs are full.
 */
#include "tests/bench/bench.h"
#include "tests/bench/bench_daemon.h"
#include "tests/bench/bench_job.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 3, SHORT = 10, LONG = 60 };

static const struct {
    const char *name, *json;
    bool preload;
    const char *mode; /* of the root; NULL: there is no daemon */
} kinds[] = {
    {"alone", "alone", false, NULL},
    {"preload, nobody reads", "preload", true, NULL},
    {"preload, agent, root: streamed", "streamed", true, "--stream"},
    {"preload, agent, root: digests", "digests", true, "--digest"},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* 0: of the ranks, 1: of the agent, 2: of the root; ms of processor time for a step, and for start and end. */
struct cost {
    double step_ms, each_ms[3], once_ms[3];
};

struct place {
    const char *name, *json;
    cpu_set_t ranks, daemons;
};

static double processor_s(pid_t pid)
{
    clockid_t clock;
    struct timespec ts = {0};
    bool known = pid > 0 && clock_getcpuclockid(pid, &clock) == 0 && clock_gettime(clock, &ts) == 0;
    return known ? (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9 : 0;
}

/* One run; *step_ms as the job says it, ms[]: as in struct cost, of the whole run. */
static int one_run(size_t kind, const struct place *place, int steps, double *step_ms, double ms[3])
{
    struct roll_bench_daemons b;
    struct roll_bench_job_cost cost = {0};
    char endpoint[256], ignored[256], count[16];
    cpu_set_t before;
    snprintf(count, sizeof(count), "%d", steps);
    sched_getaffinity(0, sizeof(before), &before);
    int err = roll_bench_open(&b);
    if (!err && kinds[kind].mode) {
        sched_setaffinity(0, sizeof(place->daemons), &place->daemons);
        err = roll_bench_start(&b, 0, (const char *const[]){"--root", kinds[kind].mode, NULL}, endpoint,
                               sizeof(endpoint));
        err = err ? err
                  : roll_bench_start(&b, 1, (const char *const[]){"--agent", "--connect", endpoint, NULL}, ignored,
                                     sizeof(ignored));
        sched_setaffinity(0, sizeof(before), &before);
        usleep(300000); /* the start of the daemons is not the job's */
    }
    double agent_s = processor_s(b.daemon[1]), root_s = processor_s(b.daemon[0]);
    const struct roll_bench_job job = {.options = (const char *const[]){"--steps", count, NULL},
                                       .dir = kinds[kind].preload ? b.dir : NULL,
                                       .cpus = &place->ranks};
    err = err ? err : roll_bench_job_run(&job, &cost);
    *step_ms = cost.step_ms;
    ms[0] = cost.cpu_s * 1e3;
    ms[1] = (processor_s(b.daemon[1]) - agent_s) * 1e3;
    ms[2] = (processor_s(b.daemon[0]) - root_s) * 1e3;
    roll_bench_close(&b);
    return err;
}

static int measure(size_t kind, const struct place *place, struct cost *cost)
{
    double few[3], many[3], few_ms, many_ms;
    int err = one_run(kind, place, SHORT, &few_ms, few);
    err = err ? err : one_run(kind, place, LONG, &many_ms, many);
    if (!err) {
        cost->step_ms = (many_ms * LONG - few_ms * SHORT) / (LONG - SHORT);
        for (int i = 0; i < 3; i++) {
            cost->each_ms[i] = (many[i] - few[i]) / (LONG - SHORT);
            cost->once_ms[i] = few[i] - cost->each_ms[i] * SHORT;
        }
    }
    return err;
}

/* a table */

struct spread {
    double low, median, high;
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct spread spread_of(double *values)
{
    qsort(values, ROUNDS, sizeof(*values), by_size);
    return (struct spread){values[ROUNDS / 4], (values[(ROUNDS - 1) / 2] + values[ROUNDS / 2]) / 2,
                           values[ROUNDS - 1 - ROUNDS / 4]};
}

static void line(FILE *table, json_t *out, const char *name, const char *json, const char *unit, struct spread s)
{
    char measured[64];
    snprintf(measured, sizeof(measured), "%+.2f %s (%+.2f..%+.2f)", s.median, unit, s.low, s.high);
    roll_bench_line(table, name, measured, "");
    json_object_set_new(out, json, json_pack("[f,f,f]", s.low, s.median, s.high));
}

static json_t *report(FILE *table, size_t kind, const struct cost *cost, const struct cost *alone)
{
    static const char *const who[] = {"ranks", "agent", "root"};
    json_t *out = json_object();
    double values[ROUNDS];
    fprintf(table, "    %s\n", kinds[kind].name);
    for (size_t i = 0; i < ROUNDS; i++) {
        values[i] = kind ? (cost[i].step_ms / alone[i].step_ms - 1) * 100 : cost[i].step_ms;
    }
    line(table, out, kind ? "      a step, over alone" : "      a step", "step", kind ? "%" : "ms", spread_of(values));
    for (int part = 0; part < (kinds[kind].mode ? 3 : 1); part++) {
        char name[96], json[32];
        for (size_t i = 0; i < ROUNDS; i++) {
            double ms = cost[i].each_ms[part] - (part == 0 && kind ? alone[i].each_ms[0] : 0);
            values[i] = kind ? ms / alone[i].each_ms[0] * 100 : ms;
        }
        snprintf(name, sizeof(name), "      %s, each step%s", who[part],
                 kind ? ", of what the ranks need alone" : ", processor time");
        snprintf(json, sizeof(json), "%s_each", who[part]);
        line(table, out, name, json, kind ? "%" : "ms", spread_of(values));
        for (size_t i = 0; i < ROUNDS; i++) {
            values[i] = cost[i].once_ms[part] - (part == 0 && kind ? alone[i].once_ms[0] : 0);
        }
        snprintf(name, sizeof(name), "      %s, start and end%s", who[part], kind && part == 0 ? ", over alone" : "");
        snprintf(json, sizeof(json), "%s_once_ms", who[part]);
        line(table, out, name, json, "ms", spread_of(values));
    }
    return out;
}

static int one_place(const struct place *place, json_t *out, FILE *table)
{
    static struct cost cost[KINDS][ROUNDS];
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < KINDS; i++) {
            size_t kind = round % 2 ? KINDS - 1 - i : i;
            int err = measure(kind, place, &cost[kind][round]);
            if (err) {
                return err;
            }
        }
    }
    fprintf(table, "  %s (ranks: %d CPU, daemons: %d): median (quartiles) of %d rounds, %d steps less %d\n",
            place->name, CPU_COUNT(&place->ranks), CPU_COUNT(&place->daemons), ROUNDS, LONG, SHORT);
    json_t *part = json_object();
    for (size_t kind = 0; kind < KINDS; kind++) {
        json_object_set_new(part, kinds[kind].json, report(table, kind, cost[kind], cost[0]));
    }
    json_object_set_new(out, place->json, part);
    return 0;
}

int roll_bench_job_causes(json_t *out, FILE *table)
{
    cpu_set_t all;
    sched_getaffinity(0, sizeof(all), &all);
    struct place places[] = {{"everybody on all CPUs", "competing", all, all},
                             {"daemons on a CPU of their own", "apart", all, all}};
    int err = one_place(&places[0], out, table);
    if (!err && CPU_COUNT(&all) > 1) {
        size_t last = CPU_SETSIZE - 1;
        while (!CPU_ISSET(last, &all)) {
            last--;
        }
        CPU_CLR(last, &places[1].ranks);
        CPU_ZERO(&places[1].daemons);
        CPU_SET(last, &places[1].daemons);
        err = one_place(&places[1], out, table);
    }
    return err;
}
