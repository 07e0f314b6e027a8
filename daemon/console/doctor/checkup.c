/*
 * checkup.c: how the outcome of a check is said: a line for people, or one of JSON.
 */
#include "daemon/console/console.h"
#include "daemon/console/doctor/doctor.h"
#include "daemon/console/text.h"

#include <stdarg.h>
#include <stdio.h>

void roll_checkup_say(struct roll_checkup *c, const char *check, enum roll_health health, const char *format, ...)
{
    static const char *const words[] = {"OK", "WARN", "FAIL", "--"};
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    c->warned += health == ROLL_HEALTH_WARN;
    c->failed += health == ROLL_HEALTH_FAIL;
    if (!c->json) {
        printf("%-4s  %-14s  %s\n", words[health], check, text);
        return;
    }
    json_t *line = json_pack("{s:s, s:s, s:s, s:s}", "schema", "rollcall.doctor/1", "check", check, "state",
                             words[health], "text", text);
    if (line != NULL) {
        roll_json_line(line, stdout);
    }
    json_decref(line);
}

void roll_checkup_conclude(struct roll_checkup *c, enum roll_health health, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    roll_checkup_say(c, "in short", health, "%s", text);
}
