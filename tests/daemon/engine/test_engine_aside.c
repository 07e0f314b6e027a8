/*
 * test_engine_aside.c: a rank that is left aside or cut, or whose agent is silent, is nobody's reason: its silence is
 * no evidence, and it is never named for it.
 *
 * Each row is a job that stands, in which something is said because of what one rank does not do. Told that this rank
 * is left aside, the engine says nothing at all, however long it lasts; told that it is not heard, it names nobody.
 */
#include "tests/daemon/engine/scenes.h"
#include "tests/daemon/engine/stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define RANKS 4u

static const uint32_t all[RANKS] = {0, 1, 2, 3};

/* Rank 3 does not make the call of all. */
static void absent(struct sim *sim)
{
    uint32_t world = sim_world(sim);
    sim_all(sim, world, ROLL_OP_ALLREDUCE, 1024);
    for (uint32_t r = 0; r + 1 < RANKS; r++) {
        sim_call(sim, r, world, ROLL_OP_ALLREDUCE, 1024);
        sim_stuck(sim, r);
    }
}

/* Rank 3 stands in a wait for something else. */
static void blocked(struct sim *sim)
{
    absent(sim);
    sim_stuck(sim, 3);
}

/* Rank 3 does not join a communicator of all. */
static void unjoined(struct sim *sim)
{
    scene_creation(sim, all, 3, 4);
}

/* The same, and the definitions of the communicator are lost: who is inside is known by the numbers of creations. */
static void undefined(struct sim *sim)
{
    unjoined(sim);
    for (uint32_t r = 0; r < 3; r++) {
        struct sim_event *define = &sim->rank[r].event[sim->rank[r].events - 2];
        assert_int_equal(define->kind, SIM_DEFINE);
        *define = (struct sim_event){.kind = SIM_PASS};
    }
}

/* One rank waits for another in the creation of a communicator of two: rank 3 may be that one. */
static void unjoined_part(struct sim *sim)
{
    scene_creation(sim, all, 1, 2);
}

/* The same without definitions. */
static void undefined_part(struct sim *sim)
{
    unjoined_part(sim);
    sim->rank[0].event[sim->rank[0].events - 2] = (struct sim_event){.kind = SIM_PASS};
}

/* Rank 3 does not join a split, before which the ranks have made calls of which some are not over. */
static void unsplit(struct sim *sim)
{
    uint32_t world = sim_world(sim);
    sim_all(sim, world, ROLL_OP_ALLREDUCE, 1024);
    for (uint32_t r = 0; r + 1 < RANKS; r++) {
        struct roll_record *rec = sim_record(sim, r, ROLL_OP_COMM_SPLIT, world);
        rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
    }
}

/* All stand in one call. */
static void stuck(struct sim *sim)
{
    uint32_t world = sim_world(sim);
    sim_all(sim, world, ROLL_OP_ALLREDUCE, 1024);
    for (uint32_t r = 0; r < RANKS; r++) {
        sim_stuck(sim, r);
    }
}

/* Rank 0 waits for a message of rank 3. */
static void unsent(struct sim *sim)
{
    uint32_t world = sim_world(sim);
    sim_all(sim, world, ROLL_OP_ALLREDUCE, 1024);
    sim_recv(sim, 0, world, 3, 64);
    sim_stuck(sim, 0);
}

/* Rank 0 has aborted; whether rank 3 has is what decides. */
static void aborted(struct sim *sim)
{
    uint32_t world = sim_world(sim);
    sim_all(sim, world, ROLL_OP_ALLREDUCE, 1024);
    sim_record(sim, 0, ROLL_OP_COMM_ABORT, world);
    for (uint32_t r = 1; r < RANKS; r++) {
        sim_call(sim, r, world, ROLL_OP_ALLREDUCE, 1024);
        sim_stuck(sim, r);
    }
}

static const struct row {
    const char *name;
    void (*play)(struct sim *sim);
    bool said; /* something is said of it when all are heard */
} rows[] = {
    {"a call is not made", absent, true},
    {"a rank is blocked elsewhere", blocked, true},
    {"a member does not join", unjoined, true},
    {"a member does not join, undefined", undefined, true},
    {"a member of two does not join", unjoined_part, true},
    {"a member of two does not join, undefined", undefined_part, true},
    {"a split is not joined", unsplit, true},
    {"all stand in one call", stuck, true},
    {"a message is not sent", unsent, true},
    {"a member aborts alone", aborted, true},
};

enum sight { HEARD, ASIDE, SILENT };

/* What is said when rank 3 is seen so from the moment on at which the job stands; again: and then heard again. */
static void say(const struct row *row, enum sight sight, bool again, char *out, size_t size)
{
    struct stage stage;
    struct sim *sim = sim_new(RANKS);
    row->play(sim);
    stage_open(&stage, sim);
    for (uint32_t r = 0; r < RANKS; r++) {
        stage_show(&stage, r, false);
    }
    if (sight != HEARD) {
        const struct roll_engine_sight seen = {.heard = false, .aside = sight == ASIDE};
        assert_int_equal(roll_engine_sight(stage.e, stage.source[3], &seen), 0);
    }
    size_t soon = 0;
    if (again) { /* long enough for the others to have waited */
        const struct roll_engine_sight heard = {.heard = true};
        (void)stage_pass(&stage, 20000);
        assert_int_equal(roll_engine_sight(stage.e, stage.source[3], &heard), 0);
        soon = (size_t)snprintf(out, size, "%s ", stage_pass(&stage, 3000));
        if (strstr(out, "suspected")) { /* what rank 3 did meanwhile comes now, or later */
            fail_msg("%s: suspected as soon as rank 3 is heard again: '%s'", row->name, out);
        }
    }
    snprintf(out + soon, size - soon, "%s", stage_pass(&stage, 1200000));
    stage_close(&stage);
}

static void test_who_is_left_aside_is_no_reason(void **state)
{
    (void)state;
    char text[1024];
    int wrong = 0;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        say(&rows[i], HEARD, false, text, sizeof(text));
        bool any = strstr(text, "suspected") || strstr(text, "proven");
        if (any != rows[i].said) {
            print_error("%s: heard: '%s'\n", rows[i].name, text);
            wrong++;
        }
        for (int sight = ASIDE; sight <= SILENT; sight++) {
            say(&rows[i], (enum sight)sight, false, text, sizeof(text));
            if (strstr(text, "suspected") || strstr(text, "proven")) {
                print_error("%s: %s: '%s'\n", rows[i].name, sight == ASIDE ? "aside" : "silent", text);
                wrong++;
            }
        }
    }
    assert_int_equal(wrong, 0);
}

/* That a rank was not heard explains the others' wait as long as it is not heard. */
static void test_who_is_heard_again_is_judged(void **state)
{
    (void)state;
    char text[1024];
    int wrong = 0;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        say(&rows[i], SILENT, true, text, sizeof(text));
        bool any = strstr(text, "suspected") || strstr(text, "proven");
        if (any != rows[i].said) {
            print_error("%s: heard again: '%s'\n", rows[i].name, text);
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_who_is_left_aside_is_no_reason),
                                       cmocka_unit_test(test_who_is_heard_again_is_judged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
