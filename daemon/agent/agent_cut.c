/*
 * agent_cut.c: rings and control pages whose files have been cut while the agent uses them: what was there reads as
 * zeros (daemon/base/bus_guard.h), so the agent leaves such a ring, and the root hears that its rank is not seen any
 * more; and such a page, because what is written there goes nowhere. To look at the size of each file before each look
 * was rejected: it is cut a moment later.
 */
#include "daemon/agent/agent_state.h"

#include "daemon/base/bus_guard.h"
#include "daemon/base/log.h"

/* Of a rank whose ring has been cut nothing more is known: not that it has ended, nor that it is silent. */
static void tell_cut(struct roll_agent *a, const struct roll_agent_ring *ring)
{
    struct roll_frame_status status = ring->status;
    struct roll_frame_sight sight = {.heard = 0};
    uint64_t seq;
    if (status.proc_state != 0) { /* else the root knows nothing of it */
        status.losses[ROLL_LOSS_CORRUPT]++;
        (void)roll_agent_send(a, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = ring->epoch}, &status,
                              sizeof(status), &seq);
    }
    (void)roll_agent_send(a, (struct roll_frame_head){.type = ROLL_FRAME_SIGHT, .stream = ring->epoch}, &sight,
                          sizeof(sight), &seq);
}

void roll_agent_leave_cut(struct roll_agent *a)
{
    uint64_t cuts = roll_guard_cuts();
    if (cuts == a->cuts) {
        return;
    }
    a->cuts = cuts;
    roll_agent_controls_leave_cut(&a->controls);
    for (size_t i = a->used; i-- > 0;) {
        const struct roll_agent_ring *ring = a->rings[i];
        if (!roll_guard_was_cut(ring->map.header, ring->map.bytes, ring->cuts)) {
            continue;
        }
        roll_log(ROLL_LOG_WARNING, "agent: %s: the file has been cut; its rank is not seen any more", ring->path);
        if (a->welcomed && ring->link == ROLL_LINK_LIVE) {
            tell_cut(a, ring);
        }
        roll_agent_leave_bad(a, i);
    }
}
