/*
 * test_root_remedy.c: what a peer is told of what is switched in a run (daemon/root/root_remedy_tell.c), where that is
 * more than its queue holds, where it changes meanwhile, and where more communicators had switches than a page holds.
 *
 * The peer is a socket in this process that reads as many frames as the test says, and applies them to a control page.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/base/array.h"
#include "daemon/root/root_state.h"
#include "daemon/wire/net.h"
#include "trace/control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define SHORT   20 /* frames in either direction of a queue: a peer is told so many, twice, and no more */
#define LONG    4000
#define TURNS   400 /* more than any of this takes */
#define HALF    256 /* of a real queue: as many as a turn tells */
#define CHANGES (ROLL_CONTROL_LAYERS * 3)

static struct roll_root *root;
static struct roll_run *run;
static struct roll_peer peer;
static void *context, *router, *dealer;
static struct roll_control page;
static unsigned questions, policies, changes, settings; /* that have come */

static void queue(int frames)
{
    char word = 0;
    context = zmq_ctx_new();
    router = zmq_socket(context, ZMQ_ROUTER);
    dealer = zmq_socket(context, ZMQ_DEALER);
    int one = 1;
    assert_int_equal(zmq_setsockopt(router, ZMQ_ROUTER_MANDATORY, &one, sizeof(one)), 0);
    assert_int_equal(zmq_setsockopt(router, ZMQ_SNDHWM, &frames, sizeof(frames)), 0);
    assert_int_equal(zmq_setsockopt(dealer, ZMQ_RCVHWM, &frames, sizeof(frames)), 0);
    assert_int_equal(zmq_setsockopt(dealer, ZMQ_ROUTING_ID, "a", 1), 0);
    assert_int_equal(zmq_bind(router, "inproc://root"), 0);
    assert_int_equal(zmq_connect(dealer, "inproc://root"), 0);
    assert_int_equal(zmq_send(dealer, "x", 1, 0), 1);
    assert_int_equal(zmq_recv(router, &word, 1, 0), 1); /* its name, */
    assert_int_equal(zmq_recv(router, &word, 1, 0), 1); /* by which it is known from here on */
    peer.at = (struct roll_address){.socket = router, .bytes = 1, .id = "a"};
}

static int set_up(void **state)
{
    (void)state;
    struct roll_engine_config config = {.policy = ROLL_POLICY_OBSERVE};
    root = calloc(1, sizeof(*root));
    run = calloc(1, sizeof(*run));
    peer = (struct roll_peer){.host = "n0"};
    page = (struct roll_control){.version = 1};
    questions = policies = changes = settings = 0;
    if (!root || !run || ROLL_GROW(root->peers, root->peers_room, 1) != 0) {
        return -1;
    }
    snprintf(run->job, sizeof(run->job), "job");
    run->feed = roll_feed_new(&config, run->job, 0);
    run->policy = ROLL_POLICY_AUTO;
    run->policy_set = true;
    return run->feed && roll_streams_add(&peer, 1, run) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    zmq_close(dealer);
    zmq_close(router);
    zmq_ctx_term(context);
    roll_streams_fini(&peer);
    roll_run_destroy(&run);
    free(root->peers);
    free(root);
    return 0;
}

/* Reads one frame; false: there is none. */
static bool take(void)
{
    struct roll_frame_control control;
    struct roll_frame frame;
    zmq_msg_t msg;
    zmq_msg_init(&msg);
    bool here = zmq_msg_recv(&msg, dealer, ZMQ_DONTWAIT) >= 0;
    if (here) {
        assert_int_equal(roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL), 0);
        questions += frame.head.type == ROLL_FRAME_ASK;
        settings += frame.head.type == ROLL_FRAME_SETTINGS;
    }
    if (here && frame.head.type == ROLL_FRAME_CONTROL) {
        memcpy(&control, frame.payload, sizeof(control));
        bool policy = control.change.action == ROLL_ACTION_POLICY;
        policies += policy;
        changes += !policy;
        assert_int_equal(roll_control_apply(&page, &control.change), 0); /* the page has room for each */
    }
    zmq_msg_close(&msg);
    return here;
}

static unsigned take_all(void)
{
    unsigned n = 0;
    while (take()) {
        n++;
    }
    return n;
}

/* The peer reads so many frames, and says something, as often as it takes. */
static void turns(unsigned frames)
{
    for (unsigned i = 0; peer.owed; i++) {
        assert_true(i < TURNS);
        for (unsigned k = 0; k < frames; k++) {
            (void)take();
        }
        int events;
        size_t bytes = sizeof(events);
        assert_int_equal(zmq_getsockopt(router, ZMQ_EVENTS, &events, &bytes), 0); /* it hears what has been read */
        roll_remedy_tell_owed(&peer);
    }
    (void)take_all();
}

