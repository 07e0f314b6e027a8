/*
 * sample_json.c: samples as JSON. Frames and stacks are listed once and referred to by number, because most threads of
 * most samples are alike.
 *
 * Native and Python frames are merged: each native frame of the interpreter's loop gives way to the Python frames that
 * it runs, and the interpreter's own functions are left out. Where the two do not fit (the thread moved between the two
 * reads) the Python frames stand first, and behind them the native frames that they called.
 */
#include "daemon/stack/sample.h"

#include "daemon/base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVAL       "_PyEval_EvalFrameDefault"
#define FRAMES_MAX (ROLL_STACK_DEPTH * 4 + ROLL_PY_INNER + ROLL_PY_OUTER + 4)

struct shown {
    const char *function, *file, *module;
    uint64_t offset;
    unsigned line;
    bool python;
};

struct stack {
    struct shown frame[FRAMES_MAX]; /* outermost first */
    size_t used;
};

static void push(struct stack *s, const struct shown *frame)
{
    if (s->used < FRAMES_MAX) {
        s->frame[s->used++] = *frame;
    }
}

static void push_python(struct stack *s, const struct roll_py_thread *t, size_t i)
{
    const struct roll_py_frame *f = &t->frame[i];
    if (t->left_out > 0 && i + 1 == t->left_out_at) {
        push(s, &(struct shown){.function = "... frames left out ...", .file = "", .module = "", .python = true});
    }
    push(s, &(struct shown){f->function, f->file, "", 0, f->line, true});
}

/* Writes all native frames, outermost first, each inlined function as a frame of its own. */
static void spread(const struct roll_thread_sample *sample, struct roll_names *names, struct stack *out)
{
    out->used = 0;
    if (sample->cut) {
        push(out, &(struct shown){.function = "... outer frames not read ...", .file = "", .module = ""});
    }
    for (size_t i = sample->depth; i-- > 0;) {
        size_t n;
        const struct roll_symbol_frame *f = roll_names_frames(names, sample->place[i], &n);
        while (n-- > 0) {
            push(out, &(struct shown){f[n].function, f[n].file, f[n].module, f[n].offset, f[n].line, false});
        }
    }
}

static bool is_eval(const struct shown *f)
{
    return strncmp(f->function, EVAL, sizeof(EVAL) - 1) == 0;
}

static void merge(const struct stack *native, const struct roll_py_thread *py, struct stack *out)
{
    size_t evals = 0, entries = 0, last = 0;
    const char *interpreter = NULL;
    for (size_t i = 0; i < native->used; i++) {
        if (is_eval(&native->frame[i])) {
            evals++;
            last = i;
            interpreter = native->frame[i].module;
        }
    }
    for (size_t i = 0; i < py->frames; i++) {
        entries += py->frame[i].entry;
    }
    bool fits = evals > 0 && evals == entries && py->left_out == 0;
    size_t next = py->frames; /* the Python frames [0, next) are still to come */
    out->used = 0;
    if (!fits) {
        while (next > 0) {
            push_python(out, py, --next);
        }
    }
    for (size_t i = fits || evals == 0 ? 0 : last + 1; i < native->used; i++) {
        const struct shown *f = &native->frame[i];
        if (fits && is_eval(f)) {
            do {
                push_python(out, py, --next);
            } while (next > 0 && !py->frame[next - 1].entry);
        } else if (!interpreter || strcmp(f->module, interpreter) != 0 || i + 1 == native->used) {
            push(out, f);
        }
    }
}

/* tables */

struct table {
    json_t *list;  /* owned */
    json_t *index; /* text -> number; owned */
};

static json_int_t number_of(struct table *t, json_t *item)
{
    char *key = json_dumps(item, JSON_COMPACT | JSON_ENCODE_ANY);
    const json_t *known = key ? json_object_get(t->index, key) : NULL;
    json_int_t number = known ? json_integer_value(known) : (json_int_t)json_array_size(t->list);
    if (key && !known) {
        json_object_set_new(t->index, key, json_integer(number));
        json_array_append(t->list, item);
    }
    free(key);
    json_decref(item);
    return number;
}

