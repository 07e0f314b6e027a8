/*
 * test_bad_input.c: wrong input gets one clear line and the documented exit code, and disturbs nothing else.
 */
#include "daemon/wire/net.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"
#include "trace/err.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

static char endpoint[256];

static void refused(int code, const char *text, const char *const *argv)
{
    static int turn;
    char log[32];
    snprintf(log, sizeof(log), "bad%d.err", turn++);
    pid_t pid = harness_spawn(log, argv);
    assert_int_equal(harness_end(pid, 0), code);
    if (!harness_logged(log, text)) {
        fail_msg("'%s' is not in %s", text, log);
    }
    FILE *f = fopen(harness_path(log), "r");
    int lines = 0, c;
    while ((c = fgetc(f)) != EOF) {
        lines += c == '\n';
    }
    fclose(f);
    assert_int_equal(lines, 1);
}
#define REFUSED(code, text, ...) refused((code), (text), (const char *const[]){"rollcalld", __VA_ARGS__, NULL})

static void test_bad_options_get_one_line_and_code_2(void **state)
{
    (void)state;
    const char *dir = harness_path("d");
    REFUSED(2, "unknown option '--nonsense'", "--nonsense");
    REFUSED(2, "needs a value", "--dir");
    REFUSED(2, "unexpected argument", "words");
    REFUSED(2, "choose one of", "--agent", "--root");
    REFUSED(2, "--connect", "--agent", "--dir", dir);
    REFUSED(2, "not an endpoint", "--listen", "http://x");
    REFUSED(2, "not an endpoint", "--listen", "tcp://127.0.0.1:99999");
    REFUSED(2, "not an endpoint", "--listen", "ipc://@open-to-all", "--dir", dir);
    REFUSED(2, "none of observe", "--policy", "hope", "--dir", dir);
    REFUSED(2, "seconds", "--linger", "soon", "--dir", dir);
    REFUSED(2, "need --trace", "--trace-limit", "1G", "--dir", dir);
    REFUSED(2, "not a size", "--trace", "t", "--trace-limit", "1X", "--dir", dir);
    REFUSED(2, "not a size", "--trace", "t", "--trace-segment", "4K", "--dir", dir);
    REFUSED(2, "not a size", "--trace", "t", "--trace-segment", "99999999999999G", "--dir", dir);
    REFUSED(2, "not a time", "--trace", "t", "--trace-age", "soon", "--dir", dir);
    REFUSED(2, "belongs to the root, not to --agent", "--agent", "--connect", "tcp://127.0.0.1:1", "--json", "x",
            "--dir", dir);
    REFUSED(2, "--parent needs --linger", "--parent", "1", "--dir", dir);
}

static void test_what_cannot_be_had_gets_one_line_and_code_3(void **state)
{
    (void)state;
    const char *dir = harness_path("d");
    REFUSED(3, "/dev/null/x", "--dir", "/dev/null/x");
    REFUSED(3, "--json", "--dir", dir, "--json", "/dev/null/x/y");
    REFUSED(3, "--trace", "--dir", dir, "--trace", "/dev/null/x");
    REFUSED(3, "--trace", "--agent", "--dir", dir, "--connect", "tcp://127.0.0.1:1", "--trace", "/dev/null/x");
    if (geteuid() != 0) {
        REFUSED(3, "another user", "--dir", dir, "--trace", "/usr");
    } else {
        assert_int_equal(mkdir(harness_path("theirs"), 0755), 0);
        assert_int_equal(chown(harness_path("theirs"), 65534, 65534), 0);
        REFUSED(3, "another user", "--dir", dir, "--trace", harness_path("theirs"));
        REFUSED(3, "another user", "--agent", "--dir", dir, "--connect", "tcp://127.0.0.1:1", "--trace",
                harness_path("theirs"));
    }
    REFUSED(3, "cannot listen", "--dir", dir, "--listen", "tcp://203.0.113.7:7001", "--insecure");
    REFUSED(2, "not an address", "--dir", dir, "--http", "nonsense");
    assert_int_equal(harness_count(dir, ""), 0);
    assert_int_equal(chmod(dir, 0777), 0);
    REFUSED(3, "writable by nobody else", "--dir", dir);
}

