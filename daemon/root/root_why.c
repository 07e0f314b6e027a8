/*
 * root_why.c: which verdict explains why a rank waits, for `rollcall why`.
 *
 * The engine says what a rank waits for; a verdict says what went wrong. The root, which has the verdicts, joins the
 * two, and only where the records allow no other reading: the verdict names the rank and the rank has made no call
 * since, or has been waiting since before in a call on the verdict's communicator, while its host ran on; or the rank
 * stands on the verdict's communicator behind the operation that never completed. Naming a verdict that the job has got
 * over would be worse than naming none.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/array.h"
#include "trace/err.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PLACES_TOLD 3u /* places of ranks that otherwise stand alike */
#define PLACE_BYTES 256u
#define TEXT_TOLD   120

static bool holds(const struct roll_rankset *ranks, int32_t rank)
{
    return rank >= 0 && roll_rankset_has(ranks, (uint32_t)rank);
}

int roll_why_begin(const struct roll_run *run, struct roll_why *out)
{
    const roll_engine_t *engine = roll_feed_engine(roll_run_judge(run));
    *out = (struct roll_why){.run = run};
    for (size_t i = run->verdicts.used; i-- > 0;) {
        const struct roll_verdict_copy *copy = run->verdicts.at[i];
        if (roll_verdict_stands(copy)) {
            if (ROLL_GROW(out->at, out->room, out->used + 1) != 0) {
                roll_why_end(out);
                return ROLL_E_NOMEM;
            }
            out->at[out->used++] = (struct roll_why_verdict){
                copy, copy->said.comm_key ? roll_engine_done(engine, copy->said.comm_key) : 0};
        }
    }
    return 0;
}

void roll_why_end(struct roll_why *why)
{
    free(why->at);
    *why = (struct roll_why){.at = NULL};
}

/* Does the rank stand behind the operation that the verdict is about, and is that still incomplete? */
static bool stands_behind(const struct roll_why_verdict *w, const struct roll_view_source *v)
{
    uint64_t key = w->verdict->said.comm_key, number = w->verdict->said.seq;
    return key != 0 && key == v->last_comm_key && roll_op_class(v->last.op) == ROLL_CLASS_COLL &&
           number <= v->last.seq && w->done <= number;
}

/* The rank, which the verdict names, issued a call on the verdict's communicator before the verdict was said, and that
 * call is incomplete to this day: so it still waits for what it waited for then, whatever its host has issued since. */
static bool waits_still(const struct roll_why *why, const struct roll_verdict *verdict, uint32_t rank)
{
    const roll_engine_t *engine = roll_feed_engine(roll_run_judge(why->run));
    uint64_t since = verdict->comm_key ? roll_engine_incomplete_since(engine, rank, verdict->comm_key) : 0;
    return since != 0 && since <= verdict->time_ns;
}

const struct roll_verdict_copy *roll_why_verdict(const struct roll_why *why, const struct roll_view_source *v)
{
    bool waits = v->in_call || v->pending > 0;
    for (size_t i = 0; i < why->used; i++) {
        const struct roll_verdict *verdict = &why->at[i].verdict->said;
        bool culprit = holds(&verdict->culprits, v->info.world_rank);
        bool named = culprit || holds(&verdict->waiting, v->info.world_rank);
        bool still = v->last_ns <= verdict->time_ns;
        if ((named && still && (waits || culprit)) || (waits && stands_behind(&why->at[i], v)) ||
            (named && waits && waits_still(why, verdict, (uint32_t)v->info.world_rank))) {
            return why->at[i].verdict;
        }
    }
    return NULL;
}

bool roll_why_place(const struct roll_run *run, const struct roll_view_source *v, char *out, size_t size,
                    const char **text)
{
    struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
    int n = v->last.op == ROLL_OP_NONE ? 0
                                       : roll_symbols_lines(roll_feed_symbols(roll_run_judge(run)), v->info.stream,
                                                            v->last.callsite, frame, ROLL_SYMBOL_FRAMES);
    return n > 0 && roll_symbols_place(frame, (size_t)n, out, size, text);
}

void roll_why_called(const struct roll_run *run, const struct roll_rankset *ranks, FILE *out)
{
    char told[PLACES_TOLD][PLACE_BYTES], place[PLACE_BYTES];
    struct roll_view_source v;
    size_t n = 0, count = roll_rankset_count(ranks);
    bool many = count > 1;
    /* There may be as many such sets as ranks, so only the ranks of this one are looked at. */
    for (size_t i = 0; n < PLACES_TOLD && i < count; i++) {
        const char *text = "";
        bool new = roll_engine_rank(roll_feed_engine(roll_run_judge(run)), roll_rankset_at(ranks, i), &v) &&
                   roll_why_place(run, &v, place, sizeof(place), &text);
        for (size_t k = 0; k < n && new; k++) {
            new = strcmp(told[k], place) != 0;
        }
        if (!new) {
            continue;
        }
        bool at = place[0] != '\0' && strncmp(place, "in backward,", 12) != 0 && strncmp(place, "while ", 6) != 0;
        if (n == 0) {
            fprintf(out, many ? " The calls were made %s%s" : " The call was made %s%s", at ? "at " : "", place);
        } else {
            fprintf(out, "; rank %d's %s%s", v.info.world_rank, at ? "at " : "", place);
        }
        fprintf(out, *text != '\0' ? ": `%.*s`" : "%.*s", TEXT_TOLD, text);
        snprintf(told[n++], sizeof(told[0]), "%s", place);
    }
    fputs(n > 0 ? "." : "", out);
}

/* Length of the text up to the first full stop that ends a sentence, which is one with a space behind it. */
static int sentence(const char *text)
{
    const char *end = strstr(text, ". ");
    size_t n = end ? (size_t)(end - text) + 1 : strlen(text);
    return (int)(n < 400 ? n : 400);
}

void roll_why_quote(const struct roll_verdict *verdict, FILE *out)
{
    fprintf(out, " Verdict %" PRIu64 " (%s, %s): %.*s", verdict->number, roll_verdict_name(verdict->code),
            roll_certainty_name(verdict->certainty), sentence(verdict->text), verdict->text);
}
