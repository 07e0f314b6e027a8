/*
 * test_engine_class.c: which mistake a disagreement is: proven when later calls leave one class, suspected while
 * several fit; call sites and history as evidence; and how later calls confirm or replace what was said.
 */
#include "tests/daemon/engine/stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AR ROLL_OP_ALLREDUCE
#define AG ROLL_OP_ALLGATHER

static const uint32_t sizes[] = {2, 3, 4, 5, 8, 12};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* the class */

/* Calls of one step: `calls` of different counts; the odd rank leaves out, doubles or swaps the one at `place`. */
enum kind { SKIP, ADD, SWAP, OTHER_COUNT, OTHER_REDUCTION, KINDS };

static void step(struct sim *sim, uint32_t w, uint32_t rank, uint32_t from, uint32_t calls, enum kind kind, int place,
                 bool sites)
{
    for (uint32_t i = from; i < calls; i++) {
        bool here = (int)i == place, swapped = kind == SWAP && (here || (int)i == place + 1);
        uint32_t as = swapped ? (here ? i + 1 : i - 1) : i;
        sim->site = (uint16_t)(sites ? as + 1 : 0);
        if (kind == ADD && here) {
            sim->site = sites ? 100 : 0;
            sim_call(sim, rank, w, AR, 7777);
            sim->site = (uint16_t)(sites ? as + 1 : 0);
        }
        if (kind == SKIP && here) {
            continue;
        }
        struct roll_record *rec = sim_call(sim, rank, w, AR, (as + 1) * 100 + (kind == OTHER_COUNT && here));
        rec->redop = kind == OTHER_REDUCTION && here ? ROLL_RED_MAX : rec->redop;
    }
    if (kind == ADD && place == (int)calls) { /* the rank is stuck in the added call */
        sim->site = sites ? 100 : 0;
        sim_call(sim, rank, w, AR, 7777);
    }
    sim->site = 0;
}

/* The last rank errs in the call at 1 of a step; behind that it makes `more` calls before its host waits, its peers
 * `ahead`. */
static struct sim *odd_step(uint32_t ranks, enum kind kind, bool history, bool sites, uint32_t more, uint32_t ahead)
{
    struct sim *sim = sim_new(ranks);
    uint32_t w = sim_world(sim);
    for (uint32_t r = 0; r < ranks; r++) {
        bool odd = r == ranks - 1;
        for (int i = 0; history && i < 3; i++) {
            step(sim, w, r, 0, 8, SKIP, -1, sites);
            sim_sync(sim, r);
        }
        uint32_t made = kind == SKIP ? 3 : kind == SWAP ? 2 : kind == ADD ? 1 : 2;
        step(sim, w, r, 0, odd ? made + more : 2 + ahead, odd ? kind : SKIP, odd ? 1 : -1, sites);
        sim_stuck(sim, r);
    }
    return sim;
}

static const char *const code[KINDS] = {"call-skipped", "call-added", "calls-reordered", "count-mismatch",
                                        "redop-mismatch"};

static void check_class(enum kind kind, bool history, bool sites, uint32_t more, uint32_t ahead, const char *certainty,
                        const char *said)
{
    for (size_t i = 1; i < SIZES; i++) {
        struct sim *sim = odd_step(sizes[i], kind, history, sites, more, ahead);
        char want[128];
        snprintf(want, sizeof(want), "%s %s %u", certainty, said, sizes[i] - 1);
        sim_expect(sim, want);
        sim_destroy(&sim);
    }
}

static void test_a_class_is_proven_when_what_follows_excludes_the_others(void **state)
{
    (void)state;
    for (int history = 0; history < 2; history++) {
        for (int sites = 0; sites < 2; sites++) {
            check_class(SKIP, history, sites, 4, 5, "proven", code[SKIP]);
            check_class(ADD, history, sites, 4, 5, "proven", code[ADD]);
            check_class(SWAP, history, sites, 4, 5, "proven", code[SWAP]);
            check_class(OTHER_COUNT, history, sites, 4, 5, "proven", code[OTHER_COUNT]);
            check_class(OTHER_REDUCTION, history, sites, 4, 5, "proven", code[OTHER_REDUCTION]);
        }
    }
}

