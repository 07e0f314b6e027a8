/*
 * test_feed.c: the feeder drops frames that it has seen, counts missing records, and gives the same verdicts from the
 * same frames.
 */
#include "daemon/feed/feed.h"
#include "daemon/feed/merge.h"
#include "tests/daemon/synth.h"
#include "tests/daemon/verdict_json.h"
#include "trace/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct fixture {
    char dir[64];
    struct synth rank[2];
    uint16_t comm[2];
    roll_feed_t *feed;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    strcpy(f->dir, "/tmp/rollcall-feed-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    for (int r = 0; r < 2; r++) {
        assert_int_equal(synth_open(&f->rank[r], f->dir, "unit", r, 2, 1024), 0);
        f->comm[r] = synth_comm(&f->rank[r], 0x77);
    }
    struct roll_engine_config config = {0};
    f->feed = roll_feed_new(&config, NULL, 0);
    assert_non_null(f->feed);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    for (int r = 0; r < 2; r++) {
        synth_close(&f->rank[r]);
        unlink(f->rank[r].path);
    }
    roll_feed_destroy(&f->feed);
    assert_int_equal(rmdir(f->dir), 0);
    free(f);
    return 0;
}

/* frames, as an agent makes them */

static int give(roll_feed_t *feed, struct roll_frame_head head, const void *payload, size_t bytes)
{
    static uint8_t buffer[ROLL_FRAME_MAX_BYTES];
    struct roll_frame frame;
    int64_t n = roll_frame_encode(&head, payload, bytes, buffer, sizeof(buffer));
    assert_true(n > 0);
    int err = roll_frame_decode(buffer, (size_t)n, &frame, NULL);
    return err ? err : roll_feed_frame(feed, &frame);
}

static int give_ring(struct fixture *f, int r)
{
    const struct roll_ring *ring = &f->rank[r].ring;
    int err = give(f->feed, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = ring->header->epoch},
                   ring->header, sizeof(*ring->header));
    if (!err) {
        err = give(f->feed, (struct roll_frame_head){.type = ROLL_FRAME_DEFS, .stream = ring->header->epoch},
                   ring->defs, ring->header->defs_used);
    }
    return err;
}

static int give_flagged(struct fixture *f, int r, uint64_t from, uint32_t n, enum roll_frame_type type, uint32_t flags)
{
    struct roll_record recs[64];
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(roll_ring_get(&f->rank[r].ring, from + i, &recs[i]), 0);
    }
    return give(f->feed,
                (struct roll_frame_head){.type = (uint16_t)type,
                                         .flags = flags,
                                         .stream = f->rank[r].ring.header->epoch,
                                         .first = from,
                                         .rec_size = ROLL_RECORD_BYTES,
                                         .count = n},
                recs, n * sizeof(*recs));
}

static int give_records(struct fixture *f, int r, uint64_t from, uint32_t n, enum roll_frame_type type)
{
    return give_flagged(f, r, from, n, type, 0);
}

static struct roll_feed_stream view(struct fixture *f, int r)
{
    struct roll_feed_stream v;
    assert_true(roll_feed_find(f->feed, f->rank[r].ring.header->epoch, &v));
    return v;
}

static void calls(struct fixture *f, int r, int n)
{
    for (int i = 0; i < n; i++) {
        synth_allreduce(&f->rank[r], &(struct synth_call){.comm = f->comm[r], .count = 8});
    }
}

/* tests */

static void test_records_that_come_twice_are_fed_once(void **state)
{
    struct fixture *f = *state;
    calls(f, 0, 20);
    assert_int_equal(give_ring(f, 0), 0);
    assert_int_equal(give_records(f, 0, 0, 10, ROLL_FRAME_RECORDS), 0);
    assert_int_equal(give_records(f, 0, 5, 15, ROLL_FRAME_RECORDS), 0);
    struct roll_feed_stream v = view(f, 0);
    assert_int_equal(v.fed, 20);
    assert_int_equal(v.duplicates, 5);
    assert_int_equal(v.next_ticket, 20);
    assert_int_equal(v.lost, 0);
    struct roll_engine_summary s;
    roll_engine_summary(roll_feed_engine(f->feed), &s);
    assert_int_equal(s.records, 20);
}

