/*
 * root_stack_top.c: the top of a rank's stack, which is all that a verdict and `why` show of the stacks that an agent
 * sent: the innermost frames of the main thread.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/json.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define TOP_FRAMES 12u /* frames that a verdict keeps */
#define WHY_FRAMES 6u  /* frames that `why` tells */

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

json_t *roll_stacks_top(const json_t *stack)
{
    json_t *top = json_array(), *thread;
    size_t i;
    json_array_foreach(json_object_get(stack, "threads"), i, thread)
    {
        if (json_integer_value(json_object_get(thread, "tid")) != json_integer_value(json_object_get(stack, "pid"))) {
            continue;
        }
        const json_t *samples = json_object_get(thread, "samples"), *sample = NULL;
        for (size_t k = json_array_size(samples); k-- > 0 && !json_is_integer(sample);) {
            sample = json_array_get(samples, k);
        }
        const json_t *frames = json_is_integer(sample) ? json_array_get(json_object_get(stack, "stacks"),
                                                                        (size_t)json_integer_value(sample))
                                                       : NULL;
        for (size_t k = json_array_size(frames); k-- > 0 && json_array_size(top) < TOP_FRAMES;) {
            json_t *text = frame_text(json_array_get(json_object_get(stack, "frames"),
                                                     (size_t)json_integer_value(json_array_get(frames, k))));
            if (text) {
                json_array_append_new(top, text);
            }
        }
    }
    if (json_array_size(top) == 0) {
        json_decref(top);
        return NULL;
    }
    return top;
}

json_t *roll_stacks_answers(const json_t *answers)
{
    json_t *list = json_array(), *answer;
    size_t i;
    json_array_foreach(answers, i, answer)
    {
        const json_t *stack = json_object_get(answer, "stack");
        json_t *top = roll_stacks_top(stack), *taken = json_object_get(stack, "taken_ns");
        const char *why = json_string_value(json_object_get(stack, "error"));
        json_t *item =
            json_pack("{s:O, s:O}", "rank", json_object_get(answer, "rank"), "host", json_object_get(answer, "host"));
        if (top) {
            json_object_set_new(item, "top", top);
            json_object_set(item, "taken_ns", taken);
        } else {
            json_object_set_new(item, "error", json_string(why ? why : "its main thread could not be read"));
        }
        json_array_append_new(list, item);
    }
    return list;
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
    fprintf(out, " Stack%s of rank%s %s, taken at %s UTC: the main thread is in ", many ? "s" : "", many ? "s" : "",
            set, when);
    for (size_t i = 0; i < json_array_size(top) && i < WHY_FRAMES; i++) {
        fprintf(out, "%s%s",
                i == 0   ? ""
                : i == 1 ? ", called from "
                         : ", from ",
                json_string_value(json_array_get(top, i)));
    }
    fprintf(out, ".");
}
