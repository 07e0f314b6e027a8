/*
 * test_pack.c: packed frames come back bit for bit, whatever they hold; damaged and hostile bytes are refused, in
 * bounded time and memory.
 */
#include "daemon/store/pack.h"
#include "daemon/store/pack_coder.h"
#include "daemon/store/trace_file.h"
#include "trace/err.h"
#include "trace/op.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include <cmocka.h>

#define ROOM (16u << 20)

/* Frames end to end, as a sender makes them. */
struct stream {
    uint8_t *bytes;
    size_t used;
    uint64_t random;
};

static uint64_t draw(struct stream *s)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return s->random;
}

static int set_up(void **state)
{
    struct stream *s = calloc(1, sizeof(*s));
    s->bytes = malloc(ROOM);
    s->random = 88172645463325252u;
    *state = s;
    return 0;
}

static int tear_down(void **state)
{
    struct stream *s = *state;
    free(s->bytes);
    free(s);
    return 0;
}

static void add(struct stream *s, struct roll_frame_head head, const void *payload, size_t bytes)
{
    int64_t n = roll_frame_encode(&head, payload, bytes, s->bytes + s->used, ROOM - s->used);
    assert_true(n > 0);
    s->used += (size_t)n;
}

static void add_records(struct stream *s, enum roll_frame_type type, uint64_t ring, uint64_t seq,
                        const struct roll_record *recs, uint32_t n)
{
    struct roll_frame_head head = {.type = (uint16_t)type,
                                   .seq = seq,
                                   .stream = ring,
                                   .first = roll_seal_ticket(recs[0].seal),
                                   .rec_size = ROLL_RECORD_BYTES,
                                   .count = n};
    add(s, head, recs, n * sizeof(*recs));
}

/* Packs the stream, `every` frames to a PACK, unpacks it and compares. Returns the bytes of all PACKs. */
static size_t round_trip(const struct stream *s, unsigned every)
{
    roll_packer_t *packer = roll_packer_new();
    roll_unpacker_t *unpacker = roll_unpacker_new();
    size_t at = 0, checked = 0, sum = 0;
    unsigned frames = 0;
    while (at < s->used) {
        struct roll_frame frame, pack;
        size_t used, waiting;
        bool full;
        assert_int_equal(roll_frame_decode(s->bytes + at, s->used - at, &frame, &used), 0);
        assert_int_equal(roll_packer_add(packer, &frame, s->bytes + at, used), 0);
        at += used;
        roll_packer_waiting(packer, &waiting, &full);
        if (++frames % every == 0 || full || at == s->used) {
            const uint8_t *out;
            size_t bytes;
            assert_int_equal(roll_packer_finish(packer, false, &out, &bytes), 0);
            sum += bytes;
            assert_int_equal(roll_frame_decode(out, bytes, &pack, NULL), 0);
            assert_int_equal(pack.head.type, ROLL_FRAME_PACK);
            assert_int_equal(roll_unpacker_take(unpacker, &pack, &out, &bytes), 0);
            assert_true(bytes <= s->used - checked);
            assert_memory_equal(out, s->bytes + checked, bytes);
            checked += bytes;
            assert_int_equal(checked, at);
        }
    }
    assert_int_equal(checked, s->used);
    roll_packer_destroy(&packer);
    roll_unpacker_destroy(&unpacker);
    return sum;
}

/* One call of a healthy step: position in the pattern decides everything but times and, for one operation, the count.
 */
static struct roll_record call(struct stream *s, uint64_t ticket, uint64_t *clock)
{
    static const uint8_t ops[] = {ROLL_OP_ALLREDUCE, ROLL_OP_ALLGATHER, ROLL_OP_BROADCAST, ROLL_OP_ALLREDUCE};
    unsigned at = (unsigned)(ticket % 40);
    struct roll_record r = {.count = at == 7 ? draw(s) % 4096 : 1024 + at,
                            .seq = (uint32_t)(ticket / 2),
                            .group = (uint32_t)(at % 10 == 3 ? ticket / 10 + 1 : 0),
                            .peer = at % 4 == 2 ? 0 : ROLL_PEER_NONE,
                            .step = (uint32_t)(ticket / 40),
                            .comm = (uint16_t)(1 + at % 2),
                            .callsite = (uint16_t)(at + 1),
                            .thread = 1,
                            .layer = (uint16_t)(at / 10),
                            .op = ops[at % 4],
                            .dtype = ROLL_DTYPE_FLOAT32,
                            .redop = ROLL_RED_SUM,
                            .phase = ROLL_PHASE_FORWARD};
    r.call_ns = (uint32_t)(20000 + draw(s) % 4000);
    *clock += 50000 + draw(s) % 8000;
    r.enter_ns = *clock;
    *clock += r.call_ns;
    r.seal = roll_seal(ticket, ROLL_STATE_RETURNED);
    return r;
}