/* Everybody is stuck right behind the odd call. */
static void test_with_nothing_behind_it_a_class_is_only_suspected(void **state)
{
    (void)state;
    check_class(SKIP, false, false, 0, 0, "suspected", "count-mismatch");
    check_class(SWAP, false, false, 0, 0, "suspected", "count-mismatch");
    check_class(ADD, false, false, 0, 0, "suspected", "count-mismatch");
    check_class(OTHER_COUNT, false, false, 0, 0, "suspected", "count-mismatch");
    /* The history says what the peers would call next. */
    check_class(SKIP, true, false, 0, 0, "suspected", "call-skipped");
    check_class(SWAP, true, false, 0, 0, "suspected", "call-skipped");
    struct sim *sim = odd_step(4, SKIP, true, false, 0, 0);
    char *text = sim_run(sim, 0, false, true);
    assert_non_null(strstr(text, "That these calls meet and differ is certain; which mistake led there is not."));
    assert_non_null(strstr(text, "calls-reordered"));
    free(text);
    sim_destroy(&sim);
}

static void test_call_sites_say_which_call_it_is(void **state)
{
    (void)state;
    /* A call from the same place with another argument is a wrong argument, at once. */
    check_class(OTHER_COUNT, false, true, 0, 0, "proven", "count-mismatch");
    check_class(OTHER_COUNT, true, true, 0, 0, "proven", "count-mismatch");
    check_class(OTHER_REDUCTION, false, true, 0, 0, "proven", "redop-mismatch");
    /* Another place with the same operation is no wrong argument; whether the call that is missing comes later is open.
     */
    check_class(SKIP, true, true, 0, 0, "suspected", "call-skipped");
    check_class(SWAP, true, true, 0, 0, "suspected", "call-skipped");
    /* A place where nobody else has been: a call that only this rank makes. */
    check_class(ADD, true, true, 0, 0, "suspected", "call-added");
    check_class(ADD, false, true, 0, 0, "suspected", "call-added");
}

/* One helper makes all calls: its own frame is the same everywhere, that of its callers is not. A helper without
 * callers says nothing. */
static void test_one_place_for_all_calls_says_nothing(void **state)
{
    (void)state;
    for (int callers = 0; callers < 3; callers++) { /* 2: none, and all calls are alike */
        for (size_t i = 1; i < SIZES; i++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), last = sizes[i] - 1;
            sim->helper = 9;
            for (uint32_t r = 0; r < sizes[i]; r++) {
                for (uint16_t k = 0; k < 6; k++) {
                    sim->site = callers == 1 ? k + 1 : 1;
                    sim_call(sim, r, w, AR, (callers == 2 ? 100u : 100u * (k + 1u)) + (r == last && k == 5));
                }
                sim->site = 50;
                sim_stuck(sim, r);
            }
            char want[64];
            snprintf(want, sizeof(want), "%s count-mismatch %u", callers == 1 ? "proven" : "suspected", last);
            sim_expect(sim, want);
            sim_destroy(&sim);
        }
    }
}

/* A binding makes all calls, and its callers cannot be walked: only lines of Python tell the places apart. */
static void test_lines_of_python_tell_places_apart(void **state)
{
    (void)state;
    for (int python = 0; python < 2; python++) {
        for (size_t i = 1; i < SIZES; i++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), last = sizes[i] - 1;
            sim->helper = 9;
            sim->guessed = true;
            sim->python = python;
            for (uint32_t r = 0; r < sizes[i]; r++) {
                for (uint16_t k = 0; k < 6; k++) {
                    sim->site = k + 1;
                    sim_call(sim, r, w, AR, 100u * (k + 1u) + (r == last && k == 5));
                }
                sim->site = 50;
                sim_stuck(sim, r);
            }
            char want[64];
            snprintf(want, sizeof(want), "%s count-mismatch %u", python ? "proven" : "suspected", last);
            sim_expect(sim, want);
            sim_destroy(&sim);
        }
    }
}

