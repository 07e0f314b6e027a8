/*
 * test_remedies.c: remedies and policies that a console switches, as the ranks see them: in the control page, and after
 * the root was killed.
 */
#include "tests/daemon/sick_job.h"
#include "tests/daemon/synth.h"
#include "trace/control.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char endpoint[256];

/* The answer's error, owned; NULL: it has none. */
static char *switching(roll_client_t *client, const char *action, const char *level, int layer, const char *comm,
                       bool force)
{
    json_t *reply = harness_ask(client, "{s:s,s:s,s:s,s:s,s:i,s:s,s:b}", "op", "remedy", "action", action, "remedy",
                                "fill", "level", level, "layer", layer, "comm", comm, "force", (int)force);
    const char *text = harness_error(reply);
    char *copy = text ? strdup(text) : NULL;
    json_decref(reply);
    return copy;
}

static void test_remedies_and_policy_reach_the_control_page(void **state)
{
    (void)state;
    pid_t daemon, rank[3];
    roll_client_t *client = sick_job_begin(endpoint, &daemon, rank, NULL);
    struct roll_control *page = NULL;
    assert_int_equal(roll_control_open(harness_path("d/job.0.ctl"), false, ROLL_POLICY_OBSERVE, &page), 0);
    assert_int_equal(roll_control_mask(page, 0x1000, 3, 0), 0);
    json_t *reply = harness_ask(client, "{s:s,s:s,s:s,s:s,s:i}", "op", "remedy", "action", "on", "remedy", "fill",
                                "level", "layer", "layer", 3);
    assert_null(harness_error(reply));
    json_decref(reply);
    json_decref(harness_ask(client, "{s:s,s:s,s:s,s:s,s:s}", "op", "remedy", "action", "on", "remedy", "pad", "level",
                            "group", "comm", "0x1000"));
    assert_true(HARNESS_UNTIL(roll_control_mask(page, 0x1000, 3, 0) == (ROLL_REMEDY_FILL | ROLL_REMEDY_PAD)));
    assert_int_equal(roll_control_mask(page, 0, 2, 0), 0);
    reply = harness_ask(client, "{s:s,s:s}", "op", "remedy", "action", "list");
    json_t *remedies = json_object_get(reply, "remedies");
    assert_int_equal(json_array_size(json_object_get(remedies, "layers")), 1);
    assert_int_equal(json_array_size(json_object_get(remedies, "groups")), 1);
    json_decref(reply);
    json_decref(harness_ask(client, "{s:s,s:s,s:s,s:s,s:i}", "op", "remedy", "action", "clear", "remedy", "fill",
                            "level", "layer", "layer", 3));
    json_decref(harness_ask(client, "{s:s,s:s,s:s}", "op", "remedy", "action", "off", "remedy", "dummy"));
    json_decref(harness_ask(client, "{s:s,s:s}", "op", "policy", "policy", "auto"));
    assert_true(HARNESS_UNTIL(roll_control_mask(page, 0, 3, ROLL_REMEDY_DUMMY | ROLL_REMEDY_PAD) == ROLL_REMEDY_PAD));
    assert_true(HARNESS_UNTIL(atomic_load(&page->policy) == ROLL_POLICY_AUTO));
    assert_int_equal(roll_control_mask(page, 0, 3, 0), 0);
    roll_control_close(&page);
    sick_job_end(client, daemon, rank);
}

