/*
 * test_root_ends.c: a root that compares digests is ended when it has just heard that something is wrong: of a wrong
 * call, and of what a run that is over has left, it still asks for the records; of what merely stands it says in its
 * log that nobody has looked at it. It waits for the records that it has asked for, and says what they show.
 *
 * And a root that has nothing to do sleeps, also beside a run that rests: it wakes for what comes and for what is due,
 * not to look around.
 *
 * The agent is a socket of the test. It has one rank less than there are, so the root waits for that one, for five
 * seconds at most, before it looks by itself; where a slow machine needs longer to end it, the row is tried again.
 */
#include "daemon/agent/agent_digest.h"
#include "daemon/base/file.h"
#include "daemon/base/proc.h"
#include "daemon/digest/digest_bytes.h"
#include "daemon/wire/net.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zmq.h>

#define KEY     0x1000u
#define SOON_NS 4000000000u
#define TURNS   50 /* of one row */
#define HERE    3  /* ranks whose records come, of one more */

/* A root looks half a second behind the end of a run by itself, and waits as long for records about a wrong call: what
 * takes less than this comes before. */
#define ANSWER_NS 400000000u

static const struct row {
    const char *name;
    enum roll_digest_why why;
    enum roll_proc_state proc; /* of the only rank that has come, of two */
    bool hinted, asked;        /* what is hinted at and not asked for it says it has not looked at */
} rows[] = {
    {"nothing is wrong", ROLL_HINT_STANDS, ROLL_PROC_RUNNING, false, false},
    {"a wrong call", ROLL_HINT_DIFFERS, ROLL_PROC_RUNNING, true, true},
    {"a wrong call in a run that is over", ROLL_HINT_DIFFERS, ROLL_PROC_FINISHED, true, true},
    {"somebody stands", ROLL_HINT_STANDS, ROLL_PROC_RUNNING, true, false},
    {"somebody stood when the run ended", ROLL_HINT_STANDS, ROLL_PROC_FINISHED, true, true},
};

struct agent {
    void *context, *socket;
    uint64_t seq, stream;
};

static void say(struct agent *a, struct roll_frame_head head, const void *payload, size_t bytes)
{
    head.seq = ++a->seq;
    assert_int_equal(roll_net_send(a->socket, NULL, 0, &head, payload, bytes), 0);
}

static void say_who_is_here(struct agent *a, const struct row *row, const struct synth *rank)
{
    static const char hello[] = "{\"host\":\"one\",\"pid\":1,\"dir\":\"/one\"}";
    struct roll_frame_status status = {.proc_state = row->proc};
    say(a, (struct roll_frame_head){.type = ROLL_FRAME_HELLO}, hello, strlen(hello));
    say(a, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = a->stream}, rank->ring.header,
        ROLL_RING_HEADER_BYTES);
    say(a, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = a->stream}, &status, sizeof(status));
}

static void say_what_is_wrong(struct agent *a, const struct row *row)
{
    struct roll_digest d = {0};
    struct roll_digest_cursor cursor = {0};
    uint8_t bytes[4096];
    roll_digest_add_front(&d, &(struct roll_digest_front){.key = KEY, .size = 2, .members = 1, .low = 9, .high = 9});
    roll_digest_add_hint(&d, KEY, row->why, 0);
    size_t n = roll_digest_encode(&d, &cursor, bytes, sizeof(bytes));
    say(a, (struct roll_frame_head){.type = ROLL_FRAME_DIGEST, .stream = a->stream, .first = 10}, bytes, n);
    roll_digest_fini(&d);
}

/* Takes what the root has said. Was the agent asked for records? */
static bool was_asked(struct agent *a)
{
    bool asked = false;
    zmq_msg_t msg;
    for (;;) {
        struct roll_frame frame;
        zmq_msg_init(&msg);
        if (roll_net_recv(&msg, a->socket) < 0) {
            zmq_msg_close(&msg);
            return asked;
        }
        asked = asked || (roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL) == 0 &&
                          frame.head.type == ROLL_FRAME_EXCERPT);
        zmq_msg_close(&msg);
    }
}

