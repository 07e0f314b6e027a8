/*
 * sample.c: takes one look at a process: first the native stacks, each thread stopped alone and briefly; then the
 * Python stacks, without stopping any thread.
 */
#include "daemon/stack/sample.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/stack/python_dump.h"
#include "trace/err.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DUMP_MS 500 /* patience with the signal's handler, or with py-spy */

static struct roll_sampled_thread *find_thread(struct roll_sampled *s, pid_t tid, uint64_t ident)
{
    for (size_t i = 0; i < s->threads; i++) {
        if (tid ? s->thread[i].info.tid == tid : s->thread[i].info.tid == 0 && s->thread[i].ident == ident) {
            return &s->thread[i];
        }
    }
    return NULL;
}

static struct roll_sampled_thread *get_thread(struct roll_sampled *s, const struct roll_thread_info *info,
                                              uint64_t ident)
{
    struct roll_sampled_thread *t = find_thread(s, info->tid, ident);
    if (t) {
        t->info.state = info->tid ? info->state : t->info.state;
        return t;
    }
    if (ROLL_GROW(s->thread, s->room, s->threads + 1) != 0) {
        return NULL;
    }
    t = &s->thread[s->threads++];
    memset(t, 0, sizeof(*t));
    t->info = *info;
    t->ident = ident;
    return t;
}

/* native */

static int keep_walk(struct roll_thread_sample *sample, const struct roll_walk *walk, struct roll_target *target,
                     struct roll_modules *modules, struct roll_names *names)
{
    sample->place = malloc((walk->depth ? walk->depth : 1) * sizeof(*sample->place));
    if (!sample->place) {
        return ROLL_E_NOMEM;
    }
    for (size_t i = 0; i < walk->depth; i++) {
        uint64_t pc =
            walk->exact[i] ? walk->pc[i] : walk->pc[i] - 1; /* the call stands before the address to which it returns */
        sample->place[i] = roll_names_place(names, target, roll_modules_find(modules, pc), pc);
        if (sample->place[i] == UINT32_MAX) {
            return ROLL_E_NOMEM;
        }
    }
    sample->depth = (uint32_t)walk->depth;
    sample->cut = walk->cut;
    sample->native = true;
    return 0;
}

static int look_at_thread(struct roll_sampled *s, struct roll_sampled_thread *t, const struct roll_stack_wish *wish,
                          struct roll_target *target, struct roll_modules *modules, unsigned i,
                          struct roll_names *names)
{
    static struct roll_capture capture; /* a megabyte, and there is one thread */
    static struct roll_walk walk;
    int error = 0;
    int err = roll_capture_thread(target, &t->info, wish->thread_ms * ROLL_MS, &capture, &error);
    if (err == ROLL_E_DENIED) {
        struct roll_refusal refusal;
        roll_refusal_look(s->pid, error, &refusal);
        roll_refusal_text(&refusal, s->native_why);
        return ROLL_E_DENIED;
    }
    if (err == ROLL_E_UNSUPPORTED) {
        snprintf(s->native_why, sizeof(s->native_why), "native stacks are read on x86-64 only");
        return ROLL_E_DENIED;
    }
    if (err) {
        snprintf(t->why, sizeof(t->why), "%s",
                 err == ROLL_E_NOTFOUND ? "it ended meanwhile"
                 : t->info.state == 'D' ? "asleep in the kernel where it cannot be stopped"
                                        : "it did not stop in time");
        return 0;
    }
    s->stopped_ns = capture.stopped_ns > s->stopped_ns ? capture.stopped_ns : s->stopped_ns;
    if (roll_walk_thread(target, modules, t->info.tid, &capture, &walk) != 0) {
        snprintf(t->why, sizeof(t->why), "its stack cannot be walked");
        return 0;
    }
    if (t->sample[i].native) {
        return 0;
    }
    return keep_walk(&t->sample[i], &walk, target, modules, names);
}

static int look_native(struct roll_sampled *s, const struct roll_stack_wish *wish, struct roll_target *target,
                       struct roll_modules *modules, unsigned i, struct roll_names *names)
{
    static struct roll_thread_info list[ROLL_STACK_THREADS_MAX];
    size_t all, n = roll_target_threads(s->pid, list, ROLL_STACK_THREADS_MAX, &all), k = 0;
    uint64_t end = roll_mono_ns() + wish->budget_ms * ROLL_MS;
    for (; k < n && roll_mono_ns() < end; k++) {
        struct roll_sampled_thread *t = get_thread(s, &list[k], 0);
        int err = t ? look_at_thread(s, t, wish, target, modules, i, names) : ROLL_E_NOMEM;
        roll_capture_release();
        if (err) {
            return err == ROLL_E_DENIED ? 0 : err;
        }
    }
    if (all - k > s->left_out && all > k) {
        s->left_out = all - k;
    }
    return 0;
}

/* python */

