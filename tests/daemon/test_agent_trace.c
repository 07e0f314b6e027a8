/*
 * test_agent_trace.c: the traces that agents keep on their nodes, read together afterwards, give the verdicts that the
 * root gave; also when there was no root.
 */
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"
#include "tests/daemon/verdict_json.h"

#include "daemon/console/analyze/analyze.h"
#include "daemon/store/segment.h"
#include "daemon/store/trace_file.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CALLS 3000u

static char endpoint[256];

static pid_t start_agent(int node, const char *const connect, const char *segment)
{
    char log[32], dir[32], trace[32];
    snprintf(log, sizeof(log), "agent%d.err", node);
    snprintf(dir, sizeof(dir), "d%d", node);
    snprintf(trace, sizeof(trace), "t%d", node);
    pid_t pid = DAEMON(log, NULL, "--agent", "--dir", harness_path(dir), "--connect", connect, "--trace",
                       harness_path(trace), "--trace-segment", segment);
    assert_true(pid > 0);
    return pid;
}

static pid_t start_root_with(const char *stall_ms, const char *suspect_ms)
{
    char listen[300];
    snprintf(listen, sizeof(listen), "ipc://%s", harness_path("root.sock"));
    pid_t pid = DAEMON("root.err", endpoint, "--root", "--listen", listen, "--dir", harness_path("rootdir"),
                       "--stall-ms", stall_ms, "--suspect-ms", suspect_ms);
    assert_true(pid > 0);
    return pid;
}

static pid_t start_root(void)
{
    return start_root_with("500", "5000"); /* the defaults */
}

struct told {
    struct roll_analysis_summary summary;
    unsigned findings;
    json_t *first;     /* finding; NULL = none */
    unsigned headless; /* ranks of which it is said that the beginning is missing */
};

static struct told analyze(const char *const *names, size_t n)
{
    struct roll_engine_config config = {0};
    roll_analysis_t *a = roll_analysis_new(&config, false);
    struct told told = {.first = NULL};
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(roll_analysis_add(a, harness_path(names[i])), 0);
    }
    assert_int_equal(roll_analysis_finish(a), 0);
    for (json_t *v; (v = json_of_verdict(roll_analysis_next(a))) != NULL; json_decref(v)) {
        told.headless += strstr(json_string_value(json_object_get(v, "text")), "segments have been removed") != NULL;
        if (strcmp(json_string_value(json_object_get(v, "certainty")), "note") != 0 && told.findings++ == 0) {
            told.first = json_incref(v);
        }
    }
    roll_analysis_summary(a, &told.summary);
    roll_analysis_destroy(&a);
    return told;
}

static const char *const both[] = {"t1", "t2"};

/* How many calls the agents have kept by now. */
static uint64_t kept(const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (harness_count(harness_path(names[i]), ".rtrc") == 0) {
            return 0;
        }
    }
    struct told told = analyze(names, n);
    json_decref(told.first);
    return told.summary.engine.calls;
}

static void test_a_healthy_job_on_two_nodes_is_healthy_afterwards(void **state)
{
    (void)state;
    pid_t root = start_root(), agent[2] = {start_agent(1, endpoint, "64K"), start_agent(2, endpoint, "64K")};
    pid_t rank[2];
    rank[0] = harness_rank(harness_path("d1"), 0, 2, 3000, CALLS, "wait");
    rank[1] = harness_rank(harness_path("d2"), 1, 2, 3000, CALLS, "wait");
    assert_true(HARNESS_UNTIL(kept(both, 2) == 2 * CALLS));
    assert_int_equal(harness_end(rank[0], SIGTERM), 0);
    assert_int_equal(harness_end(rank[1], SIGTERM), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(harness_end(agent[i], SIGTERM), 0);
    }
    assert_int_equal(harness_end(root, SIGTERM), 0);
    struct told told = analyze(both, 2);
    assert_int_equal(told.summary.engine.calls, 2 * CALLS);
    assert_int_equal(told.summary.engine.lost, 0);
    assert_int_equal(told.findings, 0);
    assert_false(told.summary.cut);
    assert_int_equal(told.summary.runs, 1);
}

/* Compares these members of two verdicts. */
static void expect_same(const json_t *live, const json_t *kept, const char *const *member, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!json_equal(json_object_get(live, member[i]), json_object_get(kept, member[i]))) {
            fail_msg("%s: live %s, kept %s", member[i], json_dumps(live, JSON_COMPACT), json_dumps(kept, JSON_COMPACT));
        }
    }
}

