/*
 * test_engine_silence.c: after a verdict that does not end the job the job goes on, and a second, unrelated fault is
 * told.
 *
 * A table of first faults, at least one for every code (firsts.c), and a table of second ones (seconds.c); each pair is
 * a story of its own, at several rank counts. The second one must be told as if it were the first. For whoever looks
 * for a reason: FIRST=code and SECOND=words in the environment choose rows, STORY_TEXTS=1 prints all that is said.
 */
#include "tests/daemon/engine/faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AR ROLL_OP_ALLREDUCE

static const uint32_t sizes[] = {3, 4, 8};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

#define GOES_ON 28u /* steps between the two: longer than what is merely quiet takes to be suspected */

static uint32_t failures;

/* Ranks take the places of the letters L and V. */
static const char *filled(const char *said, uint32_t left, uint32_t victim, char out[STORY_SAID])
{
    size_t used = 0;
    for (const char *at = said; *at && used + 12 < STORY_SAID; at++) {
        if (*at == 'L' || *at == 'V') {
            used += (size_t)snprintf(out + used, STORY_SAID - used, "%u", *at == 'L' ? left : victim);
        } else {
            out[used++] = *at;
        }
    }
    out[used] = '\0';
    return out;
}

static void expect(struct story *t, enum roll_verdict_code code, const char *want, uint32_t victim, const char *when)
{
    char wanted[STORY_SAID], got[STORY_SAID];
    filled(want, crew_last(&t->left), victim, wanted);
    story_said(t, code, got);
    if (strcmp(got, wanted) != 0) {
        printf("%s, %u ranks, order %u:\n  wanted: %s\n  got:    %s\n", when, t->right.size, t->order, wanted, got);
        failures++;
    }
}

static void open_for(struct story *t, enum where where, uint32_t n, uint32_t order)
{
    uint32_t left = where == REST ? n + 1 : where == APART ? n + n % 2 : n; /* even: half may stand against half */
    story_open(t, where == APART ? left + n : left, order);
    t->world = sim_world(t->sim);
    t->sim->site = 7;
    sim_all(t->sim, t->world, AR, 1);
    for (uint32_t r = 0; r < t->sim->ranks; r++) {
        sim_sync(t->sim, r);
    }
    t->left = story_crew(t, 0, left);
    t->right = where == SAME || where == ENDS || where == REST ? t->left : story_crew(t, where == APART ? left : 0, n);
    job_steps(t, &t->left, 4);
    if (where == APART || where == OTHER) {
        job_steps(t, &t->right, 4);
    }
}

/* The first fault happens, is told, and is over for those who go on. */
static void first_fault(struct story *t, const struct first *f)
{
    char when[256];
    snprintf(when, sizeof(when), "first: %s (%s)", roll_verdict_name(f->code), f->what);
    f->happens(t, f->kind);
    story_feed(t);
    expect(t, f->code, f->said, 0, when);
    if (f->over) {
        f->over(t, f->kind);
        story_feed(t);
    }
    if (f->where != ENDS) {
        job_steps(t, &t->right, GOES_ON);
    }
    snprintf(when, sizeof(when), "first is over: %s (%s)", roll_verdict_name(f->code), f->what);
    expect(t, 0, f->unsaid ? f->unsaid : "", 0, when);
}

static bool is_wanted(const char *variable, const char *name)
{
    const char *only = getenv(variable);
    return !only || strstr(name, only) != NULL;
}

static uint32_t stories; /* told so far: a FIRST or SECOND that names none must not pass */

static void one_story(const struct first *f, const struct second *s, uint32_t n, bool last, uint32_t order)
{
    struct story t;
    char when[256];
    stories++;
    open_for(&t, f ? f->where : SAME, n, order);
    if (f) {
        first_fault(&t, f);
    }
    uint32_t victim = last ? crew_last(&t.right) : t.right.first;
    s->happens(&t, victim);
    story_pass(&t, 25 * S_);
    snprintf(when, sizeof(when), "%s (%s), then %s of rank %u", f ? roll_verdict_name(f->code) : "nothing",
             f ? f->what : "", s->what, victim);
    expect(&t, 0, s->said, victim, when);
    story_close(&t);
}

