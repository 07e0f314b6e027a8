/*
 * test_verdict_tally.c: findings that stand are counted, whichever way an earlier one ended.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/verdict/verdict_tally.h"

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
    roll_tally_add(tally, v);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_ended_is_not_counted),
        cmocka_unit_test(runs_do_not_meet),
        cmocka_unit_test(a_list_says_which_verdict_ended_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
