/*
 * doctor_history.c: for how many seconds a ring holds a rank's calls.
 *
 * Where records are asked for only when something does not agree (docs/SCALE.md), they have to be there still when that
 * is noticed, asked for and looked at again: a stall is told after seconds, and a second look goes further back. What
 * is no longer there costs certainty. How fast a job calls only the job knows; so a figure is given for two rates, and
 * of a running process for its own.
 */
#include "daemon/console/doctor/doctor.h"

#include "daemon/console/place.h"
#include "daemon/console/text.h"

#include <stdio.h>

#define NEEDS_S       30.0    /* what a look at the records needs: patience, asking, and a look further back */
#define RATE_USUAL    500.0   /* calls of a rank in a second: a step of some 30 ms on four communicators */
#define RATE_HIGH     10000.0 /* small messages and many communicators */
#define RATE_MEASURED 1000u   /* records from which a rate is measured */

/* The next size of a ring that holds so many seconds; 0: none does. */
static uint64_t records_for(double calls_per_s)
{
    uint64_t records = ROLL_RING_MIN_RECORDS;
    while (records < ROLL_RING_MAX_RECORDS && (double)records < NEEDS_S * calls_per_s) {
        records *= 2;
    }
    return (double)records < NEEDS_S * calls_per_s ? 0 : records;
}

static int put_advice(double calls_per_s, char *out, size_t size)
{
    uint64_t records = records_for(calls_per_s);
    return records == 0 ? snprintf(out, size, "no ring is large enough for %.0f s", NEEDS_S)
                        : snprintf(out, size, "ROLLCALL_RING_RECORDS=%llu holds %.0f s (%llu MiB a rank)",
                                   (unsigned long long)records, (double)records / calls_per_s,
                                   (unsigned long long)(records * ROLL_RECORD_BYTES >> 20));
}

enum roll_health roll_history_words(uint64_t records, double calls_per_s, char *out, size_t size)
{
    char advice[128];
    double rate = calls_per_s > 0 ? calls_per_s : RATE_USUAL;
    double holds_s = (double)records / rate;
    bool enough = holds_s >= NEEDS_S;
    char held[32], a_second[32];
    int n = snprintf(out, size, "%s records hold %.1f s of calls at %s%s a second",
                     roll_count_text(records, held, sizeof(held)), holds_s, calls_per_s > 0 ? "its " : "",
                     roll_count_text((uint64_t)(rate + 0.5), a_second, sizeof(a_second)));
    if (calls_per_s <= 0 && n > 0 && (size_t)n < size) {
        n += snprintf(out + n, size - (size_t)n, ", %.1f s at %s", (double)records / RATE_HIGH,
                      roll_count_text((uint64_t)RATE_HIGH, a_second, sizeof(a_second)));
    }
    bool high = calls_per_s <= 0 && (double)records / RATE_HIGH < NEEDS_S;
    if ((!enough || high) && n > 0 && (size_t)n < size) {
        (void)put_advice(enough ? RATE_HIGH : rate, advice, sizeof(advice));
        snprintf(out + n, size - (size_t)n, "%s%s",
                 enough ? "; for such a job " : "; a look back needs 30 s: ", advice);
    }
    return enough ? ROLL_HEALTH_OK : ROLL_HEALTH_WARN;
}

void roll_checkup_history(struct roll_checkup *c)
{
    char text[256];
    enum roll_health health = roll_history_words(roll_place_ring_records(), 0, text, sizeof(text));
    roll_checkup_say(c, "history", health, "%s", text);
}

/* Of the records that the ring holds: how many a second. 0: too few to say. */
static double rate_of(const struct roll_ring *ring)
{
    uint64_t head = roll_ring_head(ring), slots = ring->mask + 1;
    uint64_t first = head > slots ? head - slots + slots / 16 : 0; /* the oldest are being written over */
    struct roll_record old, new;
    if (head < first + RATE_MEASURED || roll_ring_get(ring, first, &old) != 0 ||
        roll_ring_get(ring, head - 1, &new) != 0 || new.enter_ns <= old.enter_ns) {
        return 0;
    }
    return (double)(head - 1 - first) * 1e9 / (double)(new.enter_ns - old.enter_ns);
}

void roll_checkup_ring_history(struct roll_checkup *c, const struct roll_ring *ring)
{
    char text[256];
    double rate = rate_of(ring);
    if (rate <= 0) {
        roll_checkup_say(c, "its history", ROLL_HEALTH_INFO, "%llu records; it has made too few calls to say how fast",
                         (unsigned long long)(ring->mask + 1));
        return;
    }
    enum roll_health health = roll_history_words(ring->mask + 1, rate, text, sizeof(text));
    roll_checkup_say(c, "its history", health, "%s", text);
}
