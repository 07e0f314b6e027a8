/*
 * test_client_levels.c: a console that asks a relay is sent on from level to level; all of them together may take as
 * long as one, so that the end of a job does not wait for each relay anew.
 *
 * The levels are sockets of the test, which answer as relays do, at once or late.
 */
#include "daemon/wire/client.h"
#include "daemon/wire/net.h"
#include "tests/trace/cmocka_all.h"
#include "trace/err.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define LEVELS 4 /* the last one is the root */

struct levels {
    char dir[64], endpoint[LEVELS][128];
    void *context, *socket[LEVELS];
    int late_ms; /* so late each level answers */
    atomic_bool stop;
    atomic_int asked[LEVELS];
    pthread_t thread;
};

static void answer(struct levels *l, int level)
{
    uint8_t id[64];
    zmq_msg_t part, body;
    zmq_msg_init(&part);
    zmq_msg_init(&body);
    assert_true(roll_net_recv(&part, l->socket[level]) >= 0);
    assert_true(zmq_msg_more(&part) && zmq_msg_size(&part) <= sizeof(id));
    size_t bytes = zmq_msg_size(&part);
    memcpy(id, zmq_msg_data(&part), bytes);
    assert_true(roll_net_recv(&body, l->socket[level]) >= 0);
    struct roll_frame frame;
    assert_int_equal(roll_frame_decode(zmq_msg_data(&body), zmq_msg_size(&body), &frame, NULL), 0);
    struct roll_frame_head head = {.type = ROLL_FRAME_REPLY, .seq = frame.head.seq};
    zmq_msg_close(&part);
    zmq_msg_close(&body);
    l->asked[level]++;
    nanosleep(&(struct timespec){l->late_ms / 1000, l->late_ms % 1000 * 1000000l}, NULL);
    json_t *json =
        level + 1 < LEVELS ? json_pack("{s:s}", "root", l->endpoint[level + 1]) : json_pack("{s:i}", "ranks", 0);
    (void)roll_net_send_json(l->socket[level], id, bytes, &head, json); /* who has asked may be gone */
    json_decref(json);
}

static void *serve(void *arg)
{
    struct levels *l = arg;
    zmq_pollitem_t item[LEVELS];
    while (!l->stop) {
        for (int i = 0; i < LEVELS; i++) {
            item[i] = (zmq_pollitem_t){l->socket[i], 0, ZMQ_POLLIN, 0};
        }
        zmq_poll(item, LEVELS, 20);
        for (int i = 0; i < LEVELS; i++) {
            if (item[i].revents & ZMQ_POLLIN) {
                answer(l, i);
            }
        }
    }
    return NULL;
}

static void levels_begin(struct levels *l, int late_ms)
{
    char dir[] = "/tmp/roll-levels-XXXXXX";
    assert_non_null(mkdtemp(dir));
    *l = (struct levels){.late_ms = late_ms};
    memcpy(l->dir, dir, sizeof(dir));
    assert_non_null(l->context = zmq_ctx_new());
    for (int i = 0; i < LEVELS; i++) {
        snprintf(l->endpoint[i], sizeof(l->endpoint[i]), "ipc://%s/%d", dir, i);
        assert_non_null(l->socket[i] = roll_net_router(l->context, NULL));
        assert_int_equal(roll_net_bind(l->socket[i], l->endpoint[i], false), 0);
    }
    assert_int_equal(pthread_create(&l->thread, NULL, serve, l), 0);
}

static void levels_end(struct levels *l)
{
    l->stop = true;
    pthread_join(l->thread, NULL);
    for (int i = 0; i < LEVELS; i++) {
        zmq_close(l->socket[i]);
        (void)unlink(l->endpoint[i] + strlen("ipc://")); /* newer versions of ZeroMQ have done it */
    }
    zmq_ctx_term(l->context);
    assert_int_equal(rmdir(l->dir), 0);
}

static void the_root_is_found_behind_relays(void **state)
{
    (void)state;
    struct levels l;
    roll_client_t *client = NULL;
    char why[512] = "";
    levels_begin(&l, 0);
    assert_int_equal(roll_client_new(l.endpoint[0], NULL, 60000, &client, why, sizeof(why)), 0);
    assert_string_equal(roll_client_relay(client), l.endpoint[0]);
    assert_string_equal(roll_client_endpoint(client), l.endpoint[LEVELS - 1]);
    roll_client_destroy(&client);
    levels_end(&l);
}

/* Each level answers within the time that is given, and the second one too late for the time of all. A slow machine
 * makes them later still. */
static void slow_relays_share_one_time(void **state)
{
    (void)state;
    enum { MOST_MS = 900, LATE_MS = 600 };
    struct levels l;
    roll_client_t *client = NULL;
    char why[512] = "";
    levels_begin(&l, LATE_MS);
    assert_int_equal(roll_client_new(l.endpoint[0], NULL, MOST_MS, &client, why, sizeof(why)), ROLL_E_UNREACHABLE);
    assert_null(client);
    assert_non_null(strstr(why, "no answer from"));
    levels_end(&l);
    assert_int_equal(l.asked[2] + l.asked[3], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_root_is_found_behind_relays),
        cmocka_unit_test(slow_relays_share_one_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
