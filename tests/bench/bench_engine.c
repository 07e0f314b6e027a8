/*
 * bench_engine.c: how many records a second the engine turns into verdict state, on one core.
 *
 * Healthy traffic of 64 ranks with 8 communicators each: every rank belongs to the world, to groups of 32, 16, 8, 8, 4,
 * 4 and 2 ranks, and calls a mix of collectives on them, as data, expert and tensor parallel traffic would. Records
 * come in batches of 64 per rank, as an agent sends them, a tick after each round. The records are made beforehand, so
 * that only the engine is measured; a verdict would be a failure. bench_engine_scale.c has larger jobs.
 */
#include "daemon/engine/engine.h"
#include "tests/bench/bench.h"
#include "trace/op.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RANKS   64u
#define COMMS   8u
#define BATCH   64u
#define ROUNDS  512u
#define REPEATS 5u

static const uint32_t group_size[COMMS] = {64, 32, 16, 8, 8, 4, 4, 2};

static const uint8_t ops[] = {ROLL_OP_ALLREDUCE, ROLL_OP_ALLGATHER, ROLL_OP_REDUCESCATTER, ROLL_OP_BROADCAST,
                              ROLL_OP_ALLTOALL};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void define(roll_engine_t *e, uint32_t rank)
{
    for (uint32_t c = 0; c < COMMS; c++) {
        struct roll_def def = {.type = ROLL_DEF_COMM, .id = c + 1, .comm.label = ""};
        uint32_t group = rank / group_size[c];
        def.comm.info = (struct roll_def_comm){.key = (uint64_t)(c + 1) << 32 | (group + 1),
                                               .rank = (int32_t)(rank % group_size[c]),
                                               .nranks = (int32_t)group_size[c],
                                               .color = ROLL_COLOR_NONE,
                                               .origin = ROLL_COMM_SPLIT};
        (void)roll_engine_define(e, rank, &def);
    }
}

/* Call i of the job's program, which is the same for every rank. */
static void make_records(struct roll_record *out, uint64_t from, uint32_t seq[COMMS])
{
    for (uint32_t i = 0; i < BATCH; i++) {
        uint64_t ticket = from + i;
        uint32_t c = (uint32_t)((ticket * 7 + ticket / 11) % COMMS);
        uint8_t op = ops[(ticket / 3) % (sizeof(ops) / sizeof(ops[0]))];
        bool reduces = op == ROLL_OP_ALLREDUCE || op == ROLL_OP_REDUCESCATTER;
        out[i] = (struct roll_record){.seal = roll_seal(ticket, ROLL_STATE_RETURNED),
                                      .enter_ns = 1000000000u + ticket * 1000,
                                      .count = 1024 + ticket % 13 * 256,
                                      .seq = seq[c]++,
                                      .peer = op == ROLL_OP_BROADCAST ? 0 : ROLL_PEER_NONE,
                                      .call_ns = 500,
                                      .step = (uint32_t)(ticket / 1000),
                                      .comm = (uint16_t)(c + 1),
                                      .stream = 2,
                                      .callsite = (uint16_t)(ticket % 50 + 1),
                                      .thread = 1,
                                      .layer = ROLL_LAYER_NONE,
                                      .op = op,
                                      .dtype = ROLL_DTYPE_BFLOAT16,
                                      .redop = reduces ? ROLL_RED_SUM : ROLL_RED_NONE};
    }
}

/* One pass over all records; returns records a second, negative when the engine found fault with them. */
static double one_pass(const struct roll_record *recs)
{
    struct roll_engine_config config = {.stall_ns = 0};
    roll_engine_t *e = roll_engine_new(&config);
    if (!e) {
        return -1;
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        uint32_t source;
        struct roll_source_info info = {.stream = r + 1,
                                        .world_rank = (int32_t)r,
                                        .world_size = RANKS,
                                        .pid = r + 1,
                                        .host = "bench",
                                        .exe = "bench"};
        (void)roll_engine_open(e, &info, &source);
        define(e, r);
    }
    double begin = seconds();
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t r = 0; r < RANKS; r++) {
            (void)roll_engine_feed(e, r, recs + (size_t)round * BATCH, BATCH);
        }
        (void)roll_engine_tick(e, 1000000000u + (uint64_t)round * 1000000);
    }
    double spent = seconds() - begin;
    struct roll_engine_summary summary;
    roll_engine_summary(e, &summary);
    bool right =
        summary.verdicts == 0 && summary.incomplete == 0 && summary.records == (uint64_t)RANKS * ROUNDS * BATCH;
    roll_engine_destroy(&e);
    return right ? (double)RANKS * ROUNDS * BATCH / spent : -1;
}

int roll_bench_engine(json_t *out, FILE *table)
{
    struct roll_record *recs = malloc(sizeof(*recs) * ROUNDS * BATCH);
    uint32_t seq[COMMS] = {0};
    double best = 0, worst = 1e18;
    if (!recs) {
        fprintf(stderr, "roll_bench: out of memory\n");
        return -1;
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        make_records(recs + (size_t)round * BATCH, (uint64_t)round * BATCH, seq);
    }
    for (uint32_t i = 0; i < REPEATS; i++) {
        double rate = one_pass(recs);
        if (rate < 0) {
            fprintf(stderr, "roll_bench: the engine found fault with healthy traffic\n");
            free(recs);
            return -1;
        }
        best = rate > best ? rate : best;
        worst = rate < worst ? rate : worst;
    }
    free(recs);
    char measured[64];
    snprintf(measured, sizeof(measured), "%.2f M records/s", best / 1e6);
    roll_bench_line(table, "engine, 64 ranks x 8 communicators, one core", measured, ">= 5 M records/s");
    json_t *figure =
        json_pack("{s:i,s:i,s:I,s:f,s:f,s:f}", "ranks", (int)RANKS, "comms_per_rank", (int)COMMS, "records",
                  (json_int_t)RANKS * ROUNDS * BATCH, "records_per_s", best, "records_per_s_worst", worst, "goal", 5e6);
    return figure && json_object_set_new(out, "engine", figure) == 0 ? 0 : -1;
}

#ifdef ROLL_BENCH_MAIN
int main(void)
{
    json_t *out = json_object();
    int rc = out ? roll_bench_engine(out, stdout) : -1;
    if (out) {
        json_dumpf(out, stdout, JSON_INDENT(2));
        puts("");
    }
    json_decref(out);
    return rc == 0 ? 0 : 1;
}
#endif
