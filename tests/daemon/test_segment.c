/*
 * test_segment.c: segments are whole at any instant, readable alone, and bounded in size and age; records that cannot
 * be written are counted.
 */
#include "tests/daemon/segment_job.h"

#include "daemon/feed/feed.h"
#include "daemon/store/trace_file.h"
#include "trace/err.h"
#include "trace/op.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void test_segments_one_after_the_other_are_the_whole_trace(void **state)
{
    (void)state;
    static struct segment_job j;
    uint64_t bytes;
    segment_job_begin(&j);
    roll_segments_t *w = segment_job_writer(1, 0, 0); /* the smallest there is: 64 KiB */
    segment_job_write(w, &j, 8000);
    roll_segments_destroy(&w);
    assert_true(segment_job_count(&bytes) >= 4);
    assert_int_equal(segment_job_check(false), 8000);
}

static void test_a_new_writer_goes_on_in_a_new_segment(void **state)
{
    (void)state;
    static struct segment_job j;
    uint64_t bytes;
    segment_job_begin(&j);
    for (unsigned part = 0; part < 3; part++) {
        roll_segments_t *w = segment_job_writer(0, 0, 0), *other = NULL;
        struct segment_job again;
        segment_job_begin(&again);
        while (again.frame < j.frame) { /* what a successor reads first */
            struct roll_frame frame;
            size_t n = segment_job_next(&again);
            assert_int_equal(roll_frame_decode(again.bytes, n, &frame, NULL), 0);
            assert_int_equal(roll_segments_note(w, &frame), 0);
        }
        segment_job_write(w, &j, 300);
        struct roll_segment_options o = {.dir = segment_job_dir, .series = SEGMENT_JOB_SERIES};
        int by = 0;
        assert_int_equal(roll_segments_new(&o, &other, &by), ROLL_E_BUSY);
        assert_int_equal(by, getpid());
        roll_segments_destroy(&w);
    }
    assert_int_equal(segment_job_count(&bytes), 3);
    assert_int_equal(segment_job_check(false), 900);
}

/* Any segment alone: its rings are announced, the feeder takes every frame and is set as the root's was. */
static void test_each_segment_can_be_read_alone(void **state)
{
    (void)state;
    static struct segment_job j;
    struct roll_segment_name *list = NULL;
    size_t count = 0;
    uint8_t raw[128];
    struct roll_frame_head settings = {.type = ROLL_FRAME_SETTINGS};
    struct roll_frame_settings set = {.stall_ns = 123, .suspect_ns = 456, .policy = ROLL_POLICY_ADVISE};
    size_t bytes = (size_t)roll_frame_encode(&settings, &set, sizeof(set), raw, sizeof(raw));
    segment_job_begin(&j);
    roll_segments_t *w = segment_job_writer(1, 0, 0);
    assert_int_equal(segment_job_append(w, raw, bytes, SEGMENT_JOB_NOW), 0);
    segment_job_write(w, &j, 6000);
    roll_segments_destroy(&w);
    assert_int_equal(roll_segment_list(segment_job_dir, SEGMENT_JOB_SERIES, &list, &count), 0);
    assert_true(count > 1);
    for (size_t n = 0; n < 2 * count; n++) {
        struct roll_engine_config config = {0};
        roll_feed_t *feed = roll_feed_new(&config, NULL, 0);
        size_t i = n / 2;
        bool recorded = n % 2 == 1; /* then what an earlier segment had is older, and not lost */
        if (recorded) {
            roll_feed_of_recording(feed);
        }
        roll_trace_reader_t *r = NULL;
        struct roll_frame frame;
        struct roll_feed_stream view;
        assert_int_equal(roll_trace_reader_new(list[i].path, &r), 0);
        unsigned repeated = 0, own = 0; /* RECORDS: those of an earlier segment come first, and are marked */
        while (roll_trace_reader_next(r, &frame) == 0) {
            bool marked = (frame.head.flags & ROLL_RECORDS_REPEATED) != 0;
            assert_true(!marked || (frame.head.type == ROLL_FRAME_RECORDS && own == 0));
            repeated += marked;
            own += frame.head.type == ROLL_FRAME_RECORDS && !marked;
            assert_int_equal(roll_feed_frame(feed, &frame), 0);
        }
        assert_true(i > 0 || repeated == 0);
        roll_engine_settings(roll_feed_engine(feed), &config);
        assert_int_equal(config.stall_ns, 123);
        assert_int_equal(config.suspect_ns, 456);
        assert_int_equal(config.policy, ROLL_POLICY_ADVISE);
        for (unsigned k = 0; k < SEGMENT_JOB_RINGS; k++) {
            assert_true(roll_feed_stream(feed, k, &view));
            assert_true(view.fed > 0);
            assert_true(i > 0 && !recorded ? view.lost > 0 : view.lost == 0);
            assert_true(i > 0 && recorded ? view.older > 0 : view.older == 0);
        }
        roll_trace_reader_destroy(&r);
        roll_feed_destroy(&feed);
    }
    free(list);
}