/* Nothing has ended in between, since it hangs nothing: the same mistake of the same rank on the same communicator is
 * one cause. */
static bool is_one_cause(const struct first *f, const struct second *s, bool last)
{
    return f && f->code == ROLL_VERDICT_REDOP_MISMATCH && last && strstr(s->said, roll_verdict_name(f->code)) != NULL;
}

/* The sanitizers look at memory, not at verdicts, and are many times slower: there each first fault meets a fourth of
 * the seconds, other ones than its neighbours meet. The usual build tries them all. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define THINNED 4
#else
#define THINNED 1
#endif

static void all_seconds(const struct first *f, size_t turn)
{
    for (size_t i = 0; i < SIZES; i++) {
        for (size_t k = 0; k < second_count; k++) {
            for (uint32_t last = 0; last < 2 && is_wanted("SECOND", seconds[k].what); last++) {
                if (!is_one_cause(f, &seconds[k], last == 1) && (i + k + last + turn) % THINNED == 0) {
                    one_story(f, &seconds[k], sizes[i], last == 1, (uint32_t)(i + k + last) % 3);
                }
            }
        }
    }
}

static void test_the_second_faults_alone(void **state)
{
    (void)state;
    failures = 0;
    for (size_t turn = 0; turn < THINNED; turn++) {
        all_seconds(NULL, turn);
    }
    assert_int_equal(failures, 0);
    assert_true(stories > 0);
}

static void test_every_code_has_a_row(void **state)
{
    (void)state;
    static const enum roll_verdict_code codes[] = {
#define ROLL_VERDICT_ROW(NAME, number, code, FAMILY, title) ROLL_VERDICT_##NAME,
#include "trace/verdict.def"
#undef ROLL_VERDICT_ROW
    };
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        bool there = false;
        for (size_t k = 0; first_at(k); k++) {
            there = there || first_at(k)->code == codes[i];
        }
        if (!there) {
            fail_msg("no row for %s", roll_verdict_name(codes[i]));
        }
    }
}

/* A row is about its code, and says why nobody goes on where nobody does. */
static void test_every_row_is_about_its_code(void **state)
{
    (void)state;
    for (size_t k = 0; first_at(k); k++) {
        assert_non_null(strstr(first_at(k)->said, roll_verdict_name(first_at(k)->code)));
        assert_int_equal(first_at(k)->where == ENDS, first_at(k)->reason != NULL);
    }
}

static void test_a_second_fault_is_told_after_every_first_one(void **state)
{
    (void)state;
    uint32_t before = stories;
    failures = 0;
    for (size_t k = 0; first_at(k); k++) {
        if (first_at(k)->where != ENDS && is_wanted("FIRST", roll_verdict_name(first_at(k)->code))) {
            all_seconds(first_at(k), k);
        }
    }
    assert_true(stories > before);
    assert_int_equal(failures, 0);
}

