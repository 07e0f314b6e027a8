/*
 * test_zmtp.c: peers that speak ZMTP by hand, or not at all: half a handshake, a close in the middle of a frame,
 * silence, a message without end. As clients of a root that has a job to watch, which must go on untouched; and in the
 * place of a root, where agent and console must neither wait for ever nor grow.
 *
 * ROLL_TEST_ROLLCALLD may name a program that starts rollcalld with another libzmq (docs/SECURITY.md says with which it
 * was tried).
 */
#include "daemon/wire/guard.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/raw_peer.h"
#include "tests/daemon/zmtp_raw.h"
#include "trace/frame.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define RANKS  2
#define AT_ONE 4 /* connections that do the same at a time */

/* clients of a root */

static bool says_nothing(int fd)
{
    return fd >= 0;
}
static bool half_a_greeting(int fd)
{
    return zmtp_send(fd, zmtp_greeting, 11);
}
static bool greets_and_waits(int fd)
{
    return zmtp_send(fd, zmtp_greeting, sizeof(zmtp_greeting));
}
static bool half_a_ready(int fd)
{
    return greets_and_waits(fd) && zmtp_send(fd, zmtp_dealer, 9);
}
static bool silent(int fd)
{
    return zmtp_greet(fd, zmtp_dealer);
}
static bool half_a_frame(int fd)
{
    static const char frame[] = {2, 0, 0, 0, 0, 0, 0, 4, 0, 'x', 'y'}; /* long, of 1,024 bytes */
    return silent(fd) && zmtp_send(fd, frame, sizeof(frame));
}
static bool a_part_of_a_message(int fd)
{
    static const char part[] = {1, 3, 'a', 'b', 'c'}; /* and more follow */
    return silent(fd) && zmtp_send(fd, part, sizeof(part));
}
static bool a_frame_of_2_to_the_60(int fd)
{
    static const char frame[] = {2, 0x10, 0, 0, 0, 0, 0, 0, 0};
    return silent(fd) && zmtp_send(fd, frame, sizeof(frame));
}
static bool a_negative_frame(int fd)
{
    static const char frame[] = {2,          (char)0xff, (char)0xff, (char)0xff, (char)0xff,
                                 (char)0xff, (char)0xff, (char)0xff, (char)0xff};
    return silent(fd) && zmtp_send(fd, frame, sizeof(frame));
}
static bool unknown_commands(int fd)
{
    static const char command[] = {4, 8, 4, 'W', 'H', 'A', 'T', 1, 2, 3};
    bool sent = silent(fd);
    for (int i = 0; i < 1000 && sent; i++) {
        sent = zmtp_send(fd, command, sizeof(command));
    }
    return true; /* it may have been shut out by then */
}
static bool web_browser(int fd)
{
    static const char get[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n";
    return zmtp_send(fd, get, sizeof(get) - 1);
}
static bool noise(int fd)
{
    unsigned char bytes[4096];
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (unsigned char)(i * 2654435761u >> 13);
    }
    return zmtp_send(fd, bytes, sizeof(bytes));
}
static bool another_mechanism(int fd)
{
    char greeting[ZMTP_GREETING_BYTES];
    memcpy(greeting, zmtp_greeting, sizeof(greeting));
    memcpy(greeting + 12, "CURVE", 5);
    return zmtp_send(fd, greeting, sizeof(greeting));
}

/* shut: the root ends the connection by itself, at the latest when a handshake has taken too long. A browser looks like
 * a peer of ZMTP 1.0, which has no handshake: libzmq 4.3.5 waits for the rest of what it takes for a frame. */
static const struct client {
    bool (*act)(int fd);
    bool shut;
} clients[] = {
    {says_nothing, true},     {half_a_greeting, true},   {greets_and_waits, true},     {half_a_ready, true},
    {silent, false},          {half_a_frame, false},     {a_part_of_a_message, false}, {a_frame_of_2_to_the_60, true},
    {a_negative_frame, true}, {unknown_commands, false}, {web_browser, false},         {noise, true},
    {another_mechanism, true}};
enum { CLIENTS = sizeof(clients) / sizeof(*clients) };

static int descriptors(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    return harness_count(path, "");
}

static bool is_shut(int fd)
{
    char byte;
    ssize_t n;
    while ((n = recv(fd, &byte, 1, MSG_DONTWAIT)) > 0) { /* its part of the handshake */
    }
    return n == 0 || (errno != EAGAIN && errno != EINTR);
}

