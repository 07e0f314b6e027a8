/*
 * run_dir.c: the private ring directory of one `rollcall run`.
 *
 * Each run has a directory of its own, rather than the user's common one: two jobs of one user on one machine must not
 * see each other's rings, and a private directory can be removed whole at the end. Whoever is killed together with its
 * warden leaves one; the next run removes it. Whether a directory is in use says a lock (flock, shared) on the
 * directory itself, which ends with its run; the number in its name cannot say it: it may be of a process that came
 * later, or of another pid namespace. A lock file was rejected: the daemon empties the directory while `run` still
 * lives.
 */
#include "daemon/base/dir.h"
#include "daemon/console/file.h"
#include "daemon/console/run/run.h"

#include "trace/err.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAMES_MAX 16 /* other pid namespaces with the same /dev/shm may have runs of our number */
#define TRIES_MAX 8  /* for one name: each is lost to another run that starts at this moment */

/* Makes a directory, or accepts an existing one that belongs to this user and that nobody else can write to. */
static int own_directory(const char *path, char *why, size_t why_size)
{
    struct stat st;
    if (mkdir(path, 0700) == 0) {
        return 0;
    }
    if (errno != EEXIST) {
        snprintf(why, why_size, "cannot make %s: %s", path, strerror(errno));
        return errno == ENOSPC                                       ? ROLL_E_SPACE
               : errno == EACCES || errno == EPERM || errno == EROFS ? ROLL_E_DENIED
                                                                     : ROLL_E_IO;
    }
    if (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022) != 0) {
        snprintf(why, why_size, "%s is not a directory of ours alone: remove it, or set ROLLCALL_DIR", path);
        return ROLL_E_DENIED;
    }
    return 0;
}

/* Whether a daemon holds its lock in this directory: it ends by itself, and removes the directory. */
static bool has_daemon(const char *dir)
{
    static const char *const lock[] = {"agent.lock", "root.lock"};
    char path[PATH_MAX + 16];
    bool held = false;
    for (size_t i = 0; i < sizeof(lock) / sizeof(lock[0]); i++) {
        if (snprintf(path, sizeof(path), "%s/%s", dir, lock[i]) >= (int)sizeof(path)) {
            continue;
        }
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd >= 0) {
            held = held || (flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK);
            close(fd);
        }
    }
    return held;
}

/* Removes the directory of a run that has died, unless its ranks or its daemon live: a warden may be about to end them,
 * and what they record is evidence. */
static void clear_one(const char *dir)
{
    char why[PATH_MAX + 128];
    int fd;
    if (roll_dir_open(dir, 0, &fd, why, sizeof(why)) != 0) {
        return;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && !has_daemon(dir) && !roll_run_has_processes(dir)) {
        roll_directory_remove(dir);
    }
    close(fd);
}

static void clear_dead(const char *base)
{
    char path[PATH_MAX + 256];
    DIR *d = opendir(base);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (strncmp(e->d_name, "run-", 4) == 0 && e->d_name[4] >= '0' && e->d_name[4] <= '9' &&
            snprintf(path, sizeof(path), "%s/%s", base, e->d_name) < PATH_MAX) {
            clear_one(path);
        }
    }
    if (d != NULL) {
        closedir(d);
    }
}

/* Makes the directory and locks it. BUSY: there is one of that name, which is in use; the other errors of
 * own_directory. */
static int make_one(struct roll_warden *warden, const char *base, const char *path, int *lock, char *why,
                    size_t why_size)
{
    struct stat st;
    int err = ROLL_E_BUSY;
    for (int i = 0; i < TRIES_MAX && err == ROLL_E_BUSY; i++) {
        if (lstat(path, &st) == 0) {
            snprintf(why, why_size, "%s is in use", path);
            return ROLL_E_BUSY; /* clear_dead has left it */
        }
        roll_warden_guard_dir(warden, path);
        err = own_directory(path, why, why_size);
        if (err == ROLL_E_IO && own_directory(base, why, why_size) == 0) {
            err = own_directory(path, why, why_size); /* another run ended meanwhile and removed the empty base */
        }
        if (err == 0 && roll_dir_open(path, 0, lock, why, why_size) != 0) {
            err = ROLL_E_BUSY; /* another run saw it before it was locked, and took it for a dead one's */
        } else if (err == 0 && (flock(*lock, LOCK_SH | LOCK_NB) != 0 || fstat(*lock, &st) != 0 || st.st_nlink == 0)) {
            close(*lock);
            *lock = -1;
            err = ROLL_E_BUSY;
        }
    }
    if (err != 0) {
        roll_warden_guard_dir(warden, "");
    }
    return err;
}

static int make_under(struct roll_warden *warden, const char *base, char *out, size_t size, int *lock, char *why,
                      size_t why_size)
{
    int err = own_directory(base, why, why_size);
    if (err != 0) {
        return err;
    }
    char absolute[PATH_MAX]; /* the job and the warden may change their working directory */
    if (realpath(base, absolute) == NULL) {
        snprintf(absolute, sizeof(absolute), "%s", base);
    }
    clear_dead(absolute);
    err = ROLL_E_BUSY;
    for (int i = 0; i < NAMES_MAX && err == ROLL_E_BUSY; i++) {
        int n = i == 0 ? snprintf(out, size, "%s/run-%d", absolute, (int)getpid())
                       : snprintf(out, size, "%s/run-%d.%d", absolute, (int)getpid(), i);
        if (n < 0 || (size_t)n >= size) {
            snprintf(why, why_size, "the ring directory's name is too long: %s", base);
            return ROLL_E_SIZE;
        }
        err = make_one(warden, absolute, out, lock, why, why_size);
    }
    return err;
}

int roll_run_dir_new(struct roll_warden *warden, char *out, size_t size, int *lock, char *why, size_t why_size)
{
    char base[PATH_MAX];
    int err = roll_place_rings(base, sizeof(base));
    if (err != 0) {
        snprintf(why, why_size, "ROLLCALL_DIR is too long");
        return err;
    }
    err = make_under(warden, base, out, size, lock, why, why_size);
    if (err != 0 && strncmp(base, "/dev/shm/", 9) == 0) {
        char first[256];
        snprintf(first, sizeof(first), "%s", why);
        snprintf(base, sizeof(base), "/tmp/rollcall-%u", (unsigned)geteuid());
        err = make_under(warden, base, out, size, lock, why, why_size);
        if (err != 0) {
            snprintf(why, why_size, "%s", first);
        }
    }
    return err;
}
