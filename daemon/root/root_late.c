/*
 * root_late.c: which eyes are closed, and for how long: the root's own, those of agents and relays, and the links
 * between them.
 *
 * The engine suspects whom nobody has seen move for a while. That is worth as much as the eyes are: so a moment in
 * which one of them was closed is left out of the engine's patience (feed/clock.h), silence of an agent is counted only
 * while the root itself listened, and people are told which eye it is, in one place for all faces. A verdict about late
 * agents was rejected: it would be a finding about the machine, given in the middle of the trouble that it explains.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/clock.h"

#include <stdio.h>
#include <string.h>

#define TURN_NS (100 * ROLL_MS)          /* the loop comes round as often at least */
#define BEAT_NS (100 * ROLL_MS)          /* heartbeats of agents */
#define SEEN_NS (10 * ROLL_MS)           /* how often it is looked whether all are heard: that takes a look at all */
#define WENT_NS (1000 * ROLL_MS)         /* of a turn no more counts as going round: it was stopped */
#define MOST_NS (86400 * 1000 * ROLL_MS) /* of what a peer says that it was late by at a time: it may say anything */

/* the root */

void roll_root_late_turn(roll_root_t *root, uint64_t now)
{
    struct roll_root_eye *eye = &root->eye;
    uint64_t gap = eye->turn_ns ? now - eye->turn_ns : 0;
    uint64_t late = gap >= ROLL_LATE_BEAT_NS ? gap - TURN_NS : 0;
    late = eye->behind ? gap : late;
    eye->turn_ns = now;
    eye->closed_ns += late;
    eye->late_ns += late;
    eye->went_ns += gap < WENT_NS ? gap : WENT_NS;
}

void roll_root_late_read(roll_root_t *root, uint64_t now, bool behind)
{
    struct roll_root_eye *eye = &root->eye;
    if (now - eye->turn_ns >= ROLL_LATE_BEAT_NS) { /* it was stopped while it read */
        roll_root_late_turn(root, now);
    }
    eye->behind = behind;
    if (!behind && eye->late_ns > 0) { /* while it is behind, its eye is closed */
        roll_late_note(&eye->late, eye->late_ns, now);
        eye->late_ns = 0;
    }
}

uint64_t roll_root_lately(const roll_root_t *root, uint64_t now)
{
    uint64_t lately = roll_late_lately(&root->eye.late, now);
    return lately > root->eye.late_ns ? lately : root->eye.late_ns;
}

/* peers */

uint64_t roll_peer_silence_ns(const roll_root_t *root, const struct roll_peer *peer, uint64_t now)
{
    uint64_t silent = now - peer->seen_ns, closed = root->eye.closed_ns - peer->eye.closed_ns;
    return silent > closed ? silent - closed : 0;
}

/*
 * While the root is slow or behind all the time, its closed eyes must not excuse a dead agent for ever: what it went
 * round for counts as well, with more patience. Until then the runs of the peer's ranks wait (roll_root_late_see), so
 * no engine suspects ranks of which only nobody has told it that they are not heard.
 */
bool roll_peer_is_lost(const roll_root_t *root, const struct roll_peer *peer, uint64_t now)
{
    return roll_peer_silence_ns(root, peer, now) > ROLL_FEED_UNSEEN_NS ||
           root->eye.went_ns - peer->eye.went_ns > ROLL_LATE_LOST_NS;
}

bool roll_peer_is_heard(const struct roll_peer *peer, uint64_t now)
{
    return now - peer->seen_ns + peer->eye.link.late_ns < ROLL_LATE_HEARD_NS;
}

/* runs */

/*
 * How many live ranks have been awaited in full, though nobody holds their rings: no more than are missing now. Where
 * more become so, the engine is to be told that they are not heard.
 */
