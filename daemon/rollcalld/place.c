/*
 * place.c: see place.h. Locks are flock, which end with their holder: a killed daemon leaves files but no lock, and the
 * next one simply takes over. Pid files were rejected: after a while another process has the same pid.
 */
#include "daemon/rollcalld/place.h"

#include "daemon/base/dir.h"
#include "daemon/base/log.h"
#include "trace/err.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int ready_pipe = -1;

int roll_place_dir(char *dir, size_t size, char *why, size_t why_size)
{
    char real[PATH_MAX], reason[PATH_MAX + 128];
    struct stat opened, named;
    int fd = -1;
    int err = roll_dir_open(dir, ROLL_DIR_MAKE, &fd, reason, sizeof(reason));
    if (err) {
        snprintf(why, why_size, "directory %s", reason);
        return err;
    }
    bool same = realpath(dir, real) && fstat(fd, &opened) == 0 && stat(real, &named) == 0 &&
                opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
    close(fd);
    if (!same) {
        snprintf(why, why_size, "directory %s: it was moved while it was opened", dir);
        return ROLL_E_IO;
    }
    if (strlen(real) >= size) {
        snprintf(why, why_size, "directory %s: the name is too long", dir);
        return ROLL_E_SIZE;
    }
    memcpy(dir, real, strlen(real) + 1);
    return 0;
}

static void name_in(char path[PATH_MAX], const char *dir, const char *name)
{
    snprintf(path, PATH_MAX, "%s/%s", dir, name);
}

int roll_place_lock_root(const char *dir, int *out)
{
    char path[PATH_MAX];
    name_in(path, dir, "root.lock");
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        struct stat mine, named;
        if (fd < 0) {
            return errno == EACCES || errno == EPERM ? ROLL_E_DENIED : ROLL_E_IO;
        }
        /* A console that checks whether a root is alive holds the lock for a moment, so taking it is tried again. */
        int tries = 0;
        while (flock(fd, LOCK_EX | LOCK_NB) != 0 && tries++ < 20) {
            usleep(5000);
        }
        if (tries > 20) {
            close(fd);
            return ROLL_E_BUSY;
        }
        if (fstat(fd, &mine) == 0 && stat(path, &named) == 0 && mine.st_ino == named.st_ino) {
            *out = fd;
            return 0;
        }
        close(fd);
    }
}

int roll_place_endpoint(const char *dir, const char *endpoint)
{
    char path[PATH_MAX], temporary[PATH_MAX], line[512];
    name_in(path, dir, "endpoint");
    name_in(temporary, dir, ".endpoint.new");
    int n = snprintf(line, sizeof(line), "%s\n", endpoint);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        return ROLL_E_IO;
    }
    ssize_t wrote = write(fd, line, (size_t)n);
    close(fd);
    if (wrote != n || rename(temporary, path) != 0) {
        int number = errno;
        unlink(temporary);
        errno = number; /* the caller's message uses errno */
        return ROLL_E_IO;
    }
    return 0;
}

void roll_place_leave_root(const char *dir, int *fd)
{
    static const char *const names[] = {"endpoint", "root", "root.lock"};
    char path[PATH_MAX];
    if (*fd < 0) {
        return;
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        name_in(path, dir, names[i]);
        unlink(path);
    }
    close(*fd);
    *fd = -1;
}

void roll_place_remove(const char *dir)
{
    char why[PATH_MAX + 128];
    int fd;
    int err = roll_dir_open(dir, 0, &fd, why, sizeof(why));
    if (err) {
        if (err != ROLL_E_NOTFOUND) {
            roll_log(ROLL_LOG_WARNING, "nothing is removed: %s", why);
        }
        return;
    }
    DIR *d = fdopendir(fd);
    if (!d) {
        close(fd);
        return;
    }
    struct dirent *entry;
    bool cookie = false; /* it is the user's, and other daemons may live by it */
    while ((entry = readdir(d)) != NULL) {
        struct stat st;
        if (strcmp(entry->d_name, "cookie") == 0) {
            cookie = true;
        } else if (fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(st.st_mode)) {
            unlinkat(dirfd(d), entry->d_name, 0);
        }
    }
    closedir(d);
    if (!cookie && rmdir(dir) != 0 && errno != ENOENT) {
        roll_log(ROLL_LOG_WARNING, "%s is not removed: %s", dir, strerror(errno));
    }
}

/* background */

static void close_inherited(int keep_a, int keep_b)
{
    DIR *d = opendir("/proc/self/fd");
    struct dirent *entry;
    while (d && (entry = readdir(d)) != NULL) {
        int fd = atoi(entry->d_name);
        if (fd > STDERR_FILENO && fd != keep_a && fd != keep_b && fd != dirfd(d)) {
            close(fd);
        }
    }
    if (d) {
        closedir(d);
    }
}

int roll_place_detach(int keep_fd)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return -1;
    }
    pid_t child = fork();
    if (child < 0) {
        return -1;
    }
    if (child > 0) {
        unsigned char code = 3;
        close(ends[1]);
        ssize_t n;
        while ((n = read(ends[0], &code, 1)) < 0 && errno == EINTR) {
        }
        waitpid(child, NULL, 0); /* the child only starts the daemon, and ends at once */
        _exit(n == 1 ? code : 3);
    }
    setsid();
    if (fork() != 0) {
        _exit(0);
    }
    ready_pipe = ends[1];
    close_inherited(ready_pipe, keep_fd);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    close(null);
    return 0;
}

void roll_place_to_log(const char *dir, const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s.log", dir, name);
    int fd = dir[0] == '\0' ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    fd = fd >= 0 ? fd : open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

void roll_place_was_ready(void)
{
    ready_pipe = -1;
}

void roll_place_ready(int code, const char *dir, const char *name)
{
    if (ready_pipe < 0) {
        return;
    }
    unsigned char byte = (unsigned char)code;
    roll_place_to_log(code == 0 ? dir : "", name);
    if (write(ready_pipe, &byte, 1) != 1) {
        roll_log(ROLL_LOG_WARNING, "the process that started this daemon has ended; the daemon goes on");
    }
    close(ready_pipe);
    ready_pipe = -1;
}

void roll_place_log_done(const char *dir, const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s.log", dir, name);
    if (roll_log_troubles() == 0) {
        unlink(path);
    }
}
