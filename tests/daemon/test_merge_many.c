/*
 * test_merge_many.c: hundreds of traces side by side: the order of their frames is that of the plain rule, by which all
 * traces are looked at for each frame, and time passes as far as that rule says: what some frames note bears the time
 * at which they were fed.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/feed/merge.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRACES 200u
#define FRAMES 60u
#define STEPS  (TRACES * FRAMES)
#define NOTES  30u /* traces whose last frame is a note */

/* A trace of ticks and of frames that the feed does not look into; at its end there may be a note. */
struct made {
    uint64_t wall[FRAMES]; /* of a tick; 0: another frame */
    char note[96];         /* "" = none */
    uint32_t used, at;
    uint64_t now; /* of the plain rule: the last tick */
    uint32_t taken;
};

static struct made made[TRACES];
static uint32_t order[STEPS], steps;
static uint64_t random_state;

static uint64_t draw(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}

/* Many ticks are of one time, some go back, some traces are empty, and some end early. */
static void make(uint64_t seed)
{
    memset(made, 0, sizeof(made));
    steps = 0;
    random_state = seed * 0x9e3779b97f4a7c15u + 1;
    for (uint32_t i = 0; i < TRACES; i++) {
        uint64_t wall = 1000 + draw(5);
        made[i].used = draw(10) == 0 ? (uint32_t)draw(3) : FRAMES - (uint32_t)draw(FRAMES / 4);
        for (uint32_t k = 0; k < made[i].used; k++) {
            wall = draw(20) == 0 ? wall - draw(9) : wall + draw(4);
            made[i].wall[k] = draw(3) == 0 ? wall : 0;
        }
        if (i < NOTES && made[i].used > 0) {
            snprintf(made[i].note, sizeof(made[i].note), "{\"note\":\"attached-unseen\",\"pid\":%u,\"host\":\"n\"}",
                     i + 1);
            made[i].wall[made[i].used - 1] = 0;
        }
    }
}

static int next(void *ctx, struct roll_frame *frame)
{
    struct made *m = ctx;
    if (m->at == m->used) {
        return ROLL_E_NOTFOUND;
    }
    order[steps++] = (uint32_t)(m - made);
    uint64_t *wall = &m->wall[m->at++];
    frame->head = (struct roll_frame_head){.type = ROLL_FRAME_HEARTBEAT};
    frame->payload = NULL;
    if (*wall != 0) {
        frame->head = (struct roll_frame_head){.type = ROLL_FRAME_TICK, .seq = 1, .payload = sizeof(*wall)};
        frame->payload = (const uint8_t *)wall;
    } else if (m->at == m->used && m->note[0] != '\0') {
        frame->head = (struct roll_frame_head){.type = ROLL_FRAME_NOTE, .payload = (uint32_t)strlen(m->note)};
        frame->payload = (const uint8_t *)m->note;
    }
    return 0;
}

/* The trace whose next frame the plain rule takes; TRACES: all have ended. */
static uint32_t plain_oldest(void)
{
    uint32_t found = TRACES;
    uint64_t best = 0;
    for (uint32_t i = 0; i < TRACES; i++) {
        const struct made *m = &made[i];
        uint64_t time = m->taken < m->used && m->wall[m->taken] != 0 ? m->wall[m->taken] : m->now;
        if (m->taken < m->used && (found == TRACES || time < best)) {
            found = i;
            best = time;
        }
    }
    return found;
}

/* How far time has come by the plain rule: the least last tick of those that go on. */
static uint64_t plain_time(uint64_t before)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < TRACES; i++) {
        least = made[i].taken < made[i].used && made[i].now < least ? made[i].now : least;
    }
    return least != UINT64_MAX && least > before ? least : before;
}

static void many_traces_are_fed_in_the_order_of_the_plain_rule(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct roll_engine_config config = {0};
        roll_feed_t *feed = roll_feed_new(&config, "job", 0);
        struct roll_merge_trace *trace = calloc(TRACES, sizeof(*trace));
        bool refused = false;
        uint64_t time = 0;
        uint32_t at = 0;
        assert_non_null(feed);
        assert_non_null(trace);
        make(seed);
        for (uint32_t i = 0; i < TRACES; i++) {
            trace[i] = (struct roll_merge_trace){.next = next, .ctx = &made[i]};
        }
        assert_int_equal(roll_merge_traces(feed, trace, TRACES, &refused), 0);
        assert_false(refused);
        /* Each is asked once before anything is fed, and then whenever its frame was. */
        for (uint32_t i = 0; i < TRACES; i++) {
            if (made[i].used > 0) {
                assert_int_equal(order[at++], i);
            }
        }
        for (uint32_t i; (i = plain_oldest()) != TRACES;) {
            struct made *m = &made[i];
            bool tick = m->wall[m->taken] != 0;
            m->now = tick ? m->wall[m->taken] : m->now;
            time = tick ? plain_time(time) : time;
            if (m->taken + 1 == m->used && m->note[0] != '\0') {
                struct roll_verdict_copy *verdict = roll_feed_next(feed);
                assert_non_null(verdict);
                assert_int_equal(verdict->said.time_ns, time);
                roll_verdict_copy_destroy(&verdict);
            }
            if (++m->taken < m->used) {
                assert_int_equal(order[at++], i);
            }
        }
        assert_int_equal(at, steps);
        assert_null(roll_feed_next(feed));
        free(trace);
        roll_feed_destroy(&feed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_traces_are_fed_in_the_order_of_the_plain_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
