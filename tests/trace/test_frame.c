/*
 * test_frame.c: frames come back from the decoder unchanged, and damaged ones are refused.
 */
#include "tests/trace/cmocka_all.h"

#include "trace/control.h"
#include "trace/err.h"
#include "trace/frame.h"
#include "trace/op.h"
#include "trace/ring.h"

#include <stdlib.h>
#include <string.h>

static struct roll_record record(uint64_t ticket)
{
    return (struct roll_record){.seal = roll_seal(ticket, ROLL_STATE_ENTERED),
                                .enter_ns = ticket * 10,
                                .op = ROLL_OP_ALLREDUCE,
                                .dtype = ROLL_DTYPE_FLOAT32,
                                .redop = ROLL_RED_SUM,
                                .peer = ROLL_PEER_NONE};
}

/* Encodes three records, tickets 5, 6 and 9, into a new buffer. */
static uint8_t *encode_records(size_t *bytes, unsigned type)
{
    struct roll_record recs[3] = {record(5), record(6), record(9)};
    struct roll_frame_head head = {.type = (uint16_t)type, .count = 3, .seq = 1, .stream = 77, .first = 5};
    uint8_t *out = malloc(1000);
    assert_non_null(out);
    int64_t n = roll_frame_encode(&head, recs, sizeof(recs), out, 1000);
    assert_int_equal(n, 56 + 192);
    *bytes = (size_t)n;
    return out;
}

static void checksum_is_the_published_one(void **state)
{
    (void)state;
    assert_int_equal(roll_crc32c(0, "", 0), 0);
    assert_int_equal(roll_crc32c(0, "123456789", 9), 0xe3069283);
    uint8_t bytes[32];
    memset(bytes, 0, sizeof(bytes));
    assert_int_equal(roll_crc32c(0, bytes, 32), 0x8a9136aa); /* RFC 3720, B.4 */
    memset(bytes, 0xff, sizeof(bytes));
    assert_int_equal(roll_crc32c(0, bytes, 32), 0x62a8ab43);
    /* In pieces of any size it is the same. */
    const char *text = "The quick brown fox jumps over the lazy dog";
    uint32_t whole = roll_crc32c(0, text, strlen(text));
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        assert_int_equal(roll_crc32c(roll_crc32c(0, text, cut), text + cut, strlen(text) - cut), whole);
    }
}

static void records_go_there_and_back(void **state)
{
    (void)state;
    size_t bytes;
    uint8_t *data = encode_records(&bytes, ROLL_FRAME_RECORDS);
    struct roll_frame frame;
    assert_int_equal(roll_frame_decode(data, bytes, &frame, NULL), 0);
    assert_int_equal(frame.head.type, ROLL_FRAME_RECORDS);
    assert_int_equal(frame.head.stream, 77);
    assert_int_equal(frame.head.rec_size, 64);
    assert_int_equal(frame.head.count, 3);
    struct roll_record rec;
    roll_frame_record(&frame, 2, &rec);
    assert_int_equal(roll_seal_ticket(rec.seal), 9);
    assert_int_equal(rec.enter_ns, 90);
    free(data);
}

static void json_and_empty_frames_go_there_and_back(void **state)
{
    (void)state;
    static const char json[] = "{\"op\":\"status\"}";
    uint8_t data[200];
    struct roll_frame_head head = {.type = ROLL_FRAME_QUERY, .seq = 3, .count = 99, .rec_size = 99};
    int64_t n = roll_frame_encode(&head, json, sizeof(json) - 1, data, sizeof(data));
    struct roll_frame frame;
    assert_int_equal(roll_frame_decode(data, (size_t)n, &frame, NULL), 0);
    assert_int_equal(frame.head.payload, sizeof(json) - 1);
    assert_int_equal(frame.head.count, 0);
    assert_memory_equal(frame.payload, json, sizeof(json) - 1);
    head.type = ROLL_FRAME_HEARTBEAT;
    n = roll_frame_encode(&head, NULL, 0, data, sizeof(data));
    assert_int_equal(n, 56);
    assert_int_equal(roll_frame_decode(data, 56, &frame, NULL), 0);
}

