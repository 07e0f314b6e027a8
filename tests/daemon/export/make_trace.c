/*
 * make_trace.c: a job's traces as the agents of its nodes would have written them, of any length, for the tests and the
 * figures of `rollcall export`.
 *
 *   make_trace DIR NODES PER_NODE CALLS [sick] [hostile] [markup] [again]
 *
 * Each rank makes CALLS calls, of four kinds by turns: an AllReduce of all, an AllGather of its node, a message between
 * neighbours of the node, and a wait of its host. The first calls come once more when they are complete. sick: in the
 * last AllReduce the last rank has another count, which is the last that it calls, and rank 0 is still inside its last
 * call. hostile: every name has
 * quotes, SQL, a terminal's sequences and bytes that are no UTF-8; markup: HTML that would run a script, and Markdown.
 * again: it is the job's restart 1.
 */
#include "daemon/store/segment.h"
#include "trace/def.h"
#include "trace/err.h"
#include "trace/op.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BATCH    64u
#define TICK_NS  UINT64_C(20000000)
#define STEP_NS  (TICK_NS / BATCH)
#define BEGIN_NS UINT64_C(1700000000000000000)
#define BYTES    (ROLL_FRAME_HEAD_BYTES + ROLL_RING_HEADER_BYTES + BATCH * ROLL_RECORD_BYTES)
#define HOSTILE  "'\"; DROP TABLE calls;-- \x1b[31m\xff\xc3(\xe2\x80\xae%s"

#define MARKUP "</script><img src=x onerror=bad=1>\xe2\x80\xa8<!--`"

static struct {
    uint32_t nodes, per_node, ranks;
    uint64_t calls;
    bool sick, hostile, markup, again;
} job;

struct node {
    roll_segments_t *segments;
    uint64_t seq, now;
    uint8_t bytes[BYTES];
};

static uint64_t calls_of(uint32_t rank)
{
    return job.sick && rank + 1 == job.ranks ? job.calls - 3 : job.calls;
}

static const char *named(const char *plain)
{
    return job.markup ? MARKUP : job.hostile ? HOSTILE : plain;
}

static int put(struct node *n, struct roll_frame_head head, const void *payload, size_t bytes)
{
    struct roll_frame frame;
    head.seq = head.type == ROLL_FRAME_TICK ? head.seq : ++n->seq;
    int64_t used = roll_frame_make(&head, payload, bytes, n->bytes, sizeof(n->bytes), &frame);
    return used < 0 ? (int)used : roll_segments_append(n->segments, &frame, n->bytes, (size_t)used, n->now);
}

static int put_ring(struct node *n, uint32_t rank)
{
    struct roll_ring_header h = {.version = ROLL_RING_VERSION,
                                 .oldest = ROLL_RING_OLDEST,
                                 .header_bytes = ROLL_RING_HEADER_BYTES,
                                 .record_bytes = ROLL_RECORD_BYTES,
                                 .capacity = 65536,
                                 .pid = 4000 + rank % job.per_node, /* the same on every node */
                                 .world_rank = (int32_t)rank,
                                 .world_size = (int32_t)job.ranks,
                                 .local_rank = (int32_t)(rank % job.per_node),
                                 .epoch = rank + 1,
                                 .restart = job.again,
                                 .job = "made"};
    memcpy(h.magic, ROLL_RING_MAGIC, sizeof(h.magic));
    if (job.hostile) {
        snprintf(h.host, sizeof(h.host), "%s", HOSTILE);
    } else if (job.markup) {
        snprintf(h.host, sizeof(h.host), "%s", MARKUP);
    } else {
        snprintf(h.host, sizeof(h.host), "node%u", rank / job.per_node);
    }
    snprintf(h.exe, sizeof(h.exe), "%s", named("/usr/bin/python3"));
    h.static_crc = roll_crc32c(0, &h, offsetof(struct roll_ring_header, static_crc));
    return put(n, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = rank + 1}, &h, sizeof(h));
}

static int define(struct roll_ring *scratch, enum roll_def_type type, uint32_t id, const void *body, size_t bytes,
                  const char *text)
{
    return roll_def_append(scratch, type, id, body, bytes, text, strlen(text));
}

