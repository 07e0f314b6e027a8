/*
 * golden.c: makes the golden files: the same writers as in a job (ring_write.h, def.c, frame.c), every number fixed.
 *
 * Nothing in here may depend on the machine or the time: the files in v2/ must come out again byte for byte.
 */
#include "tests/trace/golden/golden.h"
#include "trace/control.h"
#include "trace/def.h"
#include "trace/frame.h"
#include "trace/op.h"
#include "trace/ring_write.h"

#include <stdalign.h>
#include <string.h>

#define EPOCH 0x1122334455667788u

static void fill_header(struct roll_ring_header *h)
{
    memcpy(h->magic, ROLL_RING_MAGIC, 8);
    h->version = 2;
    h->oldest = 2;
    h->header_bytes = 4096;
    h->record_bytes = 64;
    h->capacity = 64;
    h->defs_offset = 4096;
    h->defs_bytes = 4096;
    h->records_offset = 8192;
    h->file_bytes = GOLDEN_RING_BYTES;
    h->pid = 4711;
    h->world_rank = 3;
    h->world_size = 8;
    h->local_rank = 1;
    h->restart = 2;
    h->start_ticks = 123456;
    h->epoch = EPOCH;
    for (unsigned i = 0; i < 16; i++) {
        h->boot_id[i] = (uint8_t)(i * 17);
    }
    strcpy(h->job, "golden.1");
    strcpy(h->host, "node-7");
    strcpy(h->exe, "moe_train");
    h->static_crc = roll_crc32c(0, h, offsetof(struct roll_ring_header, static_crc));
    atomic_store(&h->state, ROLL_RING_FINISHED);
    atomic_store(&h->exit_status, 256);
    atomic_store(&h->finish_ns, 9000000000);
    atomic_store(&h->clock_mono_ns, 1000000000);
    atomic_store(&h->clock_real_ns, 1700000001000000000);
    atomic_store(&h->losses[ROLL_LOSS_LAPPED], 5);
    atomic_store(&h->losses[ROLL_LOSS_WIRE], 6);
    atomic_store(&h->losses[ROLL_LOSS_GRAPH], 7);
    atomic_store(&h->completion, ROLL_COMPLETION_COUNTER);
    atomic_store(&h->done[2], 68);
    atomic_store(&h->graph_done[1], 9);
}

static void add_definitions(struct roll_ring *ring)
{
    struct roll_def_comm comm = {.key = 0xc0ffee,
                                 .parent_key = 0xbeef,
                                 .rank = 3,
                                 .nranks = 8,
                                 .color = 1,
                                 .child = 2,
                                 .origin = ROLL_COMM_SPLIT,
                                 .device = 0,
                                 .flags = 1,
                                 .label_bytes = 2};
    struct roll_def_callsite site = {.depth = 2};
    uint64_t pcs[2] = {0x401005, 0x401105};
    struct roll_def_module module = {
        .start = 0x400000, .end = 0x500000, .bias = 0x400000, .build_id_bytes = 20, .path_bytes = 14};
    for (unsigned i = 0; i < 20; i++) {
        module.build_id[i] = (uint8_t)(0xa0 + i);
    }
    struct roll_def_stream stream = {.handle = 0xabcd};
    struct roll_def_thread thread = {.tid = 4712, .name_bytes = 4};
    struct roll_def_layer layer = {.name_bytes = 5};
    roll_def_append(ring, ROLL_DEF_COMM, 1, &comm, sizeof(comm), "ep", 2);
    roll_def_append(ring, ROLL_DEF_MODULE, 1, &module, sizeof(module), "/opt/moe_train", 14);
    roll_def_append(ring, ROLL_DEF_CALLSITE, 1, &site, sizeof(site), pcs, sizeof(pcs));
    roll_def_append(ring, ROLL_DEF_STREAM, 2, &stream, sizeof(stream), NULL, 0);
    roll_def_append(ring, ROLL_DEF_THREAD, 1, &thread, sizeof(thread), "main", 4);
    roll_def_append(ring, ROLL_DEF_LAYER, 3, &layer, sizeof(layer), "moe.3", 5);
    struct roll_def_graph graph = {.first_ticket = 61, .last_ticket = 63, .calls = 3, .parts = 1};
    struct roll_graph_part part = {.hash = 0xfeedface, .collectives = 2, .comm = 1, .p2p = 1};
    roll_def_append(ring, ROLL_DEF_GRAPH, 1, &graph, sizeof(graph), &part, sizeof(part));
}

