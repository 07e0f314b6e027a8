/*
 * test_segment_harsh.c: segments where something goes wrong: the writer is killed, the disk is full, the folder is not
 * ours, files appear or disappear.
 */
#include "tests/daemon/segment_job.h"

#include "daemon/store/trace_file.h"
#include "trace/err.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KILLS 200

static void test_a_writer_that_is_killed_at_any_instant_leaves_whole_frames(void **state)
{
    (void)state;
    static struct segment_job j;
    uint64_t most = 0, bytes, several = 0;
    srand(7);
    for (unsigned i = 0; i < KILLS; i++) {
        segment_job_begin(&j);
        pid_t pid = fork();
        if (pid == 0) {
            roll_segments_t *w = NULL;
            int by;
            struct roll_segment_options o = {.dir = segment_job_dir, .series = SEGMENT_JOB_SERIES, .segment_bytes = 1};
            if (roll_segments_new(&o, &w, &by) != 0) {
                _exit(1);
            }
            for (;;) {
                struct roll_frame frame;
                size_t n = segment_job_next(&j);
                if (roll_frame_decode(j.bytes, n, &frame, NULL) != 0 ||
                    roll_segments_append(w, &frame, j.bytes, n, SEGMENT_JOB_NOW) != 0 ||
                    roll_segments_turn(w, SEGMENT_JOB_NOW, j.frame % 40 == 0) != 0) {
                    _exit(1);
                }
            }
        }
        assert_true(pid > 0);
        char second[100];
        snprintf(second, sizeof(second), "%s/" SEGMENT_JOB_SERIES ".00000002.rtrc", segment_job_dir);
        for (unsigned ms = 0; i % 4 == 0 && ms < 5000 && access(second, F_OK) != 0; ms++) {
            usleep(1000);
        }
        usleep((useconds_t)(rand() % 12000));
        kill(pid, SIGKILL);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        uint64_t frames = segment_job_check(true);
        most = frames > most ? frames : most;
        several += segment_job_count(&bytes) > 1;
        segment_job_tear_down(NULL);
        assert_int_equal(mkdir(segment_job_dir, 0700), 0);
    }
    print_message("%u kills: up to %llu frames, %llu times in several segments\n", KILLS, (unsigned long long)most,
                  (unsigned long long)several);
    assert_true(most > 200);
    assert_in_range(several, KILLS / 4, KILLS);
}

