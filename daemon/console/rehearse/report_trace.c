/*
 * report_trace.c: reads the trace of a rehearsal, once, for the two that the report asks: the engine, by a feed as in
 * `rollcall analyze`, and a count of calls by rank, communicator and operation.
 */
#include "daemon/base/array.h"
#include "daemon/console/rehearse/report.h"
#include "daemon/store/trace_file.h"
#include "daemon/verdict/verdict_json.h"
#include "trace/op.h"

#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static struct ring *ring_of(struct reading *r, uint64_t stream)
{
    uint32_t at = roll_map_get(&r->ring_at, stream);
    if (at != ROLL_MAP_NONE) {
        return &r->ring[at];
    }
    if (ROLL_GROW(r->ring, r->room, r->rings + 1) != 0 || roll_map_add(&r->ring_at, stream, (uint32_t)r->rings) != 0) {
        return NULL;
    }
    r->ring[r->rings] = (struct ring){.stream = stream};
    return &r->ring[r->rings++];
}

/* The definition with this id; NULL when there is none. */
static struct local *local_of(struct ring *ring, uint32_t id)
{
    return id < ring->comms && ring->comm[id].def.key != 0 ? &ring->comm[id] : NULL;
}

static int note_def(struct reading *r, struct ring *ring, const struct roll_def *def)
{
    if (def->type != ROLL_DEF_COMM || def->id > UINT16_MAX) {
        return 0;
    }
    size_t before = ring->room;
    int err = ROLL_GROW(ring->comm, ring->room, (size_t)def->id + 1);
    if (err != 0) {
        return err;
    }
    memset(ring->comm + before, 0, (ring->room - before) * sizeof(*ring->comm));
    ring->comms = def->id + 1u > ring->comms ? def->id + 1u : ring->comms;
    ring->comm[def->id].def = def->comm.info;
    return roll_rehearse_order_comm(r->order, (size_t)(ring - r->ring), ring->stream, def->id, &def->comm.info);
}

static int note_defs(struct reading *r, struct ring *ring, const struct roll_frame *frame)
{
    size_t at = 0;
    int err = 0;
    while (err == 0 && at < frame->head.payload) {
        struct roll_def def;
        uint64_t offset = frame->head.first + at;
        if (roll_def_decode(frame->payload, frame->head.payload, &at, &def) != 0) {
            break; /* the feed has refused the frame as well */
        }
        if (offset >= ring->defs_offset) {
            ring->defs_offset = frame->head.first + at;
            err = note_def(r, ring, &def);
        }
    }
    return err;
}

/* Counts one call. A captured call runs at each launch of its graph, which is recorded by itself. */
static int note_record(struct reading *r, struct ring *ring, const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    struct local *comm = local_of(ring, rec->comm);
    bool moves = class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P || class == ROLL_CLASS_RMA;
    if (comm == NULL || !moves || (rec->flags & ROLL_FLAG_CAPTURED) != 0) {
        return 0;
    }
    comm->op = comm->op != NULL ? comm->op : calloc(ROLL_OP_LIMIT, sizeof(*comm->op));
    if (comm->op == NULL) {
        return ROLL_E_NOMEM;
    }
    struct count *count = &comm->op[rec->op];
    uint64_t bytes = rec->count * roll_dtype_bytes(rec->dtype);
    count->calls++;
    count->bytes += bytes;
    if (rec->step != ROLL_STEP_NONE) {
        bool is_first = r->first_step == ROLL_STEP_NONE;
        count->step_calls++;
        count->step_bytes += bytes;
        r->first_step = is_first || rec->step < r->first_step ? rec->step : r->first_step;
        r->last_step = is_first || rec->step > r->last_step ? rec->step : r->last_step;
    }
    return 0;
}

static int note_records(struct reading *r, struct ring *ring, const struct roll_frame *frame)
{
    int err = 0;
    for (uint32_t i = 0; i < frame->head.count && err == 0; i++) {
        struct roll_record rec;
        roll_frame_record(frame, i, &rec);
        uint64_t ticket = roll_seal_ticket(rec.seal);
        if (roll_seal_state(rec.seal) != ROLL_STATE_EMPTY && ticket >= ring->next_ticket) {
            ring->next_ticket = ticket + 1;
            err = note_record(r, ring, &rec);
            err = err == 0 ? roll_rehearse_order_call(r->order, (size_t)(ring - r->ring), &rec) : err;
        }
    }
    return err;
}

/* Takes what the feed has said. NOMEM: a verdict is missing in the report. */
static int take_verdicts(struct reading *r)
{
    struct roll_verdict_copy *copy;
    int err = 0;
    while ((copy = roll_feed_next(r->feed)) != NULL) {
        roll_tally_add(&r->tally, copy);
        err = json_array_append_new(r->verdicts, roll_verdict_to_json(copy)) == 0 ? err : ROLL_E_NOMEM;
        roll_verdict_copy_destroy(&copy);
    }
    return err;
}

static int read_frame(struct reading *r, const struct roll_frame *frame)
{
    int err = roll_feed_frame(r->feed, frame);
    bool about_ring = frame->head.type == ROLL_FRAME_DEFS || frame->head.type == ROLL_FRAME_RECORDS;
    struct ring *ring = about_ring ? ring_of(r, frame->head.stream) : NULL;
    if (err == ROLL_E_NOMEM || (about_ring && ring == NULL)) {
        return ROLL_E_NOMEM;
    }
    if (ring != NULL && err == 0) {
        err = frame->head.type == ROLL_FRAME_DEFS ? note_defs(r, ring, frame) : note_records(r, ring, frame);
    }
    int taken = take_verdicts(r);
    return err == ROLL_E_NOMEM ? err : taken; /* one bad frame must not cost the rest */
}

static int read_file(struct reading *r, const char *path)
{
    roll_trace_reader_t *reader = NULL;
    struct roll_frame frame;
    int err = roll_trace_reader_new(path, &reader);
    while (err == 0 && (err = roll_trace_reader_next(reader, &frame)) == 0) {
        err = read_frame(r, &frame);
    }
    roll_trace_reader_destroy(&reader);
    return err == ROLL_E_NOMEM ? err : 0; /* a torn end is the end */
}

int roll_report_read(struct reading *r, const char *folder)
{
    char pattern[PATH_MAX];
    glob_t files = {0};
    int err = 0;
    snprintf(pattern, sizeof(pattern), "%s/*.rtrc", folder);
    (void)glob(pattern, 0, NULL, &files);
    for (size_t i = 0; i < files.gl_pathc && err == 0; i++) {
        err = read_file(r, files.gl_pathv[i]);
    }
    globfree(&files);
    err = err == 0 ? roll_feed_finish(r->feed) : err;
    (void)take_verdicts(r);
    return err;
}
