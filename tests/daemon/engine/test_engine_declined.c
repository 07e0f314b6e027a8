/*
 * test_engine_declined.c: calls that rollcall itself refused in the rank (ROLLCALL_ON_MISMATCH), because they did not
 * fit the call of another rank. Whoever comes later is refused; told is the disagreement, and who is wrong in it.
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

static const uint32_t sizes[] = {2, 3, 4, 8};
#define SIZES    (sizeof(sizes) / sizeof(sizes[0]))
#define AR       ROLL_OP_ALLREDUCE
#define DECLINED (5 | ROLL_RESULT_DECLINED) /* what the program was given: ncclInvalidUsage */

/* The rank makes this AllReduce and is refused by rollcall; the next call has its number again. */
static struct roll_record *declined(struct sim *sim, uint32_t rank, uint32_t comm, uint64_t count, enum news news)
{
    scene_refused(sim, rank, comm, count, news);
    struct sim_event *last = &sim->rank[rank].event[sim->rank[rank].events - 1];
    last->rec.result = DECLINED;
    return &sim->rank[rank].event[sim->rank[rank].events - (news == LATER ? 2 : 1)].rec;
}

/* What all ranks do before, at one line of the program; what follows stands at another, so the calls that meet there
 * are one and the same for certain. */
static void history(struct sim *sim, uint32_t comm)
{
    sim->site = 6;
    for (unsigned i = 0; i < 6; i++) {
        sim_all(sim, comm, AR, 64);
    }
    sim->site = 7;
}

/* How the ranks that were refused go on. */
enum then { WAIT, EXIT, KILLED, THENS };

static void goes_on(struct sim *sim, uint32_t rank, bool refused, enum then then)
{
    if (!refused || then == WAIT) {
        sim_stuck(sim, rank);
    } else {
        sim_proc(sim, rank, then == EXIT ? ROLL_PROC_FINISHED : ROLL_PROC_DEAD,
                 then == EXIT ? SIM_EXIT(1) : SIM_SIGNAL(15));
    }
}

/* The last rank calls with another count. Whether it comes last and is refused, or comes first and all others are
 * refused, it is the one that is named; of two ranks nobody is. */
static void test_the_culprit_is_named_whoever_came_first(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * THENS * 4; i++) {
        uint32_t n = sizes[i % SIZES], odd = n - 1;
        enum then then = (enum then)(i / SIZES % THENS);
        bool odd_is_late = i / SIZES / THENS % 2 == 0;
        enum news news = i / SIZES / THENS / 2 == 0 ? AT_ONCE : LATER;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        history(sim, w);
        for (uint32_t r = 0; r < n; r++) {
            uint64_t count = r == odd ? 1000 : 1024;
            bool refused = (r == odd) == odd_is_late;
            if (refused) {
                declined(sim, r, w, count, news);
            } else {
                sim_call(sim, r, w, AR, count);
            }
            goes_on(sim, r, refused, then);
        }
        scene_tells(sim, "proven count-mismatch", n == 2 ? SCENE_NOBODY : odd,
                    "(ROLLCALL_ON_MISMATCH), which came later", "hangs or corrupts");
        sim_destroy(&sim);
    }
}

/* Another reduction hangs nothing in NCCL; here nobody waits any less than for another count. */
static void test_a_reduction_that_was_refused_is_what_the_others_wait_for(void **state)
{
    (void)state;
    for (unsigned late = 0; late < 2; late++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim);
        history(sim, w);
        for (uint32_t r = 0; r < 4; r++) {
            bool refused = (r == 3) == (late == 1);
            struct roll_record *rec = refused ? declined(sim, r, w, 64, AT_ONCE) : sim_call(sim, r, w, AR, 64);
            rec->redop = r == 3 ? ROLL_RED_MAX : ROLL_RED_SUM;
            goes_on(sim, r, refused, EXIT);
        }
        scene_tells(sim, "proven redop-mismatch", 3, " not made", "silently wrong");
        sim_destroy(&sim);
    }
}

/* Who makes the call again, put right, goes on: what was told is taken back. */
static void test_a_call_that_is_put_right_is_no_fault(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), odd = sizes[i] - 1;
        sim_all(sim, w, AR, 64);
        declined(sim, odd, w, 1000, AT_ONCE);
        sim_all(sim, w, AR, 1024);
        sim_all(sim, w, AR, 64);
        scene_sync_all(sim);
        scene_tells(sim, NULL, 0, NULL, NULL);
        sim_destroy(&sim);
    }
}

/* The call that is put right may be read before the return of the one that was refused. It stands, and who waits in it
 * waits for the rank that has not come. */
