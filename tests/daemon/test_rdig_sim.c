/*
 * test_rdig_sim.c: the simulator's programs, recorded as the traces of 1, 2 and 4 nodes: what is said of their digests
 * is what is said of the traces.
 *
 * With the usual history the digests hold all records of such small programs, and every word has to be the same, notes
 * and verdicts that were taken back among them. With hardly any history they hold a tail: then a correct program gives
 * no finding, and what is said of a wrong one is counted, as for the daemon (docs/SCALE.md).
 */
#include "tests/daemon/node_traces.h"
#include "tests/simulation/generate.h"
#include "tests/simulation/shrink.h"
#include "tests/trace/cmocka_all.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__ /* which looks at memory, not at verdicts, and is some twenty times slower */
#define PROGRAMS 20u
#else
#define PROGRAMS 200u
#endif
#define LOOK_NS (20 * MS_)
#define WAIT_NS (16 * S_) /* more than suspicion needs */
#define TAIL    48u       /* records of a short history */

static struct program base, sick;
static struct story story;

/* Odd seeds are sick where they can be. */
static bool make(uint64_t seed, struct mutation *k)
{
    struct rng rng = {.state = seed ^ 0x5bd1e995};
    *k = (struct mutation){.kind = MUTATION_NONE, .comm = -1};
    generate(&base, seed);
    if (program_correct(&base, &story, seed) != 1) {
        return false;
    }
    for (int tries = 0; seed % 2 == 1 && tries < 12; tries++) {
        sick = base;
        if (mutation_choose(&sick, (enum mutation_kind)rng_below(&rng, MUTATION_KINDS), &rng, k) &&
            mutation_apply(&sick, k)) {
            program_tidy(&sick);
            return execute_mutated(&sick, &story, k, seed) == 0;
        }
    }
    k->kind = MUTATION_NONE;
    sick = base;
    return seed % 2 == 0;
}

/* What an agent has read of a rank. */
struct reading_of {
    uint32_t next, def;
    enum roll_state state[LOGS_MAX];
    bool stopped, ended;
};
static struct reading_of of[RANKS_MAX];

static struct roll_record record_at(const struct log *log, uint32_t ticket, enum roll_state state)
{
    struct roll_record rec = log->rec;
    rec.seal = roll_seal(ticket, state);
    rec.callsite = 0;
    if (state == ROLL_STATE_ENTERED) {
        rec.result = 0;
        return rec;
    }
    uint64_t took = log->back_ns - log->enter_ns;
    rec.call_ns = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
    return rec;
}

static enum roll_state state_at(const struct log *log, uint64_t now)
{
    return log->back_ns > now                       ? ROLL_STATE_ENTERED
           : sick.completion && log->done_ns <= now ? ROLL_STATE_COMPLETE
                                                    : ROLL_STATE_RETURNED;
}

static void define(struct node_traces *t, uint32_t rank, uint32_t index)
{
    int comm = story.rank[rank].def[index].comm;
    const struct comm_info *k = &sick.comm[comm];
    node_traces_comm(t, rank, index + 1,
                     &(struct roll_def_comm){.key = story_key(&sick, comm),
                                             .parent_key = k->parent < 0 ? 0 : story_key(&sick, k->parent),
                                             .rank = (int32_t)comm_rank(&sick, comm, rank),
                                             .nranks = (int32_t)mask_count(k->members),
                                             .color = k->parent < 0 ? ROLL_COLOR_NONE : k->color,
                                             .child = k->child,
                                             .origin = k->parent < 0 ? ROLL_COMM_INIT : ROLL_COMM_SPLIT,
                                             .flags = k->nonblocking});
}

/* One look at the ring of a rank. */
static void look(struct node_traces *t, uint32_t rank, uint64_t now)
{
    const struct rank_story *s = &story.rank[rank];
    struct reading_of *r = &of[rank];
    for (uint32_t i = 0; i < r->next; i++) {
        enum roll_state state = state_at(&s->log[i], now);
        if (state != r->state[i]) {
            struct roll_record rec = record_at(&s->log[i], i, state);
            node_traces_records(t, rank, &rec, 1, true);
            r->state[i] = state;
        }
    }
    while (r->next < s->logs && s->log[r->next].enter_ns <= now) {
        for (; r->def < s->defs && s->def[r->def].before <= r->next; r->def++) {
            define(t, rank, r->def);
        }
        r->state[r->next] = state_at(&s->log[r->next], now);
        struct roll_record rec = record_at(&s->log[r->next], r->next, r->state[r->next]);
        node_traces_records(t, rank, &rec, 1, false);
        r->next++;
    }
    for (; r->next == s->logs && now >= story.still_ns && r->def < s->defs; r->def++) {
        define(t, rank, r->def);
    }
    if (!r->stopped && s->stop_ns <= now) {
        r->stopped = true;
        node_traces_process(t, rank, r->next, now, ROLL_PROC_STOPPED, ROLL_EXIT_UNKNOWN);
    }
    if (!r->ended && s->end_ns <= now) {
        r->ended = true;
        node_traces_process(t, rank, r->next, now, s->state, s->status);
    }
}

