/*
 * test_engine_rounds.c: which time round of its loop a job is in, learned from its calls; and when nothing is said.
 */
#include "daemon/engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Two ranks, of which the first is fed. A call is a letter: of another line of the job each, in a function of its own;
 * those of capital letters are in `evaluate`. At the line of `a` also: `2` on a second communicator, `+` of more
 * elements, `^` into a CUDA graph. */
struct job {
    roll_engine_t *engine;
    uint64_t ticket;
    uint32_t seq[3]; /* by communicator */
    uint16_t site[128];
    uint16_t sites;
};

static uint16_t site_of(struct job *job, char letter)
{
    if (job->site[(unsigned char)letter] == 0) {
        bool evaluates = letter >= 'A' && letter <= 'Z';
        const char *function = evaluates ? "Trainer.evaluate" : "train";
        uint16_t id = job->site[(unsigned char)letter] = ++job->sites;
        struct roll_def def = {.type = ROLL_DEF_SOURCE, .id = id};
        def.source.path = "train.py";
        def.source.path_bytes = 8;
        assert_int_equal(roll_engine_define(job->engine, 0, &def), 0);
        def = (struct roll_def){.type = ROLL_DEF_LINE, .id = id};
        def.line.info = (struct roll_def_line){
            .source = id, .line = (uint32_t)letter, .function_bytes = (uint32_t)strlen(function)};
        def.line.function = function;
        assert_int_equal(roll_engine_define(job->engine, 0, &def), 0);
        def = (struct roll_def){.type = ROLL_DEF_CALLSITE, .id = id};
        def.callsite.depth = 1;
        def.callsite.lines = 1;
        def.callsite.pc[0] = 0x1000;
        def.callsite.line[0] = (struct roll_callsite_line){.line = id};
        assert_int_equal(roll_engine_define(job->engine, 0, &def), 0);
    }
    return job->site[(unsigned char)letter];
}

static void begin(struct job *job)
{
    static const struct roll_engine_config config = {.stall_ns = 0};
    *job = (struct job){.engine = roll_engine_new(&config)};
    assert_non_null(job->engine);
    for (uint32_t r = 0; r < 2; r++) {
        uint32_t source;
        const struct roll_source_info info = {.stream = r + 1, .world_rank = (int32_t)r, .world_size = 2};
        struct roll_def def = {.type = ROLL_DEF_COMM, .id = 1};
        def.comm.info = (struct roll_def_comm){
            .key = 1, .rank = (int32_t)r, .nranks = 2, .color = ROLL_COLOR_NONE, .origin = ROLL_COMM_INIT};
        def.comm.label = "";
        assert_int_equal(roll_engine_open(job->engine, &info, &source), 0);
        assert_int_equal(roll_engine_define(job->engine, r, &def), 0);
        def.id = 2;
        def.comm.info.key = 2;
        assert_int_equal(roll_engine_define(job->engine, r, &def), 0);
    }
}

/* Both ranks make the calls of `text`, `times` times. step: as the job tells it. */
static void calls(struct job *job, const char *text, uint32_t times, uint32_t step)
{
    for (uint32_t i = 0; i < times; i++) {
        for (const char *c = text; *c != '\0'; c++) {
            uint16_t comm = *c == '2' ? 2 : 1;
            struct roll_record rec = {.seal = roll_seal(job->ticket++, ROLL_STATE_RETURNED),
                                      .enter_ns = job->ticket,
                                      .op = ROLL_OP_ALLREDUCE,
                                      .comm = comm,
                                      .seq = job->seq[comm]++,
                                      .callsite = site_of(job, strchr("2+^", *c) != NULL ? 'a' : *c),
                                      .count = *c == '+' ? 32 : 16,
                                      .flags = *c == '^' ? ROLL_FLAG_CAPTURED : 0,
                                      .dtype = ROLL_DTYPE_FLOAT32,
                                      .step = step,
                                      .layer = ROLL_LAYER_NONE,
                                      .peer = ROLL_PEER_NONE};
            assert_int_equal(roll_engine_feed(job->engine, 0, &rec, 1), 0);
            rec.callsite = 0;
            assert_int_equal(roll_engine_feed(job->engine, 1, &rec, 1), 0);
        }
    }
}

