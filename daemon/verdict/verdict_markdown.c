/*
 * verdict_markdown.c: see verdict_markdown.h. What a job says is quoted, so that it cannot become markup.
 */
#include "daemon/verdict/verdict_markdown.h"

#include "daemon/base/text.h"
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

/* "rank 3", "ranks 0-2". */
static const char *noun_of(const char *ranks)
{
    return ranks[strspn(ranks, "0123456789")] == '\0' ? "rank" : "ranks";
}

static void put_named(FILE *out, const char *what, const char *ranks)
{
    if (ranks != NULL && ranks[0] != '\0') {
        fprintf(out, "- %s: %s %s\n", what, noun_of(ranks), ranks);
    }
}

/* The rows of the table of sides, and what they are called for people. As in dashboards/web/js/markdown.js. */
static const struct {
    const char *name, *title;
} members[] = {{"op", "call"},           {"count", "elements"},     {"dtype", "datatype"}, {"redop", "reduction"},
               {"root", "root"},         {"peer", "peer"},          {"bytes", "bytes"},    {"seq", "call number"},
               {"groups", "groups"},     {"empty", "empty groups"}, {"state", "state"},    {"error", "error"},
               {"group", "NCCL group"},  {"graph", "CUDA graph"},   {"phase", "phase"},    {"step", "step"},
               {"tensors", "as many as"}};

/* What moe_core told has names of records (trace/op.def); what they say. The number of it stands under "amount". */
static const char *const told[][2] = {{"moe route", "routed tokens to experts"},
                                      {"moe counts", "received rows for its experts"},
                                      {"moe split", "sends rows to a member"},
                                      {"moe gemm", "expert GEMM"},
                                      {"moe skip", "skipped its experts"},
                                      {"moe oblige", "owes a backward collective"},
                                      {"moe oblige end", "owes backward collectives"},
                                      {"moe remedy", "a remedy acted"},
                                      {"moe uniform", "a number that all ranks need alike"},
                                      {"moe tensor", "report about a tensor"}};

static const char *told_of(const char *op)
{
    for (size_t i = 0; op != NULL && i < sizeof(told) / sizeof(told[0]); i++) {
        if (strcmp(told[i][0], op) == 0) {
            return told[i][1];
        }
    }
    return NULL;
}

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
        const char *words = told_of(json_string_value(value));
        roll_markdown_plain(out, words != NULL ? words : json_string_value(value));
        return;
    }
    snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    roll_markdown_plain(out, json_is_integer(value) ? number : "-");
}

static void put_row(FILE *out, const json_t *evidence, const char *name, const char *title)
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
    fprintf(out, "| %s |", title);
    json_array_foreach((json_t *)evidence, i, side)
    {
        const char *mark = differs ? "**" : "";
        fprintf(out, " %s", mark);
        put_value(out, value_of(side, name));
        fprintf(out, "%s |", mark);
    }
    fputc('\n', out);
}

static void put_evidence(FILE *out, const json_t *evidence)
{
    size_t n = json_array_size(evidence), i;
    json_t *side, *op = json_object_get(json_array_get(evidence, 0), "op");
    bool is_report = told_of(json_string_value(op)) != NULL;
    if (n == 0) {
        return;
    }
    fputs("\n| |", out);
    json_array_foreach((json_t *)evidence, i, side)
    {
        const char *ranks = text_of(side, "ranks_text");
        fputc(' ', out);
        if (ranks != NULL && ranks[0] != '\0') {
            fprintf(out, "%s ", noun_of(ranks));
            roll_markdown_plain(out, ranks);
        } else {
            fprintf(out, "side %zu", i + 1);
        }
        fputs(" |", out);
    }
    fputs("\n|---|", out);
    for (i = 0; i < n; i++) {
        fputs("---|", out);
    }
    fputc('\n', out);
    for (i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
        bool amount = is_report && strcmp(members[i].name, "count") == 0; /* of rows, tokens or calls, not elements */
        put_row(out, evidence, members[i].name, amount ? "amount" : members[i].title);
    }
}

