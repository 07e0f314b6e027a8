/*
 * bench_analyze.c: how long `rollcall analyze` takes over the traces of many nodes, with one thread and with two.
 *
 * The traces are written here as agents write them: a directory for each node, in it the segments of its 8 ranks, which
 * make 500 calls a second on three communicators. Nothing is wrong with the job. Both sides read the same files, by
 * turns, so that neither has them cold, and their output is compared: threads must not change a byte. Then the same in
 * two steps: a digest of each node, as the nodes would make it, and what it takes to judge these.
 */
#include "tests/bench/bench.h"

#include "daemon/base/clock.h"
#include "daemon/store/segment.h"
#include "trace/def.h"
#include "trace/err.h"
#include "trace/op.h"

#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NODES    64u
#define PER_NODE 8u
#define RANKS    (NODES * PER_NODE)
#define COMMS    3u
#define TICKS    1000u /* of 20 ms each */
#define CALLS    10u   /* of each rank in a tick */
#define TICK_NS  (20 * ROLL_MS)
#define BEGIN_NS (UINT64_C(1700000000) * 1000 * ROLL_MS)
#define ROUNDS   3
#define BYTES    (ROLL_FRAME_HEAD_BYTES + ROLL_RING_HEADER_BYTES + CALLS * ROLL_RECORD_BYTES)

struct node {
    roll_segments_t *segments;
    uint64_t seq;
    uint8_t bytes[BYTES];
};

static int put(struct node *n, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t now)
{
    struct roll_frame frame;
    head.seq = head.type == ROLL_FRAME_TICK ? head.seq : ++n->seq;
    int64_t used = roll_frame_make(&head, payload, bytes, n->bytes, sizeof(n->bytes), &frame);
    return used < 0 ? (int)used : roll_segments_append(n->segments, &frame, n->bytes, (size_t)used, now);
}

static int put_ring(struct node *n, uint32_t rank)
{
    struct roll_ring_header h = {.version = ROLL_RING_VERSION,
                                 .oldest = ROLL_RING_OLDEST,
                                 .header_bytes = ROLL_RING_HEADER_BYTES,
                                 .record_bytes = ROLL_RECORD_BYTES,
                                 .capacity = 65536,
                                 .world_rank = (int32_t)rank,
                                 .world_size = (int32_t)RANKS,
                                 .local_rank = (int32_t)(rank % PER_NODE),
                                 .epoch = rank + 1,
                                 .job = "bench"};
    memcpy(h.magic, ROLL_RING_MAGIC, sizeof(h.magic));
    h.static_crc = roll_crc32c(0, &h, offsetof(struct roll_ring_header, static_crc));
    return put(n, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = rank + 1}, &h, sizeof(h), 1);
}

/* The world, the node, and one rank of each node. */
static int put_comms(struct node *n, uint32_t rank, struct roll_ring *scratch)
{
    const struct roll_def_comm def[COMMS] = {
        {.key = 1, .rank = (int32_t)rank, .nranks = (int32_t)RANKS, .origin = ROLL_COMM_INIT},
        {.key = 1000 + rank / PER_NODE, .rank = (int32_t)(rank % PER_NODE), .nranks = (int32_t)PER_NODE},
        {.key = 2000 + rank % PER_NODE, .rank = (int32_t)(rank / PER_NODE), .nranks = (int32_t)NODES},
    };
    scratch->header->defs_used = 0;
    for (uint32_t i = 0; i < COMMS; i++) {
        struct roll_def_comm one = def[i];
        one.color = ROLL_COLOR_NONE;
        one.origin = ROLL_COMM_INIT;
        int err = roll_def_append(scratch, ROLL_DEF_COMM, i + 1, &one, sizeof(one), NULL, 0);
        if (err != 0) {
            return err;
        }
    }
    return put(n, (struct roll_frame_head){.type = ROLL_FRAME_DEFS, .stream = rank + 1}, scratch->defs,
               (size_t)scratch->header->defs_used, 1);
}

/* Noise of calls: the times are most of a trace. */
static uint32_t noise(uint64_t of, uint32_t below)
{
    of = (of ^ of >> 29) * 0x9e3779b97f4a7c15u;
    return (uint32_t)((of ^ of >> 32) % below);
}

static int put_records(struct node *n, uint32_t rank, uint64_t tick)
{
    struct roll_record rec[CALLS];
    for (uint32_t i = 0; i < CALLS; i++) {
        uint64_t ticket = tick * CALLS + i;
        rec[i] = (struct roll_record){.seal = roll_seal(ticket, ROLL_STATE_RETURNED),
                                      .enter_ns = BEGIN_NS + tick * TICK_NS + i * 2 * ROLL_MS +
                                                  noise(ticket * RANKS + rank, 400000),
                                      .count = 1024 + ticket % 7,
                                      .seq = (uint32_t)(ticket / COMMS),
                                      .peer = ROLL_PEER_NONE,
                                      .call_ns = 9000 + noise(ticket * RANKS + rank + 7, 800),
                                      .step = ROLL_STEP_NONE,
                                      .comm = (uint16_t)(ticket % COMMS + 1),
                                      .stream = 1,
                                      .thread = 1,
                                      .layer = ROLL_LAYER_NONE,
                                      .op = ROLL_OP_ALLREDUCE,
                                      .dtype = ROLL_DTYPE_FLOAT32,
                                      .redop = ROLL_RED_SUM};
    }
    return put(n,
               (struct roll_frame_head){.type = ROLL_FRAME_RECORDS,
                                        .stream = rank + 1,
                                        .first = tick * CALLS,
                                        .rec_size = ROLL_RECORD_BYTES,
                                        .count = CALLS},
               rec, sizeof(rec), tick * TICK_NS + 1);
}

