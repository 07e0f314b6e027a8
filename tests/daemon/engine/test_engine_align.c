/*
 * test_engine_align.c: what is claimed about a disagreement, and when: the vote before all have come, the class while
 * several mistakes fit, call sites as evidence, and how later ranks and calls confirm or replace what was said.
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

#define AR  ROLL_OP_ALLREDUCE
#define AG  ROLL_OP_ALLGATHER
#define MS_ 1000000ull

static const uint32_t sizes[] = {2, 3, 4, 5, 8, 12};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* a job of which some ranks are late */

struct stage {
    struct sim *sim;
    roll_engine_t *e;
    uint32_t source[64];
    size_t at[64];
    uint64_t now;
    char said[1024]; /* since it was read last, in order: "certainty code culprits", supersedes as "!n", confirms as
                        "=n", withdraws as "~n" */
};

static void open_stage(struct stage *s, struct sim *sim)
{
    memset(s, 0, sizeof(*s));
    s->sim = sim;
    s->now = 1000 * S_;
    s->e = roll_engine_new(&sim->config);
    assert_non_null(s->e);
    roll_engine_tick(s->e, s->now);
    for (uint32_t r = 0; r < sim->ranks; r++) {
        struct roll_source_info info = {.stream = r + 1, .world_rank = (int32_t)r, .world_size = (int32_t)sim->ranks};
        assert_int_equal(roll_engine_open(s->e, &info, &s->source[r]), 0);
    }
}

/* Everything that the rank has done so far; definitions only: what it is, and not what it called. */
static void show(struct stage *s, uint32_t rank, bool definitions_only)
{
    const struct sim_rank *r = &s->sim->rank[rank];
    for (; s->at[rank] < r->events; s->at[rank]++) {
        const struct sim_event *event = &r->event[s->at[rank]];
        if (definitions_only && event->kind != SIM_DEFINE) {
            return;
        }
        if (event->kind == SIM_DEFINE) {
            assert_int_equal(roll_engine_define(s->e, s->source[rank], &event->def), 0);
        } else if (event->kind == SIM_PROC) {
            assert_int_equal(roll_engine_process(s->e, s->source[rank], event->proc, event->status), 0);
        } else {
            assert_int_equal(roll_engine_feed(s->e, s->source[rank], &event->rec, 1), 0);
        }
    }
}

static const char *pass(struct stage *s, uint64_t ms)
{
    for (uint64_t end = s->now + ms * MS_; s->now < end;) {
        s->now += 5 * MS_;
        roll_engine_tick(s->e, s->now);
    }
    s->said[0] = '\0';
    const struct roll_verdict *v;
    while ((v = roll_engine_next(s->e)) != NULL) {
        char ranks[64], life[16] = "";
        roll_rankset_format(&v->culprits, ranks, sizeof(ranks));
        uint64_t earlier = v->supersedes + v->confirms + v->withdraws;
        if (earlier != 0) {
            snprintf(life, sizeof(life), " %c%u", v->supersedes ? '!' : v->confirms ? '=' : '~', (unsigned)earlier);
        }
        snprintf(s->said + strlen(s->said), sizeof(s->said) - strlen(s->said), "%s%s %s %s%s", s->said[0] ? "; " : "",
                 roll_certainty_name(v->certainty), roll_verdict_name(v->code), ranks[0] ? ranks : "-", life);
    }
    return s->said;
}

static void close_stage(struct stage *s)
{
    roll_engine_destroy(&s->e);
    sim_destroy(&s->sim);
}

/* A history, and a call at which the ranks of `wrong` (a bit each) have another count; by call sites a wrong argument.
 */
static struct sim *job(uint32_t ranks, uint32_t wrong)
{
    struct sim *sim = sim_new(ranks);
    uint32_t w = sim_world(sim);
    sim->site = 1;
    for (int i = 0; i < 6; i++) {
        sim_all(sim, w, AR, 256);
    }
    for (uint32_t r = 0; r < ranks; r++) {
        sim->site = 2;
        sim_call(sim, r, w, AG, wrong & 1u << r ? 99 : 100);
        sim->site = 3;
        sim_stuck(sim, r);
    }
    return sim;
}

