/*
 * run_json.c: see run_json.h. The parts are those of run_parts.h.
 */
#include "daemon/console/report/run_json.h"

#include "daemon/base/array.h"
#include "daemon/base/json.h"
#include "daemon/console/report/run_parts.h"
#include "daemon/console/report/source_lines.h"
#include "daemon/verdict/verdict_brief.h"
#include "daemon/verdict/verdict_json.h"
#include "trace/err.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BRIEFS_MOST 200u /* findings that are listed, and that have a page where there is room */
#define EDGES_MOST  100u /* as the page is told */

int roll_report_part(const struct roll_verdict_list *all, const char *job, uint32_t restart,
                     struct roll_verdict_list *out)
{
    *out = (struct roll_verdict_list){.at = NULL};
    for (size_t i = 0; i < all->used; i++) {
        if (all->at[i]->restart == restart && strcmp(all->at[i]->job, job) == 0) {
            if (ROLL_GROW(out->at, out->room, out->used + 1) != 0) {
                return ROLL_E_NOMEM;
            }
            out->at[out->used++] = all->at[i];
        }
    }
    return 0;
}

/* Which verdicts are shown, in their order: all findings that stand, and then the newest others, as long as there is
 * room. `at` is owned. */
static int choose(const struct roll_verdict_list *part, struct roll_verdict_list *out)
{
    bool *taken = calloc(part->used + 1, sizeof(*taken));
    size_t n = 0;
    int err = taken != NULL ? 0 : ROLL_E_NOMEM;
    for (int pass = 0; pass < 2 && err == 0; pass++) {
        for (size_t i = part->used; i-- > 0 && n < BRIEFS_MOST;) {
            if (!taken[i] && (pass == 1 || roll_verdict_stands(part->at[i]))) {
                taken[i] = true;
                n++;
            }
        }
    }
    *out = (struct roll_verdict_list){.at = NULL};
    err = err != 0 ? err : ROLL_GROW(out->at, out->room, n + 1);
    for (size_t i = 0; i < part->used && err == 0; i++) {
        if (taken[i]) {
            out->at[out->used++] = part->at[i];
        }
    }
    free(taken);
    return err;
}

/* A verdict in full. The ranks stand in it as numbers as well: of 16,384 the first ones are enough beside their text.
 */
static json_t *verdict_json(const struct roll_verdict_copy *copy, struct roll_report_room *room)
{
    json_t *verdict = roll_verdict_to_json(copy), *one;
    size_t i;
    roll_report_cut(json_object_get(verdict, "culprits"), ROLL_REPORT_BEHIND);
    roll_report_cut(json_object_get(verdict, "waiting"), ROLL_REPORT_BEHIND);
    json_array_foreach(json_object_get(verdict, "evidence"), i, one)
    {
        roll_report_cut(json_object_get(one, "ranks"), ROLL_REPORT_BEHIND);
    }
    json_array_foreach(json_object_get(verdict, "callsites"), i, one)
    {
        roll_report_cut(json_object_get(one, "ranks"), ROLL_REPORT_BEHIND);
    }
    if (room->has_source) {
        roll_source_lines_add(verdict, &room->sources);
    }
    return verdict;
}

/* Those that stand come first, the newest first: where there is no room for all, they are there. */
static json_t *verdicts_json(const struct roll_verdict_list *shown, struct roll_report_room *room, json_t *left_out)
{
    json_t *list = json_array();
    size_t lost = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = shown->used; i-- > 0;) {
            if (roll_verdict_stands(shown->at[i]) == (pass == 0)) {
                json_t *verdict = verdict_json(shown->at[i], room);
                bool fits = roll_report_take(room, verdict);
                lost += !fits;
                json_array_append(list, fits ? verdict : NULL);
                json_decref(verdict);
            }
        }
    }
    if (lost > 0) {
        roll_report_leave_out(
            left_out, "%zu verdicts are listed and have no page of their own: rollcall analyze shows them", lost);
    }
    return list;
}

static json_t *first_of(const json_t *list, size_t most)
{
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(list) && i < most; i++) {
        json_array_append(out, json_array_get(list, i));
    }
    return out;
}

json_t *roll_report_run_json(struct roll_job *job, uint32_t run, const struct roll_verdict_list *part,
                             struct roll_lanes *lanes, struct roll_report_room *room)
{
    struct roll_verdict_list shown;
    json_t *left_out = json_array();
    bool known = run != ROLL_JOB_NONE;
    const char *name = known ? roll_feed_job(job->run[run].feed) : part->at[0]->job;
    uint32_t restart = known ? roll_feed_restart(job->run[run].feed) : part->at[0]->restart;
    json_t *out =
        json_pack("{s:o,s:i,s:O}", "job", roll_text_to_json(name), "restart", (int)restart, "left_out", left_out);
    int err = choose(part, &shown);
    if (err == 0) {
        json_t *briefs = roll_verdict_briefs_json(&shown, BRIEFS_MOST);
        json_object_set_new(briefs, "verdicts", json_integer((json_int_t)part->used));
        json_object_set_new(out, "findings", briefs);
        json_object_set_new(out, "verdicts", verdicts_json(&shown, room, left_out));
    }
    err = err != 0 || !known ? err : roll_report_ranks(job, run, part, lanes, room, out, left_out);
    if (err == 0) {
        json_object_set_new(out, "waits",
                            json_pack("{s:o,s:o}", "edges", roll_verdict_waits_json(&shown, EDGES_MOST), "groups",
                                      first_of(json_object_get(out, "why"), ROLL_REPORT_FIRST)));
    }
    free(shown.at);
    json_decref(left_out);
    if (err != 0) {
        json_decref(out);
    }
    return err == 0 ? out : NULL;
}

/* What was not read or not seen. */
json_t *roll_report_unjudged(const struct roll_job *job)
{
    const struct roll_analysis_summary *s = &job->summary;
    json_t *out = json_array();
    size_t i;
    json_t *place, *unreached = roll_analysis_unreached(job->analysis);
    const struct {
        uint64_t n;
        const char *text;
    } list[] = {
        {s->unreadable, "files could not be read, and nothing is known of what they hold"},
        {s->missing, "ranks have no record at all, although others called with them"},
        {s->engine.lost, "records are lost"},
        {s->older, "older calls are not in this recording"},
        {s->unjudged, "jobs of whose dumps no entry is usable"},
        {s->verdicts_lost, "verdicts for which there was no memory"},
    };
    for (size_t k = 0; k < sizeof(list) / sizeof(list[0]); k++) {
        if (list[k].n > 0) {
            roll_report_leave_out(out, "%" PRIu64 " %s", list[k].n, list[k].text);
        }
    }
    if (s->cut) {
        roll_report_leave_out(out, "a trace was cut short or damaged: what came behind that place is not known");
    }
    for (unsigned k = 0; k < ROLL_LOSS_LIMIT; k++) {
        if (roll_loss_is_unrecorded(k) && s->losses[k] > 0) {
            roll_report_leave_out(out, "%" PRIu64 " times something could not be recorded: %s", s->losses[k],
                                  roll_loss_name(k));
        }
    }
    json_array_foreach(unreached, i, place)
    {
        const char *command = json_string_value(json_object_get(place, "command"));
        if (i < ROLL_REPORT_FIRST) {
            roll_report_leave_out(out, "digests tell of a place of which no records are here%s%s",
                                  command != NULL ? "; they are to be had by: " : "", command != NULL ? command : "");
        }
    }
    json_decref(unreached);
    return out;
}
