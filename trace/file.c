/*
 * file.c: opening and making the files that processes map.
 *
 * A mapped file must be allocated in full first: a store to a hole on a full file system is a SIGBUS in the training job. The
 * size limit of the process is asked first, because growing past it would raise SIGXFSZ. fstat() is avoided on purpose: its
 * symbol is newer than the oldest C library that the preload library must load on; statx() is not.
 */
#include "trace/file.h"
#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
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
    /* A profiler's timer may interrupt it again and again; each try goes on where the last one stopped. */
    int number = EINTR;
    for (int i = 0; i < 1000 && number == EINTR; i++) {
        number = posix_fallocate(fd, 0, (off_t)bytes);
    }
    return roll_err_from_errno(number);
}

int roll_file_make(const char *path, uint64_t bytes, char *temporary, size_t temporary_bytes)
{
    static atomic_uint makes;
    int fd = -1;
    for (int i = 0; i < 100 && fd < 0; i++) {
        unsigned number = atomic_fetch_add_explicit(&makes, 1, memory_order_relaxed);
        int n = snprintf(temporary, temporary_bytes, "%s.tmp.%d.%u", path, (int)getpid(), number);
        if (n < 0 || (size_t)n >= temporary_bytes) {
            return ROLL_E_ARG;
        }
        /* A leftover of a killed process with the same id is in the way: take the next name. */
        fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0 && errno != EEXIST) {
            return roll_err_from_errno(errno);
        }
    }
    if (fd < 0) {
        return ROLL_E_BUSY;
    }
    int err = allocate(fd, bytes);
    if (err < 0) {
        unlink(temporary);
        close(fd);
        return err;
    }
    return fd;
}
