/*
 * test_engine_refused_told.c: calls of which nothing was enqueued, and what is told of them: who ended after one, who
 * went on without it, which call of a group was wrong; and errors that are another rank's doing.
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

static void all_stuck_but(struct sim *sim, uint32_t odd)
{
    for (uint32_t r = 0; r < sim->ranks; r++) {
        if (r != odd) {
            sim_stuck(sim, r);
        }
    }
}

/* The application saw the error and ended: by exit, by _exit, by an exception that nobody caught. */
static void test_who_ends_after_a_refused_call(void **state)
{
    (void)state;
    static const struct {
        enum roll_proc_state proc;
        int32_t status;
    } ends[] = {{ROLL_PROC_FINISHED, SIM_EXIT(9)}, {ROLL_PROC_DEAD, SIM_EXIT(1)}, {ROLL_PROC_DEAD, SIM_SIGNAL(6)}};
    for (size_t i = 0; i < SIZES * 3; i++) {
        struct sim *sim = sim_new(sizes[i / 3]);
        uint32_t w = sim_world(sim), odd = sizes[i / 3] - 1;
        sim_all(sim, w, AR, 64);
        for (uint32_t r = 0; r <= odd; r++) {
            struct roll_record *rec = sim_call(sim, r, w, ROLL_OP_BROADCAST, 100);
            rec->peer = r == odd ? (int32_t)sizes[i / 3] : 0;
            rec->result = r == odd ? SCENE_BAD : 0;
        }
        (void)sim_record(sim, odd, ROLL_OP_COMM_DESTROY, w); /* cleaning up */
        sim_proc(sim, odd, ends[i % 3].proc, ends[i % 3].status);
        all_stuck_but(sim, odd);
        scene_tells(sim, "proven call-refused", odd, "ncclInvalidArgument: root ", "core dump");
        sim_destroy(&sim);
    }
}

/* The rank made the call again, and died of something else: the death is told. */
static void test_who_is_killed_after_a_retry_is_dead(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), odd = sizes[i] - 1;
        sim_all(sim, w, AR, 64);
        scene_refused(sim, odd, w, 100, AT_ONCE);
        sim_all(sim, w, AR, 100);
        for (uint32_t r = 0; r < odd; r++) {
            sim_call(sim, r, w, AR, 64);
        }
        sim_proc(sim, odd, ROLL_PROC_DEAD, SIM_SIGNAL(9));
        all_stuck_but(sim, odd);
        scene_tells(sim, "proven rank-dead", odd, NULL, "ncclInvalidArgument");
        sim_destroy(&sim);
    }
}

/* A message to nobody, or from itself: its peer waits for it in vain, or all wait for the rank that left. */
static void test_a_refused_message_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 3; i++) {
        uint32_t n = sizes[i / 3], odd = n - 1, to = 0;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        sim_all(sim, w, AR, 64);
        sim_recv(sim, to, w, odd, 32);
        struct roll_record *rec = sim_send(sim, odd, w, to, 32);
        sim->rank[odd].p2p[w][to * 2]--;
        rec->result = SCENE_BAD;
        rec->peer = (int32_t)n + 3;
        if (i % 3 == 0) { /* the rank goes on to what its peer is to do afterwards */
            for (uint32_t r = 0; r < n; r++) {
                if (r != to) {
                    sim_call(sim, r, w, AR, 64);
                }
            }
            sim_stuck(sim, odd);
        } else if (i % 3 == 1) { /* the rank ends */
            sim_proc(sim, odd, ROLL_PROC_FINISHED, SIM_EXIT(1));
        } else { /* the rank waits for something else */
            sim_stuck(sim, odd);
        }
        all_stuck_but(sim, odd);
        scene_tells(sim, i % 3 == 2 ? "suspected call-refused" : "proven call-refused", odd,
                    " does not exist, the members are 0 to", "expects none");
        sim_destroy(&sim);
    }
}

/* A peer that waits for the refused message is told first, whoever else waits for the rank in another call. */
static void test_who_waits_for_a_refused_message_comes_first(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    sim_all(sim, w, AR, 64);
    struct roll_record *rec = sim_send(sim, 2, w, 1, 32);
    sim->rank[2].p2p[w][2]--;
    rec->result = SCENE_BAD;
    rec->peer = 3;
    sim_proc(sim, 2, ROLL_PROC_FINISHED, SIM_EXIT(3));
    sim_recv(sim, 1, w, 2, 32);
    sim_call(sim, 0, w, AR, 64);
    sim_stuck(sim, 0);
    sim_stuck(sim, 1);
    sim_expect(sim, "proven call-refused 2");
    char *got = sim_run(sim, 0, false, true);
    assert_non_null(strstr(got, "Rank 1 waits in Recv of 32 float32 from member 2, in vain."));
    free(got);
    sim_destroy(&sim);
}

