/*
 * sick_job.c: see sick_job.h.
 */
#include "tests/daemon/sick_job.h"

#include <signal.h>

roll_client_t *sick_job_begin(char endpoint[256], pid_t *daemon, pid_t rank[3], const char *const *options)
{
    const char *argv[16] = {"rollcalld", "--dir", harness_path("d")};
    int n = 3;
    for (; options && *options; options++) {
        argv[n++] = *options;
    }
    *daemon = harness_daemon("daemon.err", endpoint, argv);
    assert_true(*daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    for (int r = 0; r < 3; r++) {
        rank[r] = harness_rank(harness_path("d"), r, 3, 1000, 100, r == 1 ? "wrong" : "hang");
    }
    json_t *verdict = harness_verdict(client, "count-mismatch");
    assert_non_null(verdict);
    assert_string_equal(json_string_value(json_object_get(verdict, "culprits_text")), "1");
    json_decref(verdict);
    return client;
}

void sick_job_end(roll_client_t *client, pid_t daemon, pid_t rank[3])
{
    roll_client_destroy(&client);
    for (int r = 0; r < 3; r++) {
        assert_true(rank[r] == 0 || harness_end(rank[r], SIGTERM) == 0);
    }
    assert_int_equal(harness_end(daemon, SIGTERM), 1);
}
