/*
 * test_room.c: ranks that ask a root, or `rollcall analyze`, for more memory than there is: what the others did wrong
 * is told as ever, the rank is set aside, and what was refused is counted where people look. And jobs that ask for
 * nothing, many of them one after the other under one root, are refused nothing.
 *
 * The ranks are rings of this process.
 */
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define RANKS   8
#define WRONG   5    /* the rank that makes a wrong call */
#define HOSTILE 7    /* the rank that asks for everything */
#define ASKED   3000 /* communicators of 2^24 ranks; each would take 6 GiB */
#define CALLS   200u
#ifdef __SANITIZE_ADDRESS__
#define KEEPS 1 /* the sanitizer keeps what is freed, so what a process takes says nothing */
#else
#define KEEPS 0
#endif
#define MOST    640 /* MiB that a root, or analyze, takes at most: 256 for one rank, and as much for everything else */
#define RUNS    100
#define AT_ONCE 20 /* a root keeps 64 */

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

static void close_ranks(void)
{
    for (int r = 0; r < RANKS; r++) {
        synth_close(&rank[r]);
    }
}

/* Communicators far too large, and then as many as fit of some that are large. */
static void ask_for_everything(void)
{
    for (uint64_t i = 0; i < ASKED; i++) {
        (void)synth_comm_of(&rank[HOSTILE], 0x100000 + i, (int32_t)i, 1 << 24);
    }
    for (uint64_t i = 0; i < 1000; i++) {
        (void)synth_comm_of(&rank[HOSTILE], 0x200000 + i, (int32_t)i, 1 << 14);
    }
}