static void test_what_two_agents_kept_tells_what_the_root_told(void **state)
{
    (void)state;
    pid_t root = start_root(), agent[2] = {start_agent(1, endpoint, "1M"), start_agent(2, endpoint, "1M")};
    roll_client_t *client = harness_client(endpoint);
    pid_t rank[2];
    rank[0] = harness_rank(harness_path("d1"), 0, 2, 1000, 300, "hang");
    rank[1] = harness_rank(harness_path("d2"), 1, 2, 1000, 300, "wrong");
    json_t *live = harness_verdict(client, "count-mismatch");
    assert_non_null(live);
    roll_client_destroy(&client);
    struct told told = {0};
    assert_true(HARNESS_UNTIL(kept(both, 2) > 0 && (told = analyze(both, 2)).first != NULL)); /* the trace is behind */
    json_decref(told.first);
    for (int i = 0; i < 2; i++) {
        harness_end(agent[i], SIGKILL); /* the files end wherever they are cut */
    }
    told = analyze(both, 2);
    assert_non_null(told.first);
    static const char *const same[] = {"code", "certainty", "culprits", "waiting", "comm", "text"};
    expect_same(live, told.first, same, 6);
    json_int_t apart = json_integer_value(json_object_get(live, "event_ns")) -
                       json_integer_value(json_object_get(told.first, "event_ns"));
    assert_in_range(apart + 1000000, 0, 2000000); /* two readings of one clock pair */
    json_decref(told.first);
    json_decref(live);
    harness_end(rank[0], SIGTERM);
    harness_end(rank[1], SIGTERM);
    harness_end(root, SIGTERM);
}

/* The verdict of this code that the traces of both nodes give by now; NULL: none. Returned owned. */
static json_t *kept_verdict(const char *code)
{
    struct roll_engine_config config = {0};
    roll_analysis_t *a = roll_analysis_new(&config, false);
    json_t *found = NULL;
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(roll_analysis_add(a, harness_path(both[i])), 0);
    }
    assert_int_equal(roll_analysis_finish(a), 0);
    for (json_t *v; (v = json_of_verdict(roll_analysis_next(a))) != NULL; json_decref(v)) {
        if (!found && strcmp(json_string_value(json_object_get(v, "code")), code) == 0) {
            found = json_incref(v);
        }
    }
    roll_analysis_destroy(&a);
    return found;
}

/* The SETTINGS of a node's trace, the newest last: what they say of patience and policy. Returns how many there are. */
static size_t settings_of(int node, struct roll_frame_settings *out, size_t room)
{
    struct roll_segment_name *list = NULL;
    roll_trace_reader_t *reader = NULL;
    struct roll_frame frame;
    char series[128], host[64] = "";
    size_t count = 0, n = 0;
    gethostname(host, sizeof(host) - 1);
    for (char *p = host; *p; p++) {
        *p = *p == '.' || *p == '_' ? '_' : *p;
    }
    snprintf(series, sizeof(series), "job.0@%s", host);
    if (roll_segment_list(harness_path(both[node]), series, &list, &count) != 0 || count == 0) {
        free(list);
        return 0;
    }
    assert_int_equal(roll_trace_reader_new(list[0].path, &reader), 0);
    while (roll_trace_reader_next(reader, &frame) == 0) {
        if (frame.head.type == ROLL_FRAME_SETTINGS) {
            assert_true(n < room && frame.head.payload == sizeof(*out));
            memcpy(&out[n++], frame.payload, sizeof(*out));
        }
    }
    roll_trace_reader_destroy(&reader);
    free(list);
    return n;
}

/*
 * A root with another patience than the default, and whose policy is changed while it watches: the traces of the agents
 * hold both, and tell what the root told. Rank 1 makes no call while rank 0 waits: how soon that is said is a matter of
 * patience. Both ranks have said before how many tokens they have: what is said of the remedy is a matter of policy.
 */
