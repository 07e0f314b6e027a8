/*
 * test_engine_race.c: two host threads on one communicator: at once, in turn, each with its own.
 */
#include "tests/daemon/engine/sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t sizes[] = {2, 3, 4, 8};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define AR    ROLL_OP_ALLREDUCE
#define T0    (2000 * S_)

/* One call of a thread, [from, to) in microseconds; `to` 0: it has not returned. */
static void call(struct sim *sim, uint32_t rank, uint32_t comm, uint16_t thread, uint64_t from, uint64_t to)
{
    struct roll_record *rec = sim_call(sim, rank, comm, AR, 256);
    rec->thread = thread;
    rec->enter_ns = T0 + from * 1000;
    rec->call_ns = (uint32_t)((to - from) * 1000);
    if (to == 0) {
        rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
        rec->call_ns = 0;
    }
}

/* A group of one call: it returns at once; the group's end takes the time. */
static void group(struct sim *sim, uint32_t rank, uint32_t comm, uint16_t thread, uint32_t id, uint64_t from,
                  uint64_t to)
{
    call(sim, rank, comm, thread, from, from + 1);
    struct roll_record *rec = &sim->rank[rank].event[sim->rank[rank].events - 1].rec;
    rec->group = id;
    rec->flags |= ROLL_FLAG_IN_GROUP;
    rec = sim_record(sim, rank, ROLL_OP_GROUP_END, UINT32_MAX);
    rec->group = id;
    rec->thread = thread;
    rec->aux = 1;
    rec->enter_ns = T0 + (from + 2) * 1000;
    rec->call_ns = (uint32_t)((to - from - 2) * 1000);
}

/* All ranks do the same; the last one is named where a finding is wanted. */
typedef void (*story)(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other);

static void check(story sick, story healthy, bool found)
{
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), other = sim_comm(sim, "dp", NULL, sizes[i]);
        for (uint32_t r = 0; r < sizes[i]; r++) {
            (r == sizes[i] - 1 ? sick : healthy)(sim, r, w, other);
        }
        char want[64] = "";
        if (found) {
            snprintf(want, sizeof(want), "proven thread-race %u", sizes[i] - 1);
        }
        sim_expect(sim, want);
        sim_destroy(&sim);
    }
}

static void in_turn(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    for (uint64_t k = 0; k < 20; k++) { /* a lock handed over: 1 us between, and less than the clock's error once */
        call(sim, rank, comm, (uint16_t)(1 + k % 2), k * 100, k * 100 + (k == 7 ? 102 : 99));
    }
}

static void at_once(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    for (uint64_t k = 0; k < 20; k++) {
        call(sim, rank, comm, (uint16_t)(1 + k % 2), k * 100, k * 100 + (k == 7 ? 150 : 99));
    }
}

static void each_its_own(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    for (uint64_t k = 0; k < 20; k++) {
        call(sim, rank, k % 2 ? other : comm, (uint16_t)(1 + k % 2), k * 100, k * 100 + 190);
    }
}

static void groups_in_turn(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    for (uint32_t k = 0; k < 10; k++) {
        group(sim, rank, comm, (uint16_t)(1 + k % 2), k + 1, k * 100, k * 100 + 99);
    }
}

static void groups_at_once(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    for (uint32_t k = 0; k < 10; k++) {
        group(sim, rank, comm, (uint16_t)(1 + k % 2), k + 1, k * 100, k * 100 + (k == 4 ? 180 : 99));
    }
}

static void both_stuck(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    call(sim, rank, comm, 1, 0, 10);
    call(sim, rank, comm, 2, 20, 30);
    call(sim, rank, comm, 1, 100, 0);
    call(sim, rank, comm, 2, 200, 0);
}

static void stuck_at_first(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    call(sim, rank, comm, 1, 100, 0);
    call(sim, rank, comm, 2, 200, 0);
}

static void once_in_turn(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    call(sim, rank, comm, 1, 100, 110);
    call(sim, rank, comm, 2, 200, 210);
}

/* The second thread's first call: the first thread has returned when anything is read. */
static void once_at_once(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    call(sim, rank, comm, 1, 100, 250);
    call(sim, rank, other, 1, 260, 270);
    call(sim, rank, comm, 2, 200, 300);
    call(sim, rank, other, 2, 310, 320);
}

