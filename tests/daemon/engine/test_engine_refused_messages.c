/*
 * test_engine_refused_messages.c: messages, and collectives beside them, that NCCL refuses and that are made again; the
 * engine may hear of the refusal late.
 */
#include "tests/daemon/engine/story.h"

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

static const uint32_t sizes[] = {2, 3, 4, 5, 8, 12};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define AR    ROLL_OP_ALLREDUCE

/* calls that are refused */

enum hearing { HEARD_AT_ONCE, HEARD_LATER, HEARD_LATE, HEARINGS };

/* A send that NCCL refuses: nothing is enqueued, the number is free again. How the engine hears of it: at once, as
 * entered first, that a while before. */
static void refused_send(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t to, uint64_t count, enum hearing news,
                         uint64_t ns)
{
    struct roll_record *rec = sim_send(sim, rank, comm, to, count);
    sim->rank[rank].p2p[comm][to * 2]--;
    rec->result = SCENE_BAD;
    if (news != HEARD_AT_ONCE) {
        rec->result = 0;
        rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
        struct roll_record again = *rec;
        if (ns > 0) {
            sim_pass(sim, rank, ns);
        }
        struct roll_record *end = sim_record(sim, rank, ROLL_OP_SEND, comm);
        sim->rank[rank].ticket--;
        *end = again;
        end->seal = roll_seal(roll_seal_ticket(again.seal), ROLL_STATE_RETURNED);
        end->result = SCENE_BAD;
    }
}

static void test_a_refused_message_that_is_made_again_is_no_fault(void **state)
{
    (void)state;
    const uint64_t pause[] = {0, S_ / 1000, S_ / 50, S_ / 5, S_ * 2 / 5};
    for (size_t i = 0; i < SIZES; i++) {
        for (enum hearing news = 0; news < HEARINGS; news++) {
            for (size_t k = 0; k < (news == HEARD_LATE ? 5 : 1); k++) {
                struct sim *sim = sim_new(sizes[i]);
                uint32_t w = sim_world(sim), size = sizes[i];
                for (uint32_t r = 0; r < size; r++) {
                    for (int n = 0; n < 2; n++) { /* even ranks send first */
                        if (r % 2 == 1) {
                            sim_recv(sim, r, w, (r + size - 1) % size, 200);
                        } else {
                            refused_send(sim, r, w, (r + 1) % size, 100, news, pause[k] * 2 / size);
                            refused_send(sim, r, w, (r + 1) % size, 0, news, pause[k] * 2 / size);
                        }
                        sim_send(sim, r, w, (r + 1) % size, 200);
                        if (r % 2 == 0) {
                            sim_recv(sim, r, w, (r + size - 1) % size, 200);
                        }
                    }
                    sim_sync(sim, r);
                }
                sim_expect(sim, "");
                sim_destroy(&sim);
            }
        }
    }
}

/* The retry is read before the news that the first attempt was refused. */
static void test_news_that_come_after_the_retry(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), size = sizes[i];
        for (uint32_t r = 1; r < size; r++) {
            sim_recv(sim, r, w, 0, 200);
            sim_recv(sim, r, w, 0, 300);
            sim_sync(sim, r);
        }
        for (uint32_t p = 1; p < size; p++) {
            struct roll_record *rec = sim_send(sim, 0, w, p, 100);
            rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
            struct roll_record first = *rec;
            sim->rank[0].p2p[w][p * 2]--;
            sim_pass(sim, 0, S_ / 10);
            sim_send(sim, 0, w, p, 200);
            struct roll_record *end = sim_record(sim, 0, ROLL_OP_SEND, w);
            sim->rank[0].ticket--;
            *end = first;
            end->seal = roll_seal(roll_seal_ticket(first.seal), ROLL_STATE_RETURNED);
            end->result = SCENE_BAD;
            sim_send(sim, 0, w, p, 300);
        }
        sim_sync(sim, 0);
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* A refused collective is made again, and the news of the refusal is late. */
static void test_a_refused_collective_whose_news_is_late(void **state)
{
    (void)state;
    const uint64_t pause[] = {0, S_ / 1000, S_ / 50, S_ / 5, S_ * 2 / 5};
    for (size_t i = 0; i < SIZES; i++) {
        for (size_t k = 0; k < 5; k++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), size = sizes[i];
            for (uint32_t r = 0; r < size; r++) {
                sim_call(sim, r, w, AR, 64);
                if (r == size - 1) {
                    struct roll_record *rec = sim_call(sim, r, w, AR, 100);
                    sim->rank[r].seq[w]--;
                    rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
                    struct roll_record again = *rec;
                    sim_pass(sim, r, pause[k]);
                    struct roll_record *end = sim_record(sim, r, AR, w);
                    sim->rank[r].ticket--;
                    *end = again;
                    end->seal = roll_seal(roll_seal_ticket(again.seal), ROLL_STATE_RETURNED);
                    end->result = SCENE_BAD;
                }
                sim_call(sim, r, w, AR, 200);
                sim_call(sim, r, w, AR, 300);
                sim_sync(sim, r);
            }
            sim_expect(sim, "");
            sim_destroy(&sim);
        }
    }
}