static void test_beyond_loopback_needs_keys(void **state)
{
    (void)state;
    const char *dir = harness_path("d");
    REFUSED(3, "rollcall keygen", "--dir", dir, "--listen", "tcp://0.0.0.0:0");
    REFUSED(3, "rollcall keygen", "--dir", dir, "--listen", "tcp://*:0");
    REFUSED(3, "server.pub", "--dir", dir, "--listen", "tcp://0.0.0.0:0", "--curve-dir", harness_path("no-keys"));
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", dir, "--listen", "tcp://0.0.0.0:*", "--insecure");
    assert_true(daemon > 0);
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
    daemon = DAEMON("daemon.err", endpoint, "--dir", dir, "--listen", "tcp://127.0.0.1:*");
    assert_true(daemon > 0);
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
}

static void test_a_second_agent_on_the_directory_is_refused(void **state)
{
    (void)state;
    const char *dir = harness_path("d");
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", dir);
    assert_true(daemon > 0);
    REFUSED(3, "already serves", "--dir", dir);
    REFUSED(3, "already serves", "--agent", "--dir", dir, "--connect", endpoint);
    REFUSED(3, "already serves", "--root", "--dir", dir);
    pid_t quiet = SPAWN("quiet.err", "rollcalld", "--agent", "--if-none", "--dir", dir, "--connect", endpoint);
    assert_int_equal(harness_end(quiet, 0), 0);
    struct stat st;
    assert_int_equal(stat(harness_path("d/root"), &st), 0);
    assert_true(S_ISSOCK(st.st_mode));
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(stat(harness_path("quiet.err"), &st), 0);
    assert_int_equal(st.st_size, 0);
    roll_client_t *client = harness_client(endpoint); /* the first agent is unharmed */
    roll_client_destroy(&client);
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
}

static void test_a_ring_of_another_version_gets_one_line(void **state)
{
    (void)state;
    struct synth s;
    const char *dir = harness_path("d");
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(synth_open(&s, dir, "old", 0, 1, 64), 0);
    s.ring.header->version = 9;
    s.ring.header->oldest = 9;
    synth_close(&s);
    FILE *f = fopen(harness_path("d/short.0.0.1.ring"), "w");
    fputs("ROLLRING, and then nothing", f);
    fclose(f);
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", dir);
    assert_true(daemon > 0);
    assert_true(harness_logged("daemon.err", "written by an incompatible version; this ring is ignored"));
    assert_true(harness_logged("daemon.err", "short.0.0.1.ring: truncated"));
    usleep(2500000); /* two more scans, which must not repeat a line */
    char command[512];
    snprintf(command, sizeof(command), "test $(grep -c 'this ring is ignored' '%s') = 2", harness_path("daemon.err"));
    assert_int_equal(system(command), 0);
    pid_t rank = harness_rank(dir, 0, 1, 1000, 50, "exit"); /* the good ring is served */
    assert_int_equal(harness_end(rank, 0), 0);
    roll_client_t *client = harness_client(endpoint);
    assert_int_equal(harness_drained(client, "records"), 50);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
}

#define CROWD 40

/* How many ranks are in this state, once that is `want` or the time is over. */
static int in_state(roll_client_t *client, const char *name, int want)
{
    int n = -1;
    for (int i = 0; i < HARNESS_END_MS / 20 && n != want; i++) {
        json_t *status = harness_ask(client, "{s:s}", "op", "status"), *rank;
        size_t k;
        n = 0;
        json_array_foreach(json_object_get(status, "ranks"), k, rank)
        {
            n += strcmp(json_string_value(json_object_get(rank, "state")), name) == 0;
        }
        json_decref(status);
        usleep(20000);
    }
    return n;
}

static void test_more_ranks_than_descriptors_are_all_watched(void **state)
{
    (void)state;
    const char *dir = harness_path("d");
    pid_t rank[CROWD];
    assert_int_equal(mkdir(dir, 0700), 0);
    for (int r = 0; r < CROWD; r++) {
        rank[r] = harness_rank(dir, r, CROWD, 1000, 20, "wait");
    }
    for (int r = 0; r < CROWD; r++) { /* all are silent: their rings do not show that they live */
        assert_true(HARNESS_UNTIL(harness_calls(dir, r, CROWD, rank[r]) == 20));
    }
    pid_t daemon = harness_daemon("daemon.err", endpoint,
                                  (const char *const[]){"prlimit", "--nofile=40:40", "rollcalld", "--dir", dir, NULL});
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    assert_int_equal(in_state(client, "running", CROWD), CROWD);
    assert_int_equal(harness_drained(client, "records"), CROWD * 20);
    assert_int_equal(harness_drained(client, "verdicts"), 0);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(harness_end(rank[CROWD / 4 * r], SIGKILL), 128 + SIGKILL);
    }
    assert_int_equal(in_state(client, "dead", 4), 4);
    assert_int_equal(in_state(client, "running", CROWD - 4), CROWD - 4);
    for (int r = 0; r < CROWD; r++) {
        assert_true(r % (CROWD / 4) == 0 || harness_end(rank[r], SIGTERM) == 0);
    }
    assert_true(HARNESS_UNTIL(harness_count(dir, ".ring") <= 4));
    assert_int_equal(harness_count(dir, ".ring"), 4); /* the evidence of the dead */
    roll_client_destroy(&client);
    harness_end(daemon, SIGTERM);
}

