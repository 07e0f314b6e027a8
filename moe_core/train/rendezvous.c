/*
 * rendezvous.c: the unique id in a file, published by rename.
 *
 * The file also names its writer (host, pid, start time), so that the file left by a killed job is not mistaken for the
 * file of this job: on the same host, a file whose writer no longer lives is stale. A socket was rejected: a file needs
 * no port and no daemon.
 */
#include "moe_core/train/rendezvous.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct meeting_file {
    char magic[8];
    ncclUniqueId id;
    char host[64];
    int64_t pid;
    uint64_t start;
};

static const char meeting_magic[8] = "MOEMEET1";

static const char *first_set(const char *const *names, size_t count, const char *fallback)
{
    for (size_t i = 0; i < count; i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && value[0] != '\0') {
            return value;
        }
    }
    return fallback;
}

/* The directory may be one that a launcher has only named; the function makes it then (one level). */
int rendezvous_path(char *path, size_t bytes)
{
    static const char *const dirs[] = {"MOE_RENDEZVOUS", "HOSTNCCL_DIR", "ROLLCALL_DIR", "TMPDIR"};
    static const char *const addr = "MASTER_ADDR", *const port = "MASTER_PORT", *const job = "ROLLCALL_JOB";
    const char *dir = first_set(dirs, 4, "/tmp");
    int n = snprintf(path, bytes, "%s/moe-%s-%s-%s.id", dir, first_set(&addr, 1, "local"), first_set(&port, 1, "0"),
                     first_set(&job, 1, "job"));
    if (n < 0 || (size_t)n >= bytes - 4) {
        fprintf(stderr, "moe_train: the path of the meeting file is too long; name a shorter one in MOE_RENDEZVOUS\n");
        return -1;
    }
    mkdir(dir, 0700); /* a failure is reported later, when the file cannot be written */
    return 0;
}

/* Start time of a process in clock ticks since boot; 0 when it does not live. */
static uint64_t start_time(int64_t pid)
{
    char path[48], text[1024];
    snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    size_t got = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[got] = '\0';
    const char *at = strrchr(text, ')'); /* the name may contain anything; field 3 follows its last ')' */
    for (int field = 2; at != NULL && field < 22; field++) {
        at = strchr(at + 1, ' ');
    }
    return at != NULL ? strtoull(at + 1, NULL, 10) : 0;
}

static int publish(const char *path, ncclUniqueId *id)
{
    struct meeting_file m = {.pid = getpid(), .start = start_time(getpid())};
    memcpy(m.magic, meeting_magic, sizeof(m.magic));
    gethostname(m.host, sizeof(m.host) - 1);
    char temporary[4096];
    ncclResult_t nc = ncclGetUniqueId(&m.id);
    if (nc != ncclSuccess ||
        snprintf(temporary, sizeof(temporary), "%s.%d", path, getpid()) >= (int)sizeof(temporary)) {
        fprintf(stderr, "moe_train: ncclGetUniqueId: %s\n", ncclGetErrorString(nc));
        return -1;
    }
    FILE *file = fopen(temporary, "wxe");
    bool ok = file != NULL && fwrite(&m, sizeof(m), 1, file) == 1;
    ok = file != NULL && fclose(file) == 0 && ok;
    if (!ok || rename(temporary, path) != 0) {
        fprintf(stderr, "moe_train: cannot write %s: %s\n", path, strerror(errno));
        unlink(temporary);
        return -1;
    }
    *id = m.id;
    return 0;
}

static bool fetch(const char *path, ncclUniqueId *id)
{
    struct meeting_file m;
    char host[64] = "";
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    bool whole = fread(&m, sizeof(m), 1, file) == 1 && memcmp(m.magic, meeting_magic, sizeof(m.magic)) == 0;
    fclose(file);
    gethostname(host, sizeof(host) - 1);
    m.host[sizeof(m.host) - 1] = '\0';
    if (!whole || (strcmp(host, m.host) == 0 && start_time(m.pid) != m.start)) {
        return false;
    }
    *id = m.id;
    return true;
}

int rendezvous_meet(const char *path, int32_t rank, uint32_t timeout_s, ncclUniqueId *id)
{
    if (rank == 0) {
        return publish(path, id);
    }
    for (uint64_t waited_ms = 0; !fetch(path, id); waited_ms += 5) {
        if (waited_ms > 1000ull * timeout_s) {
            fprintf(stderr,
                    "moe_train: rank %d: rank 0 did not publish %s in %u s; does rank 0 run, and see this directory "
                    "(MOE_RENDEZVOUS)?\n",
                    rank, path, timeout_s);
            return -1;
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return 0;
}

void rendezvous_leave(const char *path, int32_t rank)
{
    if (rank == 0) {
        unlink(path);
    }
}