static void test_calls_that_have_not_returned_are_repeated(void **state)
{
    (void)state;
    static struct segment_job j;
    uint8_t raw[256];
    segment_job_begin(&j);
    roll_segments_t *w = segment_job_writer(1, 0, 0);
    segment_job_write(w, &j, SEGMENT_JOB_RINGS);
    struct roll_record rec = {.seal = roll_seal(7, ROLL_STATE_ENTERED),
                              .comm = 4,
                              .op = ROLL_OP_ALLREDUCE,
                              .dtype = ROLL_DTYPE_NONE,
                              .redop = ROLL_RED_NONE};
    struct roll_frame_head head = {
        .type = ROLL_FRAME_RECORDS, .stream = 2, .first = 7, .rec_size = ROLL_RECORD_BYTES, .count = 1};
    assert_int_equal(segment_job_append(w, raw, (size_t)roll_frame_encode(&head, &rec, sizeof(rec), raw, sizeof(raw)),
                                        SEGMENT_JOB_NOW),
                     0);
    struct roll_frame_head tick = {.type = ROLL_FRAME_TICK};
    for (uint64_t i = 0; i < 60000; i++) { /* the job hangs, and its clock goes on */
        uint64_t real = tick.seq = i * 20000000 + segment_job_draw(&j) % 999999;
        assert_int_equal(segment_job_append(w, raw,
                                            (size_t)roll_frame_encode(&tick, &real, sizeof(real), raw, sizeof(raw)),
                                            SEGMENT_JOB_NOW),
                         0);
        if (i % 500 == 0) {
            assert_int_equal(roll_segments_turn(w, SEGMENT_JOB_NOW, true), 0);
        }
    }
    roll_segments_destroy(&w);
    struct roll_segment_name *list = NULL;
    size_t count = 0, seen = 0;
    assert_int_equal(roll_segment_list(segment_job_dir, SEGMENT_JOB_SERIES, &list, &count), 0);
    assert_true(count >= 3);
    roll_trace_reader_t *r = NULL;
    struct roll_frame frame;
    assert_int_equal(roll_trace_reader_new(list[count - 1].path, &r), 0);
    while (roll_trace_reader_next(r, &frame) == 0) {
        if (frame.head.type == ROLL_FRAME_RECORDS) {
            struct roll_record again;
            roll_frame_record(&frame, 0, &again);
            assert_memory_equal(&again, &rec, sizeof(rec));
            assert_int_equal(frame.head.stream, 2);
            assert_int_equal(frame.head.flags, ROLL_RECORDS_REPEATED);
            seen++;
        }
    }
    assert_int_equal(seen, 1);
    roll_trace_reader_destroy(&r);
    free(list);
}