static void forgo(struct roll_run *run, size_t missing, uint64_t now)
{
    run->forgone = missing < run->forgone ? missing : run->forgone;
    if (missing == run->forgone) {
        run->missing_ns = 0;
    } else if (run->missing_ns == 0) {
        run->missing_ns = now;
    } else if (now - run->missing_ns >= ROLL_FEED_AWAITED_NS) {
        run->forgone = missing;
        run->missing_ns = 0;
        run->forgoes = true;
    }
}

/*
 * Not all is seen while the root itself is behind: then news waits in its sockets. What records prove by themselves is
 * said all the same.
 *
 * The ranks of a peer that is gone are not missed: the engine has been told that they are not heard, and suspects none
 * of those who wait for them. Those of one that has come back are heard again for the engine from its first frame, and
 * what they did meanwhile comes later: until then they are awaited anew, whoever was away for how long before. Ranks of
 * which nobody holds the ring, because their agent has begun anew and not announced it yet, are late like those that
 * are announced; but their agent may be dead, so not for ever (forgo).
 */
void roll_root_late_see(const roll_root_t *root, struct roll_run *run, size_t live, uint64_t now)
{
    size_t seen = 0, held = 0;
    bool late = root->eye.behind;
    run->waits = false;
    for (size_t i = 0; live > 0 && i < root->peers_used; i++) {
        const struct roll_peer *peer = root->peers[i];
        size_t rings = roll_streams_live(peer, run);
        held += rings;
        if (peer->gone) {
            seen += rings;
        } else if (rings > 0) {
            size_t fresh = roll_streams_fresh(peer, run), unread = roll_streams_unread(peer, run);
            size_t here = roll_peer_is_heard(peer, now) && fresh > unread ? fresh - unread : 0;
            seen += here;
            late = late || here < rings;
            run->waits = run->waits || now - peer->seen_ns >= ROLL_FEED_UNSEEN_NS;
        }
    }
    size_t missing = held < live ? live - held : 0;
    forgo(run, missing, now);
    late = late || missing > run->forgone;
    seen += run->forgone;
    run->seen = !root->eye.behind && seen >= live;
    uint64_t since = run->late_ns != 0 ? run->late_ns : now;
    run->late_ns = late && !run->seen ? since : 0;
}

bool roll_root_late_is_due(const roll_root_t *root, struct roll_run *run, size_t live, bool asked, uint64_t now)
{
    bool behind = root->eye.behind;
    if (behind || now - run->seen_ns >= SEEN_NS) {
        run->seen_ns = behind ? 0 : now;
        roll_root_late_see(root, run, live, now);
    }
    roll_feed_clock_see(&run->clock, now, run->seen && !asked);
    roll_feed_clock_await(&run->clock, now, run->waits);
    bool due = roll_feed_clock_is_due(&run->clock, now, live > 0);
    if (due && run->late_ns != 0) { /* for so long that the clock goes on: no faster than while time is owed */
        roll_feed_clock_owe_tick(&run->clock, now);
    }
    return due;
}

/*
 * From `from` to `to` the peer's ranks were not seen: their runs have so much less patience behind them. Since a run is
 * late its clock stands still, or owes all that it can, so only what was before is owed here. gap: the peer itself was
 * not heard; else it tells what it missed, when it sees again: that was before the run was late, too.
 */
static void miss(roll_root_t *root, const struct roll_peer *peer, uint64_t from, uint64_t to, bool gap)
{
    for (size_t i = 0; i < root->runs_used; i++) {
        struct roll_run *run = root->runs[i];
        uint64_t end = run->late_ns != 0 && run->late_ns < to ? run->late_ns : to;
        uint64_t begin = gap ? from : from - (to - end);
        if (end > begin && roll_streams_fresh(peer, run) > 0) {
            uint64_t unseen =
                gap ? roll_late_missed_gap(&run->missed, begin, end) : roll_late_missed_add(&run->missed, begin, end);
            roll_feed_clock_owe(&run->clock, unseen);
            root->eye.missed_ns += unseen;
        }
    }
}