static void test_a_return_that_is_read_late_ends_no_other_call(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), odd = sizes[i] - 1;
        sim_all(sim, w, AR, 64);
        declined(sim, odd, w, 1000, LATER);
        for (uint32_t r = 1; r < sizes[i]; r++) {
            sim_call(sim, r, w, AR, 1024);
        }
        struct sim_event *last = &sim->rank[odd].event[sim->rank[odd].events - 1], put_right = *last;
        *last = last[-1];
        last[-1] = put_right;
        scene_tells(sim, "suspected rank-busy", 0, NULL, "call-refused");
        sim_destroy(&sim);
    }
}

/* The program overlooks the error and goes on, so its later calls have the numbers of earlier ones. It has made another
 * call than its peers, and then left that out: which of the two is told depends on what was read first. */
static void test_a_rank_that_goes_on_is_named_all_the_same(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    history(sim, w);
    for (uint32_t r = 0; r < 4; r++) {
        if (r == 3) {
            declined(sim, r, w, 1000, AT_ONCE);
        } else {
            sim_call(sim, r, w, AR, 1024);
        }
        sim_call(sim, r, w, AR, 64);
        sim_stuck(sim, r);
    }
    for (uint32_t order = 0; order < SIM_ORDERS; order++) {
        char *got = sim_run(sim, order, false, false);
        if ((!strstr(got, "count-mismatch 3") && !strstr(got, "call-skipped 3")) || strchr(got, ';')) {
            fail_msg("order %u: %s", order, got);
        }
        free(got);
    }
    sim_destroy(&sim);
}

/* The end of a group is refused, and with it all its calls; told is the one that differs. beside: a rank that has no
 * part in that one waits for the other call of the group, until its watchdog ends it: that follows. */
static void refused_groups(bool late, bool beside)
{
    static const uint32_t ranks[] = {0, 1, 2, 3};
    struct sim *sim = sim_new(beside ? 5 : 4);
    uint32_t w = sim_comm(sim, "world", ranks, 4), other = sim_comm(sim, "other", NULL, sim->ranks);
    history(sim, w);
    for (uint32_t r = 0; r < 4; r++) {
        bool refused = (r == 3) == late;
        sim_group(sim, r);
        sim_call(sim, r, w, AR, r == 3 ? 1000 : 1024);
        sim_call(sim, r, other, AR, 64);
        sim_group_end(sim, r);
        if (refused) {
            sim->rank[r].event[sim->rank[r].events - 1].rec.result = DECLINED;
        }
        goes_on(sim, r, refused, EXIT);
    }
    if (beside) {
        sim_call(sim, 4, other, AR, 64);
        sim_stuck(sim, 4);
        sim_proc(sim, 4, ROLL_PROC_DEAD, SIM_SIGNAL(SIGABRT));
    }
    scene_tells(sim, "proven count-mismatch", 3, " not made", "call-refused");
    sim_destroy(&sim);
}

static void test_a_group_that_was_refused(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        refused_groups(i % 2 == 1, i / 2 == 1);
    }
}

/* Everybody has come, and in each order in which records may come the text says this, and not that. */
static void tells_always(struct sim *sim, const char *what, const char *said, const char *unsaid)
{
    sim_expect(sim, what);
    for (uint32_t order = 0; order < SIM_ORDERS; order++) {
        char *got = sim_run(sim, order, false, true);
        if (!strstr(got, said) || strstr(got, unsaid)) {
            fail_msg("order %u: no '%s', or '%s', in: %s", order, said, unsaid, got);
        }
        free(got);
    }
}

/* Two nodes, each with a wrong rank. On the first node it comes last and is refused; on the second it comes first, and
 * all others of that node are refused. rollcall refused calls of both sides, and calls of both sides were made. */
static void test_what_came_first_differs_from_node_to_node(void **state)
{
    (void)state;
    static const uint32_t ranks[] = {6, 8, 16};
    for (size_t i = 0; i < 3 * THENS; i++) {
        uint32_t n = ranks[i % 3], wrong = n / 2 - 1;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        char what[64], said[160];
        history(sim, w);
        for (uint32_t r = 0; r < n; r++) {
            uint64_t count = r == wrong || r == wrong + 1 ? 1000 : 1024;
            bool refused = r == wrong || r > wrong + 1;
            if (refused) {
                declined(sim, r, w, count, AT_ONCE);
            } else {
                sim_call(sim, r, w, AR, count);
            }
            goes_on(sim, r, refused, (enum then)(i / 3));
        }
        snprintf(what, sizeof(what), "proven count-mismatch %u-%u", wrong, wrong + 1);
        snprintf(said, sizeof(said), " rollcall refused the calls of ranks %u,", wrong); /* and not the next one's */
        tells_always(sim, what, said, "hangs or corrupts");
        tells_always(sim, what, "It compares the calls of one node", "hangs or corrupts");
        sim_destroy(&sim);
    }
}

/* The wrong rank came first on its node, so its neighbours are refused, and the ranks of the other node were not. What
 * hangs nothing in NCCL hangs here, whichever of these ranks is looked at. */
