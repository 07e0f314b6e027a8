/*
 * test_engine_memory.c: detectors without memory for what they keep: no verdict is said twice for want of a mark, and
 * what needs no memory is told all the same.
 *
 * The allocation of one kind of state fails, from the first record on; the rest of the engine has all the memory that
 * it asks for. Where the memory comes back, the verdict that was held back for want of its mark is said, once.
 */
#include "daemon/engine/detect/creation.h"
#include "daemon/engine/detect/refused.h"
#include "daemon/engine/detect/stuck.h"
#include "tests/daemon/engine/scenes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* allocations that fail */

/* What a state is allocated by: state.c. */
struct kind {
    size_t count, bytes;
};
static const struct kind nothing = {0, 0};
static const struct kind states_of_sources = {STATE_SOURCE_PLACES, sizeof(void *)};
static const struct kind refused_state = {1, sizeof(struct refused_source)};
static const struct kind creation_state = {1, sizeof(struct init_comm)};
static const struct kind stuck_state = {1, sizeof(struct stuck_source)};

static struct kind failing;
static unsigned failures;

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

void *__wrap_calloc(size_t count, size_t bytes)
{
    if (failing.count != 0 && count == failing.count && bytes == failing.bytes) {
        failures++;
        return NULL;
    }
    return __real_calloc(count, bytes);
}

/* how often something is said */

struct times {
    unsigned without; /* while the allocations fail */
    unsigned in_all;  /* after as long again, in which the ranks do not, and at the end of the job */
};

static unsigned count_said(roll_engine_t *e, enum roll_verdict_code code)
{
    unsigned n = 0;
    for (const struct roll_verdict *v; (v = roll_engine_next(e));) {
        n += v->code == code;
    }
    return n;
}

/* Feeds the scenario rank by rank, and lets `seconds` pass without memory for `what`, and as many with it. */
static struct times run(struct sim *sim, struct kind what, uint64_t seconds, enum roll_verdict_code code)
{
    roll_engine_t *e = roll_engine_new(&sim->config);
    uint64_t now = 1000 * S_;
    struct times said = {0, 0};
    uint32_t source[8];
    assert_non_null(e);
    assert_true(sim->ranks <= 8);
    roll_engine_tick(e, now);
    failures = 0;
    failing = what;
    for (uint32_t r = 0; r < sim->ranks; r++) {
        source[r] = sim_open(sim, e, r);
    }
    for (uint32_t r = 0; r < sim->ranks; r++) {
        for (size_t i = 0; i < sim->rank[r].events; i++) {
            sim_feed(e, source[r], &sim->rank[r].event[i], &now);
        }
    }
    sim_wait(e, seconds * S_, &now);
    said.without = count_said(e, code);
    assert_true(what.count == 0 || failures > 0);
    failing = nothing;
    sim_wait(e, seconds * S_, &now);
    roll_engine_finish(e);
    said.in_all = said.without + count_said(e, code);
    roll_engine_destroy(&e);
    return said;
}

#define expect_said(sim, what, seconds, code, at_first, at_last)                                                       \
    do {                                                                                                               \
        struct times said = run(sim, what, seconds, code);                                                             \
        assert_int_equal(said.without, at_first);                                                                      \
        assert_int_equal(said.in_all, at_last);                                                                        \
    } while (0)

static void test_a_creation_that_cannot_end_is_told_once(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    for (uint32_t r = 0; r < 3; r++) { /* two of them come as rank 0 */
        struct roll_def_comm *def = &sim->rank[r].event[sim->rank[r].events - 1].def.comm.info;
        def->rank = r == 2 ? 0 : (int32_t)r;
        struct roll_record *rec = sim_record(sim, r, ROLL_OP_COMM_INIT, w);
        rec->count = 3;
        rec->peer = def->rank;
        rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
    }
    expect_said(sim, nothing, 5, ROLL_VERDICT_INIT_MISSING, 1, 1);
    expect_said(sim, creation_state, 5, ROLL_VERDICT_INIT_MISSING, 0, 1);
    sim_destroy(&sim);
}

static void test_a_refused_creation_is_told_once(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    sim_all(sim, w, ROLL_OP_ALLREDUCE, 64);
    for (uint32_t r = 0; r < 3; r++) {
        struct roll_record *rec = sim_record(sim, r, ROLL_OP_COMM_SPLIT, w);
        rec->result = r == 2 ? SCENE_BAD : 0;
        if (r != 2) {
            rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
        }
    }
    expect_said(sim, nothing, 5, ROLL_VERDICT_CALL_REFUSED, 1, 1);
    expect_said(sim, creation_state, 5, ROLL_VERDICT_CALL_REFUSED, 0, 1);
    expect_said(sim, refused_state, 5, ROLL_VERDICT_CALL_REFUSED, 0, 1);
    sim_destroy(&sim);
}

