/*
 * bundle.c: see bundle.h. What a killed predecessor has left is known by its lock, which died with it.
 *
 * Several may be made in one folder at a time, also by hosts that share it, whose processes have the same numbers: each
 * has a name drawn by chance, and who looks round, begins or gives a name holds the lock of the folder meanwhile. So
 * nobody takes away what another has made and not yet locked, and no two find the same last place free.
 */
#include "daemon/console/incident/bundle.h"

#include "daemon/base/dir.h"
#include "daemon/base/file.h"
#include "daemon/console/console.h"
#include "daemon/console/file.h"
#include "trace/err.h"
#include "trace/ident.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WORD_BYTES 49  /* of a job's name; what tells bundles apart stands behind it */
#define NAMES_MOST 100 /* bundles of one second */
#define PART_BEGIN ".part-"
#define NAME_BEGIN "incident-"
#define PARTS_MOST 16    /* names that are tried for a part */
#define LOCK_MS    10000 /* patience with others in the same folder, who hold it for some milliseconds */
#define TURN_MS    10

void roll_bundle_word(const char *text, char *out, size_t size)
{
    size_t n = 0;
    for (; *text && n + 1 < size; text++) {
        bool plain = (*text >= 'a' && *text <= 'z') || (*text >= 'A' && *text <= 'Z') ||
                     (*text >= '0' && *text <= '9') || *text == '-' || *text == '_';
        out[n++] = plain ? *text : '_';
    }
    out[n] = '\0';
}

void roll_bundle_begins(const char *job, uint32_t restart, char out[ROLL_BUNDLE_NAME])
{
    char word[WORD_BYTES], hash[24] = "";
    roll_bundle_word(job, word, sizeof(word));
    if (strcmp(word, job) != 0) { /* the point cannot be part of a word, and no number begins with an h */
        snprintf(hash, sizeof(hash), ".h%016" PRIx64, roll_hash64(0, job, strlen(job)));
    }
    snprintf(out, ROLL_BUNDLE_NAME, NAME_BEGIN "%s%s.%" PRIu32 "-", word, hash, restart);
}

static int error_of(int number)
{
    switch (number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return ROLL_E_SPACE;
    case EACCES:
    case EPERM:
    case EROFS:
        return ROLL_E_DENIED;
    case ENOENT:
    case ENOTDIR:
        return ROLL_E_NOTFOUND;
    default:
        return ROLL_E_IO;
    }
}

static int complain(const struct roll_bundle *b, int number)
{
    bool full = error_of(number) == ROLL_E_SPACE;
    roll_say("%s: no bundle is written: %s%s", b->dir, strerror(number),
             full ? "; make room, then ask again: rollcall incident" : "");
    return error_of(number);
}

/* Takes the lock of the folder; BUSY behind a line. Who dies lets it go. */
static int take_folder(const struct roll_bundle *b)
{
    int rc, waited = 0;
    while ((rc = flock(b->dir_fd, LOCK_EX | LOCK_NB)) != 0 && (errno == EWOULDBLOCK || errno == EINTR) &&
           waited < LOCK_MS) {
        poll(NULL, 0, TURN_MS);
        waited += TURN_MS;
    }
    if (rc != 0 && errno != EWOULDBLOCK && errno != EINTR) {
        return 0; /* a file system without locks: as good as it gets */
    }
    if (rc != 0) {
        roll_say("%s: no bundle is written: others have been making one here for %d s; ask again: rollcall incident",
                 b->dir, LOCK_MS / 1000);
        return ROLL_E_BUSY;
    }
    return 0;
}

static void let_folder_go(const struct roll_bundle *b)
{
    (void)flock(b->dir_fd, LOCK_UN);
}

/* What is in the folder already. */
struct there {
    unsigned of_run, all;
    uint64_t bytes;
};

static DIR *open_list(int dir_fd, const char *name)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d && fd >= 0) {
        close(fd);
    }
    return d;
}

/* The bytes of the files in a bundle, and in folders of it down to `depth`. */
static uint64_t bytes_in(int dir_fd, const char *name, int depth)
{
    DIR *d = open_list(dir_fd, name);
    struct dirent *entry;
    uint64_t bytes = 0;
    while (d && (entry = readdir(d)) != NULL) {
        struct stat st;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
            continue;
        }
        bytes += S_ISREG(st.st_mode) && st.st_size > 0 ? (uint64_t)st.st_size : 0;
        bytes += S_ISDIR(st.st_mode) && depth > 0 ? bytes_in(dirfd(d), entry->d_name, depth - 1) : 0;
    }
    if (d) {
        closedir(d);
    }
    return bytes;
}

