/*
 * creation.h: what is known of a creation of a communicator that does not end. detect_init.c looks for absent members;
 * detect_claim.c and detect_refused.c may have said before why the creation cannot end.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_CREATION_H
#define ROLL_DAEMON_ENGINE_DETECT_CREATION_H

#include "daemon/engine/detect/state.h"

struct init_comm {
    uint64_t looked_ns; /* patience clock at which detect_init.c last looked at this creation */
    bool told;          /* a verdict says why this creation cannot end */
};
STATE_OF_COMM(init)

static inline bool creation_is_told(const struct comm *c)
{
    const struct init_comm *own = init_of_comm(c);
    return own && own->told;
}

/* Marks the creation as told. False: there is no memory for the mark. Then the verdict must not be said, because every
 * tick would say it again. */
static inline bool creation_set_told(struct comm *c)
{
    struct init_comm *own = init_make_comm(c);
    if (own) {
        own->told = true;
    }
    return own != NULL;
}

#endif
