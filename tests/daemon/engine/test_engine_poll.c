/*
 * test_engine_poll.c: hosts that poll instead of waiting: loops over cudaStreamQuery, cudaEventQuery and
 * ncclCommGetAsyncError, as the interposer tells them (interposer/cuda/poll.h): one record after 100 ms, another every
 * 200 ms, and every second from an old loop. And events whose place among the calls is known.
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

#define MS       1000000ull
#define AR       ROLL_OP_ALLREDUCE
#define RANKS    8u
#define POLL_MS  200u
#define FIRST_MS 100u

static const uint32_t sizes[] = {2, 3, 4, 8};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* An engine, and ranks whose threads are in loops. */
struct playing {
    struct sim *sim;
    roll_engine_t *e;
    uint32_t source[RANKS];
    size_t fed[RANKS];
    uint64_t now;
    struct loop {
        struct roll_record rec; /* the newest; seal 0: no loop */
        uint64_t since, next;
        uint32_t every_ms;       /* between two polls */
        struct roll_record also; /* the other thing that is polled by turns; op 0: there is none */
    } loop[RANKS][2];
};

static void play_begin(struct playing *p, struct sim *sim)
{
    *p = (struct playing){.sim = sim, .now = 1000 * S_};
    p->e = roll_engine_new(&sim->config);
    assert_non_null(p->e);
    roll_engine_tick(p->e, p->now);
    for (uint32_t r = 0; r < sim->ranks; r++) {
        struct roll_source_info info = {.stream = r + 1,
                                        .world_rank = (int32_t)r,
                                        .world_size = (int32_t)sim->ranks,
                                        .pid = 1000 + r,
                                        .host = "node0",
                                        .exe = "train"};
        assert_int_equal(roll_engine_open(p->e, &info, &p->source[r]), 0);
    }
}

static void play_end(struct playing *p)
{
    roll_engine_destroy(&p->e);
    sim_destroy(&p->sim);
}

/* Everything that the ranks have done since. */
static void give(struct playing *p)
{
    for (uint32_t r = 0; r < p->sim->ranks; r++) {
        for (; p->fed[r] < p->sim->rank[r].events; p->fed[r]++) {
            const struct sim_event *event = &p->sim->rank[r].event[p->fed[r]];
            int err = event->kind == SIM_DEFINE ? roll_engine_define(p->e, p->source[r], &event->def)
                                                : roll_engine_feed(p->e, p->source[r], &event->rec, 1);
            assert_int_equal(err, 0);
        }
    }
}

static void update(struct playing *p, uint32_t rank, struct roll_record rec, uint8_t result)
{
    rec.seal = roll_seal(roll_seal_ticket(rec.seal), ROLL_STATE_RETURNED);
    rec.result = result;
    assert_int_equal(roll_engine_feed(p->e, p->source[rank], &rec, 1), 0);
}

/* The thread begins to poll. place: of the event, 0 = none. */
static void poll_begin(struct playing *p, uint32_t rank, unsigned thread, enum roll_op op, uint64_t place,
                       uint32_t every_ms)
{
    struct loop *loop = &p->loop[rank][thread - 1];
    *loop = (struct loop){.since = p->now, .next = p->now + FIRST_MS * MS, .every_ms = every_ms};
    loop->rec = (struct roll_record){.count = place,
                                     .peer = ROLL_PEER_NONE,
                                     .step = ROLL_STEP_NONE,
                                     .stream = op == ROLL_OP_COMM_QUERY ? 0 : 2,
                                     .comm = op == ROLL_OP_COMM_QUERY ? 1 : 0,
                                     .thread = (uint16_t)thread,
                                     .layer = ROLL_LAYER_NONE,
                                     .op = (uint8_t)op,
                                     .dtype = ROLL_DTYPE_NONE,
                                     .redop = ROLL_RED_NONE};
}

/* The loop asks for another thing as well: the words name one after the other. */
static void poll_also(struct playing *p, uint32_t rank, enum roll_op op, uint16_t stream, uint16_t comm)
{
    struct loop *loop = &p->loop[rank][0];
    loop->rec.peer = 2;
    loop->also = loop->rec;
    loop->also.op = (uint8_t)op;
    loop->also.stream = stream;
    loop->also.comm = comm;
    loop->also.count = 0;
}

