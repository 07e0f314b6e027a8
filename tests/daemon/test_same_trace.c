/*
 * test_same_trace.c: the trace of a run gives the same verdicts as the run, byte for byte.
 */
#include "daemon/feed/feed.h"
#include "daemon/store/trace_file.h"
#include "tests/daemon/sick_job.h"
#include "tests/daemon/synth.h"
#include "tests/daemon/verdict_json.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char endpoint[256];

/* What the trace gives equals the lines of the NDJSON file, byte for byte. Returns the first verdict with `code`,
 * owned; NULL when there is none. */
static json_t *expect_the_same_of_the_trace(const char *trace, const char *json, bool over, const char *code)
{
    roll_trace_reader_t *reader = NULL;
    struct roll_engine_config config = {0};
    roll_feed_t *feed = roll_feed_new(&config, NULL, 0);
    struct roll_frame frame;
    json_t *wanted = NULL;
    assert_int_equal(roll_trace_reader_new(trace, &reader), 0);
    while (roll_trace_reader_next(reader, &frame) == 0) {
        assert_int_equal(roll_feed_frame(feed, &frame), 0);
    }
    if (over) {
        roll_feed_finish(feed);
    }
    roll_trace_reader_destroy(&reader);
    FILE *live = fopen(json, "r");
    char *line = NULL;
    size_t room = 0;
    int n = 0;
    assert_non_null(live);
    while (getline(&line, &room, live) > 0) {
        json_t *again = json_of_verdict(roll_feed_next(feed));
        assert_non_null(again);
        char *text = json_dumps(again, JSON_COMPACT);
        line[strcspn(line, "\n")] = '\0';
        size_t same = 0; /* whole they are too long for cmocka's message */
        for (; text[same] != '\0' && text[same] == line[same]; same++) {
        }
        if (strcmp(text, line) != 0) {
            fail_msg("verdict %d: live ...%.300s, from the trace ...%.300s", n + 1, line + same, text + same);
        }
        if (!wanted && strcmp(json_string_value(json_object_get(again, "code")), code) == 0) {
            wanted = json_incref(again);
        }
        free(text);
        json_decref(again);
        n++;
    }
    assert_true(n >= 1);
    assert_null(roll_feed_next(feed));
    fclose(live);
    free(line);
    roll_feed_destroy(&feed);
    return wanted;
}

static void test_a_trace_gives_the_verdicts_of_the_live_run(void **state)
{
    (void)state;
    pid_t daemon, rank[3];
    char trace[300], json[300];
    snprintf(trace, sizeof(trace), "%s", harness_path("trace"));
    snprintf(json, sizeof(json), "%s", harness_path("v.json"));
    roll_client_t *client =
        sick_job_begin(endpoint, &daemon, rank, (const char *const[]){"--trace", trace, "--json", json, NULL});
    json_decref(harness_ask(client, "{s:s,s:i,s:b}", "op", "drain", "timeout_ms", 60000, "final", 1));
    sick_job_end(client, daemon, rank);
    json_t *verdict =
        expect_the_same_of_the_trace(harness_path("trace/job.0.00000001.rtrc"), json, true, "count-mismatch");
    assert_non_null(verdict);
    json_decref(verdict);
}

/*
 * A root with another patience than the default, and whose policy is changed while it watches: the trace holds both.
 * Rank 1 makes no call while rank 0 waits: how soon that is said is a matter of patience. Both have said before how
 * many tokens they have: what is said of the remedy is a matter of policy.
 */
static void test_a_trace_gives_them_also_where_patience_and_policy_are_not_the_default(void **state)
{
    (void)state;
    static struct synth rank[2];
    char json[300];
    snprintf(json, sizeof(json), "%s", harness_path("v.json"));
    mkdir(harness_path("d"), 0700);
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"), "--trace", harness_path("trace"),
                          "--json", json, "--stall-ms", "700", "--suspect-ms", "300");
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    uint16_t comm[2];
    for (int r = 0; r < 2; r++) {
        assert_int_equal(synth_open(&rank[r], harness_path("d"), "job", r, 2, 64), 0);
        comm[r] = synth_comm(&rank[r], 0x1000);
        synth_allreduce(&rank[r], &(struct synth_call){.comm = comm[r], .count = 8});
    }
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") == 2));
    json_decref(harness_ask(client, "{s:s,s:s}", "op", "policy", "policy", "advise"));
    for (int r = 0; r < 2; r++) {
        synth_tokens(&rank[r], comm[r], 100 + (uint64_t)r);
    }
    synth_allreduce(&rank[0], &(struct synth_call){.comm = comm[0], .count = 8, .hang = true});
    json_t *busy = harness_verdict(client, "rank-busy"), *tokens = harness_verdict(client, "moe-tokens-unequal");
    assert_non_null(busy);
    assert_non_null(
        strstr(json_string_value(json_object_get(tokens, "text")), "for the steps to come with: rollcall remedy on "));
    json_decref(busy);
    json_decref(tokens);
    roll_client_destroy(&client);
    synth_finish(&rank[0]);
    synth_close(&rank[0]);
    synth_close(&rank[1]);
    assert_int_equal(harness_end(daemon, SIGTERM), 1);
    busy = expect_the_same_of_the_trace(harness_path("trace/job.0.00000001.rtrc"), json, false, "rank-busy");
    assert_non_null(busy);
    json_decref(busy);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, harness_set_up, harness_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_trace_gives_the_verdicts_of_the_live_run),
        TEST(test_a_trace_gives_them_also_where_patience_and_policy_are_not_the_default),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
