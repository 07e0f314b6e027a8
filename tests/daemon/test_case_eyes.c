/*
 * test_case_eyes.c: eyes that are closed while a case is open, in a run that is compared by digests: the engine of the
 * case hears that an agent is silent, takes a ring that is announced anew for one that is not heard until its records
 * have come, and has less patience behind it by what an agent was late; and people are told whose eyes are closed.
 *
 * The frames are the test's own, time is a number, and the engine's ticks are seen by the linker's --wrap.
 */
#include "tests/trace/cmocka_all.h"

#include "tests/daemon/synth.h"
#include "tests/trace/scratch.h"

#include "daemon/base/array.h"
#include "daemon/root/root_digest.h"

#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define S (1000 * ROLL_MS)

static struct here {
    char dir[64];
    struct synth rank;
    uint64_t stream, now;
    void *context;
    roll_root_t *root;
    struct roll_run *run;
    struct roll_peer *peer;
    struct roll_frame_heartbeat beat;
} here;

static uint64_t case_ns; /* the newest tick of the case's engine */

int __wrap_roll_feed_tick(roll_feed_t *feed, uint64_t now_ns);
int __real_roll_feed_tick(roll_feed_t *feed, uint64_t now_ns);

int __wrap_roll_feed_tick(roll_feed_t *feed, uint64_t now_ns)
{
    case_ns = here.run && feed == here.run->digested->feed ? now_ns : case_ns;
    return __real_roll_feed_tick(feed, now_ns);
}

static void say(struct roll_frame_head head, const void *payload, size_t bytes)
{
    uint8_t raw[ROLL_FRAME_HEAD_BYTES + ROLL_RING_HEADER_BYTES];
    struct roll_frame frame;
    head.stream = here.stream;
    int64_t n = roll_frame_make(&head, payload, bytes, raw, sizeof(raw), &frame);
    assert_true(n > 0);
    if (head.type == ROLL_FRAME_RING) {
        roll_digested_ring(here.run, &frame);
        assert_int_equal(roll_feed_frame(here.run->feed, &frame), 0);
    } else {
        assert_int_equal(roll_digested_frame(here.root, here.run, here.peer, &frame, raw, (size_t)n), 0);
    }
}

static void announce(void)
{
    say((struct roll_frame_head){.type = ROLL_FRAME_RING}, here.rank.ring.header, ROLL_RING_HEADER_BYTES);
}

static void see(bool heard, uint32_t starved)
{
    struct roll_frame_sight sight = {.heard = heard, .starved = starved};
    say((struct roll_frame_head){.type = ROLL_FRAME_SIGHT}, &sight, sizeof(sight));
}

/* The records that were asked for begin; all have come. */
static void excerpt(bool all)
{
    struct roll_frame_head head = {.type = ROLL_FRAME_EXCERPT, .first = here.run->digested->number};
    head.flags = all ? ROLL_EXCERPT_ALL : 0;
    say(head, all ? NULL : here.rank.ring.header, all ? 0 : ROLL_RING_HEADER_BYTES);
}

static struct roll_feed_stream seen(void)
{
    struct roll_feed_stream view;
    assert_true(roll_feed_find(here.run->digested->feed, here.stream, &view));
    return view;
}

/* One rank, whose records are judged. */
static int set_up(void **state)
{
    (void)state;
    char why[256] = "";
    here = (struct here){.now = roll_mono_ns(), .context = zmq_ctx_new()};
    struct roll_root_options o = {
        .context = here.context, .listen = {"inproc://root"}, .listens = 1, .compare = ROLL_COMPARE_DIGEST};
    scratch_make(here.dir);
    assert_int_equal(synth_open(&here.rank, here.dir, "job", 0, 1, 64), 0);
    here.stream = here.rank.ring.header->epoch;
    assert_int_equal(roll_root_new(&o, &here.root, why, sizeof(why)), 0);
    assert_int_equal(roll_run_of(here.root, "job", 0, 1, &here.run), 0);
    assert_non_null(here.run->digested);
    assert_non_null(here.peer = calloc(1, sizeof(*here.peer)));
    here.peer->seen_ns = here.now;
    here.peer->synced = true;
    here.peer->place = UINT32_MAX;
    strcpy(here.peer->host, "node7");
    assert_int_equal(ROLL_GROW(here.root->peers, here.root->peers_room, here.root->peers_used + 1), 0);
    here.root->peers[here.root->peers_used++] = here.peer;
    struct roll_peer_stream *s = roll_streams_add(here.peer, here.stream, here.run);
    assert_non_null(s);
    roll_streams_set(here.peer, s, true, true);
    announce();
    see(true, 0);
    roll_case_open(here.root, here.run, here.now);
    excerpt(false);
    excerpt(true);
    roll_case_feed(here.run, here.now);
    assert_true(seen().heard);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    roll_root_destroy(&here.root);
    here.run = NULL;
    zmq_ctx_term(here.context);
    synth_close(&here.rank);
    scratch_remove(here.dir);
    return 0;
}