static void test_a_message_from_itself_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], odd = n - 1;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        sim_all(sim, w, AR, 64);
        struct roll_record *rec = sim_recv(sim, odd, w, odd, 32);
        rec->result = SCENE_BAD + 1;
        sim_proc(sim, odd, ROLL_PROC_FINISHED, SIM_EXIT(1));
        for (uint32_t r = 0; r < odd; r++) {
            sim_call(sim, r, w, AR, 64);
        }
        all_stuck_but(sim, odd);
        scene_tells(sim, "proven call-refused", odd, "ncclInvalidUsage: member ", NULL);
        sim_destroy(&sim);
    }
}

/* A call was read while it was entered; the end of its group, which was refused, is read before the call's own return:
 * that takes nothing back. */
static void test_a_call_that_returns_behind_the_end_of_its_group(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], odd = n - 1;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        struct sim_rank *r = &sim->rank[odd];
        sim_all(sim, w, AR, 64);
        sim_group(sim, odd);
        sim_recv(sim, odd, w, odd, 32);
        size_t at = r->events - 1;
        sim_group_end(sim, odd);
        r->event[r->events - 1].rec.result = SCENE_BAD;
        struct roll_record *call = &r->event[at].rec;
        call->seal = roll_seal(roll_seal_ticket(call->seal), ROLL_STATE_ENTERED);
        sim_return(sim, odd); /* the end of the group; what comes behind it is the call's */
        r->event[r->events - 1].rec = r->event[at].rec;
        r->event[r->events - 1].rec.seal = roll_seal(roll_seal_ticket(r->event[at].rec.seal), ROLL_STATE_RETURNED);
        sim_proc(sim, odd, ROLL_PROC_FINISHED, SIM_EXIT(3));
        for (uint32_t k = 0; k < odd; k++) {
            sim_call(sim, k, w, AR, 256);
        }
        all_stuck_but(sim, odd);
        scene_tells(sim, "proven call-refused", odd, "Recv of 32 float32 from member", NULL);
        sim_destroy(&sim);
    }
}

/* One call of the group is wrong: the whole group is refused, and the wrong one is shown. */
static void test_the_wrong_call_of_a_group_is_shown(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        uint32_t n = sizes[i], odd = n - 1;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        sim_all(sim, w, AR, 64);
        for (uint32_t r = 0; r < n; r++) {
            sim_group(sim, r);
            sim_recv(sim, r, w, (r + n - 1) % n, 32);
            struct roll_record *rec = sim_send(sim, r, w, (r + 1) % n, 32);
            if (r == odd) {
                rec->peer = -1;
                rec->result = SCENE_BAD;
                sim->rank[r].p2p[w][(r + 1) % n * 2]--;
                sim->rank[r].p2p[w][(r + n - 1) % n * 2 + 1]--;
            }
            sim_group_end(sim, r);
            sim->rank[r].event[sim->rank[r].events - 1].rec.result = r == odd ? SCENE_BAD : 0;
        }
        sim_proc(sim, odd, ROLL_PROC_FINISHED, SIM_EXIT(1));
        all_stuck_but(sim, odd);
        scene_tells(sim, "proven call-refused", odd, "Send of 32 float32 to member -1", NULL);
        sim_destroy(&sim);
    }
}

/* The error is not looked at: the next call takes the place of the refused one. */
static void test_who_goes_on_without_it_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], odd = n - 1;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        sim_all(sim, w, AR, 64);
        for (uint32_t r = 0; r < n; r++) {
            struct roll_record *rec = sim_call(sim, r, w, ROLL_OP_BROADCAST, 100);
            if (r == odd) {
                rec->peer = (int32_t)n;
                rec->result = SCENE_BAD;
                sim->rank[r].seq[w]--;
            }
        }
        for (uint64_t k = 0; k < 6; k++) {
            sim_all(sim, w, AR, 200 + k);
        }
        for (uint32_t r = 0; r < n; r++) {
            sim_stuck(sim, r);
        }
        scene_tells(sim, "proven call-refused", odd, "in its place came AllReduce of 200", NULL);
        sim_destroy(&sim);
    }
}

