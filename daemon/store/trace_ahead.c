/*
 * trace_ahead.c: see trace_ahead.h.
 *
 * Each file has two batches of decoded frames: one that is being consumed, and one that a thread fills meanwhile. A
 * file that lacks a batch stands in a queue; who fills it has the file's reader for himself until it is full. So
 * threads share nothing but the queue and the states of batches, under one lock that is taken twice a batch.
 *
 * The consumer never waits for a file that nobody works on: it fills the batch itself. So it cannot be that all threads
 * keep files ready that nobody wants yet, while the one that is wanted waits for a thread. A thread for each file was
 * rejected: a job has more nodes than a head node has processors.
 */
#include "daemon/store/trace_ahead.h"

#include "daemon/base/array.h"
#include "daemon/store/trace_file.h"
#include "trace/err.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALL_BATCHES ((size_t)64 << 20) /* bytes of frames that are kept ready of all files */
#define LEAST_BATCH ((size_t)16 << 10)
#define MOST_BATCH  ((size_t)1 << 20)

struct batch {
    uint8_t *bytes;           /* payloads; owned */
    struct roll_frame *frame; /* owned; payloads point into bytes when the batch is full */
    size_t used, room, frames, frame_room;
    int err;       /* behind the last frame; 0: more frames come */
    size_t offset; /* of the reader, at err */
    bool full;     /* under the lock */
};

enum file_state { FILE_RESTS, FILE_QUEUED, FILE_WORKED_ON };

struct roll_ahead_file {
    roll_ahead_t *ahead;
    roll_trace_reader_t *reader;
    struct batch batch[2];
    unsigned fills, takes; /* the batch that is filled next, and the one that is consumed; fills under the lock */
    size_t at;             /* the next frame of the latter */
    bool holds;            /* the consumer has the latter */
    enum file_state state; /* under the lock */
    bool over;             /* an error ended the file: nothing is to be filled any more; under the lock */
    struct roll_ahead_file *before, *behind; /* in the queue; under the lock */
};

struct roll_ahead {
    pthread_mutex_t lock;
    pthread_cond_t work, filled;
    struct roll_ahead_file *first, *last; /* the queue */
    pthread_t thread[ROLL_AHEAD_THREADS];
    unsigned threads; /* that were started */
    size_t batch_bytes;
    bool ends;
};

/* batches */

static int keep(struct batch *b, const struct roll_frame *frame)
{
    int err = ROLL_GROW(b->frame, b->frame_room, b->frames + 1);
    err = err ? err : ROLL_GROW(b->bytes, b->room, b->used + frame->head.payload + 1);
    if (err) {
        return err;
    }
    if (frame->head.payload > 0) {
        memcpy(b->bytes + b->used, frame->payload, frame->head.payload);
    }
    b->frame[b->frames++] = *frame;
    b->used += frame->head.payload;
    return 0;
}

/* Whoever calls this has the reader and the batch for himself. */
static void fill(struct batch *b, roll_trace_reader_t *reader, size_t most)
{
    struct roll_frame frame;
    b->used = b->frames = 0;
    b->err = 0;
    while (b->err == 0 && b->used < most && b->frames < most / ROLL_FRAME_HEAD_BYTES) {
        b->err = roll_trace_reader_next(reader, &frame);
        b->err = b->err ? b->err : keep(b, &frame);
    }
    b->offset = roll_trace_reader_offset(reader);
    size_t at = 0;
    for (size_t i = 0; i < b->frames; i++) {
        b->frame[i].payload = b->bytes + at;
        at += b->frame[i].head.payload;
    }
}

/* the queue; all of this under the lock */

static void enqueue(struct roll_ahead *a, struct roll_ahead_file *f)
{
    f->state = FILE_QUEUED;
    f->before = a->last;
    f->behind = NULL;
    *(a->last ? &a->last->behind : &a->first) = f;
    a->last = f;
    pthread_cond_signal(&a->work);
}

static void dequeue(struct roll_ahead *a, struct roll_ahead_file *f)
{
    *(f->before ? &f->before->behind : &a->first) = f->behind;
    *(f->behind ? &f->behind->before : &a->last) = f->before;
    f->state = FILE_RESTS;
}

/* A file is queued while it has a batch that nobody needs any more. */
static void ask(struct roll_ahead *a, struct roll_ahead_file *f)
{
    if (a->threads > 0 && f->state == FILE_RESTS && !f->over && !f->batch[f->fills].full) {
        enqueue(a, f);
    }
}

/* Fills the file's next batch, with the lock given up meanwhile. */
static void work_on(struct roll_ahead *a, struct roll_ahead_file *f)
{
    struct batch *b = &f->batch[f->fills];
    f->state = FILE_WORKED_ON;
    pthread_mutex_unlock(&a->lock);
    fill(b, f->reader, a->batch_bytes);
    pthread_mutex_lock(&a->lock);
    b->full = true;
    f->fills = 1 - f->fills;
    f->over = b->err != 0;
    f->state = FILE_RESTS;
    ask(a, f);
    pthread_cond_signal(&a->filled);
}