static void test_definitions_that_come_twice_are_taken_once(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(give_ring(f, 0), 0);
    uint64_t offset = view(f, 0).defs_offset;
    assert_int_equal(offset, f->rank[0].ring.header->defs_used);
    assert_int_equal(give_ring(f, 0), 0);
    assert_int_equal(view(f, 0).defs_offset, offset);
}

static void test_a_gap_is_a_loss_of_its_size(void **state)
{
    struct fixture *f = *state;
    calls(f, 0, 30);
    assert_int_equal(give_ring(f, 0), 0);
    assert_int_equal(give_records(f, 0, 3, 5, ROLL_FRAME_RECORDS), 0);
    assert_int_equal(view(f, 0).lost, 3);
    assert_int_equal(give_records(f, 0, 20, 5, ROLL_FRAME_RECORDS), 0);
    struct roll_feed_stream v = view(f, 0);
    assert_int_equal(v.lost, 3 + 12);
    assert_int_equal(v.fed, 10);
    struct roll_engine_summary s;
    roll_engine_summary(roll_feed_engine(f->feed), &s);
    assert_int_equal(s.lost, 15);
}

static void test_a_call_stays_open_until_its_update(void **state)
{
    struct fixture *f = *state;
    calls(f, 0, 3);
    uint64_t hanging = synth_allreduce(&f->rank[0], &(struct synth_call){.comm = f->comm[0], .count = 8, .hang = true});
    assert_int_equal(give_ring(f, 0), 0);
    assert_int_equal(give_records(f, 0, 0, 4, ROLL_FRAME_RECORDS), 0);
    assert_int_equal(view(f, 0).open_ticket, hanging);
    synth_return(&f->rank[0], hanging);
    assert_int_equal(give_records(f, 0, hanging, 1, ROLL_FRAME_UPDATES), 0);
    assert_int_equal(view(f, 0).open_ticket, 4);
    assert_int_equal(give_records(f, 0, hanging, 1, ROLL_FRAME_UPDATES), 0);
    assert_int_equal(view(f, 0).duplicates, 1);
}

static void test_a_resent_record_that_has_returned_counts_as_update(void **state)
{
    struct fixture *f = *state;
    uint64_t hanging = synth_allreduce(&f->rank[0], &(struct synth_call){.comm = f->comm[0], .count = 8, .hang = true});
    assert_int_equal(give_ring(f, 0), 0);
    assert_int_equal(give_records(f, 0, 0, 1, ROLL_FRAME_RECORDS), 0);
    synth_return(&f->rank[0], hanging);
    assert_int_equal(give_records(f, 0, 0, 1, ROLL_FRAME_RECORDS), 0);
    assert_int_equal(view(f, 0).open_ticket, 1);
    assert_int_equal(view(f, 0).duplicates, 0);
}

static void test_frames_of_unknown_rings_and_other_runs_are_refused(void **state)
{
    struct fixture *f = *state;
    calls(f, 0, 1);
    assert_int_equal(give_records(f, 0, 0, 1, ROLL_FRAME_RECORDS), ROLL_E_NOTFOUND);
    assert_int_equal(give_ring(f, 0), 0);
    assert_string_equal(roll_feed_job(f->feed), "unit");
    struct synth other;
    assert_int_equal(synth_open(&other, f->dir, "another", 5, 6, 64), 0);
    int err = give(f->feed, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = other.ring.header->epoch},
                   other.ring.header, sizeof(*other.ring.header));
    assert_int_equal(err, ROLL_E_ARG);
    synth_close(&other);
    unlink(other.path);
}

