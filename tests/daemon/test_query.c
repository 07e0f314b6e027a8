/*
 * test_query.c: the queries of consoles and their replies: what a root tells of its jobs, and which of them answers.
 */
#include "tests/daemon/sick_job.h"
#include "tests/daemon/synth.h"
#include "trace/def.h"
#include "trace/err.h"
#include "trace/frame.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char endpoint[256];

static void test_status_why_and_verdicts_are_told(void **state)
{
    (void)state;
    pid_t daemon, rank[3];
    roll_client_t *client = sick_job_begin(endpoint, &daemon, rank, NULL);
    assert_int_equal(harness_drained(client, "records"), 3 * 101);
    json_t *status = harness_ask(client, "{s:s,s:s}", "op", "status", "job", "job");
    assert_string_equal(json_string_value(json_object_get(status, "schema")), "rollcall.status/2");
    assert_string_equal(json_string_value(json_object_get(json_object_get(status, "run"), "job")), "job");
    assert_int_equal(json_array_size(json_object_get(status, "ranks")), 3);
    assert_int_equal(json_array_size(json_object_get(status, "comms")), 1);
    assert_int_equal(json_array_size(json_object_get(status, "agents")), 1);
    json_t *summary = json_object_get(status, "summary");
    assert_int_equal(json_integer_value(json_object_get(summary, "ranks_live")), 3);
    assert_true(json_integer_value(json_object_get(summary, "findings")) >= 1);
    json_t *first = json_array_get(json_object_get(status, "ranks"), 0);
    assert_string_equal(json_string_value(json_object_get(first, "state")), "running");
    assert_int_equal(json_integer_value(json_object_get(first, "pid")), rank[0]);
    assert_true(json_is_true(json_object_get(first, "in_call")));
    json_decref(status);

    json_t *why = harness_ask(client, "{s:s,s:i}", "op", "why", "rank", 0);
    assert_true(json_string_length(json_object_get(why, "text")) > 20);
    json_t *explains = json_object_get(json_array_get(json_object_get(why, "ranks"), 0), "verdict");
    json_t *finding = harness_verdict(client, "count-mismatch");
    assert_non_null(finding);
    assert_true(json_equal(explains, json_object_get(finding, "number")));
    char quote[200];
    snprintf(quote, sizeof(quote), "Verdict %d (count-mismatch, %s): %.30s",
             (int)json_integer_value(json_object_get(finding, "number")),
             json_string_value(json_object_get(finding, "certainty")),
             json_string_value(json_object_get(finding, "text")));
    assert_non_null(strstr(json_string_value(json_object_get(why, "text")), quote));
    json_decref(finding);
    json_decref(why);
    why = harness_ask(client, "{s:s,s:i}", "op", "why", "rank", 77);
    assert_non_null(harness_error(why));
    json_decref(why);
    why = harness_ask(client, "{s:s}", "op", "why");
    assert_non_null(json_object_get(why, "text"));
    json_decref(why);

    json_t *verdicts = harness_ask(client, "{s:s,s:i}", "op", "verdicts", "from", 1000);
    assert_int_equal(json_array_size(json_object_get(verdicts, "verdicts")), 0);
    json_decref(verdicts);
    sick_job_end(client, daemon, rank);
}

