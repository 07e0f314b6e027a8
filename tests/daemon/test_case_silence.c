/*
 * test_case_silence.c: what a root does with the silence that agents tell with excerpts: its engine hears of each rank
 * for how long that has stood, where it could run and nothing more has come of it, and begins so long ago.
 *
 * The frames are the test's own, and so is what the root's feed is told (the linker's --wrap).
 */
#include "tests/trace/cmocka_all.h"

#include "tests/daemon/synth.h"
#include "tests/trace/scratch.h"

#include "daemon/root/root_digest.h"
#include "trace/err.h"

#include <string.h>
#include <zmq.h>

#define S (1000 * ROLL_MS)

static uint64_t quiet_ns, first_ns, last_ns; /* what the feed was told: silence, the first tick, and the last */
static bool told, ticked;

int __wrap_roll_feed_quiet(roll_feed_t *feed, uint64_t stream, uint64_t ns);
int __real_roll_feed_quiet(roll_feed_t *feed, uint64_t stream, uint64_t ns);
int __wrap_roll_feed_tick(roll_feed_t *feed, uint64_t now_ns);
int __real_roll_feed_tick(roll_feed_t *feed, uint64_t now_ns);

int __wrap_roll_feed_quiet(roll_feed_t *feed, uint64_t stream, uint64_t ns)
{
    int err = __real_roll_feed_quiet(feed, stream, ns);
    assert_int_equal(err, 0);
    assert_false(told);
    told = true;
    quiet_ns = ns;
    return err;
}

int __wrap_roll_feed_tick(roll_feed_t *feed, uint64_t now_ns)
{
    first_ns = ticked ? first_ns : now_ns;
    last_ns = now_ns;
    ticked = true;
    return __real_roll_feed_tick(feed, now_ns);
}

static const struct row {
    const char *name;
    uint32_t flags;
    uint32_t starved;
    bool more; /* a record came behind the excerpt */
    bool told;
    uint64_t quiet_ns, begins_ns; /* begins_ns: so long ago the engine's clock begins */
} rows[] = {
    {"it has stood for 4 s", ROLL_EXCERPT_ALL | 40u << ROLL_EXCERPT_QUIET, 0, false, true, 4 * S, 4 * S},
    {"it is not known whether it has stood", ROLL_EXCERPT_ALL, 0, false, true, 0, 0},
    {"it has stood for an hour", ROLL_EXCERPT_ALL | 36000u << ROLL_EXCERPT_QUIET, 0, false, true, 60 * S, 60 * S},
    {"it has gone on", ROLL_EXCERPT_ALL | 40u << ROLL_EXCERPT_QUIET, 0, true, true, 0, 0},
    {"it was starved", ROLL_EXCERPT_ALL | 40u << ROLL_EXCERPT_QUIET, 300, false, false, 0, 4 * S},
    {"nothing is wanted of it", ROLL_EXCERPT_ASIDE, 0, false, false, 0, 0},
    {"it was cut", ROLL_EXCERPT_ALL | ROLL_EXCERPT_CUT, 0, false, false, 0, 0},
    {"it was cut behind all that is wanted", ROLL_EXCERPT_ALL | ROLL_EXCERPT_CUT | ROLL_EXCERPT_PASSED, 0, false, false,
     0, 0},
};

static void say(struct roll_run *run,
                int (*to)(struct roll_run *run, const struct roll_frame *frame, const void *raw, size_t bytes),
                struct roll_frame_head head, const void *payload, size_t bytes)
{
    uint8_t raw[ROLL_FRAME_HEAD_BYTES + ROLL_RING_HEADER_BYTES];
    struct roll_frame frame;
    int64_t n = roll_frame_make(&head, payload, bytes, raw, sizeof(raw), &frame);
    assert_true(n > 0);
    assert_int_equal(to(run, &frame, raw, (size_t)n), 0);
}

static int ring(struct roll_run *run, const struct roll_frame *frame, const void *raw, size_t bytes)
{
    (void)raw;
    (void)bytes;
    roll_digested_ring(run, frame);
    return roll_feed_frame(run->feed, frame);
}

static int sight(struct roll_run *run, const struct roll_frame *frame, const void *raw, size_t bytes)
{
    (void)raw;
    (void)bytes;
    return roll_feed_frame(run->feed, frame);
}

static void check(const struct row *row)
{
    char dir[64], why[256] = "";
    struct synth rank;
    roll_root_t *root = NULL;
    struct roll_run *run = NULL;
    void *context = zmq_ctx_new();
    struct roll_root_options o = {
        .context = context, .listen = {"inproc://root"}, .listens = 1, .compare = ROLL_COMPARE_DIGEST};
    print_message("%s\n", row->name);
    scratch_make(dir);
    assert_int_equal(synth_open(&rank, dir, "job", 0, 1, 64), 0);
    uint64_t stream = rank.ring.header->epoch;
    assert_int_equal(roll_root_new(&o, &root, why, sizeof(why)), 0);
    assert_int_equal(roll_run_of(root, "job", 0, 1, &run), 0);
    assert_non_null(run->digested);
    say(run, ring, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = stream}, rank.ring.header,
        ROLL_RING_HEADER_BYTES);
    struct roll_frame_sight seen = {.heard = 1, .starved = row->starved};
    say(run, sight, (struct roll_frame_head){.type = ROLL_FRAME_SIGHT, .stream = stream}, &seen, sizeof(seen));

    roll_case_open(root, run, roll_mono_ns());
    struct roll_frame_head head = {
        .type = ROLL_FRAME_EXCERPT, .stream = stream, .first = run->digested->number, .flags = row->flags};
    if ((row->flags & ROLL_EXCERPT_ASIDE) == 0) {
        struct roll_frame_head begins = head;
        begins.flags = 0;
        say(run, roll_case_frame, begins, rank.ring.header, ROLL_RING_HEADER_BYTES);
    }
    say(run, roll_case_frame, head, NULL, 0);
    bool cut = (row->flags & ROLL_EXCERPT_CUT) != 0, whole = (row->flags & ROLL_EXCERPT_PASSED) != 0;
    assert_int_equal(run->digested->partly, cut && !whole);
    if (row->more) {
        struct roll_record rec = {.seal = roll_seal(0, ROLL_STATE_RETURNED), .op = ROLL_OP_ALLREDUCE};
        say(run, roll_case_frame, (struct roll_frame_head){.type = ROLL_FRAME_RECORDS, .stream = stream, .count = 1},
            &rec, sizeof(rec));
    }
    told = ticked = false;
    roll_case_feed(run, roll_mono_ns());
    assert_int_equal(told, row->told);
    assert_true(!told || quiet_ns == row->quiet_ns);
    assert_true(ticked && last_ns == run->clock.engine_ns && last_ns - first_ns == row->begins_ns);

    roll_root_destroy(&root);
    zmq_ctx_term(context);
    synth_close(&rank);
    scratch_remove(dir);
}

static void test_the_engine_hears_for_how_long_a_rank_has_stood(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        check(&rows[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_engine_hears_for_how_long_a_rank_has_stood),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
