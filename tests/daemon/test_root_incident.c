/*
 * test_root_incident.c: when a root begins bundles by itself: half a second behind the first proven finding, not for
 * its echo, a minute later for others, one at a time, and what becomes of a program that does not end. The time is the
 * test's own, and so are the programs (the linker's --wrap): to wait for minutes was rejected.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/base/clock.h"
#include "daemon/root/root_state.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define S     UINT64_C(1000000000)
#define CHILD 4242 /* no process: nothing of the test's ever reaches the kernel with it */

static uint64_t now_ns; /* the clock; 0: the real one */

/* The programs that were started. */
static struct {
    unsigned begun;
    bool lives, deaf; /* deaf: no signal ends it */
    int status;       /* with which it ends */
    int signals[8];   /* that it was sent */
    unsigned signaled;
    char keep[16], most[16], most_bytes[16], curve[64], endpoint[128];
} child;

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
pid_t __real_waitpid(pid_t pid, int *status, int options);
pid_t __wrap_waitpid(pid_t pid, int *status, int options);
int __real_kill(pid_t pid, int number);
int __wrap_kill(pid_t pid, int number);
int __wrap_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attributes, char *const argv[], char *const env[]);

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    if (now_ns == 0 || clock != CLOCK_MONOTONIC) {
        return __real_clock_gettime(clock, out);
    }
    *out = (struct timespec){.tv_sec = (time_t)(now_ns / S), .tv_nsec = (long)(now_ns % S)};
    return 0;
}

static void copy_value(char *const argv[], const char *option, char *out, size_t size)
{
    out[0] = '\0';
    for (size_t i = 0; argv[i] && argv[i + 1]; i++) {
        if (strcmp(argv[i], option) == 0) {
            snprintf(out, size, "%s", argv[i + 1]);
        }
    }
}

int __wrap_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attributes, char *const argv[], char *const env[])
{
    (void)path;
    (void)actions;
    (void)attributes;
    (void)env;
    assert_false(child.lives); /* one at a time */
    child.begun++;
    child.lives = true;
    child.signaled = 0;
    copy_value(argv, "--keep", child.keep, sizeof(child.keep));
    copy_value(argv, "--most", child.most, sizeof(child.most));
    copy_value(argv, "--most-bytes", child.most_bytes, sizeof(child.most_bytes));
    copy_value(argv, "--curve-dir", child.curve, sizeof(child.curve));
    copy_value(argv, "--daemon", child.endpoint, sizeof(child.endpoint));
    *pid = CHILD;
    return 0;
}

pid_t __wrap_waitpid(pid_t pid, int *status, int options)
{
    if (pid != CHILD) {
        return __real_waitpid(pid, status, options);
    }
    if (child.lives) {
        return 0;
    }
    if (status) {
        *status = child.status;
    }
    return CHILD;
}

int __wrap_kill(pid_t pid, int number)
{
    if (pid != CHILD) {
        return __real_kill(pid, number);
    }
    assert_true(child.signaled < sizeof(child.signals) / sizeof(child.signals[0]));
    child.signals[child.signaled++] = number;
    if (!child.deaf && number == SIGKILL) {
        child.lives = false;
        child.status = SIGKILL;
    }
    return 0;
}

static struct here {
    void *context;
    char dir[64];
    roll_root_t *root;
    struct roll_run *run;
} here;

static int set_up(void **state)
{
    (void)state;
    char why[256] = "";
    memset(&child, 0, sizeof(child));
    now_ns = 0;
    here = (struct here){.context = zmq_ctx_new(), .dir = "/tmp/rollcall-incident-XXXXXX"};
    assert_non_null(mkdtemp(here.dir));
    struct roll_root_options o = {.context = here.context,
                                  .listen = {"inproc://root"},
                                  .listens = 1,
                                  .linger_s = 1,
                                  .incident_dir = here.dir,
                                  .incident_keep = 3,
                                  .curve_dir = "/keys",
                                  .policy = ROLL_POLICY_OBSERVE};
    assert_int_equal(roll_root_new(&o, &here.root, why, sizeof(why)), 0);
    assert_int_equal(roll_run_of(here.root, "job", 0, ROLL_WORLD_UNASKED, &here.run), 0);
    now_ns = roll_mono_ns();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    child.lives = false;
    roll_root_destroy(&here.root);
    now_ns = 0;
    zmq_ctx_destroy(here.context);
    assert_int_equal(rmdir(here.dir), 0);
    return 0;
}

