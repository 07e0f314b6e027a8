/*
 * file.c: see file.h. Files are read to their end and not to the size that they had: those of /proc have none.
 */
#include "daemon/base/file.h"

#include "daemon/base/array.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE 4096u /* room for the first read of a file of unknown size */

static int error_of(int number)
{
    return number == ENOENT || number == ENOTDIR || number == ESRCH ? ROLL_E_NOTFOUND
           : number == EACCES || number == EPERM                    ? ROLL_E_DENIED
           : number == EMFILE || number == ENFILE                   ? ROLL_E_LIMIT
           : number == ENOMEM                                       ? ROLL_E_NOMEM
                                                                    : ROLL_E_IO;
}

/* Closes, and leaves errno as it was. */
static void close_quietly(int fd)
{
    int number = errno;
    close(fd);
    errno = number;
}

static ssize_t read_some(int fd, void *out, size_t bytes)
{
    ssize_t n;
    do {
        n = read(fd, out, bytes);
    } while (n < 0 && errno == EINTR);
    return n;
}

int roll_read_text(const char *path, char *out, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    size_t used = 0;
    ssize_t n = fd < 0 ? -1 : 1;
    while (n > 0 && used < size - 1 && (n = read_some(fd, out + used, size - 1 - used)) > 0) {
        used += (size_t)n;
    }
    out[used] = '\0';
    int err = n < 0 ? error_of(errno) : 0;
    if (fd >= 0) {
        close_quietly(fd);
    }
    return err ? err : (int)used;
}

static int read_open(int fd, size_t most, char **data, size_t *bytes)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        return ROLL_E_IO;
    }
    if ((size_t)st.st_size > most) {
        return ROLL_E_LIMIT;
    }
    size_t room = 0, used = 0;
    /* One byte for the 0, one for the read that finds the end. */
    int err = ROLL_GROW(*data, room, st.st_size > 0 ? (size_t)st.st_size + 2 : PIECE);
    while (!err && used < most) {
        err = ROLL_GROW(*data, room, used + 2);
        size_t left = room - 1 - used;
        ssize_t n = err ? 0 : read_some(fd, *data + used, left < most - used ? left : most - used);
        if (n <= 0) {
            err = n < 0 ? error_of(errno) : err;
            break;
        }
        used += (size_t)n;
    }
    if (!err) {
        (*data)[used] = '\0';
        *bytes = used;
    }
    return err;
}

int roll_read_whole(const char *path, size_t most, char **data, size_t *bytes)
{
    *data = NULL;
    *bytes = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return error_of(errno);
    }
    int err = read_open(fd, most, data, bytes);
    close_quietly(fd);
    if (err) {
        free(*data);
        *data = NULL;
    }
    return err;
}

size_t roll_write_all(int fd, const void *data, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = write(fd, (const char *)data + done, bytes - done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            break;
        }
        done += (size_t)n;
    }
    return done;
}
