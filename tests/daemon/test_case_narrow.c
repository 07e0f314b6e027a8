/*
 * test_case_narrow.c: a case that has the calls on some communicators alone, where things are late: a rank that stands
 * for a moment, an agent without a processor, a ring that is announced anew. The job has gone on by the time that all
 * its records would be asked for, so that is not done for these; and for whom a case waits before it is judged, and
 * what it keeps until then.
 *
 * The frames are the test's own, and time is a number.
 */
#include "tests/trace/cmocka_all.h"

#include "tests/daemon/synth.h"
#include "tests/trace/scratch.h"

#include "daemon/base/array.h"
#include "daemon/engine/model/engine_state.h"
#include "daemon/engine/model/source.h"
#include "daemon/root/root_digest.h"
#include "trace/def.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define RANKS 2u
#define SIZE  64u /* ranks of the communicator: more than a case asks all of */
#define KEY   UINT64_C(0xa)
#define OTHER UINT64_C(0xb)
#define S     (1000 * ROLL_MS)

static struct here {
    char dir[64];
    struct synth rank[RANKS];
    uint64_t now;
    void *context;
    roll_root_t *root;
    struct roll_run *run;
    struct roll_digested *d;
    struct roll_peer *peer[RANKS];
} here;

static uint64_t stream_of(uint32_t rank)
{
    return here.rank[rank].ring.header->epoch;
}

static void say(uint32_t rank, struct roll_frame_head head, const void *payload, size_t bytes)
{
    uint8_t raw[ROLL_FRAME_HEAD_BYTES + ROLL_RING_HEADER_BYTES];
    struct roll_frame frame;
    head.stream = stream_of(rank);
    int64_t n = roll_frame_make(&head, payload, bytes, raw, sizeof(raw), &frame);
    assert_true(n > 0);
    if (head.type == ROLL_FRAME_RING) {
        roll_digested_ring(here.run, &frame);
        assert_int_equal(roll_feed_frame(here.run->feed, &frame), 0);
    } else {
        assert_int_equal(roll_digested_frame(here.root, here.run, here.peer[rank], &frame, raw, (size_t)n), 0);
    }
}

static void announce(uint32_t rank)
{
    say(rank, (struct roll_frame_head){.type = ROLL_FRAME_RING}, here.rank[rank].ring.header, ROLL_RING_HEADER_BYTES);
}

/* The records of a rank that were asked for begin, or all have come. */
static void excerpt(uint32_t rank, bool all)
{
    struct roll_frame_head head = {.type = ROLL_FRAME_EXCERPT, .first = here.d->number};
    head.flags = all ? ROLL_EXCERPT_ALL : 0;
    say(rank, head, all ? NULL : here.rank[rank].ring.header, all ? 0 : ROLL_RING_HEADER_BYTES);
}

static struct roll_peer *peer_new(void)
{
    struct roll_peer *peer = calloc(1, sizeof(*peer));
    assert_non_null(peer);
    peer->place = UINT32_MAX;
    peer->seen_ns = here.now;
    assert_int_equal(ROLL_GROW(here.root->peers, here.root->peers_room, here.root->peers_used + 1), 0);
    here.root->peers[here.root->peers_used++] = peer;
    return peer;
}

static struct roll_peer_stream *hold(struct roll_peer *peer, uint64_t stream)
{
    struct roll_peer_stream *s = roll_streams_add(peer, stream, here.run);
    assert_non_null(s);
    roll_streams_set(peer, s, true, true);
    return s;
}

static int set_up(void **state)
{
    (void)state;
    char why[256] = "";
    here = (struct here){.now = roll_mono_ns(), .context = zmq_ctx_new()};
    struct roll_root_options o = {.context = here.context,
                                  .listen = {"inproc://root"},
                                  .listens = 1,
                                  .compare = ROLL_COMPARE_DIGEST,
                                  .case_ranks = 1};
    scratch_make(here.dir);
    assert_int_equal(roll_root_new(&o, &here.root, why, sizeof(why)), 0);
    assert_int_equal(roll_run_of(here.root, "job", 0, RANKS, &here.run), 0);
    assert_non_null(here.d = here.run->digested);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(synth_open(&here.rank[i], here.dir, "job", (int32_t)i, RANKS, 64), 0);
        here.peer[i] = peer_new();
        (void)hold(here.peer[i], stream_of(i));
        announce(i);
    }
    here.run->seen = true;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    roll_root_destroy(&here.root);
    zmq_ctx_term(here.context);
    for (uint32_t i = 0; i < RANKS; i++) {
        synth_close(&here.rank[i]);
    }
    scratch_remove(here.dir);
    return 0;
}