/* A layer that is not there is refused once all are known, and never before: the forward pass may be on its way. */
static void test_a_remedy_for_a_layer_or_communicator_that_is_not_there_is_refused(void **state)
{
    (void)state;
    static struct synth rank;
    mkdir(harness_path("d"), 0700);
    assert_int_equal(synth_open(&rank, harness_path("d"), "job", 0, 1, 1024), 0);
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"));
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    uint16_t comm = synth_comm(&rank, 0x1000);
    for (rank.step = 7; rank.step < 10; rank.step++) {
        for (rank.layer = 0; rank.layer < 6; rank.layer += 2) {
            synth_tokens(&rank, comm, 100);
            json_int_t records = (json_int_t)((rank.step - 7) * 3 + rank.layer / 2 + 1);
            assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") == records));
            char *error = switching(client, "on", "layer", 99, "", false);
            if (rank.step < 9) {
                assert_null(error);
            } else {
                assert_string_equal(error, "no rank that is heard has told of MoE layer 99, only of layers 0,2,4 "
                                           "(--force switches it all the same)");
            }
            free(error);
        }
    }
    static const struct {
        const char *action, *level;
        int layer;
        const char *comm;
        bool force, refused;
    } rows[] = {{"on", "layer", 4, "", false, false},         {"on", "layer", 3, "", false, true},
                {"off", "layer", 3, "", false, true},         {"on", "layer", 3, "", true, false},
                {"clear", "layer", 3, "", false, false},      {"on", "group", 0, "0x1000", false, false},
                {"on", "group", 0, "0x1001", false, true},    {"on", "group", 0, "0x1001", true, false},
                {"clear", "group", 0, "0x1001", false, false}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char *error = switching(client, rows[i].action, rows[i].level, rows[i].layer, rows[i].comm, rows[i].force);
        if ((error != NULL) != rows[i].refused) {
            fail_msg("row %zu: %s", i, error ? error : "it was not refused");
        }
        free(error);
    }
    json_t *reply = harness_ask(client, "{s:s,s:s}", "op", "remedy", "action", "list");
    assert_string_equal(json_string_value(json_object_get(reply, "moe_layers")), "0,2,4");
    json_decref(reply);
    roll_client_destroy(&client);
    synth_finish(&rank);
    synth_close(&rank);
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
}

/* Two restarts of one job on one node, as after a quick restart: each has its own control page. */
static void test_a_remedy_is_switched_in_its_own_restart_only(void **state)
{
    (void)state;
    static struct synth rank[3];
    struct roll_control *page[2] = {NULL, NULL};
    mkdir(harness_path("d"), 0700);
    assert_int_equal(synth_open_restart(&rank[0], harness_path("d"), "job", 0, 0, 2, 64), 0);
    assert_int_equal(synth_open_restart(&rank[1], harness_path("d"), "job", 1, 0, 2, 64), 0);
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"));
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    assert_true(HARNESS_UNTIL(roll_control_open(harness_path("d/job.0.ctl"), false, 0, &page[0]) == 0));
    assert_true(HARNESS_UNTIL(roll_control_open(harness_path("d/job.1.ctl"), false, 0, &page[1]) == 0));
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == 1));

    json_t *reply = harness_ask(client, "{s:s,s:s,s:i,s:s,s:s}", "op", "remedy", "job", "job", "restart", 0, "action",
                                "on", "remedy", "fill");
    assert_null(harness_error(reply));
    json_decref(reply);
    json_decref(harness_ask(client, "{s:s,s:s,s:i,s:s}", "op", "policy", "job", "job", "restart", 0, "policy", "auto"));
    assert_true(HARNESS_UNTIL(atomic_load(&page[0]->policy) == ROLL_POLICY_AUTO));
    assert_int_equal(roll_control_mask(page[0], 0, 0, 0), ROLL_REMEDY_FILL);

    /* A ring that comes later: the root repeats what is in force for its run. */
    assert_int_equal(synth_open_restart(&rank[2], harness_path("d"), "job", 0, 1, 2, 64), 0);
    json_t *runs = NULL;
    assert_true(HARNESS_UNTIL(({
        json_decref(runs);
        runs = harness_ask(client, "{s:s,s:s}", "op", "runs", "job", "job");
        json_t *list = json_object_get(runs, "runs");
        json_integer_value(json_object_get(json_array_get(list, 0), "ranks")) +
                json_integer_value(json_object_get(json_array_get(list, 1), "ranks")) ==
            3;
    })));
    json_decref(runs);
    json_decref(harness_ask(client, "{s:s,s:s,s:i,s:s,s:s}", "op", "remedy", "job", "job", "restart", 1, "action", "on",
                            "remedy", "pad"));
    assert_true(HARNESS_UNTIL(roll_control_mask(page[1], 0, 0, 0) != 0)); /* what was sent before has arrived, too */
    assert_int_equal(roll_control_mask(page[1], 0, 0, 0), ROLL_REMEDY_PAD);
    assert_int_not_equal(atomic_load(&page[1]->policy), ROLL_POLICY_AUTO);
    assert_int_equal(roll_control_mask(page[0], 0, 0, 0), ROLL_REMEDY_FILL);

    roll_client_destroy(&client);
    for (int i = 0; i < 3; i++) {
        synth_finish(&rank[i]);
        synth_close(&rank[i]);
    }
    for (int i = 0; i < 2; i++) {
        roll_control_close(&page[i]);
    }
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
}

