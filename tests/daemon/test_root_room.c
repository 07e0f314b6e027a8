/*
 * test_root_room.c: which runs a root forgets when their ranks ask for much, when, and what the others may still have
 * (daemon/root/root_room.c). What an engine does with its room: unit.engine_budget.
 *
 * The engines are real ones, of one rank that defines communicators; the room is small, and the clock is a number here.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/base/clock.h"
#include "daemon/root/root_state.h"

#include <stdlib.h>
#include <string.h>

#define MIB  (UINT64_C(1) << 20)
#define S    (1000 * ROLL_MS)
#define ROOM (64 * MIB) /* a run may have 8 MiB of it, of which one rank gets half: two ranks ask */

static roll_root_t *root;

static int set_up(void **state)
{
    (void)state;
    root = calloc(1, sizeof(*root));
    if (root) {
        root->o.room = ROOM;
        root->runs = calloc(64, sizeof(struct roll_run *));
        root->runs_room = 64;
    }
    return root && root->runs ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    while (root->runs_used > 0) {
        roll_run_destroy(&root->runs[--root->runs_used]);
    }
    free(root->runs);
    free(root);
    return 0;
}

static uint64_t shared_of(size_t run)
{
    return roll_engine_shared(roll_feed_engine(root->runs[run]->feed));
}

/* A run whose two ranks ask for all that they may have. */
static struct roll_run *begin(char name)
{
    struct roll_run *run = calloc(1, sizeof(*run));
    struct roll_engine_config config = {.memory = ROOM / 8};
    assert_non_null(run);
    run->job[0] = name;
    run->feed = roll_feed_new(&config, run->job, 0);
    assert_non_null(run->feed);
    roll_engine_t *e = roll_feed_engine(run->feed);
    for (uint32_t rank = 0; rank < 2; rank++) {
        uint32_t source;
        struct roll_source_info info = {.stream = rank + 1, .world_rank = (int32_t)rank, .world_size = 2};
        assert_int_equal(roll_engine_open(e, &info, &source), 0);
        for (uint32_t i = 0; i < 80; i++) {
            struct roll_def def = {
                .type = ROLL_DEF_COMM,
                .id = i + 1,
                .comm.info = {.key = (rank + 1) * 1000 + i, .rank = 0, .nranks = 1 << 10, .origin = 1}};
            assert_int_equal(roll_engine_define(e, source, &def), 0);
        }
    }
    root->runs[root->runs_used++] = run;
    return run;
}

static void end(struct roll_run *run)
{
    for (uint32_t source = 0; source < 2; source++) {
        assert_int_equal(roll_engine_process(roll_feed_engine(run->feed), source, ROLL_PROC_FINISHED, 0), 0);
    }
}

/* The names of the runs that are left. */
static const char *left(uint64_t now)
{
    static char names[65];
    memset(names, 0, sizeof(names));
    roll_room_share(root, now);
    for (size_t i = 0; i < root->runs_used; i++) {
        names[i] = root->runs[i]->job[0];
    }
    return names;
}

static void test_runs_that_have_just_ended_stay(void **state)
{
    (void)state;
    struct roll_run *a = begin('a'), *b = begin('b'), *c = begin('c');
    uint64_t one = shared_of(0);
    assert_true(one > ROOM / 16 && one <= ROOM / 8);
    for (char name = 'd'; root->runs_used * one <= ROOM / 2; name++) {
        (void)begin(name);
    }
    size_t all = root->runs_used;
    assert_true(all * one < ROOM / 4 * 3);
    assert_int_equal(strlen(left(100 * S)), all);
    end(b);
    assert_int_equal(strlen(left(101 * S)), all);
    end(a);
    end(c);
    assert_int_equal(strlen(left(102 * S)), all);
    assert_int_equal(strlen(left(160 * S)), all);
    assert_int_equal(strncmp(left(161 * S), "acd", 3), 0); /* b has ended first, and half is enough */
    assert_int_equal(strlen(left(1000 * S)), all - 1);
    (void)begin('x');
    assert_int_equal(strncmp(left(1001 * S), "cd", 2), 0);
}

static void test_they_go_where_a_run_could_not_have_its_part(void **state)
{
    (void)state;
    struct roll_run *a = begin('a'), *b = begin('b');
    uint64_t one = shared_of(0);
    end(b);
    assert_int_equal(strcmp(left(100 * S), "ab"), 0);
    end(a);
    for (char name = 'c'; root->runs_used * one <= ROOM / 4 * 3; name++) {
        (void)begin(name);
    }
    assert_int_equal(strncmp(left(101 * S), "acd", 3), 0); /* the one that has ended first, and no other */
    size_t rest = root->runs_used;
    struct roll_engine_config config;
    roll_engine_settings(roll_feed_engine(root->runs[rest - 1]->feed), &config);
    assert_true(config.memory == ROOM / 8); /* a run may have as much as ever */
    while (root->runs_used * one < 2 * ROOM) {
        (void)begin('y');
    }
    assert_int_equal(strncmp(left(102 * S), "cd", 2), 0); /* who lives stays */
    roll_engine_settings(roll_feed_engine(root->runs[0]->feed), &config);
    assert_true(config.memory < ROOM / 8 + MIB && config.memory >= ROOM / 64);
}

/* A second case that judges the same records is refused the same: that counts once. */
static void test_cases_count_once_what_they_are_refused(void **state)
{
    (void)state;
    struct roll_run *run = begin('a'), *other = begin('b');
    uint64_t one = roll_engine_refusals(roll_feed_engine(run->feed));
    assert_true(one > 0);
    assert_int_equal(roll_run_no_room(run), one);
    run->judge = other->feed;
    assert_int_equal(roll_run_no_room(run), 2 * one);
    run->judge = NULL; /* the case is over */
    run->no_room = one;
    assert_int_equal(roll_run_no_room(run), 2 * one);
    run->judge = other->feed;
    assert_int_equal(roll_run_no_room(run), 2 * one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cases_count_once_what_they_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_runs_that_have_just_ended_stay, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_they_go_where_a_run_could_not_have_its_part, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
