/*
 * test_digest_cases.c: how much is asked for where digests do not agree: of a large job only the ranks that are
 * concerned, and of those only so much; what is said is what is said streamed, and where the records are gone that is
 * said.
 *
 * Eight ranks on two nodes; all are on one communicator, and three of them, on both nodes, on another one. A root that
 * takes two ranks for many is told of them as it would be of 16,384.
 */
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define RANKS  8 /* four on each node */
#define NODE   4
#define WORLD  0x1000u
#define FEW    0x2000u /* the communicator of ranks 2, 3 and 6 */
#define TURN   32u
#define AHEAD  350   /* calls of hosts ahead of one that stands: more than follow, less than an excerpt reaches back */
#define LITTLE 1024u /* records that a small ring holds */

static const int few[] = {2, 3, 6};
static struct synth rank[RANKS];
static uint16_t world[RANKS], other[RANKS];
static char where[320], node[2][300];
static pid_t agent[2], root;

static void begin(const char *mode, const char *ranks, const char *records, uint32_t capacity)
{
    snprintf(where, sizeof(where), "ipc://%s", harness_path("root.socket"));
    root =
        DAEMON("root.err", NULL, "--root", mode, "--listen", where, "--case-ranks", ranks, "--case-records", records);
    assert_true(root > 0);
    for (int i = 0; i < 2; i++) {
        snprintf(node[i], sizeof(node[i]), "%s", harness_path(i ? "d1" : "d0"));
        assert_int_equal(mkdir(node[i], 0700), 0);
        agent[i] = DAEMON("agent.err", NULL, "--agent", "--dir", node[i], "--connect", where);
        assert_true(agent[i] > 0);
    }
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(synth_open(&rank[r], node[r / NODE], "job", r, RANKS, capacity), 0);
        world[r] = synth_comm(&rank[r], WORLD);
    }
    for (int i = 0; i < 3; i++) {
        other[few[i]] = synth_comm_of(&rank[few[i]], FEW, i, 3);
    }
}

static void end(void)
{
    for (int r = 0; r < RANKS; r++) {
        synth_finish(&rank[r]);
        synth_close(&rank[r]);
    }
    for (int i = 0; i < 2; i++) {
        if (agent[i] > 0) {
            harness_end(agent[i], SIGTERM);
        }
    }
    harness_end(root, SIGTERM);
}

static void call(int r, uint16_t comm, uint64_t count, bool hang)
{
    synth_allreduce(&rank[r], &(struct synth_call){.comm = comm, .count = count, .hang = hang});
}

static void call_world(uint64_t count_of_last)
{
    for (int r = 0; r < RANKS; r++) {
        call(r, world[r], r == RANKS - 1 ? count_of_last : 1024, false);
    }
}

static void call_few(uint64_t count_of_last)
{
    for (int i = 0; i < 3; i++) {
        call(few[i], other[few[i]], i == 2 ? count_of_last : 512, false);
    }
}

static void go_on(void)
{
    for (uint32_t i = 0; i < TURN; i++) {
        call_world(1024);
        call_few(512);
    }
    usleep(20000);
}

static json_int_t digests(roll_client_t *client, const char *member)
{
    json_t *status = harness_ask(client, "{s:s}", "op", "status");
    json_int_t n = json_integer_value(json_object_get(json_object_get(status, "digests"), member));
    json_decref(status);
    return n;
}

static bool is_idle(roll_client_t *client)
{
    json_t *status = harness_ask(client, "{s:s}", "op", "status");
    const char *records = json_string_value(json_object_get(json_object_get(status, "digests"), "records"));
    bool idle = records && strcmp(records, "none") == 0;
    json_decref(status);
    return idle;
}

static unsigned rests; /* turns that the run by digests took until the root had nothing to look at */

static bool rests_after_another_turn(roll_client_t *client)
{
    rests++;
    call_world(1024);
    call_few(512);
    return digests(client, "windows") > 0 && is_idle(client);
}

/* The root has compared windows, and looks at no records: a case that a slow machine has opened ends when ranks are
 * seen to go on. A run that is streamed has as many calls as the last one by digests. */
