/* test_engine_tensors.c: what the job says that its collectives carry stands with the calls of a verdict. */
#include "daemon/engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <string.h>

#define RANKS 4u

struct job {
    roll_engine_t *e;
    uint32_t source[RANKS];
    uint64_t ticket[RANKS];
};

static void name(struct job *j, uint32_t r, uint64_t count, const char *text)
{
    struct roll_def def = {.type = ROLL_DEF_NAME, .id = 1};
    def.name.info = (struct roll_def_name){.count = count,
                                           .kind = ROLL_NAME_TENSORS,
                                           .size = RANKS,
                                           .label_bytes = 2,
                                           .text_bytes = (uint16_t)strlen(text)};
    def.name.label = "dp";
    def.name.text = text;
    assert_int_equal(roll_engine_define(j->e, j->source[r], &def), 0);
}

static void job_new(struct job *j)
{
    struct roll_engine_config config = {.stall_ns = 0};
    *j = (struct job){.e = roll_engine_new(&config)};
    assert_non_null(j->e);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct roll_source_info info = {
            .stream = r + 1, .world_rank = (int32_t)r, .world_size = RANKS, .pid = 100 + r, .host = "a", .exe = "x"};
        assert_int_equal(roll_engine_open(j->e, &info, &j->source[r]), 0);
        struct roll_def def = {.type = ROLL_DEF_COMM, .id = 1, .comm.label = "dp"};
        def.comm.info = (struct roll_def_comm){.key = 77,
                                               .rank = (int32_t)r,
                                               .nranks = RANKS,
                                               .color = ROLL_COLOR_NONE,
                                               .origin = ROLL_COMM_INIT,
                                               .label_bytes = 2};
        assert_int_equal(roll_engine_define(j->e, j->source[r], &def), 0);
    }
}

/* Rank 3 calls with 7 elements, the others with 25; returns the verdict about it. */
static const struct roll_verdict *mismatch(struct job *j)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        struct roll_record rec = {.seal = roll_seal(j->ticket[r]++, ROLL_STATE_RETURNED),
                                  .enter_ns = 1000,
                                  .count = r == 3 ? 7 : 25,
                                  .peer = ROLL_PEER_NONE,
                                  .step = ROLL_STEP_NONE,
                                  .comm = 1,
                                  .stream = 2,
                                  .thread = 1,
                                  .layer = ROLL_LAYER_NONE,
                                  .op = ROLL_OP_ALLREDUCE,
                                  .dtype = ROLL_DTYPE_FLOAT32,
                                  .redop = ROLL_RED_SUM};
        assert_int_equal(roll_engine_feed(j->e, j->source[r], &rec, 1), 0);
    }
    roll_engine_tick(j->e, 2000);
    roll_engine_finish(j->e);
    const struct roll_verdict *v = roll_engine_next(j->e);
    assert_non_null(v);
    assert_int_equal(v->code, ROLL_VERDICT_COUNT_MISMATCH);
    assert_int_equal(v->sides, 2);
    return v;
}

static void test_the_side_with_a_named_count_says_what_it_carries(void **state)
{
    (void)state;
    struct job j;
    job_new(&j);
    for (uint32_t r = 0; r < RANKS; r++) { /* each rank says the same */
        name(&j, r, 25, "bucket 3: a to b\n(2 parameters)");
    }
    const struct roll_verdict *v = mismatch(&j);
    assert_string_equal(v->side[0].tensors, "");
    assert_string_equal(v->side[1].tensors, "bucket 3: a to b?(2 parameters)");
    roll_engine_destroy(&j.e);
}

static void test_several_names_of_one_count_are_counted(void **state)
{
    (void)state;
    struct job j;
    job_new(&j);
    name(&j, 0, 25, "bucket 3");
    name(&j, 1, 25, "bucket 3");
    name(&j, 1, 25, "bucket 4");
    assert_string_equal(mismatch(&j)->side[1].tensors, "bucket 3, or 1 other of as many elements");
    roll_engine_destroy(&j.e);
}

static void test_a_long_name_is_cut_at_a_whole_character(void **state)
{
    (void)state;
    struct job j;
    char text[400] = "";
    job_new(&j);
    for (size_t i = 0; i < 150; i++) {
        strcat(text, "\xc3\xa4");
    }
    name(&j, 0, 25, text);
    const char *said = mismatch(&j)->side[1].tensors;
    assert_in_range(strlen(said), 200, ROLL_VERDICT_TENSORS_BYTES - 1);
    assert_int_equal(strlen(said) % 2, 0);
    roll_engine_destroy(&j.e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_side_with_a_named_count_says_what_it_carries),
        cmocka_unit_test(test_several_names_of_one_count_are_counted),
        cmocka_unit_test(test_a_long_name_is_cut_at_a_whole_character),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
