/*
 * place.c: sources of which only the newest calls are known, and nothing but calls: what other tools keep of a job.
 *
 * A ring that has lost its beginning shows by its tickets that records are missing, and the engine waits until the rank
 * is seen again on each communicator. A dump says more: how far its rank has come. To let made-up records say so was
 * rejected: nobody knows what those calls were, and they would be compared.
 */
#include "daemon/engine/detect/detector.h"
#include "daemon/engine/model/budget.h"

int roll_engine_snapshot(roll_engine_t *e, uint32_t source, bool there)
{
    if (source >= e->sources) {
        return ROLL_E_ARG;
    }
    e->source[source]->snapshot = true;
    e->source[source]->lacking = !there;
    e->source[source]->late = true;
    return 0;
}

int roll_engine_place(roll_engine_t *e, uint32_t source, uint16_t comm, uint32_t next, bool sure)
{
    struct member *m = source < e->sources ? source_member(e->source[source], comm) : NULL;
    if (!m) {
        return ROLL_E_ARG;
    }
    match_place(m, next, sure);
    if (!m->touched) {
        source_touch(e->source[source], m);
    }
    return 0;
}

int roll_engine_place_messages(roll_engine_t *e, uint32_t source, uint16_t comm, enum roll_op op, uint32_t peer,
                               uint32_t next)
{
    struct member *m = source < e->sources ? source_member(e->source[source], comm) : NULL;
    if (!m || peer >= m->comm->size || (op != ROLL_OP_SEND && op != ROLL_OP_RECV)) {
        return ROLL_E_ARG;
    }
    uint32_t me = (uint32_t)m->rank;
    bool sends = op == ROLL_OP_SEND;
    uint32_t src = sends ? me : peer, dst = sends ? peer : me;
    if (!p2p_pair(m->comm, src, dst) && !budget_take(e, e->source[source], PAIR_BYTES)) {
        budget_refuse(e, e->source[source]);
        room_tell(e);
        return ROLL_E_LIMIT;
    }
    struct pair *p = pair_get(m->comm, src, dst);
    if (!p) {
        return ROLL_E_NOMEM;
    }
    p->calls[sends ? 0 : 1] = next;
    return 0;
}

int roll_engine_place_made(roll_engine_t *e, uint32_t source, uint16_t comm, enum roll_op op, uint32_t peer,
                           uint32_t next, uint32_t made)
{
    int err = roll_engine_place_messages(e, source, comm, op, peer, next);
    if (err == 0) {
        struct member *m = source_member(e->source[source], comm);
        if (!m->touched) {
            source_touch(e->source[source], m);
        }
        bool sends = op == ROLL_OP_SEND;
        p2p_place(e, e->source[source],
                  sends ? p2p_pair(m->comm, (uint32_t)m->rank, peer) : p2p_pair(m->comm, peer, (uint32_t)m->rank),
                  sends ? 0 : 1, made);
    }
    return err;
}

int roll_engine_place_splits(roll_engine_t *e, uint32_t source, uint16_t comm, uint32_t splits)
{
    struct member *m = source < e->sources ? source_member(e->source[source], comm) : NULL;
    if (!m) {
        return ROLL_E_ARG;
    }
    m->splits = splits;
    return 0;
}
