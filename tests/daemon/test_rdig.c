/*
 * test_rdig.c: digests of long runs, whose excerpts hold their ends only: a difference far back is told with the
 * command that fetches its records, and then judged as the traces are; files that are damaged, come twice or are
 * missing.
 */
#include "tests/daemon/node_traces.h"
#include "tests/trace/cmocka_all.h"

#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RANKS         8u
#define NODES         4u
#define HISTORY       1024u
#define HISTORY_SHORT 64u /* less than what a node knows of steps */
#define WORLD         0xa0u
#define LOCAL         0xb0u /* + rank / 2: all on one node */
#define ACROSS        0xc0u /* + rank % 2: one of each node */
#define STEP_NS       UINT64_C(2000000)
#define BEGIN         UINT64_C(1000000000000)
#define CALLS         4u /* of a step; with what is observed one more */
#define BUFFER        2  /* MOE_UNIFORM_BUFFER: rows that are the same for all */
#define BATCH         50u

/* A job whose ranks make four collectives a step, and one mistake. */
struct job {
    uint32_t nodes, ranks, steps;
    uint32_t wrong_rank, wrong_comm, wrong_seq; /* comm 0: none */
    uint32_t stuck_rank, stuck_step, ahead;     /* steps 0: none; ahead: steps that the others go on */
    bool small;                                 /* one communicator only */
    uint16_t observed;                          /* on this communicator each rank observes a number in each step */
    uint32_t odd_step;                          /* in which the last rank observes another one */
    uint32_t from; /* the first step that the traces have: their oldest segments are gone */
    uint32_t hole; /* from this step on a BATCH of rank 0 is lost; 0: none is */
};

static struct roll_record call(uint32_t ticket, uint16_t comm, uint32_t seq, uint64_t now, uint64_t count)
{
    return (struct roll_record){.seal = roll_seal(ticket, ROLL_STATE_RETURNED),
                                .enter_ns = now,
                                .count = count,
                                .seq = seq,
                                .peer = ROLL_PEER_NONE,
                                .call_ns = 1000,
                                .step = ROLL_STEP_NONE,
                                .comm = comm,
                                .layer = ROLL_LAYER_NONE,
                                .thread = 1,
                                .op = ROLL_OP_ALLREDUCE,
                                .dtype = ROLL_DTYPE_FLOAT32,
                                .redop = ROLL_RED_SUM};
}

static void comm(struct node_traces *t, uint32_t rank, uint32_t id, uint64_t key, uint32_t at, uint32_t size)
{
    node_traces_comm(t, rank, id,
                     &(struct roll_def_comm){.key = key,
                                             .rank = (int32_t)at,
                                             .nranks = (int32_t)size,
                                             .color = ROLL_COLOR_NONE,
                                             .origin = ROLL_COMM_INIT});
}

static uint32_t per_step(const struct job *j)
{
    return (j->small ? 1 : CALLS) + (j->observed != 0);
}

/* The records of one rank in one step; returns how many. */
static uint32_t step(const struct job *j, uint32_t rank, uint32_t s, struct roll_record *out)
{
    static const uint16_t comms[CALLS] = {1, 2, 2, 3};
    uint32_t n = j->small ? 1 : CALLS, n_of[4] = {0};
    uint64_t now = BEGIN + s * STEP_NS + rank * 1000;
    for (uint32_t i = 0; i < n; i++) {
        uint16_t c = comms[i];
        uint32_t seq = s * (c == 2 ? 2 : 1) + n_of[c]++;
        bool wrong = rank == j->wrong_rank && c == j->wrong_comm && seq == j->wrong_seq;
        out[i] = call(s * per_step(j) + i, c, seq, now + i * 10000, wrong ? 77 : 1000 + c);
    }
    if (j->observed != 0) {
        bool odd = rank == j->ranks - 1 && s == j->odd_step;
        out[n] = call(s * per_step(j) + n, j->observed, 0, now + n * 10000, odd ? 77 : 4096);
        out[n].op = ROLL_OP_MOE_UNIFORM;
        out[n].peer = BUFFER;
        out[n].step = s;
        out[n].layer = 2;
        out[n].phase = ROLL_PHASE_FORWARD;
        out[n].dtype = ROLL_DTYPE_NONE;
        out[n++].redop = ROLL_RED_NONE;
    }
    return n;
}