/* Each layer has remedies that are on, off, and cleared. */
static void switch_layers(void)
{
    assert_int_equal(ROLL_GROW(run->switches, run->switches_room, run->switches_used + ROLL_CONTROL_LAYERS), 0);
    for (uint32_t i = 0; i < ROLL_CONTROL_LAYERS; i++) {
        run->switches[run->switches_used++] = (struct roll_switch){
            .level = ROLL_LEVEL_LAYER, .layer = i, .on = ROLL_REMEDY_PAD, .off = ROLL_REMEDY_FILL, .cleared = 32};
        atomic_store(&page.layer[i].on, 32); /* from before */
    }
}

static void check_layers(uint32_t from)
{
    for (uint32_t i = from; i < ROLL_CONTROL_LAYERS; i++) {
        assert_int_equal(atomic_load(&page.layer[i].on), ROLL_REMEDY_PAD);
        assert_int_equal(atomic_load(&page.layer[i].off), ROLL_REMEDY_FILL);
    }
}

static bool group(const char *action, unsigned key, const char *remedy)
{
    char comm[24];
    snprintf(comm, sizeof(comm), "0x%x", key);
    json_t *query = json_pack("{s:s,s:s,s:s,s:s,s:b}", "action", action, "level", "group", "comm", comm, "remedy",
                              remedy, "force", 1);
    json_t *reply = roll_remedy_query(root, run, query);
    bool ok = json_is_true(json_object_get(reply, "ok"));
    json_decref(reply);
    json_decref(query);
    return ok;
}

/* What is on for a communicator on the page; 0 where it has no entry. */
static uint32_t on_page(uint64_t key)
{
    uint32_t on = 0;
    for (unsigned i = 0; i < ROLL_CONTROL_GROUPS; i++) {
        on |= atomic_load(&page.group[i].comm_key) == key ? atomic_load(&page.group[i].on) : 0;
    }
    return on;
}

static void test_what_is_more_than_a_queue_holds_is_told_whole(void **state)
{
    (void)state;
    queue(SHORT);
    switch_layers();
    peer.streams[0].unset = true;
    roll_remedy_tell(&peer, run);
    assert_true(peer.owed && peer.owed_said);
    turns(15);
    check_layers(0);
    assert_int_equal(changes, CHANGES); /* each of them once, */
    assert_int_equal(questions, 1);     /* as is the rest */
    assert_int_equal(policies, 1);
    assert_int_equal(settings, 1);
    assert_false(peer.owed_said);
}

static void test_a_turn_leaves_room_in_a_queue(void **state)
{
    (void)state;
    queue(LONG);
    switch_layers();
    run->switches_known = true;
    roll_remedy_tell(&peer, run);
    assert_true(peer.owed && !peer.owed_said);
    assert_int_equal(take_all(), HALF);
    roll_remedy_tell_owed(&peer);
    assert_int_equal(take_all(), HALF);
    roll_remedy_tell_owed(&peer);
    roll_remedy_tell_owed(&peer);
    assert_int_equal(take_all(), CHANGES + 1 - 2 * HALF);
    assert_false(peer.owed);
    check_layers(0);
}

/* One that the peer has been told of is changed, and there is no room for that. */
static void test_what_changes_meanwhile_is_told_behind_it(void **state)
{
    (void)state;
    queue(SHORT);
    switch_layers();
    root->peers[root->peers_used++] = &peer;
    roll_remedy_tell(&peer, run);
    assert_true(peer.runs[0].owed.next > 6);
    const struct roll_control_change c = {.level = ROLL_LEVEL_LAYER, .action = ROLL_ACTION_CLEAR, .mask = UINT32_MAX};
    run->switches[0] = (struct roll_switch){.level = ROLL_LEVEL_LAYER, .cleared = UINT32_MAX};
    roll_remedy_send(root, run, &c);
    turns(15);
    assert_int_equal(atomic_load(&page.layer[0].on), 0);
    assert_int_equal(atomic_load(&page.layer[0].off), 0);
    check_layers(1);
    assert_int_equal(changes, CHANGES + 1 + CHANGES - 3);
}

