/*
 * test_eyes_told.c: what agents and relays tell of their own eyes, and what a root makes of it: a ring that is not
 * read, frames that come late and agents behind a relay that are late are no evidence against a rank that stays away;
 * when they are in time again the rank is told of. Older peers, which tell nothing, are understood.
 *
 *   test_daemon_eyes_told        as ctest runs it
 *   test_daemon_eyes_told slow   an agent that is late for ever: 15 s
 *
 * The root is real; the agents are sockets of the test, so that each can be late by as much as is wanted. Of two ranks
 * the first waits in a call that the second has not made.
 */
#include "daemon/wire/net.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"
#include "trace/frame.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#define MS         UINT64_C(1000000)
#define BEAT_NS    (50 * MS)
#define PATIENCE   "500"
#define THRICE_NS  (1500 * MS)
#define LATE_BEATS 8 /* in time, before one is late */

struct agent {
    void *socket;
    uint64_t seq; /* of its next frame */
    uint64_t stream;
    size_t beat_bytes; /* so much of a heartbeat does it send */
    struct roll_frame_heartbeat beat;
    uint64_t held_ns; /* where its link stands still: when its newest heartbeat was made; else 0 */
};

static struct stage {
    void *context;
    pid_t root;
    roll_client_t *client;
    struct synth rank[2];
    struct agent agent[2];
    uint64_t beat_ns;
    bool silent; /* the second agent */
} stage;

static void send_frame(struct agent *a, struct roll_frame_head head, const void *payload, size_t bytes)
{
    head.seq = a->seq++;
    head.stream = head.type == ROLL_FRAME_HEARTBEAT ? 0 : a->stream;
    assert_true(HARNESS_UNTIL(roll_net_send(a->socket, NULL, 0, &head, payload, bytes) == 0));
}

/* Takes what the root has sent; returns whether a WELCOME was among it. */
static bool take(struct agent *a)
{
    zmq_msg_t msg;
    bool welcome = false;
    for (zmq_msg_init(&msg); roll_net_recv(&msg, a->socket) >= 0; zmq_msg_init(&msg)) {
        struct roll_frame frame;
        assert_int_equal(roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL), 0);
        welcome = welcome || frame.head.type == ROLL_FRAME_WELCOME;
        assert_int_not_equal(frame.head.type, ROLL_FRAME_ERROR);
        zmq_msg_close(&msg);
    }
    zmq_msg_close(&msg);
    return welcome;
}

static void tell_status(struct agent *a, const struct synth *s)
{
    struct roll_frame_status status = {.head = roll_ring_head(&s->ring),
                                       .defs_used = atomic_load(&s->ring.header->defs_used),
                                       .clock_mono_ns = synth_mono_ns(),
                                       .clock_real_ns = s->ring.header->clock_real_ns + synth_mono_ns() -
                                                        s->ring.header->clock_mono_ns,
                                       .proc_state = ROLL_PROC_RUNNING,
                                       .exit_status = ROLL_EXIT_UNKNOWN};
    send_frame(a, (struct roll_frame_head){.type = ROLL_FRAME_STATUS}, &status, sizeof(status));
}

/* Says all that the rank's ring holds, as an agent does. */
static void tell_ring(struct agent *a, const struct synth *s)
{
    struct roll_record recs[16];
    uint64_t next = 0, lost = 0, used = atomic_load(&s->ring.header->defs_used);
    a->stream = s->ring.header->epoch;
    send_frame(a, (struct roll_frame_head){.type = ROLL_FRAME_RING}, s->ring.header, sizeof(*s->ring.header));
    send_frame(a, (struct roll_frame_head){.type = ROLL_FRAME_DEFS}, s->ring.defs, (size_t)used);
    size_t n = roll_ring_read(&s->ring, 0, recs, 16, &next, &lost);
    assert_true(n > 0 && lost == 0);
    send_frame(
        a, (struct roll_frame_head){.type = ROLL_FRAME_RECORDS, .rec_size = ROLL_RECORD_BYTES, .count = (uint32_t)n},
        recs, n * sizeof(*recs));
    tell_status(a, s);
}

