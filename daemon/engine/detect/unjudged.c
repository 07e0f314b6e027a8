/*
 * unjudged.c: calls that differ by what somebody has heard, and of which no records are left.
 *
 * Digests tell that the calls of a stretch differ between the members of a communicator; what differs is in records,
 * and a ring keeps only the newest. Nothing is judged then, and nobody is named. But to say nothing was rejected: the
 * job has been seen to go wrong.
 */
#include "daemon/engine/say/say.h"

#include <inttypes.h>

int roll_engine_unjudged(roll_engine_t *e, uint64_t comm_key, uint32_t first, uint32_t upto)
{
    const struct comm *c = comm_find(e, comm_key);
    if (!c) {
        return ROLL_E_NOTFOUND;
    }
    if (!say_once(e, say_key(ROLL_VERDICT_DATA_INCOMPLETE, comm_key, first, 1))) {
        return 0;
    }
    struct roll_verdict *v = say(e, ROLL_VERDICT_DATA_INCOMPLETE, ROLL_NOTE);
    if (!v) {
        return ROLL_E_NOMEM;
    }
    struct words w = {.used = 0};
    say_comm(v, c, first);
    words_add(&w, "Among calls #%" PRIu32 " to #%" PRIu32 " on ", first, upto - 1);
    words_comm(&w, c);
    words_add(&w, " its members have made different ones, by the hashes that their nodes have told; but the records of "
                  "them are not in the rings any more, so what differs, and on which rank, is not known. Larger rings "
                  "(ROLLCALL_RING_RECORDS) hold more; `rollcall doctor` says for how long.");
    say_text(e, v, "%s", w.text);
    return 0;
}
