/*
 * test_guard.c: a connection that brings more than is read is shut, whoever is at work meanwhile; one whose messages
 * are read never is, however much it sends.
 *
 * The socket is this program's own, so that it can stop reading while libzmq goes on.
 */
#include "daemon/base/clock.h"
#include "daemon/wire/net.h"
#include "tests/daemon/raw_peer.h"
#include "tests/trace/cmocka_all.h"
#include "tests/trace/scratch.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#define TCP    "tcp://127.0.0.1:*"
#define PART   0x7f00u
#define ENOUGH (2 * ROLL_GUARD_WAITING)
#define END_NS (300000 * ROLL_MS)

struct door {
    void *context, *router, *monitor;
    struct roll_guard guard;
    struct roll_guard_watch watch;
    char endpoint[256];
    unsigned closed;
};

static void open_door(struct door *d, const char *at, const struct roll_curve_keys *keys)
{
    size_t size = sizeof(d->endpoint);
    memset(d, 0, sizeof(*d));
    d->context = zmq_ctx_new();
    d->router = roll_net_router(d->context, keys);
    assert_non_null(d->router);
    assert_non_null(d->monitor = roll_net_monitor(d->context, d->router, "door"));
    assert_int_equal(roll_net_bind(d->router, at, false), 0);
    assert_int_equal(zmq_getsockopt(d->router, ZMQ_LAST_ENDPOINT, d->endpoint, &size), 0);
    int most = -1;
    size = sizeof(most);
    assert_int_equal(zmq_getsockopt(d->router, ZMQ_RCVHWM, &most, &size), 0);
    assert_int_equal(most, 0); /* a queue that could become full is what a PING is a danger behind */
    roll_guard_init(&d->guard, keys != NULL);
    assert_int_equal(roll_guard_watch(&d->watch, &d->guard, 1), 0);
}

static void close_door(struct door *d)
{
    roll_guard_watch_end(&d->watch);
    zmq_socket_monitor(d->router, NULL, 0);
    zmq_close(d->monitor);
    zmq_close(d->router);
    roll_guard_fini(&d->guard);
    zmq_ctx_term(d->context);
}

/* Takes all that is there, as a root does. Returns how many parts. */
static unsigned turn(struct door *d)
{
    unsigned parts = 0;
    bool first = true;
    roll_guard_turn(&d->watch);
    roll_net_monitor_read(d->monitor, "door", &d->guard, NULL);
    for (zmq_msg_t msg;;) {
        zmq_msg_init(&msg);
        if (roll_net_recv(&msg, d->router) < 0) {
            zmq_msg_close(&msg);
            d->closed += roll_guard_look(&d->guard, true);
            return parts;
        }
        if (!first) {
            roll_guard_took(&d->guard, &msg);
            parts++;
        }
        first = !zmq_msg_more(&msg);
        zmq_msg_close(&msg);
    }
}

/* Sends these bytes again and again until it is shut out; beyond what may wait slowly, because the watch needs a
 * processor, too. Returns how many went, of ENOUGH at most. */
static uint64_t send_until_shut(int fd, const char *bytes, size_t size)
{
    uint64_t sent = 0, end = roll_mono_ns() + END_NS;
    while (sent < ENOUGH && roll_mono_ns() < end) {
        ssize_t n = send(fd, bytes + sent % size, size - sent % size, MSG_NOSIGNAL);
        if (n <= 0) {
            return sent;
        }
        sent += (uint64_t)n;
        if (sent > ROLL_GUARD_WAITING) {
            usleep(2000);
        }
    }
    return ENOUGH;
}

/* A peer whose messages were read so far (known), or who comes while nobody does, sends more of them, and nobody reads:
 * the watch shuts it. */
static void shut_out_at(const char *at, const char *message, size_t size, bool known)
{
    struct door d;
    open_door(&d, at, NULL);
    int fd = raw_peer(d.endpoint);
    assert_int_equal(send(fd, message, size, MSG_NOSIGNAL), size);
    while (known && turn(&d) == 0) {
        zmq_poll(&(zmq_pollitem_t){d.router, 0, ZMQ_POLLIN, 0}, 1, 100);
    }
    assert_true(send_until_shut(fd, message, size) < ENOUGH);
    assert_int_equal(roll_guard_look(&d.guard, true), 1);
    close(fd);
    close_door(&d);
}

static void shut_out(const char *message, size_t size)
{
    char dir[64], at[96];
    scratch_make(dir);
    snprintf(at, sizeof(at), "ipc://%s/door", dir);
    for (int known = 0; known < 2; known++) {
        shut_out_at(TCP, message, size, known);
        shut_out_at(at, message, size, known);
    }
    scratch_remove(dir);
}

static void test_large_messages_that_nobody_reads_are_bounded(void **state)
{
    (void)state;
    static char part[9 + PART] = {2, 0, 0, 0, 0, 0, 0, PART >> 8, 0};
    shut_out(part, sizeof(part));
}

static void test_small_messages_that_nobody_reads_are_bounded(void **state)
{
    (void)state;
    static char parts[30000]; /* of no bytes each */
    shut_out(parts, sizeof(parts));
}

/* More than may wait, with and without keys, in large parts and in small ones; what is read does not add up. At a time
 * no more is on its way than may be: else a reader that gets no processor would be behind by what is shut. */
static void honest(const char *at, const struct roll_curve_keys *keys, size_t size)
{
    static char part[PART];
    struct door d;
    uint64_t sent = 0, taken = 0, most = ROLL_GUARD_WAITING + ROLL_GUARD_WAITING / 4, end = roll_mono_ns() + END_NS;
    uint64_t goal = size < PART ? 400000 : most / size, on_way = ROLL_GUARD_BYTES / 2 / (size + 64);
    open_door(&d, at, keys);
    void *dealer = roll_net_dealer(d.context, keys, "", 0);
    assert_int_equal(zmq_connect(dealer, d.endpoint), 0);
    while (taken < goal && d.closed == 0 && roll_mono_ns() < end) {
        while (sent < goal && sent - taken < on_way && zmq_send(dealer, part, size, ZMQ_DONTWAIT) >= 0) {
            sent++;
        }
        taken += turn(&d);
    }
    assert_int_equal(taken, goal);
    assert_int_equal(d.closed, 0);
    zmq_close(dealer);
    close_door(&d);
}

static void test_who_is_read_is_never_shut_out(void **state)
{
    (void)state;
    struct roll_curve_keys keys;
    memset(&keys, 0, sizeof(keys));
    assert_int_equal(zmq_curve_keypair(keys.public_key, keys.secret_key), 0);
    memcpy(keys.server_key, keys.public_key, sizeof(keys.server_key));
    char dir[64], at[96];
    scratch_make(dir);
    snprintf(at, sizeof(at), "ipc://%s/door", dir);
    honest(TCP, NULL, PART);
    honest(TCP, &keys, 1);
    honest(at, NULL, PART);
    scratch_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large_messages_that_nobody_reads_are_bounded),
        cmocka_unit_test(test_small_messages_that_nobody_reads_are_bounded),
        cmocka_unit_test(test_who_is_read_is_never_shut_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
