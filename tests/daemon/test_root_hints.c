/*
 * test_root_hints.c: when a case is opened for what is hinted at, and when the open one is begun anew: the clock is a
 * number here, so each pause is held to the nanosecond.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/root/root_digest.h"

#include <stdlib.h>

#define A UINT64_C(0xa) /* communicators */
#define B UINT64_C(0xb)
#define S (1000 * ROLL_MS)

static struct roll_digested *d;
static struct roll_digest up;

static int set_up(void **state)
{
    (void)state;
    d = calloc(1, sizeof(*d));
    up = (struct roll_digest){.hints = 0};
    d->hold_ns = d->redo_ns = d->stilled_ns = ROLL_CASE_HOLD_NS; /* as a run begins */
    d->sum = roll_sum_new(&(struct roll_sum_config){.stand_ns = 250 * ROLL_MS});
    return d->sum ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    roll_sum_destroy(&d->sum);
    roll_digest_fini(&d->hints);
    roll_digest_fini(&d->late);
    roll_digest_fini(&d->covered);
    roll_digest_fini(&up);
    roll_map_fini(&d->past);
    free(d->ring);
    free(d);
    return 0;
}

static void hinted(uint64_t key, enum roll_digest_why why, uint64_t now)
{
    roll_digest_clear(&up);
    roll_digest_add_hint(&up, key, why, 64);
    roll_hints_note(d, &up, now);
}

/* A case about what waits is opened, fed and closed, each at once. */
static void case_at(uint64_t now, bool news)
{
    roll_hints_open(d);
    d->number++;
    d->news = news;
    roll_hints_close(d, now);
    d->number = 0;
    roll_digest_clear(&d->hints);
    d->pending = false;
}

static void test_a_wrong_call_is_looked_at_at_once_and_who_stands_after_the_others(void **state)
{
    (void)state;
    d->still_since_ns = 8 * S;
    hinted(A, ROLL_HINT_QUIET, 10 * S);
    assert_false(roll_hints_due(d, 10 * S + ROLL_CASE_GATHER_NS - 1, false));
    assert_true(roll_hints_due(d, 10 * S + ROLL_CASE_GATHER_NS, false));
    assert_true(roll_hints_due(d, 10 * S, true)); /* nobody is to be gathered where all are asked anyway */
    hinted(A, ROLL_HINT_DIFFERS, 10 * S);
    assert_true(roll_hints_due(d, 10 * S, false));
}

/* Of a large job, in which records of those who go on are cut before they come to where others stand. */
static void test_who_stands_in_a_job_that_goes_on_is_looked_at_later(void **state)
{
    (void)state;
    uint64_t now = 10 * S;
    d->still_since_ns = now;
    hinted(A, ROLL_HINT_QUIET, now);
    assert_false(roll_hints_due(d, now + 1250 * ROLL_MS, false));
    assert_true(roll_hints_due(d, now + 1250 * ROLL_MS + 1, false));
    assert_true(roll_hints_due(d, now, true));
    now += 1000 * ROLL_MS;
    d->still_since_ns = now; /* somebody has made a call */
    assert_false(roll_hints_due(d, now + 1250 * ROLL_MS, false));
    d->still_since_ns = now + 5 * S;
    assert_false(roll_hints_due(d, 10 * S + ROLL_CASE_GATHER_NS + 3 * S, false));
    assert_true(roll_hints_due(d, 10 * S + ROLL_CASE_GATHER_NS + 3 * S + 1, false));
    hinted(B, ROLL_HINT_DIFFERS, 10 * S);
    assert_true(roll_hints_due(d, 10 * S, false));
}