static void test_a_reduction_that_one_node_refuses_is_what_the_other_waits_for(void **state)
{
    (void)state;
    static const uint32_t ranks[] = {6, 8, 16};
    for (size_t i = 0; i < 3; i++) {
        uint32_t n = ranks[i];
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        char what[64];
        history(sim, w);
        for (uint32_t r = 0; r < n; r++) {
            bool refused = r > n / 2;
            struct roll_record *rec = refused ? declined(sim, r, w, 64, AT_ONCE) : sim_call(sim, r, w, AR, 64);
            rec->redop = r == n / 2 ? ROLL_RED_MAX : ROLL_RED_SUM;
            goes_on(sim, r, refused, EXIT);
        }
        snprintf(what, sizeof(what), "proven redop-mismatch %u", n / 2);
        tells_always(sim, what, "The other calls were made, as far as is known.", "silently wrong");
        sim_destroy(&sim);
    }
}

/* The last rank's group of two calls of one communicator is refused at its end. counts: of the second call, its own and
 * that of its peers. lost: rank 0 makes the same, and its records are lost. */
static struct sim *refused_pair(uint32_t n, uint64_t own, uint64_t peers, bool lost, enum then then)
{
    struct sim *sim = sim_new(n);
    uint32_t w = sim_world(sim);
    history(sim, w);
    scene_sync_all(sim);
    for (uint32_t r = 0; r < n; r++) {
        bool refused = r == n - 1;
        if (lost && r == 0) {
            sim_lose(sim, r, 3);
            sim_stuck(sim, r);
            continue;
        }
        sim_group(sim, r);
        sim->site = 7;
        sim_call(sim, r, w, AR, 512);
        sim->site = 8;
        sim_call(sim, r, w, AR, refused ? own : peers);
        sim_group_end(sim, r);
        sim->rank[r].event[sim->rank[r].events - 1].rec.result = refused ? DECLINED : 0;
        goes_on(sim, r, refused, then);
    }
    return sim;
}

/* What differs stands in the second call: that is told, and nothing about the first. */
static void test_the_second_call_of_a_refused_group_differs(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        uint32_t n = sizes[i % SIZES];
        struct sim *sim = refused_pair(n, 1000, 1024, false, i / SIZES == 0 ? WAIT : EXIT);
        scene_tells(sim, "proven count-mismatch", n == 2 ? SCENE_NOBODY : n - 1, " not made", "call-refused");
        sim_destroy(&sim);
    }
}

/* Nothing in the records differs from the group, because those of the rank that came first are lost: the peers wait for
 * its calls all the same, for both of them. */
static void test_a_refused_group_is_given_up_as_a_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        uint32_t n = sizes[i % SIZES];
        bool ends = i / SIZES == 1;
        if (n == 2) { /* then nobody is known to wait */
            continue;
        }
        struct sim *sim = refused_pair(n, 1024, 1024, true, ends ? EXIT : WAIT);
        scene_tells(sim, ends ? "proven call-refused" : "suspected call-refused", n - 1, "of its whole group",
                    "rank-finished");
        sim_destroy(&sim);
    }
}

/* The same group, and then once more, as it should be: nothing is wrong. */
static void test_a_refused_group_that_is_made_again_is_no_fault(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], odd = n - 1;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        for (unsigned step = 0; step < 3; step++) {
            sim_all(sim, w, AR, 64);
            for (uint32_t r = 0; r < n; r++) {
                for (unsigned again = 0; again < 1 + (r == odd); again++) {
                    bool refused = r == odd && again == 0;
                    sim_group(sim, r);
                    sim_call(sim, r, w, AR, 512);
                    sim_call(sim, r, w, AR, refused ? 1000 : 1024);
                    sim_group_end(sim, r);
                    if (refused) {
                        sim->rank[r].event[sim->rank[r].events - 1].rec.result = DECLINED;
                        sim->rank[r].seq[w] -= 2;
                    }
                }
            }
        }
        scene_sync_all(sim);
        scene_tells(sim, NULL, 0, NULL, NULL);
        sim_destroy(&sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_culprit_is_named_whoever_came_first),
        cmocka_unit_test(test_a_reduction_that_was_refused_is_what_the_others_wait_for),
        cmocka_unit_test(test_a_call_that_is_put_right_is_no_fault),
        cmocka_unit_test(test_a_return_that_is_read_late_ends_no_other_call),
        cmocka_unit_test(test_a_rank_that_goes_on_is_named_all_the_same),
        cmocka_unit_test(test_a_group_that_was_refused),
        cmocka_unit_test(test_what_came_first_differs_from_node_to_node),
        cmocka_unit_test(test_a_reduction_that_one_node_refuses_is_what_the_other_waits_for),
        cmocka_unit_test(test_the_second_call_of_a_refused_group_differs),
        cmocka_unit_test(test_a_refused_group_is_given_up_as_a_whole),
        cmocka_unit_test(test_a_refused_group_that_is_made_again_is_no_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
