/*
 * trace_file.h: reads trace files ("ROLLTRCE", then frames end to end; docs/FRAME.md). segment.h writes them.
 */
#ifndef ROLL_DAEMON_STORE_TRACE_FILE_H
#define ROLL_DAEMON_STORE_TRACE_FILE_H

#include "trace/frame.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct roll_trace_reader roll_trace_reader_t;

/* Maps a trace file for reading. Errors: NOTFOUND, DENIED, IO, NOMEM, SHORT, MAGIC, VERSION. */
int roll_trace_reader_new(const char *path, roll_trace_reader_t **out);
/* Makes a reader over bytes in memory (borrowed). */
int roll_trace_reader_view(const void *data, size_t bytes, roll_trace_reader_t **out);
/*
 * Gives the next frame, those inside a PACK one by one; the frame borrows the reader until the next call. RECORDS that
 * the segment repeats of an earlier one have the flag ROLL_RECORDS_REPEATED. 0; NOTFOUND
 * at the exact end; SHORT when the file is cut inside a frame (everything before it was valid); other errors of
 * roll_frame_decode and of unpacking for damaged bytes.
 */
int roll_trace_reader_next(roll_trace_reader_t *reader, struct roll_frame *out);
/* Offset of the frame that the next call will read: after an error, where the damage begins. */
size_t roll_trace_reader_offset(const roll_trace_reader_t *reader);
/* Leaves out the frames that this segment repeats of earlier ones, which the caller has read. */
void roll_trace_reader_resume(roll_trace_reader_t *reader);
void roll_trace_reader_destroy(roll_trace_reader_t **reader);

#endif
