/*
 * meeting.c: see meeting.h. A file is written beside its name and then renamed, so that nobody reads half a file; locks
 * would do the same, and would be held for ever by a rank that is killed.
 */
#include "meeting.h"

#include <unistd.h>

#define PAUSE_US 10000
#define PAUSES   30000 /* of a rank that waits for rank 0, which may have ended */

static void path_of(const meeting *m, const char *name, char path[512])
{
    int n = snprintf(path, 512, "%s/%s", m->directory, name);
    NEED(n > 0 && n < 512);
}

bool meeting_there(const meeting *m, const char *name)
{
    char path[512];
    path_of(m, name, path);
    return access(path, F_OK) == 0;
}

void meeting_wait(const meeting *m, const char *name, bool there)
{
    while (meeting_there(m, name) != there) {
        usleep(PAUSE_US);
    }
}

void meeting_tell(const meeting *m, const char *name, const void *bytes, size_t size)
{
    char path[512], made[520];
    path_of(m, name, path);
    snprintf(made, sizeof(made), "%s.made", path);
    FILE *f = fopen(made, "wb");
    NEED(f && fwrite(bytes, size, 1, f) == 1 && fclose(f) == 0 && rename(made, path) == 0);
}

/* The id of the communicator, which rank 0 makes and the others read. */
static ncclUniqueId shared_id(const meeting *m)
{
    ncclUniqueId id;
    if (m->rank == 0) {
        NEED(ncclGetUniqueId(&id) == ncclSuccess);
        meeting_tell(m, "id", &id, sizeof(id));
        return id;
    }
    for (int pauses = 0; !meeting_there(m, "id"); pauses++) {
        NEED(pauses < PAUSES);
        usleep(PAUSE_US);
    }
    char path[512];
    path_of(m, "id", path);
    FILE *f = fopen(path, "rb");
    NEED(f && fread(&id, sizeof(id), 1, f) == 1 && fclose(f) == 0);
    return id;
}

meeting meeting_join(const char *directory)
{
    NEED(getenv("RANK") && getenv("WORLD_SIZE"));
    meeting m = {.directory = directory, .rank = atoi(getenv("RANK")), .size = atoi(getenv("WORLD_SIZE"))};
    ncclUniqueId id = shared_id(&m);
    int devices = 1;
    NEED(cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0);
    NEED(cudaSetDevice(m.rank % devices) == cudaSuccess && cudaStreamCreate(&m.stream) == cudaSuccess);
    NEED(ncclCommInitRank(&m.comm, m.size, id, m.rank) == ncclSuccess);
    return m;
}
