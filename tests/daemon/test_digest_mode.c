/*
 * test_digest_mode.c: ranks on two nodes, compared by digests: the root hears windows and no records, also when an
 * agent or the root is killed in between; one wrong call is found, with its rank and its number, while the job goes on.
 *
 * The ranks are rings of this process, so that all of them are at the same call whatever the machine does.
 */
#include "daemon/wire/net.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <zmq.h>

#define RANKS 4 /* two on each node */
#define TURN  32u

static struct synth rank[RANKS];
static uint16_t comm[RANKS];
#define LEVELS 2 /* most relays that stand above each other */

static char node[2][300], where[320], door[LEVELS][320]; /* where: the root; door: of each relay */
static pid_t relay[LEVELS];
static const char *patience; /* --suspect-ms of the root */
static int levels;           /* relays between the agents and the root */
static bool apart;           /* the second agent goes to the root at once; else a relay judges all by itself */
static bool beside;          /* the relays stand beside each other, and not above */
static uint32_t made;        /* calls of each rank */

/* Where agent i connects to. */
static const char *entrance(int i)
{
    return levels > 0 && !(apart && i == 1) ? door[levels - 1] : where;
}

static void start_relay(int i)
{
    char name[32];
    snprintf(name, sizeof(name), "relay%d.socket", i);
    snprintf(door[i], sizeof(door[i]), "ipc://%s", harness_path(name));
    relay[i] =
        DAEMON("relay.err", NULL, "--relay", "--listen", door[i], "--connect", i > 0 && !beside ? door[i - 1] : where);
    assert_true(relay[i] > 0);
}

static void begin(pid_t agent[2], pid_t *root, const char *mode)
{
    made = 0;
    snprintf(where, sizeof(where), "ipc://%s", harness_path("root.socket"));
    *root = DAEMON("root.err", NULL, "--root", mode, "--listen", where, "--suspect-ms", patience);
    assert_true(*root > 0);
    for (int i = 0; i < levels; i++) {
        start_relay(i);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(node[i], sizeof(node[i]), "%s", harness_path(i ? "d1" : "d0"));
        assert_int_equal(mkdir(node[i], 0700), 0);
        agent[i] = DAEMON("agent.err", NULL, "--agent", "--dir", node[i], "--connect", entrance(i));
        assert_true(agent[i] > 0);
    }
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(synth_open(&rank[r], node[r / 2], "job", r, RANKS, 0), 0);
        comm[r] = synth_comm(&rank[r], 0x1000);
    }
}

static void call_all(uint64_t count_of_last)
{
    for (int r = 0; r < RANKS; r++) {
        struct synth_call call = {.comm = comm[r], .count = r == RANKS - 1 ? count_of_last : 1024};
        synth_allreduce(&rank[r], &call);
    }
    made++;
}

/* A little of the job, and then a little time for those who watch it. */
static void go_on(void)
{
    for (uint32_t i = 0; i < TURN; i++) {
        call_all(1024);
    }
    usleep(20000);
}

struct digests {
    json_int_t windows, refused, opened;
    bool none; /* no records are here, nor asked for */
};

static struct digests digests_of(roll_client_t *client)
{
    json_t *status = harness_ask(client, "{s:s}", "op", "status");
    const json_t *d = json_object_get(status, "digests");
    const char *records = json_string_value(json_object_get(d, "records"));
    struct digests now = {.windows = json_integer_value(json_object_get(d, "windows")),
                          .refused = json_integer_value(json_object_get(d, "refused")),
                          .opened = json_integer_value(json_object_get(d, "opened")),
                          .none = records && strcmp(records, "none") == 0};
    json_decref(status);
    return now;
}

/* The job goes on until many windows have been compared at the root while no record was looked at. A root that waits
 * for a rank that seems late may look at records; but not all the time. */
static bool is_compared(roll_client_t *client)
{
    struct digests first = digests_of(client);
    for (int turn = 0; turn < 3000; turn++) {
        go_on();
        struct digests now = digests_of(client);
        if (!now.none || !first.none || now.windows < first.windows) {
            first = now;
        } else if (now.windows >= first.windows + 8) {
            assert_int_equal(now.refused, 0);
            return true;
        }
    }
    return false;
}

static void end(pid_t agent[2], pid_t root)
{
    for (int r = 0; r < RANKS; r++) {
        synth_finish(&rank[r]);
        synth_close(&rank[r]);
    }
    harness_end(agent[0], SIGTERM);
    harness_end(agent[1], SIGTERM);
    for (int i = levels; i-- > 0;) {
        assert_int_equal(harness_end(relay[i], SIGTERM), 0);
    }
    harness_end(root, SIGTERM);
}

