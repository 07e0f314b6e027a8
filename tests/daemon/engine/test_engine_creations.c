/*
 * test_engine_creations.c: communicators that are made and taken down: members that do not join, an abort and what
 * comes after it, a rank that is restarted, creations whose definition is not known.
 */
#include "tests/daemon/engine/scenes.h"
#include "tests/daemon/engine/story.h"

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

#define AR ROLL_OP_ALLREDUCE

static void test_abort_takes_the_communicator_out_of_judgement(void **state)
{
    (void)state;
    uint32_t w;
    struct sim *sim = scene_two_wait(&w);
    for (uint32_t r = 0; r < 3; r++) {
        sim_record(sim, r, ROLL_OP_COMM_ABORT, w);
    }
    sim_proc(sim, 1, ROLL_PROC_DEAD, SIM_SIGNAL(SIGSEGV));
    sim_expect_with_notes(sim, "");
    sim_destroy(&sim);
}

static void test_abort_and_a_new_communicator_is_an_elastic_restart(void **state)
{
    (void)state;
    uint32_t w, rest[2] = {0, 1};
    struct sim *sim = scene_two_wait(&w);
    for (uint32_t r = 0; r < 2; r++) {
        sim_return(sim, r);
        sim_record(sim, r, ROLL_OP_COMM_ABORT, w);
    }
    uint32_t again = sim_comm(sim, "again", rest, 2);
    sim->site = 1;
    for (uint32_t i = 0; i < 20; i++) {
        sim_all(sim, again, AR, 512);
    }
    sim->patience_ns = 4 * S_;
    sim_expect(sim, "");
    sim->site = 2;
    sim_call(sim, 0, again, AR, 5);
    sim_call(sim, 1, again, AR, 6);
    sim_expect(sim, "proven count-mismatch -");
    sim_destroy(&sim);
}

/* `joined` of the four members of a communicator sit in its creation; it is one of `world` ranks. */
static struct sim *creation(uint32_t world, uint32_t joined)
{
    static const uint32_t ranks[4] = {0, 1, 2, 3};
    struct sim *sim = sim_new(world);
    scene_creation(sim, ranks, joined, 4);
    return sim;
}

static void test_creation_that_a_member_does_not_join(void **state)
{
    (void)state;
    struct sim *sim = creation(8, 3); /* nobody can know which of the other five ranks is meant */
    sim_expect(sim, "suspected init-missing -");
    char *text = sim_run(sim, 0, false, true);
    assert_non_null(strstr(text, "1 of its 4 members did not join; which ranks they are is not known."));
    free(text);
    sim_destroy(&sim);
    sim = creation(4, 3);
    sim_expect(sim, "suspected init-missing 3");
    sim_proc(sim, 3, ROLL_PROC_DEAD, SIM_SIGNAL(SIGSEGV));
    sim_expect(sim, "proven init-missing 3");
    sim->patience_ns = S_;
    sim_expect(sim, "proven init-missing 3");
    sim_destroy(&sim);
    sim = creation(8, 4); /* all are there: a slow network */
    sim_expect(sim, "");
    sim_destroy(&sim);
}

/* The processes of all ranks were ended and started anew in the same run; one of them is still loading its libraries.
 */
static void test_restarted_rank_that_is_late_is_not_given_up(void **state)
{
    (void)state;
    struct roll_engine_config config = {0};
    roll_engine_t *e = roll_engine_new(&config);
    uint64_t now = 1000 * S_;
    roll_engine_tick(e, now);
    for (uint32_t i = 0; i < 5; i++) {
        struct roll_source_info info = {
            .stream = i + 1, .world_rank = (int32_t)(i % 3), .world_size = 3, .pid = i + 9, .host = "n", .exe = "x"};
        uint32_t source;
        assert_int_equal(roll_engine_open(e, &info, &source), 0);
        if (i < 3) {
            (void)roll_engine_process(e, source, ROLL_PROC_DEAD, SIM_SIGNAL(SIGTERM));
            continue;
        }
        struct roll_def def = {.type = ROLL_DEF_COMM, .id = 1, .comm.label = ""};
        def.comm.info = (struct roll_def_comm){.key = 5, .rank = (int32_t)(i % 3), .nranks = 3};
        assert_int_equal(roll_engine_define(e, source, &def), 0);
        struct roll_record rec = {.seal = roll_seal(0, ROLL_STATE_ENTERED),
                                  .count = 3,
                                  .peer = (int32_t)(i % 3),
                                  .comm = 1,
                                  .thread = 1,
                                  .op = ROLL_OP_COMM_INIT,
                                  .dtype = ROLL_DTYPE_NONE,
                                  .redop = ROLL_RED_NONE,
                                  .step = ROLL_STEP_NONE,
                                  .layer = ROLL_LAYER_NONE};
        assert_int_equal(roll_engine_feed(e, source, &rec, 1), 0);
    }
    for (uint32_t i = 0; i < 200; i++) {
        roll_engine_tick(e, now += S_ / 50);
        for (const struct roll_verdict *v = roll_engine_next(e); v; v = roll_engine_next(e)) {
            assert_int_equal(v->certainty, ROLL_NOTE);
        }
    }
    roll_engine_destroy(&e);
}

