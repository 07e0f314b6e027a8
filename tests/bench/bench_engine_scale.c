/*
 * bench_engine_scale.c: what a record costs the engine in jobs of 64 to 16,384 ranks, in step and far apart. The cost
 * must follow neither.
 *
 * Each rank has four communicators: world, dp (ranks / 64), ep (64), tp (8). A step of the job is 16 layers of tensor
 * and expert parallel calls, the buckets of data parallelism, one call of all ranks, and a wait of the host; each kind
 * of call has its stream. Records come as the feed gives them: in batches as an agent reads them, of 5 to 64, ranks of
 * one node after each other and nodes in no order; the newest record of a batch has been entered and has not returned,
 * which is told before the next batch. The engine's clock ticks as at a root that hears 500 calls a second of each
 * rank: every 2 ms, once for as many records as there are ranks. Each rank is behind the first by a number of calls of
 * its own, which stays the same.
 *
 * A row runs in a process of its own, so that its memory is its own. Records are made beforehand and are shared by all
 * ranks; only processor time counts. A verdict is a failure.
 *
 * Then, for each size of job, one rank stands: the others make a few hundred calls more, and then only time passes, 10
 * ms with each tick. The engine has to tell of it as soon as its patience is over, for little of a processor until then
 * and afterwards. The same where all ranks but one were refused a call.
 */
#include "daemon/engine/engine.h"
#include "tests/bench/bench.h"
#include "trace/op.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COMMS       4u
#define NODE        8u
#define TICK_NS     2000000u
#define FEW_RECORDS 8000000u /* of small jobs: so many in all */
#define LEAST_CALLS 1024u    /* of each rank */
#define STEP_CALLS  82u      /* of one rank in a step, with its wait */
#define STEPS       12u
#define AHEAD       300u /* calls of the others when one stands, before their hosts wait */
#define STAND_TICK  10000000u
#define STAND_TICKS 1000u

static const uint32_t ranks_of[] = {64, 1024, 4096, 16384};
static const uint32_t apart_of[] = {0, 64, 1000};
static const uint32_t batch_of[] = {64, 17, 33, 5, 48, 26, 64, 9};
#define KINDS(array) (sizeof(array) / sizeof((array)[0]))

struct shape {
    uint32_t ranks, apart;
};

struct result {
    uint64_t records, spent_ns, opened_ns, peak_bytes;
    uint64_t told_ns; /* of the job's time, since a rank stands, until that is told */
    uint64_t most_ns; /* processor time of the dearest tick */
    bool right;
};

/* The calls of one rank, which are those of every rank. */
struct program {
    struct roll_record *rec; /* all have returned */
    uint32_t calls, room;
    uint32_t seq[COMMS];
    uint32_t step;
    uint32_t *cut; /* where batches begin; the last one is the end */
    uint32_t batches;
    uint32_t wrong_rank, wrong_call; /* this rank makes this call with another size; 0: nobody does */
};

static uint64_t spent_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

enum { WORLD, DP, EP, TP, HOST };

static void add(struct program *p, uint32_t comm, uint8_t op, uint64_t count)
{
    bool call = comm != HOST, reduces = op == ROLL_OP_ALLREDUCE || op == ROLL_OP_REDUCESCATTER;
    uint64_t ticket = p->calls;
    if (p->calls < p->room) {
        p->rec[p->calls++] = (struct roll_record){.seal = roll_seal(ticket, ROLL_STATE_RETURNED),
                                                  .enter_ns = 1000000000u + ticket * TICK_NS,
                                                  .count = count,
                                                  .seq = call ? p->seq[comm]++ : 0,
                                                  .peer = ROLL_PEER_NONE,
                                                  .call_ns = call ? 9000 : 1500000,
                                                  .step = p->step,
                                                  .comm = call ? (uint16_t)(comm + 1) : 0,
                                                  .stream = (uint16_t)(call ? comm + 2 : WORLD + 2),
                                                  .callsite = (uint16_t)(comm * 8 + op % 8 + 1),
                                                  .thread = 1,
                                                  .layer = ROLL_LAYER_NONE,
                                                  .op = op,
                                                  .dtype = call ? ROLL_DTYPE_BFLOAT16 : 0,
                                                  .redop = reduces ? ROLL_RED_SUM : ROLL_RED_NONE};
    }
}