static void test_a_full_disk_ends_the_recording_and_nothing_else(void **state)
{
    (void)state;
    static struct segment_job j;
    segment_job_begin(&j);
    pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit limit = {150000, 150000};
        roll_segments_t *w = segment_job_writer(0, 0, 0);
        unsigned errors = 0;
        uint64_t records = 0;
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        for (unsigned i = 0; i < 20000; i++) {
            struct roll_frame frame;
            size_t n = segment_job_next(&j);
            int err = roll_frame_decode(j.bytes, n, &frame, NULL);
            records += frame.head.type == ROLL_FRAME_RECORDS ? frame.head.count : 0;
            err = err ? err : roll_segments_append(w, &frame, j.bytes, n, SEGMENT_JOB_NOW);
            err = err ? err : roll_segments_turn(w, SEGMENT_JOB_NOW, i % 50 == 0);
            errors += err == ROLL_E_SPACE;
            if (err != 0 && err != ROLL_E_SPACE) {
                _exit(2);
            }
        }
        struct roll_segment_count count;
        roll_segments_count(w, &count);
        bool right = errors == 1 && count.stopped && count.lost > 0 && count.records + count.lost == records;
        roll_segments_destroy(&w);
        _exit(right ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(segment_job_check(true) > 100);
}

static void test_directories_that_are_not_ours_are_refused(void **state)
{
    (void)state;
    char why[400] = "", path[100];
    assert_int_equal(roll_segment_dir(segment_job_dir, why, sizeof(why)), 0);
    snprintf(path, sizeof(path), "%s/new", segment_job_dir);
    assert_int_equal(roll_segment_dir(path, why, sizeof(why)), 0);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(chmod(path, 0777), 0);
    assert_int_equal(roll_segment_dir(path, why, sizeof(why)), ROLL_E_DENIED);
    assert_non_null(strstr(why, "everybody"));
    assert_int_equal(chmod(path, 0755), 0);
    const char *other = path;
    if (geteuid() == 0) {
        assert_int_equal(chown(path, 65534, 65534), 0);
    } else {
        other = "/usr";
    }
    assert_int_equal(roll_segment_dir(other, why, sizeof(why)), ROLL_E_DENIED);
    assert_non_null(strstr(why, "another user"));
    snprintf(path, sizeof(path), "%s/file", segment_job_dir);
    fclose(fopen(path, "w"));
    assert_int_equal(roll_segment_dir(path, why, sizeof(why)), ROLL_E_ARG);
}

/* A pipe, link or other file under a segment's name is neither waited for, nor followed, nor written over. */
static void test_what_is_no_file_is_neither_waited_for_nor_replaced(void **state)
{
    (void)state;
    static struct segment_job j;
    char path[100], other[100];
    struct stat st;
    struct roll_segment_name *list;
    size_t count;
    roll_trace_reader_t *reader;
    segment_job_begin(&j);
    snprintf(path, sizeof(path), "%s/" SEGMENT_JOB_SERIES ".00000001.rtrc", segment_job_dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(600); /* opening a pipe would wait for ever */
    assert_int_equal(roll_trace_reader_new(path, &reader), ROLL_E_IO);
    roll_segments_t *w = segment_job_writer(0, 1000, 0);
    snprintf(other, sizeof(other), "%s/elsewhere", segment_job_dir);
    fclose(fopen(other, "w"));
    snprintf(path, sizeof(path), "%s/." SEGMENT_JOB_SERIES ".part", segment_job_dir);
    assert_int_equal(symlink(other, path), 0);
    segment_job_write(w, &j, 200);
    roll_segments_destroy(&w);
    alarm(0);
    assert_int_equal(stat(other, &st), 0);
    assert_int_equal(st.st_size, 0);
    assert_int_equal(roll_segment_list(segment_job_dir, SEGMENT_JOB_SERIES, &list, &count), 0);
    assert_int_equal(count, 2);
    assert_int_equal(list[1].number, 2);
    free(list);
}

/* Two writers both found the directory empty: the second does not replace the first one's file. */
static void test_a_segment_that_appears_meanwhile_is_not_written_over(void **state)
{
    (void)state;
    static struct segment_job j;
    struct roll_frame frame;
    struct roll_segment_count count;
    char path[100];
    struct stat st;
    segment_job_begin(&j);
    roll_segments_t *w = segment_job_writer(0, 0, 0);
    snprintf(path, sizeof(path), "%s/" SEGMENT_JOB_SERIES ".00000001.rtrc", segment_job_dir);
    FILE *f = fopen(path, "w");
    fputs("another's", f);
    fclose(f);
    size_t n = segment_job_next(&j);
    assert_int_equal(roll_frame_decode(j.bytes, n, &frame, NULL), 0);
    assert_int_equal(roll_segments_append(w, &frame, j.bytes, n, SEGMENT_JOB_NOW), ROLL_E_BUSY);
    roll_segments_count(w, &count);
    assert_true(count.stopped);
    roll_segments_destroy(&w);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 9);
    snprintf(path, sizeof(path), "%s/." SEGMENT_JOB_SERIES ".part", segment_job_dir);
    assert_int_equal(access(path, F_OK), -1);
    snprintf(path, sizeof(path), "%s/." SEGMENT_JOB_SERIES ".lock", segment_job_dir);
    assert_int_equal(access(path, F_OK), -1);
}

/* When a segment is removed while it is written, only its own frames are lost; when the directory is gone, an error
 * says so.
 */
static void test_a_segment_that_is_removed_is_followed_by_a_new_one(void **state)
{
    (void)state;
    static struct segment_job j;
    struct roll_frame frame;
    char path[100], command[200];
    segment_job_begin(&j);
    roll_segments_t *w = segment_job_writer(0, 0, 0);
    segment_job_write(w, &j, 100);
    snprintf(path, sizeof(path), "%s/" SEGMENT_JOB_SERIES ".00000001.rtrc", segment_job_dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(roll_segments_turn(w, SEGMENT_JOB_NOW + 11 * SEGMENT_JOB_SECOND, false), 0);
    segment_job_write(w, &j, 100);
    snprintf(path, sizeof(path), "%s/" SEGMENT_JOB_SERIES ".00000002.rtrc", segment_job_dir);
    assert_int_equal(access(path, F_OK), 0);
    snprintf(command, sizeof(command), "rm -rf '%s'", segment_job_dir);
    assert_int_equal(system(command), 0);
    assert_int_equal(roll_segments_turn(w, SEGMENT_JOB_NOW + 22 * SEGMENT_JOB_SECOND, false), 0);
    size_t n = segment_job_next(&j);
    assert_int_equal(roll_frame_decode(j.bytes, n, &frame, NULL), 0);
    assert_int_equal(roll_segments_append(w, &frame, j.bytes, n, SEGMENT_JOB_NOW + 22 * SEGMENT_JOB_SECOND),
                     ROLL_E_NOTFOUND);
    struct roll_segment_count count;
    roll_segments_count(w, &count);
    assert_true(count.stopped);
    roll_segments_destroy(&w);
    assert_int_equal(mkdir(segment_job_dir, 0700), 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, segment_job_set_up, segment_job_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_a_writer_that_is_killed_at_any_instant_leaves_whole_frames),
        TEST(test_a_full_disk_ends_the_recording_and_nothing_else),
        TEST(test_directories_that_are_not_ours_are_refused),
        TEST(test_what_is_no_file_is_neither_waited_for_nor_replaced),
        TEST(test_a_segment_that_appears_meanwhile_is_not_written_over),
        TEST(test_a_segment_that_is_removed_is_followed_by_a_new_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