static void poll_say(struct playing *p, uint32_t rank, struct loop *loop)
{
    struct roll_record before = loop->rec;
    if (loop->also.op != 0 && before.seal != 0) {
        loop->rec = loop->also;
        loop->also = before;
    }
    uint64_t lasts = (p->now - loop->since) / MS;
    loop->rec.seal = roll_seal(p->sim->rank[rank].ticket++, ROLL_STATE_ENTERED);
    loop->rec.enter_ns = p->now;
    loop->rec.seq = (uint32_t)lasts;
    loop->rec.aux = (uint16_t)(lasts / loop->every_ms + 1);
    give(p);
    assert_int_equal(roll_engine_feed(p->e, p->source[rank], &loop->rec, 1), 0);
    if (before.seal != 0) {
        update(p, rank, before, 2);
    }
}

/* As the interposer has it (poll.c). */
static uint64_t until_next(uint64_t age)
{
    if (age >= 60 * S_) {
        return age / 60 < 30 * S_ ? age / 60 : 30 * S_;
    }
    return age / 5 < POLL_MS * MS ? POLL_MS * MS : age / 5 < S_ ? age / 5 : S_;
}

static void pass(struct playing *p, uint64_t ns)
{
    for (uint64_t end = p->now + ns; p->now < end;) {
        p->now += 20 * MS;
        for (uint32_t r = 0; r < p->sim->ranks; r++) {
            for (unsigned t = 0; t < 2; t++) {
                struct loop *loop = &p->loop[r][t];
                if (loop->every_ms != 0 && p->now >= loop->next) {
                    poll_say(p, r, loop);
                    uint64_t again = until_next(p->now - loop->since);
                    loop->next = p->now + (again > loop->every_ms * MS ? again : loop->every_ms * MS);
                }
            }
        }
        assert_int_equal(roll_engine_tick(p->e, p->now), 0);
    }
}

/* The loop ends because what was polled is ready (0), or for another reason (1). */
static void poll_end(struct playing *p, uint32_t rank, unsigned thread, uint8_t result)
{
    struct loop *loop = &p->loop[rank][thread - 1];
    if (loop->rec.seal != 0) {
        update(p, rank, loop->rec, result);
    }
    *loop = (struct loop){.every_ms = 0};
}

static void expect_at(struct playing *p, const char *want, const char *words, int line)
{
    char got[1024] = "";
    const struct roll_verdict *v;
    while ((v = roll_engine_next(p->e)) != NULL) {
        char ranks[256];
        if (v->certainty != ROLL_NOTE) {
            roll_rankset_format(&v->culprits, ranks, sizeof(ranks));
            size_t used = strlen(got);
            snprintf(got + used, sizeof(got) - used, "%s%s %s %s", used ? "; " : "", roll_certainty_name(v->certainty),
                     roll_verdict_name(v->code), ranks[0] ? ranks : "-");
            if (words && !strstr(v->text, words)) {
                fail_msg("line %d: \"%s\" is not in: %s", line, words, v->text);
            }
        }
    }
    if (strcmp(got, want) != 0) {
        fail_msg("line %d, %u ranks: wanted \"%s\", got \"%s\"", line, p->sim->ranks, want, got);
    }
}
#define expect(p, want)              expect_at(p, want, NULL, __LINE__)
#define expect_words(p, want, words) expect_at(p, want, words, __LINE__)

/* Two communicators of all ranks; a first round has gone well. */
static struct sim *job(uint32_t n, uint32_t *a, uint32_t *b)
{
    struct sim *sim = sim_new(n);
    *a = sim_comm(sim, "a", NULL, n);
    *b = sim_comm(sim, "b", NULL, n);
    sim_all(sim, *a, AR, 64);
    sim_all(sim, *b, AR, 64);
    for (uint32_t r = 0; r < n; r++) {
        sim_sync(sim, r);
    }
    return sim;
}

static const enum roll_op polls[] = {ROLL_OP_STREAM_QUERY, ROLL_OP_EVENT_QUERY};

/* The last rank enters a and b in the other order, and each polls for what it has called. */
static void test_circle_of_polling_hosts_is_told_within_a_second(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (size_t k = 0; k < 2; k++) {
            for (uint32_t every = 1; every <= 100; every *= 10) {
                uint32_t n = sizes[i], a, b;
                struct playing p;
                play_begin(&p, job(n, &a, &b));
                for (uint32_t r = 0; r < n; r++) {
                    sim_call(p.sim, r, r + 1 < n ? a : b, AR, 128);
                    uint64_t place = polls[k] == ROLL_OP_EVENT_QUERY ? p.sim->rank[r].ticket + 1 : 0;
                    poll_begin(&p, r, 1, polls[k], place, every);
                }
                give(&p);
                pass(&p, 400 * MS);
                expect(&p, "");
                pass(&p, 600 * MS);
                char want[64];
                snprintf(want, sizeof(want), "suspected circular-wait %u", n - 1);
                expect_words(&p, n == 2 ? "suspected circular-wait -" : want,
                             polls[k] == ROLL_OP_EVENT_QUERY ? "loop of cudaEventQuery" : "loop of cudaStreamQuery");
                pass(&p, 20 * S_);
                expect(&p, "");
                play_end(&p);
            }
        }
    }
}

