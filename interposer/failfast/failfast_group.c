/*
 * failfast_group.c: the collectives of a group are compared when it ends.
 *
 * Inside a group NCCL sorts, so order says nothing there: the group's calls are kept until it ends, put in the order of
 * their signatures, and published in that order; then equal groups are equal line by line, whichever rank published
 * which line. A refused group is ended by a call that NCCL itself refuses (a collective on no communicator): NCCL then
 * drops what the group holds. ncclGroupSimulateEnd was rejected for that: it connects to peers first, and may wait for
 * them.
 */
#include "interposer/failfast/failfast_inner.h"

#define LISTS 64u /* lists that are kept for reuse; as many threads may be in a group at once */

/* The collectives of the group that a thread has open. */
struct roll_group_list {
    uint32_t used;
    bool overflow, refused;
    struct roll_group_call call[ROLL_GROUP_CALLS];
    uint16_t order[ROLL_GROUP_CALLS];
};

static _Atomic(struct roll_group_list *) lists[LISTS];

static struct roll_group_list *list_take(void)
{
    for (unsigned i = 0; i < LISTS; i++) {
        struct roll_group_list *list = atomic_exchange_explicit(&lists[i], NULL, memory_order_acquire);
        if (list != NULL) {
            return list;
        }
    }
    pthread_mutex_lock(&roll_lock);
    struct roll_group_list *list = roll_session_alloc(sizeof(*list));
    pthread_mutex_unlock(&roll_lock);
    return list;
}

static void list_give(struct roll_group_list *list)
{
    for (unsigned i = 0; i < LISTS; i++) {
        struct roll_group_list *none = NULL;
        if (atomic_compare_exchange_strong_explicit(&lists[i], &none, list, memory_order_release,
                                                    memory_order_relaxed)) {
            return;
        }
    }
}

void roll_failfast_keep(struct roll_thread *t, struct roll_comm *comm, const struct roll_compare_call *call,
                        uintptr_t pc, bool refused)
{
    struct roll_group_list *list = t->group_list != NULL ? t->group_list : list_take();
    if (list == NULL) {
        return;
    }
    if (t->group_list == NULL) {
        t->group_list = list;
        list->used = 0;
        list->overflow = false;
        list->refused = false;
    }
    t->group_mixed |= comm->set != t->group_set;
    list->refused |= refused;
    if (list->used == ROLL_GROUP_CALLS) {
        list->overflow = true;
        return;
    }
    list->call[list->used++] = (struct roll_group_call){.comm = comm,
                                                        .signature = roll_failfast_signature(call),
                                                        .pc = pc,
                                                        .moment = roll_compare_moment(t->ns_last),
                                                        .call = *call};
}

/* Sorts by communicator, then by signature. Groups are small and mostly in order; qsort is not used because it may
 * allocate. */
static void sort_list(struct roll_group_list *list)
{
    for (uint32_t i = 0; i < list->used; i++) {
        const struct roll_group_call *call = &list->call[i];
        uint32_t at = i;
        for (; at > 0; at--) {
            const struct roll_group_call *before = &list->call[list->order[at - 1]];
            if (before->comm < call->comm || (before->comm == call->comm && before->signature <= call->signature)) {
                break;
            }
            list->order[at] = list->order[at - 1];
        }
        list->order[at] = (uint16_t)i;
    }
}

/* Numbers the calls of one communicator in their sorted order, and publishes or compares each. True: a mismatch is
 * proven.
 */
static bool compare_run(struct roll_group_list *list, const uint16_t *order, uint32_t n)
{
    const struct roll_run run = {list->call, order, n};
    struct roll_comm *comm = list->call[order[0]].comm;
    uint32_t base = list->call[order[0]].call.seq, last = base;
    for (uint32_t i = 1; i < n; i++) {
        uint32_t seq = list->call[order[i]].call.seq;
        base = seq < base ? seq : base;
        last = seq > last ? seq : last;
    }
    if (last - base + 1 != n) {
        return false; /* another thread has used the communicator meanwhile, so the numbers prove nothing */
    }
    for (uint32_t i = 0; i < n; i++) {
        struct roll_compare_call *call = &list->call[order[i]].call;
        call->seq = base + i;
        call->before = (uint16_t)i;
        call->members = (uint16_t)n;
        call->messages = comm->messages ? 1 : call->messages; /* messages of this very group count too */
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct roll_group_call *mine = &list->call[order[i]];
        struct roll_compare_call theirs;
        struct roll_compare_cell *other;
        uint32_t at = i;
        uint64_t word = roll_compare_word(mine->call.key, mine->call.seq, mine->signature);
        if (roll_compare_call(roll_session->compare, &mine->call, mine->moment, word, &other) == ROLL_COMPARE_OTHER &&
            roll_failfast_differs(&run, &at, other, &theirs)) {
            const struct roll_group_call *shown = &list->call[order[at]];
            roll_failfast_say(comm, &shown->call, shown->pc, &theirs);
            roll_failfast_culprit = comm;
            return true;
        }
    }
    return false;
}

void roll_failfast_group_begin(struct roll_thread *t, unsigned set)
{
    t->group_set = (uint8_t)set;
    t->group_mixed = false;
    if (t->group_list != NULL) {
        t->group_list->used = 0;
        t->group_list->overflow = false;
        t->group_list->refused = false;
    }
}

bool roll_failfast_group_end(struct roll_thread *t)
{
    struct roll_group_list *list = t->group_list;
    int saved = errno;
    if (list == NULL || roll_session->compare == NULL || t->group_mixed) {
        return false;
    }
    bool refused = list->refused;
    if (!refused && !list->overflow && roll_failfast_numbered()) {
        sort_list(list);
        for (uint32_t i = 0, n; i < list->used && !refused; i += n) {
            for (n = 1; i + n < list->used && list->call[list->order[i + n]].comm == list->call[list->order[i]].comm;) {
                n++;
            }
            refused = compare_run(list, &list->order[i], n);
        }
    }
    list->refused = refused;
    errno = saved;
    return refused;
}

void roll_failfast_group_done(struct roll_thread *t, bool failed)
{
    struct roll_group_list *list = t->group_list;
    if (list == NULL) {
        return;
    }
    for (uint32_t i = list->used; roll_session->compare != NULL && !t->group_mixed && i-- > 0;) {
        struct roll_comm *comm = list->call[i].comm;
        const struct roll_compare_call *call = &list->call[i].call;
        if (!failed) {
            roll_failfast_passed(comm, call->op, call->flags, 1);
        } else if (!atomic_load_explicit(&comm->aborted, memory_order_relaxed)) {
            roll_failfast_undo(comm, call->key, call->seq);
        }
    }
    t->group_list = NULL;
    list_give(list);
}

ncclResult_t roll_failfast_group_cancel(unsigned set, ncclResult_t (*real)(void))
{
    typedef ncclResult_t (*reduce_t)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                     cudaStream_t);
    reduce_t reduce = ROLL_REAL_OF(set, ncclAllReduce, reduce_t);
    if (reduce != NULL) {
        (void)reduce(NULL, NULL, 1, 0, 0, NULL, NULL); /* NCCL refuses this call, and with it the whole group */
    }
    ncclResult_t result = real();
    roll_failfast_say_settled();
    return result;
}