/* What a root switched holds on the control pages when it is killed, and the next root knows it. */
static void test_a_root_that_comes_after_a_killed_one_goes_on_with_what_was_switched(void **state)
{
    (void)state;
    char where[300];
    snprintf(where, sizeof(where), "ipc://%s/sock", harness_dir());
    pid_t root = DAEMON("root.err", NULL, "--root", "--listen", where);
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", where);
    assert_true(root > 0 && agent > 0);
    roll_client_t *client = harness_client(where);
    pid_t rank = harness_rank(harness_path("d"), 0, 1, 1000, 10, "wait");
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") == 10));
    struct roll_control *page = NULL;
    assert_int_equal(roll_control_open(harness_path("d/job.0.ctl"), false, 0, &page), 0);
    json_decref(harness_ask(client, "{s:s,s:s}", "op", "policy", "policy", "auto"));
    json_decref(harness_ask(client, "{s:s,s:s,s:s}", "op", "remedy", "action", "off", "remedy", "pad"));
    json_decref(harness_ask(client, "{s:s,s:s,s:s,s:s,s:i}", "op", "remedy", "action", "on", "remedy", "fill", "level",
                            "layer", "layer", 3));
    json_decref(harness_ask(client, "{s:s,s:s,s:s,s:s,s:s,s:b}", "op", "remedy", "action", "on", "remedy", "fill",
                            "level", "group", "comm", "0xfedcba9876543210", "force", 1));
    assert_true(HARNESS_UNTIL(atomic_load(&page->group[0].on) == ROLL_REMEDY_FILL));
    json_t *reply = harness_ask(client, "{s:s,s:s}", "op", "remedy", "action", "list");
    json_t *before = json_incref(json_object_get(reply, "remedies"));
    json_decref(reply);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(root, SIGKILL), 128 + SIGKILL);

    /* The first successor is told no policy, the second one the policy that holds. */
    for (int told = 0; told < 2; told++) {
        root = DAEMON("root.err", NULL, "--root", "--listen", where, told ? "--policy" : NULL, "auto");
        assert_true(root > 0);
        client = harness_client(where);
        assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") == 10));
        bool same = false;
        assert_true(HARNESS_UNTIL(({
            reply = harness_ask(client, "{s:s}", "op", "status");
            const char *policy = json_string_value(json_object_get(json_object_get(reply, "run"), "policy"));
            same = strcmp(policy, "auto") == 0 && json_equal(json_object_get(reply, "remedies"), before);
            json_decref(reply);
            same;
        })));
        assert_int_equal(atomic_load(&page->policy), ROLL_POLICY_AUTO);
        assert_true(HARNESS_UNTIL((atomic_load(&page->auto_local) ^ roll_remedy_all()) == ROLL_REMEDY_PAD));
        assert_int_equal(atomic_load(&page->layer[3].on), ROLL_REMEDY_FILL);
        roll_client_destroy(&client);
        assert_int_equal(harness_end(root, SIGKILL), 128 + SIGKILL);
    }
    json_decref(before);

    root = DAEMON("root.err", NULL, "--root", "--listen", where, "--policy", "advise"); /* overrules */
    assert_true(root > 0);
    client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") == 10));
    assert_true(HARNESS_UNTIL(atomic_load(&page->policy) == ROLL_POLICY_ADVISE));
    reply = harness_ask(client, "{s:s}", "op", "status");
    assert_string_equal(json_string_value(json_object_get(json_object_get(reply, "run"), "policy")), "advise");
    json_decref(reply);
    roll_client_destroy(&client);
    roll_control_close(&page);
    harness_end(rank, SIGTERM);
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