/* The last rank reduces at another line of Python, and its peers' line is one that it knows: no wrong argument. */
static void test_another_line_of_python_is_another_call(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    sim->helper = 9;
    sim->guessed = true;
    sim->python = true;
    for (uint32_t r = 0; r < 4; r++) {
        for (uint16_t k = 0; k < 6; k++) {
            sim->site = k + 1;
            if (!(r == 3 && k == 4)) {
                sim_call(sim, r, w, AR, 100u * (k + 1u));
            }
        }
        sim->site = 50;
        sim_stuck(sim, r);
    }
    sim_expect(sim, "suspected call-skipped 3");
    sim_destroy(&sim);
}

/* PyTorch's watchdog polls for ever: its records push those of the calls that differ out of the rank's log. */
/* A save of `calls` calls, each at a place of its own. */
static void save(struct sim *sim, uint32_t w, uint32_t rank, uint32_t calls)
{
    for (uint32_t i = 0; i < calls; i++) {
        sim->site = (uint16_t)(10 + i);
        sim_call(sim, rank, w, ROLL_OP_BROADCAST, 1 + i);
    }
}

static void forward_backward(struct sim *sim, uint32_t w, uint32_t rank)
{
    sim->site = 1;
    sim_call(sim, rank, w, AG, 593);
    sim->site = 2;
    sim_call(sim, rank, w, ROLL_OP_REDUCESCATTER, 600);
    sim->site = 50;
    sim_sync(sim, rank);
}

struct saving {
    enum { PLACES_NOT_KNOWN, NATIVE, PYTHON, PLACES } places;
    bool known;       /* all ranks have saved before */
    bool adds;        /* the last rank alone saves; else it alone does not */
    uint32_t calls;   /* so many calls of the save, of 12, are made before the host waits */
    uint32_t goes_on; /* calls of the next step that those make who do not save, before their host waits */
};

static struct sim *saving(uint32_t ranks, const struct saving *how)
{
    struct sim *sim = sim_new(ranks);
    uint32_t w = sim_world(sim);
    sim->guessed = sim->python = how->places == PYTHON;
    sim->helper = how->places == PYTHON;
    for (uint32_t r = 0; r < ranks; r++) {
        bool saves = (r == ranks - 1) == how->adds;
        forward_backward(sim, w, r);
        save(sim, w, r, how->known ? 12 : 0);
        forward_backward(sim, w, r);
        forward_backward(sim, w, r);
        save(sim, w, r, saves ? how->calls : 0);
        for (uint32_t i = 0; !saves && i < how->goes_on; i++) {
            sim->site = (uint16_t)(1 + i % 2);
            sim_call(sim, r, w, i % 2 ? ROLL_OP_REDUCESCATTER : AG, i % 2 ? 600 : 593);
        }
        sim->site = 50;
        sim_stuck(sim, r);
    }
    if (how->places == PLACES_NOT_KNOWN) {
        for (uint32_t r = 0; r < ranks; r++) {
            for (size_t i = 0; i < sim->rank[r].events; i++) {
                sim->rank[r].event[i].rec.callsite = 0;
            }
        }
    }
    return sim;
}

/* Whoever saves alone, or does not save alone: as long as neither side has come back to a call of the other, the calls
 * do not say which of the two it is, however long the block is. */
static void check_saving(const struct saving *how)
{
    for (size_t i = 1; i < SIZES; i++) {
        struct sim *sim = saving(sizes[i], how);
        for (uint32_t order = 0; order < SIM_ORDERS; order += 4) {
            char *said = sim_run(sim, order, false, true);
            bool skipped = strstr(said, "call-skipped") != NULL, added = strstr(said, "call-added") != NULL;
            char want[64];
            const char *likely = how->adds && !how->known ? "call-added" : "call-skipped";
            bool place = how->places != PLACES_NOT_KNOWN;
            snprintf(want, sizeof(want), place ? "suspected %s %u " : "suspected ", likely, sizes[i] - 1);
            if (strncmp(said, want, strlen(want)) != 0 || !skipped || !added) {
                fail_msg(" %u ranks, order %u, places %d, known %d, adds %d, %u calls, %u on: %s", sizes[i], order,
                         how->places, how->known, how->adds, how->calls, how->goes_on, said);
            }
            free(said);
        }
        sim_destroy(&sim);
    }
}

