/*
 * segment.c: writes a series of segments, and removes the oldest.
 *
 * A segment gets its name when its first bytes are in it, and then only grows, by whole frames: whoever reads it at any moment, or after this
 * process was killed at any moment, finds every frame whole but perhaps the last. A writer never goes on in a file of its predecessor: what
 * it has learned by then (pack_model.c) went with it. Nothing is synced to the disk: the page cache outlives this process, and a node
 * that loses power is not what a trace is kept for.
 */
#include "daemon/segment.h"

#include "daemon/clock.h"
#include "daemon/pack.h"
#include "daemon/trace_file.h"
#include "trace/err.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_NS    (800 * ROLL_MS)     /* what a reader of a live trace may be behind */
#define EXPIRE_NS   (10000 * ROLL_MS)   /* between two looks at what is too old */
#define TURN_NS     (3600000 * ROLL_MS) /* no segment holds more than an hour */
#define LEAST_BYTES (UINT64_C(64) << 10)
#define PLAIN_BYTES (UINT64_C(3) << 20) /* of plain frames in one PACK: a reader accepts 8 MiB */
#define ALONE_BYTES (1024u * 1024u)     /* larger frames are not packed */
#define SUFFIX      ".rtrc"
#define DIGITS      8

struct roll_segments {
    char dir[PATH_MAX - 512], series[256];
    uint64_t segment_bytes, limit_bytes, age_ns, turn_ns;
    uint64_t number; /* of the newest segment */
    int fd;          /* -1: the next frame begins a new one */
    uint64_t used, begun_ns, waiting_ns, plain, expired_ns;
    uint32_t waiting; /* records that wait */
    roll_packer_t *packer;
    struct roll_segment_state *state;
    uint8_t *frame; /* one encoded frame of the repetition */
    struct roll_segment_count count;
};

static int from_errno(void)
{
    return errno == ENOENT || errno == ENOTDIR                    ? ROLL_E_NOTFOUND
           : errno == EACCES || errno == EPERM || errno == EROFS  ? ROLL_E_DENIED
           : errno == ENOSPC || errno == EDQUOT || errno == EFBIG ? ROLL_E_SPACE
           : errno == ENOMEM                                      ? ROLL_E_NOMEM
                                                                  : ROLL_E_IO;
}

/* ---- names ---- */

bool roll_segment_parse(const char *path, char *series, size_t series_bytes, uint64_t *number)
{
    size_t n = strlen(path), tail = DIGITS + strlen(SUFFIX) + 1;
    if (n <= tail || strcmp(path + n - strlen(SUFFIX), SUFFIX) != 0 || path[n - tail] != '.') {
        return false;
    }
    uint64_t value = 0;
    for (const char *p = path + n - tail + 1; p < path + n - strlen(SUFFIX); p++) {
        if (!isdigit((unsigned char)*p)) {
            return false;
        }
        value = value * 10 + (uint64_t)(*p - '0');
    }
    if (n - tail >= series_bytes || value == 0) {
        return false;
    }
    memcpy(series, path, n - tail);
    series[n - tail] = '\0';
    *number = value;
    return true;
}

int roll_segment_dir(const char *dir, char *why, size_t why_size)
{
    struct stat st;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        snprintf(why, why_size, "%s: %s", dir, strerror(errno));
        return from_errno();
    }
    if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode)) {
        snprintf(why, why_size, "%s is not a directory", dir);
        return ROLL_E_ARG;
    }
    if (st.st_uid != geteuid()) {
        snprintf(why, why_size, "%s belongs to another user (uid %u); name a directory of your own", dir,
                 (unsigned)st.st_uid);
        return ROLL_E_DENIED;
    }
    if ((st.st_mode & S_IWOTH) != 0) {
        snprintf(why, why_size, "%s can be written by everybody; chmod o-w %s, or name another", dir, dir);
        return ROLL_E_DENIED;
    }
    if (access(dir, W_OK | X_OK) != 0) {
        snprintf(why, why_size, "%s: %s", dir, strerror(errno));
        return ROLL_E_DENIED;
    }
    return 0;
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = ((const struct roll_segment_name *)a)->number, y = ((const struct roll_segment_name *)b)->number;
    return (x > y) - (x < y);
}

