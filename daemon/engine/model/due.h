/*
 * due.h: which sources have to be looked at now, for a look whose reasons are old at the earliest some time after they
 * came up.
 *
 * For each source the table holds a time of the patience clock up to which the look is known to find nothing there.
 * Whoever looks finds that time: of each reason when it came up, and the patience behind it; what comes up later is
 * younger than the look. So nobody has to tell the table of news, and a tick costs one comparison for 64 sources. To
 * look at all sources at each tick was rejected: at 16,384 ranks and 500 ticks a second it cost most of a core.
 */
#ifndef ROLL_DAEMON_ENGINE_MODEL_DUE_H
#define ROLL_DAEMON_ENGINE_MODEL_DUE_H

#include "daemon/base/array.h"

#include <stdbool.h>

#define DUE_BLOCK 64u /* sources whose earliest time is kept beside their own */

/* Zero-initialised: every source is due. */
struct due {
    uint64_t *at, *block; /* by source; by source / DUE_BLOCK: at most the earliest of them */
    size_t at_room, block_room;
    uint32_t sources;
};

/* Makes room for so many sources; new ones are due. 0, NOMEM. */
static inline int due_room(struct due *d, uint32_t sources)
{
    int rc = ROLL_GROW_ZERO(d->at, d->at_room, sources);
    rc = rc == 0 ? ROLL_GROW_ZERO(d->block, d->block_room, (sources + DUE_BLOCK - 1) / DUE_BLOCK) : rc;
    if (rc == 0 && sources > d->sources) {
        d->block[d->sources / DUE_BLOCK] = 0; /* later blocks are zero already */
        d->sources = sources;
    }
    return rc;
}

/* All sources are due again: what the times were found by has changed. */
static inline void due_anew(struct due *d)
{
    if (d->at) {
        memset(d->at, 0, d->at_room * sizeof(*d->at));
        memset(d->block, 0, d->block_room * sizeof(*d->block));
    }
}

/*
 * The first source at or behind `from` that is due at `clock`; `sources`: there is none. The caller looks at the source
 * and writes its new time into d->at.
 */
static inline uint32_t due_next(struct due *d, uint32_t from, uint32_t sources, uint64_t clock)
{
    uint32_t i = from;
    while (i < sources) {
        uint32_t end = (i / DUE_BLOCK + 1) * DUE_BLOCK;
        end = end < sources ? end : sources;
        if (d->block[i / DUE_BLOCK] >= clock) {
            i = end;
            continue;
        }
        while (i < end && d->at[i] >= clock) {
            i++;
        }
        if (i < end) {
            return i;
        }
        uint64_t first = UINT64_MAX; /* the block has been gone through to its end */
        for (uint32_t k = (end - 1) / DUE_BLOCK * DUE_BLOCK; k < end; k++) {
            first = d->at[k] < first ? d->at[k] : first;
        }
        d->block[(end - 1) / DUE_BLOCK] = first;
    }
    return sources;
}

static inline void due_fini(struct due *d)
{
    free(d->at);
    free(d->block);
    *d = (struct due){0};
}

#endif