/* The first half of the members of a communicator, or the second one, has made `low` to `high` calls. */
static void has_made(uint64_t key, uint32_t half, uint32_t low, uint32_t high)
{
    struct roll_digest one = {.hints = 0};
    roll_digest_add_front(
        &one, &(struct roll_digest_front){.key = key, .size = SIZE, .members = SIZE / 2, .low = low, .high = high});
    assert_int_equal(roll_sum_take(here.d->sum, half, &one, here.now), 0);
    roll_digest_fini(&one);
}

static void hint(uint64_t key, enum roll_digest_why why, uint32_t seq)
{
    struct roll_digest one = {.hints = 0};
    roll_digest_add_hint(&one, key, why, seq);
    assert_int_equal(roll_sum_take(here.d->sum, 0, &one, here.now), 0);
    roll_digest_fini(&one);
}

/* The root looks, as often as it does, for so long. Members of the communicator go on meanwhile, if `calls` is not 0.
 */
static void look(uint64_t ns, uint32_t *calls)
{
    for (uint64_t end = here.now + ns; here.now < end;) {
        here.now += 50 * ROLL_MS;
        if (calls) {
            *calls += 1;
            has_made(KEY, 0, *calls, *calls + 8);
            has_made(KEY, 1, *calls, *calls + 8);
        }
        roll_digested_look(here.root, here.run, here.now, false);
    }
}

/* Members are 8 calls apart at call 80, a call before that is told to differ, and both ranks have sent theirs. */
static void open_case(void)
{
    has_made(KEY, 0, 80, 88);
    has_made(KEY, 1, 80, 88);
    hint(KEY, ROLL_HINT_DIFFERS, 64);
    here.now += 6 * S; /* all rings of the run have come */
    roll_digested_look(here.root, here.run, here.now, false);
    assert_int_equal(here.d->number, 1);
    assert_true(here.d->narrow);
    for (uint32_t i = 0; i < RANKS; i++) {
        excerpt(i, false);
        excerpt(i, true);
    }
    look(100 * ROLL_MS, NULL);
    assert_true(here.d->fed);
}

/* The check point that differs lies in the window of which the case has been opened for: what lies before the highest
 * power of two below it is alike, and is not asked for; nor is more asked for when the whole window is told of. */
static void test_of_a_window_that_part_is_asked_for_that_may_differ(void **state)
{
    (void)state;
    uint32_t calls = 105;
    has_made(KEY, 0, 100, 110);
    has_made(KEY, 1, 100, 110);
    hint(KEY, ROLL_HINT_DIFFERS, 64 + 40);
    here.now += 6 * S;
    roll_digested_look(here.root, here.run, here.now, false);
    assert_true(here.d->narrow);
    assert_int_equal(here.d->hints.hint[0].seq, 64);
    struct roll_frame_want want = roll_case_want(here.d, here.d->hints.hints, KEY);
    assert_int_equal(want.low, 64 + 32);
    assert_int_equal(want.high, 64 + 64 + 16);
    for (uint32_t i = 0; i < RANKS; i++) {
        excerpt(i, false);
        excerpt(i, true);
    }
    look(200 * ROLL_MS, &calls);
    hint(KEY, ROLL_HINT_DIFFERS, 64);
    look(1 * S, &calls);
    assert_int_equal(here.d->number, 1);
    assert_false(here.d->unseen || here.d->elsewhere);
    hint(KEY, ROLL_HINT_DIFFERS, 64 + 8); /* a member that comes later has made a wrong call before that part */
    look(1 * S, &calls);
    assert_int_equal(here.d->number, 2);
    assert_true(here.d->narrow);
    assert_int_equal(roll_case_want(here.d, here.d->hints.hints, KEY).low, 64);
    here.d->narrow = false; /* where all records are asked for, the whole window is */
    assert_int_equal(roll_case_want(here.d, here.d->hints.hints, KEY).low, 64);
}

