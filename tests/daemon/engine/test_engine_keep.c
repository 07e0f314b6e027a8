/*
 * test_engine_keep.c: what detectors keep of the engine, its sources, communicators and members (detect/state.h), and
 * the template for new detectors, which is in no table and would rot unseen.
 */
#include "daemon/engine/detect/detector.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 2

/* The places that the rows of the table have, by kind of object, in their order; -1: none. */
struct row {
    const char *name;
    int place[4];
};

#define PLACE(kind, name, keeps) ((keeps) ? (int)STATE_##kind##_##name : -1)
#define DETECTOR(name, engine, source, comm, member)                                                                   \
    {#name,                                                                                                            \
     {PLACE(ENGINE, name, engine), PLACE(SOURCE, name, source), PLACE(COMM, name, comm),                               \
      PLACE(MEMBER, name, member)}},
#define DETECTOR_TEMPLATE DETECTOR
static const struct row rows[] = {
#include "daemon/engine/detect/detectors.def"
};
#undef DETECTOR_TEMPLATE
#undef DETECTOR
#define ROWS (sizeof(rows) / sizeof(rows[0]))

static const int places[4] = {STATE_ENGINE_PLACES, STATE_SOURCE_PLACES, STATE_COMM_PLACES, STATE_MEMBER_PLACES};

static void no_two_detectors_have_one_place(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        int next = 0;
        for (size_t i = 0; i < ROWS; i++) {
            if (rows[i].place[kind] >= 0) {
                assert_int_equal(rows[i].place[kind], next);
                next++;
            }
        }
        assert_int_equal(next, places[kind]);
    }
}

static void a_row_names_its_detector_and_says_what_it_keeps_of_the_engine(void **state)
{
    (void)state;
    assert_int_equal(ROWS, DETECTORS + 1); /* the last is the template */
    for (size_t i = 0; i < DETECTORS; i++) {
        const struct detector *d = detectors[i];
        assert_string_equal(d->name, rows[i].name);
        assert_int_equal(d->engine_bytes != 0, rows[i].place[0] >= 0);
        if (d->engine_bytes != 0) {
            assert_int_equal(d->engine_place, rows[i].place[0]);
        }
        assert_true(d->disagree || d->pair || d->block || d->record || d->lost || d->tick || d->comm_fini);
        assert_ptr_not_equal(d, &detect_null);
    }
}

static void a_state_is_made_once_and_found_again(void **state)
{
    void **table = NULL;
    (void)state;
    uint64_t *first = state_make(&table, 3, 1, sizeof(*first)), *second = state_make(&table, 3, 2, sizeof(*second));
    assert_non_null(first);
    assert_non_null(second);
    assert_ptr_not_equal(first, second);
    assert_int_equal(*first, 0);
    *first = 1;
    *second = 2;
    assert_ptr_equal(state_make(&table, 3, 1, sizeof(*first)), first);
    assert_int_equal(*first, 1);
    assert_null(table[0]);
    state_free(&table, 3);
    assert_null(table);
    state_free(&table, 3); /* nobody has kept anything */
}

/* An engine in which two ranks have one communicator. */
static roll_engine_t *engine_of_two(void)
{
    roll_engine_t *e = roll_engine_new(&(struct roll_engine_config){.stall_ns = 0});
    assert_non_null(e);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct roll_source_info info = {.stream = r + 1, .world_rank = (int32_t)r, .world_size = RANKS};
        struct roll_def def = {.type = ROLL_DEF_COMM, .id = 1};
        uint32_t source;
        def.comm.info.key = 77;
        def.comm.info.nranks = RANKS;
        def.comm.info.rank = (int32_t)r;
        assert_int_equal(roll_engine_open(e, &info, &source), 0);
        assert_int_equal(roll_engine_define(e, source, &def), 0);
    }
    return e;
}

static void an_engine_has_the_states_of_the_engine_and_no_others(void **state)
{
    (void)state;
    roll_engine_t *e = engine_of_two();
    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i].place[0] >= 0 && i < DETECTORS) {
            assert_non_null(e->state[rows[i].place[0]]);
        }
    }
    assert_null(e->source[0]->state);
    assert_null(e->comm[0]->state);
    assert_null(e->comm[0]->member[0].state);
    roll_engine_destroy(&e);
}

static bool any_state(void *const *table, int count, int but)
{
    for (int i = 0; table && i < count; i++) {
        if (i != but && table[i]) {
            return true;
        }
    }
    return false;
}

/* All hooks of the template are there and do what its comments say; what it keeps meets nobody else's state. */
static void the_template_is_a_detector(void **state)
{
    const struct detector *d = &detect_null;
    (void)state;
    assert_string_equal(d->name, "null");
    assert_true(d->init && d->disagree && d->pair && d->block && d->record && d->lost && d->tick && d->fini);
    assert_true(d->source_fini && d->member_fini && d->comm_fini);

    roll_engine_t *e = engine_of_two();
    assert_null(e->state[d->engine_place]);
    assert_int_equal(detector_open(e, d), 0);
    assert_non_null(e->state[d->engine_place]);

    struct roll_record rec = {.op = ROLL_OP_MOE_COUNTS, .comm = 1, .seal = roll_seal(0, ROLL_STATE_RETURNED)};
    struct comm *c = e->comm[0];
    d->record(e, 0, &rec, 0, true);
    d->record(e, 1, &rec, 0, true);
    void *of_comm = c->state[STATE_COMM_null], *of_first = c->member[0].state[STATE_MEMBER_null];
    assert_non_null(of_comm);
    assert_non_null(of_first);
    assert_ptr_not_equal(of_first, c->member[1].state[STATE_MEMBER_null]);
    d->record(e, 0, &rec, 1, true);
    assert_ptr_equal(c->state[STATE_COMM_null], of_comm);
    assert_ptr_equal(c->member[0].state[STATE_MEMBER_null], of_first);
    assert_false(any_state(c->state, STATE_COMM_PLACES, STATE_COMM_null));
    assert_false(any_state(c->member[0].state, STATE_MEMBER_PLACES, STATE_MEMBER_null));

    assert_null(e->source[0]->state);
    d->lost(e, 0, 1);
    assert_non_null(e->source[0]->state[STATE_SOURCE_null]);
    assert_false(any_state(e->source[0]->state, STATE_SOURCE_PLACES, STATE_SOURCE_null));
    assert_null(e->source[1]->state);

    d->tick(e);
    assert_false(d->disagree(e, NULL));
    assert_false(d->pair(e, NULL, 0));
    assert_false(d->block(e, &(struct block){.kind = BLOCK_DEAD}));
    assert_null(roll_engine_next(e));

    d->fini(e); /* nobody in the table does it */
    for (uint32_t r = 0; r < RANKS; r++) {
        d->source_fini(e->source[r]);
        d->member_fini(&c->member[r]);
    }
    d->comm_fini(c);
    roll_engine_destroy(&e); /* frees the states: a run under AddressSanitizer sees whether all */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_two_detectors_have_one_place),
        cmocka_unit_test(a_row_names_its_detector_and_says_what_it_keeps_of_the_engine),
        cmocka_unit_test(a_state_is_made_once_and_found_again),
        cmocka_unit_test(an_engine_has_the_states_of_the_engine_and_no_others),
        cmocka_unit_test(the_template_is_a_detector),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
