/*
 * python_dump.c: parses the dumps that the other rungs of the ladder give (docs/STACKS.md) into the structure that the
 * reader fills; all lengths are bounded.
 *
 * The dumper's text is not made for machines: when faulthandler writes it, it has no end mark, so a dump counts as
 * whole when it has not grown for a moment. The handler of librollcall.so ends its dump with a line of its own.
 */
#include "daemon/stack/python_dump.h"
#include "daemon/base/array.h"

#include "daemon/base/clock.h"
#include "trace/err.h"
#include "trace/pystacks.h"
#include "trace/python_layout.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEXT_MAX (4u * 1024u * 1024u)
#define QUIET_MS 60 /* a dump that has not grown for this long counts as whole */
#define STEP_MS  2

extern char **environ;

/* building */

static struct roll_py_thread *add_thread(struct roll_py_stacks *out)
{
    if (out->threads == ROLL_PY_THREADS_MAX) {
        out->more = true;
        return NULL;
    }
    if (ROLL_GROW(out->thread, out->room, out->threads + 1) != 0) {
        return NULL;
    }
    struct roll_py_thread *t = &out->thread[out->threads++];
    *t = (struct roll_py_thread){0};
    t->frame = calloc(ROLL_PY_INNER + ROLL_PY_OUTER, sizeof(*t->frame));
    if (!t->frame) {
        out->threads--;
        return NULL;
    }
    return t;
}

static void add_frame(struct roll_py_thread *t, const char *function, const char *file, unsigned line)
{
    if (t->frames < ROLL_PY_INNER + ROLL_PY_OUTER) {
        t->frame[t->frames++] = (struct roll_py_frame){function, file, line, false};
    } else {
        t->left_out++;
    }
}

/* the dumper's text */

/* Turns the dumper's \\xf6, \\u65e5 and \\U0001f600 back into characters. This works in place, because UTF-8 is never
 * longer. */
static void unescape(char *text)
{
    char *to = text;
    for (const char *c = text; *c; c++) {
        int digits = c[0] != '\\' ? 0 : c[1] == 'x' ? 2 : c[1] == 'u' ? 4 : c[1] == 'U' ? 8 : 0, n = 0;
        uint32_t code = 0;
        for (; n < digits && isxdigit((unsigned char)c[2 + n]); n++) {
            char d = c[2 + n];
            code = code * 16 + (uint32_t)(d <= '9' ? d - '0' : (d | 32) - 'a' + 10);
        }
        if (digits > 0 && n == digits && code >= 0x80 && code < 0x110000 && (code < 0xd800 || code > 0xdfff)) {
            to += roll_put_utf8(to, code);
            c += 1 + digits;
        } else {
            *to++ = *c;
        }
    }
    *to = '\0';
}

/* Parses a line like `  File "train.py", line 12 in step`. */
static void parse_frame(char *line, struct roll_text_pool *pool, struct roll_py_thread *t)
{
    char *file = strchr(line, '"'), *end = file ? strstr(file + 1, "\", line ") : NULL;
    for (char *later = end; later; later = strstr(later + 1, "\", line ")) {
        end = later; /* a file name may hold any character */
    }
    if (!file || !end) {
        return;
    }
    *end = '\0';
    char *rest = NULL;
    unsigned number = (unsigned)strtoul(end + 8, &rest, 10);
    char *function = strncmp(rest, " in ", 4) == 0 ? rest + 4 : NULL;
    unescape(file + 1);
    if (function) {
        unescape(function);
    }
    add_frame(t, roll_text_keep(pool, function ? function : "?"), roll_text_keep(pool, file + 1), number);
}