static void nothing_was_found(roll_client_t *client)
{
    assert_int_equal(harness_drained(client, "findings"), 0);
    /* A drain waits for all agents that are known, for those that begin anew meanwhile, too: they are told of it again.
     * One that has been started and has not come yet is not known. */
    (void)HARNESS_UNTIL(harness_has(client, "job", "calls") == (json_int_t)RANKS * made);
    assert_int_equal(harness_has(client, "job", "calls"), (json_int_t)RANKS * made);
}

static void test_equal_calls_are_not_sent(void **state)
{
    (void)state;
    pid_t agent[2], root;
    begin(agent, &root, "--digest");
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == RANKS));
    assert_true(is_compared(client));
    nothing_was_found(client);

    assert_int_equal(harness_end(agent[1], SIGKILL), 128 + SIGKILL);
    go_on();
    agent[1] = DAEMON("agent.err", NULL, "--agent", "--dir", node[1], "--connect", entrance(1));
    assert_true(agent[1] > 0);
    assert_true(is_compared(client));
    nothing_was_found(client);

    for (int i = 0; i < levels; i++) { /* a relay that dies takes nothing with it */
        assert_int_equal(harness_end(relay[i], SIGKILL), 128 + SIGKILL);
        go_on();
        start_relay(i);
        assert_true(is_compared(client));
        nothing_was_found(client);
    }
    roll_client_destroy(&client);

    assert_int_equal(harness_end(root, SIGKILL), 128 + SIGKILL);
    go_on();
    root = DAEMON("root.err", NULL, "--root", "--digest", "--listen", where);
    assert_true(root > 0);
    client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == RANKS));
    assert_true(is_compared(client));
    nothing_was_found(client);
    roll_client_destroy(&client);
    end(agent, root);
}

/* What is said first of one wrong call, while the job goes on. Returned owned. */
static json_t *said_of_a_wrong_call(const char *mode)
{
    pid_t agent[2], root;
    begin(agent, &root, mode);
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == RANKS));
    for (int turn = 0; turn < 40; turn++) {
        go_on();
    }
    assert_int_equal(harness_drained(client, "findings"), 0);
    uint32_t wrong = made;
    call_all(999);
    json_t *found = NULL;
    for (int turn = 0; turn < 3000 && !found; turn++) {
        go_on();
        json_t *all = harness_ask(client, "{s:s,s:i}", "op", "verdicts", "from", 1);
        found = json_incref(json_array_get(json_object_get(all, "verdicts"), 0));
        json_decref(all);
    }
    assert_non_null(found);
    assert_int_equal(json_integer_value(json_object_get(found, "seq")), wrong);
    assert_int_equal(harness_drained(client, "findings"), 1);
    roll_client_destroy(&client);
    end(agent, root);
    return found;
}

/* Said by a root of this mode behind so many relays, it is what a root says to which the agents stream at once. */
static void is_told_as_streamed(void **state, const char *mode, int relays)
{
    static const char *const same[] = {"code", "certainty", "culprits_text", "seq", "field"};
    levels = 0;
    json_t *streamed = said_of_a_wrong_call("--stream");
    assert_int_equal(harness_tear_down(state), 0);
    assert_int_equal(harness_set_up(state), 0);
    levels = relays;
    json_t *digested = said_of_a_wrong_call(mode);
    assert_string_equal(json_string_value(json_object_get(digested, "code")), "count-mismatch");
    assert_string_equal(json_string_value(json_object_get(digested, "culprits_text")), "3");
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        json_t *one = json_object_get(streamed, same[i]), *other = json_object_get(digested, same[i]);
        assert_non_null(one);
        if (!json_equal(one, other)) {
            char *told = json_dumps(one, JSON_ENCODE_ANY), *instead = json_dumps(other, JSON_ENCODE_ANY);
            fail_msg("%s: %s streamed, %s with %s and %d relays", same[i], told, instead, mode, relays);
        }
    }
    json_decref(streamed);
    json_decref(digested);
}

static void test_a_wrong_call_is_told_as_it_is_told_streamed(void **state)
{
    is_told_as_streamed(state, "--digest", 0);
}

static void test_a_relay_changes_nothing(void **state)
{
    is_told_as_streamed(state, "--digest", 1);
}

static void test_two_relays_change_nothing(void **state)
{
    is_told_as_streamed(state, "--digest", 2);
}

