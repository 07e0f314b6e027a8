/*
 * segment_job.h: a job as frames, the same each time, and its segments in a folder of the test's own.
 */
#ifndef ROLL_TESTS_DAEMON_SEGMENT_JOB_H
#define ROLL_TESTS_DAEMON_SEGMENT_JOB_H

#include "daemon/store/segment.h"
#include "trace/frame.h"
#include "trace/record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SEGMENT_JOB_SERIES "job.0"
#define SEGMENT_JOB_SECOND UINT64_C(1000000000)
#define SEGMENT_JOB_NOW    SEGMENT_JOB_SECOND /* the time at which a job's first frame is written */
#define SEGMENT_JOB_RINGS  3u
#define SEGMENT_JOB_BYTES  (ROLL_FRAME_HEAD_BYTES + 4096 + 64 * ROLL_RECORD_BYTES) /* of a frame, at most */

/* The folder of the test that runs. */
extern char segment_job_dir[64];
int segment_job_set_up(void **state);
int segment_job_tear_down(void **state);

/* Frame number i is made from a state that follows from the i frames before it. */
struct segment_job {
    uint64_t random, ticket[SEGMENT_JOB_RINGS], clock[SEGMENT_JOB_RINGS], frame;
    uint8_t bytes[SEGMENT_JOB_BYTES]; /* the newest frame */
};

void segment_job_begin(struct segment_job *j);
/* The job's next random number. */
uint64_t segment_job_draw(struct segment_job *j);
/* Makes the next frame, in j->bytes. Returns its size. Records by turns; the last of some frames has not returned yet.
 */
size_t segment_job_next(struct segment_job *j);

/* A writer into the folder; 0 = the default of that option. */
roll_segments_t *segment_job_writer(uint64_t segment_bytes, uint64_t limit_bytes, uint64_t age_ns);
/* Writes one encoded frame: what roll_segments_append returns. */
int segment_job_append(roll_segments_t *w, const void *raw, size_t bytes, uint64_t now);
/* Writes the next frames of the job. */
void segment_job_write(roll_segments_t *w, struct segment_job *j, unsigned frames);

/* Reads all segments one after the other and compares with the job from its beginning. may_be_torn: the last frame of
 * the last segment may be incomplete. Returns the number of whole frames. */
uint64_t segment_job_check(bool may_be_torn);
/* The number of segments in the folder, and how large they are together. */
size_t segment_job_count(uint64_t *bytes);

#endif