static void come(struct agent *a, const char *endpoint, const char *name, bool relay)
{
    a->socket = roll_net_dealer(stage.context, NULL, name, 0);
    assert_non_null(a->socket);
    assert_int_equal(zmq_connect(a->socket, endpoint), 0);
    struct roll_frame_head head = {.type = ROLL_FRAME_HELLO, .seq = a->seq++};
    json_t *hello = json_pack("{s:s,s:s,s:i,s:s}", "agent", relay ? ROLL_NET_RELAY : "rollcalld", "host", name, "pid",
                              1, "dir", name);
    assert_true(HARNESS_UNTIL(roll_net_send_json(a->socket, NULL, 0, &head, hello) == 0));
    json_decref(hello);
    assert_true(HARNESS_UNTIL(take(a)));
}

/* Both agents' heartbeats, when they are due. */
static void beats(void)
{
    uint64_t now = synth_mono_ns();
    if (now - stage.beat_ns < BEAT_NS) {
        return;
    }
    stage.beat_ns = now;
    for (int i = 0; i < (stage.silent ? 1 : 2); i++) {
        struct agent *a = &stage.agent[i];
        (void)take(a);
        a->held_ns += a->held_ns ? MS : 0; /* they were made one after the other */
        a->beat.made_ns = a->held_ns ? a->held_ns : now;
        send_frame(a, (struct roll_frame_head){.type = ROLL_FRAME_HEARTBEAT}, &a->beat, a->beat_bytes);
    }
}

static void beat_for(uint64_t ns)
{
    for (uint64_t end = synth_mono_ns() + ns; synth_mono_ns() < end; usleep(5000)) {
        beats();
    }
}

#define BEAT_UNTIL(condition)                                                                                          \
    HARNESS_UNTIL(({                                                                                                   \
        beats();                                                                                                       \
        (condition);                                                                                                   \
    }))

static void set_up_stage(bool relay, size_t beat_bytes)
{
    char endpoint[256];
    stage = (struct stage){.context = zmq_ctx_new()};
    stage.root = DAEMON("root.err", endpoint, "--root", "--dir", harness_path("r"), "--stall-ms", "100", "--suspect-ms",
                        PATIENCE);
    assert_true(stage.root > 0);
    for (int i = 0; i < 2; i++) {
        char name[16];
        struct synth_call call = {.count = 1024};
        assert_int_equal(synth_open(&stage.rank[i], harness_dir(), "job", i, 2, 1024), 0);
        call.comm = synth_comm(&stage.rank[i], 0x1000);
        synth_allreduce(&stage.rank[i], &call);
        call.hang = true;
        if (i == 0) {
            synth_allreduce(&stage.rank[i], &call);
        }
        snprintf(name, sizeof(name), "n%d", i + 1);
        stage.agent[i] = (struct agent){.seq = 1, .beat_bytes = beat_bytes, .beat.agents = relay && i == 1 ? 3 : 0};
        come(&stage.agent[i], endpoint, name, relay && i == 1);
    }
    stage.client = harness_client(endpoint);
}

/* From here on the root knows of the ranks, and its patience runs. */
static void tell_rings(void)
{
    for (int i = 0; i < 2; i++) {
        tell_ring(&stage.agent[i], &stage.rank[i]);
    }
}

static void tear_down_stage(void)
{
    roll_client_destroy(&stage.client);
    for (int i = 0; i < 2; i++) {
        zmq_close(stage.agent[i].socket);
        synth_close(&stage.rank[i]);
    }
    zmq_ctx_term(stage.context);
    harness_end(stage.root, SIGTERM);
}

static json_int_t findings(void)
{
    return harness_has(stage.client, NULL, "findings");
}

/* The words for an eye of this kind; "" when none is closed. */
static const char *eye(const char *kind)
{
    static char text[256];
    size_t i;
    json_t *status = harness_ask(stage.client, "{s:s}", "op", "status"), *one;
    text[0] = '\0';
    json_array_foreach(json_object_get(status, "eyes"), i, one)
    {
        if (strcmp(json_string_value(json_object_get(one, "eye")), kind) == 0) {
            snprintf(text, sizeof(text), "%s", json_string_value(json_object_get(one, "text")));
        }
    }
    json_decref(status);
    return text;
}

