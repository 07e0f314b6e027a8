/*
 * test_digest_lies.c: digests that lie: bytes that are none, another form, more members than the sender has ranks, and
 * hashes and hints that nothing bears out. They are refused and counted, or looked into; a verdict is never made of
 * them.
 *
 * The root is real; the agent is a socket of the test, which speaks as an agent does and holds one ring.
 */
#include "daemon/digest/digest_bytes.h"
#include "daemon/wire/net.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#define KEY 0x1000u

static struct synth rank;
static char where[320];
static pid_t root;
static void *context, *agent;
static uint64_t seq, stream;

static void send_frame(struct roll_frame_head head, const void *payload, size_t bytes)
{
    head.seq = ++seq;
    assert_int_equal(roll_net_send(agent, NULL, 0, &head, payload, bytes), 0);
}

static void send_digest(const void *payload, size_t bytes)
{
    send_frame((struct roll_frame_head){.type = ROLL_FRAME_DIGEST, .stream = stream, .first = 10}, payload, bytes);
}

/* Sends what is in *d; form_at: which byte of the payload is made another one; -1: none. */
static void tell(struct roll_digest *d, int form_at)
{
    uint8_t bytes[4096];
    struct roll_digest_cursor cursor = {0};
    size_t n = roll_digest_encode(d, &cursor, bytes, sizeof(bytes));
    assert_true(n > 0);
    if (form_at >= 0) {
        bytes[form_at] ^= 0x40;
    }
    send_digest(bytes, n);
    roll_digest_fini(d);
}

/* program: what the socket of the test says it is. */
static void begin_as(const char *program)
{
    char hello[128];
    snprintf(hello, sizeof(hello), "{\"agent\":\"%s\",\"host\":\"liar\",\"pid\":1,\"dir\":\"/liar\"}", program);
    snprintf(where, sizeof(where), "ipc://%s", harness_path("root.socket"));
    root = DAEMON("root.err", NULL, "--root", "--digest", "--listen", where);
    assert_true(root > 0);
    assert_int_equal(synth_open(&rank, harness_path("."), "job", 0, 2, 0), 0);
    stream = rank.ring.header->epoch;
    context = zmq_ctx_new();
    agent = roll_net_dealer(context, NULL, "liar/1", 0);
    seq = 0;
    assert_int_equal(zmq_connect(agent, where), 0);
    send_frame((struct roll_frame_head){.type = ROLL_FRAME_HELLO}, hello, strlen(hello));
    send_frame((struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = stream}, rank.ring.header,
               ROLL_RING_HEADER_BYTES);
}

static void begin(void)
{
    begin_as("rollcalld");
}

static void end(void)
{
    zmq_close(agent);
    zmq_ctx_term(context);
    synth_close(&rank);
    harness_end(root, SIGTERM);
}

static json_int_t digests(roll_client_t *client, const char *member)
{
    json_t *status = harness_ask(client, "{s:s}", "op", "status");
    json_int_t n = json_integer_value(json_object_get(json_object_get(status, "digests"), member));
    json_decref(status);
    return n;
}

static void nothing_is_said(roll_client_t *client)
{
    json_t *all = harness_ask(client, "{s:s,s:i}", "op", "verdicts", "from", 1);
    assert_int_equal(json_array_size(json_object_get(all, "verdicts")), 0);
    json_decref(all);
}

/* A relay of a newer release, by the form of its digests, or one with windows of another size, is refused as an agent
 * is: one line says what to do, each digest counts, and nothing is judged by them. One of the release before, whose
 * form says nothing that could be taken otherwise, is understood. */
