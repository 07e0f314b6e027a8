/*
 * verdict_brief.c: see verdict_brief.h.
 */
#include "daemon/verdict/verdict_brief.h"

#include "daemon/base/json.h"
#include "trace/remedy.h"
#include "trace/verdict.h"

#include <stdio.h>
#include <string.h>

#define GIST_BYTES  400u
#define SITE_FRAMES 3u /* of a call site that are told, innermost first */
#define PLACES_MOST 6u /* of a verdict */
#define PLACE_BYTES 128u

void roll_verdict_waiting(const struct roll_verdict_list *list, struct roll_rankset *waiting)
{
    for (size_t i = 0; i < list->used; i++) {
        if (roll_verdict_stands(list->at[i])) {
            (void)roll_rankset_union(waiting, &list->at[i]->said.waiting);
        }
    }
}

void roll_verdict_awaited(const struct roll_verdict_list *list, struct roll_rankset *awaited)
{
    for (size_t i = 0; i < list->used; i++) {
        if (roll_verdict_stands(list->at[i]) && list->at[i]->said.code == ROLL_VERDICT_RANK_BUSY) {
            (void)roll_rankset_union(awaited, &list->at[i]->said.culprits);
        }
    }
}

/* The beginning of a text: its first sentence, or as much of it as fits. Texts of verdicts are valid UTF-8. */
static json_t *gist(const char *text)
{
    char out[GIST_BYTES];
    const char *end = strstr(text, ". ");
    size_t n = end ? (size_t)(end - text) + 1 : strlen(text);
    if (n > sizeof(out) - 1) {
        n = sizeof(out) - 1;
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) {
            n--;
        }
    }
    memcpy(out, text, n);
    out[n] = '\0';
    return roll_text_to_json(out);
}

static json_t *comm_name(const struct roll_verdict *v)
{
    const char *name = v->comm_name[0] != '\0' ? v->comm_name : v->comm_label;
    return v->comm_key == 0 || name[0] == '\0' ? json_null() : roll_text_to_json(name);
}

static json_t *number_or_null(uint64_t number)
{
    return number != 0 ? json_integer((json_int_t)number) : json_null();
}

static bool has_text(const json_t *list, const json_t *text)
{
    const json_t *one;
    size_t i;
    json_array_foreach(list, i, one)
    {
        if (json_equal(one, text)) {
            return true;
        }
    }
    return false;
}

/* Who called, for those who search: "step train.py:88", each place once. */
static json_t *places_of(const struct roll_verdict_copy *copy)
{
    json_t *places = json_array();
    for (uint32_t i = 0; i < copy->sites; i++) {
        unsigned told = 0;
        for (size_t k = 0; k < copy->site[i].frames && told < SITE_FRAMES; k++) {
            const struct roll_symbol_frame *f = &copy->site[i].frame[k];
            const char *slash = strrchr(f->file, '/');
            char text[PLACE_BYTES];
            if (f->library || f->function[0] == '\0' || json_array_size(places) >= PLACES_MOST) {
                continue;
            }
            snprintf(text, sizeof(text), "%s %s:%u", f->function, slash ? slash + 1 : f->file, f->line);
            json_t *place = roll_text_to_json(text);
            told++;
            if (!has_text(places, place)) {
                json_array_append(places, place);
            }
            json_decref(place);
        }
    }
    return places;
}

static json_t *finding(const struct roll_verdict_copy *copy)
{
    const struct roll_verdict *v = &copy->said;
    return json_pack("{s:I,s:s,s:s,s:s,s:s,s:o,s:o,s:o,s:I,s:o,s:b,s:o,s:s?,s:o,s:b,s:o,s:o}", "number",
                     (json_int_t)v->number, "code", roll_verdict_name(v->code), "title", roll_verdict_title(v->code),
                     "family", roll_family_name(roll_verdict_family(v->code)), "certainty",
                     roll_certainty_name(v->certainty), "culprits_text", roll_ranks_text_json(&v->culprits),
                     "waiting_text", roll_ranks_text_json(&v->waiting), "comm", comm_name(v), "time_ns",
                     (json_int_t)v->time_ns, "event_ns", number_or_null(v->event_ns), "stands",
                     (int)roll_verdict_stands(copy), "ended_by", number_or_null(copy->ended_by), "ended_how",
                     copy->ended_how, "remedy", v->remedy ? json_string(roll_remedy_name(v->remedy)) : json_null(),
                     "remedied", (int)v->remedied, "gist", gist(v->text), "places", places_of(copy));
}

json_t *roll_verdict_briefs_json(const struct roll_verdict_list *list, size_t most)
{
    json_t *briefs = json_array();
    for (size_t i = list->used; i-- > 0 && json_array_size(briefs) < most;) {
        json_array_append_new(briefs, finding(list->at[i]));
    }
    return json_pack("{s:I,s:o}", "verdicts", (json_int_t)list->used, "findings", briefs);
}

json_t *roll_verdict_waits_json(const struct roll_verdict_list *list, size_t most)
{
    json_t *edges = json_array();
    for (size_t i = list->used; i-- > 0 && json_array_size(edges) < most;) {
        const struct roll_verdict *v = &list->at[i]->said;
        if (roll_verdict_stands(list->at[i]) && v->waiting.used > 0) {
            json_array_append_new(edges, json_pack("{s:I,s:s,s:s,s:o,s:I,s:o,s:I,s:o}", "number", (json_int_t)v->number,
                                                   "code", roll_verdict_name(v->code), "certainty",
                                                   roll_certainty_name(v->certainty), "waiting_text",
                                                   roll_ranks_text_json(&v->waiting), "waiting",
                                                   (json_int_t)roll_rankset_count(&v->waiting), "culprits_text",
                                                   roll_ranks_text_json(&v->culprits), "culprits",
                                                   (json_int_t)roll_rankset_count(&v->culprits), "comm", comm_name(v)));
        }
    }
    return edges;
}