/* Removes a part that nobody holds. */
static void clean(const struct roll_bundle *b, const char *part)
{
    int fd = openat(b->dir_fd, part, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) {
        char path[2 * PATH_MAX];
        snprintf(path, sizeof(path), "%s/%s", b->dir, part);
        (void)roll_directory_remove(path);
    }
    if (fd >= 0) {
        close(fd);
    }
}

/* Takes away what killed ones have left, and counts what is there. With the lock of the folder. */
static struct there look_round(const struct roll_bundle *b)
{
    DIR *d = open_list(b->dir_fd, ".");
    struct dirent *entry;
    struct there there = {0};
    while (d && (entry = readdir(d)) != NULL) {
        if (strncmp(entry->d_name, PART_BEGIN, strlen(PART_BEGIN)) == 0 && strcmp(entry->d_name, b->part) != 0) {
            clean(b, entry->d_name);
        }
        if (strncmp(entry->d_name, NAME_BEGIN, strlen(NAME_BEGIN)) == 0) {
            there.all++;
            there.of_run += strncmp(entry->d_name, b->begin, strlen(b->begin)) == 0;
            there.bytes += b->bounds.most_bytes ? bytes_in(b->dir_fd, entry->d_name, 1) : 0;
        }
    }
    if (d) {
        closedir(d);
    }
    return there;
}

/* Whether one more may be there, of so many bytes. LIMIT behind a line. */
static int find_room(const struct roll_bundle *b, uint64_t bytes)
{
    struct there there = look_round(b);
    if (b->bounds.keep > 0 && there.of_run >= b->bounds.keep) {
        roll_say("%s: no bundle is written: there are %u of %.*s already, and --keep is %u", b->dir, there.of_run,
                 (int)strlen(b->begin) - 1, b->begin, b->bounds.keep);
        return ROLL_E_LIMIT;
    }
    if (b->bounds.most > 0 && there.all >= b->bounds.most) {
        roll_say("%s: no bundle is written: there are %u of all jobs already, and --most is %u; remove some", b->dir,
                 there.all, b->bounds.most);
        return ROLL_E_LIMIT;
    }
    if (b->bounds.most_bytes > 0 && there.bytes + bytes > b->bounds.most_bytes) {
        roll_say("%s: no bundle is written: those of all jobs have %" PRIu64 " bytes, and with this one there would be "
                 "more than --most-bytes; remove some",
                 b->dir, there.bytes);
        return ROLL_E_LIMIT;
    }
    return 0;
}

