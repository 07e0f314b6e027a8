/*
 * test_engine_sequence.c: same place, different call; skipped, added and reordered calls; zero counts; each with its
 * healthy twin.
 */
#include "tests/daemon/engine/sim.h"

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

static void traffic(struct sim *sim, uint32_t comm, uint32_t n, uint64_t count)
{
    for (uint32_t i = 0; i < n; i++) {
        sim_all(sim, comm, AR, count);
    }
}

static void sync_all(struct sim *sim, bool stuck)
{
    for (uint32_t r = 0; r < sim->ranks; r++) {
        if (stuck) {
            sim_stuck(sim, r);
        } else {
            sim_sync(sim, r);
        }
    }
}

typedef void (*bend)(struct roll_record *rec);

static void bend_count(struct roll_record *rec)
{
    rec->count = 1000;
}
static void bend_dtype(struct roll_record *rec)
{
    rec->dtype = ROLL_DTYPE_INT32;
}
static void bend_wide(struct roll_record *rec)
{
    rec->dtype = ROLL_DTYPE_FLOAT64;
}
static void bend_redop(struct roll_record *rec)
{
    rec->redop = ROLL_RED_MAX;
}
static void bend_nothing(struct roll_record *rec)
{
    (void)rec;
}

/* The last rank's call is bent; expected: finding naming it, or a tie at two ranks. */
static void check_bent(enum roll_op op, bend wrong, const char *code)
{
    for (size_t i = 0; i < SIZES; i++) {
        for (int history = 0; history < 2; history++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim);
            traffic(sim, w, history ? 8 : 0, 256);
            for (uint32_t r = 0; r < sizes[i]; r++) {
                struct roll_record *rec = sim_call(sim, r, w, op, 1024);
                if (r == sizes[i] - 1) {
                    wrong(rec);
                }
            }
            traffic(sim, w, 8, 256);
            sync_all(sim, code != NULL && strcmp(code, "redop-mismatch") != 0);
            char want[128] = "";
            if (code) {
                if (sizes[i] == 2) {
                    snprintf(want, sizeof(want), "proven %s -", code);
                } else {
                    snprintf(want, sizeof(want), "proven %s %u", code, sizes[i] - 1);
                }
            }
            sim_expect(sim, want);
            sim_destroy(&sim);
        }
    }
}

static void test_different_count_is_proven_and_named(void **state)
{
    (void)state;
    check_bent(AR, bend_count, "count-mismatch");
    check_bent(ROLL_OP_ALLGATHER, bend_count, "count-mismatch");
    check_bent(AR, bend_nothing, NULL);
}

static void test_different_datatype_matters_for_reductions_only(void **state)
{
    (void)state;
    check_bent(AR, bend_dtype, "dtype-mismatch");
    check_bent(ROLL_OP_ALLGATHER, bend_dtype, NULL);
    check_bent(ROLL_OP_BROADCAST, bend_dtype, NULL);
}

/* 64 float64 against 64 float32: other bytes because of another datatype. */
static void test_other_bytes_because_of_the_datatype_are_told_as_the_datatype(void **state)
{
    (void)state;
    check_bent(ROLL_OP_ALLGATHER, bend_wide, "dtype-mismatch");
    check_bent(ROLL_OP_BROADCAST, bend_wide, "dtype-mismatch");
}

static void test_as_many_bytes_of_another_datatype_are_a_note_once_per_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (unsigned sites = 0; sites < 2; sites++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), last = sizes[i] - 1;
            for (uint32_t step = 0; step < 5; step++) {
                for (uint32_t place = 0; place < 2; place++) {
                    sim->site = (uint16_t)(sites ? place + 1 : 0);
                    for (uint32_t r = 0; r < sizes[i]; r++) {
                        struct roll_record *rec = sim_call(sim, r, w, ROLL_OP_ALLGATHER, 64 + place * (sites ? 0 : 8));
                        rec->dtype = r == last ? ROLL_DTYPE_INT32 : ROLL_DTYPE_FLOAT32;
                    }
                    sim_all(sim, w, ROLL_OP_ALLGATHER, 128); /* healthy */
                }
            }
            sync_all(sim, false);
            sim_expect(sim, "");
            for (uint32_t order = 0; order < SIM_ORDERS; order++) {
                char *got = sim_run(sim, order, true, false);
                assert_string_equal(got, "note dtype-mismatch -; note dtype-mismatch -");
                free(got);
            }
            sim_destroy(&sim);
        }
    }
}

