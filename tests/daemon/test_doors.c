/*
 * test_doors.c: a client that comes again and again under the name of its own last connection, and leaves of each what
 * libzmq never closes: root and relay keep descriptors, and whoever comes from elsewhere is let in as ever.
 *
 * It comes from 127.0.0.2 to the root, and over a socket file to the relay; the others from 127.0.0.1.
 */
#include "daemon/wire/doors.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/zmtp_raw.h"
#include "trace/frame.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/un.h>

#define TRIES       10000
#define A_REST      2500  /* tries; after so many it rests for a second, as near its bound it is let in with pauses */
#define DESCRIPTORS 4096u /* of a daemon: fewer than would be left */
#define OTHERS      64    /* that a daemon may have opened meanwhile, for files and for those who are let in later */
#define FEW         40    /* descriptors, of which a root needs half */
#define PATIENCE_S  60    /* for an answer: only who has no descriptor left does not give one */

/* READY of a DEALER with a name. */
static const char named[] = "\x04\x2d\x05READY\x0bSocket-Type\0\0\0\x06"
                            "DEALER"
                            "\x08Identity\0\0\0\x04"
                            "evil";

static int descriptors(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    return harness_count(path, "");
}

static int connect_to(const char *endpoint)
{
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    struct sockaddr_in from = {.sin_family = AF_INET}, to = from;
    if (strncmp(endpoint, "ipc://", 6) == 0) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        snprintf(path.sun_path, sizeof(path.sun_path), "%s", endpoint + 6);
        assert_int_equal(connect(fd, (struct sockaddr *)&path, sizeof(path)), 0);
        return fd;
    }
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)atoi(strrchr(endpoint, ':') + 1));
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* Reads one short or long frame away. */
static bool skip_frame(int fd)
{
    uint8_t head[9], body[4096];
    uint64_t size = 0;
    if (!zmtp_receive(fd, head, 2)) {
        return false;
    }
    if ((head[0] & 2) == 0) {
        size = head[1];
    } else if (zmtp_receive(fd, head + 2, 7)) {
        for (int i = 1; i < 9; i++) {
            size = size << 8 | head[i];
        }
    }
    return size > 0 && size <= sizeof(body) && zmtp_receive(fd, body, size);
}

/* Comes in under the name, and asks: with the answer it has the name. -1: it is not let in. */
static int come(const char *endpoint)
{
    static const char text[] = "{\"op\":\"runs\"}";
    struct roll_frame_head head = {.type = ROLL_FRAME_QUERY, .seq = 1};
    char question[128] = {0}, theirs[ZMTP_GREETING_BYTES];
    int64_t n = roll_frame_encode(&head, text, sizeof(text) - 1, (uint8_t *)question + 2, sizeof(question) - 2);
    int fd = connect_to(endpoint);
    struct timeval end = {.tv_sec = PATIENCE_S};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &end, sizeof(end)), 0);
    errno = 0;
    question[1] = (char)n;
    if (zmtp_send(fd, zmtp_greeting, sizeof(zmtp_greeting)) && zmtp_receive(fd, theirs, sizeof(theirs)) &&
        zmtp_send(fd, named, sizeof(named) - 1) && skip_frame(fd) && zmtp_send(fd, question, (size_t)n + 2) &&
        skip_frame(fd)) {
        return fd;
    }
    assert_int_not_equal(errno, EAGAIN); /* nobody answers: it has no descriptor left */
    close(fd);
    return -1;
}

