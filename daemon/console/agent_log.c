/*
 * agent_log.c: see agent_log.h. A rank starts the agent of its node and shows nothing of it, because what a job prints
 * is the job's; so what went wrong stands in a file, and those commands read it that people try when they see nothing.
 *
 * Lines are told apart by their words: a file of its own that says how the agent stands was rejected, because an agent
 * that cannot start writes none, and its loader's words are in the log as well.
 */
#include "daemon/console/agent_log.h"

#include "daemon/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TAIL_BYTES 16384

static const struct {
    const char *words;
    bool trouble, cause; /* cause: it says more than that nobody answers, and is shown in place of that */
} telling[] = {
    {" connected to ", false, false},     {": cannot start: ", true, true},
    {" cannot be reached", true, false},  {" has gone away", true, false},
    {"handshake failed", true, true},     {"key refused", true, true},
    {"was ended by signal", true, false}, {"error while loading shared libraries", true, true},
    {"rollcalld --help", true, true}, /* an option that it does not take */
};

/* The end of the file. Returns its bytes, which are no string. */
static size_t read_tail(const char *path, char *out, size_t size)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t n = 0;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        n = pread(fd, out, size, st.st_size > (off_t)size ? st.st_size - (off_t)size : 0);
    }
    if (fd >= 0) {
        close(fd);
    }
    return n > 0 ? (size_t)n : 0;
}

bool roll_agent_log_look(const char *dir, char line[ROLL_AGENT_LINE_BYTES])
{
    char path[PATH_MAX + 16], tail[TAIL_BYTES];
    bool trouble = false, cause = false;
    line[0] = '\0';
    snprintf(path, sizeof(path), "%s/agent.log", dir);
    size_t n = read_tail(path, tail, sizeof(tail));
    for (size_t at = 0, end; at < n; at = end + 1) {
        const char *stop = memchr(tail + at, '\n', n - at);
        char one[ROLL_AGENT_LINE_BYTES];
        end = stop != NULL ? (size_t)(stop - tail) : n;
        snprintf(one, sizeof(one), "%.*s", (int)(end - at), tail + at);
        for (size_t i = 0; i < sizeof(telling) / sizeof(telling[0]); i++) {
            if (strstr(one, telling[i].words) == NULL) {
                continue;
            }
            if (!telling[i].trouble || telling[i].cause || !cause) {
                memcpy(line, one, sizeof(one));
                trouble = telling[i].trouble;
                cause = telling[i].cause;
            }
            break;
        }
    }
    roll_text_plain(line, strlen(line)); /* the file may have been written by anything of this user's */
    return trouble;
}

bool roll_agent_log_runs(const char *dir)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof(path), "%s/agent.lock", dir);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool held = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fd >= 0) {
        close(fd);
    }
    return held;
}