/* The page of a peer that was away has all that it had: what was cleared goes first, and makes room. */
static void test_a_page_that_is_full_of_what_was_replaced_takes_what_is_new(void **state)
{
    (void)state;
    queue(LONG);
    for (unsigned key = 1; key <= ROLL_CONTROL_GROUPS; key++) {
        const struct roll_control_change c = {
            .level = ROLL_LEVEL_GROUP, .action = ROLL_ACTION_ON, .mask = ROLL_REMEDY_FILL, .comm_key = key};
        assert_true(group("on", key, "fill"));
        assert_int_equal(roll_control_apply(&page, &c), 0);
    }
    assert_true(group("clear", 5, "fill") && group("on", 1000, "fill"));
    assert_true(group("clear", 7, "fill") && group("on", 1001, "fill"));
    assert_true(group("clear", 8, "fill") && group("on", 7, "pad")); /* it is back, with another one */
    assert_false(group("on", 1002, "fill"));
    roll_remedy_tell(&peer, run);
    turns(LONG);
    assert_int_equal(on_page(5), 0);
    assert_int_equal(on_page(8), 0);
    assert_int_equal(on_page(7), ROLL_REMEDY_PAD);
    assert_int_equal(on_page(1000), ROLL_REMEDY_FILL);
    assert_int_equal(on_page(1001), ROLL_REMEDY_FILL);
    assert_int_equal(on_page(1), ROLL_REMEDY_FILL);
}

/* One is replaced while a peer is told: it has not heard yet that it was cleared. */
static void test_what_is_replaced_meanwhile_is_cleared(void **state)
{
    (void)state;
    queue(SHORT);
    for (unsigned key = 1; key <= ROLL_CONTROL_GROUPS; key++) {
        assert_true(group("on", key, "fill"));
    }
    const struct roll_control_change c = {
        .level = ROLL_LEVEL_GROUP, .action = ROLL_ACTION_ON, .mask = ROLL_REMEDY_FILL, .comm_key = 32};
    assert_int_equal(roll_control_apply(&page, &c), 0);
    assert_true(group("clear", 32, "fill"));
    switch_layers();
    for (unsigned i = 0; i < SHORT; i++) { /* so that the queue is full before the last communicator */
        assert_int_equal(zmq_send(router, "a", 1, ZMQ_SNDMORE | ZMQ_DONTWAIT), 1);
        assert_int_equal(roll_net_send(router, NULL, 0, &(struct roll_frame_head){.type = ROLL_FRAME_TICK}, NULL, 0),
                         0);
    }
    roll_remedy_tell(&peer, run);
    assert_true(peer.owed && peer.runs[0].owed.next > 0 && peer.runs[0].owed.next < 31 * 3);
    assert_true(group("on", 1000, "fill")); /* in its place */
    turns(5);
    assert_int_equal(on_page(32), 0);
    assert_int_equal(on_page(1000), ROLL_REMEDY_FILL);
    check_layers(0);
}

static void test_the_newest_of_many_that_were_replaced_are_known(void **state)
{
    (void)state;
    queue(LONG);
    const unsigned more = 44, all = ROLL_REPLACED_MOST + more;
    for (unsigned key = 1; key <= ROLL_CONTROL_GROUPS; key++) {
        assert_true(group("on", key, "fill"));
    }
    for (unsigned key = 1; key <= all; key++) {
        assert_true(group("clear", key, "fill"));
        assert_true(group("on", ROLL_CONTROL_GROUPS + key, "fill"));
    }
    assert_int_equal(run->replaced_upto, all);
    roll_remedy_tell(&peer, run);
    turns(LONG);
    assert_int_equal(changes, ROLL_REPLACED_MOST + ROLL_CONTROL_GROUPS);
    assert_int_equal(on_page(all + 1), ROLL_REMEDY_FILL);
}

/* A relay passes what it is told to all agents behind it: it is told once for all rings that have come meanwhile; how
 * the engine is set, for each of them, because that is passed to the ring's agent alone. */
static void test_a_relay_is_told_once_for_many_rings(void **state)
{
    (void)state;
    queue(LONG);
    peer.relay = true;
    for (uint64_t stream = 2; stream <= 40; stream++) {
        assert_non_null(roll_streams_add(&peer, stream, run));
    }
    for (size_t i = 0; i < peer.used; i++) {
        peer.streams[i].unset = true;
        roll_remedy_tell(&peer, run);
    }
    assert_int_equal(take_all(), 0);
    turns(LONG);
    assert_int_equal(questions, 1);
    assert_int_equal(policies, 1);
    assert_int_equal(settings, 40);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_what_is_more_than_a_queue_holds_is_told_whole),
        TEST(test_a_turn_leaves_room_in_a_queue),
        TEST(test_what_changes_meanwhile_is_told_behind_it),
        TEST(test_a_page_that_is_full_of_what_was_replaced_takes_what_is_new),
        TEST(test_what_is_replaced_meanwhile_is_cleared),
        TEST(test_the_newest_of_many_that_were_replaced_are_known),
        TEST(test_a_relay_is_told_once_for_many_rings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
