/*
 * checkup.c: how the outcomes of the checks are said: a line each for people, or an object of JSON.
 *
 * What all of it means together is what people come for, so it is the first line, and the others are kept until it is
 * known. A line for each check as it ends, with the conclusion below them, was rejected: it scrolls away, and the
 * checks take a moment (one that asks a root that is away, seconds).
 */
#include "daemon/base/array.h"
#include "daemon/base/colour.h"
#include "daemon/base/json.h"
#include "daemon/base/text.h"
#include "daemon/console/console.h"
#include "daemon/console/doctor/doctor.h"
#include "daemon/console/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IN_SHORT "in short"
#define INDENT   22 /* where the texts begin */
#define NAMED    6u /* checks that the first line names at most */

struct roll_checkup_line {
    enum roll_health health;
    char check[24];
    char *text; /* owned */
};

static void print_json(const char *word, const char *check, const char *text)
{
    json_t *line = json_pack("{s:s, s:s, s:s, s:o}", "schema", "rollcall.doctor/1", "check", check, "state", word,
                             "text", roll_text_to_json(text));
    if (line != NULL) {
        roll_json_line(line, stdout);
    }
    json_decref(line);
}

static void print(const struct roll_checkup *c, enum roll_health health, const char *check, const char *text)
{
    static const struct {
        const char *word, *style;
    } states[] = {{"OK", ROLL_GREEN}, {"WARN", ROLL_YELLOW}, {"FAIL", ROLL_BOLD ROLL_RED}, {"--", ""}};
    bool is_terminal = isatty(STDOUT_FILENO) == 1, coloured = roll_colour_wanted(STDOUT_FILENO);
    if (c->json) {
        print_json(states[health].word, check, text);
        return;
    }
    printf("%s%-4s%s  %-14s  ", coloured ? states[health].style : "", states[health].word, coloured ? ROLL_PLAIN : "",
           check);
    if (is_terminal) {
        roll_text_wrap(text, INDENT, roll_columns_wanted(STDOUT_FILENO), stdout);
    } else {
        roll_text_put(text, strlen(text), stdout); /* a line a check, for who looks for one */
        putchar('\n');
    }
}

void roll_checkup_say(struct roll_checkup *c, const char *check, enum roll_health health, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    c->warned += health == ROLL_HEALTH_WARN;
    c->failed += health == ROLL_HEALTH_FAIL;
    char *copy = ROLL_GROW(c->line, c->room, c->used + 1u) == 0 ? strdup(text) : NULL;
    if (copy == NULL) {
        print(c, health, check, text); /* out of its order, but said */
        return;
    }
    struct roll_checkup_line *line = &c->line[c->used++];
    line->health = health;
    line->text = copy;
    snprintf(line->check, sizeof(line->check), "%s", check);
}

void roll_checkup_conclude(struct roll_checkup *c, enum roll_health health, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(c->conclusion, sizeof(c->conclusion), format, args);
    va_end(args);
    c->concluded = health;
    c->failed += health == ROLL_HEALTH_FAIL;
}

/* "rings, limits and keys": the checks that came out so, each once. */
static const char *names(const struct roll_checkup *c, enum roll_health health, char *out, size_t size)
{
    const char *name[NAMED + 1];
    size_t n = 0, used = 0;
    for (size_t i = 0; i < c->used && n <= NAMED; i++) {
        bool is_new = c->line[i].health == health;
        for (size_t k = 0; k < n; k++) {
            is_new = is_new && strcmp(name[k], c->line[i].check) != 0;
        }
        if (is_new) {
            name[n++] = c->line[i].check;
        }
    }
    out[0] = '\0';
    for (size_t i = 0; i < n && i < NAMED && used < size; i++) {
        bool is_last = i + 1 == n;
        used += (size_t)snprintf(out + used, size - used, "%s%s", i == 0 ? "" : is_last ? " and " : ", ", name[i]);
    }
    if (n > NAMED && used < size) {
        snprintf(out + used, size - used, " and others");
    }
    return out;
}

/* What the checks mean together: what was concluded about the program, and what of this machine is in its way. */
static void print_in_short(const struct roll_checkup *c)
{
    char text[1024], failing[256], warning[256];
    bool about = c->conclusion[0] != '\0', fails = c->failed > 0;
    names(c, ROLL_HEALTH_FAIL, failing, sizeof(failing));
    names(c, ROLL_HEALTH_WARN, warning, sizeof(warning));
    if (about && c->concluded == ROLL_HEALTH_FAIL) {
        snprintf(text, sizeof(text), "%s", c->conclusion);
    } else if (about) {
        snprintf(text, sizeof(text), "%s%s%s%s", c->conclusion, fails ? " But first mend what fails: " : "",
                 fails ? failing : "", fails ? "." : "");
    } else if (fails) {
        snprintf(text, sizeof(text), "rollcall does not work here yet. This fails: %s.", failing);
    } else {
        snprintf(text, sizeof(text), "rollcall works here.%s%s%s", warning[0] != '\0' ? " Worth a look: " : "", warning,
                 warning[0] != '\0' ? "." : "");
    }
    print(c, fails ? ROLL_HEALTH_FAIL : about ? c->concluded : ROLL_HEALTH_OK, IN_SHORT, text);
}

void roll_checkup_print(struct roll_checkup *c)
{
    print_in_short(c);
    for (size_t i = 0; i < c->used; i++) {
        print(c, c->line[i].health, c->line[i].check, c->line[i].text);
        free(c->line[i].text);
    }
    free(c->line);
    c->line = NULL;
    c->used = c->room = 0;
}
