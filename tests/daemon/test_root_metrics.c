/*
 * test_root_metrics.c: what the endpoint of a root says while runs come and go. Prometheus takes a counter that falls
 * for a restart and counts everything before it once more, so forgetting a run must not lower one.
 */
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define RUNS  70 /* more than a root keeps */
#define CALLS 3

static char endpoint[256];

/* The port that the root has written into its log. */
static uint16_t port_of(const char *log)
{
    static char text[65536];
    assert_true(harness_logged(log, "metrics on port "));
    FILE *file = fopen(harness_path(log), "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    return (uint16_t)strtoul(strstr(text, "metrics on port ") + strlen("metrics on port "), NULL, 10);
}

/* The value of a metric without labels. */
static double metric(uint16_t port, const char *name)
{
    static char reply[262144];
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    size_t used = 0;
    ssize_t n = 1;
    while (n > 0 && used < sizeof(reply) - 1) {
        n = recv(fd, reply + used, sizeof(reply) - 1 - used, 0);
        used += n > 0 ? (size_t)n : 0;
    }
    close(fd);
    reply[used] = '\0';
    char line[128];
    snprintf(line, sizeof(line), "\n%s ", name);
    const char *at = strstr(reply, line);
    assert_non_null(at);
    return strtod(at + strlen(line), NULL);
}

/* The only rank of a run: a process of its own, because a run whose processes live is never forgotten. */
static void run_ends(const char *dir, const char *job)
{
    pid_t pid = fork();
    if (pid == 0) {
        static struct synth rank;
        if (synth_open(&rank, dir, job, 0, 1, 64) != 0) {
            _exit(1);
        }
        struct synth_call call = {.comm = synth_comm(&rank, 0x1000), .count = 1024};
        for (int k = 0; k < CALLS; k++) {
            synth_allreduce(&rank, &call);
        }
        synth_finish(&rank);
        synth_close(&rank);
        _exit(0);
    }
    int status;
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_counters_keep_what_a_forgotten_run_has_counted(void **state)
{
    (void)state;
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"), "--http", "127.0.0.1:0");
    assert_true(daemon > 0);
    uint16_t port = port_of("daemon.err");
    double seen = 0, runs = 0;
    for (int first = 0; first < RUNS; first += 10) {
        for (int i = first; i < first + 10; i++) {
            char job[32];
            snprintf(job, sizeof(job), "job%d", i);
            run_ends(harness_path("d"), job);
        }
        double wanted = (double)(first + 10) * CALLS;
        assert_true(HARNESS_UNTIL({
            double now = metric(port, "rollcall_calls_total");
            assert_true(now >= seen);
            seen = now;
            runs = metric(port, "rollcall_runs");
            now == wanted;
        }));
    }
    assert_true(runs > 0 && runs < RUNS); /* some were forgotten, else nothing was tried */
    assert_true(metric(port, "rollcall_records_total") >= RUNS * CALLS);
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_counters_keep_what_a_forgotten_run_has_counted, harness_set_up,
                                        harness_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