/* Policy auto switches a remedy on, somebody switches the remedy off: so it stays, also when the next root reads the
 * verdict in its predecessor's trace. */
static void test_what_is_switched_off_stays_off_when_a_new_root_reads_the_old_verdicts(void **state)
{
    (void)state;
    static struct synth rank[2];
    char where[300];
    snprintf(where, sizeof(where), "ipc://%s/sock", harness_dir());
    const char *const options[] = {"rollcalld",           "--root", "--listen", where, "--policy", "auto", "--trace",
                                   harness_path("trace"), NULL};
    mkdir(harness_path("d"), 0700);
    pid_t root = harness_daemon("root.err", NULL, options);
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", where);
    assert_true(root > 0 && agent > 0);
    roll_client_t *client = harness_client(where);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(synth_open(&rank[r], harness_path("d"), "job", r, 2, 64), 0);
        uint16_t comm = synth_comm(&rank[r], 0x1000);
        synth_allreduce(&rank[r], &(struct synth_call){.comm = comm, .count = 8});
        synth_tokens(&rank[r], comm, 100 + (uint64_t)r);
    }
    json_decref(harness_verdict(client, "moe-tokens-unequal"));
    struct roll_control *page = NULL;
    assert_int_equal(roll_control_open(harness_path("d/job.0.ctl"), false, 0, &page), 0);
    assert_true(HARNESS_UNTIL(atomic_load(&page->layer[0].on) == ROLL_REMEDY_UNEVEN));
    json_decref(harness_ask(client, "{s:s,s:s,s:s,s:s,s:i}", "op", "remedy", "action", "off", "remedy", "uneven",
                            "level", "layer", "layer", 0));
    assert_true(HARNESS_UNTIL(atomic_load(&page->layer[0].off) == ROLL_REMEDY_UNEVEN));
    roll_client_destroy(&client);
    assert_int_equal(harness_end(root, SIGKILL), 128 + SIGKILL);

    root = harness_daemon("root.err", NULL, options);
    assert_true(root > 0);
    client = harness_client(where);
    json_decref(harness_verdict(client, "moe-tokens-unequal"));
    assert_true(harness_logged("root.err", "goes on as the agent"));
    (void)harness_drained(client, "records");
    assert_int_equal(atomic_load(&page->layer[0].on), 0);
    assert_int_equal(atomic_load(&page->layer[0].off), ROLL_REMEDY_UNEVEN);
    roll_client_destroy(&client);
    roll_control_close(&page);
    for (int r = 0; r < 2; r++) {
        synth_finish(&rank[r]);
        synth_close(&rank[r]);
    }
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    harness_end(root, SIGTERM);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, harness_set_up, harness_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_remedies_and_policy_reach_the_control_page),
        TEST(test_a_remedy_for_a_layer_or_communicator_that_is_not_there_is_refused),
        TEST(test_a_remedy_is_switched_in_its_own_restart_only),
        TEST(test_a_root_that_comes_after_a_killed_one_goes_on_with_what_was_switched),
        TEST(test_what_is_switched_off_stays_off_when_a_new_root_reads_the_old_verdicts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