static void the_absent_rank_is_told(void)
{
    assert_true(BEAT_UNTIL(findings() > 0));
    json_t *verdict = harness_verdict(stage.client, "rank-busy");
    assert_non_null(verdict);
    assert_string_equal(json_string_value(json_object_get(verdict, "culprits_text")), "1");
    json_decref(verdict);
}

static void test_a_ring_that_is_not_read_is_no_evidence(void **state)
{
    (void)state;
    set_up_stage(false, sizeof(struct roll_frame_heartbeat));
    stage.agent[1].beat.unheard = 1;
    stage.agent[1].beat.look_ns = 3000 * MS;
    beat_for(2 * BEAT_NS);
    tell_rings();
    assert_true(BEAT_UNTIL(harness_has(stage.client, NULL, "ranks") == 2));
    beat_for(THRICE_NS);
    assert_int_equal(findings(), 0);
    assert_string_equal(eye("rings"), "rings of n2: not read since 3.0 s, 1 rank");
    json_t *why = harness_ask(stage.client, "{s:s,s:i}", "op", "why", "rank", 1);
    assert_non_null(strstr(json_string_value(json_object_get(why, "text")), "Not read since 3.0 s (agent late)."));
    json_decref(why);
    stage.agent[1].beat.unheard = 0;
    stage.agent[1].beat.look_ns = 0;
    the_absent_rank_is_told();
    tear_down_stage();
}

/* Late for ever: an eighth of the time passes from the tenth second on. The rank is not found by then, and is found. */
static void test_late_for_ever_is_an_eighth_of_the_time(void **state)
{
    (void)state;
    set_up_stage(false, sizeof(struct roll_frame_heartbeat));
    stage.agent[1].beat.unheard = 1;
    stage.agent[1].beat.look_ns = 3000 * MS;
    beat_for(2 * BEAT_NS);
    uint64_t begin = synth_mono_ns();
    tell_rings();
    the_absent_rank_is_told();
    uint64_t after = synth_mono_ns() - begin;
    printf("found after %.1f s\n", (double)after * 1e-9);
    assert_true(after > 13000 * MS); /* 10 s, and 8 times half a second; without the eighth 10.5 s */
    tear_down_stage();
}

/* An agent that says nothing for longer than the patience: what its rank did meanwhile it tells when it is back. */
static void test_silence_is_no_evidence(void **state)
{
    (void)state;
    set_up_stage(false, sizeof(struct roll_frame_heartbeat));
    stage.silent = true;
    tell_rings();
    assert_true(BEAT_UNTIL(harness_has(stage.client, NULL, "ranks") == 2));
    beat_for(THRICE_NS);
    assert_int_equal(findings(), 0);
    assert_true(BEAT_UNTIL(strncmp(eye("silent"), "agent of n2: not heard since ", 29) == 0));
    stage.silent = false;
    the_absent_rank_is_told();
    tear_down_stage();
}

static void test_what_comes_late_is_no_evidence(void **state)
{
    (void)state;
    set_up_stage(false, sizeof(struct roll_frame_heartbeat));
    beat_for(LATE_BEATS * BEAT_NS);
    stage.agent[1].held_ns = synth_mono_ns();
    beat_for(6 * BEAT_NS);
    tell_rings();
    assert_true(BEAT_UNTIL(harness_has(stage.client, NULL, "ranks") == 2));
    beat_for(THRICE_NS);
    assert_int_equal(findings(), 0);
    assert_true(BEAT_UNTIL(strncmp(eye("link"), "link to the agent of n2 late: ", 30) == 0 || eye("root")[0] != '\0'));
    stage.agent[1].held_ns = 0;
    the_absent_rank_is_told();
    tear_down_stage();
}

