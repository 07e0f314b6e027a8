/*
 * test_golden.c: the golden files of every version, byte by byte and through the decoders, and that the current ones
 * still come out the same.
 *
 * The numbers below are written down here, not computed by the code under test: a reader of another language would see
 * these bytes.
 */
#include "tests/trace/cmocka_all.h"

#include "tests/trace/golden/golden.h"
#include "trace/control.h"
#include "trace/def.h"
#include "trace/frame.h"
#include "trace/op.h"
#include "trace/ring.h"

#include <stdalign.h>
#include <stdio.h>
#include <string.h>

static alignas(64) uint8_t file[65536];

static size_t load_of(unsigned version, const char *name)
{
    char path[256];
    snprintf(path, sizeof(path), "tests/trace/golden/v%u/%s", version, name);
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    memset(file, 0, sizeof(file));
    size_t n = fread(file, 1, sizeof(file), in);
    fclose(in);
    return n;
}

static size_t load(const char *name)
{
    return load_of(1, name);
}

/* A little-endian number of `bytes` bytes at an offset of the file. */
static uint64_t at(size_t offset, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = bytes; i > 0; i--) {
        value = value << 8 | file[offset + i - 1];
    }
    return value;
}

static void the_current_version_still_makes_the_same_bytes(void **state)
{
    (void)state;
    static uint8_t made[65536];
    size_t n = golden_ring(made);
    assert_int_equal(load_of(2, "ring.bin"), n);
    assert_memory_equal(file, made, n);
    memset(made, 0, sizeof(made));
    n = golden_control(made);
    assert_int_equal(load_of(2, "control.bin"), n);
    assert_memory_equal(file, made, n);
    memset(made, 0, sizeof(made));
    n = golden_control_told(made);
    assert_int_equal(load_of(2, "control_told.bin"), n);
    assert_memory_equal(file, made, n);
    assert_int_equal(roll_control_check(file, n), 0);
    assert_int_equal(at(24, 4), 1);
    assert_int_equal(at(48, 4), 1);
    memset(made, 0, sizeof(made));
    n = golden_trace(made);
    assert_int_equal(load_of(2, "trace.bin"), n);
    assert_memory_equal(file, made, n);
}

static void ring_header_has_its_bytes_where_the_document_says(void **state)
{
    (void)state;
    assert_int_equal(load("ring.bin"), 12288);
    assert_memory_equal(file, "ROLLRING", 8);
    static const struct {
        size_t offset, bytes;
        uint64_t value;
    } fields[] = {
        {8, 2, 1},
        {10, 2, 1},
        {12, 4, 4096},
        {16, 4, 64},
        {20, 4, 64},
        {24, 8, 4096},
        {32, 8, 4096},
        {40, 8, 8192},
        {48, 8, 12288},
        {56, 4, 4711},
        {60, 4, 3},
        {64, 4, 8},
        {68, 4, 1},
        {72, 4, 2},
        {76, 4, 0},
        {80, 8, 123456},
        {88, 8, 0x1122334455667788},
        {97, 1, 17},
        {111, 1, 255},
        {512, 8, 70},
        {576, 8, 288},
        {640, 4, 2},
        {644, 4, 256},
        {648, 8, 9000000000},
        {704, 8, 1000000000},
        {712, 8, 1700000001000000000},
        {776, 8, 5},
        {824, 8, 6},
    };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        assert_int_equal(at(fields[i].offset, fields[i].bytes), fields[i].value);
    }
    assert_string_equal((const char *)file + 112, "golden.1");
    assert_string_equal((const char *)file + 176, "node-7");
    assert_string_equal((const char *)file + 240, "moe_train");
    assert_int_equal(at(372, 4), roll_crc32c(0, file, 372));
}