/* A group that ends in vain after a while, and is made again. */
static void test_a_group_of_messages_that_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (uint32_t entered = 0; entered < 3; entered++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), size = sizes[i];
            for (uint32_t r = 0; r < size; r++) {
                if (r == 0) {
                    sim_group(sim, 0);
                    for (uint32_t p = 0; p < size; p++) {
                        sim_send(sim, 0, w, p, 999);
                        sim_recv(sim, 0, w, p, 999);
                    }
                    if (entered == 2) {
                        sim_pass(sim, 0, S_ * 2 / 5);
                    }
                    sim_group_end(sim, 0);
                    struct sim_rank *rank = &sim->rank[0];
                    struct roll_record *end = &rank->event[rank->events - 1].rec;
                    end->result = SCENE_BAD;
                    if (entered == 1) {
                        struct roll_record whole = *end;
                        end->result = 0;
                        end->seal = roll_seal(roll_seal_ticket(end->seal), ROLL_STATE_ENTERED);
                        sim_pass(sim, 0, S_ * 2 / 5);
                        sim_return(sim, 0);
                        rank->event[rank->events - 1].rec = whole;
                    }
                    for (uint32_t p = 0; p < size; p++) {
                        rank->p2p[w][p * 2]--;
                        rank->p2p[w][p * 2 + 1]--;
                    }
                }
                scene_exchange(sim, r, w, SCENE_NOBODY, SCENE_NOBODY);
                sim_sync(sim, r);
            }
            sim_expect(sim, "");
            sim_destroy(&sim);
        }
    }
}

/* A real difference is proven as soon as both calls have returned, and suspected while one has not. */
static void test_a_difference_in_a_call_that_does_not_return_is_suspected(void **state)
{
    (void)state;
    for (int returns = 0; returns < 2; returns++) {
        struct sim *sim = sim_new(2);
        uint32_t w = sim_world(sim);
        struct roll_record *rec = sim_send(sim, 0, w, 1, 64);
        rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
        if (returns) {
            sim_return(sim, 0);
        }
        sim_recv(sim, 1, w, 0, 32);
        sim_stuck(sim, 1);
        sim_expect(sim, returns ? "proven p2p-bytes -" : "suspected p2p-bytes -");
        sim_destroy(&sim);
    }
}

/* A refused message for which its receiver waits is told. It is made again, and the job goes on, or nothing else
 * happens: the end of that rank later is told as that of any rank. */
static void test_who_is_killed_long_after_a_refused_message_is_told(void **state)
{
    (void)state;
    static const uint32_t few[] = {2, 3, 8};
    for (uint32_t i = 0; i < 3 * 3 * 2; i++) {
        uint32_t n = few[i % 3];
        bool before = i >= 9;
        char said[STORY_SAID];
        struct story t;
        story_open(&t, n, i / 3 % 3);
        uint32_t w = sim_world(t.sim);
        sim_all(t.sim, w, AR, 64);
        if (before) {
            sim_recv(t.sim, 1, w, 0, 100);
            sim_stuck(t.sim, 1);
            refused_send(t.sim, 0, w, 1, 100, HEARD_AT_ONCE, 0);
            story_pass(&t, 8 * S_);
            assert_string_equal(story_said(&t, ROLL_VERDICT_NONE, said), "suspected call-refused 0");
            sim_sync(t.sim, 0);
            sim_send(t.sim, 0, w, 1, 100);
            sim_sync(t.sim, 0);
            story_return(&t, 1);
        }
        for (int k = 0; k < 30; k++) {
            sim_all(t.sim, w, AR, 64);
            scene_sync_all(t.sim);
            story_pass(&t, S_);
        }
        assert_string_equal(story_said(&t, ROLL_VERDICT_NONE, said), before ? "withdrawn call-refused" : "");
        sim_proc(t.sim, 0, ROLL_PROC_DEAD, SIM_SIGNAL(SIGKILL));
        story_pass(&t, 10 * S_);
        assert_string_equal(story_said(&t, ROLL_VERDICT_NONE, said), "proven rank-dead 0");
        story_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_refused_message_that_is_made_again_is_no_fault),
        cmocka_unit_test(test_news_that_come_after_the_retry),
        cmocka_unit_test(test_a_refused_collective_whose_news_is_late),
        cmocka_unit_test(test_a_group_of_messages_that_is_refused),
        cmocka_unit_test(test_who_is_killed_long_after_a_refused_message_is_told),
        cmocka_unit_test(test_a_difference_in_a_call_that_does_not_return_is_suspected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