static void test_a_relay_of_another_release_is_refused(void **state)
{
    (void)state;
    begin_as(ROLL_NET_RELAY);
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == 1));
    struct roll_digest d = {0};
    for (int at = 0; at <= 2; at += 2) {
        roll_digest_add_front(&d,
                              &(struct roll_digest_front){.key = KEY, .size = 2, .members = 1, .low = 9, .high = 9});
        roll_digest_add_hint(&d, KEY, ROLL_HINT_DIFFERS, 0);
        tell(&d, at);
        assert_true(HARNESS_UNTIL(digests(client, "refused") == 1 + at / 2));
    }
    assert_int_equal(digests(client, "fronts"), 0);
    assert_int_equal(digests(client, "hints"), 0);
    assert_int_equal(digests(client, "opened"), 0);
    assert_true(harness_logged("root.err", "a digest of the relay on liar is refused"));
    assert_true(harness_logged("root.err", "use one release on all nodes"));
    uint8_t bytes[4096];
    struct roll_digest_cursor cursor = {0};
    roll_digest_add_front(&d, &(struct roll_digest_front){.key = KEY, .size = 2, .members = 1, .low = 9, .high = 9});
    size_t n = roll_digest_encode(&d, &cursor, bytes, sizeof(bytes));
    bytes[0] = ROLL_DIGEST_VERSION - 1;
    send_digest(bytes, n);
    roll_digest_fini(&d);
    assert_true(HARNESS_UNTIL(digests(client, "fronts") == 1));
    assert_int_equal(digests(client, "refused"), 2);
    nothing_is_said(client);
    roll_client_destroy(&client);
    end();
}

/* Each of these is refused, counted, and changes nothing. */
static void test_what_cannot_be_is_refused_and_counted(void **state)
{
    (void)state;
    begin();
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == 1));
    struct roll_digest d = {0};
    send_digest("no digest", 9);
    assert_true(HARNESS_UNTIL(digests(client, "refused") == 1));
    for (int at = 0; at <= 2; at += 2) { /* another version, windows of another size */
        roll_digest_add_front(&d,
                              &(struct roll_digest_front){.key = KEY, .size = 2, .members = 1, .low = 9, .high = 9});
        tell(&d, at);
        assert_true(HARNESS_UNTIL(digests(client, "refused") == 2 + at / 2));
    }
    roll_digest_add_front(&d, &(struct roll_digest_front){.key = KEY, .size = 9, .members = 2, .low = 9, .high = 9});
    tell(&d, -1); /* for two members, where there is one rank */
    assert_true(HARNESS_UNTIL(digests(client, "refused") == 4));
    roll_digest_add_front(&d, &(struct roll_digest_front){.key = KEY, .size = 2, .members = 1, .low = 9, .high = 3});
    tell(&d, -1); /* the last is ahead of the first */
    assert_true(HARNESS_UNTIL(digests(client, "refused") == 5));
    assert_int_equal(digests(client, "fronts"), 0 + 1); /* of the last the rest was taken, and it had none */
    assert_int_equal(digests(client, "opened"), 0);
    assert_true(harness_logged("root.err", "a digest of the agent on liar is refused"));
    nothing_is_said(client);
    roll_client_destroy(&client);
    end();
}

/* A hint for which there are no records is looked into, and nothing comes of it. */
static void test_a_hint_that_nothing_bears_out_is_no_verdict(void **state)
{
    (void)state;
    begin();
    roll_client_t *client = harness_client(where);
    assert_true(HARNESS_UNTIL(harness_has(client, "job", "ranks") == 1));
    struct roll_digest d = {0};
    roll_digest_add_front(&d, &(struct roll_digest_front){.key = KEY, .size = 1, .members = 1, .low = 99, .high = 99});
    for (int why = ROLL_HINT_DIFFERS; why <= ROLL_HINT_LAST; why++) {
        roll_digest_add_hint(&d, KEY, (enum roll_digest_why)why, 1);
    }
    tell(&d, -1);
    assert_true(HARNESS_UNTIL(digests(client, "opened") > 0));
    /* What an agent answers that has nothing: the excerpt begins, and all there was has been sent. */
    struct roll_frame_head mark = {.type = ROLL_FRAME_EXCERPT, .stream = stream, .first = 1};
    send_frame(mark, rank.ring.header, ROLL_RING_HEADER_BYTES);
    mark.flags = ROLL_EXCERPT_ALL | ROLL_EXCERPT_SHORT;
    send_frame(mark, NULL, 0);
    /* Long after the records, of which there are none, were judged. */
    assert_true(HARNESS_UNTIL(digests(client, "asked") == 1));
    assert_true(harness_logged("root.err", " s; its ranks are not seen any more"));
    nothing_is_said(client);
    roll_client_destroy(&client);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_relay_of_another_release_is_refused, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_what_cannot_be_is_refused_and_counted, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_hint_that_nothing_bears_out_is_no_verdict, harness_set_up,
                                        harness_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
