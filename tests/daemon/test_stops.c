/*
 * test_stops.c: a root or an agent that is stopped for seconds, while clients fill its queue and go away, goes on
 * afterwards, and nobody is accused; a client whose message has no end is shut out.
 *
 *   test_daemon_stops                             two stops, as ctest runs it
 *   test_daemon_stops STOPS SETS LEAST_S MOST_S   STOPS stops in all, of LEAST_S to MOST_S seconds, in SETS jobs side
 * by side: `test_daemon_stops 200 25 4 60` takes about seven minutes
 *
 * libzmq 4.3.4 aborts where a heartbeat of its own is due on a connection that has ended behind a full queue: so there
 * are no such heartbeats, and flooders that end while the root stands still are what shows it.
 */
#include "daemon/wire/net.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/raw_peer.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#define FLOODERS 4
#define RANKS    2
#define RATE     200u
#define CALLS    1000000u /* more than there is time for */

static int stops = 2, sets = 1, least_s = 5, most_s = 5;

struct set {
    char dir[64], root_dir[64], endpoint[256], root_log[32], agent_log[32];
    pid_t root, agent, rank[RANKS], flooder[FLOODERS];
};

/* A client that sends what is no frame until it is killed. It is small, and not sent as fast as it could be: so what a
 * root that stands still reads at once has more messages than fit its queue, and heartbeats among them, if there are
 * any. */
static pid_t flood(const char *endpoint)
{
    pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    void *context = zmq_ctx_new(), *socket = roll_net_dealer(context, NULL, "", 0);
    if (!socket || zmq_connect(socket, endpoint) != 0) {
        _exit(1);
    }
    for (;;) {
        (void)zmq_send(socket, "!", 1, ZMQ_DONTWAIT);
        usleep(1500);
    }
}

static void end_flood(pid_t *pid)
{
    kill(*pid, SIGKILL);
    waitpid(*pid, NULL, 0);
    *pid = 0;
}

static void start_set(struct set *s, int i)
{
    snprintf(s->dir, sizeof(s->dir), "%s/d%d", harness_dir(), i);
    snprintf(s->root_dir, sizeof(s->root_dir), "%s/r%d", harness_dir(), i);
    snprintf(s->root_log, sizeof(s->root_log), "root%d.err", i);
    snprintf(s->agent_log, sizeof(s->agent_log), "agent%d.err", i);
    s->root = DAEMON(s->root_log, s->endpoint, "--root", "--dir", s->root_dir);
    s->agent = DAEMON(s->agent_log, NULL, "--agent", "--dir", s->dir, "--connect", s->endpoint);
    assert_true(s->root > 0 && s->agent > 0);
    for (int r = 0; r < RANKS; r++) {
        s->rank[r] = harness_rank(s->dir, r, RANKS, RATE, CALLS, "wait");
    }
}

static bool lives(pid_t pid)
{
    return waitpid(pid, NULL, WNOHANG) == 0;
}

/* Flooders fill the queue of the root, and end while it stands still. */
static void stop_once(struct set *s, bool root, unsigned seconds)
{
    pid_t pid = root ? s->root : s->agent;
    for (int i = 0; i < FLOODERS; i++) {
        s->flooder[i] = flood(s->endpoint);
    }
    roll_client_t *client = harness_client(s->endpoint);
    json_int_t before = harness_has(client, NULL, "records");
    assert_true(HARNESS_UNTIL(harness_has(client, NULL, "records") > before));
    roll_client_destroy(&client);
    assert_int_equal(kill(pid, SIGSTOP), 0);
    sleep(seconds); /* this is what is tried */
    for (int i = 0; i < FLOODERS; i++) {
        end_flood(&s->flooder[i]);
    }
    assert_int_equal(kill(pid, SIGCONT), 0);
    client = harness_client(s->endpoint);
    before = harness_has(client, NULL, "records");
    assert_true(HARNESS_UNTIL(harness_has(client, NULL, "records") > before));
    assert_true(lives(s->root) && lives(s->agent));
    roll_client_destroy(&client);
}

static void end_set(struct set *s)
{
    roll_client_t *client = harness_client(s->endpoint);
    json_t *verdicts = harness_ask(client, "{s:s,s:i}", "op", "verdicts", "from", 0);
    json_t *verdict;
    size_t i;
    json_array_foreach(json_object_get(verdicts, "verdicts"), i, verdict)
    {
        /* that an agent is not heard may be noted, and is true */
        assert_string_equal(json_string_value(json_object_get(verdict, "certainty")), "note");
    }
    assert_int_equal(harness_has(client, NULL, "lost"), 0);
    json_decref(verdicts);
    roll_client_destroy(&client);
    for (int r = 0; r < RANKS; r++) {
        harness_end(s->rank[r], SIGKILL);
    }
    assert_int_equal(harness_end(s->agent, SIGTERM), 0);
    harness_end(s->root, SIGTERM);
}

/* Each set in a process of its own; a failed one shows in the sum. */
static void test_who_was_stopped_goes_on(void **state)
{
    (void)state;
    int failed = 0;
    pid_t child[64];
    assert_true(sets <= 64);
    for (int i = 0; i < sets; i++) {
        child[i] = sets > 1 ? fork() : 0;
        if (child[i] != 0) {
            continue;
        }
        struct set s = {.root = 0};
        start_set(&s, i);
        srand((unsigned)i);
        for (int n = i; n < stops; n += sets) {
            stop_once(&s, (n / sets) % 2 == 0, (unsigned)(least_s + rand() % (most_s - least_s + 1)));
        }
        end_set(&s);
        if (sets > 1) {
            _exit(0);
        }
    }
    for (int i = 0; i < sets && sets > 1; i++) {
        int status = 0;
        waitpid(child[i], &status, 0);
        failed += status != 0;
    }
    assert_int_equal(failed, 0);
}

