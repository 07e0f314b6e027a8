/*
 * test_feed_status.c: what a STATUS and a PLACE change of a ring in the feed: what is lost, by which cause, by which
 * clock its records are read, and where it begins.
 */
#include "daemon/feed/feed.h"
#include "tests/daemon/synth.h"
#include "tests/trace/cmocka_all.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define S_NS INT64_C(1000000000)

struct fixture {
    char dir[64];
    struct synth rank;
    roll_feed_t *feed;
    uint64_t stream, told_ns; /* when the last record was, as somebody was told who watches */
    struct roll_feed_watch watch;
};

static void note_record(void *ctx, roll_feed_t *feed, const struct roll_feed_stream *ring,
                        const struct roll_record *rec, uint64_t real_ns, enum roll_feed_news news)
{
    struct fixture *f = ctx;
    (void)feed, (void)ring, (void)rec, (void)news;
    f->told_ns = real_ns;
}

static void note_definition(void *ctx, roll_feed_t *feed, const struct roll_feed_stream *ring,
                            const struct roll_def *def)
{
    (void)ctx, (void)feed, (void)ring, (void)def;
}

static int give(struct fixture *f, struct roll_frame_head head, const void *payload, size_t bytes)
{
    static uint8_t buffer[ROLL_FRAME_MAX_BYTES];
    struct roll_frame frame;
    head.stream = f->stream;
    int64_t n = roll_frame_encode(&head, payload, bytes, buffer, sizeof(buffer));
    assert_true(n > 0);
    int err = roll_frame_decode(buffer, (size_t)n, &frame, NULL);
    return err ? err : roll_feed_frame(f->feed, &frame);
}

/* A ring with eight calls, of which the feed knows nothing but that it is there. */
static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    strcpy(f->dir, "/tmp/rollcall-status-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    assert_int_equal(synth_open(&f->rank, f->dir, "unit", 0, 2, 1024), 0);
    uint16_t comm = synth_comm(&f->rank, 0x77);
    for (int i = 0; i < 8; i++) {
        synth_allreduce(&f->rank, &(struct synth_call){.comm = comm, .count = 8});
    }
    f->stream = f->rank.ring.header->epoch;
    f->feed = roll_feed_new(&(struct roll_engine_config){0}, NULL, 0);
    f->watch = (struct roll_feed_watch){.ctx = f, .define = note_definition, .record = note_record};
    roll_feed_watch(f->feed, &f->watch);
    const struct roll_ring *ring = &f->rank.ring;
    assert_int_equal(give(f, (struct roll_frame_head){.type = ROLL_FRAME_RING}, ring->header, sizeof(*ring->header)),
                     0);
    assert_int_equal(give(f, (struct roll_frame_head){.type = ROLL_FRAME_DEFS}, ring->defs, ring->header->defs_used),
                     0);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    synth_close(&f->rank);
    unlink(f->rank.path);
    roll_feed_destroy(&f->feed);
    assert_int_equal(rmdir(f->dir), 0);
    free(f);
    return 0;
}

static struct roll_record give_record(struct fixture *f, uint64_t ticket)
{
    struct roll_record rec;
    struct roll_frame_head head = {
        .type = ROLL_FRAME_RECORDS, .first = ticket, .rec_size = ROLL_RECORD_BYTES, .count = 1};
    assert_int_equal(roll_ring_get(&f->rank.ring, ticket, &rec), 0);
    assert_int_equal(give(f, head, &rec, sizeof(rec)), 0);
    return rec;
}

static void give_status(struct fixture *f, const struct roll_frame_status *status)
{
    assert_int_equal(give(f, (struct roll_frame_head){.type = ROLL_FRAME_STATUS}, status, sizeof(*status)), 0);
}

static struct roll_feed_stream view(const struct fixture *f)
{
    struct roll_feed_stream v;
    assert_true(roll_feed_find(f->feed, f->stream, &v));
    return v;
}

static void test_records_of_a_living_process_are_on_their_way(void **state)
{
    struct fixture *f = *state;
    (void)give_record(f, 0);
    give_status(f, &(struct roll_frame_status){.head = 8, .proc_state = ROLL_PROC_RUNNING});
    assert_int_equal(view(f).lost, 0);
    (void)give_record(f, 1);
    assert_int_equal(view(f).next_ticket, 2);
    give_status(f, &(struct roll_frame_status){.head = 8, .proc_state = ROLL_PROC_STOPPED});
    assert_int_equal(view(f).lost, 0);
}

