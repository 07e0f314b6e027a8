/*
 * test_engine_messages_circles.c: messages and collectives of one communicator that wait for each other, and
 * collectives that NCCL makes of messages.
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

static const uint32_t sizes[] = {2, 3, 4, 5, 8, 12};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define AR    ROLL_OP_ALLREDUCE

/* circles of messages and collectives on one communicator */

static void ring(struct sim *sim, uint32_t w, uint32_t r)
{
    sim_group(sim, r);
    sim_send(sim, r, w, (r + 1) % sim->ranks, 256);
    sim_recv(sim, r, w, (r + sim->ranks - 1) % sim->ranks, 256);
    sim_group_end(sim, r);
    sim_return(sim, r);
}

/* What the last rank does with the collective before the exchange. */
enum fault { SKIPS, ZERO, SWAPS, HEALTHY, FAULTS };

static void before_exchange(uint32_t size, enum fault fault, bool all, bool ahead)
{
    struct sim *sim = sim_new(size);
    uint32_t w = sim_world(sim), odd = size - 1;
    for (uint32_t r = 0; r < size; r++) {
        for (uint32_t k = 0; k < 3; k++) {
            bool last = k == 2, wrong = last && r == odd;
            if (!wrong || fault == HEALTHY || fault == ZERO) {
                sim_call(sim, r, w, AR, wrong && fault == ZERO ? 0 : 512);
            }
            if (last && fault != HEALTHY && r != odd && !ahead) {
                break; /* the rank's host waits there */
            }
            if (all) {
                scene_exchange(sim, r, w, SCENE_NOBODY, SCENE_NOBODY);
            } else {
                ring(sim, w, r);
            }
            if (wrong && fault == SWAPS) {
                sim_call(sim, r, w, AR, 512);
            }
        }
        if (fault == HEALTHY) {
            sim_sync(sim, r);
        } else {
            sim_stuck(sim, r);
        }
    }
    char want[128] = "";
    if (fault == ZERO) {
        snprintf(want, sizeof(want), "proven zero-count %u", odd);
    } else if (fault != HEALTHY && size > 2) {
        snprintf(want, sizeof(want), fault == SKIPS ? "suspected call-skipped %u" : "proven calls-reordered %u", odd);
    }
    if (size == 2 && (fault == SKIPS || fault == SWAPS)) { /* one against one: nobody is named by the votes */
        for (uint32_t order = 0; order < SIM_ORDERS; order++) {
            char *got = sim_run(sim, order, false, false);
            assert_true(strlen(got) > 0 && strchr(got, ';') == NULL);
            assert_null(strstr(got, "alltoallv"));
            free(got);
        }
    } else {
        sim_expect(sim, want);
    }
    sim_destroy(&sim);
}

static void test_a_collective_before_an_exchange(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (enum fault fault = 0; fault < FAULTS; fault++) {
            for (int way = 0; way < 4; way++) {
                before_exchange(sizes[i], fault, (way & 1) != 0, (way & 2) != 0);
            }
        }
    }
}

/* The partner of one message waits in a collective: it may have left the message out as well as the other the
 * collective. */
static void test_one_message_against_a_collective_names_nobody(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), last = sizes[i] - 1;
        sim_all(sim, w, AR, 64);
        for (uint32_t r = 0; r < sizes[i]; r++) {
            if (r == last) {
                sim_recv(sim, r, w, 0, 64);
            } else {
                sim_call(sim, r, w, AR, 128);
            }
            sim_stuck(sim, r);
        }
        sim_expect(sim, "proven p2p-unmatched -");
        char *text = sim_run(sim, 0, false, true);
        assert_non_null(strstr(text, "The calls alone do not say which side is wrong"));
        assert_null(strstr(text, "never"));
        free(text);
        sim_destroy(&sim);
    }
}

/*
 * A message stands on its stream before a collective that everybody has made, and its partner waits in that collective
 * before it sends. Of the others nobody has such a message, so nobody can say which comes first. Healthy: the partner
 * has sent before it waits.
 */
static void test_a_message_before_a_collective_that_all_have_made_names_nobody(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int sick = 0; sick < 2; sick++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), talk = sim_comm(sim, "talk", NULL, sizes[i]), last = sizes[i] - 1;
            sim_all(sim, w, AR, 64);
            sim_recv(sim, 0, talk, last, 64);
            for (uint32_t r = 0; r < sizes[i]; r++) {
                if (r == last && !sick) {
                    sim_send(sim, r, talk, 0, 64);
                }
                sim_call(sim, r, w, AR, 128);
                if (sick) {
                    sim_stuck(sim, r);
                } else {
                    sim_sync(sim, r);
                }
            }
            sim_expect(sim, sick ? "proven circular-wait -" : "");
            sim_destroy(&sim);
        }
    }
}

/* The partner has ended, and others wait for it too: it is named. With nobody else to say so it is a tie. */
static void test_a_partner_that_ended_early(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int way = 0; way < 4; way++) {
            bool destroys = (way & 1) != 0, others = (way & 2) != 0;
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), size = sizes[i], last = size - 1;
            sim_all(sim, w, AR, 64);
            for (uint32_t r = 0; r < size; r++) {
                if (r == last && destroys) {
                    sim_record(sim, r, ROLL_OP_COMM_DESTROY, w);
                } else if (r == last) {
                    sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
                } else if (r == 0) {
                    sim_send(sim, r, w, last, 64);
                    sim_stuck(sim, r);
                } else if (others) {
                    sim_recv(sim, r, w, last, 64);
                    sim_stuck(sim, r);
                } else {
                    sim_sync(sim, r);
                    sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
                }
            }
            char want[64];
            snprintf(want, sizeof(want), "proven p2p-unmatched %u", last);
            sim_expect(sim, others && size > 2 ? want : "proven p2p-unmatched -");
            sim_destroy(&sim);
        }
    }
}