static void test_the_patience_and_the_policy_of_the_root_hold_for_what_agents_kept(void **state)
{
    (void)state;
    static struct synth rank[2];
    static const char *const codes[] = {"rank-busy", "moe-tokens-unequal"};
    const char *const dir[2] = {harness_path("d1"), harness_path("d2")};
    pid_t root = start_root_with("700", "300"), agent[2];
    roll_client_t *client = harness_client(endpoint);
    uint16_t comm[2];
    for (int r = 0; r < 2; r++) {
        assert_int_equal(mkdir(dir[r], 0700), 0);
        agent[r] = start_agent(r + 1, endpoint, "1M");
        assert_int_equal(synth_open(&rank[r], dir[r], "job", r, 2, 64), 0);
        comm[r] = synth_comm(&rank[r], 0x1000);
        synth_allreduce(&rank[r], &(struct synth_call){.comm = comm[r], .count = 8});
    }
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") == 2));
    json_decref(harness_ask(client, "{s:s,s:s}", "op", "policy", "policy", "advise"));
    for (int r = 0; r < 2; r++) { /* what is said of tokens depends on the policy: both agents keep it first */
        struct roll_frame_settings is[4];
        assert_true(HARNESS_UNTIL(settings_of(r, is, 4) == 2));
    }
    for (int r = 0; r < 2; r++) {
        synth_tokens(&rank[r], comm[r], 100 + (uint64_t)r);
    }
    synth_allreduce(&rank[0], &(struct synth_call){.comm = comm[0], .count = 8, .hang = true});
    for (size_t i = 0; i < 2; i++) {
        json_t *live = harness_verdict(client, codes[i]), *after = NULL;
        assert_non_null(live);
        assert_true(HARNESS_UNTIL((after = kept_verdict(codes[i])) != NULL)); /* it is behind */
        /* What a suspicion says beside these depends on how busy the node was when; the reports of tokens do not. */
        static const char *const same[] = {"code", "certainty", "culprits", "waiting", "comm", "remedy", "text"};
        expect_same(live, after, same, i == 0 ? 5 : 7);
        json_decref(live);
        json_decref(after);
    }
    roll_client_destroy(&client);
    for (int r = 0; r < 2; r++) {
        struct roll_frame_settings is[4];
        assert_int_equal(settings_of(r, is, 4), 2);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(is[i].stall_ns, 700000000);
            assert_int_equal(is[i].suspect_ns, 300000000);
            assert_int_equal(is[i].policy, i == 0 ? ROLL_POLICY_OBSERVE : ROLL_POLICY_ADVISE);
        }
        synth_finish(&rank[r]);
        harness_end(agent[r], SIGTERM);
        synth_close(&rank[r]);
    }
    harness_end(root, SIGTERM);
}

static void test_an_agent_keeps_what_no_root_ever_sees_also_when_it_is_killed(void **state)
{
    (void)state;
    char nowhere[300];
    static const char *const one[] = {"t1"};
    snprintf(nowhere, sizeof(nowhere), "ipc://%s", harness_path("nobody"));
    pid_t agent = start_agent(1, nowhere, "1M");
    pid_t rank = harness_rank(harness_path("d1"), 0, 1, 3000, CALLS, "wait");
    assert_true(HARNESS_UNTIL(kept(one, 1) > 0));
    assert_int_equal(harness_end(agent, SIGKILL), 128 + SIGKILL);
    agent = start_agent(1, nowhere, "1M");
    assert_true(HARNESS_UNTIL(kept(one, 1) == CALLS));
    assert_int_equal(harness_end(rank, SIGTERM), 0);
    harness_end(agent, SIGTERM);
    struct told told = analyze(one, 1);
    assert_int_equal(told.summary.engine.calls, CALLS);
    assert_int_equal(told.summary.engine.lost, 0);
    assert_int_equal(told.findings, 0);
    assert_false(told.summary.cut);
    assert_int_equal(harness_count(harness_path("t1"), ".rtrc"), 2);
}

