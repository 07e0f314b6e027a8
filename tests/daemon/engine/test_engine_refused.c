/*
 * test_engine_refused.c: calls of which nothing was enqueued: made again they are no fault; not made again they are
 * told.
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

static const uint32_t sizes[] = {2, 3, 4, 8};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define AR    ROLL_OP_ALLREDUCE

static void test_a_refused_call_that_is_made_again_is_no_fault(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (enum news news = 0; news < NEWS; news++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim);
            for (int step = 0; step < 6; step++) {
                sim_all(sim, w, AR, 64);
                scene_refused(sim, sizes[i] - 1, w, 100, news);
                scene_refused(sim, sizes[i] - 1, w, 200, news);
                sim_all(sim, w, AR, 100);
                sim_all(sim, w, AR, 300);
            }
            scene_sync_all(sim);
            sim_expect(sim, "");
            sim_destroy(&sim);
        }
    }
}

/* The call is made again with no elements, as by all others. It takes no number, so nothing else shows that it was, and
 * the peers wait in the next one, for a rank that is held up elsewhere. */
static void test_a_refused_call_that_is_made_again_empty_is_no_fault(void **state)
{
    (void)state;
    static const uint32_t both[2] = {1, 2};
    for (int grouped = 0; grouped < 2; grouped++) {
        for (enum news news = 0; news < NEWS; news++) {
            struct sim *sim = sim_new(3);
            uint32_t w = sim_world(sim), v = sim_comm(sim, "v", both, 2);
            sim_all(sim, w, AR, 64);
            scene_refused(sim, 1, w, 100, news);
            for (uint32_t r = 0; r < 3; r++) {
                if (grouped) {
                    sim_group(sim, r);
                }
                sim_call(sim, r, w, AR, 0);
                if (grouped) {
                    sim_group_end(sim, r);
                }
            }
            sim_call(sim, 0, w, AR, 300);
            sim_stuck(sim, 0);
            sim_call(sim, 1, v, AR, 32);
            sim_stuck(sim, 1);
            for (uint32_t r = 0; r < 3; r++) {
                sim_pass(sim, r, S_ * 4 / 10);
            }
            sim_call(sim, 2, v, AR, 32);
            sim_return(sim, 1);
            sim_call(sim, 1, w, AR, 300);
            sim_call(sim, 2, w, AR, 300);
            sim_return(sim, 0);
            scene_sync_all(sim);
            sim_expect(sim, "");
            sim_destroy(&sim);
        }
    }
}

/* The empty call is another one of the program where the peers wait in the refused one. */
static void test_an_empty_call_behind_a_refused_one_is_not_that_call(void **state)
{
    (void)state;
    for (enum news news = 0; news < NEWS; news++) {
        struct sim *sim = sim_new(3);
        uint32_t w = sim_world(sim);
        sim_all(sim, w, AR, 64);
        for (uint32_t r = 0; r < 2; r++) {
            sim_call(sim, r, w, AR, 100);
            sim_stuck(sim, r);
        }
        scene_refused(sim, 2, w, 100, news);
        sim_call(sim, 2, w, AR, 0);
        sim_stuck(sim, 2);
        sim_expect(sim, "suspected call-refused 2");
        sim_destroy(&sim);
    }
}

/* The device of the rank stands at an earlier call, whose other member makes no call at all. The host of the rank may
 * wait for its device in a call that is not recorded: whoever holds it up is told, and not its refused call. */
static void test_a_refused_call_behind_one_that_waits_is_not_told(void **state)
{
    (void)state;
    static const uint32_t low[2] = {0, 1}, high[2] = {0, 2};
    for (enum news news = 0; news < NEWS; news++) {
        struct sim *sim = sim_new(3);
        uint32_t w = sim_world(sim), v = sim_comm(sim, "v", low, 2), u = sim_comm(sim, "u", high, 2);
        sim_all(sim, w, AR, 64);
        scene_sync_all(sim);
        sim_call(sim, 0, v, AR, 32);
        scene_refused(sim, 0, u, 100, news);
        sim_call(sim, 2, u, AR, 100);
        sim_stuck(sim, 2);
        sim_expect(sim, "suspected rank-busy 1");
        sim_destroy(&sim);
    }
}

/* The agent may read the second attempt before it hears how the first one ended. */
static void test_news_that_come_after_the_retry(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), odd = sizes[i] - 1;
        sim_all(sim, w, AR, 64);
        struct roll_record *rec = sim_call(sim, odd, w, AR, 100);
        rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
        struct roll_record first = *rec;
        sim->rank[odd].seq[w]--;
        sim_all(sim, w, AR, 100);
        sim_return(sim, odd);
        first.seal = roll_seal(roll_seal_ticket(first.seal), ROLL_STATE_RETURNED);
        first.result = SCENE_BAD;
        sim->rank[odd].event[sim->rank[odd].events - 1].rec = first;
        for (int step = 0; step < 3; step++) {
            sim_all(sim, w, AR, 200);
        }
        scene_sync_all(sim);
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* A rank that never makes the refused call again leaves its peers waiting, and is named even where there are two ranks;
 * the refused call differs from the peers' call, or does not. */
