/*
 * test_switches_owed.c: what is switched at a root reaches agents that could not hear of it then: one that is stopped
 * while its queue is full, and one that was away; both also behind a relay.
 *
 * The queue is filled by switching one remedy until the root says that the agent takes no more, so it is full on any
 * machine, and what is switched behind that cannot be on its way.
 */
#include "daemon/wire/net.h"
#include "tests/daemon/harness.h"
#include "trace/control.h"
#include "trace/frame.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define FULL   "takes nothing from its queue"
#define TURNS  100000
#define LAYERS 200
#define BATCH  32 /* questions at once: a root closes the connection of who asks 65 and has read no answer (guard.h) */

struct site {
    char where[300], door[300]; /* the root, and where the agent goes to: there, or to the relay */
    const char *log;            /* of what the agent is connected with */
    pid_t root, relay, agent, rank;
    roll_client_t *client;
    struct roll_control *page;
};

static pid_t agent_of(const struct site *s)
{
    return DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", s->door);
}

static void begin(struct site *s, bool relay)
{
    snprintf(s->where, sizeof(s->where), "ipc://%s/sock", harness_dir());
    snprintf(s->door, sizeof(s->door), "ipc://%s/%s", harness_dir(), relay ? "door" : "sock");
    s->log = relay ? "relay.err" : "root.err";
    s->root = DAEMON("root.err", NULL, "--root", "--listen", s->where);
    s->relay = relay ? DAEMON("relay.err", NULL, "--relay", "--listen", s->door, "--connect", s->where) : 0;
    assert_true(s->relay >= 0);
    s->agent = agent_of(s);
    assert_true(s->root > 0 && s->agent > 0);
    s->client = harness_client(s->where);
    s->rank = harness_rank(harness_path("d"), 0, 1, 1000, 10, "wait");
    assert_true(HARNESS_UNTIL(harness_has(s->client, "job", "records") == 10));
    assert_int_equal(roll_control_open(harness_path("d/job.0.ctl"), false, 0, &s->page), 0);
}

static void end(struct site *s)
{
    roll_control_close(&s->page);
    roll_client_destroy(&s->client);
    harness_end(s->rank, SIGKILL);
    assert_int_equal(harness_end(s->agent, SIGTERM), 0);
    assert_true(s->relay == 0 || harness_end(s->relay, SIGTERM) == 0);
    assert_int_equal(harness_end(s->root, SIGTERM), 0);
}

/* Switches a remedy of one layer; returns whether the root has taken it. */
static bool layer(struct site *s, const char *action, const char *remedy, int number)
{
    json_t *reply = harness_ask(s->client, "{s:s,s:s,s:s,s:s,s:i,s:b}", "op", "remedy", "action", action, "remedy",
                                remedy, "level", "layer", "layer", number, "force", 1);
    bool ok = json_is_true(json_object_get(reply, "ok"));
    json_decref(reply);
    return ok;
}

/* How many lines of a log have the text? */
static int lines_with(const char *log, const char *text)
{
    char line[1024];
    int n = 0;
    FILE *f = fopen(harness_path(log), "r");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        n += strstr(line, text) != NULL;
    }
    fclose(f);
    return n;
}

/* Takes one answer from the root, if one is here. */
static bool answered(void *client)
{
    zmq_msg_t msg;
    struct roll_frame frame;
    zmq_msg_init(&msg);
    bool here = roll_net_recv(&msg, client) >= 0;
    if (here) {
        assert_int_equal(roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL), 0);
        here = frame.head.type == ROLL_FRAME_REPLY;
    }
    zmq_msg_close(&msg);
    return here;
}

static void ask_to_switch(void *client, int turn)
{
    struct roll_frame_head head = {.type = ROLL_FRAME_QUERY, .seq = (uint64_t)turn + 1};
    json_t *query = json_pack("{s:s,s:s,s:s,s:s,s:i,s:b}", "op", "remedy", "action", turn % 2 ? "off" : "on", "remedy",
                              "dummy", "level", "layer", "layer", turn % LAYERS, "force", 1);
    assert_non_null(query);
    assert_true(HARNESS_UNTIL(roll_net_send_json(client, NULL, 0, &head, query) == 0));
    json_decref(query);
}

/* Switches a remedy of layers 0 to 199 in turn, on and off, until the root says that the agent takes no more. Several
 * questions are on their way at once: on a busy machine each answer takes long. Returns how often it was switched. */
static int fill(struct site *s)
{
    void *context = zmq_ctx_new(), *client = roll_net_dealer(context, NULL, "flood", 0);
    int turns = 0, answers = 0;
    assert_non_null(client);
    assert_int_equal(zmq_connect(client, s->where), 0);
    while (turns == 0 || lines_with(s->log, FULL) == 0) {
        assert_true(turns < TURNS);
        for (int i = 0; i < BATCH; i++) {
            ask_to_switch(client, turns++);
        }
        for (; answers < turns; answers++) {
            assert_true(HARNESS_UNTIL(answered(client)));
        }
    }
    zmq_close(client);
    zmq_ctx_term(context);
    return turns;
}