/* Of the page that announces a ring, which a root keeps of each of thousands, the zeros at its end are left out. */
static void test_of_a_rings_header_is_kept_what_it_says(void **state)
{
    (void)state;
    struct roll_ring_header *h = here.rank.ring.header;
    const struct digested_ring *r = &here.run->digested->ring[0];
    assert_in_range(r->header_bytes, offsetof(struct roll_ring_header, pad0), 1024);
    assert_memory_equal(r->header, h, offsetof(struct roll_ring_header, pad0));
    assert_int_equal(roll_digested_header_int(r, offsetof(struct roll_ring_header, world_size)), 1);
    assert_int_equal(seen().pid, h->pid);
    atomic_store(&h->graph_done[ROLL_RING_DONE_GRAPHS - 1], UINT64_C(1) << 56);
    announce();
    assert_int_equal(r->header_bytes, offsetof(struct roll_ring_header, pad6));
    assert_int_equal(r->header[r->header_bytes - 1], 1);
    atomic_store(&h->graph_done[ROLL_RING_DONE_GRAPHS - 1], 0);
    announce();
    assert_in_range(r->header_bytes, offsetof(struct roll_ring_header, pad0), 1024);
}

static void test_an_agent_that_is_silent_is_not_heard_by_the_case(void **state)
{
    (void)state;
    roll_peers_look_after(here.root, here.now + 9 * S);
    assert_true(seen().heard);
    roll_peers_look_after(here.root, here.now + 11 * S);
    assert_false(seen().heard);
}

/* Where its rank stood before is no evidence of where it stands now. */
static void test_a_ring_that_is_announced_anew_is_heard_when_its_records_have_come(void **state)
{
    (void)state;
    announce();
    assert_false(seen().heard);
    see(true, 300);
    assert_false(seen().heard);
    excerpt(false);
    assert_false(seen().heard);
    excerpt(true);
    assert_true(seen().heard);
    assert_int_equal(seen().starved, 300); /* as was said meanwhile */
    see(true, 0);
    assert_int_equal(seen().starved, 0);
}

/* A heartbeat, which says by how much its agent was late since the last one. */
static void beat(uint64_t late_ns)
{
    here.beat.made_ns = here.now;
    here.beat.late_ns += late_ns;
    struct roll_frame frame = {.head = {.type = ROLL_FRAME_HEARTBEAT, .payload = sizeof(here.beat)},
                               .payload = (const uint8_t *)&here.beat};
    roll_peer_late_heard(here.root, here.peer, here.now);
    roll_peer_late_beat(here.root, here.peer, &frame, here.now);
    here.peer->seen_ns = here.now;
}

/* How much of this time passes for the case's engine. */
static uint64_t passes(uint64_t ns)
{
    uint64_t before = case_ns;
    for (uint64_t end = here.now + ns; here.now < end;) {
        here.now += 50 * ROLL_MS;
        beat(0);
        roll_run_tick(here.root, here.run, here.now, false);
    }
    return case_ns - before;
}

static void test_what_an_agent_was_late_is_owed_to_the_case(void **state)
{
    (void)state;
    (void)passes(S);
    uint64_t in_time = passes(2 * S);
    assert_true(in_time > 2 * S - 100 * ROLL_MS && in_time < 2 * S + 100 * ROLL_MS);
    for (int i = 0; i < 10; i++) { /* 240 ms each time, of which 150 are what a beat takes */
        here.now += 240 * ROLL_MS;
        beat(90 * ROLL_MS);
    }
    uint64_t less = passes(2 * S); /* the engine waits for what was missed */
    assert_true(less > S && less < 2 * S - 800 * ROLL_MS);
    assert_true(passes(2 * S) > 2 * S - 100 * ROLL_MS);
    /* Who is not heard for longer stops the clock of the case, until it is taken for gone. */
    assert_true(roll_root_late_is_due(here.root, here.run, 1, false, here.now + 300 * ROLL_MS) == false);
    assert_false(here.run->seen);
    here.now += 400 * ROLL_MS;
    beat(0);
    here.now += 150 * ROLL_MS; /* it is asked as often */
    beat(0);
    (void)roll_root_late_is_due(here.root, here.run, 1, false, here.now);
    assert_true(here.run->seen);
}

static void check_eye(const char *kind, const char *begins)
{
    json_t *list = roll_eyes_json(here.root, here.run), *eye = json_array_get(list, 0);
    assert_int_equal(json_array_size(list), kind ? 1 : 0);
    if (kind) {
        assert_string_equal(json_string_value(json_object_get(eye, "eye")), kind);
        assert_memory_equal(json_string_value(json_object_get(eye, "text")), begins, strlen(begins));
        assert_int_equal(json_integer_value(json_object_get(eye, "ranks")), 1);
    }
    json_decref(list);
}

static void test_people_are_told_whose_eyes_are_closed(void **state)
{
    (void)state;
    here.now = here.peer->seen_ns = roll_mono_ns();
    check_eye(NULL, "");
    beat(0);
    beat(2 * S);
    check_eye("agent", "agent of node7 late: 2.0 s");
    here.peer->seen_ns = roll_mono_ns() - 60 * S;
    check_eye("silent", "agent of node7: not heard since 6");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_of_a_rings_header_is_kept_what_it_says, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_an_agent_that_is_silent_is_not_heard_by_the_case, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_ring_that_is_announced_anew_is_heard_when_its_records_have_come, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_what_an_agent_was_late_is_owed_to_the_case, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_people_are_told_whose_eyes_are_closed, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
