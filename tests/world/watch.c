/*
 * watch.c: see watch.h.
 *
 * The kernel's inotify was rejected: a user has 128 instances for all programs, so what a plan did depended on what
 * else ran on the machine. A pipe stands for an instance, whose events are written as the kernel writes them. Whatever
 * makes a file appear comes here (files.c): a file that is linked, as rings are, is told as one that is made.
 */
#include "tests/world/watch.h"

#include "tests/world/calls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#define WATCHES 64 /* one for each agent, and those of agents that were killed are closed */

static struct watch {
    int fd, end; /* its pipe; end 0 = free */
    bool added;
    uint32_t mask;
    dev_t device;
    ino_t folder;
} watch[WATCHES];

int __real_inotify_init1(int flags);
int __wrap_inotify_init1(int flags);
int __real_inotify_add_watch(int fd, const char *path, uint32_t mask);
int __wrap_inotify_add_watch(int fd, const char *path, uint32_t mask);
int __real_pipe2(int fds[2], int flags);
int __real_close(int fd);
ssize_t __real_write(int fd, const void *data, size_t bytes);

static struct watch *watch_of(int fd)
{
    for (int i = 0; i < WATCHES; i++) {
        if (watch[i].end != 0 && watch[i].fd == fd) {
            return &watch[i];
        }
    }
    return NULL;
}

int __wrap_inotify_init1(int flags)
{
    struct watch *w = watch;
    int fds[2];
    if (!process_now) {
        return __real_inotify_init1(flags);
    }
    while (w < watch + WATCHES && w->end != 0) {
        w++;
    }
    if (world.now_ns < process_now->host->unwatched_ns || w == watch + WATCHES) {
        errno = EMFILE; /* as where other programs of the user have them all */
        return -1;
    }
    if (__real_pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) {
        return -1;
    }
    *w = (struct watch){.fd = fds[0], .end = fds[1]};
    return calls_own(fds[0]);
}

int __wrap_inotify_add_watch(int fd, const char *path, uint32_t mask)
{
    struct watch *w = watch_of(fd);
    struct stat is;
    if (!process_now) {
        return __real_inotify_add_watch(fd, path, mask);
    }
    if (!w || w->added) {
        world_fail("%s watches more than one folder by one descriptor, which the world does not know",
                   process_now->name);
        errno = ENOSPC;
        return -1;
    }
    if (stat(path, &is) != 0) {
        return -1;
    }
    *w = (struct watch){w->fd, w->end, true, mask, is.st_dev, is.st_ino};
    return 1;
}

void watch_appeared(int dir, const char *path, uint32_t event)
{
    union {
        struct inotify_event head;
        char bytes[sizeof(struct inotify_event) + 256];
    } told = {.head = {.wd = 1, .mask = event}};
    char folder[4096];
    struct stat is;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    int n = snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    if (n < 0 || n >= (int)sizeof(folder) || fstatat(dir, folder, &is, 0) != 0) {
        return;
    }
    told.head.len = (uint32_t)(strlen(name) / 16 + 1) * 16; /* the name is filled up with zeros */
    snprintf(told.bytes + sizeof(told.head), 256, "%s", name);
    for (int i = 0; i < WATCHES; i++) {
        const struct watch *w = &watch[i];
        if (w->added && (w->mask & event) != 0 && w->device == is.st_dev && w->folder == is.st_ino) {
            /* Where nobody has read for long there is no room, and something is there that wakes it. */
            (void)!__real_write(w->end, told.bytes, sizeof(told.head) + told.head.len);
            calls_ready(w->fd);
        }
    }
}

void watch_closed(int fd)
{
    struct watch *w = watch_of(fd);
    if (w) {
        __real_close(w->end);
        *w = (struct watch){.end = 0};
    }
}