static int begin_part(struct roll_bundle *b)
{
    int rc = -1;
    errno = EEXIST;
    for (unsigned i = 0; rc != 0 && errno == EEXIST && i < PARTS_MOST; i++) {
        uint64_t chance = 0;
        if (getrandom(&chance, sizeof(chance), GRND_NONBLOCK) != (ssize_t)sizeof(chance)) {
            chance = (uint64_t)getpid() << 8 | i;
        }
        snprintf(b->part, sizeof(b->part), PART_BEGIN "%d-%016" PRIx64, (int)getpid(), chance);
        rc = mkdirat(b->dir_fd, b->part, 0700);
    }
    snprintf(b->path, sizeof(b->path), "%s/%s", b->dir, b->part);
    if (rc != 0) {
        return complain(b, errno);
    }
    b->fd = openat(b->dir_fd, b->part, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (b->fd < 0 || flock(b->fd, LOCK_EX | LOCK_NB) != 0) {
        int number = errno;
        unlinkat(b->dir_fd, b->part, AT_REMOVEDIR);
        return complain(b, number);
    }
    return 0;
}

static void release(struct roll_bundle *b)
{
    if (b->fd >= 0) {
        close(b->fd);
    }
    if (b->dir_fd >= 0) {
        close(b->dir_fd);
    }
    json_decref(b->files);
    json_decref(b->left_out);
    b->fd = b->dir_fd = -1;
    b->files = b->left_out = NULL;
}

int roll_bundle_begin(struct roll_bundle *b, const char *dir, const char *job, uint32_t restart,
                      const struct roll_bundle_bounds *bounds, uint64_t limit)
{
    char date[24], why[PATH_MAX + 128];
    time_t now = time(NULL);
    struct tm tm;
    *b = (struct roll_bundle){.dir_fd = -1, .fd = -1, .limit = limit, .bounds = *bounds};
    int err =
        strlen(dir) >= sizeof(b->dir) ? ROLL_E_SIZE : roll_dir_open(dir, ROLL_DIR_MAKE, &b->dir_fd, why, sizeof(why));
    if (err) {
        roll_say("no bundle is written: %s", err == ROLL_E_SIZE ? "the name of the directory is too long" : why);
        return err;
    }
    snprintf(b->dir, sizeof(b->dir), "%s", dir);
    roll_bundle_begins(job, restart, b->begin);
    strftime(date, sizeof(date), "%Y%m%dT%H%M%SZ", gmtime_r(&now, &tm) ? &tm : &(struct tm){0});
    snprintf(b->name, sizeof(b->name), "%.*s%s", (int)(sizeof(b->name) - 32), b->begin, date);
    b->files = json_array();
    b->left_out = json_array();
    err = take_folder(b);
    if (!err) {
        err = find_room(b, 0); /* how large it becomes is seen at its end */
        err = err ? err : begin_part(b);
        let_folder_go(b);
    }
    if (err) {
        release(b);
    }
    return err;
}

uint64_t roll_bundle_room(const struct roll_bundle *b)
{
    return b->limit > b->used ? b->limit - b->used : 0;
}

void roll_bundle_left_out(struct roll_bundle *b, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    json_array_append_new(b->left_out, json_string(text) ? json_string(text) : json_string("?"));
}

void roll_bundle_count(struct roll_bundle *b, const char *file, const char *what, uint64_t bytes)
{
    b->used += bytes;
    json_array_append_new(b->files,
                          json_pack("{s:s, s:I, s:s}", "name", file, "bytes", (json_int_t)bytes, "what", what));
}

/* How much of a text is kept where there is room for so much. */
static size_t cut_at_line(const char *text, size_t room)
{
    const char *end = memrchr(text, '\n', room);
    return end ? (size_t)(end - text) + 1 : 0;
}

void roll_bundle_text(struct roll_bundle *b, const char *file, const char *what, const char *text, size_t bytes)
{
    size_t kept = bytes <= roll_bundle_room(b) ? bytes : cut_at_line(text, (size_t)roll_bundle_room(b));
    if (b->number != 0) {
        return;
    }
    if (kept < bytes) {
        roll_bundle_left_out(b, "%s: %zu of its %zu bytes, for which there was no room (--bytes)", file, bytes - kept,
                             bytes);
    }
    int fd = openat(b->fd, file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    errno = fd >= 0 ? 0 : errno;
    bool whole = fd >= 0 && roll_write_all(fd, text, kept) == kept && fsync(fd) == 0;
    b->number = whole ? 0 : errno ? errno : EIO;
    if (fd >= 0 && close(fd) != 0 && whole) {
        b->number = errno;
    }
    if (b->number == 0) {
        roll_bundle_count(b, file, what, kept);
    }
}

void roll_bundle_drop(struct roll_bundle *b)
{
    if (b->fd >= 0) {
        (void)roll_directory_remove(b->path);
    }
    release(b);
}

/* Where the file system knows no renaming that replaces nothing, a name that is free is taken: nobody but this user can
 * make it meanwhile. */
static int take_name(const struct roll_bundle *b, const char *name)
{
    int rc = renameat2(b->dir_fd, b->part, b->dir_fd, name, RENAME_NOREPLACE);
    if (rc != 0 && (errno == EINVAL || errno == ENOSYS)) {
        rc = faccessat(b->dir_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0 ? -1
                                                                        : renameat(b->dir_fd, b->part, b->dir_fd, name);
        errno = rc != 0 && errno == 0 ? EEXIST : errno;
    }
    return rc;
}

/* Gives it a name that is free. 0, or an errno. */
static int name_it(struct roll_bundle *b)
{
    char name[ROLL_BUNDLE_NAME];
    snprintf(name, sizeof(name), "%s", b->name);
    for (unsigned i = 2; take_name(b, name) != 0; i++) {
        if (errno != EEXIST && errno != ENOTEMPTY) {
            return errno;
        }
        if (i > NAMES_MOST) {
            return EEXIST;
        }
        snprintf(name, sizeof(name), "%.*s-%u", (int)sizeof(name) - 16, b->name, i);
    }
    memcpy(b->name, name, sizeof(name));
    return 0;
}

int roll_bundle_end(struct roll_bundle *b)
{
    int number = b->number;
    if (number == 0 && fsync(b->fd) != 0 && errno != EINVAL && errno != EROFS) {
        number = errno;
    }
    int err = number != 0 ? complain(b, number) : take_folder(b);
    if (!err) {
        err = find_room(b, b->used); /* others may have been made meanwhile */
        number = err ? 0 : name_it(b);
        err = number != 0 ? complain(b, number) : err;
        let_folder_go(b);
    }
    if (err) {
        roll_bundle_drop(b);
        return err;
    }
    (void)fsync(b->dir_fd); /* the name; the files are there in any case */
    release(b);
    return 0;
}
