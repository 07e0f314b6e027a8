/*
 * root_why.c: which verdict explains why a rank waits, for `rollcall why`.
 *
 * The engine says what a rank waits for; a verdict says what went wrong. They are joined here by the root, which has
 * the verdicts, and only where the records allow no other reading: the verdict names the rank and the rank has made no
 * call since, or the rank stands on the verdict's communicator behind the operation that never completed. Naming a
 * verdict that the job has got over would be worse than naming none.
 */
#include "daemon/root/root_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool holds(const json_t *ranks, int32_t rank)
{
    size_t i;
    json_t *one;
    json_array_foreach(ranks, i, one)
    {
        if (json_integer_value(one) == rank) {
            return true;
        }
    }
    return false;
}

/* How far all members of a communicator have come; 0 when it is not known. */
static uint64_t done_of(const struct roll_run *run, uint64_t key)
{
    struct roll_view_comm view;
    for (uint32_t i = 0; roll_engine_comm(roll_feed_engine(run->feed), i, &view); i++) {
        if (view.key == key) {
            return view.done;
        }
    }
    return 0;
}

/* Does the rank stand behind the operation that the verdict is about, and is that still incomplete? */
static bool stands_behind(const struct roll_run *run, const json_t *verdict, const struct roll_view_source *v)
{
    const char *text = json_string_value(json_object_get(json_object_get(verdict, "comm"), "key"));
    const json_t *seq = json_object_get(verdict, "seq");
    if (!text || !json_is_integer(seq) || roll_op_class(v->last.op) != ROLL_CLASS_COLL) {
        return false;
    }
    uint64_t key = strtoull(text, NULL, 16), number = (uint64_t)json_integer_value(seq);
    return key == v->last_comm_key && number <= v->last.seq && done_of(run, key) <= number;
}

const json_t *roll_why_verdict(const struct roll_run *run, const struct roll_view_source *v)
{
    bool waits = v->in_call || v->waits_for > 0;
    for (size_t i = json_array_size(run->verdicts); i-- > 0;) {
        const json_t *verdict = json_array_get(run->verdicts, i);
        if (!roll_verdict_json_is_finding(verdict) || roll_verdict_json_retired_by(run->verdicts, verdict)) {
            continue;
        }
        bool culprit = holds(json_object_get(verdict, "culprits"), v->info.world_rank);
        bool named = culprit || holds(json_object_get(verdict, "waiting"), v->info.world_rank);
        bool still = v->last_ns <= (uint64_t)json_integer_value(json_object_get(verdict, "time_ns"));
        if ((named && still && (waits || culprit)) || (waits && stands_behind(run, verdict, v))) {
            return verdict;
        }
    }
    return NULL;
}

/* Up to the first full stop that ends a sentence: one with a space behind it. */
static int sentence(const char *text)
{
    const char *end = strstr(text, ". ");
    size_t n = end ? (size_t)(end - text) + 1 : strlen(text);
    return (int)(n < 400 ? n : 400);
}

void roll_why_quote(const json_t *verdict, FILE *out)
{
    const char *text = json_string_value(json_object_get(verdict, "text"));
    const char *code = json_string_value(json_object_get(verdict, "code"));
    const char *certainty = json_string_value(json_object_get(verdict, "certainty"));
    if (text && code && certainty) {
        fprintf(out, " Verdict %" JSON_INTEGER_FORMAT " (%s, %s): %.*s",
                json_integer_value(json_object_get(verdict, "number")), code, certainty, sentence(text), text);
    }
}