int roll_segment_list(const char *dir, const char *series, struct roll_segment_name **out, size_t *count)
{
    DIR *d = opendir(dir);
    if (!d) {
        return from_errno();
    }
    struct roll_segment_name *list = NULL;
    size_t used = 0, room = 0;
    char old[300];
    int err = 0;
    snprintf(old, sizeof old, "%s%s", series, SUFFIX);
    for (struct dirent *entry; !err && (entry = readdir(d)) != NULL;) {
        char mine[256];
        uint64_t number = 0;
        bool named = roll_segment_parse(entry->d_name, mine, sizeof mine, &number) && strcmp(mine, series) == 0;
        if (!named && strcmp(entry->d_name, old) != 0) {
            continue;
        }
        if (used == room) {
            room = room ? 2 * room : 16;
            struct roll_segment_name *grown = realloc(list, room * sizeof *grown);
            err = grown ? 0 : ROLL_E_NOMEM;
            list = grown ? grown : list;
        }
        if (!err) {
            list[used].number = named ? number : 0;
            snprintf(list[used++].path, sizeof list->path, "%s/%s", dir, entry->d_name);
        }
    }
    closedir(d);
    if (err) {
        free(list);
        return err;
    }
    if (used > 1) {
        qsort(list, used, sizeof *list, by_number);
    }
    *out = list;
    *count = used;
    return 0;
}

/* ---- what is too much or too old ---- */

struct old_file {
    char name[NAME_MAX + 1];
    uint64_t bytes;
    struct timespec changed;
};

/* The part behind '@', and the number: agents of one host share a limit, roots another; none touches what the other keeps. */
static bool same_kind(const char *a, const char *b)
{
    const char *x = strrchr(a, '@'), *y = strrchr(b, '@');
    return x && y ? strcmp(x, y) == 0 : x == y;
}

static int by_change(const void *a, const void *b)
{
    const struct old_file *x = a, *y = b;
    if (x->changed.tv_sec != y->changed.tv_sec) {
        return x->changed.tv_sec < y->changed.tv_sec ? -1 : 1;
    }
    if (x->changed.tv_nsec != y->changed.tv_nsec) {
        return x->changed.tv_nsec < y->changed.tv_nsec ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

static struct old_file *kept_files(const struct roll_segments *w, size_t *count)
{
    struct old_file *list = NULL;
    size_t used = 0, room = 0;
    DIR *d = opendir(w->dir);
    for (struct dirent *entry; d && (entry = readdir(d)) != NULL;) {
        char series[256];
        uint64_t number;
        struct stat st;
        if (!roll_segment_parse(entry->d_name, series, sizeof series, &number) || !same_kind(series, w->series) ||
            fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) {
            continue;
        }
        if (used == room) {
            room = room ? 2 * room : 64;
            struct old_file *grown = realloc(list, room * sizeof *grown);
            if (!grown) {
                break;
            }
            list = grown;
        }
        snprintf(list[used].name, sizeof list->name, "%s", entry->d_name);
        list[used].bytes = (uint64_t)st.st_size;
        list[used++].changed = st.st_mtim;
    }
    if (d) {
        closedir(d);
    }
    if (used > 1) {
        qsort(list, used, sizeof *list, by_change);
    }
    *count = used;
    return list;
}

/* Removes a segment that nobody writes any more. */
static bool remove_segment(struct roll_segments *w, const struct old_file *file)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", w->dir, file->name);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool done = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && unlink(path) == 0;
    if (fd >= 0) {
        close(fd);
    }
    w->count.removed += done;
    return done;
}

/* `coming`: bytes that must still fit below the limit. */
static void expire(struct roll_segments *w, uint64_t now, uint64_t coming)
{
    w->expired_ns = now;
    if (!w->limit_bytes && !w->age_ns) {
        return;
    }
    size_t count;
    uint64_t sum = coming, real = roll_real_ns();
    struct old_file *list = kept_files(w, &count);
    for (size_t i = 0; i < count; i++) {
        sum += list[i].bytes;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t changed = (uint64_t)list[i].changed.tv_sec * 1000000000u + (uint64_t)list[i].changed.tv_nsec;
        bool old = w->age_ns && real > changed && real - changed > w->age_ns;
        bool over = w->limit_bytes && sum > w->limit_bytes;
        if ((old || over) && remove_segment(w, &list[i])) {
            sum -= list[i].bytes;
        }
    }
    free(list);
}

/* ---- writing ---- */

static int write_all(int fd, const uint8_t *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, data, bytes);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return from_errno();
        }
        data += n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* What waits goes out as one PACK. */
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
    int64_t n = roll_frame_encode(head, payload, bytes, w->frame, ALONE_BYTES);
    int err = n < 0 ? (int)n : roll_frame_decode(w->frame, (size_t)n, &frame, NULL);
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