static void once_one_by_one(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    call(sim, rank, comm, 1, 100, 150);
    call(sim, rank, other, 1, 160, 170);
    call(sim, rank, comm, 2, 200, 300);
    call(sim, rank, other, 2, 310, 320);
}

static void group_once_at_once(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    group(sim, rank, comm, 1, 1, 0, 180);
    group(sim, rank, comm, 2, 2, 100, 199);
}

static void group_once_in_turn(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    group(sim, rank, comm, 1, 1, 0, 90);
    group(sim, rank, comm, 2, 2, 100, 199);
}

static void test_the_first_call_of_a_second_thread_counts(void **state)
{
    (void)state;
    check(once_at_once, once_one_by_one, true);
    check(once_one_by_one, once_one_by_one, false);
    check(group_once_at_once, group_once_in_turn, true);
    check(group_once_in_turn, group_once_in_turn, false);
}

static void none_stuck(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    call(sim, rank, comm, 1, 0, 10);
    call(sim, rank, comm, 2, 20, 30);
    call(sim, rank, comm, 1, 100, 110);
    call(sim, rank, comm, 2, 200, 210);
}

static void test_calls_of_two_threads_that_overlap_are_told(void **state)
{
    (void)state;
    check(at_once, in_turn, true);
}

static void test_threads_taking_turns_are_healthy(void **state)
{
    (void)state;
    check(in_turn, in_turn, false);
}

static void test_two_threads_with_two_communicators_are_healthy(void **state)
{
    (void)state;
    check(each_its_own, each_its_own, false);
}

static void test_groups_that_overlap_are_told(void **state)
{
    (void)state;
    check(groups_at_once, groups_in_turn, true);
}

static void test_groups_in_turn_are_healthy(void **state)
{
    (void)state;
    check(groups_in_turn, groups_in_turn, false);
}

static void test_two_calls_that_never_return_overlap(void **state)
{
    (void)state;
    check(both_stuck, none_stuck, true);
    check(stuck_at_first, once_in_turn, true);
    check(once_in_turn, once_in_turn, false);
}

/* One call of an open group; and the group's end, [from, to). */
static void in_group(struct sim *sim, uint32_t rank, uint32_t comm, uint16_t thread, uint32_t id, uint64_t at)
{
    call(sim, rank, comm, thread, at, at + 1);
    struct roll_record *rec = &sim->rank[rank].event[sim->rank[rank].events - 1].rec;
    rec->group = id;
    rec->flags |= ROLL_FLAG_IN_GROUP;
}

static void group_ends(struct sim *sim, uint32_t rank, uint16_t thread, uint32_t id, uint64_t from, uint64_t to,
                       uint16_t calls)
{
    struct roll_record *rec = sim_record(sim, rank, ROLL_OP_GROUP_END, UINT32_MAX);
    rec->group = id;
    rec->thread = thread;
    rec->aux = calls;
    rec->enter_ns = T0 + from * 1000;
    rec->call_ns = to > from ? (uint32_t)((to - from) * 1000) : 0;
    if (to == 0) {
        rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
    }
}

/* Two threads, a group each, call by call in turn; the first group has ended before the second one's last call. */
static void interleaved(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    in_group(sim, rank, comm, 1, 1, 0);
    in_group(sim, rank, comm, 2, 2, 20);
    in_group(sim, rank, comm, 1, 1, 40);
    group_ends(sim, rank, 1, 1, 42, 50, 2);
    in_group(sim, rank, comm, 2, 2, 60);
    group_ends(sim, rank, 2, 2, 62, 70, 2);
}

/* Groups that go on long after another thread's whole units: the unit in the middle is not the other's newest any more.
 */
static void around_others(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    in_group(sim, rank, comm, 1, 1, 0);
    in_group(sim, rank, comm, 2, 2, 20);
    group_ends(sim, rank, 2, 2, 22, 30, 1);
    in_group(sim, rank, comm, 2, 3, 40);
    group_ends(sim, rank, 2, 3, 42, 50, 1);
    in_group(sim, rank, comm, 1, 1, 60);
    group_ends(sim, rank, 1, 1, 62, 70, 2);
}