/* Two wrong ones and one right one of five have come; the other right ones are late. */
static void test_a_vote_before_all_have_come_names_nobody(void **state)
{
    (void)state;
    for (uint32_t known = 0; known < 2; known++) { /* the late ones are known members, or not even that */
        struct stage s;
        open_stage(&s, job(5, 1u << 0 | 1u << 1));
        for (uint32_t r = 3; known && r < 5; r++) {
            show(&s, r, true);
        }
        for (uint32_t r = 0; r < 3; r++) {
            show(&s, r, false);
        }
        assert_string_equal(pass(&s, 300), "");
        show(&s, 3, false);
        show(&s, 4, false);
        assert_string_equal(pass(&s, 50), "proven count-mismatch 0-1");
        assert_string_equal(pass(&s, 5000), "");
        close_stage(&s);
    }
}

/* The same, but they come after the stall time: what was said before named nobody, and is replaced. */
static void test_what_was_said_before_all_had_come_is_replaced(void **state)
{
    (void)state;
    struct stage s;
    open_stage(&s, job(5, 1u << 0 | 1u << 1));
    for (uint32_t r = 0; r < 3; r++) {
        show(&s, r, false);
    }
    assert_string_equal(pass(&s, 700), "suspected count-mismatch -");
    show(&s, 3, false);
    assert_string_equal(pass(&s, 500), "");
    show(&s, 4, false);
    assert_string_equal(pass(&s, 100), "proven count-mismatch 0-1 =1");
    assert_string_equal(pass(&s, 5000), "");
    close_stage(&s);
}

static void test_one_against_one_of_four_is_no_tie_yet(void **state)
{
    (void)state;
    struct stage s;
    open_stage(&s, job(4, 1u << 1));
    show(&s, 0, false);
    show(&s, 1, false);
    assert_string_equal(pass(&s, 400), "");
    assert_string_equal(pass(&s, 300), "suspected count-mismatch -");
    show(&s, 2, false);
    show(&s, 3, false);
    assert_string_equal(pass(&s, 50), "proven count-mismatch 1 =1");
    close_stage(&s);
}

static void test_more_than_half_decide_before_the_rest_has_come(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        uint32_t n = sizes[i], enough = n / 2 + 1;
        struct stage s;
        open_stage(&s, job(n, 1u << (n - 1)));
        show(&s, n - 1, false);
        for (uint32_t r = 0; r + 1 < enough; r++) {
            show(&s, r, false);
        }
        assert_string_equal(pass(&s, 50), "");
        show(&s, enough - 1, false);
        char want[64];
        snprintf(want, sizeof(want), "proven count-mismatch %u", n - 1);
        assert_string_equal(pass(&s, 50), want);
        for (uint32_t r = enough; r + 1 < n; r++) {
            show(&s, r, false);
        }
        assert_string_equal(pass(&s, 5000), "");
        close_stage(&s);
    }
}

static void test_a_rank_that_errs_likewise_and_late_is_added(void **state)
{
    (void)state;
    struct stage s;
    open_stage(&s, job(8, 1u << 6 | 1u << 7));
    for (uint32_t r = 0; r < 7; r++) {
        show(&s, r, false);
    }
    assert_string_equal(pass(&s, 300), "proven count-mismatch 6");
    show(&s, 7, false);
    assert_string_equal(pass(&s, 300), "proven count-mismatch 6-7 !1");
    assert_string_equal(pass(&s, 5000), "");
    close_stage(&s);
}

/* Two of five have ended: they have made neither call, and will not. Two against one is decided then; one against one
 * is a tie. */