static void test_the_oldest_segments_make_room(void **state)
{
    (void)state;
    static struct segment_job j;
    uint64_t bytes;
    const uint64_t limit = 512 << 10;
    segment_job_begin(&j);
    roll_segments_t *w = segment_job_writer(0, limit, 0);
    for (unsigned i = 0; i < 60; i++) {
        segment_job_write(w, &j, 400);
        segment_job_count(&bytes);
        assert_in_range(bytes, 0, limit);
    }
    struct roll_segment_count count;
    roll_segments_count(w, &count);
    assert_true(count.removed > 0);
    assert_true(count.bytes > limit);
    assert_int_equal(count.lost, 0);
    roll_segments_destroy(&w);
    struct roll_segment_name *list = NULL;
    size_t n = 0;
    assert_int_equal(roll_segment_list(segment_job_dir, SEGMENT_JOB_SERIES, &list, &n), 0);
    assert_int_equal(list[0].number, count.removed + 1); /* the newest are those that are left */
    assert_int_equal(list[n - 1].number, count.segments);
    free(list);
}

static void test_old_segments_go_and_other_files_stay(void **state)
{
    (void)state;
    static struct segment_job j;
    static const char *const names[] = {"job.0.00000001.rtrc", "old.7.00000004.rtrc", "job.0@node.00000001.rtrc",
                                        "notes.txt", "plain.rtrc"};
    char path[200];
    for (size_t i = 0; i < 5; i++) {
        snprintf(path, sizeof(path), "%s/%s", segment_job_dir, names[i]);
        FILE *f = fopen(path, "w");
        fputs("x", f);
        fclose(f);
        const struct timespec then[2] = {{.tv_sec = time(NULL) - 100}, {.tv_sec = time(NULL) - 100}};
        assert_int_equal(utimensat(AT_FDCWD, path, then, 0), 0);
    }
    segment_job_begin(&j);
    roll_segments_t *w = segment_job_writer(0, 0, 50 * SEGMENT_JOB_SECOND);
    segment_job_write(w, &j, 100);
    roll_segments_destroy(&w);
    for (size_t i = 0; i < 5; i++) {
        snprintf(path, sizeof(path), "%s/%s", segment_job_dir, names[i]);
        assert_int_equal(access(path, F_OK),
                         i < 2 ? -1 : 0); /* an agent's and what is no segment is not ours to remove */
    }
    snprintf(path, sizeof(path), "%s/job.0.00000002.rtrc", segment_job_dir);
    assert_int_equal(access(path, F_OK), 0);
}

static void test_what_waits_is_written_within_a_second(void **state)
{
    (void)state;
    static struct segment_job j;
    segment_job_begin(&j);
    roll_segments_t *w = segment_job_writer(0, 0, 0);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(segment_job_append(w, j.bytes, segment_job_next(&j), SEGMENT_JOB_NOW), 0);
    }
    assert_int_equal(roll_segments_turn(w, SEGMENT_JOB_NOW + SEGMENT_JOB_SECOND / 2, false), 0);
    assert_int_equal(segment_job_check(false), 0);
    assert_int_equal(roll_segments_turn(w, SEGMENT_JOB_NOW + SEGMENT_JOB_SECOND, false), 0);
    assert_int_equal(segment_job_check(false), 20); /* read while it is written */
    segment_job_write(w, &j, 30);
    assert_int_equal(segment_job_check(false), 50);
    roll_segments_destroy(&w);
}

