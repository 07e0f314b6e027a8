/*
 * test_root_ends.c: a root that compares digests is ended when it has just heard that something is wrong: of a wrong
 * call, and of what a run that is over has left, it still asks for the records; of what merely stands it says in its
 * log that nobody has looked at it.
 *
 * And a root that has nothing to do sleeps: it wakes for what comes and for what is due, not to look around.
 *
 * The agent is a socket of the test. It has one of two ranks, so the root waits for the other one, for five seconds at
 * most, before it looks by itself; where a slow machine needs longer to end it, the row is tried again.
 */
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

static json_int_t digests(roll_client_t *client, const char *member)
{
    json_t *status = harness_ask(client, "{s:s}", "op", "status");
    json_int_t n = json_integer_value(json_object_get(json_object_get(status, "digests"), member));
    json_decref(status);
    return n;
}

/* False: it does not end as the row says. *late: it took so long that the root may have looked by itself. */
static bool ends_so(const struct row *row, int number, bool *late)
{
    char where[320], log[32], dir[300];
    struct agent a = {.seq = 0};
    struct synth rank;
    snprintf(log, sizeof(log), "root%d.err", number);
    snprintf(dir, sizeof(dir), "d%d", number);
    snprintf(dir, sizeof(dir), "%s", harness_path(dir));
    snprintf(where, sizeof(where), "ipc://%s", harness_path("root.socket"));
    assert_int_equal(mkdir(dir, 0700), 0);
    pid_t root = DAEMON(log, NULL, "--root", "--digest", "--listen", where);
    assert_true(root > 0);
    assert_int_equal(synth_open(&rank, dir, "job", 0, 2, 0), 0);
    a.stream = rank.ring.header->epoch;
    a.context = zmq_ctx_new();
    a.socket = roll_net_dealer(a.context, NULL, "one/1", 0);
    assert_int_equal(zmq_connect(a.socket, where), 0);
    roll_client_t *client = harness_client(where);
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
static void test_a_root_with_nothing_to_do_sleeps(void **state)
{
    (void)state;
    char endpoint[256];
    pid_t root = DAEMON("root.err", endpoint, "--root", "--digest");
    assert_true(root > 0);
    uint64_t least = UINT64_MAX;
    for (int turn = 0; turn < 3; turn++) { /* its own start may fall into the first one */
        uint64_t before = sleeps(root), began = synth_mono_ns();
        usleep(700000);
        uint64_t seconds = (synth_mono_ns() - began) / 1000000000u + 1, each = (sleeps(root) - before) / seconds;
        least = each < least ? each : least;
    }
    assert_true(least > 0 && least < 25);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_root_with_nothing_to_do_sleeps, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_root_that_ends_looks_once_more, harness_set_up, harness_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
