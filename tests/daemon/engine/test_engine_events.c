/*
 * test_engine_events.c: streams that wait for each other by events: calls of two communicators, each on its own stream,
 * that stand behind each other, in opposite order on two ranks; and what looks like that and is healthy.
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

static const uint32_t sizes[] = {2, 3, 4, 8, 64};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define AR    ROLL_OP_ALLREDUCE
static const char *const labels[] = {"a", "b", "c", "d", "e", "f", "g"};
#define STREAMS 10u /* that of communicator n is STREAMS + n */

static uint64_t last_ticket(const struct sim *sim, uint32_t rank)
{
    return sim->rank[rank].ticket - 1;
}

/* A collective on the communicator's own stream, `behind` tickets behind another call; 0: it waits for none. */
static uint64_t call_behind(struct sim *sim, uint32_t rank, uint32_t comm, uint64_t behind)
{
    struct roll_record *rec = sim_call(sim, rank, comm, AR, 512);
    rec->stream = (uint16_t)(STREAMS + comm);
    rec->aux = (uint16_t)(behind != 0 ? roll_seal_ticket(rec->seal) - (behind - 1) : 0);
    return last_ticket(sim, rank) + 1;
}

/* The calls of these communicators in this order; each behind the one before, as wait() has it, or not. */
static void calls_in_order(struct sim *sim, uint32_t rank, const uint32_t *comm, uint32_t n, bool waits)
{
    uint64_t before = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t now = call_behind(sim, rank, comm[i], waits ? before : 0);
        before = now;
    }
}

static void expect_text(struct sim *sim, const char *words, bool there)
{
    char *text = sim_run(sim, 0, false, true);
    if ((strstr(text, words) != NULL) != there) {
        print_error("%s\n", text);
        fail();
    }
    free(text);
}

enum how { SAME_ORDER, OPPOSITE, OPPOSITE_NO_WAITS };

static struct sim *two_groups(uint32_t size, enum how how)
{
    struct sim *sim = sim_new(size);
    uint32_t world = sim_world(sim), two = sim_comm(sim, "two", NULL, size);
    for (uint32_t r = 0; r < size; r++) {
        bool swapped = how != SAME_ORDER && r == size - 1;
        uint32_t order[2] = {swapped ? two : world, swapped ? world : two};
        calls_in_order(sim, r, order, 2, how != OPPOSITE_NO_WAITS);
    }
    return sim;
}

static void test_opposite_order_behind_events_is_a_proven_circle(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = two_groups(sizes[i], OPPOSITE);
        char want[64];
        snprintf(want, sizeof(want), sizes[i] == 2 ? "proven circular-wait -" : "proven circular-wait %u",
                 sizes[i] - 1);
        sim_expect(sim, want);
        expect_text(sim, "waits by an event for AllReduce", true);
        expect_text(sim, "opposite order", true);
        sim_destroy(&sim);
    }
}

static void test_the_same_order_and_order_without_waits_say_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *same = two_groups(sizes[i], SAME_ORDER), *free_order = two_groups(sizes[i], OPPOSITE_NO_WAITS);
        sim_expect(same, "");
        sim_expect(free_order, "");
        sim_destroy(&same);
        sim_destroy(&free_order);
    }
}

/* Pairs of neighbours in a ring; each rank makes the call with its right neighbour first, and waits. */
static void test_a_ring_of_groups_is_a_proven_circle(void **state)
{
    (void)state;
    for (uint32_t n = 3; n <= 5; n++) {
        for (int sick = 0; sick < 2; sick++) {
            struct sim *sim = sim_new(n);
            uint32_t pair[5];
            for (uint32_t r = 0; r < n; r++) {
                uint32_t members[2] = {r, (r + 1) % n};
                pair[r] = sim_comm(sim, labels[r], members, 2);
            }
            for (uint32_t r = 0; r < n; r++) {
                uint32_t right = pair[r], left = pair[(r + n - 1) % n];
                bool leftmost = !sick && r == 0;
                uint32_t order[2] = {leftmost ? left : right, leftmost ? right : left};
                calls_in_order(sim, r, order, 2, true);
            }
            sim_expect(sim, sick ? "proven circular-wait -" : "");
            sim_destroy(&sim);
        }
    }
}

/* A call behind several others, told by records of their own in front of it. */
static void test_a_call_stands_behind_several(void **state)
{
    (void)state;
    for (int sick = 0; sick < 2; sick++) {
        struct sim *sim = sim_new(4);
        uint32_t comm[7];
        for (uint32_t c = 0; c < 7; c++) {
            comm[c] = sim_comm(sim, labels[c], NULL, 4);
        }
        for (uint32_t r = 0; r < 4; r++) {
            if (sick && r == 3) { /* the last one first, and one of the others behind it */
                uint64_t first = call_behind(sim, r, comm[6], 0);
                for (uint32_t c = 0; c < 6; c++) {
                    call_behind(sim, r, comm[c], c == 4 ? first : 0);
                }
                continue;
            }
            uint64_t made[6];
            for (uint32_t c = 0; c < 6; c++) {
                made[c] = call_behind(sim, r, comm[c], 0);
            }
            uint64_t chain = 0;
            for (uint32_t c = 0; c < 6; c += 4) {
                struct roll_record *rec = sim_record(sim, r, ROLL_OP_STREAM_WAIT, UINT32_MAX);
                uint64_t ticket = roll_seal_ticket(rec->seal);
                for (uint32_t k = 0; k < 4 && c + k < 6; k++) {
                    rec->count |= (ticket - (made[c + k] - 1)) << 16 * k;
                }
                rec->stream = (uint16_t)(STREAMS + comm[6]);
                rec->aux = (uint16_t)(chain != 0 ? ticket - (chain - 1) : 0);
                chain = ticket + 1;
            }
            call_behind(sim, r, comm[6], chain);
        }
        sim_expect(sim, sick ? "proven circular-wait 3" : "");
        sim_destroy(&sim);
    }
}

