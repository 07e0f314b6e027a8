/*
 * test_file.c: files are read to their end, whatever size they say they have, and written whole.
 */
#include "daemon/base/file.h"
#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MUCH (3u << 20)

static char dir[64], path[128];

static int set_up(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/rollcall-file-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/file", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    rmdir(dir);
    return 0;
}

static void put(const char *text, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(roll_write_all(fd, text, bytes), bytes);
    close(fd);
}

static void test_a_small_file_is_read_with_an_end(void **state)
{
    (void)state;
    char out[8];
    put("abc\ndef", 7);
    assert_int_equal(roll_read_text(path, out, sizeof(out)), 7);
    assert_string_equal(out, "abc\ndef");
    assert_int_equal(roll_read_text(path, out, 4), 3);
    assert_string_equal(out, "abc");
    put("", 0);
    assert_int_equal(roll_read_text(path, out, sizeof(out)), 0);
    assert_string_equal(out, "");
}

static void test_what_cannot_be_read_gives_its_error_and_an_empty_text(void **state)
{
    (void)state;
    char out[8] = "before", *data;
    size_t bytes;
    assert_int_equal(roll_read_text(path, out, sizeof(out)), ROLL_E_NOTFOUND);
    assert_string_equal(out, "");
    assert_int_equal(roll_read_text(dir, out, sizeof(out)), ROLL_E_IO);
    assert_int_equal(errno, EISDIR);
    assert_int_equal(roll_read_whole(path, 100, &data, &bytes), ROLL_E_NOTFOUND);
    assert_null(data);
    assert_int_equal(roll_read_whole(dir, 100, &data, &bytes), ROLL_E_IO);
    assert_int_equal(mkfifo(path, 0600), 0); /* nobody writes: waiting for it would take for ever */
    assert_int_equal(roll_read_text(path, out, sizeof(out)), 0);
    assert_int_equal(roll_read_whole(path, 100, &data, &bytes), ROLL_E_IO);
    assert_null(data);
}

static void test_our_own_lack_of_descriptors_is_told_apart(void **state)
{
    (void)state;
    struct rlimit old, none;
    char out[8];
    put("x", 1);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = old;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int err = roll_read_text(path, out, sizeof(out));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(err, ROLL_E_LIMIT);
}

static void test_a_whole_file_is_read_up_to_a_bound(void **state)
{
    (void)state;
    char *data, *much = malloc(MUCH);
    size_t bytes;
    assert_non_null(much);
    for (size_t i = 0; i < MUCH; i++) {
        much[i] = (char)(i * 7 >> 3);
    }
    put(much, MUCH);
    assert_int_equal(roll_read_whole(path, MUCH, &data, &bytes), 0);
    assert_int_equal(bytes, MUCH);
    assert_memory_equal(data, much, MUCH);
    assert_int_equal(data[bytes], 0);
    free(data);
    assert_int_equal(roll_read_whole(path, MUCH - 1, &data, &bytes), ROLL_E_LIMIT);
    assert_null(data);
    free(much);
}

/* A file of /proc says that it has 0 bytes. */
static void test_a_file_without_a_size_is_read_to_its_end_or_the_bound(void **state)
{
    (void)state;
    char *data;
    size_t bytes;
    assert_int_equal(roll_read_whole("/proc/self/smaps", SIZE_MAX, &data, &bytes), 0);
    assert_true(bytes > 8192); /* more than one read gives */
    assert_int_equal(strlen(data), bytes);
    free(data);
    assert_int_equal(roll_read_whole("/proc/self/smaps", 5000, &data, &bytes), 0);
    assert_int_equal(bytes, 5000);
    assert_int_equal(data[5000], 0);
    free(data);
}

static void *read_slowly(void *end)
{
    char piece[8191];
    size_t got = 0;
    for (ssize_t n; (n = read(*(int *)end, piece, sizeof(piece))) > 0;) {
        got += (size_t)n;
    }
    return (void *)got;
}

static void test_writing_goes_on_until_all_is_out(void **state)
{
    (void)state;
    int ends[2];
    pthread_t reader;
    void *got;
    char *much = calloc(1, MUCH);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(pthread_create(&reader, NULL, read_slowly, &ends[0]), 0);
    assert_int_equal(roll_write_all(ends[1], much, MUCH), MUCH);
    close(ends[1]);
    assert_int_equal(pthread_join(reader, &got), 0);
    assert_int_equal((size_t)got, MUCH);
    close(ends[0]);
    free(much);
}

static void test_writing_says_how_far_it_came(void **state)
{
    (void)state;
    int ends[2];
    char *much = calloc(1, MUCH);
    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    size_t done = roll_write_all(ends[1], much, MUCH);
    assert_int_equal(errno, EAGAIN);
    assert_true(done > 0 && done < MUCH);
    close(ends[0]);
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(roll_write_all(ends[1], much, 10), 0);
    assert_int_equal(errno, EPIPE);
    close(ends[1]);
    free(much);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_small_file_is_read_with_an_end, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_cannot_be_read_gives_its_error_and_an_empty_text, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_our_own_lack_of_descriptors_is_told_apart, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_whole_file_is_read_up_to_a_bound, set_up, tear_down),
        cmocka_unit_test(test_a_file_without_a_size_is_read_to_its_end_or_the_bound),
        cmocka_unit_test(test_writing_goes_on_until_all_is_out),
        cmocka_unit_test(test_writing_says_how_far_it_came),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
