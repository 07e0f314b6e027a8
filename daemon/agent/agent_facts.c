/*
 * agent_facts.c: starts, reads and ends the helper `rollcalld --facts`.
 *
 * The helper is a process of its own, because the driver of a lost GPU may keep its caller in the kernel, where not
 * even SIGKILL ends it. Then the facts that the helper has written by then are the answer, and the helper is left to
 * end when it can. It is started with posix_spawn, like the stack reader (stack_run.c). Questions of several roots or
 * verdicts at the same time are answered one after another; each costs half a second.
 */
#include "daemon/agent/agent_facts.h"

#include "daemon/base/clock.h"
#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "daemon/wire/net.h"
#include "trace/err.h"
#include "trace/fact.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define QUESTIONS    8
#define FACTS_MAX    16u
#define TEXT_BYTES   160u
#define TIME_NS      (6000 * ROLL_MS) /* longest time for the helper */
#define INTERVAL_MS  500
#define BUFFER_BYTES 65536u
#define LEFT_MAX     4u /* most helpers that were killed and have not ended yet */

extern char **environ;

struct question {
    uint64_t number, since_us;
};

struct roll_agent_facts {
    const char *host, *dir, *trace;
    struct question queue[QUESTIONS]; /* [0] is the question being answered */
    size_t used;
    pid_t child; /* 0 = none */
    int fd;
    uint64_t deadline_ns;
    char at[64]; /* source that the helper is reading */
    char buffer[BUFFER_BYTES];
    size_t filled;
    json_t *facts; /* facts for the question being answered */
    size_t more;
    pid_t left[LEFT_MAX]; /* helpers that were killed and are not gone yet */
    json_t *out;          /* an answer that waits for room in the socket */
    uint64_t out_number;
};

roll_agent_facts_t *roll_agent_facts_new(const char *host, const char *dir, const char *trace)
{
    roll_agent_facts_t *f = calloc(1, sizeof(*f));
    if (f) {
        f->host = host;
        f->dir = dir;
        f->trace = trace;
        f->fd = -1;
    }
    return f;
}

static void reap(roll_agent_facts_t *f)
{
    for (size_t i = 0; i < LEFT_MAX; i++) {
        if (f->left[i] > 0 && waitpid(f->left[i], NULL, WNOHANG) != 0) {
            f->left[i] = 0;
        }
    }
}

/* Ends the helper, if it has not ended, without waiting for it. */
static void stop(roll_agent_facts_t *f)
{
    if (f->fd >= 0) {
        close(f->fd);
        f->fd = -1;
    }
    if (f->child > 0) {
        kill(f->child, SIGKILL);
        for (size_t i = 0; i < LEFT_MAX && f->child > 0; i++) {
            if (f->left[i] == 0) {
                f->left[i] = f->child;
                f->child = 0;
            }
        }
    }
    f->child = 0;
    f->filled = 0;
}

void roll_agent_facts_forget(roll_agent_facts_t *f)
{
    stop(f);
    f->used = 0;
    json_decref(f->facts);
    json_decref(f->out);
    f->facts = f->out = NULL;
}

void roll_agent_facts_destroy(roll_agent_facts_t **self)
{
    if (*self) {
        roll_agent_facts_forget(*self);
        reap(*self);
        free(*self);
        *self = NULL;
    }
}

void roll_agent_facts_ask(roll_agent_facts_t *f, const struct roll_frame *ask)
{
    json_t *json = roll_net_json(ask);
    const char *op = json_string_value(json_object_get(json, "op"));
    if (op && strcmp(op, "facts") == 0 && f->used < QUESTIONS) {
        /* How far back the kernel's log matters, in seconds before now, because the clocks of two nodes differ. */
        json_int_t back = json_integer_value(json_object_get(json, "back_s"));
        uint64_t now_us = roll_mono_ns() / 1000, back_us = back > 0 && back < 86400 ? (uint64_t)back * 1000000u : 0;
        f->queue[f->used++] =
            (struct question){.number = ask->head.seq, .since_us = now_us > back_us ? now_us - back_us : 0};
    }
    json_decref(json);
}

/* the helper */

static char *wish_text(const roll_agent_facts_t *f)
{
    const char *root = getenv("ROLLCALL_NODE_ROOT");
    json_t *wish =
        json_pack("{s:s, s:s, s:s, s:I, s:i}", "root", root ? root : "", "dir", f->dir, "trace",
                  f->trace ? f->trace : "", "since_us", (json_int_t)f->queue[0].since_us, "interval_ms", INTERVAL_MS);
    char *text = wish ? json_dumps(wish, JSON_COMPACT) : NULL;
    json_decref(wish);
    return text;
}

