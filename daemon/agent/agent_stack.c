/*
 * agent_stack.c: takes questions for stacks, starts helpers, sends their answers.
 *
 * One helper at a time: stacks are asked for when a job hangs, and two helpers on one node would only stop threads
 * twice as often. An answer that does not fit into a frame that a root takes is cut: threads are dropped, the last
 * first, and counted.
 */
#include "daemon/agent/agent_stack.h"

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/stack/stack_run.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QUESTIONS    16
#define ANSWER_BYTES (900u * 1024u) /* most bytes of an answer's JSON; a root takes a mebibyte */
#define TIMEOUT_MAX  120000u

struct asked {
    uint64_t epoch; /* of the ring */
    pid_t pid;      /* 0: `why` says why there is none */
    const char *why;
    bool sent;
};

struct question {
    uint64_t number;
    struct asked *ring; /* owned */
    size_t rings;
    unsigned samples, interval_ms, timeout_ms;
    bool native, python;
};

struct roll_agent_stacks {
    const char *dir;
    struct question queue[QUESTIONS]; /* [0] is the question being answered */
    size_t used;
    roll_stack_run_t *run;
    bool begun;
    uint64_t part;
    json_t *out; /* answers that wait for room in the socket */
};

roll_agent_stacks_t *roll_agent_stacks_new(const char *dir)
{
    roll_agent_stacks_t *s = calloc(1, sizeof(*s));
    if (s) {
        s->dir = dir;
        s->out = json_array();
        if (!s->out) {
            free(s);
            s = NULL;
        }
    }
    return s;
}

static void drop_first(roll_agent_stacks_t *s)
{
    roll_stack_run_destroy(&s->run);
    free(s->queue[0].ring);
    memmove(s->queue, s->queue + 1, --s->used * sizeof(s->queue[0]));
    s->begun = false;
    s->part = 0;
}

void roll_agent_stacks_forget(roll_agent_stacks_t *s)
{
    while (s->used > 0) {
        drop_first(s);
    }
    json_array_clear(s->out);
}

void roll_agent_stacks_destroy(roll_agent_stacks_t **self)
{
    if (*self) {
        roll_agent_stacks_forget(*self);
        json_decref((*self)->out);
        free(*self);
        *self = NULL;
    }
}

int roll_agent_stacks_fd(const roll_agent_stacks_t *s)
{
    return s->run ? roll_stack_run_fd(s->run) : -1;
}

/* questions */

static unsigned bounded(const json_t *json, const char *key, unsigned otherwise, unsigned max)
{
    const json_t *value = json_object_get(json, key);
    json_int_t n = json_is_integer(value) ? json_integer_value(value) : (json_int_t)otherwise;
    return n < 1 ? 1 : n > (json_int_t)max ? max : (unsigned)n;
}

static int read_rings(struct question *q, const json_t *epochs, roll_agent_pid_fn pid, void *ctx)
{
    size_t i, n = json_array_size(epochs);
    json_t *epoch;
    if (n == 0 || n > ROLL_STACK_PIDS_MAX) {
        return ROLL_E_ARG;
    }
    q->ring = calloc(n, sizeof(*q->ring));
    if (!q->ring) {
        return ROLL_E_NOMEM;
    }
    json_array_foreach(epochs, i, epoch)
    {
        const char *text = json_string_value(epoch);
        struct asked *a = &q->ring[q->rings++];
        a->epoch = text ? strtoull(text, NULL, 16) : 0;
        a->pid = pid(ctx, a->epoch, &a->why);
    }
    return 0;
}

void roll_agent_stacks_ask(roll_agent_stacks_t *s, const struct roll_frame *ask, roll_agent_pid_fn pid, void *ctx)
{
    json_t *json = roll_net_json(ask);
    const char *op = json_string_value(json_object_get(json, "op"));
    if (op && strcmp(op, "stacks") == 0 && s->used < QUESTIONS) {
        struct question *q = &s->queue[s->used];
        *q = (struct question){
            .number = ask->head.seq,
            .samples = bounded(json, "samples", 3, 16),
            .interval_ms = bounded(json, "interval_ms", 200, 10000),
            .timeout_ms = bounded(json, "timeout_ms", 10000, TIMEOUT_MAX),
            .native = !json_is_false(json_object_get(json, "native")),
            .python = !json_is_false(json_object_get(json, "python")),
        };
        if (read_rings(q, json_object_get(json, "streams"), pid, ctx) == 0) {
            s->used++;
        } else {
            free(q->ring);
        }
    }
    json_decref(json);
}

/* answers */

static void queue_answer(roll_agent_stacks_t *s, json_t *answer)
{
    json_t *item = json_pack("{s:I, s:I, s:o}", "seq", (json_int_t)s->queue[0].number, "first", (json_int_t)s->part++,
                             "json", answer);
    json_array_append_new(s->out, item);
}