static void test_losses_are_those_of_the_newest_status(void **state)
{
    struct fixture *f = *state;
    struct roll_frame_status status = {.proc_state = ROLL_PROC_RUNNING, .losses = {[ROLL_LOSS_OVERRUN] = 5}};
    give_status(f, &status);
    assert_int_equal(view(f).losses[ROLL_LOSS_OVERRUN], 5);
    status.losses[ROLL_LOSS_OVERRUN] = 7;
    status.losses[ROLL_LOSS_CORRUPT] = 1;
    give_status(f, &status);
    assert_int_equal(view(f).losses[ROLL_LOSS_OVERRUN], 7);
    assert_int_equal(view(f).losses[ROLL_LOSS_CORRUPT], 1);
}

static void test_records_are_read_by_the_clock_of_the_newest_status(void **state)
{
    struct fixture *f = *state;
    struct roll_frame_status status = {.proc_state = ROLL_PROC_RUNNING, .clock_mono_ns = S_NS};
    for (uint64_t i = 0; i < 2; i++) { /* set forward, and back again */
        uint64_t offset = (i == 0 ? 9 : 4) * (uint64_t)S_NS;
        status.clock_real_ns = status.clock_mono_ns + offset;
        give_status(f, &status);
        struct roll_record rec = give_record(f, i);
        assert_int_equal(f->told_ns, rec.enter_ns + offset);
    }
}

static void test_a_ring_begins_where_its_place_says(void **state)
{
    struct fixture *f = *state;
    struct roll_frame_place none = {.op = ROLL_OP_NONE};
    assert_int_equal(give(f, (struct roll_frame_head){.type = ROLL_FRAME_PLACE, .first = 5}, &none, 0), 0);
    assert_int_equal(view(f).next_ticket, 5);
    (void)give_record(f, 5);
    assert_int_equal(view(f).lost, 0);
    assert_int_equal(view(f).fed, 1);
    /* Behind its first record such a word has no meaning any more. */
    assert_int_equal(give(f, (struct roll_frame_head){.type = ROLL_FRAME_PLACE, .first = 2}, &none, 0), 0);
    assert_int_equal(view(f).next_ticket, 6);
}

static void give_sight(struct fixture *f, uint32_t starved)
{
    struct roll_frame_sight sight = {.heard = 1, .starved = starved};
    assert_int_equal(give(f, (struct roll_frame_head){.type = ROLL_FRAME_SIGHT}, &sight, sizeof(sight)), 0);
}

/* Of a ring of which only a part of the records comes, what comes says nothing of how it is heard. */
static void test_what_comes_of_a_ring_that_stays_aside_leaves_it_there(void **state)
{
    struct fixture *f = *state;
    uint32_t starved = 1;
    give_sight(f, 70);
    assert_true(roll_feed_starved(f->feed, f->stream, &starved));
    assert_int_equal(starved, 70);
    assert_false(roll_feed_starved(f->feed, f->stream + 1, &starved));
    assert_int_equal(starved, 0);
    assert_int_equal(roll_feed_aside(f->feed, f->stream + 1, 0, true), ROLL_E_NOTFOUND);
    assert_int_equal(roll_feed_aside(f->feed, f->stream, 60, true), 0);
    (void)give_record(f, 0);
    give_status(f, &(struct roll_frame_status){.head = 8, .proc_state = ROLL_PROC_RUNNING});
    assert_false(view(f).heard);
    assert_int_equal(view(f).fed, 1);
    give_sight(f, 50);
    assert_true(view(f).heard);
    assert_int_equal(roll_feed_aside(f->feed, f->stream, 50, false), 0);
    assert_false(view(f).heard);
    (void)give_record(f, 1);
    assert_true(view(f).heard);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_records_of_a_living_process_are_on_their_way),
        TEST(test_losses_are_those_of_the_newest_status),
        TEST(test_records_are_read_by_the_clock_of_the_newest_status),
        TEST(test_a_ring_begins_where_its_place_says),
        TEST(test_what_comes_of_a_ring_that_stays_aside_leaves_it_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
