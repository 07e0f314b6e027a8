/*
 * test_trace_ahead.c: traces read ahead by threads give the frames, errors and offsets that each gives when it is read
 * alone, in whatever order the files are asked, with however many threads.
 */
#include "tests/daemon/segment_job.h"
#include "tests/trace/cmocka_all.h"

#include "daemon/store/trace_ahead.h"
#include "daemon/store/trace_file.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILES 24u

struct open_file {
    roll_trace_reader_t *alone;
    roll_ahead_file_t *ahead;
    bool over;
};

static char path[FILES][PATH_MAX];
static size_t files;

/* The segments of one job; one is cut in a frame, and one has a byte that was changed. */
static void write_files(void)
{
    static struct segment_job j;
    segment_job_begin(&j);
    roll_segments_t *w = segment_job_writer(ROLL_SEGMENT_BYTES_LEAST, 0, 0);
    segment_job_write(w, &j, 24000);
    roll_segments_destroy(&w);
    struct roll_segment_name *list = NULL;
    assert_int_equal(roll_segment_list(segment_job_dir, SEGMENT_JOB_SERIES, &list, &files), 0);
    assert_true(files > 8);
    files = files < FILES ? files : FILES;
    for (size_t i = 0; i < files; i++) {
        snprintf(path[i], sizeof(path[i]), "%s", list[i].path);
    }
    free(list);
    assert_int_equal(truncate(path[2], 40001), 0);
    FILE *f = fopen(path[5], "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, 30000, SEEK_SET), 0);
    int byte = fgetc(f);
    assert_int_equal(fseek(f, 30000, SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ 0x55, f), byte ^ 0x55);
    assert_int_equal(fclose(f), 0);
}

/* Compares the next frame of a file with what it is when the file is read alone. */
static void compare(struct open_file *f)
{
    struct roll_frame want, frame;
    int err = roll_trace_reader_next(f->alone, &want);
    assert_int_equal(roll_ahead_next(f->ahead, &frame), err);
    if (err != 0) {
        assert_int_equal(roll_ahead_offset(f->ahead), roll_trace_reader_offset(f->alone));
        assert_int_equal(roll_ahead_next(f->ahead, &frame), err); /* it stays at its end */
        f->over = true;
        return;
    }
    assert_memory_equal(&frame.head, &want.head, sizeof(want.head));
    if (want.head.payload > 0) {
        assert_memory_equal(frame.payload, want.payload, want.head.payload);
    }
}

static void read_all(unsigned threads, uint64_t seed, bool leave_early)
{
    static struct segment_job chance;
    struct open_file open[FILES] = {{0}};
    roll_ahead_t *ahead = roll_ahead_new(threads, files);
    size_t left = files;
    segment_job_begin(&chance);
    chance.random += seed;
    assert_non_null(ahead);
    for (size_t i = 0; i < files; i++) {
        bool resume = i % 3 == 1;
        assert_int_equal(roll_trace_reader_new(path[i], &open[i].alone), 0);
        if (resume) {
            roll_trace_reader_resume(open[i].alone);
        }
        assert_int_equal(roll_ahead_open(ahead, path[i], resume, &open[i].ahead), 0);
    }
    while (left > (leave_early ? files / 2 : 0)) {
        struct open_file *f = &open[segment_job_draw(&chance) % files];
        for (uint64_t n = segment_job_draw(&chance) % 200; n > 0 && !f->over; n--) {
            compare(f);
            left -= f->over;
        }
    }
    for (size_t i = 0; i < files; i++) {
        roll_trace_reader_destroy(&open[i].alone);
        roll_ahead_close(&open[i].ahead);
    }
    roll_ahead_destroy(&ahead);
}

static void threads_change_nothing(void **state)
{
    (void)state;
    write_files();
    for (unsigned threads = 1; threads <= 9; threads += 2) {
        read_all(threads, threads, false);
        read_all(threads, threads + 100, true);
    }
}

static void a_file_that_is_no_trace_is_refused_at_once(void **state)
{
    (void)state;
    char at[PATH_MAX];
    roll_ahead_t *ahead = roll_ahead_new(3, 1);
    roll_ahead_file_t *file = NULL;
    snprintf(at, sizeof(at), "%s/none.rtrc", segment_job_dir);
    assert_int_equal(roll_ahead_open(ahead, at, false, &file), ROLL_E_NOTFOUND);
    FILE *f = fopen(at, "w");
    assert_non_null(f);
    fputs("this is not the beginning of a trace", f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(roll_ahead_open(ahead, at, false, &file), ROLL_E_MAGIC);
    assert_null(file);
    roll_ahead_destroy(&ahead);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, segment_job_set_up, segment_job_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(threads_change_nothing),
        TEST(a_file_that_is_no_trace_is_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