/* Everybody makes the same mistake and ends: nobody waits. */
static void test_all_refused_and_ended_is_a_note(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim);
        sim_all(sim, w, AR, 64);
        for (uint32_t r = 0; r < sizes[i]; r++) {
            scene_refused(sim, r, w, 100, AT_ONCE);
        }
        for (uint32_t r = 0; r < sizes[i]; r++) {
            sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(1));
        }
        scene_tells(sim, NULL, 0, "note call-refused - ", NULL);
        sim_destroy(&sim);
    }
}

/* The errors that ranks get because another one has died are not their own. */
static void test_errors_after_a_death_are_its_echo(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        uint32_t n = sizes[i], odd = n - 1;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        sim_all(sim, w, AR, 64);
        sim_proc(sim, odd, ROLL_PROC_DEAD, SIM_SIGNAL(9));
        sim_call(sim, 0, w, AR, 64);
        sim_stuck(sim, 0);
        for (uint32_t r = 1; r < odd; r++) {
            struct roll_record *rec = sim_call(sim, r, w, AR, 64);
            rec->result = 6;
            sim_stuck(sim, r);
        }
        scene_tells(sim, "proven rank-dead", odd, NULL, "call-refused");
        sim_destroy(&sim);
    }
}

/* A remote error without a death: who is to blame is not known. */
static void test_a_remote_error_names_nobody(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], odd = n - 1;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        sim_all(sim, w, AR, 64);
        for (uint32_t r = 0; r < n; r++) {
            struct roll_record *rec = sim_call(sim, r, w, AR, 100);
            rec->result = r == odd ? 6 : 0;
        }
        sim_proc(sim, odd, ROLL_PROC_FINISHED, SIM_EXIT(1));
        all_stuck_but(sim, odd);
        sim_expect(sim, "suspected call-refused -");
        sim_destroy(&sim);
    }
}

/* One rank's part in the creation of a communicator is refused: with the wrong number of its own, or in a split. */
static void test_a_refused_creation_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        uint32_t n = sizes[i / 2], odd = n - 1;
        bool split = i % 2 != 0;
        struct sim *sim = sim_new(n);
        uint32_t all[8] = {0, 1, 2, 3, 4, 5, 6, 7};
        /* The one whose rank NCCL does not take has no valid definition. */
        uint32_t w = sim_comm(sim, "world", all, split ? n : n - 1);
        for (uint32_t r = 0; r < n - !split; r++) {
            sim->rank[r].event[sim->rank[r].events - 1].def.comm.info.nranks = (int32_t)n;
        }
        if (split) {
            sim_all(sim, w, AR, 64);
        }
        for (uint32_t r = 0; r < n; r++) {
            bool member = split || r != odd;
            struct roll_record *rec =
                sim_record(sim, r, split ? ROLL_OP_COMM_SPLIT : ROLL_OP_COMM_INIT, member ? w : UINT32_MAX);
            rec->count = split ? 0 : n;
            rec->peer = split ? 0 : (int32_t)(r == odd ? n : r);
            rec->result = r == odd ? SCENE_BAD : 0;
            if (r != odd) {
                rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
            }
        }
        sim_proc(sim, odd, ROLL_PROC_FINISHED, SIM_EXIT(1));
        scene_tells(sim, "proven call-refused", odd, split ? "CommSplit" : "is none of a communicator of",
                    "did not join");
        sim_destroy(&sim);
    }
}

/* All calls are alike: that one is missing shows only at the end. Who makes it again at once, or after a word with the
 * others, is not short. */
static void test_a_refused_call_among_equal_ones(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 3; i++) { /* 0 left out, 1 made again at once, 2 after something else */
        uint32_t n = sizes[i / 3], odd = n - 1;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        for (int step = 0; step < 6; step++) {
            for (uint32_t r = 0; r < n; r++) {
                if (r == odd && step == 2) {
                    scene_refused(sim, r, w, 100, AT_ONCE);
                    if (i % 3 != 1) {
                        sim_sync(sim, r);
                    }
                }
                if (r != odd || step != 2 || i % 3 != 0) {
                    sim_call(sim, r, w, AR, 100);
                }
                if (i % 3 != 0) {
                    sim_sync(sim, r);
                }
            }
        }
        if (i % 3 == 0) {
            sim_proc(sim, odd, ROLL_PROC_FINISHED, SIM_EXIT(0));
            all_stuck_but(sim, odd);
        }
        scene_tells(sim, i % 3 == 0 ? "suspected call-refused" : NULL, odd, i % 3 == 0 ? "less one" : NULL, NULL);
        sim_destroy(&sim);
    }
}