static bool is_narrow(void)
{
    return here.d->number == 1 && here.d->narrow && !here.d->broad;
}

static void test_where_nobody_goes_on_all_records_are_asked_for(void **state)
{
    (void)state;
    open_case();
    look(500 * ROLL_MS, NULL);
    assert_int_equal(here.d->number, 2);
    assert_false(here.d->narrow);
    assert_int_equal(here.d->opened_ns, here.d->asked_ns);
}

static void test_where_all_go_on_more_is_asked_for_when_they_have_come_there(void **state)
{
    (void)state;
    uint32_t calls = 80;
    open_case();
    look(2900 * ROLL_MS, &calls);
    assert_true(is_narrow());
    look(500 * ROLL_MS, &calls);
    assert_int_equal(here.d->number, 2);
    assert_false(here.d->narrow);
}

/* An agent without a processor: nobody knows whether its ranks have gone on. */
static void test_who_is_not_seen_does_not_stand(void **state)
{
    (void)state;
    open_case();
    here.run->seen = false;
    look(5 * S, NULL);
    assert_true(is_narrow());
    here.run->seen = true;
    look(200 * ROLL_MS, NULL);
    assert_true(is_narrow());
    look(300 * ROLL_MS, NULL);
    assert_int_equal(here.d->number, 2);
}

static void test_who_is_never_seen_is_not_waited_for_for_ever(void **state)
{
    (void)state;
    open_case();
    here.run->seen = false;
    look(9 * S, NULL);
    assert_true(is_narrow());
    look(1500 * ROLL_MS, NULL);
    assert_int_equal(here.d->number, 2);
    assert_false(here.d->narrow);
}

/* The last member rests for a moment, and the others go on meanwhile or wait for it. */
static void test_a_rank_that_stands_for_a_moment_does_not_hang(void **state)
{
    (void)state;
    uint32_t calls = 80;
    open_case();
    look(200 * ROLL_MS, &calls); /* all go on */
    has_made(KEY, 0, calls, calls + 9);
    hint(KEY, ROLL_HINT_STANDS, calls);
    for (uint32_t i = 0; i < 10; i++) { /* the first ones do */
        has_made(KEY, 1, calls, calls + 10 + i);
        look(50 * ROLL_MS, NULL);
    }
    assert_true(here.d->stalls_there);
    assert_true(is_narrow());
    look(150 * ROLL_MS, NULL); /* and then wait */
    assert_true(is_narrow());
    calls += 20;
    look(1 * S, &calls);
    assert_true(is_narrow());
    hint(KEY, ROLL_HINT_STANDS, calls); /* now it stands for good */
    look(600 * ROLL_MS, NULL);
    assert_int_equal(here.d->number, 2);
    assert_false(here.d->narrow);
}

/* Before anything was said: what all records would tell can wait, and the wrong call cannot. */
static void test_who_stands_elsewhere_waits_for_the_wrong_call(void **state)
{
    (void)state;
    uint32_t calls = 80;
    open_case();
    has_made(OTHER, 0, 5, 6);
    has_made(OTHER, 1, 6, 6);
    hint(OTHER, ROLL_HINT_STANDS, 5);
    look(2500 * ROLL_MS, &calls);
    assert_true(here.d->stalls);
    assert_true(is_narrow());
    here.d->engine_news = here.d->named = true; /* it is told */
    here.d->rest_ns = here.now;
    look(900 * ROLL_MS, &calls);
    assert_true(is_narrow());
    look(500 * ROLL_MS, &calls);
    assert_int_equal(here.d->number, 2);
    assert_false(here.d->narrow);
}