/* Each polls two things by turns: told as well where both are held up, and not where one may become ready any time. */
static void test_host_that_polls_several_things_needs_one_of_them(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int free = 0; free < 2; free++) {
            uint32_t n = sizes[i], a, b;
            struct playing p;
            play_begin(&p, job(n, &a, &b));
            for (uint32_t r = 0; r < n; r++) {
                uint16_t comm = sim_call(p.sim, r, r + 1 < n ? a : b, AR, 128)->comm;
                poll_begin(&p, r, 1, ROLL_OP_STREAM_QUERY, 0, 1);
                poll_also(&p, r, free ? ROLL_OP_STREAM_QUERY : ROLL_OP_COMM_QUERY, free ? 7 : 0, free ? 0 : comm);
            }
            give(&p);
            pass(&p, 400 * MS);
            expect(&p, "");
            pass(&p, 600 * MS);
            char want[64];
            snprintf(want, sizeof(want), "suspected circular-wait %u", n - 1);
            expect_words(&p, free ? "" : n == 2 ? "suspected circular-wait -" : want, "loop of polls of 2 things");
            pass(&p, 3 * S_);
            expect(&p, "");
            for (uint32_t r = 0; free && r < n; r++) {
                poll_end(&p, r, 1, 1);
                sim_call(p.sim, r, r + 1 < n ? b : a, AR, 128)->stream = 7;
            }
            give(&p);
            pass(&p, 2 * S_);
            expect(&p, "");
            play_end(&p);
        }
    }
}

/* All ranks make the same calls in the same order; the last rank is late, polls for something of its own first, and
 * comes. */
static void test_polling_hosts_that_go_on_are_healthy(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], a, b;
        struct playing p;
        play_begin(&p, job(n, &a, &b));
        for (uint32_t round = 0; round < 5; round++) {
            for (uint32_t r = 0; r < n; r++) {
                bool late = r == (round + 1) % n;
                if (!late) {
                    sim_call(p.sim, r, a, AR, 128);
                }
                poll_begin(&p, r, 1, polls[round % 2], late ? 0 : p.sim->rank[r].ticket + 1, 1);
            }
            give(&p);
            pass(&p, 4 * S_);
            uint32_t late = (round + 1) % n;
            poll_end(&p, late, 1, 0);
            sim_call(p.sim, late, a, AR, 128);
            poll_begin(&p, late, 1, ROLL_OP_STREAM_QUERY, 0, 1);
            give(&p);
            pass(&p, 300 * MS);
            for (uint32_t r = 0; r < n; r++) {
                poll_end(&p, r, 1, 0);
            }
            sim_all(p.sim, b, AR, 32);
            give(&p);
            pass(&p, 300 * MS);
        }
        pass(&p, 3 * S_);
        expect(&p, "");
        play_end(&p);
    }
}

/*
 * The last rank polls an event that stands before its call of a (a long kernel), and calls b when that is over; the
 * others wait in b before they call a. No circle: the event is over before a is asked for.
 */
static void test_event_before_the_call_is_no_wait_for_it(void **state)
{
    (void)state;
    for (int sync = 0; sync < 2; sync++) {
        for (size_t i = 0; i < SIZES; i++) {
            uint32_t n = sizes[i], a, b, last = n - 1;
            struct playing p;
            play_begin(&p, job(n, &a, &b));
            uint64_t place = p.sim->rank[last].ticket + 1;
            sim_call(p.sim, last, a, AR, 128);
            for (uint32_t r = 0; r < last; r++) {
                sim_call(p.sim, r, b, AR, 128);
                sim_stuck(p.sim, r);
            }
            struct roll_record *wait = sync ? sim_stuck(p.sim, last) : NULL;
            if (wait) {
                wait->op = ROLL_OP_EVENT_SYNC;
                wait->count = place;
            } else {
                poll_begin(&p, last, 1, ROLL_OP_EVENT_QUERY, place, 1);
            }
            give(&p);
            pass(&p, 4 * S_);
            expect(&p, "");
            if (wait) {
                sim_return(p.sim, last);
            } else {
                poll_end(&p, last, 1, 0);
            }
            sim_call(p.sim, last, b, AR, 128);
            sim_stuck(p.sim, last);
            give(&p);
            for (uint32_t r = 0; r < last; r++) {
                sim_return(p.sim, r);
                sim_call(p.sim, r, a, AR, 128);
            }
            give(&p);
            pass(&p, 4 * S_);
            expect(&p, "");
            play_end(&p);
        }
    }
}

