/*
 * root_query_why.c: the query `why`: what ranks wait for, in paragraphs.
 *
 * Ranks that stand alike share a paragraph, and an answer has as many as a screen holds: one for each rank was
 * rejected, because thousands wait for one. What a paragraph says of records, verdicts and stacks comes from the
 * engine, from root_why.c and from root_stack.c.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/array.h"
#include "daemon/base/json.h"
#include "daemon/base/map.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHY_BYTES  4096
#define WHY_RANKS  256 /* entries of single ranks in an answer to why */
#define WHY_GROUPS 10u /* paragraphs: a screen */

/* Ranks that stand alike and for which the same verdict is the reason share one paragraph. */
struct why_group {
    const struct roll_verdict_copy *verdict;
    struct roll_rankset ranks;
};

struct why_answer {
    struct why_group *group;
    size_t groups, room;
    struct roll_map at;        /* from what its ranks have in common to a group */
    struct roll_stands stands; /* looked up when a paragraph needs it, and once: it is a look at all communicators */
};

static bool why_wanted(const struct roll_run *run, const json_t *rank, const struct roll_view_source *v)
{
    if (v->info.world_rank < 0) {
        return false;
    }
    if (json_is_integer(rank)) {
        return json_integer_value(rank) == v->info.world_rank;
    }
    bool is_inside = v->in_call && !roll_digested_calm(run); /* what was told of it then may be 5 s old */
    return v->pending > 0 || is_inside || roll_rankset_has(&run->looked_at, (uint32_t)v->info.world_rank);
}

/* The ranks that are asked for; owned; *n of them. A rank that is named is not looked for among all. */
static struct roll_view_source *why_ranks(const struct roll_run *run, const json_t *rank, size_t *n)
{
    struct roll_view_source v, *list = NULL;
    size_t room = 0;
    *n = 0;
    if (json_is_integer(rank)) {
        json_int_t r = json_integer_value(rank);
        bool there = r >= 0 && r <= INT32_MAX && roll_run_rank(run, (uint32_t)r, &v);
        if (there && ROLL_GROW(list, room, 1) == 0) {
            list[(*n)++] = v;
        }
        return list;
    }
    for (uint32_t i = 0; roll_run_source_brief(run, i, &v); i++) {
        if (why_wanted(run, rank, &v) && ROLL_GROW(list, room, *n + 1) == 0) {
            list[(*n)++] = v;
        }
    }
    return list;
}

static void why_put(struct why_answer *w, uint64_t key, const struct roll_verdict_copy *verdict, uint32_t rank)
{
    uint64_t common = (key ^ (verdict ? verdict->said.number : 0) * UINT64_C(0x9e3779b97f4a7c15)) * 31;
    uint32_t at = roll_map_get(&w->at, common);
    if (at == ROLL_MAP_NONE) {
        if (ROLL_GROW(w->group, w->room, w->groups + 1) != 0 ||
            roll_map_add(&w->at, common, (uint32_t)w->groups) != 0) {
            return;
        }
        at = (uint32_t)w->groups++;
        w->group[at] = (struct why_group){.verdict = verdict};
    }
    (void)roll_rankset_add(&w->group[at].ranks, rank);
}

static void why_sort(struct why_answer *w, const struct roll_run *run, const json_t *rank)
{
    struct roll_why why;
    size_t n;
    struct roll_view_source *list = why_ranks(run, rank, &n);
    uint32_t *number = malloc((n + 1) * sizeof(*number));
    uint64_t *key = malloc((n + 1) * sizeof(*key));
    if (number && key && roll_why_begin(run, &why) == 0) {
        for (size_t i = 0; i < n; i++) {
            number[i] = (uint32_t)list[i].info.world_rank;
        }
        roll_engine_why_keys(roll_feed_engine(roll_run_judge(run)), number, n, key);
        for (size_t i = 0; i < n; i++) {
            if (key[i] != 0) {
                why_put(w, key[i], roll_why_verdict(&why, &list[i]), number[i]);
            }
        }
        roll_why_end(&why);
    }
    roll_map_fini(&w->at);
    free(number);
    free(key);
    free(list);
}

static int by_first(const void *a, const void *b)
{
    const struct why_group *one = a, *two = b;
    uint32_t x = roll_rankset_at(&one->ranks, 0), y = roll_rankset_at(&two->ranks, 0);
    return x < y ? -1 : x > y;
}

/* Says who waits for a rank that is in code of its own: its records tell nothing wrong of it, and it is the one that
 * matters. Of a job so large that a status lists no single ranks, findings say it. */