static void records_have_their_bytes_where_the_document_says(void **state)
{
    (void)state;
    load("ring.bin");
    /* Ticket 69 lies in slot 5: a broadcast in a group that never returned; ticket 68 in slot 4 returned with 1. */
    size_t r = 8192 + 5 * 64;
    assert_int_equal(at(r, 8), 70 * 256 + 1);
    assert_int_equal(at(r + 8, 8), 1000069000);
    assert_int_equal(at(r + 16, 8), 1093);
    assert_int_equal(at(r + 24, 4), 69);
    assert_int_equal(at(r + 28, 4), 1);
    assert_int_equal(at(r + 32, 4), 2);
    assert_int_equal(at(r + 40, 4), 6);
    assert_int_equal(at(r + 44, 2), 1);
    assert_int_equal(at(r + 46, 2), 2);
    assert_int_equal(at(r + 48, 2), 1);
    assert_int_equal(at(r + 50, 2), 1);
    assert_int_equal(at(r + 52, 2), 3);
    assert_int_equal(at(r + 54, 2), 4);
    assert_int_equal(at(r + 56, 1), 2);
    assert_int_equal(at(r + 57, 1), 9);
    assert_int_equal(at(r + 58, 1), 255);
    assert_int_equal(at(r + 59, 1), 2);
    assert_int_equal(at(r + 60, 1), 2);
    assert_int_equal(at(r + 62, 2), 7);
    r -= 64;
    assert_int_equal(at(r, 8), 69 * 256 + 2);
    assert_int_equal(at(r + 32, 4), 0xffffffff);
    assert_int_equal(at(r + 36, 4), 568);
    assert_int_equal(at(r + 56, 1), 1);
    assert_int_equal(at(r + 58, 1), 0);
    assert_int_equal(at(r + 61, 1), 1);
}

static void definitions_have_their_bytes_where_the_document_says(void **state)
{
    (void)state;
    load("ring.bin");
    size_t d = 4096;
    assert_int_equal(at(d, 4), 0x52440001);
    assert_int_equal(at(d + 4, 4), 72);
    assert_int_equal(at(d + 8, 4), 1);
    assert_int_equal(at(d + 16, 8), 0xc0ffee);
    assert_int_equal(at(d + 24, 8), 0xbeef);
    assert_int_equal(at(d + 32, 4), 3);
    assert_int_equal(at(d + 36, 4), 8);
    assert_int_equal(at(d + 40, 4), 1);
    assert_int_equal(at(d + 44, 4), 2);
    assert_int_equal(at(d + 48, 4), 2);
    assert_int_equal(at(d + 56, 4), 1);
    assert_int_equal(at(d + 60, 4), 2);
    assert_memory_equal(file + d + 64, "ep", 2);
    d += 72;
    assert_int_equal(at(d, 4), 0x52440003);
    assert_int_equal(at(d + 16, 8), 0x400000);
    assert_int_equal(at(d + 40, 4), 20);
    assert_int_equal(at(d + 44, 1), 0xa0);
    assert_int_equal(at(d + 64, 4), 14);
    assert_memory_equal(file + d + 72, "/opt/moe_train", 14);
    d += 88;
    assert_int_equal(at(d, 4), 0x52440002);
    assert_int_equal(at(d + 16, 4), 2);
    assert_int_equal(at(d + 32, 8), 0x401105);
}

static void the_decoders_read_the_golden_ring(void **state)
{
    (void)state;
    size_t n = load("ring.bin");
    struct roll_ring ring;
    assert_int_equal(roll_ring_view(file, n, &ring), 0);
    struct roll_record out[100];
    uint64_t next = 0;
    uint64_t lost = 0;
    assert_int_equal(roll_ring_read(&ring, 0, out, 100, &next, &lost), 64);
    assert_int_equal(lost, 6);
    assert_int_equal(next, 70);
    assert_int_equal(out[0].count, 1030);
    size_t offset = 0;
    struct roll_def def;
    static const enum roll_def_type types[] = {ROLL_DEF_COMM,   ROLL_DEF_MODULE, ROLL_DEF_CALLSITE,
                                               ROLL_DEF_STREAM, ROLL_DEF_THREAD, ROLL_DEF_LAYER};
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(roll_def_decode(ring.defs, 288, &offset, &def), 0);
        assert_int_equal(def.type, types[i]);
    }
    assert_int_equal(offset, 288);
    assert_int_equal(def.id, 3);
    assert_memory_equal(def.layer.name, "moe.3", 5);
}

