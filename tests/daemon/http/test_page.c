/*
 * test_page.c: the page over real HTTP on loopback, without a browser: questions that travel to another thread and
 * back, and listeners that read, read slowly, or do not read.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/http/auth_digest.h"
#include "daemon/http/metrics.h"
#include "daemon/http/page.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define LARGE   (4u << 20)
#define END_MS  120000 /* that only a hang reaches */
#define VIEWER  "11111111111111111111111111111111"
#define OPERATE "22222222222222222222222222222222"

static roll_page_t *page;
static roll_metrics_t *server;

static void fill(void *arg, struct roll_metrics_snapshot *snapshot)
{
    (void)arg, (void)snapshot;
}

static int set_up(void **state)
{
    (void)state;
    return roll_page_new(VIEWER, OPERATE, &page) != 0 ||
           roll_metrics_new("127.0.0.1:0", fill, NULL, page, &server) != 0;
}

static int tear_down(void **state)
{
    (void)state;
    roll_metrics_destroy(&server);
    roll_page_destroy(&page);
    return 0;
}

static int connected(int receive_bytes)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)roll_metrics_port(server)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {.tv_sec = END_MS / 1000};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (receive_bytes > 0) {
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    }
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* Reads until the text has come, or the end; returns what came, terminated (static). */
static char *read_until(int fd, const char *text)
{
    static char got[2 * LARGE];
    size_t used = 0;
    got[0] = '\0';
    while (used < sizeof(got) - 1 && (text == NULL || strstr(used > 9000 ? got + used - 9000 : got, text) == NULL)) {
        ssize_t n = recv(fd, got + used, sizeof(got) - 1 - used < 8192 ? sizeof(got) - 1 - used : 8192, 0);
        if (n <= 0) {
            break;
        }
        used += (size_t)n;
        got[used] = '\0';
    }
    return got;
}

