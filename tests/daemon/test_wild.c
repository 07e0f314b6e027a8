/*
 * test_wild.c: what a job has written over in its own ring: one byte of one record, the count of its calls. The record
 * is left out and counted, and everybody else's are judged as ever: in records, by digests, and after the fact.
 *
 * The ranks are rings of this process, so that each test damages exactly one byte.
 */
#include "daemon/base/bus_guard.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"
#include "trace/op.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define RANKS 4
#define CALLS 200u
#define SICK  2 /* the rank with the damaged ring */

static struct synth rank[RANKS];
static uint16_t comm[RANKS];
static char where[320];
static pid_t root, agent;

static void open_ranks(void)
{
    assert_int_equal(mkdir(harness_path("d"), 0700), 0);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(synth_open(&rank[r], harness_path("d"), "job", r, RANKS, 0), 0);
        comm[r] = synth_comm(&rank[r], 0x1000);
    }
}

static void call_all(unsigned calls, uint64_t count_of_last)
{
    for (unsigned i = 0; i < calls; i++) {
        for (int r = 0; r < RANKS; r++) {
            struct synth_call call = {.comm = comm[r], .count = r == RANKS - 1 ? count_of_last : 1024};
            synth_allreduce(&rank[r], &call);
        }
    }
}

static void start(const char *mode)
{
    snprintf(where, sizeof(where), "ipc://%s", harness_path("root.socket"));
    root = DAEMON("root.err", NULL, "--root", mode, "--listen", where, "--stall-ms", "300", "--suspect-ms", "300");
    agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", where);
    assert_true(root > 0 && agent > 0);
}

static void end(int exit_of_root)
{
    for (int r = 0; r < RANKS; r++) {
        synth_close(&rank[r]);
    }
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), exit_of_root);
}

static json_int_t losses(roll_client_t *client, const char *cause)
{
    json_t *status = harness_ask(client, "{s:s}", "op", "status");
    json_int_t n = json_integer_value(json_object_get(json_object_get(status, "losses"), cause));
    json_decref(status);
    return n;
}

static json_int_t refused(roll_client_t *client)
{
    json_t *status = harness_ask(client, "{s:s}", "op", "status");
    json_int_t n = json_integer_value(json_object_get(json_object_get(status, "digests"), "refused"));
    json_decref(status);
    return n;
}

static struct roll_record *slot(uint64_t ticket)
{
    return &rank[SICK].ring.records[ticket & rank[SICK].ring.mask];
}

static void damage_dtype(void)
{
    slot(77)->dtype = 77;
}
static void damage_redop(void)
{
    slot(CALLS - 1)->redop = 99; /* the newest one, behind which nothing tells of a gap */
}
static void damage_state(void)
{
    slot(77)->seal = (slot(77)->seal & ~(uint64_t)0xff) | 9;
}
static void damage_op(void)
{
    slot(77)->op = 200;
}
static void damage_rows(void)
{
    for (unsigned i = 20; i < 120; i++) {
        slot(i)->phase = 250;
    }
}

static const struct wild {
    void (*damage)(void);
    json_int_t corrupt, missing; /* records that are counted by that cause, and that never come */
} wild[] = {
    {damage_dtype, 1, 1}, {damage_redop, 1, 1}, {damage_state, 1, 1}, {damage_op, 0, 0}, {damage_rows, 100, 100}};

/* Nobody is accused, whatever was damaged; and a wrong call of another rank is found as ever. */
static void check_live(const char *mode, const struct wild *w)
{
    bool digest = strcmp(mode, "--digest") == 0;
    open_ranks();
    call_all(CALLS, 1024);
    w->damage();
    start(mode);
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == RANKS));
    assert_true(HARNESS_UNTIL(losses(client, "corrupt") == w->corrupt));
    if (!digest) {
        assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") == RANKS * CALLS - w->missing));
    }
    call_all(CALLS, 1024);
    if (!digest) {
        assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") == 2 * RANKS * CALLS - w->missing));
        assert_int_equal(harness_has(client, "job", "lost"), w->missing);
    }
    usleep(1000000); /* much longer than a stall */
    assert_int_equal(harness_drained(client, "findings"), 0);
    assert_int_equal(losses(client, "corrupt"), w->corrupt);
    assert_int_equal(losses(client, "overrun"), 0);
    assert_int_equal(refused(client), 0);
    call_all(1, 999);
    call_all(100, 1024);
    json_t *verdict = harness_verdict(client, "count-mismatch");
    assert_non_null(verdict);
    assert_string_equal(json_string_value(json_object_get(verdict, "culprits_text")), "3");
    json_decref(verdict);
    roll_client_destroy(&client);
    end(1);
}