static void record(uint32_t nodes)
{
    struct node_traces t;
    memset(of, 0, sizeof(of));
    node_traces_begin(&t, nodes, sick.ranks);
    for (uint32_t r = 0; sick.starved != 0 && r < sick.ranks; r++) {
        node_traces_sight(&t, r, sick.starved);
    }
    for (uint64_t now = START_NS; now < story.still_ns + WAIT_NS; now += LOOK_NS) {
        for (uint32_t r = 0; r < sick.ranks; r++) {
            look(&t, r, now);
        }
        for (uint32_t n = 0; n < nodes; n++) {
            node_traces_tick(&t, n, now);
        }
        now += now > story.still_ns + S_ ? 10 * LOOK_NS : 0;
    }
    node_traces_end(&t);
}

/* Digests of all nodes, and what is said of them, with as many further rounds as are asked for. */
static void ask(struct node_told *out, uint32_t nodes, uint32_t history, bool all)
{
    for (uint32_t i = 0; i < nodes; i++) {
        (void)node_traces_digest(i, 0, history, NULL, 0);
    }
    node_told_of_digests(out, nodes, 1, all);
    unsigned long long key;
    unsigned seq;
    const char *at = strstr(out->unreached, "--at ");
    if (at && sscanf(at, "--at %llx:%u", &key, &seq) == 2) {
        struct roll_digest_at place = {key, seq, seq};
        for (uint32_t i = 0; i < nodes; i++) {
            (void)node_traces_digest(i, 1, history, &place, 1);
        }
        node_told_fini(out);
        node_told_of_digests(out, nodes, 2, all);
    }
}

static void digests_of_all_records_are_judged_as_the_traces(void **state)
{
    (void)state;
    uint32_t programs = 0, findings = 0;
    for (uint64_t seed = 1; programs < PROGRAMS; seed++) {
        struct mutation k;
        if (!make(seed, &k)) {
            continue;
        }
        programs++;
        for (uint32_t nodes = 1; nodes <= 4 && nodes <= sick.ranks; nodes *= 2) {
            struct node_told want, got;
            record(nodes);
            node_told_of_traces(&want, nodes, true);
            ask(&got, nodes, LOGS_MAX, true);
            if (!node_told_equal(&want, &got)) {
                fprintf(stderr, "seed %llu on %u nodes\n", (unsigned long long)seed, nodes);
                node_told_print("traces", &want);
                node_told_print("digests", &got);
                fail();
            }
            assert_string_equal(got.unreached, "[]");
            assert_int_equal(got.summary.engine.calls, want.summary.engine.calls);
            assert_int_equal(got.summary.missing, want.summary.missing);
            assert_int_equal(got.summary.cut, want.summary.cut);
            assert_int_equal(got.summary.digests, nodes);
            findings += got.standing;
            node_told_fini(&want);
            node_told_fini(&got);
        }
    }
    fprintf(stderr, "%u programs, %u findings, each said the same\n", programs, findings);
    assert_true(findings > PROGRAMS / 4);
}

static void digests_of_tails_accuse_nobody_in_a_correct_program(void **state)
{
    (void)state;
    uint32_t programs = 0, same = 0, told = 0;
    for (uint64_t seed = 1000; programs < PROGRAMS; seed++) {
        struct mutation k;
        if (!make(seed, &k)) {
            continue;
        }
        programs++;
        uint32_t nodes = sick.ranks >= 4 ? 4 : 2;
        struct node_told want, got;
        record(nodes);
        node_told_of_traces(&want, nodes, false);
        ask(&got, nodes, TAIL, false);
        bool equal = node_told_equal(&want, &got);
        if (!equal || (k.kind == MUTATION_NONE && got.standing > 0)) {
            fprintf(stderr, "seed %llu: %s\n", (unsigned long long)seed,
                    k.kind == MUTATION_NONE ? "correct" : mutation_name(k.kind));
            node_told_print("traces", &want);
            node_told_print("digests", &got);
        }
        if (k.kind == MUTATION_NONE) {
            assert_true(equal);
            assert_int_equal(got.standing, 0);
        } else {
            told++;
            same += equal;
        }
        node_told_fini(&want);
        node_told_fini(&got);
    }
    fprintf(stderr, "with %u records of each rank: %u of %u programs with a mistake are told the same\n", TAIL, same,
            told);
    assert_true(same * 100 >= told * 85);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(digests_of_all_records_are_judged_as_the_traces, node_traces_set_up,
                                        node_traces_tear_down),
        cmocka_unit_test_setup_teardown(digests_of_tails_accuse_nobody_in_a_correct_program, node_traces_set_up,
                                        node_traces_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