/* The host waits for a stream without calls of its own, which stands behind calls by events: its wait is explained. */
static void test_a_host_waits_behind_an_event(void **state)
{
    (void)state;
    for (int sick = 0; sick < 2; sick++) {
        struct sim *sim = sim_new(4);
        uint32_t world = sim_world(sim), two = sim_comm(sim, "two", NULL, 4);
        for (uint32_t r = 0; r < 4; r++) {
            bool swapped = sick && r == 3;
            uint64_t first = call_behind(sim, r, swapped ? two : world, 0);
            struct roll_record *wait = sick ? sim_stuck(sim, r) : sim_sync(sim, r);
            wait->stream = 5;
            wait->aux = (uint16_t)(roll_seal_ticket(wait->seal) - (first - 1));
            if (!sick) {
                call_behind(sim, r, two, first);
            }
        }
        sim_expect(sim, sick ? "proven circular-wait 3" : "");
        sim_destroy(&sim);
    }
}

/* What a lost record was is not known: where it may have been the order, nothing is said. */
static void test_a_dependence_that_is_lost_proves_nothing(void **state)
{
    (void)state;
    struct sim *sim = sim_new(2);
    uint32_t world = sim_world(sim), two = sim_comm(sim, "two", NULL, 2);
    for (uint32_t r = 0; r < 2; r++) {
        uint32_t first = r == 0 ? world : two, second = r == 0 ? two : world;
        (void)call_behind(sim, r, first, 0);
        if (r == 1) {
            sim_lose(sim, r, 1); /* the STREAM_WAIT of the next call */
        }
        call_behind(sim, r, second, last_ticket(sim, r) + 1);
    }
    sim_expect(sim, "");
    sim_destroy(&sim);
}

/* A distance that leads out of the log, to a record that is no call, or round and round, is no order. */
static void test_made_up_distances_do_no_harm(void **state)
{
    (void)state;
    struct sim *sim = sim_new(2);
    uint32_t world = sim_world(sim);
    for (uint32_t r = 0; r < 2; r++) {
        for (uint32_t i = 0; i < 12; i++) {
            struct roll_record *wait = sim_record(sim, r, ROLL_OP_STREAM_WAIT, UINT32_MAX);
            wait->count = UINT64_MAX / (i + 1);
            wait->aux = (uint16_t)(i % 3);
            struct roll_record *rec = sim_call(sim, r, world, AR, 512);
            rec->stream = (uint16_t)(2 + i % 3);
            rec->aux = (uint16_t)(i == 4 ? 65535 : i + 1);
        }
    }
    sim_expect(sim, "");
    sim_destroy(&sim);
}

/* A launch of a graph stands behind what the record right in front of it says. */
static void test_a_launch_stands_behind_an_event(void **state)
{
    (void)state;
    for (int sick = 0; sick < 2; sick++) {
        struct sim *sim = sim_new(2);
        uint32_t world = sim_world(sim), two = sim_comm(sim, "two", NULL, 2);
        for (uint32_t r = 0; r < 2; r++) {
            sim_capture(sim, r, two, 1, 2, 64);
            if (sick && r == 1) {
                sim_launch(sim, r, two, 1)->stream = STREAMS + 1;
                call_behind(sim, r, world, last_ticket(sim, r) + 1);
                continue;
            }
            uint64_t first = call_behind(sim, r, world, 0);
            struct roll_record *wait = sim_record(sim, r, ROLL_OP_STREAM_WAIT, UINT32_MAX);
            wait->stream = STREAMS + 1;
            wait->count = roll_seal_ticket(wait->seal) - (first - 1);
            sim_launch(sim, r, two, 1)->stream = STREAMS + 1;
        }
        sim_expect(sim, sick ? "proven circular-wait -" : "");
        sim_destroy(&sim);
    }
}

/* A call on a stream of its own behind the one before, thousands of times, all behind a call that never completes: the
 * walk goes down a part of the chain, and neither the stack nor the engine ends there. */
static void test_a_chain_of_thousands_ends_no_walk(void **state)
{
    (void)state;
    for (uint32_t calls = 1000; calls <= 20000; calls *= 20) {
        struct sim *sim = sim_new(2);
        uint32_t world = sim_world(sim), lacking = sim_comm(sim, "lacking", NULL, 2);
        sim_call(sim, 0, lacking, AR, 4)->stream = 2;
        for (uint32_t i = 0; i < calls; i++) {
            struct roll_record *rec = sim_call(sim, 0, world, AR, 4);
            rec->stream = (uint16_t)(3 + i);
            rec->aux = 1;
        }
        for (uint32_t i = 0; i < calls; i++) {
            sim_call(sim, 1, world, AR, 4)->stream = 2;
        }
        char *text = sim_run(sim, 0, false, true);
        assert_true(calls > 1000 || strstr(text, "lacking")); /* of a longer one less may be said */
        free(text);
        sim_destroy(&sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opposite_order_behind_events_is_a_proven_circle),
        cmocka_unit_test(test_the_same_order_and_order_without_waits_say_nothing),
        cmocka_unit_test(test_a_ring_of_groups_is_a_proven_circle),
        cmocka_unit_test(test_a_call_stands_behind_several),
        cmocka_unit_test(test_a_host_waits_behind_an_event),
        cmocka_unit_test(test_a_dependence_that_is_lost_proves_nothing),
        cmocka_unit_test(test_made_up_distances_do_no_harm),
        cmocka_unit_test(test_a_launch_stands_behind_an_event),
        cmocka_unit_test(test_a_chain_of_thousands_ends_no_walk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