enum dispute { TWICE, TWICE_SHIFTED, SIZES_DIFFER, REFUSED_TWICE, HEALTHY };

/* The last rank comes as another one's number, or with another size. All have the number of another rank where shifted.
 */
static struct sim *disputed(uint32_t n, enum dispute kind)
{
    struct sim *sim = sim_new(n);
    uint32_t w = sim_world(sim), odd = n - 1;
    for (uint32_t r = 0; r < n; r++) {
        struct roll_def_comm *def = &sim->rank[r].event[sim->rank[r].events - 1].def.comm.info;
        def->rank = (int32_t)(kind == TWICE_SHIFTED ? (r + 1) % n : r);
        if (r == odd && kind == SIZES_DIFFER) {
            def->nranks = (int32_t)n + 1;
        } else if (r == odd && kind != HEALTHY) {
            def->rank = kind == TWICE_SHIFTED ? 1 % (int32_t)n : 0;
        }
        struct roll_record *rec = sim_record(sim, r, ROLL_OP_COMM_INIT, w);
        rec->count = (uint64_t)def->nranks;
        rec->peer = def->rank;
        rec->result = r == odd && kind == REFUSED_TWICE ? SCENE_BAD + 1 : 0;
        if (kind != HEALTHY && !(r == odd && kind == REFUSED_TWICE)) {
            rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
        }
    }
    return sim;
}

static void test_ranks_that_contradict_each_other_in_init(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], odd = n - 1;
        struct sim *sim = disputed(n, TWICE);
        scene_tells(sim, "proven init-missing", n > 2 ? odd : SCENE_NOBODY, "both came to CommInit as rank 0 of",
                    "did not join");
        sim_destroy(&sim);
        sim = disputed(n, TWICE_SHIFTED);
        sim_expect(sim, "proven init-missing -");
        sim_destroy(&sim);
        sim = disputed(n, SIZES_DIFFER);
        scene_tells(sim, "proven init-missing", n > 2 ? odd : SCENE_NOBODY, "with the same unique id for one of",
                    "did not join");
        sim_destroy(&sim);
        sim = disputed(n, REFUSED_TWICE);
        scene_tells(sim, "proven call-refused", odd, "of this unique id is taken by rank 0", "did not join");
        sim_destroy(&sim);
        sim = disputed(n, HEALTHY);
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* The peers wait in the group's right call; the wrong one beside it is what NCCL did not take. */
static void test_what_voided_the_group_is_said(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    sim_all(sim, w, AR, 64);
    for (uint32_t r = 0; r < 3; r++) {
        sim_group(sim, r);
        sim_call(sim, r, w, AR, 100);
        if (r == 2) {
            struct roll_record *rec = sim_call(sim, r, w, ROLL_OP_BROADCAST, 64);
            rec->peer = 3;
            rec->result = SCENE_BAD;
        }
        sim_group_end(sim, r);
        sim->rank[r].event[sim->rank[r].events - 1].rec.result = r == 2 ? SCENE_BAD : 0;
        if (r < 2) {
            sim_stuck(sim, r);
        }
    }
    sim_proc(sim, 2, ROLL_PROC_FINISHED, SIM_EXIT(1));
    sim_expect(sim, "proven call-refused 2");
    char *got = sim_run(sim, 0, false, true);
    assert_non_null(strstr(got, "What NCCL did not take is Broadcast of 64 "));
    assert_non_null(strstr(got, "in the same group: root 3 does not exist, the members are 0 to 2."));
    free(got);
    sim_destroy(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_ends_after_a_refused_call),
        cmocka_unit_test(test_who_is_killed_after_a_retry_is_dead),
        cmocka_unit_test(test_a_refused_message_is_told),
        cmocka_unit_test(test_who_waits_for_a_refused_message_comes_first),
        cmocka_unit_test(test_a_message_from_itself_is_told),
        cmocka_unit_test(test_a_call_that_returns_behind_the_end_of_its_group),
        cmocka_unit_test(test_the_wrong_call_of_a_group_is_shown),
        cmocka_unit_test(test_what_voided_the_group_is_said),
        cmocka_unit_test(test_who_goes_on_without_it_is_told),
        cmocka_unit_test(test_all_refused_and_ended_is_a_note),
        cmocka_unit_test(test_errors_after_a_death_are_its_echo),
        cmocka_unit_test(test_a_remote_error_names_nobody),
        cmocka_unit_test(test_a_refused_creation_is_told),
        cmocka_unit_test(test_ranks_that_contradict_each_other_in_init),
        cmocka_unit_test(test_a_refused_call_among_equal_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
