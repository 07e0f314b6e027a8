/*
 * test_query.c: the queries of consoles and their replies; a trace of the run gives the same verdicts as live.
 */
#include "daemon/feed/feed.h"
#include "daemon/store/trace_file.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"
#include "tests/daemon/verdict_json.h"
#include "trace/control.h"
#include "trace/def.h"
#include "trace/err.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char endpoint[256];

/* A root that sees a wrong count of rank 1 among three ranks. */
static roll_client_t *sick_job(pid_t *daemon, pid_t rank[3], const char *const *extra)
{
    const char *argv[16] = {"rollcalld", "--dir", harness_path("d")};
    int n = 3;
    for (; extra && *extra; extra++) {
        argv[n++] = *extra;
    }
    *daemon = harness_daemon("daemon.err", endpoint, argv);
    assert_true(*daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    for (int r = 0; r < 3; r++) {
        rank[r] = harness_rank(harness_path("d"), r, 3, 1000, 100, r == 1 ? "wrong" : "hang");
    }
    json_t *verdict = harness_verdict(client, "count-mismatch");
    assert_non_null(verdict);
    assert_string_equal(json_string_value(json_object_get(verdict, "culprits_text")), "1");
    json_decref(verdict);
    return client;
}

static void end_job(roll_client_t *client, pid_t daemon, pid_t rank[3])
{
    roll_client_destroy(&client);
    for (int r = 0; r < 3; r++) {
        assert_true(rank[r] == 0 || harness_end(rank[r], SIGTERM) == 0);
    }
    assert_int_equal(harness_end(daemon, SIGTERM), 1);
}

static const char *error_of(const json_t *reply)
{
    return json_string_value(json_object_get(reply, "error"));
}

static void test_status_why_and_verdicts_are_told(void **state)
{
    (void)state;
    pid_t daemon, rank[3];
    roll_client_t *client = sick_job(&daemon, rank, NULL);
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
    assert_non_null(error_of(why));
    json_decref(why);
    why = harness_ask(client, "{s:s}", "op", "why");
    assert_non_null(json_object_get(why, "text"));
    json_decref(why);

    json_t *verdicts = harness_ask(client, "{s:s,s:i}", "op", "verdicts", "from", 1000);
    assert_int_equal(json_array_size(json_object_get(verdicts, "verdicts")), 0);
    json_decref(verdicts);
    end_job(client, daemon, rank);
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
    assert_non_null(error_of(reply));
    json_decref(reply);
    pid_t rank = harness_rank(harness_path("d"), 0, 1, 1000, 10, "wait");
    assert_true(HARNESS_UNTIL(harness_has(client, NULL, "records") == 10));
    static const struct {
        const char *key, *value;
    } bad[] = {{"op", "nonsense"}, {"no", "op"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        reply = harness_ask(client, "{s:s}", bad[i].key, bad[i].value);
        assert_non_null(error_of(reply));
        json_decref(reply);
    }
    reply = harness_ask(client, "{s:s,s:s}", "op", "status", "job", "another");
    assert_non_null(error_of(reply));
    json_decref(reply);
    reply = harness_ask(client, "{s:s,s:s}", "op", "policy", "policy", "wild");
    assert_non_null(error_of(reply));
    json_decref(reply);
    reply = harness_ask(client, "{s:s,s:s,s:s}", "op", "remedy", "action", "on", "remedy", "prayer");
    assert_non_null(error_of(reply));
    json_decref(reply);
    reply = harness_ask(client, "{s:s,s:s,s:s,s:s,s:i}", "op", "remedy", "action", "on", "remedy", "pad", "level",
                        "layer", "layer", 100000);
    assert_non_null(error_of(reply));
    json_decref(reply);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(rank, SIGTERM), 0);
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
}

static void test_verdicts_are_pushed_to_subscribers(void **state)
{
    (void)state;
    pid_t daemon, rank[3];
    roll_client_t *client = sick_job(&daemon, rank, NULL);
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
    end_job(client, daemon, rank);
}

static void test_remedies_and_policy_reach_the_control_page(void **state)
{
    (void)state;
    pid_t daemon, rank[3];
    roll_client_t *client = sick_job(&daemon, rank, NULL);
    struct roll_control *page = NULL;
    assert_int_equal(roll_control_open(harness_path("d/job.0.ctl"), false, ROLL_POLICY_OBSERVE, &page), 0);
    assert_int_equal(roll_control_mask(page, 0x1000, 3, 0), 0);
    json_t *reply = harness_ask(client, "{s:s,s:s,s:s,s:s,s:i}", "op", "remedy", "action", "on", "remedy", "fill",
                                "level", "layer", "layer", 3);
    assert_null(error_of(reply));
    json_decref(reply);
    json_decref(harness_ask(client, "{s:s,s:s,s:s,s:s,s:s}", "op", "remedy", "action", "on", "remedy", "pad", "level",
                            "group", "comm", "0x1000"));
    assert_true(HARNESS_UNTIL(roll_control_mask(page, 0x1000, 3, 0) == (ROLL_REMEDY_FILL | ROLL_REMEDY_PAD)));
    assert_int_equal(roll_control_mask(page, 0, 2, 0), 0);
    reply = harness_ask(client, "{s:s,s:s}", "op", "remedy", "action", "list");
    json_t *remedies = json_object_get(reply, "remedies");
    assert_int_equal(json_array_size(json_object_get(remedies, "layers")), 1);
    assert_int_equal(json_array_size(json_object_get(remedies, "groups")), 1);
    json_decref(reply);
    json_decref(harness_ask(client, "{s:s,s:s,s:s,s:s,s:i}", "op", "remedy", "action", "clear", "remedy", "fill",
                            "level", "layer", "layer", 3));
    json_decref(harness_ask(client, "{s:s,s:s,s:s}", "op", "remedy", "action", "off", "remedy", "dummy"));
    json_decref(harness_ask(client, "{s:s,s:s}", "op", "policy", "policy", "auto"));
    assert_true(HARNESS_UNTIL(roll_control_mask(page, 0, 3, ROLL_REMEDY_DUMMY | ROLL_REMEDY_PAD) == ROLL_REMEDY_PAD));
    assert_true(HARNESS_UNTIL(atomic_load(&page->policy) == ROLL_POLICY_AUTO));
    assert_int_equal(roll_control_mask(page, 0, 3, 0), 0);
    roll_control_close(&page);
    end_job(client, daemon, rank);
}

/* The answer's error, owned; NULL: it has none. */
static char *switching(roll_client_t *client, const char *action, const char *level, int layer, const char *comm,
                       bool force)
{
    json_t *reply = harness_ask(client, "{s:s,s:s,s:s,s:s,s:i,s:s,s:b}", "op", "remedy", "action", action, "remedy",
                                "fill", "level", level, "layer", layer, "comm", comm, "force", (int)force);
    const char *text = error_of(reply);
    char *copy = text ? strdup(text) : NULL;
    json_decref(reply);
    return copy;
}

/* A layer that is not there is refused once all are known, and never before: the forward pass may be on its way. */
static void test_a_remedy_for_a_layer_or_communicator_that_is_not_there_is_refused(void **state)
{
    (void)state;
    static struct synth rank;
    mkdir(harness_path("d"), 0700);
    assert_int_equal(synth_open(&rank, harness_path("d"), "job", 0, 1, 1024), 0);
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"));
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    uint16_t comm = synth_comm(&rank, 0x1000);
    for (rank.step = 7; rank.step < 10; rank.step++) {
        for (rank.layer = 0; rank.layer < 6; rank.layer += 2) {
            synth_tokens(&rank, comm, 100);
            json_int_t records = (json_int_t)((rank.step - 7) * 3 + rank.layer / 2 + 1);
            assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") == records));
            char *error = switching(client, "on", "layer", 99, "", false);
            if (rank.step < 9) {
                assert_null(error);
            } else {
                assert_string_equal(error, "no rank that is heard has told of MoE layer 99, only of layers 0,2,4 "
                                           "(--force switches it all the same)");
            }
            free(error);
        }
    }
    static const struct {
        const char *action, *level;
        int layer;
        const char *comm;
        bool force, refused;
    } rows[] = {{"on", "layer", 4, "", false, false},         {"on", "layer", 3, "", false, true},
                {"off", "layer", 3, "", false, true},         {"on", "layer", 3, "", true, false},
                {"clear", "layer", 3, "", false, false},      {"on", "group", 0, "0x1000", false, false},
                {"on", "group", 0, "0x1001", false, true},    {"on", "group", 0, "0x1001", true, false},
                {"clear", "group", 0, "0x1001", false, false}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char *error = switching(client, rows[i].action, rows[i].level, rows[i].layer, rows[i].comm, rows[i].force);
        if ((error != NULL) != rows[i].refused) {
            fail_msg("row %zu: %s", i, error ? error : "it was not refused");
        }
        free(error);
    }
    json_t *reply = harness_ask(client, "{s:s,s:s}", "op", "remedy", "action", "list");
    assert_string_equal(json_string_value(json_object_get(reply, "moe_layers")), "0,2,4");
    json_decref(reply);
    roll_client_destroy(&client);
    synth_finish(&rank);
    synth_close(&rank);
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
}

/* Two restarts of one job on one node, as after a quick restart: each has its own control page. */
static void test_a_remedy_is_switched_in_its_own_restart_only(void **state)
{
    (void)state;
    static struct synth rank[3];
    struct roll_control *page[2] = {NULL, NULL};
    mkdir(harness_path("d"), 0700);
    assert_int_equal(synth_open_restart(&rank[0], harness_path("d"), "job", 0, 0, 2, 64), 0);
    assert_int_equal(synth_open_restart(&rank[1], harness_path("d"), "job", 1, 0, 2, 64), 0);
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"));
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    assert_true(HARNESS_UNTIL(roll_control_open(harness_path("d/job.0.ctl"), false, 0, &page[0]) == 0));
    assert_true(HARNESS_UNTIL(roll_control_open(harness_path("d/job.1.ctl"), false, 0, &page[1]) == 0));
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == 1));

    json_t *reply = harness_ask(client, "{s:s,s:s,s:i,s:s,s:s}", "op", "remedy", "job", "job", "restart", 0, "action",
                                "on", "remedy", "fill");
    assert_null(error_of(reply));
    json_decref(reply);
    json_decref(harness_ask(client, "{s:s,s:s,s:i,s:s}", "op", "policy", "job", "job", "restart", 0, "policy", "auto"));
    assert_true(HARNESS_UNTIL(atomic_load(&page[0]->policy) == ROLL_POLICY_AUTO));
    assert_int_equal(roll_control_mask(page[0], 0, 0, 0), ROLL_REMEDY_FILL);

    /* A ring that comes later: the root repeats what is in force for its run. */
    assert_int_equal(synth_open_restart(&rank[2], harness_path("d"), "job", 0, 1, 2, 64), 0);
    json_t *runs = NULL;
    assert_true(HARNESS_UNTIL(({
        json_decref(runs);
        runs = harness_ask(client, "{s:s,s:s}", "op", "runs", "job", "job");
        json_t *list = json_object_get(runs, "runs");
        json_integer_value(json_object_get(json_array_get(list, 0), "ranks")) +
                json_integer_value(json_object_get(json_array_get(list, 1), "ranks")) ==
            3;
    })));
    json_decref(runs);
    json_decref(harness_ask(client, "{s:s,s:s,s:i,s:s,s:s}", "op", "remedy", "job", "job", "restart", 1, "action", "on",
                            "remedy", "pad"));
    assert_true(HARNESS_UNTIL(roll_control_mask(page[1], 0, 0, 0) != 0)); /* what was sent before has arrived, too */
    assert_int_equal(roll_control_mask(page[1], 0, 0, 0), ROLL_REMEDY_PAD);
    assert_int_not_equal(atomic_load(&page[1]->policy), ROLL_POLICY_AUTO);
    assert_int_equal(roll_control_mask(page[0], 0, 0, 0), ROLL_REMEDY_FILL);

    roll_client_destroy(&client);
    for (int i = 0; i < 3; i++) {
        synth_finish(&rank[i]);
        synth_close(&rank[i]);
    }
    for (int i = 0; i < 2; i++) {
        roll_control_close(&page[i]);
    }
    assert_int_equal(harness_end(daemon, SIGTERM), 0);
}

