/*
 * test_engine_budget.c: what a source may ask for beyond what it sends, who pays for it, and what is said when there is
 * no room (model/budget.h). That nobody is accused for it in thousands of programs: simulation.room_healthy.
 *
 * The ranks define their communicators by hand; all numbers of bytes are the engine's own account.
 */
#include "daemon/engine/model/budget.h"
#include "daemon/engine/model/pair.h"
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

#define MIB     (UINT64_C(1) << 20)
#define RANKS   8u
#define HOSTILE 7u

struct job {
    roll_engine_t *e;
    uint32_t ranks, source[64];
    uint64_t ticket[64], now;
    uint32_t seq[64];
};

static void job_open(struct job *j, uint32_t ranks, uint64_t memory)
{
    struct roll_engine_config config = {.memory = memory};
    *j = (struct job){.ranks = ranks, .now = 1000 * S_};
    j->e = roll_engine_new(&config);
    assert_non_null(j->e);
    assert_int_equal(roll_engine_tick(j->e, j->now), 0);
    for (uint32_t r = 0; r < ranks && r < 64; r++) {
        struct roll_source_info info = {.stream = r + 1, .world_rank = (int32_t)r, .world_size = (int32_t)ranks};
        assert_int_equal(roll_engine_open(j->e, &info, &j->source[r]), 0);
    }
}

static void define_at(struct job *j, uint32_t source, uint32_t id, uint64_t key, uint32_t rank, uint32_t size)
{
    struct roll_def def = {.type = ROLL_DEF_COMM,
                           .id = id,
                           .comm.info = {.key = key, .rank = (int32_t)rank, .nranks = (int32_t)size, .origin = 1}};
    assert_int_equal(roll_engine_define(j->e, source, &def), 0);
}

static void record(struct job *j, uint32_t rank, enum roll_op op, uint32_t comm, uint32_t seq, uint64_t count)
{
    struct roll_record rec = {.seal = roll_seal(j->ticket[rank]++, ROLL_STATE_RETURNED),
                              .enter_ns = j->now,
                              .count = count,
                              .seq = seq,
                              .peer = ROLL_PEER_NONE,
                              .step = ROLL_STEP_NONE,
                              .layer = ROLL_LAYER_NONE,
                              .comm = (uint16_t)comm,
                              .stream = 1,
                              .thread = 1,
                              .op = (uint8_t)op,
                              .dtype = ROLL_DTYPE_FLOAT32};
    assert_int_equal(roll_engine_feed(j->e, j->source[rank], &rec, 1), 0);
}

static void call(struct job *j, uint32_t rank, uint32_t comm, uint32_t seq, uint64_t count)
{
    record(j, rank, ROLL_OP_ALLREDUCE, comm, seq, count);
}

static void call_all(struct job *j, uint32_t wrong, uint64_t count)
{
    for (uint32_t r = 0; r < j->ranks; r++) {
        call(j, r, 1, j->seq[r]++, r == wrong ? count : 1024);
    }
}

static void pass(struct job *j, uint64_t ns)
{
    sim_wait(j->e, ns, &j->now);
}

static uint64_t refusals_of(const struct job *j, uint32_t rank)
{
    uint64_t n = 0;
    assert_true(roll_engine_refused(j->e, j->source[rank], &n));
    return n;
}

static const struct source *source_of(const struct job *j, uint32_t rank)
{
    return j->e->source[j->source[rank]];
}

/* What is said, one after the other. Returns how many findings stand. */
static unsigned said(struct job *j, char *text, size_t room)
{
    const struct roll_verdict *v;
    struct roll_engine_summary s;
    text[0] = '\0';
    while ((v = roll_engine_next(j->e)) != NULL) {
        char culprits[64] = "-";
        (void)roll_rankset_format(&v->culprits, culprits, sizeof(culprits));
        size_t used = strlen(text);
        snprintf(text + used, room - used, "%s %s %s: %s\n", roll_certainty_name(v->certainty),
                 roll_verdict_name(v->code), culprits, v->text);
    }
    roll_engine_summary(j->e, &s);
    return (unsigned)s.findings;
}

static unsigned times(const char *text, const char *what)
{
    unsigned n = 0;
    for (; (text = strstr(text, what)) != NULL; text++) {
        n++;
    }
    return n;
}