/* Its records have other numbers now, and nothing else is wrong with the case. */
static void test_a_ring_that_is_announced_anew_has_the_case_begun_anew_that_way(void **state)
{
    (void)state;
    uint32_t calls = 80;
    open_case();
    look(100 * ROLL_MS, &calls);
    announce(1);
    assert_true(here.d->narrow && here.d->anew);
    assert_true(roll_digested_waits(here.run));
    excerpt(1, false); /* of which this engine must take nothing */
    assert_false(here.d->ring[1].begun);
    look(150 * ROLL_MS, &calls);
    assert_int_equal(here.d->number, 2);
    assert_true(here.d->narrow);
    assert_false(here.d->broad || here.d->anew);
}

/* A link that is lost again and again: at last all records are asked for, which need no numbers of their own; and not
 * those of more ranks, because one agent comes and goes: what turns out may do that as often as ever. */
static void test_a_ring_that_is_announced_again_and_again_ends_that(void **state)
{
    (void)state;
    uint32_t calls = 80, times = 0;
    open_case();
    while (here.d->narrow && times++ < 20) {
        uint64_t number = here.d->number;
        excerpt(1, false);
        announce(1);
        look(200 * ROLL_MS, &calls);
        assert_int_equal(here.d->number, number + 1);
    }
    assert_int_equal(times, ROLL_CASE_ANEW + 1);
    assert_true(here.d->scoped && here.d->broad);
    assert_int_equal(here.d->again, 0);
    uint64_t number = here.d->number;
    for (int i = 0; i < 5; i++) {
        excerpt(1, false);
        announce(1);
        look(200 * ROLL_MS, &calls);
    }
    assert_int_equal(here.d->number, number);
    here.d->wider = true; /* something is found of ranks that were not asked */
    look(ROLL_CASE_GATHER_NS, &calls);
    assert_int_equal(here.d->number, number + 1);
    assert_true(here.d->scoped);
    assert_int_equal(here.d->again, 1);
    roll_case_close(here.root, here.run, here.now);
    assert_int_equal(here.d->anews, 0);
}

/* It is about the same wrong call, which needs no silence to be seen. */
static void test_a_case_that_is_begun_anew_waits_no_longer_for_rings(void **state)
{
    (void)state;
    open_case();
    look(500 * ROLL_MS, NULL);
    assert_int_equal(here.d->number, 2);
    assert_false(here.d->narrow || here.d->fed);
    excerpt(0, false);
    excerpt(0, true);
    uint64_t left = here.d->opened_ns + 500 * ROLL_MS - here.now;
    look(left, NULL);
    assert_false(here.d->fed);
    look(100 * ROLL_MS, NULL);
    assert_true(here.d->fed);
    roll_case_close(here.root, here.run, here.now); /* the next one may be about who stands */
    assert_false(here.d->hasty);
}

/* A root that holds as much as it may: what records name goes first, and then whole ranks. */
static void test_where_there_is_no_room_records_are_kept_and_not_their_places(void **state)
{
    (void)state;
    struct roll_def_head def = {.seal = ROLL_DEF_SEAL | ROLL_DEF_STREAM, .bytes = 24, .id = 1};
    uint8_t defs[24] = {0};
    struct roll_record rec = {.seal = roll_seal(0, ROLL_STATE_RETURNED), .op = ROLL_OP_ALLREDUCE};
    struct roll_frame_head named = {.type = ROLL_FRAME_DEFS, .flags = ROLL_DEFS_NAMED};
    struct roll_frame_head plain = {.type = ROLL_FRAME_DEFS}, records = {.type = ROLL_FRAME_RECORDS, .count = 1};
    memcpy(defs, &def, sizeof(def));
    roll_case_open(here.root, here.run, here.now);
    excerpt(0, false);
    say(0, named, defs, sizeof(defs));
    assert_int_equal(here.d->staged, 1);
    size_t kept = here.d->stage_bytes;
    assert_int_equal(here.d->named_bytes, kept);
    here.d->named_bytes = here.d->named_most - kept;
    say(0, named, defs, sizeof(defs));
    assert_int_equal(here.d->staged, 2);
    assert_int_equal(here.d->named_bytes, here.d->named_most);
    say(0, named, defs, sizeof(defs));
    assert_int_equal(here.d->staged, 2);
    assert_int_equal(here.d->spared, 1);
    say(0, plain, defs, sizeof(defs));
    say(0, records, &rec, sizeof(rec));
    assert_int_equal(here.d->staged, 4);
    assert_false(here.d->ring[0].cut);
    here.d->stage_bytes = ROLL_CASE_STAGE;
    say(0, named, defs, sizeof(defs));
    assert_false(here.d->ring[0].cut);
    struct roll_frame_head head = records;
    head.stream = stream_of(0);
    uint8_t raw[256];
    struct roll_frame frame;
    int64_t n = roll_frame_make(&head, &rec, sizeof(rec), raw, sizeof(raw), &frame);
    assert_int_equal(roll_case_frame(here.run, &frame, raw, (size_t)n), ROLL_E_LIMIT);
    assert_true(here.d->ring[0].cut);
    roll_case_open(here.root, here.run, here.now);
    assert_int_equal(here.d->spared, 0);
    assert_int_equal(here.d->stage_bytes + here.d->named_bytes, 0);
}