static int put_defs(struct node *n, uint32_t rank, struct roll_ring *scratch)
{
    static const char *const label[2] = {"world", "node"};
    const char *path = named("/job/train.py"), *function = named("step");
    int err = 0;
    scratch->header->defs_used = 0;
    for (uint32_t i = 0; i < 2; i++) {
        struct roll_def_comm comm = {.key = i == 0 ? 1 : 1000 + rank / job.per_node,
                                     .rank = (int32_t)(i == 0 ? rank : rank % job.per_node),
                                     .nranks = (int32_t)(i == 0 ? job.ranks : job.per_node),
                                     .color = ROLL_COLOR_NONE,
                                     .origin = ROLL_COMM_INIT,
                                     .label_bytes = (uint32_t)strlen(named(label[i]))};
        err = err ? err : define(scratch, ROLL_DEF_COMM, i + 1, &comm, sizeof(comm), named(label[i]));
    }
    struct roll_def_source source = {.path_bytes = (uint32_t)strlen(path)};
    struct roll_def_line line = {.source = 1, .line = 88, .function_bytes = (uint32_t)strlen(function)};
    struct {
        struct roll_def_callsite site;
        struct roll_callsite_line line;
    } at = {{.depth = 0, .lines = 1}, {.line = 1}};
    err = err ? err : define(scratch, ROLL_DEF_SOURCE, 1, &source, sizeof(source), path);
    err = err ? err : define(scratch, ROLL_DEF_LINE, 1, &line, sizeof(line), function);
    err = err ? err : define(scratch, ROLL_DEF_CALLSITE, 1, &at, sizeof(at), "");
    return err ? err
               : put(n, (struct roll_frame_head){.type = ROLL_FRAME_DEFS, .stream = rank + 1}, scratch->defs,
                     (size_t)scratch->header->defs_used);
}

static struct roll_record record_of(uint32_t rank, uint64_t t, enum roll_state state)
{
    bool last = job.sick && t + 4 >= job.calls, even = rank % 2 == 0;
    struct roll_record rec = {.seal = roll_seal(t, state),
                              .enter_ns = BEGIN_NS + t * STEP_NS + (t * 7919 + rank * 104729) % (STEP_NS / 4),
                              .count = 1024 + t % 7,
                              .seq = (uint32_t)(t / 4),
                              .peer = ROLL_PEER_NONE,
                              .call_ns = 9000 + (uint32_t)((t * 31 + rank) % 800),
                              .step = (uint32_t)(t / 64),
                              .comm = t % 4 == 0 ? 1 : 2,
                              .stream = 1,
                              .thread = 1,
                              .callsite = 1,
                              .layer = ROLL_LAYER_NONE,
                              .dtype = ROLL_DTYPE_FLOAT32,
                              .redop = ROLL_RED_NONE};
    switch (t % 4) {
    case 0:
        rec.op = ROLL_OP_ALLREDUCE;
        rec.redop = ROLL_RED_SUM;
        rec.count += last && rank + 1 == job.ranks ? 5 : 0;
        break;
    case 1:
        rec.op = ROLL_OP_ALLGATHER;
        break;
    case 2:
        rec.op = even ? ROLL_OP_SEND : ROLL_OP_RECV;
        rec.peer = (int32_t)(rank % job.per_node) + (even ? 1 : -1);
        break;
    default:
        rec.op = ROLL_OP_STREAM_SYNC;
        rec.comm = 0;
        rec.seq = 0;
        rec.count = 0;
        rec.dtype = ROLL_DTYPE_NONE;
        break;
    }
    return rec;
}

static int put_records(struct node *n, uint32_t rank, uint64_t first, uint64_t upto, enum roll_state state,
                       bool updates)
{
    struct roll_record rec[BATCH];
    uint32_t count = 0;
    for (uint64_t t = first; t < upto && t < calls_of(rank); t++) {
        bool inside = !updates && t + 1 == job.calls;
        rec[count++] = record_of(rank, t, inside ? ROLL_STATE_ENTERED : state);
    }
    return count == 0 ? 0
                      : put(n,
                            (struct roll_frame_head){.type = updates ? ROLL_FRAME_UPDATES : ROLL_FRAME_RECORDS,
                                                     .stream = rank + 1,
                                                     .first = first,
                                                     .rec_size = ROLL_RECORD_BYTES,
                                                     .count = count},
                            rec, count * sizeof(rec[0]));
}

