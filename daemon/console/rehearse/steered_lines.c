/*
 * steered_lines.c: single lines of the notes of steered processes: the steps that they told of, their process groups,
 * and what their allocators gave out.
 */
#include "daemon/base/array.h"
#include "daemon/base/file.h"
#include "daemon/console/rehearse/steered.h"

#include <ctype.h>
#include <glob.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void roll_steered_plain(char *text)
{
    for (; *text != '\0'; text++) {
        *text = *text == '\t' || isprint((unsigned char)*text) ? *text : '?';
    }
}

/* Gives each line of each process to `take`, until it returns an error. */
static int each_line(const char *notes, int (*take)(void *arg, uint32_t pid, const char *line), void *arg)
{
    char pattern[PATH_MAX];
    glob_t files = {0};
    int err = 0;
    snprintf(pattern, sizeof(pattern), "%s/steered.*", notes);
    (void)glob(pattern, 0, NULL, &files);
    for (size_t i = 0; i < files.gl_pathc && err == 0; i++) {
        uint32_t pid = (uint32_t)strtoul(strrchr(files.gl_pathv[i], '.') + 1, NULL, 10);
        char *text = NULL, *rest = NULL;
        size_t bytes;
        if (roll_read_whole(files.gl_pathv[i], ROLL_STEERED_NOTES_MOST, &text, &bytes) != 0) {
            continue;
        }
        for (char *line = strtok_r(text, "\n", &rest); line != NULL && err == 0; line = strtok_r(NULL, "\n", &rest)) {
            roll_steered_plain(line);
            err = take(arg, pid, line);
        }
        free(text);
    }
    globfree(&files);
    return err;
}

struct steps {
    struct roll_steered_steps *step; /* owned */
    size_t count, room;
};

static int take_step(void *arg, uint32_t pid, const char *line)
{
    struct steps *s = arg;
    struct roll_steered_steps one = {.pid = pid};
    char which[8] = "";
    uint64_t number;
    bool is_step = sscanf(line, "step %" SCNu64, &number) == 1;
    if (!is_step && sscanf(line, "step_end %7s %" SCNu64, which, &number) != 2) {
        return 0;
    }
    if (s->count == 0 || s->step[s->count - 1].pid != pid) {
        int err = ROLL_GROW(s->step, s->room, s->count + 1);
        if (err != 0) {
            return err;
        }
        s->step[s->count++] = one;
    }
    struct roll_steered_steps *mine = &s->step[s->count - 1];
    uint64_t *to = is_step                        ? &mine->steps
                   : strcmp(which, "first") == 0  ? &mine->first_ns
                   : strcmp(which, "second") == 0 ? &mine->second_ns
                   : strcmp(which, "third") == 0  ? &mine->third_ns
                   : strcmp(which, "last") == 0   ? &mine->last_ns
                                                  : &one.last_ns;
    *to = number;
    return 0;
}

static int by_pid(const void *a, const void *b)
{
    const struct roll_steered_steps *x = a, *y = b;
    return (x->pid > y->pid) - (x->pid < y->pid);
}

int roll_steered_read_steps(const char *notes, struct roll_steered_steps **out, size_t *count)
{
    struct steps s = {0};
    int err = each_line(notes, take_step, &s);
    if (err != 0) {
        free(s.step);
        s = (struct steps){0};
    }
    if (s.count > 1) {
        qsort(s.step, s.count, sizeof(*s.step), by_pid);
    }
    *out = s.step;
    *count = s.count;
    return err;
}

const struct roll_steered_steps *roll_steered_steps_of(const struct roll_steered_steps *steps, size_t count,
                                                       uint32_t pid)
{
    const struct roll_steered_steps wanted = {.pid = pid};
    return count > 0 ? bsearch(&wanted, steps, count, sizeof(*steps), by_pid) : NULL;
}

/* A line `group SIZE LINE NAME<tab>DESCRIPTION<tab>FILE<tab>FUNCTION`. All members tell the same; the first is kept. */
static int take_group(void *arg, uint32_t pid, const char *line)
{
    json_t *groups = arg;
    unsigned size, number;
    char *part[4], *text, *rest = NULL;
    int at = 0;
    (void)pid;
    if (sscanf(line, "group %u %u %n", &size, &number, &at) != 2 || at == 0) {
        return 0;
    }
    text = strdup(line + at);
    rest = text;
    for (size_t i = 0; i < 4; i++) {
        part[i] = rest != NULL ? strsep(&rest, "\t") : NULL; /* a description may be empty */
    }
    if (text != NULL && part[3] != NULL && json_object_get(groups, part[0]) == NULL) {
        json_object_set_new(groups, part[0],
                            json_pack("{s:i,s:s,s:s,s:i,s:s}", "size", (int)size, "description", part[1], "file",
                                      part[2], "line", (int)number, "function", part[3]));
    }
    free(text);
    return 0;
}

json_t *roll_steered_groups(const char *notes)
{
    json_t *groups = json_object();
    if (groups != NULL) {
        (void)each_line(notes, take_group, groups);
    }
    return groups;
}

bool roll_steered_allocator(const char *notes, uint32_t pid, unsigned device, uint64_t *bytes)
{
    char path[PATH_MAX], *text = NULL, *rest = NULL;
    size_t size;
    bool found = false;
    snprintf(path, sizeof(path), "%s/steered.%u", notes, pid);
    if (roll_read_whole(path, ROLL_STEERED_NOTES_MOST, &text, &size) != 0) {
        return false;
    }
    for (char *line = strtok_r(text, "\n", &rest); line != NULL && !found; line = strtok_r(NULL, "\n", &rest)) {
        unsigned of;
        found = sscanf(line, "allocator %u %" SCNu64, &of, bytes) == 2 && of == device;
    }
    free(text);
    return found;
}
