/*
 * creation.h: what is known of a creation of a communicator that does not end. detect_init.c looks for absent members;
 * detect_claim.c and detect_refused.c may have said before why the creation cannot end.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_CREATION_H
#define ROLL_DAEMON_ENGINE_DETECT_CREATION_H

#include "daemon/engine/detect/state.h"

struct init_comm {
    uint64_t looked_ns;  /* patience clock at which detect_init.c last looked at this creation */
    bool told;           /* a verdict says why this creation cannot end */
    uint32_t told_split; /* the same of a creation by CommSplit with this communicator as the parent: the newest of them
                            by number, from 1; 0: of none */
};
STATE_OF_COMM(init)

/* refused_creation.c: the number of the creation that this call of the member is: of CommSplit on its parent, from 1,
 * those left out that the member was refused, which it makes again; 0: the communicator itself is made. A parent may be
 * split again when one split has come to nothing, so its creations have numbers. */
uint32_t creation_split(const struct member *m, const struct roll_record *rec);

static inline bool creation_is_told(const struct comm *c, uint32_t split)
{
    const struct init_comm *own = init_of_comm(c);
    return own && (split == 0 ? own->told : split <= own->told_split);
}

/* Marks the creation as told. False: there is no memory for the mark. Then the verdict must not be said, because every
 * tick would say it again. */
static inline bool creation_set_told(struct comm *c, uint32_t split)
{
    struct init_comm *own = init_make_comm(c);
    if (own && split == 0) {
        own->told = true;
    } else if (own && split > own->told_split) {
        own->told_split = split;
    }
    return own != NULL;
}

#endif