/* A finding about one rank is said. */
static void find(enum roll_certainty certainty, uint32_t culprit)
{
    static uint64_t number;
    struct roll_verdict verdict = {.code = ROLL_VERDICT_RANK_DEAD, .certainty = certainty, .number = ++number};
    assert_int_equal(roll_rankset_add(&verdict.culprits, culprit), 0);
    roll_incident_suspect(here.root, here.run, &verdict);
    roll_rankset_fini(&verdict.culprits);
}

/* Turns of the root's loop, two a second, for so long. */
static void pass(uint64_t ns)
{
    for (uint64_t until = now_ns + ns; now_ns < until;) {
        now_ns += until - now_ns < S / 2 ? until - now_ns : S / 2;
        (void)roll_incident_turn(here.root, now_ns, false);
    }
}

static void end_child(int status)
{
    child.lives = false;
    child.status = status;
    pass(1);
}

static void a_bundle_begins_when_a_proven_finding_has_been_followed_up(void **state)
{
    (void)state;
    find(ROLL_SUSPECTED, 1);
    pass(10 * S);
    assert_int_equal(child.begun, 0);
    find(ROLL_PROVEN, 1);
    pass(S / 2 - 1);
    assert_int_equal(child.begun, 0);
    pass(1);
    assert_int_equal(child.begun, 1);
    assert_string_equal(child.keep, "3"); /* who writes counts what is there, also of a root before this one */
    assert_string_equal(child.most, "64");
    assert_string_equal(child.most_bytes, "2G");
    assert_string_equal(child.curve, "/keys");
    assert_string_equal(child.endpoint, "inproc://root");
}

static void another_finding_makes_a_second_one_a_minute_behind_and_an_echo_none(void **state)
{
    (void)state;
    find(ROLL_PROVEN, 1);
    pass(S / 2);
    assert_int_equal(child.begun, 1);
    end_child(0);
    find(ROLL_PROVEN, 1);
    pass(200 * S);
    assert_int_equal(child.begun, 1); /* the same culprit */
    find(ROLL_PROVEN, 2);
    pass(S);
    assert_int_equal(child.begun, 2); /* more than a minute has passed */
    end_child(0);
    find(ROLL_PROVEN, 3);
    pass(58 * S);
    assert_int_equal(child.begun, 2);
    pass(2 * S);
    assert_int_equal(child.begun, 3);
    find(ROLL_PROVEN, 4); /* while it is being written, and a minute behind it: one at a time */
    pass(90 * S);
    assert_int_equal(child.begun, 3);
    end_child(0);
    assert_int_equal(child.begun, 4);
}

static void a_program_that_takes_too_long_is_pressed_and_one_that_nothing_ends_is_left(void **state)
{
    (void)state;
    find(ROLL_PROVEN, 1);
    pass(S / 2);
    pass(180 * S);
    assert_int_equal(child.signaled, 0);
    pass(S);
    assert_int_equal(child.signaled, 1);
    assert_int_equal(child.signals[0], SIGTERM);
    child.deaf = true;
    pass(5 * S);
    assert_int_equal(child.signaled, 2);
    assert_int_equal(child.signals[1], SIGKILL);
    assert_true(roll_incident_turn(here.root, now_ns, true)); /* a root that is to end waits for it */
    pass(6 * S);
    assert_false(roll_incident_turn(here.root, now_ns, true)); /* and then no more */
    find(ROLL_PROVEN, 2);
    pass(70 * S);
    assert_int_equal(child.begun, 1); /* none beside one that is held by its disk */
    end_child(SIGKILL);
    find(ROLL_PROVEN, 3);
    pass(70 * S);
    assert_int_equal(child.begun, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_bundle_begins_when_a_proven_finding_has_been_followed_up, set_up, tear_down),
        cmocka_unit_test_setup_teardown(another_finding_makes_a_second_one_a_minute_behind_and_an_echo_none, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_program_that_takes_too_long_is_pressed_and_one_that_nothing_ends_is_left,
                                        set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
