/*
 * options.c: one table of options per command drives both the parser (getopt_long) and the help text, so that the
 * two cannot drift apart. The one-line messages are here as well.
 */
#include "daemon/base/file.h"
#include "daemon/console/console.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void say(const char *format, va_list args, const char *tail)
{
    /* One write, so that lines of several processes on one terminal do not mix. */
    char line[2048];
    int n = snprintf(line, sizeof(line), "rollcall: ");
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
    line[used++] = '\n';
    fflush(stderr);
    (void)roll_write_all(STDERR_FILENO, line, used);
}

void roll_say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args, "");
    va_end(args);
}

int roll_usage(const struct roll_command *cmd, const char *format, ...)
{
    char tail[64];
    snprintf(tail, sizeof(tail), "; see `rollcall help %s`", cmd->name);
    va_list args;
    va_start(args, format);
    say(format, args, tail);
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
    printf("usage: rollcall %s [OPTION...]%s%s\n\n%s\n\noptions:\n", cmd->name, cmd->operands[0] != '\0' ? " " : "",
           cmd->operands, cmd->brief);
    for (const struct roll_option *o = options; o->name != NULL; o++) {
        char left[64];
        char letter[8] = "    ";
        if (o->letter != 0) {
            snprintf(letter, sizeof(letter), "-%c, ", o->letter);
        }
        snprintf(left, sizeof(left), "%s--%s%s%s", letter, o->name, o->arg != NULL ? " " : "",
                 o->arg != NULL ? o->arg : "");
        printf("  %-28s %s\n", left, o->help);
    }
    printf("  %-28s %s\n", "    --help", "this text");
}

/* Stores one argument. Returns false when it is not what the option wants. */
static bool store(const struct roll_option *o, const char *arg)
{
    char *end = NULL;
    errno = 0;
    switch (o->kind) {
    case ROLL_OPT_FLAG:
        *(bool *)o->value = true;
        return true;
    case ROLL_OPT_TEXT:
        *(const char **)o->value = arg;
        return arg[0] != '\0';
    case ROLL_OPT_COUNT: {
        unsigned long n = strtoul(arg, &end, 10);
        *(uint32_t *)o->value = (uint32_t)n;
        return arg[0] >= '0' && arg[0] <= '9' && *end == '\0' && errno == 0 && n >= 1 && n <= UINT32_MAX;
    }
    case ROLL_OPT_NUMBER: {
        long long n = strtoll(arg, &end, 10);
        *(int64_t *)o->value = n;
        return arg[0] >= '0' && arg[0] <= '9' && *end == '\0' && errno == 0;
    }
    case ROLL_OPT_SECONDS: {
        double s = strtod(arg, &end);
        *(double *)o->value = s;
        return end != arg && *end == '\0' && errno == 0 && isfinite(s) && s > 0 && s < 1e9;
    }
    }
    return false;
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
    struct option longs[ROLL_OPTIONS_MAX + 2];
    char shorts[2 * ROLL_OPTIONS_MAX + 4];
    size_t n = 0, s = 0;

    memset(longs, 0, sizeof(longs));
    if (leading) {
        shorts[s++] = '+';
    }
    shorts[s++] = ':'; /* a missing argument is told apart from an unknown option */
    for (; options[n].name != NULL && n < ROLL_OPTIONS_MAX; n++) {
        bool has_arg = options[n].kind != ROLL_OPT_FLAG;
        longs[n] = (struct option){options[n].name, has_arg ? required_argument : no_argument, NULL, 256 + (int)n};
        if (options[n].letter != 0) {
            shorts[s++] = options[n].letter;
            if (has_arg) {
                shorts[s++] = ':';
            }
        }
    }
    longs[n] = (struct option){"help", no_argument, NULL, 'h'};
    shorts[s++] = 'h';
    shorts[s] = '\0';

    optind = 0; /* glibc: start over, also when called a second time in one process */
    opterr = 0;
    *code = ROLL_EXIT_USAGE;
    for (int c; (c = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
        if (c == 'h') {
            print_help(cmd, options);
            *code = ROLL_EXIT_CLEAN;
            return -1;
        }
        if (c == ':') {
            roll_usage(cmd, "option '%s' needs an argument", argv[optind - 1]);
            return -1;
        }
        const struct roll_option *o = NULL;
        for (size_t i = 0; i < n && c != '?'; i++) {
            if (c == 256 + (int)i || c == options[i].letter) {
                o = &options[i];
                break;
            }
        }
        if (o == NULL) {
            if (optopt > 0 && optopt < 256) {
                roll_usage(cmd, "unknown option '-%c'", optopt);
            } else {
                roll_usage(cmd, optopt == 0 ? "unknown or ambiguous option '%s'" : "option '%s' takes no argument",
                           argv[optind - 1]);
            }
            return -1;
        }
        if (!store(o, optarg)) {
            roll_usage(cmd, "option '--%s %s': wants %s", o->name, optarg, wanted(o->kind));
            return -1;
        }
    }
    *code = ROLL_EXIT_CLEAN;
    return optind;
}