/* Sends a request with the password of this user, for a nonce that is asked for first. */
static int begin_request(const char *method, const char *target, const char *user, const char *word, const char *more,
                         int receive_bytes)
{
    struct roll_auth a = {.realm = "rollcall", .cnonce = "c", .qop = "auth", .nc = "00000001"};
    char request[2048];
    int fd = connected(0);
    snprintf(request, sizeof(request), "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_true(send(fd, request, strlen(request), MSG_NOSIGNAL) > 0);
    const char *challenge = read_until(fd, NULL), *nonce = strstr(challenge, "nonce=\"");
    close(fd);
    assert_true(strstr(challenge, " 401 Unauthorized\r\n") && nonce);
    assert_int_equal(sscanf(nonce, "nonce=\"%48[0-9a-f]\"", a.nonce), 1);
    snprintf(a.username, sizeof(a.username), "%s", user);
    snprintf(a.uri, sizeof(a.uri), "%s", target);
    char response[ROLL_AUTH_RESPONSE_BYTES];
    roll_auth_response(&a, method, word, response);
    snprintf(request, sizeof(request),
             "%s %s HTTP/1.1\r\nHost: localhost:1\r\nConnection: close\r\n%sContent-Length: 0\r\nAuthorization: Digest "
             "username=\"%s\", realm=\"rollcall\", nonce=\"%s\", uri=\"%s\", algorithm=SHA-256, qop=auth, "
             "nc=00000001, cnonce=\"c\", response=\"%s\"\r\n\r\n",
             method, target, more, user, a.nonce, a.uri, response);
    fd = connected(receive_bytes);
    assert_true(send(fd, request, strlen(request), MSG_NOSIGNAL) > 0);
    return fd;
}

static bool comes(void)
{
    struct pollfd p = {.fd = roll_page_fd(page), .events = POLLIN};
    return poll(&p, 1, END_MS) == 1;
}

static void a_question_is_answered_by_another_thread(void **state)
{
    (void)state;
    struct roll_page_ask ask;
    int fd = begin_request("GET", "/api/ask/why?rank=3&job=a%20b", "viewer", VIEWER, "", 0);
    assert_true(comes());
    assert_true(roll_page_take(page, &ask));
    assert_string_equal(ask.op, "why");
    assert_false(ask.operates);
    assert_int_equal(ask.args, 2);
    bool first = strcmp(ask.arg[0].name, "rank") == 0;
    assert_string_equal(ask.arg[first ? 0 : 1].value, "3");
    assert_string_equal(ask.arg[first ? 1 : 0].value, "a b");
    assert_false(roll_page_take(page, &ask));
    roll_page_answer(page, ask.number, 200, strdup("{\"text\":\"so\"}"));
    const char *got = read_until(fd, NULL);
    assert_true(strstr(got, "HTTP/1.1 200 OK\r\n") && strstr(got, "{\"text\":\"so\"}"));
    assert_true(strstr(got, "Content-Security-Policy: default-src 'none'"));
    close(fd);
}

static void only_the_operator_on_the_page_itself_posts(void **state)
{
    (void)state;
    static const struct {
        const char *user, *word, *origin;
        bool taken;
    } rows[] = {
        {"viewer", VIEWER, "Origin: http://localhost:1\r\n", false},
        {"operator", OPERATE, "", false},
        {"operator", OPERATE, "Origin: http://localhost:2\r\n", false},
        {"operator", OPERATE, "Origin: null\r\n", false},
        {"operator", OPERATE, "Origin: http://localhost:1\r\n", true},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct roll_page_ask ask;
        int fd = begin_request("POST", "/api/ask/policy?policy=auto", rows[i].user, rows[i].word, rows[i].origin, 0);
        if (rows[i].taken) {
            assert_true(comes() && roll_page_take(page, &ask) && ask.operates);
            roll_page_answer(page, ask.number, 200, strdup("{}"));
        }
        assert_non_null(strstr(read_until(fd, NULL), rows[i].taken ? " 200 OK\r\n" : " 403 Forbidden\r\n"));
        assert_false(roll_page_take(page, &ask));
        close(fd);
    }
}

static void questions_that_nobody_answers_are_bounded(void **state)
{
    (void)state;
    int fd[ROLL_PAGE_ASKS + 1];
    struct roll_page_ask ask;
    unsigned refused = 0, taken = 0;
    /* Only so many connections stay at a time: some are let go, and what they asked is answered to nobody. */
    for (unsigned i = 0; i <= ROLL_PAGE_ASKS; i++) {
        fd[i] = begin_request("GET", "/api/ask/status", "viewer", VIEWER, "", 0);
    }
    refused = strstr(read_until(fd[ROLL_PAGE_ASKS], "}"), " 503 Service Unavailable\r\n") != NULL;
    assert_int_equal(refused, 1);
    while (roll_page_take(page, &ask)) {
        taken++;
        roll_page_answer(page, ask.number, 200, strdup("{}"));
    }
    assert_int_equal(taken, ROLL_PAGE_ASKS);
    for (unsigned i = 0; i <= ROLL_PAGE_ASKS; i++) {
        close(fd[i]);
    }
}

/* Waits for the first topic. */
static struct roll_page_topic listened(void)
{
    struct roll_page_topic topic;
    for (int i = 0; i < END_MS / 10; i++) {
        for (unsigned k = 0; k < ROLL_PAGE_TOPICS; k++) {
            if (roll_page_topic(page, k, &topic)) {
                return topic;
            }
        }
        usleep(10000);
    }
    fail_msg("nobody listens");
    return topic;
}

static bool is_left(void)
{
    struct roll_page_topic topic;
    bool any = false;
    for (unsigned k = 0; k < ROLL_PAGE_TOPICS; k++) {
        any = any || roll_page_topic(page, k, &topic);
    }
    return !any;
}

static void publish_large(uint64_t id, char letter)
{
    char *text = malloc(LARGE + 1);
    assert_non_null(text);
    memset(text, letter, LARGE);
    text[LARGE] = '\0';
    roll_page_publish(page, id, ROLL_PAGE_PLACES, text);
    free(text);
}

static void a_slow_listener_is_told_the_newest_and_not_what_it_missed(void **state)
{
    (void)state;
    int fd = begin_request("GET", "/api/listen?job=x&restart=2", "viewer", VIEWER, "", 4096);
    struct roll_page_topic topic = listened();
    assert_string_equal(topic.job, "x");
    assert_int_equal(topic.restart, 2);
    assert_true(topic.fresh);
    publish_large(topic.id, 'L'); /* more than sockets hold: it is on its way while the others come */
    for (int i = 0; i < 50; i++) {
        char text[32];
        snprintf(text, sizeof(text), "{\"n\":%d}", i);
        roll_page_publish(page, topic.id, ROLL_PAGE_FIELD, text);
    }
    roll_page_publish(page, topic.id + 1, ROLL_PAGE_FIELD, "{\"n\":\"of another\"}");
    const char *got = read_until(fd, "{\"n\":49}");
    assert_non_null(strstr(got, "event: places\ndata: LLLL"));
    const char *first = strstr(got, "event: field");
    assert_non_null(first);
    assert_non_null(strstr(first, "{\"n\":49}"));
    assert_null(strstr(first + 1, "event: field"));
    assert_null(strstr(got, "of another"));
    close(fd);
    for (int i = 0; i < END_MS / 10 && !is_left(); i++) { /* it is noticed when there is something to be told */
        roll_page_publish(page, topic.id, ROLL_PAGE_STATUS, i % 2 ? "{}" : "[]");
        usleep(10000);
    }
    assert_true(is_left());
}

static void a_listener_that_never_reads_is_let_go(void **state)
{
    (void)state;
    int fd = begin_request("GET", "/api/listen", "viewer", VIEWER, "", 4096);
    struct roll_page_topic topic = listened();
    for (int i = 0; i < END_MS / 10 && !is_left(); i++) {
        publish_large(topic.id, (char)('a' + i % 26));
        usleep(10000);
    }
    assert_true(is_left());
    close(fd);
}

static void a_server_that_ends_lets_everybody_go(void **state)
{
    int asks = begin_request("GET", "/api/ask/status", "viewer", VIEWER, "", 0);
    assert_true(comes());
    int listens = begin_request("GET", "/api/listen", "viewer", VIEWER, "", 0);
    (void)listened();
    roll_metrics_destroy(&server);
    (void)read_until(asks, NULL);
    (void)read_until(listens, NULL);
    close(asks);
    close(listens);
    assert_true(is_left());
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_question_is_answered_by_another_thread, set_up, tear_down),
        cmocka_unit_test_setup_teardown(only_the_operator_on_the_page_itself_posts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(questions_that_nobody_answers_are_bounded, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_slow_listener_is_told_the_newest_and_not_what_it_missed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_listener_that_never_reads_is_let_go, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_server_that_ends_lets_everybody_go, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