/* A host that waits for an event behind its call waits for the call: proven, as by a wait for the stream. */
static void test_event_behind_the_call_is_as_good_as_a_stream(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], a, b;
        struct playing p;
        play_begin(&p, job(n, &a, &b));
        for (uint32_t r = 0; r < n; r++) {
            sim_call(p.sim, r, r + 1 < n ? a : b, AR, 128);
            uint64_t place = p.sim->rank[r].ticket + 1;
            struct roll_record *wait = sim_stuck(p.sim, r);
            wait->op = ROLL_OP_EVENT_SYNC;
            wait->count = place;
        }
        give(&p);
        pass(&p, S_);
        char want[64];
        snprintf(want, sizeof(want), "proven circular-wait %u", n - 1);
        expect(&p, n == 2 ? "proven circular-wait -" : want);
        play_end(&p);
    }
}

/* The last rank has called on b and polls for it. Returns its loop. */
static struct loop *last_polls(struct playing *p, uint32_t n, uint32_t *a, uint32_t *b)
{
    play_begin(p, job(n, a, b));
    sim_call(p->sim, n - 1, *b, AR, 128);
    poll_begin(p, n - 1, 1, ROLL_OP_STREAM_QUERY, 0, 1);
    return &p->loop[n - 1][0];
}

/* The others call on a, and wait. */
static void others_wait(struct playing *p, uint32_t a)
{
    for (uint32_t r = 0; r + 1 < p->sim->ranks; r++) {
        sim_call(p->sim, r, a, AR, 128);
        sim_stuck(p->sim, r);
    }
    give(p);
}

/* The rank polled for a second, and then does something that nobody records: the rank may come. */
static void test_host_that_has_stopped_polling_may_come(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], a, b;
        struct playing p;
        struct loop *loop = last_polls(&p, n, &a, &b);
        give(&p);
        pass(&p, S_);
        loop->every_ms = 0; /* no more words; the record stays as it is */
        others_wait(&p, a);
        pass(&p, 3 * S_);
        expect(&p, "");
        if (i % 2 == 1) { /* the rank never comes: silence is told as ever */
            char want[64];
            snprintf(want, sizeof(want), "suspected circular-wait %u", n - 1);
            pass(&p, 3 * S_);
            expect_words(&p, n == 2 ? "suspected circular-wait -" : want, "has only been silent");
            play_end(&p);
            continue;
        }
        sim_call(p.sim, n - 1, a, AR, 128);
        for (uint32_t r = 0; r + 1 < n; r++) {
            sim_return(p.sim, r);
            sim_call(p.sim, r, b, AR, 128);
        }
        give(&p);
        pass(&p, 4 * S_);
        expect(&p, "");
        play_end(&p);
    }
}

/* The words of a loop of ten minutes come every ten seconds: until the next one its rank counts as silent, and is not
 * taken for a busy one. */
static void test_old_loop_counts_as_silent_between_its_rare_words(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], a, b;
        struct playing p;
        struct loop *loop = last_polls(&p, n, &a, &b);
        loop->since -= 600 * S_; /* watched from the middle of the job */
        give(&p);
        pass(&p, 4 * S_);
        expect(&p, "");
        others_wait(&p, a);
        pass(&p, 5200 * MS);
        assert_true(loop->next > p.now);
        char want[64];
        snprintf(want, sizeof(want), "suspected circular-wait %u", n - 1);
        expect_words(&p, n == 2 ? "suspected circular-wait -" : want, "has only been silent");
        play_end(&p);
    }
}

/* Once a second is no loop that does nothing else. */
static void test_host_that_polls_now_and_then_is_not_waiting(void **state)
{
    (void)state;
    uint32_t a, b;
    struct playing p;
    play_begin(&p, job(3, &a, &b));
    for (uint32_t r = 0; r < 3; r++) {
        sim_call(p.sim, r, r < 2 ? a : b, AR, 128);
        if (r < 2) {
            sim_stuck(p.sim, r);
        } else {
            poll_begin(&p, r, 1, ROLL_OP_STREAM_QUERY, 0, 1000);
        }
    }
    give(&p);
    pass(&p, 4 * S_);
    expect(&p, "");
    play_end(&p);
}