/* A rank that asks for too much uses up its own room; its neighbours' calls are judged as ever, and less is certain. */
static void test_a_hostile_rank_uses_up_its_own_room(void **state)
{
    (void)state;
    static char text[65536];
    struct job j;
    job_open(&j, RANKS, 32 * MIB);
    for (uint32_t r = 0; r < RANKS; r++) {
        define_at(&j, j.source[r], 1, 0x1000, r, RANKS);
    }
    call_all(&j, RANKS, 0);
    for (uint32_t i = 0; i < 3000; i++) {
        define_at(&j, j.source[HOSTILE], 2 + i, 0x100000 + i, 0, 1 << 24);
    }
    for (uint32_t i = 0; i < 3000; i++) { /* as many as there is room for */
        define_at(&j, j.source[HOSTILE], 3002 + i, 0x200000 + i, 0, 64);
    }
    assert_true(refusals_of(&j, HOSTILE) > 3000 && refusals_of(&j, HOSTILE) < 6000);
    assert_true(source_of(&j, HOSTILE)->held <= budget_most(j.e));
    assert_true(j.e->shared <= 17 * MIB); /* half of all, and what the size of the job adds */
    for (uint32_t r = 0; r < HOSTILE; r++) {
        assert_int_equal(refusals_of(&j, r), 0);
    }
    for (uint32_t i = 0; i < 20; i++) { /* there is room for everybody else's */
        define_at(&j, j.source[0], 2 + i, 0x300000 + i, 0, 64);
    }
    assert_int_equal(refusals_of(&j, 0), 0);
    for (unsigned i = 0; i < 2000; i++) {
        call_all(&j, RANKS, 0);
    }
    pass(&j, 10 * S_);
    assert_int_equal(said(&j, text, sizeof(text)), 0);
    assert_int_equal(times(text, "asks for more room than there is"), 1);
    call_all(&j, 5, 999);
    call_all(&j, RANKS, 0);
    pass(&j, 10 * S_);
    assert_int_equal(said(&j, text, sizeof(text)), 1);
    assert_int_equal(times(text, "suspected count-mismatch 5"), 1);
    assert_int_equal(times(text, "Rank 7 was set aside for want of room, so this is not proven."), 1);
    roll_engine_destroy(&j.e);
}

/* Nobody is named for what a rank that was set aside does not do, or does wrong; it is for its death, and for standing
 * still, which its agent tells. */
static void test_a_rank_without_room_is_never_a_culprit(void **state)
{
    (void)state;
    static char text[65536];
    for (unsigned how = 0; how < 5; how++) {
        struct job j;
        job_open(&j, RANKS, 32 * MIB);
        for (uint32_t r = 0; r < RANKS; r++) {
            define_at(&j, j.source[r], 1, 0x1000, r, RANKS);
        }
        call_all(&j, RANKS, 0);
        define_at(&j, j.source[HOSTILE], 2, 0x100000, 0, 1 << 24);
        if (how == 0) { /* its call is another one */
            call_all(&j, HOSTILE, 999);
            call_all(&j, RANKS, 0);
        } else {
            for (uint32_t r = 0; r < HOSTILE; r++) { /* it does not come, dies, leaves in good order, is stopped */
                call(&j, r, 1, j.seq[r]++, 1024);
                struct roll_record wait = {.seal = roll_seal(j.ticket[r]++, ROLL_STATE_ENTERED),
                                           .enter_ns = j.now,
                                           .stream = 1,
                                           .thread = 1,
                                           .step = ROLL_STEP_NONE,
                                           .op = ROLL_OP_STREAM_SYNC};
                assert_int_equal(roll_engine_feed(j.e, j.source[r], &wait, 1), 0);
            }
            static const enum roll_proc_state proc[] = {ROLL_PROC_RUNNING, ROLL_PROC_RUNNING, ROLL_PROC_DEAD,
                                                        ROLL_PROC_FINISHED, ROLL_PROC_STOPPED};
            assert_int_equal(roll_engine_process(j.e, j.source[HOSTILE], proc[how], how == 2 ? 9 : 0), 0);
        }
        pass(&j, 60 * S_);
        bool told = how == 2 || how == 4;
        assert_int_equal(told ? 0 : roll_engine_finish(j.e), 0); /* that is told while the job lives */
        assert_int_equal(said(&j, text, sizeof(text)), told);
        assert_int_equal(times(text, "suspected rank-dead 7"), how == 2);
        assert_int_equal(times(text, "suspected rank-stopped 7"), how == 4);
        assert_int_equal(times(text, "proven") - times(text, "not proven"), 0);
        assert_int_equal(times(text, "for rank 7, which was set aside"), how == 1 || how == 3);
        roll_engine_destroy(&j.e);
    }
}

