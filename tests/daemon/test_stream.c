/*
 * test_stream.c: records reach the root exactly once, whatever is killed between.
 */
#include "daemon/feed/feed.h"
#include "daemon/store/trace_file.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"
#include "tests/daemon/verdict_json.h"
#include "trace/ident.h"
#include "trace/op.h"
#include "trace/ring_write.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RANKS 8
#define RATE  10000u
#define COUNT 30000u

static char endpoint[256];

static void start_ranks(pid_t pid[RANKS], const char *end)
{
    for (int r = 0; r < RANKS; r++) {
        pid[r] = harness_rank(harness_path("d"), r, RANKS, RATE, COUNT, end);
    }
}

static void end_ranks(pid_t pid[RANKS])
{
    for (int r = 0; r < RANKS; r++) { /* a signal that comes before they have begun would kill them */
        assert_true(HARNESS_UNTIL(harness_calls(harness_path("d"), r, RANKS, pid[r]) > 0));
    }
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(harness_end(pid[r], SIGTERM), 0);
    }
}

static void check_all_arrived(roll_client_t *client)
{
    assert_true(HARNESS_UNTIL(harness_has(client, NULL, "records") >= RANKS * COUNT));
    assert_int_equal(harness_drained(client, "records"), RANKS * COUNT);
    assert_int_equal(harness_drained(client, "lost"), 0);
    assert_int_equal(harness_drained(client, "verdicts"), 0);
}

static void test_every_record_of_eight_ranks_arrives_once(void **state)
{
    (void)state;
    pid_t rank[RANKS];
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"));
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    start_ranks(rank, "exit");
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(harness_end(rank[r], 0), 0);
    }
    check_all_arrived(client);
    /* Rings of ranks that ended in good order go by themselves, their control page with the last. */
    assert_true(HARNESS_UNTIL(harness_count(harness_path("d"), ".ctl") == 0));
    assert_int_equal(harness_count(harness_path("d"), ".ring"), 0);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
    assert_int_equal(harness_count(harness_path("d"), ""), 0); /* no lock, socket or endpoint file either */
}