static void the_golden_control_page_says_what_it_said(void **state)
{
    (void)state;
    size_t n = load("control.bin");
    assert_int_equal(roll_control_check(file, n), 0);
    assert_memory_equal(file, "ROLLCTRL", 8);
    assert_int_equal(at(8, 2), 1);
    assert_int_equal(at(10, 2), 1);
    assert_int_equal(at(12, 4), 4096);
    assert_int_equal(at(16, 8), 6);
    assert_int_equal(at(24, 4), 2);
    assert_int_equal(at(28, 4), 2);
    assert_int_equal(at(32, 4), 1);
    assert_int_equal(at(36, 4), 99);
    assert_int_equal(at(40, 8), 123456789);
    assert_int_equal(at(128 + 5 * 8, 4), 1);
    assert_int_equal(at(128 + 6 * 8 + 4, 4), 2);
    assert_int_equal(at(2176, 8), 0xc0ffee);
    assert_int_equal(at(2176 + 8, 4), 1);
    assert_int_equal(at(2192, 8), 0xbeef);
    assert_int_equal(at(2192 + 12, 4), 2);
    struct roll_control *c = (struct roll_control *)(void *)file;
    assert_int_equal(roll_control_mask(c, 0xc0ffee, 5, 0), 3);
    assert_int_equal(roll_control_mask(c, 0xbeef, 1, 0), 0);
    assert_int_equal(roll_control_mask(c, 0, 6, 0), 0);
}

static void the_golden_trace_walks_through_every_type(void **state)
{
    (void)state;
    static const unsigned types[] = {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 8, 15, 16};
    size_t n = load("trace.bin");
    assert_int_equal(roll_trace_check(file, n), 0);
    size_t offset = 16;
    size_t records_at = 0;
    size_t status_at = 0;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct roll_frame frame;
        size_t used;
        assert_int_equal(roll_frame_decode(file + offset, n - offset, &frame, &used), 0);
        assert_int_equal(frame.head.type, types[i]);
        records_at = types[i] == ROLL_FRAME_RECORDS ? offset : records_at;
        status_at = types[i] == ROLL_FRAME_STATUS ? offset : status_at;
        offset += used;
    }
    assert_int_equal(offset, n);
    size_t f = records_at;
    assert_memory_equal(file + f, "RLFR", 4);
    assert_int_equal(at(f + 4, 1), 1);
    assert_int_equal(at(f + 5, 1), 0);
    assert_int_equal(at(f + 6, 2), 5);
    assert_int_equal(at(f + 12, 2), 56);
    assert_int_equal(at(f + 14, 2), 64);
    assert_int_equal(at(f + 16, 4), 3);
    assert_int_equal(at(f + 20, 4), 192);
    assert_int_equal(at(f + 24, 8), 2);
    assert_int_equal(at(f + 32, 8), 0x1122334455667788);
    assert_int_equal(at(f + 40, 8), 6);
    f = status_at + 56;
    assert_int_equal(at(f, 8), 70);
    assert_int_equal(at(f + 24, 8), 1700000002000000000);
    assert_int_equal(at(f + 40, 4), 4);
    assert_int_equal(at(f + 44, 4), 9);
    assert_int_equal(at(f + 64, 8), 3);
}

