/*
 * test_engine_straggler.c: who arrives last, and by how much: with time, clocks that are seconds apart, and everything
 * healthy that looks alike.
 *
 * A job in miniature: all ranks leave a collective at one instant; each works as long as the test says, enqueues the
 * next, waits, and is let go when the last has come. Every host has a clock of its own.
 */
#include "daemon/engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX 64u
#define MS        1000000ull
#define S_        1000000000ull

static const uint32_t sizes[] = {2, 3, 4, 8, 64};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

struct job {
    roll_engine_t *e;
    uint32_t ranks, source[RANKS_MAX], seq, p2p, step;
    uint64_t ticket[RANKS_MAX], clock[RANKS_MAX]; /* what a rank's clock says at time 0 */
    uint64_t now, ticked, random;
    uint64_t free[RANKS_MAX]; /* when its host may go on */
};

static uint64_t random_below(struct job *j, uint64_t n)
{
    j->random = j->random * 6364136223846793005u + 1442695040888963407u;
    return (j->random >> 33) % n;
}

static void job_new(struct job *j, uint32_t ranks)
{
    struct roll_engine_config config = {.stall_ns = 0};
    *j = (struct job){.e = roll_engine_new(&config), .ranks = ranks, .now = 1000 * S_, .random = ranks};
    assert_non_null(j->e);
    j->ticked = j->now;
    roll_engine_tick(j->e, j->now);
    for (uint32_t r = 0; r < ranks; r++) {
        struct roll_source_info info = {.stream = r + 1,
                                        .world_rank = (int32_t)r,
                                        .world_size = (int32_t)ranks,
                                        .pid = 100 + r,
                                        .host = r < (ranks + 1) / 2 ? "a" : "b",
                                        .exe = "x"};
        j->clock[r] = 7 * S_ * (r % 5) + 3 * r; /* nodes differ by seconds, in both clocks */
        j->free[r] = j->now;
        assert_int_equal(roll_engine_open(j->e, &info, &j->source[r]), 0);
        assert_int_equal(roll_engine_clock(j->e, j->source[r], (int64_t)(13 * S_ * (r % 3))), 0);
        struct roll_def def = {.type = ROLL_DEF_COMM, .id = 1, .comm.label = "dp"};
        def.comm.info = (struct roll_def_comm){.key = 77,
                                               .rank = (int32_t)r,
                                               .nranks = (int32_t)ranks,
                                               .color = ROLL_COLOR_NONE,
                                               .origin = ROLL_COMM_INIT,
                                               .label_bytes = 2};
        assert_int_equal(roll_engine_define(j->e, j->source[r], &def), 0);
        def.id = 2; /* with ranks that are not watched */
        def.comm.info.key = 1000 + r;
        def.comm.info.rank = 0;
        def.comm.info.nranks = 1000;
        assert_int_equal(roll_engine_define(j->e, j->source[r], &def), 0);
    }
}

static void record(struct job *j, uint32_t r, enum roll_op op, uint64_t at, uint64_t took, uint64_t count)
{
    bool coll = op == ROLL_OP_ALLREDUCE, other = op == ROLL_OP_ALLGATHER,
         p2p = op == ROLL_OP_SEND || op == ROLL_OP_RECV;
    struct roll_record rec = {.seal = roll_seal(j->ticket[r]++, ROLL_STATE_RETURNED),
                              .enter_ns = at + j->clock[r],
                              .count = count,
                              .seq = coll || other ? j->seq
                                     : p2p         ? j->p2p
                                                   : 0,
                              .peer = p2p ? (int32_t)(op == ROLL_OP_SEND ? r + 1 : r - 1) : ROLL_PEER_NONE,
                              .call_ns = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took,
                              .step = j->step,
                              .comm = other         ? 2
                                      : coll || p2p ? 1
                                                    : 0,
                              .stream = op == ROLL_OP_EVENT_SYNC ? 0 : 2,
                              .callsite = coll ? 9 : 0,
                              .thread = 1,
                              .layer = ROLL_LAYER_NONE,
                              .op = (uint8_t)op,
                              .dtype = coll || other || p2p ? ROLL_DTYPE_FLOAT32 : ROLL_DTYPE_NONE,
                              .redop = coll ? ROLL_RED_SUM : ROLL_RED_NONE};
    assert_int_equal(roll_engine_feed(j->e, j->source[r], &rec, 1), 0);
}

