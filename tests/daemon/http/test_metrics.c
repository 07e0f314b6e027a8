/*
 * test_metrics.c: the endpoint over real HTTP on loopback: which requests are answered, and to which hosts.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/http/listen.h"
#include "daemon/http/metrics.h"
#include "trace/err.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static atomic_uint fills;

static void fill(void *arg, struct roll_metrics_snapshot *snapshot)
{
    atomic_fetch_add(&fills, 1);
    snapshot->calls = *(uint64_t *)arg;
    roll_metrics_count_verdict(snapshot, ROLL_VERDICT_RANK_DEAD, ROLL_PROVEN, 3);
}

static uint64_t calls = 41;

static roll_metrics_t *serve(void)
{
    roll_metrics_t *metrics = NULL;
    assert_int_equal(roll_metrics_new("127.0.0.1:0", fill, &calls, NULL, &metrics), 0);
    assert_true(roll_metrics_port(metrics) > 0);
    return metrics;
}

static int connect_to(roll_metrics_t *metrics)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)roll_metrics_port(metrics)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {.tv_sec = 60};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* Sends a request as it stands and returns everything that comes back until the server closes. */
static const char *ask(roll_metrics_t *metrics, const char *request)
{
    static char reply[65536];
    int fd = connect_to(metrics);
    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    size_t used = 0;
    ssize_t n = 1;
    while (n > 0 && used < sizeof(reply) - 1) {
        n = recv(fd, reply + used, sizeof(reply) - 1 - used, 0);
        used += n > 0 ? (size_t)n : 0;
    }
    close(fd);
    reply[used] = '\0';
    return reply;
}

#define GET(path, more) "GET " path " HTTP/1.1\r\nHost: localhost:9400\r\nConnection: close\r\n" more "\r\n"

static bool has(const char *reply, const char *text)
{
    return strstr(reply, text) != NULL;
}

