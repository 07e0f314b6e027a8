/*
 * test_root_place.c: which run gives way where a root watches as many as it may, and what is said of one for which
 * there is no place (daemon/root/root_place.c). The clock is a number here.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/root/root_state.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define S (1000 * ROLL_MS)

static roll_root_t *root;
static struct roll_peer *peer; /* who speaks for all runs */

/* A run of one rank, which lives. */
static struct roll_run *begin(unsigned number)
{
    struct roll_run *run = calloc(1, sizeof(*run));
    struct roll_engine_config config = {.memory = 0};
    struct roll_source_info info = {.stream = number + 1, .world_size = 1};
    uint32_t source;
    assert_non_null(run);
    snprintf(run->job, sizeof(run->job), "job%u", number);
    run->feed = roll_feed_new(&config, run->job, 0);
    assert_non_null(run->feed);
    assert_int_equal(roll_engine_open(roll_feed_engine(run->feed), &info, &source), 0);
    root->runs[root->runs_used++] = run;
    struct roll_peer_stream *s = roll_streams_add(peer, number + 1, run);
    assert_non_null(s);
    roll_streams_set(peer, s, true, true);
    return run;
}

static int set_up(void **state)
{
    (void)state;
    root = calloc(1, sizeof(*root));
    peer = calloc(1, sizeof(*peer));
    if (!root || !peer || !(root->runs = calloc(ROLL_ROOT_RUNS, sizeof(*root->runs))) ||
        !(root->peers = calloc(2, sizeof(*root->peers)))) {
        return -1;
    }
    root->runs_room = ROLL_ROOT_RUNS;
    root->peers[root->peers_used++] = peer;
    for (unsigned i = 0; i < ROLL_ROOT_RUNS; i++) {
        (void)begin(i);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    while (root->runs_used > 0) {
        roll_run_forget(root, 0);
    }
    roll_streams_fini(peer);
    free(peer);
    free(root->peers);
    free(root->runs);
    free(root);
    return 0;
}

static bool has(const char *job)
{
    for (size_t i = 0; i < root->runs_used; i++) {
        if (strcmp(root->runs[i]->job, job) == 0) {
            return true;
        }
    }
    return false;
}

static void is_said(const char *text)
{
    static char tail[65536];
    roll_log_tail(tail, sizeof(tail));
    if (!strstr(tail, text)) {
        fail_msg("nothing says '%s': %s", text, tail);
    }
}

static void test_all_are_heard_and_the_next_one_waits(void **state)
{
    (void)state;
    assert_int_equal(roll_place_make(root, "next", 0, 1000 * S), ROLL_E_LIMIT);
    assert_int_equal(roll_place_make(root, "next", 0, 1002 * S), ROLL_E_LIMIT); /* its agent asks again */
    assert_int_equal(roll_place_make(root, "other", 0, 1002 * S), ROLL_E_LIMIT);
    assert_int_equal(root->runs_used, ROLL_ROOT_RUNS);
    assert_int_equal(roll_place_unwatched(root, 1003 * S), 2);
    is_said("next.0 is not watched");
    is_said("other.0 is not watched");
    assert_int_equal(roll_place_unwatched(root, 1013 * S), 0); /* nobody asks any more */
    assert_int_equal(roll_engine_process(roll_feed_engine(root->runs[7]->feed), 0, ROLL_PROC_FINISHED, 0), 0);
    assert_int_equal(roll_place_make(root, "next", 0, 1014 * S), 0);
    assert_false(has("job7"));
    assert_int_equal(root->runs_used, ROLL_ROOT_RUNS - 1);
    is_said("job7.0 has ended, and is forgotten: next.0 takes its place");
}

static void test_a_run_that_nobody_hears_gives_way(void **state)
{
    (void)state;
    struct roll_peer *away = calloc(1, sizeof(*away));
    assert_non_null(away);
    root->peers[root->peers_used++] = away;
    for (unsigned i = 20; i < 22; i++) { /* these are the affair of a node that has gone */
        roll_streams_drop(peer, roll_streams_find(peer, i + 1));
        struct roll_peer_stream *s = roll_streams_add(away, i + 1, root->runs[i]);
        assert_non_null(s);
        roll_streams_set(away, s, true, true);
    }
    away->seen_ns = 900 * S;
    assert_int_equal(roll_place_make(root, "next", 0, 1000 * S), ROLL_E_LIMIT); /* it is not taken for gone */
    away->gone = true;
    assert_int_equal(roll_place_make(root, "next", 0, 959 * S), ROLL_E_LIMIT); /* it may come back */
    assert_int_equal(roll_place_make(root, "next", 0, 961 * S), 0);
    assert_int_equal(root->runs_used, ROLL_ROOT_RUNS - 1);
    assert_false(has("job20"));
    assert_true(has("job21"));
    is_said("job20.0 is forgotten: its ranks have not been heard for more than 60 s, and next.0 takes its place");
    (void)begin(100);
    /* Who has ended goes before who is not heard. */
    assert_int_equal(roll_engine_process(roll_feed_engine(root->runs[50]->feed), 0, ROLL_PROC_FINISHED, 0), 0);
    assert_int_equal(roll_place_make(root, "one", 0, 2000 * S), 0);
    assert_true(has("job21"));
    roll_streams_fini(away);
    free(away);
    root->peers_used--;
}

static void test_a_run_whose_agent_begins_anew_stays(void **state)
{
    (void)state;
    roll_place_keep_heard(root, peer, 1000 * S); /* what a HELLO does; the RING frames come a moment later */
    roll_streams_clear(peer);
    assert_int_equal(roll_place_make(root, "next", 0, 1000 * S), ROLL_E_LIMIT);
    assert_int_equal(roll_place_make(root, "next", 0, 1060 * S), ROLL_E_LIMIT);
    assert_int_equal(root->runs_used, ROLL_ROOT_RUNS);
    assert_int_equal(roll_place_make(root, "next", 0, 1061 * S), 0); /* none came */
    assert_false(has("job0"));
}

/* Stacks are kept by the number of the run and the rank; a root that forgets a run a day must not keep those. */
static void test_what_was_kept_of_its_ranks_goes_with_a_run(void **state)
{
    (void)state;
    root->runs[3]->id = 1;
    root->stack_tops = json_pack("{s:{}, s:{}, s:{}, s:{}}", "1.0", "1.17", "12.0", "21.1");
    assert_non_null(root->stack_tops);
    roll_run_forget(root, 3);
    assert_int_equal(json_object_size(root->stack_tops), 2);
    assert_non_null(json_object_get(root->stack_tops, "12.0"));
    assert_non_null(json_object_get(root->stack_tops, "21.1"));
    json_decref(root->stack_tops);
    root->stack_tops = NULL;
}

/* One attempt more at a job: it has `ranks` ranks, of which the first `over` have ended. */
static struct roll_run *attempt(const char *job, uint32_t restart, uint64_t joined_ns, uint32_t ranks, uint32_t over)
{
    struct roll_run *run = calloc(1, sizeof(*run));
    struct roll_engine_config config = {.memory = 0};
    assert_non_null(run);
    snprintf(run->job, sizeof(run->job), "%s", job);
    run->restart = restart;
    run->joined_ns = joined_ns;
    run->feed = roll_feed_new(&config, job, restart);
    assert_non_null(run->feed);
    for (uint32_t r = 0; r < ranks; r++) {
        struct roll_source_info info = {
            .stream = 1000 * (root->runs_used + 1) + r, .world_rank = (int32_t)r, .world_size = (int32_t)ranks};
        uint32_t source;
        assert_int_equal(roll_engine_open(roll_feed_engine(run->feed), &info, &source), 0);
        if (r < over) {
            assert_int_equal(roll_engine_process(roll_feed_engine(run->feed), source, ROLL_PROC_FINISHED, 0), 0);
        }
    }
    return root->runs[root->runs_used++] = run;
}

static void answers(const char *query, const struct roll_run *want)
{
    json_t *json = json_loads(query, 0, NULL);
    assert_non_null(json);
    const struct roll_run *run = roll_run_select(root, json);
    json_decref(json);
    if (run != want) {
        fail_msg("%s: %s.%u instead of %s.%u", query, run ? run->job : "nothing", run ? run->restart : 0, want->job,
                 want->restart);
    }
}

static void drop_runs(void)
{
    while (root->runs_used > 0) {
        roll_run_forget(root, 0);
    }
}

/* A rank of an older attempt that nobody can kill does not hide what became of the later one. */
static void test_a_query_is_about_the_last_attempt(void **state)
{
    (void)state;
    drop_runs();
    root->begun_ns = 1000 * S;
    const struct roll_run *old = attempt("a", 2, 1100 * S, 4, 3), *ended = attempt("a", 3, 1200 * S, 4, 4);
    answers("{\"job\":\"a\"}", ended);
    answers("{}", ended);
    answers("{\"job\":\"a\",\"restart\":2}", old);
    const struct roll_run *live = attempt("a", 4, 1300 * S, 4, 0);
    answers("{\"job\":\"a\"}", live);
    answers("{\"job\":\"a\",\"restart\":3}", ended);
    drop_runs();
    /* The job was begun anew, and an agent finds rings of the time before: all ranks of the new one run. */
    (void)attempt("b", 3, 1100 * S, 4, 4);
    const struct roll_run *anew = attempt("b", 0, 1200 * S, 4, 0);
    (void)attempt("b", 5, 1300 * S, 4, 4);
    answers("{\"job\":\"b\"}", anew);
    /* Its first rank ends: it came behind the one, and before the rings that were found. */
    assert_int_equal(roll_engine_process(roll_feed_engine(anew->feed), 0, ROLL_PROC_FINISHED, 0), 0);
    roll_run_forget(root, 2);
    answers("{\"job\":\"b\"}", anew);
    drop_runs();
    /* To a root that was started anew the attempts come in any order. */
    const struct roll_run *later = attempt("c", 4, 1001 * S, 4, 0);
    (void)attempt("c", 3, 1004 * S, 1, 0);
    answers("{\"job\":\"c\"}", later);
    drop_runs();
    ended = attempt("c", 4, 1001 * S, 4, 4);
    (void)attempt("c", 3, 1000 * S, 4, 3);
    answers("{\"job\":\"c\"}", ended);
    drop_runs();
    (void)attempt("c", 4, 1001 * S, 1, 0);
    anew = attempt("c", 0, 1030 * S, 4, 0);
    answers("{\"job\":\"c\"}", anew);
    /* Another job has nothing to do with it. */
    (void)attempt("d", 9, 1040 * S, 4, 4);
    answers("{}", anew);
}

int main(void)
{
    roll_log_init(true);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_all_are_heard_and_the_next_one_waits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_was_kept_of_its_ranks_goes_with_a_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_run_that_nobody_hears_gives_way, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_run_whose_agent_begins_anew_stays, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_query_is_about_the_last_attempt, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