static roll_client_t *watched(bool by_digests)
{
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == RANKS));
    for (int turn = 0; turn < 40; turn++) {
        go_on();
    }
    if (by_digests) {
        rests = 0;
        assert_true(HARNESS_UNTIL(rests_after_another_turn(client)));
    } else {
        for (unsigned i = 0; i < rests; i++) {
            call_world(1024);
            call_few(512);
        }
    }
    assert_int_equal(harness_drained(client, "findings"), 0);
    return client;
}

/* The root has asked for calls on some communicators alone. */
static bool is_narrow(void)
{
    char line[1024];
    bool narrow = false;
    FILE *log = fopen(harness_path("root.err"), "r");
    while (log && !narrow && fgets(line, sizeof(line), log)) {
        narrow = strstr(line, "their calls there alone") != NULL;
    }
    if (log) {
        fclose(log);
    }
    return narrow;
}

/* A call of the few differs on the last of them. */
static json_t *wrong_call_of_few(const char *mode, json_int_t *asked)
{
    bool by_digests = strcmp(mode, "--digest") == 0;
    begin(mode, "2", "100000", 0);
    roll_client_t *client = watched(by_digests);
    call_few(999);
    json_t *found = harness_verdict(client, "count-mismatch");
    assert_non_null(found);
    /* For their calls there first. Where a rank that was kept from calling seems to stand, all records are. */
    *asked = !by_digests || is_narrow() ? digests(client, "asked") : -1;
    assert_int_equal(harness_drained(client, "findings"), 1);
    roll_client_destroy(&client);
    end();
    return found;
}

/* The ranks but the last of the few make the next call of all, and wait in it for that one, which waits for two of them
 * in the call of the few. */
static json_t *circle(const char *mode, json_int_t *asked)
{
    bool by_digests = strcmp(mode, "--digest") == 0;
    begin(mode, "2", "100000", 0);
    roll_client_t *client = watched(by_digests);
    for (int r = 0; r < RANKS; r++) {
        bool is_last = r == few[2];
        call(r, is_last ? other[r] : world[r], is_last ? 512 : 1024, true);
    }
    json_t *found = harness_verdict(client, "circular-wait");
    assert_non_null(found);
    *asked = digests(client, "asked");
    roll_client_destroy(&client);
    end();
    return found;
}

/* One rank stops calling; the others run ahead of it for a while, as hosts do, and then wait. */
static json_t *standstill(const char *mode, json_int_t *asked)
{
    bool by_digests = strcmp(mode, "--digest") == 0;
    begin(mode, "2", "1", 0);
    roll_client_t *client = watched(by_digests);
    for (int i = 0; i < AHEAD; i++) {
        for (int r = 0; r < RANKS; r++) {
            if (r != few[1]) {
                call(r, world[r], 1024, i == AHEAD - 1);
            }
        }
        usleep(i % 16 == 0 ? 20000 : 0);
    }
    json_t *found = harness_verdict(client, "rank-busy");
    assert_non_null(found);
    *asked = 0;
    roll_client_destroy(&client);
    end();
    return found;
}

/* The same is said of it as streamed, and so many ranks were asked. Where the machine keeps agents from reading, other
 * ranks seem to stand and are asked as well: then it is tried again. */
static void is_told_as_streamed(void **state, json_t *(*say)(const char *, json_int_t *), json_int_t concerned)
{
    /* The text comes last: of who stands it says for how many seconds. */
    static const char *const same[] = {"code", "certainty", "culprits_text", "waiting_text", "seq", "field", "text"};
    size_t n = sizeof(same) / sizeof(same[0]) - (say == standstill);
    json_int_t asked;
    json_t *digested = say("--digest", &asked);
    for (int i = 0; i < 20 && asked != concerned; i++) {
        json_decref(digested);
        assert_int_equal(harness_tear_down(state), 0);
        assert_int_equal(harness_set_up(state), 0);
        digested = say("--digest", &asked);
    }
    json_int_t there = asked;
    assert_int_equal(harness_tear_down(state), 0);
    assert_int_equal(harness_set_up(state), 0);
    json_t *streamed = say("--stream", &asked);
    for (size_t i = 0; i < n; i++) {
        json_t *one = json_object_get(streamed, same[i]), *another = json_object_get(digested, same[i]);
        if (!json_equal(one, another) && one != another) {
            char *told = json_dumps(one, JSON_ENCODE_ANY), *instead = json_dumps(another, JSON_ENCODE_ANY);
            fail_msg("%s: %s streamed, %s by digests", same[i], told, instead);
        }
    }
    assert_int_equal(there, concerned);
    json_decref(streamed);
    json_decref(digested);
}