static void pass(struct job *j, uint64_t until)
{
    while (j->ticked + 20 * MS <= until) {
        j->ticked += 20 * MS;
        roll_engine_tick(j->e, j->ticked);
    }
    j->now = until;
}

/* All ranks make the call when their work is done, and wait for it unless they run ahead. */
static void step(struct job *j, const uint64_t *work, bool ahead)
{
    uint64_t last = 0;
    uint64_t arrive[RANKS_MAX];
    for (uint32_t r = 0; r < j->ranks; r++) {
        arrive[r] = j->free[r] + work[r];
        last = arrive[r] > last ? arrive[r] : last;
    }
    uint64_t release = last + 2 * MS;
    for (uint32_t r = 0; r < j->ranks; r++) {
        record(j, r, ROLL_OP_ALLREDUCE, arrive[r], 5000, 512);
        uint64_t back = release + random_below(j, 50000); /* hosts wake up within 50 us */
        if (!ahead) {
            record(j, r, ROLL_OP_STREAM_SYNC, arrive[r] + 6000, back - arrive[r] - 6000, 0);
        }
        j->free[r] = ahead ? arrive[r] + 10000 : back;
    }
    j->seq++;
    j->step++;
    pass(j, release + MS);
}

enum shape { EVEN, JITTER, LATE, ROTATING, CHECKPOINT, TWO_LATE, MANY_LATE, SLIGHTLY, SLOWER, ONE_SLOWER };

static void work_of(struct job *j, enum shape shape, uint32_t i, uint64_t *work)
{
    for (uint32_t r = 0; r < j->ranks; r++) {
        bool last = r == j->ranks - 1;
        work[r] = 100 * MS + random_below(j, MS / 2);
        work[r] += shape == JITTER ? random_below(j, 40 * MS) : 0;
        work[r] += shape == LATE && last && i >= 40 ? 40 * MS : 0;
        work[r] += shape == ROTATING && i % j->ranks == r ? 40 * MS : 0;
        work[r] += shape == CHECKPOINT && r == 0 && i % 20 == 0 ? 3 * S_ : 0;
        work[r] += shape == TWO_LATE && r + 2 >= j->ranks ? 40 * MS : 0;
        work[r] += shape == MANY_LATE && r > 0 ? 40 * MS : 0; /* one early rank is no straggler */
        work[r] += shape == SLIGHTLY && last ? 3 * MS : 0;
        work[r] += shape == SLOWER && i >= 60 ? 2 * MS * (i - 60) : 0;
        work[r] += shape == ONE_SLOWER && last && i >= 60 ? 2 * MS * (i - 60) : 0;
    }
}

/* "note 3; suspected 3": everything that was said, in order. The last text stays in `text`. */
static char text[8192];
static const char *said(struct job *j)
{
    static char out[512];
    size_t used = 0;
    out[0] = '\0';
    for (const struct roll_verdict *v; (v = roll_engine_next(j->e));) {
        char ranks[64];
        roll_rankset_format(&v->culprits, ranks, sizeof(ranks));
        used += (size_t)snprintf(out + used, sizeof(out) - used, "%s%s %s", used ? "; " : "",
                                 roll_certainty_name(v->certainty), ranks[0] ? ranks : "-");
        assert_int_equal(v->code, ROLL_VERDICT_STRAGGLER);
        snprintf(text, sizeof(text), "%s", v->text);
    }
    return out;
}

static void expect(uint32_t ranks, enum shape shape, uint32_t steps, const char *want)
{
    struct job j;
    uint64_t work[RANKS_MAX];
    job_new(&j, ranks);
    for (uint32_t i = 0; i < steps; i++) {
        work_of(&j, shape, i, work);
        step(&j, work, false);
    }
    const char *got = said(&j);
    if (strcmp(got, want) != 0) {
        fail_msg("%u ranks, shape %d: wanted '%s', got '%s': %s", ranks, shape, want, got, text);
    }
    roll_engine_destroy(&j.e);
}

