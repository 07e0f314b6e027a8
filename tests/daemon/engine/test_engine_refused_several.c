/*
 * test_engine_refused_several.c: several ranks are refused at one place. Each is told what it did, and nobody is
 * accused who may still make the call, or whose error is the doing of another.
 */
#include "tests/daemon/engine/scenes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t sizes[] = {3, 4, 8, 64};
#define SIZES  (sizeof(sizes) / sizeof(sizes[0]))
#define AR     ROLL_OP_ALLREDUCE
#define REMOTE 6 /* ncclRemoteError */

/* All but the last two ranks broadcast from rank 0 and wait. Returns the communicator. */
static uint32_t peers_wait(struct sim *sim)
{
    uint32_t w = sim_world(sim);
    sim_all(sim, w, AR, 64);
    for (uint32_t r = 0; r + 2 < sim->ranks; r++) {
        sim_call(sim, r, w, ROLL_OP_BROADCAST, 100)->peer = 0;
        sim_stuck(sim, r);
    }
    return w;
}

/* The rank's broadcast is refused; the next call has its number again. */
static struct roll_record *is_refused(struct sim *sim, uint32_t rank, uint32_t w, uint8_t result)
{
    struct roll_record *rec = sim_call(sim, rank, w, ROLL_OP_BROADCAST, 100);
    rec->peer = 0;
    rec->result = result;
    sim->rank[rank].seq[w]--;
    return rec;
}

/* These findings, and in every order of records a text with both parts. */
static void tells(struct sim *sim, const char *format, uint32_t low, uint32_t high, const char *one, const char *two)
{
    char want[96];
    if (low == high) {
        snprintf(want, sizeof(want), "%s %u", format, high);
    } else {
        snprintf(want, sizeof(want), "%s %u-%u", format, low, high);
    }
    sim_expect(sim, want);
    for (uint32_t order = 0; order < SIM_ORDERS; order++) {
        char *got = sim_run(sim, order, false, true);
        if (!strstr(got, one) || !strstr(got, two)) {
            fail_msg("order %u: no '%s', or no '%s', in: %s", order, one, two, got);
        }
        free(got);
    }
    sim_destroy(&sim);
}

static void test_two_mistakes_at_one_place_are_two_stories(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], one = n - 2, two = n - 1;
        char root[160], type[160];
        struct sim *sim = sim_new(n);
        uint32_t w = peers_wait(sim);
        is_refused(sim, one, w, SCENE_BAD)->peer = (int32_t)n;
        is_refused(sim, two, w, SCENE_BAD)->dtype = 77;
        sim_proc(sim, one, ROLL_PROC_FINISHED, SIM_EXIT(1));
        sim_proc(sim, two, ROLL_PROC_FINISHED, SIM_EXIT(3));
        snprintf(root, sizeof(root), "Rank %u called Broadcast of 100 float32 with root %u as #1 on ", one, n);
        snprintf(type, sizeof(type),
                 "77 is no datatype; nothing of it was enqueued, and the rank has ended (exit code 3)");
        tells(sim, "proven call-refused", one, two, root, type);
    }
}

/* Both made one and the same mistake: one story, and not two. */
static void test_one_mistake_of_two_ranks_is_one_story(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], one = n - 2, two = n - 1;
        char said[160];
        struct sim *sim = sim_new(n);
        uint32_t w = peers_wait(sim);
        for (uint32_t r = one; r <= two; r++) {
            is_refused(sim, r, w, SCENE_BAD)->peer = (int32_t)n;
            sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(1));
        }
        snprintf(said, sizeof(said), "Ranks %u-%u called Broadcast of 100 float32 with root %u as #1 on ", one, two, n);
        tells(sim, "proven call-refused", one, two, said, "the ranks have ended (each: exit code 1)");
    }
}