/* A node is gone, with its agent; the others wait for its ranks, and it is told why nobody can say more. */
static void test_a_node_that_is_gone_is_told_and_nobody_blamed(void **state)
{
    (void)state;
    begin("--digest", "100", "100000", 0);
    roll_client_t *client = watched(true);
    assert_int_equal(harness_end(agent[1], SIGKILL), 128 + SIGKILL);
    agent[1] = 0;
    for (int r = 0; r < NODE; r++) {
        call(r, world[r], 1024, true);
    }
    json_t *found = harness_verdict(client, "agent-silent");
    assert_non_null(found);
    assert_string_equal(json_string_value(json_object_get(found, "certainty")), "note");
    assert_string_equal(json_string_value(json_object_get(found, "culprits_text")), "");
    const char *text = json_string_value(json_object_get(found, "text"));
    assert_non_null(strstr(text, "Ranks 4-7 are not heard"));
    /* Ranks 2 and 3 wait for rank 6 as well, and which rank is asked first is the agent's affair. */
    assert_true(strstr(text, "of which nothing is known of 4 members") ||
                strstr(text, "of which nothing is known of 1 members"));
    json_decref(found);
    assert_int_equal(harness_drained(client, "findings"), 0);
    roll_client_destroy(&client);
    end();
}

static void test_who_stands_is_named_though_the_others_run_ahead(void **state)
{
    is_told_as_streamed(state, standstill, 0);
}

static void test_only_members_are_asked(void **state)
{
    is_told_as_streamed(state, wrong_call_of_few, 3);
}

static void test_who_waits_elsewhere_is_asked_as_well(void **state)
{
    is_told_as_streamed(state, circle, RANKS);
}

/* A job that goes on is not streamed while it is looked at: each ring sends so much, and then no more. */
static void test_who_goes_on_is_cut(void **state)
{
    (void)state;
    begin("--digest", "100", "1", 0);
    roll_client_t *client = watched(true);
    call_world(999);
    json_t *found = harness_verdict(client, "count-mismatch");
    assert_non_null(found);
    assert_string_equal(json_string_value(json_object_get(found, "culprits_text")), "7");
    json_decref(found);
    json_int_t cut = 0;
    for (int turn = 0; turn < 3000 && cut < RANKS; turn++) {
        go_on();
        cut = digests(client, "cut");
    }
    assert_int_equal(cut, RANKS);
    bool idle = false;
    for (int turn = 0; turn < 3000 && !idle; turn++) {
        go_on();
        idle = is_idle(client);
    }
    assert_true(idle);
    assert_int_equal(harness_drained(client, "findings"), 1);
    roll_client_destroy(&client);
    end();
}

/* A slow rank has a case opened, all go on and are cut; and then it hangs for good, on the same communicator. */
static void test_who_hangs_behind_a_case_that_found_nothing_is_named(void **state)
{
    (void)state;
    begin("--digest", "100", "1", 0);
    roll_client_t *client = watched(true);
    json_int_t opened = digests(client, "opened");
    for (int r = 0; r < RANKS; r++) {
        if (r != few[1]) {
            call(r, world[r], 1024, false);
        }
    }
    /* A slow machine may have opened one before its number was asked for. */
    assert_true(HARNESS_UNTIL(digests(client, "opened") > opened || !is_idle(client)));
    call(few[1], world[few[1]], 1024, false);
    json_int_t cut = 0;
    for (int turn = 0; turn < 3000 && cut < RANKS; turn++) {
        go_on();
        cut = digests(client, "cut");
    }
    assert_int_equal(cut, RANKS);
    for (int r = 0; r < RANKS; r++) {
        if (r != few[1]) {
            call(r, world[r], 1024, true);
        }
    }
    json_t *found = harness_verdict(client, "rank-busy");
    assert_non_null(found);
    assert_string_equal(json_string_value(json_object_get(found, "culprits_text")), "3");
    json_decref(found);
    roll_client_destroy(&client);
    end();
}