static void add_step(struct program *p, bool waits)
{
    for (uint32_t layer = 0; layer < 16; layer++) {
        add(p, TP, ROLL_OP_ALLREDUCE, 4096 * 1024);
        add(p, EP, ROLL_OP_ALLTOALL, 65536);
        add(p, EP, ROLL_OP_ALLTOALL, 65536);
        add(p, TP, ROLL_OP_ALLREDUCE, 4096 * 1024);
    }
    for (uint32_t bucket = 0; bucket < 8; bucket++) {
        add(p, DP, ROLL_OP_REDUCESCATTER, 40 * 1024 * 1024);
    }
    for (uint32_t bucket = 0; bucket < 8; bucket++) {
        add(p, DP, ROLL_OP_ALLGATHER, 40 * 1024 * 1024);
    }
    add(p, WORLD, ROLL_OP_ALLREDUCE, 1);
    if (waits) {
        add(p, HOST, ROLL_OP_STREAM_SYNC, 0);
    }
    p->step++;
}

/* waits: steps at the end of which hosts wait */
static int program_make(struct program *p, uint32_t calls, uint32_t waits)
{
    *p = (struct program){
        .room = calls, .rec = calloc(calls, sizeof(*p->rec)), .cut = calloc(calls + 1, sizeof(*p->cut))};
    if (!p->rec || !p->cut) {
        return -1;
    }
    while (p->calls < p->room) {
        add_step(p, p->step < waits);
    }
    for (uint32_t at = 0; at < calls; at += batch_of[(p->batches - 1) % KINDS(batch_of)]) {
        p->cut[p->batches++] = at;
    }
    p->cut[p->batches] = calls;
    return 0;
}

static void program_free(struct program *p)
{
    free(p->rec);
    free(p->cut);
}

/* The group and the place there of a rank on communicator c. */
static struct roll_def_comm place(uint32_t ranks, uint32_t c, uint32_t rank)
{
    uint32_t across = ranks / 64;
    const uint32_t size[COMMS] = {ranks, across, 64, 8};
    uint32_t group = c == DP ? rank % 64 : rank / size[c], at = c == DP ? rank / 64 : rank % size[c];
    return (struct roll_def_comm){.key = (uint64_t)(c + 1) << 32 | (group + 1),
                                  .rank = (int32_t)at,
                                  .nranks = (int32_t)size[c],
                                  .color = ROLL_COLOR_NONE,
                                  .origin = ROLL_COMM_SPLIT};
}

static int open_ranks(roll_engine_t *e, uint32_t ranks)
{
    int rc = 0;
    for (uint32_t r = 0; rc == 0 && r < ranks; r++) {
        uint32_t source;
        struct roll_source_info info = {.stream = r + 1,
                                        .world_rank = (int32_t)r,
                                        .world_size = (int32_t)ranks,
                                        .pid = r + 1,
                                        .host = "bench",
                                        .exe = "bench"};
        rc = roll_engine_open(e, &info, &source);
        for (uint32_t c = 0; rc == 0 && c < COMMS; c++) {
            struct roll_def def = {.type = ROLL_DEF_COMM, .id = c + 1, .comm.label = ""};
            def.comm.info = place(ranks, c, r);
            rc = roll_engine_define(e, r, &def);
        }
    }
    return rc;
}

/* What this rank has made: what all have, but for one call. */
static void read_program(const struct program *p, uint32_t rank, uint32_t from, uint32_t n, struct roll_record *out)
{
    memcpy(out, &p->rec[from], n * sizeof(*out));
    if (p->wrong_call != 0 && rank == p->wrong_rank && p->wrong_call >= from && p->wrong_call - from < n) {
        out[p->wrong_call - from].count++;
    }
}

/* Feeds one batch of a rank: that the call at the end of the batch before it has returned, then the batch. Returns how
 * many records these were. */
static uint32_t feed(roll_engine_t *e, const struct program *p, uint32_t rank, uint32_t batch)
{
    uint32_t from = p->cut[batch], upto = p->cut[batch + 1], n = upto - from;
    struct roll_record recs[64];
    if (batch > 0) {
        read_program(p, rank, from - 1, 1, recs);
        (void)roll_engine_feed(e, rank, recs, 1);
    }
    read_program(p, rank, from, n, recs);
    recs[n - 1].seal = roll_seal(from + n - 1, ROLL_STATE_ENTERED);
    recs[n - 1].call_ns = 0;
    (void)roll_engine_feed(e, rank, recs, n);
    if (batch + 1 < p->batches) {
        return n + (batch > 0);
    }
    read_program(p, rank, upto - 1, 1, recs);
    (void)roll_engine_feed(e, rank, recs, 1);
    return n + (batch > 0) + 1;
}