/* One has made the mistake, and the other is told that its cause lies with another rank: that one is not accused. */
static void test_who_was_refused_for_another_rank_is_not_accused(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        uint32_t n = sizes[i % SIZES], one = n - 2, two = n - 1, guilty = i < SIZES ? one : two;
        char said[160], spared[160];
        struct sim *sim = sim_new(n);
        uint32_t w = peers_wait(sim);
        for (uint32_t r = one; r <= two; r++) {
            is_refused(sim, r, w, r == guilty ? SCENE_BAD : REMOTE)->peer = r == guilty ? (int32_t)n : 0;
            sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(1));
        }
        snprintf(said, sizeof(said), "Rank %u called Broadcast", guilty);
        snprintf(spared, sizeof(spared), "To rank %u a call was refused there as well, with an error whose cause lies",
                 one + two - guilty);
        tells(sim, "proven call-refused", guilty, guilty, said, spared);
    }
}

/* One has ended without the call; the other makes it again a second later, put right, having caught
 * the error, or having waited for its device meanwhile. It is never accused. */
static void test_who_may_still_make_the_call_is_not_accused(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        uint32_t n = sizes[i % SIZES], slow = n - 2, odd = n - 1;
        char want[64];
        struct sim *sim = sim_new(n);
        uint32_t w = peers_wait(sim);
        is_refused(sim, slow, w, SCENE_BAD)->peer = (int32_t)n;
        is_refused(sim, odd, w, SCENE_BAD)->peer = (int32_t)n;
        sim_proc(sim, odd, ROLL_PROC_FINISHED, SIM_EXIT(1));
        if (i < SIZES) {
            sim_pass(sim, slow, S_);
        } else { /* a host that waits has not waited for long */
            sim_stuck(sim, slow);
            sim_pass(sim, slow, S_ / 2);
            sim_return(sim, slow);
        }
        sim_call(sim, slow, w, ROLL_OP_BROADCAST, 100)->peer = 0;
        sim_stuck(sim, slow);
        snprintf(want, sizeof(want), "proven call-refused %u", odd);
        sim_expect(sim, want);
        for (uint32_t order = 0; order < SIM_ORDERS; order++) { /* nor was it before something better was known */
            char *all = sim_run_all(sim, order);
            if (strcmp(all, want) != 0) {
                fail_msg("order %u: %s", order, all);
            }
            free(all);
        }
        sim_destroy(&sim);
    }
}

/* One is refused and ends; a second later another one comes to the same place, is refused and ends: both are accused.
 */
static void test_who_is_refused_later_is_told_beside_the_first(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], late = n - 2, odd = n - 1;
        char first[96], second[96];
        struct sim *sim = sim_new(n);
        uint32_t w = peers_wait(sim);
        is_refused(sim, odd, w, SCENE_BAD)->peer = (int32_t)n;
        sim_proc(sim, odd, ROLL_PROC_FINISHED, SIM_EXIT(1));
        sim_pass(sim, late, S_);
        is_refused(sim, late, w, SCENE_BAD)->peer = (int32_t)n + 1;
        sim_proc(sim, late, ROLL_PROC_FINISHED, SIM_EXIT(1));
        snprintf(first, sizeof(first), "root %u does not exist", n);
        snprintf(second, sizeof(second), "root %u does not exist", n + 1);
        tells(sim, "proven call-refused", late, odd, first, second);
    }
}

/* One is refused and waits in something else: that may still come to its call, and is suspected. Then it ends, or makes
 * the call: what was suspected is proven, or taken back. */