/* A file, a line of it, and a call at that line, as records name them. Returns the bytes, from *first on. */
static size_t define_site(uint32_t rank, uint16_t id, uint64_t *first)
{
    struct roll_ring *ring = &here.rank[rank].ring;
    const struct roll_def_source source = {.path_bytes = 4};
    const struct roll_def_line line = {.source = id, .line = 7, .function_bytes = 4};
    const struct roll_def_callsite site = {.lines = 1};
    const struct roll_callsite_line at = {.line = id};
    *first = atomic_load(&ring->header->defs_used);
    assert_int_equal(roll_def_append(ring, ROLL_DEF_SOURCE, id, &source, sizeof(source), "a.py", 4), 0);
    assert_int_equal(roll_def_append(ring, ROLL_DEF_LINE, id, &line, sizeof(line), "main", 4), 0);
    assert_int_equal(roll_def_append(ring, ROLL_DEF_CALLSITE, id, &site, sizeof(site), &at, sizeof(at)), 0);
    return (size_t)(atomic_load(&ring->header->defs_used) - *first);
}

static void say_site(uint32_t rank, uint16_t id)
{
    uint64_t first;
    size_t bytes = define_site(rank, id, &first);
    say(rank, (struct roll_frame_head){.type = ROLL_FRAME_DEFS, .flags = ROLL_DEFS_NAMED},
        here.rank[rank].ring.defs + first, bytes);
}

static bool knows(uint32_t rank, uint16_t site)
{
    const struct roll_record rec = {.callsite = site};
    return site_of(roll_feed_engine(here.d->feed)->source[rank], &rec) != 0;
}

/* Of a rank of which not all can be kept nothing is fed: some of its places would say that it never was at others. */
static void test_of_a_rank_all_places_are_kept_or_none(void **state)
{
    (void)state;
    roll_case_open(here.root, here.run, here.now);
    excerpt(0, false);
    excerpt(1, false);
    say_site(0, 1);
    size_t one = here.d->named_bytes;
    here.d->named_most = 2 * one + one / 2;
    say_site(1, 1);
    say_site(0, 2);
    assert_true(here.d->ring[0].spared);
    size_t staged = here.d->staged;
    here.d->named_most = 9 * one;
    say_site(0, 3); /* for which there would be room */
    assert_int_equal(here.d->staged, staged);
    say_site(1, 2);
    assert_int_equal(here.d->staged, staged + 1);
    assert_false(here.d->ring[1].spared);
    assert_int_equal(here.d->spared, 1);
    excerpt(0, true);
    excerpt(1, true);
    look(100 * ROLL_MS, NULL);
    assert_true(here.d->fed);
    say_site(0, 4);
    say_site(1, 4);
    for (uint16_t id = 1; id <= 4; id++) {
        assert_false(knows(0, id));
        assert_int_equal(knows(1, id), id != 3);
    }
    json_t *told = roll_digested_json(here.run);
    assert_int_equal(json_integer_value(json_object_get(told, "spared")), 1);
    json_decref(told);
    announce(0); /* its agent begins anew, and sends all of it */
    excerpt(0, false);
    assert_false(here.d->ring[0].spared);
    say_site(0, 1);
    assert_true(knows(0, 1));
}

