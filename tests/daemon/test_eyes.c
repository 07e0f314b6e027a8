/*
 * test_eyes.c: eyes that are closed accuse nobody: agents, a relay and a root are stopped for ten times the patience
 * and more, an agent is killed, viewers do not read, and 64 ranks have two loaded CPUs. Meanwhile the ranks of all jobs
 * but that one are inside a call that all of them have made, and that half of them was not seen to make. Nothing is
 * found, nothing is lost, and the faces say which eye was closed, for how long. Then a rank stays away for good while
 * its agent is late a little, and is found.
 *
 *   test_daemon_eyes       stops of 12 s, a patience of 1 s, as ctest runs it
 *   test_daemon_eyes 60    stops of 60 s with the patience that a root has by default
 *
 * All jobs stand side by side and are stopped at one time, because a stop is nothing but waiting.
 */
#include "daemon/wire/curve.h"
#include "daemon/wire/net.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#define MANY     64
#define SPINNERS 4
#define VIEWERS  16
#define CALLS    60000u /* more than there is time for; the ring holds them all */
#define FIRST    100u   /* calls before the one in which they are for long */
#define TWIN     "50"   /* calls of each rank of the sick twin */
#define LATE_US  200000 /* the twin's agent stands still for so long, */
#define OPEN_US  400000 /* and then goes on for so long */

static unsigned stop_s = 12;
static const char *stall_ms = "200", *suspect_ms = "1000";

enum { AGENT, KEYS, KILLED, BEHIND, RELAY, BUSY, SETS };
static const char *const names[SETS] = {"agent", "keys", "killed", "behind", "relay", "busy"};

static struct set {
    char where[256], door[300], dir[2][64];
    pid_t root, relay, agent[2], rank[MANY];
    int ranks;
    roll_client_t *client;
} sets[SETS];

static const char *path_of(const char *what, int set)
{
    static char path[8][128];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(path[turn], sizeof(path[turn]), "%s/%s.%s", harness_dir(), what, names[set]);
    return path[turn];
}

static const char *log_of(const char *what, int set)
{
    return strrchr(path_of(what, set), '/') + 1;
}

/* starting */

static void start_agent(int i, int k)
{
    struct set *s = &sets[i];
    const char *to = s->relay ? s->door : s->where, *keys = i == KEYS ? "--curve-dir" : NULL;
    s->agent[k] = DAEMON(log_of(k ? "agent1" : "agent0", i), NULL, "--agent", "--dir", s->dir[k], "--connect", to, keys,
                         harness_path("keys"));
    assert_true(s->agent[k] > 0);
}

static void start_set(int i)
{
    struct set *s = &sets[i];
    char why[512];
    s->ranks = i == BUSY ? MANY : 4;
    if (i == KEYS) {
        assert_int_equal(roll_curve_keygen(harness_path("keys"), why, sizeof(why)), 0);
        s->root = DAEMON(log_of("root", i), s->where, "--root", "--listen", "tcp://127.0.0.1:*", "--curve-dir",
                         harness_path("keys"), "--stall-ms", stall_ms, "--suspect-ms", suspect_ms);
    } else {
        /* 64 ranks may have to wait for a CPU for long: that is not what a short patience is tried with. */
        s->root = DAEMON(log_of("root", i), s->where, "--root", "--dir", path_of("root.dir", i), "--stall-ms", stall_ms,
                         "--suspect-ms", i == BUSY ? "5000" : suspect_ms, "--stream");
    }
    assert_true(s->root > 0);
    if (i == BEHIND || i == RELAY) {
        snprintf(s->door, sizeof(s->door), "ipc://%s", path_of("door", i));
        s->relay = DAEMON(log_of("relay", i), NULL, "--relay", "--listen", s->door, "--connect", s->where);
        assert_true(s->relay > 0);
    }
    for (int k = 0; k < 2; k++) {
        snprintf(s->dir[k], sizeof(s->dir[k]), "%s", path_of(k ? "node1" : "node0", i));
        start_agent(i, k);
    }
    for (int r = 0; r < s->ranks; r++) {
        s->rank[r] = harness_rank(s->dir[r % 2], r, s->ranks, i == BUSY ? 10 : 100, i == BUSY ? CALLS : FIRST,
                                  i == BUSY ? "wait" : "pause");
    }
    s->client = NULL;
    if (i == KEYS) {
        assert_int_equal(roll_client_new(s->where, harness_path("keys"), HARNESS_END_MS, &s->client, why, sizeof(why)),
                         0);
    } else {
        s->client = harness_client(s->where);
    }
}