static void test_a_relay_passes_records_on(void **state)
{
    is_told_as_streamed(state, "--stream", 1);
}

/* Lets the job go on until the root has looked at records `opened` times at least, and looks at none any more. */
static bool has_looked(roll_client_t *client, json_int_t opened)
{
    for (int turn = 0; turn < 3000; turn++) {
        go_on();
        struct digests now = digests_of(client);
        if (now.none && now.opened >= opened) {
            return true;
        }
    }
    return false;
}

static void test_records_are_looked_at_only_as_long_as_needed(void **state)
{
    (void)state;
    pid_t agent[2], root;
    begin(agent, &root, "--digest");
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == RANKS));
    assert_true(is_compared(client));
    json_int_t opened = digests_of(client).opened;
    call_all(999);
    assert_true(has_looked(client, opened + 1));
    assert_true(is_compared(client));
    /* The same mistake once more, when all have agreed for many windows, is looked at, and is another finding. */
    opened = digests_of(client).opened;
    call_all(999);
    assert_true(has_looked(client, opened + 1));
    assert_int_equal(harness_drained(client, "findings"), 2);
    /* A root that comes later, when nobody makes a call any more, finds what was there before it came. */
    roll_client_destroy(&client);
    assert_int_equal(harness_end(root, SIGKILL), 128 + SIGKILL);
    root = DAEMON("root.err", NULL, "--root", "--digest", "--listen", where);
    assert_true(root > 0);
    client = harness_client(where);
    json_t *found = harness_verdict(client, "count-mismatch");
    assert_non_null(found);
    assert_string_equal(json_string_value(json_object_get(found, "culprits_text")), "3");
    json_decref(found);
    roll_client_destroy(&client);
    end(agent, root);
}

static void test_equal_calls_are_not_sent_through_relays(void **state)
{
    levels = LEVELS;
    apart = true;
    test_equal_calls_are_not_sent(state);
}

static void test_records_are_looked_at_through_a_relay(void **state)
{
    levels = 1;
    apart = true;
    test_records_are_looked_at_only_as_long_as_needed(state);
}

/* How many of the job's ranks the root hears. */
static json_int_t heard(roll_client_t *client)
{
    json_t *status = harness_ask(client, "{s:s}", "op", "status"), *one;
    json_int_t n = 0;
    size_t i;
    json_array_foreach(json_object_get(status, "ranks"), i, one)
    {
        n += json_is_true(json_object_get(one, "heard"));
    }
    json_decref(status);
    return n;
}

/*
 * An agent that does not run, behind a relay that does: its ranks seem to have stopped. Nobody is blamed: time does not
 * pass while the root does not know more, and later it is known that they are not heard.
 */
static void test_an_agent_behind_a_relay_is_silent(void **state)
{
    (void)state;
    pid_t agent[2], root;
    levels = 1;
    apart = true;
    patience = "1000";
    begin(agent, &root, "--stream");
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == RANKS && heard(client) == RANKS));
    go_on();
    assert_int_equal(harness_drained(client, "findings"), 0);
    assert_int_equal(kill(agent[0], SIGSTOP), 0);
    go_on();
    assert_true(HARNESS_UNTIL(heard(client) == RANKS / 2));
    json_t *all = harness_ask(client, "{s:s,s:i}", "op", "verdicts", "from", 1);
    assert_int_equal(json_array_size(json_object_get(all, "verdicts")), 0);
    json_decref(all);
    assert_int_equal(kill(agent[0], SIGCONT), 0);
    assert_true(HARNESS_UNTIL(heard(client) == RANKS));
    nothing_was_found(client);
    roll_client_destroy(&client);
    end(agent, root);
}

/* The root itself knows by digests how far all members are: each of them is told of by one level below it. */
static bool knows_all(roll_client_t *client)
{
    json_t *status = harness_ask(client, "{s:s}", "op", "status");
    const json_t *front = json_array_get(json_object_get(status, "comms"), 0);
    const char *records = json_string_value(json_object_get(json_object_get(status, "digests"), "records"));
    bool knows = records && strcmp(records, "none") == 0 &&
                 json_integer_value(json_object_get(front, "seen")) == RANKS &&
                 json_integer_value(json_object_get(front, "done")) == made;
    json_decref(status);
    return knows;
}

/* A case that a slow machine has opened ends when ranks are seen to go on: so they do, with a rest after each turn,
 * ever longer, in which the root can come to know where they stand. */