static void test_a_killed_agent_goes_on_where_it_was(void **state)
{
    (void)state;
    pid_t rank[RANKS];
    pid_t root = DAEMON("root.err", endpoint, "--root", "--dir", harness_path("d"));
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", endpoint);
    assert_true(root > 0 && agent > 0);
    roll_client_t *client = harness_client(endpoint);
    start_ranks(rank, "wait");
    for (int i = 0; i < 3; i++) { /* each has taken something */
        assert_true(HARNESS_UNTIL(harness_has(client, NULL, "records") >= (json_int_t)(RANKS * COUNT / 5) * (i + 1)));
        assert_int_equal(harness_end(agent, SIGKILL), 128 + SIGKILL);
        agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", endpoint);
        assert_true(agent > 0);
    }
    end_ranks(rank);
    check_all_arrived(client);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

static void test_a_killed_root_is_told_everything_again(void **state)
{
    (void)state;
    pid_t rank[RANKS];
    char where[300];
    snprintf(where, sizeof(where), "ipc://%s/sock", harness_dir());
    pid_t root = DAEMON("root.err", NULL, "--root", "--listen", where);
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", where);
    assert_true(root > 0 && agent > 0);
    roll_client_t *client = harness_client(where);
    start_ranks(rank, "wait");
    assert_true(HARNESS_UNTIL(harness_has(client, NULL, "records") >= RANKS * COUNT / 3));
    roll_client_destroy(&client);
    assert_int_equal(harness_end(root, SIGKILL), 128 + SIGKILL);
    usleep(500000); /* calls are made while there is no root */
    root = DAEMON("root.err", NULL, "--root", "--listen", where);
    assert_true(root > 0);
    client = harness_client(where);
    end_ranks(rank);
    check_all_arrived(client);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

/* Whether what is in the trace by now tells of a count that differs. */
static bool is_kept(const char *trace)
{
    roll_trace_reader_t *reader = NULL;
    struct roll_engine_config config = {0};
    struct roll_frame frame;
    char path[400];
    bool found = false;
    snprintf(path, sizeof(path), "%s/job.0.00000001.rtrc", trace);
    if (roll_trace_reader_new(path, &reader) != 0) {
        return false;
    }
    roll_feed_t *feed = roll_feed_new(&config, NULL, 0);
    while (roll_trace_reader_next(reader, &frame) == 0) {
        roll_feed_frame(feed, &frame);
    }
    for (json_t *v; (v = json_of_verdict(roll_feed_next(feed))) != NULL; json_decref(v)) {
        found = found || strcmp(json_string_value(json_object_get(v, "code")), "count-mismatch") == 0;
    }
    roll_feed_destroy(&feed);
    roll_trace_reader_destroy(&reader);
    return found;
}

static void test_a_killed_root_with_a_trace_continues_it(void **state)
{
    (void)state;
    pid_t rank[2];
    char where[300], trace[300], json[300];
    snprintf(where, sizeof(where), "ipc://%s/sock", harness_dir());
    snprintf(trace, sizeof(trace), "%s", harness_path("trace"));
    snprintf(json, sizeof(json), "%s", harness_path("verdicts.json"));
    pid_t root = DAEMON("root.err", NULL, "--root", "--listen", where, "--trace", trace, "--json", json);
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", where);
    assert_true(root > 0 && agent > 0);
    rank[0] = harness_rank(harness_path("d"), 0, 2, 1000, 500, "hang");
    rank[1] = harness_rank(harness_path("d"), 1, 2, 1000, 500, "wrong");
    roll_client_t *client = harness_client(where);
    json_t *before = harness_verdict(client, "count-mismatch");
    assert_non_null(before);
    roll_client_destroy(&client);
    assert_true(HARNESS_UNTIL(is_kept(trace)));
    assert_int_equal(harness_end(root, SIGKILL), 128 + SIGKILL);
    root = DAEMON("root.err", NULL, "--root", "--listen", where, "--trace", trace, "--json", json);
    assert_true(root > 0);
    client = harness_client(where);
    json_t *after = harness_verdict(client, "count-mismatch");
    assert_non_null(after);
    assert_true(json_equal(before, after));
    json_decref(before);
    json_decref(after);
    assert_int_equal(harness_drained(client, "records"), 2 * 501);
    assert_int_equal(harness_drained(client, "lost"), 0);
    roll_client_destroy(&client);
    harness_end(rank[0], SIGTERM);
    harness_end(rank[1], SIGTERM);
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 1);
    /* The file of verdicts has it once. */
    FILE *f = fopen(json, "r");
    char *line = NULL;
    size_t room = 0;
    int mismatches = 0;
    assert_non_null(f);
    while (getline(&line, &room, f) > 0) {
        mismatches += strstr(line, "\"code\":\"count-mismatch\"") != NULL;
    }
    fclose(f);
    free(line);
    assert_int_equal(mismatches, 1);
}

static void test_ranks_do_not_notice_that_no_root_is_there(void **state)
{
    (void)state;
    pid_t rank[RANKS];
    char where[300];
    snprintf(where, sizeof(where), "ipc://%s/sock", harness_dir());
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", where);
    assert_true(agent > 0);
    start_ranks(rank, "exit");
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(harness_end(rank[r], 0), 0);
    }
    assert_true(harness_logged("agent.err", "cannot be reached"));
    assert_int_equal(harness_count(harness_path("d"), ".ring"), RANKS); /* nothing is removed that nobody has read */
    pid_t root = DAEMON("root.err", NULL, "--root", "--listen", where);
    assert_true(root > 0);
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_count(harness_path("d"), ".ring") == 0));
    check_all_arrived(client);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

/* Writes the exit status as a launcher does. Without it a death is told later, because the launcher may be ending all
 * ranks. */
static void note_exit_status(int32_t rank, int32_t size, pid_t pid, int status)
{
    char path[512];
    struct roll_ring ring;
    struct roll_ident ident = {.rank = rank, .size = size, .local_rank = rank, .job = "job"};
    assert_int_equal(roll_ring_path(path, sizeof(path), harness_path("d"), &ident, (uint32_t)pid), 0);
    assert_int_equal(roll_ring_open(path, true, &ring), 0);
    atomic_store(&ring.header->exit_status, status);
    roll_ring_close(&ring);
}

