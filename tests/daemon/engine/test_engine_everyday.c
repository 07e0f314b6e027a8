/*
 * test_engine_everyday.c: what PyTorch jobs do every day, at 2, 8 and 64 ranks: ranks that start seconds apart, a
 * checkpoint or an evaluation of one rank while the others wait in a barrier, a data loader that stalls, a last batch
 * that not all ranks have, a job that starts again, graphs that are replayed, messages in batches. Each as a healthy
 * job beside a sick one. A suspicion may come to nothing, and says so; a healthy job has no finding that stands, and
 * none that was proven.
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

static const uint32_t sizes[] = {2, 8, 64};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define AR    ROLL_OP_ALLREDUCE
#define GRADS 4096u

/* One step of data parallel training: gradients in two buckets, and the loss, which every host reads. */
static void train(struct sim *sim, uint32_t r, uint32_t w, uint32_t steps)
{
    for (uint32_t i = 0; i < steps; i++) {
        sim_call(sim, r, w, AR, GRADS);
        sim_call(sim, r, w, AR, GRADS / 2);
        sim_call(sim, r, w, AR, 1);
        sim_sync(sim, r);
    }
}

/* The findings that stand at the end; `taken_back`: those that were suspected meanwhile, and came to nothing. */
static void expect_after(struct sim *sim, const char *want, const char *taken_back)
{
    char *got = sim_run(sim, SIM_BY_TIME, false, false), *all = sim_run_all(sim, SIM_BY_TIME);
    if (strcmp(got, want) != 0 || (taken_back && strcmp(all, taken_back) != 0)) {
        char *text = sim_run(sim, SIM_BY_TIME, true, true);
        fail_msg("%u ranks:\nwanted %s\ngot    %s\nall    %s\ntexts  %s", sim->ranks, want, got, all, text);
    }
    free(got);
    free(all);
    sim_destroy(&sim);
}

static void expect(struct sim *sim, const char *want)
{
    expect_after(sim, want, want);
}

/* Everybody is as far in time: what a rank does next it does `ns` later. */
static void all_pass(struct sim *sim, uint64_t ns)
{
    for (uint32_t r = 0; r < sim->ranks; r++) {
        sim_pass(sim, r, ns);
    }
}

/* Every rank waits in a barrier to which `late` comes so much later; all go on then. UINT64_MAX: it never comes. */
static void barrier(struct sim *sim, uint32_t w, uint32_t late, uint64_t ns)
{
    for (uint32_t r = 0; r < sim->ranks; r++) {
        if (r == late && ns == UINT64_MAX) {
            continue;
        }
        sim_pass(sim, r, r == late ? ns : 0);
        sim_call(sim, r, w, AR, 1);
        sim_stuck(sim, r);
        sim_pass(sim, r, r == late || ns == UINT64_MAX ? 0 : ns);
    }
    if (ns != UINT64_MAX) {
        all_pass(sim, S_ / 1000);
        for (uint32_t r = 0; r < sim->ranks; r++) {
            sim_return(sim, r);
        }
        all_pass(sim, S_ / 1000);
    }
}

static void all_train(struct sim *sim, uint32_t w, uint32_t steps)
{
    for (uint32_t i = 0; i < steps; i++) {
        for (uint32_t r = 0; r < sim->ranks; r++) {
            train(sim, r, w, 1);
        }
        all_pass(sim, S_ / 10);
    }
}

/* All enter the creation of the world, a tenth of a second after each other; the last one has loaded its data for 40 s
 * before, or never comes. */
static void test_ranks_that_start_far_apart(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        uint32_t n = sizes[i % SIZES], late = n - 1, all[64];
        bool sick = i >= SIZES;
        char meanwhile[64];
        struct sim *sim = sim_new(n);
        for (uint32_t r = 0; r < n; r++) {
            all[r] = r;
            sim_pass(sim, r, r == late ? 40 * S_ : r * (S_ / 10));
        }
        uint32_t w = scene_creation(sim, all, sick ? n - 1 : n, n);
        snprintf(meanwhile, sizeof(meanwhile), "suspected init-missing %u", late);
        if (sick) {
            expect(sim, meanwhile);
            continue;
        }
        for (uint32_t r = 0; r < n; r++) {
            sim_pass(sim, r, r == late ? S_ : 41 * S_ - r * (S_ / 10));
            sim_return(sim, r);
        }
        all_train(sim, w, 3);
        expect_after(sim, "", meanwhile);
    }
}

