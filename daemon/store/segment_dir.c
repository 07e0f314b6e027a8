/*
 * segment_dir.c: the directory of segments: their names, lists of them, and the removal of those that are too old or
 * too many.
 *
 * Another user or program may have put files there. So only regular files are opened, and no open waits (a pipe under a
 * segment's name would hold up the daemon for good).
 */
#include "daemon/base/array.h"
#include "daemon/base/dir.h"
#include "daemon/store/segment.h"

#include "daemon/base/clock.h"
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

#define SUFFIX ".rtrc"
#define DIGITS 8

int roll_segment_errno(void)
{
    return errno == ENOENT || errno == ENOTDIR                    ? ROLL_E_NOTFOUND
           : errno == EACCES || errno == EPERM || errno == EROFS  ? ROLL_E_DENIED
           : errno == ENOSPC || errno == EDQUOT || errno == EFBIG ? ROLL_E_SPACE
           : errno == ENOMEM                                      ? ROLL_E_NOMEM
                                                                  : ROLL_E_IO;
}

const char *roll_segment_why(int err, int pid, char out[ROLL_SEGMENT_WHY])
{
    if (err == ROLL_E_BUSY && pid > 0) {
        snprintf(out, ROLL_SEGMENT_WHY, "pid %d writes it already", pid);
    } else {
        snprintf(out, ROLL_SEGMENT_WHY, "%s", roll_strerror(err));
    }
    return out;
}

/* names */

bool roll_segment_path(const char *dir, const char *series, uint64_t number, char out[PATH_MAX])
{
    return snprintf(out, PATH_MAX, "%s/%s.%0*llu%s", dir, series, DIGITS, (unsigned long long)number, SUFFIX) <
           PATH_MAX;
}

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
    int fd;
    int err = roll_dir_open(dir, ROLL_DIR_MAKE | ROLL_DIR_GROUP, &fd, why, why_size);
    if (!err) {
        if (faccessat(fd, ".", W_OK | X_OK, 0) != 0) {
            snprintf(why, why_size, "%s: %s", dir, strerror(errno));
            err = ROLL_E_DENIED;
        }
        close(fd);
    }
    return err;
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
        return roll_segment_errno();
    }
    struct roll_segment_name *list = NULL;
    size_t used = 0, room = 0;
    char old[300];
    int err = 0;
    snprintf(old, sizeof(old), "%s%s", series, SUFFIX);
    for (struct dirent *entry; !err && (entry = readdir(d)) != NULL;) {
        char mine[256];
        uint64_t number = 0;
        bool named = roll_segment_parse(entry->d_name, mine, sizeof(mine), &number) && strcmp(mine, series) == 0;
        if (!named && strcmp(entry->d_name, old) != 0) {
            continue;
        }
        err = ROLL_GROW(list, room, used + 1);
        if (!err) {
            list[used].number = named ? number : 0;
            snprintf(list[used++].path, sizeof(list->path), "%s/%s", dir, entry->d_name);
        }
    }
    closedir(d);
    if (err) {
        free(list);
        return err;
    }
    if (used > 1) {
        qsort(list, used, sizeof(*list), by_number);
    }
    *out = list;
    *count = used;
    return 0;
}

/* what is too much or too old */

struct old_file {
    char name[NAME_MAX + 1];
    uint64_t bytes;
    struct timespec changed;
};

/* Whether two segments count for the same limit, by the part behind '@': the agents of one host share a limit, roots
 * have another, and neither removes the other's files. */
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

static struct old_file *kept_files(const struct roll_segment_options *o, size_t *count)
{
    struct old_file *list = NULL;
    size_t used = 0, room = 0;
    DIR *d = opendir(o->dir);
    for (struct dirent *entry; d && (entry = readdir(d)) != NULL;) {
        char series[256];
        uint64_t number;
        struct stat st;
        if (!roll_segment_parse(entry->d_name, series, sizeof(series), &number) || !same_kind(series, o->series) ||
            fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) {
            continue;
        }
        if (ROLL_GROW(list, room, used + 1) != 0) {
            break;
        }
        snprintf(list[used].name, sizeof(list->name), "%s", entry->d_name);
        list[used].bytes = (uint64_t)st.st_size;
        list[used++].changed = st.st_mtim;
    }
    if (d) {
        closedir(d);
    }
    if (used > 1) {
        qsort(list, used, sizeof(*list), by_change);
    }
    *count = used;
    return list;
}

/* Removes a segment that no process writes any more. */
static bool remove_segment(const struct roll_segment_options *o, const struct old_file *file)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", o->dir, file->name);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool done = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && unlink(path) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return done;
}

uint64_t roll_segment_expire(const struct roll_segment_options *o, uint64_t coming, bool *more)
{
    *more = false;
    if (!o->limit_bytes && !o->age_ns) {
        return 0;
    }
    size_t count;
    uint64_t sum = coming, real = roll_real_ns(), removed = 0;
    struct old_file *list = kept_files(o, &count);
    for (size_t i = 0; i < count; i++) {
        sum += list[i].bytes;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t changed = (uint64_t)list[i].changed.tv_sec * 1000000000u + (uint64_t)list[i].changed.tv_nsec;
        bool old = o->age_ns && real > changed && real - changed > o->age_ns;
        bool over = o->limit_bytes && sum > o->limit_bytes;
        if ((old || over) && removed == ROLL_SEGMENT_REMOVE) {
            *more = true;
            break;
        }
        if ((old || over) && remove_segment(o, &list[i])) {
            sum -= list[i].bytes;
            removed++;
        }
    }
    free(list);
    return removed;
}
