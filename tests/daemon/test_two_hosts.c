/*
 * test_two_hosts.c: two hosts, as network namespaces with a virtual cable between them: CURVE on the wire, an agent on
 * each, the root on the first. The cable is cut while records flow and put back: nothing is lost or taken twice, and no
 * rank is accused meanwhile.
 *
 * Needs root and the ip command; without them the test says so and is skipped (exit status 77), it does not pass.
 */
#include "daemon/wire/curve.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SKIPPED      77
#define HEAD_ADDRESS "10.231.77.1"
#define NODE_ADDRESS "10.231.77.2"
#define RANKS        4 /* two on each host */
#define RATE         5000u
#define COUNT        30000u

static char head[32], node[32]; /* names of the namespaces */

static int sh(const char *format, ...)
{
    char command[512];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof(command), format, args);
    va_end(args);
    return system(command);
}

static bool make_hosts(void)
{
    snprintf(head, sizeof(head), "rollh%d", (int)getpid());
    snprintf(node, sizeof(node), "rolln%d", (int)getpid());
    if (sh("ip netns add %s 2>/dev/null", head) != 0 || sh("ip netns add %s 2>/dev/null", node) != 0) {
        return false;
    }
    return sh("ip -n %s link add eth0 type veth peer name eth0 netns %s 2>/dev/null", head, node) == 0 &&
           sh("ip -n %s addr add " HEAD_ADDRESS "/24 dev eth0", head) == 0 &&
           sh("ip -n %s addr add " NODE_ADDRESS "/24 dev eth0", node) == 0 &&
           sh("ip -n %s link set eth0 up && ip -n %s link set eth0 up && ip -n %s link set lo up && ip -n %s link set "
              "lo up",
              head, node, head, node) == 0;
}

static void remove_hosts(void)
{
    sh("ip netns del %s 2>/dev/null", head);
    sh("ip netns del %s 2>/dev/null", node);
}

#define IN(host) "ip", "netns", "exec", (host)

/* The root in the head namespace, its first endpoint on the cable, its second a socket file for this test. */
static pid_t start_root(const char *keys)
{
    char port[64], local[300];
    snprintf(port, sizeof(port), "tcp://" HEAD_ADDRESS ":7777");
    snprintf(local, sizeof(local), "ipc://%s/local", harness_dir());
    return harness_daemon("root.err", NULL,
                          (const char *const[]){IN(head), "rollcalld", "--root", "--listen", port, "--listen", local,
                                                "--curve-dir", keys, NULL});
}

static pid_t start_agent(const char *host, const char *dir, const char *log, const char *keys)
{
    const char *const with[] = {
        IN(host),      "rollcalld", "--agent", "--dir", dir, "--connect", "tcp://" HEAD_ADDRESS ":7777",
        "--curve-dir", keys,        NULL};
    const char *const without[] = {
        IN(host), "rollcalld", "--agent", "--dir", dir, "--connect", "tcp://" HEAD_ADDRESS ":7777", NULL};
    return harness_daemon(log, NULL, keys ? with : without);
}

static roll_client_t *local_client(void)
{
    char local[300];
    snprintf(local, sizeof(local), "ipc://%s/local", harness_dir());
    return harness_client(local);
}

