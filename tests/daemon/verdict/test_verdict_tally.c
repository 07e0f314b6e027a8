/*
 * test_verdict_tally.c: findings that stand are counted, whichever way an earlier one ended.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/verdict/verdict_json.h"
#include "daemon/verdict/verdict_tally.h"

#include <string.h>

static json_t *verdict(int number, const char *certainty, const char *way, int earlier)
{
    json_t *v = json_pack("{s:s, s:i, s:i, s:s, s:n, s:n, s:n}", "job", "j", "restart", 0, "number", number,
                          "certainty", certainty, "supersedes", "confirms", "withdraws");
    if (way != NULL) {
        json_object_set_new(v, way, json_integer(earlier));
    }
    return v;
}

static void take(struct roll_tally *tally, json_t *v)
{
    roll_tally_add_json(tally, v);
    json_decref(v);
}

static void what_ended_is_not_counted(void **state)
{
    (void)state;
    static const char *const ways[] = {"supersedes", "confirms", "withdraws"};
    for (size_t i = 0; i < 3; i++) {
        struct roll_tally tally = {.row = NULL};
        take(&tally, verdict(1, "suspected", NULL, 0));
        take(&tally, verdict(2, "note", NULL, 0));
        assert_int_equal(roll_tally_findings(&tally), 1);
        take(&tally, verdict(1, "suspected", NULL, 0)); /* replayed from a trace */
        assert_int_equal(roll_tally_findings(&tally), 1);
        take(&tally, verdict(3, i == 2 ? "note" : "proven", ways[i], 1));
        assert_int_equal(roll_tally_findings(&tally), i == 2 ? 0 : 1);
        take(&tally, verdict(4, "proven", NULL, 0));
        assert_int_equal(roll_tally_findings(&tally), i == 2 ? 1 : 2);
        roll_tally_fini(&tally);
    }
}

/* A verdict of this process counts as it would if another had sent it. */
static void typed_verdicts_count_like_their_json(void **state)
{
    (void)state;
    static const struct {
        uint64_t number, supersedes, confirms, withdraws;
        enum roll_certainty certainty;
        const char *job;
        uint64_t standing; /* behind it */
    } said[] = {
        {1, 0, 0, 0, ROLL_SUSPECTED, "j", 1}, {2, 0, 0, 0, ROLL_NOTE, "j", 1},
        {1, 0, 0, 0, ROLL_SUSPECTED, "j", 1}, {3, 0, 1, 0, ROLL_PROVEN, "j", 1},
        {4, 0, 0, 0, ROLL_PREDICTED, "j", 2}, {5, 4, 0, 0, ROLL_PROVEN, "k", 3},
        {5, 4, 0, 0, ROLL_PROVEN, "j", 3},    {6, 0, 0, 5, ROLL_NOTE, "j", 2},
    };
    struct roll_tally typed = {.row = NULL}, parsed = {.row = NULL};
    for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
        const struct roll_verdict v = {.number = said[i].number,
                                       .code = ROLL_VERDICT_RANK_BUSY,
                                       .certainty = said[i].certainty,
                                       .supersedes = said[i].supersedes,
                                       .confirms = said[i].confirms,
                                       .withdraws = said[i].withdraws};
        struct roll_verdict_copy *copy = roll_verdict_copy_new(&v, NULL, NULL, said[i].job, 0);
        assert_non_null(copy);
        roll_tally_add(&typed, copy);
        json_t *json = roll_verdict_to_json(copy);
        roll_tally_add_json(&parsed, json);
        json_decref(json);
        roll_verdict_copy_destroy(&copy);
        assert_int_equal(roll_tally_findings(&typed), said[i].standing);
        assert_int_equal(roll_tally_findings(&parsed), said[i].standing);
    }
    roll_tally_fini(&typed);
    roll_tally_fini(&parsed);
}