static void test_names_that_are_no_utf8_cost_no_answer(void **state)
{
    (void)state;
    static struct synth s;
    const char *dir = harness_path("d\xff"), *label = "ep\xfe";
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(synth_open(&s, dir, "job", 0, 2, 64), 0);
    struct roll_ring_header *h = s.ring.header;
    strcpy(h->exe, "caf\xe9");
    strcpy(h->host, "h\xf4te");
    h->static_crc = roll_crc32c(0, h, offsetof(struct roll_ring_header, static_crc));
    struct roll_def_comm def = {.key = 7,
                                .nranks = 2,
                                .color = ROLL_COLOR_NONE,
                                .origin = ROLL_COMM_INIT,
                                .label_bytes = (uint32_t)strlen(label)};
    assert_int_equal(roll_def_append(&s.ring, ROLL_DEF_COMM, 1, &def, sizeof(def), label, strlen(label)), 0);
    synth_allreduce(&s, &(struct synth_call){.comm = 1, .count = 8, .hang = true});
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", dir);
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    assert_int_equal(harness_drained(client, "records"), 1);
    json_t *status = harness_ask(client, "{s:s}", "op", "status");
    json_t *rank = json_array_get(json_object_get(status, "ranks"), 0);
    assert_string_equal(json_string_value(json_object_get(rank, "exe")), "caf?");
    assert_string_equal(json_string_value(json_object_get(rank, "host")), "h?te");
    json_t *comm = json_array_get(json_object_get(status, "comms"), 0);
    assert_string_equal(json_string_value(json_object_get(comm, "label")), "ep?");
    json_decref(status);
    json_t *why = harness_ask(client, "{s:s}", "op", "why");
    assert_non_null(strstr(json_string_value(json_object_get(why, "text")), "ep?"));
    assert_int_equal(json_array_size(json_object_get(why, "ranks")), 1);
    assert_null(json_object_get(json_array_get(json_object_get(why, "ranks"), 0), "verdict")); /* none was given */
    json_decref(why);
    roll_client_destroy(&client);
    synth_finish(&s);
    synth_close(&s);
    harness_end(daemon, SIGTERM);
}

/* A host runs ahead of its streams: after the verdict that names a rank as waiting it issues calls elsewhere. The wait
 * is explained by that verdict all the same. */
static void test_a_wait_is_explained_while_the_host_runs_on(void **state)
{
    (void)state;
    static struct synth s[2];
    const char *dir = harness_path("d");
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", dir);
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    uint16_t all[2], pair[2];
    for (int r = 0; r < 2; r++) {
        assert_int_equal(synth_open(&s[r], dir, "job", r, 3, 64), 0);
        all[r] = synth_comm(&s[r], 0x1000);
        pair[r] = synth_comm_of(&s[r], 8, r, 2);
        for (int i = 0; i < 2; i++) {
            (void)synth_allreduce(&s[r], &(struct synth_call){.comm = all[r], .count = 1024});
        }
    }
    pid_t third = harness_rank(dir, 2, 3, 1000, 1, "exit"); /* leaves out its second call */
    int status;
    assert_int_equal(waitpid(third, &status, 0), third);
    assert_int_equal(status, 0);
    json_t *finding = harness_verdict(client, "rank-finished");
    assert_non_null(finding);
    assert_string_equal(json_string_value(json_object_get(finding, "culprits_text")), "2");
    for (int r = 0; r < 2; r++) {
        (void)synth_allreduce(&s[r], &(struct synth_call){.comm = pair[r], .count = 4});
    }
    assert_int_equal(harness_drained(client, "records"), 2 * 2 + 1 + 2);
    for (int r = 0; r < 2; r++) {
        json_t *why = harness_ask(client, "{s:s,s:i}", "op", "why", "rank", r);
        json_t *explains = json_object_get(json_array_get(json_object_get(why, "ranks"), 0), "verdict");
        assert_true(json_is_integer(explains) && json_equal(explains, json_object_get(finding, "number")));
        json_decref(why);
    }
    json_decref(finding);
    roll_client_destroy(&client);
    for (int r = 0; r < 2; r++) {
        synth_close(&s[r]);
    }
    assert_int_equal(harness_end(daemon, SIGTERM), 1);
}

/* A process that is the one rank of a job of this name, and lives until it is killed; the root has heard of it. */
static pid_t one_rank(roll_client_t *client, const char *job)
{
    pid_t pid = fork();
    if (pid == 0) {
        static struct synth s;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (synth_open(&s, harness_path("d"), job, 0, 1, 64) != 0) {
            _exit(1);
        }
        uint16_t comm = synth_comm(&s, 7);
        (void)synth_allreduce(&s, &(struct synth_call){.comm = comm, .count = 8});
        for (;;) {
            pause();
        }
    }
    assert_true(pid > 0);
    assert_true(HARNESS_UNTIL(harness_has(client, job, "records") == 1));
    return pid;
}

