/*
 * told.c: what people were told: a root's verdicts, or the lines of its file, as findings that the simulator's judge
 * knows.
 */
#include "tests/world/play.h"

#include "daemon/verdict/verdict.h"

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

static void end_earlier(struct findings *out, uint64_t number, bool withdraws)
{
    for (uint32_t i = 0; number != 0 && i < out->founds; i++) {
        if (out->found[i].number == number) {
            out->found[i].superseded = true;
            out->found[i].withdrawn = withdraws;
        }
    }
}

static uint64_t number_of(const json_t *json, const char *name)
{
    return (uint64_t)json_integer_value(json_object_get(json, name));
}

/* Makes room: of days with many pauses there are more suspicions that are over than findings that count. */
static void forget_one(struct findings *out)
{
    for (uint32_t i = 0; i < out->founds; i++) {
        if (out->found[i].superseded && out->found[i].certainty == ROLL_SUSPECTED) {
            free(out->found[i].text);
            out->founds--;
            memmove(&out->found[i], &out->found[i + 1], (out->founds - i) * sizeof(out->found[0]));
            return;
        }
    }
}

static void add(struct findings *out, const struct found *one, const char *text)
{
    if (one->certainty != ROLL_NOTE && out->founds == FOUND_MAX) {
        forget_one(out);
    }
    if (one->certainty != ROLL_NOTE && out->founds < FOUND_MAX) {
        out->found[out->founds] = *one;
        out->found[out->founds++].text = strdup(text ? text : "");
    }
}

void told_take(const struct roll_verdict_list *list, struct findings *out)
{
    memset(out, 0, sizeof(*out));
    out->style = "world";
    for (size_t i = 0; i < list->used; i++) {
        const struct roll_verdict *v = &list->at[i]->said;
        struct found one = {.code = v->code, .certainty = v->certainty, .number = v->number};
        end_earlier(out, v->supersedes, false);
        end_earlier(out, v->confirms, false);
        end_earlier(out, v->withdraws, true);
        for (size_t k = 0; k < roll_rankset_count(&v->culprits); k++) {
            uint32_t rank = roll_rankset_at(&v->culprits, k);
            one.culprits = (mask_t)(one.culprits | (rank < RANKS_MAX ? BIT(rank) : 0));
        }
        for (; one.may_bes < v->may_bes && one.may_bes < 4; one.may_bes++) {
            one.may_be[one.may_bes] = v->may_be[one.may_bes];
        }
        add(out, &one, v->text);
    }
}

static void take(struct findings *out, const json_t *json)
{
    struct found one = {.code = roll_verdict_by_name(json_string_value(json_object_get(json, "code"))),
                        .certainty = certainty_of(json_string_value(json_object_get(json, "certainty"))),
                        .number = number_of(json, "number")};
    size_t i;
    json_t *value;
    end_earlier(out, number_of(json, "supersedes"), false);
    end_earlier(out, number_of(json, "confirms"), false);
    end_earlier(out, number_of(json, "withdraws"), true);
    json_array_foreach(json_object_get(json, "culprits"), i, value)
    {
        json_int_t rank = json_integer_value(value);
        one.culprits = (mask_t)(one.culprits | (rank >= 0 && rank < (json_int_t)RANKS_MAX ? BIT(rank) : 0));
    }
    json_array_foreach(json_object_get(json, "may_be"), i, value)
    {
        if (one.may_bes < 4 && json_is_string(value)) {
            one.may_be[one.may_bes++] = roll_verdict_by_name(json_string_value(value));
        }
    }
    add(out, &one, json_string_value(json_object_get(json, "text")));
}

void told_read(const char *path, long from, long to, const char *job, struct findings *out)
{
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t room = 0;
    memset(out, 0, sizeof(*out));
    out->style = "world";
    if (file && fseek(file, from, SEEK_SET) == 0) {
        while ((to == 0 || ftell(file) < to) && getline(&line, &room, file) > 0) {
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