static bool comes_to_know_all(roll_client_t *client)
{
    bool knows = knows_all(client);
    for (int turn = 1; turn < 20 && !knows; turn++) {
        go_on();
        for (int rest = 0; rest < 100 * turn && !(knows = knows_all(client)); rest++) {
            usleep(20000);
        }
    }
    return knows;
}

/* Nothing was refused so far. */
static bool is_calm(const char *log)
{
    char line[1024];
    bool calm = true;
    FILE *f = fopen(harness_path(log), "r");
    while (f && fgets(line, sizeof(line), f)) {
        calm = calm && !strstr(line, "refused");
    }
    if (f) {
        fclose(f);
    }
    return calm;
}

/*
 * An agent that is started anew elsewhere, while the one before is still counted there: below another relay, below the
 * one of the other agent, at the root, and back. Its ranks are counted once, windows are compared at the root wherever
 * the two agents are not below one relay, and a wrong call is told.
 */
static void test_an_agent_moves(void **state)
{
    (void)state;
    pid_t agent[2], root;
    levels = 2;
    apart = beside = true;
    begin(agent, &root, "--digest");
    const char *const to[] = {door[0], where, door[1], door[0]};
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == RANKS));
    assert_true(is_compared(client));
    for (size_t i = 0; i < sizeof(to) / sizeof(*to); i++) {
        assert_int_equal(harness_end(agent[1], i % 2 ? SIGKILL : SIGTERM), i % 2 ? 128 + SIGKILL : 0);
        go_on();
        agent[1] = DAEMON("agent.err", NULL, "--agent", "--dir", node[1], "--connect", to[i]);
        assert_true(agent[1] > 0);
        go_on();
        assert_true(to[i] == door[1] || (is_compared(client) && comes_to_know_all(client)));
        nothing_was_found(client);
    }
    assert_int_equal(digests_of(client).refused, 0);
    call_all(999);
    json_t *found = harness_verdict(client, "count-mismatch");
    assert_non_null(found);
    assert_string_equal(json_string_value(json_object_get(found, "culprits_text")), "3");
    json_decref(found);
    roll_client_destroy(&client);
    assert_true(is_calm("root.err") && is_calm("relay.err"));
    end(agent, root);
}

/* A console that asks a relay is sent on to its root; one of an older release shows what the relay says. */
static void test_a_relay_sends_consoles_to_its_root(void **state)
{
    (void)state;
    pid_t agent[2], root;
    levels = 1;
    begin(agent, &root, "--digest");
    roll_client_t *client = NULL;
    char why[512] = "";
    assert_true(HARNESS_UNTIL(access(door[0] + strlen("ipc://"), F_OK) == 0));
    int err = roll_client_new(door[0], NULL, 10000, &client, why, sizeof(why));
    assert_int_equal(err, 0);
    assert_string_equal(roll_client_relay(client), door[0]);
    assert_string_equal(roll_client_endpoint(client), where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == RANKS));
    roll_client_destroy(&client);

    void *context = zmq_ctx_new(), *old = roll_net_dealer(context, NULL, "", 0);
    struct roll_frame_head head = {.type = ROLL_FRAME_QUERY, .seq = 1};
    struct roll_frame frame;
    zmq_msg_t msg;
    assert_int_equal(zmq_connect(old, door[0]), 0);
    json_t *query = json_pack("{s:s}", "op", "status");
    assert_int_equal(roll_net_send_json(old, NULL, 0, &head, query), 0);
    json_decref(query);
    zmq_msg_init(&msg);
    assert_true(HARNESS_UNTIL(roll_net_recv(&msg, old) >= 0));
    assert_int_equal(roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL), 0);
    json_t *reply = roll_net_json(&frame);
    const char *text = json_string_value(json_object_get(reply, "error"));
    assert_non_null(text);
    assert_non_null(strstr(text, where));
    json_decref(reply);
    zmq_msg_close(&msg);
    zmq_close(old);
    zmq_ctx_term(context);
    end(agent, root);
}

static int set_up(void **state)
{
    patience = "5000";
    levels = 0;
    apart = beside = false;
    return harness_set_up(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_equal_calls_are_not_sent, set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_equal_calls_are_not_sent_through_relays, set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_wrong_call_is_told_as_it_is_told_streamed, set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_relay_changes_nothing, set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_two_relays_change_nothing, set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_relay_passes_records_on, set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_records_are_looked_at_only_as_long_as_needed, set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_records_are_looked_at_through_a_relay, set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_an_agent_behind_a_relay_is_silent, set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_an_agent_moves, set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_relay_sends_consoles_to_its_root, set_up, harness_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
