/*
 * run_dir_remove.c: the end of a run's ring directory, whether the run removes it or, where that was killed, its
 * warden. It stands apart from run_dir.c, because who makes a directory tells the warden of it, and the warden comes
 * here.
 */
#include "daemon/console/file.h"
#include "daemon/console/run/run.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void roll_run_dir_clear(const char *dir)
{
    char inner[PATH_MAX];
    if (snprintf(inner, sizeof(inner), "%s/hostnccl", dir) < (int)sizeof(inner)) {
        roll_directory_remove(inner);
    }
}

void roll_run_dir_remove(const char *dir)
{
    char base[PATH_MAX];
    roll_directory_remove(dir);
    snprintf(base, sizeof(base), "%s", dir);
    char *slash = strrchr(base, '/');
    if (slash == NULL) {
        return;
    }
    *slash = '\0';
    /* A directory that the user named stays; our default one goes when it is empty (rmdir refuses otherwise). */
    const char *named = getenv("ROLLCALL_DIR");
    if (named == NULL || named[0] == '\0') {
        rmdir(base);
    }
}