static void test_clients_that_are_none_do_no_harm(void **state)
{
    (void)state;
    static int fd[CLIENTS][AT_ONE];
    char endpoint[256];
    pid_t rank[RANKS];
    pid_t root = DAEMON("root.err", endpoint, "--root", "--listen", "tcp://127.0.0.1:*", "--insecure");
    assert_true(root > 0);
    setenv("ROLLCALL_INSECURE", "1", 1);
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", endpoint);
    assert_true(agent > 0);
    for (int r = 0; r < RANKS; r++) {
        rank[r] = harness_rank(harness_path("d"), r, RANKS, 200, 1000000, "wait");
    }
    roll_client_t *client = harness_client(endpoint);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == RANKS));
    int before = descriptors(root);
    for (int i = 0; i < CLIENTS; i++) {
        for (int k = 0; k < AT_ONE; k++) {
            fd[i][k] = zmtp_connect(endpoint);
            assert_true(clients[i].act(fd[i][k]));
        }
    }
    json_int_t records = harness_has(client, "job", "records");
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") > records + 100)); /* with all of them there */
    for (int i = 0; i < CLIENTS; i++) {
        for (int k = 0; k < AT_ONE; k++) {
            if (clients[i].shut && !HARNESS_UNTIL(is_shut(fd[i][k]))) {
                fail_msg("client %d is let in for ever", i);
            }
            close(fd[i][k]); /* the others: in the middle */
        }
    }
    assert_true(HARNESS_UNTIL(descriptors(root) <= before));
    records = harness_has(client, "job", "records");
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") > records));
    assert_int_equal(harness_drained(client, "findings"), 0);
    assert_int_equal(harness_has(client, "job", "lost"), 0);
    roll_client_destroy(&client);
    for (int r = 0; r < RANKS; r++) {
        harness_end(rank[r], SIGKILL);
    }
    unsetenv("ROLLCALL_INSECURE");
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    harness_end(root, SIGTERM); /* the ranks were killed, which it may find */
}

/* in the place of a root */

/* What a server does with a connection; returns when it is done with it. */
static void accepts_only(int fd)
{
    (void)fd;
    sleep(1);
}
static void greets_half(int fd)
{
    (void)zmtp_send(fd, zmtp_greeting, 20);
}
static void lets_in_and_goes(int fd)
{
    (void)zmtp_greet(fd, zmtp_router);
}
static void sends_half(int fd)
{
    static const char frame[] = {2, 0, 0, 0, 0, 0, 0, 4, 0, 'x', 'y'};
    (void)(zmtp_greet(fd, zmtp_router) && zmtp_send(fd, frame, sizeof(frame)));
}
static void sends_noise(int fd)
{
    (void)(zmtp_greet(fd, zmtp_router) && noise(fd));
}
static void sends_what_is_no_frame(int fd)
{
    static const char message[] = {0, 5, 'h', 'e', 'l', 'l', 'o'};
    bool sent = zmtp_greet(fd, zmtp_router);
    for (int i = 0; i < 1000 && sent; i++) {
        sent = zmtp_send(fd, message, sizeof(message));
    }
}
static void is_another_kind(int fd)
{
    (void)zmtp_greet(fd, "\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06"
                         "DEALER");
    (void)zmtp_send(fd, "\0\1x", 3);
}

static void (*const servers[])(int fd) = {
    accepts_only, greets_half, lets_in_and_goes, sends_half, sends_noise, sends_what_is_no_frame, is_another_kind};
enum { SERVERS = sizeof(servers) / sizeof(*servers) };

/* A server in a process of its own, which counts its connections; each gets the next row. Returns its pid. */
static pid_t serve(char endpoint[64], _Atomic unsigned *count)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof(at);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)),
                     0); /* a root comes there later */
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    snprintf(endpoint, 64, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) {
            int one = accept(fd, NULL, NULL);
            servers[atomic_fetch_add(count, 1) % SERVERS](one);
            close(one);
        }
    }
    close(fd);
    return pid;
}