static void test_different_reduction_is_proven_and_named(void **state)
{
    (void)state;
    check_bent(AR, bend_redop, "redop-mismatch");
    check_bent(ROLL_OP_REDUCESCATTER, bend_redop, "redop-mismatch");
}

static void test_after_a_different_reduction_watching_goes_on(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    traffic(sim, w, 5, 256);
    for (uint32_t r = 0; r < 4; r++) {
        sim_call(sim, r, w, AR, 64)->redop = r == 1 ? ROLL_RED_MIN : ROLL_RED_SUM;
    }
    sim->site = 2;
    traffic(sim, w, 5, 256);
    sim->site = 3;
    for (uint32_t r = 0; r < 4; r++) {
        sim_call(sim, r, w, AR, r == 2 ? 65 : 64);
        sim_stuck(sim, r);
    }
    sim_expect(sim, "proven count-mismatch 2; proven redop-mismatch 1");
    sim_destroy(&sim);
}

static void bend_root(struct roll_record *rec)
{
    rec->peer = 1;
}
static void test_different_root_is_proven_and_named(void **state)
{
    (void)state;
    check_bent(ROLL_OP_BROADCAST, bend_root, "root-mismatch");
    check_bent(ROLL_OP_REDUCE, bend_root, "root-mismatch");
}

static void bend_op(struct roll_record *rec)
{
    rec->op = ROLL_OP_BROADCAST;
    rec->peer = 0;
}
static void test_different_operation_is_proven_and_named(void **state)
{
    (void)state;
    check_bent(AR, bend_op, "op-mismatch");
}

/*
 * Nothing follows: by its place in the program the argument is wrong, proven; without places it may as well be another
 * call, and the verdict says so.
 */
static void test_mismatch_as_the_last_call_is_told_too(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (unsigned sites = 0; sites < 3; sites++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), last = sizes[i] - 1;
            sim->helper = sites == 2;
            sim->site = sites > 0;
            traffic(sim, w, 4, 256);
            sim->site = sites > 0 ? 2 : 0;
            for (uint32_t r = 0; r < sizes[i]; r++) {
                sim_call(sim, r, w, AR, r == last ? 500 : 1024);
            }
            sync_all(sim, true);
            char want[64], who[16] = "-";
            if (sizes[i] > 2) {
                snprintf(who, sizeof(who), "%u", last);
            }
            snprintf(want, sizeof(want), "%s count-mismatch %s", sites ? "proven" : "suspected", who);
            sim_expect(sim, want);
            if (!sites) {
                char *text = sim_run(sim, 0, false, true);
                assert_non_null(strstr(text, "fit call-skipped, call-added and calls-reordered as well"));
                free(text);
            }
            sim_destroy(&sim);
        }
    }
}

static void model(struct sim *sim, uint32_t w, uint32_t rank, int left_out, int twice)
{
    for (int layer = 0; layer < 6; layer++) {
        for (int k = 0; k < (layer == left_out ? 0 : layer == twice ? 2 : 1); k++) {
            sim_call(sim, rank, w, AR, (uint64_t)(layer + 1) * 128);
        }
    }
}

static void check_shift(int left_out, int twice, bool history, const char *many, const char *two)
{
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), last = sizes[i] - 1;
        for (uint32_t r = 0; r < sizes[i]; r++) {
            for (int step = 0; history && step < 3; step++) {
                model(sim, w, r, -1, -1);
                sim_sync(sim, r);
            }
            model(sim, w, r, r == last ? left_out : -1, r == last ? twice : -1);
            model(sim, w, r, -1, -1);
            sim_stuck(sim, r);
        }
        char want[64];
        if (sizes[i] == 2) {
            snprintf(want, sizeof(want), "proven %s -", two);
        } else {
            snprintf(want, sizeof(want), "proven %s %u", many, last);
        }
        sim_expect(sim, want);
        sim_destroy(&sim);
    }
}

static void test_skipped_call_is_aligned(void **state)
{
    (void)state;
    check_shift(2, -1, true, "call-skipped", "call-skipped");
    check_shift(2, -1, false, "call-skipped", "sequence-tie");
    check_shift(0, -1, true, "call-skipped", "call-skipped");
}