static void test_a_block_of_which_nothing_is_seen_is_left_out_or_added(void **state)
{
    (void)state;
    struct saving how;
    for (how.places = PLACES_NOT_KNOWN; how.places < PLACES; how.places++) {
        for (unsigned i = 0; i < 16; i++) {
            how.calls = (const uint32_t[]){1, 3, 4, 12}[i / 4];
            how.goes_on = (const uint32_t[]){1, 2, 3, 5}[i % 4];
            for (unsigned scene = 0; scene < 4; scene++) {
                how.known = scene & 1;
                how.adds = scene & 2;
                check_saving(&how);
            }
        }
    }
}

/* The hosts do not wait, and what comes behind the block is seen: it says which of the two it was. */
static void test_a_long_block_is_proven_when_what_follows_is_seen(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        for (uint32_t scene = 0; scene < 4; scene++) {
            bool adds = scene & 1, known = scene & 2;
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim);
            for (uint32_t r = 0; r < sizes[i]; r++) {
                bool saves = (r == sizes[i] - 1) == adds;
                save(sim, w, r, known ? 12 : 0);
                forward_backward(sim, w, r);
                save(sim, w, r, saves ? 12 : 0);
                for (uint32_t k = 0; k < 6; k++) {
                    sim->site = (uint16_t)(30 + k);
                    sim_call(sim, r, w, AR, 100 + k);
                }
                sim->site = 50;
                sim_stuck(sim, r);
            }
            char want[64];
            snprintf(want, sizeof(want), "proven %s %u", adds ? "call-added" : "call-skipped", sizes[i] - 1);
            sim_expect(sim, want);
            sim_destroy(&sim);
        }
    }
}

static void test_a_verdict_stands_when_its_calls_have_left_the_log(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), last = sizes[i] - 1;
        for (uint32_t r = 0; r < sizes[i]; r++) {
            sim->site = 1;
            for (int k = 0; k < 10; k++) {
                sim_call(sim, r, w, AR, 17802);
                sim_call(sim, r, w, AR, 1);
            }
            sim_call(sim, r, w, AR, 17802);
            if (r == last) {
                sim_call(sim, r, w, AR, 17802);
            }
            sim_call(sim, r, w, AR, 1);
            sim->site = 50;
            sim_stuck(sim, r);
            sim_pass(sim, r, 2000000000);
            for (int k = 0; k < 600; k++) {
                sim_sync(sim, r)->thread = 2;
            }
        }
        char want[64];
        snprintf(want, sizeof(want), "suspected call-skipped %u", last);
        sim_expect(sim, want);
        sim_destroy(&sim);
    }
}

/* A barrier in a branch of one rank meets the peers' all-reduce (both are all-reduces to NCCL): not a wrong count. */
static void test_a_barrier_in_a_branch_is_an_added_call(void **state)
{
    (void)state;
    /* From 2 on each rank has also called from a place of its own, whose number is far beyond those of the others. */
    for (size_t i = 1; i < SIZES; i++) {
        for (uint32_t behind = 0; behind < 4; behind++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), last = sizes[i] - 1;
            for (uint32_t r = 0; r < sizes[i]; r++) {
                if (behind >= 2) {
                    sim->site = (uint16_t)(700 + r);
                    sim_call(sim, r, sim_comm(sim, "own", &r, 1), AR, 8);
                }
                for (int k = 0; k < 5; k++) {
                    sim->site = 1;
                    sim_call(sim, r, w, AR, 512);
                }
                if (r == last) {
                    sim->site = 2;
                    sim_call(sim, r, w, AR, 1);
                }
                for (uint32_t k = 0; k < (behind % 2 ? 4 : r == last ? 0 : 1); k++) {
                    sim->site = (uint16_t)(3 + k);
                    sim_call(sim, r, w, AR, 600 + k);
                }
                sim->site = 50;
                sim_stuck(sim, r);
            }
            char want[64];
            snprintf(want, sizeof(want), "%s call-added %u", behind % 2 ? "proven" : "suspected", last);
            sim_expect(sim, want);
            sim_destroy(&sim);
        }
    }
}