/* Two communicators are made at once, each the first of its ranks, and their definitions are lost: they are told apart
 * by their sizes. */
static void test_creations_without_definition_are_told_apart(void **state)
{
    (void)state;
    struct sim *sim = sim_new(10);
    for (uint32_t r = 0; r < 8; r++) {
        if (r != 3 && r != 7) {
            struct roll_record *rec = sim_record(sim, r, ROLL_OP_COMM_INIT, UINT32_MAX);
            rec->count = r < 4 ? 4 : 6;
            rec->peer = (int32_t)(r % 4);
            rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
        }
    }
    sim_expect(sim, "suspected init-missing -; suspected init-missing -");
    sim_destroy(&sim);
}

/* What another communicator answers when it is asked says nothing about the one that is being made. */
static void test_success_of_another_communicator_makes_none(void **state)
{
    (void)state;
    for (uint32_t n = 3; n <= 8; n++) {
        char said[STORY_SAID], want[64];
        struct story t;
        story_open(&t, n, 0);
        uint32_t w = sim_world(t.sim);
        sim_all(t.sim, w, ROLL_OP_ALLREDUCE, 64);
        for (uint32_t r = 0; r + 1 < n; r++) {
            struct roll_record *rec = sim_record(t.sim, r, ROLL_OP_COMM_INIT, UINT32_MAX);
            rec->flags |= ROLL_FLAG_NONBLOCKING;
            rec->count = n;
            rec->peer = (int32_t)r;
            rec->result = 7;
        }
        story_pass(&t, 8 * S_);
        snprintf(want, sizeof(want), "suspected init-missing %u", n - 1);
        assert_string_equal(story_said(&t, 0, said), want);
        sim_record(t.sim, 0, ROLL_OP_COMM_ASYNC, w);
        story_pass(&t, 8 * S_);
        assert_string_equal(story_said(&t, 0, said), "");
        story_close(&t);
    }
}

/* The rank makes or splits a communicator without waiting for it, or asks for its state; the engine reads that it does,
 * and what came of it later. */
static struct roll_record begins(struct story *t, uint32_t rank, enum roll_op op, uint32_t comm)
{
    struct roll_record *rec = sim_record(t->sim, rank, op, comm);
    rec->count = op == ROLL_OP_COMM_INIT ? t->sim->ranks : 0;
    rec->peer = op == ROLL_OP_COMM_INIT ? (int32_t)rank : ROLL_PEER_NONE;
    rec->flags |= ROLL_FLAG_NONBLOCKING;
    rec->result = op == ROLL_OP_COMM_ASYNC ? 0 : 7;
    struct roll_record returned = *rec;
    rec->result = 0;
    rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
    return returned;
}

static void ends(struct story *t, uint32_t rank, const struct roll_record *returned)
{
    sim_pass(t->sim, rank, 0);
    struct sim_rank *r = &t->sim->rank[rank];
    r->event[r->events - 1] = (struct sim_event){.kind = SIM_RECORD, .rec = *returned};
}

static void expect_said(struct story *t, const char *what, uint32_t rank)
{
    char said[STORY_SAID], want[STORY_SAID] = "";
    if (what) {
        snprintf(want, sizeof(want), "%s %u", what, rank);
    }
    assert_string_equal(story_said(t, ROLL_VERDICT_NONE, said), want);
}

/* A communicator of all, of which the last rank knows nothing yet; *last: what tells it. */
static uint32_t comm_without_last(struct story *t, struct sim_event *last)
{
    uint32_t c = sim_comm(t->sim, "part", NULL, t->sim->ranks);
    struct sim_rank *r = &t->sim->rank[t->sim->ranks - 1];
    *last = r->event[--r->events];
    return c;
}

