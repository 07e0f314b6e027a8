/*
 * fuzz_feed.c: arbitrary frame streams into the feeder, and through it into the engine.
 *
 * The first byte chooses how the rest is read: as a trace file body as it is, or as a list of short commands from which
 * well-formed frames with true checksums are made, so that the fuzzer gets past the decoder.
 */
#include "daemon/feed/feed.h"
#include "daemon/store/trace_file.h"
#include "tests/daemon/verdict_json.h"
#include "trace/op.h"

#include <stdlib.h>
#include <string.h>

#define ROOM (UINT64_C(24) << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t buffer[8192];

static void feed(roll_feed_t *f, struct roll_frame_head head, const void *payload, size_t bytes)
{
    struct roll_frame frame;
    int64_t n = roll_frame_encode(&head, payload, bytes, buffer, sizeof(buffer));
    if (n > 0 && roll_frame_decode(buffer, (size_t)n, &frame, NULL) == 0) {
        roll_feed_frame(f, &frame);
    }
}

static void announce(roll_feed_t *f, unsigned which)
{
    struct roll_ring_header h = {.version = ROLL_RING_VERSION,
                                 .oldest = ROLL_RING_OLDEST,
                                 .header_bytes = ROLL_RING_HEADER_BYTES,
                                 .record_bytes = ROLL_RECORD_BYTES,
                                 .capacity = 64,
                                 .world_rank = (int32_t)which,
                                 .world_size = 4,
                                 .local_rank = -1,
                                 .epoch = which + 1,
                                 .job = "fuzz"};
    memcpy(h.magic, ROLL_RING_MAGIC, sizeof(h.magic));
    h.static_crc = roll_crc32c(0, &h, offsetof(struct roll_ring_header, static_crc));
    feed(f, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = h.epoch}, &h, sizeof(h));
}

/* One command: four bytes of choice, then the payload that they ask for. Returns the bytes taken. */
static size_t command(roll_feed_t *f, const uint8_t *p, size_t left, uint64_t *ticket)
{
    unsigned which = p[1] % 4u;
    uint64_t stream = which + 1;
    size_t body = left - 4;
    if (p[0] % 6 == 0 && p[0] < 250) {
        announce(f, which);
        return 4;
    }
    if (p[0] % 6 == 1 && p[0] < 250) {
        size_t n = body < (size_t)p[2] * 8 ? body : (size_t)p[2] * 8;
        feed(f, (struct roll_frame_head){.type = ROLL_FRAME_DEFS, .stream = stream, .first = p[3]}, p + 4, n);
        return 4 + n;
    }
    if (p[0] % 6 == 2 && p[0] < 250) {
        struct roll_frame_status status = {0};
        size_t n = body < sizeof(status) ? body : sizeof(status);
        memcpy(&status, p + 4, n);
        status.proc_state = p[2] % 6;
        if (p[3] % 8 == 6) {
            struct roll_frame_settings settings = {(uint64_t)p[2] << p[3] % 64, (uint64_t)p[2] << p[3] / 4, p[2] % 4,
                                                   0};
            feed(f, (struct roll_frame_head){.type = ROLL_FRAME_SETTINGS}, &settings, sizeof(settings));
            return 4;
        }
        if (p[3] % 8 == 7) {
            struct roll_frame_sight sight = {.heard = p[2] % 2, .starved = (uint32_t)p[2] << p[3] % 32};
            feed(f, (struct roll_frame_head){.type = ROLL_FRAME_SIGHT, .stream = stream}, &sight, sizeof(sight));
            return 4;
        }
        if (p[3] % 8 == 5) { /* the ring comes in at ticket p[2] */
            size_t places = (body < 64 ? body : 64) / sizeof(struct roll_frame_place) * sizeof(struct roll_frame_place);
            *ticket = *ticket > p[2] ? *ticket : p[2];
            feed(f, (struct roll_frame_head){.type = ROLL_FRAME_PLACE, .stream = stream, .first = p[2]}, p + 4, places);
            return 4 + places;
        }
        feed(f, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = stream}, &status, sizeof(status));
        return 4 + n;
    }
    if (p[0] % 6 == 3 && p[0] < 250) {
        roll_feed_tick(f, (uint64_t)p[2] << 24 | (uint64_t)p[3] << 32);
        return 4;
    }
    if (p[0] >= 250) { /* a note: JSON as it stands */
        feed(f, (struct roll_frame_head){.type = ROLL_FRAME_NOTE}, p + 4, body < 4096 ? body : 4096);
        return left;
    }
    struct roll_record recs[8];
    size_t n = 0, at = 4;
    *ticket += p[2] % 4;
    if (p[3] >= 240 && *ticket < UINT64_C(1) << 55) { /* a gap, up to 2^54 */
        *ticket += UINT64_C(1) << p[2] % 55;
    }
    for (; n < sizeof(recs) / sizeof(*recs) && at + sizeof(*recs) <= left; n++, at += sizeof(*recs)) {
        memcpy(&recs[n], p + at, sizeof(*recs));
        recs[n].seal = roll_seal((*ticket)++, (enum roll_state)(1 + recs[n].seal % 3));
    }
    if (n > 0) {
        feed(f,
             (struct roll_frame_head){.type = p[0] % 6 == 4 ? ROLL_FRAME_RECORDS : ROLL_FRAME_UPDATES,
                                      .stream = stream,
                                      .first = roll_seal_ticket(recs[0].seal),
                                      .rec_size = ROLL_RECORD_BYTES,
                                      .count = (uint32_t)n},
             recs, n * sizeof(*recs));
    }
    return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) {
        return 0;
    }
    /* Windows as they are in a root, or small ones, which overflow. Room is small: one input is a few sources. */
    struct roll_engine_config config = {.window = data[0] & 2 ? 65536 : 64, .memory = ROOM};
    roll_feed_t *f = roll_feed_new(&config, NULL, 0);
    if (data[0] & 1) {
        struct roll_frame frame;
        size_t used, at = 1;
        while (at < size && roll_frame_decode(data + at, size - at, &frame, &used) == 0) {
            roll_feed_frame(f, &frame);
            at += used;
        }
    } else {
        uint64_t ticket = 0;
        announce(f, 0);
        for (size_t at = 1; at + 4 <= size;) {
            at += command(f, data + at, size - at, &ticket);
        }
    }
    roll_feed_finish(f);
    json_t *verdict;
    while ((verdict = json_of_verdict(roll_feed_next(f))) != NULL) {
        json_decref(verdict);
    }
    roll_feed_destroy(&f);
    return 0;
}