static bool goes_on(const struct job *j, uint32_t rank, uint32_t s)
{
    uint32_t end = j->stuck_step == 0 ? j->steps : rank == j->stuck_rank ? j->stuck_step : j->stuck_step + j->ahead;
    return s < end;
}

static void record(const struct job *j)
{
    static struct roll_record recs[BATCH * (CALLS + 1)];
    struct node_traces t;
    node_traces_begin(&t, j->nodes, j->ranks);
    for (uint32_t r = 0; r < j->ranks; r++) {
        comm(&t, r, 1, WORLD, r, j->ranks);
        if (!j->small) {
            comm(&t, r, 2, LOCAL + r / 2, r % 2, 2);
            comm(&t, r, 3, ACROSS + r % 2, r / 2, j->ranks / 2);
        }
    }
    for (uint32_t s = j->from; s < j->steps; s += BATCH) {
        for (uint32_t r = 0; r < j->ranks; r++) {
            uint32_t n = 0;
            if (r == 0 && j->hole != 0 && s == j->hole) {
                continue;
            }
            for (uint32_t i = s; i < s + BATCH && goes_on(j, r, i); i++) {
                n += step(j, r, i, recs + n);
            }
            node_traces_records(&t, r, recs, n, false);
        }
        for (uint32_t n = 0; n < j->nodes; n++) {
            node_traces_tick(&t, n, BEGIN + (s + BATCH) * STEP_NS);
        }
    }
    for (uint32_t i = 1; j->stuck_step != 0 && i < 300; i++) {
        for (uint32_t n = 0; n < j->nodes; n++) {
            node_traces_tick(&t, n, BEGIN + j->steps * STEP_NS + i * 100 * STEP_NS);
        }
    }
    for (uint32_t r = 0; r < j->ranks && j->stuck_step == 0; r++) {
        node_traces_process(&t, r, (uint64_t)j->steps * per_step(j), BEGIN + j->steps * STEP_NS, ROLL_PROC_FINISHED, 0);
    }
    for (uint32_t n = 0; n < j->nodes; n++) {
        node_traces_tick(&t, n, BEGIN + (j->steps + 30000) * STEP_NS);
    }
    node_traces_end(&t);
}