static void end_server(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* The agent tries again and again, keeps what it has, and gives it to the root that comes at last. */
static void test_an_agent_outlives_what_is_no_root(void **state)
{
    (void)state;
    char endpoint[64];
    pid_t rank[RANKS];
    _Atomic unsigned *count = mmap(NULL, sizeof(*count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t server = serve(endpoint, count);
    setenv("ROLLCALL_INSECURE", "1", 1);
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", endpoint);
    assert_true(agent > 0);
    for (int r = 0; r < RANKS; r++) {
        rank[r] = harness_rank(harness_path("d"), r, RANKS, 0, 5000, "wait");
    }
    assert_true(HARNESS_UNTIL(atomic_load(count) >= SERVERS)); /* each of them once */
    end_server(server);
    munmap(count, sizeof(*count));
    pid_t root = DAEMON("root.err", NULL, "--root", "--listen", endpoint, "--insecure");
    assert_true(root > 0);
    roll_client_t *client = harness_client(endpoint);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") == RANKS * 5000));
    assert_int_equal(harness_drained(client, "findings"), 0);
    assert_int_equal(harness_has(client, "job", "lost"), 0);
    roll_client_destroy(&client);
    unsetenv("ROLLCALL_INSECURE");
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(harness_end(rank[r], SIGTERM), 0);
    }
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

/* Each command ends, says that there is no root, and says so with its exit status. */
static void test_the_console_says_that_it_is_no_root(void **state)
{
    (void)state;
    char endpoint[64];
    _Atomic unsigned *count = mmap(NULL, sizeof(*count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t server = serve(endpoint, count);
    setenv("ROLLCALL_INSECURE", "1", 1);
    const char *rollcall = getenv("ROLL_TEST_ROLLCALL");
    pid_t pid[SERVERS]; /* side by side: each waits for an answer */
    for (int i = 0; i < SERVERS; i++) {
        pid[i] = SPAWN("why.err", rollcall, "why", "--daemon", endpoint);
    }
    for (int i = 0; i < SERVERS; i++) {
        assert_int_equal(harness_end(pid[i], 0), 3);
    }
    assert_true(harness_logged("why.err", "rollcall: "));
    unsetenv("ROLLCALL_INSECURE");
    end_server(server);
    munmap(count, sizeof(*count));
}

/* A QUERY as one message of ZMTP. Returns its bytes. */
static size_t make_question(char *out, size_t size)
{
    static const char text[] = "{\"op\":\"runs\"}";
    struct roll_frame_head head = {.type = ROLL_FRAME_QUERY, .seq = 1};
    int64_t n = roll_frame_encode(&head, text, sizeof(text) - 1, (uint8_t *)out + 2, size - 2);
    assert_true(n > 0 && n < 256);
    out[0] = 0;
    out[1] = (char)n;
    return (size_t)n + 2;
}

#define QUESTIONS 1000000 /* their answers would fill a root */

/* Asks without end, and reads no answer. */
static void ask_without_reading(const char *endpoint)
{
    char question[128];
    size_t bytes = make_question(question, sizeof(question));
    int fd = raw_peer(endpoint), asked = 0;
    while (asked < QUESTIONS && send(fd, question, bytes, MSG_NOSIGNAL) == (ssize_t)bytes) {
        asked++;
    }
    assert_true(asked < QUESTIONS);
    close(fd);
}

static void test_who_never_reads_is_shut_out(void **state)
{
    (void)state;
    char endpoint[256];
    pid_t root = DAEMON("root.err", endpoint, "--root", "--listen", "tcp://127.0.0.1:*", "--insecure");
    assert_true(root > 0);
    setenv("ROLLCALL_INSECURE", "1", 1);
    ask_without_reading(endpoint);
    roll_client_t *client = harness_client(endpoint);
    for (int i = 0; i < 200; i++) { /* who reads may ask as often as he likes */
        json_decref(harness_ask(client, "{s:s}", "op", "runs"));
    }
    roll_client_destroy(&client);
    unsetenv("ROLLCALL_INSECURE");
    assert_true(harness_logged("root.err", "answers that are not"));
    assert_int_equal(harness_end(root, SIGTERM), 0);
    root = DAEMON("local.err", endpoint, "--root", "--dir", harness_path("r"));
    assert_true(root > 0);
    ask_without_reading(endpoint);
    client = harness_client(endpoint);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, harness_set_up, harness_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_clients_that_are_none_do_no_harm),
        TEST(test_who_never_reads_is_shut_out),
        TEST(test_an_agent_outlives_what_is_no_root),
        TEST(test_the_console_says_that_it_is_no_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
