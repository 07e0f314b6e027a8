/*
 * model.h: what the engine knows of the job, and how this data is kept up. The lowest floor: the model knows no other.
 * docs/ENGINE.md explains the model and the floors.
 *
 *   source.h   one rank process: a log of its calls that may still matter, one queue per stream, the state of its host
 *              threads
 *   comm.h     one communicator: its members, and a window of slots, one per collective (sequence number)
 *   pair.h     one (source, destination) of a communicator: a window of nodes, one per message
 *
 * A call has arrived on its slot or node when its record has come, and it is ready when everything before it on its
 * stream is complete. A slot whose members are all ready is complete. Why a slot never gets complete is explained by
 * the stall analysis (judge/waitgraph.c).
 *
 * One header for all of it was rejected: whoever looks for a field of a communicator read past those of a source. This
 * one has the questions that need more than one of the three.
 */
#ifndef ROLL_DAEMON_ENGINE_MODEL_MODEL_H
#define ROLL_DAEMON_ENGINE_MODEL_MODEL_H

#include "daemon/engine/model/comm.h"
#include "daemon/engine/model/pair.h"
#include "daemon/engine/model/source.h"

#define NCCL_IN_PROGRESS 7u /* ncclInProgress: no error */

/* As far as is known, nothing of this call was enqueued. */
static inline bool refused_call(const struct source *s, const struct entry *entry)
{
    return source_state(s, entry) == COLL_REFUSED;
}

/* This call returned an error, so that nothing of it was enqueued. */
static inline bool call_failed(const struct roll_record *rec)
{
    return rec->result != 0 && rec->result != NCCL_IN_PROGRESS && roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
}

/* rollcall itself refused this call, because it did not fit the call of another rank at its place (fail fast). */
static inline bool call_declined(const struct roll_record *rec)
{
    return call_failed(rec) && (rec->result & ROLL_RESULT_DECLINED) != 0;
}

/* All sides of this call are ready. */
static inline bool entry_answered(const struct source *s, const struct entry *entry)
{
    if (roll_op_class(entry->rec.op) == ROLL_CLASS_P2P) {
        return p2p_complete(entry);
    }
    const struct member *m = source_member(s, entry->rec.comm);
    return !m || source_state(s, entry) == COLL_REFUSED || comm_complete(m->comm, entry->rec.seq);
}

/* All sides of this call are ready, or its own rank does not wait for it any more: the process has ended, or it has
 * aborted the communicator. */
static inline bool entry_complete(const struct source *s, const struct entry *entry)
{
    const struct member *m = source_member(s, entry->rec.comm);
    return !source_alive(s) || (m && m->ended != 0) || entry_answered(s, entry);
}

/* This call, which the log holds, is of the common kind (struct brief), and complete for all members. Its record is not
 * read. */
static inline bool brief_complete(const struct source *s, const struct brief *brief)
{
    const struct comm *c = source_comm(s, brief->comm); /* NULL for 0: no definition has that id */
    return c && brief->seq < c->base;
}

/*
 * Takes one unit of a bounded search; false: nothing was left. The conditions of nested loops ask this again after a
 * false, so *work never goes below 0.
 */
static inline bool spend(uint32_t *work)
{
    if (*work == 0) {
        return false;
    }
    --*work;
    return true;
}

#endif