/* Large honest jobs: many communicators of all ranks, told by one rank first; and as many communicators as a rank can
 * number, of two ranks. Who has told of members that come by themselves pays no more for them. */
static void test_honest_jobs_are_refused_nothing(void **state)
{
    (void)state;
    enum { MANY = 4096, COMMS = 12 };
    static char text[4096];
    struct job j;
    job_open(&j, 1, 0);
    for (uint32_t r = 1; r < MANY; r++) {
        uint32_t source;
        struct roll_source_info info = {.stream = r + 1, .world_rank = (int32_t)r, .world_size = MANY};
        for (uint32_t i = 0; i < COMMS && r == 1; i++) {
            define_at(&j, j.source[0], 1 + i, 0x1000 + i, 0, MANY);
        }
        assert_int_equal(roll_engine_open(j.e, &info, &source), 0);
        for (uint32_t i = 0; i < COMMS; i++) {
            define_at(&j, source, 1 + i, 0x1000 + i, r, MANY);
        }
    }
    assert_int_equal(roll_engine_refusals(j.e), 0);
    assert_int_equal(roll_engine_shared(j.e), 0); /* all have come, and pay for themselves */
    assert_int_equal(said(&j, text, sizeof(text)), 0);
    roll_engine_destroy(&j.e);

    job_open(&j, 2, 32 * MIB); /* a sixteenth of the room, and of the numbers */
    for (uint32_t id = 1; id < UINT16_MAX / 16; id++) {
        define_at(&j, j.source[0], id, 0x1000 + id, 0, 2);
        define_at(&j, j.source[1], id, 0x1000 + id, 1, 2);
    }
    assert_int_equal(roll_engine_refusals(j.e), 0);
    roll_engine_destroy(&j.e);
}

/* Windows are the affair of the rank that asks for them: numbers far ahead on many communicators. */
static void test_windows_count_for_who_asks_for_them(void **state)
{
    (void)state;
    static char text[65536];
    struct job j;
    job_open(&j, 2, 32 * MIB);
    for (uint32_t id = 1; id <= 400; id++) {
        define_at(&j, j.source[0], id, 0x1000 + id, 0, 2);
        define_at(&j, j.source[1], id, 0x1000 + id, 1, 2);
    }
    for (uint32_t id = 2; id <= 400; id++) {
        call(&j, 1, id, 4000, 64); /* DEFAULT_WINDOW is 4,096: 192 KiB each */
    }
    assert_true(refusals_of(&j, 1) > 0);
    assert_true(source_of(&j, 1)->held <= budget_most(j.e) + MIB); /* logs are never refused */
    assert_int_equal(refusals_of(&j, 0), 0);
    for (unsigned n = 0; n < 3000; n++) { /* the other one may run ahead */
        call(&j, 0, 1, j.seq[0]++, 64);
    }
    assert_int_equal(refusals_of(&j, 0), 0);
    pass(&j, 20 * S_);
    assert_int_equal(said(&j, text, sizeof(text)), 0);
    roll_engine_destroy(&j.e);
}