void roll_peer_late_heard(roll_root_t *root, struct roll_peer *peer, uint64_t now)
{
    struct roll_peer_eye *eye = &peer->eye;
    uint64_t silent = roll_peer_silence_ns(root, peer, now);
    if (now - peer->seen_ns >= ROLL_LATE_BEAT_NS) {
        miss(root, peer, peer->seen_ns, now, true);
    }
    eye->gap_ns += silent >= ROLL_LATE_BEAT_NS ? silent - BEAT_NS : 0;
    eye->closed_ns = root->eye.closed_ns;
    eye->went_ns = root->eye.went_ns;
    peer->seen_ns = now;
}

void roll_peer_late_begin(const roll_root_t *root, struct roll_peer *peer)
{
    /* It is the process that it was, whose numbers go on: what it was late by meanwhile is in the next ones. */
    peer->eye.beat.unheard = 0;
    peer->eye.beat.look_ns = 0;
    peer->eye.gap_ns = 0;
    peer->eye.closed_ns = root->eye.closed_ns;
    peer->eye.went_ns = root->eye.went_ns;
}

/* Of what the root missed, what the peer does not account for was the link. */
static void apportion(roll_root_t *root, struct roll_peer *peer, const struct roll_frame_heartbeat *beat, uint64_t now)
{
    struct roll_peer_eye *eye = &peer->eye;
    const struct roll_frame_heartbeat *old = &eye->beat;
    if (beat->late_ns < old->late_ns || beat->waited_ns < old->waited_ns || beat->below_ns < old->below_ns ||
        beat->missed_ns < old->missed_ns) {
        return; /* nobody's numbers go back */
    }
    uint64_t own = beat->late_ns - old->late_ns, waited = beat->waited_ns - old->waited_ns;
    uint64_t unseen = beat->missed_ns - old->missed_ns;
    uint64_t here = roll_root_lately(root, now) + ROLL_LATE_BEAT_NS; /* what is late by less has waited here */
    uint64_t way = eye->link.late_ns > here ? eye->link.late_ns : 0, below = beat->below_ns - old->below_ns;
    way = way > eye->gap_ns ? way : eye->gap_ns;
    own = own < MOST_NS ? own : MOST_NS;
    below = below < MOST_NS ? below : MOST_NS;
    way = way < MOST_NS ? way : MOST_NS;
    roll_late_note(&eye->own, own, now);
    roll_late_note(&eye->waited, waited < own ? waited : own, now);
    roll_late_note(&eye->below, below, now);
    roll_late_note(&eye->way, way > own ? way - own : 0, now);
    unseen = unseen < ROLL_LATE_HEARD_NS ? unseen : ROLL_LATE_HEARD_NS;
    if (unseen > 0) {
        miss(root, peer, now - unseen, now, false);
    }
}

void roll_peer_late_beat(roll_root_t *root, struct roll_peer *peer, const struct roll_frame *frame, uint64_t now)
{
    struct roll_frame_heartbeat beat = {.unheard = 0};
    struct roll_peer_eye *eye = &peer->eye;
    memcpy(&beat, frame->payload, frame->head.payload < sizeof(beat) ? frame->head.payload : sizeof(beat));
    beat.look_ns = beat.look_ns < MOST_NS ? beat.look_ns : MOST_NS;
    if (beat.made_ns != 0) {
        (void)roll_late_link_took(&eye->link, beat.made_ns, now);
    }
    if (beat.made_ns != 0 && eye->beat.made_ns != 0) {
        apportion(root, peer, &beat, now);
    }
    /* Of a peer that is new the first total counts what is past: of a relay that was known under another name, again.
     */
    uint64_t refused = eye->has_beat && beat.refused >= eye->beat.refused ? beat.refused - eye->beat.refused : 0;
    root->refused_below += peer->relay && refused < ROLL_REFUSED_MOST ? refused : 0; /* it may say anything */
    eye->has_beat = true;
    eye->gap_ns = 0;
    eye->beat = beat;
}