static void call_all(unsigned calls, uint64_t count_of_wrong)
{
    for (unsigned i = 0; i < calls; i++) {
        for (int r = 0; r < RANKS; r++) {
            struct synth_call call = {.comm = comm[r], .count = r == WRONG ? count_of_wrong : 1024};
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

static json_int_t no_room(roll_client_t *client)
{
    json_t *status = harness_ask(client, "{s:s}", "op", "status");
    json_int_t n = json_integer_value(json_object_get(json_object_get(status, "losses"), "no_room"));
    json_decref(status);
    return n;
}

/* MiB of memory that a process has had at most. */
static long peak(pid_t pid)
{
    char line[256];
    long kib = -1;
    snprintf(line, sizeof(line), "/proc/%d/status", (int)pid);
    FILE *f = fopen(line, "r");
    while (f && fgets(line, sizeof(line), f)) {
        (void)sscanf(line, "VmHWM: %ld", &kib);
    }
    if (f) {
        fclose(f);
    }
    return kib / 1024;
}

static bool is_text_of(const json_t *verdict, const char *words)
{
    const char *text = json_string_value(json_object_get(verdict, "text"));
    return text && strstr(text, words) != NULL;
}

/* All ranks have made their calls, and the root has refused what one of them asks for. Returns who asks the root;
 * owned.
 */
static roll_client_t *begin_beside_the_hostile_rank(void)
{
    open_ranks();
    ask_for_everything();
    call_all(CALLS, 1024);
    start("--stream");
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") == RANKS * CALLS));
    assert_true(HARNESS_UNTIL(no_room(client) >= ASKED));
    return client;
}

/* One rank asks for everything while another one makes a wrong call: that one is named, and nobody else. */
static void test_the_root_says_what_is_wrong_beside_a_rank_that_asks_for_its_memory(void **state)
{
    (void)state;
    roll_client_t *client = begin_beside_the_hostile_rank();
    assert_true(harness_logged("root.err", "asks for more room than there is"));
    json_t *note = harness_verdict(client, "data-incomplete");
    assert_true(is_text_of(note, "Rank 7 asks for more room than there is"));
    json_decref(note);
    usleep(1000000); /* much longer than a stall */
    assert_int_equal(harness_drained(client, "findings"), 0);
    call_all(1, 999);
    call_all(100, 1024);
    json_t *verdict = harness_verdict(client, "count-mismatch");
    assert_string_equal(json_string_value(json_object_get(verdict, "culprits_text")), "5");
    assert_string_equal(json_string_value(json_object_get(verdict, "certainty")), "suspected");
    assert_true(is_text_of(verdict, "Rank 7 was set aside for want of room, so this is not proven."));
    json_decref(verdict);
    assert_int_equal(harness_drained(client, "findings"), 1);
    assert_true(peak(root) > 0 && (KEEPS || peak(root) < MOST));
    roll_client_destroy(&client);
    close_ranks();
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 1);
}

/* The rank does not come, and the others wait for it: nobody is named, and a note says why. */
static void test_nobody_is_named_for_waiting_for_a_rank_without_room(void **state)
{
    (void)state;
    roll_client_t *client = begin_beside_the_hostile_rank();
    for (int r = 0; r < RANKS; r++) {
        struct synth_call call = {.comm = comm[r], .count = 1024, .hang = true};
        if (r != HOSTILE) {
            synth_allreduce(&rank[r], &call);
        }
    }
    bool told = false;
    assert_true(HARNESS_UNTIL(({
        json_t *all = harness_ask(client, "{s:s}", "op", "verdicts"), *verdict;
        size_t i;
        json_array_foreach(json_object_get(all, "verdicts"), i, verdict)
        {
            told = told || is_text_of(verdict, "for rank 7, which was set aside");
        }
        json_decref(all);
        told;
    })));
    usleep(1500000); /* much longer than a stall, and than the time for suspicion */
    assert_int_equal(harness_drained(client, "findings"), 0);
    roll_client_destroy(&client);
    close_ranks();
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

/* The summary that analyze prints about the rings; *code: its exit code. Returned owned. */
static json_t *analyzed(int *code)
{
    char command[700], line[4096];
    json_t *summary = NULL;
    snprintf(command, sizeof(command), "'%s' analyze --json '%s'", getenv("ROLL_TEST_ROLLCALL"), harness_path("d"));
    FILE *out = popen(command, "r");
    while (out && fgets(line, sizeof(line), out)) {
        json_t *json = json_loads(line, 0, NULL);
        const char *schema = json_string_value(json_object_get(json, "schema"));
        if (schema && strcmp(schema, "rollcall.summary/1") == 0) {
            json_decref(summary);
            summary = json_incref(json);
        }
        json_decref(json);
    }
    *code = WEXITSTATUS(pclose(out));
    return summary;
}

static json_int_t unrecorded(const json_t *summary, const char *cause)
{
    return json_integer_value(json_object_get(json_object_get(summary, "unrecorded"), cause));
}

/* The same rings, looked at when nobody is there any more: 1 where a call was wrong, and never 0. */
static void test_analyze_goes_on_behind_what_it_has_no_room_for(void **state)
{
    bool wrong = *state != NULL;
    int code;
    open_ranks();
    call_all(CALLS, 1024);
    ask_for_everything();
    call_all(1, wrong ? 999 : 1024);
    call_all(CALLS, 1024);
    for (int r = 0; r < RANKS; r++) {
        synth_finish(&rank[r]);
    }
    json_t *summary = analyzed(&code);
    assert_int_equal(code, wrong ? 1 : 4);
    assert_int_equal(json_integer_value(json_object_get(summary, "findings")), wrong);
    assert_int_equal(json_integer_value(json_object_get(summary, "records")), RANKS * (2 * CALLS + 1));
    assert_true(unrecorded(summary, "no_room") >= ASKED);
    json_decref(summary);
    close_ranks();
}

/* A table of call sites that was full costs words, and no call: that is counted, and the job is clean. */
static void test_a_full_table_of_call_sites_is_counted_and_hides_nothing(void **state)
{
    (void)state;
    int code;
    open_ranks();
    call_all(CALLS, 1024);
    atomic_fetch_add(&rank[2].ring.header->losses[ROLL_LOSS_CALLSITE], 17);
    for (int r = 0; r < RANKS; r++) {
        synth_finish(&rank[r]);
    }
    json_t *summary = analyzed(&code);
    assert_int_equal(code, 0);
    assert_int_equal(unrecorded(summary, "callsite"), 17);
    json_decref(summary);
    close_ranks();
}

/* One process that is both ranks of a small job; wrong: their last calls but nine differ. It ends, or lives on until it
 * is killed. */
static pid_t small_job(const char *job, int number, bool wrong, bool lives)
{
    pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    static struct synth two[2];
    uint16_t id[2] = {0};
    for (int r = 0; r < 2; r++) {
        if (synth_open(&two[r], harness_path("d"), job, r, 2, 1024) != 0) {
            _exit(1);
        }
        for (int k = 0; k < 20; k++) {
            id[r] = synth_comm(&two[r], (uint64_t)(number + 1) << 32 | (uint64_t)(k + 1));
        }
    }
    for (unsigned n = 0; n < 50; n++) {
        for (int r = 0; r < 2; r++) {
            synth_allreduce(&two[r],
                            &(struct synth_call){.comm = id[r], .count = wrong && n == 40 && r == 1 ? 999 : 1024});
        }
    }
    while (lives) {
        pause();
    }
    synth_finish(&two[0]);
    synth_finish(&two[1]);
    _exit(0);
}

static const char *job_name(int number)
{
    static char name[32];
    snprintf(name, sizeof(name), "job%d", number);
    return name;
}

/* A hundred jobs of two ranks, twenty at a time, of which each tenth lives on: none is refused anything, and in the
 * last one a wrong call is told. */
static void test_a_hundred_jobs_share_one_root(void **state)
{
    (void)state;
    pid_t pid[RUNS];
    assert_int_equal(mkdir(harness_path("d"), 0700), 0);
    start("--stream");
    roll_client_t *client = harness_client(where);
    for (int first = 0; first < RUNS; first += AT_ONCE) {
        for (int i = first; i < first + AT_ONCE; i++) {
            pid[i] = small_job(job_name(i), i, i == RUNS - 1, i % 10 == 0);
            assert_true(pid[i] > 0);
        }
        for (int i = first; i < first + AT_ONCE; i++) {
            assert_true(i % 10 == 0 || harness_end(pid[i], 0) == 0);
            assert_true(HARNESS_UNTIL(harness_has(client, job_name(i), "records") == 2 * 50));
            assert_true(i % 10 == 0 || HARNESS_UNTIL(harness_has(client, job_name(i), "ranks_live") == 0));
            json_t *status = harness_ask(client, "{s:s,s:s}", "op", "status", "job", job_name(i));
            assert_int_equal(json_integer_value(json_object_get(json_object_get(status, "losses"), "no_room")), 0);
            json_decref(status);
            /* The finding comes when the engine has waited for what else may come. */
            assert_true(i < RUNS - 1 ? harness_has(client, job_name(i), "findings") == 0
                                     : HARNESS_UNTIL(harness_has(client, job_name(i), "findings") == 1));
        }
    }
    roll_client_destroy(&client);
    for (int i = 0; i < RUNS; i += 10) {
        (void)harness_end(pid[i], SIGKILL);
    }
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 1);
}

int main(void)
{
    static bool wrong = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_root_says_what_is_wrong_beside_a_rank_that_asks_for_its_memory,
                                        harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_nobody_is_named_for_waiting_for_a_rank_without_room, harness_set_up,
                                        harness_tear_down),
        cmocka_unit_test_prestate_setup_teardown(test_analyze_goes_on_behind_what_it_has_no_room_for, harness_set_up,
                                                 harness_tear_down, NULL),
        cmocka_unit_test_prestate_setup_teardown(test_analyze_goes_on_behind_what_it_has_no_room_for, harness_set_up,
                                                 harness_tear_down, &wrong),
        cmocka_unit_test_setup_teardown(test_a_full_table_of_call_sites_is_counted_and_hides_nothing, harness_set_up,
                                        harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_hundred_jobs_share_one_root, harness_set_up, harness_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
