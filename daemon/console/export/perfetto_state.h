/*
 * perfetto_state.h: what the files that write a Perfetto trace share: perfetto.c begins and ends it,
 * perfetto_notes.c has words, perfetto_tracks.c processes and tracks, perfetto_calls.c what is told of a call, and
 * perfetto_findings.c of a verdict. Errors stick (`err`). One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_EXPORT_PERFETTO_STATE_H
#define ROLL_DAEMON_CONSOLE_EXPORT_PERFETTO_STATE_H

#include "daemon/console/export/job.h"
#include "daemon/console/export/pf_write.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_PERFETTO_FINDINGS 1u /* number of the track of findings */
#define ROLL_PERFETTO_LABELS   256u

/* What is told of an event: NOTE(NAME, "as people read it"). */
#define ROLL_PERFETTO_NOTES(NOTE)                                                                                      \
    NOTE(SEQ, "sequence number")                                                                                       \
    NOTE(COUNT, "count")                                                                                               \
    NOTE(DTYPE, "datatype")                                                                                            \
    NOTE(REDOP, "reduction")                                                                                           \
    NOTE(ROOT, "root")                                                                                                 \
    NOTE(PEER, "peer")                                                                                                 \
    NOTE(BYTES, "bytes")                                                                                               \
    NOTE(PLACE, "called at")                                                                                           \
    NOTE(STEP, "step")                                                                                                 \
    NOTE(MICROBATCH, "microbatch")                                                                                     \
    NOTE(LAYER, "layer")                                                                                               \
    NOTE(PHASE, "phase")                                                                                               \
    NOTE(STREAM, "stream")                                                                                             \
    NOTE(GROUP, "group")                                                                                               \
    NOTE(TICKET, "call")                                                                                               \
    NOTE(CAPTURED, "captured into a graph")                                                                            \
    NOTE(REPLAYED, "replayed by a graph")                                                                              \
    NOTE(RESULT, "result")                                                                                             \
    NOTE(LONGER, "took longer than is shown")                                                                          \
    NOTE(TEXT, "text")                                                                                                 \
    NOTE(CODE, "code")                                                                                                 \
    NOTE(CERTAINTY, "certainty")                                                                                       \
    NOTE(CULPRITS, "culprits")                                                                                         \
    NOTE(WAITING, "waiting")                                                                                           \
    NOTE(COMM, "communicator")                                                                                         \
    NOTE(JOB, "job")                                                                                                   \
    NOTE(NUMBER, "number")                                                                                             \
    NOTE(ENDED, "ended by verdict")

enum roll_perfetto_note {
#define NOTE(name, text) ROLL_NOTE_##name,
    ROLL_PERFETTO_NOTES(NOTE)
#undef NOTE
        ROLL_PERFETTO_NOTES_ALL
};

struct roll_perfetto_track {
    uint16_t comm, thread;
    uint32_t next; /* 1 + the next track of the same communicator; 0 = none */
};

/* What has been written of one process. */
struct roll_perfetto_process {
    bool begun;
    struct roll_perfetto_track *track; /* owned, as are the next two */
    size_t tracks, room;
    uint32_t *first; /* by communicator: 1 + its first track */
    size_t firsts;
    uint64_t *place; /* by call site: the number of its words; 0 = not looked up; UINT64_MAX: there are none */
    size_t places;
};

struct roll_perfetto {
    roll_pf_t *pf;
    struct roll_perfetto_process *process; /* owned; by ring */
    size_t processes;
    uint64_t note[ROLL_PERFETTO_NOTES_ALL], category[16], op[ROLL_PERFETTO_LABELS], dtype[ROLL_PERFETTO_LABELS],
        redop[ROLL_PERFETTO_LABELS], phase[ROLL_PERFETTO_LABELS], result[ROLL_PERFETTO_LABELS];
    uint64_t latest_ns; /* the latest beginning of a call */
    int err;
};

/* What is told of one event, as it is collected. */
struct roll_perfetto_told {
    struct roll_pf_note note[ROLL_PF_NOTES];
    size_t n;
};

/* perfetto_notes.c */

void roll_perfetto_notes_begin(struct roll_perfetto *w);
/* The number of a label, which is looked up once. table: one of those above. */
uint64_t roll_perfetto_label(struct roll_perfetto *w, uint64_t table[ROLL_PERFETTO_LABELS], enum roll_pf_space space,
                             uint8_t id, const char *(*name)(unsigned id));
/* The number of what a class of operations is called. */
uint64_t roll_perfetto_category(struct roll_perfetto *w, unsigned class);
/* Adds to what is told of an event; an interned text that is 0 is left out. text: borrowed until the event is written.
 */
void roll_perfetto_tell(const struct roll_perfetto *w, struct roll_perfetto_told *t, enum roll_perfetto_note name,
                        enum roll_pf_kind kind, uint64_t value, const char *text);

/* perfetto_tracks.c */

/* The number of a track in the whole trace; track 0 is the process itself. */
uint64_t roll_perfetto_number(uint32_t ring, uint32_t track);
/* A process of the trace, which is begun when it is new. NULL: an error. */
struct roll_perfetto_process *roll_perfetto_process(struct roll_perfetto *w, struct roll_job *job, uint32_t ring);
/* The track of a call, which is begun when it is new. 0: an error. */
uint64_t roll_perfetto_track(struct roll_perfetto *w, struct roll_job *job, const struct roll_job_call *call);
void roll_perfetto_tracks_fini(struct roll_perfetto *w);

/* perfetto_calls.c: one call, for roll_job_read; ctx is the writer. 0, or the error. */
int roll_perfetto_call(void *ctx, struct roll_job *job, const struct roll_job_call *call);

/* perfetto_findings.c */

void roll_perfetto_verdict(struct roll_perfetto *w, struct roll_job *job, const struct roll_verdict_copy *copy);
/* Who opens the trace elsewhere has not seen what was said when it was made. */
void roll_perfetto_losses(struct roll_perfetto *w, const struct roll_analysis_summary *s);

#endif
