/*
 * test_trace_file.c: a trace file that is cut anywhere is read up to its last whole frame.
 */
#include "daemon/store/trace_file.h"
#include "tests/daemon/synth.h"
#include "trace/err.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define FRAMES 5

static char path[64];

static int set_up(void **state)
{
    (void)state;
    strcpy(path, "/tmp/rollcall-trace-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static size_t tick(uint64_t now, uint8_t out[ROLL_FRAME_HEAD_BYTES])
{
    struct roll_frame_head head = {.type = ROLL_FRAME_TICK, .seq = now};
    int64_t n = roll_frame_encode(&head, NULL, 0, out, ROLL_FRAME_HEAD_BYTES);
    assert_int_equal(n, ROLL_FRAME_HEAD_BYTES);
    return (size_t)n;
}

static void write_frames(uint64_t first, uint64_t n)
{
    uint8_t frame[ROLL_FRAME_HEAD_BYTES];
    for (uint64_t i = 0; i < n; i++) {
        assert_int_equal(synth_trace_append(path, frame, tick(first + i, frame)), 0);
    }
}

/* Reads all; checks that they count from 1. Returns how many; *end is the error that ended it. */
static uint64_t read_frames(int *end)
{
    roll_trace_reader_t *r = NULL;
    struct roll_frame frame;
    uint64_t n = 0;
    *end = roll_trace_reader_new(path, &r);
    if (*end) {
        return 0;
    }
    while ((*end = roll_trace_reader_next(r, &frame)) == 0) {
        n++;
        assert_int_equal(frame.head.seq, n);
    }
    roll_trace_reader_destroy(&r);
    return n;
}

static void test_what_is_written_is_read(void **state)
{
    (void)state;
    int end;
    write_frames(1, FRAMES);
    assert_int_equal(read_frames(&end), FRAMES);
    assert_int_equal(end, ROLL_E_NOTFOUND);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 077, 0);
}

static void test_a_file_cut_anywhere_is_valid_up_to_its_last_whole_frame(void **state)
{
    (void)state;
    int end;
    const size_t whole = ROLL_TRACE_HEAD_BYTES + FRAMES * ROLL_FRAME_HEAD_BYTES;
    write_frames(1, FRAMES);
    for (size_t cut = whole; cut-- > 0;) {
        assert_int_equal(truncate(path, (off_t)cut), 0);
        uint64_t n = read_frames(&end);
        assert_int_equal(n, cut < ROLL_TRACE_HEAD_BYTES ? 0 : (cut - ROLL_TRACE_HEAD_BYTES) / ROLL_FRAME_HEAD_BYTES);
        bool ragged = cut < ROLL_TRACE_HEAD_BYTES || (cut - ROLL_TRACE_HEAD_BYTES) % ROLL_FRAME_HEAD_BYTES != 0;
        assert_int_equal(end, ragged ? ROLL_E_SHORT : ROLL_E_NOTFOUND);
    }
}

static void test_a_damaged_frame_ends_the_file(void **state)
{
    (void)state;
    int end;
    write_frames(1, FRAMES);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "X", 1, ROLL_TRACE_HEAD_BYTES + 3 * ROLL_FRAME_HEAD_BYTES + 24), 1);
    close(fd);
    assert_int_equal(read_frames(&end), 3);
    assert_int_equal(end, ROLL_E_CHECKSUM);
}

static void test_other_files_are_not_taken_for_traces(void **state)
{
    (void)state;
    int end;
    FILE *f = fopen(path, "w");
    fputs("this is no trace file at all", f);
    fclose(f);
    read_frames(&end);
    assert_int_equal(end, ROLL_E_MAGIC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_is_written_is_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_file_cut_anywhere_is_valid_up_to_its_last_whole_frame, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_a_damaged_frame_ends_the_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_files_are_not_taken_for_traces, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