static json_t *frame_json(const struct shown *f)
{
    json_t *out =
        json_pack("{s:o, s:s}", "fn", roll_text_to_json(f->function), "kind", f->python ? "python" : "native");
    if (f->file[0]) {
        json_object_set_new(out, "file", roll_text_to_json(f->file));
        json_object_set_new(out, "line", json_integer(f->line));
    }
    if (f->module[0]) {
        json_object_set_new(out, "module", roll_text_to_json(f->module));
    }
    if (!f->python) {
        json_object_set_new(out, "offset", json_integer((json_int_t)f->offset));
    }
    return out;
}

static json_int_t stack_number(const struct stack *s, struct table *frames, struct table *stacks)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->used; i++) {
        json_array_append_new(list, json_integer(number_of(frames, frame_json(&s->frame[i]))));
    }
    return number_of(stacks, list);
}

/* threads */

static json_t *thread_json(const struct roll_sampled_thread *t, const struct roll_stack_wish *wish,
                           struct roll_names *names, struct table *frames, struct table *stacks, bool *any)
{
    static struct stack native, merged;
    static const struct roll_py_thread no_python;
    json_t *samples = json_array();
    *any = false;
    for (unsigned i = 0; i < wish->samples; i++) {
        const struct roll_thread_sample *sample = &t->sample[i];
        bool python = wish->python && sample->python && sample->py.frames > 0;
        if (!sample->native && !python) {
            json_array_append_new(samples, json_null());
            continue;
        }
        *any = true;
        spread(sample, names, &native);
        if (wish->python) {
            merge(&native, python ? &sample->py : &no_python, &merged);
        }
        json_array_append_new(
            samples,
            json_integer(stack_number(wish->python && (python || sample->python) ? &merged : &native, frames, stacks)));
    }
    char state[2] = {t->info.state ? t->info.state : '?', '\0'};
    json_t *out = json_pack("{s:i, s:o, s:s, s:o}", "tid", (int)t->info.tid, "name", roll_text_to_json(t->info.name),
                            "state", state, "samples", samples);
    if (t->why[0]) {
        json_object_set_new(out, "why", json_string(t->why));
    }
    return out;
}

json_t *roll_sample_json(const struct roll_sampled *s, const struct roll_stack_wish *wish, struct roll_names *names)
{
    struct table frames = {json_array(), json_object()}, stacks = {json_array(), json_object()};
    json_t *threads = json_array(), *out = json_object();
    for (size_t i = 0; i < s->threads; i++) {
        bool any;
        json_t *thread = thread_json(&s->thread[i], wish, names, &frames, &stacks, &any);
        if (any || s->thread[i].why[0]) {
            json_array_append_new(threads, thread);
        } else {
            json_decref(thread);
        }
    }
    json_object_set_new(out, "schema", json_string("rollcall.stack/1"));
    json_object_set_new(out, "pid", json_integer(s->pid));
    json_object_set_new(out, "taken_ns", json_integer((json_int_t)s->taken_ns));
    json_object_set_new(out, "stopped_us", json_integer((json_int_t)(s->stopped_ns / 1000)));
    json_object_set_new(out, "samples", json_integer(wish->samples));
    json_object_set_new(out, "threads", threads);
    json_object_set(out, "stacks", stacks.list);
    json_object_set(out, "frames", frames.list);
    if (s->left_out) {
        json_object_set_new(out, "left_out", json_integer((json_int_t)s->left_out));
    }
    if (s->python_by) {
        json_object_set_new(out, "python", json_pack("{s:s, s:s}", "version", s->python_version, "by", s->python_by));
    }
    if (s->gone) {
        json_object_set_new(out, "error", json_string("the process has ended"));
    } else if (json_array_size(threads) == 0) {
        json_object_set_new(out, "error",
                            json_string(s->native_why[0]   ? s->native_why
                                        : s->python_why[0] ? s->python_why
                                                           : "no thread could be read"));
    }
    if (s->native_why[0]) {
        json_object_set_new(out, "native_error", json_string(s->native_why));
    }
    if (s->python_why[0]) {
        json_object_set_new(out, "python_error", json_string(s->python_why));
    }
    json_decref(frames.list);
    json_decref(frames.index);
    json_decref(stacks.list);
    json_decref(stacks.index);
    return out;
}