/* Of thousands of ranks of which all are asked the records that are there have room, whatever their programs are. */
static void test_as_many_definitions_are_kept_as_leave_room_for_records(void **state)
{
    (void)state;
    struct roll_digested *d = here.d;
    size_t rings = d->rings;
    d->again = ROLL_CASE_SCOPED; /* everybody is asked */
    d->rings = 16383;
    roll_case_measure(here.root, d);
    assert_false(d->scoped);
    assert_int_equal(d->named_most, ROLL_CASE_STAGE - 16384 * (384 * ROLL_RECORD_BYTES + 4096));
    d->rings = 4095;
    roll_case_measure(here.root, d);
    assert_int_equal(d->named_most, ROLL_CASE_STAGE - 4096 * (384 * ROLL_RECORD_BYTES + 4096));
    d->rings = 60000;
    roll_case_measure(here.root, d);
    assert_int_equal(d->named_most, ROLL_CASE_STAGE / 16);
    d->rings = rings;
    d->again = 0;
}

/* whole cases */

static void test_a_case_is_whole_when_all_rings_have_sent(void **state)
{
    (void)state;
    roll_case_open(here.root, here.run, here.now);
    assert_false(roll_case_is_whole(here.root, here.run));
    excerpt(1, false);
    excerpt(1, true);
    assert_false(roll_case_is_whole(here.root, here.run));
    excerpt(0, false);
    assert_false(roll_case_is_whole(here.root, here.run));
    excerpt(0, true);
    assert_true(roll_case_is_whole(here.root, here.run));
    announce(1); /* it begins anew, and the look had gone past it */
    assert_false(roll_case_is_whole(here.root, here.run));
    here.peer[1]->gone = true; /* whoever is gone is not waited for */
    assert_true(roll_case_is_whole(here.root, here.run));
    here.peer[0]->gone = true; /* where all are, nobody has been asked */
    assert_false(roll_case_is_whole(here.root, here.run));
}

static void test_a_ring_that_two_agents_hold_is_one(void **state)
{
    (void)state;
    (void)hold(here.peer[0], stream_of(1));
    roll_case_open(here.root, here.run, here.now);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_false(roll_case_is_whole(here.root, here.run));
        excerpt(i, false);
        excerpt(i, true);
    }
    assert_true(roll_case_is_whole(here.root, here.run));
}

/* Behind it the look goes on, and comes round to those before it, which may have begun anew. */
static void test_the_look_begins_at_the_ring_that_was_awaited(void **state)
{
    (void)state;
    (void)hold(here.peer[0], stream_of(1));
    roll_case_open(here.root, here.run, here.now);
    excerpt(0, false);
    excerpt(0, true);
    assert_false(roll_case_is_whole(here.root, here.run));
    assert_int_equal(here.d->awaited_peer, 0);
    assert_int_equal(here.d->awaited_stream, 1);
    announce(0);
    excerpt(1, false);
    excerpt(1, true);
    assert_false(roll_case_is_whole(here.root, here.run));
    assert_int_equal(here.d->awaited_stream, 0);
    excerpt(0, false);
    excerpt(0, true);
    assert_true(roll_case_is_whole(here.root, here.run));
}

/* There was no memory for it when it was announced: it is no part of the case. */
static void test_a_ring_that_could_not_be_kept_is_not_waited_for(void **state)
{
    (void)state;
    (void)hold(here.peer[0], 12345);
    roll_case_open(here.root, here.run, here.now);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_false(roll_case_is_whole(here.root, here.run));
        excerpt(i, false);
        excerpt(i, true);
    }
    assert_true(roll_case_is_whole(here.root, here.run));
}

static const struct roll_frame *frame_of(struct roll_frame_head head, const void *payload, size_t bytes)
{
    static uint8_t raw[512];
    static struct roll_frame frame;
    assert_true(roll_frame_make(&head, payload, bytes, raw, sizeof(raw), &frame) > 0);
    return &frame;
}