/* What begins a process or a thread, below the job's own: nobody looks for a mistake there. */
static bool is_beginning(const json_t *frame)
{
    static const char *const names[] = {
        "_start",  "__libc_start_main", "__libc_start_call_main", "start_thread", "clone", "clone3",
        "__clone", "__clone3"};
    const char *function = text_of(frame, "function");
    size_t n = function != NULL ? strcspn(function, "@+") : 0; /* without a version */
    while (n > 5 && strncmp(function + n - 5, "_impl", 5) == 0) {
        n -= 5;
    }
    const char *module = text_of(frame, "module");
    if (n == 0 && module != NULL && roll_path_is_libc(module)) {
        return true;
    }
    for (size_t i = 0; n > 0 && i < sizeof(names) / sizeof(names[0]); i++) {
        if (strlen(names[i]) == n && strncmp(names[i], function, n) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_python(const json_t *frame)
{
    const char *language = text_of(frame, "language");
    return language != NULL && strcmp(language, "python") == 0;
}

/* A path as it was compiled may begin where its build happened to stand: "../src/train.c". */
static const char *path_of(const json_t *frame)
{
    const char *file = text_of(frame, "file");
    while (file != NULL && strncmp(file, "../", 3) == 0) {
        file += 3;
    }
    return file;
}

static void put_frame(FILE *out, const json_t *frame, bool first)
{
    const char *file = path_of(frame), *module = text_of(frame, "module"), *text = text_of(frame, "text");
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
        roll_markdown_plain(out, path_of(frame));
        fputs(":\n\n", out);
        block(out, text);
    }
    free(text);
    return err;
}

static bool is_at(const json_t *object, size_t site)
{
    const json_t *index = json_object_get(object, "callsite");
    return json_is_integer(index) && json_integer_value(index) == (json_int_t)site;
}

/* Who called there, which the sides say: that a communicator was made somewhere is no call of the finding's. */
static void put_site_title(FILE *out, const json_t *v, size_t number)
{
    size_t i, named = 0;
    json_t *side;
    json_array_foreach(json_object_get(v, "evidence"), i, side)
    {
        const char *ranks = text_of(side, "ranks_text");
        if (is_at(side, number) && ranks != NULL && ranks[0] != '\0') {
            fprintf(out, "%s%s ", named++ > 0 ? " and " : "\nCalled by ", noun_of(ranks));
            roll_markdown_plain(out, ranks);
        }
    }
    const char *other = is_at(json_object_get(v, "comm"), number) ? "\nWhere the communicator was made" : "\nAlso";
    fputs(named > 0 ? ":\n\n" : other, out);
    fputs(named > 0 ? "" : ":\n\n", out);
}

static int put_site(FILE *out, const json_t *v, size_t number, const json_t *site)
{
    char *text = NULL;
    size_t i, size;
    json_t *frame;
    FILE *frames =
        open_memstream(&text, &size); /* Python's where there are any, and nothing of a process's beginning */
    bool first = true, python = false;
    if (frames == NULL) {
        return ROLL_E_NOMEM;
    }
    json_array_foreach(json_object_get(site, "frames"), i, frame)
    {
        python = python || is_python(frame);
    }
    json_array_foreach(json_object_get(site, "frames"), i, frame)
    {
        if (i == 0 || (!is_beginning(frame) && (is_python(frame) || !python))) {
            put_frame(frames, frame, first);
            first = false;
        }
    }
    int err = fclose(frames) == 0 ? 0 : ROLL_E_NOMEM;
    if (err == 0) {
        put_site_title(out, v, number);
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
        err = err != 0 ? err : put_site(out, v, i, site);
    }
    return err != 0 ? err : ferror(out) ? ROLL_E_IO : 0;
}