/* A job of `ranks` as its agent tells it: records, now and then one that has not returned and its update, states,
 * ticks. */
static uint64_t make_job(struct stream *s, unsigned ranks, unsigned rounds, unsigned batch)
{
    struct roll_record recs[64];
    uint64_t ticket[8] = {0}, clock[8] = {0}, seq = 0, calls = 0, now = 1700000000000000000u;
    for (unsigned round = 0; round < rounds; round++) {
        now += 2000000;
        struct roll_frame_head tick = {.type = ROLL_FRAME_TICK, .seq = now};
        uint64_t real = now + 300000;
        add(s, tick, &real, sizeof(real));
        for (unsigned r = 0; r < ranks; r++) {
            for (unsigned i = 0; i < batch; i++) {
                recs[i] = call(s, ticket[r]++, &clock[r]);
            }
            struct roll_record last = recs[batch - 1];
            bool open = draw(s) % 3 == 0;
            if (open) {
                recs[batch - 1].seal = roll_seal(ticket[r] - 1, ROLL_STATE_ENTERED);
                recs[batch - 1].call_ns = 0;
            }
            add_records(s, ROLL_FRAME_RECORDS, 100 + r, ++seq, recs, batch);
            if (open) {
                add_records(s, ROLL_FRAME_UPDATES, 100 + r, ++seq, &last, 1);
            }
            calls += batch;
            if (round % 10 == 0) {
                struct roll_frame_status status = {.head = ticket[r],
                                                   .clock_mono_ns = now - 5000 + draw(s) % 900,
                                                   .clock_real_ns = now + draw(s) % 900,
                                                   .proc_state = ROLL_PROC_RUNNING,
                                                   .exit_status = INT32_MIN};
                struct roll_frame_head head = {.type = ROLL_FRAME_STATUS, .seq = ++seq, .stream = 100 + r};
                add(s, head, &status, sizeof(status));
            }
        }
    }
    return calls;
}

static void test_a_job_comes_back_bit_for_bit_however_it_is_cut(void **state)
{
    struct stream *s = *state;
    make_job(s, 4, 60, 5);
    static const unsigned every[] = {1, 2, 7, 100000};
    for (size_t i = 0; i < sizeof(every) / sizeof(*every); i++) {
        round_trip(s, every[i]);
    }
}

static void test_a_job_that_repeats_itself_is_small(void **state)
{
    struct stream *s = *state;
    uint64_t calls = make_job(s, 8, 300, 32);
    size_t bytes = round_trip(s, 256);
    print_message("%zu bytes for %llu calls: %.2f a call (plain: %.1f)\n", bytes, (unsigned long long)calls,
                  (double)bytes / (double)calls, (double)s->used / (double)calls);
    assert_true(bytes < 8 * calls); /* times with 12 and 13 bits of noise, counts with 12 in one call of 40 */
}

/* Records in which nothing repeats: every field at its limits, tickets with gaps, updates of calls that were never
 * seen.
 */