/* How long an agent's ring that has sent something waits for its acknowledgement, after one just now; *again: each
 * heartbeat asks for one. */
static uint64_t ack_wait(const struct roll_address *from, struct roll_peer *peer, struct roll_peer_stream *s,
                         bool *again)
{
    struct roll_frame_heartbeat beat = {.agents = 0};
    *s = (struct roll_peer_stream){
        .stream = s->stream, .run = here.run, .due = true, .ack_ns = here.now, .flags = roll_digested_flags(here.run)};
    here.root->due[0] = peer;
    here.root->due_used = 1;
    peer->is_due = true;
    roll_peers_acknowledge(here.root, here.now);
    assert_true(s->due);
    uint64_t wait = roll_peers_wait_ns(here.root, here.now);
    s->due = false;
    const struct roll_frame *frame =
        frame_of((struct roll_frame_head){.type = ROLL_FRAME_HEARTBEAT, .seq = peer->expected}, &beat, sizeof(beat));
    roll_peers_frame(here.root, from, frame, NULL, 0, here.now);
    *again = s->due && s->urgent;
    here.root->due_used = 0;
    return wait;
}

/* Of thousands of rings each sends a few calls a second then, and nobody waits for the word that they were read. */
static void test_while_calls_alone_come_they_are_acknowledged_more_rarely(void **state)
{
    (void)state;
    static const char hello[] = "{\"agent\":\"rollcalld\",\"host\":\"node\",\"pid\":1,\"dir\":\"d\"}";
    struct roll_address from = {.socket = here.root->socket[0], .bytes = 5, .id = "agent"};
    bool again = false;
    roll_peers_hello(here.root, &from,
                     frame_of((struct roll_frame_head){.type = ROLL_FRAME_HELLO, .seq = 1}, hello, strlen(hello)),
                     here.now);
    struct roll_peer *peer = here.root->peers[here.root->peers_used - 1];
    assert_string_equal(peer->host, "node");
    struct roll_peer_stream *s = hold(peer, stream_of(0));
    assert_int_equal(ack_wait(&from, peer, s, &again), 100 * ROLL_MS);
    assert_false(again);
    open_case();
    assert_true(here.run->judge && here.run->narrow);
    assert_int_equal(ack_wait(&from, peer, s, &again), 1 * S);
    assert_false(again);
    look(500 * ROLL_MS, NULL); /* nobody goes on: all records are asked for, of which there is more */
    for (uint32_t i = 0; i < RANKS; i++) {
        excerpt(i, false);
        excerpt(i, true);
    }
    look(600 * ROLL_MS, NULL);
    assert_true(here.run->judge && !here.run->narrow);
    assert_int_equal(ack_wait(&from, peer, s, &again), 100 * ROLL_MS);
    assert_true(again);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_of_a_window_that_part_is_asked_for_that_may_differ),
        TEST(test_where_nobody_goes_on_all_records_are_asked_for),
        TEST(test_where_all_go_on_more_is_asked_for_when_they_have_come_there),
        TEST(test_who_is_not_seen_does_not_stand),
        TEST(test_who_is_never_seen_is_not_waited_for_for_ever),
        TEST(test_a_rank_that_stands_for_a_moment_does_not_hang),
        TEST(test_who_stands_elsewhere_waits_for_the_wrong_call),
        TEST(test_a_ring_that_is_announced_anew_has_the_case_begun_anew_that_way),
        TEST(test_a_ring_that_is_announced_again_and_again_ends_that),
        TEST(test_a_case_that_is_begun_anew_waits_no_longer_for_rings),
        TEST(test_where_there_is_no_room_records_are_kept_and_not_their_places),
        TEST(test_of_a_rank_all_places_are_kept_or_none),
        TEST(test_as_many_definitions_are_kept_as_leave_room_for_records),
        TEST(test_while_calls_alone_come_they_are_acknowledged_more_rarely),
        TEST(test_a_case_is_whole_when_all_rings_have_sent),
        TEST(test_a_ring_that_two_agents_hold_is_one),
        TEST(test_the_look_begins_at_the_ring_that_was_awaited),
        TEST(test_a_ring_that_could_not_be_kept_is_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
