/*
 * segment.c: writes a series of segments, and removes the oldest.
 *
 * A segment gets its name when its first bytes are in it, and then only grows, by whole frames. So a reader at any
 * moment, also after this process was killed at any moment, finds every frame whole, except perhaps the last. A writer
 * never goes on in a file of its predecessor, because the predecessor's predictions (pack_model.c) are lost. Nothing is
 * synced to the disk: the page cache outlives this process, and a trace is not meant for a node that loses power.
 */
#include "daemon/store/segment.h"

#include "daemon/base/clock.h"
#include "daemon/base/file.h"
#include "daemon/base/lock.h"
#include "daemon/store/pack.h"
#include "daemon/store/trace_file.h"
#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* How far a reader of a live trace may be behind. The second value holds while only time has passed and nodes were
 * busy: a block costs more than such news is worth. */
#define BLOCK_NS    (800 * ROLL_MS)
#define STILL_NS    (5000 * ROLL_MS)
#define EXPIRE_NS   (10000 * ROLL_MS)   /* between two looks for segments that are too old */
#define AGAIN_NS    (200 * ROLL_MS)     /* the same, when there were more than are removed at once */
#define TURN_NS     (3600000 * ROLL_MS) /* no segment holds more than an hour */
#define LEAST_BYTES (UINT64_C(64) << 10)
#define PLAIN_BYTES (UINT64_C(3) << 20) /* bytes of plain frames in one PACK; a reader accepts 8 MiB */
#define ALONE_BYTES (1024u * 1024u)     /* larger frames are not packed */

struct roll_segments {
    char dir[PATH_MAX - 512], series[256];
    struct roll_segment_options o; /* o.dir and o.series point to the members above */
    uint64_t turn_ns;
    uint64_t number;   /* of the newest segment */
    int fd;            /* -1: the next frame begins a new segment */
    int lock;          /* DIR/.SERIES.lock: no other process writes this series */
    bool waiting_news; /* frames other than ticks and SIGHT wait, too */
    uint64_t used, begun_ns, waiting_ns, plain, expired_ns;
    uint32_t waiting; /* number of records that wait */
    roll_packer_t *packer;
    struct roll_segment_state *state;
    uint8_t *frame; /* one encoded frame that a new segment repeats */
    struct roll_segment_count count;
};

/* writing */

static int write_all(int fd, const void *data, size_t bytes)
{
    return roll_write_all(fd, data, bytes) == bytes ? 0 : roll_segment_errno();
}

/* Writes the waiting frames as one PACK. */
static int write_pack(struct roll_segments *w, bool repeats)
{
    const uint8_t *pack;
    size_t bytes;
    int err = roll_packer_finish(w->packer, repeats, &pack, &bytes);
    if (err == ROLL_E_NOTFOUND) {
        return 0;
    }
    if (!err) {
        err = write_all(w->fd, pack, bytes);
    }
    if (!err) {
        w->used += bytes;
        w->count.bytes += bytes;
    }
    w->plain = 0;
    return err;
}

static int repeat(void *ctx, const struct roll_frame_head *head, const void *payload, size_t bytes)
{
    struct roll_segments *w = ctx;
    struct roll_frame frame;
    int64_t n = roll_frame_make(head, payload, bytes, w->frame, ALONE_BYTES, &frame);
    int err = n < 0 ? (int)n : 0;
    size_t waiting;
    bool full;
    if (!err) {
        err = roll_packer_add(w->packer, &frame, w->frame, (size_t)n);
        w->plain += (uint64_t)n;
    }
    if (!err && roll_packer_waiting(w->packer, &waiting, &full) > 0 && (full || w->plain > PLAIN_BYTES)) {
        err = write_pack(w, true);
    }
    return err;
}

static void expire(struct roll_segments *w, uint64_t now, uint64_t coming)
{
    bool more;
    w->count.removed += roll_segment_expire(&w->o, coming, &more);
    w->expired_ns = more ? now - EXPIRE_NS + AGAIN_NS : now;
}

static int open_part(struct roll_segments *w, const char *part)
{
    uint8_t head[ROLL_TRACE_HEAD_BYTES];
    unlink(part); /* left by a writer that was killed: the lock is ours */
    w->fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (w->fd < 0) {
        return roll_segment_errno();
    }
    roll_trace_head(head);
    return flock(w->fd, LOCK_EX | LOCK_NB) == 0 ? write_all(w->fd, head, sizeof(head)) : ROLL_E_BUSY;
}