static void runs_do_not_meet(void **state)
{
    (void)state;
    struct roll_tally tally = {.row = NULL};
    take(&tally, verdict(1, "suspected", NULL, 0));
    json_t *other = verdict(2, "note", "withdraws", 1);
    json_object_set_new(other, "restart", json_integer(1));
    take(&tally, other);
    other = verdict(2, "note", "withdraws", 1);
    json_object_set_new(other, "job", json_string("k"));
    take(&tally, other);
    assert_int_equal(roll_tally_findings(&tally), 1);
    take(&tally, verdict(2, "note", "withdraws", 1));
    assert_int_equal(roll_tally_findings(&tally), 0);
    take(&tally, verdict(9, "note", "withdraws", 7)); /* of one that was never seen */
    assert_int_equal(roll_tally_findings(&tally), 0);
    roll_tally_fini(&tally);
}

static void a_list_says_which_verdict_ended_another(void **state)
{
    (void)state;
    json_t *list = json_array();
    json_array_append_new(list, verdict(1, "suspected", NULL, 0));
    json_array_append_new(list, verdict(2, "suspected", NULL, 0));
    json_array_append_new(list, verdict(3, "note", "withdraws", 1));
    json_array_append_new(list, verdict(4, "proven", "confirms", 2));
    const json_t *one = json_array_get(list, 0), *two = json_array_get(list, 1);
    assert_ptr_equal(roll_verdict_json_retired_by(list, one), json_array_get(list, 2));
    assert_ptr_equal(roll_verdict_json_retired_by(list, two), json_array_get(list, 3));
    assert_null(roll_verdict_json_retired_by(list, json_array_get(list, 2)));
    assert_null(roll_verdict_json_retired_by(list, json_array_get(list, 3)));
    assert_null(roll_verdict_json_retired_by(NULL, one));
    json_decref(list);
}

/* A root that was started again tells the same verdicts again, and may give their numbers to others. */
static void a_verdict_is_new_once(void **state)
{
    (void)state;
    json_t *heard = json_object(), *one = verdict(1, "suspected", NULL, 0), *other = verdict(1, "proven", NULL, 0),
           *restarted = verdict(1, "suspected", NULL, 0), *next = verdict(2, "suspected", NULL, 0);
    json_object_set_new(restarted, "restart", json_integer(1));
    assert_true(roll_verdict_json_is_new(heard, one));
    assert_true(roll_verdict_json_is_new(heard, next));
    assert_true(roll_verdict_json_is_new(heard, restarted));
    assert_false(roll_verdict_json_is_new(heard, one));
    assert_false(roll_verdict_json_is_new(heard, next));
    assert_true(roll_verdict_json_is_new(heard, other));
    assert_false(roll_verdict_json_is_new(heard, other));
    json_decref(heard);
    json_decref(one);
    json_decref(other);
    json_decref(restarted);
    json_decref(next);
}

/* What differs in two verdicts may stand behind a long name, or behind many ranks. */
static void long_names_and_many_ranks_are_read_to_their_end(void **state)
{
    (void)state;
    char job[700], ranks[700];
    memset(job, 'j', sizeof(job));
    memset(ranks, '1', sizeof(ranks));
    job[sizeof(job) - 1] = ranks[sizeof(ranks) - 1] = '\0';
    json_t *heard = json_object(), *one = verdict(1, "suspected", NULL, 0), *next = verdict(2, "suspected", NULL, 0),
           *fuller = NULL;
    json_object_set_new(one, "job", json_string(job));
    json_object_set_new(next, "job", json_string(job));
    json_object_set_new(one, "culprits_text", json_string(ranks));
    json_object_set_new(next, "culprits_text", json_string(ranks));
    assert_true(roll_verdict_json_is_new(heard, one));
    assert_true(roll_verdict_json_is_new(heard, next));
    fuller = json_copy(one);
    ranks[sizeof(ranks) - 2] = '2';
    json_object_set_new(fuller, "culprits_text", json_string(ranks));
    assert_true(roll_verdict_json_is_new(heard, fuller));
    assert_false(roll_verdict_json_is_new(heard, fuller));
    assert_false(roll_verdict_json_is_new(heard, next));
    json_decref(heard);
    json_decref(one);
    json_decref(next);
    json_decref(fuller);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_ended_is_not_counted), cmocka_unit_test(typed_verdicts_count_like_their_json),
        cmocka_unit_test(runs_do_not_meet),          cmocka_unit_test(a_list_says_which_verdict_ended_another),
        cmocka_unit_test(a_verdict_is_new_once),     cmocka_unit_test(long_names_and_many_ranks_are_read_to_their_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