static void test_a_damaged_header_is_refused(void **state)
{
    struct fixture *f = *state;
    struct roll_ring_header h;
    memcpy(&h, f->rank[0].ring.header, sizeof(h));
    h.world_rank = 17;
    struct roll_frame_head head = {.type = ROLL_FRAME_RING, .stream = h.epoch};
    assert_int_equal(give(f->feed, head, &h, sizeof(h)), ROLL_E_CHECKSUM);
    h.version = 99;
    h.oldest = 99;
    assert_int_equal(give(f->feed, head, &h, sizeof(h)), ROLL_E_VERSION);
    h.magic[0] = 'X';
    assert_int_equal(give(f->feed, head, &h, sizeof(h)), ROLL_E_MAGIC);
}

static void test_what_a_dead_process_never_sent_is_lost(void **state)
{
    struct fixture *f = *state;
    calls(f, 0, 8);
    assert_int_equal(give_ring(f, 0), 0);
    assert_int_equal(give_records(f, 0, 0, 6, ROLL_FRAME_RECORDS), 0);
    struct roll_frame_status status = {.head = 8, .proc_state = ROLL_PROC_DEAD, .exit_status = 9};
    struct roll_frame_head head = {.type = ROLL_FRAME_STATUS, .stream = f->rank[0].ring.header->epoch};
    assert_int_equal(give(f->feed, head, &status, sizeof(status)), 0);
    assert_int_equal(view(f, 0).lost, 2);
    assert_int_equal(view(f, 0).proc, ROLL_PROC_DEAD);
    assert_int_equal(view(f, 0).exit_status, 9);
}

static int give_losses(struct fixture *f, uint64_t overrun, uint64_t corrupt)
{
    struct roll_frame_status status = {.head = 8, .proc_state = ROLL_PROC_RUNNING, .exit_status = ROLL_EXIT_UNKNOWN};
    status.losses[ROLL_LOSS_OVERRUN] = overrun;
    status.losses[ROLL_LOSS_CORRUPT] = corrupt;
    struct roll_frame_head head = {.type = ROLL_FRAME_STATUS, .stream = f->rank[0].ring.header->epoch};
    return give(f->feed, head, &status, sizeof(status));
}

/* An agent counts what it finds written over. What it had sent, and nobody got, or another root got, is not there. */
static void test_what_is_lacking_and_no_ring_counts_was_dropped_on_its_way(void **state)
{
    struct fixture *f = *state;
    uint64_t sum[ROLL_LOSS_LIMIT];
    calls(f, 0, 8);
    assert_int_equal(give_ring(f, 0), 0);
    assert_int_equal(give_records(f, 0, 5, 1, ROLL_FRAME_RECORDS), 0); /* 5 are missing */
    assert_int_equal(give_losses(f, 5, 0), 0);
    assert_int_equal(view(f, 0).losses[ROLL_LOSS_WIRE], 0);
    assert_int_equal(give_records(f, 0, 7, 1, ROLL_FRAME_RECORDS), 0); /* and one more, which no ring counts */
    assert_int_equal(view(f, 0).losses[ROLL_LOSS_WIRE], 0);            /* not before the ring has had its word */
    assert_int_equal(give_losses(f, 5, 0), 0);
    assert_int_equal(view(f, 0).lost, 6);
    assert_int_equal(view(f, 0).losses[ROLL_LOSS_OVERRUN], 5);
    assert_int_equal(view(f, 0).losses[ROLL_LOSS_WIRE], 1);
    assert_int_equal(give_losses(f, 5, 2), 0); /* what leaves no gap here takes nothing back */
    assert_int_equal(view(f, 0).losses[ROLL_LOSS_WIRE], 1);
    assert_int_equal(give_losses(f, UINT64_MAX, UINT64_MAX), 0);
    assert_int_equal(view(f, 0).losses[ROLL_LOSS_WIRE], 1);
    assert_int_equal(give_losses(f, 5, 0), 0);
    assert_int_equal(roll_feed_losses(f->feed, sum), 6);
    assert_int_equal(sum[ROLL_LOSS_WIRE], 1);
}

