/*
 * clock.c: see clock.h.
 *
 * Ticks are rare where nothing happens and frequent where something does: a tick costs a few bytes of a trace and a few
 * microseconds of the engine. The engine says at a tick, at the latest, what there is to say.
 */
#include "daemon/feed/clock.h"

#include "daemon/base/clock.h"

#define GRAIN_NS  UINT64_C(100000) /* times are rounded to this: ticks are half of an idle job's trace */
#define STAMP_NS  ROLL_MS          /* how old the wall clock that verdicts show may be */
#define STALL_NS  (500 * ROLL_MS)  /* the engine's default */
#define OWED_PART 8u               /* so small a part of the time passes while some is owed */

#define TICK_SOON_NS  (2 * ROLL_MS)  /* between two ticks, when there was input */
#define TICK_NS       (5 * ROLL_MS)  /* the same without input */
#define TICK_QUIET_NS (20 * ROLL_MS) /* the same when there was no input for QUIET_NS */
/* The same, at most, when there was no input for STILL_NS: the job hangs, and its trace would hold little but ticks. */
#define TICK_STILL_NS (100 * ROLL_MS)
#define TICK_OVER_NS  (1000 * ROLL_MS) /* the same when no rank lives and there was no input for OVER_NS */
#define QUIET_NS      (1000 * ROLL_MS)
#define STILL_NS      (10000 * ROLL_MS) /* a finding that the engine says soon after a call is said by then */
#define OVER_NS       (10000 * ROLL_MS)
#define REST_NS       (600000 * ROLL_MS) /* no tick when no rank lives and there was no input for this long */

#define TICK_RECORDS_NS (100 * ROLL_MS) /* recorded time between two ticks: about as often as at a live root */

struct roll_feed_time roll_feed_time_on_grid(uint64_t engine_ns, uint64_t real_ns)
{
    return (struct roll_feed_time){.engine_ns = engine_ns - engine_ns % GRAIN_NS,
                                   .wall_ns = real_ns + (GRAIN_NS - real_ns % GRAIN_NS) % GRAIN_NS};
}

/* the root */

void roll_feed_clock_init(struct roll_feed_clock *clock, uint64_t stall_ns, uint64_t mono_ns)
{
    *clock =
        (struct roll_feed_clock){.stall_ns = stall_ns, .input_ns = mono_ns, .tick_ns = mono_ns, .stands_still = true};
}

void roll_feed_clock_skip(struct roll_feed_clock *clock, uint64_t mono_ns)
{
    clock->tick_ns = mono_ns;
}

void roll_feed_clock_replay(struct roll_feed_clock *clock, uint64_t engine_ns)
{
    clock->engine_ns = engine_ns;
}

void roll_feed_clock_see(struct roll_feed_clock *clock, uint64_t mono_ns, bool all_seen)
{
    if (all_seen) {
        clock->unseen_ns = 0;
        clock->stands_still = false;
        return;
    }
    clock->unseen_ns = clock->unseen_ns ? clock->unseen_ns : mono_ns;
    clock->stands_still = mono_ns - clock->unseen_ns < ROLL_FEED_UNSEEN_NS;
    if (clock->stands_still) {
        roll_feed_clock_skip(clock, mono_ns);
    }
}

void roll_feed_clock_owe(struct roll_feed_clock *clock, uint64_t missed_ns)
{
    clock->owed_ns += missed_ns;
}

void roll_feed_clock_input(struct roll_feed_clock *clock, uint64_t mono_ns, bool moved)
{
    clock->input_ns = moved ? mono_ns : clock->input_ns;
    clock->dirty = true;
}

/* The time between two ticks of a job that stands still: an eighth of a stall, but neither more than TICK_STILL_NS nor
 * less than TICK_QUIET_NS. One tick lets at most a quarter of a stall pass (roll_feed_clock_pass). */
