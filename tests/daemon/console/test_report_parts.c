/*
 * test_report_parts.c: what a report writes of a job's names stays text, in HTML, in the island of JSON and in
 * Markdown; and lines of source come only out of the file that was called, whatever a trace names.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/console/report/html.h"
#include "daemon/console/report/source_lines.h"
#include "daemon/verdict/verdict_markdown.h"
#include "trace/err.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a name of a job may hold: an end of the script, an element, an attribute, a line separator of JavaScript, and
 * what Markdown reads. */
#define HOSTILE "</script><img src=x onerror='bad(1)'>\"&\xe2\x80\xa8<!--\n```\n# [x](y) | *z*"

static char *written(void (*write)(FILE *out, const void *what), const void *what)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    write(out, what);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void as_html(FILE *out, const void *what)
{
    roll_html_text(out, what);
}

static void as_json(FILE *out, const void *what)
{
    assert_int_equal(roll_html_json(out, what), 0);
}

static void as_plain(FILE *out, const void *what)
{
    roll_markdown_plain(out, what);
}

static void as_markdown(FILE *out, const void *what)
{
    assert_int_equal(roll_verdict_markdown(out, what), 0);
}

static void as_page(FILE *out, const void *what)
{
    roll_html_begin(out, what, what);
    json_t *data = json_pack("[s]", what);
    assert_int_equal(roll_html_json(out, data), 0);
    json_decref(data);
    roll_html_end(out);
}

static size_t times(const char *text, const char *word)
{
    size_t n = 0;
    while ((text = strstr(text, word)) != NULL) {
        text++;
        n++;
    }
    return n;
}

static void test_html_text_has_no_markup(void **state)
{
    (void)state;
    char *text = written(as_html, HOSTILE);
    assert_null(strpbrk(text, "<>\"'"));
    for (const char *c = text; (c = strchr(c, '&')) != NULL; c++) { /* each of our own making */
        assert_true(strncmp(c, "&lt;", 4) == 0 || strncmp(c, "&gt;", 4) == 0 || strncmp(c, "&amp;", 5) == 0 ||
                    strncmp(c, "&quot;", 6) == 0 || strncmp(c, "&#39;", 5) == 0);
    }
    free(text);
}

static void test_the_island_is_ascii_without_an_end_and_says_the_same(void **state)
{
    (void)state;
    json_t *value = json_pack("{s:[s]}", HOSTILE, HOSTILE);
    char *text = written(as_json, value);
    assert_null(strpbrk(text, "<>&"));
    for (const char *c = text; *c != '\0'; c++) {
        assert_in_range((unsigned char)*c, ' ', '~');
    }
    json_t *again = json_loads(text, 0, NULL);
    assert_true(json_equal(value, again));
    json_decref(again);
    json_decref(value);
    free(text);
}

static void test_the_page_has_its_own_scripts_alone(void **state)
{
    (void)state;
    char *page = written(as_page, HOSTILE);
    assert_int_equal(times(page, "<script"), 2); /* the island and the program */
    assert_int_equal(times(page, "</script"), 2);
    assert_int_equal(times(page, "<img"), 0);
    assert_int_equal(times(page, "<title>&lt;/script&gt;"), 1);
    assert_int_equal(times(page, "http-equiv=\"Content-Security-Policy\""), 1);
    free(page);
}

static void test_markdown_text_is_one_line_of_escaped_characters(void **state)
{
    (void)state;
    char *text = written(as_plain, HOSTILE);
    assert_null(strchr(text, '\n'));
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '\\') {
            c++; /* what it keeps from being read */
            assert_non_null(strchr("\\`*_{}[]()#+!|<>~&", *c));
        } else {
            assert_null(strchr("`*_{}[]()#+!|<>~&", *c));
        }
    }
    free(text);
    text = written(as_plain, NULL);
    assert_string_equal(text, "");
    free(text);
}

static json_t *verdict_of(const char *name)
{
    return json_pack("{s:s,s:s,s:s,s:s,s:i,s:s,s:i,s:I,s:s,s:{s:s,s:i},s:[{s:s,s:s,s:i,s:i},{s:s,s:s,s:i,s:i}],s:[{s:"
                     "[{s:s,s:s,s:i,s:s},{s:s,s:s,s:i},{s:s,s:n,s:s}]},{s:[{s:s,s:s,s:i}]}]}",
                     "code", "count-mismatch", "title", name, "text", name, "certainty", "proven", "number", 1, "job",
                     name, "restart", 0, "time_ns", (json_int_t)1, "culprits_text", "3", "comm", "name", name,
                     "callsite", 1, "evidence", "ranks_text", "3", "op", "moe oblige end", "count", 2, "callsite", 0,
                     "ranks_text", "0-2", "op", "moe oblige end", "count", 1, "callsite", 0, "callsites", "frames",
                     "function", "step", "file", "../../src/train.c", "line", 8, "text", name, "function", "main",
                     "file", "../src/train.c", "line", 9, "function", "__libc_start_call_main", "file", "module",
                     "libc.so.6", "frames", "function", "join", "file", "comm.c", "line", 3);
}

