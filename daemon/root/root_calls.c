/*
 * root_calls.c: for the page: the calls of some ranks around a moment, and the lines of source that a verdict names.
 *
 * Both are where the rank is: its ring, which a root that compares by digests never sees, and its files, in its own
 * root, read by an agent of its own user under the rules of daemon/stack/source_line.c. So their agents are asked. To
 * read files at the root was rejected: there it is another host, another user, and another file of the same name; and
 * whoever may write a ring would choose what the root's user reads out to who looks. Nobody who asks names a file: the
 * lines are those of a verdict, and an agent reads only what the ring of its rank defines as a line of its program.
 */
#include "daemon/root/root_collect.h"

#include "daemon/base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MOST  32u  /* that are drawn at a time */
#define CALLS       256u /* of each, where nobody says how many */
#define CALLS_MOST  512u
#define ROWS_MOST   8192u /* of all together */
#define FRAMES_MOST 4u    /* of one call site, whose lines are read */
#define TIMEOUT_MS  5000u

static json_t *error(const char *text)
{
    return json_pack("{s:s}", "error", text);
}

/* What has come of an earlier question; NULL: the query is a question. */
static json_t *fetched(const roll_root_t *root, enum roll_collect kind, const json_t *query)
{
    const json_t *id = json_object_get(query, "id");
    json_int_t from = json_integer_value(json_object_get(query, "from"));
    return json_is_integer(id)
               ? roll_collect_fetch(root, kind, (uint64_t)json_integer_value(id), from > 0 ? (size_t)from : 0)
               : NULL;
}

json_t *roll_calls_query(roll_root_t *root, struct roll_run *run, const json_t *query)
{
    const char *text = json_string_value(json_object_get(query, "ranks"));
    struct roll_rankset ranks = {0};
    json_t *answer = fetched(root, ROLL_COLLECT_CALLS, query);
    if (answer) {
        return answer;
    }
    bool parsed = text && roll_rankset_parse(text, &ranks) == 0;
    size_t n = parsed ? roll_rankset_count(&ranks) : 0;
    if (n == 0 || n > RANKS_MOST) {
        roll_rankset_fini(&ranks);
        return error(n > RANKS_MOST ? "ranks: at most 32 of them" : "ranks: a set such as 0-3,7");
    }
    unsigned calls = roll_collect_bounded(query, "calls", CALLS, CALLS_MOST);
    calls = calls * n > ROWS_MOST ? (unsigned)(ROWS_MOST / n) : calls;
    json_int_t around = json_integer_value(json_object_get(query, "around_ms"));
    json_t *options = json_pack("{s:i,s:I}", "calls", (int)calls, "around_ms", around > 0 ? around : 0);
    struct roll_collection *c = roll_collect(root, run, ROLL_COLLECT_CALLS, &ranks, options, TIMEOUT_MS, 0, NULL);
    json_t *folded = roll_ranks_text_json(&ranks);
    roll_rankset_fini(&ranks);
    return roll_collect_begun(c, folded);
}

/* source */

static const struct roll_verdict_copy *verdict_of(const struct roll_run *run, const json_t *query)
{
    json_int_t number = json_integer_value(json_object_get(query, "number"));
    for (size_t i = 0; i < run->verdicts.used; i++) {
        if ((json_int_t)run->verdicts.at[i]->said.number == number) {
            return run->verdicts.at[i];
        }
    }
    return NULL;
}

/* The rank to ask for the lines of a call site: the first of a side that has it; -1: none has. */
static int64_t rank_of(const struct roll_verdict_copy *v, uint32_t site)
{
    for (uint32_t i = 0; i < v->said.sides; i++) {
        if (v->side_site[i] == (int)site && roll_rankset_count(&v->said.side[i].ranks) > 0) {
            return roll_rankset_at(&v->said.side[i].ranks, 0);
        }
    }
    return -1;
}

/* The user's lines of a call site. */
static void add_lines(const struct roll_verdict_site *site, const char *stream, json_t *lines)
{
    unsigned n = 0;
    for (size_t i = 0; i < site->frames && n < FRAMES_MOST; i++) {
        const struct roll_symbol_frame *f = &site->frame[i];
        if (f->python && !f->library && f->file[0] == '/' && f->line > 0) {
            n++;
            json_array_append_new(lines, json_pack("{s:s,s:o,s:I}", "stream", stream, "file",
                                                   roll_text_to_json(f->file), "line", (json_int_t)f->line));
        }
    }
}

json_t *roll_source_query(roll_root_t *root, struct roll_run *run, const json_t *query)
{
    json_t *answer = fetched(root, ROLL_COLLECT_SOURCE, query);
    const struct roll_verdict_copy *v = answer ? NULL : verdict_of(run, query);
    struct roll_rankset ranks = {0};
    if (answer) {
        return answer;
    }
    if (!v) {
        return error("number: that of a verdict of this run");
    }
    json_t *lines = json_array();
    for (uint32_t i = 0; i < v->sites; i++) {
        struct roll_view_source source;
        char stream[24];
        int64_t rank = rank_of(v, i);
        if (rank >= 0 && roll_run_rank(run, (uint32_t)rank, &source)) {
            snprintf(stream, sizeof(stream), "%016llx", (unsigned long long)source.info.stream);
            add_lines(&v->site[i], stream, lines);
            (void)roll_rankset_add(&ranks, (uint32_t)rank);
        }
    }
    if (json_array_size(lines) == 0) {
        json_decref(lines);
        roll_rankset_fini(&ranks);
        return json_pack("{s:i,s:i,s:s}", "id", 0, "count", 0, "ranks", ""); /* no line of the job's own is known */
    }
    struct roll_collection *c = roll_collect(root, run, ROLL_COLLECT_SOURCE, &ranks, json_pack("{s:o}", "lines", lines),
                                             TIMEOUT_MS, v->said.number, NULL);
    json_t *folded = roll_ranks_text_json(&ranks);
    roll_rankset_fini(&ranks);
    return roll_collect_begun(c, folded);
}
