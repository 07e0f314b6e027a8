/*
 * test_relay_death.c: a relay is killed while the ranks below it go on calling, and a successor comes at the same
 * place, or none does and the agents are started anew at the root: every call is counted once, nothing is found that is
 * not so, and a wrong call that was made while no relay lived is found, with its rank and its number.
 *
 * The ranks are rings of this process, which a thread of it writes all the time, so that no turn of a relay or an agent
 * lies between two calls of the test (in test_digest_mode.c the job stands still while a relay is killed). The thread
 * sleeps between its calls, and a ring holds more of them than can be made until the longest wait of a test is over:
 * none is overwritten unread, however slow the machine is.
 */
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define RANKS    4          /* two on each node */
#define PAUSE_US 5000       /* between two calls of each rank */
#define CAPACITY (1u << 17) /* of a ring: 650 s of calls */
#define SOME     128u       /* calls: windows are filled meanwhile */
#define KILLS    2u
#define WRONG    1 /* the rank that makes the wrong call; always below the relay */

static struct synth rank[RANKS];
static uint16_t comm[RANKS];
static char node[2][300], where[320], door[320]; /* where: the root; door: of the relay */
static pid_t root, relay, agent[2];
static bool apart; /* the second agent goes to the root at once; else the relay judges all by itself */

static bool drains;

static pthread_t writer;
static bool writes; /* the thread runs */
static _Atomic bool over;
static _Atomic uint32_t made; /* calls of each rank */
static _Atomic bool wrong;    /* the next call of WRONG is of another size; false again when it was made */
static _Atomic uint32_t wrong_at;

static void *write_calls(void *arg)
{
    (void)arg;
    while (!atomic_load(&over)) {
        bool other = atomic_load(&wrong);
        for (int r = 0; r < RANKS; r++) {
            struct synth_call call = {.comm = comm[r], .count = other && r == WRONG ? 999 : 1024};
            synth_allreduce(&rank[r], &call);
        }
        if (other) {
            atomic_store(&wrong_at, atomic_load(&made));
            atomic_store(&wrong, false);
        }
        atomic_fetch_add(&made, 1);
        usleep(PAUSE_US);
    }
    return NULL;
}

static void start_relay(void)
{
    relay = DAEMON("relay.err", NULL, "--relay", "--listen", door, "--connect", where);
    assert_true(relay > 0);
}

static void start_agent(int i, const char *entrance)
{
    agent[i] = DAEMON("agent.err", NULL, "--agent", "--dir", node[i], "--connect", entrance);
    assert_true(agent[i] > 0);
}

static void begin(const char *mode)
{
    snprintf(where, sizeof(where), "ipc://%s", harness_path("root.socket"));
    snprintf(door, sizeof(door), "ipc://%s", harness_path("relay.socket"));
    root = DAEMON("root.err", NULL, "--root", mode, "--listen", where);
    assert_true(root > 0);
    start_relay();
    for (int i = 0; i < 2; i++) {
        snprintf(node[i], sizeof(node[i]), "%s", harness_path(i ? "d1" : "d0"));
        assert_int_equal(mkdir(node[i], 0700), 0);
        start_agent(i, apart && i == 1 ? where : door);
    }
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(synth_open(&rank[r], node[r / 2], "job", r, RANKS, CAPACITY), 0);
        comm[r] = synth_comm(&rank[r], 0x1000);
    }
    atomic_store(&over, false);
    atomic_store(&made, 0);
    atomic_store(&wrong, false);
    assert_int_equal(pthread_create(&writer, NULL, write_calls, NULL), 0);
    writes = true;
}

/* No call is made from here on, and the ranks end. */
static void stop_calls(void)
{
    atomic_store(&over, true);
    if (writes) {
        pthread_join(writer, NULL);
        writes = false;
        for (int r = 0; r < RANKS; r++) {
            synth_finish(&rank[r]);
        }
    }
}

static void end(void)
{
    for (int r = 0; r < RANKS; r++) {
        synth_close(&rank[r]);
    }
    harness_end(agent[0], SIGTERM);
    harness_end(agent[1], SIGTERM);
    if (relay > 0) {
        assert_int_equal(harness_end(relay, SIGTERM), 0);
    }
    harness_end(root, SIGTERM);
}

/* So many more calls are made. */
static void go_on(uint32_t calls)
{
    uint32_t goal = atomic_load(&made) + calls;
    assert_true(HARNESS_UNTIL(atomic_load(&made) >= goal));
}

/* The root knows of all calls that have been made until now. */
static bool is_known(roll_client_t *client)
{
    json_int_t goal = (json_int_t)RANKS * atomic_load(&made);
    return HARNESS_UNTIL(harness_has(client, "job", "calls") >= goal);
}

