/*
 * seeds.c: the seeds of each fuzz target: the golden files, whole and in the pieces that the decoders take.
 */
#include "tests/trace/fuzz/seeds.h"
#include "tests/trace/golden/golden.h"
#include "trace/compare.h"
#include "trace/frame.h"

#include <string.h>

static size_t seed_ring(unsigned i, uint8_t *out)
{
    size_t n = golden_ring(out);
    out[n - 1] = (uint8_t)i; /* even: the target repairs the geometry */
    return i < 2 ? n : 0;
}

static size_t seed_def(unsigned i, uint8_t *out)
{
    static uint8_t ring[GOLDEN_RING_BYTES];
    static const size_t cuts[][2] = {{0, 288}, {0, 72}, {72, 160}, {160, 200}, {200, 224}, {224, 256}, {256, 288}};
    if (i >= sizeof(cuts) / sizeof(cuts[0])) {
        return 0;
    }
    golden_ring(ring);
    memcpy(out, ring + 4096 + cuts[i][0], cuts[i][1] - cuts[i][0]);
    return cuts[i][1] - cuts[i][0];
}

/* The whole trace, then each of its frames. */
static size_t seed_frame(unsigned i, uint8_t *out)
{
    static uint8_t trace[GOLDEN_TRACE_MOST];
    size_t n = golden_trace(trace);
    if (i == 0) {
        memcpy(out, trace, n);
        return n;
    }
    struct roll_frame frame;
    size_t used = 0;
    for (size_t at = ROLL_TRACE_HEAD_BYTES; at < n; at += used) {
        if (roll_frame_decode(trace + at, n - at, &frame, &used) < 0) {
            return 0;
        }
        if (--i == 0) {
            memcpy(out, trace + at, used);
            return used;
        }
    }
    return 0;
}

static size_t seed_control(unsigned i, uint8_t *out)
{
    static const uint8_t changes[] = {0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 2, 0, 0, 7, 0, 0,
                                      2, 2, 1, 9, 0, 0, 0, 0, 1, 0, 2, 0, 0, 7, 0, 0};
    if (i == 0) {
        return golden_control(out);
    }
    memcpy(out, changes, sizeof(changes));
    return i == 1 ? sizeof(changes) : 0;
}

/* Lines of the place that the target asks for: published by somebody, claimed only, and noise in the place of both.
 * Last what libFuzzer once found: a group of 768 calls, never published, whose checksum fits, and the rest of a second
 * line. */
static size_t seed_compare(unsigned i, uint8_t *out)
{
    static const uint8_t found[] = {0x48, 0xe1, 0x22, 0xd0, 0x85, 0xe9, 0xae, 0x32, 0x5d, 0xea, 0x54, 0xac, 0x01, 0x00,
                                    0x00, 0x00, 0xed, 0x5e, 0xed, 0x5e, 0xed, 0x5e, 0xed, 0x5e, 0x0a, 0x00, 0x00, 0x00,
                                    0x00, 0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00,
                                    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                                    0x00, 0x00, 0x00, 0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0xfb, 0x00, 0x00, 0x00, 0x00,
                                    0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0xa5};
    struct roll_compare_cell line[2];
    memset(line, 0, sizeof(line));
    line[0].call =
        (struct roll_compare_call){.key = 0x5eed5eed5eed5eedu, .count = 11, .seq = 3, .rank = 2, .members = 1};
    atomic_store(&line[0].word, roll_compare_word(0x5eed5eed5eed5eedu, 3, 11));
    line[1] = line[0];
    if (i == 2) {
        memset(line, 0xa5, sizeof(line));
    }
    if (i == 3) {
        memcpy(out, found, sizeof(found));
        return sizeof(found);
    }
    memcpy(out, line, sizeof(line));
    return i == 0 ? sizeof(line[0]) : i < 3 ? sizeof(line) : 0;
}

static size_t seed_rankset(unsigned i, uint8_t *out)
{
    static const char *const texts[] = {"0-3,7", "1", "0-16777215", "5,4,3-9,11-12", "1-", "16777216"};
    if (i >= sizeof(texts) / sizeof(texts[0])) {
        return 0;
    }
    memcpy(out, texts[i], strlen(texts[i]));
    return strlen(texts[i]);
}

size_t seed_make(const char *target, unsigned i, uint8_t *out)
{
    static const struct {
        const char *name;
        size_t (*make)(unsigned i, uint8_t *out);
    } targets[] = {{"ring", seed_ring},       {"def", seed_def},         {"frame", seed_frame},
                   {"control", seed_control}, {"compare", seed_compare}, {"rankset", seed_rankset}};
    for (size_t t = 0; t < sizeof(targets) / sizeof(targets[0]); t++) {
        if (strcmp(targets[t].name, target) == 0) {
            return targets[t].make(i, out);
        }
    }
    return 0;
}
