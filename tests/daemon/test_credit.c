/*
 * test_credit.c: an agent, and a relay, that come back with more than a root should have to hold send as much as their
 * credit is, and the rest as it is read.
 *
 * The root is this program: it reads, and acknowledges when it likes. That who sends more than is read is shut out, and
 * at how much: unit.daemon_guard.
 */
#include "daemon/wire/credit.h"
#include "daemon/wire/guard.h"
#include "daemon/wire/net.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zmq.h>

#define RINGS   160
#define RECORDS 8192u                                   /* of each: a whole window, half a MiB; 80 MiB of all */
#define MESSAGE (ROLL_NET_PARTS * (UINT64_C(64) << 10)) /* the most that one message may hold */
#define CALM    10                                      /* heartbeats without a record: there is no more to come */

/* A connection that is kept to its credit is far from being shut out, also where its frames are small. */
_Static_assert(ROLL_CREDIT_BYTES * 4 <= ROLL_GUARD_WAITING, "credit is within what the guard allows");

static struct root {
    void *context, *socket;
    char endpoint[128];
    uint8_t id[256];
    size_t id_bytes;
    uint64_t seq;           /* of the newest frame */
    uint64_t stream[RINGS]; /* that were announced */
    uint64_t next[RINGS];   /* behind the last record of each */
    size_t streams;
    uint64_t bytes, records;
    uint64_t told; /* bytes that had come when something was acknowledged last */
    int calm;
} root;

static void send_ack(size_t i)
{
    struct roll_frame_ack ack = {.next_ticket = root.next[i]};
    struct roll_frame_head head = {.type = ROLL_FRAME_ACK, .stream = root.stream[i], .seq = root.seq};
    head.first = ack.next_ticket;
    root.told = root.bytes;
    assert_int_equal(roll_net_send(root.socket, root.id, root.id_bytes, &head, &ack, sizeof(ack)), 0);
}

static void acknowledge(void)
{
    for (size_t i = 0; i < root.streams; i++) {
        send_ack(i);
    }
}

static size_t stream_at(uint64_t stream)
{
    size_t i = 0;
    while (i < root.streams && root.stream[i] != stream) {
        i++;
    }
    return i;
}

static void take(const struct roll_frame *f)
{
    size_t i = stream_at(f->head.stream);
    root.seq = f->head.type == ROLL_FRAME_ANSWER ? root.seq : f->head.seq;
    if (f->head.type == ROLL_FRAME_HELLO) {
        struct roll_frame_head head = {.type = ROLL_FRAME_WELCOME, .seq = f->head.seq};
        assert_int_equal(roll_net_send(root.socket, root.id, root.id_bytes, &head, "{\"resync\":false}", 16), 0);
    } else if (f->head.type == ROLL_FRAME_RING && i == root.streams && i < RINGS) {
        root.stream[root.streams++] = f->head.stream;
        if (root.streams == RINGS) { /* not one by one: what the first have sent by then would be acknowledged, too */
            acknowledge();
        }
    } else if (f->head.type == ROLL_FRAME_RECORDS && i < root.streams) {
        root.bytes += f->head.payload;
        root.records += f->head.count;
        root.next[i] += f->head.count;
        root.calm = 0;
    }
    root.calm += f->head.type == ROLL_FRAME_HEARTBEAT && root.streams == RINGS;
}

/* Reads until nothing more comes but heartbeats. */
static void read_all(void)
{
    root.calm = 0;
    while (root.calm < CALM) {
        zmq_msg_t msg;
        zmq_pollitem_t item = {root.socket, 0, ZMQ_POLLIN, 0};
        assert_int_equal(zmq_poll(&item, 1, HARNESS_END_MS), 1);
        zmq_msg_init(&msg);
        int n = roll_net_recv(&msg, root.socket);
        assert_true(n >= 0 && (size_t)n <= sizeof(root.id));
        root.id_bytes = (size_t)n;
        memcpy(root.id, zmq_msg_data(&msg), root.id_bytes);
        while (zmq_msg_more(&msg)) {
            struct roll_frame frame;
            zmq_msg_close(&msg);
            zmq_msg_init(&msg);
            assert_true(roll_net_recv(&msg, root.socket) >= 0);
            assert_int_equal(roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL), 0);
            take(&frame);
        }
        zmq_msg_close(&msg);
    }
}

static void begin(void)
{
    memset(&root, 0, sizeof(root));
    snprintf(root.endpoint, sizeof(root.endpoint), "ipc://%s/root", harness_dir());
    root.context = zmq_ctx_new();
    assert_non_null(root.socket = roll_net_router(root.context, NULL));
    assert_int_equal(roll_net_bind(root.socket, root.endpoint, false), 0);
}

static void end(void)
{
    zmq_close(root.socket);
    zmq_ctx_term(root.context);
    unlink(root.endpoint + 6);
}

/* Rings of a job that this root never saw, in this many directories. */
static void write_rings(int dirs)
{
    for (int i = 0; i < RINGS; i++) {
        static struct synth rank;
        char name[16];
        snprintf(name, sizeof(name), "d%d", i % dirs);
        (void)mkdir(harness_path(name), 0700);
        assert_int_equal(synth_open(&rank, harness_path(name), "away", i, RINGS, RECORDS), 0);
        uint16_t comm = synth_comm(&rank, 7);
        for (unsigned k = 0; k < RECORDS; k++) {
            synth_allreduce(&rank, &(struct synth_call){.comm = comm, .count = 1});
        }
        synth_close(&rank);
    }
}

static void sends_its_credit_and_then_the_rest(void)
{
    read_all();
    uint64_t bytes = root.bytes - root.told; /* rings are acknowledged when all are announced */
    printf("%llu MiB came behind the last acknowledgement\n", (unsigned long long)bytes >> 20);
    assert_true(root.records < RINGS * RECORDS && bytes > ROLL_CREDIT_BYTES / 2);
    assert_true(bytes < ROLL_CREDIT_BYTES + MESSAGE); /* it is looked at before a message is passed on */
    acknowledge();
    read_all();
    assert_int_equal(root.records, RINGS * RECORDS); /* each once: they are counted where they come */
}

static void test_an_agent_keeps_to_its_credit(void **state)
{
    (void)state;
    write_rings(1);
    begin();
    pid_t agent = DAEMON("agent.err", NULL, "--agent", "--dir", harness_path("d0"), "--connect", root.endpoint);
    assert_true(agent > 0);
    sends_its_credit_and_then_the_rest();
    harness_end(agent, SIGTERM);
    end();
}

/* Each agent has less to send than its credit is. */
static void test_a_relay_keeps_to_its_credit(void **state)
{
    (void)state;
    char below[256];
    write_rings(2);
    begin();
    snprintf(below, sizeof(below), "ipc://%s/relay", harness_dir());
    pid_t relay = DAEMON("relay.err", NULL, "--relay", "--listen", below, "--connect", root.endpoint);
    assert_true(relay > 0);
    pid_t agent[2];
    agent[0] = DAEMON("agent0.err", NULL, "--agent", "--dir", harness_path("d0"), "--connect", below);
    agent[1] = DAEMON("agent1.err", NULL, "--agent", "--dir", harness_path("d1"), "--connect", below);
    assert_true(agent[0] > 0 && agent[1] > 0);
    sends_its_credit_and_then_the_rest();
    harness_end(agent[0], SIGTERM);
    harness_end(agent[1], SIGTERM);
    harness_end(relay, SIGTERM);
    end();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, harness_set_up, harness_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_an_agent_keeps_to_its_credit),
        TEST(test_a_relay_keeps_to_its_credit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