static void test_the_rank_that_arrives_last_is_noted_then_suspected(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        char want[64];
        snprintf(want, sizeof(want), "note %u; suspected %u", sizes[i] - 1, sizes[i] - 1);
        expect(sizes[i], LATE, 200, want);
        assert_non_null(strstr(text, "since step 40 (#40)"));
        assert_non_null(strstr(text, "outside all recorded calls"));
        assert_non_null(strstr(text, "communicator dp"));
        snprintf(want, sizeof(want), "note %u", sizes[i] - 1);
        expect(sizes[i], LATE, 85, want);
        expect(sizes[i], LATE, 60, "");
    }
}

static void test_healthy_jobs_give_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        expect(sizes[i], EVEN, 300, "");
        expect(sizes[i], JITTER, 400, "");
        expect(sizes[i], ROTATING, 300, "");
        expect(sizes[i], CHECKPOINT, 300, "");
        expect(sizes[i], SLIGHTLY, 300, "");
    }
}

static void test_two_that_are_late_together(void **state)
{
    (void)state;
    expect(4, TWO_LATE, 200, "note 2-3; suspected 2-3");
    expect(8, TWO_LATE, 200, "note 6-7; suspected 6-7");
    expect(3, MANY_LATE, 200, "");
    expect(8, MANY_LATE, 200, "");
}

static void test_steps_that_get_longer_are_noted_with_the_first_slow_one(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        char want[64];
        expect(sizes[i], SLOWER, 160, "note -");
        assert_non_null(strstr(text, "it has been slower since step 6"));
        snprintf(want, sizeof(want), "note %u", sizes[i] - 1);
        expect(sizes[i], ONE_SLOWER, 110, want);
        assert_non_null(strstr(text, "since step 6"));
    }
}

/* The late rank's own device keeps it: the rank's host waits for an event before the call. */
static void test_in_which_call_the_time_is_spent(void **state)
{
    (void)state;
    struct job j;
    job_new(&j, 4);
    for (uint32_t i = 0; i < 100; i++) {
        uint64_t work[4] = {100 * MS, 100 * MS, 160 * MS, 100 * MS};
        for (uint32_t r = 0; r < 4; r++) {
            record(&j, r, ROLL_OP_EVENT_SYNC, j.free[r] + 10 * MS, work[r] - 20 * MS, 0);
        }
        step(&j, work, false);
    }
    assert_string_equal(said(&j), "note 2; suspected 2");
    assert_non_null(strstr(text, "inside cudaEventSynchronize"));
    assert_non_null(strstr(text, "waits for its own device"));
    roll_engine_destroy(&j.e);
}

/* Where hosts run ahead, times of enqueueing say nothing. */
static void test_hosts_that_run_ahead_are_not_judged(void **state)
{
    (void)state;
    struct job j;
    job_new(&j, 4);
    for (uint32_t i = 0; i < 300; i++) {
        uint64_t work[4] = {MS, MS, 20 * MS, MS};
        step(&j, work, true);
        for (uint32_t r = 0; r < 4; r++) {
            j.free[r] = j.now;
        }
    }
    assert_string_equal(said(&j), "");
    roll_engine_destroy(&j.e);
}

/* Stages of a pipeline: the last one gets its input last, and so comes last to what all do together. */
static void test_stages_of_a_pipeline_wait_by_design(void **state)
{
    (void)state;
    struct job j;
    job_new(&j, 4);
    for (uint32_t i = 0; i < 200; i++) {
        uint64_t work[4], from = j.free[0];
        for (uint32_t r = 0; r < 4; r++) {
            if (r > 0) {
                record(&j, r, ROLL_OP_RECV, j.free[r] + MS, 5000, 64);
                record(&j, r, ROLL_OP_STREAM_SYNC, j.free[r] + 2 * MS, from - j.free[r] + 1, 0);
            }
            from += r == 3 ? 70 * MS : 30 * MS; /* the last rank has the loss to compute as well */
            if (r < 3) {
                record(&j, r, ROLL_OP_SEND, from, 5000, 64);
            }
            work[r] = from - j.free[r] + MS;
        }
        j.p2p++;
        step(&j, work, false);
    }
    assert_string_equal(said(&j), "");
    roll_engine_destroy(&j.e);
}