/* A C library without debug information has no name for what calls main. */
static void test_a_bare_library_is_no_frame_of_the_job(void **state)
{
    (void)state;
    json_t *verdict = verdict_of("dp");
    json_t *frames = json_object_get(json_array_get(json_object_get(verdict, "callsites"), 0), "frames");
    json_t *last = json_array_get(frames, json_array_size(frames) - 1);
    json_object_set_new(last, "function", json_null());
    json_object_set_new(last, "module", json_string("/lib/x86_64-linux-gnu/libc.so.6"));
    char *text = written(as_markdown, verdict);
    assert_non_null(strstr(text, "src/train.c:9 main"));
    assert_null(strstr(text, "libc"));
    free(text);
    json_decref(verdict);
}

static void test_a_ticket_speaks_as_its_reader_does(void **state)
{
    (void)state;
    json_t *verdict = verdict_of("dp");
    assert_non_null(verdict);
    char *text = written(as_markdown, verdict);
    assert_non_null(strstr(text, "| | rank 3 | ranks 0-2 |"));
    assert_non_null(strstr(text, "| call | owes backward collectives | owes backward collectives |"));
    assert_non_null(strstr(text, "| amount | **2** | **1** |"));
    assert_non_null(
        strstr(text, "Called by rank 3 and ranks 0-2:\n\n```\nsrc/train.c:8 step\n    dp\nsrc/train.c:9 main"));
    assert_non_null(strstr(text, "Where the communicator was made:\n\n```\ncomm.c:3 join"));
    assert_null(strstr(text, "moe oblige"));
    assert_null(strstr(text, "../"));
    assert_null(strstr(text, "libc"));
    free(text);
    json_decref(verdict);
}

static void test_names_do_not_get_out_of_a_ticket(void **state)
{
    (void)state;
    json_t *verdict = verdict_of(HOSTILE);
    char *text = written(as_markdown, verdict), *line = text, *rest = NULL;
    bool inside = false;
    size_t fence = 0;
    for (line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        size_t ticks = strspn(line, "`");
        if (ticks >= 3 && line[ticks] == '\0' && (!inside || ticks == fence)) {
            inside = !inside;
            fence = ticks;
            continue;
        }
        for (const char *c = line; !inside && *c != '\0'; c++) {
            assert_true((*c != '<' && *c != '`') || (c > line && c[-1] == '\\'));
        }
    }
    assert_false(inside);
    free(text);
    json_decref(verdict);
}

/* lines of source */

struct place {
    char dir[PATH_MAX], path[PATH_MAX + 64];
};

static const char script[] = "a = 1\nb = 2\nc = 3\n    dist.all_reduce(x)\ne = 5\nf = 6\ng = 7\nh = 8\n";

static void put(const char *path, const char *text)
{
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_true(fputs(text, out) >= 0);
    assert_int_equal(fclose(out), 0);
}

static int make_place(void **state)
{
    struct place *p = calloc(1, sizeof(*p));
    char *base = getenv("TMPDIR"), made[PATH_MAX];
    assert_non_null(p);
    snprintf(made, sizeof(made), "%s/rollcall-report-XXXXXX", base != NULL ? base : "/tmp");
    assert_non_null(mkdtemp(made));
    assert_non_null(realpath(made, p->dir));
    *state = p;
    return 0;
}

static int drop_place(void **state)
{
    static const char *const names[] = {"train.py", "link.py", "secret.txt", "pipe.py", "long.py"};
    struct place *p = *state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(p->path, sizeof(p->path), "%s/%s", p->dir, names[i]);
        (void)unlink(p->path);
    }
    int rc = rmdir(p->dir);
    free(p);
    return rc;
}

static const char *named(struct place *p, const char *name)
{
    snprintf(p->path, sizeof(p->path), "%s/%s", p->dir, name);
    return p->path;
}