static void test_records_without_any_pattern_come_back(void **state)
{
    struct stream *s = *state;
    uint64_t ticket = 0;
    struct roll_record recs[50];
    for (unsigned round = 0; round < 200; round++) {
        for (unsigned i = 0; i < 50; i++) {
            uint64_t *word = (uint64_t *)&recs[i];
            for (unsigned k = 0; k < 8; k++) {
                word[k] = draw(s) % 5 ? draw(s) : (draw(s) % 2 ? 0 : UINT64_MAX);
            }
            ticket += 1 + (draw(s) % 4 ? 0 : draw(s) % 1000000);
            recs[i].seal = roll_seal(ticket, (enum roll_state)(1 + draw(s) % 3));
            recs[i].op = (uint8_t)(1 + draw(s) % 3);
            recs[i].dtype = draw(s) % 2 ? ROLL_DTYPE_NONE : (uint8_t)(draw(s) % ROLL_DTYPE_LIMIT);
            recs[i].redop = draw(s) % 2 ? ROLL_RED_NONE : (uint8_t)(draw(s) % ROLL_RED_LIMIT);
            recs[i].phase = (uint8_t)(draw(s) % 6);
        }
        bool updates = round % 5 == 4;
        add_records(s, updates ? ROLL_FRAME_UPDATES : ROLL_FRAME_RECORDS, draw(s) % 3, draw(s), recs, 50);
        for (unsigned i = 0; i < 50 && round % 3 == 0; i++) { /* some return, changed in every way */
            recs[i].seal = roll_seal(roll_seal_ticket(recs[i].seal), (enum roll_state)(1 + draw(s) % 3));
            recs[i].call_ns = (uint32_t)draw(s);
            recs[i].result = (uint8_t)(draw(s) % 3);
            recs[i].aux = (uint16_t)(recs[i].aux + draw(s) % 2);
        }
        if (round % 3 == 0) {
            add_records(s, ROLL_FRAME_UPDATES, draw(s) % 3, draw(s), recs, 50);
        }
    }
    round_trip(s, 17);
}

static void test_frames_of_every_type_come_back(void **state)
{
    struct stream *s = *state;
    static uint8_t payload[70000];
    for (size_t i = 0; i < sizeof(payload); i++) {
        payload[i] = (uint8_t)draw(s);
    }
    for (uint16_t type = 1; type < 40; type++) {
        if (type == ROLL_FRAME_PACK || type == ROLL_FRAME_RECORDS || type == ROLL_FRAME_UPDATES) {
            continue;
        }
        for (size_t bytes = 8; bytes < sizeof(payload); bytes = bytes * 9 + 1) {
            struct roll_frame_head head = {
                .type = type, .seq = draw(s), .stream = draw(s) % 2, .first = draw(s) % 2, .flags = type % 3};
            add(s, head, payload, bytes < 4300 ? 4300 : bytes);
        }
    }
    round_trip(s, 3);
}

static void test_a_pack_that_follows_no_other_is_refused(void **state)
{
    struct stream *s = *state;
    make_job(s, 1, 4, 5);
    roll_packer_t *packer = roll_packer_new();
    roll_unpacker_t *unpacker = roll_unpacker_new();
    struct roll_frame frame, pack;
    size_t at = 0, used, bytes, number = 0;
    const uint8_t *out;
    while (at < s->used) {
        assert_int_equal(roll_frame_decode(s->bytes + at, s->used - at, &frame, &used), 0);
        assert_int_equal(roll_packer_add(packer, &frame, s->bytes + at, used), 0);
        assert_int_equal(roll_packer_finish(packer, false, &out, &bytes), 0);
        assert_int_equal(roll_frame_decode(out, bytes, &pack, NULL), 0);
        assert_int_equal(pack.head.seq, number);
        if (number != 1) {
            assert_int_equal(roll_unpacker_take(unpacker, &pack, &out, &bytes), number == 0 ? 0 : ROLL_E_INCOMPLETE);
        }
        at += used;
        number++;
    }
    roll_packer_destroy(&packer);
    roll_unpacker_destroy(&unpacker);
}

/* A PACK made by hand: any columns, well compressed and well summed. */
static int take_columns(const uint8_t *columns, size_t bytes, uint32_t promised, uint32_t frames)
{
    size_t bound = ZSTD_compressBound(bytes);
    uint8_t *payload = malloc(8 + bound), *raw = malloc(8 + bound + ROLL_FRAME_HEAD_BYTES);
    struct roll_pack_head head = {.frames = frames, .columns = promised};
    memcpy(payload, &head, sizeof(head));
    size_t n = ZSTD_compress(payload + 8, bound, columns, bytes, 1);
    assert_false(ZSTD_isError(n));
    struct roll_frame_head frame = {.type = ROLL_FRAME_PACK};
    int64_t size = roll_frame_encode(&frame, payload, n + 8, raw, 8 + bound + ROLL_FRAME_HEAD_BYTES);
    struct roll_frame pack;
    assert_int_equal(roll_frame_decode(raw, (size_t)size, &pack, NULL), 0);
    roll_unpacker_t *unpacker = roll_unpacker_new();
    const uint8_t *out;
    size_t out_bytes;
    int err = roll_unpacker_take(unpacker, &pack, &out, &out_bytes);
    roll_unpacker_destroy(&unpacker);
    free(payload);
    free(raw);
    return err;
}