static uint64_t peak_bytes(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (uint64_t)use.ru_maxrss * 1024;
}

static struct result measure_going(const struct shape *shape, const struct program *p)
{
    struct roll_engine_config config = {.stall_ns = 0};
    struct result out = {0};
    uint64_t before = peak_bytes(), now = 1000000000u, untold = 0;
    uint32_t late = shape->apart * p->batches / p->calls, nodes = shape->ranks / NODE;
    uint64_t begin = spent_ns();
    roll_engine_t *e = roll_engine_new(&config);
    if (!e || open_ranks(e, shape->ranks) != 0) {
        return out;
    }
    out.opened_ns = spent_ns() - begin;
    begin = spent_ns();
    for (uint32_t round = 0; round < p->batches + late; round++) {
        for (uint32_t i = 0; i < shape->ranks; i++) {
            uint32_t rank = i / NODE * 2654435761u % nodes * NODE + i % NODE;
            uint32_t behind = (rank * 2654435761u >> 8) % (late + 1);
            if (round >= behind && round - behind < p->batches) {
                uint32_t n = feed(e, p, rank, round - behind);
                out.records += n;
                untold += n;
            }
            if (untold >= shape->ranks) {
                now += TICK_NS;
                untold -= shape->ranks;
                (void)roll_engine_tick(e, now);
            }
        }
    }
    (void)roll_engine_tick(e, now + TICK_NS);
    out.spent_ns = spent_ns() - begin;
    out.peak_bytes = peak_bytes() - before;
    (void)roll_engine_finish(e);
    struct roll_engine_summary summary;
    roll_engine_summary(e, &summary);
    for (const struct roll_verdict *v; (v = roll_engine_next(e));) {
        fprintf(stderr, "roll_bench: said of healthy traffic: %s\n", v->text);
    }
    out.right = summary.verdicts == 0 && summary.incomplete == 0;
    roll_engine_destroy(&e);
    return out;
}

/* What is told of a job in which this rank stands: that, and nothing else. */
static bool is_told(roll_engine_t *e, uint32_t rank, bool *right)
{
    bool told = false;
    for (const struct roll_verdict *v; (v = roll_engine_next(e));) {
        bool is_rank = v->code == ROLL_VERDICT_RANK_BUSY && roll_rankset_count(&v->culprits) == 1 &&
                       roll_rankset_has(&v->culprits, rank);
        told = told || is_rank;
        if (!is_rank) {
            fprintf(stderr, "roll_bench: said where rank %u stands: %s\n", rank, v->text);
        }
        *right = *right && is_rank;
    }
    return told;
}

static struct result measure_standing(const struct shape *shape, const struct program *p)
{
    struct roll_engine_config config = {.stall_ns = 0};
    struct result out = {.right = true};
    uint64_t before = peak_bytes(), now = 1000000000u;
    uint32_t still = shape->ranks / 2 + 3, stops = 0;
    roll_engine_t *e = roll_engine_new(&config);
    if (!e || open_ranks(e, shape->ranks) != 0) {
        return out;
    }
    while (p->cut[stops] <= STEPS * STEP_CALLS) {
        stops++;
    }
    for (uint32_t round = 0; round < p->batches; round++) {
        for (uint32_t rank = 0; rank < shape->ranks; rank++) {
            out.records += rank != still || round < stops ? feed(e, p, rank, round) : 0;
        }
        (void)roll_engine_tick(e, now += TICK_NS);
    }
    (void)roll_engine_feed(e, still, &p->rec[p->cut[stops] - 1], 1); /* its host has come back from its last call */
    uint64_t began = now;
    for (uint32_t i = 0; i < STAND_TICKS; i++) {
        uint64_t begin = spent_ns();
        (void)roll_engine_tick(e, now += STAND_TICK);
        uint64_t spent = spent_ns() - begin;
        out.most_ns = spent > out.most_ns ? spent : out.most_ns;
        out.spent_ns += spent;
        if (is_told(e, still, &out.right)) {
            out.told_ns = now - began;
        }
    }
    out.peak_bytes = peak_bytes() - before;
    out.right = out.right && out.told_ns != 0;
    roll_engine_destroy(&e);
    return out;
}

