/*
 * files.c: files and folders as the daemons ask for them, and a disk that fills up.
 *
 * Rings, control pages and traces are real files in a folder of the world's own: how they are made, mapped, named and
 * found is a part of what is tested. What a file system may do in one way or another is done in one: the names in a
 * folder come in their order, which is that of no file system, and who waits for files that appear is told by watch.c.
 * A file system in memory was rejected: the ring's own file and its mapping are what is tested.
 */
#include "tests/world/files.h"

#include "tests/world/calls.h"
#include "tests/world/watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#define FOLDERS 16u /* that are read at one moment: more than processes */

#define WRAP(type, name, ...)                                                                                          \
    type __real_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__)
WRAP(int, open, const char *path, int flags, ...);
WRAP(int, openat, int dir, const char *path, int flags, ...);
WRAP(DIR *, opendir, const char *path);
WRAP(DIR *, fdopendir, int fd);
WRAP(struct dirent *, readdir, DIR *folder);
WRAP(int, closedir, DIR *folder);
WRAP(ssize_t, write, int fd, const void *data, size_t bytes);
WRAP(ssize_t, pwrite, int fd, const void *data, size_t bytes, off_t offset);
WRAP(int, posix_fallocate, int fd, off_t offset, off_t bytes);
WRAP(int, link, const char *from, const char *to);
WRAP(int, linkat, int from_dir, const char *from, int to_dir, const char *to, int flags);
WRAP(int, rename, const char *from, const char *to);
WRAP(int, renameat2, int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
WRAP(int, unlink, const char *path);
void *__real_realloc(void *old, size_t bytes);
void __real_free(void *block);

struct disk disk;

static struct folder {
    DIR *at; /* NULL = free */
    struct process *owner;
    struct dirent *entry; /* in the order of their names */
    size_t entries, next;
} folder[FOLDERS];

/* Where the running process is to be killed in this call. */
static void may_die(void)
{
    if (process_call()) {
        process_die();
    }
}

/* files that appear */

static mode_t mode_of(int flags, va_list args)
{
    return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(args, mode_t) : 0;
}

static int open_file(int dir, const char *path, int flags, mode_t mode)
{
    bool makes = (flags & O_CREAT) != 0;
    if (makes) {
        may_die();
    }
    bool appears = makes && faccessat(dir, path, F_OK, AT_SYMLINK_NOFOLLOW) != 0;
    int fd = __real_openat(dir, path, flags, mode);
    if (fd >= 0 && appears) {
        watch_appeared(dir, path, IN_CREATE);
    }
    return calls_own(fd);
}

int __wrap_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    if (process_now && (strcmp(path, "/proc/loadavg") == 0 || strcmp(path, "/proc/thread-self/schedstat") == 0)) {
        errno = ENOENT;
        return -1;
    }
    return open_file(AT_FDCWD, path, flags, mode);
}

int __wrap_openat(int dir, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    return open_file(dir, path, flags, mode);
}

int __wrap_link(const char *from, const char *to)
{
    return __wrap_linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int __wrap_linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
    int rc = __real_linkat(from_dir, from, to_dir, to, flags);
    if (rc == 0) {
        watch_appeared(to_dir, to, IN_CREATE);
    }
    return rc;
}

int __wrap_rename(const char *from, const char *to)
{
    may_die();
    int rc = __real_rename(from, to);
    if (rc == 0) {
        watch_appeared(AT_FDCWD, to, IN_MOVED_TO);
    }
    return rc;
}

int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    may_die();
    int rc = __real_renameat2(from_dir, from, to_dir, to, flags);
    if (rc == 0) {
        watch_appeared(to_dir, to, IN_MOVED_TO);
    }
    return rc;
}

int __wrap_unlink(const char *path)
{
    may_die();
    return __real_unlink(path);
}

/* folders */

static void forget(struct folder *f)
{
    __real_free(f->entry);
    *f = (struct folder){.at = NULL};
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct dirent *)a)->d_name, ((const struct dirent *)b)->d_name);
}