static void test_a_refused_call_that_is_not_made_again_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (enum news news = 0; news < NEWS; news++) {
            for (uint64_t count = 100; count <= 200; count += 100) {
                struct sim *sim = sim_new(sizes[i]);
                uint32_t w = sim_world(sim), odd = sizes[i] - 1;
                char expected[64] = "suspected call-refused 1";
                expected[23] = (char)('0' + odd);
                sim_all(sim, w, AR, 64);
                for (uint32_t r = 0; r < odd; r++) {
                    sim_call(sim, r, w, AR, 100);
                }
                scene_refused(sim, odd, w, count, news);
                for (uint32_t r = 0; r < odd; r++) {
                    sim_stuck(sim, r);
                }
                sim_stuck(sim, odd);
                sim_expect(sim, expected);
                sim_destroy(&sim);
            }
        }
    }
}

/* Two calls and a message in one group, which ends in vain; then the group as it should be. */
static void in_vain(struct sim *sim, uint32_t rank, uint32_t comm, bool simulated, enum news news)
{
    struct sim_rank *r = &sim->rank[rank];
    uint32_t next = (rank + 1) % sim->ranks;
    sim_group(sim, rank);
    sim_call(sim, rank, comm, AR, 100);
    sim_send(sim, rank, comm, next, 32);
    sim_call(sim, rank, comm, AR, 300)->result = simulated ? 0 : SCENE_BAD;
    sim_group_end(sim, rank);
    struct roll_record *end = &r->event[r->events - 1].rec;
    end->count = simulated;
    end->result = simulated ? 0 : SCENE_BAD;
    r->seq[comm] -= 2;
    r->p2p[comm][next * 2]--;
    if (news == LATER && !simulated) {
        end->seal = roll_seal(roll_seal_ticket(end->seal), ROLL_STATE_ENTERED);
        end->result = 0;
        sim_return(sim, rank);
        r->event[r->events - 1].rec.result = SCENE_BAD;
    }
}

static void whole_group(struct sim *sim, uint32_t rank, uint32_t comm)
{
    uint32_t n = sim->ranks;
    sim_group(sim, rank);
    sim_call(sim, rank, comm, AR, 100);
    sim_send(sim, rank, comm, (rank + 1) % n, 32);
    sim_recv(sim, rank, comm, (rank + n - 1) % n, 32);
    sim_call(sim, rank, comm, AR, 200);
    sim_group_end(sim, rank);
}

static void test_a_group_in_vain_does_not_count(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int kind = 0; kind < 3; kind++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), odd = sizes[i] - 1;
            for (int step = 0; step < 4; step++) {
                sim_all(sim, w, AR, 64);
                in_vain(sim, odd, w, kind == 2, kind == 1 ? LATER : AT_ONCE);
                for (uint32_t r = 0; r <= odd; r++) {
                    whole_group(sim, r, w);
                }
            }
            scene_sync_all(sim);
            sim_expect(sim, "");
            sim_destroy(&sim);
        }
    }
}

static void test_a_group_in_vain_that_is_not_made_again_is_told(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    sim_all(sim, w, AR, 64);
    in_vain(sim, 2, w, false, AT_ONCE);
    whole_group(sim, 0, w);
    whole_group(sim, 1, w);
    for (uint32_t r = 0; r < 3; r++) {
        sim_stuck(sim, r);
    }
    sim_expect(sim, "suspected call-refused 2");
    char *got = sim_run(sim, 0, false, true);
    assert_non_null(strstr(got, "of its whole group"));
    free(got);
    sim_destroy(&sim);
}

/* A message refused and made again, to another one, or later. */
static void test_a_message_made_again_is_no_fault(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], odd = n - 1;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        for (uint32_t k = 0; k < 4; k++) {
            sim_all(sim, w, AR, 64);
            struct roll_record *rec = sim_send(sim, odd, w, 0, 32);
            sim->rank[odd].p2p[w][0]--;
            rec->result = SCENE_BAD;
            rec->peer = (int32_t)n;
            sim_send(sim, odd, w, 0, 32);
            sim_recv(sim, 0, w, odd, 32);
        }
        scene_sync_all(sim);
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* A call that is right the second time is compared like any other. */
static void test_a_retry_that_is_wrong_is_still_found(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), odd = sizes[i] - 1;
        char expected[64] = "proven count-mismatch 1";
        expected[22] = (char)('0' + odd);
        sim_all(sim, w, AR, 64);
        scene_refused(sim, odd, w, 100, AT_ONCE);
        for (uint32_t r = 0; r <= odd; r++) {
            sim_call(sim, r, w, AR, r == odd ? 200 : 100);
        }
        for (int step = 0; step < 4; step++) {
            sim_all(sim, w, AR, 64);
        }
        scene_sync_all(sim);
        sim_expect(sim, expected);
        sim_destroy(&sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_refused_call_that_is_made_again_is_no_fault),
        cmocka_unit_test(test_a_refused_call_that_is_made_again_empty_is_no_fault),
        cmocka_unit_test(test_an_empty_call_behind_a_refused_one_is_not_that_call),
        cmocka_unit_test(test_a_refused_call_behind_one_that_waits_is_not_told),
        cmocka_unit_test(test_news_that_come_after_the_retry),
        cmocka_unit_test(test_a_refused_call_that_is_not_made_again_is_told),
        cmocka_unit_test(test_a_group_in_vain_does_not_count),
        cmocka_unit_test(test_a_group_in_vain_that_is_not_made_again_is_told),
        cmocka_unit_test(test_a_retry_that_is_wrong_is_still_found),
        cmocka_unit_test(test_a_message_made_again_is_no_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