static uint64_t still_tick(const struct roll_feed_clock *clock)
{
    uint64_t eighth = clock->stall_ns ? clock->stall_ns / 8 : TICK_STILL_NS;
    return eighth > TICK_STILL_NS ? TICK_STILL_NS : eighth < TICK_QUIET_NS ? TICK_QUIET_NS : eighth;
}

uint64_t roll_feed_clock_wait_ns(const struct roll_feed_clock *clock, uint64_t mono_ns, bool live)
{
    uint64_t quiet = mono_ns - clock->input_ns, passed = mono_ns - clock->tick_ns, every = TICK_NS;
    if (clock->stands_still) {
        return UINT64_MAX;
    }
    if (clock->dirty) {
        every = TICK_SOON_NS;
    } else if (quiet > REST_NS && !live) {
        return UINT64_MAX; /* everything is judged: a trace of a job that is over does not grow for ever */
    } else if (quiet > OVER_NS && !live) {
        every = TICK_OVER_NS;
    } else if (quiet > STILL_NS) {
        every = still_tick(clock);
    } else if (quiet > QUIET_NS) {
        every = TICK_QUIET_NS;
    }
    return passed < every ? every - passed : 0;
}

bool roll_feed_clock_is_due(const struct roll_feed_clock *clock, uint64_t mono_ns, bool live)
{
    return roll_feed_clock_wait_ns(clock, mono_ns, live) == 0;
}

void roll_feed_clock_pass(struct roll_feed_clock *clock, uint64_t mono_ns, uint64_t real_ns,
                          struct roll_feed_time *time)
{
    uint64_t most = (clock->stall_ns ? clock->stall_ns : STALL_NS) / 4, passed = mono_ns - clock->tick_ns;
    passed = passed < most ? passed : most;
    uint64_t left_out = passed - passed / OWED_PART;
    left_out = clock->owed_ns < left_out ? clock->owed_ns : left_out;
    clock->owed_ns -= left_out;
    clock->engine_ns = clock->engine_ns == 0 ? real_ns : clock->engine_ns + passed - left_out;
    clock->tick_ns = mono_ns;
    clock->dirty = false;
    *time = roll_feed_time_on_grid(clock->engine_ns, real_ns);
    clock->wall_ns = time->wall_ns;
}

bool roll_feed_clock_stamp(struct roll_feed_clock *clock, uint64_t real_ns, struct roll_feed_time *time)
{
    if (real_ns - clock->wall_ns < STAMP_NS) { /* unsigned: a clock that was set back counts too */
        return false;
    }
    *time = roll_feed_time_on_grid(clock->engine_ns, real_ns);
    clock->wall_ns = time->wall_ns;
    return true;
}

/* an agent's own trace */

bool roll_trace_clock_is_due(struct roll_trace_clock *clock, uint64_t mono_ns, bool at_once)
{
    clock->moved_ns = clock->moved || clock->moved_ns == 0 ? mono_ns : clock->moved_ns;
    /* The root's clock ticks as often: the analyzer takes these ticks as its time, as if they were the root's. */
    uint64_t every = mono_ns - clock->moved_ns > STILL_NS ? TICK_STILL_NS : TICK_QUIET_NS;
    if (!clock->moved && !at_once && mono_ns - clock->tick_ns < every) {
        return false;
    }
    clock->moved = false;
    clock->tick_ns = mono_ns;
    return true;
}

/* the analyzer */

bool roll_record_clock_is_due(uint64_t *ticked, uint64_t record_ns)
{
    if (record_ns < *ticked + TICK_RECORDS_NS) {
        return false;
    }
    *ticked = record_ns;
    return true;
}

bool roll_merge_clock_pass(uint64_t *clock, const struct roll_merge_part *part, size_t parts)
{
    uint64_t now = UINT64_MAX;
    for (size_t i = 0; i < parts; i++) {
        if (part[i].ended && part[i].any_runs) {
            return false;
        }
        if (!part[i].ended && part[i].time_ns < now) {
            now = part[i].time_ns;
        }
    }
    if (now == UINT64_MAX || now <= *clock) {
        return false;
    }
    *clock = now;
    return true;
}