static void a_frame_that_is_made_is_the_frame_that_would_be_decoded(void **state)
{
    (void)state;
    struct roll_record recs[2] = {record(5), record(6)};
    const struct {
        struct roll_frame_head head;
        const void *payload;
        size_t bytes;
        int64_t result;
    } cases[] = {
        {{.type = ROLL_FRAME_RECORDS, .count = 2, .first = 5, .stream = 7}, recs, sizeof(recs), 56 + 128},
        {{.type = ROLL_FRAME_RECORDS, .count = 2, .first = 6, .stream = 7}, recs, sizeof(recs), ROLL_E_CORRUPT},
        {{.type = ROLL_FRAME_RECORDS, .count = 3, .first = 5, .stream = 7}, recs, sizeof(recs), ROLL_E_SIZE},
        {{.type = ROLL_FRAME_NOTE, .seq = 3, .count = 99, .rec_size = 99}, "{}", 2, 58},
        {{.type = ROLL_FRAME_TICK, .seq = 3}, NULL, 0, 56},
        {{.type = ROLL_FRAME_STATUS}, "short", 5, ROLL_E_CORRUPT},
        {{.type = ROLL_FRAME_NOTE}, recs, 200, ROLL_E_SIZE},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t data[200];
        struct roll_frame made = {.head.seq = 12345}, decoded;
        int64_t n = roll_frame_make(&cases[i].head, cases[i].payload, cases[i].bytes, data, sizeof(data), &made);
        assert_int_equal(n, cases[i].result);
        if (n < 0) {
            assert_int_equal(made.head.seq, 12345);
            continue;
        }
        assert_int_equal(roll_frame_decode(data, (size_t)n, &decoded, NULL), 0);
        assert_memory_equal(&made.head, &decoded.head, sizeof(made.head));
        assert_ptr_equal(made.payload, decoded.payload);
    }
}

static void frames_end_to_end_are_walked_with_used(void **state)
{
    (void)state;
    uint8_t data[1000] = {0};
    size_t end = 0;
    for (unsigned i = 1; i <= 5; i++) {
        struct roll_frame_head head = {.type = ROLL_FRAME_TICK, .seq = i};
        int64_t n = roll_frame_encode(&head, "abcdef", i, data + end, sizeof(data) - end);
        assert_true(n > 0);
        end += (size_t)n;
    }
    struct roll_frame frame;
    size_t used;
    assert_int_equal(roll_frame_decode(data, end, &frame, NULL), ROLL_E_SIZE);
    unsigned count = 0;
    for (size_t at = 0; at < end; at += used) {
        assert_int_equal(roll_frame_decode(data + at, end - at, &frame, &used), 0);
        assert_int_equal(frame.head.seq, ++count);
    }
    assert_int_equal(count, 5);
}

static void a_longer_head_and_larger_records_of_a_newer_writer_are_read(void **state)
{
    (void)state;
    /* A head of 64 bytes and records of 80, as minor version 1 might have. */
    uint8_t data[64 + 160] = {0};
    struct roll_record recs[2] = {record(0), record(1)};
    struct roll_frame_head head = {.magic = ROLL_FRAME_MAGIC,
                                   .major = 1,
                                   .minor = 1,
                                   .type = ROLL_FRAME_RECORDS,
                                   .hdr_len = 64,
                                   .rec_size = 80,
                                   .count = 2,
                                   .payload = 160};
    memcpy(data, &head, sizeof(head));
    memcpy(data + 64, &recs[0], 64);
    memcpy(data + 64 + 80, &recs[1], 64);
    uint32_t crc = roll_crc32c(0, data, sizeof(data));
    memcpy(data + 48, &crc, 4);
    struct roll_frame frame;
    assert_int_equal(roll_frame_decode(data, sizeof(data), &frame, NULL), 0);
    struct roll_record rec;
    roll_frame_record(&frame, 1, &rec);
    assert_int_equal(roll_seal_ticket(rec.seal), 1);
}

/* A frame has the version that brought what is in it: what is as it ever was says so, and stays byte for byte. */
static void a_frame_has_the_minor_version_of_what_is_in_it(void **state)
{
    (void)state;
    static const struct {
        uint32_t type, flags;
        uint8_t minor;
    } row[] = {{ROLL_FRAME_DEFS, 0, 1},
               {ROLL_FRAME_DEFS, ROLL_DEFS_NAMED, 2},
               {ROLL_FRAME_ACK, ROLL_ACK_DIGEST, 1},
               {ROLL_FRAME_EXCERPT, ROLL_EXCERPT_ALL, 1},
               {ROLL_FRAME_QUERY, 0, 1}};
    uint8_t data[128], payload[16] = {0};
    struct roll_frame frame;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct roll_frame_head head = {.type = (uint16_t)row[i].type, .flags = row[i].flags, .minor = 9};
        int64_t n = roll_frame_encode(&head, payload, sizeof(payload), data, sizeof(data));
        assert_true(n > 0);
        assert_int_equal(data[5], row[i].minor);
        assert_int_equal(roll_frame_decode(data, (size_t)n, &frame, NULL), 0);
        assert_int_equal(frame.head.minor, row[i].minor);
        data[5] = ROLL_FRAME_MINOR + 1; /* that of a newer writer, which changes nothing for this reader */
        memset(data + 48, 0, 4);
        uint32_t crc = roll_crc32c(0, data, (size_t)n);
        memcpy(data + 48, &crc, 4);
        assert_int_equal(roll_frame_decode(data, (size_t)n, &frame, NULL), 0);
    }
    assert_int_equal(ROLL_FRAME_MINOR, 2);
}