/* What a root switched holds on the control pages when it is killed, and the next root knows it. */
static void test_a_root_that_comes_after_a_killed_one_goes_on_with_what_was_switched(void **state)
{
    (void)state;
    char where[300];
    snprintf(where, sizeof(where), "ipc://%s/sock", harness_dir());
    pid_t root = DAEMON("root.err", NULL, "--root", "--listen", where);
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", where);
    assert_true(root > 0 && agent > 0);
    roll_client_t *client = harness_client(where);
    pid_t rank = harness_rank(harness_path("d"), 0, 1, 1000, 10, "wait");
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") == 10));
    struct roll_control *page = NULL;
    assert_int_equal(roll_control_open(harness_path("d/job.0.ctl"), false, 0, &page), 0);
    json_decref(harness_ask(client, "{s:s,s:s}", "op", "policy", "policy", "auto"));
    json_decref(harness_ask(client, "{s:s,s:s,s:s}", "op", "remedy", "action", "off", "remedy", "pad"));
    json_decref(harness_ask(client, "{s:s,s:s,s:s,s:s,s:i}", "op", "remedy", "action", "on", "remedy", "fill", "level",
                            "layer", "layer", 3));
    json_decref(harness_ask(client, "{s:s,s:s,s:s,s:s,s:s,s:b}", "op", "remedy", "action", "on", "remedy", "fill",
                            "level", "group", "comm", "0xfedcba9876543210", "force", 1));
    assert_true(HARNESS_UNTIL(atomic_load(&page->group[0].on) == ROLL_REMEDY_FILL));
    json_t *reply = harness_ask(client, "{s:s,s:s}", "op", "remedy", "action", "list");
    json_t *before = json_incref(json_object_get(reply, "remedies"));
    json_decref(reply);
    roll_client_destroy(&client);
    assert_int_equal(harness_end(root, SIGKILL), 128 + SIGKILL);

    /* The first successor is told no policy, the second one the policy that holds. */
    for (int told = 0; told < 2; told++) {
        root = DAEMON("root.err", NULL, "--root", "--listen", where, told ? "--policy" : NULL, "auto");
        assert_true(root > 0);
        client = harness_client(where);
        assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") == 10));
        bool same = false;
        assert_true(HARNESS_UNTIL(({
            reply = harness_ask(client, "{s:s}", "op", "status");
            const char *policy = json_string_value(json_object_get(json_object_get(reply, "run"), "policy"));
            same = strcmp(policy, "auto") == 0 && json_equal(json_object_get(reply, "remedies"), before);
            json_decref(reply);
            same;
        })));
        assert_int_equal(atomic_load(&page->policy), ROLL_POLICY_AUTO);
        assert_true(HARNESS_UNTIL((atomic_load(&page->auto_local) ^ roll_remedy_all()) == ROLL_REMEDY_PAD));
        assert_int_equal(atomic_load(&page->layer[3].on), ROLL_REMEDY_FILL);
        roll_client_destroy(&client);
        assert_int_equal(harness_end(root, SIGKILL), 128 + SIGKILL);
    }
    json_decref(before);

    root = DAEMON("root.err", NULL, "--root", "--listen", where, "--policy", "advise"); /* overrules */
    assert_true(root > 0);
    client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") == 10));
    assert_true(HARNESS_UNTIL(atomic_load(&page->policy) == ROLL_POLICY_ADVISE));
    reply = harness_ask(client, "{s:s}", "op", "status");
    assert_string_equal(json_string_value(json_object_get(json_object_get(reply, "run"), "policy")), "advise");
    json_decref(reply);
    roll_client_destroy(&client);
    roll_control_close(&page);
    harness_end(rank, SIGTERM);
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

/* Policy auto switches a remedy on, somebody switches the remedy off: so it stays, also when the next root reads the
 * verdict in its predecessor's trace. */
static void test_what_is_switched_off_stays_off_when_a_new_root_reads_the_old_verdicts(void **state)
{
    (void)state;
    static struct synth rank[2];
    char where[300];
    snprintf(where, sizeof(where), "ipc://%s/sock", harness_dir());
    const char *const options[] = {"rollcalld",           "--root", "--listen", where, "--policy", "auto", "--trace",
                                   harness_path("trace"), NULL};
    mkdir(harness_path("d"), 0700);
    pid_t root = harness_daemon("root.err", NULL, options);
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d"), "--connect", where);
    assert_true(root > 0 && agent > 0);
    roll_client_t *client = harness_client(where);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(synth_open(&rank[r], harness_path("d"), "job", r, 2, 64), 0);
        uint16_t comm = synth_comm(&rank[r], 0x1000);
        synth_allreduce(&rank[r], &(struct synth_call){.comm = comm, .count = 8});
        synth_tokens(&rank[r], comm, 100 + (uint64_t)r);
    }
    json_decref(harness_verdict(client, "moe-tokens-unequal"));
    struct roll_control *page = NULL;
    assert_int_equal(roll_control_open(harness_path("d/job.0.ctl"), false, 0, &page), 0);
    assert_true(HARNESS_UNTIL(atomic_load(&page->layer[0].on) == ROLL_REMEDY_UNEVEN));
    json_decref(harness_ask(client, "{s:s,s:s,s:s,s:s,s:i}", "op", "remedy", "action", "off", "remedy", "uneven",
                            "level", "layer", "layer", 0));
    assert_true(HARNESS_UNTIL(atomic_load(&page->layer[0].off) == ROLL_REMEDY_UNEVEN));
    roll_client_destroy(&client);
    assert_int_equal(harness_end(root, SIGKILL), 128 + SIGKILL);

    root = harness_daemon("root.err", NULL, options);
    assert_true(root > 0);
    client = harness_client(where);
    json_decref(harness_verdict(client, "moe-tokens-unequal"));
    assert_true(harness_logged("root.err", "goes on as the agent"));
    (void)harness_drained(client, "records");
    assert_int_equal(atomic_load(&page->layer[0].on), 0);
    assert_int_equal(atomic_load(&page->layer[0].off), ROLL_REMEDY_UNEVEN);
    roll_client_destroy(&client);
    roll_control_close(&page);
    for (int r = 0; r < 2; r++) {
        synth_finish(&rank[r]);
        synth_close(&rank[r]);
    }
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    harness_end(root, SIGTERM);
}