/* collectives that NCCL makes of messages */

/* The last rank exchanges before the AlltoAll, the others after it; all hosts come back. */
static void test_messages_that_meet_an_alltoall(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int way = 0; way < 8; way++) {
            bool sick = (way & 1) != 0, waits = (way & 2) != 0, all = (way & 4) != 0;
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), size = sizes[i], odd = size - 1;
            for (uint32_t r = 0; r < size; r++) {
                for (uint32_t k = 0; k < 3; k++) {
                    bool first = sick && k == 1 && r == odd;
                    for (int part = 0; part < 2; part++) {
                        if (part == (first ? 1 : 0)) {
                            sim_call(sim, r, w, ROLL_OP_ALLTOALL, 64);
                        } else if (all) {
                            scene_exchange(sim, r, w, SCENE_NOBODY, SCENE_NOBODY);
                        } else if (r == odd) {
                            sim_recv(sim, r, w, 0, 64);
                        } else if (r == 0) {
                            sim_send(sim, r, w, odd, 64);
                        }
                        if (waits) {
                            sim_sync(sim, r);
                        }
                    }
                }
                sim_sync(sim, r);
                sim_record(sim, r, ROLL_OP_COMM_DESTROY, w);
                sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
            }
            char want[64];
            snprintf(want, sizeof(want), "proven op-mismatch %u", odd);
            sim_expect(sim, !sick ? "" : all && size > 2 ? want : "proven op-mismatch -");
            char *text = sim_run(sim, 0, false, true);
            assert_true(!sick || strstr(text, "the data goes to the wrong call in silence") != NULL);
            free(text);
            sim_destroy(&sim);
        }
    }
}

static void test_a_collective_of_messages_made_by_hand_is_no_fault(void **state)
{
    (void)state;
    const enum roll_op ops[] = {ROLL_OP_ALLTOALL, ROLL_OP_GATHER, ROLL_OP_SCATTER};
    for (size_t i = 0; i < SIZES; i++) {
        for (int way = 0; way < 12; way++) {
            enum roll_op op = ops[way / 4];
            bool root = (way & 1) != 0, more = (way & 2) != 0; /* more: collectives follow */
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), size = sizes[i], odd = root ? 0 : size - 1;
            for (uint32_t r = 0; r < size; r++) {
                sim_call(sim, r, w, AR, 32);
                if (r == odd) {
                    sim_group(sim, r);
                    for (uint32_t p = 0; p < size; p++) {
                        if (p != r && (op == ROLL_OP_ALLTOALL || (op == ROLL_OP_GATHER ? p == 0 : root))) {
                            sim_send(sim, r, w, p, 64);
                        }
                        if (p != r && (op == ROLL_OP_ALLTOALL || (op == ROLL_OP_GATHER ? root : p == 0))) {
                            sim_recv(sim, r, w, p, 64);
                        }
                    }
                    sim_group_end(sim, r);
                } else {
                    struct roll_record *rec = sim_call(sim, r, w, op, 64);
                    rec->peer = op == ROLL_OP_ALLTOALL ? ROLL_PEER_NONE : 0;
                }
                sim_sync(sim, r);
                for (int k = 0; more && k < 5; k++) {
                    sim_call(sim, r, w, AR, 512);
                    sim_call(sim, r, w, ROLL_OP_ALLGATHER, 77);
                }
                sim_sync(sim, r);
                sim_record(sim, r, ROLL_OP_COMM_DESTROY, w);
                sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
            }
            sim_expect(sim, "");
            if (more) {
                char *got = sim_run(sim, 0, true, false);
                assert_non_null(strstr(got, "note op-mismatch"));
                free(got);
            }
            sim_destroy(&sim);
        }
    }
}

/* A member waits for the root of its Gather alone, which takes what others have to send as it comes: no circle. */
static void test_a_member_of_a_gather_waits_for_its_root_alone(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        for (int sick = 0; sick < 2; sick++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), size = sizes[i];
            for (uint32_t r = 0; r < size; r++) {
                if (r == 1) {
                    sim_send(sim, r, w, 2, 64);
                }
                if (r != 0 || !sick) {
                    sim_call(sim, r, w, ROLL_OP_GATHER, 64)->peer = 0;
                }
                if (r == 2) {
                    sim_recv(sim, r, w, 1, 64);
                }
            }
            if (sick) {
                sim_proc(sim, 0, ROLL_PROC_FINISHED, SIM_EXIT(0));
            }
            sim_expect(sim, sick ? "proven rank-finished 0" : "");
            sim_destroy(&sim);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_collective_before_an_exchange),
        cmocka_unit_test(test_one_message_against_a_collective_names_nobody),
        cmocka_unit_test(test_a_message_before_a_collective_that_all_have_made_names_nobody),
        cmocka_unit_test(test_a_partner_that_ended_early),
        cmocka_unit_test(test_messages_that_meet_an_alltoall),
        cmocka_unit_test(test_a_collective_of_messages_made_by_hand_is_no_fault),
        cmocka_unit_test(test_a_member_of_a_gather_waits_for_its_root_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
