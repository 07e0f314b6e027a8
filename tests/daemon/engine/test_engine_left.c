/*
 * test_engine_left.c: ranks that leave because of trouble that has been told are not told again for what they leave
 * undone elsewhere, in whatever order it is seen that they take down their communicators and end. Ranks that leave for
 * nothing that is known, or long after the trouble, are told.
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

static const uint32_t sizes[] = {4, 8, 64};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define AR    ROLL_OP_ALLREDUCE

/* How ranks 0 and 1 leave. */
enum leaving { TROUBLED_FIRST, TROUBLED_LAST, WORLD_ALONE, BY_EXIT, LEAVINGS };

/* A job with expert parallelism of two ranks; the world's collective behind is waited for by all but the first two. */
struct job {
    struct sim *sim;
    uint32_t w, ep[32];
};

static struct job begin(uint32_t n)
{
    struct job job = {.sim = sim_new(n)};
    job.w = sim_world(job.sim);
    for (uint32_t g = 0; g < n / 2; g++) {
        uint32_t pair[2] = {2 * g, 2 * g + 1};
        job.ep[g] = sim_comm(job.sim, "ep", pair, 2);
    }
    sim_step(job.sim, 9);
    sim_all(job.sim, job.w, AR, 64);
    return job;
}

/* Every rank's forward, and the same again in backward; in the first group rank 1 routes otherwise then. */
static void exchanges(struct job *job, bool differs)
{
    for (uint32_t r = 0; r < job->sim->ranks; r++) {
        uint32_t ep = job->ep[r / 2];
        scene_splits(job->sim, r, ep, 0, 2, 4, ROLL_PHASE_FORWARD, 0);
        sim_call(job->sim, r, ep, ROLL_OP_ALLGATHER, 2);
        sim_sync(job->sim, r);
        /* ranks with an odd number send one row more where they recompute */
        scene_splits(job->sim, r, ep, 0, 2, 4, differs && r < 2 ? ROLL_PHASE_RECOMPUTE : ROLL_PHASE_FORWARD, 0);
    }
}

static void leave(struct job *job, uint32_t rank, enum leaving how, int32_t status)
{
    uint32_t first = how == TROUBLED_FIRST ? job->ep[0] : job->w, then = how == TROUBLED_FIRST ? job->w : job->ep[0];
    if (how != BY_EXIT) {
        (void)sim_record(job->sim, rank, ROLL_OP_COMM_DESTROY, first);
    }
    if (how == TROUBLED_FIRST || how == TROUBLED_LAST) {
        (void)sim_record(job->sim, rank, ROLL_OP_COMM_DESTROY, then);
    }
    sim_proc(job->sim, rank, ROLL_PROC_FINISHED, status);
}

static void others_wait(struct job *job)
{
    for (uint32_t r = 2; r < job->sim->ranks; r++) {
        sim_call(job->sim, r, job->w, AR, 64);
        sim_stuck(job->sim, r);
    }
}

static void expect(struct job *job, const char *findings)
{
    sim_expect(job->sim, findings);
    sim_destroy(&job->sim);
}

/* They fail in an exchange that has been told to go wrong. */
static void test_who_leaves_for_what_has_been_told_is_not_told_again(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * LEAVINGS; i++) {
        struct job job = begin(sizes[i / LEAVINGS]);
        exchanges(&job, true);
        leave(&job, 0, (enum leaving)(i % LEAVINGS), SIM_EXIT(1));
        leave(&job, 1, (enum leaving)(i % LEAVINGS), SIM_EXIT(1));
        others_wait(&job);
        expect(&job, "proven moe-recompute-differs 1");
    }
}

/* The same ranks leave, and nothing was wrong before. */
static void test_who_leaves_for_nothing_that_is_known_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * LEAVINGS; i++) {
        struct job job = begin(sizes[i / LEAVINGS]);
        enum leaving how = (enum leaving)(i % LEAVINGS);
        exchanges(&job, false);
        leave(&job, 0, how, SIM_EXIT(1));
        leave(&job, 1, how, SIM_EXIT(1));
        others_wait(&job);
        expect(&job, how == BY_EXIT ? "proven rank-finished 0-1" : "proven call-skipped 0-1");
    }
}

/* They have got past the trouble, and leave later: that is another matter. */
static void test_who_leaves_long_after_the_trouble_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct job job = begin(sizes[i]);
        exchanges(&job, true);
        for (uint32_t r = 0; r < job.sim->ranks; r++) {
            for (uint32_t k = 0; k < 3; k++) {
                sim_call(job.sim, r, job.ep[r / 2], ROLL_OP_ALLGATHER, 2);
                sim_sync(job.sim, r);
            }
        }
        sim_all(job.sim, job.w, AR, 64);
        scene_sync_all(job.sim);
        leave(&job, 0, TROUBLED_FIRST, SIM_EXIT(1));
        leave(&job, 1, TROUBLED_FIRST, SIM_EXIT(1));
        others_wait(&job);
        expect(&job, "proven call-skipped 0-1; proven moe-recompute-differs 1");
    }
}

/* How rank 0 goes once they have given up the exchange and gone on without it: it leaves the world before the others
 * do; or all have left the world, and it ends while the others make calls on a communicator that was made since. */
enum later { LEAVES_WORLD, ENDS_BEHIND_WORLD, LATERS };

static void later_fault(struct job *job, enum later how)
{
    struct sim *sim = job->sim;
    uint32_t next = sim_comm(sim, "next", NULL, sim->ranks);
    for (int k = 0; k < 3; k++) {
        sim_all(sim, how == LEAVES_WORLD ? job->w : next, AR, 64);
        scene_sync_all(sim);
    }
    for (uint32_t r = 0; r < (how == LEAVES_WORLD ? 1 : sim->ranks); r++) {
        (void)sim_record(sim, r, ROLL_OP_COMM_DESTROY, job->w);
    }
    if (how == ENDS_BEHIND_WORLD) {
        sim_proc(sim, 0, ROLL_PROC_FINISHED, SIM_EXIT(1));
    }
    for (uint32_t r = 1; r < sim->ranks; r++) {
        sim_call(sim, r, how == LEAVES_WORLD ? job->w : next, AR, 64);
        sim_stuck(sim, r);
    }
}

/* They give up the exchange that goes wrong, and the job goes on without it for a while: what they leave undone then
 * is as new as where nothing was wrong before, also where the last thing that they do is to leave something. */
static void test_who_goes_on_after_it_gave_up_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * LATERS * 2; i++) {
        bool differs = i % 2 != 0;
        enum later how = (enum later)(i / 2 % LATERS);
        struct job job = begin(sizes[i / 2 / LATERS]);
        exchanges(&job, differs);
        for (uint32_t r = 0; r < 2; r++) {
            (void)sim_record(job.sim, r, ROLL_OP_COMM_DESTROY, job.ep[0]);
        }
        later_fault(&job, how);
        static const char *const want[LATERS][2] = {
            {"proven call-skipped 0", "proven call-skipped 0; proven moe-recompute-differs 1"},
            {"proven rank-finished 0", "proven moe-recompute-differs 1; proven rank-finished 0"}};
        expect(&job, want[how][differs]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_leaves_for_what_has_been_told_is_not_told_again),
        cmocka_unit_test(test_who_leaves_for_nothing_that_is_known_is_told),
        cmocka_unit_test(test_who_leaves_long_after_the_trouble_is_told),
        cmocka_unit_test(test_who_goes_on_after_it_gave_up_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