static void test_a_wild_byte_costs_one_record(void **state)
{
    check_live("--stream", *state);
}

static void test_a_wild_byte_costs_one_record_of_digests(void **state)
{
    check_live("--digest", *state);
}

/* What a wild byte does to the count of calls: it goes up by far, or beyond all tickets, or back. */
static const struct jump {
    int64_t by;
    bool goes_on;      /* the rank's further calls come */
    json_int_t lost;   /* at least */
    const char *cause; /* by which at least one is counted; NULL: nothing is lost */
} jumps[] = {
    {INT64_C(1) << 32, true, INT64_C(1) << 32, "overrun"},
    {INT64_C(1) << 40, true, INT64_C(1) << 40, "overrun"},
    {INT64_C(1) << 62, true, 0, NULL}, /* seals have no room for that bit */
    {-100, false, 0, "corrupt"},
};

/* The rank is seen, what is lost is counted, and nobody is accused. */
static void check_jump(const char *mode, const struct jump *jump)
{
    bool digest = strcmp(mode, "--digest") == 0;
    open_ranks();
    call_all(CALLS, 1024);
    start(mode);
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "calls") == RANKS * CALLS));
    (void)harness_drained(client, "calls");
    atomic_fetch_add(&rank[SICK].ring.header->head, (uint64_t)jump->by);
    call_all(50, 1024); /* fewer than the count went back by */
    json_int_t come = RANKS * (CALLS + 50) - (jump->goes_on ? 0 : 50);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "calls") == come));
    assert_true(!jump->cause || HARNESS_UNTIL(losses(client, jump->cause) > 0));
    assert_true(jump->cause || losses(client, "overrun") + losses(client, "corrupt") == 0);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "lost") >= jump->lost));
    usleep(1500000); /* much longer than a stall */
    assert_int_equal(harness_drained(client, "findings"), 0);
    if (jump->goes_on && !digest) {
        call_all(1, 999);
        call_all(100, 1024);
        json_t *verdict = harness_verdict(client, "count-mismatch");
        assert_string_equal(json_string_value(json_object_get(verdict, "culprits_text")), "3");
        json_decref(verdict);
    }
    roll_client_destroy(&client);
    end(jump->goes_on && !digest);
}

static void test_a_jump_of_the_count(void **state)
{
    check_jump("--stream", *state);
}

static void test_a_jump_of_the_count_under_digests(void **state)
{
    check_jump("--digest", *state);
}

/* Pipes that are named like what is read there, and that nobody writes into: neither the agent nor analyze waits. */
static void test_pipes_are_not_waited_for(void **state)
{
    (void)state;
    static const char *const names[] = {"d/job.0.0.1.ring", "d/job.0.rtrc", "d/node.rdig", "d/job.0.ctl", "d/dump_0"};
    open_ranks();
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(mkfifo(harness_path(names[i]), 0600), 0);
    }
    call_all(CALLS, 1024);
    start("--stream");
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "calls") == RANKS * CALLS));
    roll_client_destroy(&client);
    const char *rollcall = getenv("ROLL_TEST_ROLLCALL");
    assert_int_equal(harness_end(SPAWN("analyze.err", rollcall, "analyze", harness_path("d")), 0), 3);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(harness_end(SPAWN("analyze.err", rollcall, "analyze", harness_path(names[i])), 0), 3);
        assert_true(harness_end(SPAWN("dump.err", rollcall, "dump", harness_path(names[i])), 0) != 0);
    }
    end(0);
}

/* Somebody cuts the file of a ring while the agent looks at it: to nothing, to its header, in the middle of the
 * records. The rank is accused of nothing, and everybody else's are judged as ever. */