/* A verdict of a count that differs tells of the last rank's wrong call, and blames nobody else. */
static bool tells_of_wrong_call(roll_client_t *client)
{
    json_t *all = harness_ask(client, "{s:s,s:i}", "op", "verdicts", "from", 1), *one;
    bool told = false;
    size_t i;
    json_array_foreach(json_object_get(all, "verdicts"), i, one)
    {
        if (strcmp(json_string_value(json_object_get(one, "code")), "count-mismatch") == 0) {
            const char *culprits = json_string_value(json_object_get(one, "culprits_text"));
            assert_true(culprits[0] == '\0' || strcmp(culprits, "7") == 0); /* as far as the rings reach back */
            told = told ||
                   strstr(json_string_value(json_object_get(one, "text")), "Rank 7 called AllReduce of 999 float32");
        }
    }
    json_decref(all);
    return told;
}

/* A wrong call is in the records that one agent has sent; its rank was cut long before the other agent sends its own.
 * On a slow machine the rings may have gone on too far by then: it is tried again. */
static void test_a_wrong_call_of_a_rank_that_was_cut_is_told(void **state)
{
    (void)state;
    begin("--digest", "100", "1", 0);
    roll_client_t *client = watched(true);
    bool told = false;
    for (int attempt = 0; attempt < 20 && !told; attempt++) {
        assert_int_equal(kill(root, SIGSTOP), 0);
        call_world(999);
        for (int i = 0; i < 4; i++) {
            go_on();
        }
        usleep(400000); /* the agents have told by then, or the attempt is an easier one */
        assert_int_equal(kill(agent[0], SIGSTOP), 0);
        assert_int_equal(kill(root, SIGCONT), 0);
        for (int i = 0; i < 60; i++) {
            go_on();
        }
        assert_int_equal(kill(agent[0], SIGCONT), 0);
        for (int turn = 0; turn < 400 && !told; turn++) {
            go_on();
            told = tells_of_wrong_call(client);
        }
    }
    assert_true(told);
    roll_client_destroy(&client);
    end();
}

/* How many verdicts of this code there are, and how many of them were withdrawn. */
static json_int_t said(roll_client_t *client, const char *code, json_int_t *withdrawn)
{
    json_t *all = harness_ask(client, "{s:s,s:i}", "op", "verdicts", "from", 1), *one;
    json_int_t n = 0;
    size_t i;
    *withdrawn = 0;
    json_array_foreach(json_object_get(all, "verdicts"), i, one)
    {
        bool ours = strcmp(json_string_value(json_object_get(one, "code")), code) == 0;
        bool takes_back = json_integer_value(json_object_get(one, "withdraws")) != 0;
        n += ours && !takes_back;
        *withdrawn += ours && takes_back;
    }
    json_decref(all);
    return n;
}

/* A rank stands and is suspected; then a call of others differs, so that another engine looks at it; then the rank goes
 * on. The second engine has never suspected it, and what the first one said is taken back all the same. */
static void test_what_an_earlier_engine_suspected_is_taken_back(void **state)
{
    (void)state;
    begin("--digest", "100", "100000", 0);
    roll_client_t *client = watched(true);
    for (int r = 0; r < RANKS; r++) {
        if (r != few[1]) {
            call(r, world[r], 1024, true);
        }
    }
    json_t *found = harness_verdict(client, "rank-busy");
    assert_non_null(found);
    json_decref(found);
    json_int_t opened = digests(client, "opened"), withdrawn = 0;
    call_few(512);
    call_few(999);
    assert_true(HARNESS_UNTIL(digests(client, "opened") > opened));
    call(few[1], world[few[1]], 1024, false);
    bool over = false;
    for (int turn = 0; turn < 3000 && !over; turn++) {
        usleep(20000);
        (void)said(client, "rank-busy", &withdrawn);
        over = withdrawn > 0;
    }
    assert_true(over);
    roll_client_destroy(&client);
    end();
}

