/*
 * dump_trace.c: frames of a trace file, with what they carry: ring headers, definitions, records, states, ticks.
 *
 * A trace file is valid up to its last whole frame (trace/frame.h), so a cut file is shown up to the cut and then said
 * to be cut; refusing it would lose what a crashed daemon left.
 */
#include "daemon/console/dump.h"

#include "trace/err.h"
#include "trace/frame.h"
#include "trace/ring.h"

#include <inttypes.h>
#include <string.h>

#define FIELD        ROLL_DUMP_FIELD
#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static const char *frame_name(unsigned type)
{
    static const char *const names[] = {"?",      "hello",     "welcome", "ring",    "defs",   "records", "updates",
                                        "status", "heartbeat", "ack",     "control", "query",  "reply",   "verdict",
                                        "error",  "tick",      "bye",     "ask",     "answer", "pack",    "note"};
    return type < COUNT(names) ? names[type] : "?";
}

static const char *proc_name(unsigned state)
{
    static const char *const names[] = {"?", "running", "stopped", "finished", "dead"};
    return state < COUNT(names) ? names[state] : "?";
}

#define F struct roll_frame_head
static const struct roll_dump_field head_fields[] = {
    FIELD(F, magic, ROLL_DUMP_HEX),     FIELD(F, major, ROLL_DUMP_UINT),
    FIELD(F, minor, ROLL_DUMP_UINT),    {"type", offsetof(F, type), 2, ROLL_DUMP_NAME, frame_name},
    FIELD(F, flags, ROLL_DUMP_UINT),    FIELD(F, hdr_len, ROLL_DUMP_UINT),
    FIELD(F, rec_size, ROLL_DUMP_UINT), FIELD(F, count, ROLL_DUMP_UINT),
    FIELD(F, payload, ROLL_DUMP_UINT),  FIELD(F, seq, ROLL_DUMP_UINT),
    FIELD(F, stream, ROLL_DUMP_HEX),    FIELD(F, first, ROLL_DUMP_UINT),
    FIELD(F, crc, ROLL_DUMP_HEX),
};
#undef F
#define S struct roll_frame_status
static const struct roll_dump_field status_fields[] = {
    FIELD(S, head, ROLL_DUMP_UINT),          FIELD(S, defs_used, ROLL_DUMP_UINT),
    FIELD(S, clock_mono_ns, ROLL_DUMP_UINT), FIELD(S, clock_real_ns, ROLL_DUMP_UINT),
    FIELD(S, finish_ns, ROLL_DUMP_UINT),     {"proc_state", offsetof(S, proc_state), 4, ROLL_DUMP_NAME, proc_name},
    FIELD(S, exit_status, ROLL_DUMP_EXIT),   ROLL_DUMP_LOSSES(S),
};
#undef S
static const struct roll_dump_field file_fields[] = {{"magic", 0, 8, ROLL_DUMP_TEXT, NULL},
                                                     {"version", 8, 2, ROLL_DUMP_UINT, NULL},
                                                     {"oldest", 10, 2, ROLL_DUMP_UINT, NULL}};

static void dump_payload(struct roll_dump *d, uint64_t offset, const struct roll_frame *frame)
{
    size_t bytes = frame->head.payload;
    switch (frame->head.type) {
    case ROLL_FRAME_RING:
        if (bytes >= ROLL_RING_HEADER_BYTES) {
            roll_dump_ring_header(d, offset, frame->payload);
            return;
        }
        break;
    case ROLL_FRAME_DEFS:
        roll_dump_defs(d, offset, frame->payload, bytes);
        return;
    case ROLL_FRAME_RECORDS:
    case ROLL_FRAME_UPDATES:
        for (uint32_t i = 0; i < frame->head.count; i++) {
            struct roll_record rec;
            roll_frame_record(frame, i, &rec);
            roll_dump_record(d, offset + (uint64_t)i * frame->head.rec_size, &rec);
        }
        return;
    case ROLL_FRAME_STATUS:
        if (bytes >= sizeof(struct roll_frame_status)) {
            roll_dump_thing(d, "status", "status of a rank's process", offset, frame->payload,
                            sizeof(struct roll_frame_status), status_fields, COUNT(status_fields));
            return;
        }
        break;
    default:
        break;
    }
    if (bytes > 0) {
        struct roll_dump_field text = {"text", 0, bytes < UINT16_MAX ? (uint16_t)bytes : UINT16_MAX, ROLL_DUMP_TEXT,
                                       NULL};
        roll_dump_thing(d, "payload", "payload", offset, frame->payload, bytes, &text,
                        frame->payload[0] == '{' ? 1 : 0);
    }
}

int roll_dump_trace(struct roll_dump *d, const void *data, size_t bytes)
{
    const uint8_t *from = data;
    size_t at = ROLL_TRACE_HEAD_BYTES;
    uint64_t frames = 0;
    int err = roll_trace_check(data, bytes);
    if (err != 0) {
        return err;
    }
    roll_dump_note(d, "file", "trace file, %zu bytes", bytes);
    roll_dump_thing(d, "trace-head", "trace head", 0, data, ROLL_TRACE_HEAD_BYTES, file_fields, COUNT(file_fields));
    while (at < bytes) {
        struct roll_frame frame;
        size_t used = 0;
        char title[96];
        err = roll_frame_decode(from + at, bytes - at, &frame, &used);
        if (err != 0) {
            roll_dump_note(d, "cut",
                           "after %" PRIu64
                           " frames the file ends at offset 0x%08zx with %zu bytes that are no frame: %s",
                           frames, at, bytes - at, roll_strerror(err));
            return err == ROLL_E_SHORT ? ROLL_E_INCOMPLETE : err;
        }
        if (d->limit != 0 && frames >= d->limit) {
            roll_dump_note(d, "note", "stopped after %" PRIu64 " frames (--limit)", frames);
            return 0;
        }
        snprintf(title, sizeof(title), "frame %" PRIu64 ": %s", frames, frame_name(frame.head.type));
        roll_dump_thing(d, "frame", title, at, from + at, ROLL_FRAME_HEAD_BYTES, head_fields, COUNT(head_fields));
        dump_payload(d, at + frame.head.hdr_len, &frame);
        at += used;
        frames++;
    }
    return 0;
}

int roll_dump_any(struct roll_dump *d, const void *data, size_t bytes)
{
    if (bytes >= 8 && memcmp(data, ROLL_RING_MAGIC, 8) == 0) {
        return roll_dump_ring(d, data, bytes);
    }
    if (bytes >= 8 && memcmp(data, "ROLLCTRL", 8) == 0) {
        return roll_dump_control(d, data, bytes);
    }
    if (bytes >= 8 && memcmp(data, ROLL_TRACE_MAGIC, 8) == 0) {
        return roll_dump_trace(d, data, bytes);
    }
    return bytes < 8 ? ROLL_E_SHORT : ROLL_E_MAGIC;
}