/* A log that became long when a rank was behind becomes short when it is not, and is paid for no more. */
static void test_a_long_log_becomes_short_again(void **state)
{
    (void)state;
    enum { COMMS = 4, AHEAD = 4000, TOGETHER = 80000 };
    static char text[65536];
    struct job j;
    job_open(&j, 2, 32 * MIB);
    for (uint32_t id = 1; id <= COMMS; id++) {
        define_at(&j, j.source[0], id, 0x1000 + id, 0, 2);
        define_at(&j, j.source[1], id, 0x1000 + id, 1, 2);
    }
    const struct source *s = source_of(&j, 0);
    for (uint32_t r = 0; r < 2; r++) {
        for (uint32_t n = 0; n < COMMS * AHEAD; n++) {
            call(&j, r, 1 + n % COMMS, n / COMMS, 64);
        }
        assert_int_equal(s->log_mask + 1, 16384); /* all were incomplete until the other one made them */
    }
    uint64_t held = s->held;
    for (uint32_t n = 0; n < TOGETHER; n++) {
        call(&j, 0, 1, AHEAD + n, 64);
        call(&j, 1, 1, AHEAD + n, 64);
    }
    assert_int_equal(s->log_mask + 1, 4096);
    assert_int_equal(held - s->held, (16384 - 4096) * (sizeof(struct entry) + sizeof(struct brief)));
    assert_int_equal(said(&j, text, sizeof(text)), 0);
    for (uint32_t n = 0; n < AHEAD; n++) { /* what is needed is still held, and grows again where it must */
        call(&j, 0, 2, AHEAD + n, n == 1000 ? 65 : 64);
        call(&j, 0, 3, AHEAD + n, 64);
    }
    assert_int_equal(s->log_mask + 1, 8192);
    for (uint32_t n = 0; n < AHEAD; n++) {
        call(&j, 1, 2, AHEAD + n, 64);
        call(&j, 1, 3, AHEAD + n, 64);
    }
    pass(&j, 20 * S_);
    assert_int_equal(said(&j, text, sizeof(text)), 1);
    assert_non_null(strstr(text, "#5000"));
    roll_engine_destroy(&j.e);
}

static size_t chunks_of(const struct source *s)
{
    size_t n = 0;
    for (uint64_t i = 0; s->log && i <= s->log_mask / LOG_CHUNK; i++) {
        n += s->log[i] != NULL;
    }
    return n;
}

/* The records of a case are a few hundred of each of thousands of ranks, none of them complete: a log takes what was
 * written, wherever the tickets begin, and keeps all of it when it grows, or goes past a gap. */
static void test_a_log_takes_what_was_written(void **state)
{
    (void)state;
    enum { FIRST = 1000005, MADE = 300, GAP = 9000, BEHIND = 40 };
    struct job j;
    job_open(&j, 2, 0);
    define_at(&j, j.source[0], 1, 0x1000, 0, 2);
    define_at(&j, j.source[1], 1, 0x1000, 1, 2);
    const struct source *s = source_of(&j, 0);
    j.ticket[0] = FIRST;
    for (uint32_t n = 0; n < MADE; n++) {
        call(&j, 0, 1, n, 64);
    }
    assert_int_equal(s->log_mask + 1, 512);
    assert_int_equal(chunks_of(s), (FIRST + MADE - 1) / LOG_CHUNK - FIRST / LOG_CHUNK + 1);
    for (uint32_t n = 0; n < MADE; n++) {
        const struct entry *entry = source_entry(s, FIRST + n);
        assert_non_null(entry);
        assert_int_equal(entry->rec.seq, n);
        assert_int_equal(source_brief(s, entry)->seq, n);
        assert_ptr_equal(source_brief(s, entry), source_brief_at(s, FIRST + n));
    }
    assert_null(source_entry(s, FIRST - 1));
    assert_null(source_entry(s, FIRST + MADE));
    assert_null(source_brief_at(s, FIRST + MADE + LOG_CHUNK)); /* nothing was written there */
    j.ticket[0] += GAP; /* the log has to hold all from its oldest call on, which nobody has answered */
    for (uint32_t n = 0; n < BEHIND; n++) {
        call(&j, 0, 1, MADE + n, 64);
    }
    assert_int_equal(s->log_mask + 1, 16384);
    assert_in_range(chunks_of(s), 11, 14);
    assert_int_equal(source_entry(s, FIRST)->rec.seq, 0);
    assert_int_equal(source_entry(s, FIRST + MADE + GAP + BEHIND - 1)->rec.seq, MADE + BEHIND - 1);
    assert_int_equal(source_log_needed((struct source *)s, s->next), FIRST);
    roll_engine_destroy(&j.e);
}

