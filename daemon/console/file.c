/*
 * file.c: see file.h.
 */
#include "daemon/console/file.h"

#include "daemon/console/console.h"
#include "trace/err.h"
#include "trace/frame.h"
#include "trace/ring.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>

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
