/*
 * scratch.h: a directory of its own for a test, and a count of the files left in it. Include after cmocka.h.
 */
#ifndef ROLL_TESTS_TRACE_SCRATCH_H
#define ROLL_TESTS_TRACE_SCRATCH_H

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A new directory in memory, so that no test waits for a disk. */
static inline void scratch_make(char dir[64])
{
    snprintf(dir, 64, "%s/rollcall-test-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(dir));
}

static inline const char *scratch_path(const char *dir, const char *name)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

/* Removes the directory; returns how many files were in it. */
static inline int scratch_remove(const char *dir)
{
    DIR *handle = opendir(dir);
    int files = 0;
    assert_non_null(handle);
    for (struct dirent *entry = readdir(handle); entry != NULL; entry = readdir(handle)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            unlink(scratch_path(dir, entry->d_name));
            files++;
        }
    }
    closedir(handle);
    assert_int_equal(rmdir(dir), 0);
    return files;
}

#endif