/* A trace whose oldest segments are gone, or an incident, which holds the newest calls. A hole behind them is a loss.
 */
static void test_what_is_older_than_a_recording_is_not_lost(void **state)
{
    struct fixture *f = *state;
    uint64_t sum[ROLL_LOSS_LIMIT];
    roll_feed_of_recording(f->feed);
    calls(f, 0, 8);
    assert_int_equal(give_ring(f, 0), 0);
    assert_int_equal(give_records(f, 0, 5, 1, ROLL_FRAME_RECORDS), 0);
    assert_int_equal(give_losses(f, 0, 0), 0);
    assert_int_equal(roll_feed_losses(f->feed, sum), 0);
    assert_int_equal(sum[ROLL_LOSS_WIRE], 0);
    assert_int_equal(roll_feed_older(f->feed), 5);
    assert_int_equal(give_records(f, 0, 7, 1, ROLL_FRAME_RECORDS), 0);
    assert_int_equal(give_losses(f, 0, 0), 0);
    assert_int_equal(roll_feed_losses(f->feed, sum), 1);
    assert_int_equal(sum[ROLL_LOSS_WIRE], 1);
    assert_int_equal(roll_feed_older(f->feed), 5);
    assert_int_equal(give_losses(f, 4, 0), 0); /* three of the five were lost before they could be recorded */
    assert_int_equal(roll_feed_losses(f->feed, sum), 5);
    assert_int_equal(roll_feed_older(f->feed), 1);
}

/* A segment repeats the last call of each communicator, which may be long ago. What lies between these is older, too;
 * but of who sends records himself nothing is believed that makes a loss none. */
static void test_what_lies_between_repeated_calls_is_older_as_well(void **state)
{
    struct fixture *f = *state;
    uint64_t sum[ROLL_LOSS_LIMIT];
    for (int recorded = 1; recorded >= 0; recorded--) {
        int r = recorded ? 0 : 1;
        if (recorded) {
            roll_feed_of_recording(f->feed);
        } else {
            roll_feed_destroy(&f->feed);
            f->feed = roll_feed_new(&(struct roll_engine_config){0}, NULL, 0);
            assert_non_null(f->feed);
        }
        calls(f, r, 10);
        assert_int_equal(give_ring(f, r), 0);
        assert_int_equal(give_flagged(f, r, 2, 1, ROLL_FRAME_RECORDS, ROLL_RECORDS_REPEATED), 0);
        assert_int_equal(give_flagged(f, r, 4, 1, ROLL_FRAME_RECORDS, ROLL_RECORDS_REPEATED), 0);
        assert_int_equal(give_records(f, r, 6, 1, ROLL_FRAME_RECORDS), 0);
        assert_int_equal(roll_feed_losses(f->feed, sum), recorded ? 0 : 4);
        assert_int_equal(roll_feed_older(f->feed), recorded ? 4 : 0); /* 0, 1, 3 and 5 */
        assert_int_equal(give_flagged(f, r, 8, 1, ROLL_FRAME_RECORDS, ROLL_RECORDS_REPEATED), 0);
        assert_int_equal(roll_feed_losses(f->feed, sum), recorded ? 1 : 5); /* 7 */
    }
}

