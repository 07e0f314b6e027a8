/*
 * bundle.c: see bundle.h. What a killed predecessor has left is known by its lock, which died with it.
 */
#include "daemon/console/incident/bundle.h"

#include "daemon/base/dir.h"
#include "daemon/base/file.h"
#include "daemon/console/console.h"
#include "daemon/console/file.h"
#include "trace/err.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define WORD_BYTES 49  /* of a job's name; what tells bundles apart stands behind it */
#define NAMES_MOST 100 /* bundles of one second */
#define PART_BEGIN ".part-"

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

/* Takes away what killed ones have left; counts the bundles whose names begin with `begin`. */
static unsigned look_round(const struct roll_bundle *b, const char *begin)
{
    int copy = openat(b->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    struct dirent *entry;
    unsigned n = 0;
    if (!d && copy >= 0) {
        close(copy);
    }
    while (d && (entry = readdir(d)) != NULL) {
        n += strncmp(entry->d_name, begin, strlen(begin)) == 0;
        if (strncmp(entry->d_name, PART_BEGIN, strlen(PART_BEGIN)) != 0) {
            continue;
        }
        int fd = openat(b->dir_fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) {
            char path[2 * PATH_MAX];
            snprintf(path, sizeof(path), "%s/%s", b->dir, entry->d_name);
            (void)roll_directory_remove(path);
        }
        if (fd >= 0) {
            close(fd);
        }
    }
    if (d) {
        closedir(d);
    }
    return n;
}

static int begin_part(struct roll_bundle *b)
{
    snprintf(b->part, sizeof(b->part), PART_BEGIN "%d", (int)getpid());
    snprintf(b->path, sizeof(b->path), "%s/%s", b->dir, b->part);
    if (mkdirat(b->dir_fd, b->part, 0700) != 0) {
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

int roll_bundle_begin(struct roll_bundle *b, const char *dir, const char *job, uint32_t restart, unsigned keep,
                      uint64_t limit)
{
    char word[WORD_BYTES], begin[ROLL_BUNDLE_NAME], date[24], why[PATH_MAX + 128];
    time_t now = time(NULL);
    struct tm tm;
    *b = (struct roll_bundle){.dir_fd = -1, .fd = -1, .limit = limit};
    int err =
        strlen(dir) >= sizeof(b->dir) ? ROLL_E_SIZE : roll_dir_open(dir, ROLL_DIR_MAKE, &b->dir_fd, why, sizeof(why));
    if (err) {
        roll_say("no bundle is written: %s", err == ROLL_E_SIZE ? "the name of the directory is too long" : why);
        return err;
    }
    snprintf(b->dir, sizeof(b->dir), "%s", dir);
    roll_bundle_word(job, word, sizeof(word));
    snprintf(begin, sizeof(begin), "incident-%s.%u-", word, restart);
    unsigned there = look_round(b, begin);
    if (keep > 0 && there >= keep) {
        roll_say("%s: no bundle is written: there are %u of %s already, and --keep is %u", b->dir, there, word, keep);
        release(b);
        return ROLL_E_LIMIT;
    }
    strftime(date, sizeof(date), "%Y%m%dT%H%M%SZ", gmtime_r(&now, &tm) ? &tm : &(struct tm){0});
    snprintf(b->name, sizeof(b->name), "%.*s%s", (int)(sizeof(b->name) - 32), begin, date);
    b->files = json_array();
    b->left_out = json_array();
    err = begin_part(b);
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

int roll_bundle_end(struct roll_bundle *b)
{
    int number = b->number;
    if (number == 0 && fsync(b->fd) != 0 && errno != EINVAL && errno != EROFS) {
        number = errno;
    }
    char name[ROLL_BUNDLE_NAME];
    snprintf(name, sizeof(name), "%s", b->name);
    for (unsigned i = 2; number == 0 && take_name(b, name) != 0; i++) {
        if (errno != EEXIST && errno != ENOTEMPTY) {
            number = errno;
        } else if (i > NAMES_MOST) {
            number = EEXIST;
        } else {
            snprintf(name, sizeof(name), "%.*s-%u", (int)sizeof(name) - 16, b->name, i);
        }
    }
    if (number != 0) {
        int err = complain(b, number);
        roll_bundle_drop(b);
        return err;
    }
    memcpy(b->name, name, sizeof(name));
    (void)fsync(b->dir_fd); /* the name; the files are there in any case */
    release(b);
    return 0;
}