static void expect(struct job *job, uint32_t step, bool learned)
{
    struct roll_engine_summary s;
    roll_engine_summary(job->engine, &s);
    if (s.step != step || s.step_is_learned != learned) {
        fail_msg("step %d, learned %d, in place of %d, %d", (int)s.step, s.step_is_learned, (int)step, learned);
    }
}

static void test_a_plain_loop_is_counted_when_it_is_firm(void **state)
{
    (void)state;
    struct job job;
    begin(&job);
    calls(&job, "xyxyxxxxxxxxxxxxxxxxxxx", 1, ROLL_STEP_NONE); /* what is made before the loop is no step */
    calls(&job, "abcd", 99, ROLL_STEP_NONE);
    expect(&job, ROLL_STEP_NONE, false);
    calls(&job, "abcd", 1, ROLL_STEP_NONE);
    expect(&job, 100, true);
    calls(&job, "abcd", 1104, ROLL_STEP_NONE);
    calls(&job, "abc", 1, ROLL_STEP_NONE);
    expect(&job, 1204, true);
    roll_engine_destroy(&job.engine);
}

/* Layers inside a step, with fewer kinds of calls than it has, are no steps. */
static void test_layers_are_no_steps(void **state)
{
    (void)state;
    struct job job;
    begin(&job);
    calls(&job, "ababababababcdcdcdcdcdcdef", 150, ROLL_STEP_NONE);
    expect(&job, 150, true);
    roll_engine_destroy(&job.engine);
}

static void test_what_the_job_calls_an_evaluation_stands_beside_the_loop(void **state)
{
    (void)state;
    struct job job;
    begin(&job);
    for (int i = 0; i < 40; i++) {
        calls(&job, "abc", 10, ROLL_STEP_NONE);
        calls(&job, "EEEV", 3, ROLL_STEP_NONE);
    }
    expect(&job, 400, true);
    roll_engine_destroy(&job.engine);
}

/* Something else that comes between now and then: nothing is said until the loop goes on, and then all rounds count. */
static void test_a_break_is_survived(void **state)
{
    (void)state;
    struct job job;
    begin(&job);
    calls(&job, "abc", 130, ROLL_STEP_NONE);
    calls(&job, "pqrst", 1, ROLL_STEP_NONE);
    expect(&job, ROLL_STEP_NONE, false);
    calls(&job, "abc", 170, ROLL_STEP_NONE);
    expect(&job, 300, true);
    calls(&job, "pqrst", 1, ROLL_STEP_NONE);
    calls(&job, "abc", 110, ROLL_STEP_NONE);
    expect(&job, 410, true);
    roll_engine_destroy(&job.engine);
}

/* A loop whose calls differ in their communicator or amount alone is one, and a graph is captured outside of any. */
static void test_what_tells_calls_apart(void **state)
{
    (void)state;
    static const char *const loops[] = {"a2", "a+"};
    for (size_t i = 0; i < sizeof(loops) / sizeof(loops[0]); i++) {
        struct job job;
        begin(&job);
        calls(&job, loops[i], 150, ROLL_STEP_NONE);
        expect(&job, 150, true);
        roll_engine_destroy(&job.engine);
    }
    struct job job;
    begin(&job);
    for (int i = 0; i < 150; i++) {
        calls(&job, "abc", 1, ROLL_STEP_NONE);
        calls(&job, "^", i % 7 == 3, ROLL_STEP_NONE);
    }
    expect(&job, 150, true);
    roll_engine_destroy(&job.engine);
}