/* Seventy records in 64 slots: the first six have been overwritten. The last one never returned. */
static void add_records(struct roll_ring *ring)
{
    for (unsigned i = 0; i < 70; i++) {
        uint64_t ticket;
        struct roll_record *rec = roll_ring_reserve(ring, &ticket);
        rec->enter_ns = 1000000000u + i * 1000u;
        rec->count = 1024 + i;
        rec->seq = i;
        rec->group = i % 2;
        rec->peer = i % 3 == 0 ? 2 : ROLL_PEER_NONE;
        rec->call_ns = 0;
        rec->step = i / 10;
        rec->comm = 1;
        rec->stream = 2;
        rec->callsite = 1;
        rec->thread = 1;
        rec->layer = 3;
        rec->microbatch = 4;
        rec->op = i % 3 == 0 ? ROLL_OP_BROADCAST : ROLL_OP_ALLREDUCE;
        rec->dtype = ROLL_DTYPE_BFLOAT16;
        rec->redop = i % 3 == 0 ? ROLL_RED_NONE : ROLL_RED_SUM;
        rec->flags = i % 2 != 0 ? ROLL_FLAG_IN_GROUP : 0;
        rec->phase = ROLL_PHASE_BACKWARD;
        rec->result = 0;
        rec->aux = 7;
        if (i == 67) { /* a launch of the graph */
            *rec = (struct roll_record){.seal = rec->seal, .enter_ns = rec->enter_ns, .count = 0xfeedface, .seq = i};
            rec->peer = ROLL_PEER_NONE;
            rec->step = ROLL_STEP_NONE;
            rec->comm = rec->thread = rec->aux = 1;
            rec->layer = ROLL_LAYER_NONE;
            rec->op = ROLL_OP_GRAPH_LAUNCH;
            rec->dtype = ROLL_DTYPE_NONE;
            rec->redop = ROLL_RED_NONE;
        }
        roll_ring_publish(rec, ticket, ROLL_STATE_ENTERED);
        if (i < 69) {
            roll_ring_return(ring, rec, ticket, 500 + i, i == 68 ? 1 : 0);
        }
    }
}

size_t golden_ring(uint8_t out[GOLDEN_RING_BYTES])
{
    static alignas(64) uint8_t bytes[GOLDEN_RING_BYTES];
    memset(bytes, 0, sizeof(bytes));
    struct roll_ring ring = {.header = (struct roll_ring_header *)(void *)bytes,
                             .defs = bytes + 4096,
                             .records = (struct roll_record *)(void *)(bytes + 8192),
                             .mask = 63};
    fill_header(ring.header);
    add_definitions(&ring);
    add_records(&ring);
    memcpy(out, bytes, sizeof(bytes));
    return sizeof(bytes);
}

size_t golden_control(uint8_t out[4096])
{
    static struct roll_control c;
    static const struct roll_control_change changes[] = {
        {0, 3, ROLL_POLICY_AUTO, 0, 0}, {0, 1, ROLL_REMEDY_PAD, 0, 0},         {2, 1, ROLL_REMEDY_FILL, 5, 0},
        {2, 2, ROLL_REMEDY_PAD, 6, 0},  {1, 1, ROLL_REMEDY_FILL, 0, 0xc0ffee}, {1, 2, ROLL_REMEDY_PAD, 0, 0xbeef},
    };
    memset(&c, 0, sizeof(c));
    memcpy(c.magic, ROLL_CONTROL_MAGIC, 8);
    c.version = 1;
    c.oldest = 1;
    c.bytes = ROLL_CONTROL_BYTES;
    atomic_store(&c.agent_pid, 99);
    atomic_store(&c.agent_seen_ns, 123456789);
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        roll_control_apply(&c, &changes[i]);
    }
    atomic_store(&c.auto_local, ROLL_REMEDY_FILL); /* the mask of that version: more local remedies came later */
    atomic_store(&c.policy_told, 0);               /* the pages of that version did not say it */
    memcpy(out, &c, sizeof(c));
    return sizeof(c);
}

size_t golden_control_told(uint8_t out[4096])
{
    static struct roll_control c;
    size_t n = golden_control(out);
    memcpy(&c, out, sizeof(c));
    roll_control_apply(&c, &(struct roll_control_change){.action = ROLL_ACTION_POLICY, .mask = ROLL_POLICY_ADVISE});
    memcpy(out, &c, sizeof(c));
    return n;
}

struct stream {
    uint8_t *out;
    size_t used;
};

static void add_frame(struct stream *s, struct roll_frame_head head, const void *payload, size_t bytes)
{
    int64_t n = roll_frame_encode(&head, payload, bytes, s->out + s->used, GOLDEN_TRACE_MOST - s->used);
    s->used += n > 0 ? (size_t)n : 0;
}