#define HEARTBEAT_MS 2500 /* with heartbeats there would be two by then */

static void test_a_root_sends_no_heartbeats_of_zeromq(void **state)
{
    (void)state;
    char endpoint[256];
    pid_t root = DAEMON("root.err", endpoint, "--root", "--listen", "tcp://127.0.0.1:*", "--insecure");
    assert_true(root > 0);
    int fd = raw_peer(endpoint);
    struct pollfd p = {fd, POLLIN, 0};
    assert_int_equal(poll(&p, 1, HEARTBEAT_MS), 0);
    close(fd);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

static long resident_kib(pid_t pid)
{
    char path[64], line[128];
    long kib = -1;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof(line), f)) {
        if (sscanf(line, "VmHWM: %ld", &kib) == 1) {
            break;
        }
    }
    if (f) {
        fclose(f);
    }
    return kib;
}

#define PART   0x7f00u
#define ENOUGH (UINT64_C(2) << 30) /* had nobody refused it, the root would hold so much */

static void test_a_message_without_end_is_refused(void **state)
{
    (void)state;
    char endpoint[256];
    static char part[9 + PART] = {3, 0, 0, 0, 0, 0, 0, PART >> 8, 0}; /* long, and more follow */
    pid_t root = DAEMON("root.err", endpoint, "--root", "--listen", "tcp://127.0.0.1:*", "--insecure");
    assert_true(root > 0);
    int fd = raw_peer(endpoint);
    uint64_t sent = 0;
    ssize_t n;
    while (sent < ENOUGH &&
           (n = send(fd, part + sent % sizeof(part), sizeof(part) - sent % sizeof(part), MSG_NOSIGNAL)) > 0) {
        sent += (uint64_t)n;
    }
    assert_true(sent < ENOUGH);
    close(fd);
    assert_true(harness_logged("root.err", "a message without end"));
    printf("refused after %llu MiB; the root held %ld MiB at most\n", (unsigned long long)(sent >> 20),
           resident_kib(root) >> 10);
    setenv("ROLLCALL_INSECURE", "1", 1);
    roll_client_t *client = harness_client(endpoint);
    roll_client_destroy(&client);
    unsetenv("ROLLCALL_INSECURE");
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

#define PINGERS  8
#define MESSAGES 2000 /* more than any queue had: they fit the buffer that libzmq reads into at once */
#define APART    10   /* messages from PING to PING */

/* Messages with PINGs among them, for a root that stands still, and a connection that is reset: what the root then
 * finds behind a full queue are PINGs that nobody can answer. */
static void ping_and_go(int fd)
{
    static const char message[] = "\0\1!", ping[] = "\4\7\4PING\0";
    char bytes[MESSAGES * sizeof(message) + MESSAGES / APART * sizeof(ping)];
    size_t n = 0;
    for (int i = 0; i < MESSAGES; i++) {
        memcpy(bytes + n, message, 3);
        n += 3;
        if (i % APART == 0) {
            memcpy(bytes + n, ping, 9);
            n += 9;
        }
    }
    assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), n);
    struct linger reset = {.l_onoff = 1};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
    close(fd);
}

static void survives_pings(pid_t root, const char *endpoint)
{
    int fd[PINGERS];
    assert_true(root > 0);
    for (int i = 0; i < PINGERS; i++) {
        fd[i] = raw_peer(endpoint);
    }
    assert_int_equal(kill(root, SIGSTOP), 0);
    for (int i = 0; i < PINGERS; i++) {
        ping_and_go(fd[i]);
    }
    assert_int_equal(kill(root, SIGCONT), 0);
    setenv("ROLLCALL_INSECURE", "1", 1);
    roll_client_t *client = NULL;
    char why[512];
    assert_true(HARNESS_UNTIL(!lives(root) || roll_client_new(endpoint, NULL, 1000, &client, why, sizeof(why)) == 0));
    roll_client_destroy(&client);
    unsetenv("ROLLCALL_INSECURE");
    assert_true(lives(root));
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

static void test_pings_of_who_has_gone_are_survived(void **state)
{
    (void)state;
    char endpoint[256];
    pid_t root = DAEMON("root.err", endpoint, "--root", "--listen", "tcp://127.0.0.1:*", "--insecure");
    survives_pings(root, endpoint);
    root = DAEMON("local.err", endpoint, "--root", "--no-supervise", "--dir", harness_path("r"));
    assert_memory_equal(endpoint, "ipc:", 4);
    survives_pings(root, endpoint);
}

int main(int argc, char **argv)
{
    if (argc == 5) { /* the long run */
        stops = atoi(argv[1]);
        sets = atoi(argv[2]);
        least_s = atoi(argv[3]);
        most_s = atoi(argv[4]);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_who_was_stopped_goes_on, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_root_sends_no_heartbeats_of_zeromq, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_message_without_end_is_refused, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_pings_of_who_has_gone_are_survived, harness_set_up, harness_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