/* All make the same exchange in between, and one of them waits longer for it. */
static void wait_in_between(bool is_copied)
{
    struct job j;
    job_new(&j, 2);
    for (uint32_t i = 0; i < 200; i++) {
        uint64_t work[2] = {100 * MS, 150 * MS};
        for (uint32_t r = 0; r < 2; r++) {
            record(&j, r, ROLL_OP_ALLGATHER, j.free[r] + MS, 5000, 64);
            if (is_copied) {
                record(&j, r, ROLL_OP_COPY, j.free[r] + MS + 6000, 5000, 0);
            }
            record(&j, r, ROLL_OP_STREAM_SYNC, j.free[r] + 2 * MS, work[r] - 50 * MS, 0);
        }
        step(&j, work, false);
    }
    assert_string_equal(said(&j), "");
    roll_engine_destroy(&j.e);
}

/* What is spent for others is not its own. */
static void test_waits_behind_other_calls_are_not_its_own(void **state)
{
    (void)state;
    wait_in_between(false);
}

/* A loss is copied to the host before the host waits for it: the copy comes back at once, and the wait behind it is for
 * others as well. */
static void test_waits_behind_a_copy_are_not_its_own(void **state)
{
    (void)state;
    wait_in_between(true);
}

/* All come at the same time; some write a log before they wait, and so seem to be let go later than they are. */
static void test_a_wait_that_comes_late_proves_nothing(void **state)
{
    (void)state;
    struct job j;
    job_new(&j, 4);
    for (uint32_t i = 0; i < 200; i++) {
        uint64_t at = j.free[0] + 100 * MS;
        for (uint32_t r = 0; r < 4; r++) {
            uint64_t log = r == 0 ? 0 : 40 * MS;
            record(&j, r, ROLL_OP_ALLREDUCE, at, 5000, 512);
            record(&j, r, ROLL_OP_STREAM_SYNC, at + 6000 + log, r == 0 ? 2 * MS : 5000, 0);
            j.free[r] = at + 2 * MS;
        }
        j.seq++;
        pass(&j, at + 50 * MS);
    }
    assert_string_equal(said(&j), "");
    roll_engine_destroy(&j.e);
}

static void test_where_ranks_are_starved_nobody_is_judged(void **state)
{
    (void)state;
    struct job j;
    uint64_t work[RANKS_MAX];
    job_new(&j, 4);
    struct roll_engine_sight sight = {.heard = true, .starved = 300};
    roll_engine_sight(j.e, j.source[1], &sight);
    for (uint32_t i = 0; i < 300; i++) {
        work_of(&j, LATE, i, work);
        step(&j, work, false);
    }
    assert_string_equal(said(&j), "");
    roll_engine_destroy(&j.e);
}

static void test_one_that_recovers_and_another_after_it(void **state)
{
    (void)state;
    struct job j;
    job_new(&j, 4);
    for (uint32_t i = 0; i < 300; i++) {
        uint64_t work[4] = {100 * MS, 100 * MS, 100 * MS, 100 * MS};
        if (i < 100 || i >= 180) {
            work[i < 100 ? 1 : 3] += 40 * MS;
        }
        step(&j, work, false);
    }
    assert_string_equal(said(&j), "note 1; suspected 1; note 3; suspected 3");
    roll_engine_destroy(&j.e);
}

/* steps of many calls, waits for events, and large communicators */

struct form {
    uint32_t calls;    /* on the communicator, in a step */
    uint32_t others;   /* on another one, before them */
    bool event, known; /* the host waits for an event, whose place is known */
    uint64_t late, jitter;
};

struct form_job {
    roll_engine_t *e;
    uint64_t *ticket;
};

static void form_record(struct form_job *f, uint32_t r, enum roll_op op, uint32_t comm, uint32_t seq, uint64_t at,
                        uint64_t took, uint64_t count)
{
    bool call = op == ROLL_OP_ALLREDUCE;
    struct roll_record rec = {.seal = roll_seal(f->ticket[r]++, ROLL_STATE_RETURNED),
                              .enter_ns = at,
                              .count = count,
                              .seq = seq,
                              .peer = ROLL_PEER_NONE,
                              .call_ns = (uint32_t)took,
                              .step = ROLL_STEP_NONE,
                              .comm = (uint16_t)comm,
                              .stream = 2,
                              .callsite = call ? 9 : 0,
                              .thread = call ? 2 : 1, /* backward has a thread of its own */
                              .layer = ROLL_LAYER_NONE,
                              .op = (uint8_t)op,
                              .dtype = call ? ROLL_DTYPE_FLOAT32 : ROLL_DTYPE_NONE,
                              .redop = call ? ROLL_RED_SUM : ROLL_RED_NONE};
    assert_int_equal(roll_engine_feed(f->e, r, &rec, 1), 0);
}