static void test_a_suspicion_is_proven_or_taken_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        uint32_t n = sizes[i % SIZES], slow = n - 2, odd = n - 1, source[64];
        bool ends = i < SIZES;
        struct sim *sim = sim_new(n);
        uint32_t w = peers_wait(sim);
        sim_call(sim, slow, w, ROLL_OP_BROADCAST, 100)->peer = 0;
        sim_stuck(sim, slow);
        is_refused(sim, odd, w, SCENE_BAD)->peer = (int32_t)n;
        sim_stuck(sim, odd);
        size_t upto = sim->rank[odd].events;
        sim_return(sim, odd);
        sim_call(sim, odd, w, ROLL_OP_BROADCAST, 100)->peer = 0;
        sim_sync(sim, odd);
        roll_engine_t *e = roll_engine_new(&sim->config);
        assert_non_null(e);
        uint64_t now = 0;
        for (uint32_t r = 0; r < n; r++) {
            source[r] = sim_open(sim, e, r);
            for (size_t k = 0; k < (r == odd ? upto : sim->rank[r].events); k++) {
                sim_feed(e, source[r], &sim->rank[r].event[k], &now);
            }
        }
        sim_wait(e, 4 * S_, &now);
        const struct roll_verdict *v = roll_engine_next(e);
        assert_non_null(v);
        assert_int_equal(v->certainty, ROLL_SUSPECTED);
        uint64_t number = v->number;
        assert_null(roll_engine_next(e));
        for (size_t k = upto; !ends && k < sim->rank[odd].events; k++) {
            sim_feed(e, source[odd], &sim->rank[odd].event[k], &now);
        }
        if (ends) {
            assert_int_equal(roll_engine_process(e, source[odd], ROLL_PROC_FINISHED, SIM_EXIT(1)), 0);
        }
        sim_wait(e, 4 * S_, &now);
        v = roll_engine_next(e);
        assert_non_null(v);
        if (ends) {
            assert_int_equal(v->code, ROLL_VERDICT_CALL_REFUSED);
            assert_int_equal(v->certainty, ROLL_PROVEN);
            assert_int_equal(v->supersedes, number);
            assert_int_equal(roll_rankset_count(&v->culprits), 1);
            assert_int_equal(roll_rankset_at(&v->culprits, 0), odd);
        } else {
            assert_int_equal(v->withdraws, number);
        }
        assert_null(roll_engine_next(e));
        roll_engine_destroy(&e);
        sim_destroy(&sim);
    }
}

/* The host makes the call again, and the process ends in order. That it has ended is known a moment before the records
 * of what it did last: until these have been read nobody says that it ended without the call. */
static void test_who_makes_the_call_again_before_its_end_is_not_accused_for_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], odd = n - 1, source[64];
        struct sim *sim = sim_new(n);
        uint32_t w = peers_wait(sim);
        sim_call(sim, n - 2, w, ROLL_OP_BROADCAST, 100)->peer = 0;
        sim_stuck(sim, n - 2);
        is_refused(sim, odd, w, SCENE_BAD)->peer = (int32_t)n;
        size_t upto = sim->rank[odd].events;
        sim_call(sim, odd, w, ROLL_OP_BROADCAST, 100)->peer = 0;
        sim_sync(sim, odd);
        roll_engine_t *e = roll_engine_new(&sim->config);
        assert_non_null(e);
        uint64_t now = 0;
        for (uint32_t r = 0; r < n; r++) {
            source[r] = sim_open(sim, e, r);
            for (size_t k = 0; k < (r == odd ? upto : sim->rank[r].events); k++) {
                sim_feed(e, source[r], &sim->rank[r].event[k], &now);
            }
        }
        sim_wait(e, 3 * S_, &now);
        assert_int_equal(roll_engine_process(e, source[odd], ROLL_PROC_FINISHED, SIM_EXIT(0)), 0);
        sim_wait(e, S_ / 20, &now); /* less than a fifth of a stall */
        for (size_t k = upto; k < sim->rank[odd].events; k++) {
            sim_feed(e, source[odd], &sim->rank[odd].event[k], &now);
        }
        sim_wait(e, 4 * S_, &now);
        const struct roll_verdict *said = roll_engine_next(e);
        if (said) {
            fail_msg("%u ranks: %s: %s", n, roll_certainty_name(said->certainty), said->text);
        }
        roll_engine_destroy(&e);
        sim_destroy(&sim);
    }
}