/* Drops threads, the last first, until the answer fits. */
static void cut(json_t *stack)
{
    json_t *threads = json_object_get(stack, "threads");
    size_t n = json_array_size(threads), left = n;
    while (left > 0 && json_dumpb(stack, NULL, 0, JSON_COMPACT) > ANSWER_BYTES) {
        /* The tables of frames and stacks stay: they are not much larger than the threads that refer to them, except
         * for one deep stack. */
        left /= 2;
        while (json_array_size(threads) > left) {
            json_array_remove(threads, json_array_size(threads) - 1);
        }
    }
    if (left < n) {
        json_int_t before = json_integer_value(json_object_get(stack, "left_out"));
        json_object_set_new(stack, "left_out", json_integer(before + (json_int_t)(n - left)));
    }
    if (json_dumpb(stack, NULL, 0, JSON_COMPACT) > ANSWER_BYTES) {
        json_object_del(stack, "frames");
        json_object_del(stack, "stacks");
        json_object_del(stack, "threads");
        json_object_set_new(stack, "error", json_string("its stacks are too large to be sent"));
    }
}

static void answer_ring(roll_agent_stacks_t *s, struct asked *a, json_t *stack)
{
    char epoch[24];
    snprintf(epoch, sizeof(epoch), "%016llx", (unsigned long long)a->epoch);
    a->sent = true;
    cut(stack);
    queue_answer(s, json_pack("{s:s, s:s, s:o}", "op", "stacks", "stream", epoch, "stack", stack));
}

static json_t *refusal(const char *why)
{
    return json_pack("{s:s, s:s}", "schema", "rollcall.stack/1", "error", why);
}

/* The path of this program: ROLLCALL_BIN where it is set, because /proc names the loader for a program that was started
 * through one (`ld.so rollcalld`). */
static const char *helper_program(void)
{
    const char *named = getenv("ROLLCALL_BIN");
    return named && *named ? named : "/proc/self/exe";
}

static void begin(roll_agent_stacks_t *s)
{
    struct question *q = &s->queue[0];
    pid_t *pid = calloc(q->rings, sizeof(*pid));
    size_t n = 0;
    char why[256] = "out of memory";
    s->begun = true;
    for (size_t i = 0; pid && i < q->rings; i++) {
        if (q->ring[i].pid > 0) {
            pid[n++] = q->ring[i].pid;
        } else {
            answer_ring(s, &q->ring[i], refusal(q->ring[i].why ? q->ring[i].why : "not found"));
        }
    }
    struct roll_stack_ask ask = {helper_program(),
                                 pid,
                                 n,
                                 q->samples,
                                 q->interval_ms,
                                 q->native,
                                 q->python,
                                 s->dir,
                                 (uint64_t)q->timeout_ms * ROLL_MS};
    s->run = pid && n > 0 ? roll_stack_run_new(&ask, why, sizeof(why)) : NULL;
    free(pid);
    for (size_t i = 0; !s->run && i < q->rings; i++) {
        if (!q->ring[i].sent) {
            answer_ring(s, &q->ring[i], refusal(why));
        }
    }
}

static void work(roll_agent_stacks_t *s, uint64_t now)
{
    struct question *q = &s->queue[0];
    if (!s->begun) {
        begin(s);
    }
    json_t *stack;
    while (s->run && (stack = roll_stack_run_next(s->run, now)) != NULL) {
        pid_t pid = (pid_t)json_integer_value(json_object_get(stack, "pid"));
        for (size_t i = 0; i < q->rings; i++) {
            if (!q->ring[i].sent && q->ring[i].pid == pid) {
                answer_ring(s, &q->ring[i], json_incref(stack));
                break;
            }
        }
        json_decref(stack);
    }
    if (!s->run || roll_stack_run_over(s->run)) {
        queue_answer(s, json_pack("{s:s, s:b}", "op", "stacks", "done", 1));
        drop_first(s);
    }
}

static void send(roll_agent_stacks_t *s, void *socket)
{
    while (json_array_size(s->out) > 0) {
        const json_t *item = json_array_get(s->out, 0);
        struct roll_frame_head head = {.type = ROLL_FRAME_ANSWER,
                                       .seq = (uint64_t)json_integer_value(json_object_get(item, "seq")),
                                       .first = (uint64_t)json_integer_value(json_object_get(item, "first"))};
        int err = roll_net_send_json(socket, NULL, 0, &head, json_object_get(item, "json"));
        if (err == ROLL_E_BUSY) {
            return; /* the socket is full: the next turn tries again */
        }
        if (err) {
            roll_log(ROLL_LOG_WARNING, "agent: stacks cannot be sent to the root: %s", roll_strerror(err));
        }
        json_array_remove(s->out, 0);
    }
}

void roll_agent_stacks_pump(roll_agent_stacks_t *s, void *socket, uint64_t now)
{
    if (s->used > 0) {
        work(s, now);
    }
    send(s, socket);
}