/* The digests of a round; the largest file's bytes. */
static size_t digest_all(const struct job *j, uint32_t round, const struct roll_digest_at *at)
{
    size_t most = 0;
    for (uint32_t i = 0; i < j->nodes; i++) {
        size_t bytes = node_traces_digest(i, round, j->observed != 0 ? HISTORY_SHORT : HISTORY, at, at ? 1 : 0);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* The place that is asked for. */
static struct roll_digest_at asked(const struct node_told *told)
{
    unsigned long long key = 0;
    unsigned seq = 0, last = 0;
    const char *at = strstr(told->unreached, "--at ");
    assert_non_null(at);
    int n = sscanf(at, "--at %llx:%u-%u", &key, &seq, &last);
    assert_true(n >= 2);
    return (struct roll_digest_at){key, seq, n == 3 ? last : seq};
}

static void expect(const struct node_told *t, enum roll_verdict_code code, uint64_t key, uint64_t seq, uint32_t culprit)
{
    if (t->n != 1) {
        node_told_print("told", t);
    }
    assert_int_equal(t->n, 1);
    assert_int_equal(t->v[0].code, code);
    assert_int_equal(t->v[0].comm_key, key);
    assert_int_equal(t->v[0].seq, seq);
    assert_int_equal(roll_rankset_count(&t->v[0].culprits), 1);
    assert_true(roll_rankset_has(&t->v[0].culprits, culprit));
}

static void a_healthy_run_is_clean_by_its_digests(void **state)
{
    (void)state;
    struct job j = {.nodes = NODES, .ranks = RANKS, .steps = 20000};
    struct node_told told;
    record(&j);
    size_t bytes = digest_all(&j, 0, NULL);
    node_told_of_digests(&told, NODES, 1, true);
    node_told_print("healthy", &told);
    assert_int_equal(told.n, 0);
    assert_string_equal(told.unreached, "[]");
    assert_int_equal(told.summary.engine.lost, 0);
    assert_int_equal(told.summary.missing, 0);
    assert_false(told.summary.cut);
    assert_int_equal(told.summary.digested, (uint64_t)RANKS * j.steps * CALLS);
    assert_true(told.summary.engine.calls < told.summary.digested / 10);
    assert_true(bytes < 200000);
    fprintf(stderr, "160,000 calls of a node: %zu bytes\n", bytes);
    node_told_fini(&told);
}

static void a_wrong_call_far_back_is_told_with_its_place_and_then_judged(void **state)
{
    (void)state;
    struct job j = {
        .nodes = NODES, .ranks = RANKS, .steps = 20000, .wrong_rank = 5, .wrong_comm = 1, .wrong_seq = 12345};
    struct node_told want, told;
    record(&j);
    node_told_of_traces(&want, NODES, false);
    expect(&want, ROLL_VERDICT_COUNT_MISMATCH, WORLD, 12345, 5);
    (void)digest_all(&j, 0, NULL);
    for (uint32_t round = 1;; round++) {
        node_told_of_digests(&told, NODES, round, false);
        if (strcmp(told.unreached, "[]") == 0) {
            break;
        }
        for (uint32_t i = 0; i < told.n; i++) { /* its own node has seen that two ranks differ, and not who is right */
            assert_int_equal(told.v[i].certainty, ROLL_SUSPECTED);
            assert_int_equal(roll_rankset_count(&told.v[i].culprits), 0);
        }
        struct roll_digest_at at = asked(&told);
        assert_int_equal(at.key, WORLD);
        assert_true(at.seq <= 12345 && at.last + 63 >= 12345);
        assert_true(round < 4);
        (void)digest_all(&j, round, &at);
        node_told_fini(&told);
    }
    node_told_print("digests", &told);
    assert_true(node_told_equal(&want, &told));
    /* One node does not send what it was asked for: not known is not clean. */
    char path[PATH_MAX];
    node_traces_rdig(3, 1, path);
    assert_int_equal(unlink(path), 0);
    node_told_fini(&told);
    node_told_of_digests(&told, NODES, 2, false);
    assert_non_null(strstr(told.unreached, "host3"));
    assert_null(strstr(told.unreached, "host1"));
    node_told_fini(&want);
    node_told_fini(&told);
}

/* What is said of a job's traces, and of its digests at first sight. */
static void look_once(const struct job *j, struct node_told *want, struct node_told *told)
{
    record(j);
    node_told_of_traces(want, j->nodes, false);
    (void)digest_all(j, 0, NULL);
    node_told_of_digests(told, j->nodes, 1, false);
}

/* Both say the same, and nothing is not known. */
static void expect_same(struct node_told *want, struct node_told *told)
{
    assert_true(node_told_equal(want, told));
    assert_string_equal(told->unreached, "[]");
    node_told_fini(want);
    node_told_fini(told);
}

static void a_wrong_call_among_ranks_of_one_node_goes_along_at_once(void **state)
{
    (void)state;
    struct job j = {
        .nodes = NODES, .ranks = RANKS, .steps = 20000, .wrong_rank = 3, .wrong_comm = 2, .wrong_seq = 9000};
    struct node_told want, told;
    look_once(&j, &want, &told);
    assert_int_equal(told.n, 1);
    expect_same(&want, &told);
}

static void a_rank_that_is_far_behind_is_found_by_a_second_look(void **state)
{
    (void)state;
    struct job j = {
        .nodes = NODES, .ranks = RANKS, .steps = 20000, .stuck_rank = 3, .stuck_step = 15000, .ahead = 1000};
    struct node_told want, told;
    record(&j);
    node_told_of_traces(&want, NODES, false);
    node_told_print("traces", &want);
    assert_true(want.n >= 1);
    (void)digest_all(&j, 0, NULL);
    node_told_of_digests(&told, NODES, 1, false);
    struct roll_digest_at at = asked(&told);
    for (uint32_t i = 0; i < told.n; i++) { /* what is said meanwhile accuses nobody else */
        assert_true(roll_rankset_count(&told.v[i].culprits) == 0 || roll_rankset_has(&told.v[i].culprits, 3));
    }
    node_told_fini(&told);
    (void)digest_all(&j, 1, &at);
    node_told_of_digests(&told, NODES, 2, false);
    node_told_print("digests", &told);
    expect_same(&want, &told);
}

static void a_very_long_run_is_bisected(void **state)
{
    (void)state;
    struct job j = {
        .nodes = 2, .ranks = 3, .steps = 600000, .wrong_rank = 2, .wrong_comm = 1, .wrong_seq = 100001, .small = true};
    struct node_told want, told;
    record(&j);
    node_told_of_traces(&want, 2, false);
    (void)digest_all(&j, 0, NULL);
    uint32_t round = 1, before = UINT32_MAX;
    for (;; round++) {
        node_told_of_digests(&told, 2, round, false);
        if (strcmp(told.unreached, "[]") == 0) {
            break;
        }
        struct roll_digest_at at = asked(&told);
        assert_true(at.seq <= 100001 && at.last + 63 >= 100001);
        assert_true(at.last - at.seq < before); /* finer each time */
        before = at.last - at.seq;
        assert_true(round < 4);
        (void)digest_all(&j, round, &at);
        node_told_fini(&told);
    }
    assert_int_equal(round, 3);
    assert_int_equal(want.n, 1);
    assert_true(node_told_equal(&want, &told));
    node_told_fini(&want);
    node_told_fini(&told);
}

/* The excerpts begin in the middle of the window in which somebody called what was wrong, behind its first calls. */
static void a_place_whose_finding_is_told_is_not_called_unknown(void **state)
{
    (void)state;
    struct job j = {.nodes = NODES, .ranks = RANKS, .steps = 2000, .wrong_rank = 5, .wrong_comm = 1, .wrong_seq = 1790};
    struct node_told want, told;
    look_once(&j, &want, &told);
    expect(&told, ROLL_VERDICT_COUNT_MISMATCH, WORLD, 1790, 5);
    expect_same(&want, &told);
}

/* Behind the newest records in any case, or in them, or so far back that they are in no memory. */
static void what_was_observed_is_judged_or_told_as_not_known(void **state)
{
    (void)state;
    static const struct {
        uint32_t nodes, ranks, odd_step;
        uint16_t comm;
        const char *unreached; /* NULL: it is judged */
    } rows[] = {
        {1, 4, 1995, 2, NULL},
        {1, 4, 1950, 2, NULL}, /* the node takes its excerpt back to that step */
        {1, 4, 500, 2, "observations of moe_core"},
        {2, 2, 1995, 1, NULL},
        {2, 2, 500, 1, "\"observed\":true"},
        {2, 4, 500, 1, "observations of moe_core"}, /* ranks of one node differ, too */
        {2, 4, 500, 2, "observations of moe_core"}, /* of two ranks of the second node */
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct job j = {.nodes = rows[i].nodes,
                        .ranks = rows[i].ranks,
                        .steps = 2000,
                        .observed = rows[i].comm,
                        .odd_step = rows[i].odd_step};
        struct node_told want, told;
        record(&j);
        node_told_of_traces(&want, j.nodes, false);
        assert_int_equal(want.n, 1);
        assert_int_equal(want.v[0].code, ROLL_VERDICT_MOE_BUFFER);
        (void)digest_all(&j, 0, NULL);
        node_told_of_digests(&told, j.nodes, 1, false);
        if (rows[i].unreached) {
            assert_int_equal(told.n, 0);
            assert_int_equal(told.summary.unreached, 1);
            assert_non_null(strstr(told.unreached, rows[i].unreached));
        } else {
            assert_true(node_told_equal(&want, &told));
            assert_string_equal(told.unreached, "[]");
        }
        node_told_fini(&want);
        node_told_fini(&told);
    }
}

/* Reads a file, changes it, and writes it back. */
static void damage(const char *path, void (*how)(uint8_t *bytes, size_t *n))
{
    static uint8_t bytes[1u << 20];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(bytes, 1, sizeof(bytes), f);
    assert_int_equal(fclose(f), 0);
    how(bytes, &n);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void cut_in_half(uint8_t *bytes, size_t *n)
{
    (void)bytes;
    *n /= 2;
}

static void cut_by_one(uint8_t *bytes, size_t *n)
{
    (void)bytes;
    --*n;
}

static void turn_a_bit(uint8_t *bytes, size_t *n)
{
    bytes[*n / 2] ^= 4;
}

static void add_a_byte(uint8_t *bytes, size_t *n)
{
    bytes[(*n)++] = 0;
}

static void make_newer(uint8_t *bytes, size_t *n)
{
    (void)n;
    bytes[10] = ROLL_RDIG_VERSION + 1; /* the oldest that can read it */
}

static void damaged_files_are_refused_and_the_ranks_in_them_missing(void **state)
{
    (void)state;
    static void (*const ways[])(uint8_t *, size_t *) = {cut_in_half, cut_by_one, turn_a_bit, add_a_byte, make_newer};
    struct job j = {.nodes = NODES, .ranks = RANKS, .steps = 2000};
    struct node_told told;
    char path[PATH_MAX];
    record(&j);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        (void)digest_all(&j, 0, NULL);
        node_traces_rdig(1, 0, path);
        damage(path, ways[i]);
        node_told_of_digests(&told, NODES, 1, false);
        assert_int_equal(told.standing, 0);
        assert_int_equal(told.summary.unreadable, 1);
        assert_int_equal(told.summary.digests, NODES - 1);
        assert_int_equal(told.summary.missing, 2);
        node_told_fini(&told);
    }
}

static void a_missing_node_is_told_and_a_double_one_counts_once(void **state)
{
    (void)state;
    struct job j = {.nodes = NODES, .ranks = RANKS, .steps = 2000, .wrong_rank = 5, .wrong_comm = 1, .wrong_seq = 1990};
    static char path[2 * NODES][PATH_MAX];
    struct node_told want, told;
    record(&j);
    node_told_of_traces(&want, NODES, false);
    (void)digest_all(&j, 0, NULL);
    (void)digest_all(&j, 1, NULL);
    node_told_of_digests(&told, NODES, 2, false);
    assert_true(node_told_equal(&want, &told));
    assert_int_equal(told.summary.engine.sources, RANKS);
    assert_int_equal(told.summary.digested, (uint64_t)RANKS * j.steps * CALLS);
    node_told_fini(&told);
    for (uint32_t i = 0, n = 0; i < NODES; i++) {
        if (i != 0) {
            node_traces_rdig(i, 0, path[n++]);
        }
    }
    node_told_of(&told, path, NODES - 1, false);
    assert_int_equal(told.summary.missing, 2);
    for (uint32_t i = 0; i < told.n; i++) {
        assert_true(roll_rankset_count(&told.v[i].culprits) == 0 || roll_rankset_has(&told.v[i].culprits, 5));
    }
    node_told_fini(&told);
    node_told_fini(&want);
}

/* What is not there is lost, or older than the traces; by one rule, whether the traces are judged or their digests. */
static void what_is_older_than_the_traces_is_not_lost_in_their_digests_either(void **state)
{
    (void)state;
    static const struct {
        uint32_t from, steps, hole;
    } rows[] = {{0, 200, 0}, {1000, 1200, 0}, {1000, 1200, 1100}, {1000, 2500, 0}, {1000, 2500, 1500}, {0, 2500, 1500}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct job j = {
            .nodes = NODES, .ranks = RANKS, .steps = rows[i].steps, .from = rows[i].from, .hole = rows[i].hole};
        struct node_told of_traces, of_digests;
        record(&j);
        (void)digest_all(&j, 0, NULL);
        node_told_of_traces(&of_traces, NODES, true);
        node_told_of_digests(&of_digests, NODES, 1, true);
        assert_int_equal(of_traces.summary.older, (uint64_t)RANKS * rows[i].from * CALLS);
        assert_int_equal(of_digests.summary.older, of_traces.summary.older);
        assert_int_equal(of_traces.summary.engine.lost, rows[i].hole ? BATCH * CALLS : 0);
        assert_int_equal(of_digests.summary.engine.lost, of_traces.summary.engine.lost);
        node_told_fini(&of_traces);
        node_told_fini(&of_digests);
    }
}

static void traces_beside_digests_are_judged_once_by_the_fuller_of_both(void **state)
{
    (void)state;
    static const struct {
        const char *traces, *digests; /* a letter for each node that is given */
        uint32_t missing;
        bool cut;
    } rows[] = {
        {"abcd", "abcd", 0, false}, {"abcd", "b", 0, false}, {"b", "abcd", 0, false},
        {"", "abcd", 0, false},     {"ab", "cd", 4, true},   {"abc", "bcd", 2, true},
    };
    struct job j = {.nodes = NODES, .ranks = RANKS, .steps = 2000, .wrong_rank = 5, .wrong_comm = 1, .wrong_seq = 1990};
    static char path[2 * NODES][PATH_MAX];
    struct node_told want, told;
    record(&j);
    node_told_of_traces(&want, NODES, false);
    (void)digest_all(&j, 0, NULL);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        size_t n = 0;
        for (const char *at = rows[i].traces; *at; at++) {
            node_traces_path((uint32_t)(*at - 'a'), path[n++]);
        }
        for (const char *at = rows[i].digests; *at; at++) {
            node_traces_rdig((uint32_t)(*at - 'a'), 0, path[n++]);
        }
        node_told_of(&told, path, n, false);
        assert_int_equal(told.summary.runs, 1);
        assert_int_equal(told.summary.cut, rows[i].cut);
        assert_int_equal(told.summary.missing, rows[i].missing);
        if (!rows[i].cut) {
            assert_true(node_told_equal(&want, &told));
            assert_int_equal(told.summary.engine.findings, 1);
        }
        node_told_fini(&told);
    }
    node_told_fini(&want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_healthy_run_is_clean_by_its_digests, node_traces_set_up,
                                        node_traces_tear_down),
        cmocka_unit_test_setup_teardown(a_wrong_call_far_back_is_told_with_its_place_and_then_judged,
                                        node_traces_set_up, node_traces_tear_down),
        cmocka_unit_test_setup_teardown(a_wrong_call_among_ranks_of_one_node_goes_along_at_once, node_traces_set_up,
                                        node_traces_tear_down),
        cmocka_unit_test_setup_teardown(a_rank_that_is_far_behind_is_found_by_a_second_look, node_traces_set_up,
                                        node_traces_tear_down),
        cmocka_unit_test_setup_teardown(a_very_long_run_is_bisected, node_traces_set_up, node_traces_tear_down),
        cmocka_unit_test_setup_teardown(a_place_whose_finding_is_told_is_not_called_unknown, node_traces_set_up,
                                        node_traces_tear_down),
        cmocka_unit_test_setup_teardown(what_was_observed_is_judged_or_told_as_not_known, node_traces_set_up,
                                        node_traces_tear_down),
        cmocka_unit_test_setup_teardown(traces_beside_digests_are_judged_once_by_the_fuller_of_both, node_traces_set_up,
                                        node_traces_tear_down),
        cmocka_unit_test_setup_teardown(what_is_older_than_the_traces_is_not_lost_in_their_digests_either,
                                        node_traces_set_up, node_traces_tear_down),
        cmocka_unit_test_setup_teardown(damaged_files_are_refused_and_the_ranks_in_them_missing, node_traces_set_up,
                                        node_traces_tear_down),
        cmocka_unit_test_setup_teardown(a_missing_node_is_told_and_a_double_one_counts_once, node_traces_set_up,
                                        node_traces_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