int roll_py_dump_parse(const char *text, size_t bytes, struct roll_text_pool *pool, struct roll_py_stacks *out)
{
    struct roll_py_thread *t = NULL;
    *out = (struct roll_py_stacks){0};
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t n = end ? (size_t)(end - (text + at)) : bytes - at;
        char line[2048];
        size_t have = n < sizeof(line) - 1 ? n : sizeof(line) - 1;
        memcpy(line, text + at, have);
        line[have] = '\0';
        at += n + 1;
        const char *number = strstr(line, "hread 0x");
        if (number && (line[0] == 'T' || line[0] == 'C')) {
            t = add_thread(out);
            if (t) {
                t->ident = strtoull(number + 8, NULL, 16);
            }
        } else if (t && strncmp(line, "  File \"", 8) == 0) {
            parse_frame(line, pool, t);
        } else if (t && strncmp(line, "  ...", 5) == 0) {
            t->left_out++;
        } else if (strcmp(line, "...") == 0) {
            out->more = true;
        }
    }
    return out->threads > 0 ? 0 : ROLL_E_NOTFOUND;
}

/* by signal */

static char *slurp(const char *path, off_t from, size_t *bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    char *text = NULL;
    *bytes = 0;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > from) {
        size_t want = st.st_size - from < (off_t)TEXT_MAX ? (size_t)(st.st_size - from) : TEXT_MAX;
        text = malloc(want + 1);
        ssize_t n = text ? pread(fd, text, want, from) : -1;
        *bytes = n > 0 ? (size_t)n : 0;
        if (text) {
            text[*bytes] = '\0';
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    return text;
}

/* The signal that the file announces; 0: none. The process must be the one that wrote it, and must still catch that
 * signal. */
static int announced(const char *path, pid_t pid, char *why)
{
    size_t bytes;
    struct stat st;
    char *text = slurp(path, 0, &bytes), status_path[64];
    int number = 0, owner = 0;
    if (!text || stat(path, &st) != 0) {
        free(text);
        return 0;
    }
    bool good = sscanf(text, ROLL_PYSTACKS_SCAN, &owner, &number) == 2 && owner == pid && number >= SIGRTMIN &&
                number <= SIGRTMAX && st.st_uid == geteuid();
    free(text);
    if (!good) {
        return 0;
    }
    snprintf(status_path, sizeof(status_path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(status_path, "re");
    char line[256];
    unsigned long long caught = 0;
    while (f && fgets(line, sizeof(line), f)) {
        sscanf(line, "SigCgt: %llx", &caught);
    }
    if (f) {
        fclose(f);
    }
    if (!(caught >> (number - 1) & 1)) {
        snprintf(why, ROLL_STACK_WHY_BYTES,
                 "signal %d is announced but no longer caught: not sent, it would end the process", number);
        return 0;
    }
    return number;
}

int roll_py_dump_by_signal(pid_t pid, const char *dir, unsigned patience_ms, struct roll_text_pool *pool,
                           struct roll_py_stacks *out, char why[ROLL_STACK_WHY_BYTES])
{
    char path[4096 + 64];
    struct stat st;
    why[0] = '\0';
    snprintf(path, sizeof(path), "%s/" ROLL_PYSTACKS_NAME, dir, (int)pid);
    int number = announced(path, pid, why);
    if (number == 0 || stat(path, &st) != 0) {
        return ROLL_E_NOTFOUND;
    }
    off_t from = st.st_size, size = from;
    if (sigqueue(pid, number, (union sigval){.sival_int = ROLL_PYSTACKS_COOKIE}) != 0) {
        snprintf(why, ROLL_STACK_WHY_BYTES, "signal %d cannot be sent: %s", number, strerror(errno));
        return ROLL_E_DENIED;
    }
    uint64_t begin = roll_mono_ns(), grown = begin;
    char *text = NULL;
    size_t bytes = 0;
    const struct timespec nap = {0, STEP_MS * 1000000};
    for (;;) {
        nanosleep(&nap, NULL);
        uint64_t now = roll_mono_ns();
        if (stat(path, &st) == 0 && st.st_size != size) {
            size = st.st_size;
            grown = now;
            free(text);
            text = slurp(path, from, &bytes);
            if (text && strstr(text, ROLL_PYSTACKS_END)) {
                break;
            }
        }
        if ((text && now - grown > QUIET_MS * ROLL_MS) || now - begin > patience_ms * ROLL_MS) {
            break;
        }
    }
    int err = text ? roll_py_dump_parse(text, bytes, pool, out) : ROLL_E_TIMEOUT;
    free(text);
    if (err) {
        snprintf(why, ROLL_STACK_WHY_BYTES,
                 "signal %d was sent and brought no stacks within %u ms (blocked, or the process is stopped?)", number,
                 patience_ms);
    }
    return err;
}

/* py-spy */

int roll_py_spy_parse(const char *text, size_t bytes, struct roll_text_pool *pool, struct roll_py_stacks *out)
{
    *out = (struct roll_py_stacks){0};
    json_t *list = json_loadb(text, bytes, 0, NULL), *item, *frame;
    size_t i, k;
    if (!json_is_array(list)) {
        json_decref(list);
        return ROLL_E_CORRUPT;
    }
    json_array_foreach(list, i, item)
    {
        struct roll_py_thread *t = add_thread(out);
        if (!t) {
            break;
        }
        t->ident = (uint64_t)json_integer_value(json_object_get(item, "thread_id"));
        t->tid = (pid_t)json_integer_value(json_object_get(item, "os_thread_id"));
        json_array_foreach(json_object_get(item, "frames"), k, frame)
        {
            const char *name = json_string_value(json_object_get(frame, "name"));
            const char *file = json_string_value(json_object_get(frame, "filename"));
            add_frame(t, roll_text_keep(pool, name ? name : "?"), roll_text_keep(pool, file ? file : "?"),
                      (unsigned)json_integer_value(json_object_get(frame, "line")));
        }
    }
    json_decref(list);
    return out->threads > 0 ? 0 : ROLL_E_NOTFOUND;
}

/* Reads everything that a child writes, until it ends or the time is over. */
static char *read_all(int fd, unsigned patience_ms, size_t *bytes)
{
    uint64_t end = roll_mono_ns() + patience_ms * ROLL_MS;
    char *text = malloc(TEXT_MAX);
    *bytes = 0;
    while (text && *bytes < TEXT_MAX) {
        uint64_t now = roll_mono_ns();
        struct pollfd p = {fd, POLLIN, 0};
        if (now >= end || poll(&p, 1, (int)((end - now) / ROLL_MS) + 1) <= 0) {
            break;
        }
        ssize_t n = read(fd, text + *bytes, TEXT_MAX - *bytes);
        if (n <= 0) {
            break;
        }
        *bytes += (size_t)n;
    }
    return text;
}

int roll_py_dump_by_spy(pid_t pid, unsigned patience_ms, struct roll_text_pool *pool, struct roll_py_stacks *out,
                        char why[ROLL_STACK_WHY_BYTES])
{
    int fds[2];
    char number[16];
    char name[] = "py-spy", dump[] = "dump", flags[] = "--json", quiet[] = "--nonblocking", option[] = "--pid";
    char *argv[] = {name, dump, flags, quiet, option, number, NULL};
    posix_spawn_file_actions_t actions;
    pid_t child;
    why[0] = '\0';
    if (pipe2(fds, O_CLOEXEC) != 0) {
        return ROLL_E_IO;
    }
    snprintf(number, sizeof(number), "%d", (int)pid);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int rc = posix_spawnp(&child, name, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    if (rc != 0) {
        close(fds[0]);
        return ROLL_E_NOTFOUND;
    }
    size_t bytes;
    char *text = read_all(fds[0], patience_ms, &bytes);
    close(fds[0]);
    kill(child, SIGKILL); /* the child has written everything, or its time is over */
    waitpid(child, NULL, 0);
    int err = text ? roll_py_spy_parse(text, bytes, pool, out) : ROLL_E_NOMEM;
    free(text);
    if (err) {
        snprintf(why, ROLL_STACK_WHY_BYTES, "py-spy gave no stacks");
    }
    return err;
}