static bool group(struct site *s, const char *action, unsigned key)
{
    char comm[24];
    snprintf(comm, sizeof(comm), "0x%x", key);
    json_t *reply = harness_ask(s->client, "{s:s,s:s,s:s,s:s,s:s,s:b}", "op", "remedy", "action", action, "remedy",
                                "fill", "level", "group", "comm", comm, "force", 1);
    bool ok = json_is_true(json_object_get(reply, "ok"));
    json_decref(reply);
    return ok;
}

/* policy: it is set anew as well, which is owed in a way of its own. */
static void full_queue(bool relay, bool policy)
{
    struct site s;
    begin(&s, relay);
    assert_true(layer(&s, "on", "fill", 3));
    assert_true(HARNESS_UNTIL(atomic_load(&s.page->layer[3].on) == ROLL_REMEDY_FILL));
    assert_int_equal(kill(s.agent, SIGSTOP), 0);
    assert_true(fill(&s) > LAYERS);
    assert_true(layer(&s, "clear", "fill", 3));
    assert_true(layer(&s, "on", "pad", LAYERS));
    if (policy) {
        json_decref(harness_ask(s.client, "{s:s,s:s}", "op", "policy", "policy", "auto"));
    }
    assert_int_equal(kill(s.agent, SIGCONT), 0);
    assert_true(HARNESS_UNTIL(atomic_load(&s.page->layer[LAYERS].on) == ROLL_REMEDY_PAD));
    assert_true(!policy || HARNESS_UNTIL(atomic_load(&s.page->policy) == ROLL_POLICY_AUTO));
    assert_true(HARNESS_UNTIL(atomic_load(&s.page->layer[3].on) == 0));
    for (int i = 0; i < LAYERS; i++) { /* as it was switched last */
        bool on = i % 2 == 0;
        assert_true(HARNESS_UNTIL(atomic_load(&s.page->layer[i].on) == (on ? ROLL_REMEDY_DUMMY : 0)));
        assert_int_equal(atomic_load(&s.page->layer[i].off), on ? 0 : ROLL_REMEDY_DUMMY);
    }
    assert_int_equal(lines_with(s.log, FULL), 1);
    end(&s);
}

static void away(bool relay)
{
    struct site s;
    begin(&s, relay);
    assert_true(layer(&s, "on", "fill", 3));
    assert_true(layer(&s, "on", "pad", 4));
    assert_true(group(&s, "on", 0xabc));
    assert_true(HARNESS_UNTIL(atomic_load(&s.page->group[0].on) == ROLL_REMEDY_FILL));
    assert_int_equal(atomic_load(&s.page->layer[3].on), ROLL_REMEDY_FILL);
    assert_int_equal(harness_end(s.agent, SIGKILL), 128 + SIGKILL);
    assert_true(layer(&s, "clear", "fill", 3));
    assert_true(group(&s, "clear", 0xabc));
    s.agent = agent_of(&s);
    assert_true(s.agent > 0);
    assert_true(HARNESS_UNTIL(atomic_load(&s.page->layer[3].on) == 0));
    assert_true(HARNESS_UNTIL(atomic_load(&s.page->group[0].comm_key) == 0));
    assert_int_equal(atomic_load(&s.page->layer[4].on), ROLL_REMEDY_PAD);
    end(&s);
}

static void test_a_stopped_agent_with_a_full_queue_is_told_when_it_goes_on(void **state)
{
    (void)state;
    full_queue(false, false);
}

static void test_so_it_is_of_a_policy(void **state)
{
    (void)state;
    full_queue(false, true);
}

static void test_so_is_one_behind_a_relay(void **state)
{
    (void)state;
    full_queue(true, true);
}

static void test_an_agent_that_was_away_hears_what_was_cleared_meanwhile(void **state)
{
    (void)state;
    away(false);
}

static void test_so_does_one_behind_a_relay(void **state)
{
    (void)state;
    away(true);
}

static void test_a_communicator_that_was_cleared_leaves_its_place_to_another(void **state)
{
    (void)state;
    struct site s;
    begin(&s, false);
    for (unsigned key = 1; key <= ROLL_CONTROL_GROUPS; key++) {
        assert_true(group(&s, "on", key));
    }
    assert_false(group(&s, "on", 1000));
    assert_true(group(&s, "clear", 5));
    assert_true(group(&s, "on", 1000));
    assert_false(group(&s, "on", 1001));
    assert_true(HARNESS_UNTIL(atomic_load(&s.page->group[4].comm_key) == 1000));
    /* An agent that was away has a full page, and is told of the one that was cleared before it is told of the other.
     */
    assert_int_equal(harness_end(s.agent, SIGKILL), 128 + SIGKILL);
    assert_true(group(&s, "clear", 7));
    assert_true(group(&s, "on", 1001));
    s.agent = agent_of(&s);
    assert_true(s.agent > 0);
    assert_true(HARNESS_UNTIL(atomic_load(&s.page->group[6].comm_key) == 1001));
    assert_int_equal(atomic_load(&s.page->group[4].comm_key), 1000);
    end(&s);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, harness_set_up, harness_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_stopped_agent_with_a_full_queue_is_told_when_it_goes_on),
        TEST(test_so_it_is_of_a_policy),
        TEST(test_so_is_one_behind_a_relay),
        TEST(test_an_agent_that_was_away_hears_what_was_cleared_meanwhile),
        TEST(test_so_does_one_behind_a_relay),
        TEST(test_a_communicator_that_was_cleared_leaves_its_place_to_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