static void test_a_rank_is_heard_as_soon_as_its_agent_says_anything(void **state)
{
    struct fixture *f = *state;
    calls(f, 0, 8);
    assert_int_equal(give_ring(f, 0), 0);
    struct roll_frame_head head = {.type = ROLL_FRAME_SIGHT, .stream = f->rank[0].ring.header->epoch};
    struct roll_frame_sight sight = {.heard = 1, .starved = 700};
    assert_true(view(f, 0).heard);
    assert_int_equal(view(f, 0).starved, 0);
    assert_int_equal(give(f->feed, head, &sight, sizeof(sight)), 0);
    assert_int_equal(view(f, 0).starved, 700);
    sight = (struct roll_frame_sight){.heard = 0};
    assert_int_equal(give(f->feed, head, &sight, sizeof(sight)), 0);
    assert_false(view(f, 0).heard);
    assert_int_equal(view(f, 0).starved, 700);
    assert_int_equal(give_records(f, 0, 0, 6, ROLL_FRAME_RECORDS), 0);
    assert_true(view(f, 0).heard);
    assert_int_equal(view(f, 0).starved, 700);
    assert_int_equal(give(f->feed, head, &sight, sizeof(sight)), 0);
    assert_int_equal(give_ring(f, 0),
                     /* The rank's agent begins anew, and says how freely the rank runs if there is anything to say. */
                     0);
    assert_true(view(f, 0).heard);
    assert_int_equal(view(f, 0).starved, 0);
    sight = (struct roll_frame_sight){.heard = 1, .starved = 1001};
    assert_int_equal(give(f->feed, head, &sight, sizeof(sight)), ROLL_E_CORRUPT);
    sight = (struct roll_frame_sight){.heard = 2};
    assert_int_equal(give(f->feed, head, &sight, sizeof(sight)), ROLL_E_CORRUPT);
    head.stream++;
    sight.heard = 1;
    assert_int_equal(give(f->feed, head, &sight, sizeof(sight)), ROLL_E_NOTFOUND);
    assert_true(view(f, 0).heard);
}

/* The verdict of two ranks that differ in a count; as text. */
static char *verdict_of(struct fixture *f, roll_feed_t *feed)
{
    roll_feed_t *mine = f->feed;
    f->feed = feed;
    for (int r = 0; r < 2; r++) {
        assert_int_equal(give_ring(f, r), 0);
        assert_int_equal(give_records(f, r, 0, 3, ROLL_FRAME_RECORDS), 0);
    }
    f->feed = mine;
    roll_feed_tick(feed, 2000000000u + f->rank[0].ring.header->clock_real_ns);
    roll_feed_finish(feed);
    json_t *verdict = json_of_verdict(roll_feed_next(feed));
    assert_non_null(verdict);
    assert_string_equal(json_string_value(json_object_get(verdict, "code")), "count-mismatch");
    char *text = json_dumps(verdict, JSON_COMPACT);
    json_decref(verdict);
    return text;
}

static void test_the_same_frames_give_the_same_verdict(void **state)
{
    struct fixture *f = *state;
    for (int r = 0; r < 2; r++) {
        calls(f, r, 2);
        synth_allreduce(&f->rank[r], &(struct synth_call){.comm = f->comm[r], .count = 8u + (unsigned)r, .hang = true});
    }
    struct roll_engine_config config = {0};
    roll_feed_t *again = roll_feed_new(&config, NULL, 0);
    char *one = verdict_of(f, f->feed), *two = verdict_of(f, again);
    assert_string_equal(one, two);
    free(one);
    free(two);
    roll_feed_destroy(&again);
}

