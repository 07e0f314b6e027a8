/*
 * watch.c: see watch.h.
 *
 * The kernel's inotify was rejected: a user has 128 instances for all programs, so what a plan did depended on what
 * else ran on the machine. An eventfd stands for an instance, since an agent asks only whether something came.
 */
#include "tests/world/watch.h"

#include "tests/world/calls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#define WATCHES 256

static struct watch {
    int fd;
    bool used;
    dev_t device;
    ino_t folder;
} watch[WATCHES];

int __real_inotify_init1(int flags);
int __wrap_inotify_init1(int flags);
int __real_inotify_add_watch(int fd, const char *path, uint32_t mask);
int __wrap_inotify_add_watch(int fd, const char *path, uint32_t mask);
ssize_t __real_write(int fd, const void *data, size_t bytes);

int __wrap_inotify_init1(int flags)
{
    if (!process_now) {
        return __real_inotify_init1(flags);
    }
    return calls_own(eventfd(0, ((flags & IN_CLOEXEC) != 0 ? EFD_CLOEXEC : 0) | EFD_NONBLOCK));
}

int __wrap_inotify_add_watch(int fd, const char *path, uint32_t mask)
{
    struct stat is;
    if (!process_now) {
        return __real_inotify_add_watch(fd, path, mask);
    }
    if (stat(path, &is) != 0) {
        return -1;
    }
    for (int i = 0; i < WATCHES; i++) {
        if (!watch[i].used) {
            watch[i] = (struct watch){fd, true, is.st_dev, is.st_ino};
            return i + 1;
        }
    }
    errno = ENOSPC;
    return -1;
}

void watch_told(int dir, const char *path)
{
    struct stat is;
    char folder[4096];
    const char *name = strrchr(path, '/');
    int n = snprintf(folder, sizeof(folder), "%.*s", name ? (int)(name - path) + 1 : 1, name ? path : ".");
    if (n < 0 || n >= (int)sizeof(folder) || fstatat(dir, folder, &is, 0) != 0) {
        return;
    }
    for (int i = 0; i < WATCHES; i++) {
        if (watch[i].used && watch[i].device == is.st_dev && watch[i].folder == is.st_ino) {
            uint64_t one = 1;
            (void)!__real_write(watch[i].fd, &one, sizeof(one));
            calls_ready(watch[i].fd);
        }
    }
}

void watch_closed(int fd)
{
    for (int i = 0; i < WATCHES; i++) {
        watch[i].used = watch[i].used && watch[i].fd != fd;
    }
}
