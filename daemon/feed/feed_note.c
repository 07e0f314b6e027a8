/*
 * feed_note.c: see feed_note.h.
 *
 * The text in a note was written by an agent, and part of it by the kernel of its node: so the text is cut, and what a
 * terminal would obey is taken out, before the engine makes a sentence of it.
 */
#include "daemon/feed/feed_note.h"

#include "trace/err.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define NOTE_RANKS (1 << 24) /* a higher rank in a note is refused */

/* A bounded copy of a text that came from outside, without what a terminal would obey. */
static const char *clean_text(const json_t *from, const char *key, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(from, key));
    snprintf(out, size, "%s", text ? text : "?");
    for (char *p = out; *p; p++) {
        *p = (unsigned char)*p < ' ' || *p == 127 ? '?' : *p;
    }
    return out;
}

static int unseen(roll_engine_t *engine, const json_t *json)
{
    char host[ROLL_NAME_BYTES], exe[128], reason[128];
    const json_t *pid = json_object_get(json, "pid"), *rank = json_object_get(json, "rank");
    struct roll_engine_note note = {
        .pid = (uint32_t)json_integer_value(pid),
        .world_rank = json_is_integer(rank) ? (int32_t)json_integer_value(rank) : -1,
        .host = clean_text(json, "host", host, sizeof(host)),
        .exe = clean_text(json, "exe", exe, sizeof(exe)),
        .reason = clean_text(json, "reason", reason, sizeof(reason)),
    };
    bool fits = json_integer_value(pid) > 0 && json_integer_value(pid) <= INT32_MAX && note.world_rank >= -1 &&
                note.world_rank < NOTE_RANKS;
    return fits ? roll_engine_note(engine, &note) : ROLL_E_CORRUPT;
}

static int node_facts(roll_engine_t *engine, const json_t *json)
{
    char host[ROLL_NAME_BYTES], text[ROLL_NOTE_FACTS][ROLL_NOTE_TEXT_BYTES];
    struct roll_engine_fact fact[ROLL_NOTE_FACTS];
    const json_t *verdict = json_object_get(json, "verdict"), *list = json_object_get(json, "facts");
    json_int_t more = json_integer_value(json_object_get(json, "more"));
    struct roll_engine_facts facts = {.verdict = (uint64_t)json_integer_value(verdict),
                                      .host = clean_text(json, "host", host, sizeof(host)),
                                      .fact = fact,
                                      .more = more > 0 && more < INT32_MAX ? (size_t)more : 0};
    if (!json_is_integer(verdict) || json_integer_value(verdict) <= 0 || !json_is_array(list)) {
        return ROLL_E_CORRUPT;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(item, "kind"));
        enum roll_fact kind = name ? roll_fact_by_name(name) : ROLL_FACT_NONE;
        if (kind == ROLL_FACT_NONE) {
            continue; /* a newer agent may know kinds of facts that this reader does not */
        }
        if (facts.facts == ROLL_NOTE_FACTS) {
            facts.more++;
            continue;
        }
        fact[facts.facts].kind = kind;
        fact[facts.facts].text = clean_text(item, "text", text[facts.facts], ROLL_NOTE_TEXT_BYTES);
        facts.facts++;
    }
    return roll_engine_facts(engine, &facts);
}

int roll_feed_note(roll_engine_t *engine, const struct roll_frame *frame)
{
    json_t *json = json_loadb((const char *)frame->payload, frame->head.payload, 0, NULL);
    const char *kind = json_string_value(json_object_get(json, "note"));
    int err = json_is_object(json) && kind ? 0 : ROLL_E_CORRUPT;
    if (!err &&
        strcmp(kind, "attached-unseen") == 0) { /* a newer agent may make notes that this reader does not know */
        err = unseen(engine, json);
    } else if (!err && strcmp(kind, "node-facts") == 0) {
        err = node_facts(engine, json);
    }
    json_decref(json);
    return err;
}