/* The healthy twin: nothing else happens, and nothing else is said, nor when all take down what they have and end. */
static void test_a_job_that_goes_on_gives_nothing_more(void **state)
{
    (void)state;
    failures = 0;
    for (size_t k = 0; first_at(k); k++) {
        for (uint32_t way = 0; way < SIZES * 3 && is_wanted("FIRST", roll_verdict_name(first_at(k)->code)); way++) {
            const struct first *f = first_at(k);
            struct story t;
            char when[256];
            open_for(&t, f->where, sizes[way / 3], way % 3);
            first_fault(&t, f);
            if (f->where != ENDS) {
                job_steps(&t, &t.right, 40);
            }
            if (f->where == SAME) {
                EACH(r, &t.right)
                {
                    sim_record(t.sim, r, ROLL_OP_COMM_DESTROY, t.right.dp);
                    sim_record(t.sim, r, ROLL_OP_COMM_DESTROY, t.right.ep);
                    sim_record(t.sim, r, ROLL_OP_COMM_DESTROY, t.world);
                    sim_proc(t.sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
                }
            }
            story_pass(&t, 15 * S_);
            if (f->where == SAME) {
                roll_engine_finish(t.e);
            }
            snprintf(when, sizeof(when), "%s (%s), then nothing", roll_verdict_name(f->code), f->what);
            expect(&t, 0, "", 0, when);
            story_close(&t);
        }
    }
    assert_int_equal(failures, 0);
}

/* A rank that hangs for the reason that has been told, and is then ended by its watchdog, is no second finding. */
static void test_consequences_stay_silent_while_the_trouble_lasts(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    sim->site = 1;
    for (int i = 0; i < 4; i++) {
        sim_all(sim, w, AR, 512);
        for (uint32_t r = 0; r < 4; r++) {
            sim_sync(sim, r);
        }
    }
    sim->site = 2;
    for (uint32_t r = 0; r < 4; r++) {
        sim_call(sim, r, w, AR, r == 3 ? 500 : 512);
        sim_stuck(sim, r);
    }
    for (uint32_t r = 0; r < 2; r++) {
        sim_proc(sim, r, ROLL_PROC_DEAD, SIM_SIGNAL(SIGABRT));
    }
    sim_expect(sim, "proven count-mismatch 3");
    sim_destroy(&sim);
}

/*
 * The times of one rank are damaged, a year ahead, while the first fault happens and is told: the silence ends all the
 * same, and the second fault is told. Times are what a race and who arrives last are found by: those rows say something
 * else then, or nothing.
 */
static void test_damaged_times_do_not_make_a_silence_endless(void **state)
{
    (void)state;
    failures = 0;
    for (size_t k = 0; first_at(k); k++) {
        const struct first *f = first_at(k);
        for (uint32_t way = 0; way < 4 && f->where != ENDS && is_wanted("FIRST", roll_verdict_name(f->code)); way++) {
            struct story t;
            char when[256], drained[STORY_SAID];
            open_for(&t, f->where, 4, 0);
            uint32_t damaged = way % 2 == 0 ? t.right.first : crew_last(&t.left);
            t.ahead_ns[damaged] = 365 * 24 * 3600 * S_;
            f->happens(&t, f->kind);
            story_feed(&t);
            t.ahead_ns[damaged] = 0;
            if (f->over) {
                f->over(&t, f->kind);
                story_feed(&t);
            }
            job_steps(&t, &t.right, GOES_ON);
            story_said(&t, 0, drained);
            const struct second *s = &seconds[way < 2 ? 5 : 9];
            s->happens(&t, crew_last(&t.right));
            story_pass(&t, 25 * S_);
            snprintf(when, sizeof(when), "%s (%s) with damaged times of rank %u, then %s", roll_verdict_name(f->code),
                     f->what, damaged, s->what);
            expect(&t, 0, s->said, crew_last(&t.right), when);
            story_close(&t);
        }
    }
    assert_int_equal(failures, 0);
}

int main(void)
{
    /* Each of some thousand engines is freed whole; giving its pages back each time is a third of the test's time. */
    (void)mallopt(M_TRIM_THRESHOLD, 256 << 20);
    (void)mallopt(M_MMAP_THRESHOLD, 256 << 20);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_has_a_row),
        cmocka_unit_test(test_every_row_is_about_its_code),
        cmocka_unit_test(test_the_second_faults_alone),
        cmocka_unit_test(test_a_second_fault_is_told_after_every_first_one),
        cmocka_unit_test(test_a_job_that_goes_on_gives_nothing_more),
        cmocka_unit_test(test_damaged_times_do_not_make_a_silence_endless),
        cmocka_unit_test(test_consequences_stay_silent_while_the_trouble_lasts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
