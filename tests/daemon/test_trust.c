/*
 * test_trust.c: who gets in at a root, and what each of them may do: real sockets, real keys, another user.
 */
#include "daemon/wire/curve.h"
#include "tests/daemon/harness.h"
#include "trace/err.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define REFUSED_MS 1500 /* who is let in is answered at once; who is not is never answered */

static char endpoint[256], why[512];

static int ask_as(const char *cookie)
{
    roll_client_t *client = NULL;
    setenv("ROLLCALL_COOKIE", cookie, 1);
    int err = roll_client_new(endpoint, NULL, REFUSED_MS, &client, why, sizeof(why));
    roll_client_destroy(&client);
    setenv("ROLLCALL_COOKIE", harness_path("cookie"), 1);
    return err;
}

static void test_a_port_of_this_host_needs_the_cookie(void **state)
{
    (void)state;
    pid_t root = DAEMON("root.err", endpoint, "--root", "--listen", "tcp://127.0.0.1:*");
    assert_true(root > 0);
    roll_client_t *client = harness_client(endpoint); /* by the cookie of this test */
    roll_client_destroy(&client);
    assert_int_equal(ask_as(harness_path("another-cookie")), ROLL_E_UNREACHABLE);
    setenv("ROLLCALL_INSECURE", "1", 1); /* without any */
    assert_int_equal(ask_as(harness_path("cookie")), ROLL_E_UNREACHABLE);
    unsetenv("ROLLCALL_INSECURE");
    assert_true(harness_logged("root.err", "from 127.0.0.1: handshake failed: the peer has no CURVE keys, or the "
                                           "wrong server.pub"));
    client = harness_client(endpoint);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

static void test_another_user_of_this_host_gets_nothing(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        printf("skipped: only root can be another user\n");
        return;
    }
    pid_t root = DAEMON("root.err", endpoint, "--root", "--dir", harness_path("d"), "--listen", "tcp://127.0.0.1:*");
    assert_true(root > 0);
    assert_int_equal(chmod(harness_dir(), 0755), 0); /* what is shut are the files themselves */
    char socket[300];
    snprintf(socket, sizeof(socket), "ipc://%s", harness_path("d/root"));
    pid_t pid = fork();
    if (pid == 0) {
        roll_client_t *client = NULL;
        bool refused = setgid(65534) == 0 && setuid(65534) == 0 &&
                       roll_client_new(endpoint, NULL, REFUSED_MS, &client, why, sizeof(why)) != 0 && /* the cookie */
                       setenv("ROLLCALL_INSECURE", "1", 1) == 0 &&
                       roll_client_new(endpoint, NULL, REFUSED_MS, &client, why, sizeof(why)) != 0 &&
                       roll_client_new(socket, NULL, REFUSED_MS, &client, why, sizeof(why)) != 0;
        _exit(refused ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

static roll_client_t *client_of(const char *folder)
{
    roll_client_t *client = NULL;
    if (roll_client_new(endpoint, harness_path(folder), HARNESS_END_MS, &client, why, sizeof(why)) != 0) {
        fail_msg("%s: %s", folder, why);
    }
    return client;
}

/* Whether the answer to a query is a refusal for want of a role. */
static bool may(roll_client_t *client, const char *op, const char *key, const char *value)
{
    json_t *reply =
        key ? harness_ask(client, "{s:s,s:s}", "op", op, key, value) : harness_ask(client, "{s:s}", "op", op);
    const char *error = json_string_value(json_object_get(reply, "error"));
    bool allowed = !error || strstr(error, "this key may") == NULL;
    json_decref(reply);
    return allowed;
}

static void test_each_key_may_do_what_its_role_says(void **state)
{
    (void)state;
    static const struct {
        const char *folder, *role;
        bool asks, switches;
    } keys[] = {{"keys", NULL, true, true},
                {"keys/eve", "viewer", true, false},
                {"keys/ops", "operator", true, true},
                {"keys/n1", "node", false, false}};
    const char *dir = harness_path("keys");
    assert_int_equal(roll_curve_keygen(dir, why, sizeof(why)), 0);
    for (size_t i = 1; i < sizeof(keys) / sizeof(*keys); i++) {
        assert_int_equal(roll_curve_keygen_client(dir, keys[i].folder + 5, keys[i].role, NULL, why, sizeof(why)), 0);
    }
    pid_t root = DAEMON("root.err", endpoint, "--root", "--listen", "tcp://127.0.0.1:*", "--curve-dir", dir);
    assert_true(root > 0);
    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
        roll_client_t *client = client_of(keys[i].folder);
        assert_int_equal(may(client, "status", NULL, NULL), keys[i].asks);
        assert_int_equal(may(client, "runs", NULL, NULL), keys[i].asks);
        assert_int_equal(may(client, "subscribe", NULL, NULL), keys[i].asks);
        assert_int_equal(may(client, "remedy", "action", "list"), keys[i].asks);
        assert_int_equal(may(client, "remedy", "action", "on"), keys[i].switches);
        assert_int_equal(may(client, "policy", "policy", "auto"), keys[i].switches);
        assert_int_equal(may(client, "stacks", NULL, NULL), keys[i].switches);
        roll_client_destroy(&client);
    }
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

static void test_an_agent_needs_a_key_of_its_host(void **state)
{
    (void)state;
    char host[64] = "";
    const char *dir = harness_path("keys");
    assert_int_equal(gethostname(host, sizeof(host) - 1), 0);
    assert_int_equal(roll_curve_keygen(dir, why, sizeof(why)), 0);
    assert_int_equal(roll_curve_keygen_client(dir, "eve", "viewer", NULL, why, sizeof(why)), 0);
    assert_int_equal(roll_curve_keygen_client(dir, "far", "node", "another-host", why, sizeof(why)), 0);
    assert_int_equal(roll_curve_keygen_client(dir, "here", "node", host, why, sizeof(why)), 0);
    pid_t root = DAEMON("root.err", endpoint, "--root", "--listen", "tcp://127.0.0.1:*", "--curve-dir", dir);
    assert_true(root > 0);
    pid_t eve = DAEMON("eve.err", NULL, "--agent", "--dir", harness_path("d1"), "--connect", endpoint, "--curve-dir",
                       harness_path("keys/eve"));
    assert_true(harness_logged("root.err", "a bad frame from a peer: this key is for looking and may not report"));
    assert_true(harness_logged("eve.err", "agent: the root refuses what is sent: this key is for looking and may not "
                                          "report: ranks and agents take one with the role node"));
    pid_t far = DAEMON("far.err", NULL, "--agent", "--dir", harness_path("d2"), "--connect", endpoint, "--curve-dir",
                       harness_path("keys/far"));
    assert_true(harness_logged("root.err", "has the key of host another-host: refused"));
    pid_t here = DAEMON("here.err", NULL, "--agent", "--dir", harness_path("d3"), "--connect", endpoint, "--curve-dir",
                        harness_path("keys/here"));
    pid_t ranks[3] = {harness_rank(harness_path("d1"), 0, 1, 1000, 40, "wait"),
                      harness_rank(harness_path("d2"), 0, 1, 1000, 30, "wait"),
                      harness_rank(harness_path("d3"), 0, 1, 1000, 20, "wait")};
    roll_client_t *client = client_of("keys");
    assert_true(HARNESS_UNTIL(harness_has(client, NULL, "records") == 20));
    assert_int_equal(harness_drained(client, "records"), 20); /* and nothing of the others */
    json_t *status = harness_ask(client, "{s:s}", "op", "status");
    assert_int_equal(json_array_size(json_object_get(status, "agents")), 1);
    json_decref(status);
    roll_client_destroy(&client);
    for (int i = 0; i < 3; i++) {
        harness_end(ranks[i], SIGTERM);
    }
    harness_end(eve, SIGTERM);
    harness_end(far, SIGTERM);
    assert_int_equal(harness_end(here, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, harness_set_up, harness_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_port_of_this_host_needs_the_cookie),
        TEST(test_another_user_of_this_host_gets_nothing),
        TEST(test_each_key_may_do_what_its_role_says),
        TEST(test_an_agent_needs_a_key_of_its_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
