/*
 * fuzz_frame.c: arbitrary bytes as a trace file and as single frames, with and without a repaired checksum; what a
 * frame carries goes on to the decoder that a receiver would hand it to.
 */
#include "tests/trace/fuzz/fuzz.h"
#include "trace/def.h"
#include "trace/err.h"
#include "trace/frame.h"
#include "trace/ring.h"

#include <string.h>

static void open_payload(const struct roll_frame *frame)
{
    const struct roll_frame_head *h = &frame->head;
    if (h->type == ROLL_FRAME_RECORDS || h->type == ROLL_FRAME_UPDATES) {
        for (uint32_t i = 0; i < h->count; i++) {
            struct roll_record rec;
            char line[400];
            roll_frame_record(frame, i, &rec);
            PROMISE(roll_record_check(&rec) == ROLL_OK);
            roll_record_format(&rec, line, sizeof(line));
        }
    } else if (h->type == ROLL_FRAME_DEFS) {
        size_t offset = 0;
        struct roll_def def;
        while (roll_def_decode(frame->payload, h->payload, &offset, &def) == ROLL_OK) {
        }
    } else if (h->type == ROLL_FRAME_RING) {
        PROMISE(h->payload >= ROLL_RING_HEADER_BYTES);
        roll_ring_check_header(frame->payload, h->payload);
    } else if (h->type == ROLL_FRAME_STATUS) {
        PROMISE(h->payload >= sizeof(struct roll_frame_status));
    } else if (h->type == ROLL_FRAME_SIGHT) {
        PROMISE(h->payload >= sizeof(struct roll_frame_sight));
    } else if (h->type == ROLL_FRAME_SETTINGS) {
        PROMISE(h->payload >= sizeof(struct roll_frame_settings));
    } else if (h->type == ROLL_FRAME_CONTROL) {
        PROMISE(h->payload >= ROLL_FRAME_CONTROL_OLDEST_BYTES);
    } else if (h->type == ROLL_FRAME_ACK) {
        PROMISE(h->payload >= sizeof(struct roll_frame_ack));
    }
}

/* A frame of this version comes out of the encoder as it went into the decoder. */
static void encode_again(const struct roll_frame *frame, const uint8_t *bytes, size_t used)
{
    if (frame->head.minor != roll_frame_minor(&frame->head) || frame->head.hdr_len != ROLL_FRAME_HEAD_BYTES) {
        return;
    }
    uint8_t *again = malloc(used);
    PROMISE(again != NULL);
    PROMISE(roll_frame_encode(&frame->head, frame->payload, frame->head.payload, again, used) == (int64_t)used);
    PROMISE(memcmp(again, bytes, used) == 0);
    free(again);
}

/* Makes magic, version and checksum right, where the lengths allow it. */
static void repair(uint8_t *p, size_t left)
{
    struct roll_frame_head h;
    if (left < sizeof(h)) {
        return;
    }
    memcpy(&h, p, sizeof(h));
    h.magic = ROLL_FRAME_MAGIC;
    h.major = ROLL_FRAME_MAJOR;
    h.crc = 0;
    memcpy(p, &h, sizeof(h));
    if (h.hdr_len >= sizeof(h) && h.payload <= left && h.hdr_len + h.payload <= left) {
        h.crc = roll_crc32c(0, p, h.hdr_len + h.payload);
        memcpy(p, &h, sizeof(h));
    }
}

static void walk(uint8_t *data, size_t bytes, bool repaired)
{
    size_t at = 0;
    int err = ROLL_OK;
    while (err == ROLL_OK && at < bytes) {
        struct roll_frame frame;
        size_t used = 0;
        if (repaired) {
            repair(data + at, bytes - at);
        }
        err = roll_frame_decode(data + at, bytes - at, &frame, &used);
        if (err == ROLL_OK) {
            PROMISE(used >= ROLL_FRAME_HEAD_BYTES && used <= bytes - at);
            PROMISE(roll_frame_decode(data + at, used, &frame, NULL) == ROLL_OK);
            open_payload(&frame);
            encode_again(&frame, data + at, used);
            at += used;
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes + 1);
    PROMISE(copy != NULL);
    memcpy(copy, data, bytes);
    struct roll_frame frame;
    roll_frame_decode(copy, bytes, &frame, NULL);
    size_t begin = roll_trace_check(copy, bytes) == ROLL_OK ? ROLL_TRACE_HEAD_BYTES : 0;
    walk(copy + begin, bytes - begin, false);
    walk(copy + begin, bytes - begin, true);
    free(copy);
    return 0;
}
