/*
 * test_by_size.c: a run of 127 ranks is streamed, one of 128 is compared by digests, unless somebody says otherwise;
 * and what consoles are told of a run of which no records are here: its ranks as few rows, how far its communicators
 * have come, what each rank called last.
 *
 * The ranks are small rings of this process, on two nodes.
 */
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MOST     160
#define CALLS    200 /* of each rank: three windows of digests, and some more */
#define CAPACITY 1024
#define SEATS    (MOST / 2)

static struct synth *rank; /* MOST of them */
static int ranks;
static char node[2][300], where[320];
static pid_t root, agent[2];
static roll_client_t *client;

/* size: how many ranks the rings say that there are; -1: they do not know. */
static void open_ranks(int n, int size)
{
    ranks = n;
    for (int r = 0; r < ranks; r++) {
        assert_int_equal(synth_open(&rank[r], node[r / SEATS], "job", r, size, CAPACITY), 0);
        rank[r].size = n; /* of its communicators */
        uint16_t world = synth_comm(&rank[r], 0x1000);
        for (int i = 0; i < CALLS; i++) {
            synth_allreduce(&rank[r], &(struct synth_call){.comm = world, .count = 8});
        }
    }
}

static void begin(int n, int size, const char *mode, const char *trace)
{
    const char *argv[12] = {"rollcalld", "--root", "--listen", where};
    int at = 4;
    snprintf(where, sizeof(where), "ipc://%s", harness_path("root.socket"));
    if (mode) {
        argv[at++] = mode;
    }
    if (trace) {
        argv[at++] = "--trace";
        argv[at++] = trace;
    }
    root = harness_daemon("root.err", NULL, argv);
    assert_true(root > 0);
    for (int i = 0; i < 2; i++) {
        snprintf(node[i], sizeof(node[i]), "%s", harness_path(i ? "d1" : "d0"));
        assert_int_equal(mkdir(node[i], 0700), 0);
    }
    open_ranks(n, size);
    for (int i = 0; i < 2; i++) {
        agent[i] = DAEMON(i ? "agent1.err" : "agent0.err", NULL, "--agent", "--dir", node[i], "--connect", where);
        assert_true(agent[i] > 0);
    }
    client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == n));
}

static void end(void)
{
    roll_client_destroy(&client);
    for (int r = 0; r < ranks; r++) {
        synth_finish(&rank[r]);
        synth_close(&rank[r]);
    }
    for (int i = 0; i < 2; i++) {
        harness_end(agent[i], SIGTERM);
    }
    harness_end(root, SIGTERM);
}

static json_t *status_of(int rows)
{
    return rows < 0 ? harness_ask(client, "{s:s}", "op", "status")
                    : harness_ask(client, "{s:s,s:i}", "op", "status", "rows", rows);
}

static bool is_digested(void)
{
    json_t *status = status_of(-1);
    bool is = json_is_true(json_object_get(json_object_get(status, "summary"), "digests"));
    assert_int_equal(json_object_get(status, "digests") != NULL, is);
    json_decref(status);
    return is;
}

static bool all_calls_are_known(void)
{
    return harness_has(client, "job", "calls") == (json_int_t)ranks * CALLS;
}

static void test_127_ranks_are_streamed(void **state)
{
    (void)state;
    begin(127, 127, NULL, NULL);
    assert_false(is_digested());
    assert_int_equal(harness_drained(client, "records"), 127 * CALLS);
    end();
}

static void test_128_ranks_are_compared_by_digests(void **state)
{
    (void)state;
    begin(128, 128, NULL, NULL);
    assert_true(is_digested());
    assert_true(harness_logged("root.err", "job.0 has 128 ranks: their calls are compared by digests"));
    assert_true(HARNESS_UNTIL(all_calls_are_known()));
    assert_int_equal(harness_drained(client, "findings"), 0);
    end();
}

static void test_either_way_can_be_forced(void **state)
{
    (void)state;
    begin(128, 128, "--stream", NULL);
    assert_false(is_digested());
    end();
    assert_int_equal(harness_tear_down(state), 0);
    assert_int_equal(harness_set_up(state), 0);
    begin(2, 2, "--digest", NULL);
    assert_true(is_digested());
    end();
}

static void test_ranks_that_know_no_number_are_streamed_and_that_is_told(void **state)
{
    (void)state;
    begin(130, -1, NULL, NULL);
    assert_false(is_digested());
    assert_true(harness_logged("root.err", "none of which says how many there are"));
    end();
}

