/*
 * test_facts.c: everyone has arrived and nothing completes: the root asks the agent what its node knows, and the answer
 * stands in the verdict and in the trace.
 */
#include "daemon/feed/feed.h"
#include "daemon/store/segment.h"
#include "daemon/store/trace_file.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/verdict_json.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RANKS 3

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* Waits for the verdict that supersedes another one, as long as the harness allows. */
static json_t *superseding(roll_client_t *client)
{
    for (int waited = 0; waited < HARNESS_END_MS; waited += 100) {
        json_t *reply = harness_ask(client, "{s:s,s:i}", "op", "verdicts", "from", 1);
        json_t *list = json_object_get(reply, "verdicts"), *verdict;
        size_t k;
        json_array_foreach(list, k, verdict)
        {
            if (json_is_integer(json_object_get(verdict, "supersedes"))) {
                json_incref(verdict);
                json_decref(reply);
                return verdict;
            }
        }
        json_decref(reply);
        usleep(100000);
    }
    return NULL;
}

static json_t *job_that_is_stuck(const char *nvml, pid_t *daemon, roll_client_t **client, pid_t rank[RANKS])
{
    char endpoint[256];
    write_file(harness_path("nvml"), nvml);
    setenv("HOSTCUDA_NVML", harness_path("nvml"), 1);
    setenv("ROLLCALL_NODE_ROOT", harness_path("root"), 1);
    *daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"), "--suspect-ms", "300", "--trace",
                     harness_path("traces"));
    assert_true(*daemon > 0);
    *client = harness_client(endpoint);
    for (int r = 0; r < RANKS; r++) {
        rank[r] = harness_rank(harness_path("d"), r, RANKS, 1000, 50, "hang");
    }
    json_t *verdict = superseding(*client);
    assert_non_null(verdict);
    assert_string_equal(json_string_value(json_object_get(verdict, "code")), "collective-stuck");
    assert_string_equal(json_string_value(json_object_get(verdict, "certainty")), "suspected");
    assert_string_equal(json_string_value(json_object_get(verdict, "waiting_text")), "0-2");
    return verdict;
}

static void end_job(roll_client_t *client, pid_t daemon, const pid_t rank[RANKS])
{
    roll_client_destroy(&client);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(harness_end(rank[r], SIGTERM), 0);
    }
    assert_int_equal(harness_end(daemon, SIGTERM), 1);
}

/* The trace of the run, fed anew, gives the same verdict. */
static void replays(const json_t *wanted)
{
    struct roll_segment_name *list = NULL;
    size_t count = 0;
    assert_int_equal(roll_segment_list(harness_path("traces"), "job.0", &list, &count), 0);
    assert_true(count > 0);
    struct roll_engine_config config = {.suspect_ns = 300000000u};
    roll_feed_t *feed = roll_feed_new(&config, NULL, 0);
    for (size_t i = 0; i < count; i++) {
        roll_trace_reader_t *reader = NULL;
        struct roll_frame frame;
        assert_int_equal(roll_trace_reader_new(list[i].path, &reader), 0);
        if (i > 0) {
            roll_trace_reader_resume(reader);
        }
        while (roll_trace_reader_next(reader, &frame) == 0) {
            roll_feed_frame(feed, &frame);
        }
        roll_trace_reader_destroy(&reader);
    }
    bool found = false;
    json_t *verdict;
    while ((verdict = json_of_verdict(roll_feed_next(feed))) != NULL) {
        if (json_equal(json_object_get(verdict, "number"), json_object_get(wanted, "number"))) {
            json_t *same = json_copy((json_t *)wanted); /* the root adds members that are not the engine's */
            json_object_del(same, "stacks");
            found = json_equal(verdict, same);
            json_decref(same);
        }
        json_decref(verdict);
    }
    assert_true(found);
    roll_feed_destroy(&feed);
    free(list);
}

static void test_what_the_node_knows_stands_in_the_verdict(void **state)
{
    (void)state;
    pid_t daemon, rank[RANKS];
    roll_client_t *client;
    assert_int_equal(mkdir(harness_path("root"), 0700), 0);
    json_t *verdict = job_that_is_stuck("gpus 2\nxid 1 79\n", &daemon, &client, rank);
    const char *text = json_string_value(json_object_get(verdict, "text"));
    assert_non_null(strstr(text, "What their nodes know: Host "));
    assert_non_null(strstr(text, "GPU 1: Xid 79"));
    assert_non_null(strstr(text, "the kernel's log cannot be read"));
    assert_string_equal(json_string_value(json_object_get(verdict, "culprits_text")),
                        ""); /* one host stands out from none */
    end_job(client, daemon, rank);
    replays(verdict);
    json_decref(verdict);
}

static void test_a_driver_that_does_not_answer_costs_its_own_answer_only(void **state)
{
    (void)state;
    pid_t daemon, rank[RANKS];
    roll_client_t *client;
    assert_int_equal(mkdir(harness_path("root"), 0700), 0);
    json_t *verdict = job_that_is_stuck("hang\n", &daemon, &client, rank);
    const char *text = json_string_value(json_object_get(verdict, "text"));
    assert_non_null(strstr(text, "the kernel's log cannot be read"));
    assert_non_null(strstr(text, "its GPUs (NVML) cannot be looked at (no answer in time)"));
    end_job(client, daemon, rank);
    json_decref(verdict);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, harness_set_up, harness_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_what_the_node_knows_stands_in_the_verdict),
        TEST(test_a_driver_that_does_not_answer_costs_its_own_answer_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