static int by_any_rung(struct roll_sampled *s, const struct roll_stack_wish *wish, struct roll_target *target,
                       struct roll_modules *modules, struct roll_text_pool *pool, struct roll_py_stacks *out)
{
    char why[ROLL_STACK_WHY_BYTES] = "", other[ROLL_STACK_WHY_BYTES] = "";
    /* Without a module the memory could not be read, whatever /proc/PID/maps said. */
    bool readable = target && modules->used > 0;
    int err = readable ? roll_py_read(target, modules, pool, out, why) : ROLL_E_DENIED;
    if (!err || err == ROLL_E_NOTFOUND) {
        s->python_by = err ? s->python_by : "reader";
        memcpy(s->python_version, out->version, sizeof(s->python_version));
        return err;
    }
    if (why[0] == '\0') {
        struct roll_refusal refusal;
        roll_refusal_look(s->pid, errno ? errno : EPERM, &refusal);
        roll_refusal_text(&refusal, why);
    }
    memcpy(s->python_version, out->version, sizeof(s->python_version));
    err = wish->dir ? roll_py_dump_by_signal(s->pid, wish->dir, DUMP_MS, pool, out, other) : ROLL_E_NOTFOUND;
    if (!err) {
        s->python_by = "signal";
        return 0;
    }
    int spy = roll_py_dump_by_spy(s->pid, 2 * DUMP_MS, pool, out, s->python_why);
    if (!spy) {
        s->python_by = "py-spy";
        s->python_why[0] = '\0';
        return 0;
    }
    snprintf(s->python_why, sizeof(s->python_why), "%.200s%s%.100s", why, other[0] ? "; " : "", other);
    return ROLL_E_DENIED;
}

/* Gives threads without a number theirs by the order of the dump: the main thread is the last that the dumper writes.
 */
static void name_by_order(const struct roll_sampled *s, struct roll_py_stacks *stacks)
{
    if (stacks->threads > 0 && !stacks->more && stacks->thread[stacks->threads - 1].tid == 0) {
        stacks->thread[stacks->threads - 1].tid = s->pid;
    }
}

static int look_python(struct roll_sampled *s, const struct roll_stack_wish *wish, struct roll_target *target,
                       struct roll_modules *modules, unsigned i, struct roll_text_pool *pool)
{
    struct roll_py_stacks stacks = {0};
    errno = 0;
    if (by_any_rung(s, wish, target, modules, pool, &stacks) != 0) {
        return 0;
    }
    name_by_order(s, &stacks);
    int err = 0;
    for (size_t k = 0; k < stacks.threads && !err; k++) {
        struct roll_py_thread *py = &stacks.thread[k];
        struct roll_thread_info info = {.tid = py->tid, .state = '?'};
        /* A thread id that was read from an undocumented place counts only when there is such a thread. */
        struct roll_sampled_thread *t = py->tid ? find_thread(s, py->tid, 0) : NULL;
        if (!t && py->tid && (wish->native && s->native_why[0] == '\0')) {
            info.tid = 0;
        }
        if (!t) {
            snprintf(info.name, sizeof(info.name), "%s", info.tid == s->pid ? "main" : "python");
            t = get_thread(s, &info, py->ident);
        }
        if (!t) {
            err = ROLL_E_NOMEM;
        } else if (!t->sample[i].python) {
            t->sample[i].py = *py;
            t->sample[i].python = true;
            *py = (struct roll_py_thread){0};
        }
    }
    roll_py_stacks_fini(&stacks);
    return err;
}

/* look */

int roll_sample_look(struct roll_sampled *s, const struct roll_stack_wish *wish, unsigned i, struct roll_names *names,
                     struct roll_text_pool *pool)
{
    struct roll_target *target = NULL;
    struct roll_modules modules = {0};
    if (s->taken_ns == 0) {
        s->taken_ns = roll_real_ns();
    }
    errno = 0;
    int err = roll_target_open(s->pid, &target);
    int error = errno;
    if (err == ROLL_E_NOTFOUND) {
        s->gone = s->threads == 0;
        return 0;
    }
    if (err == ROLL_E_DENIED) {
        struct roll_refusal refusal;
        roll_refusal_look(s->pid, error ? error : EACCES, &refusal);
        roll_refusal_text(&refusal, s->native_why);
        s->gone = refusal.error == ESRCH && s->threads == 0;
        err = 0;
    }
    if (!err && target) {
        err = roll_modules_read(&modules, target);
    }
    if (!err && target && wish->native) {
        err = look_native(s, wish, target, &modules, i, names);
    }
    if (!err && wish->python) {
        err = look_python(s, wish, target, &modules, i, pool);
    }
    roll_modules_fini(&modules);
    roll_target_close(&target);
    return err;
}

void roll_sample_fini(struct roll_sampled *s)
{
    for (size_t i = 0; i < s->threads; i++) {
        for (unsigned k = 0; k < ROLL_STACK_SAMPLES_MAX; k++) {
            free(s->thread[i].sample[k].place);
            free(s->thread[i].sample[k].py.frame);
        }
    }
    free(s->thread);
    *s = (struct roll_sampled){0};
}
