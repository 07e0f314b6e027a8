/*
 * failfast_judge.c: what a difference between two published calls proves.
 *
 * The rule is that a refusal must be right. So a call is not refused where the line is not whole, or older than the
 * communicator; where group boundaries cross, so that nobody knows which call stands against which; where an AlltoAll
 * may meet sends and receives; and where the other call is gone a moment later, because NCCL refused it too.
 */
#include "interposer/failfast/failfast_inner.h"

#include <time.h>

#define READS     500 /* how often a line that is being written is read, 0.1 ms apart */
#define SETTLE_MS 20  /* a call that NCCL refuses has returned by then, and its line is gone */

uint64_t roll_failfast_signature(const struct roll_compare_call *call)
{
    struct roll_signed_call signed_call = {.count = call->count,
                                           .peer = call->peer,
                                           .op = call->op,
                                           .dtype = call->dtype,
                                           .redop = call->redop,
                                           .flags = call->flags};
    return roll_signature(&signed_call);
}

bool roll_failfast_lowered(uint8_t op)
{
    return roll_op_has(op, ROLL_TRAIT_LOWERED);
}

static void pause_us(long us)
{
    const struct timespec pause = {.tv_nsec = us * 1000};
    nanosleep(&pause, NULL);
}

/* Whether a line was written before this communicator was made. Its members make calls only when all of them have come.
 */
static bool is_stale(const struct roll_comm *comm, uint32_t moment)
{
    return (int32_t)(moment - comm->born) < 0;
}

/* Reads the call that another rank has published. That rank may still be writing; the wait has an end, because it may
 * have been killed. */
static bool read_theirs(const struct roll_comm *comm, struct roll_compare_cell *cell,
                        const struct roll_compare_call *mine, struct roll_compare_call *theirs)
{
    enum roll_compare_seen seen = ROLL_COMPARE_TORN;
    uint32_t moment = 0;
    for (int i = 0; i < READS && seen == ROLL_COMPARE_TORN; i++) {
        if (i != 0) {
            pause_us(100);
        }
        seen = roll_compare_read(cell, mine->key, mine->seq, theirs, &moment);
    }
    if (seen != ROLL_COMPARE_WHOLE) {
        return false;
    }
    /* Two calls of one rank number do not belong to one communicator: its id was used again. */
    bool nobodys = is_stale(comm, moment) || theirs->rank == mine->rank;
    if (nobodys) {
        roll_compare_drop(cell, theirs, moment);
    }
    return !nobodys;
}

/* One rank may call AlltoAll, Gather or Scatter and another send and receive. Where either side does that on this
 * communicator, their calls prove nothing. (The calls after it are numbered apart: rekey in failfast.c.) */
static bool may_be_messages(const struct roll_compare_call *a, const struct roll_compare_call *b)
{
    return (roll_failfast_lowered(a->op) || roll_failfast_lowered(b->op)) && (a->messages | b->messages) != 0;
}

/* Reads call number i of a published group; false when it cannot be read, or its line belongs to another group by now.
 */
static bool read_member(const struct roll_run *mine, const struct roll_compare_call *theirs, uint32_t i,
                        struct roll_compare_call *out)
{
    uint32_t seq = theirs->seq - theirs->before + i, moment = 0;
    struct roll_compare_cell *cell = roll_compare_find(roll_session->compare, theirs->key, seq);
    return cell != NULL && roll_compare_read(cell, theirs->key, seq, out, &moment) == ROLL_COMPARE_WHOLE &&
           out->before == i && out->members == theirs->members && !is_stale(mine->call[mine->order[0]].comm, moment);
}

/* How often a signature is among the calls of a published group; -1 when not all of the group can be read. */
static int count_in_theirs(const struct roll_run *mine, const struct roll_compare_call *theirs, uint64_t signature)
{
    int found = 0;
    for (uint32_t i = 0; i < theirs->members; i++) {
        struct roll_compare_call other;
        if (!read_member(mine, theirs, i, &other)) {
            return -1;
        }
        found += roll_failfast_signature(&other) == signature;
    }
    return found;
}

static int count_in_mine(const struct roll_run *mine, uint64_t signature)
{
    int found = 0;
    for (uint32_t i = 0; i < mine->n; i++) {
        found += mine->call[mine->order[i]].signature == signature;
    }
    return found;
}

/* Finds the calls to show of two groups that differ: from each group one that the other has not, or not as often. */
static void show_difference(const struct roll_run *mine, uint32_t *at, struct roll_compare_call *theirs)
{
    struct roll_compare_call other;
    for (uint32_t i = 0; i < mine->n; i++) {
        uint64_t signature = mine->call[mine->order[i]].signature;
        int there = count_in_theirs(mine, theirs, signature);
        if (there >= 0 && there < count_in_mine(mine, signature)) {
            *at = i;
            break;
        }
    }
    for (uint32_t i = 0; i < theirs->members; i++) {
        if (read_member(mine, theirs, i, &other) &&
            count_in_mine(mine, roll_failfast_signature(&other)) <
                count_in_theirs(mine, theirs, roll_failfast_signature(&other))) {
            *theirs = other;
            break;
        }
    }
}

/* Whether two calls at one place prove a mismatch, where either is one of several in a group. */
static bool groups_differ(const struct roll_run *mine, uint32_t *at, struct roll_compare_call *theirs)
{
    const struct roll_group_call *call = &mine->call[mine->order[*at]];
    uint32_t my_base = call->call.seq - *at, my_end = my_base + mine->n;
    uint32_t base = call->call.seq - theirs->before, end = base + theirs->members;
    bool differ = false; /* where boundaries cross, nobody knows which call stands against which */
    if (theirs->members > ROLL_GROUP_CALLS) {
        return false; /* no rank publishes such a call: the line is damaged */
    }
    if (base == my_base && end == my_end) {
        differ = true;                             /* equal groups would be equal in this order */
    } else if (base <= my_base && my_end <= end) { /* mine lies within theirs: each of my calls must be among theirs */
        differ = count_in_theirs(mine, theirs, call->signature) == 0;
    } else if (my_base <= base && end <= my_end) {
        differ = count_in_mine(mine, roll_failfast_signature(theirs)) == 0;
    }
    if (differ) {
        show_difference(mine, at, theirs);
    }
    return differ;
}

bool roll_failfast_differs(const struct roll_run *mine, uint32_t *at, struct roll_compare_cell *cell,
                           struct roll_compare_call *theirs)
{
    const struct roll_group_call *call = &mine->call[mine->order[*at]];
    if (!read_theirs(call->comm, cell, &call->call, theirs) || may_be_messages(&call->call, theirs)) {
        return false;
    }
    struct roll_compare_call again, first = *theirs;
    uint32_t moment;
    if ((mine->n != 1 || theirs->members != 1) && !groups_differ(mine, at, theirs)) {
        return false;
    }
    pause_us(SETTLE_MS * 1000L);
    return roll_compare_read(cell, first.key, first.seq, &again, &moment) == ROLL_COMPARE_WHOLE &&
           again.pid == first.pid && again.rank == first.rank &&
           roll_failfast_signature(&again) == roll_failfast_signature(&first);
}
