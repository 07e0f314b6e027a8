/*
 * file.c: whole files in memory. Rings and traces are bounded (a ring by its format, a trace by what one daemon wrote),
 * and the decoders are pure functions over bytes; so one read is simpler than streaming, and enough.
 */
#include "daemon/console/file.h"

#include "daemon/console/console.h"
#include "trace/err.h"
#include "trace/frame.h"
#include "trace/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX (8ull << 30)

static int from_errno(void)
{
    return errno == ENOENT || errno == ENOTDIR ? ROLL_E_NOTFOUND
           : errno == EACCES || errno == EPERM ? ROLL_E_DENIED
                                               : ROLL_E_IO;
}

int roll_file_read(const char *path, void **data, size_t *bytes)
{
    struct stat st;
    uint8_t *room = NULL;
    int err = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return from_errno();
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        err = ROLL_E_IO;
        goto out;
    }
    if ((uint64_t)st.st_size > FILE_MAX) {
        err = ROLL_E_LIMIT;
        goto out;
    }
    size_t size = (size_t)st.st_size, used = 0;
    room = malloc(size + 1);
    if (room == NULL) {
        err = ROLL_E_NOMEM;
        goto out;
    }
    while (used < size) {
        ssize_t n = read(fd, room + used, size - used);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            err = ROLL_E_IO;
            goto out;
        }
        if (n == 0) {
            break;
        }
        used += (size_t)n;
    }
    *data = room;
    *bytes = used;
    room = NULL;
out:
    free(room);
    close(fd);
    return err;
}

void roll_file_complain(const char *path, int err)
{
    const char *advice = "";
    switch (err) {
    case ROLL_E_MAGIC:
        advice = "; wanted is a ring (.ring), a trace (.rtrc) or a control page (.ctl)";
        break;
    case ROLL_E_VERSION:
        roll_say("%s: written by an incompatible version: this rollcall reads rings %u to %u and traces %u; "
                 "use the rollcall that wrote it",
                 path, ROLL_RING_OLDEST, ROLL_RING_VERSION, ROLL_TRACE_VERSION);
        return;
    case ROLL_E_DENIED:
        advice = "; rings and traces are readable by their owner alone";
        break;
    case ROLL_E_SHORT:
    case ROLL_E_CHECKSUM:
    case ROLL_E_SIZE:
    case ROLL_E_CORRUPT:
        advice = "; the file is damaged: `rollcall dump` shows what can still be read";
        break;
    case ROLL_E_IO: {
        struct stat st;
        if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
            advice = " (not a regular file)";
        }
        break;
    }
    default:
        break;
    }
    roll_say("%s: %s%s", path, roll_strerror(err), advice);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *where)
{
    (void)st, (void)flag, (void)where;
    return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

int roll_directory_remove(const char *path)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) != 0 && errno != ENOENT) {
        return ROLL_E_IO;
    }
    return 0;
}