/* More stories than there is room for: all are accused, and the text says of whom it does not tell. */
static void test_many_stories_leave_some_untold(void **state)
{
    (void)state;
    struct sim *sim = sim_new(8);
    uint32_t w = sim_world(sim);
    sim_all(sim, w, AR, 64);
    sim_call(sim, 0, w, ROLL_OP_BROADCAST, 100)->peer = 0;
    sim_stuck(sim, 0);
    for (uint32_t r = 1; r < 8; r++) {
        is_refused(sim, r, w, SCENE_BAD)->peer = 8 + (int32_t)r;
        sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(1));
    }
    tells(sim, "proven call-refused", 1, 7, "root 9 does not exist", "a call was refused there as well; what differs");
}

/* Nobody waits where all made the mistake: one note tells of all, and one of all that could not make a communicator. */
static void test_one_mistake_of_all_ranks_is_one_note(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        uint32_t n = sizes[i % SIZES];
        bool creation = i >= SIZES;
        char want[64], said[96];
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        for (uint32_t r = 0; r < n; r++) {
            if (creation) {
                struct roll_record *rec = sim_record(sim, r, ROLL_OP_COMM_INIT, w);
                rec->count = n;
                rec->peer = (int32_t)r;
                rec->result = 2;
            } else {
                is_refused(sim, r, w, SCENE_BAD)->dtype = 77;
            }
            sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(1));
        }
        sim_expect_with_notes(sim, "note call-refused -");
        snprintf(want, sizeof(want), "Ranks 0-%u called %s", n - 1, creation ? "CommInit" : "Broadcast");
        snprintf(said, sizeof(said), "the ranks have ended (each: exit code 1)");
        for (uint32_t order = 0; order < SIM_ORDERS; order++) {
            char *got = sim_run(sim, order, true, true);
            if (!strstr(got, want) || !strstr(got, said)) {
                fail_msg("order %u: no '%s', or no '%s', in: %s", order, want, said, got);
            }
            free(got);
        }
        sim_destroy(&sim);
    }
}

/* A rank has begun the creation in which others wait for the last one, and is then refused another one, of which
 * nothing else is known: that is not what they wait for. */
static void test_who_has_begun_a_creation_is_not_accused_in_it_for_another_one(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], all[64];
        for (uint32_t r = 0; r < n; r++) {
            all[r] = r;
        }
        struct sim *sim = sim_new(n);
        (void)scene_creation(sim, all, n - 1, n);
        struct sim_rank *begun = &sim->rank[n - 2];
        struct roll_record *rec = &begun->event[begun->events - 1].rec;
        rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_RETURNED);
        rec->result = 7; /* ncclInProgress */
        rec = sim_record(sim, n - 2, ROLL_OP_COMM_INIT, UINT32_MAX);
        rec->count = n;
        rec->peer = (int32_t)n;
        rec->result = SCENE_BAD;
        scene_tells(sim, "suspected init-missing", n - 1, NULL, "call-refused");
        sim_destroy(&sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_mistakes_at_one_place_are_two_stories),
        cmocka_unit_test(test_one_mistake_of_two_ranks_is_one_story),
        cmocka_unit_test(test_who_was_refused_for_another_rank_is_not_accused),
        cmocka_unit_test(test_who_may_still_make_the_call_is_not_accused),
        cmocka_unit_test(test_who_is_refused_later_is_told_beside_the_first),
        cmocka_unit_test(test_a_suspicion_is_proven_or_taken_back),
        cmocka_unit_test(test_who_makes_the_call_again_before_its_end_is_not_accused_for_it),
        cmocka_unit_test(test_who_has_begun_a_creation_is_not_accused_in_it_for_another_one),
        cmocka_unit_test(test_many_stories_leave_some_untold),
        cmocka_unit_test(test_one_mistake_of_all_ranks_is_one_note),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