/* A new segment: under another name until it holds what it has to repeat. */
static int begin_segment(struct roll_segments *w, uint64_t now)
{
    char part[PATH_MAX], path[PATH_MAX];
    uint8_t head[ROLL_TRACE_HEAD_BYTES];
    snprintf(part, sizeof part, "%s/.%s.part", w->dir, w->series);
    snprintf(path, sizeof path, "%s/%s.%0*llu%s", w->dir, w->series, DIGITS, (unsigned long long)w->number + 1, SUFFIX);
    expire(w, now, w->segment_bytes);
    unlink(part);
    w->fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (w->fd < 0) {
        return from_errno();
    }
    roll_trace_head(head);
    roll_packer_reset(w->packer);
    w->used = w->plain = 0;
    int err = flock(w->fd, LOCK_EX | LOCK_NB) == 0 ? write_all(w->fd, head, sizeof head) : ROLL_E_BUSY;
    if (!err) {
        err = roll_segment_state_repeat(w->state, repeat, w);
    }
    if (!err) {
        err = write_pack(w, true);
    }
    if (!err && rename(part, path) != 0) {
        err = from_errno();
    }
    if (err) {
        unlink(part);
        return err;
    }
    w->number++;
    w->used += sizeof head;
    w->count.bytes += sizeof head;
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
    if (w->fd >= 0 && (w->used >= w->segment_bytes || (int64_t)(now - w->begun_ns) >= (int64_t)w->turn_ns)) {
        close(w->fd);
        w->fd = -1;
    }
    return 0;
}

/* A frame too large to be packed stands as it is between two PACKs. */
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

int roll_segments_turn(roll_segments_t *w, uint64_t now, bool at_once)
{
    if (w->count.stopped) {
        return 0;
    }
    if ((int64_t)(now - w->expired_ns) > (int64_t)EXPIRE_NS) {
        expire(w, now, 0);
    }
    return w->waiting_ns && (at_once || (int64_t)(now - w->waiting_ns) >= (int64_t)BLOCK_NS) ? flush(w, now) : 0;
}

/* ---- life ---- */

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

/* The newest segment is locked for as long as its writer lives. */
static int check_alone(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return from_errno();
    }
    int err = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : ROLL_E_BUSY;
    close(fd);
    return err;
}

int roll_segments_new(const struct roll_segment_options *o, roll_segments_t **out)
{
    roll_segments_t *w = calloc(1, sizeof *w);
    struct roll_segment_name *list = NULL;
    size_t count = 0;
    if (!w) {
        return ROLL_E_NOMEM;
    }
    w->fd = -1;
    w->packer = roll_packer_new();
    w->state = roll_segment_state_new();
    w->frame = malloc(ALONE_BYTES);
    int err = w->packer && w->state && w->frame ? 0 : ROLL_E_NOMEM;
    if (!err && (strlen(o->dir) >= sizeof w->dir || strlen(o->series) >= sizeof w->series)) {
        err = ROLL_E_LIMIT;
    }
    if (!err) {
        err = roll_segment_list(o->dir, o->series, &list, &count);
    }
    if (!err && count > 0) {
        err = check_alone(list[count - 1].path);
        w->number = list[count - 1].number;
    }
    free(list);
    if (err) {
        roll_segments_destroy(&w);
        return err;
    }
    snprintf(w->dir, sizeof w->dir, "%s", o->dir);
    snprintf(w->series, sizeof w->series, "%s", o->series);
    w->segment_bytes = o->segment_bytes ? o->segment_bytes : ROLL_SEGMENT_BYTES;
    if (o->limit_bytes && w->segment_bytes > o->limit_bytes / 4) { /* what is removed at once is at most a quarter */
        w->segment_bytes = o->limit_bytes / 4;
    }
    w->segment_bytes = w->segment_bytes < LEAST_BYTES ? LEAST_BYTES : w->segment_bytes;
    w->limit_bytes = o->limit_bytes;
    w->age_ns = o->age_ns;
    w->turn_ns = o->age_ns && o->age_ns / 4 < TURN_NS ? o->age_ns / 4 : TURN_NS;
    *out = w;
    return 0;
}

void roll_segments_destroy(roll_segments_t **segments)
{
    roll_segments_t *w = *segments;
    if (!w) {
        return;
    }
    if (w->fd >= 0) {
        (void)flush(w, w->begun_ns);
    }
    if (w->fd >= 0) {
        close(w->fd);
    }
    roll_packer_destroy(&w->packer);
    roll_segment_state_destroy(&w->state);
    free(w->frame);
    free(w);
    *segments = NULL;
}