static void test_added_call_is_aligned(void **state)
{
    (void)state;
    check_shift(-1, 2, true, "call-added", "call-added");
    check_shift(-1, 2, false, "call-added", "sequence-tie");
}

static void test_swapped_calls_are_a_reordering(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), last = sizes[i] - 1;
        for (uint32_t r = 0; r < sizes[i]; r++) {
            model(sim, w, r, -1, -1);
            sim_call(sim, r, w, AR, r == last ? 256 : 128);
            sim_call(sim, r, w, AR, r == last ? 128 : 256);
            model(sim, w, r, -1, -1);
            sim_stuck(sim, r);
        }
        char want[64];
        snprintf(want, sizeof(want), sizes[i] == 2 ? "proven calls-reordered -" : "proven calls-reordered %u", last);
        sim_expect(sim, want);
        sim_destroy(&sim);
    }
}

static void test_reordering_inside_one_group_is_only_suspected(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    traffic(sim, w, 4, 64);
    for (uint32_t r = 0; r < 4; r++) {
        sim_group(sim, r);
        sim_call(sim, r, w, AR, r == 3 ? 256 : 128);
        sim_call(sim, r, w, AR, r == 3 ? 128 : 256);
        sim_group_end(sim, r);
    }
    traffic(sim, w, 4, 64);
    sync_all(sim, false);
    sim_expect(sim, "suspected calls-reordered 3");
    sim_destroy(&sim);
}

static void test_half_against_half_is_a_tie(void **state)
{
    (void)state;
    for (uint32_t n = 4; n <= 64; n *= 2) {
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        for (uint32_t r = 0; r < n; r++) {
            model(sim, w, r, -1, -1);
            for (int k = 0; k < 4; k++) {
                sim_call(sim, r, w, r < n / 2 ? ROLL_OP_ALLGATHER : ROLL_OP_REDUCESCATTER, 300);
            }
            sim_stuck(sim, r);
        }
        sim_expect(sim, "proven op-mismatch -");
        sim_destroy(&sim);
    }
}

static void test_zero_count_on_one_rank_is_named_even_at_two(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (uint32_t bad = 0; bad < 2; bad++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), who = bad ? 0 : sizes[i] - 1;
            traffic(sim, w, 8, 256);
            for (uint32_t r = 0; r < sizes[i]; r++) {
                sim_call(sim, r, w, ROLL_OP_REDUCESCATTER, r == who ? 0 : 64);
            }
            traffic(sim, w, 8, 256);
            sync_all(sim, true);
            char want[64];
            snprintf(want, sizeof(want), "proven zero-count %u", who);
            sim_expect(sim, want);
            sim_destroy(&sim);
        }
    }
}

/* The rank with the zero count goes on with a call of another communicator, to which its peers do not come: a circle,
 * whose cause is the dropped call. */
static void test_zero_count_behind_a_circle_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (uint32_t sick = 0; sick < 2; sick++) {
            for (uint32_t odd = 0; odd < 2; odd++) {
                struct sim *sim = sim_new(sizes[i]);
                uint32_t w = sim_world(sim), dp = sim_comm(sim, "dp", NULL, sizes[i]), who = odd ? 0 : sizes[i] - 1;
                for (uint32_t r = 0; r < sizes[i]; r++) {
                    bool stuck = false;
                    for (uint32_t k = 0; k < 6 && !stuck; k++) {
                        bool dropped = sick && k >= 3 && r == who;
                        sim_call(sim, r, w, AR, 256);
                        stuck = dropped && k == 4;
                        if (!stuck) {
                            sim_sync(sim, r);
                            sim_call(sim, r, dp, ROLL_OP_REDUCESCATTER, 0); /* on all ranks: healthy */
                            sim_call(sim, r, dp, ROLL_OP_ALLGATHER, dropped ? 0 : 64);
                            stuck = sick && k == 3 && r != who;
                        }
                        if (stuck) {
                            sim_stuck(sim, r);
                        } else {
                            sim_sync(sim, r);
                        }
                    }
                }
                char want[64] = "";
                if (sick) {
                    snprintf(want, sizeof(want), "proven zero-count %u", who);
                }
                sim_expect(sim, want);
                sim_destroy(&sim);
            }
        }
    }
}

