/*
 * told.c: what people were told: the lines of the root's file, as findings that the simulator's judge knows.
 */
#include "tests/world/play.h"

#include "trace/verdict.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static enum roll_certainty certainty_of(const char *name)
{
    for (int c = 0; name && c < 8; c++) {
        if (strcmp(roll_certainty_name((enum roll_certainty)c), name) == 0) {
            return (enum roll_certainty)c;
        }
    }
    return ROLL_NOTE;
}

static void end_earlier(struct findings *out, const json_t *json, const char *how)
{
    uint64_t number = (uint64_t)json_integer_value(json_object_get(json, how));
    for (uint32_t i = 0; number != 0 && i < out->founds; i++) {
        if (out->found[i].number == number) {
            out->found[i].superseded = true;
            out->found[i].withdrawn = strcmp(how, "withdraws") == 0;
        }
    }
}

static void take(struct findings *out, const json_t *json)
{
    struct found one = {.code = roll_verdict_by_name(json_string_value(json_object_get(json, "code"))),
                        .certainty = certainty_of(json_string_value(json_object_get(json, "certainty"))),
                        .number = (uint64_t)json_integer_value(json_object_get(json, "number"))};
    size_t i;
    json_t *value;
    end_earlier(out, json, "supersedes");
    end_earlier(out, json, "confirms");
    end_earlier(out, json, "withdraws");
    if (one.certainty == ROLL_NOTE || out->founds == FOUND_MAX) {
        return;
    }
    json_array_foreach (json_object_get(json, "culprits"), i, value) {
        json_int_t rank = json_integer_value(value);
        one.culprits = (mask_t)(one.culprits | (rank >= 0 && rank < (json_int_t)RANKS_MAX ? BIT(rank) : 0));
    }
    json_array_foreach (json_object_get(json, "may_be"), i, value) {
        if (one.may_bes < 4 && json_is_string(value)) {
            one.may_be[one.may_bes++] = roll_verdict_by_name(json_string_value(value));
        }
    }
    const char *text = json_string_value(json_object_get(json, "text"));
    one.text = strdup(text ? text : "");
    out->found[out->founds++] = one;
}

void told_read(const char *path, long from, const char *job, struct findings *out)
{
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t room = 0;
    memset(out, 0, sizeof(*out));
    out->style = "world";
    if (file && fseek(file, from, SEEK_SET) == 0) {
        while (getline(&line, &room, file) > 0) {
            json_t *json = json_loads(line, 0, NULL);
            const char *of = json_string_value(json_object_get(json, "job"));
            if (of && strcmp(of, job) == 0) {
                take(out, json);
            }
            json_decref(json);
        }
    }
    free(line);
    if (file) {
        fclose(file);
    }
}