static void test_ranks_that_have_ended_do_not_come_any_more(void **state)
{
    (void)state;
    for (uint32_t ended = 2; ended < 4; ended++) {
        struct sim *sim = sim_new(5 + (ended == 2));
        uint32_t w = sim_world(sim);
        for (int i = 0; i < 3; i++) {
            sim->site = 1;
            sim_all(sim, w, AR, 256);
        }
        uint32_t callers = sim->ranks - ended;
        for (uint32_t r = 0; r < sim->ranks; r++) {
            sim->site = 2;
            if (r < callers) {
                sim_call(sim, r, w, AG, r == 0 ? 99 : 100);
                sim->site = 3;
                sim_stuck(sim, r);
            } else {
                sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
            }
        }
        struct stage s;
        open_stage(&s, sim);
        for (uint32_t r = 0; r < sim->ranks; r++) {
            show(&s, r, false);
        }
        /* 3 of 6 against 1, with 2 away; 1 against 1, with 3 away. */
        assert_string_equal(pass(&s, 300), ended == 2 ? "proven count-mismatch 0" : "proven count-mismatch -");
        close_stage(&s);
    }
}

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
    if (kind == ADD && place == (int)calls) { /* and is stuck in it */
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
    /* The same place with another argument is a wrong argument, at once. */
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

/* A barrier in a branch of one rank meets the peers' all-reduce (both are all-reduces to NCCL): not a wrong count. */
static void test_a_barrier_in_a_branch_is_an_added_call(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        for (uint32_t behind = 0; behind < 2; behind++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), last = sizes[i] - 1;
            for (uint32_t r = 0; r < sizes[i]; r++) {
                for (int k = 0; k < 5; k++) {
                    sim->site = 1;
                    sim_call(sim, r, w, AR, 512);
                }
                if (r == last) {
                    sim->site = 2;
                    sim_call(sim, r, w, AR, 1);
                }
                for (uint32_t k = 0; k < (behind ? 4 : r == last ? 0 : 1); k++) {
                    sim->site = (uint16_t)(3 + k);
                    sim_call(sim, r, w, AR, 600 + k);
                }
                sim->site = 50;
                sim_stuck(sim, r);
            }
            char want[64];
            snprintf(want, sizeof(want), "%s call-added %u", behind ? "proven" : "suspected", last);
            sim_expect(sim, want);
            sim_destroy(&sim);
        }
    }
}

/* Both arms of a branch make one call, with other arguments: a wrong argument as soon as the calls behind it agree, and
 * until then it may be one. */
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
        if (kind == SKIP) { /* it is as far as they are, with another call */
            step(sim, w, last, 2, 3, SKIP, -1, false);
        }
        open_stage(&s, sim);
        for (uint32_t r = 0; r < 4; r++) {
            show(&s, r, false);
        }
        char first[256];
        snprintf(first, sizeof(first), "%s", pass(&s, 200));
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
            show(&s, r, false);
        }
        char want[64];
        bool same = strstr(first, code[kind]) != NULL;
        snprintf(want, sizeof(want), "proven %s 3 %c1", code[kind], same ? '=' : '!');
        assert_string_equal(pass(&s, 200), want);
        assert_string_equal(pass(&s, 3000), "");
        struct roll_engine_summary summary;
        roll_engine_summary(s.e, &summary);
        assert_int_equal(summary.findings, 1);
        close_stage(&s);
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
    open_stage(&s, sim);
    for (uint32_t r = 0; r < 4; r++) {
        show(&s, r, false);
    }
    assert_string_equal(pass(&s, 10), "");
    assert_non_null(strstr(pass(&s, 30), "suspected "));
    close_stage(&s);
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
        cmocka_unit_test(test_a_vote_before_all_have_come_names_nobody),
        cmocka_unit_test(test_what_was_said_before_all_had_come_is_replaced),
        cmocka_unit_test(test_one_against_one_of_four_is_no_tie_yet),
        cmocka_unit_test(test_more_than_half_decide_before_the_rest_has_come),
        cmocka_unit_test(test_a_rank_that_errs_likewise_and_late_is_added),
        cmocka_unit_test(test_ranks_that_have_ended_do_not_come_any_more),
        cmocka_unit_test(test_a_class_is_proven_when_what_follows_excludes_the_others),
        cmocka_unit_test(test_with_nothing_behind_it_a_class_is_only_suspected),
        cmocka_unit_test(test_call_sites_say_which_call_it_is),
        cmocka_unit_test(test_one_place_for_all_calls_says_nothing),
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