static void end_rank(roll_client_t *client, pid_t pid, const char *job)
{
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(HARNESS_UNTIL(harness_has(client, job, "ranks_live") == 0));
}

/* Which job answers, the other jobs in their order, and how many of these run, as "b (a c) 1". */
static const char *answers(roll_client_t *client, const char *op)
{
    static char text[256];
    size_t i;
    json_t *name, *reply = harness_ask(client, "{s:s}", "op", op);
    int used =
        snprintf(text, sizeof(text), "%s (", json_string_value(json_object_get(json_object_get(reply, "run"), "job")));
    json_array_foreach(json_object_get(reply, "other_jobs"), i, name)
    {
        used += snprintf(text + used, sizeof(text) - (size_t)used, "%s%s", i > 0 ? " " : "", json_string_value(name));
    }
    snprintf(text + used, sizeof(text) - (size_t)used, ") %d",
             (int)json_integer_value(json_object_get(reply, "other_jobs_live")));
    json_decref(reply);
    return text;
}

/* A job that is over comes after the jobs that live, however new it is here: an agent that starts finds old rings. */
static void test_a_job_that_lives_answers_first(void **state)
{
    (void)state;
    static const char *const ops[] = {"status", "why", "verdicts"};
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"));
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    pid_t live = one_rank(client, "live"), over = one_rank(client, "over");
    end_rank(client, over, "over");
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        assert_string_equal(answers(client, ops[i]), "live (over) 0");
    }
    pid_t late = one_rank(client, "late"); /* of two that live the newer one */
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        assert_string_equal(answers(client, ops[i]), "late (live over) 1");
    }
    end_rank(client, late, "late");
    end_rank(client, live, "live");
    assert_string_equal(answers(client, "why"), "late (over live) 0");
    roll_client_destroy(&client);
    harness_end(daemon, SIGTERM);
}

static void test_wrong_questions_get_an_error(void **state)
{
    (void)state;
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"));
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    json_t *reply = harness_ask(client, "{s:s}", "op", "status"); /* before any rank */
    assert_non_null(harness_error(reply));
    json_decref(reply);
    pid_t rank = harness_rank(harness_path("d"), 0, 1, 1000, 10, "wait");
    assert_true(HARNESS_UNTIL(harness_has(client, NULL, "records") == 10));
    static const struct {
        const char *key, *value;
    } bad[] = {{"op", "nonsense"}, {"no", "op"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        reply = harness_ask(client, "{s:s}", bad[i].key, bad[i].value);
        assert_non_null(harness_error(reply));
        json_decref(reply);
    }
    reply = harness_ask(client, "{s:s,s:s}", "op", "status", "job", "another");
    assert_non_null(harness_error(reply));
    json_decref(reply);
    reply = harness_ask(client, "{s:s,s:s}", "op", "policy", "policy", "wild");
    assert_non_null(harness_error(reply));
    json_decref(reply);
    reply = harness_ask(client, "{s:s,s:s,s:s}", "op", "remedy", "action", "on", "remedy", "prayer");
    assert_non_null(harness_error(reply));
    json_decref(reply);
    reply = harness_ask(client, "{s:s,s:s,s:s,s:s,s:i}", "op", "remedy", "action", "on", "remedy", "pad", "level",
                        "layer", "layer", 100000);
    assert_non_null(harness_error(reply));
    json_decref(reply);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(rank, SIGTERM), 0);
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
}