/* Notes a folder that a daemon has opened. Its names are read at once, as most file systems give them. */
static DIR *keep(DIR *at)
{
    struct folder *f = folder;
    const struct dirent *entry;
    if (!at || !process_now) {
        return at;
    }
    while (f < folder + FOLDERS && f->at) {
        f++;
    }
    if (f == folder + FOLDERS) {
        world_fail("%s reads more than %u folders at once", process_now->name, FOLDERS);
        return at;
    }
    *f = (struct folder){.at = at, .owner = process_now};
    while ((entry = __real_readdir(at)) != NULL) {
        struct dirent *more = __real_realloc(f->entry, (f->entries + 1) * sizeof(*f->entry));
        if (!more) {
            abort();
        }
        f->entry = more;
        memset(&more[f->entries], 0, sizeof(*more));
        memcpy(&more[f->entries++], entry, entry->d_reclen < sizeof(*more) ? entry->d_reclen : sizeof(*more));
    }
    if (f->entries > 0) {
        qsort(f->entry, f->entries, sizeof(*f->entry), by_name);
    }
    return at;
}

static struct folder *folder_of(const DIR *at)
{
    for (uint32_t i = 0; i < FOLDERS; i++) {
        if (folder[i].at == at) {
            return &folder[i];
        }
    }
    return NULL;
}

DIR *__wrap_opendir(const char *path)
{
    if (process_now && strncmp(path, "/proc", 5) == 0) {
        errno = ENOENT;
        return NULL;
    }
    return keep(__real_opendir(path));
}

DIR *__wrap_fdopendir(int fd)
{
    DIR *at = __real_fdopendir(fd);
    if (at) {
        calls_disown(fd); /* closedir closes it */
    }
    return keep(at);
}

struct dirent *__wrap_readdir(DIR *at)
{
    struct folder *f = folder_of(at);
    if (!f) {
        return __real_readdir(at);
    }
    return f->next < f->entries ? &f->entry[f->next++] : NULL;
}

int __wrap_closedir(DIR *at)
{
    struct folder *f = folder_of(at);
    if (f) {
        forget(f);
    }
    return __real_closedir(at);
}

/* the disk */

/* What the next write does: how many of `bytes` it takes; less than 0: an error. */
static ssize_t judge_write(size_t bytes)
{
    if (!process_now) {
        return (ssize_t)bytes;
    }
    disk.writes++;
    if (world.now_ns < disk.full_until_ns) {
        disk.refused++;
        errno = ENOSPC;
        return world_chance(300) && bytes > 1 ? 1 + (ssize_t)world_below((uint32_t)(bytes - 1)) : -1;
    }
    return (ssize_t)bytes;
}

/* A kill in the middle of a write leaves the beginning of it. */
static void may_die_writing(int fd, const void *data, size_t bytes, off_t offset)
{
    if (!process_call()) {
        return;
    }
    size_t part = world_below((uint32_t)bytes + 1);
    ssize_t n = part == 0 ? 0 : offset < 0 ? __real_write(fd, data, part) : __real_pwrite(fd, data, part, offset);
    (void)n;
    process_die();
}

ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
    if (fd == STDERR_FILENO && process_now) {
        if (world.loud) {
            printf("%12.6f %-10s %.*s", (double)world.now_ns / 1e9, process_now->name, (int)bytes, (const char *)data);
        }
        return (ssize_t)bytes;
    }
    may_die_writing(fd, data, bytes, -1);
    ssize_t n = judge_write(bytes);
    return n < 0 ? n : __real_write(fd, data, (size_t)n);
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    may_die_writing(fd, data, bytes, offset);
    ssize_t n = judge_write(bytes);
    return n < 0 ? n : __real_pwrite(fd, data, (size_t)n, offset);
}

int __wrap_posix_fallocate(int fd, off_t offset, off_t bytes)
{
    may_die();
    if (judge_write(1) < 0) {
        return ENOSPC;
    }
    return !process_now && offset == 0 ? ftruncate(fd, bytes) : __real_posix_fallocate(fd, offset, bytes);
}

/* ends */

void files_free(const struct process *p)
{
    for (uint32_t i = 0; i < FOLDERS; i++) {
        if (folder[i].at && folder[i].owner == p) {
            (void)__wrap_closedir(folder[i].at);
        }
    }
}

void files_reset(void)
{
    disk = (struct disk){0};
}
