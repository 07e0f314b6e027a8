/*
 * options.c: see options.h. getopt_long reads, because people know its ways (abbreviations, --name=value, -nVALUE);
 * argp was rejected: its help texts and its exit codes are its own.
 */
#include "daemon/base/options.h"

#include "daemon/base/nearest.h"
#include "daemon/base/text.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ID 256 /* what getopt_long returns for the first row: beyond all letters */

/* Stores one argument, or gives it to the function that the row has. GO_ON, BAD, or an exit code. */
static int store(const struct roll_option *o, const char *arg)
{
    char *end = NULL;
    bool good = true;
    errno = 0;
    switch (o->kind) {
    case ROLL_OPT_FLAG:
        *(bool *)o->value = true;
        break;
    case ROLL_OPT_TEXT:
    case ROLL_OPT_ANY:
        *(const char **)o->value = arg;
        good = o->kind == ROLL_OPT_ANY || arg[0] != '\0';
        break;
    case ROLL_OPT_COUNT: {
        unsigned long n = strtoul(arg, &end, 10);
        *(uint32_t *)o->value = (uint32_t)n;
        good = arg[0] >= '0' && arg[0] <= '9' && *end == '\0' && errno == 0 && n >= 1 && n <= UINT32_MAX;
        break;
    }
    case ROLL_OPT_NUMBER: {
        long long n = strtoll(arg, &end, 10);
        *(int64_t *)o->value = n;
        good = arg[0] >= '0' && arg[0] <= '9' && *end == '\0' && errno == 0;
        break;
    }
    case ROLL_OPT_SECONDS: {
        double s = strtod(arg, &end);
        *(double *)o->value = s;
        good = end != arg && *end == '\0' && errno == 0 && isfinite(s) && s > 0 && s < 1e9;
        break;
    }
    case ROLL_OPT_OWN: {
        const struct roll_option_own *own = o->value;
        return own->take(o, arg, own->into);
    }
    case ROLL_OPT_HELP:
        break;
    }
    return good ? ROLL_OPTION_GO_ON : ROLL_OPTION_BAD;
}

static enum roll_option_event refused(struct roll_option_reader *r)
{
    r->word = r->argv[optind - 1];
    if (optopt > 0 && optopt < FIRST_ID) {
        r->letter = (char)optopt;
        return ROLL_OPTION_LETTER;
    }
    return optopt == 0 ? ROLL_OPTION_UNKNOWN : ROLL_OPTION_EXTRA;
}

enum roll_option_event roll_options_next(struct roll_option_reader *r)
{
    struct option longs[ROLL_OPTIONS_MAX + 1];
    char shorts[2 * ROLL_OPTIONS_MAX + 3];
    size_t n = 0, s = 0;

    memset(longs, 0, sizeof(longs));
    if (r->leading) {
        shorts[s++] = '+';
    }
    shorts[s++] = ':'; /* a missing argument is told apart from an unknown option */
    for (; n < ROLL_OPTIONS_MAX && r->table[n].name != NULL; n++) {
        const struct roll_option *o = &r->table[n];
        longs[n] = (struct option){o->name, o->arg ? required_argument : no_argument, NULL, FIRST_ID + (int)n};
        if (o->letter != 0) {
            shorts[s++] = o->letter;
            if (o->arg) {
                shorts[s++] = ':';
            }
        }
    }
    shorts[s] = '\0';

    opterr = 0;
    optind = r->begun ? optind : 0; /* glibc: start over, also when this is the second command line of a process */
    r->at = r->begun ? optind : 1;
    r->begun = true;
    int c = getopt_long(r->argc, r->argv, shorts, longs, NULL);
    if (c == -1) {
        r->operand = optind;
        return ROLL_OPTION_OVER;
    }
    if (c == ':') {
        r->word = r->argv[optind - 1];
        return ROLL_OPTION_LACKS;
    }
    r->option = NULL;
    for (size_t i = 0; i < n && c != '?' && r->option == NULL; i++) {
        r->option = c == FIRST_ID + (int)i || c == r->table[i].letter ? &r->table[i] : NULL;
    }
    if (r->option == NULL) {
        return refused(r);
    }
    r->word = optarg;
    r->code = store(r->option, optarg);
    return r->code == ROLL_OPTION_GO_ON ? ROLL_OPTION_TAKEN
           : r->code == ROLL_OPTION_BAD ? ROLL_OPTION_WRONG
                                        : ROLL_OPTION_EXIT;
}

/* The options of which the word is the beginning; returns how many. */
static size_t short_for(const struct roll_option *table, const char *word, char *out, size_t size)
{
    size_t n = 0, used = 0;
    out[0] = '\0';
    for (const struct roll_option *o = table; o->name != NULL; o++) {
        if (strncmp(o->name, word, strlen(word)) == 0 && used < size) {
            used += (size_t)snprintf(out + used, size - used, "%s--%s", n > 0 ? ", " : "", o->name);
            n++;
        }
    }
    return n;
}

const char *roll_options_meant(const struct roll_option *table, const char *word, char *out, size_t size)
{
    char typed[ROLL_NEAREST_BYTES + 1], list[256];
    const char *dashless = word + strspn(word, "-");
    struct roll_nearest search = {.typed = typed};
    snprintf(typed, sizeof(typed), "%.*s", (int)strcspn(dashless, "="), dashless);
    out[0] = '\0';
    if (typed[0] == '\0') {
        return out;
    }
    if (short_for(table, typed, list, sizeof(list)) > 1) {
        snprintf(out, size, " (it is short for %s)", list);
        return out;
    }
    for (const struct roll_option *o = table; o->name != NULL; o++) {
        roll_nearest_offer(&search, o->name);
    }
    if (search.found) {
        snprintf(out, size, " (did you mean --%s?)", search.found);
    }
    return out;
}

void roll_options_print(const struct roll_option *table, bool letters, int width, size_t columns)
{
    size_t indent = 2 + (size_t)width + 1;
    for (const struct roll_option *o = table; o->name != NULL; o++) {
        char left[64], letter[8] = "";
        if (letters) {
            memcpy(letter, o->letter != 0 ? "-x, " : "    ", 5);
            letter[1] = o->letter != 0 ? o->letter : ' ';
        }
        snprintf(left, sizeof(left), "%s--%s%s%s", letter, o->name, o->arg != NULL ? " " : "",
                 o->arg != NULL ? o->arg : "");
        bool below = strlen(left) > (size_t)width; /* there is no room beside it */
        if (columns == 0) {
            printf("  %-*s %s\n", width, left, o->help);
        } else {
            printf("  %-*s%s", width, left, below ? "\n" : " ");
            printf("%*s", below ? (int)indent : 0, "");
            roll_text_wrap(o->help, indent, columns, stdout);
        }
    }
}