static void form_open(struct form_job *f, uint32_t ranks)
{
    struct roll_engine_config config = {.stall_ns = 0};
    f->e = roll_engine_new(&config);
    f->ticket = calloc(ranks, sizeof(*f->ticket));
    assert_non_null(f->e);
    assert_non_null(f->ticket);
    for (uint32_t r = 0; r < ranks; r++) {
        uint32_t source;
        struct roll_source_info info = {.stream = r + 1,
                                        .world_rank = (int32_t)r,
                                        .world_size = (int32_t)ranks,
                                        .pid = 100 + r,
                                        .host = "a",
                                        .exe = "x"};
        assert_int_equal(roll_engine_open(f->e, &info, &source), 0);
        for (uint32_t id = 1; id <= 2; id++) {
            struct roll_def def = {.type = ROLL_DEF_COMM, .id = id, .comm.label = id == 1 ? "dp" : "tp"};
            def.comm.info = (struct roll_def_comm){.key = id == 1 ? 77 : 900 + r / 2,
                                                   .rank = (int32_t)(id == 1 ? r : r % 2),
                                                   .nranks = (int32_t)(id == 1 ? ranks : 2),
                                                   .color = ROLL_COLOR_NONE,
                                                   .origin = ROLL_COMM_INIT,
                                                   .label_bytes = 2};
            assert_int_equal(roll_engine_define(f->e, source, &def), 0);
        }
    }
}

/* What is said of `steps` steps of which the last rank comes late, as "note 3; suspected 3". */
static void form_expect(uint32_t ranks, const struct form *form, uint32_t steps, const char *want)
{
    struct form_job f;
    struct job j = {.random = ranks + form->calls};
    form_open(&f, ranks);
    uint64_t now = 1000 * S_, back = now;
    roll_engine_tick(f.e, now);
    for (uint32_t i = 0; i < steps; i++) {
        uint64_t release = back + 150 * MS + form->late + form->jitter;
        for (uint32_t r = 0; r < ranks; r++) {
            uint64_t at = back + 100 * MS + (r == ranks - 1 ? form->late : 0);
            at += form->jitter ? random_below(&j, form->jitter) : 0;
            for (uint32_t k = 0; k < form->others; k++) {
                form_record(&f, r, ROLL_OP_ALLREDUCE, 2, i * form->others + k, back + MS + k * 1000, 900, 64);
            }
            for (uint32_t k = 0; k < form->calls; k++) {
                form_record(&f, r, ROLL_OP_ALLREDUCE, 1, i * form->calls + k, at + k * 20000, 5000, 512 + k);
            }
            at += form->calls * 20000;
            enum roll_op op = form->event ? ROLL_OP_EVENT_SYNC : ROLL_OP_STREAM_SYNC;
            form_record(&f, r, op, 0, 0, at, release + random_below(&j, 50000) - at,
                        form->event && form->known ? f.ticket[r] + 1 : 0);
        }
        back = release + 50000;
        while (now + 50 * MS <= back) {
            now += 50 * MS;
            roll_engine_tick(f.e, now);
        }
    }
    j.e = f.e;
    const char *got = said(&j);
    if (strcmp(got, want) != 0) {
        fail_msg("%u ranks, %u calls and %u others a step: wanted '%s', got '%s': %s", ranks, form->calls, form->others,
                 want, got, text);
    }
    roll_engine_destroy(&f.e);
    free(f.ticket);
}

static void test_steps_of_many_calls_with_one_wait(void **state)
{
    (void)state;
    static const struct form form[] = {{.calls = 2},
                                       {.calls = 8},
                                       {.calls = 1, .event = true, .known = true},
                                       {.calls = 8, .event = true, .known = true},
                                       {.calls = 2, .others = 300},
                                       {.calls = 8, .others = 8, .event = true, .known = true}};
    for (size_t i = 0; i < sizeof(form) / sizeof(form[0]); i++) {
        struct form late = form[i], healthy = form[i];
        late.late = 50 * MS;
        healthy.jitter = 30 * MS;
        form_expect(4, &late, 150, "note 3; suspected 3");
        form_expect(8, &late, 150, "note 7; suspected 7");
        form_expect(4, &healthy, 300, "");
        form_expect(8, &healthy, 300, "");
    }
}