/* Begins a new segment, under another name until it holds the frames that it has to repeat. It never replaces an
 * existing file. */
static int begin_segment(struct roll_segments *w, uint64_t now)
{
    char part[PATH_MAX], path[PATH_MAX];
    snprintf(part, sizeof(part), "%s/.%s.part", w->dir, w->series);
    if (!roll_segment_path(w->dir, w->series, w->number + 1, path)) {
        return ROLL_E_LIMIT;
    }
    expire(w, now, w->o.segment_bytes);
    roll_packer_reset(w->packer);
    w->used = w->plain = 0;
    int err = open_part(w, part);
    if (!err) {
        err = roll_segment_state_repeat(w->state, repeat, w);
    }
    if (!err) {
        err = write_pack(w, true);
    }
    if (!err && renameat2(AT_FDCWD, part, AT_FDCWD, path, RENAME_NOREPLACE) != 0 &&
        (errno != EINVAL || rename(part, path) != 0)) { /* EINVAL: the file system cannot rename without replacing */
        err = errno == EEXIST ? ROLL_E_BUSY : roll_segment_errno();
    }
    if (err) {
        unlink(part);
        return err;
    }
    w->number++;
    w->used += ROLL_TRACE_HEAD_BYTES;
    w->count.bytes += ROLL_TRACE_HEAD_BYTES;
    w->count.segments++;
    w->begun_ns = now;
    return 0;
}

static int stop(struct roll_segments *w, int err)
{
    w->count.stopped = true;
    w->count.lost += w->waiting;
    w->waiting = 0;
    if (w->fd >= 0) {
        close(w->fd);
        w->fd = -1;
    }
    return err;
}

static int flush(struct roll_segments *w, uint64_t now)
{
    int err = w->fd >= 0 ? write_pack(w, false) : 0;
    if (err) {
        return stop(w, err);
    }
    w->count.records += w->waiting;
    w->waiting = 0;
    w->waiting_ns = 0;
    w->waiting_news = false;
    if (w->fd >= 0 && (w->used >= w->o.segment_bytes || (int64_t)(now - w->begun_ns) >= (int64_t)w->turn_ns)) {
        close(w->fd);
        w->fd = -1;
    }
    return 0;
}

/* Writes a frame that is too large to be packed as it is, between two PACKs. */
static int append_alone(struct roll_segments *w, const void *raw, size_t bytes, uint64_t now)
{
    int err = flush(w, now);
    if (!err && w->fd < 0) {
        err = begin_segment(w, now);
    }
    if (!err) {
        err = write_all(w->fd, raw, bytes);
    }
    w->used += bytes;
    w->count.bytes += err ? 0 : bytes;
    return err && !w->count.stopped ? stop(w, err) : err;
}

int roll_segments_append(roll_segments_t *w, const struct roll_frame *frame, const void *raw, size_t bytes,
                         uint64_t now)
{
    uint32_t records = frame->head.type == ROLL_FRAME_RECORDS ? frame->head.count : 0;
    if (w->count.stopped) {
        w->count.lost += records;
        return 0;
    }
    int err = 0;
    if (bytes > ALONE_BYTES) {
        err = append_alone(w, raw, bytes, now);
    } else {
        if (w->fd < 0) {
            err = begin_segment(w, now);
        }
        if (!err) {
            err = roll_packer_add(w->packer, frame, raw, bytes);
        }
    }
    w->waiting += records;
    w->plain += bytes;
    w->waiting_news = w->waiting_news || (frame->head.type != ROLL_FRAME_TICK && frame->head.type != ROLL_FRAME_SIGHT);
    w->waiting_ns = w->waiting_ns ? w->waiting_ns : now;
    if (!err) {
        err = roll_segment_state_note(w->state, frame);
    }
    size_t columns;
    bool full;
    if (err) {
        return w->count.stopped ? err : stop(w, err);
    }
    return roll_packer_waiting(w->packer, &columns, &full) && (full || w->plain > PLAIN_BYTES) ? flush(w, now) : 0;
}

/* Checks whether another process has removed the file that is being written. Then the next frames go into a new one, if
 * the directory is still there. */