static bool has_line(const char *log, const char *text)
{
    char line[1024];
    bool has = false;
    FILE *f = fopen(harness_path(log), "r");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        has = has || strstr(line, text);
    }
    fclose(f);
    return has;
}

static void print_log(const char *log)
{
    char line[1024];
    FILE *f = fopen(harness_path(log), "r");
    while (f && fgets(line, sizeof(line), f)) {
        print_error("%s", line);
    }
    if (f) {
        fclose(f);
    }
}

static json_int_t digests(roll_client_t *client, const char *member)
{
    json_t *status = harness_ask(client, "{s:s}", "op", "status");
    json_int_t n = json_integer_value(json_object_get(json_object_get(status, "digests"), member));
    json_decref(status);
    return n;
}

/* A root, an agent that is connected to it, and who asks it; log, dir: names of this turn, for its lines and rings. */
static pid_t root_begins(const char *name, int number, char *log, size_t log_size, char *dir, size_t dir_size,
                         struct agent *a, roll_client_t **client)
{
    char where[320], turn[32];
    snprintf(log, log_size, "%s%d.err", name, number);
    snprintf(turn, sizeof(turn), "%s%d", name, number);
    snprintf(dir, dir_size, "%s", harness_path(turn));
    snprintf(where, sizeof(where), "ipc://%s", harness_path("root.socket"));
    assert_int_equal(mkdir(dir, 0700), 0);
    pid_t root = DAEMON(log, NULL, "--root", "--digest", "--listen", where);
    assert_true(root > 0);
    *a = (struct agent){.seq = 0};
    a->context = zmq_ctx_new();
    a->socket = roll_net_dealer(a->context, NULL, "one/1", 0);
    assert_int_equal(zmq_connect(a->socket, where), 0);
    *client = harness_client(where);
    return root;
}

/* False: it does not end as the row says. *late: it took so long that the root may have looked by itself. */
static bool ends_so(const struct row *row, int number, bool *late)
{
    char log[32], dir[300];
    struct agent a;
    struct synth rank;
    roll_client_t *client;
    pid_t root = root_begins("root", number, log, sizeof(log), dir, sizeof(dir), &a, &client);
    assert_int_equal(synth_open(&rank, dir, "job", 0, 2, 0), 0);
    a.stream = rank.ring.header->epoch;
    uint64_t since = synth_mono_ns();
    say_who_is_here(&a, row, &rank);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == 1));
    if (row->hinted) { /* between two looks of the root, very likely, and the signal before the next one */
        say_what_is_wrong(&a, row);
        assert_true(HARNESS_UNTIL(digests(client, "fronts") == 1));
    }
    (void)harness_end(root, SIGTERM);
    *late = synth_mono_ns() - since > SOON_NS;
    roll_client_destroy(&client);
    bool asked = was_asked(&a), told = has_line(log, "1 place where calls do not agree, or stand, was not looked at");
    /* While it was asking, the rank may have stood long enough for another hint. */
    bool so = asked == row->asked && (asked || told == row->hinted);
    if (!so) {
        print_error("%s: asked %d, told %d%s\n", row->name, asked, told, *late ? ", but that was late" : "");
    }
    zmq_close(a.socket);
    zmq_ctx_term(a.context);
    synth_finish(&rank);
    synth_close(&rank);
    return so;
}

static void test_a_root_that_ends_looks_once_more(void **state)
{
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool so = false, late = true;
        for (int turn = 0; !so && late && turn < TURNS; turn++) {
            so = ends_so(&rows[i], (int)i * TURNS + turn, &late);
        }
        wrong += !so;
    }
    assert_int_equal(wrong, 0);
}

/* records that come */