/* All but the last rank make a communicator, and it is suspected. */
static uint32_t suspected_creation(struct story *t, struct sim_event *last)
{
    uint32_t n = t->sim->ranks, c = comm_without_last(t, last);
    for (uint32_t r = 0; r + 1 < n; r++) {
        struct roll_record made = begins(t, r, ROLL_OP_COMM_INIT, c);
        ends(t, r, &made);
    }
    story_pass(t, 8 * S_);
    expect_said(t, "suspected init-missing", n - 1);
    return c;
}

/* The last rank comes after all, and all go on so fast that they have begun to split the communicator before it is read
 * that it was made. */
static void all_go_on(struct story *t, uint32_t c, const struct sim_event *last, uint32_t splitters)
{
    struct roll_record made = {0}, asked[STORY_RANKS];
    for (uint32_t r = 0; r < t->sim->ranks; r++) {
        if (r + 1 == t->sim->ranks) {
            sim_pass(t->sim, r, 0);
            t->sim->rank[r].event[t->sim->rank[r].events - 1] = *last;
            made = begins(t, r, ROLL_OP_COMM_INIT, c);
        }
        asked[r] = begins(t, r, ROLL_OP_COMM_ASYNC, c);
        if (r < splitters) {
            sim_record(t->sim, r, ROLL_OP_COMM_SPLIT, c)->result = 7;
        }
    }
    ends(t, t->sim->ranks - 1, &made);
    for (uint32_t r = 0; r < t->sim->ranks; r++) {
        ends(t, r, &asked[r]);
    }
}

static void test_last_that_joins_ends_the_suspicion_however_fast_all_go_on(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 6 * 3 * 2; i++) {
        uint32_t n = 3 + i / 6, missing = i % 2; /* and one that does not come to the split is missed there */
        char said[STORY_SAID];
        struct sim_event last;
        struct story t;
        story_open(&t, n, i / 2 % 3);
        uint32_t c = suspected_creation(&t, &last);
        all_go_on(&t, c, &last, n - missing);
        story_feed(&t);
        assert_string_equal(story_said(&t, 0, said), "withdrawn init-missing");
        story_pass(&t, 8 * S_);
        expect_said(&t, missing ? "suspected init-missing" : NULL, n - 1);
        story_close(&t);
    }
}

/* Two are missed, and one of them comes: the other is missed all the same, until it comes as well. */
static void test_one_of_two_that_joins_ends_no_suspicion(void **state)
{
    (void)state;
    for (uint32_t n = 3; n <= 8; n++) {
        char said[STORY_SAID], want[64];
        struct sim_event definition[2];
        struct story t;
        story_open(&t, n, n % 3);
        uint32_t c = sim_comm(t.sim, "part", NULL, n);
        struct sim_rank *late = &t.sim->rank[n - 2];
        for (uint32_t i = 0; i < 2; i++) {
            definition[i] = late[i].event[--late[i].events];
        }
        snprintf(want, sizeof(want), "suspected init-missing %u-%u", n - 2, n - 1);
        for (uint32_t r = 0; r < n; r++) {
            if (r >= n - 2) {
                story_pass(&t, 8 * S_);
                assert_string_equal(story_said(&t, 0, said), r == n - 2 ? want : "");
                sim_pass(t.sim, r, 0);
                t.sim->rank[r].event[t.sim->rank[r].events - 1] = definition[r + 2 - n];
            }
            struct roll_record made = begins(&t, r, ROLL_OP_COMM_INIT, c);
            ends(&t, r, &made);
        }
        story_pass(&t, 8 * S_);
        assert_string_equal(story_said(&t, 0, said), "withdrawn init-missing");
        story_close(&t);
    }
}

/* What came of a creation is read when the ranks have gone on: to calls of which the last rank does not make one, or to
 * a split that it does not join. It is told as if the news had come in time. */
static void late_news(bool of_split, const char *what)
{
    for (uint32_t n = 3; n <= 8; n++) {
        struct story t;
        story_open(&t, n, 0);
        uint32_t c = sim_comm(t.sim, "part", NULL, n);
        struct roll_record made[STORY_RANKS];
        for (uint32_t r = 0; r < n; r++) {
            made[r] = begins(&t, r, ROLL_OP_COMM_INIT, c);
            if (!of_split) {
                sim_call(t.sim, r, c, AR, 64);
            } else if (r + 1 < n) {
                sim_record(t.sim, r, ROLL_OP_COMM_SPLIT, c)->result = 7;
            }
            ends(&t, r, &made[r]);
            if (!of_split && r + 1 < n) {
                sim_call(t.sim, r, c, AR, 512);
                sim_stuck(t.sim, r);
            }
        }
        story_pass(&t, 8 * S_);
        expect_said(&t, what, n - 1);
        story_close(&t);
    }
}