static void the_encoder_refuses_what_does_not_fit(void **state)
{
    (void)state;
    uint8_t data[100] = {0};
    struct roll_frame_head head = {.type = ROLL_FRAME_QUERY};
    assert_int_equal(roll_frame_encode(&head, data, 45, data, sizeof(data)), ROLL_E_SIZE);
    assert_int_equal(roll_frame_encode(&head, NULL, 0, data, 55), ROLL_E_SIZE);
    assert_int_equal(roll_frame_encode(&head, data, SIZE_MAX, data, SIZE_MAX), ROLL_E_SIZE);
    assert_int_equal(roll_frame_encode(&head, data, ROLL_FRAME_MAX_BYTES, data, SIZE_MAX), ROLL_E_SIZE);
    head = (struct roll_frame_head){.type = ROLL_FRAME_RECORDS, .count = 2};
    assert_int_equal(roll_frame_encode(&head, data, 32, data, sizeof(data)), ROLL_E_SIZE);
}

static void a_frame_cut_at_any_length_is_refused(void **state)
{
    (void)state;
    size_t bytes;
    uint8_t *data = encode_records(&bytes, ROLL_FRAME_RECORDS);
    for (size_t cut = 0; cut < bytes; cut++) {
        uint8_t *copy = malloc(cut + 1); /* exact and misaligned, so that a sanitizer sees a read beyond the end */
        assert_non_null(copy);
        memcpy(copy + 1, data, cut);
        struct roll_frame frame;
        size_t used;
        assert_int_equal(roll_frame_decode(copy + 1, cut, &frame, NULL), ROLL_E_SHORT);
        assert_int_equal(roll_frame_decode(copy + 1, cut, &frame, &used), ROLL_E_SHORT);
        free(copy);
    }
    free(data);
}

static void every_flipped_bit_of_a_frame_is_noticed(void **state)
{
    (void)state;
    size_t bytes;
    uint8_t *data = encode_records(&bytes, ROLL_FRAME_RECORDS);
    for (size_t bit = 0; bit < bytes * 8; bit++) {
        struct roll_frame frame;
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        int err = roll_frame_decode(data, bytes, &frame, NULL);
        assert_true(err == ROLL_E_MAGIC || err == ROLL_E_VERSION || err == ROLL_E_SIZE || err == ROLL_E_SHORT ||
                    err == ROLL_E_CHECKSUM);
        assert_true(bit / 8 >= 4 || err == ROLL_E_MAGIC);
        assert_true(bit / 8 != 4 || err == ROLL_E_VERSION);
        assert_true(bit / 8 < 24 || err == ROLL_E_CHECKSUM);
        data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(data);
}

/* Changes bytes of a frame, repairs the checksum and decodes. */
static int decode_changed(unsigned type, size_t at, uint64_t value, size_t width)
{
    size_t bytes;
    uint8_t *data = encode_records(&bytes, type);
    memcpy(data + at, &value, width);
    memset(data + 48, 0, 4);
    uint32_t crc = roll_crc32c(0, data, bytes);
    memcpy(data + 48, &crc, 4);
    struct roll_frame frame;
    int err = roll_frame_decode(data, bytes, &frame, NULL);
    free(data);
    return err;
}

static void contradictions_behind_a_good_checksum_are_refused(void **state)
{
    (void)state;
    const unsigned records = ROLL_FRAME_RECORDS;
    assert_int_equal(decode_changed(records, 12, 40, 2), ROLL_E_SIZE);         /* hdr_len */
    assert_int_equal(decode_changed(records, 20, 0xffffffff, 4), ROLL_E_SIZE); /* payload */
    assert_int_equal(decode_changed(records, 20, 100, 4), ROLL_E_SIZE);        /* does not fill */
    assert_int_equal(decode_changed(records, 14, 0, 2), ROLL_E_CORRUPT);       /* rec_size */
    assert_int_equal(decode_changed(records, 14, 32, 2), ROLL_E_CORRUPT);
    assert_int_equal(decode_changed(records, 16, 4, 4), ROLL_E_CORRUPT); /* count */
    assert_int_equal(decode_changed(records, 16, 0x40000003, 4), ROLL_E_CORRUPT);
    assert_int_equal(decode_changed(records, 40, 4, 8), ROLL_E_CORRUPT);       /* first */
    assert_int_equal(decode_changed(records, 56 + 56, 250, 1), 0);             /* op of a record: of a newer writer */
    assert_int_equal(decode_changed(records, 56 + 56, 0, 1), ROLL_E_CORRUPT);  /* none */
    assert_int_equal(decode_changed(records, 56 + 57, 77, 1), ROLL_E_CORRUPT); /* its datatype */
    assert_int_equal(decode_changed(records, 56 + 64, roll_seal(5, ROLL_STATE_ENTERED), 8), ROLL_E_CORRUPT); /* order */
    assert_int_equal(decode_changed(ROLL_FRAME_UPDATES, 56 + 64, roll_seal(2, ROLL_STATE_ENTERED), 8), 0);
    assert_int_equal(decode_changed(records, 6, ROLL_FRAME_STATUS, 2), ROLL_E_CORRUPT); /* a count where none belongs */
    assert_int_equal(decode_changed(records, 6, 0, 2), ROLL_E_CORRUPT);
}

static void payloads_shorter_than_their_layout_are_refused(void **state)
{
    (void)state;
    static const struct {
        unsigned type;
        size_t bytes;
    } fixed[] = {
        {ROLL_FRAME_RING, ROLL_RING_HEADER_BYTES},
        {ROLL_FRAME_STATUS, sizeof(struct roll_frame_status)},
        {ROLL_FRAME_ACK, sizeof(struct roll_frame_ack)},
        {ROLL_FRAME_CONTROL, ROLL_FRAME_CONTROL_OLDEST_BYTES},
        {ROLL_FRAME_SIGHT, 16},
        {ROLL_FRAME_SETTINGS, 24},
    };
    static uint8_t payload[5000];
    static uint8_t data[6000];
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++) {
        struct roll_frame_head head = {.type = (uint16_t)fixed[i].type};
        for (size_t less = 0; less < 2; less++) {
            int64_t n = roll_frame_encode(&head, payload, fixed[i].bytes - less, data, sizeof(data));
            struct roll_frame frame;
            assert_int_equal(roll_frame_decode(data, (size_t)n, &frame, NULL), less == 0 ? 0 : ROLL_E_CORRUPT);
        }
    }
}