/* The lines that are shown of one frame, owned; NULL: none. */
static json_t *lines_of(const char *path, int line, const char *noted, struct roll_sources *sources)
{
    json_t *frame = json_pack("{s:s,s:i,s:s,s:b}", "file", path, "line", line, "text", noted, "library", 0);
    json_t *verdict = json_pack("{s:[{s:[O]}]}", "callsites", "frames", frame);
    *sources = (struct roll_sources){.absent = false};
    roll_source_lines_add(verdict, sources);
    json_t *context = json_incref(json_object_get(frame, "context"));
    json_decref(verdict);
    json_decref(frame);
    return context;
}

static void test_lines_are_shown_of_the_file_that_was_called(void **state)
{
    struct place *p = *state;
    struct roll_sources sources;
    put(named(p, "train.py"), script);
    json_t *context = lines_of(named(p, "train.py"), 4, "dist.all_reduce(x)", &sources);
    assert_non_null(context);
    assert_int_equal(json_integer_value(json_object_get(context, "first")), 1);
    assert_int_equal(json_array_size(json_object_get(context, "texts")), 2 * ROLL_SOURCE_AROUND + 1);
    assert_false(sources.absent || sources.other);
    json_decref(context);
}

static void test_lines_of_another_file_are_not_shown_and_that_is_said(void **state)
{
    struct place *p = *state;
    struct roll_sources sources;
    json_t *texts = json_array();
    put(named(p, "train.py"), script);
    assert_null(lines_of(named(p, "train.py"), 5, "dist.all_reduce(x)", &sources)); /* changed since */
    assert_true(sources.other && !sources.absent);
    assert_null(lines_of(named(p, "train.py"), 400, "dist.all_reduce(x)", &sources)); /* no such line */
    assert_true(sources.other);
    assert_null(lines_of(named(p, "gone.py"), 4, "dist.all_reduce(x)", &sources));
    assert_true(sources.absent && !sources.other);
    roll_sources_say(&sources, texts);
    assert_int_equal(json_array_size(texts), 1);
    assert_non_null(strstr(json_string_value(json_array_get(texts, 0)), "not on the machine"));
    json_decref(texts);
}

static void test_a_trace_cannot_have_other_files_sent(void **state)
{
    struct place *p = *state;
    struct roll_sources sources;
    char secret[PATH_MAX + 64];
    put(named(p, "secret.txt"), script);
    snprintf(secret, sizeof(secret), "%s", p->path);
    assert_null(lines_of(secret, 4, "dist.all_reduce(x)", &sources)); /* no Python */
    assert_int_equal(symlink(secret, named(p, "link.py")), 0);
    assert_null(lines_of(p->path, 4, "dist.all_reduce(x)", &sources));    /* leads to what is none */
    assert_null(lines_of("train.py", 4, "dist.all_reduce(x)", &sources)); /* wherever this program stands */
    assert_int_equal(mkfifo(named(p, "pipe.py"), 0600), 0);
    assert_null(lines_of(p->path, 4, "dist.all_reduce(x)", &sources)); /* and nobody waits for its writer */
    assert_null(lines_of(p->dir, 4, "dist.all_reduce(x)", &sources));
}

static void test_a_file_without_an_end_is_not_read(void **state)
{
    struct place *p = *state;
    struct roll_sources sources;
    put(named(p, "long.py"), script);
    assert_int_equal(truncate(p->path, (off_t)5 << 20), 0);
    assert_null(lines_of(p->path, 4, "dist.all_reduce(x)", &sources));
    assert_true(sources.absent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_html_text_has_no_markup),
        cmocka_unit_test(test_the_island_is_ascii_without_an_end_and_says_the_same),
        cmocka_unit_test(test_the_page_has_its_own_scripts_alone),
        cmocka_unit_test(test_markdown_text_is_one_line_of_escaped_characters),
        cmocka_unit_test(test_a_bare_library_is_no_frame_of_the_job),
        cmocka_unit_test(test_a_ticket_speaks_as_its_reader_does),
        cmocka_unit_test(test_names_do_not_get_out_of_a_ticket),
        cmocka_unit_test_setup_teardown(test_lines_are_shown_of_the_file_that_was_called, make_place, drop_place),
        cmocka_unit_test_setup_teardown(test_lines_of_another_file_are_not_shown_and_that_is_said, make_place,
                                        drop_place),
        cmocka_unit_test_setup_teardown(test_a_trace_cannot_have_other_files_sent, make_place, drop_place),
        cmocka_unit_test_setup_teardown(test_a_file_without_an_end_is_not_read, make_place, drop_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