/* Where the event stands is not known: each host may come back when its own device gets there. */
static void test_an_event_at_an_unknown_place_says_nothing(void **state)
{
    (void)state;
    form_expect(4, &(struct form){.calls = 2, .event = true, .late = 50 * MS}, 200, "");
}

/* What one run has no room for, the next one goes on with. */
/* The mean of a job that began well: the last 160 of 200 steps are 40 ms late. */
static void test_who_is_slowest_and_by_how_much(void **state)
{
    (void)state;
    struct roll_view_slowest slow;
    struct roll_view_comm comm;
    struct roll_view_source source;
    struct job j;
    uint64_t work[RANKS_MAX];
    job_new(&j, 4);
    assert_false(roll_engine_slowest(j.e, &slow));
    for (uint32_t i = 0; i < 200; i++) {
        work_of(&j, LATE, i, work);
        step(&j, work, false);
    }
    assert_true(roll_engine_slowest(j.e, &slow));
    assert_int_equal(slow.rank, 3);
    assert_in_range(slow.late_ns, 30 * MS, 36 * MS);
    assert_in_range(slow.interval_ns, 120 * MS, 150 * MS);
    assert_in_range(slow.looks, 150, 200);
    assert_true(roll_engine_comm(j.e, 0, &comm));
    assert_int_equal(comm.traffic.calls, 4 * 200);
    assert_int_equal(comm.traffic.step_calls, 4 * 200);
    assert_true(comm.traffic.bytes > 0 && comm.traffic.bytes % (4 * 200 * 4) == 0);
    assert_int_equal(comm.traffic.ops, UINT64_C(1) << ROLL_OP_ALLREDUCE);
    assert_true(roll_engine_source(j.e, 0, &source));
    assert_int_equal(source.step - source.first_step, 199);
    roll_engine_destroy(&j.e);
    job_new(&j, 4);
    for (uint32_t i = 0; i < 200; i++) { /* hosts that run ahead are not compared */
        work_of(&j, LATE, i, work);
        step(&j, work, true);
    }
    assert_false(roll_engine_slowest(j.e, &slow));
    roll_engine_destroy(&j.e);
}

static void test_large_communicators(void **state)
{
    (void)state;
    for (uint32_t ranks = 512; ranks <= 4096; ranks *= 8) {
        char want[64];
        snprintf(want, sizeof(want), "note %u; suspected %u", ranks - 1, ranks - 1);
        form_expect(ranks, &(struct form){.calls = 2, .late = 50 * MS}, ranks == 512 ? 150 : 250, want);
    }
    form_expect(2048, &(struct form){.calls = 2, .jitter = 30 * MS}, 150, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_rank_that_arrives_last_is_noted_then_suspected),
        cmocka_unit_test(test_healthy_jobs_give_nothing),
        cmocka_unit_test(test_two_that_are_late_together),
        cmocka_unit_test(test_steps_that_get_longer_are_noted_with_the_first_slow_one),
        cmocka_unit_test(test_in_which_call_the_time_is_spent),
        cmocka_unit_test(test_hosts_that_run_ahead_are_not_judged),
        cmocka_unit_test(test_stages_of_a_pipeline_wait_by_design),
        cmocka_unit_test(test_waits_behind_other_calls_are_not_its_own),
        cmocka_unit_test(test_waits_behind_a_copy_are_not_its_own),
        cmocka_unit_test(test_a_wait_that_comes_late_proves_nothing),
        cmocka_unit_test(test_where_ranks_are_starved_nobody_is_judged),
        cmocka_unit_test(test_one_that_recovers_and_another_after_it),
        cmocka_unit_test(test_steps_of_many_calls_with_one_wait),
        cmocka_unit_test(test_an_event_at_an_unknown_place_says_nothing),
        cmocka_unit_test(test_who_is_slowest_and_by_how_much),
        cmocka_unit_test(test_large_communicators),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