/* Rank 0 writes a checkpoint for half a minute, three times, while the others wait in a barrier; or does not come back
 * from the last one. It is suspected the first time: from then on it is known to be late there. */
static void test_a_checkpoint_of_rank_0_beside_a_barrier(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        bool sick = i >= SIZES;
        struct sim *sim = sim_new(sizes[i % SIZES]);
        uint32_t w = sim_world(sim);
        for (uint32_t k = 0; k < 3; k++) {
            all_train(sim, w, 3);
            barrier(sim, w, 0, sick && k == 2 ? UINT64_MAX : 30 * S_);
        }
        if (sick) {
            sim->patience_ns = 90 * S_;
            expect_after(sim, "suspected rank-busy 0", "suspected rank-busy 0; suspected rank-busy 0");
        } else {
            all_train(sim, w, 2);
            expect_after(sim, "", "suspected rank-busy 0");
        }
    }
}

/* The data loader of a rank stalls for 8 s, now and then; or for good. */
static void test_a_data_loader_that_stalls(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        uint32_t n = sizes[i % SIZES], slow = n / 2;
        bool sick = i >= SIZES;
        char meanwhile[64], twice[160];
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        for (uint32_t k = 0; k < 4; k++) {
            all_train(sim, w, 2);
            barrier(sim, w, slow, sick && k == 3 ? UINT64_MAX : 8 * S_);
        }
        snprintf(meanwhile, sizeof(meanwhile), "suspected rank-busy %u", slow);
        snprintf(twice, sizeof(twice), "%s; %s", meanwhile, meanwhile);
        if (sick) {
            sim->patience_ns = 30 * S_;
            expect_after(sim, meanwhile, twice);
        } else {
            expect_after(sim, "", meanwhile);
        }
    }
}

/* Rank 0 evaluates alone for three seconds, without collectives, while the others wait in a barrier; or with one that
 * nobody else makes. */
static void test_an_evaluation_on_rank_0_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        uint32_t n = sizes[i % SIZES];
        bool sick = i >= SIZES;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        all_train(sim, w, 5);
        if (!sick) {
            barrier(sim, w, 0, 3 * S_);
            all_train(sim, w, 5);
            barrier(sim, w, 0, 3 * S_);
            expect(sim, "");
            continue;
        }
        for (uint32_t r = 0; r < n; r++) {
            if (r == 0) {
                sim_pass(sim, r, 3 * S_);
                sim_call(sim, r, w, ROLL_OP_ALLGATHER, 17);
            }
            sim_call(sim, r, w, AR, 1);
            sim_stuck(sim, r);
        }
        /* The others may come to that call yet, for all that is known; with two ranks, nor is it known whose is wrong.
         */
        char *text = sim_run(sim, SIM_BY_TIME, false, true);
        if (n > 2 &&
            (!strstr(text, "in another order, as far as the others have come") || !strstr(text, "call-added"))) {
            fail_msg("%s", text);
        }
        free(text);
        expect(sim, n == 2 ? "suspected sequence-tie -" : "suspected calls-reordered 0");
    }
}

/* One rank has a batch less: with Join it goes on to shadow the others' collectives; without it takes its communicator
 * down, or goes to the next barrier. */
