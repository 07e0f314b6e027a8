/*
 * file.c: opening and making the files that processes map.
 *
 * A mapped file must be allocated in full first: a store to a hole on a full file system is a SIGBUS in the training
 * job. The size limit of the process is asked first, because growing past it would raise SIGXFSZ. fstat() is avoided on
 * purpose: its symbol is newer than the oldest C library that the preload library must load on; statx() is not.
 */
#include "trace/file.h"
#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

int roll_file_open(const char *path, bool writable, uint64_t *bytes)
{
    /* O_NONBLOCK: opening a fifo must not wait for its other end. */
    int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return errno == EISDIR ? ROLL_E_CORRUPT : roll_err_from_errno(errno);
    }
    struct statx info;
    int err = ROLL_OK;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_SIZE, &info) != 0) {
        err = roll_err_from_errno(errno);
    } else if (!S_ISREG(info.stx_mode)) {
        err = ROLL_E_CORRUPT;
    } else {
        *bytes = info.stx_size;
    }
    if (err < 0) {
        close(fd);
        return err;
    }
    return fd;
}

static int allocate(int fd, uint64_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur) {
        return ROLL_E_LIMIT;
    }
    /* A profiler's timer may interrupt the allocation again and again; each try goes on where the last one stopped. */
    int number = EINTR;
    for (int i = 0; i < 1000 && number == EINTR; i++) {
        number = posix_fallocate(fd, 0, (off_t)bytes);
    }
    return roll_err_from_errno(number);
}

/* A file without a name, in the directory of path. -1 where the file system (or /proc, to name it later) does not help.
 * `dir` is room for that directory's name, lent by the caller because stacks in a training job may be small. */
static int open_unnamed(const char *path, char dir[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    size_t n = slash != NULL ? (size_t)(slash - path) : 0;
    if (n >= PATH_MAX || access("/proc/self/fd", X_OK) != 0) {
        return -1;
    }
    memcpy(dir, path, n);
    dir[n] = '\0';
    return open(n > 0 ? dir : slash != NULL ? "/" : ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

static int open_named(const char *path, struct roll_new_file *out)
{
    static atomic_uint makes;
    for (int i = 0; i < 100; i++) {
        unsigned number = atomic_fetch_add_explicit(&makes, 1, memory_order_relaxed);
        int n = snprintf(out->temporary, sizeof(out->temporary), "%s.tmp.%d.%u", path, (int)getpid(), number);
        if (n < 0 || (size_t)n >= sizeof(out->temporary)) {
            out->temporary[0] = '\0';
            return ROLL_E_ARG;
        }
        /* A leftover of a killed process with the same id is in the way: take the next name. */
        int fd = open(out->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd >= 0 || errno != EEXIST) {
            return fd >= 0 ? fd : roll_err_from_errno(errno);
        }
    }
    return ROLL_E_BUSY;
}

int roll_file_make(const char *path, uint64_t bytes, struct roll_new_file *out)
{
    out->fd = open_unnamed(path, out->temporary);
    out->temporary[0] = '\0';
    if (out->fd < 0) {
        int fd = open_named(path, out);
        if (fd < 0) {
            out->temporary[0] = '\0';
            return fd;
        }
        out->fd = fd;
    }
    int err = allocate(out->fd, bytes);
    if (err < 0) {
        roll_file_finish(out);
    }
    return err;
}

static int link_unnamed(int fd, const char *path)
{
    char name[32];
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    return linkat(AT_FDCWD, name, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
}

int roll_file_publish(struct roll_new_file *file, const char *path, bool replace)
{
    if (file->temporary[0] == '\0') {
        int result = link_unnamed(file->fd, path);
        if (result != 0 && errno == EEXIST && replace && unlink(path) == 0) {
            result = link_unnamed(file->fd, path);
        }
        return result == 0 ? ROLL_OK : roll_err_from_errno(errno);
    }
    if (!replace) {
        return link(file->temporary, path) == 0 ? ROLL_OK : roll_err_from_errno(errno);
    }
    if (rename(file->temporary, path) != 0) {
        return roll_err_from_errno(errno);
    }
    file->temporary[0] = '\0';
    return ROLL_OK;
}

void roll_file_finish(struct roll_new_file *file)
{
    if (file->temporary[0] != '\0') {
        unlink(file->temporary);
        file->temporary[0] = '\0';
    }
    if (file->fd >= 0) {
        close(file->fd);
        file->fd = -1;
    }
}
