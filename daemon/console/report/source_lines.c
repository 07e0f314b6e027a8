/*
 * source_lines.c: see source_lines.h.
 */
#include "daemon/console/report/source_lines.h"

#include "daemon/base/file.h"
#include "daemon/base/json.h"
#include "daemon/stack/source_line.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MOST   (4u << 20) /* bytes; files of Python that people write are smaller */
#define LINE_MOST   200u       /* bytes of a line that are shown */
#define FRAMES_MOST 16u        /* of one verdict that get their lines */

struct text {
    const char *at;
    size_t n;
};

/* The line with this number, from 1; false: there are not so many. */
static bool line_of(struct text file, size_t number, struct text *out)
{
    const char *at = file.at, *end = file.at + file.n, *next;
    for (size_t i = 1; at < end; i++, at = next) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        next = stop != NULL ? stop + 1 : end;
        if (i == number) {
            *out = (struct text){at, (size_t)((stop != NULL ? stop : end) - at)};
            return true;
        }
    }
    return false;
}

static json_t *shown(struct text line)
{
    char out[LINE_MOST + 1];
    size_t n = line.n < LINE_MOST ? line.n : LINE_MOST;
    while (n > 0 && n < line.n && ((unsigned char)line.at[n] & 0xc0) == 0x80) {
        n--;
    }
    memcpy(out, line.at, n);
    out[n] = '\0';
    while (n > 0 && out[n - 1] == '\r') {
        out[--n] = '\0';
    }
    for (size_t i = 0; i < n; i++) { /* a byte 0 ends a text; others of these are nothing to show */
        out[i] = (unsigned char)out[i] < ' ' && out[i] != '\t' ? ' ' : out[i];
    }
    return roll_text_to_json(out);
}

static json_t *context_of(struct text file, size_t number, const char *noted)
{
    struct text line;
    char here[ROLL_TEXT_BYTES + 1];
    if (!roll_source_line_of(file.at, file.n, (uint32_t)number, here) || strcmp(here, noted) != 0) {
        return NULL;
    }
    size_t first = number > ROLL_SOURCE_AROUND ? number - ROLL_SOURCE_AROUND : 1;
    json_t *lines = json_array();
    for (size_t i = first; i <= number + ROLL_SOURCE_AROUND && line_of(file, i, &line); i++) {
        json_array_append_new(lines, shown(line));
    }
    return json_pack("{s:I,s:o}", "first", (json_int_t)first, "texts", lines);
}

static bool is_python(const char *path)
{
    size_t n = path != NULL ? strlen(path) : 0;
    return n > 3 && strcmp(path + n - 3, ".py") == 0;
}

static void add_to(json_t *frame, struct roll_sources *sources)
{
    const char *path = json_string_value(json_object_get(frame, "file"));
    const char *noted = json_string_value(json_object_get(frame, "text"));
    json_int_t line = json_integer_value(json_object_get(frame, "line"));
    /* The name is the trace's: what it leads to must be a file of Python as well. */
    char *real = is_python(path) && path[0] == '/' ? realpath(path, NULL) : NULL, *data;
    size_t bytes;
    bool read = is_python(real) && noted != NULL && line >= 1 && line <= UINT32_MAX &&
                roll_read_whole(real, FILE_MOST, &data, &bytes) == 0;
    free(real);
    if (!read) {
        sources->absent =
            sources->absent || noted != NULL; /* else the trace has not noted a line that could be found */
        return;
    }
    json_t *context = context_of((struct text){data, bytes}, (size_t)line, noted);
    if (context != NULL) {
        json_object_set_new(frame, "context", context);
    } else {
        sources->other = true;
    }
    free(data);
}

void roll_sources_say(const struct roll_sources *sources, json_t *texts)
{
    if (sources->absent) {
        json_array_append_new(texts, json_string("lines around where the job called: its source files are not on the "
                                                 "machine that made this report. Made where they are, at the same "
                                                 "paths, a report shows them"));
    }
    if (sources->other) {
        json_array_append_new(texts, json_string("lines around where the job called: a source file on the machine that "
                                                 "made this report is not the one that ran"));
    }
}

void roll_source_lines_add(json_t *verdict, struct roll_sources *sources)
{
    size_t i, k, added = 0;
    json_t *site, *frame;
    json_array_foreach(json_object_get(verdict, "callsites"), i, site)
    {
        json_array_foreach(json_object_get(site, "frames"), k, frame)
        {
            bool own = json_object_get(frame, "library") == json_false(); /* only frames of Python say it */
            if (own && added < FRAMES_MOST) {
                add_to(frame, sources);
                added += json_object_get(frame, "context") != NULL;
            }
        }
    }
}