static void test_a_last_batch_that_one_rank_lacks(void **state)
{
    (void)state;
    enum { JOIN, LEAVES, NEXT, WAYS };
    for (size_t i = 0; i < SIZES * WAYS; i++) {
        uint32_t n = sizes[i % SIZES], odd = n - 1, way = (uint32_t)(i / SIZES);
        char want[64];
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        all_train(sim, w, 5);
        for (uint32_t r = 0; r < n; r++) {
            if (r == odd && way == LEAVES) {
                sim_record(sim, r, ROLL_OP_COMM_DESTROY, w);
                sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
            } else if (r == odd && way == NEXT) {
                sim_call(sim, r, w, AR, 7);
                sim_stuck(sim, r);
            } else {
                sim_call(sim, r, w, AR, GRADS);
                sim_call(sim, r, w, AR, GRADS / 2);
                sim_call(sim, r, w, AR, 1);
                sim_stuck(sim, r);
            }
        }
        all_pass(sim, S_ / 10);
        for (uint32_t r = 0; r < n && way == JOIN; r++) {
            sim_return(sim, r);
            sim_record(sim, r, ROLL_OP_COMM_DESTROY, w);
            sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
        }
        snprintf(want, sizeof(want), way == LEAVES ? "proven call-skipped %u" : "suspected count-mismatch %u", odd);
        expect(sim, way == JOIN               ? ""
                    : n == 2 && way == LEAVES ? "proven sequence-tie -"
                    : n == 2                  ? "suspected count-mismatch -"
                                              : want);
    }
}

/* Predictions are gathered, padded to the longest; or padded on all ranks but one. */
static void test_gathered_predictions_of_other_lengths(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        uint32_t n = sizes[i % SIZES], odd = n - 1;
        bool sick = i >= SIZES;
        char want[64];
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        all_train(sim, w, 2);
        for (uint32_t r = 0; r < n; r++) {
            sim_call(sim, r, w, ROLL_OP_ALLGATHER, 1);
            sim_sync(sim, r);
            sim_call(sim, r, w, ROLL_OP_ALLGATHER, sick && r == odd ? 13 : 16);
            sim_call(sim, r, w, AR, 1);
            sim_stuck(sim, r);
        }
        all_pass(sim, S_ / 10);
        for (uint32_t r = 0; r < n && !sick; r++) {
            sim_return(sim, r);
        }
        snprintf(want, sizeof(want), "suspected count-mismatch %u", odd); /* at no place of the program that is known */
        expect(sim, !sick ? "" : n == 2 ? "suspected count-mismatch -" : want);
    }
}

/* batch_isend_irecv around a ring; one rank expects less than its neighbour sends, or leaves a batch out. */
static void test_messages_in_batches_around_a_ring(void **state)
{
    (void)state;
    enum { HEALTHY, LESS, LEFT_OUT, WAYS };
    for (size_t i = 0; i < SIZES * WAYS; i++) {
        uint32_t n = sizes[i % SIZES], odd = n - 1, way = (uint32_t)(i / SIZES);
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        all_train(sim, w, 2);
        for (uint32_t k = 0; k < 3; k++) {
            for (uint32_t r = 0; r < n; r++) {
                bool wrong = k == 2 && r == odd, near = r == (odd + 1) % n || r == (odd + n - 1) % n;
                if (wrong && way == LEFT_OUT) {
                    continue;
                }
                sim_group(sim, r);
                sim_send(sim, r, w, (r + 1) % n, 256);
                sim_recv(sim, r, w, (r + n - 1) % n, wrong && way == LESS ? 128 : 256);
                sim_group_end(sim, r);
                bool hangs = k == 2 && ((way == LEFT_OUT && near) || (way == LESS && (wrong || near)));
                (void)(hangs ? sim_stuck(sim, r) : sim_sync(sim, r));
            }
            all_pass(sim, S_ / 10);
        }
        for (uint32_t r = 0; r < n; r++) {
            bool near = r == (odd + 1) % n || r == (odd + n - 1) % n;
            if (way == HEALTHY || !(near || (way == LESS && r == odd))) {
                sim_call(sim, r, w, AR, 1);
                sim_stuck(sim, r);
            }
        }
        all_pass(sim, S_ / 10);
        for (uint32_t r = 0; r < n && way == HEALTHY; r++) {
            sim_return(sim, r);
        }
        /* That the rank lacks its messages is certain; who is wrong is not, where others are in its call as well. */
        expect(sim, way == HEALTHY ? "" : way == LESS ? "proven p2p-bytes -" : "proven p2p-unmatched -");
    }
}