/* A verdict belongs to who took it: neither later frames nor the end of the feed and its engine change it. */
static void test_a_verdict_outlives_its_feed(void **state)
{
    struct fixture *f = *state;
    for (int r = 0; r < 2; r++) {
        calls(f, r, 2);
        synth_allreduce(&f->rank[r], &(struct synth_call){.comm = f->comm[r], .count = 8u + (unsigned)r, .hang = true});
    }
    struct roll_engine_config config = {0};
    char *text = verdict_of(f, f->feed);
    roll_feed_t *feed = roll_feed_new(&config, NULL, 0), *mine = f->feed;
    f->feed = feed;
    for (int r = 0; r < 2; r++) {
        assert_int_equal(give_ring(f, r), 0);
        assert_int_equal(give_records(f, r, 0, 3, ROLL_FRAME_RECORDS), 0);
    }
    f->feed = mine;
    roll_feed_tick(feed, 2000000000u + f->rank[0].ring.header->clock_real_ns);
    roll_feed_finish(feed);
    struct roll_verdict_copy *first = roll_feed_next(feed);
    assert_non_null(first);
    roll_feed_destroy(&feed);
    assert_int_equal(first->said.code, ROLL_VERDICT_COUNT_MISMATCH);
    assert_true(roll_rankset_count(&first->said.side[0].ranks) == 1);
    char *again = roll_verdict_to_text(first);
    assert_string_equal(again, text);
    free(again);
    free(text);
    roll_verdict_copy_destroy(&first);
}

/* Two nodes whose clocks differ by a lot do the same calls, one a little after the other: nobody is late. */
static void check_skew(struct fixture *f, int64_t skew_ns)
{
    struct roll_ring_header *h = f->rank[1].ring.header;
    h->clock_real_ns += (uint64_t)skew_ns; /* changes: not under the checksum */
    assert_int_equal(give_ring(f, 0), 0);
    assert_int_equal(give_ring(f, 1), 0);
    uint64_t now = f->rank[0].ring.header->clock_real_ns;
    for (unsigned i = 0; i < 400; i++) {
        for (int r = 0; r < 2; r++) {
            synth_allreduce(&f->rank[r], &(struct synth_call){.comm = f->comm[r], .count = 8});
            assert_int_equal(give_records(f, r, i, 1, ROLL_FRAME_RECORDS), 0);
            roll_feed_tick(f->feed, now += 20000000);
        }
        struct roll_frame_status status = {
            .head = i + 1, .proc_state = ROLL_PROC_RUNNING, .exit_status = ROLL_EXIT_UNKNOWN};
        status.clock_mono_ns = h->clock_mono_ns;
        status.clock_real_ns = h->clock_real_ns;
        assert_int_equal(give(f->feed, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = h->epoch}, &status,
                              sizeof(status)),
                         0);
    }
    roll_feed_finish(f->feed);
    json_t *verdict = json_of_verdict(roll_feed_next(f->feed));
    assert_null(verdict);
}

static void test_a_node_whose_clock_is_ahead_raises_no_alarm(void **state)
{
    check_skew(*state, INT64_C(3000000000));
}

static void test_a_node_whose_clock_is_behind_raises_no_alarm(void **state)
{
    check_skew(*state, INT64_C(-3000000000));
}

static void test_a_verdict_shows_the_stamp_and_a_tick_frame_carries_it(void **state)
{
    struct fixture *f = *state;
    for (int r = 0; r < 2; r++) {
        synth_allreduce(&f->rank[r], &(struct synth_call){.comm = f->comm[r], .count = 8u + (unsigned)r, .hang = true});
        assert_int_equal(give_ring(f, r), 0);
    }
    uint64_t stamp = UINT64_C(1700000000123456789);
    assert_int_equal(
        give(f->feed, (struct roll_frame_head){.type = ROLL_FRAME_TICK, .seq = 1000}, &stamp, sizeof(stamp)), 0);
    assert_int_equal(give_records(f, 0, 0, 1, ROLL_FRAME_RECORDS), 0);
    assert_int_equal(give_records(f, 1, 0, 1, ROLL_FRAME_RECORDS), 0);
    json_t *verdict = json_of_verdict(roll_feed_next(f->feed));
    if (!verdict) {
        roll_feed_finish(f->feed);
        verdict = json_of_verdict(roll_feed_next(f->feed));
    }
    assert_non_null(verdict);
    assert_true(json_integer_value(json_object_get(verdict, "time_ns")) == (json_int_t)stamp);
    json_decref(verdict);
}