static void test_a_ring_that_is_cut(void **state)
{
    const struct cut {
        const char *mode;
        off_t bytes;
    } *cut = *state;
    struct stat st;
    roll_guard(); /* behind cmocka's own handlers */
    open_ranks();
    call_all(CALLS, 1024);
    start(cut->mode);
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "calls") == RANKS * CALLS));
    (void)harness_drained(client, "calls");
    assert_int_equal(truncate(rank[SICK].path, cut->bytes), 0);
    call_all(50, 1024);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "calls") == RANKS * CALLS + (RANKS - 1) * 50));
    assert_true(harness_logged("agent.err", "the file has been cut"));
    usleep(1500000); /* much longer than a stall */
    assert_int_equal(harness_drained(client, "findings"), 0);
    roll_client_destroy(&client);
    assert_int_equal(stat(rank[SICK].path, &st), 0); /* it is nobody's but the job's */
    end(0);
}

/* The same rings, looked at when nobody is there any more. */
static void test_a_wild_byte_costs_one_record_after_the_fact(void **state)
{
    const struct wild *w = *state;
    char command[700], line[1024];
    json_t *summary = NULL;
    open_ranks();
    call_all(CALLS, 1024);
    w->damage();
    call_all(CALLS, 1024);
    for (int r = 0; r < RANKS; r++) {
        synth_finish(&rank[r]);
    }
    snprintf(command, sizeof(command), "'%s' analyze --json '%s'", getenv("ROLL_TEST_ROLLCALL"), harness_path("d"));
    FILE *out = popen(command, "r");
    while (fgets(line, sizeof(line), out)) {
        json_t *json = json_loads(line, 0, NULL);
        const char *schema = json_string_value(json_object_get(json, "schema"));
        if (schema && strcmp(schema, "rollcall.summary/1") == 0) {
            json_decref(summary);
            summary = json_incref(json);
        }
        json_decref(json);
    }
    assert_int_equal(WEXITSTATUS(pclose(out)), w->missing > 0 ? 4 : 0);
    assert_int_equal(json_integer_value(json_object_get(summary, "records")), 2 * RANKS * CALLS - w->missing);
    assert_int_equal(json_integer_value(json_object_get(summary, "findings")), 0);
    assert_int_equal(json_integer_value(json_object_get(summary, "lost")), w->missing);
    json_decref(summary);
    for (int r = 0; r < RANKS; r++) {
        synth_close(&rank[r]);
    }
}

static struct CMUnitTest row(const char *name, CMUnitTestFunction test, const void *w)
{
    return (struct CMUnitTest){name, test, harness_set_up, harness_tear_down, (void *)(uintptr_t)w};
}

int main(void)
{
    enum { WILDS = sizeof(wild) / sizeof(wild[0]), JUMPS = sizeof(jumps) / sizeof(jumps[0]) };
    struct CMUnitTest tests[3 * WILDS + 2 * JUMPS + 8];
    size_t n = 0;
    for (size_t i = 0; i < WILDS; i++) {
        tests[n++] = row("records", test_a_wild_byte_costs_one_record, &wild[i]);
        tests[n++] = row("afterwards", test_a_wild_byte_costs_one_record_after_the_fact, &wild[i]);
        if (i % 2 == 1) { /* what folds and excerpts do about one of these they do about the others */
            tests[n++] = row("digests", test_a_wild_byte_costs_one_record_of_digests, &wild[i]);
        }
    }
    for (size_t i = 0; i < JUMPS; i++) {
        tests[n++] = row("jump", test_a_jump_of_the_count, &jumps[i]);
        if (i % 3 == 0) {
            tests[n++] = row("jump, digests", test_a_jump_of_the_count_under_digests, &jumps[i]);
        }
    }
    tests[n++] = row("pipes", test_pipes_are_not_waited_for, NULL);
    static const struct {
        const char *mode;
        off_t bytes;
    } cuts[] = {{"--stream", 0}, {"--digest", 0}, {"--stream", ROLL_RING_HEADER_BYTES}};
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        tests[n++] = row("cut", test_a_ring_that_is_cut, &cuts[i]);
    }
    return _cmocka_run_group_tests("wild", tests, n, NULL, NULL);
}
