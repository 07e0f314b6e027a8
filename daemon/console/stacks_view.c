/*
 * stacks_view.c: prints a merged tree of stacks. Indentation shows where ranks part, not how deep a call is: stacks of
 * a training job are 40 deep and part twice.
 */
#include "daemon/console/stacks_view.h"

#include "daemon/base/colour.h"
#include "daemon/base/text.h"
#include "daemon/console/text.h"

#include <string.h>

#define DEPTH_STEP 2
#define LINE_BYTES 1024
#define SET_BYTES  256

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The file name with its folder, which is enough to tell two __init__.py apart. */
static const char *short_path(const char *path)
{
    const char *end = path + strlen(path);
    for (int slashes = 0; end > path; end--) {
        if (end[-1] == '/' && ++slashes == 2) {
            break;
        }
    }
    return end;
}

static void frame_text(const struct roll_stack_node *n, unsigned times, char *out, size_t size)
{
    int used;
    if (n->function[0] == '\0') {
        used = n->module[0] ? snprintf(out, size, "%s+0x%llx", base_name(n->module), (unsigned long long)n->offset)
                            : snprintf(out, size, "0x%llx", (unsigned long long)n->offset);
    } else if (n->line > 0) {
        used = snprintf(out, size, "%s  %s:%u", n->function, short_path(n->file), n->line);
    } else if (n->file[0] || n->module[0]) {
        used = snprintf(out, size, "%s  %s", n->function, n->file[0] ? short_path(n->file) : base_name(n->module));
    } else {
        used = snprintf(out, size, "%s", n->function);
    }
    if (times > 1 && used > 0 && (size_t)used < size) {
        snprintf(out + used, size - (size_t)used, "  (%u times)", times);
    }
}

static void put_line(FILE *out, const struct roll_stacks_style *style, size_t indent, const char *colour, char *text,
                     size_t size)
{
    if (style->width > indent + 8) {
        roll_text_fit(text, size, style->width - indent);
    }
    for (char *c = text; *c; c++) { /* names come out of another process's memory and may hold control characters */
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c;
    }
    bool coloured = style->colour && colour[0];
    fprintf(out, "%*s%s%s%s\n", (int)indent, "", coloured ? colour : "", text, coloured ? ROLL_PLAIN : "");
}

static void put_head(FILE *out, const struct roll_stack_node *n, const struct roll_stacks_style *style, size_t indent)
{
    char text[LINE_BYTES], set[SET_BYTES], threads[64] = "", mark[64] = "";
    size_t ranks = roll_rankset_count(&n->ranks);
    bool stuck = roll_stack_stuck(n);
    roll_rankset_format(&n->ranks, set, sizeof(set));
    if (n->threads != ranks) {
        snprintf(threads, sizeof(threads), ", %u threads", n->threads);
    }
    if (style->samples > 1 && stuck) {
        snprintf(mark, sizeof(mark), "  stuck");
    } else if (style->samples > 1 &&
               n->hits == n->looks) { /* a thread that was not seen in every look is called neither stuck nor moving */
        snprintf(mark, sizeof(mark), "  seen in %u of %u looks", n->hits, n->looks + n->missed);
    } else if (style->samples > 1) {
        snprintf(mark, sizeof(mark), "  moving: here in %u of %u looks", n->hits, n->looks);
    }
    snprintf(text, sizeof(text), "[%s] (%zu %s%s)%s", set, ranks, ranks == 1 ? style->one : style->many, threads, mark);
    put_line(out, style, indent, stuck ? ROLL_BOLD : ROLL_DIM, text, sizeof(text));
}

/* The child into which all threads of this node go on; NULL when they part, or when some stacks end here. */
static const struct roll_stack_node *only_child(const struct roll_stack_node *n)
{
    const struct roll_stack_node *c = n->child;
    return c && !c->next && n->ends == 0 && c->hits == n->hits && c->threads == n->threads ? c : NULL;
}

static bool repeats(const struct roll_stack_node *a, const struct roll_stack_node *b)
{
    return a->line == b->line && a->offset == b->offset && a->python == b->python && a->function[0] &&
           strcmp(a->function, b->function) == 0 && strcmp(a->file, b->file) == 0;
}

/* What a thread or a program begins with before any code of its author's; `--json` has these frames as well. */
static bool is_start(const struct roll_stack_node *n)
{
    static const char *const names[] = {"_start",
                                        "__libc_start_main",
                                        "__libc_start_main_impl",
                                        "__libc_start_call_main",
                                        "__clone3",
                                        "clone3",
                                        "__clone",
                                        "clone",
                                        "start_thread"};
    bool found = !n->python && n->function[0] == '\0' && roll_path_is_libc(n->module);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        found = found || (!n->python && strcmp(n->function, names[i]) == 0);
    }
    return found;
}

/* Prints a row of frames that one set of ranks shares, then the subtrees into which these ranks part. */
static void put_segment(FILE *out, const struct roll_stack_node *n, const struct roll_stacks_style *style,
                        size_t indent)
{
    put_head(out, n, style, indent);
    for (const struct roll_stack_node *next = only_child(n); indent == 0 && is_start(n) && next; next = only_child(n)) {
        n = next;
    }
    for (;;) {
        char text[LINE_BYTES];
        unsigned times = 1;
        const struct roll_stack_node *next = only_child(n), *first = n;
        while (next && repeats(first, next)) {
            n = next;
            next = only_child(n);
            times++;
        }
        frame_text(first, times, text, sizeof(text));
        put_line(out, style, indent + DEPTH_STEP, first->python ? ROLL_CYAN : "", text, sizeof(text));
        if (!next) {
            break;
        }
        n = next;
    }
    for (const struct roll_stack_node *c = n->child; c; c = c->next) {
        put_segment(out, c, style, indent + DEPTH_STEP);
    }
}

void roll_stacks_print(FILE *out, const struct roll_stack_tree *tree, const struct roll_stacks_style *style)
{
    for (const struct roll_stack_node *c = tree->root.child; c; c = c->next) {
        put_segment(out, c, style, 0);
    }
}