/* Messages: a pair for each partner, and its window. */
static void test_pairs_count_for_who_asks_for_them(void **state)
{
    (void)state;
    struct job j;
    job_open(&j, 2, 32 * MIB);
    define_at(&j, j.source[0], 1, 0x1000, 0, 1024);
    define_at(&j, j.source[1], 1, 0x1000, 1, 1024);
    uint64_t held = source_of(&j, 0)->held;
    for (uint32_t n = 0; n < 512; n++) {
        struct roll_record rec = {.seal = roll_seal(j.ticket[1]++, ROLL_STATE_RETURNED),
                                  .enter_ns = j.now,
                                  .count = 1,
                                  .peer = (int32_t)(n + 2),
                                  .step = ROLL_STEP_NONE,
                                  .layer = ROLL_LAYER_NONE,
                                  .comm = 1,
                                  .stream = 1,
                                  .thread = 1,
                                  .op = ROLL_OP_SEND,
                                  .dtype = ROLL_DTYPE_INT8};
        assert_int_equal(roll_engine_feed(j.e, j.source[1], &rec, 1), 0);
    }
    assert_true(source_of(&j, 1)->held >= 512 * PAIR_BYTES);
    assert_int_equal(source_of(&j, 0)->held, held);
    assert_int_equal(roll_engine_refusals(j.e), 0); /* it has sent as much */
    roll_engine_destroy(&j.e);
}

/* A rank that was set aside makes a call for which there is no place, and then one with everybody on the same stream:
 * that one counts as ready only when its host has come back from a wait behind the first. */
static void test_calls_behind_one_without_a_place_are_not_ready(void **state)
{
    (void)state;
    static char text[8192];
    struct job j;
    job_open(&j, 2, 32 * MIB);
    for (uint32_t r = 0; r < 2; r++) {
        define_at(&j, j.source[r], 1, 0x1000, r, 2);
    }
    call_all(&j, 2, 0);
    define_at(&j, j.source[1], 2, 0x2000, 0, 1 << 24);
    call(&j, 1, 2, 0, 64);
    call_all(&j, 2, 0);
    call_all(&j, 2, 0);
    pass(&j, S_);
    assert_int_equal(j.e->comm[0]->base, 1);
    struct roll_record wait = {.seal = roll_seal(j.ticket[1]++, ROLL_STATE_RETURNED),
                               .enter_ns = j.now,
                               .stream = 1,
                               .thread = 1,
                               .step = ROLL_STEP_NONE,
                               .op = ROLL_OP_STREAM_SYNC};
    assert_int_equal(roll_engine_feed(j.e, j.source[1], &wait, 1), 0);
    call_all(&j, 2, 0);
    pass(&j, S_);
    assert_int_equal(j.e->comm[0]->base, 4);
    assert_int_equal(said(&j, text, sizeof(text)), 0);
    roll_engine_destroy(&j.e);
}

static void enter(struct job *j, uint32_t rank, enum roll_op op, uint32_t comm)
{
    struct roll_record rec = {.seal = roll_seal(j->ticket[rank]++, ROLL_STATE_ENTERED),
                              .enter_ns = j->now,
                              .comm = (uint16_t)comm,
                              .stream = op == ROLL_OP_STREAM_SYNC,
                              .thread = 1,
                              .peer = ROLL_PEER_NONE,
                              .step = ROLL_STEP_NONE,
                              .layer = ROLL_LAYER_NONE,
                              .op = (uint8_t)op};
    assert_int_equal(roll_engine_feed(j->e, j->source[rank], &rec, 1), 0);
}

/* Two ranks split the world, a third one waits for a rank that was set aside: it is not missed in the split. */
static void test_who_waits_for_a_rank_without_room_is_not_missed_in_a_creation(void **state)
{
    (void)state;
    static char text[8192];
    struct job j;
    job_open(&j, 4, 32 * MIB);
    for (uint32_t r = 0; r < 4; r++) {
        define_at(&j, j.source[r], 1, 0x1000, r, 4);
    }
    define_at(&j, j.source[2], 2, 0x2000, 0, 2);
    define_at(&j, j.source[3], 2, 0x2000, 1, 2);
    call_all(&j, 4, 0);
    define_at(&j, j.source[3], 3, 0x3000, 0, 1 << 24);
    call(&j, 2, 2, 0, 64);
    enter(&j, 2, ROLL_OP_STREAM_SYNC, 0);
    enter(&j, 0, ROLL_OP_COMM_SPLIT, 1);
    enter(&j, 1, ROLL_OP_COMM_SPLIT, 1);
    pass(&j, 60 * S_);
    assert_int_equal(said(&j, text, sizeof(text)), 0);
    assert_int_equal(times(text, "for rank 3, which was set aside"), 1);
    roll_engine_destroy(&j.e);
}

