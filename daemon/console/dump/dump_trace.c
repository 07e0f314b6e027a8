/*
 * dump_trace.c: frames of a trace file, with what they carry: ring headers, definitions, records, states, ticks.
 *
 * A trace file is valid up to its last whole frame (trace/frame.h), so a cut file is shown up to the cut, and one line
 * says that it is cut; refusing it would lose what a crashed daemon left. Packed frames are shown unpacked, one by one.
 */
#include "daemon/console/dump/dump.h"

#include "daemon/store/pack.h"
#include "trace/err.h"
#include "trace/frame.h"
#include "trace/ring.h"

#include <inttypes.h>
#include <string.h>

#define FIELD        ROLL_DUMP_FIELD
#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static const char *frame_name(unsigned type)
{
    static const char *const names[] = {"?",       "hello",   "welcome",   "ring",  "defs",    "records",
                                        "updates", "status",  "heartbeat", "ack",   "control", "query",
                                        "reply",   "verdict", "error",     "tick",  "bye",     "ask",
                                        "answer",  "pack",    "note",      "sight", "settings"};
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
#define G struct roll_frame_sight
static const struct roll_dump_field sight_fields[] = {FIELD(G, heard, ROLL_DUMP_UINT),
                                                      FIELD(G, starved, ROLL_DUMP_UINT)};
#undef G
#define T struct roll_frame_settings
static const struct roll_dump_field settings_fields[] = {
    FIELD(T, stall_ns, ROLL_DUMP_UINT),
    FIELD(T, suspect_ns, ROLL_DUMP_UINT),
    {"policy", offsetof(T, policy), 4, ROLL_DUMP_NAME, roll_policy_name}};
#undef T
#define P struct roll_pack_head
static const struct roll_dump_field pack_fields[] = {FIELD(P, frames, ROLL_DUMP_UINT),
                                                     FIELD(P, columns, ROLL_DUMP_UINT)};
#undef P
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
    case ROLL_FRAME_SIGHT:
        if (bytes >= sizeof(struct roll_frame_sight)) {
            roll_dump_thing(d, "sight", "how a rank is seen", offset, frame->payload, sizeof(struct roll_frame_sight),
                            sight_fields, COUNT(sight_fields));
            return;
        }
        break;
    case ROLL_FRAME_SETTINGS:
        if (bytes >= sizeof(struct roll_frame_settings)) {
            roll_dump_thing(d, "settings", "how the engine was set", offset, frame->payload,
                            sizeof(struct roll_frame_settings), settings_fields, COUNT(settings_fields));
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

/* The state of a walk over frames. The numbers of frames go on inside a PACK; their offsets are those in the unpacked
 * bytes.
 */
struct walk {
    struct roll_dump *d;
    roll_unpacker_t *unpacker; /* made when the first PACK comes */
    uint64_t frames;
};

static bool had_enough(const struct walk *w)
{
    return w->d->limit != 0 && w->frames >= w->d->limit;
}

static void dump_frame(struct walk *w, size_t at, const uint8_t *bytes, const struct roll_frame *frame)
{
    char title[96];
    snprintf(title, sizeof(title), "frame %" PRIu64 ": %s", w->frames, frame_name(frame->head.type));
    roll_dump_thing(w->d, "frame", title, at, bytes, ROLL_FRAME_HEAD_BYTES, head_fields, COUNT(head_fields));
    w->frames++;
}

static int dump_pack(struct walk *w, size_t at, const struct roll_frame *pack)
{
    const uint8_t *inner = NULL;
    size_t bytes = 0, used = 0;
    if (pack->head.payload >= sizeof(struct roll_pack_head)) {
        roll_dump_thing(w->d, "pack", "pack", at, pack->payload, sizeof(struct roll_pack_head), pack_fields,
                        COUNT(pack_fields));
    }
    if (w->unpacker == NULL && (w->unpacker = roll_unpacker_new()) == NULL) {
        return ROLL_E_NOMEM;
    }
    int err = roll_unpacker_take(w->unpacker, pack, &inner, &bytes);
    for (size_t i = 0; err == 0 && i < bytes && !had_enough(w); i += used) {
        struct roll_frame frame;
        err = roll_frame_decode(inner + i, bytes - i, &frame, &used);
        if (err == 0) {
            dump_frame(w, i, inner + i, &frame);
            dump_payload(w->d, i + frame.head.hdr_len, &frame);
        }
    }
    return err;
}

int roll_dump_trace(struct roll_dump *d, const void *data, size_t bytes)
{
    const uint8_t *from = data;
    size_t at = ROLL_TRACE_HEAD_BYTES, used = 0;
    struct walk w = {.d = d};
    int err = roll_trace_check(data, bytes);
    if (err != 0) {
        return err;
    }
    roll_dump_note(d, "file", "trace file, %zu bytes", bytes);
    roll_dump_thing(d, "trace-head", "trace head", 0, data, ROLL_TRACE_HEAD_BYTES, file_fields, COUNT(file_fields));
    for (; err == 0 && at < bytes && !had_enough(&w); at += err == 0 ? used : 0) {
        struct roll_frame frame;
        err = roll_frame_decode(from + at, bytes - at, &frame, &used);
        if (err != 0) {
            break;
        }
        dump_frame(&w, at, from + at, &frame);
        if (frame.head.type == ROLL_FRAME_PACK) {
            err = dump_pack(&w, at + frame.head.hdr_len, &frame);
        } else {
            dump_payload(d, at + frame.head.hdr_len, &frame);
        }
    }
    roll_unpacker_destroy(&w.unpacker);
    if (err != 0) {
        roll_dump_note(d, "cut",
                       "after %" PRIu64 " frames the file ends at offset 0x%08zx with %zu bytes that are no frame: %s",
                       w.frames, at, bytes - at, roll_strerror(err));
        return err == ROLL_E_SHORT ? ROLL_E_INCOMPLETE : err;
    }
    if (at < bytes || had_enough(&w)) {
        roll_dump_note(d, "note", "stopped after %" PRIu64 " frames (--limit)", w.frames);
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
