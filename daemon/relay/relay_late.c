/*
 * relay_late.c: how late the relay is, and those below it, as its heartbeats tell (struct roll_frame_heartbeat).
 *
 * The level above hears one peer where there are many, and hears it as ever while some of them are late. So the relay
 * does for its children what a root does for its peers (root_late.c), and adds it up: no level above needs to know them
 * one by one.
 */
#include "daemon/relay/relay_state.h"

#include "daemon/base/clock.h"
#include "daemon/feed/clock.h"

#include <string.h>

#define TURN_NS (20 * ROLL_MS)   /* the loop comes round as often at least */
#define BEAT_NS (100 * ROLL_MS)  /* heartbeats of those below */
#define WENT_NS (1000 * ROLL_MS) /* of a turn no more counts as going round: it was stopped */

void roll_relay_late_turn(struct roll_relay *r, uint64_t now)
{
    uint64_t gap = r->turn_ns ? now - r->turn_ns : 0;
    r->turn_ns = now;
    r->went_ns += gap < WENT_NS ? gap : WENT_NS;
    if (gap >= ROLL_LATE_BEAT_NS) {
        r->late_ns += gap - TURN_NS;
        r->closed_ns += gap;
    }
}

uint64_t roll_relay_silence_ns(const struct roll_relay *r, const struct relay_child *child, uint64_t now)
{
    uint64_t silent = now - child->seen_ns, closed = r->closed_ns - child->closed_ns;
    return silent > closed ? silent - closed : 0;
}

/* As at the root (root_late.c): closed eyes must not excuse a dead child for ever. */
bool roll_relay_is_lost(const struct roll_relay *r, const struct relay_child *child, uint64_t now)
{
    return roll_relay_silence_ns(r, child, now) > ROLL_FEED_UNSEEN_NS ||
           r->went_ns - child->went_ns > ROLL_LATE_LOST_NS;
}

static void note_below(struct roll_relay *r, uint64_t late_ns)
{
    r->below_now_ns = late_ns > r->below_now_ns ? late_ns : r->below_now_ns;
}

void roll_relay_late_heard(struct roll_relay *r, struct relay_child *child, uint64_t now)
{
    uint64_t silent = roll_relay_silence_ns(r, child, now);
    if (child->synced && !child->silent) {
        (void)roll_late_missed_gap(&r->missed, child->seen_ns, now);
        if (silent >= ROLL_LATE_BEAT_NS) {
            note_below(r, silent - BEAT_NS);
        }
    }
    child->seen_ns = now;
    child->closed_ns = r->closed_ns;
    child->went_ns = r->went_ns;
}

void roll_relay_late_beat(struct roll_relay *r, struct relay_child *child, const struct roll_frame_heartbeat *beat,
                          uint64_t now)
{
    const struct roll_frame_heartbeat *old = &child->beat;
    if (beat->made_ns != 0 && old->made_ns != 0 && beat->late_ns >= old->late_ns && beat->below_ns >= old->below_ns &&
        beat->missed_ns >= old->missed_ns) {
        uint64_t unseen = beat->missed_ns - old->missed_ns;
        unseen = unseen < ROLL_LATE_HEARD_NS ? unseen : ROLL_LATE_HEARD_NS;
        note_below(r, beat->late_ns - old->late_ns);
        note_below(r, beat->below_ns - old->below_ns);
        (void)roll_late_missed_add(&r->missed, now - unseen, now);
    }
    /* The first total of a child counts what is past: of one that was known under another name, again. */
    uint64_t refused = child->has_beat && beat->refused >= old->refused ? beat->refused - old->refused : 0;
    child->has_beat = true;
    r->refused_below += child->relay && refused < ROLL_REFUSED_MOST ? refused : 0; /* it may say anything */
    if (beat->made_ns != 0) {
        (void)roll_late_link_took(&child->link, beat->made_ns, now);
    }
    child->beat = *beat;
}

void roll_relay_late_tell(struct roll_relay *r, struct roll_frame_heartbeat *beat, uint64_t now)
{
    r->below_ns += r->below_now_ns;
    r->below_now_ns = 0;
    *beat = (struct roll_frame_heartbeat){.agents = (uint32_t)r->children,
                                          .made_ns = now,
                                          .late_ns = r->late_ns,
                                          .below_ns = r->below_ns,
                                          .missed_ns = r->missed.total_ns,
                                          .refused = r->refused + r->refused_below};
    for (size_t i = 0; i < r->rings; i++) {
        const struct relay_child *child = r->ring[i].child;
        uint64_t age = r->ring[i].live && child && !child->silent ? now - child->seen_ns + child->link.late_ns : 0;
        beat->unheard += age >= ROLL_LATE_HEARD_NS;
        beat->look_ns = age >= ROLL_LATE_HEARD_NS && age > beat->look_ns ? age : beat->look_ns;
    }
    for (size_t i = 0; i < r->children; i++) {
        const struct relay_child *child = r->child[i];
        beat->unheard += child->silent ? 0 : child->beat.unheard;
        beat->look_ns = !child->silent && child->beat.look_ns > beat->look_ns ? child->beat.look_ns : beat->look_ns;
    }
}
