/*
 * test_engine_life.c: the life of a verdict: superseded, confirmed, withdrawn; each finding ends at most once, and what
 * stands is counted.
 */
#include "daemon/engine/say/say.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static struct roll_engine *engine(void)
{
    const struct roll_engine_config config = {.stall_ns = 0};
    struct roll_engine *e = roll_engine_new(&config);
    assert_non_null(e);
    return e;
}

static uint64_t findings(const struct roll_engine *e)
{
    struct roll_engine_summary s;
    roll_engine_summary(e, &s);
    return s.findings;
}

static struct roll_verdict *find(struct roll_engine *e, enum roll_certainty certainty)
{
    struct roll_verdict *v = say(e, ROLL_VERDICT_CALL_SKIPPED, certainty);
    assert_non_null(v);
    v->comm_key = 77;
    v->comm_size = 4;
    v->seq = 9;
    memcpy(v->comm_label, "dp", 3);
    say_text(e, v, "rank 1 left out a call.");
    return v;
}

static void a_withdrawn_finding_is_none_any_more(void **state)
{
    (void)state;
    for (int fetched = 0; fetched < 2; fetched++) {
        struct roll_engine *e = engine();
        uint64_t number = find(e, ROLL_SUSPECTED)->number;
        assert_int_equal(findings(e), 1);
        assert_true(say_stands(e, number));
        if (fetched) {
            assert_non_null(roll_engine_next(e));
            assert_null(roll_engine_next(e));
        }
        assert_true(say_withdraw(e, number, "the call came after all"));
        assert_false(say_withdraw(e, number, "once is enough"));
        assert_int_equal(findings(e), 0);
        assert_false(say_stands(e, number));
        const struct roll_verdict *v = roll_engine_next(e);
        if (!fetched) {
            assert_int_equal(v->number, number);
            v = roll_engine_next(e);
        }
        assert_int_equal(v->withdraws, number);
        assert_int_equal(v->certainty, ROLL_NOTE);
        assert_int_equal(v->code, ROLL_VERDICT_CALL_SKIPPED);
        assert_int_equal(v->comm_key, 77);
        assert_int_equal(v->seq, 9);
        assert_string_equal(v->comm_label, "dp");
        assert_string_equal(v->text, "Verdict 1 (call-skipped) is withdrawn: the call came after all.");
        assert_null(roll_engine_next(e));
        roll_engine_destroy(&e);
    }
}

static void what_is_proven_is_never_withdrawn(void **state)
{
    (void)state;
    struct roll_engine *e = engine();
    uint64_t number = find(e, ROLL_PROVEN)->number;
    assert_false(say_withdraw(e, number, "no"));
    assert_false(say_withdraw(e, number + 1, "there is none"));
    assert_false(say_withdraw(e, 0, "there is none"));
    assert_int_equal(findings(e), 1);
    roll_engine_destroy(&e);
}

static void a_better_verdict_takes_the_place_of_the_earlier_one(void **state)
{
    (void)state;
    struct roll_engine *e = engine();
    uint64_t one = find(e, ROLL_SUSPECTED)->number;
    struct roll_verdict *two = find(e, ROLL_PREDICTED);
    say_supersedes(e, two, one);
    assert_int_equal(two->supersedes, one);
    assert_int_equal(findings(e), 1);
    struct roll_verdict *three = find(e, ROLL_PROVEN);
    say_confirms(e, three, one); /* verdict one is retired already */
    assert_int_equal(three->confirms, 0);
    assert_int_equal(findings(e), 2);
    say_confirms(e, three, two->number);
    assert_int_equal(three->confirms, two->number);
    assert_int_equal(findings(e), 1);
    roll_engine_destroy(&e);
}

static void notes_are_no_findings_and_cannot_be_taken_back(void **state)
{
    (void)state;
    struct roll_engine *e = engine();
    uint64_t number = find(e, ROLL_NOTE)->number;
    assert_null(say_told(e, number));
    assert_false(say_withdraw(e, number, "no"));
    assert_int_equal(findings(e), 0);
    roll_engine_destroy(&e);
}

static void a_case_remembers_the_number_of_what_was_said(void **state)
{
    (void)state;
    struct roll_engine *e = engine();
    assert_int_equal(say_recall(e, say_key(1, 2, 3, 4)), 0);
    for (uint64_t i = 1; i <= 1000; i++) { /* the table grows on the way */
        assert_true(say_once(e, say_key(1, i, 0, 0)));
        say_remember(e, say_key(2, i, 0, 0), i);
    }
    for (uint64_t i = 1; i <= 1000; i++) {
        assert_false(say_once(e, say_key(1, i, 0, 0)));
        assert_int_equal(say_recall(e, say_key(2, i, 0, 0)), i);
        say_forget(e, say_key(2, i, 0, 0));
        assert_int_equal(say_recall(e, say_key(2, i, 0, 0)), 0);
        say_forget(e, say_key(1, i, 0, 0));
        assert_true(say_once(e, say_key(1, i, 0, 0)));
        assert_false(say_once(e, say_key(1, i, 0, 0)));
    }
    roll_engine_destroy(&e);
}

static void what_it_may_be_is_listed_once(void **state)
{
    (void)state;
    struct roll_engine *e = engine();
    struct roll_verdict *v = find(e, ROLL_SUSPECTED);
    say_may_be(v, ROLL_VERDICT_CALL_SKIPPED); /* a verdict's own code is no alternative */
    say_may_be(v, ROLL_VERDICT_CALL_ADDED);
    say_may_be(v, ROLL_VERDICT_CALL_ADDED);
    say_may_be(v, ROLL_VERDICT_OP_MISMATCH);
    assert_int_equal(v->may_bes, 2);
    struct words w = {.used = 0};
    words_may_be(&w, v);
    assert_string_equal(w.text, " The calls known so far fit call-added and op-mismatch as well.");
    for (unsigned code = 101; code < 109; code++) {
        say_may_be(v, code);
    }
    assert_int_equal(v->may_bes, ROLL_VERDICT_MAYBE);
    roll_engine_destroy(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_withdrawn_finding_is_none_any_more),
        cmocka_unit_test(what_is_proven_is_never_withdrawn),
        cmocka_unit_test(a_better_verdict_takes_the_place_of_the_earlier_one),
        cmocka_unit_test(notes_are_no_findings_and_cannot_be_taken_back),
        cmocka_unit_test(a_case_remembers_the_number_of_what_was_said),
        cmocka_unit_test(what_it_may_be_is_listed_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