/* Where the page is, which the root has written into its log. */
static void find_page(const char *log, char *out, size_t size)
{
    static const char before[] = "metrics on port ";
    char text[4096];
    assert_true(harness_logged(log, before));
    FILE *file = fopen(harness_path(log), "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    const char *at = strstr(text, before);
    assert_non_null(at);
    snprintf(out, size, "tcp://127.0.0.1:%d", atoi(at + sizeof(before) - 1));
}

/* Asks the page from the same address, and reads the first line of the answer. */
static bool page_answers(const char *endpoint)
{
    static const char ask[] = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    char line[16] = "";
    int fd = connect_to(endpoint);
    bool answered = zmtp_send(fd, ask, sizeof(ask) - 1) && zmtp_receive(fd, line, sizeof(line) - 1);
    close(fd);
    return answered && strcmp(line, "HTTP/1.1 200 OK") == 0;
}

/* Comes TRIES times. Each time that it is let in, the connection before says a last word, and ends. Returns how often
 * it was. */
static int come_again_and_again(const char *endpoint)
{
    static const char last_word[] = {0, 1, 'x'};
    int let_in = 0, old = -1;
    for (int i = 0; i < TRIES; i++) {
        if (i % A_REST == A_REST - 1) {
            sleep(1);
        }
        int fd = come(endpoint);
        if (fd >= 0 && old >= 0) {
            assert_true(zmtp_send(old, last_word, sizeof(last_word)));
            close(old);
        }
        old = fd >= 0 ? fd : old;
        let_in += fd >= 0;
    }
    close(old);
    return let_in;
}

static void be_poor(void)
{
    struct rlimit files = {DESCRIPTORS, DESCRIPTORS};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
}

/* What has stayed is what may: some of each name that was taken, and no more than one address is let leave. */
static void assert_bounded(pid_t daemon, int before, int let_in, const char *log)
{
    int most = (int)(DESCRIPTORS / ROLL_DOORS_SHARE) + OTHERS;
    print_message("%d of %d were let in, %d descriptors stay\n", let_in, TRIES, descriptors(daemon) - before);
    assert_true(let_in > 2);
    assert_true(descriptors(daemon) - before <= most);
    assert_true(harness_logged(log, "is let in once a minute only"));
}

static void test_root_keeps_its_descriptors(void **state)
{
    (void)state;
    char endpoint[256], page[64];
    be_poor();
    setenv("ROLLCALL_INSECURE", "1", 1);
    pid_t root =
        DAEMON("root.err", endpoint, "--root", "--listen", "tcp://127.0.0.1:*", "--insecure", "--http", "127.0.0.1:0");
    assert_true(root > 0);
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", endpoint);
    pid_t rank = harness_rank(harness_path("d"), 0, 1, 200, 1000000, "wait");
    roll_client_t *client = harness_client(endpoint);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") > 0));
    int before = descriptors(root);
    int let_in = come_again_and_again(endpoint);
    assert_bounded(root, before, let_in, "root.err");
    find_page("root.err", page, sizeof(page));
    for (int i = 0; i < 3; i++) { /* nor did any of these find the one place of a minute taken, or take it */
        assert_true(page_answers(page));
    }
    json_int_t records = harness_has(client, "job", "records");
    roll_client_destroy(&client);
    client = harness_client(endpoint); /* a new one, from elsewhere */
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") > records));
    assert_int_equal(harness_drained(client, "findings"), 0);
    roll_client_destroy(&client);
    harness_end(rank, SIGKILL);
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    harness_end(root, SIGTERM); /* the rank was killed, which it may find */
    unsetenv("ROLLCALL_INSECURE");
}

static void test_relay_keeps_its_descriptors(void **state)
{
    (void)state;
    char endpoint[256], above[256], door[256];
    be_poor();
    setenv("ROLLCALL_INSECURE", "1", 1);
    snprintf(door, sizeof(door), "ipc://%s", harness_path("relay.sock"));
    pid_t root = DAEMON("root.err", above, "--root", "--listen", "tcp://127.0.0.1:*", "--insecure");
    assert_true(root > 0);
    pid_t relay = DAEMON("relay.err", endpoint, "--relay", "--listen", "tcp://127.0.0.1:*", "--listen", door,
                         "--connect", above, "--insecure");
    assert_true(relay > 0);
    int before = descriptors(relay);
    int let_in = come_again_and_again(door);
    assert_bounded(relay, before, let_in, "relay.err");
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", endpoint);
    pid_t rank = harness_rank(harness_path("d"), 0, 1, 200, 1000000, "wait");
    roll_client_t *client = harness_client(above);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") > 0));
    roll_client_destroy(&client);
    harness_end(rank, SIGKILL);
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    assert_int_equal(harness_end(relay, SIGTERM), 0);
    harness_end(root, SIGTERM); /* the rank was killed, which it may find */
    unsetenv("ROLLCALL_INSECURE");
}

/* More come over a socket file than there are descriptors: they wait, and are let in when others have gone. The last
 * test: the limit, which the root raises as far as it may, is this process's as well; its sockets are there before. */
static void test_without_a_descriptor_nothing_ends(void **state)
{
    (void)state;
    const struct rlimit few = {FEW, FEW};
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char where[256], log[8192] = "";
    int waiting[2 * FEW];
    for (int i = 0; i < 2 * FEW; i++) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        waiting[i] = fcntl(fd, F_DUPFD_CLOEXEC, 4 * FEW);
        assert_true(waiting[i] >= 0);
        close(fd);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    snprintf(at.sun_path, sizeof(at.sun_path), "%s", harness_path("root.sock"));
    snprintf(where, sizeof(where), "ipc://%s", harness_path("root.sock"));
    pid_t root = DAEMON("root.err", NULL, "--root", "--listen", where);
    assert_true(root > 0 && harness_logged("root.err", "listening on"));
    for (int i = 0; i < 2 * FEW; i++) {
        assert_int_equal(connect(waiting[i], (const struct sockaddr *)&at, sizeof(at)), 0);
    }
    assert_true(harness_logged("root.err", "who comes is not let in, and waits: Too many open files"));
    for (int i = 0; i < 2 * FEW; i++) {
        close(waiting[i]);
    }
    roll_client_t *client = harness_client(where);
    json_t *runs = harness_ask(client, "{s:s}", "op", "runs");
    assert_true(json_is_array(json_object_get(runs, "runs")));
    json_decref(runs);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(root, SIGTERM), 0);
    FILE *file = fopen(harness_path("root.err"), "r");
    assert_non_null(file);
    log[fread(log, 1, sizeof(log) - 1, file)] = '\0';
    fclose(file);
    assert_null(strstr(log, "it is started again"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, harness_set_up, harness_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_root_keeps_its_descriptors),
        TEST(test_relay_keeps_its_descriptors),
        TEST(test_without_a_descriptor_nothing_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
