/*
 * dir.c: see dir.h. To look at the path first and to open it then was rejected: it may mean another directory by then.
 */
#include "daemon/base/dir.h"

#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int refuse(int err, const char *path, const char *what, char *why, size_t size)
{
    snprintf(why, size, "%s%s", path, what);
    return err;
}

static int error_of(int number)
{
    return number == ENOENT                                         ? ROLL_E_NOTFOUND
           : number == EACCES || number == EPERM || number == EROFS ? ROLL_E_DENIED
           : number == ENAMETOOLONG                                 ? ROLL_E_SIZE
                                                                    : ROLL_E_IO;
}

static int of_errno(const char *path, char *why, size_t size)
{
    int number = errno;
    snprintf(why, size, "%s: %s", path, strerror(number));
    return error_of(number);
}

const char *roll_dir_cannot_make(const char *path, int number, char *out, size_t size)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') {
        end--;
    }
    while (end > 0 && path[end - 1] != '/') {
        end--;
    }
    while (end > 1 && path[end - 1] == '/') {
        end--;
    }
    if (end > 0 && (number == ENOENT || number == ENOTDIR)) {
        snprintf(out, size, "%s: cannot be made: %.*s is %s", path, (int)end, path,
                 number == ENOENT ? "not there" : "not a directory");
    } else {
        snprintf(out, size, "%s: cannot be made: %s", path, strerror(number));
    }
    return out;
}

int roll_dir_open(const char *path, unsigned flags, int *out, char *why, size_t why_size)
{
    struct stat st;
    char plain[4096];
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') { /* "link/" is what the link means, "link" is the link */
        length--;
    }
    if (length >= sizeof(plain)) {
        return refuse(ROLL_E_SIZE, path, ": the name is too long", why, why_size);
    }
    memcpy(plain, path, length);
    plain[length] = '\0';
    if ((flags & ROLL_DIR_MAKE) && mkdir(plain, 0700) != 0 && errno != EEXIST) {
        int number = errno;
        (void)roll_dir_cannot_make(plain, number, why, why_size);
        return error_of(number);
    }
    int fd = open(plain, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        bool link = lstat(plain, &st) == 0 && S_ISLNK(st.st_mode);
        return link               ? refuse(ROLL_E_DENIED, plain, " is a link; name the directory itself", why, why_size)
               : errno == ENOTDIR ? refuse(ROLL_E_ARG, plain, " is not a directory", why, why_size)
                                  : of_errno(plain, why, why_size);
    }
    mode_t others = flags & ROLL_DIR_GROUP ? S_IWOTH : S_IWGRP | S_IWOTH;
    int err =
        fstat(fd, &st) != 0 ? of_errno(plain, why, why_size)
        : st.st_uid != geteuid()
            ? refuse(ROLL_E_DENIED, plain, " belongs to another user; it must be a directory of this user", why,
                     why_size)
        : (st.st_mode & others) != 0
            ? refuse(ROLL_E_DENIED, plain,
                     flags & ROLL_DIR_GROUP ? " can be written by everybody; chmod o-w it, or choose another"
                                            : " must be writable by nobody else: chmod go-w it, or choose another",
                     why, why_size)
            : 0;
    if (err) {
        close(fd);
        return err;
    }
    *out = fd;
    return 0;
}