static int send_as_agent(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    struct agent *a = ctx;
    say(a, head, payload, bytes);
    *seq = a->seq;
    return 0;
}

/* What an agent has: three ranks, the last of which has made a call of another size. */
struct ranks {
    struct synth rank[HERE];
    struct roll_agent_ring *ring[HERE];
    roll_agent_digests_t *digests;
};

static void read_rings(struct ranks *r)
{
    for (int i = 0; i < HERE; i++) {
        assert_true(roll_agent_digests_pump(r->digests, r->ring[i], synth_mono_ns()) >= 0);
    }
}

static void ranks_begin(struct ranks *r, struct agent *a, const char *dir)
{
    static const char hello[] = "{\"host\":\"one\",\"pid\":1,\"dir\":\"/one\"}";
    r->digests = roll_agent_digests_new(send_as_agent, a);
    assert_non_null(r->digests);
    say(a, (struct roll_frame_head){.type = ROLL_FRAME_HELLO}, hello, strlen(hello));
    for (int i = 0; i < HERE; i++) {
        assert_int_equal(synth_open(&r->rank[i], dir, "job", i, HERE + 1, 0), 0);
        uint16_t comm = synth_comm_of(&r->rank[i], KEY, i, HERE);
        for (uint64_t k = 0; k < 4; k++) {
            synth_allreduce(&r->rank[i], &(struct synth_call){.comm = comm, .count = i == 2 && k == 1 ? 7 : 8});
        }
        assert_int_equal(roll_agent_ring_new(r->rank[i].path, &r->ring[i]), 0);
        r->ring[i]->link = ROLL_LINK_LIVE;
        r->ring[i]->digest = true;
        r->ring[i]->gone = true; /* its process has ended in good order, so that what is known is said at the end */
        r->ring[i]->gone_ns = 1;
        synth_finish(&r->rank[i]);
        atomic_store(&r->rank[i].ring.header->exit_status, 0);
        say(a, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = r->rank[i].ring.header->epoch},
            r->rank[i].ring.header, ROLL_RING_HEADER_BYTES);
    }
    read_rings(r);
}

static void ranks_end(struct ranks *r)
{
    roll_agent_digests_destroy(&r->digests);
    for (int i = 0; i < HERE; i++) {
        roll_agent_ring_destroy(&r->ring[i]);
        synth_close(&r->rank[i]);
    }
}

/* Takes what the root has said. Is the agent asked for records now? */
static bool hears_question(struct agent *a, struct ranks *r)
{
    bool asked = false;
    zmq_msg_t msg;
    for (;;) {
        struct roll_frame frame;
        zmq_msg_init(&msg);
        if (roll_net_recv(&msg, a->socket) < 0) {
            zmq_msg_close(&msg);
            return asked;
        }
        if (roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL) == 0 &&
            frame.head.type == ROLL_FRAME_EXCERPT && frame.head.first != 0) {
            roll_agent_digests_ask(r->digests, &frame);
            asked = true;
        }
        zmq_msg_close(&msg);
    }
}

/* False: the root did not say what the records show. */
static bool judges(int number, bool *late)
{
    char log[32], dir[300];
    struct agent a;
    struct ranks ranks;
    roll_client_t *client;
    pid_t root = root_begins("judge", number, log, sizeof(log), dir, sizeof(dir), &a, &client);
    uint64_t since = synth_mono_ns();
    ranks_begin(&ranks, &a, dir);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == HERE));
    roll_agent_digests_tell(ranks.digests, synth_mono_ns());
    assert_true(HARNESS_UNTIL(digests(client, "hints") >= 1));
    uint64_t ended = synth_mono_ns();
    *late = ended - since > ANSWER_NS;
    kill(root, SIGTERM);
    assert_true(HARNESS_UNTIL(hears_question(&a, &ranks)));
    read_rings(&ranks);
    *late = *late || synth_mono_ns() - ended > ANSWER_NS;
    (void)harness_end(root, 0);
    roll_client_destroy(&client);
    bool so = has_line(log, " count-mismatch: Rank 2 called");
    if (!so) {
        print_error("nothing is said of the records%s\n", *late ? ", but they were late" : "");
        print_log(log);
    }
    zmq_close(a.socket);
    zmq_ctx_term(a.context);
    ranks_end(&ranks);
    return so;
}