/* A loop of another kind is another job to learn: what was counted is forgotten. */
static void test_another_loop_is_counted_anew(void **state)
{
    (void)state;
    struct job job;
    begin(&job);
    calls(&job, "abc", 130, ROLL_STEP_NONE);
    calls(&job, "pqrst", 90, ROLL_STEP_NONE);
    expect(&job, ROLL_STEP_NONE, false);
    calls(&job, "pqrst", 20, ROLL_STEP_NONE);
    expect(&job, 110, true);
    roll_engine_destroy(&job.engine);
}

/* Microbatches, or an evaluation in a function of any name, after each eighth or each 150th round: which of the two
 * loops the steps are is not to be seen. */
static void test_a_loop_in_a_loop_is_not_counted(void **state)
{
    (void)state;
    for (int many = 0; many < 2; many++) {
        struct job job;
        begin(&job);
        for (int i = 0; i < (many ? 3 : 300); i++) {
            calls(&job, "abcd", many ? 150 : 8, ROLL_STEP_NONE);
            calls(&job, "e", 1, ROLL_STEP_NONE);
            if (!many) {
                expect(&job, ROLL_STEP_NONE, false);
            }
        }
        calls(&job, "abcd", 150, ROLL_STEP_NONE);
        expect(&job, many ? ROLL_STEP_NONE : 150, !many); /* 150 rounds in a row are no microbatches */
        roll_engine_destroy(&job.engine);
    }
}

/* The rank that is followed may be the one that makes the mistake: its step is that of the rounds before. */
static void test_the_call_that_breaks_the_loop_is_in_the_step_before(void **state)
{
    (void)state;
    struct job job;
    begin(&job);
    calls(&job, "abc", 130, ROLL_STEP_NONE);
    calls(&job, "ax", 1, ROLL_STEP_NONE);
    expect(&job, 130, true);
    calls(&job, "xxx", 1, ROLL_STEP_NONE);
    expect(&job, ROLL_STEP_NONE, false);
    roll_engine_destroy(&job.engine);
}

static void test_one_call_alone_says_nothing(void **state)
{
    (void)state;
    struct job job;
    begin(&job);
    calls(&job, "a", 5000, ROLL_STEP_NONE);
    expect(&job, ROLL_STEP_NONE, false);
    roll_engine_destroy(&job.engine);
}

/* Numbers that count on records which are missing would be wrong. */
static void test_a_loss_ends_the_counting(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        struct job job;
        begin(&job);
        job.ticket = late ? 7 : 0;
        calls(&job, "abc", 200, ROLL_STEP_NONE);
        expect(&job, late ? ROLL_STEP_NONE : 200, !late);
        assert_int_equal(roll_engine_lost(job.engine, 0, job.ticket, 3), 0);
        job.ticket += 3;
        calls(&job, "abc", 200, ROLL_STEP_NONE);
        expect(&job, ROLL_STEP_NONE, false);
        roll_engine_destroy(&job.engine);
    }
}

static void test_what_the_job_tells_goes_first(void **state)
{
    (void)state;
    struct job job;
    begin(&job);
    calls(&job, "abc", 200, ROLL_STEP_NONE);
    calls(&job, "abc", 1, 7001);
    expect(&job, 7001, false);
    roll_engine_destroy(&job.engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_plain_loop_is_counted_when_it_is_firm),
        cmocka_unit_test(test_layers_are_no_steps),
        cmocka_unit_test(test_what_the_job_calls_an_evaluation_stands_beside_the_loop),
        cmocka_unit_test(test_a_break_is_survived),
        cmocka_unit_test(test_what_tells_calls_apart),
        cmocka_unit_test(test_another_loop_is_counted_anew),
        cmocka_unit_test(test_a_loop_in_a_loop_is_not_counted),
        cmocka_unit_test(test_the_call_that_breaks_the_loop_is_in_the_step_before),
        cmocka_unit_test(test_one_call_alone_says_nothing),
        cmocka_unit_test(test_a_loss_ends_the_counting),
        cmocka_unit_test(test_what_the_job_tells_goes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