/* Ranks 0 and 1 on communicator 1, ranks 2 and 3 on communicator 2, of whom rank 3 was set aside. */
static void open_apart(struct job *j)
{
    job_open(j, 4, 32 * MIB);
    for (uint32_t r = 0; r < 4; r++) {
        define_at(j, j->source[r], 1 + r / 2, 0x1000 + r / 2, r % 2, 2);
    }
    call(j, 0, 1, j->seq[0]++, 64);
    call(j, 1, 1, j->seq[1]++, 64);
    define_at(j, j->source[3], 3, 0x3000, 0, 1 << 24);
    assert_true(source_of(j, 3)->no_room);
    pass(j, S_);
}

/* Where no member was set aside, a refused call is told while the job lives, as suspected. */
static void test_a_refused_call_elsewhere_is_told(void **state)
{
    (void)state;
    static char text[8192];
    struct job j;
    open_apart(&j);
    call(&j, 0, 1, j.seq[0]++, 64);
    enter(&j, 0, ROLL_OP_STREAM_SYNC, 0);
    struct roll_record refused = {.seal = roll_seal(j.ticket[1]++, ROLL_STATE_RETURNED),
                                  .enter_ns = j.now,
                                  .count = 64,
                                  .seq = j.seq[1],
                                  .peer = ROLL_PEER_NONE,
                                  .step = ROLL_STEP_NONE,
                                  .layer = ROLL_LAYER_NONE,
                                  .result = 4,
                                  .comm = 1,
                                  .stream = 1,
                                  .thread = 1,
                                  .op = ROLL_OP_ALLREDUCE,
                                  .dtype = ROLL_DTYPE_FLOAT32};
    assert_int_equal(roll_engine_feed(j.e, j.source[1], &refused, 1), 0);
    define_at(&j, j.source[1], 4, 0x4000, 0, 1);
    for (uint32_t n = 0; n < 60; n++) { /* it is neither busy nor stuck: the walk of the waits says nothing of it */
        call(&j, 1, 4, n, 64);
        pass(&j, S_);
    }
    assert_int_equal(said(&j, text, sizeof(text)), 1);
    assert_int_equal(times(text, "suspected call-refused 1"), 1);
    roll_engine_destroy(&j.e);
}

/* Ranks that share nothing with one that was set aside stand behind a call that is complete. */
static void test_a_stuck_collective_elsewhere_is_told(void **state)
{
    (void)state;
    static char text[8192];
    struct job j;
    open_apart(&j);
    for (uint32_t r = 0; r < 4; r++) {
        call(&j, r, 1 + r / 2, j.seq[r]++, 64);
        enter(&j, r, ROLL_OP_STREAM_SYNC, 0);
    }
    pass(&j, 300 * S_);
    assert_int_equal(said(&j, text, sizeof(text)), 1);
    assert_int_equal(times(text, "suspected collective-stuck"), 1);
    assert_int_equal(times(text, "Ranks 0-1"), 1);
    roll_engine_destroy(&j.e);
}

/* The process that asked for too much has ended, and its rank has another one: from then on all is judged as ever. */
static void test_a_process_without_room_is_replaced(void **state)
{
    (void)state;
    static char text[8192];
    for (unsigned ended = 0; ended < 2; ended++) {
        struct job j;
        open_apart(&j);
        struct roll_source_info info = {.stream = 9, .world_rank = 3, .world_size = 4};
        if (ended) {
            assert_int_equal(roll_engine_process(j.e, j.source[3], ROLL_PROC_FINISHED, 0), 0);
        }
        assert_int_equal(roll_engine_open(j.e, &info, &j.source[3]), 0);
        pass(&j, S_);
        for (uint32_t r = 0; r < 3; r++) {
            define_at(&j, j.source[r], 4, 0x4000, r, 3);
            call(&j, r, 4, 0, 64);
        }
        for (uint32_t seq = 1; seq < 4; seq++) {
            for (uint32_t r = 0; r < 3; r++) {
                call(&j, r, 4, seq, r == 1 && seq == 1 ? 65 : 64ull << seq);
            }
        }
        pass(&j, 20 * S_);
        assert_int_equal(said(&j, text, sizeof(text)), 1);
        assert_int_equal(times(text, ended ? "proven count-mismatch 1" : "suspected count-mismatch 1"), 1);
        assert_int_equal(times(text, "Rank 3 was set aside for want of room"), !ended);
        roll_engine_destroy(&j.e);
    }
}

