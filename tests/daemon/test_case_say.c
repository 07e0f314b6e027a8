/*
 * test_case_say.c: what the engines of cases find is said once as long as it stands: the end of a process, whatever
 * communicator shows it; what comes again is said again; and what is found later, or seen more fully, may take the
 * place of what was told. The engines' verdicts are the test's own (the linker's --wrap).
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/base/array.h"
#include "daemon/root/root_digest.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#define S UINT64_C(1000000000)

static struct roll_verdict next; /* what the engine of the open case finds; no code: nothing */
static struct roll_verdict shape = {.certainty = ROLL_PROVEN, .step = ROLL_STEP_NONE, .layer = ROLL_LAYER_NONE};
static uint64_t numbers;

struct roll_verdict_copy *__wrap_roll_feed_next(roll_feed_t *feed);

/* How many ranges were looked at for ranks of sets: what that costs, without a clock. */
static size_t steps;
bool __real_roll_rankset_has(const struct roll_rankset *set, uint32_t rank);
bool __wrap_roll_rankset_has(const struct roll_rankset *set, uint32_t rank);
uint32_t __real_roll_rankset_at(const struct roll_rankset *set, size_t i);
uint32_t __wrap_roll_rankset_at(const struct roll_rankset *set, size_t i);

bool __wrap_roll_rankset_has(const struct roll_rankset *set, uint32_t rank)
{
    for (size_t left = set->used; left > 0; left /= 2) { /* it halves them */
        steps++;
    }
    return __real_roll_rankset_has(set, rank);
}

uint32_t __wrap_roll_rankset_at(const struct roll_rankset *set, size_t i)
{
    steps += i < set->used ? i : set->used; /* it goes through them */
    return __real_roll_rankset_at(set, i);
}

static struct here {
    void *context;
    roll_root_t *root;
    struct roll_run *run;
} here;

struct roll_verdict_copy *__wrap_roll_feed_next(roll_feed_t *feed)
{
    if (next.code == 0 || feed != here.run->digested->feed) {
        return NULL;
    }
    next.number = ++numbers;
    struct roll_verdict_copy *copy = roll_verdict_copy_new(&next, NULL, NULL, "job", 0);
    assert_non_null(copy);
    next.code = 0;
    return copy;
}