/* Ranks that went on were cut: when nobody goes on any more, the case is begun anew, and once. */
static void test_a_case_in_a_job_that_stands_now_is_begun_anew(void **state)
{
    (void)state;
    d->ring = calloc(2, sizeof(*d->ring));
    d->rings = 2;
    d->number = 1;
    d->fed = true;
    d->opened_ns = 10 * S;
    d->still_since_ns = 12 * S;
    assert_false(roll_hints_stilled(d, 20 * S)); /* all of it is seen */
    d->ring[1].cut = true;
    assert_false(roll_hints_stilled(d, 12 * S + 1250 * ROLL_MS));
    assert_true(roll_hints_stilled(d, 12 * S + 1250 * ROLL_MS + 1));

    /* A job that rests after each of its calls: the pauses are 1, 2, 4 ... 60 s, and 1 s again behind news. */
    static const uint64_t pause_s[] = {2, 4, 8, 16, 32, 60, 60};
    uint64_t now = 100 * S;
    for (size_t i = 0; i < sizeof(pause_s) / sizeof(pause_s[0]); i++) {
        d->opened_ns = now;
        d->still_since_ns = now + 1;
        assert_false(roll_hints_stilled(d, now + pause_s[i] * S));
        assert_true(roll_hints_stilled(d, now + pause_s[i] * S + 1));
        now += 100 * S;
    }
    d->opened_ns = now;
    d->still_since_ns = now + 1;
    d->news = true;
    roll_hints_close(d, now);
    assert_true(roll_hints_stilled(d, now + 2 * S));
    d->opened_ns = 10 * S;
    d->still_since_ns = 12 * S;
    d->engine_news = true; /* it has said what it sees */
    assert_false(roll_hints_stilled(d, 20 * S));
    d->engine_news = false;
    d->opened_ns = 12 * S + 1;
    assert_false(roll_hints_stilled(d, 20 * S));
    d->still_since_ns = 0; /* nobody has told of a call yet */
    d->opened_ns = 0;
    assert_false(roll_hints_stilled(d, 20 * S));
}

/* The pause is 1 s behind news, then 2, 4 ... 60 s. */
static void test_cases_that_find_nothing_new_come_less_and_less_often(void **state)
{
    (void)state;
    static const uint64_t pause_s[] = {1, 2, 4, 8, 16, 32, 60, 60};
    uint64_t now = 10 * S;
    for (size_t i = 0; i < sizeof(pause_s) / sizeof(pause_s[0]); i++) {
        hinted(A, ROLL_HINT_QUIET, now);
        case_at(now, i == 0);
        hinted(A, ROLL_HINT_QUIET, now);
        assert_false(roll_hints_due(d, now + pause_s[i] * S - 1, true));
        now += pause_s[i] * S;
        assert_true(roll_hints_due(d, now, true));
    }
    hinted(A, ROLL_HINT_QUIET, now);
    case_at(now, true);
    hinted(A, ROLL_HINT_QUIET, now);
    assert_false(roll_hints_due(d, now + S - 1, true));
    assert_true(roll_hints_due(d, now + S, true));
}

static void test_a_pause_is_for_what_it_was_about(void **state)
{
    (void)state;
    uint64_t now = 10 * S;
    for (int i = 0; i < 4; i++) { /* the next pause for A is long */
        hinted(A, ROLL_HINT_DIFFERS, now);
        case_at(now, false);
    }
    assert_true(d->held_until_ns - now >= 4 * S);
    hinted(A, ROLL_HINT_DIFFERS, now);
    assert_false(roll_hints_due(d, now + ROLL_CASE_HOLD_NS - 1, true));
    assert_true(roll_hints_due(d, now + ROLL_CASE_HOLD_NS, true));
    hinted(B, ROLL_HINT_QUIET, now); /* who stands elsewhere waits with the others */
    assert_false(roll_hints_due(d, now, true));
    hinted(B, ROLL_HINT_DIFFERS, now);
    assert_true(roll_hints_due(d, now, true));
}

/* Records of A are here, and came within `took`. */
static void open_about_a(uint64_t now, uint64_t took)
{
    hinted(A, ROLL_HINT_DIFFERS, now);
    roll_hints_open(d);
    d->number = 1;
    d->opened_ns = now;
    d->fed_ns = now + took;
    d->fed = true;
}

static void test_a_case_that_does_not_see_a_wrong_call_is_begun_anew(void **state)
{
    (void)state;
    uint64_t now = 10 * S;
    d->scoped = true;
    open_about_a(now, 500 * ROLL_MS);
    hinted(A, ROLL_HINT_DIFFERS, now + 600 * ROLL_MS); /* it has been asked for */
    assert_false(roll_hints_redo(d, now + 100 * S));
    hinted(B, ROLL_HINT_DIFFERS, now + 600 * ROLL_MS);
    assert_false(roll_hints_redo(d, now + S)); /* twice as long as its records took */
    assert_true(roll_hints_redo(d, now + S + 1));
    assert_true(roll_case_is_hinted(d, B));
}

static void test_what_a_cut_rank_has_called_is_looked_at_less_and_less_often(void **state)
{
    (void)state;
    uint64_t now = 10 * S;
    d->ring = calloc(1, sizeof(*d->ring));
    d->rings = 1;
    open_about_a(now, 0);
    d->redo_ns = ROLL_CASE_HOLD_NS;
    hinted(A, ROLL_HINT_DIFFERS, now + S / 2);
    assert_false(roll_hints_redo(d, now + 100 * S)); /* nobody was cut: the engine has seen it */
    d->ring[0].cut = true;
    hinted(A, ROLL_HINT_DIFFERS, now + S / 2);
    assert_false(roll_hints_redo(d, now + S));
    assert_true(roll_hints_redo(d, now + S + 1));
    assert_int_equal(d->redo_ns, 2 * S);
    d->engine_news = true;
    assert_true(roll_hints_redo(d, now + 3 * S));
    assert_int_equal(d->redo_ns, ROLL_CASE_HOLD_NS);
}