static int put_tick(struct node *n, uint64_t tick)
{
    uint64_t real = BEGIN_NS + tick * TICK_NS;
    n->now = tick * TICK_NS + 1;
    int err = put(n, (struct roll_frame_head){.type = ROLL_FRAME_TICK, .seq = real}, &real, sizeof(real));
    return err ? err : roll_segments_turn(n->segments, n->now, false);
}

/* The last call comes back, except rank 0's of a sick job; its process goes on. */
static int put_end(struct node *n, uint32_t rank)
{
    bool inside = job.sick && (rank == 0 || rank + 1 == job.ranks);
    uint64_t end = BEGIN_NS + job.calls * STEP_NS;
    struct roll_frame_status status = {.head = calls_of(rank),
                                       .clock_mono_ns = end,
                                       .clock_real_ns = end,
                                       .finish_ns = inside ? 0 : end,
                                       .proc_state = inside ? ROLL_PROC_RUNNING : ROLL_PROC_FINISHED,
                                       .exit_status = inside ? ROLL_EXIT_UNKNOWN : 0};
    uint64_t known = job.calls < 8 ? job.calls : 8;
    int err = inside ? 0 : put_records(n, rank, job.calls - 1, job.calls, ROLL_STATE_RETURNED, true);
    err = err ? err : put_records(n, rank, 0, known, ROLL_STATE_COMPLETE, true);
    return err ? err
               : put(n, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = rank + 1}, &status,
                     sizeof(status));
}

static int write_node(const char *dir, uint32_t number, struct roll_ring *scratch)
{
    static struct node n;
    char at[PATH_MAX], series[64], why[256];
    int pid;
    snprintf(at, sizeof(at), "%s/node%03u", dir, number);
    snprintf(series, sizeof(series), "made.0@node%03u", number);
    const struct roll_segment_options options = {.dir = at, .series = series};
    n = (struct node){.now = 1};
    int err = roll_segment_dir(at, why, sizeof(why));
    err = err ? err : roll_segments_new(&options, &n.segments, &pid);
    uint32_t first = number * job.per_node;
    for (uint32_t r = first; r < first + job.per_node && !err; r++) {
        err = put_ring(&n, r);
        err = err ? err : put_defs(&n, r, scratch);
    }
    uint64_t tick = 0;
    for (uint64_t t = 0; t < job.calls && !err; t += BATCH) {
        uint64_t upto = t + BATCH < job.calls ? t + BATCH : job.calls;
        for (uint32_t r = first; r < first + job.per_node && !err; r++) {
            err = put_records(&n, r, t, upto, ROLL_STATE_RETURNED, false);
        }
        err = err ? err : put_tick(&n, ++tick);
    }
    for (uint32_t r = first; r < first + job.per_node && !err; r++) {
        err = put_end(&n, r);
    }
    err = err ? err : put_tick(&n, ++tick);
    roll_segments_destroy(&n.segments);
    return err;
}

int main(int argc, char **argv)
{
    char path[PATH_MAX];
    struct roll_ring scratch;
    struct roll_ring_params params = {.capacity = 64, .job = "made", .exe = "", .defs_bytes = 65536};
    if (argc < 5) {
        fprintf(stderr, "usage: make_trace DIR NODES PER_NODE CALLS [sick] [hostile] [again]\n");
        return 2;
    }
    job.nodes = (uint32_t)strtoul(argv[2], NULL, 10);
    job.per_node = (uint32_t)strtoul(argv[3], NULL, 10);
    job.calls = strtoull(argv[4], NULL, 10);
    job.ranks = job.nodes * job.per_node;
    for (int i = 5; i < argc; i++) {
        job.sick = job.sick || strcmp(argv[i], "sick") == 0;
        job.hostile = job.hostile || strcmp(argv[i], "hostile") == 0;
        job.markup = job.markup || strcmp(argv[i], "markup") == 0;
        job.again = job.again || strcmp(argv[i], "again") == 0;
    }
    (void)mkdir(argv[1], 0700);
    snprintf(path, sizeof(path), "%s/scratch", argv[1]);
    int err = roll_ring_create(path, &params, &scratch);
    for (uint32_t i = 0; i < job.nodes && !err; i++) {
        err = write_node(argv[1], i, &scratch);
    }
    if (err) {
        fprintf(stderr, "make_trace: %s\n", roll_strerror(err));
        return 1;
    }
    roll_ring_close(&scratch);
    unlink(path);
    return 0;
}
