/*
 * root_room.c: how the runs of a root share the room for what ranks ask for beyond what they send
 * (daemon/engine/model/budget.h).
 *
 * What runs have is looked at, and not what they may have: a hundred honest runs need nothing of it, and share nothing
 * out. When half of it is gone, runs go that have ended a while ago, those that ended first before the others. Runs
 * that have just ended go only from three quarters on, where a run could not have all that one may have: somebody is
 * about to ask what became of them, and how their processes ended may still be to come. To give each new run a part of
 * what the others had been promised was rejected: from the fifth on honest runs had no room. The trace does not hold
 * how much room a run had: where a root had none left, `rollcall analyze` may say more than it did.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/clock.h"
#include "daemon/base/log.h"

#define ROOM_ALL   (UINT64_C(4) << 30) /* of all runs */
#define MOST_PART  8                   /* of one run: 512 MiB, as of a run that is analyzed */
#define LEAST_PART 64                  /* of one run, whatever the others have: 64 MiB */
#define ENDED_NS   (60000 * ROLL_MS)   /* people and `rollcall run` ask so long of a run that has ended */

static uint64_t shared_of(const struct roll_run *run)
{
    uint64_t n = roll_engine_shared(roll_feed_engine(run->feed));
    return run->judge && run->judge != run->feed ? n + roll_engine_shared(roll_feed_engine(run->judge)) : n;
}

static uint64_t shared_of_all(const roll_root_t *root)
{
    uint64_t n = 0;
    for (size_t i = 0; i < root->runs_used; i++) {
        n += shared_of(root->runs[i]);
    }
    return n;
}

static void note_ends(roll_root_t *root, uint64_t now)
{
    for (size_t i = 0; i < root->runs_used; i++) {
        struct roll_run *run = root->runs[i];
        run->ended_ns = roll_run_live(run) ? 0 : run->ended_ns ? run->ended_ns : now;
    }
}

/* Forgets the run that has ended first, if that was so long ago and there is something to gain. Returns how many bytes
 * that gives back; 0: there is no such run. */
static uint64_t forget_one(roll_root_t *root, uint64_t now, uint64_t ago)
{
    size_t first = root->runs_used;
    for (size_t i = 0; i < root->runs_used; i++) {
        const struct roll_run *run = root->runs[i];
        bool may = run->ended_ns != 0 && now - run->ended_ns >= ago && shared_of(run) > 0;
        first = may && (first == root->runs_used || run->ended_ns < root->runs[first]->ended_ns) ? i : first;
    }
    if (first == root->runs_used) {
        return 0;
    }
    uint64_t its = shared_of(root->runs[first]);
    roll_log(ROLL_LOG_INFO, "root: %s.%u has ended, and is forgotten for want of room", root->runs[first]->job,
             root->runs[first]->restart);
    roll_run_forget(root, first);
    return its;
}

void roll_room_share(roll_root_t *root, uint64_t now)
{
    uint64_t all = root->o.room ? root->o.room : ROOM_ALL, most = all / MOST_PART, least = all / LEAST_PART;
    note_ends(root, now);
    uint64_t held = shared_of_all(root), its = 1;
    while (its > 0 && held > all / 2) {
        held -= its = forget_one(root, now, ENDED_NS);
    }
    for (its = 1; its > 0 && held > all / 4 * 3;) {
        held -= its = forget_one(root, now, 0);
    }
    uint64_t left = all > held ? all - held : 0;
    for (size_t i = 0; i < root->runs_used; i++) {
        struct roll_run *run = root->runs[i];
        uint64_t room = shared_of(run) + left / 2;
        room = room < least ? least : room < most ? room : most;
        roll_engine_room(roll_feed_engine(run->feed), room);
        if (run->judge) {
            roll_engine_room(roll_feed_engine(run->judge), room);
        }
    }
}