/* The two arms of a branch make one call each, with different arguments. The odd rank's call is a wrong argument as
 * soon as the calls behind it agree, and may be one until then. */
static void test_the_other_arm_of_a_branch_is_a_wrong_argument(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        for (uint32_t behind = 0; behind < 2; behind++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), last = sizes[i] - 1;
            for (uint32_t r = 0; r < sizes[i]; r++) {
                sim->site = 1;
                for (int k = 0; k < 5; k++) {
                    sim_call(sim, r, w, AR, 512);
                }
                sim->site = r == last ? 2 : 3;
                sim_call(sim, r, w, AR, r == last ? 99 : 100);
                for (uint32_t k = 0; k < behind * 4; k++) {
                    sim->site = (uint16_t)(4 + k);
                    sim_call(sim, r, w, AR, 600 + k);
                }
                sim->site = 50;
                sim_stuck(sim, r);
            }
            char want[64];
            snprintf(want, sizeof(want), behind ? "proven count-mismatch %u" : "suspected call-added %u", last);
            sim_expect(sim, want);
            char *text = sim_run(sim, 0, false, true);
            assert_true(behind || strstr(text, "count-mismatch") != NULL);
            assert_true(behind || strstr(text, "only if these are two arms of one branch") != NULL);
            free(text);
            sim_destroy(&sim);
        }
    }
}

/* Two places that make the same call on different ranks, as in `if (rank == 0)`, are healthy, and no evidence later. */
static void test_branches_that_always_met_are_one_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int sick = 0; sick < 3; sick++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), last = sizes[i] - 1;
            for (uint32_t r = 0; r < sizes[i]; r++) {
                for (int k = 0; k < 8; k++) {
                    bool stuck = sick == 2 && k == 7; /* in a wrong argument of the branch itself */
                    sim->site = r == last ? 2 : 1;
                    sim_call(sim, r, w, AR, stuck && r == last ? 99 : 512);
                    if (stuck) {
                        sim_stuck(sim, r);
                        break;
                    }
                    sim->site = 3;
                    struct roll_record *rec = sim_call(sim, r, w, AR, 64);
                    if (sick == 1 && k == 5 && r == last) {
                        rec->redop = ROLL_RED_MAX;
                    }
                }
                sim->site = 0;
                if (sick != 2) {
                    sim_sync(sim, r);
                }
            }
            char want[64] = "", who[16] = "-";
            if (sizes[i] > 2) {
                snprintf(who, sizeof(who), "%u", last);
            }
            if (sick) {
                snprintf(want, sizeof(want), "proven %s %s", sick == 1 ? "redop-mismatch" : "count-mismatch", who);
            }
            sim_expect(sim, want);
            sim_destroy(&sim);
        }
    }
}

/* what is said first, and then better */

/* The calls come one by one, with time between them: an early word, then the right one in its place. */
static void test_later_calls_confirm_or_replace_the_class(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim), last = 3;
        struct stage s;
        for (uint32_t r = 0; r < 4; r++) {
            step(sim, w, r, 0, 2, r == last ? (enum kind)kind : SKIP, r == last ? 1 : -1, false);
        }
        if (kind == SKIP) { /* the odd rank has made as many calls as its peers, the last one another */
            step(sim, w, last, 2, 3, SKIP, -1, false);
        }
        stage_open(&s, sim);
        for (uint32_t r = 0; r < 4; r++) {
            stage_show(&s, r, false);
        }
        char first[256];
        snprintf(first, sizeof(first), "%s", stage_pass(&s, 200));
        assert_non_null(strstr(first, "suspected "));
        assert_non_null(strstr(first, " 3"));
        for (uint32_t r = 0; r < 4; r++) {
            bool skipped = kind == SKIP && r == last;
            if (kind == SWAP && r == last) {
                sim_call(sim, r, w, AR, 200);
                step(sim, w, r, 3, 8, SKIP, -1, false);
            } else {
                step(sim, w, r, skipped ? 3 : 2, 8, SKIP, -1, false);
            }
            sim_stuck(sim, r);
            stage_show(&s, r, false);
        }
        char want[64];
        bool same = strstr(first, code[kind]) != NULL;
        snprintf(want, sizeof(want), "proven %s 3 %c1", code[kind], same ? '=' : '!');
        assert_string_equal(stage_pass(&s, 200), want);
        assert_string_equal(stage_pass(&s, 3000), "");
        struct roll_engine_summary summary;
        roll_engine_summary(s.e, &summary);
        assert_int_equal(summary.findings, 1);
        stage_close(&s);
    }
}