static void test_a_pack_that_promises_too_much_is_refused(void **state)
{
    (void)state;
    size_t lengths = PACK_COLUMNS * sizeof(uint32_t);
    uint8_t *zeros = calloc(1, ROLL_PACK_MAX_COLUMNS + 100);
    assert_int_equal(take_columns(zeros, lengths, (uint32_t)lengths, 0), 0);
    assert_int_equal(take_columns(zeros, lengths, (uint32_t)lengths, 1), ROLL_E_CORRUPT); /* no byte for its kind */
    assert_int_equal(take_columns(zeros, lengths, (uint32_t)lengths + 1, 0),
                     ROLL_E_CORRUPT); /* fewer bytes than said */
    assert_int_equal(take_columns(zeros, lengths + 1, (uint32_t)lengths, 0), ROLL_E_CORRUPT); /* more */
    assert_int_equal(take_columns(zeros, lengths - 1, (uint32_t)lengths - 1, 0), ROLL_E_CORRUPT);
    assert_int_equal(take_columns(zeros, ROLL_PACK_MAX_COLUMNS + 1, ROLL_PACK_MAX_COLUMNS + 1, 0), ROLL_E_LIMIT);
    uint32_t *length = (uint32_t *)zeros;
    length[PACK_KIND] = 4u << 20; /* lengths beyond the bytes */
    assert_int_equal(take_columns(zeros, lengths + 10, (uint32_t)lengths + 10, 1), ROLL_E_CORRUPT);
    /* A million ticks: 3 bytes each here, 64 as frames. */
    uint32_t ticks = 1000000;
    memset(zeros, 0, lengths);
    length[PACK_KIND] = ticks;
    length[PACK_STATE] = 3 * ticks;
    memset(zeros + lengths, 4, ticks);
    assert_int_equal(take_columns(zeros, lengths + 4 * ticks, (uint32_t)lengths + 4 * ticks, ticks), ROLL_E_LIMIT);
    free(zeros);
}

/* Each round makes a new unpacker, megabytes that a sanitizer maps and unmaps, so a sanitizer build makes fewer rounds.
 */
#ifdef __SANITIZE_ADDRESS__
#define DAMAGED 600u
#else
#define DAMAGED 3000u
#endif

static void test_damage_is_refused_or_harmless(void **state)
{
    struct stream *s = *state;
    make_job(s, 3, 20, 8);
    roll_packer_t *packer = roll_packer_new();
    const uint8_t *out;
    size_t bytes, used;
    struct roll_frame frame;
    for (size_t at = 0; at < s->used; at += used) {
        assert_int_equal(roll_frame_decode(s->bytes + at, s->used - at, &frame, &used), 0);
        assert_int_equal(roll_packer_add(packer, &frame, s->bytes + at, used), 0);
    }
    assert_int_equal(roll_packer_finish(packer, false, &out, &bytes), 0);
    uint8_t *copy = malloc(bytes);
    unsigned refused = 0;
    for (unsigned i = 0; i < DAMAGED; i++) {
        memcpy(copy, out, bytes);
        for (unsigned k = 0; k <= draw(s) % 3; k++) {
            copy[ROLL_FRAME_HEAD_BYTES + draw(s) % (bytes - ROLL_FRAME_HEAD_BYTES)] ^= (uint8_t)(1 + draw(s) % 255);
        }
        struct roll_frame pack = {.payload = copy + ROLL_FRAME_HEAD_BYTES};
        memcpy(&pack.head, copy, sizeof(pack.head));
        roll_unpacker_t *unpacker = roll_unpacker_new();
        const uint8_t *again;
        size_t n;
        refused += roll_unpacker_take(unpacker, &pack, &again, &n) != 0;
        roll_unpacker_destroy(&unpacker);
    }
    assert_true(refused > DAMAGED / 3);
    free(copy);
    roll_packer_destroy(&packer);
}