/* The step is captured once and replayed, evaluated eagerly now and then; one rank may leave a replay out. */
static void test_graphs_that_are_replayed(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        uint32_t n = sizes[i % SIZES], odd = n - 1;
        bool sick = i >= SIZES;
        char want[64];
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        all_train(sim, w, 2); /* the warm-up */
        for (uint32_t r = 0; r < n; r++) {
            sim_capture(sim, r, w, 1, 3, GRADS);
        }
        for (uint32_t k = 0; k < 6; k++) {
            for (uint32_t r = 0; r < n; r++) {
                if (!(sick && r == odd && k == 5)) {
                    sim_launch(sim, r, w, 1);
                }
                (void)(sick && k == 5 ? NULL : sim_sync(sim, r));
            }
            all_pass(sim, S_ / 10);
            if (k % 2 == 1 && k < 5) {
                all_train(sim, w, 1);
            }
        }
        for (uint32_t r = 0; r < n; r++) {
            sim_call(sim, r, w, AR, 1);
            sim_stuck(sim, r);
        }
        all_pass(sim, S_ / 10);
        for (uint32_t r = 0; r < n && !sick; r++) {
            sim_return(sim, r);
        }
        snprintf(want, sizeof(want), "suspected call-skipped %u", odd);
        expect(sim, !sick ? "" : n == 2 ? "suspected sequence-tie -" : want);
    }
}

/* The job is over: rank 0 stays for a minute to save, alone, when the others have taken the communicator down and
 * ended; or wants to agree with them about it. */
static void test_rank_0_saves_when_the_others_have_gone(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        uint32_t n = sizes[i % SIZES];
        bool sick = i >= SIZES;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        all_train(sim, w, 5);
        for (uint32_t r = 1; r < n; r++) {
            sim_record(sim, r, ROLL_OP_COMM_DESTROY, w);
            sim_pass(sim, r, r * (S_ / 50));
            sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
        }
        sim_pass(sim, 0, 60 * S_);
        if (sick) {
            sim_call(sim, 0, w, AR, 1);
            sim_stuck(sim, 0);
            expect(sim, n == 2 ? "proven sequence-tie -" : "proven call-added 0");
            continue;
        }
        sim_record(sim, 0, ROLL_OP_COMM_DESTROY, w);
        sim_proc(sim, 0, ROLL_PROC_FINISHED, SIM_EXIT(0));
        expect(sim, "");
    }
}

/* Pipeline stages make their communicators of two ranks with the first message; the first stage compiles for 20 s
 * before it sends. Nothing stands against it in the end; and where it never sends it is suspected. */
static void test_stages_that_meet_with_their_first_message(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        uint32_t n = sizes[i % SIZES];
        bool sick = i >= SIZES;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim), pair[2] = {0, 1}, both = 0;
        all_train(sim, w, 1);
        if (!sick) {
            sim_pass(sim, 0, 20 * S_);
            both = scene_creation(sim, pair, 2, 2);
            sim_pass(sim, 1, 21 * S_);
            sim_pass(sim, 0, S_);
            for (uint32_t r = 0; r < 2; r++) {
                sim_return(sim, r);
            }
            sim_send(sim, 0, both, 1, 256);
            sim_recv(sim, 1, both, 0, 256);
            for (uint32_t r = 0; r < 2; r++) {
                sim_sync(sim, r);
            }
            for (uint32_t r = 2; r < n; r++) {
                sim_pass(sim, r, 21 * S_);
            }
            all_train(sim, w, 2);
            expect_after(sim, "", NULL);
            continue;
        }
        uint32_t alone[1] = {1};
        (void)scene_creation(sim, alone, 1, 2);
        sim->patience_ns = 20 * S_;
        expect_after(sim, n == 2 ? "suspected init-missing 0" : "suspected init-missing -", NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_that_start_far_apart),
        cmocka_unit_test(test_a_checkpoint_of_rank_0_beside_a_barrier),
        cmocka_unit_test(test_a_data_loader_that_stalls),
        cmocka_unit_test(test_an_evaluation_on_rank_0_alone),
        cmocka_unit_test(test_a_last_batch_that_one_rank_lacks),
        cmocka_unit_test(test_gathered_predictions_of_other_lengths),
        cmocka_unit_test(test_messages_in_batches_around_a_ring),
        cmocka_unit_test(test_graphs_that_are_replayed),
        cmocka_unit_test(test_rank_0_saves_when_the_others_have_gone),
        cmocka_unit_test(test_stages_that_meet_with_their_first_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