static void add_json(struct stream *s, enum roll_frame_type type, uint64_t seq, const char *json)
{
    add_frame(s, (struct roll_frame_head){.type = (uint16_t)type, .seq = seq}, json, strlen(json));
}

static void add_ring_frames(struct stream *s)
{
    static uint8_t ring[GOLDEN_RING_BYTES];
    golden_ring(ring);
    struct roll_frame_head head = {.seq = 2, .stream = EPOCH};
    head.type = ROLL_FRAME_RING;
    add_frame(s, head, ring, 4096);
    head.type = ROLL_FRAME_DEFS;
    add_frame(s, head, ring + 4096, 344);
    head.type = ROLL_FRAME_RECORDS;
    head.first = 6;
    head.count = 3;
    add_frame(s, head, ring + 8192 + 6 * 64, 192);
    head.type = ROLL_FRAME_UPDATES;
    head.first = 0;
    head.count = 1;
    add_frame(s, head, ring + 8192 + 7 * 64, 64);
    struct roll_frame_status status = {.head = 70,
                                       .defs_used = 288,
                                       .clock_mono_ns = 2000000000,
                                       .clock_real_ns = 1700000002000000000,
                                       .finish_ns = 9000000000,
                                       .proc_state = ROLL_PROC_DEAD,
                                       .exit_status = 9,
                                       .losses = {1, 2, 3}};
    head.type = ROLL_FRAME_STATUS;
    add_frame(s, head, &status, sizeof(status));
    struct roll_frame_ack ack = {.next_ticket = 9, .defs_offset = 288};
    head.type = ROLL_FRAME_ACK;
    add_frame(s, head, &ack, sizeof(ack));
}

size_t golden_trace(uint8_t out[GOLDEN_TRACE_MOST])
{
    struct stream s = {out, ROLL_TRACE_HEAD_BYTES};
    roll_trace_head(out);
    add_json(&s, ROLL_FRAME_HELLO, 1, "{\"agent\":\"a\",\"host\":\"node-7\",\"pid\":99,\"version\":\"0.1.0\"}");
    add_json(&s, ROLL_FRAME_WELCOME, 1, "{\"root_epoch\":1,\"policy\":\"auto\"}");
    add_ring_frames(&s);
    struct {
        char job[64];
        struct roll_control_change change;
    } control = {.job = "golden.1", .change = {2, 1, ROLL_REMEDY_FILL, 5, 0xc0ffee}};
    add_frame(&s, (struct roll_frame_head){.type = ROLL_FRAME_CONTROL, .seq = 3}, &control, sizeof(control));
    add_json(&s, ROLL_FRAME_QUERY, 7, "{\"op\":\"status\"}");
    add_json(&s, ROLL_FRAME_REPLY, 7, "{\"schema\":\"rollcall.status/1\"}");
    add_json(&s, ROLL_FRAME_VERDICT, 1, "{\"schema\":\"rollcall.verdict/1\"}");
    add_json(&s, ROLL_FRAME_ERROR, 4, "{\"error\":\"no\"}");
    add_frame(&s, (struct roll_frame_head){.type = ROLL_FRAME_HEARTBEAT, .seq = 5}, NULL, 0);
    add_frame(&s, (struct roll_frame_head){.type = ROLL_FRAME_TICK, .seq = 1700000003000000000}, NULL, 0);
    add_frame(&s, (struct roll_frame_head){.type = ROLL_FRAME_BYE, .seq = 6}, NULL, 0);
    add_json(&s, ROLL_FRAME_ASK, 8, "{\"op\":\"stacks\"}");
    add_json(&s, ROLL_FRAME_ANSWER, 8, "{\"op\":\"stacks\"}");
    add_json(&s, ROLL_FRAME_NOTE, 7, "{\"note\":\"attached-unseen\"}");
    struct roll_frame_sight sight = {.heard = 1, .starved = 750};
    add_frame(&s, (struct roll_frame_head){.type = ROLL_FRAME_SIGHT, .seq = 8, .stream = EPOCH}, &sight, sizeof(sight));
    struct roll_frame_control run = {.job = "golden.1", .change = {2, 1, ROLL_REMEDY_FILL, 5, 0xc0ffee}, .restart = 2};
    add_frame(&s, (struct roll_frame_head){.type = ROLL_FRAME_CONTROL, .seq = 9}, &run, sizeof(run));
    struct roll_frame_settings settings = {250000000, 3000000000, ROLL_POLICY_AUTO, 0};
    add_frame(&s, (struct roll_frame_head){.type = ROLL_FRAME_SETTINGS}, &settings, sizeof(settings));
    return s.used;
}