/* What the trace gives equals the lines of the NDJSON file, byte for byte. Returns the first verdict with `code`,
 * owned; NULL when there is none. */
static json_t *expect_the_same_of_the_trace(const char *trace, const char *json, bool over, const char *code)
{
    roll_trace_reader_t *reader = NULL;
    struct roll_engine_config config = {0};
    roll_feed_t *feed = roll_feed_new(&config, NULL, 0);
    struct roll_frame frame;
    json_t *wanted = NULL;
    assert_int_equal(roll_trace_reader_new(trace, &reader), 0);
    while (roll_trace_reader_next(reader, &frame) == 0) {
        assert_int_equal(roll_feed_frame(feed, &frame), 0);
    }
    if (over) {
        roll_feed_finish(feed);
    }
    roll_trace_reader_destroy(&reader);
    FILE *live = fopen(json, "r");
    char *line = NULL;
    size_t room = 0;
    int n = 0;
    assert_non_null(live);
    while (getline(&line, &room, live) > 0) {
        json_t *again = json_of_verdict(roll_feed_next(feed));
        assert_non_null(again);
        char *text = json_dumps(again, JSON_COMPACT);
        line[strcspn(line, "\n")] = '\0';
        size_t same = 0; /* whole they are too long for cmocka's message */
        for (; text[same] != '\0' && text[same] == line[same]; same++) {
        }
        if (strcmp(text, line) != 0) {
            fail_msg("verdict %d: live ...%.300s, from the trace ...%.300s", n + 1, line + same, text + same);
        }
        if (!wanted && strcmp(json_string_value(json_object_get(again, "code")), code) == 0) {
            wanted = json_incref(again);
        }
        free(text);
        json_decref(again);
        n++;
    }
    assert_true(n >= 1);
    assert_null(roll_feed_next(feed));
    fclose(live);
    free(line);
    roll_feed_destroy(&feed);
    return wanted;
}