/* A watchdog polls what hangs, for ever: its rank is no less busy, and no less in a circle, for that. */
static void test_watchdog_that_polls_changes_nothing(void **state)
{
    (void)state;
    for (int circle = 0; circle < 2; circle++) {
        for (uint32_t every = 1; every <= 1000; every *= 10) {
            for (size_t i = 0; i < SIZES; i++) {
                uint32_t n = sizes[i], a, b;
                struct playing p;
                play_begin(&p, job(n, &a, &b));
                for (uint32_t r = 0; r < n; r++) {
                    bool last = r + 1 == n;
                    if (circle || !last) {
                        sim_call(p.sim, r, last ? b : a, AR, 128);
                        sim_stuck(p.sim, r);
                    }
                    poll_begin(&p, r, 2, ROLL_OP_EVENT_QUERY, 0, every);
                }
                give(&p);
                char want[64];
                snprintf(want, sizeof(want), "%s %u", circle ? "proven circular-wait" : "suspected rank-busy", n - 1);
                pass(&p, circle ? S_ : 4 * S_);
                expect(&p, !circle ? "" : n == 2 ? "proven circular-wait -" : want);
                pass(&p, 4 * S_);
                expect(&p, circle ? "" : want);
                play_end(&p);
            }
        }
    }
}

/* A communicator that is in progress for good: its rank waits in what it has called there. */
static void test_host_that_polls_a_communicator_waits_there(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i], a, b;
        struct playing p;
        play_begin(&p, job(n, &a, &b));
        for (uint32_t r = 0; r < n; r++) {
            struct roll_record *rec = sim_call(p.sim, r, r + 1 < n ? a : b, AR, 128);
            rec->flags |= ROLL_FLAG_NONBLOCKING;
            rec->result = 7;
            poll_begin(&p, r, 1, ROLL_OP_COMM_QUERY, 0, 1);
            p.loop[r][0].rec.comm = rec->comm;
        }
        give(&p);
        pass(&p, S_);
        char want[64];
        snprintf(want, sizeof(want), "suspected circular-wait %u", n - 1);
        expect_words(&p, n == 2 ? "suspected circular-wait -" : want, "loop of CommGetAsyncError");
        play_end(&p);
    }
}

/* Everyone has called and polls, and nothing completes: no circle, and after a minute a call that is stuck. */
static void test_polling_hosts_whose_call_is_stuck(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (size_t k = 0; k < 2; k++) {
            uint32_t n = sizes[i], a, b;
            struct playing p;
            play_begin(&p, job(n, &a, &b));
            for (uint32_t r = 0; r < n; r++) {
                sim_call(p.sim, r, a, AR, 128);
                uint64_t place = polls[k] == ROLL_OP_EVENT_QUERY ? p.sim->rank[r].ticket + 1 : 0;
                poll_begin(&p, r, 1, polls[k], place, 1);
            }
            give(&p);
            pass(&p, 15 * S_);
            expect(&p, "");
            pass(&p, 60 * S_);
            expect(&p, "suspected collective-stuck -");
            for (uint32_t r = 0; r < n; r++) {
                poll_end(&p, r, 1, 0);
            }
            sim_all(p.sim, b, AR, 64);
            give(&p);
            pass(&p, S_);
            struct roll_engine_summary summary;
            roll_engine_summary(p.e, &summary);
            /* The hosts came back: the call was slow, and the finding is taken back. */
            assert_int_equal(summary.findings, 0);
            play_end(&p);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_circle_of_polling_hosts_is_told_within_a_second),
        cmocka_unit_test(test_host_that_polls_several_things_needs_one_of_them),
        cmocka_unit_test(test_polling_hosts_that_go_on_are_healthy),
        cmocka_unit_test(test_event_before_the_call_is_no_wait_for_it),
        cmocka_unit_test(test_event_behind_the_call_is_as_good_as_a_stream),
        cmocka_unit_test(test_host_that_has_stopped_polling_may_come),
        cmocka_unit_test(test_old_loop_counts_as_silent_between_its_rare_words),
        cmocka_unit_test(test_host_that_polls_now_and_then_is_not_waiting),
        cmocka_unit_test(test_watchdog_that_polls_changes_nothing),
        cmocka_unit_test(test_host_that_polls_a_communicator_waits_there),
        cmocka_unit_test(test_polling_hosts_whose_call_is_stuck),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
