/*
 * test_merge.c: traces of several agents, merged: in which order their frames are fed, how far time passes, and what a
 * trace that ends or holds a bad frame does to the others.
 */
#include "tests/daemon/synth.h"
#include "tests/trace/cmocka_all.h"

#include "daemon/feed/merge.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST   64
#define SECOND UINT64_C(1000000000)

/* a trace in memory */

struct written {
    struct roll_frame frame[MOST];
    uint64_t wall[MOST]; /* payloads of ticks */
    struct roll_record rec[MOST];
    size_t used, at, records;
    int end; /* what `next` returns behind the last frame */
};

static char order[2 * MOST]; /* the frames in the order in which they are read: a or b, then a letter */
static struct written a, b;

static char letter_of(uint16_t type)
{
    switch (type) {
    case ROLL_FRAME_RING:
        return 'R';
    case ROLL_FRAME_DEFS:
        return 'D';
    case ROLL_FRAME_RECORDS:
        return 'r';
    case ROLL_FRAME_TICK:
        return 'T';
    default:
        return '?';
    }
}

static int next(void *ctx, struct roll_frame *frame)
{
    struct written *w = ctx;
    if (w->at == w->used) {
        return w->end;
    }
    *frame = w->frame[w->at++];
    snprintf(order + strlen(order), sizeof(order) - strlen(order), "%c%c", w == &a ? 'a' : 'b',
             letter_of(frame->head.type));
    return 0;
}

static void put(struct written *w, struct roll_frame_head head, const void *payload, size_t bytes)
{
    assert_true(w->used < MOST);
    head.payload = (uint32_t)bytes;
    w->frame[w->used++] = (struct roll_frame){.head = head, .payload = payload};
}

static void put_tick(struct written *w, uint64_t wall_ns)
{
    uint64_t *wall = &w->wall[w->used];
    *wall = wall_ns;
    put(w, (struct roll_frame_head){.type = ROLL_FRAME_TICK, .seq = 1}, wall, sizeof(*wall));
}

static void put_ring(struct written *w, const struct synth *s)
{
    const struct roll_ring_header *h = s->ring.header;
    put(w, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = h->epoch}, h, sizeof(*h));
    put(w, (struct roll_frame_head){.type = ROLL_FRAME_DEFS, .stream = h->epoch}, s->ring.defs, h->defs_used);
}

static void put_record(struct written *w, const struct synth *s, uint64_t ticket)
{
    struct roll_record *rec = &w->rec[w->records++];
    assert_int_equal(roll_ring_get(&s->ring, ticket, rec), 0);
    put(w,
        (struct roll_frame_head){.type = ROLL_FRAME_RECORDS,
                                 .stream = s->ring.header->epoch,
                                 .first = ticket,
                                 .rec_size = ROLL_RECORD_BYTES,
                                 .count = 1},
        rec, sizeof(*rec));
}

/* two ranks: both make a call, and rank 0 waits in the next one */

struct job {
    char dir[64];
    struct synth rank[2];
    roll_feed_t *feed;
    uint64_t begin_ns; /* by the wall clock of the rings */
};

static int set_up(void **state)
{
    struct job *job = calloc(1, sizeof(*job));
    struct roll_engine_config config = {0};
    snprintf(job->dir, sizeof(job->dir), "/tmp/roll_merge_XXXXXX");
    assert_non_null(mkdtemp(job->dir));
    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    a.end = b.end = ROLL_E_NOTFOUND;
    order[0] = '\0';
    for (int r = 0; r < 2; r++) {
        assert_int_equal(synth_open(&job->rank[r], job->dir, "job", r, 2, 64), 0);
        uint16_t comm = synth_comm(&job->rank[r], 0x1000);
        synth_allreduce(&job->rank[r], &(struct synth_call){.comm = comm, .count = 8});
        if (r == 0) {
            synth_allreduce(&job->rank[r], &(struct synth_call){.comm = comm, .count = 8, .hang = true});
        }
        put_ring(r == 0 ? &a : &b, &job->rank[r]);
        put_record(r == 0 ? &a : &b, &job->rank[r], 0);
    }
    put_record(&a, &job->rank[0], 1);
    struct roll_record last;
    assert_int_equal(roll_ring_get(&job->rank[0].ring, 1, &last), 0);
    const struct roll_ring_header *h = job->rank[0].ring.header;
    job->begin_ns = last.enter_ns + h->clock_real_ns - h->clock_mono_ns;
    job->feed = roll_feed_new(&config, NULL, 0);
    assert_non_null(job->feed);
    *state = job;
    return 0;
}