/* A process that does nothing but need a CPU. */
static pid_t spin(void)
{
    return SPAWN("spin.err", "sh", "-c", "while :; do :; done");
}

/* Two CPUs for all that is started from here on, where the machine has more. */
static void take_two_cpus(void)
{
    cpu_set_t all, two;
    CPU_ZERO(&two);
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&two) < 2; cpu++) {
        if (CPU_ISSET(cpu, &all)) {
            CPU_SET(cpu, &two);
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof(two), &two), 0);
}

/* asking */

static json_t *status_of(int i)
{
    return harness_ask(sets[i].client, "{s:s,s:s}", "op", "status", "job", "job");
}

static uint64_t number(const json_t *object, const char *name)
{
    return (uint64_t)json_integer_value(json_object_get(object, name));
}

/* Every rank is heard, and has told more than `calls` calls. */
static bool all_told(int i, uint64_t calls)
{
    json_t *status = status_of(i), *rank;
    size_t n, told = 0;
    json_array_foreach(json_object_get(status, "ranks"), n, rank)
    {
        told += json_is_true(json_object_get(rank, "heard")) && number(rank, "calls") > calls;
    }
    json_decref(status);
    return told == (size_t)sets[i].ranks;
}

static uint64_t most_calls(int i)
{
    json_t *status = status_of(i), *rank;
    size_t n;
    uint64_t most = 0;
    json_array_foreach(json_object_get(status, "ranks"), n, rank)
    {
        most = number(rank, "calls") > most ? number(rank, "calls") : most;
    }
    json_decref(status);
    return most;
}

/* The status has an eye of this kind, whose words hold `text`. */
static bool has_eye(int i, const char *kind, const char *text)
{
    json_t *status = status_of(i), *eye;
    size_t n;
    bool found = false;
    json_array_foreach(json_object_get(status, "eyes"), n, eye)
    {
        found = found || (strcmp(json_string_value(json_object_get(eye, "eye")), kind) == 0 &&
                          strstr(json_string_value(json_object_get(eye, "text")), text));
    }
    json_decref(status);
    return found;
}

/* The rank's agent is taken for gone, and the row of the rank says since when. */
static bool is_unheard(int i, int rank)
{
    json_t *status = status_of(i);
    const json_t *row = json_array_get(json_object_get(status, "ranks"), (size_t)rank);
    const char *seen = json_string_value(json_object_get(row, "seen"));
    bool unheard = json_is_false(json_object_get(row, "heard")) && seen && strncmp(seen, "not heard since ", 16) == 0;
    json_decref(status);
    return unheard;
}

static bool why_says(int i, int rank, const char *text)
{
    json_t *why = harness_ask(sets[i].client, "{s:s,s:s,s:i}", "op", "why", "job", "job", "rank", rank);
    bool found = strstr(json_string_value(json_object_get(why, "text")), text) != NULL;
    json_decref(why);
    return found;
}

/* `rollcall top --once` prints a line with this text. */
static bool top_says(int i, const char *text)
{
    char command[600];
    static char out[65536];
    snprintf(command, sizeof(command), "'%s' top --once --daemon '%s'", getenv("ROLL_TEST_ROLLCALL"), sets[i].where);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t n = fread(out, 1, sizeof(out) - 1, f);
    out[n] = '\0';
    (void)pclose(f);
    return strstr(out, text) != NULL;
}