static void test_a_trace_that_keeps_nothing_is_told(void **state)
{
    (void)state;
    begin(128, 128, NULL, harness_path("trace"));
    assert_true(is_digested());
    assert_true(harness_logged("root.err", "traces are where agents have --trace"));
    json_t *status = status_of(-1), *trace = json_object_get(status, "trace");
    assert_true(json_is_false(json_object_get(trace, "kept")));
    assert_non_null(strstr(json_string_value(json_object_get(trace, "why")), "--trace"));
    json_decref(status);
    assert_int_equal(harness_count(harness_path("trace"), ".rtrc"), 0);
    end();
}

/* One process that has the rings and was told to keep a trace keeps it. */
static void test_a_trace_of_a_daemon_with_rings_is_kept_at_any_size(void **state)
{
    (void)state;
    snprintf(node[0], sizeof(node[0]), "%s", harness_path("d0"));
    assert_int_equal(mkdir(node[0], 0700), 0);
    memcpy(node[1], node[0], sizeof(node[1]));
    open_ranks(128, 128);
    char endpoint[256];
    root = DAEMON("root.err", endpoint, "--dir", node[0], "--trace", harness_path("trace"));
    assert_true(root > 0);
    client = harness_client(endpoint);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") == 128 * CALLS));
    assert_false(is_digested());
    json_t *status = status_of(-1);
    assert_true(json_is_true(json_object_get(json_object_get(status, "trace"), "kept")));
    json_decref(status);
    assert_int_equal(harness_count(harness_path("trace"), ".rtrc"), 1);
    roll_client_destroy(&client);
    for (int r = 0; r < ranks; r++) {
        synth_finish(&rank[r]);
        synth_close(&rank[r]);
    }
    harness_end(root, SIGTERM);
}

/* faces */

/* Ranks that stand alike are one row, with all of their numbers. */
static void expect_one_row(int n, const char *all)
{
    json_t *status = status_of(10), *groups = json_object_get(status, "groups"), *row = json_array_get(groups, 0);
    assert_int_equal(json_array_size(json_object_get(status, "ranks")), 0);
    assert_int_equal(json_array_size(groups), 1);
    assert_string_equal(json_string_value(json_object_get(row, "ranks_text")), all);
    assert_int_equal(json_integer_value(json_object_get(row, "count")), n);
    assert_string_equal(json_string_value(json_object_get(row, "state")), "running");
    json_t *last = json_object_get(row, "last");
    assert_string_equal(json_string_value(json_object_get(last, "op")), "AllReduce");
    assert_int_equal(json_integer_value(json_object_get(last, "seq")), CALLS - 1);
    assert_int_equal(json_integer_value(json_object_get(last, "seq_last")), CALLS - 1);
    json_decref(status);
}

static bool has_rows(size_t n)
{
    json_t *status = status_of(10);
    bool has = json_array_size(json_object_get(status, "groups")) == n;
    json_decref(status);
    return has;
}

static void test_ranks_of_a_streamed_run_fold(void **state)
{
    (void)state;
    begin(127, 127, NULL, NULL);
    assert_int_equal(harness_drained(client, "records"), 127 * CALLS);
    expect_one_row(127, "0-126");
    /* Each makes another number of calls: too many rows, unless what is alike is taken less strictly. */
    for (int r = 0; r < ranks; r++) {
        for (int i = 0; i < r; i++) {
            synth_allreduce(&rank[r], &(struct synth_call){.comm = 1, .count = 8});
        }
    }
    assert_int_equal(harness_drained(client, "records"), 127 * CALLS + 126 * 127 / 2);
    json_t *status = status_of(10), *groups = json_object_get(status, "groups");
    assert_in_range(json_array_size(groups), 1, 40);
    json_t *last = json_object_get(json_array_get(groups, json_array_size(groups) - 1), "last");
    assert_true(json_integer_value(json_object_get(last, "seq_last")) == CALLS + 126 - 1);
    json_decref(status);
    status = status_of(-1); /* who does not say how many rows still gets every rank */
    assert_int_equal(json_array_size(json_object_get(status, "ranks")), 127);
    assert_null(json_object_get(status, "groups"));
    json_decref(status);
    end();
}