/* A table of call sites is found by numbers of the rank's own: one too many costs words, and the rank is judged on. */
static void test_a_table_for_words_sets_nobody_aside(void **state)
{
    (void)state;
    static char text[4096];
    struct job j;
    job_open(&j, 2, MIB);
    for (uint32_t r = 0; r < 2; r++) {
        define_at(&j, j.source[r], 1, 0x1000, r, 2);
    }
    struct roll_def site = {.type = ROLL_DEF_CALLSITE, .id = UINT16_MAX, .callsite.depth = 1};
    assert_int_equal(roll_engine_define(j.e, j.source[1], &site), 0);
    assert_int_equal(refusals_of(&j, 1), 1);
    assert_false(source_of(&j, 1)->no_room);
    call_all(&j, 1, 999);
    call_all(&j, 2, 0);
    pass(&j, 10 * S_);
    assert_int_equal(said(&j, text, sizeof(text)), 1);
    assert_int_equal(times(text, "set aside"), 0);
    roll_engine_destroy(&j.e);
}

#define PAIRS 20000u

/* A job of months makes communicators of two ranks, calls a little, and destroys them, again and again. Nobody asks for
 * more than a few at a time, and so nobody is set aside; and the window of one whose member ran ahead is given back, as
 * is that of an aborted one. */
static void test_what_is_destroyed_is_given_back(void **state)
{
    (void)state;
    static char text[65536];
    struct job j;
    job_open(&j, 2, 32 * MIB);
    for (uint32_t i = 1; i <= PAIRS; i++) {
        enum roll_op end = i % 2 ? ROLL_OP_COMM_DESTROY : ROLL_OP_COMM_ABORT;
        uint32_t calls = i % 100 == 0 ? 500 : 1;
        for (uint32_t r = 0; r < 2; r++) {
            define_at(&j, j.source[r], i, 0x1000 + i, r, 2);
            record(&j, r, ROLL_OP_COMM_INIT, i, 0, 0);
        }
        for (uint32_t r = 0; r < 2; r++) { /* the first one is ahead by all of its calls */
            for (uint32_t k = 0; k < calls; k++) {
                call(&j, r, i, k, 1024);
            }
            record(&j, r, ROLL_OP_DEVICE_SYNC, 0, 0, 0);
        }
        for (uint32_t r = 0; r < 2; r++) {
            record(&j, r, end, i, 0, 0);
        }
        assert_int_equal(refusals_of(&j, 0) + refusals_of(&j, 1), 0);
    }
    pass(&j, 10 * S_);
    assert_int_equal(said(&j, text, sizeof(text)), 0);
    call(&j, 0, PAIRS - 1, 1, 1024); /* who calls after all finds room as anybody */
    call(&j, 1, PAIRS - 1, 1, 1024);
    roll_engine_destroy(&j.e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_hostile_rank_uses_up_its_own_room),
        cmocka_unit_test(test_a_rank_without_room_is_never_a_culprit),
        cmocka_unit_test(test_honest_jobs_are_refused_nothing),
        cmocka_unit_test(test_windows_count_for_who_asks_for_them),
        cmocka_unit_test(test_a_long_log_becomes_short_again),
        cmocka_unit_test(test_a_log_takes_what_was_written),
        cmocka_unit_test(test_pairs_count_for_who_asks_for_them),
        cmocka_unit_test(test_calls_behind_one_without_a_place_are_not_ready),
        cmocka_unit_test(test_who_waits_for_a_rank_without_room_is_not_missed_in_a_creation),
        cmocka_unit_test(test_a_refused_call_elsewhere_is_told),
        cmocka_unit_test(test_a_stuck_collective_elsewhere_is_told),
        cmocka_unit_test(test_a_process_without_room_is_replaced),
        cmocka_unit_test(test_a_table_for_words_sets_nobody_aside),
        cmocka_unit_test(test_what_is_destroyed_is_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
