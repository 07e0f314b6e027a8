/*
 * test_places.c: directories and names that somebody else has chosen: a link to a directory with files of the user, and
 * a ring whose job is a way out of its directory.
 */
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"
#include "trace/frame.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void test_a_link_in_the_place_of_the_directory_is_refused(void **state)
{
    (void)state;
    const char *file = harness_path("victim/thesis.tex");
    assert_int_equal(mkdir(harness_path("victim"), 0700), 0);
    int fd = open(file, O_WRONLY | O_CREAT, 0600);
    close(fd);
    assert_int_equal(symlink(harness_path("victim"), harness_path("link")), 0);
    pid_t pid = SPAWN("own.err", "rollcalld", "--own-dir", "--linger", "1", "--dir", harness_path("link"));
    assert_int_equal(harness_end(pid, 0), 3);
    assert_true(harness_logged("own.err", "is a link"));
    pid = SPAWN("slash.err", "rollcalld", "--own-dir", "--linger", "1", "--dir", harness_path("link/"));
    assert_int_equal(harness_end(pid, 0), 3);
    pid = SPAWN("trace.err", "rollcalld", "--dir", harness_path("d"), "--trace", harness_path("link"));
    assert_int_equal(harness_end(pid, 0), 3);
    assert_true(harness_logged("trace.err", "is a link"));
    assert_int_equal(access(file, F_OK), 0);
    assert_int_equal(harness_count(harness_path("victim"), ""), 1);
}

static void test_a_job_that_leads_out_of_the_directory_is_refused(void **state)
{
    (void)state;
    struct synth s;
    char endpoint[256];
    const char *dir = harness_path("d");
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(synth_open(&s, dir, "good", 0, 1, 64), 0);
    struct roll_ring_header *h = s.ring.header;
    strcpy(h->job, "../x");
    h->static_crc = roll_crc32c(0, h, offsetof(struct roll_ring_header, static_crc));
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", dir, "--trace", harness_path("trace"));
    assert_true(daemon > 0);
    assert_true(harness_logged("daemon.err", "this ring is ignored"));
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
    assert_int_equal(harness_count(harness_dir(), ".ctl"), 0);
    assert_int_equal(harness_count(harness_dir(), ".rtrc"), 0);
    synth_close(&s);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, harness_set_up, harness_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_link_in_the_place_of_the_directory_is_refused),
        TEST(test_a_job_that_leads_out_of_the_directory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