/* The frames of the golden file: written once per version of the format, and read ever after, whatever packs them
 * today. */
#define GOLDEN "tests/trace/golden/v2/pack.rtrc"

static void make_golden_job(struct stream *s)
{
    struct roll_frame_head note = {.type = ROLL_FRAME_NOTE, .seq = 9, .stream = 101};
    make_job(s, 2, 12, 4);
    add(s, note, "{\"note\":1}", 10);
    make_job(s, 3, 6, 2);
}

static int write_golden(const char *path)
{
    struct stream s = {.bytes = malloc(ROOM), .random = 4711};
    uint8_t head[ROLL_TRACE_HEAD_BYTES];
    roll_packer_t *packer = roll_packer_new();
    FILE *f = fopen(path, "wb");
    unsigned frames = 0;
    make_golden_job(&s);
    roll_trace_head(head);
    bool good = f && fwrite(head, sizeof(head), 1, f) == 1;
    for (size_t at = 0, used; good && at < s.used; at += used) {
        struct roll_frame frame;
        const uint8_t *out;
        size_t bytes;
        good = roll_frame_decode(s.bytes + at, s.used - at, &frame, &used) == 0 &&
               roll_packer_add(packer, &frame, s.bytes + at, used) == 0;
        if (good && (++frames % 20 == 0 || at + used == s.used)) {
            good = roll_packer_finish(packer, frames == 20, &out, &bytes) == 0 && fwrite(out, bytes, 1, f) == 1;
        }
    }
    good = f && fclose(f) == 0 && good;
    roll_packer_destroy(&packer);
    free(s.bytes);
    return good ? 0 : 1;
}

static void test_the_golden_file_is_read_as_it_was_written(void **state)
{
    struct stream *s = *state;
    roll_trace_reader_t *r = NULL;
    struct roll_frame frame, mine;
    size_t at = 0, used;
    s->random = 4711;
    make_golden_job(s);
    assert_int_equal(roll_trace_reader_new(GOLDEN, &r), 0);
    for (unsigned n = 0; roll_trace_reader_next(r, &frame) == 0; at += used) {
        assert_int_equal(roll_frame_decode(s->bytes + at, s->used - at, &mine, &used), 0);
        /* The first 20 frames are such as a segment repeats, and the reader says so of records. */
        bool repeated = n++ < 20 && frame.head.type == ROLL_FRAME_RECORDS;
        assert_int_equal(frame.head.flags, repeated ? ROLL_RECORDS_REPEATED : 0);
        frame.head.flags = 0;
        assert_memory_equal(&frame.head, &mine.head, sizeof(mine.head));
        assert_memory_equal(frame.payload, mine.payload, mine.head.payload);
    }
    assert_int_equal(at, s->used);
    roll_trace_reader_destroy(&r);
}

/* The golden file's frames before they were packed, for a reader that knows docs/FRAME.md only. */
static int write_plain(const char *path)
{
    struct stream s = {.bytes = malloc(ROOM), .random = 4711};
    FILE *f = fopen(path, "wb");
    make_golden_job(&s);
    bool good = f && fwrite(s.bytes, s.used, 1, f) == 1;
    good = f && fclose(f) == 0 && good;
    free(s.bytes);
    return good ? 0 : 1;
}

/* With a path: writes the golden file there; with `plain` and a path its frames. */
int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "plain") == 0) {
        return write_plain(argv[2]);
    }
    if (argc > 1) {
        return write_golden(argv[1]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_job_comes_back_bit_for_bit_however_it_is_cut, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_job_that_repeats_itself_is_small, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_records_without_any_pattern_come_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_frames_of_every_type_come_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_pack_that_follows_no_other_is_refused, set_up, tear_down),
        cmocka_unit_test(test_a_pack_that_promises_too_much_is_refused),
        cmocka_unit_test_setup_teardown(test_the_golden_file_is_read_as_it_was_written, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_damage_is_refused_or_harmless, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