static void why_awaited(const struct roll_run *run, const struct roll_view_source *about, struct roll_stands *stands,
                        FILE *out)
{
    struct roll_rankset waiters = {0};
    struct roll_view_source v;
    char folded[256];
    if (about->info.world_rank < 0 || roll_engine_sources(roll_feed_engine(roll_run_judge(run))) > ROLL_STATUS_ROWS) {
        return;
    }
    if (!stands->run) {
        roll_stands_begin(run, stands);
    }
    bool is_busy = roll_stands_letter(stands, about) == 'b';
    for (uint32_t i = 0; is_busy && roll_run_source_brief(run, i, &v); i++) {
        struct roll_rankset awaits = {0};
        roll_stands_awaits(stands, &v, &awaits);
        if (roll_rankset_has(&awaits, (uint32_t)about->info.world_rank)) {
            (void)roll_rankset_add(&waiters, (uint32_t)v.info.world_rank);
        }
        roll_rankset_fini(&awaits);
    }
    if (waiters.used > 0) {
        bool many = roll_rankset_count(&waiters) > 1;
        (void)roll_rankset_format(&waiters, folded, sizeof(folded));
        fprintf(out, " Rank%s %s wait%s for it.", many ? "s" : "", folded, many ? "" : "s");
    }
    roll_rankset_fini(&waiters);
}

/* Writes the paragraph of one group into text; -1 when the engine has nothing to say of the group. */
static int why_text(roll_root_t *root, struct roll_run *run, const struct why_group *g, struct roll_eyes_at *at,
                    struct roll_stands *stands, char *text)
{
    struct roll_view_source v;
    bool calm = roll_digested_calm(run);
    text[0] = '\0';
    if (!calm && roll_engine_why_told(roll_feed_engine(roll_run_judge(run)), &g->ranks, text, WHY_BYTES) < 0) {
        return -1;
    }
    size_t used = strlen(text);
    FILE *tail = fmemopen(text + used, WHY_BYTES - used, "w");
    if (tail && calm && roll_run_rank(run, roll_rankset_at(&g->ranks, 0), &v)) {
        roll_fronts_why(run, &v, tail);
    }
    if (tail && !calm) {
        roll_why_called(run, &g->ranks, tail);
    }
    if (tail && roll_rankset_count(&g->ranks) == 1 && roll_run_rank(run, roll_rankset_at(&g->ranks, 0), &v)) {
        why_awaited(run, &v, stands, tail);
    }
    char ripens[1024];
    if (tail && g->verdict) {
        roll_why_quote(&g->verdict->said, tail);
    } else if (tail && !calm &&
               roll_engine_ripening(roll_feed_engine(roll_run_judge(run)), roll_rankset_at(&g->ranks, 0), false, ripens,
                                    sizeof(ripens)) > 0) {
        fputs(ripens, tail);
    }
    char seen[160];
    if (tail && roll_run_rank(run, roll_rankset_at(&g->ranks, 0), &v) &&
        roll_eyes_of(root, run, roll_eyes_peer(root, run, v.info.stream, at), &v, seen, sizeof(seen))[0] != '\0') {
        fprintf(tail, " %c%s.", toupper((unsigned char)seen[0]), seen + 1);
    }
    if (tail) {
        roll_stacks_why(root, run, &g->ranks, tail);
        fclose(tail);
    }
    return 0;
}

/* Each rank of a group has an entry of its own, as long as there are few: 16,384 times the same text fits no message.
 */
static void why_add(json_t *all, json_t *groups, const struct why_group *g, const char *text)
{
    size_t n = roll_rankset_count(&g->ranks);
    json_t *said = roll_text_to_json(text);
    for (size_t i = 0; i < n && json_array_size(all) < WHY_RANKS; i++) {
        json_t *one = json_pack("{s:i,s:O}", "rank", (int)roll_rankset_at(&g->ranks, i), "text", said);
        if (one && g->verdict) {
            json_object_set_new(one, "verdict", json_integer((json_int_t)g->verdict->said.number));
        }
        json_array_append_new(all, one);
    }
    char folded[256] = "";
    (void)roll_rankset_format(&g->ranks, folded, sizeof(folded));
    json_t *one = json_pack("{s:s,s:i,s:I,s:o}", "ranks_text", folded, "rank",
                            n > 0 ? (int)roll_rankset_at(&g->ranks, 0) : -1, "count", (json_int_t)n, "text", said);
    if (one && g->verdict) {
        json_object_set_new(one, "verdict", json_integer((json_int_t)g->verdict->said.number));
    }
    json_array_append_new(groups, one);
}

