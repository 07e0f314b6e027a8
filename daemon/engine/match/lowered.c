/*
 * lowered.c: AlltoAll, Gather and Scatter, which NCCL makes of sends and receives.
 *
 * Such a call is a message between each pair of members that it concerns, in the order of the rank's calls, and that
 * message may meet a plain send or receive of the other side. Then nothing waits for ever, but the data goes to the
 * wrong call, in silence. Therefore it is remembered for each side of a plain message which of these collectives was
 * the last one before it: where the two sides differ, each side meets another call (p2p.c notes that, detect_lowered.c
 * tells it).
 *
 * To make nodes of each such call was rejected: an AlltoAll of n ranks is n * n messages, and a job that does not mix
 * them with plain messages would pay for nothing. Calls with window-registered buffers go another way in NCCL, which is
 * not known here; a job that mixes those as well is told of a difference that its calls do have.
 */
#include "daemon/base/array.h"
#include "daemon/engine/match/match.h"

#include <stdlib.h>

/* The Gathers and Scatters of a member that have one root. */
struct rooted {
    uint32_t root;
    struct latest gather, scatter;
};

/* The Gathers and Scatters of a member, by root. */
struct lowered {
    struct rooted *rooted;
    uint32_t roots;
    size_t root_room;
};

/* Those with this root, made if there are none; NULL: no memory. */
static struct rooted *rooted_of(struct lowered *l, uint32_t root)
{
    for (uint32_t i = 0; i < l->roots; i++) {
        if (l->rooted[i].root == root) {
            return &l->rooted[i];
        }
    }
    if (ROLL_GROW(l->rooted, l->root_room, l->roots + 1u) != 0) {
        return NULL;
    }
    l->rooted[l->roots] = (struct rooted){.root = root};
    return &l->rooted[l->roots++];
}

/* Enters a call that was made, or takes it back. False: the call that is taken back is not the newest, so what stands
 * here may be wrong. */
static bool note(struct latest *l, uint32_t seq, bool made)
{
    if (made) {
        *l = (struct latest){.last = seq + 1, .before = l->last};
        return true;
    }
    bool newest = l->last == seq + 1;
    l->last = l->before;
    return newest;
}

void lowered_note(struct member *m, const struct roll_record *rec, bool made)
{
    if ((rec->flags & ROLL_FLAG_CAPTURED) != 0) {
        m->lowered_lost = true; /* its messages take their places when its graph is launched */
    } else if (rec->op == ROLL_OP_ALLTOALL) {
        m->lowered_lost = !note(&m->alltoall, rec->seq, made) || m->lowered_lost;
    } else if (m->lowered || (m->lowered = calloc(1, sizeof(*m->lowered)))) {
        struct rooted *r = rooted_of(m->lowered, (uint32_t)rec->peer);
        bool noted = r && note(rec->op == ROLL_OP_GATHER ? &r->gather : &r->scatter, rec->seq, made);
        m->lowered_lost = !noted || m->lowered_lost;
    } else {
        m->lowered_lost = true;
    }
}

uint32_t lowered_before(const struct member *m, uint32_t src, uint32_t dst)
{
    const struct lowered *l = m->lowered;
    if (m->lowered_lost) {
        return LOWERED_UNKNOWN;
    }
    uint32_t last = m->alltoall.last;
    for (uint32_t i = 0; l && i < l->roots; i++) {
        const struct rooted *r = &l->rooted[i];
        last = r->root == dst && r->gather.last > last ? r->gather.last : last;
        last = r->root == src && r->scatter.last > last ? r->scatter.last : last;
    }
    return last;
}

void lowered_free(struct member *m)
{
    if (m->lowered) {
        free(m->lowered->rooted);
        free(m->lowered);
        m->lowered = NULL;
    }
}