static void test_a_killed_rank_is_named_with_those_who_wait_for_it(void **state)
{
    (void)state;
    pid_t rank[3];
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"), "--stall-ms", "100");
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    rank[0] = harness_rank(harness_path("d"), 0, 3, 1000, 200, "hang");
    rank[1] = harness_rank(harness_path("d"), 1, 3, 1000, 200, "wait");
    rank[2] = harness_rank(harness_path("d"), 2, 3, 1000, 200, "hang");
    assert_true(HARNESS_UNTIL(harness_drained(client, "records") == 3 * 200 + 2)); /* both hang */
    usleep(1500000);                                                               /* much longer than a stall */
    assert_int_equal(harness_end(rank[1], SIGKILL), 128 + SIGKILL);
    note_exit_status(1, 3, rank[1], SIGKILL);
    json_t *verdict = harness_verdict(client, "rank-dead");
    assert_non_null(verdict);
    assert_string_equal(json_string_value(json_object_get(verdict, "culprits_text")), "1");
    assert_string_equal(json_string_value(json_object_get(verdict, "waiting_text")), "0,2");
    assert_string_equal(json_string_value(json_object_get(verdict, "certainty")), "proven");
    json_decref(verdict);
    roll_client_destroy(&client);
    harness_end(rank[0], SIGTERM);
    harness_end(rank[2], SIGTERM);
    assert_int_equal(harness_end(daemon, SIGTERM), 1);
    assert_int_equal(harness_count(harness_path("d"), ".ring"), 1); /* the dead rank's ring stays as evidence */
}

/* What the status says of agents: how many, how many are gone, and the live ranks that the others serve. */
static void count_agents(roll_client_t *client, json_int_t *all, json_int_t *gone, json_int_t *ranks)
{
    json_t *status = harness_ask(client, "{s:s}", "op", "status"), *agent;
    size_t i;
    *all = (json_int_t)json_array_size(json_object_get(status, "agents"));
    *gone = *ranks = 0;
    json_array_foreach(json_object_get(status, "agents"), i, agent)
    {
        bool is = json_is_true(json_object_get(agent, "gone"));
        *gone += is;
        *ranks += is ? 0 : json_integer_value(json_object_get(agent, "ranks"));
    }
    json_decref(status);
}

static void test_ranks_whose_agent_is_gone_are_shown_as_not_heard(void **state)
{
    (void)state;
    char listen[300];
    json_int_t all, gone = 0, ranks = 0;
    snprintf(listen, sizeof(listen), "ipc://%s", harness_path("root.sock"));
    pid_t root = DAEMON("root.err", endpoint, "--root", "--listen", listen, "--dir", harness_path("rootdir"));
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", endpoint);
    assert_true(root > 0 && agent > 0);
    roll_client_t *client = harness_client(endpoint);
    pid_t rank = harness_rank(harness_path("d"), 0, 1, 1000, 100, "wait");
    assert_true(HARNESS_UNTIL((count_agents(client, &all, &gone, &ranks), ranks == 1)));
    /* The agent says that it leaves; an agent that is killed is missed after 10 s, by the same lines. */
    harness_end(agent, SIGTERM);
    assert_true(HARNESS_UNTIL((count_agents(client, &all, &gone, &ranks), gone == 1)));
    assert_int_equal(all, 1);
    assert_int_equal(ranks, 0);
    agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", endpoint);
    assert_true(HARNESS_UNTIL((count_agents(client, &all, &gone, &ranks), gone == 0 && ranks == 1)));
    assert_int_equal(all, 1);
    assert_int_equal(harness_end(rank, SIGTERM), 0);
    roll_client_destroy(&client);
    harness_end(agent, SIGTERM);
    harness_end(root, SIGTERM);
}

/* Is the first rank in this state? */
static bool is_first(roll_client_t *client, const char *wanted)
{
    json_t *status = harness_ask(client, "{s:s}", "op", "status");
    const char *have = json_string_value(json_object_get(json_array_get(json_object_get(status, "ranks"), 0), "state"));
    bool is = have != NULL && strcmp(have, wanted) == 0;
    json_decref(status);
    return is;
}

static void test_a_stopped_rank_is_seen(void **state)
{
    (void)state;
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"));
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    pid_t rank = harness_rank(harness_path("d"), 0, 1, 1000, 100, "wait");
    assert_true(HARNESS_UNTIL(is_first(client, "running")));
    kill(rank, SIGSTOP);
    assert_true(HARNESS_UNTIL(is_first(client, "stopped")));
    kill(rank, SIGCONT);
    assert_int_equal(harness_end(rank, SIGTERM), 0);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
}