static void test_verdicts_are_pushed_to_subscribers(void **state)
{
    (void)state;
    pid_t daemon, rank[3];
    roll_client_t *client = sick_job_begin(endpoint, &daemon, rank, NULL);
    json_t *reply = harness_ask(client, "{s:s,s:i}", "op", "subscribe", "from", 0), *verdict = NULL;
    json_decref(reply);
    assert_int_equal(roll_client_next(client, HARNESS_END_MS, &verdict), 0); /* the verdicts of the past come first */
    assert_int_equal(json_integer_value(json_object_get(verdict, "number")), 1);
    json_decref(verdict);
    assert_int_equal(harness_end(rank[1], SIGKILL), 128 + SIGKILL);
    bool dead = false;
    for (int i = 0; i < 10 && !dead && roll_client_next(client, 3000, &verdict) == 0; i++) {
        const char *code = json_string_value(json_object_get(verdict, "code"));
        dead = strcmp(code, "rank-dead") == 0 || strcmp(code, "count-mismatch") != 0;
        json_decref(verdict);
    }
    rank[1] = 0;
    sick_job_end(client, daemon, rank);
}

static void test_two_jobs_on_one_root_are_kept_apart(void **state)
{
    (void)state;
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"));
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    const char *dir = harness_path("d");
    pid_t one = SPAWN("a.err", "synth_rank", dir, "alpha", "0", "1", "1000", "50", "1024", "wait");
    pid_t two = SPAWN("b.err", "synth_rank", dir, "beta", "0", "1", "1000", "70", "1024", "wait");
    assert_true(HARNESS_UNTIL(harness_has(client, "alpha", "records") == 50));
    assert_true(HARNESS_UNTIL(harness_has(client, "beta", "records") == 70));
    json_t *a = harness_ask(client, "{s:s,s:s}", "op", "status", "job", "alpha");
    json_t *b = harness_ask(client, "{s:s,s:s}", "op", "status", "job", "beta");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(a, "summary"), "records")), 50);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(b, "summary"), "records")), 70);
    json_decref(a);
    json_decref(b);
    roll_client_destroy(&client);
    harness_end(one, SIGTERM);
    harness_end(two, SIGTERM);
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
}

static void test_a_console_finds_the_one_root(void **state)
{
    (void)state;
    char found[256] = "", why[512] = "";
    assert_int_equal(setenv("ROLLCALL_DIR", harness_dir(), 1), 0);
    unsetenv("ROLLCALL_DAEMON");
    assert_int_equal(roll_client_discover(found, sizeof(found), why, sizeof(why)), ROLL_E_UNREACHABLE);
    assert_non_null(strstr(why, "no rollcalld"));
    pid_t one = DAEMON("one.err", endpoint, "--dir", harness_path("run-1"));
    assert_int_equal(roll_client_discover(found, sizeof(found), why, sizeof(why)), 0);
    assert_string_equal(found, endpoint);
    pid_t two = DAEMON("two.err", endpoint, "--dir", harness_path("run-2"));
    assert_int_equal(roll_client_discover(found, sizeof(found), why, sizeof(why)), ROLL_E_LIMIT);
    assert_non_null(strstr(why, "run-1"));
    assert_non_null(strstr(why, "run-2"));
    assert_int_equal(harness_end(one, SIGKILL), 128 + SIGKILL); /* a killed root leaves its files, but not its lock */
    assert_int_equal(roll_client_discover(found, sizeof(found), why, sizeof(why)), 0);
    assert_string_equal(found, endpoint);
    assert_int_equal(harness_end(two, SIGTERM), 0);
    unsetenv("ROLLCALL_DIR");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, harness_set_up, harness_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_status_why_and_verdicts_are_told),   TEST(test_names_that_are_no_utf8_cost_no_answer),
        TEST(test_a_job_that_lives_answers_first),     TEST(test_wrong_questions_get_an_error),
        TEST(test_verdicts_are_pushed_to_subscribers), TEST(test_two_jobs_on_one_root_are_kept_apart),
        TEST(test_a_console_finds_the_one_root),       TEST(test_a_wait_is_explained_while_the_host_runs_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