static uint64_t late_in_all(int i, bool of_root)
{
    json_t *status = status_of(i), *agent;
    size_t n;
    uint64_t late = of_root ? number(json_object_get(status, "root"), "late_total_ns") : 0;
    json_array_foreach(json_object_get(status, "agents"), n, agent)
    {
        uint64_t own = number(agent, "late_total_ns");
        late = !of_root && own > late ? own : late;
    }
    json_decref(status);
    return late;
}

/* Whether the root's log has this by now. */
static bool has_logged(int i, const char *text)
{
    char command[400];
    snprintf(command, sizeof(command), "grep -q '%s' '%s'", text, path_of("root", i));
    return system(command) == 0;
}

/* Certain or suspected, nobody is accused; and what was lost. */
static void nothing_is_found_and_nothing_lost(int i)
{
    json_t *reply = harness_ask(sets[i].client, "{s:s,s:s,s:i}", "op", "verdicts", "job", "job", "from", 0), *verdict;
    size_t n;
    json_array_foreach(json_object_get(reply, "verdicts"), n, verdict)
    {
        if (strcmp(json_string_value(json_object_get(verdict, "certainty")), "note") != 0) {
            fail_msg("%s: %s: %s", names[i], json_string_value(json_object_get(verdict, "code")),
                     json_string_value(json_object_get(verdict, "text")));
        }
    }
    json_decref(reply);
    json_t *status = status_of(i);
    assert_int_equal(number(json_object_get(status, "summary"), "lost"), 0);
    json_decref(status);
}

/* viewers */

struct viewers {
    void *context, *socket[VIEWERS];
    uint64_t seq;
};

/* They subscribe to verdicts, ask for the status again and again, and read nothing. */
static void viewers_come(struct viewers *v, const char *where)
{
    *v = (struct viewers){.context = zmq_ctx_new()};
    for (int i = 0; i < VIEWERS; i++) {
        int one = 1; /* message in the queue: soon the root cannot get rid of its answers */
        v->socket[i] = zmq_socket(v->context, ZMQ_DEALER);
        assert_non_null(v->socket[i]);
        zmq_setsockopt(v->socket[i], ZMQ_RCVHWM, &one, sizeof(one));
        int none = 0;
        zmq_setsockopt(v->socket[i], ZMQ_LINGER, &none, sizeof(none));
        assert_int_equal(zmq_connect(v->socket[i], where), 0);
    }
}

static void viewers_ask(struct viewers *v)
{
    if (v->seq >= VIEWERS * UINT64_C(48)) {
        return; /* who asks more often than 64 times, and reads nothing, is shut out (integration.daemon_zmtp) */
    }
    for (int i = 0; i < VIEWERS; i++) {
        struct roll_frame_head head = {.type = ROLL_FRAME_QUERY, .seq = ++v->seq};
        json_t *query = v->seq <= VIEWERS ? json_pack("{s:s,s:i}", "op", "subscribe", "from", 0)
                                          : json_pack("{s:s}", "op", "status");
        (void)roll_net_send_json(v->socket[i], NULL, 0, &head, query);
        json_decref(query);
    }
}

/* Reads all that has come for one of them; returns whether a verdict of this code was among it. */
static bool viewer_reads(struct viewers *v, int i, const char *code)
{
    zmq_msg_t msg;
    bool found = false;
    for (zmq_msg_init(&msg); roll_net_recv(&msg, v->socket[i]) >= 0; zmq_msg_init(&msg)) {
        struct roll_frame frame;
        if (roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL) == 0 &&
            frame.head.type == ROLL_FRAME_VERDICT) {
            json_t *verdict = roll_net_json(&frame);
            const char *is = json_string_value(json_object_get(verdict, "code"));
            found = found || (is && strcmp(is, code) == 0);
            json_decref(verdict);
        }
        zmq_msg_close(&msg);
    }
    zmq_msg_close(&msg);
    return found;
}

static void viewers_leave(struct viewers *v)
{
    for (int i = 0; i < VIEWERS; i++) {
        zmq_close(v->socket[i]);
    }
    zmq_ctx_term(v->context);
}

/* the test */