static void test_a_record_that_is_never_written_holds_up_nobody(void **state)
{
    (void)state;
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"));
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    static struct synth s;
    assert_int_equal(synth_open(&s, harness_path("d"), "job", 0, 1, 65536), 0);
    struct synth_call call = {.comm = synth_comm(&s, 0x1000), .count = 1024};
    uint64_t ticket;
    synth_allreduce(&s, &call);
    roll_ring_reserve(&s.ring, &ticket); /* as a thread does that is cancelled right there */
    for (int i = 0; i < 10; i++) {
        synth_allreduce(&s, &call);
    }
    assert_true(HARNESS_UNTIL(harness_drained(client, "records") == 11));
    assert_int_equal(harness_drained(client, "lost"), 1);
    synth_finish(&s);
    synth_close(&s);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
}

/* Waits until `why` says this of rank 0. */
static bool said_of_rank_0(roll_client_t *client, const char *part)
{
    bool said = false;
    for (int i = 0; i < HARNESS_END_MS / 20 && !said; i++) {
        usleep(20000);
        json_t *answer = harness_ask(client, "{s:s,s:i}", "op", "why", "rank", 0);
        char *text = json_dumps(answer, JSON_COMPACT);
        said = strstr(text, part) != NULL;
        free(text);
        json_decref(answer);
    }
    return said;
}

static void test_what_the_device_has_noted_as_complete_reaches_the_root(void **state)
{
    (void)state;
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"));
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    static struct synth s;
    assert_int_equal(synth_open(&s, harness_path("d"), "job", 0, 1, 65536), 0);
    struct roll_ring_header *header = s.ring.header;
    struct synth_call call = {.comm = synth_comm(&s, 0x1000), .count = 1024};
    for (int i = 0; i < 10; i++) {
        synth_allreduce(&s, &call);
    }
    const struct roll_record *last = &s.ring.records[9];
    assert_int_equal(last->op, ROLL_OP_ALLREDUCE);
    assert_true(last->stream != 0 && last->stream < ROLL_RING_DONE_STREAMS);
    atomic_store(&header->done[last->stream], 4); /* without a mode it is not looked at */
    assert_true(said_of_rank_0(client, "AllReduce of 1024"));
    atomic_store(&header->completion, ROLL_COMPLETION_WRITE);
    assert_true(said_of_rank_0(client, "(returned, not complete on the device)"));
    atomic_store(&header->done[last->stream], 10);
    assert_true(said_of_rank_0(client, "(complete on the device)"));
    assert_int_equal(roll_seal_state(last->seal), ROLL_STATE_RETURNED); /* the ring stays as its rank wrote it */
    synth_finish(&s);
    synth_close(&s);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
}

#define SOON_NS 60000000000 /* roll_bench verdict measures it; a wrong clock is off by more */

/* When the root said that a count differs, after the wrong call, in ns. */
static json_int_t lag(roll_client_t *client)
{
    json_t *verdict = harness_verdict(client, "count-mismatch");
    assert_non_null(verdict);
    json_int_t event = json_integer_value(json_object_get(verdict, "event_ns"));
    json_int_t said = json_integer_value(json_object_get(verdict, "time_ns"));
    json_decref(verdict);
    assert_true(event > 0);
    return said - event;
}

static json_int_t lag_of_a_wrong_call(unsigned calls)
{
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"), "--trace", harness_path("trace"));
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    pid_t rank[2];
    rank[0] = harness_rank(harness_path("d"), 0, 2, 500, calls, "hang");
    rank[1] = harness_rank(harness_path("d"), 1, 2, 500, calls, "wrong");
    json_int_t ns = lag(client);
    roll_client_destroy(&client);
    harness_end(rank[0], SIGTERM);
    harness_end(rank[1], SIGTERM);
    assert_int_equal(harness_end(daemon, SIGTERM), 1);
    return ns;
}

