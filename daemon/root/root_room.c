/*
 * root_room.c: how the runs of a root share the room for what ranks ask for beyond what they send
 * (daemon/engine/model/budget.h).
 *
 * What runs have is looked at, and not what they may have: a hundred honest runs need nothing of it, and share nothing
 * out. Runs that have ended go when there is little left, the oldest first. To give each new run a part of what the
 * others had been promised was rejected: from the fifth on honest runs had no room. The trace does not hold how much
 * room a run had: where a root had none left, `rollcall analyze` may say more than it did.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/log.h"

#define ROOM_ALL   (UINT64_C(4) << 30)   /* of all runs */
#define ROOM_MOST  (UINT64_C(512) << 20) /* of one run: as of a run that is analyzed */
#define ROOM_LEAST (UINT64_C(64) << 20)  /* of one run, whatever the others have */

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

void roll_room_share(roll_root_t *root)
{
    uint64_t held = shared_of_all(root);
    for (size_t i = 0; i < root->runs_used && held > ROOM_ALL / 2;) {
        uint64_t its = roll_run_live(root->runs[i]) ? 0 : shared_of(root->runs[i]);
        if (its > 0) {
            roll_log(ROLL_LOG_INFO, "root: %s.%u has ended, and is forgotten for want of room", root->runs[i]->job,
                     root->runs[i]->restart);
            roll_run_forget(root, i);
            held -= its;
        } else {
            i++;
        }
    }
    uint64_t left = ROOM_ALL > held ? ROOM_ALL - held : 0;
    for (size_t i = 0; i < root->runs_used; i++) {
        struct roll_run *run = root->runs[i];
        uint64_t room = shared_of(run) + left / 2;
        room = room < ROOM_LEAST ? ROOM_LEAST : room < ROOM_MOST ? room : ROOM_MOST;
        roll_engine_room(roll_feed_engine(run->feed), room);
        if (run->judge) {
            roll_engine_room(roll_feed_engine(run->judge), room);
        }
    }
}
