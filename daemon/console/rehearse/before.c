/*
 * before.c: what must hold before a rehearsal starts: no GPU that a job could take for the stand-in's, and memory for
 * all ranks.
 */
#include "daemon/base/file.h"
#include "daemon/console/rehearse/rehearse.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1024u * 1024u)

bool roll_rehearse_gpu(const char *devices, char *out, size_t size)
{
    DIR *d = opendir(devices);
    bool found = false;
    for (struct dirent *e; d != NULL && !found && (e = readdir(d)) != NULL;) {
        found = fnmatch("nvidia[0-9]*", e->d_name, 0) == 0;
        if (found) {
            snprintf(out, size, "%s/%s", devices, e->d_name);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return found;
}

struct roll_rehearse_cost roll_rehearse_cost(bool has_framework, bool is_shared, unsigned processors)
{
    /* Measured with PyTorch 2.15 and a small DDP job of two steps (docs/REHEARSE.md, "Memory"): 365 MiB of its own for
     * an interpreter; for a rank that was forked 18 MiB, and 180 MiB more while it ends. */
    if (!has_framework) {
        return (struct roll_rehearse_cost){.rank_bytes = 4ull * MIB};
    }
    if (!is_shared) {
        return (struct roll_rehearse_cost){.rank_bytes = 360ull * MIB};
    }
    return (struct roll_rehearse_cost){.all_bytes = (2 * 360ull + 180ull * processors) * MIB,
                                       .rank_bytes = 18ull * MIB};
}

/* The number behind `name` in a text of lines; UINT64_MAX when there is none. */
static uint64_t number_behind(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    char *end = NULL;
    unsigned long long value = at != NULL ? strtoull(at + strlen(name), &end, 10) : 0;
    return at != NULL && end != at + strlen(name) ? value : UINT64_MAX;
}

static uint64_t number_in(const char *folder, const char *file)
{
    char path[4096], text[64];
    snprintf(path, sizeof(path), "%s/%s", folder, file);
    return roll_read_text(path, text, sizeof(text)) > 0 ? number_behind(text, "") : UINT64_MAX; /* "max" is no number */
}

uint64_t roll_rehearse_free_bytes(const char *meminfo, const char *group)
{
    char text[4096];
    uint64_t kib = roll_read_text(meminfo, text, sizeof(text)) > 0 ? number_behind(text, "MemAvailable:") : UINT64_MAX;
    uint64_t machine = kib == UINT64_MAX ? UINT64_MAX : kib * 1024;
    uint64_t most = number_in(group, "memory.max"), used = number_in(group, "memory.current");
    uint64_t left = most == UINT64_MAX || used == UINT64_MAX ? UINT64_MAX : most > used ? most - used : 0;
    return left < machine ? left : machine;
}