static void test_a_whole_ring_feeds_like_its_frames(void **state)
{
    struct fixture *f = *state;
    calls(f, 0, 1500); /* more than the ring holds: the oldest are lost */
    atomic_store(&f->rank[0].ring.header->exit_status, 9);
    assert_int_equal(roll_merge_rings(f->feed, &f->rank[0].ring, 1), 0);
    struct roll_feed_stream v = view(f, 0);
    assert_int_equal(v.fed, 1024);
    assert_int_equal(v.lost, 1500 - 1024);
    assert_int_equal(v.proc, ROLL_PROC_DEAD);
    assert_int_equal(v.exit_status, 9);
}

static int give_note(struct fixture *f, const char *json)
{
    return give(f->feed, (struct roll_frame_head){.type = ROLL_FRAME_NOTE}, json, strlen(json));
}

static void test_a_note_becomes_a_verdict_once_and_a_bad_one_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{\"pid\":5}",
        "{\"note\":7}",
        "{\"note\":\"attached-unseen\",\"host\":\"n\"}",
        "{\"note\":\"attached-unseen\",\"pid\":-5,\"host\":\"n\"}",
        "{\"note\":\"attached-unseen\",\"pid\":99999999999,\"host\":\"n\"}",
        "{\"note\":\"attached-unseen\",\"pid\":5,\"rank\":99999999}",
        "{\"note\":\"node-facts\"}",
        "{\"note\":\"node-facts\",\"verdict\":1,\"facts\":{}}",
        "{\"note\":\"node-facts\",\"verdict\":-1,\"facts\":[]}",
        "{\"note\":\"node-facts\",\"verdict\":\"1\",\"facts\":[]}",
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(give_note(f, bad[i]), ROLL_E_CORRUPT);
    }
    assert_int_equal(give_note(f, "{\"note\":\"of a newer agent\",\"pid\":5}"), 0);
    assert_int_equal(give_note(f,
                               "{\"note\":\"node-facts\",\"verdict\":1,\"more\":-4,\"facts\":[1,null,{},{\"kind\":7},"
                               "{\"kind\":\"gpu-xid\"},{\"kind\":\"of a newer agent\",\"text\":\"x\"}]}"),
                     0);
    assert_null(roll_feed_next(f->feed));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(give_note(f, "{\"note\":\"attached-unseen\",\"pid\":5,\"rank\":1,\"host\":\"n\\u001b[31m\","
                                      "\"exe\":\"train\",\"reason\":\"its thread NCCL Service 0 runs\"}"),
                         0);
    }
    json_t *verdict = json_of_verdict(roll_feed_next(f->feed));
    assert_non_null(verdict);
    assert_string_equal(json_string_value(json_object_get(verdict, "code")), "attached-unseen");
    assert_string_equal(json_string_value(json_object_get(verdict, "culprits_text")), "1");
    const char *text = json_string_value(json_object_get(verdict, "text"));
    assert_non_null(strstr(text, "pid 5 on n?[31m")); /* nothing that a terminal would obey */
    json_decref(verdict);
    assert_null(roll_feed_next(f->feed));
}

/* An agent sends a STATUS twice a second for a process that runs on; only one that changes something is worth a place
 * in a trace.
 */
