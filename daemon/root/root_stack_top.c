/*
 * root_stack_top.c: the top of a rank's stack, which is all that a verdict and `why` show of the stacks that an agent
 * sent: the innermost frames of the main thread, and before them those of the program itself.
 *
 * A rank that waits stands in libc, in NCCL and in what PyTorch has between; the line that its author can change may be
 * thirty frames further out. So the innermost frames of the program are kept by themselves: lines of Python that are no
 * library's, by the rule of docs/PYTHON.md; where there is no Python, functions of the executable with a known line.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/json.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define TOP_FRAMES 12u /* frames that a verdict keeps */
#define WHY_FRAMES 6u  /* frames that `why` tells, where none is the program's own */
#define OWN_FRAMES 3u  /* else so many of those, and of the innermost */

static json_t *frame_text(const json_t *frame)
{
    char text[512];
    const char *function = json_string_value(json_object_get(frame, "fn"));
    const char *file = json_string_value(json_object_get(frame, "file"));
    const char *slash = file ? strrchr(file, '/') : NULL;
    json_int_t line = json_integer_value(json_object_get(frame, "line"));
    if (!function || !function[0]) {
        return NULL;
    }
    if (file && line > 0) {
        snprintf(text, sizeof(text), "%.300s (%.150s:%lld)", function, slash ? slash + 1 : file, (long long)line);
    } else {
        snprintf(text, sizeof(text), "%.300s", function);
    }
    return roll_text_to_json(text);
}

/* The numbers of the frames of the main thread, outermost first, as the last look that saw it found them. */
static const json_t *main_frames(const json_t *stack)
{
    const json_t *sample = NULL;
    size_t i;
    json_t *thread;
    json_array_foreach(json_object_get(stack, "threads"), i, thread)
    {
        bool is_main =
            json_integer_value(json_object_get(thread, "tid")) == json_integer_value(json_object_get(stack, "pid"));
        const json_t *samples = is_main ? json_object_get(thread, "samples") : NULL;
        for (size_t k = json_array_size(samples); k-- > 0 && !json_is_integer(sample);) {
            sample = json_array_get(samples, k);
        }
    }
    return json_is_integer(sample)
               ? json_array_get(json_object_get(stack, "stacks"), (size_t)json_integer_value(sample))
               : NULL;
}

static const json_t *frame_at(const json_t *stack, const json_t *frames, size_t k)
{
    return json_array_get(json_object_get(stack, "frames"), (size_t)json_integer_value(json_array_get(frames, k)));
}

static const char *member(const json_t *frame, const char *name)
{
    const char *text = json_string_value(json_object_get(frame, name));
    return text ? text : "";
}

static bool is_python(const json_t *frame)
{
    return strcmp(member(frame, "kind"), "python") == 0;
}

/* A frame that the author of the job wrote. program: the module of the outermost native frame, "" where lines of Python
 * count alone. */
static bool is_own(const json_t *frame, const char *program)
{
    static const char *const library[] = {"/site-packages/", "/dist-packages/", "/lib/python3", "/rollcall/moe/",
                                          "<frozen "};
    const char *file = member(frame, "file"), *function = member(frame, "fn");
    if (is_python(frame)) {
        bool own = file[0] != '\0';
        for (size_t i = 0; i < sizeof(library) / sizeof(library[0]) && own; i++) {
            own = strstr(file, library[i]) == NULL;
        }
        return own;
    }
    return program[0] != '\0' && file[0] != '\0' && function[0] != '_' && strcmp(member(frame, "module"), program) == 0;
}

/* The executable of a program without Python. */
static const char *program_of(const json_t *stack, const json_t *frames)
{
    const char *program = "";
    for (size_t k = 0; k < json_array_size(frames); k++) {
        const json_t *frame = frame_at(stack, frames, k);
        if (is_python(frame)) {
            return "";
        }
        program = program[0] == '\0' ? member(frame, "module") : program;
    }
    const char *slash = strrchr(program, '/');
    return strncmp(slash ? slash + 1 : program, "python", 6) == 0 ? "" : program;
}

static json_t *chosen(const json_t *stack, bool only_own)
{
    const json_t *frames = main_frames(stack);
    const char *program = program_of(stack, frames);
    json_t *list = json_array();
    for (size_t k = json_array_size(frames); k-- > 0 && json_array_size(list) < TOP_FRAMES;) {
        const json_t *frame = frame_at(stack, frames, k);
        json_t *text = !only_own || is_own(frame, program) ? frame_text(frame) : NULL;
        if (text) {
            json_array_append_new(list, text);
        }
    }
    if (json_array_size(list) == 0) {
        json_decref(list);
        return NULL;
    }
    return list;
}

json_t *roll_stacks_top(const json_t *stack)
{
    return chosen(stack, false);
}

json_t *roll_stacks_own(const json_t *stack)
{
    return chosen(stack, true);
}

json_t *roll_stacks_answers(const json_t *answers)
{
    json_t *list = json_array(), *answer;
    size_t i;
    json_array_foreach(answers, i, answer)
    {
        const json_t *stack = json_object_get(answer, "stack");
        json_t *top = roll_stacks_top(stack), *taken = json_object_get(stack, "taken_ns");
        json_t *own = top ? roll_stacks_own(stack) : NULL;
        const char *why = json_string_value(json_object_get(stack, "error"));
        json_t *item =
            json_pack("{s:O, s:O}", "rank", json_object_get(answer, "rank"), "host", json_object_get(answer, "host"));
        if (top) {
            json_object_set_new(item, "top", top);
            json_object_set(item, "taken_ns", taken);
            json_object_set_new(item, "own", own ? own : json_array());
        } else {
            json_object_set_new(item, "error", json_string(why ? why : "its main thread could not be read"));
        }
        json_array_append_new(list, item);
    }
    return list;
}

static void tell_frames(const json_t *list, size_t most, FILE *out)
{
    for (size_t i = 0; i < json_array_size(list) && i < most; i++) {
        fprintf(out, "%s%s",
                i == 0   ? ""
                : i == 1 ? ", called from "
                         : ", from ",
                json_string_value(json_array_get(list, i)));
    }
}

void roll_stacks_tell_top(const json_t *kept, const struct roll_rankset *ranks, FILE *out)
{
    char when[32], set[256] = "";
    const json_t *top = json_object_get(kept, "top");
    time_t seconds = (time_t)(json_integer_value(json_object_get(kept, "taken_ns")) / 1000000000);
    struct tm tm;
    if (!top || !gmtime_r(&seconds, &tm) || strftime(when, sizeof(when), "%H:%M:%S", &tm) == 0) {
        return;
    }
    bool many = roll_rankset_count(ranks) > 1;
    (void)roll_rankset_format(ranks, set, sizeof(set));
    fprintf(out, " Stack%s of rank%s %s, taken at %s UTC: the main thread is ", many ? "s" : "", many ? "s" : "", set,
            when);
    const json_t *own = json_object_get(kept, "own");
    size_t owns = json_array_size(own);
    if (owns > 0) {
        fputs("at ", out);
        tell_frames(own, OWN_FRAMES, out);
    }
    if (owns == 0 || !json_equal(json_array_get(own, 0), json_array_get(top, 0))) {
        fputs(owns > 0 ? "; from there it went into " : "in ", out);
        tell_frames(top, owns > 0 ? OWN_FRAMES : WHY_FRAMES, out);
    }
    fputs(".", out);
}
