/*
 * test_relay.c: what a relay passes on, under which numbers, and what it refuses: frames about another agent's ring and
 * digests that are none go no further, and are told of.
 *
 * Root and agents are sockets of the test, the relay is real. How whole jobs fare behind relays: test_digest_mode.c.
 */
#include "daemon/wire/net.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

struct agent {
    void *socket;
    uint64_t seq; /* of its newest frame */
};

struct stage {
    void *context, *root;
    uint8_t relay_id[255];
    size_t relay_bytes;
    pid_t relay;
    char above[320], below[320];
};

/* A frame that has come, with its payload. */
struct got {
    struct roll_frame_head head;
    uint8_t payload[8192];
};

static bool take(void *socket, zmq_msg_t *msg)
{
    zmq_msg_init(msg);
    if (roll_net_recv(msg, socket) >= 0) {
        return true;
    }
    zmq_msg_close(msg);
    return false;
}

static void keep(zmq_msg_t *msg, struct got *got)
{
    struct roll_frame frame;
    assert_int_equal(roll_frame_decode(zmq_msg_data(msg), zmq_msg_size(msg), &frame, NULL), 0);
    got->head = frame.head;
    assert_true(frame.head.payload <= sizeof(got->payload));
    memcpy(got->payload, frame.payload, frame.head.payload);
    zmq_msg_close(msg);
}

/* The next frame of the relay that is no heartbeat and no digest. */
static void root_takes(struct stage *s, struct got *got)
{
    zmq_msg_t msg;
    do {
        assert_true(HARNESS_UNTIL(take(s->root, &msg)));
        if (zmq_msg_more(&msg) && memchr(zmq_msg_data(&msg), '/', zmq_msg_size(&msg))) { /* the id before a message */
            s->relay_bytes = zmq_msg_size(&msg);
            memcpy(s->relay_id, zmq_msg_data(&msg), s->relay_bytes);
            zmq_msg_close(&msg);
            assert_true(HARNESS_UNTIL(take(s->root, &msg)));
        }
        keep(&msg, got);
    } while (got->head.type == ROLL_FRAME_HEARTBEAT || got->head.type == ROLL_FRAME_DIGEST);
}

static void root_sends(struct stage *s, const struct roll_frame_head *head, const void *payload, size_t bytes)
{
    assert_int_equal(roll_net_send(s->root, s->relay_id, s->relay_bytes, head, payload, bytes), 0);
}

static void agent_sends(struct agent *a, struct roll_frame_head head, const void *payload, size_t bytes)
{
    head.seq = ++a->seq;
    assert_int_equal(roll_net_send(a->socket, NULL, 0, &head, payload, bytes), 0);
}

static void agent_takes(struct agent *a, struct got *got)
{
    zmq_msg_t msg;
    assert_true(HARNESS_UNTIL(take(a->socket, &msg)));
    keep(&msg, got);
}

/* Answers the HELLO of the relay, which says it again when its connection is made. */
static bool answer_hello(struct stage *s)
{
    zmq_msg_t msg;
    struct got got;
    while (take(s->root, &msg)) {
        if (zmq_msg_more(&msg) && memchr(zmq_msg_data(&msg), '/', zmq_msg_size(&msg))) {
            s->relay_bytes = zmq_msg_size(&msg);
            memcpy(s->relay_id, zmq_msg_data(&msg), s->relay_bytes);
            zmq_msg_close(&msg);
            continue;
        }
        keep(&msg, &got);
        if (got.head.type == ROLL_FRAME_HELLO) {
            root_sends(s, &(struct roll_frame_head){.type = ROLL_FRAME_WELCOME, .seq = got.head.seq}, "{}", 2);
        }
    }
    return false;
}

static void come(struct stage *s, struct agent *a, const char *id, uint64_t seq)
{
    struct got got;
    a->socket = roll_net_dealer(s->context, NULL, id, 0);
    a->seq = seq;
    assert_int_equal(zmq_connect(a->socket, s->below), 0);
    char hello[96];
    snprintf(hello, sizeof(hello), "{\"host\":\"%s\",\"pid\":1,\"dir\":\"/%s\"}", id, id);
    agent_sends(a, (struct roll_frame_head){.type = ROLL_FRAME_HELLO}, hello, strlen(hello));
    zmq_msg_t msg;
    assert_true(HARNESS_UNTIL(answer_hello(s) || take(a->socket, &msg)));
    keep(&msg, &got);
    assert_int_equal(got.head.type, ROLL_FRAME_WELCOME);
    assert_int_equal(got.head.seq, a->seq);
}