/* A rank makes one wrong call of all ranks, who come to it one after the other; all go on. */
static struct result measure_wrong(const struct shape *shape, const struct program *p)
{
    struct roll_engine_config config = {.stall_ns = 0};
    struct result out = {.right = true};
    uint64_t before = peak_bytes(), now = 1000000000u;
    roll_engine_t *e = roll_engine_new(&config);
    if (!e || open_ranks(e, shape->ranks) != 0) {
        return out;
    }
    for (uint32_t round = 0; round < p->batches; round++) {
        uint64_t begin = spent_ns();
        for (uint32_t rank = 0; rank < shape->ranks; rank++) {
            out.records += feed(e, p, rank, round);
        }
        (void)roll_engine_tick(e, now += TICK_NS);
        uint64_t spent = spent_ns() - begin;
        out.most_ns = spent > out.most_ns ? spent : out.most_ns;
        out.spent_ns += spent;
    }
    for (uint32_t i = 0; i < 10; i++) {
        uint64_t begin = spent_ns();
        (void)roll_engine_tick(e, now += STAND_TICK);
        out.spent_ns += spent_ns() - begin;
    }
    bool named = false;
    for (const struct roll_verdict *v; (v = roll_engine_next(e));) {
        named = named || (v->code == ROLL_VERDICT_COUNT_MISMATCH && roll_rankset_count(&v->culprits) == 1 &&
                          roll_rankset_has(&v->culprits, p->wrong_rank));
        out.right = out.right && v->code == ROLL_VERDICT_COUNT_MISMATCH;
    }
    out.right = out.right && (p->wrong_call == 0 || named);
    out.peak_bytes = peak_bytes() - before;
    roll_engine_destroy(&e);
    return out;
}

/* NCCL refuses one call of all ranks on all of them but the first, which waits in it; then only time passes, and they
 * end one after the other within a second. One error, which is told some times at most. */
static struct result measure_refused(const struct shape *shape, const struct program *p)
{
    enum { MOST = 6, BAD_ARGUMENT = 4, ENDS = 100 }; /* so many ticks long some ranks end in each */
    struct roll_engine_config config = {.stall_ns = 0};
    struct result out = {.right = true};
    uint64_t before = peak_bytes(), now = 1000000000u;
    uint32_t last = p->calls - 1, said = 0;
    roll_engine_t *e = roll_engine_new(&config);
    if (!e || open_ranks(e, shape->ranks) != 0) {
        return out;
    }
    for (uint32_t rank = 0; rank < shape->ranks; rank++) {
        struct roll_record wait = p->rec[last], call = p->rec[last - 1];
        call.result = rank == 0 ? 0 : BAD_ARGUMENT;
        wait.seal = roll_seal(last, ROLL_STATE_ENTERED);
        (void)roll_engine_feed(e, rank, p->rec, last - 1);
        (void)roll_engine_feed(e, rank, &call, 1);
        (void)roll_engine_feed(e, rank, &wait, rank == 0);
        out.records += last + (rank == 0);
    }
    bool all = false;
    for (uint32_t i = 0; i < STAND_TICKS; i++) {
        uint32_t begins = STAND_TICKS / 2, first = 1 + i - begins;
        for (uint32_t rank = first; i >= begins && i < begins + ENDS && rank < shape->ranks; rank += ENDS) {
            (void)roll_engine_process(e, rank, ROLL_PROC_FINISHED, 1 << 8);
        }
        uint64_t begin = spent_ns();
        (void)roll_engine_tick(e, now += STAND_TICK);
        uint64_t spent = spent_ns() - begin;
        out.most_ns = spent > out.most_ns ? spent : out.most_ns;
        out.spent_ns += spent;
        for (const struct roll_verdict *v; (v = roll_engine_next(e));) {
            all = roll_rankset_count(&v->culprits) == shape->ranks - 1 && v->certainty == ROLL_PROVEN;
            out.told_ns = out.told_ns == 0 ? now : out.told_ns;
            out.right = out.right && v->code == ROLL_VERDICT_CALL_REFUSED && ++said <= MOST;
        }
    }
    out.right = out.right && all;
    out.peak_bytes = peak_bytes() - before;
    roll_engine_destroy(&e);
    return out;
}

