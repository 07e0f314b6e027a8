/*
 * test_peers.c: the root knows each agent by its routing id, however many there are and whatever their ids have in
 * common: agents whose ids share a chain of the root's hash are found, and leave, each by itself. And a ring belongs to
 * the one that has announced it last.
 *
 * The agents are sockets of the test, which speak the first frames of docs/FRAME.md to a real root.
 */
#include "daemon/root/root_state.h"
#include "daemon/wire/net.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#define AGENTS 12u

struct agent {
    void *socket;
    char id[40], host[16];
    const char *program; /* NULL: an agent */
    uint64_t seq;        /* of its next frame; each agent counts from another number, so that none passes for another */
};

static unsigned chain_of(const char *id)
{
    return roll_crc32c(0, id, strlen(id)) % ROLL_PEER_CHAINS;
}

/* Ids of one chain. Every second one begins with the whole id before it. */
static void choose_ids(struct agent *agent)
{
    for (unsigned i = 0, n = 0; i < AGENTS; i++) {
        do {
            int room = (int)sizeof(agent[i].id) - 12; /* for the number */
            snprintf(agent[i].id, sizeof(agent[i].id), "%.*s-%u", room, i % 2 == 1 ? agent[i - 1].id : "agent", n++);
        } while (i > 0 && chain_of(agent[i].id) != chain_of(agent[0].id));
    }
}

static void send_frame(struct agent *a, enum roll_frame_type type)
{
    struct roll_frame_head head = {.type = type, .seq = type == ROLL_FRAME_QUERY ? 77 : a->seq++};
    json_t *json = type == ROLL_FRAME_HELLO
                       ? json_pack("{s:s,s:i,s:s*}", "host", a->host, "pid", 1, "agent", a->program)
                   : type == ROLL_FRAME_QUERY ? json_pack("{s:s}", "op", "no such query")
                                              : NULL;
    assert_true(HARNESS_UNTIL((json ? roll_net_send_json(a->socket, NULL, 0, &head, json)
                                    : roll_net_send(a->socket, NULL, 0, &head, NULL, 0)) == 0));
    json_decref(json);
}

/* The type of the next frame that the root sends to this agent. resync, where it is a WELCOME: whether the agent is
 * asked to begin again. */
static enum roll_frame_type receive(struct agent *a, bool *resync)
{
    zmq_msg_t msg;
    struct roll_frame frame;
    zmq_msg_init(&msg);
    assert_true(HARNESS_UNTIL(roll_net_recv(&msg, a->socket) >= 0));
    assert_int_equal(roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL), 0);
    enum roll_frame_type type = (enum roll_frame_type)frame.head.type;
    json_t *json = roll_net_json(&frame);
    *resync = json_is_true(json_object_get(json, "resync"));
    json_decref(json);
    zmq_msg_close(&msg);
    return type;
}

static void come(struct agent *a)
{
    bool resync;
    send_frame(a, ROLL_FRAME_HELLO);
    assert_int_equal(receive(a, &resync), ROLL_FRAME_WELCOME);
    assert_false(resync);
}

/* Does the root know the agent, and the number of its next frame? The root asks an agent that it does not know to begin
 * again, and does not answer the heartbeat of one that it knows; the answer to the query shows that both were read. */
static bool is_known(struct agent *a)
{
    bool resync = false, known = true;
    send_frame(a, ROLL_FRAME_HEARTBEAT);
    send_frame(a, ROLL_FRAME_QUERY);
    while (receive(a, &resync) != ROLL_FRAME_REPLY) {
        assert_true(resync);
        known = false;
    }
    return known;
}

static void leave(struct agent *a)
{
    char said[64];
    send_frame(a, ROLL_FRAME_BYE);
    snprintf(said, sizeof(said), "agent on %s (pid 1) leaves", a->host);
    assert_true(harness_logged("root.err", said));
}

