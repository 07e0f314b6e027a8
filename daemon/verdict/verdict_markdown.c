/*
 * verdict_markdown.c: see verdict_markdown.h. What a job says is quoted, so that it cannot become markup.
 */
#include "daemon/verdict/verdict_markdown.h"

#include "trace/err.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static bool is_blank(char c)
{
    return strchr(" \t\n\r\f\v", c) != NULL;
}

/* Blanks next to each other become one. */
void roll_markdown_plain(FILE *out, const char *text)
{
    for (const char *c = text != NULL ? text : ""; *c != '\0'; c++) {
        if (is_blank(*c)) {
            while (c[1] != '\0' && is_blank(c[1])) {
                c++;
            }
            fputc(' ', out);
            continue;
        }
        if (strchr("\\`*_{}[]()#+!|<>~&", *c) != NULL) {
            fputc('\\', out);
        }
        fputc(*c, out);
    }
}

static const char *text_of(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

/* A code block that the text cannot end: its fence is longer than any in the text. */
static void block(FILE *out, const char *text)
{
    size_t longest = 2, run = 0;
    for (const char *c = text; *c != '\0'; c++) {
        run = *c == '`' ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    for (size_t i = 0; i <= longest; i++) {
        fputc('`', out);
    }
    fprintf(out, "\n%s\n", text);
    for (size_t i = 0; i <= longest; i++) {
        fputc('`', out);
    }
    fputc('\n', out);
}

/* "2026-11-20 13:01:02Z". */
static void put_clock(FILE *out, json_int_t ns)
{
    char text[32] = "-";
    time_t s = (time_t)(ns / 1000000000);
    struct tm tm;
    if (ns > 0 && gmtime_r(&s, &tm) != NULL) {
        strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%SZ", &tm);
    }
    fputs(text, out);
}

static void put_named(FILE *out, const char *what, const char *ranks)
{
    if (ranks != NULL && ranks[0] != '\0') {
        bool one = ranks[strspn(ranks, "0123456789")] == '\0';
        fprintf(out, "- %s: %s %s\n", what, one ? "rank" : "ranks", ranks);
    }
}

/* The rows of the table of sides; "root" and "op" are words of NCCL. As in dashboards/web/js/markdown.js. */
static const char *const members[] = {"ranks_text", "op",    "count", "dtype",  "redop", "root",
                                      "peer",       "bytes", "seq",   "groups", "empty", "state",
                                      "error",      "group", "graph", "phase",  "step",  "tensors"};

/* A member of a side; NULL: it has none, or null. */
static const json_t *value_of(const json_t *side, const char *name)
{
    const json_t *value = json_object_get(side, name);
    return value != NULL && !json_is_null(value) ? value : NULL;
}

static void put_value(FILE *out, const json_t *value)
{
    char number[32];
    if (json_is_string(value)) {
        roll_markdown_plain(out, json_string_value(value));
        return;
    }
    snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    roll_markdown_plain(out, json_is_integer(value) ? number : "-");
}

static void put_row(FILE *out, const json_t *evidence, const char *name)
{
    const json_t *first = value_of(json_array_get(evidence, 0), name);
    bool any = false, differs = false;
    size_t i;
    json_t *side;
    json_array_foreach((json_t *)evidence, i, side)
    {
        const json_t *value = value_of(side, name);
        any = any || value != NULL;
        differs = differs || (value != NULL && !json_equal(value, first));
    }
    if (!any) {
        return;
    }
    bool ranks = strcmp(name, "ranks_text") == 0;
    fprintf(out, "| %s |", ranks ? "ranks" : name);
    json_array_foreach((json_t *)evidence, i, side)
    {
        const char *mark = differs && !ranks ? "**" : "";
        fprintf(out, " %s", mark);
        put_value(out, value_of(side, name));
        fprintf(out, "%s |", mark);
    }
    fputc('\n', out);
}

static void put_evidence(FILE *out, const json_t *evidence)
{
    size_t n = json_array_size(evidence);
    if (n == 0) {
        return;
    }
    fputs("\n| |", out);
    for (size_t i = 0; i < n; i++) {
        fprintf(out, " side %zu |", i + 1);
    }
    fputs("\n|---|", out);
    for (size_t i = 0; i < n; i++) {
        fputs("---|", out);
    }
    fputc('\n', out);
    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        put_row(out, evidence, members[i]);
    }
}

static void put_frame(FILE *out, const json_t *frame, bool first)
{
    const char *file = text_of(frame, "file"), *module = text_of(frame, "module"), *text = text_of(frame, "text");
    const char *function = text_of(frame, "function");
    json_int_t line = json_integer_value(json_object_get(frame, "line"));
    fprintf(out, "%s%s", first ? "" : "\n", file != NULL ? file : module != NULL ? module : "?");
    if (file != NULL && line > 0) {
        fprintf(out, ":%" JSON_INTEGER_FORMAT, line);
    }
    if (function != NULL && function[0] != '\0') {
        fprintf(out, " %s", function);
    }
    if (text != NULL && text[0] != '\0') {
        fprintf(out, "\n    %s", text);
    }
}

/* The lines around the one that called, where they are known. */
static int put_context(FILE *out, const json_t *frame)
{
    const json_t *context = json_object_get(frame, "context");
    json_int_t here = json_integer_value(json_object_get(frame, "line"));
    json_int_t number = json_integer_value(json_object_get(context, "first"));
    char *text = NULL;
    size_t i, size;
    json_t *line;
    FILE *lines = context != NULL ? open_memstream(&text, &size) : NULL;
    if (lines == NULL) {
        return context != NULL ? ROLL_E_NOMEM : 0;
    }
    json_array_foreach(json_object_get(context, "texts"), i, line)
    {
        fprintf(lines, "%s%c%5" JSON_INTEGER_FORMAT "  %s", i > 0 ? "\n" : "", number == here ? '>' : ' ', number,
                json_string_value(line));
        number++;
    }
    int err = fclose(lines) == 0 ? 0 : ROLL_E_NOMEM;
    if (err == 0) {
        fputc('\n', out);
        roll_markdown_plain(out, text_of(frame, "file"));
        fputs(":\n\n", out);
        block(out, text);
    }
    free(text);
    return err;
}

static int put_site(FILE *out, size_t number, const json_t *site)
{
    char *text = NULL;
    size_t i, size;
    json_t *frame;
    FILE *frames = open_memstream(&text, &size);
    if (frames == NULL) {
        return ROLL_E_NOMEM;
    }
    json_array_foreach(json_object_get(site, "frames"), i, frame)
    {
        put_frame(frames, frame, i == 0);
    }
    int err = fclose(frames) == 0 ? 0 : ROLL_E_NOMEM;
    if (err == 0) {
        fprintf(out, "\nCall site %zu:\n\n", number);
        block(out, text);
    }
    free(text);
    json_array_foreach(json_object_get(site, "frames"), i, frame)
    {
        err = err != 0 ? err : put_context(out, frame);
    }
    return err;
}

static void put_head(FILE *out, const json_t *v)
{
    const json_t *event = json_object_get(v, "event_ns");
    fputs("## ", out);
    roll_markdown_plain(out, text_of(v, "code"));
    fputs(": ", out);
    roll_markdown_plain(out, text_of(v, "title"));
    fprintf(out, "\n\n%s, verdict %" JSON_INTEGER_FORMAT " of job ", text_of(v, "certainty"),
            json_integer_value(json_object_get(v, "number")));
    roll_markdown_plain(out, text_of(v, "job"));
    fprintf(out, ", restart %" JSON_INTEGER_FORMAT ", ", json_integer_value(json_object_get(v, "restart")));
    put_clock(out, json_integer_value(json_is_integer(event) ? event : json_object_get(v, "time_ns")));
    fputs("\n\n", out);
    block(out, text_of(v, "text"));
    fputc('\n', out);
}

static void put_facts(FILE *out, const json_t *v)
{
    const json_t *comm = json_object_get(v, "comm"), *remedy = json_object_get(v, "remedy");
    put_named(out, "named", text_of(v, "culprits_text"));
    put_named(out, "waiting", text_of(v, "waiting_text"));
    if (json_is_object(comm)) {
        const char *name = text_of(comm, "name"), *label = text_of(comm, "label");
        fputs("- communicator: ", out);
        roll_markdown_plain(out, name != NULL ? name : label != NULL ? label : text_of(comm, "key"));
        fputc('\n', out);
    }
    if (json_is_object(remedy)) {
        fputs("- remedy: ", out);
        roll_markdown_plain(out, text_of(remedy, "name"));
        fputs(": ", out);
        roll_markdown_plain(out, text_of(remedy, "text"));
        fputc('\n', out);
    }
}

int roll_verdict_markdown(FILE *out, const json_t *v)
{
    size_t i;
    json_t *site;
    int err = 0;
    if (text_of(v, "code") == NULL || text_of(v, "text") == NULL || text_of(v, "certainty") == NULL) {
        return ROLL_E_CORRUPT;
    }
    put_head(out, v);
    put_facts(out, v);
    put_evidence(out, json_object_get(v, "evidence"));
    json_array_foreach(json_object_get(v, "callsites"), i, site)
    {
        err = err != 0 ? err : put_site(out, i + 1, site);
    }
    return err != 0 ? err : ferror(out) ? ROLL_E_IO : 0;
}
