/*
 * run_group.c: signals for the process group of a rank that may have ended.
 *
 * The number of a group is its leader's, and it is free for any other process once the leader has been reaped and the
 * group is empty. A pidfd of the leader names the group for certain: Linux 6.9 and later signal the group through it.
 * An older kernel is asked by number, which is certain while the leader has not been reaped; after that only members
 * whose environment names the directory of this run are signalled, each through a pidfd of its own. Keeping leaders as
 * zombies until the end was rejected: the agent and the other ranks would take them for processes that live. Cgroups
 * were, too: most users may make none.
 */
#include "daemon/base/proc.h"
#include "daemon/console/run/run.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TO_GROUP          (1u << 2)  /* PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9 */
#define ENVIRONMENT_BYTES (1u << 21) /* what exec gives arguments and environment at most, as a rule */

int roll_pidfd(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

int roll_pidfd_signal(int fd, int sig)
{
    return (int)syscall(SYS_pidfd_send_signal, fd, sig, NULL, 0);
}

/* Whether the environment with which a program began names this directory as that of its rings. */
static bool environment_names(pid_t pid, const char *dir)
{
    char path[64], want[PATH_MAX + 16];
    size_t used = 0, length = (size_t)snprintf(want, sizeof(want), "ROLLCALL_DIR=%s", dir) + 1;
    snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *text = fd >= 0 ? malloc(ENVIRONMENT_BYTES) : NULL;
    for (ssize_t got;
         text != NULL && used < ENVIRONMENT_BYTES && (got = read(fd, text + used, ENVIRONMENT_BYTES - used)) > 0;) {
        used += (size_t)got;
    }
    bool found = false;
    for (size_t at = 0; text != NULL && !found && at + length <= used;) {
        const char *end = memchr(text + at, '\0', used - at);
        found = memcmp(text + at, want, length) == 0;
        at = end != NULL ? (size_t)(end - text) + 1 : used;
    }
    free(text);
    if (fd >= 0) {
        close(fd);
    }
    return found;
}

/* Signals each process of the run in `dir`; with `group` not 0, those of this group only. Whether there was one. */
static bool signal_ours(pid_t group, int sig, const char *dir)
{
    bool any = false;
    DIR *d = dir[0] != '\0' ? opendir("/proc") : NULL;
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        pid_t pid = (pid_t)atoi(e->d_name);
        if (pid <= 0 || (group != 0 && getpgid(pid) != group)) {
            continue;
        }
        int fd = roll_pidfd(pid); /* before it is looked at, so that what was seen is what gets the signal */
        if (fd >= 0 && (group == 0 || getpgid(pid) == group) && environment_names(pid, dir)) {
            any = roll_pidfd_signal(fd, sig) == 0 || any;
        }
        if (fd >= 0) {
            close(fd);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    return any;
}

bool roll_run_has_processes(const char *dir)
{
    return signal_ours(0, 0, dir);
}

bool roll_group_signal(int fd, pid_t group, int sig, const char *dir)
{
    if (fd >= 0) {
        if (syscall(SYS_pidfd_send_signal, fd, sig, NULL, TO_GROUP) == 0) {
            return true;
        }
        if (errno != EINVAL) {
            return false;
        }
    }
    if (fd >= 0 && roll_pidfd_signal(fd, 0) == 0) {
        return kill(-group, sig) == 0;
    }
    return kill(-group, 0) == 0 && signal_ours(group, sig, dir);
}

bool roll_pidfd_lives(int fd)
{
    struct pollfd at = {fd, POLLIN, 0};
    return poll(&at, 1, 0) == 0;
}

bool roll_group_lives(int fd, pid_t group, const char *dir)
{
    struct roll_proc_stat stat;
    if (fd >= 0 && roll_pidfd_lives(fd)) {
        return true;
    }
    if (!roll_group_signal(fd, group, 0, dir)) {
        return false;
    }
    bool any = false; /* zombies, which nobody may reap for a long time, get signals as well */
    DIR *d = opendir("/proc");
    for (struct dirent *e; d != NULL && !any && (e = readdir(d)) != NULL;) {
        pid_t pid = (pid_t)atoi(e->d_name);
        any = pid > 0 && getpgid(pid) == group && roll_proc_stat(pid, 0, &stat) == 0 && stat.state != 'Z' &&
              stat.state != 'X';
    }
    if (d != NULL) {
        closedir(d);
    }
    return any;
}