static void test_zero_count_on_most_ranks_blames_those(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    traffic(sim, w, 8, 256);
    for (uint32_t r = 0; r < 4; r++) {
        sim_call(sim, r, w, ROLL_OP_REDUCESCATTER, r != 1 ? 0 : 64);
    }
    traffic(sim, w, 8, 256);
    sync_all(sim, true);
    sim_expect(sim, "proven zero-count 0,2-3");
    sim_destroy(&sim);
}

static void test_zero_count_among_equal_calls_is_found_at_the_end(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    traffic(sim, w, 5, 256);
    for (uint32_t r = 0; r < 3; r++) {
        sim_call(sim, r, w, AR, r == 2 ? 0 : 256);
    }
    traffic(sim, w, 5, 256);
    for (uint32_t r = 0; r < 2; r++) {
        sim_stuck(sim, r);
    }
    sim_proc(sim, 2, ROLL_PROC_FINISHED, SIM_EXIT(0));
    sim_expect(sim, "proven zero-count 2");
    sim_destroy(&sim);
}

static void test_zero_counts_everywhere_or_extra_are_healthy(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    for (int i = 0; i < 5; i++) {
        traffic(sim, w, 1, 0);
        traffic(sim, w, 1, 128);
        sim_call(sim, 2, w, AR, 0);
    }
    sync_all(sim, false);
    sim_expect(sim, "");
    sim_destroy(&sim);
}

static void test_failed_call_counts_as_left_out(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    traffic(sim, w, 3, 128);
    for (uint32_t r = 0; r < 3; r++) {
        struct roll_record *rec = sim_call(sim, r, w, AR, 256);
        rec->result = r == 1 ? 4 : 0;
    }
    sync_all(sim, true);
    sim_expect(sim, "suspected call-refused 1");
    sim_destroy(&sim);
}

static void test_group_boundaries_that_differ_are_suspected(void **state)
{
    (void)state;
    for (int sick = 0; sick < 2; sick++) {
        struct sim *sim = sim_new(3);
        uint32_t w = sim_world(sim);
        for (uint32_t r = 0; r < 3; r++) {
            for (int k = 0; k < 4; k++) {
                sim_group(sim, r);
                sim_call(sim, r, w, AR, 128);
                if (r == 2 && sick && k == 2) {
                    sim_group_end(sim, r);
                    sim_group(sim, r);
                }
                sim_call(sim, r, w, AR, 64);
                sim_group_end(sim, r);
                if (r == 1) { /* a group of one is no group */
                    sim_group(sim, r);
                    sim_call(sim, r, w, AR, 32);
                    sim_group_end(sim, r);
                } else {
                    sim_call(sim, r, w, AR, 32);
                }
            }
            sim_sync(sim, r);
        }
        sim_expect(sim, sick ? "suspected group-mismatch -" : "");
        sim_destroy(&sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_different_count_is_proven_and_named),
        cmocka_unit_test(test_different_datatype_matters_for_reductions_only),
        cmocka_unit_test(test_other_bytes_because_of_the_datatype_are_told_as_the_datatype),
        cmocka_unit_test(test_as_many_bytes_of_another_datatype_are_a_note_once_per_place),
        cmocka_unit_test(test_different_reduction_is_proven_and_named),
        cmocka_unit_test(test_after_a_different_reduction_watching_goes_on),
        cmocka_unit_test(test_different_root_is_proven_and_named),
        cmocka_unit_test(test_different_operation_is_proven_and_named),
        cmocka_unit_test(test_mismatch_as_the_last_call_is_told_too),
        cmocka_unit_test(test_skipped_call_is_aligned),
        cmocka_unit_test(test_added_call_is_aligned),
        cmocka_unit_test(test_swapped_calls_are_a_reordering),
        cmocka_unit_test(test_reordering_inside_one_group_is_only_suspected),
        cmocka_unit_test(test_group_boundaries_that_differ_are_suspected),
        cmocka_unit_test(test_half_against_half_is_a_tie),
        cmocka_unit_test(test_zero_count_on_one_rank_is_named_even_at_two),
        cmocka_unit_test(test_zero_count_behind_a_circle_is_named),
        cmocka_unit_test(test_zero_count_on_most_ranks_blames_those),
        cmocka_unit_test(test_zero_count_among_equal_calls_is_found_at_the_end),
        cmocka_unit_test(test_zero_counts_everywhere_or_extra_are_healthy),
        cmocka_unit_test(test_failed_call_counts_as_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