static void unknown_types_are_decoded_for_the_caller_to_skip(void **state)
{
    (void)state;
    uint8_t data[100] = {0};
    struct roll_frame_head head = {.type = 999};
    int64_t n = roll_frame_encode(&head, "new", 3, data, sizeof(data));
    struct roll_frame frame;
    assert_int_equal(roll_frame_decode(data, (size_t)n, &frame, NULL), 0);
    assert_int_equal(frame.head.type, 999);
}

static void the_head_of_a_trace_file_is_checked(void **state)
{
    (void)state;
    uint8_t head[ROLL_TRACE_HEAD_BYTES];
    roll_trace_head(head);
    assert_int_equal(roll_trace_check(head, sizeof(head)), 0);
    for (size_t cut = 0; cut < sizeof(head); cut++) {
        assert_int_equal(roll_trace_check(head, cut), ROLL_E_SHORT);
    }
    head[10] = 3;
    assert_int_equal(roll_trace_check(head, sizeof(head)), ROLL_E_VERSION);
    head[10] = 1;
    head[8] = 1;
    assert_int_equal(roll_trace_check(head, sizeof(head)), 0);
    head[8] = 0;
    assert_int_equal(roll_trace_check(head, sizeof(head)), ROLL_E_VERSION);
    head[0] = 'X';
    assert_int_equal(roll_trace_check(head, sizeof(head)), ROLL_E_MAGIC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksum_is_the_published_one),
        cmocka_unit_test(records_go_there_and_back),
        cmocka_unit_test(json_and_empty_frames_go_there_and_back),
        cmocka_unit_test(a_frame_that_is_made_is_the_frame_that_would_be_decoded),
        cmocka_unit_test(frames_end_to_end_are_walked_with_used),
        cmocka_unit_test(a_longer_head_and_larger_records_of_a_newer_writer_are_read),
        cmocka_unit_test(a_frame_has_the_minor_version_of_what_is_in_it),
        cmocka_unit_test(the_encoder_refuses_what_does_not_fit),
        cmocka_unit_test(a_frame_cut_at_any_length_is_refused),
        cmocka_unit_test(every_flipped_bit_of_a_frame_is_noticed),
        cmocka_unit_test(contradictions_behind_a_good_checksum_are_refused),
        cmocka_unit_test(payloads_shorter_than_their_layout_are_refused),
        cmocka_unit_test(unknown_types_are_decoded_for_the_caller_to_skip),
        cmocka_unit_test(the_head_of_a_trace_file_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