/* A job hangs and only ticks come: they take little room, and are still written in time for a reader. */
static void test_time_alone_takes_little_room(void **state)
{
    (void)state;
    static struct segment_job j;
    uint64_t before, now_bytes, real = UINT64_C(1700000000000000000), seq = real;
    unsigned writes = 0;
    segment_job_begin(&j);
    roll_segments_t *w = segment_job_writer(0, 0, 0);
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(segment_job_append(w, j.bytes, segment_job_next(&j), SEGMENT_JOB_NOW), 0);
    }
    assert_int_equal(roll_segments_turn(w, SEGMENT_JOB_NOW + SEGMENT_JOB_SECOND, false), 0);
    segment_job_count(&before);
    uint64_t last = before;
    for (uint64_t i = 1; i <= 600; i++) { /* a minute of ticks; no timer is exact */
        uint64_t now = SEGMENT_JOB_NOW + SEGMENT_JOB_SECOND + i * (SEGMENT_JOB_SECOND / 10);
        seq += SEGMENT_JOB_SECOND / 10 + segment_job_draw(&j) % 4 * 100000;
        real += SEGMENT_JOB_SECOND / 10 + segment_job_draw(&j) % 4 * 100000;
        struct roll_frame_head head = {.type = ROLL_FRAME_TICK, .seq = seq};
        size_t n = (size_t)roll_frame_encode(&head, &real, sizeof(real), j.bytes, sizeof(j.bytes));
        assert_int_equal(segment_job_append(w, j.bytes, n, now), 0);
        assert_int_equal(roll_segments_turn(w, now, false), 0);
        segment_job_count(&now_bytes);
        writes += now_bytes > last;
        last = now_bytes;
    }
    assert_in_range(writes, 10, 20);
    assert_true(last - before < 60 * 60); /* bytes a minute */
    /* With the first word of something else, a second is the most again. */
    assert_int_equal(segment_job_append(w, j.bytes, segment_job_next(&j), SEGMENT_JOB_NOW + 61 * SEGMENT_JOB_SECOND),
                     0);
    assert_int_equal(roll_segments_turn(w, SEGMENT_JOB_NOW + 62 * SEGMENT_JOB_SECOND, false), 0);
    segment_job_count(&now_bytes);
    assert_true(now_bytes > last);
    roll_segments_destroy(&w);
}

/* Thousands of old segments do not hold up the daemon: a few are removed at a time, until all are gone. */
static void test_many_old_segments_go_a_few_at_a_time(void **state)
{
    (void)state;
    static struct segment_job j;
    char path[100];
    uint64_t bytes;
    const struct timespec old[2] = {{1000, 0}, {1000, 0}};
    segment_job_begin(&j);
    for (unsigned i = 1; i <= 3 * ROLL_SEGMENT_REMOVE; i++) {
        snprintf(path, sizeof(path), "%s/" SEGMENT_JOB_SERIES ".%08u.rtrc", segment_job_dir, i);
        fclose(fopen(path, "w"));
        assert_int_equal(chmod(path, 0600), 0);
        assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    }
    roll_segments_t *w = segment_job_writer(0, 0, 3600 * SEGMENT_JOB_SECOND);
    segment_job_write(w, &j, 100);
    assert_int_equal(segment_job_count(&bytes), 2 * ROLL_SEGMENT_REMOVE + 1);
    assert_int_equal(roll_segments_turn(w, SEGMENT_JOB_NOW + SEGMENT_JOB_SECOND, false), 0);
    assert_int_equal(segment_job_count(&bytes), ROLL_SEGMENT_REMOVE + 1);
    assert_int_equal(roll_segments_turn(w, SEGMENT_JOB_NOW + 2 * SEGMENT_JOB_SECOND, false), 0);
    assert_int_equal(segment_job_count(&bytes), 1);
    roll_segments_destroy(&w);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, segment_job_set_up, segment_job_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_segments_one_after_the_other_are_the_whole_trace),
        TEST(test_a_new_writer_goes_on_in_a_new_segment),
        TEST(test_each_segment_can_be_read_alone),
        TEST(test_calls_that_have_not_returned_are_repeated),
        TEST(test_the_oldest_segments_make_room),
        TEST(test_old_segments_go_and_other_files_stay),
        TEST(test_what_waits_is_written_within_a_second),
        TEST(test_time_alone_takes_little_room),
        TEST(test_many_old_segments_go_a_few_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