static void test_a_wrong_call_is_said_after_it_was_made_and_soon(void **state)
{
    (void)state;
    static const unsigned calls[] = {0, 3, 50, 400};
    for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
        json_int_t ns = lag_of_a_wrong_call(calls[i]);
        assert_in_range(ns, 0, SOON_NS);
        char command[320];
        snprintf(command, sizeof(command), "rm -rf '%s'", harness_path("trace"));
        assert_int_equal(system(command), 0);
    }
}

/* Files may not grow here: the daemon goes on without a trace, says so once, and counts what is missing. */
static void test_a_trace_that_cannot_be_written_costs_nothing_else(void **state)
{
    (void)state;
    char command[700];
    snprintf(command, sizeof(command), "ulimit -f 40; exec '%s' --dir '%s' --trace '%s' --ready-fd 1",
             getenv("ROLL_TEST_ROLLCALLD"), harness_path("d"), harness_path("trace"));
    pid_t daemon = SPAWN("daemon.err", "sh", "-c", command);
    assert_true(daemon > 0);
    assert_true(harness_logged("daemon.err", "listening on"));
    snprintf(endpoint, sizeof(endpoint), "ipc://%s/root", harness_path("d"));
    roll_client_t *client = harness_client(endpoint);
    pid_t rank = harness_rank(harness_path("d"), 0, 1, 40000, 60000, "wait");
    assert_true(harness_logged("daemon.err", "the trace ends here"));
    assert_true(HARNESS_UNTIL(harness_drained(client, "records") == 60000));
    json_t *status = harness_ask(client, "{s:s}", "op", "status");
    json_t *trace = json_object_get(status, "trace");
    assert_true(json_is_true(json_object_get(trace, "stopped")));
    assert_true(json_integer_value(json_object_get(trace, "lost")) > 0);
    assert_true(json_integer_value(json_object_get(trace, "bytes")) <= 40 * 1024);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(status, "summary"), "lost")), 0);
    json_decref(status);
    assert_int_equal(harness_end(rank, SIGTERM), 0);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
    assert_true(harness_logged("daemon.err", "records are not in the trace"));
}

static void test_a_trace_that_ended_long_ago_does_not_set_the_clock(void **state)
{
    (void)state;
    char path[300];
    assert_int_equal(mkdir(harness_path("trace"), 0700), 0);
    snprintf(path, sizeof(path), "%s/job.0.rtrc", harness_path("trace"));
    struct roll_frame_head head = {.type = ROLL_FRAME_TICK, .seq = ((uint64_t)time(NULL) - 645) * 1000000000u};
    uint8_t buffer[ROLL_FRAME_HEAD_BYTES];
    assert_int_equal(roll_frame_encode(&head, NULL, 0, buffer, sizeof(buffer)), sizeof(buffer));
    assert_int_equal(synth_trace_append(path, buffer, sizeof(buffer)), 0);
    json_int_t ns = lag_of_a_wrong_call(50);
    assert_in_range(ns, 0, SOON_NS);
}

static void test_a_daemon_that_was_held_up_accuses_nobody(void **state)
{
    (void)state;
    pid_t rank[RANKS];
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"));
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    start_ranks(rank, "wait");
    for (int i = 0; i < 3; i++) {
        usleep(300000);
        kill(daemon, SIGSTOP);
        usleep(900000);
        kill(daemon, SIGCONT);
    }
    end_ranks(rank);
    check_all_arrived(client);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, harness_set_up, harness_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_every_record_of_eight_ranks_arrives_once),
        TEST(test_a_killed_agent_goes_on_where_it_was),
        TEST(test_a_killed_root_is_told_everything_again),
        TEST(test_a_killed_root_with_a_trace_continues_it),
        TEST(test_ranks_do_not_notice_that_no_root_is_there),
        TEST(test_a_killed_rank_is_named_with_those_who_wait_for_it),
        TEST(test_a_stopped_rank_is_seen),
        TEST(test_ranks_whose_agent_is_gone_are_shown_as_not_heard),
        TEST(test_what_the_device_has_noted_as_complete_reaches_the_root),
        TEST(test_a_record_that_is_never_written_holds_up_nobody),
        TEST(test_a_wrong_call_is_said_after_it_was_made_and_soon),
        TEST(test_a_trace_that_cannot_be_written_costs_nothing_else),
        TEST(test_a_trace_that_ended_long_ago_does_not_set_the_clock),
        TEST(test_a_daemon_that_was_held_up_accuses_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