static void test_late_news_of_a_creation_begin_none(void **state)
{
    (void)state;
    late_news(false, "suspected rank-busy"); /* nobody is inside the creation */
}

static void test_late_news_of_a_creation_end_no_later_one(void **state)
{
    (void)state;
    late_news(true, "suspected init-missing"); /* the others are inside the split */
}

/* Defines a communicator of which a source is one member. */
static void joins(roll_engine_t *e, uint32_t source, uint64_t key, int32_t rank, int32_t size)
{
    struct roll_def def = {.type = ROLL_DEF_COMM, .id = (uint32_t)key, .comm.label = ""};
    def.comm.info = (struct roll_def_comm){.key = key, .rank = rank, .nranks = size};
    assert_int_equal(roll_engine_define(e, source, &def), 0);
}

static int32_t rank_of(const roll_engine_t *e, uint32_t source)
{
    struct roll_view_source view;
    assert_true(roll_engine_source(e, source, &view));
    return view.info.world_rank;
}

/* Sources come in the order of a loaded machine, and none of them tells its rank, or each. */
static void test_ranks_that_nobody_tells_are_those_of_the_communicator_of_all(void **state)
{
    (void)state;
    static const int32_t rank[] = {2, 0, 3, 1};
    for (uint32_t told = 0; told < 2; told++) {
        struct roll_engine_config config = {0};
        roll_engine_t *e = roll_engine_new(&config);
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t source;
            struct roll_source_info info = {.stream = i + 1, .world_rank = told ? (int32_t)i : -1, .pid = i + 9};
            assert_int_equal(roll_engine_open(e, &info, &source), 0);
        }
        joins(e, 1, 1, 1, 2); /* a pair is not all of them */
        joins(e, 3, 1, 0, 2);
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(rank_of(e, i), i);
            joins(e, i, 2, rank[i], 4);
        }
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(rank_of(e, i), told ? (int32_t)i : rank[i]);
            joins(e, i, 3, (int32_t)i, 4); /* a later one changes nothing */
        }
        for (uint32_t i = 0; i < 4; i++) {
            assert_int_equal(rank_of(e, i), told ? (int32_t)i : rank[i]);
        }
        roll_engine_destroy(&e);
    }
}

/* All ranks of the story split the communicator, which `odd` is refused: the others wait there. */
static void refused_split(struct story *t, uint32_t w, uint32_t odd)
{
    for (uint32_t r = 0; r < t->sim->ranks; r++) {
        struct roll_record *rec = sim_record(t->sim, r, ROLL_OP_COMM_SPLIT, w);
        rec->count = 0;
        rec->peer = 0;
        rec->result = r == odd ? SCENE_BAD : 0;
        if (r != odd) {
            rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
        }
    }
    story_pass(t, 3 * S_);
}

/*
 * A rank is refused its part in a split, which is told; it makes the call again, and the job goes on. Then another rank
 * is refused another split, or never comes to one, or the first one is killed, or it is refused a call for which nobody
 * waits, and ends: that is told as if nothing had been.
 */