static int spawn(roll_agent_facts_t *f, int out)
{
    const char *named = getenv("ROLLCALL_BIN");
    char *wish = wish_text(f), option[] = "--facts", self[] = "/proc/self/exe";
    char *program = named && *named ? strdup(named) : strdup(self);
    char *argv[] = {program, option, wish, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    int rc = wish && program ? posix_spawn(&f->child, program, &actions, &attributes, argv, environ) : ENOMEM;
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    free(program);
    free(wish);
    f->child = rc == 0 ? f->child : 0;
    return rc;
}

static void add(roll_agent_facts_t *f, const char *kind, const char *text)
{
    if (json_array_size(f->facts) < FACTS_MAX) {
        char cut[TEXT_BYTES];
        snprintf(cut, sizeof(cut), "%s", text);
        json_array_append_new(f->facts, json_pack("{s:s, s:s}", "kind", kind, "text", cut));
    } else {
        f->more++;
    }
}

static void give_up(roll_agent_facts_t *f, const char *why)
{
    char text[TEXT_BYTES];
    snprintf(text, sizeof(text), "%s cannot be looked at (%s)", f->at, why);
    add(f, roll_fact_name(ROLL_FACT_UNKNOWN), text);
}

static void start(roll_agent_facts_t *f, uint64_t now)
{
    int fds[2];
    f->facts = json_array();
    f->more = 0;
    snprintf(f->at, sizeof(f->at), "the node"); /* the helper has not begun */
    f->deadline_ns = now + TIME_NS;
    if (pipe2(fds, O_CLOEXEC) != 0) {
        give_up(f, strerror(errno));
        return;
    }
    int rc = spawn(f, fds[1]);
    close(fds[1]);
    if (rc != 0) {
        close(fds[0]);
        give_up(f, strerror(rc));
        return;
    }
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    f->fd = fds[0];
}

static void take_line(roll_agent_facts_t *f, const char *line, size_t bytes)
{
    json_t *json = json_loadb(line, bytes, 0, NULL);
    const char *begin = json_string_value(json_object_get(json, "begin"));
    const char *kind = json_string_value(json_object_get(json, "kind"));
    const char *text = json_string_value(json_object_get(json, "text"));
    if (begin) {
        snprintf(f->at, sizeof(f->at), "%s", begin);
    } else if (kind && text) {
        add(f, kind, text);
    }
    json_decref(json);
}

/* Reads the output that is there. False at the end of the helper's output. */
static bool fill(roll_agent_facts_t *f)
{
    for (;;) {
        ssize_t n = read(f->fd, f->buffer + f->filled, sizeof(f->buffer) - f->filled);
        if (n <= 0) {
            return n < 0 && (errno == EAGAIN || errno == EINTR);
        }
        f->filled += (size_t)n;
        char *end;
        while ((end = memchr(f->buffer, '\n', f->filled)) != NULL) {
            size_t line = (size_t)(end - f->buffer);
            take_line(f, f->buffer, line);
            f->filled -= line + 1;
            memmove(f->buffer, end + 1, f->filled);
        }
        if (f->filled == sizeof(f->buffer)) {
            return false; /* our helper writes no line that is this long */
        }
    }
}

/* answers */

static void finish(roll_agent_facts_t *f)
{
    stop(f);
    f->out = json_pack("{s:s, s:o, s:o, s:I}", "op", "facts", "host", roll_text_to_json(f->host), "facts", f->facts,
                       "more", (json_int_t)f->more);
    f->out_number = f->queue[0].number;
    f->facts = NULL;
    memmove(f->queue, f->queue + 1, --f->used * sizeof(f->queue[0]));
}

static void work(roll_agent_facts_t *f, uint64_t now)
{
    if (!f->facts) {
        start(f, now);
    }
    if (f->fd >= 0 && fill(f)) {
        if (now < f->deadline_ns) {
            return;
        }
        give_up(f, "no answer in time");
    } else if (f->fd >= 0 && f->at[0]) { /* its last line is a "begin" without a source */
        give_up(f, "the helper has died");
    }
    finish(f);
}

static void send(roll_agent_facts_t *f, void *socket)
{
    struct roll_frame_head head = {.type = ROLL_FRAME_ANSWER, .seq = f->out_number};
    int err = roll_net_send_json(socket, NULL, 0, &head, f->out);
    if (err == ROLL_E_BUSY) {
        return; /* the socket is full: the next turn tries again */
    }
    if (err) {
        roll_log(ROLL_LOG_WARNING, "agent: the facts of this node cannot be sent to the root: %s", roll_strerror(err));
    }
    json_decref(f->out);
    f->out = NULL;
}

void roll_agent_facts_pump(roll_agent_facts_t *f, void *socket, uint64_t now)
{
    reap(f);
    if (f->used > 0 && !f->out) {
        work(f, now);
    }
    if (f->out) {
        send(f, socket);
    }
}