/* Measures in a process of its own. */
static int measure_apart(const struct shape *shape, const struct program *p, struct result *out,
                         struct result (*measure)(const struct shape *, const struct program *))
{
    int pipes[2], status;
    memset(out, 0, sizeof(*out));
    if (pipe(pipes) != 0) {
        return -1;
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct result r = measure(shape, p);
        _exit(write(pipes[1], &r, sizeof(r)) == (ssize_t)sizeof(r) ? 0 : 1);
    }
    close(pipes[1]);
    ssize_t got = child > 0 ? read(pipes[0], out, sizeof(*out)) : -1;
    close(pipes[0]);
    if (child > 0) {
        (void)waitpid(child, &status, 0);
    }
    return got == (ssize_t)sizeof(*out) && out->right ? 0 : -1;
}

static int standing(uint32_t ranks, json_t *figures, FILE *table)
{
    struct shape shape = {ranks, 0};
    struct program p;
    struct result r;
    char what[80], measured[96];
    int rc = program_make(&p, STEPS * STEP_CALLS + AHEAD, STEPS);
    for (uint32_t i = 0; rc == 0 && i < p.calls; i++) {
        p.rec[i].stream =
            WORLD + 2; /* all on one stream: then most ranks stand behind others, which is the dear case */
    }
    rc = rc == 0 ? measure_apart(&shape, &p, &r, measure_standing) : rc;
    program_free(&p);
    if (rc != 0) {
        fprintf(stderr, "roll_bench: out of memory, or the engine did not say that a rank stands, or more than that\n");
        return -1;
    }
    double core = (double)r.spent_ns / ((double)STAND_TICK * STAND_TICKS);
    snprintf(what, sizeof(what), "%u ranks, one stands", ranks);
    snprintf(measured, sizeof(measured), "told after %.2f s, %.1f %% of a core, a tick %.0f ms at most",
             (double)r.told_ns / 1e9, core * 100, (double)r.most_ns / 1e6);
    roll_bench_line(table, what, measured, "5 s + 2 s");
    fflush(table);
    return json_array_append_new(figures,
                                 json_pack("{s:i,s:f,s:f,s:f}", "ranks", (int)ranks, "told_s", (double)r.told_ns / 1e9,
                                           "core", core, "most_ms", (double)r.most_ns / 1e6));
}

/* What a wrong call of all ranks costs: the same calls with it and without. */
static int wrong(uint32_t ranks, json_t *figures, FILE *table)
{
    struct shape shape = {ranks, 0};
    struct program p;
    struct result healthy, sick;
    char what[80], measured[96];
    int rc = program_make(&p, STEPS * STEP_CALLS, UINT32_MAX);
    rc = rc == 0 ? measure_apart(&shape, &p, &healthy, measure_wrong) : rc;
    p.wrong_rank = ranks / 2 + 3;
    for (uint32_t i = 0; rc == 0 && i < STEPS / 2 * STEP_CALLS; i++) {
        p.wrong_call = p.rec[i].comm == WORLD + 1 && p.rec[i].op == ROLL_OP_ALLREDUCE ? i : p.wrong_call;
    }
    rc = rc == 0 ? measure_apart(&shape, &p, &sick, measure_wrong) : rc;
    program_free(&p);
    if (rc != 0) {
        fprintf(stderr, "roll_bench: out of memory, or the engine did not name a wrong call, or more than that\n");
        return -1;
    }
    double more = ((double)sick.spent_ns - (double)healthy.spent_ns) / 1e9;
    snprintf(what, sizeof(what), "%u ranks, a wrong call of all", ranks);
    snprintf(measured, sizeof(measured), "%.3f s more than %.2f s", more, (double)healthy.spent_ns / 1e9);
    roll_bench_line(table, what, measured, "");
    fflush(table);
    return json_array_append_new(figures, json_pack("{s:i,s:f,s:f}", "ranks", (int)ranks, "healthy_s",
                                                    (double)healthy.spent_ns / 1e9, "more_s", more));
}