/* That a rank was cut is heard of behind the hint: what nobody has looked at waits for the next case. */
static void test_what_a_case_has_not_seen_waits_for_the_next(void **state)
{
    (void)state;
    uint64_t now = 10 * S;
    d->ring = calloc(1, sizeof(*d->ring));
    d->rings = 1;
    open_about_a(now, 0);
    hinted(A, ROLL_HINT_DIFFERS, now + S);
    roll_hints_close(d, now + S + S / 2);
    assert_true(d->pending && d->urgent);
    assert_true(roll_case_is_hinted(d, A));

    roll_hints_open(d); /* the same, but the hint is old and nobody was cut */
    roll_digest_clear(&d->hints);
    open_about_a(now, 0);
    hinted(A, ROLL_HINT_DIFFERS, now + S);
    roll_hints_close(d, now + 3 * S);
    assert_false(d->pending);
}

/* It has asked for calls on A up to a place behind its hint. What is noted of later hints nobody has been asked for. */
static void test_a_narrow_case_sees_what_it_was_opened_for(void **state)
{
    (void)state;
    uint64_t now = 10 * S;
    d->scoped = d->narrow = true;
    open_about_a(now, 0);
    hinted(A, ROLL_HINT_DIFFERS, now + 1);
    assert_int_equal(d->late.hints, 0);
    assert_false(d->unseen);
    roll_digest_clear(&up);
    roll_digest_add_hint(&up, A, ROLL_HINT_DIFFERS, UINT32_MAX - 10); /* whose window has no end among 32 bits */
    roll_hints_note(d, &up, now + 2);
    assert_int_equal(d->late.hints, 1);
    assert_true(d->unseen);
    roll_digest_clear(&d->late);
    hinted(B, ROLL_HINT_DIFFERS, now + 3);
    assert_int_equal(d->late.hints, 1);
    roll_hints_close(d, now + S / 2);
    assert_true(d->pending && d->urgent);
    assert_true(roll_case_is_hinted(d, B));
    assert_false(roll_case_is_hinted(d, A));
}

/* A member is cut before it has sent all that was asked of it: what counted as covered is looked at after all, and so
 * is what the case was opened for, but for what it has told. */
static void test_a_member_that_is_cut_too_soon_covers_nothing(void **state)
{
    (void)state;
    uint64_t now = 10 * S;
    d->ring = calloc(1, sizeof(*d->ring));
    d->rings = 1;
    d->scoped = d->narrow = true;
    roll_digest_add_hint(&d->hints, B, ROLL_HINT_DIFFERS, 64);
    open_about_a(now, 0);
    hinted(A, ROLL_HINT_DIFFERS, now + 1);
    assert_int_equal(d->late.hints, 0);
    assert_int_equal(d->covered.hints, 1);
    d->partly = d->ring[0].cut = true; /* heard of a moment later than the hint */
    roll_digest_clear(&up);
    roll_hints_note(d, &up, now + 2);
    assert_int_equal(d->late.hints, 1);
    assert_int_equal(d->covered.hints, 0);
    assert_true(d->unseen && d->late_urgent);
    hinted(B, ROLL_HINT_DIFFERS, now + 3);
    assert_int_equal(d->late.hints, 2);

    /* It has told of A: B is asked for again, and of A what was hinted at since. */
    d->fed = d->named = true;
    d->named_seq[d->named_keys] = 70;
    d->named_key[d->named_keys++] = A;
    d->opened_ns = d->fed_ns = now;
    assert_true(roll_hints_redo(d, now + S));
    assert_true(roll_case_is_hinted(d, B));
    assert_int_equal(d->hints.hints, 3);
    roll_hints_open(d);
    assert_int_equal(d->late.hints, 0);

    /* All members pass what is wanted of them, and the case tells of all: nothing is left to look at. */
    d->partly = d->ring[0].cut = false;
    d->named_seq[d->named_keys] = 70;
    d->named_key[d->named_keys++] = B;
    hinted(B, ROLL_HINT_DIFFERS, now + S + 1);
    d->ring[0].cut = true;
    roll_digest_clear(&up);
    roll_hints_note(d, &up, now + S + 2);
    assert_false(d->unseen);
    assert_int_equal(d->late.hints, 0);
    d->partly = true; /* here as well nothing but what was covered is left */
    roll_hints_note(d, &up, now + S + 3);
    assert_int_equal(d->late.hints, 1);
    assert_true(d->unseen);
}