/* What stands still in each job. 0: nothing does. */
static pid_t stopped(int i)
{
    return i == AGENT || i == BEHIND ? sets[i].agent[1] : i == KEYS ? sets[i].root : i == RELAY ? sets[i].relay : 0;
}

/* Those that are not on two loaded CPUs make their call, or return from it. */
static void tell_ranks(int number_of_signal)
{
    for (int i = 0; i < SETS; i++) {
        for (int r = 0; i != BUSY && r < sets[i].ranks; r++) {
            assert_int_equal(kill(sets[i].rank[r], number_of_signal), 0);
        }
    }
}

static void look_while_they_stand(struct viewers *of_agent, struct viewers *of_busy)
{
    uint64_t end = synth_mono_ns() + stop_s * UINT64_C(1000000000);
    assert_true(HARNESS_UNTIL(has_eye(AGENT, "silent", "not heard since")));
    assert_true(HARNESS_UNTIL(has_eye(KILLED, "silent", "(agent silent), 2 ranks")));
    assert_true(HARNESS_UNTIL(has_eye(RELAY, "silent", "(relay silent), 4 ranks")));
    assert_true(HARNESS_UNTIL(has_eye(BEHIND, "rings", "behind the relay of")));
    assert_true(HARNESS_UNTIL(is_unheard(AGENT, 3) && is_unheard(KILLED, 1)));
    assert_true(why_says(AGENT, 3, "Not heard since ") && why_says(AGENT, 3, "(agent silent)."));
    assert_true(top_says(AGENT, "running, not heard since "));
    assert_true(all_told(BUSY, 0));
    while (synth_mono_ns() < end) { /* this is what is tried */
        viewers_ask(of_agent);
        viewers_ask(of_busy);
        usleep(20000);
    }
    /* By now the relay gives that agent up, and some heartbeats later it is shown on. */
    assert_true(HARNESS_UNTIL(is_unheard(BEHIND, 1) && is_unheard(BEHIND, 3)));
    usleep(1000000);
    assert_true(is_unheard(BEHIND, 1) && is_unheard(BEHIND, 3));
    assert_true(has_eye(BEHIND, "rings", ", 2 ranks") && top_says(BEHIND, "(behind the relay)"));
}

/* A job of four on the two nodes of a set: all but the last rank, whose agent is late a little, make one call more. */
static void a_rank_that_stays_away_is_found(int i)
{
    struct set *s = &sets[i];
    pid_t rank[4];
    uint64_t missed = 0;
    const char *culprit = "";
    json_t *verdict = NULL, *found = NULL;
    for (int r = 0; r < 4; r++) {
        char number_of[16];
        snprintf(number_of, sizeof(number_of), "%d", r);
        rank[r] = SPAWN("twin.err", "synth_rank", s->dir[r % 2], "twin", number_of, "4", "1000", TWIN, "1024",
                        r == 3 ? "wait" : "hang");
    }
    assert_true(HARNESS_UNTIL(harness_has(s->client, "twin", "records") == 4 * atoi(TWIN) + 3));
    for (int turn = 0; !found && turn < HARNESS_END_MS / 600; turn++) {
        assert_int_equal(kill(s->agent[1], SIGSTOP), 0);
        usleep(LATE_US);
        assert_int_equal(kill(s->agent[1], SIGCONT), 0);
        usleep(OPEN_US);
        json_t *reply = harness_ask(s->client, "{s:s,s:s,s:i}", "op", "verdicts", "job", "twin", "from", 0);
        size_t n;
        json_array_foreach(json_object_get(reply, "verdicts"), n, verdict)
        {
            if (!found && strcmp(json_string_value(json_object_get(verdict, "certainty")), "note") != 0) {
                found = json_incref(verdict);
            }
        }
        json_decref(reply);
    }
    assert_non_null(found);
    assert_string_equal(json_string_value(json_object_get(found, "code")), "rank-busy");
    culprit = json_string_value(json_object_get(found, "culprits_text"));
    assert_string_equal(culprit, "3");
    json_t *status = harness_ask(s->client, "{s:s,s:s}", "op", "status", "job", "twin");
    missed = number(json_object_get(status, "root"), "missed_ns");
    assert_true(missed > 0);
    json_decref(status);
    json_decref(found);
    for (int r = 0; r < 4; r++) {
        harness_end(rank[r], SIGTERM);
    }
}