/* Hosts of which nothing says that they are stuck (they poll or copy): after stall/20 without news no call is on its
 * way. */
static void test_an_open_class_is_told_when_nothing_comes_for_a_moment(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    struct stage s;
    for (uint32_t r = 0; r < 4; r++) {
        step(sim, w, r, 0, 2, r == 3 ? OTHER_COUNT : SKIP, r == 3 ? 1 : -1, false);
    }
    stage_open(&s, sim);
    for (uint32_t r = 0; r < 4; r++) {
        stage_show(&s, r, false);
    }
    assert_string_equal(stage_pass(&s, 10), "");
    assert_non_null(strstr(stage_pass(&s, 30), "suspected "));
    stage_close(&s);
}

/* One matching call after stall/5 is no proof: ever so many equal calls follow a wrong reduction. */
static void test_a_wrong_reduction_among_equal_calls_is_never_a_proven_addition(void **state)
{
    (void)state;
    for (uint32_t behind = 0; behind < 6; behind++) {
        for (size_t i = 1; i < SIZES; i++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), last = sizes[i] - 1;
            for (uint32_t r = 0; r < sizes[i]; r++) {
                for (uint32_t k = 0; k < 5 + behind; k++) {
                    struct roll_record *rec = sim_call(sim, r, w, AR, 64);
                    rec->redop = r == last && k == 4 ? ROLL_RED_MIN : rec->redop;
                }
                sim_stuck(sim, r);
            }
            char want[64];
            snprintf(want, sizeof(want), "%s redop-mismatch %u", behind ? "proven" : "suspected", last);
            sim_expect(sim, want);
            sim_destroy(&sim);
        }
    }
}

/* Traffic of two calls in turn: one left out is one too many as well, and stays so. */
static void test_alternating_calls_leave_the_class_open(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), last = sizes[i] - 1;
        for (uint32_t r = 0; r < sizes[i]; r++) {
            for (int k = 0; k < 12; k++) {
                sim_call(sim, r, w, AR, 512);
                if (r != last || k != 6) {
                    sim_call(sim, r, w, AG, 64);
                }
            }
            sim_stuck(sim, r);
        }
        char want[64];
        snprintf(want, sizeof(want), "suspected call-skipped %u", last);
        sim_expect(sim, want);
        char *text = sim_run(sim, 0, false, true);
        assert_non_null(strstr(text, "call-added"));
        free(text);
        sim_destroy(&sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_class_is_proven_when_what_follows_excludes_the_others),
        cmocka_unit_test(test_with_nothing_behind_it_a_class_is_only_suspected),
        cmocka_unit_test(test_a_block_of_which_nothing_is_seen_is_left_out_or_added),
        cmocka_unit_test(test_a_long_block_is_proven_when_what_follows_is_seen),
        cmocka_unit_test(test_call_sites_say_which_call_it_is),
        cmocka_unit_test(test_one_place_for_all_calls_says_nothing),
        cmocka_unit_test(test_lines_of_python_tell_places_apart),
        cmocka_unit_test(test_another_line_of_python_is_another_call),
        cmocka_unit_test(test_a_verdict_stands_when_its_calls_have_left_the_log),
        cmocka_unit_test(test_a_barrier_in_a_branch_is_an_added_call),
        cmocka_unit_test(test_the_other_arm_of_a_branch_is_a_wrong_argument),
        cmocka_unit_test(test_branches_that_always_met_are_one_place),
        cmocka_unit_test(test_later_calls_confirm_or_replace_the_class),
        cmocka_unit_test(test_an_open_class_is_told_when_nothing_comes_for_a_moment),
        cmocka_unit_test(test_a_wrong_reduction_among_equal_calls_is_never_a_proven_addition),
        cmocka_unit_test(test_alternating_calls_leave_the_class_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