static void look_after(struct roll_segments *w)
{
    struct stat st;
    if (w->fd >= 0 && fstat(w->fd, &st) == 0 && st.st_nlink == 0) {
        close(w->fd);
        w->fd = -1;
    }
}

int roll_segments_turn(roll_segments_t *w, uint64_t now, bool at_once)
{
    if (w->count.stopped) {
        return 0;
    }
    bool look = (int64_t)(now - w->expired_ns) > (int64_t)EXPIRE_NS;
    if (look) {
        expire(w, now, 0);
    }
    uint64_t patience = w->waiting_news ? BLOCK_NS : STILL_NS;
    int err =
        w->waiting_ns && (at_once || look || (int64_t)(now - w->waiting_ns) >= (int64_t)patience) ? flush(w, now) : 0;
    if (look && !err) {
        look_after(w); /* after the flush, because the waiting frames were packed for that file */
    }
    return err;
}

/* life */

int roll_segments_note(roll_segments_t *w, const struct roll_frame *frame)
{
    return roll_segment_state_note(w->state, frame);
}

void roll_segments_cursor(const roll_segments_t *w, uint64_t epoch, struct roll_segment_cursor *out)
{
    roll_segment_state_cursor(w->state, epoch, out);
}

void roll_segments_count(const roll_segments_t *w, struct roll_segment_count *out)
{
    *out = w->count;
}

static void lock_path(const struct roll_segment_options *o, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/.%s.lock", o->dir, o->series);
}

/* Makes the limits fit each other: a segment, which is removed as a whole, is at most a quarter of what may be there.
 */
static void set_limits(struct roll_segments *w)
{
    struct roll_segment_options *o = &w->o;
    o->segment_bytes = o->segment_bytes ? o->segment_bytes : ROLL_SEGMENT_BYTES;
    if (o->limit_bytes && o->segment_bytes > o->limit_bytes / 4) {
        o->segment_bytes = o->limit_bytes / 4;
    }
    o->segment_bytes = o->segment_bytes < LEAST_BYTES ? LEAST_BYTES : o->segment_bytes;
    w->turn_ns = o->age_ns && o->age_ns / 4 < TURN_NS ? o->age_ns / 4 : TURN_NS;
}

int roll_segments_new(const struct roll_segment_options *o, roll_segments_t **out, int *pid)
{
    char path[PATH_MAX];
    struct roll_segment_name *list = NULL;
    size_t count = 0;
    struct roll_segments *w = calloc(1, sizeof(*w));
    *pid = 0;
    if (!w) {
        return ROLL_E_NOMEM;
    }
    w->fd = w->lock = -1;
    w->packer = roll_packer_new();
    w->state = roll_segment_state_new();
    w->frame = malloc(ALONE_BYTES);
    int err = w->packer && w->state && w->frame ? 0 : ROLL_E_NOMEM;
    if (!err && (strlen(o->dir) >= sizeof(w->dir) || strlen(o->series) >= sizeof(w->series))) {
        err = ROLL_E_LIMIT;
    }
    if (!err) {
        snprintf(w->dir, sizeof(w->dir), "%s", o->dir);
        snprintf(w->series, sizeof(w->series), "%s", o->series);
        w->o = *o;
        w->o.dir = w->dir;
        w->o.series = w->series;
        set_limits(w);
        lock_path(&w->o, path);
        err = roll_lock_take(path, &w->lock, pid);
    }
    if (!err) {
        err = roll_segment_list(w->dir, w->series, &list, &count);
    }
    if (err) {
        roll_segments_destroy(&w);
        return err;
    }
    w->number = count > 0 ? list[count - 1].number : 0;
    free(list);
    *out = w;
    return 0;
}

void roll_segments_destroy(roll_segments_t **segments)
{
    struct roll_segments *w = *segments;
    char path[PATH_MAX];
    if (!w) {
        return;
    }
    if (w->fd >= 0) {
        (void)flush(w, w->begun_ns);
    }
    if (w->fd >= 0) {
        close(w->fd);
    }
    if (w->lock >= 0) {
        lock_path(&w->o, path);
        roll_lock_leave(path, &w->lock);
    }
    roll_packer_destroy(&w->packer);
    roll_segment_state_destroy(&w->state);
    free(w->frame);
    free(w);
    *segments = NULL;
}