static void test_agents_of_one_chain_are_known_each_by_itself(void **state)
{
    (void)state;
    static struct agent agent[AGENTS];
    char endpoint[256];
    pid_t root = DAEMON("root.err", endpoint, "--root", "--listen", "tcp://127.0.0.1:*", "--insecure");
    void *context = zmq_ctx_new();
    assert_true(root > 0);
    choose_ids(agent);
    for (unsigned i = 0; i < AGENTS; i++) {
        agent[i].seq = 1000 * (i + 1);
        snprintf(agent[i].host, sizeof(agent[i].host), "node%u", i);
        agent[i].socket = roll_net_dealer(context, NULL, agent[i].id, 0);
        assert_non_null(agent[i].socket);
        assert_int_equal(zmq_connect(agent[i].socket, endpoint), 0);
        assert_false(is_known(&agent[i]));
        come(&agent[i]);
    }
    for (unsigned i = 0; i < AGENTS; i++) {
        assert_true(is_known(&agent[i]));
    }
    /* The first, the last and one between leave the chain. */
    static const unsigned leaves[] = {0, 5, AGENTS - 1};
    bool gone[AGENTS] = {false};
    for (size_t k = 0; k < 3; k++) {
        leave(&agent[leaves[k]]);
        gone[leaves[k]] = true;
        for (unsigned i = 0; i < AGENTS; i++) {
            assert_int_equal(is_known(&agent[i]), !gone[i]);
        }
    }
    come(&agent[5]);
    assert_true(is_known(&agent[5]));
    for (unsigned i = 0; i < AGENTS; i++) {
        zmq_close(agent[i].socket);
    }
    zmq_ctx_term(context);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

/* The next frame of this type: its head. */
static struct roll_frame_head receive_one(struct agent *a, enum roll_frame_type type)
{
    struct roll_frame_head head;
    do {
        zmq_msg_t msg;
        struct roll_frame frame;
        zmq_msg_init(&msg);
        assert_true(HARNESS_UNTIL(roll_net_recv(&msg, a->socket) >= 0));
        assert_int_equal(roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL), 0);
        head = frame.head;
        zmq_msg_close(&msg);
    } while (head.type != type);
    return head;
}

static void test_a_ring_belongs_to_who_has_announced_it_last(void **state)
{
    (void)state;
    static struct synth rank;
    static struct agent relay[2];
    char endpoint[256];
    pid_t root = DAEMON("root.err", endpoint, "--root", "--listen", "tcp://127.0.0.1:*", "--insecure");
    void *context = zmq_ctx_new();
    assert_true(root > 0);
    assert_int_equal(synth_open(&rank, harness_path("."), "job", 0, 2, 0), 0);
    for (unsigned i = 0; i < 2; i++) {
        struct agent *a = &relay[i];
        *a = (struct agent){.seq = 1000 * (i + 1), .program = ROLL_NET_RELAY};
        snprintf(a->id, sizeof(a->id), "relay-%u", i);
        snprintf(a->host, sizeof(a->host), "node%u", i);
        a->socket = roll_net_dealer(context, NULL, a->id, 0);
        assert_int_equal(zmq_connect(a->socket, endpoint), 0);
        come(a);
        struct roll_frame_head ring = {
            .type = ROLL_FRAME_RING, .stream = rank.ring.header->epoch, .seq = relay[i].seq++};
        assert_int_equal(roll_net_send(a->socket, NULL, 0, &ring, rank.ring.header, ROLL_RING_HEADER_BYTES), 0);
        struct roll_frame_head ack = receive_one(a, ROLL_FRAME_ACK);
        assert_int_equal(ack.seq, ring.seq); /* that very frame was read */
        assert_int_equal(ack.stream, ring.stream);
    }
    assert_int_equal(receive_one(&relay[0], ROLL_FRAME_SIGHT).stream, rank.ring.header->epoch);
    for (unsigned i = 0; i < 2; i++) {
        zmq_close(relay[i].socket);
    }
    synth_close(&rank);
    zmq_ctx_term(context);
    assert_int_equal(harness_end(root, SIGTERM), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_agents_of_one_chain_are_known_each_by_itself, harness_set_up,
                                        harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_ring_belongs_to_who_has_announced_it_last, harness_set_up,
                                        harness_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