/* The agent itself was late, for want of a CPU: this is shown, and accuses nobody by itself. */
static void test_lateness_is_shown_with_its_cause(void **state)
{
    (void)state;
    set_up_stage(false, sizeof(struct roll_frame_heartbeat));
    tell_rings();
    beat_for(LATE_BEATS * BEAT_NS);
    stage.agent[0].beat.late_ns += 3100 * MS;
    stage.agent[0].beat.waited_ns += 3000 * MS;
    stage.agent[1].beat.late_ns += 2000 * MS;
    assert_true(BEAT_UNTIL(strcmp(eye("agent"), "") != 0));
    json_t *status = harness_ask(stage.client, "{s:s}", "op", "status"), *eyes = json_object_get(status, "eyes");
    assert_true(json_array_size(eyes) >= 2);
    const json_t *first = json_array_get(eyes, 0);
    if (strcmp(json_string_value(json_object_get(first, "eye")), "agent") == 0) { /* else something is late indeed */
        assert_string_equal(json_string_value(json_object_get(first, "text")),
                            "agent of n1 late: 3.1 s, 3.0 s of it without a CPU, 1 rank");
    }
    json_decref(status);
    the_absent_rank_is_told();
    tear_down_stage();
}

/* Behind a relay: nobody knows more of an agent there than the relay tells. */
static void test_a_relay_tells_of_those_behind_it(void **state)
{
    (void)state;
    set_up_stage(true, sizeof(struct roll_frame_heartbeat));
    struct roll_frame_heartbeat *beat = &stage.agent[1].beat;
    beat->unheard = 1;
    beat->look_ns = 2200 * MS;
    beat_for(2 * BEAT_NS);
    tell_rings();
    assert_true(BEAT_UNTIL(harness_has(stage.client, NULL, "ranks") == 2));
    beat_for(THRICE_NS);
    assert_int_equal(findings(), 0);
    assert_string_equal(eye("rings"), "behind the relay of n2: not heard since 2.2 s, 1 rank");
    beat->unheard = 0;
    beat->look_ns = 0;
    beat->below_ns += 4000 * MS;
    beat->missed_ns += 200 * MS;
    assert_true(BEAT_UNTIL(strcmp(eye("below"), "behind the relay of n2 late: 4.0 s") == 0));
    json_t *status = harness_ask(stage.client, "{s:s}", "op", "status");
    assert_true(json_integer_value(json_object_get(json_object_get(status, "root"), "missed_ns")) >=
                (json_int_t)(100 * MS));
    json_decref(status);
    the_absent_rank_is_told();
    tear_down_stage();
}

/* Agents of earlier releases send no payload, relays 8 bytes. */
static void test_older_peers_are_understood(void **state)
{
    (void)state;
    for (int relay = 0; relay < 2; relay++) {
        set_up_stage(relay, relay ? ROLL_FRAME_HEARTBEAT_OLDEST_BYTES : 0);
        tell_rings();
        assert_true(BEAT_UNTIL(harness_has(stage.client, NULL, "ranks") == 2));
        json_t *status = harness_ask(stage.client, "{s:s}", "op", "status");
        json_t *agent = json_array_get(json_object_get(status, "agents"), 1);
        assert_true(json_is_false(json_object_get(agent, "tells_late")));
        assert_int_equal(json_integer_value(json_object_get(agent, "late_ns")), 0);
        json_decref(status);
        the_absent_rank_is_told();
        tear_down_stage();
    }
}

int main(int argc, char **argv)
{
    (void)argv;
#define TEST(name) cmocka_unit_test_setup_teardown(name, harness_set_up, harness_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_a_ring_that_is_not_read_is_no_evidence), TEST(test_silence_is_no_evidence),
        TEST(test_what_comes_late_is_no_evidence),         TEST(test_lateness_is_shown_with_its_cause),
        TEST(test_a_relay_tells_of_those_behind_it),       TEST(test_older_peers_are_understood),
    };
    const struct CMUnitTest slow[] = {TEST(test_late_for_ever_is_an_eighth_of_the_time)};
    return argc > 1 ? cmocka_run_group_tests(slow, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