/* A narrow case was opened for hints at these windows of A, a member was cut, and it has told of A at `seq`. How many
 * of the hints does it take with it when it is begun anew? */
static size_t hints_left(const uint32_t *window, size_t windows, uint32_t seq)
{
    uint64_t now = 10 * S;
    roll_digest_clear(&d->hints);
    roll_digest_clear(&d->late);
    roll_digest_clear(&up);
    for (size_t i = 0; i < windows; i++) {
        roll_digest_add_hint(&d->hints, A, ROLL_HINT_DIFFERS, window[i]);
    }
    roll_hints_open(d);
    d->number++;
    d->ring[0].cut = d->scoped = d->narrow = d->partly = true;
    d->fed = d->named = true;
    d->named_key[0] = A;
    d->named_seq[0] = seq;
    d->named_keys = 1;
    d->opened_ns = d->fed_ns = now;
    roll_hints_note(d, &up, now + 1);
    return roll_hints_redo(d, now + S) ? d->hints.hints : 0;
}

/* The call that is told of and those that follow from it are done with; one of the same communicator far from it is
 * not, on either side, and is asked for again. */
static void test_a_place_far_from_what_was_told_is_looked_at_all_the_same(void **state)
{
    (void)state;
    static const uint32_t near[] = {64, 128, 192}, far[] = {64, 640}, part[] = {128 + 5, 64};
    d->ring = calloc(1, sizeof(*d->ring));
    d->rings = 1;
    assert_int_equal(hints_left(far, 2, 70), 1);
    assert_int_equal(d->hints.hint[0].seq, 640);
    assert_int_equal(hints_left(far, 2, 645), 1);
    assert_int_equal(d->hints.hint[0].seq, 64);
    assert_int_equal(hints_left(far, 2, ROLL_CASE_ANYWHERE), 0); /* no collective: who knows what follows from it */
    assert_int_equal(hints_left(near, 3, 64), 0);                /* one shift, which goes on from window to window */
    assert_int_equal(hints_left(near, 1, 64 + 64 + 3), 0);       /* it shows a little later than it is */
    assert_int_equal(hints_left(part, 2, 70), 0); /* a hint that names the check point is of its window */
}

/* Member `child` of the two of a communicator has made so many calls. */
static void has_made(uint64_t key, uint32_t child, uint32_t calls)
{
    struct roll_digest one = {.hints = 0};
    roll_digest_add_front(
        &one, &(struct roll_digest_front){.key = key, .size = 2, .members = 1, .low = calls, .high = calls});
    assert_int_equal(roll_sum_take(d->sum, child, &one, 10 * S), 0);
    roll_sum_cut(d->sum, 10 * S, &up);
    roll_digest_fini(&one);
}

/* It is told once, and the case that looks at the wrong call is over before anybody has stood for long. */
static void test_who_stands_where_a_wrong_call_is_looked_at_is_looked_at_next(void **state)
{
    (void)state;
    hinted(A, ROLL_HINT_DIFFERS, 10 * S);
    roll_hints_open(d);
    d->number++;
    d->fed = true;
    has_made(A, 0, 64);
    has_made(A, 1, 65);
    hinted(A, ROLL_HINT_STANDS, 11 * S);
    roll_hints_close(d, 15 * S);
    assert_true(d->pending);
    assert_int_equal(d->hints.hints, 1);
    assert_int_equal(d->hints.hint[0].why, ROLL_HINT_STANDS);
    roll_hints_open(d); /* while that is looked at it goes on */
    has_made(A, 0, 66);
    has_made(A, 1, 66);
    roll_hints_close(d, 25 * S);
    assert_false(d->pending);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_wrong_call_is_looked_at_at_once_and_who_stands_after_the_others, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_who_stands_in_a_job_that_goes_on_is_looked_at_later, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_case_in_a_job_that_stands_now_is_begun_anew, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_cases_that_find_nothing_new_come_less_and_less_often, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_pause_is_for_what_it_was_about, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_case_that_does_not_see_a_wrong_call_is_begun_anew, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_a_cut_rank_has_called_is_looked_at_less_and_less_often, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_what_a_case_has_not_seen_waits_for_the_next, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_narrow_case_sees_what_it_was_opened_for, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_member_that_is_cut_too_soon_covers_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_place_far_from_what_was_told_is_looked_at_all_the_same, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_who_stands_where_a_wrong_call_is_looked_at_is_looked_at_next, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
