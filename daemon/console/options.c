/*
 * options.c: the options of a command, in the console's words; and the one-line messages.
 */
#include "daemon/base/file.h"
#include "daemon/base/text.h"
#include "daemon/console/console.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAYS "rollcall: "

/* Breaks a line between words that is wider than the terminal, its later lines below the first one's text. Returns how
 * many bytes `out` holds then; 0: the line stays as it is. */
static size_t broken(const char *line, char *out, size_t size)
{
    size_t columns = roll_columns_terminal(STDERR_FILENO), indent = sizeof(SAYS) - 1;
    if (columns == 0 || roll_text_width(line) <= columns) {
        return 0;
    }
    FILE *lines = fmemopen(out, size, "w");
    if (lines == NULL) {
        return 0;
    }
    indent += strspn(line + indent, " ");
    fprintf(lines, "%.*s", (int)indent, line);
    roll_text_wrap(line + indent, indent, columns, lines);
    long used = ftell(lines);
    bool is_whole = ferror(lines) == 0 && used > 0 && (size_t)used < size;
    return fclose(lines) == 0 && is_whole ? (size_t)used : 0;
}

static void write_line(const char *format, va_list args, const char *tail)
{
    /* One write, so that lines of several processes on one terminal do not mix. */
    char line[2048], lines[4096];
    int n = snprintf(line, sizeof(line), SAYS);
    int m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, format, args);
    size_t used = (size_t)n + (m < 0 ? 0 : (size_t)m);
    if (used > sizeof(line) - 2) {
        used = sizeof(line) - 2;
    }
    m = snprintf(line + used, sizeof(line) - 1 - used, "%s", tail);
    used += m < 0 ? 0 : (size_t)m;
    if (used > sizeof(line) - 2) {
        used = sizeof(line) - 2;
    }
    roll_text_plain(line, used); /* names of jobs, groups and programs are theirs to choose */
    size_t bytes = broken(line, lines, sizeof(lines));
    line[used++] = '\n';
    fflush(stderr);
    (void)roll_write_all(STDERR_FILENO, bytes > 0 ? lines : line, bytes > 0 ? bytes : used);
}

void roll_say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    write_line(format, args, "");
    va_end(args);
}

int roll_usage(const struct roll_command *cmd, const char *format, ...)
{
    char tail[64];
    snprintf(tail, sizeof(tail), "; see `rollcall help %s`", cmd->name);
    va_list args;
    va_start(args, format);
    write_line(format, args, tail);
    va_end(args);
    return ROLL_EXIT_USAGE;
}

bool roll_colour_wanted(int fd)
{
    const char *no = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    return (no == NULL || no[0] == '\0') && term != NULL && strcmp(term, "dumb") != 0 && isatty(fd) == 1;
}

static void print_help(const struct roll_command *cmd, const struct roll_option *options)
{
    size_t columns = roll_columns_terminal(STDOUT_FILENO);
    printf("usage: rollcall %s [OPTION...]%s%s\n\n%s\n\noptions:\n", cmd->name, cmd->operands[0] != '\0' ? " " : "",
           cmd->operands, cmd->brief);
    roll_options_print(options, true, 28, columns);
    printf("  %-28s %s\n", "    --help", "this text");
}

/* Says what kind of argument an option wants. */
static const char *wanted(enum roll_option_kind kind)
{
    switch (kind) {
    case ROLL_OPT_COUNT:
        return "a number from 1 up";
    case ROLL_OPT_NUMBER:
        return "a number from 0 up";
    case ROLL_OPT_SECONDS:
        return "seconds above 0";
    default:
        return "something that is not empty";
    }
}

int roll_options_read(const struct roll_command *cmd, const struct roll_option *options, bool leading, int argc,
                      char **argv, int *code)
{
    struct roll_option table[ROLL_OPTIONS_MAX + 1];
    size_t n = 0;
    for (; options[n].name != NULL && n + 1 < ROLL_OPTIONS_MAX; n++) {
        table[n] = options[n];
    }
    table[n] = (struct roll_option){.name = "help", .letter = 'h', .kind = ROLL_OPT_HELP};
    table[n + 1] = (struct roll_option){0};
    struct roll_option_reader read = {.table = table, .leading = leading, .argc = argc, .argv = argv};
    enum roll_option_event event;
    const char *typed;
    *code = ROLL_EXIT_CLEAN;
    while ((event = roll_options_next(&read)) == ROLL_OPTION_TAKEN) {
        if (read.option->kind == ROLL_OPT_HELP) {
            print_help(cmd, options);
            return -1;
        }
    }
    switch (event) {
    case ROLL_OPTION_OVER:
        return read.operand;
    case ROLL_OPTION_LACKS:
        *code = roll_usage(cmd, "option '%s' needs an argument%s", read.word,
                           strcmp(read.word, "--job") == 0 ? ": `rollcall jobs` lists the jobs" : "");
        break;
    case ROLL_OPTION_LETTER:
        *code = roll_usage(cmd, "unknown option '-%c'", read.letter);
        break;
    case ROLL_OPTION_EXTRA:
        *code = roll_usage(cmd, "option '%s' takes no argument", read.word);
        break;
    case ROLL_OPTION_WRONG:
        typed = argv[read.at]; /* as it was typed: people do not know -n by its long name */
        if (read.option->letter != 0 && typed[0] == '-' && typed[1] != '-') {
            *code =
                roll_usage(cmd, "option '-%c %s': wants %s", read.option->letter, read.word, wanted(read.option->kind));
        } else {
            *code =
                roll_usage(cmd, "option '--%s %s': wants %s", read.option->name, read.word, wanted(read.option->kind));
        }
        break;
    default: {
        char meant[320];
        *code = roll_usage(cmd, "unknown option '%s'%s", read.word,
                           roll_options_meant(table, read.word, meant, sizeof(meant)));
        break;
    }
    }
    return -1;
}