static int put_tick(struct node *n, uint64_t tick)
{
    uint64_t real = BEGIN_NS + (tick + 1) * TICK_NS;
    return put(n, (struct roll_frame_head){.type = ROLL_FRAME_TICK, .seq = real}, &real, sizeof(real),
               tick * TICK_NS + 1);
}

static int put_end(struct node *n, uint32_t rank)
{
    uint64_t end = BEGIN_NS + TICKS * TICK_NS;
    struct roll_frame_status status = {.head = (uint64_t)TICKS * CALLS,
                                       .clock_mono_ns = end,
                                       .clock_real_ns = end,
                                       .finish_ns = end,
                                       .proc_state = ROLL_PROC_FINISHED};
    return put(n, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = rank + 1}, &status, sizeof(status),
               TICKS * TICK_NS + 1);
}

static int write_node(const char *dir, uint32_t number, struct roll_ring *scratch)
{
    static struct node n;
    char at[PATH_MAX], series[64];
    int pid;
    snprintf(at, sizeof(at), "%s/node%03u", dir, number);
    snprintf(series, sizeof(series), "bench.0@node%03u", number);
    const struct roll_segment_options options = {.dir = at, .series = series};
    char why[256];
    n = (struct node){.seq = 0};
    int err = roll_segment_dir(at, why, sizeof(why));
    err = err ? err : roll_segments_new(&options, &n.segments, &pid);
    for (uint32_t r = 0; r < PER_NODE && !err; r++) {
        err = put_ring(&n, number * PER_NODE + r);
        err = err ? err : put_comms(&n, number * PER_NODE + r, scratch);
    }
    for (uint64_t tick = 0; tick < TICKS && !err; tick++) {
        for (uint32_t r = 0; r < PER_NODE && !err; r++) {
            err = put_records(&n, number * PER_NODE + r, tick);
        }
        err = err ? err : put_tick(&n, tick);
        err = err ? err : roll_segments_turn(n.segments, tick * TICK_NS + 1, false);
    }
    for (uint32_t r = 0; r < PER_NODE && !err; r++) {
        err = put_end(&n, number * PER_NODE + r);
    }
    err = err ? err : put_tick(&n, TICKS);
    roll_segments_destroy(&n.segments);
    return err;
}

static int write_traces(const char *dir)
{
    char path[PATH_MAX];
    struct roll_ring scratch;
    struct roll_ring_params params = {.capacity = 64, .job = "bench", .exe = "", .defs_bytes = 65536};
    snprintf(path, sizeof(path), "%s/scratch", dir);
    int err = roll_ring_create(path, &params, &scratch);
    if (err) {
        return err;
    }
    for (uint32_t i = 0; i < NODES && !err; i++) {
        err = write_node(dir, i, &scratch);
    }
    roll_ring_close(&scratch);
    unlink(path);
    return err;
}

struct took {
    double wall_s, cpu_s, mib; /* mib: most memory at a time */
};