static void test_garbage_on_the_socket_is_answered_and_survived(void **state)
{
    (void)state;
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"));
    assert_true(daemon > 0);
    void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_DEALER);
    int linger = 0, timeout = HARNESS_END_MS;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger));
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &timeout, sizeof(timeout));
    assert_int_equal(zmq_connect(socket, endpoint), 0);
    zmq_send(socket, "garbage", 7, 0);
    uint8_t buffer[4096];
    int n = zmq_recv(socket, buffer, sizeof(buffer), 0);
    struct roll_frame frame;
    assert_true(n > 0);
    assert_int_equal(roll_frame_decode(buffer, (size_t)n, &frame, NULL), 0);
    assert_int_equal(frame.head.type, ROLL_FRAME_ERROR);
    zmq_send(socket, "", 0, ZMQ_SNDMORE); /* many parts, of every type, none of them announced */
    for (uint16_t type = 0; type < 40; type++) {
        struct roll_frame_head head = {.type = type, .seq = type, .stream = 1};
        roll_net_send(socket, NULL, 0, &head, "{}", 2);
    }
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < 20000; i++) {
        for (size_t k = 0; k < 128; k += 8) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            memcpy(buffer + k, &x, 8);
        }
        zmq_send(socket, buffer, x % 128, ZMQ_DONTWAIT);
    }
    roll_client_t *client = harness_client(endpoint);
    json_t *reply = harness_ask(client, "{s:s}", "op", "status");
    json_decref(reply);
    roll_client_destroy(&client);
    zmq_close(socket);
    zmq_ctx_term(context);
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
}

static void test_a_detached_agent_ends_by_itself_and_leaves_nothing(void **state)
{
    (void)state;
    const char *dir = harness_path("d");
    pid_t root = DAEMON("root.err", endpoint, "--root", "--listen", "tcp://127.0.0.1:*");
    assert_true(root > 0);
    assert_int_equal(mkdir(dir, 0700), 0);
    pid_t rank =
        harness_rank(dir, 0, 1, 1000, 50, "wait"); /* first: an agent that lingers 1 s may be faster than a rank */
    assert_true(HARNESS_UNTIL(harness_count(dir, ".ring") == 1));
    pid_t starter = SPAWN("start.err", "rollcalld", "--agent", "--detach", "--if-none", "--linger", "1", "--own-dir",
                          "--dir", dir, "--connect", endpoint);
    assert_int_equal(harness_end(starter, 0), 0);
    assert_int_equal(harness_count(dir, "agent.lock"), 1);
    assert_int_equal(harness_end(rank, SIGTERM), 0);
    assert_true(HARNESS_UNTIL(access(dir, F_OK) != 0));
    roll_client_t *client = harness_client(endpoint);
    json_t *status = harness_ask(client, "{s:s}", "op", "status");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(status, "summary"), "records")), 50);
    json_decref(status);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

static void test_an_unreachable_root_is_said_to_the_console(void **state)
{
    (void)state;
    roll_client_t *client = NULL;
    char why[512] = "";
    assert_int_equal(roll_client_new("tcp://127.0.0.1:9", NULL, 300, &client, why, sizeof(why)), ROLL_E_UNREACHABLE);
    assert_non_null(strstr(why, "no answer from tcp://127.0.0.1:9"));
    assert_int_equal(roll_client_new("nonsense", NULL, 300, &client, why, sizeof(why)), ROLL_E_ARG);
    assert_null(client);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, harness_set_up, harness_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_bad_options_get_one_line_and_code_2),
        TEST(test_what_cannot_be_had_gets_one_line_and_code_3),
        TEST(test_beyond_loopback_needs_keys),
        TEST(test_a_second_agent_on_the_directory_is_refused),
        TEST(test_a_ring_of_another_version_gets_one_line),
        TEST(test_more_ranks_than_descriptors_are_all_watched),
        TEST(test_garbage_on_the_socket_is_answered_and_survived),
        TEST(test_a_detached_agent_ends_by_itself_and_leaves_nothing),
        TEST(test_an_unreachable_root_is_said_to_the_console),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
