/*
 * scratch.h: a directory of its own for a test, and a count of the files left in it. Include after cmocka.h.
 *
 * A failed assertion jumps over the end of a test, so what is left then goes with the process. To remove it in a
 * tear-down of each test was rejected: whoever forgets one would find out when memory is full.
 */
#ifndef ROLL_TESTS_TRACE_SCRATCH_H
#define ROLL_TESTS_TRACE_SCRATCH_H

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* Those that are there, by whom they were made: a child that was forked ends as well. */
static struct {
    char dir[64];
    pid_t maker;
} scratch_left[64];

/* A new directory in memory, so that no test waits for a disk. */
static inline void scratch_make(char dir[64])
{
    snprintf(dir, 64, "%s/rollcall-test-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof(scratch_left) / sizeof(scratch_left[0]); i++) {
        if (scratch_left[i].maker == 0) {
            snprintf(scratch_left[i].dir, sizeof(scratch_left[i].dir), "%s", dir);
            scratch_left[i].maker = getpid();
            break;
        }
    }
}

static inline const char *scratch_path(const char *dir, const char *name)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

/* Removes the files of the directory and then itself; *files: how many there were. False: it could not be removed. */
static inline bool scratch_clear(const char *dir, int *files)
{
    DIR *handle = opendir(dir);
    *files = 0;
    for (struct dirent *entry = handle ? readdir(handle) : NULL; entry != NULL; entry = readdir(handle)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            unlinkat(dirfd(handle), entry->d_name, 0);
            ++*files;
        }
    }
    if (handle) {
        closedir(handle);
    }
    for (size_t i = 0; i < sizeof(scratch_left) / sizeof(scratch_left[0]); i++) {
        if (strcmp(scratch_left[i].dir, dir) == 0) {
            scratch_left[i].maker = 0;
        }
    }
    return rmdir(dir) == 0;
}

/* Removes the directory; returns how many files were in it. */
static inline int scratch_remove(const char *dir)
{
    int files;
    assert_true(scratch_clear(dir, &files));
    return files;
}

__attribute__((destructor)) static void scratch_remove_left(void)
{
    for (size_t i = 0; i < sizeof(scratch_left) / sizeof(scratch_left[0]); i++) {
        int files;
        if (scratch_left[i].maker == getpid()) {
            (void)scratch_clear(scratch_left[i].dir, &files);
        }
    }
}

#endif