/* Runs a command of rollcall (argv[0] is filled in) with its output into a file. */
static int run(char *argv[], const char *into, struct took *took)
{
    static char rollcall[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", rollcall, sizeof(rollcall) - 32);
    if (n <= 0) {
        return ROLL_E_NOTFOUND;
    }
    rollcall[n] = '\0';
    strcpy(strrchr(rollcall, '/') + 1, "rollcall");
    argv[0] = rollcall;
    uint64_t begin = roll_mono_ns();
    pid_t pid = fork();
    if (pid == 0) {
        int out = open(into, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(out, STDOUT_FILENO);
        execv(rollcall, argv);
        _exit(127);
    }
    int status = -1;
    struct rusage used;
    if (pid < 0 || wait4(pid, &status, 0, &used) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "bench: rollcall %s ended with status %d\n", argv[1], WEXITSTATUS(status));
        return ROLL_E_IO;
    }
    *took = (struct took){.wall_s = (double)(roll_mono_ns() - begin) * 1e-9,
                          .cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                                   (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6,
                          .mib = (double)used.ru_maxrss / 1024};
    return 0;
}

/* Analyzes the traces of all nodes, or their digests. */
static int analyze(const char *dir, const char *name, const char *threads, const char *into, struct took *took)
{
    static char node[NODES][PATH_MAX];
    char *argv[NODES + 6] = {NULL, (char[]){"analyze"}, (char[]){"--json"}, (char[]){"-j"}, (char *)threads};
    for (uint32_t i = 0; i < NODES; i++) {
        snprintf(node[i], sizeof(node[i]), name, dir, i);
        argv[5 + i] = node[i];
    }
    return run(argv, into, took);
}

/* The digest of each node. *most: of the node for which each figure is the largest. */
static int digest(const char *dir, struct took *most, double *kib)
{
    *most = (struct took){0};
    *kib = 0;
    for (uint32_t i = 0; i < NODES; i++) {
        char node[PATH_MAX], into[PATH_MAX];
        char *argv[] = {NULL, (char[]){"digest"}, (char[]){"-j"}, (char[]){"1"}, node, NULL};
        struct took one;
        struct stat st;
        snprintf(node, sizeof(node), "%s/node%03u", dir, i);
        snprintf(into, sizeof(into), "%s/node%03u.rdig", dir, i);
        int err = run(argv, into, &one);
        if (err || stat(into, &st) != 0) {
            return err ? err : ROLL_E_IO;
        }
        most->wall_s = one.wall_s > most->wall_s ? one.wall_s : most->wall_s;
        most->cpu_s = one.cpu_s > most->cpu_s ? one.cpu_s : most->cpu_s;
        most->mib = one.mib > most->mib ? one.mib : most->mib;
        *kib = (double)st.st_size / 1024 > *kib ? (double)st.st_size / 1024 : *kib;
    }
    return 0;
}

static bool same_bytes(const char *dir)
{
    char command[2 * PATH_MAX];
    snprintf(command, sizeof(command), "cmp -s '%s/1.json' '%s/2.json'", dir, dir);
    return system(command) == 0;
}

static int measure(const char *dir, json_t *out, FILE *table)
{
    static const char *const threads[2] = {"1", "2"};
    char measured[64], into[PATH_MAX];
    struct took best[2] = {{0}};
    for (int round = 0; round < ROUNDS; round++) {
        for (int side = 0; side < 2; side++) {
            struct took took;
            snprintf(into, sizeof(into), "%s/%s.json", dir, threads[side]);
            int err = analyze(dir, "%s/node%03u", threads[side], into, &took);
            if (err) {
                return err;
            }
            best[side] = best[side].wall_s == 0 || took.wall_s < best[side].wall_s ? took : best[side];
        }
        if (!same_bytes(dir)) {
            fprintf(stderr, "bench: -j 1 and -j 2 do not say the same\n");
            return ROLL_E_CORRUPT;
        }
    }
    double calls = (double)RANKS * TICKS * CALLS;
    fprintf(table, "  %u nodes, %u ranks, %.0f calls; the best of %d rounds by turns, which said the same\n", NODES,
            RANKS, calls, ROUNDS);
    for (int side = 0; side < 2; side++) {
        char figure[80];
        snprintf(figure, sizeof(figure), "analyze -j %s: time, processor time, memory", threads[side]);
        snprintf(measured, sizeof(measured), "%.2f s, %.2f s, %.0f MiB", best[side].wall_s, best[side].cpu_s,
                 best[side].mib);
        roll_bench_line(table, figure, measured, "");
        json_object_set_new(out, side == 0 ? "one" : "two",
                            json_pack("{s:f,s:f,s:f,s:f}", "wall_s", best[side].wall_s, "cpu_s", best[side].cpu_s,
                                      "mib", best[side].mib, "ns_per_call", best[side].wall_s * 1e9 / calls));
    }
    return 0;
}

static int measure_digests(const char *dir, json_t *out, FILE *table)
{
    struct took node, all;
    double kib;
    char measured[96], into[PATH_MAX];
    snprintf(into, sizeof(into), "%s/digests.json", dir);
    int err = digest(dir, &node, &kib);
    err = err ? err : analyze(dir, "%s/node%03u.rdig", "1", into, &all);
    if (err) {
        return err;
    }
    snprintf(measured, sizeof(measured), "%.2f s, %.2f s, %.0f MiB, %.0f KiB", node.wall_s, node.cpu_s, node.mib, kib);
    roll_bench_line(table, "digest of a node, at most: time, processor time, memory, file", measured, "");
    snprintf(measured, sizeof(measured), "%.2f s, %.2f s, %.0f MiB", all.wall_s, all.cpu_s, all.mib);
    roll_bench_line(table, "analyze of the digests: time, processor time, memory", measured, "");
    json_object_set_new(out, "digests",
                        json_pack("{s:f,s:f,s:f,s:f,s:f,s:f}", "node_s", node.wall_s, "node_mib", node.mib, "file_kib",
                                  kib, "wall_s", all.wall_s, "cpu_s", all.cpu_s, "mib", all.mib));
    return 0;
}

int roll_bench_analyze(json_t *out, FILE *table)
{
    char dir[] = "/tmp/rollcall-bench-analyze-XXXXXX", command[128];
    if (!mkdtemp(dir)) {
        return ROLL_E_IO;
    }
    int err = write_traces(dir);
    err = err ? err : measure(dir, out, table);
    err = err ? err : measure_digests(dir, out, table);
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    return system(command) == 0 ? err : ROLL_E_IO;
}