static int tear_down(void **state)
{
    struct job *job = *state;
    for (int r = 0; r < 2; r++) {
        synth_close(&job->rank[r]);
        unlink(job->rank[r].path);
    }
    roll_feed_destroy(&job->feed);
    assert_int_equal(rmdir(job->dir), 0);
    free(job);
    return 0;
}

static int merge(struct job *job, bool *refused)
{
    struct roll_merge_trace trace[2] = {{.next = next, .ctx = &a}, {.next = next, .ctx = &b}};
    *refused = false;
    return roll_merge_traces(job->feed, trace, 2, refused);
}

/* Whether a verdict with this code has been given; all that have been given are taken. */
static bool said(struct job *job, enum roll_verdict_code code)
{
    bool found = false;
    for (struct roll_verdict_copy *v; (v = roll_feed_next(job->feed)) != NULL;) {
        found = found || v->said.code == code;
        roll_verdict_copy_destroy(&v);
    }
    return found;
}

static void the_oldest_frame_of_all_is_fed_next(void **state)
{
    struct job *job = *state;
    bool refused;
    put_tick(&a, job->begin_ns + 1 * SECOND);
    put_tick(&b, job->begin_ns + 2 * SECOND);
    put_tick(&b, job->begin_ns + 3 * SECOND);
    put_tick(&a, job->begin_ns + 4 * SECOND);
    assert_int_equal(merge(job, &refused), 0);
    assert_false(refused);
    /* Each is one frame ahead of what is fed: RING of both, DEFS and records of a, then of b, then the ticks.
     */
    assert_string_equal(order, "aRbRaDararaTbDbrbTaTbT");
}

/* Healthy twin of the next: nobody is late where the clock of one trace stands for its whole node. */
static void time_passes_only_as_far_as_all_have_come(void **state)
{
    struct job *job = *state;
    bool refused;
    put_tick(&b, job->begin_ns + 1 * SECOND); /* and then no more: its rank still ran */
    for (unsigned i = 1; i <= 30; i++) {
        put_tick(&a, job->begin_ns + i * SECOND);
    }
    assert_int_equal(merge(job, &refused), 0);
    assert_false(refused);
    assert_int_equal(a.at, a.used);
    assert_int_equal(b.at, b.used);
    assert_false(said(job, ROLL_VERDICT_RANK_BUSY));
}

static void who_does_not_come_is_told_when_both_have_come_so_far(void **state)
{
    struct job *job = *state;
    bool refused;
    for (unsigned i = 1; i <= 30; i++) {
        put_tick(&a, job->begin_ns + i * SECOND);
        put_tick(&b, job->begin_ns + i * SECOND);
    }
    assert_int_equal(merge(job, &refused), 0);
    assert_false(refused);
    assert_true(said(job, ROLL_VERDICT_RANK_BUSY));
}

static void a_frame_that_is_refused_costs_only_itself(void **state)
{
    struct job *job = *state;
    bool refused;
    struct roll_feed_stream view;
    put(&a, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = 12345}, NULL, 0); /* was never announced */
    put_tick(&a, job->begin_ns + SECOND);
    put_tick(&b, job->begin_ns + SECOND);
    assert_int_equal(merge(job, &refused), 0);
    assert_true(refused);
    for (int r = 0; r < 2; r++) {
        assert_true(roll_feed_find(job->feed, job->rank[r].ring.header->epoch, &view));
        assert_int_equal(view.fed, r == 0 ? 2 : 1);
    }
}

static void no_memory_ends_it(void **state)
{
    struct job *job = *state;
    bool refused;
    b.end = ROLL_E_NOMEM;
    assert_int_equal(merge(job, &refused), ROLL_E_NOMEM);
    assert_int_equal(roll_merge_traces(job->feed, NULL, 0, &refused), 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(the_oldest_frame_of_all_is_fed_next),
        TEST(time_passes_only_as_far_as_all_have_come),
        TEST(who_does_not_come_is_told_when_both_have_come_so_far),
        TEST(a_frame_that_is_refused_costs_only_itself),
        TEST(no_memory_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