static void test_a_note_about_a_refused_call_is_given_once(void **state)
{
    (void)state;
    struct sim *sim = sim_new(2);
    uint32_t w = sim_world(sim);
    sim_all(sim, w, ROLL_OP_ALLREDUCE, 64);
    for (uint32_t r = 0; r < 2; r++) {
        scene_refused(sim, r, w, 100, AT_ONCE);
    }
    for (uint32_t r = 0; r < 2; r++) {
        sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(1));
    }
    expect_said(sim, nothing, 5, ROLL_VERDICT_CALL_REFUSED, 1, 1); /* one note for both ranks */
    expect_said(sim, refused_state, 5, ROLL_VERDICT_CALL_REFUSED, 0, 1);
    sim_destroy(&sim);
}

/* What was suspected of a refused call is told once more when the rank ends, because it is proven then; and no more. */
static void test_a_refused_call_is_proven_once(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    sim_all(sim, w, ROLL_OP_ALLREDUCE, 64);
    scene_refused(sim, 2, w, 100, AT_ONCE);
    sim_call(sim, 0, w, ROLL_OP_ALLREDUCE, 64);
    sim_call(sim, 1, w, ROLL_OP_ALLREDUCE, 64);
    sim_stuck(sim, 0);
    sim_stuck(sim, 1);
    sim_pass(sim, 2, 10 * S_);
    sim_proc(sim, 2, ROLL_PROC_FINISHED, SIM_EXIT(1));
    expect_said(sim, nothing, 5, ROLL_VERDICT_CALL_REFUSED, 2, 2);
    struct times said = run(sim, refused_state, 5, ROLL_VERDICT_CALL_REFUSED);
    assert_int_equal(said.without, 0);
    assert_true(said.in_all <= 1);
    sim_destroy(&sim);
}

static void test_a_stuck_call_is_told_once(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    sim_all(sim, w, ROLL_OP_ALLREDUCE, 64);
    for (uint32_t r = 0; r < 3; r++) {
        sim_stuck(sim, r);
    }
    expect_said(sim, nothing, 80, ROLL_VERDICT_COLLECTIVE_STUCK, 1, 1);
    expect_said(sim, stuck_state, 80, ROLL_VERDICT_COLLECTIVE_STUCK, 0, 1);
    sim_destroy(&sim);
}

/* Losses are told more than once rather than not at all: what is said of the rank afterwards means less. */
static void test_losses_are_told_without_memory(void **state)
{
    (void)state;
    struct sim *sim = sim_new(2);
    uint32_t w = sim_world(sim);
    for (unsigned i = 0; i < 3; i++) {
        sim_all(sim, w, ROLL_OP_ALLREDUCE, 64);
        sim_lose(sim, 1, 5);
    }
    expect_said(sim, nothing, 5, ROLL_VERDICT_DATA_INCOMPLETE, 1, 1);
    expect_said(sim, states_of_sources, 5, ROLL_VERDICT_DATA_INCOMPLETE, 3, 3);
    sim_destroy(&sim);
}

/* A death is told, and told once, by those who wait for the dead rank. */
static void test_a_death_is_told_without_memory(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    sim_all(sim, w, ROLL_OP_ALLREDUCE, 64);
    sim_call(sim, 0, w, ROLL_OP_ALLREDUCE, 64);
    sim_stuck(sim, 0);
    sim_proc(sim, 2, ROLL_PROC_DEAD, SIM_SIGNAL(SIGSEGV));
    expect_said(sim, nothing, 5, ROLL_VERDICT_RANK_DEAD, 1, 1);
    expect_said(sim, states_of_sources, 5, ROLL_VERDICT_RANK_DEAD, 1, 1);
    sim_destroy(&sim);
}

/* Where nobody waits for the dead rank, its death is told when the memory is there, or at the end of the job. */
static void test_a_death_for_which_nobody_waits_is_told_at_the_end(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    sim_all(sim, w, ROLL_OP_ALLREDUCE, 64);
    sim_proc(sim, 2, ROLL_PROC_DEAD, SIM_SIGNAL(SIGSEGV));
    expect_said(sim, nothing, 5, ROLL_VERDICT_RANK_DEAD, 1, 1);
    expect_said(sim, states_of_sources, 5, ROLL_VERDICT_RANK_DEAD, 0, 1);

    roll_engine_t *e = roll_engine_new(&sim->config);
    uint64_t now = 1000 * S_;
    assert_non_null(e);
    roll_engine_tick(e, now);
    failing = states_of_sources;
    for (uint32_t r = 0; r < 3; r++) {
        uint32_t source = sim_open(sim, e, r);
        for (size_t i = 0; i < sim->rank[r].events; i++) {
            sim_feed(e, source, &sim->rank[r].event[i], &now);
        }
    }
    sim_wait(e, 5 * S_, &now);
    roll_engine_finish(e);
    failing = nothing;
    assert_int_equal(count_said(e, ROLL_VERDICT_RANK_DEAD), 1);
    roll_engine_destroy(&e);
    sim_destroy(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_creation_that_cannot_end_is_told_once),
        cmocka_unit_test(test_a_refused_creation_is_told_once),
        cmocka_unit_test(test_a_note_about_a_refused_call_is_given_once),
        cmocka_unit_test(test_a_refused_call_is_proven_once),
        cmocka_unit_test(test_a_stuck_call_is_told_once),
        cmocka_unit_test(test_losses_are_told_without_memory),
        cmocka_unit_test(test_a_death_is_told_without_memory),
        cmocka_unit_test(test_a_death_for_which_nobody_waits_is_told_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