static void open_stage(struct stage *s)
{
    snprintf(s->above, sizeof(s->above), "ipc://%s", harness_path("above.socket"));
    snprintf(s->below, sizeof(s->below), "ipc://%s", harness_path("below.socket"));
    s->context = zmq_ctx_new();
    s->root = roll_net_router(s->context, NULL);
    assert_int_equal(roll_net_bind(s->root, s->above), 0);
    s->relay = DAEMON("relay.err", NULL, "--relay", "--listen", s->below, "--connect", s->above);
    assert_true(s->relay > 0);
}

static void close_stage(struct stage *s)
{
    assert_int_equal(harness_end(s->relay, SIGTERM), 0);
    zmq_close(s->root);
    zmq_ctx_term(s->context);
}

static void test_frames_of_rings(void **state)
{
    (void)state;
    static struct stage s;
    static struct synth rank;
    static struct got got;
    struct agent one, two;
    open_stage(&s);
    assert_int_equal(synth_open(&rank, harness_path("."), "job", 0, 2, 0), 0);
    uint64_t stream = rank.ring.header->epoch;
    come(&s, &one, "one", 100);
    come(&s, &two, "two", 7000);

    /* The root acknowledges the relay's number, the agent hears its own. */
    agent_sends(&one, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = stream}, rank.ring.header,
                ROLL_RING_HEADER_BYTES);
    root_takes(&s, &got);
    assert_int_equal(got.head.type, ROLL_FRAME_RING);
    assert_int_equal(got.head.stream, stream);
    struct roll_frame_ack ack = {.next_ticket = 5, .defs_offset = 6};
    root_sends(&s, &(struct roll_frame_head){.type = ROLL_FRAME_ACK, .seq = got.head.seq, .stream = stream}, &ack,
               sizeof(ack));
    agent_takes(&one, &got);
    assert_int_equal(got.head.type, ROLL_FRAME_ACK);
    assert_int_equal(got.head.seq, one.seq);
    assert_memory_equal(got.payload, &ack, sizeof(ack));

    /* Nobody speaks for another agent's ring, and bytes that are no digest are no part of the sum. */
    struct roll_frame_status status = {.proc_state = ROLL_PROC_DEAD, .exit_status = 9};
    agent_sends(&two, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = stream}, &status, sizeof(status));
    assert_true(harness_logged("relay.err", "the agent on two is refused"));
    agent_sends(&one, (struct roll_frame_head){.type = ROLL_FRAME_DIGEST, .stream = stream}, "no digest", 9);
    status.proc_state = ROLL_PROC_RUNNING;
    agent_sends(&one, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = stream}, &status, sizeof(status));
    root_takes(&s, &got); /* the next one is the ring's own agent's */
    assert_int_equal(got.head.type, ROLL_FRAME_STATUS);
    memcpy(&status, got.payload, sizeof(status));
    assert_int_equal(status.proc_state, ROLL_PROC_RUNNING);

    /* What is asked of a run goes to agents with rings of it: the other one hears the drain first. */
    struct roll_frame_excerpt ask = {.history = 3};
    root_sends(&s, &(struct roll_frame_head){.type = ROLL_FRAME_EXCERPT, .stream = stream, .first = 1}, &ask,
               sizeof(ask));
    root_sends(&s, &(struct roll_frame_head){.type = ROLL_FRAME_HEARTBEAT, .first = 42}, NULL, 0);
    agent_takes(&one, &got);
    assert_int_equal(got.head.type, ROLL_FRAME_EXCERPT);
    assert_int_equal(got.head.stream, stream);
    agent_takes(&two, &got);
    assert_int_equal(got.head.type, ROLL_FRAME_HEARTBEAT);
    assert_int_equal(got.head.first, 42);

    /* After a gap the agent is asked to begin again, and nothing of it is passed on. */
    one.seq += 5;
    agent_sends(&one, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = stream}, &status, sizeof(status));
    do {
        agent_takes(&one, &got);
    } while (got.head.type == ROLL_FRAME_HEARTBEAT);
    assert_int_equal(got.head.type, ROLL_FRAME_WELCOME);
    assert_non_null(memmem(got.payload, got.head.payload, "true", 4));
    zmq_close(one.socket);
    zmq_close(two.socket);
    synth_close(&rank);
    close_stage(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_frames_of_rings, harness_set_up, harness_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