static void kill_relay(void)
{
    assert_int_equal(harness_end(relay, SIGKILL), 128 + SIGKILL);
    relay = 0;
}

/* Every call was heard of once, none was lost on the way, and no digest was refused. */
static void nothing_is_lost(roll_client_t *client)
{
    json_t *status = harness_ask(client, "{s:s,s:s}", "op", "status", "job", "job");
    const json_t *summary = json_object_get(status, "summary");
    assert_int_equal(json_integer_value(json_object_get(summary, "calls")), (json_int_t)RANKS * atomic_load(&made));
    assert_int_equal(json_integer_value(json_object_get(summary, "lost")), 0);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(status, "digests"), "refused")), 0);
    json_decref(status);
}

/* The wrong call is all that is found of the whole job. A drain waits for the dead relay as well, until it is taken for
 * gone: one test does that. */
static void is_all(roll_client_t *client)
{
    if (drains) {
        assert_int_equal(harness_drained(client, "findings"), 1);
    }
    assert_true(is_known(client));
    assert_int_equal(harness_has(client, "job", "findings"), 1);
    nothing_is_lost(client);
}

/* Nothing was said of calls until now, not even what was taken back since. That ranks are waited for whose agent is not
 * heard is so while the relay is dead, and is noted where that takes long. */
static void nothing_is_said(roll_client_t *client)
{
    json_t *all = harness_ask(client, "{s:s,s:i}", "op", "verdicts", "from", 1), *one;
    size_t i, said = 0;
    json_array_foreach(json_object_get(all, "verdicts"), i, one)
    {
        const char *code = json_string_value(json_object_get(one, "code"));
        if (strcmp(code, "agent-silent") != 0) {
            print_error("%s: %s\n", code, json_string_value(json_object_get(one, "text")));
            said++;
        }
    }
    assert_int_equal(said, 0);
    json_decref(all);
}

/* A wrong call is found once, where it was made. */
static void is_found(roll_client_t *client)
{
    json_t *found = harness_verdict(client, "count-mismatch");
    assert_non_null(found);
    assert_string_equal(json_string_value(json_object_get(found, "culprits_text")), "1");
    assert_int_equal(json_integer_value(json_object_get(found, "seq")), atomic_load(&wrong_at));
    json_decref(found);
}

/* A wrong call is made while there is no relay, and nobody can know of it. */
static void call_wrongly(roll_client_t *client)
{
    go_on(SOME);
    atomic_store(&wrong, true);
    assert_true(HARNESS_UNTIL(!atomic_load(&wrong)));
    go_on(SOME);
    nothing_is_said(client);
}

/* It is found when somebody can, and is all that is found. */
static void end_found(roll_client_t *client)
{
    is_found(client);
    assert_true(is_known(client));
    stop_calls();
    is_all(client);
    roll_client_destroy(&client);
    end();
}

/* Kills the relay again and again; while it is dead for the last time the wrong call is made. */
static void die_again_and_again(const char *mode)
{
    begin(mode);
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == RANKS));
    go_on(SOME);
    for (uint32_t i = 0; i < KILLS; i++) {
        assert_true(is_known(client));
        kill_relay();
        go_on(i * SOME); /* the first successor comes at once */
        start_relay();
    }
    go_on(SOME);
    assert_true(is_known(client));
    nothing_is_said(client);

    kill_relay();
    call_wrongly(client);
    start_relay();
    end_found(client);
}

static void test_digests_survive_a_relay(void **state)
{
    (void)state;
    die_again_and_again("--digest");
}

static void test_digests_survive_a_relay_that_some_are_below(void **state)
{
    (void)state;
    apart = drains = true;
    die_again_and_again("--digest");
}

static void test_records_survive_a_relay(void **state)
{
    (void)state;
    apart = true;
    die_again_and_again("--stream");
}

/* An agent has one place to connect to. Where no relay comes back it is started anew, at the root. */
static void never_comes_back(const char *mode)
{
    apart = true;
    begin(mode);
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == RANKS));
    go_on(SOME);
    assert_true(is_known(client));
    kill_relay();
    call_wrongly(client);
    assert_int_equal(harness_end(agent[0], SIGKILL), 128 + SIGKILL);
    start_agent(0, where);
    end_found(client);
}

static void test_digests_do_without_the_relay(void **state)
{
    (void)state;
    never_comes_back("--digest");
}

static void test_records_do_without_the_relay(void **state)
{
    (void)state;
    never_comes_back("--stream");
}

static int set_up(void **state)
{
    apart = drains = false;
    return harness_set_up(state);
}

static int tear_down(void **state)
{
    stop_calls(); /* of a test that has failed */
    return harness_tear_down(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_digests_survive_a_relay, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_digests_survive_a_relay_that_some_are_below, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_records_survive_a_relay, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_digests_do_without_the_relay, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_records_do_without_the_relay, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