static int set_up(void **state)
{
    (void)state;
    char why[256] = "";
    here.context = zmq_ctx_new();
    struct roll_root_options o = {.context = here.context,
                                  .listen = {"inproc://root"},
                                  .listens = 1,
                                  .linger_s = 1,
                                  .policy = ROLL_POLICY_OBSERVE};
    assert_int_equal(roll_root_new(&o, &here.root, why, sizeof(why)), 0);
    assert_int_equal(roll_run_of(here.root, "job", 0, ROLL_WORLD_UNASKED, &here.run), 0);
    assert_int_equal(roll_digested_new(here.run), 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    roll_root_destroy(&here.root);
    zmq_ctx_destroy(here.context);
    return 0;
}

/* A case is opened, which looks at everybody. */
static void open_case(void)
{
    struct roll_digested *d = here.run->digested;
    roll_case_open(here.root, here.run, roll_mono_ns());
    d->fed = true;
    d->scoped = false; /* everything was asked of everybody */
    for (size_t i = 0; i < d->rings; i++) {
        d->ring[i].aside = d->ring[i].cut = false;
    }
    numbers = 0;
}

/* Its engine finds this (takes the ranks). Was it said? */
static bool is_said_of(enum roll_verdict_code code, struct roll_rankset ranks, uint64_t comm, uint64_t seq,
                       uint64_t event_ns)
{
    struct roll_digested *d = here.run->digested;
    uint64_t before = d->numbers;
    open_case();
    next = (struct roll_verdict){.code = code,
                                 .certainty = shape.certainty,
                                 .culprits = ranks,
                                 .comm_key = comm,
                                 .seq = seq,
                                 .event_ns = event_ns,
                                 .field = "",
                                 .text = "It is so.",
                                 .step = shape.step,
                                 .layer = shape.layer};
    roll_digested_verdicts(here.root, here.run);
    assert_int_equal(next.code, 0);
    roll_rankset_fini(&ranks);
    return d->numbers > before;
}

/* The same, predicted for a step. What it takes the place of; UINT64_MAX: it is not said. */
static uint64_t predicted_over(enum roll_verdict_code code, const char *ranks, uint64_t comm, uint32_t step)
{
    struct roll_rankset culprits = {0};
    assert_int_equal(roll_rankset_parse(ranks, &culprits), 0);
    shape = (struct roll_verdict){.certainty = ROLL_PREDICTED, .step = step, .layer = 0};
    bool said = is_said_of(code, culprits, comm, 0, 100 * S);
    shape = (struct roll_verdict){.certainty = ROLL_PROVEN, .step = ROLL_STEP_NONE, .layer = ROLL_LAYER_NONE};
    return said ? here.run->verdicts.at[here.run->verdicts.used - 1]->said.supersedes : UINT64_MAX;
}

static bool is_said(enum roll_verdict_code code, int culprit, uint64_t comm, uint64_t seq, uint64_t event_ns)
{
    struct roll_rankset ranks = {0};
    if (culprit >= 0) {
        assert_int_equal(roll_rankset_add(&ranks, (uint32_t)culprit), 0);
    }
    return is_said_of(code, ranks, comm, seq, event_ns);
}

static void test_the_end_of_a_process_is_said_once(void **state)
{
    (void)state;
    assert_true(is_said(ROLL_VERDICT_RANK_DEAD, 3, 10, 7, 100 * S));
    assert_false(is_said(ROLL_VERDICT_RANK_DEAD, 3, 10, 7, 100 * S));
    assert_false(is_said(ROLL_VERDICT_RANK_DEAD, 3, 11, 99, 100 * S + S / 10)); /* others wait for it elsewhere */
    assert_true(is_said(ROLL_VERDICT_RANK_DEAD, 4, 11, 99, 100 * S));
    assert_true(is_said(ROLL_VERDICT_RANK_DEAD, 3, 11, 9, 500 * S)); /* its next process */
    assert_true(is_said(ROLL_VERDICT_RANK_FINISHED, 5, 10, 7, 100 * S));
    assert_false(is_said(ROLL_VERDICT_RANK_FINISHED, 5, 12, 70, 100 * S));
}

/* The ring of a process of this rank, which has ended or not. */
static void add_ring(int32_t rank, bool ended)
{
    struct roll_digested *d = here.run->digested;
    assert_int_equal(ROLL_GROW(d->ring, d->ring_room, d->rings + 1), 0);
    struct digested_ring *r = &d->ring[d->rings++];
    *r = (struct digested_ring){.stream = 100 + d->rings, .ended = ended};
    assert_non_null(r->header = calloc(1, sizeof(struct roll_ring_header)));
    memcpy(r->header + offsetof(struct roll_ring_header, world_rank), &rank, sizeof(rank));
}

/* One engine sees a message that it has not received, the next one a collective that it has not made. */
static void test_what_a_process_that_has_ended_leaves_undone_is_said_once(void **state)
{
    (void)state;
    add_ring(6, false);
    add_ring(7, true);
    assert_true(is_said(ROLL_VERDICT_P2P_UNMATCHED, 7, 10, 0, 100 * S));
    assert_false(is_said(ROLL_VERDICT_RANK_FINISHED, 7, 12, 1, 101 * S));
    assert_false(is_said(ROLL_VERDICT_P2P_UNMATCHED, 7, 13, 5, 102 * S));
    assert_true(is_said(ROLL_VERDICT_CALL_SKIPPED, 7, 14, 5, 102 * S)); /* that is another matter */
    assert_true(is_said(ROLL_VERDICT_P2P_UNMATCHED, 6, 10, 0, 100 * S));
    here.run->digested->ring[0].ended = true; /* it has ended since */
    assert_true(is_said(ROLL_VERDICT_RANK_FINISHED, 6, 12, 1, 101 * S));
    add_ring(7, true); /* its next process, which has ended as well */
    assert_true(is_said(ROLL_VERDICT_RANK_FINISHED, 7, 12, 9, 900 * S));
}

/* Two engines see others wait for it at two communicators. */
static void test_a_refused_call_is_said_once(void **state)
{
    (void)state;
    add_ring(1, true);
    assert_true(is_said(ROLL_VERDICT_CALL_REFUSED, 1, 10, 0, 100 * S));
    assert_false(is_said(ROLL_VERDICT_CALL_REFUSED, 1, 11, 1, 100 * S + S / 1000));
    assert_false(is_said(ROLL_VERDICT_RANK_FINISHED, 1, 12, 1, 101 * S)); /* because of that */
    assert_true(is_said(ROLL_VERDICT_CALL_REFUSED, 1, 11, 1, 101 * S));   /* another call */
    assert_true(is_said(ROLL_VERDICT_CALL_REFUSED, 2, 11, 1, 100 * S));
}

static void test_what_comes_again_is_said_again(void **state)
{
    (void)state;
    assert_true(is_said(ROLL_VERDICT_RANK_STOPPED, 3, 10, 7, 100 * S));
    assert_true(is_said(ROLL_VERDICT_RANK_STOPPED, 3, 11, 700, 900 * S));
    assert_true(is_said(ROLL_VERDICT_COLLECTIVE_STUCK, -1, 10, 7, 100 * S));
    assert_true(is_said(ROLL_VERDICT_COLLECTIVE_STUCK, -1, 11, 9, 100 * S)); /* on another communicator */
    assert_false(is_said(ROLL_VERDICT_COLLECTIVE_STUCK, -1, 10, 7, 100 * S));
}

/* A call of a rank, by its ticket. */
struct called {
    uint32_t rank;
    uint8_t op;
    uint64_t ticket;
};

/* A case finds this about two calls, and names nobody. Which verdict has it taken the place of? */
static uint64_t replaced_by(enum roll_verdict_code code, enum roll_certainty certainty, uint64_t comm,
                            const struct called call[2])
{
    const struct roll_verdict_list *said = &here.run->verdicts;
    size_t before = said->used;
    open_case();
    next = (struct roll_verdict){.code = code,
                                 .certainty = certainty,
                                 .comm_key = comm,
                                 .field = "",
                                 .text = "It is so.",
                                 .sides = 2,
                                 .step = ROLL_STEP_NONE,
                                 .layer = ROLL_LAYER_NONE};
    for (uint32_t i = 0; i < 2; i++) {
        next.side[i].rec.op = call[i].op;
        next.side[i].rec.seal = roll_seal(call[i].ticket, ROLL_STATE_ENTERED);
        assert_int_equal(roll_rankset_add(&next.side[i].ranks, call[i].rank), 0);
    }
    roll_digested_verdicts(here.root, here.run);
    for (uint32_t i = 0; i < 2; i++) {
        roll_rankset_fini(&next.side[i].ranks);
    }
    assert_int_equal(said->used, before + 1);
    return said->at[before]->said.supersedes;
}

/* One case tells a circle, and a later one, when more calls have come, what is wrong in a call of that circle. */
static void test_a_wrong_call_takes_the_place_of_the_circle_in_which_it_is_waited(void **state)
{
    (void)state;
    enum { AG = ROLL_OP_ALLGATHER, AR = ROLL_OP_ALLREDUCE, SEND = ROLL_OP_SEND, RECV = ROLL_OP_RECV };
    static const struct called circle[2] = {{2, AG, 5}, {3, RECV, 6}};
    static const struct {
        enum roll_certainty circle;
        enum roll_verdict_code code;
        enum roll_certainty certainty;
        struct called call[2];
        bool elsewhere, replaces;
    } row[] = {
        {ROLL_SUSPECTED, ROLL_VERDICT_ALLTOALLV_MISMATCH, ROLL_PROVEN, {{2, SEND, 9}, {3, RECV, 6}}, false, true},
        {ROLL_SUSPECTED, ROLL_VERDICT_CALLS_REORDERED, ROLL_SUSPECTED, {{2, AG, 5}, {3, AR, 7}}, false, true},
        /* another communicator, another call, a verdict that rests on silence as well */
        {ROLL_SUSPECTED, ROLL_VERDICT_ALLTOALLV_MISMATCH, ROLL_PROVEN, {{2, SEND, 9}, {3, RECV, 6}}, true, false},
        {ROLL_SUSPECTED, ROLL_VERDICT_ALLTOALLV_MISMATCH, ROLL_PROVEN, {{2, SEND, 9}, {3, RECV, 8}}, false, false},
        {ROLL_SUSPECTED, ROLL_VERDICT_RANK_BUSY, ROLL_SUSPECTED, {{2, SEND, 9}, {3, RECV, 6}}, false, false},
        /* of what is certain, the same of its ranks */
        {ROLL_PROVEN, ROLL_VERDICT_ALLTOALLV_MISMATCH, ROLL_PROVEN, {{2, SEND, 9}, {3, RECV, 6}}, false, true},
        {ROLL_PROVEN, ROLL_VERDICT_ALLTOALLV_MISMATCH, ROLL_PROVEN, {{1, SEND, 9}, {3, RECV, 6}}, false, false},
        {ROLL_PROVEN, ROLL_VERDICT_P2P_DEADLOCK, ROLL_PROVEN, {{2, SEND, 9}, {3, RECV, 6}}, false, false},
        /* what comes of a circle */
        {ROLL_PROVEN, ROLL_VERDICT_RANK_FINISHED, ROLL_PROVEN, {{2, AG, 5}, {3, RECV, 6}}, false, false},
    };
    for (uint32_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        uint64_t comm = 100 + i;
        assert_int_equal(replaced_by(ROLL_VERDICT_CROSSED_WAIT, row[i].circle, comm, circle), 0);
        uint64_t number = here.run->digested->numbers;
        uint64_t replaced =
            replaced_by(row[i].code, row[i].certainty, row[i].elsewhere ? comm + 50 : comm, row[i].call);
        assert_int_equal(replaced, row[i].replaces ? number : 0);
    }
}

/* The case was begun anew when its engine had seen the first layer of a step only: what the next one sees of all layers
 * takes the place of that, and what comes true is told of the one. */
static void test_what_is_seen_of_more_layers_takes_the_place_of_a_part(void **state)
{
    (void)state;
    enum roll_verdict_code gathered = ROLL_VERDICT_MOE_OBLIGATION, other = ROLL_VERDICT_OPPOSITE_ORDER;
    assert_int_equal(predicted_over(gathered, "3", 10, 2), 0); /* verdict 1 */
    assert_int_equal(predicted_over(gathered, "1", 11, 2), 0);
    assert_int_equal(predicted_over(gathered, "2-3", 10, 2), 1); /* verdict 3 */
    assert_int_equal(predicted_over(gathered, "2-3", 10, 2), UINT64_MAX);
    assert_int_equal(predicted_over(gathered, "3", 10, 2), UINT64_MAX); /* a part of what stands */
    assert_int_equal(predicted_over(gathered, "0-1", 11, 2), 2);        /* verdict 4 */
    /* Other ranks, another communicator, another step, and what is not told of several together are other matters. */
    assert_int_equal(predicted_over(gathered, "0-2", 10, 2), 0);
    assert_int_equal(predicted_over(gathered, "0-3", 12, 2), 0);
    assert_int_equal(predicted_over(gathered, "0-3", 11, 3), 0);
    assert_int_equal(predicted_over(other, "3", 13, 2), 0);
    assert_int_equal(predicted_over(other, "2-3", 13, 2), 0);
}

/* The records of the first engine began in a later step than the mistake. */
static void test_what_is_seen_from_an_earlier_step_on_takes_the_place(void **state)
{
    (void)state;
    enum roll_verdict_code gathered = ROLL_VERDICT_GRADIENT_NOT_SUMMED, other = ROLL_VERDICT_OPPOSITE_ORDER;
    assert_int_equal(predicted_over(gathered, "0-3", 10, 3), 0); /* verdict 1 */
    assert_int_equal(predicted_over(gathered, "0-3", 10, 4), UINT64_MAX);
    assert_int_equal(predicted_over(gathered, "0-3", 10, 2), 1); /* verdict 2 */
    assert_int_equal(predicted_over(gathered, "0-3", 10, 3), UINT64_MAX);
    assert_int_equal(predicted_over(gathered, "0-3", 10, ROLL_STEP_NONE), UINT64_MAX);
    assert_int_equal(predicted_over(gathered, "0-3", 11, ROLL_STEP_NONE), 0);
    assert_int_equal(predicted_over(gathered, "0-3", 11, 2), UINT64_MAX); /* no step is no later one */
    assert_int_equal(predicted_over(other, "0-3", 12, 3), 0);
    assert_int_equal(predicted_over(other, "0-3", 12, 2), UINT64_MAX);
}

/* The open case was opened because somebody stood, with too few records; then it is hinted at what ranks had observed
 * in an earlier step. */
static void test_what_is_hinted_at_as_a_run_ends_is_asked_for(void **state)
{
    (void)state;
    struct roll_digested *d = here.run->digested;
    for (int row = 0; row < 4; row++) { /* the run is over: now; since a moment; not; and it has been asked for */
        uint64_t now = roll_mono_ns(), before;
        struct roll_digest up = {0};
        roll_digest_clear(&d->hints);
        if (row == 3) {
            roll_digest_add_hint(&d->hints, 10, ROLL_HINT_OBSERVED, 3);
        }
        roll_case_open(here.root, here.run, now);
        d->fed = true;
        d->fed_ns = now + S; /* while it goes on it is begun anew twice as late */
        d->again = 0;
        d->over_seen = row == 1;
        before = d->number;
        roll_digest_add_hint(&up, 10, ROLL_HINT_OBSERVED, 4);
        assert_int_equal(roll_sum_take(d->sum, 0, &up, now), 0);
        d->look_ns = 0;
        roll_digested_look(here.root, here.run, now + S + S / 2, row == 0 || row == 3);
        assert_int_equal(d->number, before + (row < 2));
        assert_int_equal(roll_case_want(d, d->asked, 10).step, row < 2 ? 4 : row == 3 ? 3 : 0);
        roll_digest_fini(&up);
    }
}

/* Every second rank from `first` to the end of a large job: as many ranges as there can be. */
#define MANY 16384u
static struct roll_rankset scattered(uint32_t first)
{
    struct roll_rankset ranks = {0};
    for (uint32_t rank = first; rank < MANY; rank += 2) {
        assert_int_equal(roll_rankset_add(&ranks, rank), 0);
    }
    return ranks;
}

/* 20 findings stand about half of a job of 16,384 ranks, all of which has ended, and another one comes: each rank is
 * looked up a few times for each of them, not once for each other rank. */
static void test_a_finding_costs_no_more_than_ranks_and_findings(void **state)
{
    (void)state;
    for (int32_t rank = 0; rank < (int32_t)MANY; rank++) {
        add_ring(rank, true);
    }
    for (uint32_t i = 0; i < 20; i++) {
        assert_true(is_said_of(ROLL_VERDICT_RANK_FINISHED, scattered(0), 10 + i, 7, (100 + 100 * i) * S) == (i == 0));
        assert_true(is_said_of(ROLL_VERDICT_RANK_STOPPED, scattered(0), 10 + i, 7, 100 * S));
    }
    steps = 0;
    assert_false(is_said_of(ROLL_VERDICT_RANK_FINISHED, scattered(0), 99, 8, 9000 * S)); /* the same lack */
    assert_true(is_said_of(ROLL_VERDICT_RANK_FINISHED, scattered(2), 10, 8, 9000 * S));  /* others */
    assert_false(is_said_of(ROLL_VERDICT_RANK_STOPPED, scattered(4), 10, 7, 100 * S));   /* less of what was said */
    printf("%zu steps for 16,384 ranks\n", steps);
    assert_in_range(steps, 1, 16 * (size_t)MANY * 14);
}

static void test_a_part_of_ranks_is_known(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        bool part;
    } rows[] = {{"", "", true},          {"", "1", true},        {"1", "", false},         {"1-3", "0-4", true},
                {"1-3", "1-3", true},    {"1-4", "1-3", false},  {"0-3", "1-3", false},    {"1,5", "0-2,4-6", true},
                {"1,3", "1-2,4", false}, {"9", "1,3,5,9", true}, {"2-5", "2-3,5-9", false}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct roll_rankset a = {0}, b = {0};
        assert_int_equal(*rows[i].a ? roll_rankset_parse(rows[i].a, &a) : 0, 0);
        assert_int_equal(*rows[i].b ? roll_rankset_parse(rows[i].b, &b) : 0, 0);
        assert_int_equal(roll_ranks_are_part(&a, &b), rows[i].part);
        roll_rankset_fini(&a);
        roll_rankset_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_end_of_a_process_is_said_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_a_process_that_has_ended_leaves_undone_is_said_once, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_a_refused_call_is_said_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_comes_again_is_said_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_wrong_call_takes_the_place_of_the_circle_in_which_it_is_waited, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_seen_of_more_layers_takes_the_place_of_a_part, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_seen_from_an_earlier_step_on_takes_the_place, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_hinted_at_as_a_run_ends_is_asked_for, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_finding_costs_no_more_than_ranks_and_findings, set_up, tear_down),
        cmocka_unit_test(test_a_part_of_ranks_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