static void test_a_trace_gives_the_verdicts_of_the_live_run(void **state)
{
    (void)state;
    pid_t daemon, rank[3];
    char trace[300], json[300];
    snprintf(trace, sizeof(trace), "%s", harness_path("trace"));
    snprintf(json, sizeof(json), "%s", harness_path("v.json"));
    roll_client_t *client = sick_job(&daemon, rank, (const char *const[]){"--trace", trace, "--json", json, NULL});
    json_decref(harness_ask(client, "{s:s,s:i,s:b}", "op", "drain", "timeout_ms", 60000, "final", 1));
    end_job(client, daemon, rank);
    json_t *verdict =
        expect_the_same_of_the_trace(harness_path("trace/job.0.00000001.rtrc"), json, true, "count-mismatch");
    assert_non_null(verdict);
    json_decref(verdict);
}

/*
 * A root with another patience than the default, and whose policy is changed while it watches: the trace holds both.
 * Rank 1 makes no call while rank 0 waits: how soon that is said is a matter of patience. Both have said before how
 * many tokens they have: what is said of the remedy is a matter of policy.
 */
static void test_a_trace_gives_them_also_where_patience_and_policy_are_not_the_default(void **state)
{
    (void)state;
    static struct synth rank[2];
    char json[300];
    snprintf(json, sizeof(json), "%s", harness_path("v.json"));
    mkdir(harness_path("d"), 0700);
    pid_t daemon = DAEMON("daemon.err", endpoint, "--dir", harness_path("d"), "--trace", harness_path("trace"),
                          "--json", json, "--stall-ms", "700", "--suspect-ms", "300");
    assert_true(daemon > 0);
    roll_client_t *client = harness_client(endpoint);
    uint16_t comm[2];
    for (int r = 0; r < 2; r++) {
        assert_int_equal(synth_open(&rank[r], harness_path("d"), "job", r, 2, 64), 0);
        comm[r] = synth_comm(&rank[r], 0x1000);
        synth_allreduce(&rank[r], &(struct synth_call){.comm = comm[r], .count = 8});
    }
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "records") == 2));
    json_decref(harness_ask(client, "{s:s,s:s}", "op", "policy", "policy", "advise"));
    for (int r = 0; r < 2; r++) {
        synth_tokens(&rank[r], comm[r], 100 + (uint64_t)r);
    }
    synth_allreduce(&rank[0], &(struct synth_call){.comm = comm[0], .count = 8, .hang = true});
    json_t *busy = harness_verdict(client, "rank-busy"), *tokens = harness_verdict(client, "moe-tokens-unequal");
    assert_non_null(busy);
    assert_non_null(
        strstr(json_string_value(json_object_get(tokens, "text")), "for the steps to come with: rollcall remedy on "));
    json_decref(busy);
    json_decref(tokens);
    roll_client_destroy(&client);
    synth_finish(&rank[0]);
    synth_close(&rank[0]);
    synth_close(&rank[1]);
    assert_int_equal(harness_end(daemon, SIGTERM), 1);
    busy = expect_the_same_of_the_trace(harness_path("trace/job.0.00000001.rtrc"), json, false, "rank-busy");
    assert_non_null(busy);
    json_decref(busy);
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
        TEST(test_status_why_and_verdicts_are_told),
        TEST(test_names_that_are_no_utf8_cost_no_answer),
        TEST(test_a_job_that_lives_answers_first),
        TEST(test_wrong_questions_get_an_error),
        TEST(test_verdicts_are_pushed_to_subscribers),
        TEST(test_remedies_and_policy_reach_the_control_page),
        TEST(test_a_remedy_for_a_layer_or_communicator_that_is_not_there_is_refused),
        TEST(test_a_remedy_is_switched_in_its_own_restart_only),
        TEST(test_a_root_that_comes_after_a_killed_one_goes_on_with_what_was_switched),
        TEST(test_what_is_switched_off_stays_off_when_a_new_root_reads_the_old_verdicts),
        TEST(test_a_trace_gives_the_verdicts_of_the_live_run),
        TEST(test_a_trace_gives_them_also_where_patience_and_policy_are_not_the_default),
        TEST(test_two_jobs_on_one_root_are_kept_apart),
        TEST(test_a_console_finds_the_one_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
