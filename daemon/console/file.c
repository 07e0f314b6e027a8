/*
 * file.c: see file.h.
 */
#include "daemon/console/file.h"

#include "daemon/console/console.h"
#include "daemon/digest/rdig.h"
#include "trace/control.h"
#include "trace/err.h"
#include "trace/frame.h"
#include "trace/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A digest is told by its first bytes; one of which these are damaged, or that was never written, by its name. */
static bool complain_of_digest(const char *path, int err)
{
    char magic[sizeof(ROLL_RDIG_MAGIC) - 1] = "";
    size_t n = strlen(path);
    bool named = n > 5 && strcmp(path + n - 5, ".rdig") == 0;
    bool about = err == ROLL_E_MAGIC || err == ROLL_E_SHORT;
    int fd = about ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    bool is = fd >= 0 && read(fd, magic, sizeof(magic)) == (ssize_t)sizeof(magic) &&
              memcmp(magic, ROLL_RDIG_MAGIC, sizeof(magic)) == 0;
    if (fd >= 0) {
        close(fd);
    }
    if (is) {
        roll_say("%s: a digest of traces (docs/RDIG.md), which `rollcall analyze` reads, and nothing else", path);
    } else if (about && named) {
        roll_say("%s: no digest, though it is named like one; `rollcall digest --output FILE DIR` on its node makes it "
                 "again",
                 path);
    }
    return is || (about && named);
}

/* What a program was to write into it and did not: a redirection leaves such a file where the program fails. */
static bool complain_of_empty(const char *path)
{
    struct stat st;
    size_t n = strlen(path);
    bool empty = stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0;
    if (empty) {
        roll_say("%s: empty: nothing was written into it%s", path,
                 n > 5 && strcmp(path + n - 5, ".rdig") == 0
                     ? "; `rollcall digest --output FILE DIR` on its node makes it again, or says why it cannot"
                     : "");
    }
    return empty;
}

bool roll_file_is_ours(const void *bytes, size_t n)
{
    static const char *const magic[] = {ROLL_RING_MAGIC, ROLL_TRACE_MAGIC, ROLL_CONTROL_MAGIC, ROLL_RDIG_MAGIC};
    bool ours = false;
    for (size_t i = 0; i < sizeof(magic) / sizeof(magic[0]); i++) {
        ours = ours || memcmp(bytes, magic[i], n < 8 ? n : 8) == 0;
    }
    return ours;
}

/* A short file of somebody else's is not one of ours that is cut. */
static int as_it_is(const char *path, int err)
{
    char first[8];
    int fd = err == ROLL_E_SHORT ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    ssize_t n = fd >= 0 ? read(fd, first, sizeof(first)) : 0;
    if (fd >= 0) {
        close(fd);
    }
    return n > 0 && !roll_file_is_ours(first, (size_t)n) ? ROLL_E_MAGIC : err;
}

void roll_file_say_none(const char *none, char *const *path, size_t paths)
{
    if (paths == 1) {
        roll_say("%s: %s was found in it", path[0], none);
    } else {
        roll_say("%s was found in the given places", none);
    }
}

void roll_file_complain(const char *path, int err, const char *wanted)
{
    const char *advice = "";
    err = as_it_is(path, err);
    if (complain_of_empty(path) || complain_of_digest(path, err)) {
        return;
    }
    switch (err) {
    case ROLL_E_MAGIC:
        roll_say("%s: not a file of rollcall's that can be read here; wanted is %s", path, wanted);
        return;
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
