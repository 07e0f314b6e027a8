/*
 * lock.c: lock files by flock(2).
 *
 * A file that merely exists was rejected: a killed owner would leave it. The owner removes its file when it leaves in
 * good order, so a process that has got the lock checks whether the name still means the file that it locked.
 */
#include "daemon/base/lock.h"

#include "daemon/base/log.h"
#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_lock(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd >= 0) {
        return fd;
    }
    return errno == EACCES || errno == EPERM || errno == ELOOP || errno == EROFS ? ROLL_E_DENIED
           : errno == ENOENT || errno == ENOTDIR                                 ? ROLL_E_NOTFOUND
                                                                                 : ROLL_E_IO;
}

int roll_lock_take(const char *path, int *out, int *pid)
{
    char text[32];
    for (;;) {
        int fd = open_lock(path);
        if (fd < 0) {
            return fd;
        }
        int locked;
        while ((locked = flock(fd, LOCK_EX | LOCK_NB)) != 0 && errno == EINTR) {
        }
        if (locked != 0 && errno != EWOULDBLOCK) { /* a file system without locks: nobody else holds it either */
            roll_log(ROLL_LOG_WARNING, "cannot lock %s: %s", path, strerror(errno));
            close(fd);
            return ROLL_E_IO;
        }
        if (locked != 0) {
            ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
            text[n > 0 ? n : 0] = '\0';
            *pid = atoi(text);
            close(fd);
            return ROLL_E_BUSY;
        }
        struct stat mine, named = {.st_ino = 0};
        int err = fstat(fd, &mine) != 0 || (stat(path, &named) != 0 && errno != ENOENT) ? errno : 0;
        if (err == 0 && mine.st_ino == named.st_ino && mine.st_dev == named.st_dev) {
            *out = fd;
            break;
        }
        close(fd);
        if (err != 0) { /* not tried again, which could go on for ever */
            roll_log(ROLL_LOG_WARNING, "cannot look at %s: %s", path, strerror(err));
            return ROLL_E_IO;
        }
        /* The last owner removed the file while we opened it. */
    }
    int n = snprintf(text, sizeof(text), "%d\n", (int)getpid());
    if (ftruncate(*out, 0) != 0 || pwrite(*out, text, (size_t)n, 0) != n) {
        roll_log(ROLL_LOG_WARNING, "cannot write %s: %s", path, strerror(errno)); /* the file is locked all the same */
    }
    return 0;
}

void roll_lock_leave(const char *path, int *fd)
{
    if (*fd >= 0) {
        unlink(path);
        close(*fd);
        *fd = -1;
    }
}
