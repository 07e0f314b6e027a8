/*
 * test_engine_pairs.c: sends and receives that have no partner, the wrong size, or an order in which none can go on;
 * and the messages of an all-to-all-v, pair by pair.
 */
#include "tests/daemon/engine/scenes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t sizes[] = {2, 3, 4, 8, 64};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define AR    ROLL_OP_ALLREDUCE

/* All but the last rank go on and wait for ever. */
static void others_wait(struct sim *sim, uint32_t w)
{
    for (uint32_t r = 0; r + 1 < sim->ranks; r++) {
        sim_call(sim, r, w, AR, 512);
        sim_call(sim, r, w, AR, 512);
        sim_stuck(sim, r);
    }
}

static void ring(struct sim *sim, uint32_t w, uint32_t r)
{
    sim_group(sim, r);
    sim_send(sim, r, w, (r + 1) % sim->ranks, 256);
    sim_recv(sim, r, w, (r + sim->ranks - 1) % sim->ranks, 256);
    sim_group_end(sim, r);
}

static void test_everybody_sends_first_is_a_p2p_deadlock(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim);
        for (uint32_t r = 0; r < sizes[i]; r++) {
            ring(sim, w, r);
            sim_sync(sim, r);
            ring(sim, w, r);
        }
        sim_expect(sim, "");
        for (uint32_t r = 0; r < sizes[i]; r++) {
            sim_send(sim, r, w, (r + 1) % sizes[i], 256);
            sim_stuck(sim, r);
        }
        for (uint32_t order = 0; order < SIM_ORDERS; order++) {
            char *got = sim_run(sim, order, false, false);
            assert_ptr_equal(strstr(got, "proven p2p-deadlock"), got);
            assert_null(strchr(got, ';'));
            free(got);
        }
        sim_destroy(&sim);
    }
}

static void test_bytes_of_a_message_must_agree(void **state)
{
    (void)state;
    for (int sick = 0; sick < 2; sick++) {
        struct sim *sim = sim_new(3);
        uint32_t w = sim_world(sim);
        for (int k = 0; k < 3; k++) {
            sim_send(sim, 0, w, 1, 512);
            sim_recv(sim, 1, w, 0, sick && k == 1 ? 500 : 512);
            struct roll_record *rec = sim_send(sim, 1, w, 2, 128);
            rec = sim_recv(sim, 2, w, 1, 512);
            rec->dtype = ROLL_DTYPE_UINT8; /* as many bytes */
        }
        for (uint32_t r = 0; r < 3; r++) {
            sim_stuck(sim, r);
        }
        sim_expect(sim, sick ? "proven p2p-bytes -" : "");
        sim_destroy(&sim);
    }
}

/* Whichever of the two calls is wrong, one rank has made both. */
static void test_bytes_of_a_message_to_oneself_name_the_rank(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int other = 0; other < 2; other++) { /* an empty message, or a shorter one */
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), last = sizes[i] - 1;
            scene_calls(sim, w, 1);
            for (uint32_t k = 0; k < 2; k++) {
                sim_group(sim, last);
                sim_send(sim, last, w, last, 512);
                sim_recv(sim, last, w, last, k == 0 ? 512 : other ? 500 : 0);
                sim_group_end(sim, last);
            }
            sim_stuck(sim, last);
            char want[64];
            snprintf(want, sizeof(want), "proven p2p-bytes %u", last);
            sim_expect(sim, want);
            sim_destroy(&sim);
        }
    }
}

static void test_an_exchange_in_which_a_rank_differs_from_itself_names_it(void **state)
{
    (void)state;
    for (uint32_t n = 3; n <= 8; n++) {
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        for (uint32_t r = 0; r < n; r++) {
            sim_group(sim, r);
            for (uint32_t p = 0; p < n; p++) {
                sim_send(sim, r, w, p, 64);
                sim_recv(sim, r, w, p, r == 1 && p == 1 ? 80 : 64);
            }
            sim_group_end(sim, r);
            sim_stuck(sim, r);
        }
        sim_expect(sim, "proven alltoallv-mismatch 1");
        sim_destroy(&sim);
    }
}

static void test_send_that_nobody_receives_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), last = sizes[i] - 1;
        scene_calls(sim, w, 1);
        sim_send(sim, 0, w, last, 256);
        sim_send(sim, 0, w, last, 256);
        sim_stuck(sim, 0);
        sim_recv(sim, last, w, 0, 256);
        for (uint32_t r = 1; r <= last; r++) {
            sim_sync(sim, r);
            sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
        }
        sim_expect(sim, "proven p2p-unmatched -");
        sim_destroy(&sim);
    }
}

static void test_receive_against_a_collective_of_the_sender(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim);
        scene_calls(sim, w, 5);
        others_wait(sim, w);
        sim_recv(sim, sizes[i] - 1, w, 0, 64);
        sim_stuck(sim, sizes[i] - 1);
        sim_expect(sim, "proven p2p-unmatched -");
        sim_destroy(&sim);
    }
}

static uint64_t rows(uint32_t from, uint32_t to)
{
    return (from * 3 + to * 5) % 7 * 16;
}

/* `odd`: receiver of more rows than are sent in round 1, from rank 0; zeros: empty messages to and from even ranks are
 * made, others left out. */