/* All at once, for each needs a second to end. */
static void tell_all_to_end(void)
{
    for (int i = 0; i < SETS; i++) {
        for (int r = 0; r < sets[i].ranks; r++) {
            kill(sets[i].rank[r], SIGKILL);
        }
        kill(sets[i].agent[0], SIGTERM);
        kill(sets[i].agent[1], SIGTERM);
    }
}

static void end_set(int i)
{
    struct set *s = &sets[i];
    roll_client_destroy(&s->client);
    for (int r = 0; r < s->ranks; r++) {
        harness_end(s->rank[r], 0);
    }
    for (int k = 0; k < 2; k++) {
        assert_int_equal(harness_end(s->agent[k], 0), 0);
    }
    if (s->relay) {
        assert_int_equal(harness_end(s->relay, SIGTERM), 0);
    }
    harness_end(s->root, SIGTERM);
}

static void test_closed_eyes_accuse_nobody(void **state)
{
    (void)state;
    struct viewers of_agent, of_busy;
    uint64_t least = (stop_s - 1) * UINT64_C(1000000000);
    pid_t spinner[SPINNERS];
    take_two_cpus();
    for (int i = 0; i < SETS; i++) {
        start_set(i);
    }
    for (int i = 0; i < SPINNERS; i++) {
        spinner[i] = spin();
    }
    for (int i = 0; i < SETS; i++) {
        assert_true(HARNESS_UNTIL(all_told(i, i == BUSY ? 10 : FIRST - 1)));
    }
    viewers_come(&of_busy, sets[BUSY].where);
    viewers_come(&of_agent, sets[AGENT].where);
    uint64_t told = most_calls(BUSY);
    for (int i = 0; i < SETS; i++) {
        assert_true(stopped(i) == 0 || kill(stopped(i), SIGSTOP) == 0);
    }
    harness_end(sets[KILLED].agent[1], SIGKILL);
    tell_ranks(SIGUSR1);
    look_while_they_stand(&of_agent, &of_busy);
    for (int i = 0; i < SETS; i++) {
        assert_true(stopped(i) == 0 || kill(stopped(i), SIGCONT) == 0);
    }
    start_agent(KILLED, 1);
    tell_ranks(SIGUSR2);
    for (int i = 0; i < SETS; i++) {
        assert_true(HARNESS_UNTIL(all_told(i, i == BUSY ? told : FIRST + 20)));
    }
    assert_true(HARNESS_UNTIL(late_in_all(AGENT, false) >= least));
    assert_true(HARNESS_UNTIL(late_in_all(RELAY, false) >= least));
    assert_true(HARNESS_UNTIL(late_in_all(KEYS, true) >= least));
    for (int i = 0; i < SETS; i++) {
        nothing_is_found_and_nothing_lost(i);
    }
    assert_false(has_logged(KEYS, "has been silent")); /* it was the root that did not listen */
    for (int i = 0; i < SPINNERS; i++) {
        harness_end(spinner[i], SIGKILL);
    }
    a_rank_that_stays_away_is_found(AGENT);
    nothing_is_found_and_nothing_lost(AGENT);
    for (int i = 0; i < VIEWERS; i++) { /* who did not read has all that was said, too */
        assert_true(HARNESS_UNTIL(viewer_reads(&of_agent, i, "rank-busy")));
    }
    viewers_leave(&of_agent);
    viewers_leave(&of_busy);
    tell_all_to_end();
    for (int i = 0; i < SETS; i++) {
        end_set(i);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2) { /* the long run */
        stop_s = (unsigned)atoi(argv[1]);
        stall_ms = "500";
        suspect_ms = "5000";
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_closed_eyes_accuse_nobody, harness_set_up, harness_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
