/*
 * segment_job.c: see segment_job.h.
 */
#include "tests/daemon/segment_job.h"

#include "daemon/store/trace_file.h"
#include "trace/err.h"
#include "trace/op.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

char segment_job_dir[64];

int segment_job_set_up(void **state)
{
    (void)state;
    strcpy(segment_job_dir, "/tmp/rollcall-segments-XXXXXX");
    assert_non_null(mkdtemp(segment_job_dir));
    return 0;
}

int segment_job_tear_down(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", segment_job_dir);
    return system(command);
}

uint64_t segment_job_draw(struct segment_job *j)
{
    j->random ^= j->random << 13;
    j->random ^= j->random >> 7;
    j->random ^= j->random << 17;
    return j->random;
}

void segment_job_begin(struct segment_job *j)
{
    memset(j, 0, sizeof(*j));
    j->random = 88172645463325252u;
}

static size_t ring_frame(struct segment_job *j, uint64_t epoch)
{
    struct roll_ring_header h = {.version = ROLL_RING_VERSION,
                                 .oldest = ROLL_RING_OLDEST,
                                 .header_bytes = ROLL_RING_HEADER_BYTES,
                                 .record_bytes = ROLL_RECORD_BYTES,
                                 .capacity = 64,
                                 .world_rank = (int32_t)epoch - 1,
                                 .world_size = SEGMENT_JOB_RINGS,
                                 .local_rank = -1,
                                 .epoch = epoch,
                                 .job = "job"};
    memcpy(h.magic, ROLL_RING_MAGIC, sizeof(h.magic));
    h.static_crc = roll_crc32c(0, &h, offsetof(struct roll_ring_header, static_crc));
    struct roll_frame_head head = {.type = ROLL_FRAME_RING, .stream = epoch};
    return (size_t)roll_frame_encode(&head, &h, sizeof(h), j->bytes, sizeof(j->bytes));
}

size_t segment_job_next(struct segment_job *j)
{
    uint64_t number = j->frame++;
    if (number < SEGMENT_JOB_RINGS) {
        return ring_frame(j, number + 1);
    }
    uint64_t epoch = number % SEGMENT_JOB_RINGS + 1, *ticket = &j->ticket[epoch - 1], *clock = &j->clock[epoch - 1];
    if (number % 10 == 9) {
        uint64_t real = number * 3000000;
        struct roll_frame_head head = {.type = ROLL_FRAME_TICK, .seq = real + 1};
        return (size_t)roll_frame_encode(&head, &real, sizeof(real), j->bytes, sizeof(j->bytes));
    }
    struct roll_record recs[32];
    uint32_t n = 1 + (uint32_t)(segment_job_draw(j) % 32);
    for (uint32_t i = 0; i < n; i++) {
        recs[i] = (struct roll_record){.seal = roll_seal(*ticket, ROLL_STATE_RETURNED),
                                       .enter_ns = *clock += 10000 + segment_job_draw(j) % 5000,
                                       .count = 1 + *ticket % 5,
                                       .seq = (uint32_t)*ticket,
                                       .peer = ROLL_PEER_NONE,
                                       .call_ns = (uint32_t)(segment_job_draw(j) % 3000),
                                       .step = ROLL_STEP_NONE,
                                       .layer = ROLL_LAYER_NONE,
                                       .op = ROLL_OP_ALLREDUCE,
                                       .dtype = ROLL_DTYPE_FLOAT32,
                                       .redop = ROLL_RED_SUM};
        ++*ticket;
    }
    struct roll_frame_head head = {.type = ROLL_FRAME_RECORDS,
                                   .seq = number,
                                   .stream = epoch,
                                   .first = roll_seal_ticket(recs[0].seal),
                                   .rec_size = ROLL_RECORD_BYTES,
                                   .count = n};
    return (size_t)roll_frame_encode(&head, recs, n * sizeof(*recs), j->bytes, sizeof(j->bytes));
}

int segment_job_append(roll_segments_t *w, const void *raw, size_t bytes, uint64_t now)
{
    struct roll_frame frame;
    assert_int_equal(roll_frame_decode(raw, bytes, &frame, NULL), 0);
    return roll_segments_append(w, &frame, raw, bytes, now);
}

roll_segments_t *segment_job_writer(uint64_t segment, uint64_t limit, uint64_t age)
{
    roll_segments_t *w = NULL;
    int pid;
    struct roll_segment_options o = {.dir = segment_job_dir,
                                     .series = SEGMENT_JOB_SERIES,
                                     .segment_bytes = segment,
                                     .limit_bytes = limit,
                                     .age_ns = age};
    assert_int_equal(roll_segments_new(&o, &w, &pid), 0);
    return w;
}

void segment_job_write(roll_segments_t *w, struct segment_job *j, unsigned frames)
{
    for (unsigned i = 0; i < frames; i++) {
        size_t n = segment_job_next(j);
        assert_int_equal(segment_job_append(w, j->bytes, n, SEGMENT_JOB_NOW + j->frame), 0);
        if (j->frame % 50 == 0) {
            assert_int_equal(roll_segments_turn(w, SEGMENT_JOB_NOW + j->frame, true), 0);
        }
    }
}

uint64_t segment_job_check(bool may_be_torn)
{
    static struct segment_job j;
    struct roll_segment_name *list = NULL;
    size_t count = 0;
    uint64_t frames = 0;
    segment_job_begin(&j);
    assert_int_equal(roll_segment_list(segment_job_dir, SEGMENT_JOB_SERIES, &list, &count), 0);
    for (size_t i = 0; i < count; i++) {
        roll_trace_reader_t *r = NULL;
        struct roll_frame frame;
        int err;
        assert_int_equal(list[i].number, i + 1);
        assert_int_equal(roll_trace_reader_new(list[i].path, &r), 0);
        if (i > 0) {
            roll_trace_reader_resume(r);
        }
        while ((err = roll_trace_reader_next(r, &frame)) == 0) {
            size_t n = segment_job_next(&j);
            struct roll_frame mine;
            assert_int_equal(roll_frame_decode(j.bytes, n, &mine, NULL), 0);
            assert_memory_equal(&frame.head, &mine.head, sizeof(mine.head));
            assert_memory_equal(frame.payload, mine.payload, mine.head.payload);
            frames++;
        }
        assert_true(err == ROLL_E_NOTFOUND || (may_be_torn && err == ROLL_E_SHORT && i + 1 == count));
        roll_trace_reader_destroy(&r);
    }
    free(list);
    return frames;
}

size_t segment_job_count(uint64_t *bytes)
{
    struct roll_segment_name *list = NULL;
    size_t count = 0;
    assert_int_equal(roll_segment_list(segment_job_dir, SEGMENT_JOB_SERIES, &list, &count), 0);
    *bytes = 0;
    for (size_t i = 0; i < count; i++) {
        struct stat st;
        assert_int_equal(stat(list[i].path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
        *bytes += (uint64_t)st.st_size;
    }
    free(list);
    return count;
}