static void test_a_root_that_ends_waits_for_the_records_that_it_has_asked_for(void **state)
{
    (void)state;
    bool so = false, late = true;
    for (int turn = 0; !so && late && turn < TURNS; turn++) {
        so = judges(turn, &late);
    }
    assert_true(so);
}

/* How often the main thread of a process has gone to sleep. */
static uint64_t sleeps(pid_t pid)
{
    char path[64], text[4096];
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    const char *at =
        roll_read_text(path, text, sizeof(text)) > 0 ? roll_proc_word(text, "voluntary_ctxt_switches:", "") : NULL;
    assert_non_null(at);
    return strtoull(at, NULL, 10);
}

/* A root that looked around every 10 ms would sleep a hundred times a second. A slow machine only makes it fewer. */
#define SLEEPS 40u

/* The least of some looks: its own start, or what it has heard of last, may fall into one. */
static uint64_t sleeps_a_second(pid_t root)
{
    uint64_t least = UINT64_MAX;
    for (int turn = 0; turn < 3 || (least >= SLEEPS && turn < 40); turn++) {
        uint64_t before = sleeps(root), began = synth_mono_ns();
        usleep(700000);
        uint64_t ns = synth_mono_ns() - began, each = (sleeps(root) - before) * 1000000000u / ns;
        least = each < least ? each : least;
    }
    return least;
}

static void test_a_root_with_nothing_to_do_sleeps(void **state)
{
    (void)state;
    char endpoint[256];
    pid_t root = DAEMON("root.err", endpoint, "--root", "--digest");
    assert_true(root > 0);
    uint64_t each = sleeps_a_second(root);
    assert_true(each > 0 && each < SLEEPS);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

/* Ranks that make no call: the root has a run, looks at its digests or lets its engine's clock go on, and sleeps. */
static void sleeps_beside_a_run(const char *mode)
{
    enum { RANKS = 4 };
    char where[320];
    struct synth rank[RANKS];
    assert_int_equal(mkdir(harness_path(mode), 0700), 0);
    snprintf(where, sizeof(where), "ipc://%s", harness_path("root.socket"));
    pid_t root = DAEMON("root.err", NULL, "--root", mode, "--listen", where);
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path(mode), "--connect", where);
    assert_true(root > 0 && agent > 0);
    for (int i = 0; i < RANKS; i++) {
        assert_int_equal(synth_open(&rank[i], harness_path(mode), "job", i, RANKS, 0), 0);
        uint16_t comm = synth_comm(&rank[i], KEY);
        synth_allreduce(&rank[i], &(struct synth_call){.comm = comm, .count = 8});
    }
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == RANKS));
    roll_client_destroy(&client);
    uint64_t each = sleeps_a_second(root);
    if (each == 0 || each >= SLEEPS) {
        print_error("%s: %llu a second\n", mode, (unsigned long long)each);
    }
    assert_true(each > 0 && each < SLEEPS);
    for (int i = 0; i < RANKS; i++) {
        synth_finish(&rank[i]);
        synth_close(&rank[i]);
    }
    assert_int_equal(harness_end(agent, SIGTERM), 0);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

static void test_a_root_beside_a_run_that_rests_sleeps(void **state)
{
    (void)state;
    sleeps_beside_a_run("--digest");
    sleeps_beside_a_run("--stream");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_root_beside_a_run_that_rests_sleeps, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_root_with_nothing_to_do_sleeps, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_root_that_ends_looks_once_more, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_root_that_ends_waits_for_the_records_that_it_has_asked_for,
                                        harness_set_up, harness_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
