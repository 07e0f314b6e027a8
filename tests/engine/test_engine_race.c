/*
 * test_engine_race.c: two host threads on one communicator: at once, in turn, each with its own.
 */
#include "tests/engine/sim.h"

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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
