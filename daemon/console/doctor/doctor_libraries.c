/*
 * doctor_libraries.c: which copies of NCCL and of CUDA's libraries a command would use, and whether they fit together.
 *
 * A machine has several: the system's, those of a Python environment, those of a container's toolkit, the stand-ins.
 * Which one a job gets depends on RPATH, LD_LIBRARY_PATH, LD_PRELOAD and on what is loaded already, so the loader is
 * asked; rules of our own would be wrong for one of them.
 */
#include "daemon/console/doctor/doctor.h"
#include "daemon/console/rehearse/rehearse.h"

#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The libraries that matter, and whether a process may have one copy only. */
static const struct {
    const char *pattern;
    bool is_one;
} WANTED[] = {
    {"libnccl.so*", false}, /* doctor_program.c says what two mean */
    {"libcudart.so*", true},
    {"libcuda.so*", true},
    {"libnvidia-ml.so*", true},
};

enum { COUNT = sizeof(WANTED) / sizeof(WANTED[0]), COPIES = 4 };

struct listing {
    char path[COUNT][COPIES][PATH_MAX];
    unsigned used[COUNT];
};

static void note(void *to, const char *path)
{
    struct listing *listing = to;
    const char *name = strrchr(path, '/') + 1;
    for (size_t i = 0; i < COUNT; i++) {
        bool is_known = fnmatch(WANTED[i].pattern, name, 0) != 0 || listing->used[i] == COPIES;
        for (unsigned k = 0; k < listing->used[i] && !is_known; k++) {
            is_known = strcmp(listing->path[i][k], path) == 0;
        }
        if (!is_known) {
            snprintf(listing->path[i][listing->used[i]++], PATH_MAX, "%s", path);
        }
    }
}

static bool is_stand_in(const struct roll_place *place, const char *path)
{
    size_t n = strlen(place->hostnccl);
    char real[PATH_MAX];
    return n > 0 && realpath(path, real) != NULL && strncmp(real, place->hostnccl, n) == 0 && real[n] == '/';
}

static void say(struct roll_checkup *c, const struct roll_place *place, const struct listing *listing)
{
    for (size_t i = 0; i < COUNT; i++) {
        for (unsigned k = 0; k < listing->used[i]; k++) {
            const char *path = listing->path[i][k];
            char release[32];
            bool is_told =
                strstr(WANTED[i].pattern, "nccl") != NULL && roll_nccl_release(path, release, sizeof(release));
            roll_checkup_say(c, "library", ROLL_HEALTH_OK, "%s%s%s%s", path, is_told ? ", release " : "",
                             is_told ? release : "", is_stand_in(place, path) ? " (stand-in, on host memory)" : "");
        }
        if (WANTED[i].is_one && listing->used[i] > 1) {
            roll_checkup_say(c, "library", ROLL_HEALTH_WARN,
                             "%u copies of %.*s in one process: memory and streams of one are unknown to the other",
                             listing->used[i], (int)strcspn(WANTED[i].pattern, "*"), WANTED[i].pattern);
        }
    }
}

void roll_checkup_libraries(struct roll_checkup *c, const struct roll_place *place, const struct roll_study *study,
                            const char *command, bool hostnccl)
{
    static struct listing listing;     /* large */
    static char preload[8 * PATH_MAX]; /* large */
    char wheel[PATH_MAX + 64];
    struct roll_loading with = {.path = hostnccl ? place->hostnccl : NULL};
    const char *loader = study->program.loader;
    memset(&listing, 0, sizeof(listing));
    if (!roll_loader_lists(loader) || study->program.other_machine || study->program.elevated) {
        return;
    }
    if (hostnccl && roll_rehearse_preload(place->hostnccl, command, preload, sizeof(preload)) == 0) {
        with.preload = preload;
    }
    roll_list_libraries(loader, study->path, &with, note, &listing);
    if (roll_rehearse_wheel(command, wheel, sizeof(wheel))) {
        roll_checkup_say(c, "wheel", ROLL_HEALTH_OK, "%s", wheel);
        roll_list_libraries(loader, wheel, &with, note, &listing);
    }
    say(c, place, &listing);
}
