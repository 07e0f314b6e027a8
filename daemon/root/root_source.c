/*
 * root_source.c: for the page: the lines of source that a verdict names, and three before and behind each.
 *
 * They are where the rank is, in its own root, and read there by an agent of its own user under the rules of
 * daemon/stack/source_line.c. To read files here was rejected: this is another host, another user, and another file of
 * the same name; and whoever may write a ring would choose what the root's user reads out to who looks. Nobody who asks
 * names a file: the lines are those of a verdict, and an agent reads only what the ring of its rank defines as a line
 * of its program.
 *
 * A root that has a page asks for the lines of each finding when it says it, and keeps them with it: a job that is
 * looked at in the morning has ended in the night. Once it has them nobody is asked again: they are as they were then.
 */
#include "daemon/root/root_collect.h"

#include "daemon/base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRAMES_MOST 4u         /* of one call site, whose lines are read */
#define KEPT_BYTES  (1u << 20) /* of a run, all of its findings together */
#define TIMEOUT_MS  5000u

struct roll_sources {
    struct roll_kept {
        uint64_t verdict;
        json_t *answers;
    } kept[ROLL_SOURCES_KEPT];
    size_t used, bytes, asked, looked; /* looked: so many verdicts of the list are done with */
    bool asking;
};

static json_t *error(const char *text)
{
    return json_pack("{s:s}", "error", text);
}

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

/* Asks for the lines of a verdict. *none: no line of the job's own is known, and nobody is asked. Else NULL: not now.
 */
static struct roll_collection *ask(roll_root_t *root, const struct roll_run *run, const struct roll_verdict_copy *v,
                                   const struct roll_collect_hooks *hooks, bool *none, json_t **ranks_text)
{
    struct roll_collection *c = NULL;
    struct roll_rankset ranks = {0};
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
    *none = json_array_size(lines) == 0;
    if (*none) {
        json_decref(lines);
    } else {
        c = roll_collect(root, run, ROLL_COLLECT_SOURCE, &ranks, json_pack("{s:o}", "lines", lines), TIMEOUT_MS,
                         v->said.number, hooks);
    }
    if (ranks_text) {
        *ranks_text = roll_ranks_text_json(&ranks);
    }
    roll_rankset_fini(&ranks);
    return c;
}

/* keeping */

static struct roll_run *run_of(const roll_root_t *root, uint64_t id)
{
    for (size_t i = 0; i < root->runs_used; i++) {
        if (root->runs[i]->id == id) {
            return root->runs[i];
        }
    }
    return NULL;
}

/* Whether an answer has the text of a line: without any it is no use later. */
static bool has_text(const json_t *answers)
{
    const json_t *answer, *line;
    size_t i, k;
    json_array_foreach(answers, i, answer)
    {
        json_array_foreach(json_object_get(json_object_get(answer, "source"), "lines"), k, line)
        {
            if (json_array_size(json_object_get(line, "texts")) > 0) {
                return true;
            }
        }
    }
    return false;
}

/* All have answered whom a finding's lines were asked from. */
static void came(roll_root_t *root, const struct roll_collection *c)
{
    struct roll_run *run = run_of(root, c->run);
    struct roll_sources *s = run ? run->sources : NULL;
    if (!s) {
        return;
    }
    size_t bytes = json_dumpb(c->answers, NULL, 0, JSON_COMPACT);
    s->asking = false;
    if (has_text(c->answers) && s->used < ROLL_SOURCES_KEPT && s->bytes + bytes <= KEPT_BYTES) {
        s->kept[s->used++] = (struct roll_kept){.verdict = c->verdict, .answers = json_incref(c->answers)};
        s->bytes += bytes;
    }
}

static void look(roll_root_t *root, struct roll_run *run)
{
    static const struct roll_collect_hooks hooks = {.done = came};
    struct roll_sources *s = run->sources;
    while (!s->asking && s->looked < run->verdicts.used && s->asked < ROLL_SOURCES_KEPT) {
        const struct roll_verdict_copy *v = run->verdicts.at[s->looked];
        bool none = true;
        s->asking = true; /* before: who is not connected has answered at once */
        if (roll_verdict_is_finding(&v->said) && !ask(root, run, v, &hooks, &none, NULL) && !none) {
            s->asking = false;
            return; /* as much is asked for others as there may be: later */
        }
        s->asked += !none;
        s->asking = s->asking && !none;
        s->looked++;
    }
}

void roll_sources_tick(roll_root_t *root)
{
    for (size_t i = 0; root->page && i < root->runs_used; i++) {
        struct roll_run *run = root->runs[i];
        run->sources = run->sources ? run->sources : calloc(1, sizeof(*run->sources));
        if (run->sources) {
            look(root, run);
        }
    }
}

void roll_sources_destroy(struct roll_sources **sources)
{
    struct roll_sources *s = *sources;
    for (size_t i = 0; s && i < s->used; i++) {
        json_decref(s->kept[i].answers);
    }
    free(s);
    *sources = NULL;
}

static json_t *kept_of(const struct roll_run *run, uint64_t verdict)
{
    for (size_t i = 0; run->sources && i < run->sources->used; i++) {
        if (run->sources->kept[i].verdict == verdict) {
            return run->sources->kept[i].answers;
        }
    }
    return NULL;
}

/* query */

json_t *roll_source_query(roll_root_t *root, struct roll_run *run, const json_t *query)
{
    json_t *answer = roll_collect_fetched(root, ROLL_COLLECT_SOURCE, query), *kept, *folded;
    const struct roll_verdict_copy *v = answer ? NULL : verdict_of(run, query);
    if (answer) {
        return answer;
    }
    if (!v) {
        return error("number: that of a verdict of this run");
    }
    kept = kept_of(run, v->said.number);
    if (kept) {
        return json_pack("{s:i,s:I,s:s,s:O}", "id", 0, "count", (json_int_t)json_array_size(kept), "ranks", "",
                         "answers", kept);
    }
    bool none;
    struct roll_collection *c = ask(root, run, v, NULL, &none, &folded);
    if (none) {
        json_decref(folded);
        return json_pack("{s:i,s:i,s:s}", "id", 0, "count", 0, "ranks", ""); /* no line of the job's own is known */
    }
    return roll_collect_begun(c, folded);
}