/* The ranks that stand elsewhere, beyond the paragraphs that an answer has. */
static void why_more(const struct why_answer *w, FILE *parts, json_t *groups)
{
    struct roll_rankset others = {0};
    char folded[256] = "", text[512];
    for (size_t i = WHY_GROUPS; i < w->groups; i++) {
        (void)roll_rankset_union(&others, &w->group[i].ranks);
    }
    if (others.used > 0) {
        (void)roll_rankset_format(&others, folded, sizeof(folded));
        snprintf(text, sizeof(text), "Ranks %s wait elsewhere, in %zu other ways: ask for one of them by its number.",
                 folded, w->groups - WHY_GROUPS);
        fprintf(parts, "\n\n%s", text);
        json_array_append_new(groups, json_pack("{s:s,s:i,s:I,s:s}", "ranks_text", folded, "rank",
                                                (int)roll_rankset_at(&others, 0), "count",
                                                (json_int_t)roll_rankset_count(&others), "text", text));
    }
    roll_rankset_fini(&others);
}

/* Which eyes are closed, in a paragraph of its own: those of ranks for which others wait, too. */
static void closed_eyes(const json_t *eyes, FILE *parts)
{
    size_t i;
    json_t *eye;
    json_array_foreach((json_t *)eyes, i, eye)
    {
        const char *text = json_string_value(json_object_get(eye, "text"));
        fprintf(parts, "%s%s", i ? "; " : "\n\nNot everything is seen: ", text ? text : "?");
    }
    fputs(json_array_size(eyes) > 0 ? "." : "", parts);
}

/* A user who mistypes a rank, or asks the wrong job, is told which ranks there are. */
static json_t *no_rank(const struct roll_run *run)
{
    char text[512];
    json_t *about = roll_about_json(run);
    const char *ranks = json_string_value(json_object_get(about, "ranks_text"));
    snprintf(text, sizeof(text), "no such rank in job %s, whose ranks are %s", run->job, ranks ? ranks : "?");
    json_decref(about);
    return json_pack("{s:s}", "error", text);
}

/* Calls that differ may hang a job in which every rank has made its call, so that nobody waits for another's. */
static void nobody_waits(struct roll_run *run, char *text, size_t room)
{
    uint64_t findings = run->digested ? roll_run_findings(run) : 0;
    if (!run->digested) {
        struct roll_engine_summary s;
        roll_engine_summary(roll_feed_engine(run->feed), &s);
        findings = s.findings;
    }
    const char *nobody = roll_digested_calm(run)
                             ? "Nothing stands: no records of this job are here, because its calls are compared by "
                               "digests. Ask for a rank by its number."
                             : "No rank waits for a call that another one has not made.";
    if (findings == 0) {
        snprintf(text, room, "%s", nobody);
        return;
    }
    snprintf(text, room,
             "%s What was found may be why the job stands: %llu finding%s, which `rollcall verdicts` lists.", nobody,
             (unsigned long long)findings, findings == 1 ? "" : "s");
}

json_t *roll_why_query(roll_root_t *root, struct roll_run *run, const json_t *query)
{
    const json_t *rank = json_object_get(query, "rank");
    struct why_answer w = {.groups = 0};
    struct roll_eyes_at at = {.is_made = false};
    char *text = malloc(WHY_BYTES);
    json_t *all = json_array(), *groups = json_array();
    char *joined = NULL;
    size_t room = 0;
    FILE *parts = open_memstream(&joined, &room);
    if (roll_digested_calm(run)) {
        roll_digested_wanted(run, json_is_integer(rank) ? json_integer_value(rank) : -1);
    }
    why_sort(&w, run, rank);
    if (w.groups > 1) {
        qsort(w.group, w.groups, sizeof(*w.group), by_first);
    }
    for (size_t i = 0; i < w.groups && i < WHY_GROUPS; i++) {
        if (text && parts && why_text(root, run, &w.group[i], &at, &w.stands, text) == 0) {
            fprintf(parts, "%s%s", i ? "\n\n" : "", text);
            why_add(all, groups, &w.group[i], text);
        }
    }
    json_t *eyes = roll_eyes_json(root, run);
    if (parts) {
        why_more(&w, parts, groups);
        closed_eyes(eyes, parts);
    }
    for (size_t i = 0; i < w.groups; i++) {
        roll_rankset_fini(&w.group[i].ranks);
    }
    free(w.group);
    roll_stands_end(&w.stands);
    free(text);
    roll_eyes_at_fini(&at);
    if (parts) {
        fclose(parts);
    }
    json_t *answer;
    if (json_array_size(all) > 0 && joined) {
        answer = json_pack("{s:o,s:O,s:O}", "text", roll_text_to_json(joined), "ranks", all, "groups", groups);
    } else if (json_is_integer(rank)) {
        answer = no_rank(run);
    } else {
        char nobody[256];
        nobody_waits(run, nobody, sizeof(nobody));
        char both[WHY_BYTES];
        snprintf(both, sizeof(both), "%s%s", nobody, joined ? joined : ""); /* with the eyes that are closed */
        answer = json_pack("{s:o,s:[],s:[]}", "text", roll_text_to_json(both), "ranks", "groups");
    }
    json_object_set_new(answer, "eyes", eyes);
    json_decref(all);
    json_decref(groups);
    free(joined);
    return answer;
}
