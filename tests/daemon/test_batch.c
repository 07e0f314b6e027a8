/*
 * test_batch.c: frames that travel together: they come in order, each a part of its own, in messages of no more parts
 * than a root reads; and a batch that finds no room takes nothing.
 */
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>

#define FRAMES 40u /* two full messages and one of 8 */
#define MOST   (4u * 512 * ROLL_NET_PARTS)

struct pair {
    void *context, *router, *dealer;
    uint64_t sent; /* number of the last frame that was taken */
};

static void begin(struct pair *p)
{
    *p = (struct pair){.context = zmq_ctx_new()};
    p->router = roll_net_router(p->context, NULL);
    p->dealer = roll_net_dealer(p->context, NULL, "agent", 0);
    assert_non_null(p->router);
    assert_non_null(p->dealer);
    assert_int_equal(zmq_bind(p->router, "inproc://batch"), 0);
    assert_int_equal(zmq_connect(p->dealer, "inproc://batch"), 0);
}

static void end(struct pair *p)
{
    zmq_close(p->dealer);
    zmq_close(p->router);
    zmq_ctx_term(p->context);
}

static int add(struct pair *p, struct roll_net_batch *batch)
{
    struct roll_frame_head head = {.type = ROLL_FRAME_HEARTBEAT, .seq = p->sent + 1};
    int err = roll_net_batch_add(batch, p->dealer, NULL, 0, &head, NULL, 0);
    p->sent += !err;
    return err;
}

/* Waits for a message of the dealer's, checks that its frames follow `*seq`, and returns how many there are. */
static unsigned take(struct pair *p, uint64_t *seq)
{
    zmq_pollitem_t item = {p->router, 0, ZMQ_POLLIN, 0};
    zmq_msg_t msg;
    unsigned parts = 0;
    assert_int_equal(zmq_poll(&item, 1, 60000), 1);
    zmq_msg_init(&msg);
    assert_int_equal(roll_net_recv(&msg, p->router), 5); /* the identity */
    while (zmq_msg_more(&msg)) {
        struct roll_frame frame;
        assert_true(roll_net_recv(&msg, p->router) > 0);
        assert_int_equal(roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL), 0);
        assert_int_equal(frame.head.seq, *seq + 1);
        *seq = frame.head.seq;
        parts++;
    }
    zmq_msg_close(&msg);
    return parts;
}

static void test_frames_travel_together_in_order(void **state)
{
    (void)state;
    struct pair p;
    struct roll_net_batch batch = {.parts = 0};
    uint64_t seq = 0;
    begin(&p);
    for (unsigned i = 0; i < FRAMES; i++) {
        assert_int_equal(add(&p, &batch), 0);
    }
    roll_net_batch_flush(&batch, p.dealer);
    roll_net_batch_flush(&batch, p.dealer); /* an empty batch sends nothing */
    assert_int_equal(take(&p, &seq), ROLL_NET_PARTS);
    assert_int_equal(take(&p, &seq), ROLL_NET_PARTS);
    assert_int_equal(take(&p, &seq), FRAMES - 2 * ROLL_NET_PARTS);
    assert_false(roll_net_has_input(p.router));
    end(&p);
}

static void test_a_full_queue_takes_no_frame(void **state)
{
    (void)state;
    struct pair p;
    struct roll_net_batch batch = {.parts = 0};
    uint64_t seq = 0;
    int err = 0;
    begin(&p);
    while (p.sent < MOST && (err = add(&p, &batch)) == 0) {
    }
    assert_int_equal(err, ROLL_E_BUSY);
    roll_net_batch_flush(&batch, p.dealer);
    while (seq < p.sent) {
        take(&p, &seq);
    }
    assert_int_equal(seq, p.sent);
    for (unsigned tries = 0; (err = add(&p, &batch)) == ROLL_E_BUSY && tries < 6000; tries++) {
        poll(NULL, 0, 10); /* the sender learns in its own time that there is room */
    }
    assert_int_equal(err, 0);
    roll_net_batch_flush(&batch, p.dealer);
    assert_int_equal(take(&p, &seq), 1);
    end(&p);
}

/* An agent that polls descriptors and not sockets misses nothing. */
static void test_a_descriptor_tells_of_input_after_a_look(void **state)
{
    (void)state;
    struct pair p;
    struct roll_net_batch batch = {.parts = 0};
    uint64_t seq = 0;
    begin(&p);
    struct pollfd item = {.fd = roll_net_fd(p.router), .events = POLLIN};
    for (unsigned i = 0; i < 100; i++) {
        assert_false(roll_net_has_input(p.router));
        assert_int_equal(add(&p, &batch), 0);
        roll_net_batch_flush(&batch, p.dealer);
        while (!roll_net_has_input(p.router)) {
            assert_int_equal(poll(&item, 1, 60000), 1);
        }
        assert_int_equal(take(&p, &seq), 1);
    }
    end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frames_travel_together_in_order),
        cmocka_unit_test(test_a_full_queue_takes_no_frame),
        cmocka_unit_test(test_a_descriptor_tells_of_input_after_a_look),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
