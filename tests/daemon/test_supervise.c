/*
 * test_supervise.c: a worker that dies is started again where it was, and what both processes are told is told once.
 */
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEATHS 10 /* ROLL_SUPERVISE_DEATHS */

static char endpoint[256];

static int set_up(void **state)
{
    int err = harness_set_up(state);
    harness_supervised = true;
    return err;
}

/* The worker of a supervisor, waited for; never `not`. */
static pid_t worker_of(pid_t supervisor, pid_t not )
{
    char path[64];
    int worker = 0;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)supervisor, (int)supervisor);
    for (int waited = 0; waited < HARNESS_END_MS && (worker <= 0 || worker == not ); waited += 2) {
        FILE *f = fopen(path, "r");
        worker = 0;
        if (!f || fscanf(f, "%d", &worker) != 1) {
            worker = 0;
        }
        if (f) {
            fclose(f);
        }
        usleep(2000);
    }
    return worker;
}

static void kill_worker(pid_t supervisor, const char *what)
{
    pid_t worker = worker_of(supervisor, 0);
    uint64_t begin = synth_mono_ns();
    assert_int_equal(kill(worker, SIGKILL), 0);
    assert_true(worker_of(supervisor, worker) > 0);
    printf("the %s is back after %.0f ms\n", what, (double)(synth_mono_ns() - begin) * 1e-6);
}

static void test_a_root_and_an_agent_that_are_killed_go_on(void **state)
{
    (void)state;
    pid_t root = DAEMON("root.err", endpoint, "--root", "--listen", "tcp://127.0.0.1:*");
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", endpoint);
    assert_true(root > 0 && agent > 0);
    roll_client_t *client = harness_client(endpoint);
    pid_t rank = harness_rank(harness_path("d"), 0, 1, 2000, 6000, "wait");
    assert_true(HARNESS_UNTIL(harness_has(client, NULL, "records") >= 1000));
    kill_worker(agent, "agent");
    assert_true(HARNESS_UNTIL(harness_has(client, NULL, "records") >= 2000));
    roll_client_destroy(&client);
    kill_worker(root, "root");
    client = harness_client(endpoint); /* a port that the system had chosen, and the same again */
    assert_true(HARNESS_UNTIL(harness_has(client, NULL, "records") == 6000));
    assert_int_equal(harness_has(client, NULL, "lost"), 0);
    assert_true(harness_logged("root.err", "was ended by signal 9 (Killed); it is started again (1 time within"));
    assert_true(harness_logged("agent.err", "was ended by signal 9 (Killed); it is started again (1 time within"));
    assert_int_equal(harness_end(rank, SIGTERM), 0);
    assert_int_equal(harness_drained(client, "records"), 6000);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

static void test_a_worker_that_dies_again_and_again_is_given_up(void **state)
{
    (void)state;
    pid_t root = DAEMON("root.err", endpoint, "--dir", harness_path("d"));
    assert_true(root > 0);
    for (int i = 0; i < DEATHS; i++) {
        pid_t worker = worker_of(root, 0);
        assert_int_equal(kill(worker, SIGKILL), 0);
        assert_true(worker_of(root, worker) > 0);
    }
    kill(worker_of(root, 0), SIGKILL);
    assert_int_equal(harness_end(root, 0), 3);
    assert_true(harness_logged("root.err", "it is not started again"));
}

static void test_a_signal_to_both_is_one_wish(void **state)
{
    (void)state;
    struct stat st;
    pid_t root = DAEMON("root.err", endpoint, "--dir", harness_path("d"));
    pid_t worker = worker_of(root, 0);
    assert_int_equal(stat(harness_path("d/root"), &st), 0);
    kill(worker, SIGTERM);
    assert_int_equal(harness_end(root, SIGTERM), 0);
    assert_int_not_equal(stat(harness_path("d/root"), &st), 0); /* in good order */
    root = DAEMON("root.err", endpoint, "--dir", harness_path("d"));
    kill(worker_of(root, 0), SIGINT); /* to the worker alone: it ends, and is not started again */
    assert_int_equal(harness_end(root, 0), 0);
    assert_int_not_equal(stat(harness_path("d/root"), &st), 0);
}

static void test_a_worker_does_not_outlive_its_supervisor(void **state)
{
    (void)state;
    pid_t root = DAEMON("root.err", endpoint, "--dir", harness_path("d"));
    pid_t worker = worker_of(root, 0);
    assert_int_equal(harness_end(root, SIGKILL), 128 + SIGKILL);
    assert_true(HARNESS_UNTIL(kill(worker, 0) != 0));
    root = DAEMON("root.err", endpoint, "--dir", harness_path("d")); /* and nothing of it is in the way */
    assert_true(root > 0);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

static void test_what_cannot_start_is_told_once(void **state)
{
    (void)state;
    pid_t root = SPAWN("bad.err", "rollcalld", "--dir", harness_path("d"), "--http", "nonsense");
    assert_int_equal(harness_end(root, 0), 2);
    assert_true(harness_logged("bad.err", "--http"));
}

static void test_a_daemon_in_the_background_is_supervised(void **state)
{
    (void)state;
    const char *dir = harness_path("d");
    pid_t starter = SPAWN("start.err", "rollcalld", "--detach", "--dir", dir);
    assert_int_equal(harness_end(starter, 0), 0);
    int pid = 0;
    FILE *f = fopen(harness_path("d/agent.lock"), "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &pid), 1);
    fclose(f);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_true(harness_logged("d/root.log", "it is started again"));
    int again = pid;
    assert_true(HARNESS_UNTIL(({
        f = fopen(harness_path("d/agent.lock"), "r");
        if (!f || fscanf(f, "%d", &again) != 1) {
            again = pid;
        }
        if (f) {
            fclose(f);
        }
        again != pid;
    })));
    assert_int_equal(kill(again, SIGTERM), 0);
    assert_true(HARNESS_UNTIL(access(harness_path("d/agent.lock"), F_OK) != 0));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, harness_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_root_and_an_agent_that_are_killed_go_on),
        TEST(test_a_worker_that_dies_again_and_again_is_given_up),
        TEST(test_a_signal_to_both_is_one_wish),
        TEST(test_a_worker_does_not_outlive_its_supervisor),
        TEST(test_what_cannot_start_is_told_once),
        TEST(test_a_daemon_in_the_background_is_supervised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