/* A single call of a second thread between the calls of a group. */
static void call_within_a_group(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    in_group(sim, rank, comm, 1, 1, 0);
    call(sim, rank, comm, 2, 20, 30);
    in_group(sim, rank, comm, 1, 1, 40);
    group_ends(sim, rank, 1, 1, 42, 50, 2);
}

/* No group's end returns: each group waits for what the other holds. */
static void interleaved_for_ever(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    in_group(sim, rank, comm, 1, 1, 0);
    in_group(sim, rank, comm, 2, 2, 20);
    in_group(sim, rank, comm, 1, 1, 40);
    in_group(sim, rank, comm, 2, 2, 60);
    group_ends(sim, rank, 1, 1, 62, 0, 2);
    group_ends(sim, rank, 2, 2, 64, 0, 2);
}

/* A lock around each whole group; and the same calls, handed over from thread to thread. */
static void whole_groups_in_turn(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    in_group(sim, rank, comm, 1, 1, 0);
    in_group(sim, rank, comm, 1, 1, 20);
    group_ends(sim, rank, 1, 1, 22, 30, 2);
    in_group(sim, rank, comm, 2, 2, 32);
    in_group(sim, rank, comm, 2, 2, 40);
    group_ends(sim, rank, 2, 2, 42, 50, 2);
}

static void call_after_a_group(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    in_group(sim, rank, comm, 1, 1, 0);
    in_group(sim, rank, comm, 1, 1, 10);
    group_ends(sim, rank, 1, 1, 12, 15, 2);
    call(sim, rank, comm, 2, 20, 30);
}

static void groups_after_a_group(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    in_group(sim, rank, comm, 1, 1, 0);
    in_group(sim, rank, comm, 1, 1, 10);
    group_ends(sim, rank, 1, 1, 12, 15, 2);
    in_group(sim, rank, comm, 2, 2, 20);
    group_ends(sim, rank, 2, 2, 22, 30, 1);
    in_group(sim, rank, comm, 2, 3, 40);
    group_ends(sim, rank, 2, 3, 42, 50, 1);
}

/* Interleaved in time, but each group on a communicator of its own. */
static void interleaved_on_two(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    in_group(sim, rank, comm, 1, 1, 0);
    in_group(sim, rank, other, 2, 2, 20);
    in_group(sim, rank, comm, 1, 1, 40);
    group_ends(sim, rank, 1, 1, 42, 50, 2);
    in_group(sim, rank, other, 2, 2, 60);
    group_ends(sim, rank, 2, 2, 62, 70, 2);
}

/* A watchdog's abort while the training thread is inside a call. */
static void watchdog_aborts(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t other)
{
    (void)other;
    call(sim, rank, comm, 1, 0, 10);
    call(sim, rank, comm, 2, 20, 30);
    call(sim, rank, comm, 1, 40, 400);
    struct roll_record *rec = sim_record(sim, rank, ROLL_OP_COMM_ABORT, comm);
    rec->thread = 3;
    rec->enter_ns = T0 + 300 * 1000;
    rec->call_ns = 90 * 1000;
}

static void test_groups_that_interleave_are_told(void **state)
{
    (void)state;
    check(interleaved, whole_groups_in_turn, true);
    check(around_others, groups_after_a_group, true);
    check(call_within_a_group, call_after_a_group, true);
    check(interleaved_for_ever, whole_groups_in_turn, true);
}

static void test_groups_handed_over_are_healthy(void **state)
{
    (void)state;
    check(whole_groups_in_turn, whole_groups_in_turn, false);
    check(groups_after_a_group, groups_after_a_group, false);
    check(call_after_a_group, call_after_a_group, false);
    check(interleaved_on_two, interleaved_on_two, false);
    check(watchdog_aborts, watchdog_aborts, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_of_two_threads_that_overlap_are_told),
        cmocka_unit_test(test_threads_taking_turns_are_healthy),
        cmocka_unit_test(test_two_threads_with_two_communicators_are_healthy),
        cmocka_unit_test(test_groups_that_overlap_are_told),
        cmocka_unit_test(test_groups_in_turn_are_healthy),
        cmocka_unit_test(test_two_calls_that_never_return_overlap),
        cmocka_unit_test(test_the_first_call_of_a_second_thread_counts),
        cmocka_unit_test(test_groups_that_interleave_are_told),
        cmocka_unit_test(test_groups_handed_over_are_healthy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
