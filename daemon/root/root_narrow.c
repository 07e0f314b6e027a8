/*
 * root_narrow.c: when a case that has the calls on some communicators alone (agent_narrow.c) is begun anew with all
 * records of those concerned.
 *
 * Where the wrong call has made others stand, the engine has to see that they do, and needs all records for that. Where
 * all go on, nothing is gained by them: by the time that they are asked for, the job has left the place far behind, and
 * an engine that gets them names nobody. So the case is kept while a rank stands for a moment only, and an agent that
 * is late is waited for, though not for ever (NARROW_MOST_NS). To give every case the same time was rejected: beside
 * other work a moment is longer than what is enough elsewhere.
 */
#include "daemon/root/root_digest.h"

#define FRONT_NS       (200 * ROLL_MS)   /* digests tell how far members have come every 0.1 s */
#define SETTLE_NS      (1000 * ROLL_MS)  /* what the engine says of records that are there it has said by then */
#define NARROW_NS      (3000 * ROLL_MS)  /* ranks that go on have come to the place by then, if all are seen; */
#define NARROW_MOST_NS (10000 * ROLL_MS) /* and no longer is waited for them */

/* All of the run has been seen for so long, since this moment and since somebody was not seen last: what has not come
 * in this time was not made. */
static bool was_seen_since(const struct roll_digested *d, uint64_t since, uint64_t ns, uint64_t now)
{
    return now > since + ns && now > d->dark_ns + ns;
}

/* The wrong call has made others stand: the first members have come no further since the case was opened, or somebody
 * stands there and the others have come no further since. */
static bool hangs_there(struct roll_digested *d, uint64_t now)
{
    uint64_t front = roll_case_front(d);
    if (d->stalls_there && front > d->stall_front) {
        d->stall_front = front;
        d->stall_ns = now;
    }
    return (was_seen_since(d, d->fed_ns, FRONT_NS, now) && front <= d->front) ||
           (d->stalls_there && was_seen_since(d, d->stall_ns, FRONT_NS, now) && roll_case_any_stands(d, true));
}

bool roll_case_wants_all(struct roll_digested *d, uint64_t now)
{
    uint64_t since = d->engine_news ? d->rest_ns : d->fed_ns;
    bool elsewhere = d->stalls && d->engine_news && now > since + SETTLE_NS && roll_case_any_stands(d, false);
    bool late = was_seen_since(d, since, NARROW_NS, now) || now > since + NARROW_MOST_NS;
    return elsewhere || (!d->named && hangs_there(d, now)) || (!d->engine_news && late);
}