static void test_a_run_without_records_is_shown_by_what_digests_tell(void **state)
{
    (void)state;
    begin(128, 128, NULL, NULL);
    assert_true(HARNESS_UNTIL(all_calls_are_known()));
    assert_true(HARNESS_UNTIL(has_rows(1)));
    json_t *status = NULL, *comm = NULL;
    assert_true(HARNESS_UNTIL(({ /* STATUS frames come every five seconds */
                                 json_decref(status);
                                 status = status_of(10);
                                 comm = json_array_get(json_object_get(status, "comms"), 0);
                                 json_t *row = json_array_get(json_object_get(status, "groups"), 0);
                                 json_integer_value(json_object_get(json_object_get(row, "last"), "seq")) ==
                                         CALLS - 1 &&
                                     json_integer_value(json_object_get(comm, "done")) == CALLS;
    })));
    assert_string_equal(json_string_value(json_object_get(comm, "key")), "0x0000000000001000");
    assert_int_equal(json_integer_value(json_object_get(comm, "size")), 128);
    assert_int_equal(json_integer_value(json_object_get(comm, "ahead")), CALLS);
    json_t *family = json_array_get(json_object_get(status, "families"), 0);
    assert_string_equal(json_string_value(json_object_get(family, "text")), "1 group of 128 ranks");
    assert_int_equal(json_integer_value(json_object_get(family, "apart")), 0);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(status, "states"), "running")), 128);
    assert_true(json_is_number(json_object_get(json_object_get(status, "digests"), "calls_per_s")));
    json_decref(status);
    expect_one_row(128, "0-127");

    /* The other node's digest may still be on its way. */
    json_t *why = NULL;
    assert_true(HARNESS_UNTIL(({
        json_decref(why);
        why = harness_ask(client, "{s:s,s:i}", "op", "why", "rank", 77);
        strstr(json_string_value(json_object_get(why, "text")), "All 128 members") != NULL;
    })));
    const char *text = json_string_value(json_object_get(why, "text"));
    assert_non_null(text);
    assert_non_null(strstr(text, "Rank 77 on host "));
    assert_non_null(strstr(text, "compared by digests"));
    assert_non_null(strstr(text, "AllReduce #199"));
    assert_non_null(strstr(text, "All 128 members of communicator 0x0000000000001000 have made 200 calls"));
    assert_non_null(strstr(text, "rollcall stacks 77"));
    json_decref(why);
    why = harness_ask(client, "{s:s,s:i}", "op", "why", "rank", 128);
    assert_non_null(json_object_get(why, "error"));
    json_decref(why);
    why = harness_ask(client, "{s:s}", "op", "why");
    assert_non_null(json_object_get(why, "text"));
    json_decref(why);

    json_t *drained = harness_ask(client, "{s:s,s:i}", "op", "drain", "timeout_ms", 60000);
    json_t *told = json_object_get(json_object_get(drained, "seen"), "digests");
    assert_int_equal(json_integer_value(json_object_get(told, "calls_least")), CALLS);
    assert_int_equal(json_integer_value(json_object_get(told, "calls_most")), CALLS);
    assert_int_equal(json_integer_value(json_object_get(told, "comms")), 1);
    assert_true(json_integer_value(json_object_get(told, "windows")) >= CALLS / 64);
    json_decref(drained);
    end();
}

/* All ranks wait for one: one paragraph for them all, however many there are, and each is named only once. */
static void test_why_of_many_ranks_is_one_paragraph(void **state)
{
    (void)state;
    begin(127, 127, NULL, NULL);
    for (int r = 1; r < ranks; r++) {
        synth_allreduce(&rank[r], &(struct synth_call){.comm = 1, .count = 8, .hang = true});
    }
    assert_int_equal(harness_drained(client, "records"), 127 * CALLS + 126);
    json_t *why = harness_ask(client, "{s:s}", "op", "why");
    json_t *groups = json_object_get(why, "groups");
    size_t n = json_array_size(groups);
    /* Rank 0 has a paragraph too as soon as the root has looked at its host, which may be by now. */
    assert_in_range(n, 1, 2);
    if (n == 2) {
        assert_string_equal(json_string_value(json_object_get(json_array_get(groups, 0), "ranks_text")), "0");
    }
    json_t *one = json_array_get(groups, n - 1);
    assert_string_equal(json_string_value(json_object_get(one, "ranks_text")), "1-126");
    assert_int_equal(json_integer_value(json_object_get(one, "count")), 126);
    assert_non_null(strstr(json_string_value(json_object_get(one, "text")), "for rank 0"));
    json_decref(why);
    end();
}

static int set_up(void **state)
{
    rank = calloc(MOST, sizeof(*rank));
    return rank ? harness_set_up(state) : -1;
}

static int tear_down(void **state)
{
    free(rank);
    return harness_tear_down(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_127_ranks_are_streamed),
        TEST(test_128_ranks_are_compared_by_digests),
        TEST(test_either_way_can_be_forced),
        TEST(test_ranks_that_know_no_number_are_streamed_and_that_is_told),
        TEST(test_a_trace_that_keeps_nothing_is_told),
        TEST(test_a_trace_of_a_daemon_with_rings_is_kept_at_any_size),
        TEST(test_ranks_of_a_streamed_run_fold),
        TEST(test_a_run_without_records_is_shown_by_what_digests_tell),
        TEST(test_why_of_many_ranks_is_one_paragraph),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
