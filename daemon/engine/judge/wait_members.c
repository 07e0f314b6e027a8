/*
 * wait_members.c: which members of a collective the walk through the wait graph follows.
 *
 * While the walk follows the members of a collective it may come to the same collective again on a longer path, once
 * for each member that waits there. All members must be followed there, too, because a circle may close at any of
 * those on the path; but to look at each of them every time was rejected, because that is quadratic in the size of the
 * communicator. So all paths share one list: a member is followed by the path that comes first, in the order of ranks,
 * and stays listed only while there is more to find at it: it is on the path now, or its group is open.
 */
#include "daemon/engine/judge/walk.h"

#include "daemon/base/array.h"

#include <string.h>

/* Lists the members that have not made the collective. False: there is no memory for them. */
bool members_begin(struct collective *at)
{
    const struct comm *c = at->comm;
    for (uint32_t r = 0; r < c->size; r++) {
        if (comm_member_issued(&c->member[r], at->seq)) {
            continue;
        }
        if (ROLL_GROW(at->list, at->room, at->used + 1) != 0) {
            return false;
        }
        at->list[at->used++] = r;
    }
    at->is_missing = at->used > 0;
    return true;
}

/* The place in the list of the first member from r on. */
static uint32_t place_of(const struct collective *at, uint32_t r)
{
    uint32_t low = 0, high = at->used;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (at->list[middle] < r) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* *r: the first member from *r on that is to be followed. False: there is none. The caller says members_done where
 * nothing more will be found at the member. */
bool members_next(struct collective *at, uint32_t *r)
{
    uint32_t i = place_of(at, *r);
    if (i < at->used) {
        *r = at->list[i];
        return true;
    }
    if (at->next == at->comm->size || ROLL_GROW(at->list, at->room, at->used + 1) != 0) {
        return false;
    }
    *r = at->next++;
    at->list[at->used++] = *r; /* in order, because all members before it have been followed already */
    return true;
}

void members_done(struct collective *at, uint32_t r)
{
    uint32_t i = place_of(at, r);
    if (i < at->used && at->list[i] == r) {
        at->used--;
        memmove(&at->list[i], &at->list[i + 1], (at->used - i) * sizeof(*at->list));
    }
}