static void *worker(void *arg)
{
    struct roll_ahead *a = arg;
    pthread_mutex_lock(&a->lock);
    while (!a->ends) {
        if (a->first) {
            struct roll_ahead_file *f = a->first;
            dequeue(a, f);
            work_on(a, f);
        } else {
            pthread_cond_wait(&a->work, &a->lock);
        }
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* threads */

/* Signals are for the caller's thread. */
static void start(struct roll_ahead *a, unsigned threads)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (a->threads < threads && pthread_create(&a->thread[a->threads], NULL, worker, a) == 0) {
        a->threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

roll_ahead_t *roll_ahead_new(unsigned threads, size_t files)
{
    struct roll_ahead *a = calloc(1, sizeof(*a));
    if (!a) {
        return NULL;
    }
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->work, NULL);
    pthread_cond_init(&a->filled, NULL);
    size_t each = ALL_BATCHES / 2 / (files > 0 ? files : 1);
    a->batch_bytes = each < LEAST_BATCH ? LEAST_BATCH : each > MOST_BATCH ? MOST_BATCH : each;
    threads = threads > ROLL_AHEAD_THREADS ? ROLL_AHEAD_THREADS : threads;
    start(a, threads > 0 ? threads - 1 : 0);
    return a;
}

void roll_ahead_destroy(roll_ahead_t **pointer)
{
    struct roll_ahead *a = *pointer;
    *pointer = NULL;
    if (!a) {
        return;
    }
    pthread_mutex_lock(&a->lock);
    a->ends = true;
    pthread_cond_broadcast(&a->work);
    pthread_mutex_unlock(&a->lock);
    for (unsigned i = 0; i < a->threads; i++) {
        pthread_join(a->thread[i], NULL);
    }
    pthread_cond_destroy(&a->filled);
    pthread_cond_destroy(&a->work);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

/* files */

int roll_ahead_open(roll_ahead_t *a, const char *path, bool resume, roll_ahead_file_t **out)
{
    struct roll_ahead_file *f = calloc(1, sizeof(*f));
    int err = f ? roll_trace_reader_new(path, &f->reader) : ROLL_E_NOMEM;
    if (err) {
        free(f);
        return err;
    }
    if (resume) {
        roll_trace_reader_resume(f->reader);
    }
    f->ahead = a;
    if (a->threads > 0) {
        pthread_mutex_lock(&a->lock);
        ask(a, f);
        pthread_mutex_unlock(&a->lock);
    }
    *out = f;
    return 0;
}

/* The consumer is behind the last frame of its batch, which it gives back for the next one. */
static void turn(struct roll_ahead *a, struct roll_ahead_file *f)
{
    pthread_mutex_lock(&a->lock);
    if (f->holds) {
        f->batch[f->takes].full = false;
        f->takes = 1 - f->takes;
        ask(a, f);
    }
    while (!f->batch[f->takes].full) {
        if (f->state == FILE_WORKED_ON) {
            pthread_cond_wait(&a->filled, &a->lock);
            continue;
        }
        if (f->state == FILE_QUEUED) {
            dequeue(a, f);
        }
        work_on(a, f);
    }
    pthread_mutex_unlock(&a->lock);
    f->holds = true;
    f->at = 0;
}

int roll_ahead_next(roll_ahead_file_t *f, struct roll_frame *out)
{
    if (f->ahead->threads == 0) {
        return roll_trace_reader_next(f->reader, out);
    }
    /* Nobody else touches a batch that the consumer holds, so it needs no lock. */
    const struct batch *b = &f->batch[f->takes];
    while (!f->holds || (f->at == b->frames && b->err == 0)) {
        turn(f->ahead, f);
        b = &f->batch[f->takes];
    }
    if (f->at == b->frames) {
        return b->err;
    }
    *out = b->frame[f->at++];
    return 0;
}

size_t roll_ahead_offset(const roll_ahead_file_t *f)
{
    return f->ahead->threads == 0 ? roll_trace_reader_offset(f->reader) : f->batch[f->takes].offset;
}

void roll_ahead_close(roll_ahead_file_t **pointer)
{
    struct roll_ahead_file *f = *pointer;
    *pointer = NULL;
    if (!f) {
        return;
    }
    struct roll_ahead *a = f->ahead;
    pthread_mutex_lock(&a->lock);
    while (f->state == FILE_WORKED_ON) {
        pthread_cond_wait(&a->filled, &a->lock);
    }
    if (f->state == FILE_QUEUED) {
        dequeue(a, f);
    }
    pthread_mutex_unlock(&a->lock);
    for (int i = 0; i < 2; i++) {
        free(f->batch[i].bytes);
        free(f->batch[i].frame);
    }
    roll_trace_reader_destroy(&f->reader);
    free(f);
}