static int refused(uint32_t ranks, json_t *figures, FILE *table)
{
    struct shape shape = {ranks, 0};
    struct program p;
    struct result r;
    char what[80], measured[96];
    int rc = program_make(&p, STEPS * STEP_CALLS, UINT32_MAX);
    rc = rc == 0 ? measure_apart(&shape, &p, &r, measure_refused) : rc;
    program_free(&p);
    if (rc != 0) {
        fprintf(stderr, "roll_bench: out of memory, or the engine did not accuse all ranks that were refused, in a few "
                        "verdicts and nothing else\n");
        return -1;
    }
    snprintf(what, sizeof(what), "%u ranks, all but one refused", ranks);
    snprintf(measured, sizeof(measured), "%.1f %% of a core in 10 s, a tick %.0f ms at most",
             (double)r.spent_ns / ((double)STAND_TICK * STAND_TICKS) * 100, (double)r.most_ns / 1e6);
    roll_bench_line(table, what, measured, "");
    fflush(table);
    return json_array_append_new(figures, json_pack("{s:i,s:f,s:f}", "ranks", (int)ranks, "spent_s",
                                                    (double)r.spent_ns / 1e9, "most_ms", (double)r.most_ns / 1e6));
}

int roll_bench_engine_scale(json_t *out, FILE *table)
{
    json_t *figures = json_array();
    const char *only = getenv("ROLL_BENCH_RANKS");       /* one size of job alone, for a profile */
    const char *only_apart = getenv("ROLL_BENCH_APART"); /* likewise, one distance alone */
    for (size_t i = 0; i < KINDS(ranks_of); i++) {
        for (size_t k = 0; k < KINDS(apart_of); k++) {
            struct shape shape = {ranks_of[i], apart_of[k]};
            uint32_t least = LEAST_CALLS + 2 * shape.apart, calls = FEW_RECORDS / shape.ranks;
            struct program p;
            struct result r;
            char what[80], measured[96];
            if ((only && strtoul(only, NULL, 10) != shape.ranks) ||
                (only_apart && strtoul(only_apart, NULL, 10) != shape.apart)) {
                continue;
            }
            int rc = program_make(&p, calls > least ? calls : least, UINT32_MAX);
            rc = rc == 0 ? measure_apart(&shape, &p, &r, measure_going) : rc;
            program_free(&p);
            if (rc != 0) {
                fprintf(stderr, "roll_bench: out of memory, or the engine found fault with healthy traffic\n");
                json_decref(figures);
                return -1;
            }
            double rate = (double)r.records / ((double)r.spent_ns / 1e9);
            snprintf(what, sizeof(what), "%u ranks, %s%u calls apart", shape.ranks, shape.apart ? "up to " : "",
                     shape.apart);
            snprintf(measured, sizeof(measured), "%.2f M/s, %.0f MiB, %.1f KiB/rank", rate / 1e6,
                     (double)r.peak_bytes / 1048576, (double)r.peak_bytes / 1024 / shape.ranks);
            roll_bench_line(table, what, measured, ">= 5 M records/s");
            fflush(table);
            json_array_append_new(figures, json_pack("{s:i,s:i,s:I,s:f,s:I,s:f}", "ranks", (int)shape.ranks,
                                                     "calls_apart", (int)shape.apart, "records", (json_int_t)r.records,
                                                     "records_per_s", rate, "peak_bytes", (json_int_t)r.peak_bytes,
                                                     "open_s", (double)r.opened_ns / 1e9));
        }
    }
    json_t *stands = json_array();
    json_object_set_new(out, "engine_scale_stands", stands);
    for (size_t i = 0; i < KINDS(ranks_of); i++) {
        if ((!only || strtoul(only, NULL, 10) == ranks_of[i]) && standing(ranks_of[i], stands, table) != 0) {
            json_decref(figures);
            return -1;
        }
    }
    json_t *wrongs = json_array();
    json_object_set_new(out, "engine_scale_wrong", wrongs);
    for (size_t i = 0; i < KINDS(ranks_of); i++) {
        if ((!only || strtoul(only, NULL, 10) == ranks_of[i]) && wrong(ranks_of[i], wrongs, table) != 0) {
            json_decref(figures);
            return -1;
        }
    }
    json_t *errors = json_array();
    json_object_set_new(out, "engine_scale_refused", errors);
    for (size_t i = 0; i < KINDS(ranks_of); i++) {
        if ((!only || strtoul(only, NULL, 10) == ranks_of[i]) && refused(ranks_of[i], errors, table) != 0) {
            json_decref(figures);
            return -1;
        }
    }
    return json_object_set_new(out, "engine_scale", figures);
}
