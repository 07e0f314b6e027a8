/*
 * run_dir.c: the private ring directory of one `rollcall run`.
 *
 * Each run has a directory of its own, rather than the user's common one: two jobs of one user on one machine must not
 * see each other's rings, and a private directory can be removed whole at the end.
 */
#include "daemon/console/file.h"
#include "daemon/console/run/run.h"

#include "trace/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

static int make_under(const char *base, char *out, size_t size, char *why, size_t why_size)
{
    int err = own_directory(base, why, why_size);
    if (err != 0) {
        return err;
    }
    int n = snprintf(out, size, "%s/run-%d", base, (int)getpid());
    if (n < 0 || (size_t)n >= size) {
        snprintf(why, why_size, "the ring directory's name is too long: %s", base);
        return ROLL_E_SIZE;
    }
    /* A directory with our process number is left over from a process that is long gone. */
    roll_directory_remove(out);
    err = own_directory(out, why, why_size);
    if (err == ROLL_E_IO && own_directory(base, why, why_size) == 0) {
        err = own_directory(out, why, why_size); /* another run ended meanwhile and removed the empty base */
    }
    char absolute[PATH_MAX];
    if (err == 0 && realpath(out, absolute) != NULL) {
        snprintf(out, size, "%s", absolute); /* the job and the warden may change their working directory */
    }
    return err;
}

int roll_run_dir_new(char *out, size_t size, char *why, size_t why_size)
{
    char base[PATH_MAX];
    int err = roll_place_rings(base, sizeof(base));
    if (err != 0) {
        snprintf(why, why_size, "ROLLCALL_DIR is too long");
        return err;
    }
    err = make_under(base, out, size, why, why_size);
    if (err != 0 && strncmp(base, "/dev/shm/", 9) == 0) {
        char first[256];
        snprintf(first, sizeof(first), "%s", why);
        snprintf(base, sizeof(base), "/tmp/rollcall-%u", (unsigned)geteuid());
        err = make_under(base, out, size, why, why_size);
        if (err != 0) {
            snprintf(why, why_size, "%s", first);
        }
    }
    return err;
}

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