static void version_2_has_its_new_bytes_where_the_document_says(void **state)
{
    (void)state;
    size_t n = load_of(2, "ring.bin");
    struct roll_ring ring;
    static struct roll_record out[100];
    struct roll_def def;
    uint64_t next = 0, lost = 0;
    size_t offset = 288;
    assert_int_equal(at(8, 2), 2);
    assert_int_equal(at(10, 2), 2);
    assert_int_equal(at(832, 8), 7);
    assert_int_equal(at(896, 4), 2);
    assert_int_equal(at(1024 + 2 * 8, 8), 68);
    assert_int_equal(at(3072 + 8, 8), 9);
    assert_int_equal(at(4096 + 288, 4), 0x52440007);
    assert_int_equal(at(4096 + 288 + 16, 8), 61);
    assert_int_equal(at(4096 + 288 + 24, 8), 63);
    assert_int_equal(at(4096 + 288 + 32, 4), 3);
    assert_int_equal(at(4096 + 288 + 36, 4), 1);
    assert_int_equal(at(4096 + 288 + 40, 8), 0xfeedface);
    assert_int_equal(at(4096 + 288 + 48, 4), 2);
    assert_int_equal(at(4096 + 288 + 52, 2), 1);
    assert_int_equal(at(4096 + 288 + 54, 2), 1);
    assert_int_equal(roll_ring_view(file, n, &ring), 0);
    assert_int_equal(roll_def_decode(ring.defs, 344, &offset, &def), 0);
    assert_int_equal(def.type, ROLL_DEF_GRAPH);
    assert_int_equal(def.graph.part[0].hash, 0xfeedface);
    assert_int_equal(roll_ring_read(&ring, 0, out, 100, &next, &lost), 64);
    assert_int_equal(out[61].op, 9);
    assert_int_equal(out[61].count, 0xfeedface);
    assert_int_equal(out[61].aux, 1);
}

static void version_2_has_the_frames_that_it_brought(void **state)
{
    (void)state;
    size_t n = load_of(2, "trace.bin");
    size_t offset = 16, used = 0;
    size_t control = 0, settings = 0;
    unsigned seen = 0;
    assert_int_equal(roll_trace_check(file, n), 0);
    while (offset < n) {
        struct roll_frame frame;
        assert_int_equal(roll_frame_decode(file + offset, n - offset, &frame, &used), 0);
        assert_int_equal(frame.head.minor, 1);
        seen |= 1u << frame.head.type;
        control = frame.head.type == ROLL_FRAME_CONTROL ? offset + 56 : control;
        settings = frame.head.type == ROLL_FRAME_SETTINGS ? offset + 56 : settings;
        offset += used;
    }
    assert_int_equal(settings + 24, n);
    assert_int_equal(at(settings, 8), 250000000);
    assert_int_equal(at(settings + 8, 8), 3000000000);
    assert_int_equal(at(settings + 16, 4), 2);
    /* The file holds two CONTROL frames: the one without a restart, which older roots send, and then the one with it.
     */
    assert_int_equal(control + 96 + 56 + 24, n);
    assert_string_equal((const char *)file + control, "golden.1");
    assert_int_equal(at(control + 64, 4), 2);
    assert_int_equal(at(control + 80, 8), 0xc0ffee);
    assert_int_equal(at(control + 88, 4), 2);
    assert_int_equal(seen >> 17 & 0x1f, 0x1b); /* ASK, ANSWER, NOTE, SIGHT; packs are made where they are written */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_current_version_still_makes_the_same_bytes),
        cmocka_unit_test(ring_header_has_its_bytes_where_the_document_says),
        cmocka_unit_test(records_have_their_bytes_where_the_document_says),
        cmocka_unit_test(definitions_have_their_bytes_where_the_document_says),
        cmocka_unit_test(the_decoders_read_the_golden_ring),
        cmocka_unit_test(the_golden_control_page_says_what_it_said),
        cmocka_unit_test(the_golden_trace_walks_through_every_type),
        cmocka_unit_test(version_2_has_its_new_bytes_where_the_document_says),
        cmocka_unit_test(version_2_has_the_frames_that_it_brought),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
