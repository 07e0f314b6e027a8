/*
 * refused.c: see refused.h.
 *
 * NCCL refuses a call with a wrong argument before the call takes its place among the others. An application that
 * catches the error and makes the right call is then in step with its peers. So a sequence number counts only calls
 * that were enqueued, and is given back otherwise. A group is refused as a whole: its calls are found again in the
 * ring, from the end backwards. A list of the calls in the thread was rejected: every group would pay for what hardly
 * ever happens.
 *
 * A number is given back only while it is still the newest of its communicator: another thread may have used the
 * communicator meanwhile.
 */
#include "interposer/wrap/refused.h"

#include "interposer/wrap/call.h"

#include <errno.h>

/* Reads the record of this ticket; true if this thread wrote it and it is whole. */
static bool read_own(const struct roll_thread *t, uint64_t ticket, struct roll_record *out)
{
    const struct roll_record *rec = &roll_session->ring.records[ticket & roll_session->ring.mask];
    uint64_t seal = __atomic_load_n(&rec->seal, __ATOMIC_ACQUIRE);
    if (roll_seal_state(seal) == ROLL_STATE_EMPTY || roll_seal_ticket(seal) != ticket || rec->thread != t->id) {
        return false;
    }
    *out = *rec;
    return true;
}

static void give_back(struct roll_thread *t, const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    bool collective = class == ROLL_CLASS_COLL && rec->count != 0;
    if (rec->comm == 0 || (!collective && class != ROLL_CLASS_P2P)) {
        return;
    }
    struct roll_comm *comm = t->comm;
    if (comm == NULL || atomic_load_explicit(&comm->id, memory_order_relaxed) != rec->comm) {
        comm = roll_comm_by_id(rec->comm);
    }
    if (comm == NULL) {
        return;
    }
    if (collective) {
        uint32_t next = rec->seq + 1;
        (void)atomic_compare_exchange_strong_explicit(&comm->seq, &next, rec->seq, memory_order_relaxed,
                                                      memory_order_relaxed);
        return;
    }
    uint32_t *counts = atomic_load_explicit(&comm->p2p, memory_order_relaxed);
    if (counts != NULL && rec->peer >= 0 && rec->peer < comm->nranks) {
        uint32_t *at = &counts[2 * (size_t)rec->peer + (rec->op == ROLL_OP_RECV)];
        if (__atomic_load_n(at, __ATOMIC_RELAXED) == rec->seq + 1) {
            __atomic_store_n(at, rec->seq, __ATOMIC_RELAXED);
        }
    }
}

void roll_refused_call(struct roll_thread *t, const struct roll_call *call)
{
    struct roll_record rec;
    if (read_own(t, call->ticket, &rec) && rec.group == 0) {
        give_back(t, &rec);
    }
    if (call->compared != NULL) {
        roll_failfast_failed(call);
    }
}

void roll_refused_group(struct roll_thread *t, uint32_t id, uint32_t calls, uint64_t ticket)
{
    uint64_t capacity = roll_session->ring.mask + 1;
    uint64_t low = ticket > capacity ? ticket - capacity : 0;
    while (calls > 0 && ticket > low) {
        struct roll_record rec;
        ticket--;
        if (read_own(t, ticket, &rec) && rec.group == id && rec.op != ROLL_OP_GROUP_END) {
            give_back(t, &rec);
            calls--;
        }
    }
}