static void metrics_are_served_as_text(void **state)
{
    (void)state;
    roll_metrics_t *metrics = serve();
    const char *reply = ask(metrics, GET("/metrics", ""));
    assert_true(has(reply, "HTTP/1.1 200 OK\r\n"));
    assert_true(has(reply, "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    assert_true(has(reply, "\nrollcall_calls_total 41\n"));
    assert_true(has(reply, "\nrollcall_verdicts_total{code=\"rank-dead\",certainty=\"proven\"} 3\n"));
    assert_true(has(reply, "\nrollcall_verdicts_total{code=\"op-mismatch\",certainty=\"proven\"} 0\n"));
    assert_false(has(reply, "# EOF"));
    calls++;
    assert_true(has(ask(metrics, GET("/metrics?x=y", "")), "\nrollcall_calls_total 42\n"));
    roll_metrics_destroy(&metrics);
    assert_null(metrics);
    roll_metrics_destroy(&metrics);
}

static void openmetrics_is_served_to_who_asks(void **state)
{
    (void)state;
    roll_metrics_t *metrics = serve();
    const char *reply =
        ask(metrics, GET("/metrics", "Accept: application/openmetrics-text;version=1.0.0,text/plain\r\n"));
    assert_true(has(reply, "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"));
    assert_true(has(reply, "# TYPE rollcall_calls counter\n"));
    assert_true(has(reply, "\n# EOF\n"));
    roll_metrics_destroy(&metrics);
}

static void health_is_served_without_a_snapshot(void **state)
{
    (void)state;
    roll_metrics_t *metrics = serve();
    unsigned before = atomic_load(&fills);
    const char *reply = ask(metrics, GET("/healthz", ""));
    assert_true(has(reply, "HTTP/1.1 200 OK\r\n") && has(reply, "\r\n\r\nok\n"));
    reply = ask(metrics, "HEAD /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    assert_true(has(reply, "HTTP/1.1 200 OK\r\n") && !has(reply, "\r\n\r\nok"));
    assert_int_equal(atomic_load(&fills), before);
    roll_metrics_destroy(&metrics);
}

static void everything_else_is_not_found(void **state)
{
    (void)state;
    roll_metrics_t *metrics = serve();
    unsigned before = atomic_load(&fills);
    static const char *const requests[] = {
        GET("/", ""),
        GET("/metrics/", ""),
        GET("/../etc/passwd", ""),
        GET("//metrics", ""),
        "POST /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        "DELETE /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
        assert_true(has(ask(metrics, requests[i]), "HTTP/1.1 404 Not Found\r\n"));
    }
    assert_int_equal(atomic_load(&fills), before);
    roll_metrics_destroy(&metrics);
}

static void another_host_name_is_forbidden(void **state)
{
    (void)state;
    roll_metrics_t *metrics = serve();
    static const char *const hosts[] = {"example.org", "127.0.0.1.example.org", "localhost.example.org:80", "10.0.0.1",
                                        ""};
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        char request[256];
        snprintf(request, sizeof(request), "GET /metrics HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", hosts[i]);
        assert_true(has(ask(metrics, request), " 403 Forbidden\r\n"));
    }
    assert_true(has(ask(metrics, "GET /metrics HTTP/1.0\r\n\r\n"), " 403 Forbidden\r\n"));
    assert_true(
        has(ask(metrics, "GET /healthz HTTP/1.1\r\nHost: [::1]:9400\r\nConnection: close\r\n\r\n"), " 200 OK\r\n"));
    roll_metrics_destroy(&metrics);
}

static void garbage_is_survived(void **state)
{
    (void)state;
    roll_metrics_t *metrics = serve();
    char long_line[40000];
    memset(long_line, 'A', sizeof(long_line) - 1);
    long_line[sizeof(long_line) - 1] = '\0';
    memcpy(long_line, "GET /", 5);
    memcpy(long_line + sizeof(long_line) - 5, "\r\n\r\n", 4);
    assert_false(has(ask(metrics, "\x16\x03\x01\x02 hello\r\n\r\n"), " 200 "));
    assert_false(has(ask(metrics, long_line), " 200 "));
    assert_true(has(ask(metrics, GET("/healthz", "")), " 200 OK\r\n"));
    roll_metrics_destroy(&metrics);
}

#define SLOW 40 /* connections at a time that never end their request, and come back at once when they are shut out */
#define ASKS 3

struct slow {
    roll_metrics_t *metrics;
    atomic_bool stop;
    atomic_uint rounds;
};

static void *drip(void *arg)
{
    struct slow *slow = arg;
    int fd[SLOW];
    for (int i = 0; i < SLOW; i++) {
        fd[i] = connect_to(slow->metrics);
    }
    while (!atomic_load(&slow->stop)) {
        for (int i = 0; i < SLOW; i++) {
            if (send(fd[i], "G", 1, MSG_NOSIGNAL) < 0) {
                close(fd[i]);
                fd[i] = connect_to(slow->metrics);
            }
        }
        atomic_fetch_add(&slow->rounds, 1);
        usleep(100000);
    }
    for (int i = 0; i < SLOW; i++) {
        close(fd[i]);
    }
    return NULL;
}

static void slow_connections_shut_nobody_out(void **state)
{
    (void)state;
    struct slow slow = {.metrics = serve()};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, drip, &slow), 0);
    for (unsigned i = 0; i < ASKS; i++) {
        while (atomic_load(&slow.rounds) <= i) {
            usleep(1000);
        }
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        bool served = has(ask(slow.metrics, GET("/metrics", "")), "HTTP/1.1 200 OK\r\n");
        clock_gettime(CLOCK_MONOTONIC, &end);
        printf("a scraper beside %d slow connections: %.1f ms\n", SLOW,
               (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) * 1e-6);
        assert_true(served);
    }
    atomic_store(&slow.stop, true);
    pthread_join(thread, NULL);
    roll_metrics_destroy(&slow.metrics);
}