static void test_a_cut_cable_loses_nothing_and_accuses_nobody(void **state)
{
    (void)state;
    char why[512];
    const char *keys = harness_path("keys");
    pid_t rank[RANKS];
    assert_int_equal(roll_curve_keygen(keys, why, sizeof(why)), 0);
    pid_t root = start_root(keys);
    pid_t one = start_agent(head, harness_path("d1"), "agent1.err", keys);
    pid_t two = start_agent(node, harness_path("d2"), "agent2.err", keys);
    assert_true(root > 0 && one > 0 && two > 0);
    roll_client_t *client = local_client();
    for (int r = 0; r < RANKS; r++) {
        rank[r] = harness_rank(harness_path(r < RANKS / 2 ? "d1" : "d2"), r, RANKS, RATE, COUNT, "wait");
    }
    assert_true(harness_logged("agent2.err", "connected to"));
    assert_true(HARNESS_UNTIL(harness_has(client, NULL, "records") >= RANKS * COUNT / 5));
    assert_int_equal(sh("ip -n %s link set eth0 down", node), 0);
    usleep(2000000);
    assert_int_equal(sh("ip -n %s link set eth0 up", node), 0);
    usleep(1500000);
    assert_int_equal(sh("ip -n %s link set eth0 down", head),
                     0); /* once more, from the other end, and long enough to be noticed */
    usleep(6000000);
    assert_int_equal(sh("ip -n %s link set eth0 up", head), 0);
    assert_true(HARNESS_UNTIL(harness_has(client, NULL, "records") == RANKS * COUNT));
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(harness_end(rank[r], SIGTERM), 0);
    }
    assert_int_equal(harness_drained(client, "records"), RANKS * COUNT);
    assert_int_equal(harness_drained(client, "lost"), 0);
    json_t *verdicts = harness_ask(client, "{s:s,s:i}", "op", "verdicts", "from", 0);
    char *text = json_dumps(json_object_get(verdicts, "verdicts"), JSON_COMPACT);
    assert_string_equal(text, "[]");
    free(text);
    json_decref(verdicts);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(one, SIGTERM), 0);
    assert_int_equal(harness_end(two, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

static void test_a_mismatch_between_two_hosts_is_named(void **state)
{
    (void)state;
    char why[512];
    const char *keys = harness_path("keys");
    assert_int_equal(roll_curve_keygen(keys, why, sizeof(why)), 0);
    pid_t root = start_root(keys);
    pid_t one = start_agent(head, harness_path("d1"), "agent1.err", keys);
    pid_t two = start_agent(node, harness_path("d2"), "agent2.err", keys);
    assert_true(root > 0 && one > 0 && two > 0);
    roll_client_t *client = local_client();
    pid_t rank[3];
    rank[0] = harness_rank(harness_path("d1"), 0, 3, 1000, 100, "hang");
    rank[1] = harness_rank(harness_path("d1"), 1, 3, 1000, 100, "hang");
    rank[2] = harness_rank(harness_path("d2"), 2, 3, 1000, 100, "wrong");
    json_t *verdict = harness_verdict(client, "count-mismatch");
    assert_non_null(verdict);
    assert_string_equal(json_string_value(json_object_get(verdict, "culprits_text")), "2");
    json_decref(verdict);
    json_t *status = harness_ask(client, "{s:s}", "op", "status");
    assert_int_equal(json_array_size(json_object_get(status, "agents")), 2);
    json_decref(status);
    roll_client_destroy(&client);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(harness_end(rank[r], SIGTERM), 0);
    }
    assert_int_equal(harness_end(two, SIGTERM), 0);
    assert_int_equal(harness_end(one, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 1);
}

static void test_a_stranger_is_refused(void **state)
{
    (void)state;
    char why[512];
    const char *keys = harness_path("keys"), *other = harness_path("other");
    assert_int_equal(roll_curve_keygen(keys, why, sizeof(why)), 0);
    assert_int_equal(roll_curve_keygen(other, why, sizeof(why)), 0);
    /* The agent knows the root's public key, but is not on the root's list. */
    assert_int_equal(sh("cp '%s/server.pub' '%s/server.pub'", keys, other), 0);
    pid_t root = start_root(keys);
    pid_t stranger = start_agent(node, harness_path("d2"), "stranger.err", other);
    assert_true(root > 0 && stranger > 0);
    pid_t rank = harness_rank(harness_path("d2"), 0, 1, 1000, 100, "wait");
    assert_true(harness_logged("root.err", "key refused"));
    assert_true(harness_logged("stranger.err", "key refused"));
    assert_int_equal(harness_end(stranger, SIGTERM), 0);
    pid_t naked = start_agent(node, harness_path("d2"), "naked.err", NULL); /* no keys at all */
    assert_true(naked > 0);
    assert_true(harness_logged("root.err", "handshake failed"));
    roll_client_t *client = local_client();
    json_t *status = harness_ask(client, "{s:s}", "op", "status");
    assert_non_null(json_object_get(status, "error")); /* no run: nothing of theirs was taken */
    json_decref(status);
    assert_int_equal(harness_end(naked, SIGTERM), 0);
    /* The same agent with its key on the list is welcome, without a restart of the root. */
    assert_int_equal(sh("cp '%s/client.pub' '%s/allowed/node.pub'", other, keys), 0);
    pid_t welcome = start_agent(node, harness_path("d2"), "welcome.err", other);
    assert_true(welcome > 0);
    assert_true(harness_logged("welcome.err", "connected to"));
    assert_int_equal(harness_drained(client, "records"), 100);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(rank, SIGTERM), 0);
    assert_int_equal(harness_end(welcome, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, harness_set_up, harness_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_cut_cable_loses_nothing_and_accuses_nobody),
        TEST(test_a_mismatch_between_two_hosts_is_named),
        TEST(test_a_stranger_is_refused),
    };
    if (geteuid() != 0) {
        printf("SKIPPED: two hosts need network namespaces, and those need root: run this test as root (sudo ctest -R "
               "two_hosts)\n");
        return SKIPPED;
    }
    if (!make_hosts()) {
        remove_hosts();
        printf("SKIPPED: network namespaces cannot be made here (ip netns, from iproute2, and CAP_SYS_ADMIN are "
               "needed)\n");
        return SKIPPED;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove_hosts();
    return failed;
}
