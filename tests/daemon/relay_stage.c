/*
 * relay_stage.c: see relay_stage.h. Real agents and roots were rejected: what they tell, and when, is theirs to say,
 * and these tests are about what the relay makes of it.
 */
#include "tests/daemon/relay_stage.h"

static bool take(void *socket, zmq_msg_t *msg)
{
    zmq_msg_init(msg);
    if (roll_net_recv(msg, socket) >= 0) {
        return true;
    }
    zmq_msg_close(msg);
    return false;
}

/* The next frame of the relay; the name before each message is kept. */
static bool root_take(struct stage *s, zmq_msg_t *msg)
{
    while (take(s->root, msg)) {
        if (s->inside) {
            s->inside = zmq_msg_more(msg);
            return true;
        }
        s->inside = zmq_msg_more(msg);
        s->relay_bytes = zmq_msg_size(msg);
        assert_true(s->relay_bytes <= sizeof(s->relay_id));
        memcpy(s->relay_id, zmq_msg_data(msg), s->relay_bytes);
        zmq_msg_close(msg);
    }
    return false;
}

static void keep(zmq_msg_t *msg, struct got *got)
{
    struct roll_frame frame;
    assert_int_equal(roll_frame_decode(zmq_msg_data(msg), zmq_msg_size(msg), &frame, NULL), 0);
    got->head = frame.head;
    assert_true(frame.head.payload <= sizeof(got->payload));
    if (frame.head.payload > 0) {
        memcpy(got->payload, frame.payload, frame.head.payload);
    }
    zmq_msg_close(msg);
}

/* the root */

void root_takes_any(struct stage *s, struct got *got)
{
    zmq_msg_t msg;
    assert_true(HARNESS_UNTIL(root_take(s, &msg)));
    keep(&msg, got);
}

void root_takes(struct stage *s, struct got *got)
{
    do {
        root_takes_any(s, got);
    } while (got->head.type == ROLL_FRAME_HEARTBEAT || got->head.type == ROLL_FRAME_DIGEST);
}

void root_waits(struct stage *s, struct got *got, bool (*fits)(const struct got *got, void *ctx), void *ctx)
{
    int beats = HARNESS_END_MS / 1000; /* a relay that does not tell it in so many does not tell it */
    do {
        root_takes_any(s, got);
        beats -= got->head.type == ROLL_FRAME_HEARTBEAT;
        assert_true(beats > 0);
    } while (!fits(got, ctx));
}

void root_sends(struct stage *s, const struct roll_frame_head *head, const void *payload, size_t bytes)
{
    assert_int_equal(roll_net_send(s->root, s->relay_id, s->relay_bytes, head, payload, bytes), 0);
}

void root_is_another(struct stage *s, struct got *got)
{
    static const char resync[] = "{\"resync\":true}";
    root_sends(s, &(struct roll_frame_head){.type = ROLL_FRAME_WELCOME}, resync, strlen(resync));
    do {
        root_takes_any(s, got);
    } while (got->head.type != ROLL_FRAME_HELLO);
    root_sends(s, &(struct roll_frame_head){.type = ROLL_FRAME_WELCOME, .seq = got->head.seq}, "{}", 2);
}

/* Answers the HELLO of the relay, which says it again when its connection is made. */
static bool answer_hello(struct stage *s)
{
    zmq_msg_t msg;
    struct got got;
    while (root_take(s, &msg)) {
        keep(&msg, &got);
        if (got.head.type == ROLL_FRAME_HELLO) {
            root_sends(s, &(struct roll_frame_head){.type = ROLL_FRAME_WELCOME, .seq = got.head.seq}, "{}", 2);
        }
    }
    return false;
}

/* agents */

void agent_sends(struct agent *a, struct roll_frame_head head, const void *payload, size_t bytes)
{
    head.seq = ++a->seq;
    assert_int_equal(roll_net_send(a->socket, NULL, 0, &head, payload, bytes), 0);
}

void agent_takes(struct agent *a, struct got *got)
{
    zmq_msg_t msg;
    assert_true(HARNESS_UNTIL(take(a->socket, &msg)));
    keep(&msg, got);
}

void agent_waits(struct agent *a, struct got *got, uint16_t type)
{
    do {
        agent_takes(a, got);
    } while (got->head.type != type);
}

static void say_hello(struct agent *a, const char *id)
{
    char hello[96];
    snprintf(hello, sizeof(hello), "{\"host\":\"%s\",\"pid\":1,\"dir\":\"/%s\"}", id, id);
    agent_sends(a, (struct roll_frame_head){.type = ROLL_FRAME_HELLO}, hello, strlen(hello));
}

void agent_comes(struct stage *s, struct agent *a, const char *id, uint64_t seq)
{
    static struct got got;
    zmq_msg_t msg;
    a->socket = roll_net_dealer(s->context, NULL, id, 0);
    a->seq = seq;
    assert_int_equal(zmq_connect(a->socket, s->below), 0);
    say_hello(a, id);
    assert_true(HARNESS_UNTIL(answer_hello(s) || take(a->socket, &msg)));
    keep(&msg, &got);
    assert_int_equal(got.head.type, ROLL_FRAME_WELCOME);
    assert_int_equal(got.head.seq, a->seq);
}

void agent_comes_again(struct agent *a, const char *id)
{
    static struct got got;
    agent_waits(a, &got, ROLL_FRAME_WELCOME);
    expect_begin_again(&got);
    say_hello(a, id);
    agent_waits(a, &got, ROLL_FRAME_WELCOME);
    assert_int_equal(got.head.seq, a->seq);
}

void agent_announces(struct agent *a, const struct synth *rank)
{
    const struct roll_frame_head ring = {.type = ROLL_FRAME_RING, .stream = rank->ring.header->epoch};
    agent_sends(a, ring, rank->ring.header, ROLL_RING_HEADER_BYTES);
}

void agent_digests(struct agent *a, uint64_t stream, struct roll_digest *d, uint64_t calls)
{
    uint8_t bytes[4096];
    struct roll_digest_cursor cursor = {0};
    size_t n = roll_digest_encode(d, &cursor, bytes, sizeof(bytes));
    agent_sends(a, (struct roll_frame_head){.type = ROLL_FRAME_DIGEST, .stream = stream, .first = calls}, bytes, n);
    roll_digest_fini(d);
}

void expect_begin_again(const struct got *got)
{
    assert_int_equal(got->head.type, ROLL_FRAME_WELCOME);
    assert_non_null(memmem(got->payload, got->head.payload, "true", 4));
}

/* life */

void stage_open(struct stage *s)
{
    *s = (struct stage){.inside = false};
    snprintf(s->above, sizeof(s->above), "ipc://%s", harness_path("above.socket"));
    snprintf(s->below, sizeof(s->below), "ipc://%s", harness_path("below.socket"));
    s->context = zmq_ctx_new();
    s->root = roll_net_router(s->context, NULL);
    assert_int_equal(roll_net_bind(s->root, s->above, false), 0);
    s->relay = DAEMON("relay.err", NULL, "--relay", "--listen", s->below, "--connect", s->above);
    assert_true(s->relay > 0);
}

void stage_close(struct stage *s)
{
    assert_int_equal(harness_end(s->relay, SIGTERM), 0);
    zmq_close(s->root);
    zmq_ctx_term(s->context);
}

void stage_close_all(struct stage *s, struct agent *one, struct agent *two, struct synth *rank)
{
    zmq_close(one->socket);
    zmq_close(two->socket);
    synth_close(rank);
    stage_close(s);
}