static void alltoallv(struct sim *sim, uint32_t w, uint32_t r, uint32_t round, uint32_t odd, bool zeros)
{
    sim_group(sim, r);
    for (uint32_t p = 0; p < sim->ranks; p++) {
        uint64_t to = rows(r, p), from = rows(p, r) + (r == odd && round == 1 && p == 0 ? 16 : 0);
        bool empty = zeros && r % 2 == 0 && p % 2 == 0;
        if (to > 0 || empty) {
            sim_send(sim, r, w, p, to);
        }
        if (from > 0 || empty) {
            sim_recv(sim, r, w, p, from);
        }
    }
    sim_group_end(sim, r);
}

static void test_alltoallv_is_checked_pair_by_pair(void **state)
{
    (void)state;
    for (uint32_t n = 3; n <= 9; n++) {
        for (int sick = 0; sick < 2; sick++) {
            for (int zeros = 0; zeros < 2; zeros++) {
                struct sim *sim = sim_new(n);
                uint32_t w = sim_world(sim);
                for (uint32_t r = 0; r < n; r++) {
                    for (uint32_t round = 0; round < 3; round++) {
                        alltoallv(sim, w, r, round, sick ? n - 1 : n, zeros);
                    }
                    if (sick && !(r == 0 && rows(0, n - 1) == 0)) {
                        sim_stuck(sim, r);
                    } else {
                        sim_sync(sim, r);
                    }
                }
                if (sick && rows(0, n - 1) == 0) { /* rank 0 has nothing to wait for and ends */
                    sim_proc(sim, 0, ROLL_PROC_FINISHED, SIM_EXIT(0));
                }
                sim_expect(sim, sick ? "proven alltoallv-mismatch -" : "");
                sim_destroy(&sim);
            }
        }
    }
}

static void test_wrong_split_table_names_its_rank(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    for (uint32_t r = 0; r < 4; r++) {
        sim_group(sim, r);
        for (uint32_t p = 0; p < 4; p++) {
            sim_send(sim, r, w, p, 64);
            sim_recv(sim, r, w, p, r == 2 && p != 2 ? 80 : 64);
        }
        sim_group_end(sim, r);
        sim_stuck(sim, r);
    }
    sim_expect(sim, "proven alltoallv-mismatch 2");
    sim_destroy(&sim);
}

/*
 * One rank comes late to an exchange that differs, and its calls before it were made after those of its peers there.
 * The peers, whose messages were small, have come back from the exchange, and wait in the next one for the late rank:
 * that is no second matter, whichever call of the two the silence began at.
 */
static void test_what_a_late_rank_has_left_before_is_not_beyond_the_trouble(void **state)
{
    (void)state;
    for (uint32_t n = 3; n <= 8; n++) {
        for (int alone = 0; alone < 2; alone++) { /* one message, or an exchange of all */
            struct sim *sim = sim_new(n + 1);
            uint32_t w = sim_comm(sim, "w", NULL, n), late = n - 1;
            for (uint32_t r = 0; r < n; r++) {
                for (int k = 0; r == late && k < 60; k++) {
                    sim_sync(sim, r);
                }
                sim_call(sim, r, w, AR, 512);
                sim_sync(sim, r);
                for (int again = 0; again < 2 && !(again == 1 && r == late); again++) {
                    if (alone) {
                        if (r == late) {
                            sim_recv(sim, r, w, 0, 80);
                        } else if (r == 0) {
                            sim_send(sim, r, w, late, 64);
                        }
                    }
                    sim_group(sim, r);
                    for (uint32_t p = 0; p < n; p++) {
                        sim_send(sim, r, w, p, 64);
                        sim_recv(sim, r, w, p, !alone && r == late && p == 0 ? 80 : 64);
                    }
                    sim_group_end(sim, r);
                    if (again == 1 || r == late) {
                        sim_stuck(sim, r);
                    } else {
                        sim_sync(sim, r);
                    }
                }
            }
            sim_pass(sim, n, 2 * S_); /* a rank that has to do with nobody */
            sim_sync(sim, n);
            sim_expect(sim, alone ? "proven p2p-bytes -" : "proven alltoallv-mismatch -");
            sim_destroy(&sim);
        }
    }
}

static void test_grouped_neighbours_are_no_alltoallv(void **state)
{
    (void)state;
    struct sim *sim = sim_new(8);
    uint32_t w = sim_world(sim);
    for (uint32_t r = 0; r < 8; r++) {
        sim_group(sim, r);
        sim_send(sim, r, w, (r + 1) % 8, 256);
        sim_recv(sim, r, w, (r + 7) % 8, r == 5 ? 200 : 256);
        sim_group_end(sim, r);
        sim_stuck(sim, r);
    }
    sim_expect(sim, "proven p2p-bytes -");
    sim_destroy(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everybody_sends_first_is_a_p2p_deadlock),
        cmocka_unit_test(test_bytes_of_a_message_must_agree),
        cmocka_unit_test(test_bytes_of_a_message_to_oneself_name_the_rank),
        cmocka_unit_test(test_an_exchange_in_which_a_rank_differs_from_itself_names_it),
        cmocka_unit_test(test_send_that_nobody_receives_is_told),
        cmocka_unit_test(test_receive_against_a_collective_of_the_sender),
        cmocka_unit_test(test_alltoallv_is_checked_pair_by_pair),
        cmocka_unit_test(test_wrong_split_table_names_its_rank),
        cmocka_unit_test(test_what_a_late_rank_has_left_before_is_not_beyond_the_trouble),
        cmocka_unit_test(test_grouped_neighbours_are_no_alltoallv),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