/* The same rank makes the same mistake once more, when all have agreed for some windows: that is another finding. */
static void test_the_next_wrong_call_of_a_rank_is_told(void **state)
{
    (void)state;
    json_int_t withdrawn;
    begin("--digest", "100", "1", 0);
    roll_client_t *client = watched(true);
    for (int mistake = 1; mistake <= 2; mistake++) {
        call_world(1024);
        call_world(999);
        assert_true(HARNESS_UNTIL(said(client, "count-mismatch", &withdrawn) >= mistake));
        for (int turn = 0; turn < 12; turn++) { /* six windows */
            go_on();
        }
    }
    roll_client_destroy(&client);
    end();
}

/* Who asks why a rank waits while all agree is answered from records the next time. */
static void test_a_question_has_records_looked_at(void **state)
{
    (void)state;
    begin("--digest", "2", "1", 0);
    roll_client_t *client = watched(true);
    json_decref(harness_ask(client, "{s:s,s:i}", "op", "why", "rank", 3));
    assert_true(HARNESS_UNTIL(digests(client, "asked") > 0));
    bool told = false;
    for (int i = 0; i < 3000 && !told; i++) {
        json_t *answer = harness_ask(client, "{s:s,s:i}", "op", "why", "rank", 3);
        const char *text = json_string_value(json_object_get(answer, "text"));
        told = text && strstr(text, "AllReduce of 512 float32") != NULL;
        json_decref(answer);
        usleep(told ? 0 : 20000);
    }
    assert_true(told);
    assert_int_equal(harness_drained(client, "findings"), 0);
    roll_client_destroy(&client);
    end();
}

/* How many notes say that records are missing, of calls of all. */
static json_int_t notes_of_gone(roll_client_t *client)
{
    json_t *all = harness_ask(client, "{s:s,s:i}", "op", "verdicts", "from", 1), *one;
    json_int_t n = 0;
    size_t i;
    json_array_foreach(json_object_get(all, "verdicts"), i, one)
    {
        const char *text = json_string_value(json_object_get(one, "text"));
        assert_string_equal(json_string_value(json_object_get(one, "certainty")), "note");
        n += text && strstr(text, "its members have made different ones") != NULL;
    }
    json_decref(all);
    return n;
}

/* While the root sleeps a call differs, and the small rings go round: the root hears that it did, and can see nothing
 * of it. Agents that the machine has kept from reading for long have not heard it either: then it happens once more. */
static void test_what_is_gone_is_said_and_not_judged(void **state)
{
    (void)state;
    begin("--digest", "100", "100000", LITTLE);
    roll_client_t *client = watched(true);
    bool said = false;
    for (int turn = 0; turn < 100 && !said; turn++) {
        assert_int_equal(kill(root, SIGSTOP), 0);
        call_world(999);
        for (uint32_t i = 0; i < 2 * LITTLE / TURN; i++) {
            go_on();
        }
        assert_int_equal(kill(root, SIGCONT), 0);
        for (int i = 0; i < 100 && !said; i++) {
            usleep(50000);
            said = notes_of_gone(client) > 0;
        }
    }
    assert_true(said);
    assert_int_equal(harness_drained(client, "findings"), 0);
    roll_client_destroy(&client);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_only_members_are_asked, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_who_waits_elsewhere_is_asked_as_well, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_who_stands_is_named_though_the_others_run_ahead, harness_set_up,
                                        harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_node_that_is_gone_is_told_and_nobody_blamed, harness_set_up,
                                        harness_tear_down),
        cmocka_unit_test_setup_teardown(test_who_goes_on_is_cut, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_who_hangs_behind_a_case_that_found_nothing_is_named, harness_set_up,
                                        harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_wrong_call_of_a_rank_that_was_cut_is_told, harness_set_up,
                                        harness_tear_down),
        cmocka_unit_test_setup_teardown(test_what_an_earlier_engine_suspected_is_taken_back, harness_set_up,
                                        harness_tear_down),
        cmocka_unit_test_setup_teardown(test_the_next_wrong_call_of_a_rank_is_told, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_question_has_records_looked_at, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_gone_is_said_and_not_judged, harness_set_up, harness_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