/* The beginning has aged away, on one node more than on the other: less is known, and nobody is accused. */
static void test_a_trace_without_its_beginning_accuses_nobody(void **state)
{
    (void)state;
    char nowhere[300], path[600];
    snprintf(nowhere, sizeof(nowhere), "ipc://%s", harness_path("nobody"));
    pid_t agent[2] = {start_agent(1, nowhere, "64K"), start_agent(2, nowhere, "64K")};
    pid_t rank[2];
    rank[0] = harness_rank(harness_path("d1"), 0, 2, 40000, 100000, "wait");
    rank[1] = harness_rank(harness_path("d2"), 1, 2, 40000, 100000, "wait");
    assert_true(HARNESS_UNTIL(kept(both, 2) == 200000));
    for (int i = 0; i < 2; i++) {
        harness_end(rank[i], SIGTERM);
        harness_end(agent[i], SIGTERM);
    }
    assert_true(harness_count(harness_path("t1"), ".rtrc") >= 3);
    assert_true(harness_count(harness_path("t2"), ".rtrc") >= 3);
    struct told whole = analyze(both, 2);
    assert_int_equal(whole.summary.engine.calls, 200000);
    assert_int_equal(whole.findings, 0);
    assert_int_equal(whole.headless, 0);
    char host[64] = "";
    gethostname(host, sizeof(host) - 1);
    for (char *p = host; *p; p++) {
        *p = *p == '.' || *p == '_' ? '_' : *p;
    }
    /* The first segment goes when the analyzer has read its name: the others are read all the same. */
    struct roll_engine_config config = {0};
    struct roll_analysis_summary late;
    roll_analysis_t *a = roll_analysis_new(&config, false);
    assert_int_equal(roll_analysis_add(a, harness_path("t1")), 0);
    assert_int_equal(roll_analysis_add(a, harness_path("t2")), 0);
    snprintf(path, sizeof(path), "%s/job.0@%s.%08d.rtrc", harness_path("t1"), host, 1);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(roll_analysis_finish(a), 0);
    roll_analysis_summary(a, &late);
    assert_int_equal(late.engine.sources, 2);
    assert_true(late.cut);
    roll_analysis_destroy(&a);
    for (int n = 1; n <= 2; n++) {
        snprintf(path, sizeof(path), "%s/job.0@%s.%08d.rtrc", harness_path("t2"), host, n);
        assert_int_equal(unlink(path), 0);
    }
    struct told rest = analyze(both, 2);
    assert_int_equal(rest.findings, 0);
    assert_true(rest.summary.engine.calls > 10000 && rest.summary.engine.calls < 200000);
    assert_true(rest.summary.older > 0);
    assert_int_equal(rest.summary.engine.lost, 0);
    assert_int_equal(rest.summary.engine.sources, 2);
    assert_int_equal(rest.headless, 2); /* the text does not say that a larger ring would have helped */
}

/* No daemon watched, and all ranks were killed. There is no verdict, because the rings do not tell who died first; but
 * they tell who was waited for.
 */
static void test_the_rings_of_a_killed_job_tell_who_was_waited_for(void **state)
{
    (void)state;
    struct roll_engine_config config = {0};
    pid_t rank[2];
    char command[1200];
    assert_int_equal(mkdir(harness_path("d1"), 0700), 0);
    rank[0] = harness_rank(harness_path("d1"), 0, 2, 1000, 100, "hang");
    rank[1] = harness_rank(harness_path("d1"), 1, 2, 1000, 100, "wait");
    assert_true(HARNESS_UNTIL(harness_calls(harness_path("d1"), 0, 2, rank[0]) == 101 &&
                              harness_calls(harness_path("d1"), 1, 2, rank[1]) == 100));
    harness_end(rank[1], SIGKILL);
    harness_end(rank[0], SIGKILL);
    roll_analysis_t *a = roll_analysis_new(&config, false);
    assert_int_equal(roll_analysis_add(a, harness_path("d1")), 0);
    assert_int_equal(roll_analysis_finish(a), 0);
    for (json_t *v; (v = json_of_verdict(roll_analysis_next(a))) != NULL; json_decref(v)) {
        assert_string_equal(json_string_value(json_object_get(v, "certainty")), "note");
    }
    json_t *standing = roll_analysis_standing(a);
    assert_int_equal(json_array_size(standing), 2);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(standing, 0), "rank")), 0);
    assert_string_equal(json_string_value(json_object_get(json_array_get(standing, 0), "job")), "job");
    const char *text = json_string_value(json_object_get(json_array_get(standing, 0), "text"));
    assert_non_null(strstr(text, "Rank 0 is dead (its exit status is not known)"));
    assert_non_null(strstr(text, "for rank 1: rank 1 is dead (its exit status is not known)"));
    assert_null(strstr(text, "exit code 0"));
    json_decref(standing);
    snprintf(command, sizeof(command), "'%s' analyze --json '%s'", getenv("ROLL_TEST_ROLLCALL"), harness_path("d1"));
    FILE *out = popen(command, "r");
    assert_non_null(out);
    char line[65536];
    bool told = false;
    while (fgets(line, sizeof(line), out)) {
        json_t *object = json_loads(line, 0, NULL);
        told = told || json_array_size(json_object_get(object, "standing")) == 2;
        json_decref(object);
    }
    pclose(out);
    assert_true(told);
    roll_analysis_destroy(&a);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, harness_set_up, harness_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_a_healthy_job_on_two_nodes_is_healthy_afterwards),
        TEST(test_what_two_agents_kept_tells_what_the_root_told),
        TEST(test_the_patience_and_the_policy_of_the_root_hold_for_what_agents_kept),
        TEST(test_an_agent_keeps_what_no_root_ever_sees_also_when_it_is_killed),
        TEST(test_a_trace_without_its_beginning_accuses_nobody),
        TEST(test_the_rings_of_a_killed_job_tell_who_was_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
