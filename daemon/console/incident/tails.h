/*
 * tails.h: the tails of ranks' rings, as agents send them, and the trace that is made of them. One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_INCIDENT_TAILS_H
#define ROLL_DAEMON_CONSOLE_INCIDENT_TAILS_H

#include "daemon/console/incident/bundle.h"
#include "trace/frame.h"
#include "trace/ring.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct roll_tail {
    uint32_t rank;
    uint8_t *data; /* a ring; owned */
    size_t bytes;
    struct roll_ring ring; /* a view of it */
    enum roll_proc_state process;
    uint64_t head; /* calls that the rank had made */
};

struct roll_tails {
    struct roll_tail *at; /* owned */
    size_t used, room;
    uint64_t bytes; /* of all of them, unpacked */
};

/* Takes the tail out of an agent's answer (borrowed, hostile) about this rank. 0; or the error, with words in `why`. */
int roll_tails_add(struct roll_tails *tails, uint32_t rank, const json_t *answer, char *why, size_t why_size);

/*
 * Writes a trace of them into the folder "trace" of the bundle, judged as `settings` say: what `rollcall analyze`
 * reads. until_ns: wall clock of the moment at which they were taken, up to which time passes behind the last record.
 * 0; what is wrong with the disk stands in the bundle, any other error is returned.
 */
int roll_tails_write(struct roll_tails *tails, struct roll_bundle *bundle, const char *job, uint32_t restart,
                     const struct roll_frame_settings *settings, uint64_t until_ns);
void roll_tails_fini(struct roll_tails *tails);

#endif