static void test_a_status_that_says_nothing_new_is_told_apart(void **state)
{
    (void)state;
    const struct roll_frame_status before = {.head = 7,
                                             .clock_mono_ns = 1000,
                                             .clock_real_ns = UINT64_C(1700000000000000000),
                                             .proc_state = ROLL_PROC_RUNNING,
                                             .exit_status = ROLL_EXIT_UNKNOWN};
    struct roll_frame_status now = before, changed;
    now.clock_mono_ns += 500000000;
    now.clock_real_ns += 500000123; /* noise of reading two clocks */
    now.head = 9;                   /* the ring's records come by themselves */
    assert_false(roll_feed_status_is_news(&before, &now));
    changed = now;
    changed.clock_real_ns += 2000000; /* the clock was set */
    assert_true(roll_feed_status_is_news(&before, &changed));
    changed = now;
    changed.losses[0] = 1;
    assert_true(roll_feed_status_is_news(&before, &changed));
    changed = now;
    changed.proc_state = ROLL_PROC_STOPPED;
    assert_true(roll_feed_status_is_news(&before, &changed));
    changed = now;
    changed.exit_status = 0;
    assert_true(roll_feed_status_is_news(&before, &changed));
    changed.proc_state = ROLL_PROC_DEAD;
    assert_true(
        roll_feed_status_is_news(&changed, &changed)); /* the rest of its records may be said to be lost by it */
    struct roll_frame_status none = {.proc_state = 0};
    assert_true(roll_feed_status_is_news(&none, &now));
}

static int tell_settings(roll_feed_t *feed, uint64_t stall_ns, uint64_t suspect_ns, uint32_t policy)
{
    struct roll_frame_settings settings = {stall_ns, suspect_ns, policy, 0};
    struct roll_frame frame = {.head = {.type = ROLL_FRAME_SETTINGS, .payload = sizeof(settings)},
                               .payload = (const uint8_t *)&settings};
    return roll_feed_frame(feed, &frame);
}

static void test_settings_hold_from_their_frame_on(void **state)
{
    struct fixture *f = *state;
    struct roll_engine_config now;
    assert_int_equal(tell_settings(f->feed, 123, 456, ROLL_POLICY_AUTO), 0);
    assert_int_equal(tell_settings(f->feed, 0, 456, ROLL_POLICY_AUTO), ROLL_E_CORRUPT);
    assert_int_equal(tell_settings(f->feed, 123, ROLL_SETTINGS_MOST_NS + 1, ROLL_POLICY_AUTO), ROLL_E_CORRUPT);
    assert_int_equal(tell_settings(f->feed, 123, 456, ROLL_POLICY_AUTO + 1), ROLL_E_CORRUPT);
    roll_engine_settings(roll_feed_engine(f->feed), &now);
    assert_int_equal(now.stall_ns, 123);
    assert_int_equal(now.suspect_ns, 456);
    assert_int_equal(now.policy, ROLL_POLICY_AUTO);
    roll_feed_fix_policy(f->feed); /* analyze --policy */
    assert_int_equal(tell_settings(f->feed, 124, ROLL_SETTINGS_MOST_NS, ROLL_POLICY_OBSERVE), 0);
    roll_engine_settings(roll_feed_engine(f->feed), &now);
    assert_int_equal(now.stall_ns, 124);
    assert_int_equal(now.suspect_ns, ROLL_SETTINGS_MOST_NS);
    assert_int_equal(now.policy, ROLL_POLICY_AUTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_records_that_come_twice_are_fed_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_definitions_that_come_twice_are_taken_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_gap_is_a_loss_of_its_size, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_call_stays_open_until_its_update, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_resent_record_that_has_returned_counts_as_update, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_frames_of_unknown_rings_and_other_runs_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_damaged_header_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_a_dead_process_never_sent_is_lost, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_older_than_a_recording_is_not_lost, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_lies_between_repeated_calls_is_older_as_well, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_lacking_and_no_ring_counts_was_dropped_on_its_way, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_the_same_frames_give_the_same_verdict, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_verdict_outlives_its_feed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_node_whose_clock_is_ahead_raises_no_alarm, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_node_whose_clock_is_behind_raises_no_alarm, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_verdict_shows_the_stamp_and_a_tick_frame_carries_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_rank_is_heard_as_soon_as_its_agent_says_anything, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_whole_ring_feeds_like_its_frames, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_note_becomes_a_verdict_once_and_a_bad_one_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_settings_hold_from_their_frame_on, set_up, tear_down),
        cmocka_unit_test(test_a_status_that_says_nothing_new_is_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