static void test_what_comes_after_a_refused_split_is_told(void **state)
{
    (void)state;
    enum { REFUSED_AGAIN, NEVER_COMES, KILLED, NOBODY_WAITS, HEALTHY, WAYS };
    static const uint32_t sizes[] = {2, 3, 8};
    for (uint32_t i = 0; i < 3 * 2 * WAYS; i++) {
        uint32_t n = sizes[i % 3], way = i / 6, odd = n - 1;
        bool before = i / 3 % 2 != 0;
        struct story t;
        story_open(&t, n, i % 3);
        uint32_t w = sim_world(t.sim);
        sim_all(t.sim, w, AR, 64);
        if (before) {
            refused_split(&t, w, odd);
            expect_said(&t, "proven call-refused", odd);
            sim_record(t.sim, odd, ROLL_OP_COMM_SPLIT, w)->peer = 0;
            for (uint32_t r = 0; r < odd; r++) {
                story_return(&t, r);
            }
        }
        for (int k = 0; k < 3; k++) {
            sim_all(t.sim, w, AR, 64);
            scene_sync_all(t.sim);
        }
        story_pass(&t, 3 * S_);
        expect_said(&t, NULL, 0);
        if (way == REFUSED_AGAIN) {
            refused_split(&t, w, 0);
            expect_said(&t, "proven call-refused", 0);
        } else if (way == NEVER_COMES) {
            for (uint32_t r = 1; r < n; r++) {
                struct roll_record *rec = sim_record(t.sim, r, ROLL_OP_COMM_SPLIT, w);
                rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
            }
            story_pass(&t, 40 * S_);
            expect_said(&t, "suspected init-missing", 0);
        } else if (way == KILLED) {
            sim_proc(t.sim, odd, ROLL_PROC_DEAD, SIM_SIGNAL(SIGSEGV));
            story_pass(&t, 3 * S_);
            expect_said(&t, "proven rank-dead", odd);
        } else if (way == NOBODY_WAITS) {
            char said[STORY_SAID];
            scene_refused(t.sim, odd, w, 64, AT_ONCE);
            sim_proc(t.sim, odd, ROLL_PROC_FINISHED, SIM_EXIT(1));
            story_pass(&t, 10 * S_);
            assert_string_equal(story_said(&t, ROLL_VERDICT_CALL_REFUSED, said), "note call-refused -");
        }
        story_pass(&t, 20 * S_);
        expect_said(&t, NULL, 0);
        story_close(&t);
    }
}

/* Rank 0 has not come back yet from the creation of a communicator that the others split already, and of these one is
 * refused that: who waits in the creation itself is not asked for all, and does not wait for the split. */
static void test_a_refused_split_is_told_beside_a_creation_that_goes_on(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {3, 8};
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t n = sizes[i % 2], odd = n - 1;
        struct story t;
        story_open(&t, n, i / 2);
        uint32_t w = sim_world(t.sim);
        for (uint32_t r = 0; r < n; r++) {
            struct roll_record *rec = sim_record(t.sim, r, ROLL_OP_COMM_INIT, w);
            rec->count = n;
            rec->peer = (int32_t)r;
            if (r == 0) {
                rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
            }
        }
        for (uint32_t r = 1; r < n; r++) {
            struct roll_record *rec = sim_record(t.sim, r, ROLL_OP_COMM_SPLIT, w);
            rec->peer = 0;
            rec->result = r == odd ? SCENE_BAD : 0;
            if (r != odd) {
                rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
            }
        }
        story_pass(&t, 3 * S_);
        char waiting[64], want[64];
        const struct roll_verdict *v = roll_engine_next(t.e);
        assert_non_null(v);
        assert_int_equal(v->code, ROLL_VERDICT_CALL_REFUSED);
        assert_int_equal(v->certainty, ROLL_PROVEN);
        assert_true(roll_rankset_has(&v->culprits, odd) && roll_rankset_count(&v->culprits) == 1);
        roll_rankset_format(&v->waiting, waiting, sizeof(waiting));
        snprintf(want, sizeof(want), n == 3 ? "1" : "1-%u", n - 2);
        assert_string_equal(waiting, want);
        story_pass(&t, 3 * S_);
        expect_said(&t, NULL, 0);
        story_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_that_nobody_tells_are_those_of_the_communicator_of_all),
        cmocka_unit_test(test_abort_takes_the_communicator_out_of_judgement),
        cmocka_unit_test(test_abort_and_a_new_communicator_is_an_elastic_restart),
        cmocka_unit_test(test_creation_that_a_member_does_not_join),
        cmocka_unit_test(test_restarted_rank_that_is_late_is_not_given_up),
        cmocka_unit_test(test_creations_without_definition_are_told_apart),
        cmocka_unit_test(test_success_of_another_communicator_makes_none),
        cmocka_unit_test(test_what_comes_after_a_refused_split_is_told),
        cmocka_unit_test(test_a_refused_split_is_told_beside_a_creation_that_goes_on),
        cmocka_unit_test(test_last_that_joins_ends_the_suspicion_however_fast_all_go_on),
        cmocka_unit_test(test_one_of_two_that_joins_ends_no_suspicion),
        cmocka_unit_test(test_late_news_of_a_creation_begin_none),
        cmocka_unit_test(test_late_news_of_a_creation_end_no_later_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
