/*
 * out.c: see out.h. An end of the reading at the first SIGINT, as of analyze, was rejected: a file of half a job says
 * nothing of it once it has been sent to somebody.
 */
#include "daemon/console/export/out.h"

#include "daemon/base/dir.h"
#include "daemon/console/console.h"
#include "trace/err.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
#define ENDS (sizeof(ends) / sizeof(ends[0]))

static char name[PATH_MAX], part[PATH_MAX]; /* written before the signals are waited for, and behind them */
static int descriptor = -1;
static bool replaces; /* a file of that name that is there */
static bool is_taken[ENDS];
static void (*before_large)(int); /* what SIGXFSZ did */

/* Only what may be called from a signal. */
static void take_away(int number)
{
    static const char words[] = "rollcall: interrupted: no file is written\n";
    static const char line[] = "\r\033[K";
    ssize_t n = isatty(STDERR_FILENO) ? write(STDERR_FILENO, line, sizeof(line) - 1) : 0;
    n += write(STDERR_FILENO, words, sizeof(words) - 1);
    (void)n;
    (void)unlink(part);
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static void watch_signals(void)
{
    struct sigaction action = {.sa_handler = take_away}, before;
    for (size_t i = 0; i < ENDS; i++) {
        is_taken[i] = sigaction(ends[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL; /* not who ignores it */
        is_taken[i] = is_taken[i] && sigaction(ends[i], &action, NULL) == 0;
    }
    before_large = signal(SIGXFSZ, SIG_IGN); /* a file that may grow no larger is an error of writing */
}

static void leave_signals(void)
{
    for (size_t i = 0; i < ENDS; i++) {
        if (is_taken[i]) {
            (void)signal(ends[i], SIG_DFL);
        }
    }
    (void)signal(SIGXFSZ, before_large);
}

int roll_out_error(int number)
{
    switch (number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return ROLL_E_SPACE;
    case EACCES:
    case EPERM:
    case EROFS:
        return ROLL_E_DENIED;
    case ENOENT:
    case ENOTDIR:
        return ROLL_E_NOTFOUND;
    case ENOMEM:
        return ROLL_E_NOMEM;
    default:
        return ROLL_E_IO;
    }
}

static int complain(int number)
{
    roll_say("%s: %s", name, strerror(number));
    return roll_out_error(number);
}

int roll_out_name(const char *path, bool replace)
{
    struct stat st;
    replaces = replace;
    if (lstat(path, &st) != 0) {
        return 0; /* why it cannot be written, if it cannot, is said by who opens it */
    }
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) { /* a device, also behind a link, would be replaced by a file */
        roll_say("%s: %s; name another place with -o", path,
                 S_ISDIR(st.st_mode) ? strerror(EISDIR) : "not an ordinary file");
        return ROLL_E_DENIED;
    }
    if (!replace) {
        roll_say("%s is there already; --force replaces it, -o FILE takes another name", path);
        return ROLL_E_DENIED;
    }
    return 0;
}

bool roll_out_is_full(const char *path)
{
    DIR *dir = opendir(path);
    const struct dirent *entry = NULL;
    bool full = false;
    while (dir != NULL && !full && (entry = readdir(dir)) != NULL) {
        full = strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return full;
}

int roll_out_folder(const char *path, bool replace)
{
    bool full = !replace && roll_out_is_full(path);
    if (full) {
        roll_say("%s is there already, and not empty; --force writes into it, -o DIR takes another place", path);
    }
    return full ? ROLL_E_DENIED : 0;
}

/* The finished file gets its name. One that has come there meanwhile stays, where the file system can tell. */
static int give_name(void)
{
    if (replaces) {
        return rename(part, name);
    }
    int rc = renameat2(AT_FDCWD, part, AT_FDCWD, name, RENAME_NOREPLACE);
    bool able = rc == 0 || (errno != EINVAL && errno != ENOSYS);
    return able ? rc : rename(part, name);
}

int roll_out_begin(const char *path)
{
    struct stat st;
    if (strlen(path) + sizeof(".part") > sizeof(part)) {
        roll_say("%.60s...: %s", path, strerror(ENAMETOOLONG));
        return ROLL_E_LIMIT;
    }
    snprintf(name, sizeof(name), "%s", path);
    snprintf(part, sizeof(part), "%.*s.part", (int)(sizeof(part) - sizeof(".part")), path);
    if (stat(name, &st) == 0 && S_ISDIR(st.st_mode)) {
        return complain(EISDIR);
    }
    (void)unlink(part); /* what a killed one has left */
    descriptor = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (descriptor < 0) {
        int number = errno;
        char why[PATH_MAX + 128];
        roll_say("%s", roll_dir_cannot_make(name, number, why, sizeof(why)));
        return roll_out_error(number);
    }
    watch_signals();
    return descriptor;
}

const char *roll_out_part(void)
{
    return part;
}

void roll_out_progress(const char *words)
{
    if (isatty(STDERR_FILENO) == 1) {
        fprintf(stderr, "\r\033[K%s%s", words != NULL ? "rollcall: " : "", words != NULL ? words : "");
    }
}

int roll_out_end(bool whole)
{
    int number = whole && fsync(descriptor) != 0 && errno != EINVAL && errno != EROFS ? errno : 0;
    number = close(descriptor) != 0 && number == 0 ? errno : number;
    descriptor = -1;
    number = whole && number == 0 && give_name() != 0 ? errno : number;
    int err = number != 0 ? complain(number) : 0;
    if (!whole || number != 0) {
        (void)unlink(part);
    }
    leave_signals();
    return err;
}