static void only_loopback_is_listened_on(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int want;
    } cases[] = {
        {"127.0.0.1:0", 0},
        {"localhost:1", 0},
        {":65535", 0},
        {"9400", 0},
        {"[::1]:0", 0},
        {"127.1.2.3:5", 0},
        {"0.0.0.0:9400", ROLL_E_DENIED},
        {"10.0.0.1:1", ROLL_E_DENIED},
        {"[::]:1", ROLL_E_DENIED},
        {"[fe80::1]:1", ROLL_E_DENIED},
        {"", ROLL_E_ARG},
        {"127.0.0.1", ROLL_E_ARG},
        {"127.0.0.1:", ROLL_E_ARG},
        {"127.0.0.1:x", ROLL_E_ARG},
        {"127.0.0.1:65536", ROLL_E_ARG},
        {"127.0.0.1:-1", ROLL_E_ARG},
        {"example.org:80", ROLL_E_ARG},
        {"::1:80", ROLL_E_ARG},
        {"[::1]80", ROLL_E_ARG},
        {"[::1", ROLL_E_ARG},
        {"]:80", ROLL_E_ARG},
        {"[:80", ROLL_E_ARG},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sockaddr_storage address;
        if (roll_listen_parse(cases[i].text, &address) != cases[i].want) {
            fail_msg("'%s' is not answered with %d", cases[i].text, cases[i].want);
        }
    }
    roll_metrics_t *metrics = NULL;
    assert_int_equal(roll_metrics_new("0.0.0.0:0", fill, &calls, NULL, &metrics), ROLL_E_DENIED);
    assert_null(metrics);
}

static void a_port_in_use_is_said_so(void **state)
{
    (void)state;
    roll_metrics_t *metrics = serve();
    char text[32];
    snprintf(text, sizeof(text), "127.0.0.1:%u", roll_metrics_port(metrics));
    roll_metrics_t *second = NULL;
    assert_int_equal(roll_metrics_new(text, fill, &calls, NULL, &second), ROLL_E_BUSY);
    assert_null(second);
    roll_metrics_destroy(&metrics);
}

static void verdicts_are_counted_by_code_and_certainty(void **state)
{
    (void)state;
    struct roll_metrics_snapshot s = {.calls = 0};
    assert_int_equal(roll_metrics_count_verdict(&s, ROLL_VERDICT_NONE, ROLL_PROVEN, 1), ROLL_E_ARG);
    assert_int_equal(roll_metrics_count_verdict(&s, ROLL_VERDICT_RANK_DEAD, ROLL_NOTE, 1), 0);
    assert_int_equal(roll_metrics_count_verdict(&s, ROLL_VERDICT_RANK_DEAD, ROLL_NOTE, 2), 0);
    assert_int_equal(s.verdicts[0].count[ROLL_NOTE], 3);
    for (unsigned code = 1; code < ROLL_METRICS_VERDICTS; code++) {
        assert_int_equal(roll_metrics_count_verdict(&s, (enum roll_verdict_code)(10000 + code), ROLL_NOTE, 1), 0);
    }
    assert_int_equal(roll_metrics_count_verdict(&s, (enum roll_verdict_code)9999, ROLL_NOTE, 1), ROLL_E_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_are_served_as_text),
        cmocka_unit_test(openmetrics_is_served_to_who_asks),
        cmocka_unit_test(health_is_served_without_a_snapshot),
        cmocka_unit_test(everything_else_is_not_found),
        cmocka_unit_test(another_host_name_is_forbidden),
        cmocka_unit_test(garbage_is_survived),
        cmocka_unit_test(slow_connections_shut_nobody_out),
        cmocka_unit_test(only_loopback_is_listened_on),
        cmocka_unit_test(a_port_in_use_is_said_so),
        cmocka_unit_test(verdicts_are_counted_by_code_and_certainty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
