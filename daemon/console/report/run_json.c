/*
 * run_json.c: see run_json.h.
 */
#include "daemon/console/report/run_json.h"

#include "daemon/base/array.h"
#include "daemon/base/json.h"
#include "daemon/console/report/calls_json.h"
#include "daemon/console/report/node_losses.h"
#include "daemon/console/report/source_lines.h"
#include "daemon/console/text.h"
#include "daemon/feed/families.h"
#include "daemon/feed/field.h"
#include "daemon/verdict/verdict_brief.h"
#include "daemon/verdict/verdict_json.h"
#include "trace/err.h"
#include "trace/remedy.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BRIEFS_MOST  200u  /* findings that are listed, and that have a page where there is room */
#define EDGES_MOST   100u  /* as the page is told */
#define COMMS_MOST   1024u /* as the page asks for */
#define BEHIND_MOST  64u   /* ranks of a list that is there in words as well */
#define GROUPS_MOST  64u   /* of ranks that stand alike, in words */
#define GROUPS_FIRST 16u   /* of them on the first page */
#define WHY_BYTES    4096u

/* What a report leaves out, in words. */
__attribute__((format(printf, 2, 3))) static void leave_out(json_t *out, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    json_array_append_new(out, roll_text_to_json(text));
}

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

/* verdicts */

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

static void cut(json_t *array, size_t most)
{
    for (size_t n = json_array_size(array); n > most; n--) {
        (void)json_array_remove(array, n - 1);
    }
}

/* A verdict in full. The ranks stand in it as numbers as well: of 16,384 the first ones are enough beside their text.
 */
static json_t *verdict_json(const struct roll_verdict_copy *copy, struct roll_report_room *room)
{
    json_t *verdict = roll_verdict_to_json(copy), *one;
    size_t i;
    cut(json_object_get(verdict, "culprits"), BEHIND_MOST);
    cut(json_object_get(verdict, "waiting"), BEHIND_MOST);
    json_array_foreach(json_object_get(verdict, "evidence"), i, one)
    {
        cut(json_object_get(one, "ranks"), BEHIND_MOST);
    }
    json_array_foreach(json_object_get(verdict, "callsites"), i, one)
    {
        cut(json_object_get(one, "ranks"), BEHIND_MOST);
    }
    if (room->has_source) {
        roll_source_lines_add(verdict, &room->sources);
    }
    return verdict;
}

/* Takes room for a value, or drops it; false: there is no room. */
static bool take(struct roll_report_room *room, json_t *value)
{
    size_t bytes = json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENSURE_ASCII);
    bool fits = value != NULL && bytes <= room->bytes;
    room->bytes -= fits ? bytes : 0;
    return fits;
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
                bool fits = take(room, verdict);
                lost += !fits;
                json_array_append(list, fits ? verdict : NULL);
                json_decref(verdict);
            }
        }
    }
    if (lost > 0) {
        leave_out(left_out, "%zu verdicts are listed and have no page of their own: rollcall analyze shows them", lost);
    }
    return list;
}

/* how the ranks stood */

/* A rank that was started again has its newest process in the field. */
static int places_of(roll_feed_t *feed, const struct roll_rankset *waiting, const struct roll_rankset *awaited,
                     struct roll_field_place **list, size_t *n)
{
    const roll_engine_t *engine = roll_feed_engine(feed);
    struct roll_view_source v;
    size_t room = 0, used = 0;
    *list = NULL;
    for (uint32_t i = 0; roll_engine_source_brief(engine, i, &v); i++) {
        if (ROLL_GROW(*list, room, used + 1) != 0) {
            return ROLL_E_NOMEM;
        }
        if (v.info.world_rank >= 0) {
            (*list)[used++] = roll_field_place(&v, i, waiting, awaited);
        }
    }
    *n = roll_field_sort(*list, used);
    return 0;
}

/* The field at each moment: of sources that came later nothing had been heard. */
static json_t *moments_json(const struct roll_lanes *lanes, uint32_t run, struct roll_field_place *list, size_t n)
{
    json_t *moments = json_array();
    for (size_t i = 0; i < lanes->moments; i++) {
        const struct roll_moment *m = &lanes->moment[i];
        if (m->run != run) {
            continue;
        }
        for (size_t k = 0; k < n; k++) {
            list[k].state = list[k].source < m->states ? m->state[list[k].source] : 'n';
        }
        json_t *one = roll_field_states_json(list, n);
        json_object_set_new(one, "number", json_integer((json_int_t)m->number));
        json_object_set_new(one, "time_ns", json_integer((json_int_t)m->time_ns));
        json_array_append_new(moments, one);
    }
    return moments;
}

/* why */

struct group {
    uint64_t key;
    struct roll_rankset ranks;
};

static int by_key(const void *a, const void *b)
{
    const struct group *x = a, *y = b;
    uint32_t i = roll_rankset_at(&x->ranks, 0), k = roll_rankset_at(&y->ranks, 0);
    return x->key != y->key ? (x->key > y->key) - (x->key < y->key) : (i > k) - (i < k);
}

static int by_rank(const void *a, const void *b)
{
    uint32_t i = roll_rankset_at(&((const struct group *)a)->ranks, 0);
    uint32_t k = roll_rankset_at(&((const struct group *)b)->ranks, 0);
    return (i > k) - (i < k);
}

/* Ranks that stood alike at the end, as groups of them; those of whom there is nothing to say are in none. */
static size_t groups_of(roll_engine_t *engine, const struct roll_field_place *place, size_t n, struct group *group)
{
    uint32_t *number = calloc(n + 1, sizeof(*number));
    uint64_t *key = malloc((n + 1) * sizeof(*key));
    size_t used = 0, groups = 0;
    for (size_t i = 0; number != NULL && i < n; i++) {
        number[i] = (uint32_t)place[i].rank;
    }
    if (number != NULL && key != NULL) {
        roll_engine_why_keys(engine, number, n, key);
        for (size_t i = 0; i < n; i++) {
            if (key[i] != 0) {
                group[used] = (struct group){.key = key[i]};
                (void)roll_rankset_add(&group[used++].ranks, number[i]);
            }
        }
    }
    free(number);
    free(key);
    qsort(group, used, sizeof(*group), by_key);
    for (size_t i = 0; i < used; i++) {
        if (groups > 0 && group[groups - 1].key == group[i].key) {
            (void)roll_rankset_union(&group[groups - 1].ranks, &group[i].ranks);
            roll_rankset_fini(&group[i].ranks);
        } else {
            group[groups++] = group[i];
        }
    }
    qsort(group, groups, sizeof(*group), by_rank);
    return groups;
}

static json_t *why_json(roll_engine_t *engine, const struct roll_field_place *place, size_t n,
                        struct roll_report_room *room, json_t *left_out)
{
    struct group *group = calloc(n + 1, sizeof(*group));
    size_t groups = group != NULL ? groups_of(engine, place, n, group) : 0, lost = 0;
    json_t *list = json_array();
    for (size_t i = 0; i < groups; i++) {
        char text[WHY_BYTES] = "", folded[256] = "";
        bool told = json_array_size(list) < GROUPS_MOST &&
                    roll_engine_why_told(engine, &group[i].ranks, text, sizeof(text)) >= 0;
        (void)roll_rankset_format(&group[i].ranks, folded, sizeof(folded));
        json_t *one = told ? json_pack("{s:s,s:o,s:I,s:o}", "ranks_text", folded, "all_text",
                                       roll_ranks_text_json(&group[i].ranks), "count",
                                       (json_int_t)roll_rankset_count(&group[i].ranks), "text", roll_text_to_json(text))
                           : NULL;
        if (take(room, one)) {
            json_array_append(list, one);
        } else {
            lost++;
        }
        json_decref(one);
        roll_rankset_fini(&group[i].ranks);
    }
    if (lost > 0) {
        leave_out(left_out, "%zu further ways in which ranks stood at the end", lost);
    }
    free(group);
    return list;
}

/* the rest of a status */

static json_t *comm_json(const struct roll_view_comm *v)
{
    char key[24];
    snprintf(key, sizeof(key), "0x%016" PRIx64, v->key);
    json_t *behind = json_array();
    for (size_t i = 0; i < BEHIND_MOST && roll_rankset_at(&v->behind, i) != UINT32_MAX; i++) {
        json_array_append_new(behind, json_integer(roll_rankset_at(&v->behind, i)));
    }
    return json_pack("{s:s,s:o,s:s,s:i,s:i,s:I,s:I,s:o,s:o,s:o}", "key", key, "label", roll_text_to_json(v->label),
                     "role", v->role, "size", (int)v->size, "seen", (int)v->seen, "done", (json_int_t)v->done, "ahead",
                     (json_int_t)v->ahead, "behind", behind, "name", roll_text_to_json(v->name), "made_at",
                     v->place[0] != '\0' ? roll_text_to_json(v->place) : json_null());
}

struct apart {
    uint64_t by;
    uint32_t comm;
};

static int by_apart(const void *a, const void *b)
{
    const struct apart *x = a, *y = b;
    return x->by != y->by ? (x->by < y->by) - (x->by > y->by) : (x->comm > y->comm) - (x->comm < y->comm);
}

/* Those whose members were furthest apart, as the page has them first. */
static json_t *comms_json(const roll_engine_t *engine, uint32_t comms, struct roll_report_room *room, json_t *left_out)
{
    struct apart *list = calloc((size_t)comms + 1, sizeof(*list));
    struct roll_view_comm v;
    json_t *out = json_array();
    uint32_t n = 0;
    for (; list != NULL && n < comms && roll_engine_comm(engine, n, &v); n++) {
        list[n] = (struct apart){v.ahead - v.done, n};
    }
    qsort(list, n, sizeof(*list), by_apart);
    for (uint32_t i = 0; i < n && i < COMMS_MOST && roll_engine_comm(engine, list[i].comm, &v); i++) {
        json_t *one = comm_json(&v);
        if (take(room, one)) {
            json_array_append(out, one);
        }
        json_decref(one);
    }
    if (json_array_size(out) < comms) {
        leave_out(left_out, "%zu of %" PRIu32 " communicators", comms - json_array_size(out), comms);
    }
    free(list);
    return out;
}

static json_t *losses_json(const uint64_t losses[ROLL_LOSS_LIMIT])
{
    json_t *out = json_object();
    for (unsigned k = 0; roll_loss_name(k) != NULL; k++) {
        json_object_set_new(out, roll_loss_name(k), json_integer((json_int_t)losses[k]));
    }
    return out;
}

static uint64_t standing(const struct roll_verdict_list *part)
{
    uint64_t n = 0;
    for (size_t i = 0; i < part->used; i++) {
        n += roll_verdict_stands(part->at[i]);
    }
    return n;
}

static json_t *status_json(roll_feed_t *feed, const struct roll_verdict_list *part, uint64_t last_ns,
                           struct roll_report_room *room, json_t *left_out)
{
    const roll_engine_t *engine = roll_feed_engine(feed);
    struct roll_engine_summary s;
    struct roll_engine_config config;
    struct roll_comm_families families = {.at = NULL};
    uint64_t losses[ROLL_LOSS_LIMIT], lost = roll_feed_losses(feed, losses);
    roll_engine_summary(engine, &s);
    uint64_t older = roll_feed_older(feed); /* gaps, for the engine */
    s.lost -= older < s.lost ? older : s.lost;
    roll_engine_settings(engine, &config);
    (void)roll_families_find(engine, &families);
    json_t *folded = roll_families_json(&families);
    cut(folded, COMMS_MOST);
    roll_families_fini(&families);
    json_t *summary =
        json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:o}", "ranks", (json_int_t)s.sources, "ranks_live",
                  (json_int_t)s.sources_live, "calls", (json_int_t)s.calls, "records", (json_int_t)s.records, "comms",
                  (json_int_t)s.comms, "findings", (json_int_t)standing(part), "verdicts", (json_int_t)part->used,
                  "lost", (json_int_t)(lost > s.lost ? lost : s.lost), "incomplete", (json_int_t)s.incomplete, "step",
                  s.step != ROLL_STEP_NONE ? json_integer(s.step) : json_null(), "step_source",
                  s.step == ROLL_STEP_NONE ? json_null() : json_string(s.step_is_learned ? "learned" : "job"));
    return json_pack("{s:s,s:{s:s,s:i,s:s},s:o,s:[],s:o,s:[],s:o,s:I,s:o}", "schema", ROLL_STATUS_SCHEMA, "run", "job",
                     roll_feed_job(feed), "restart", (int)roll_feed_restart(feed), "policy",
                     roll_policy_name(config.policy), "summary", summary, "ranks", "comms",
                     comms_json(engine, s.comms, room, left_out), "agents", "losses", losses_json(losses), "time_ns",
                     (json_int_t)last_ns, "families", folded);
}

/* What of a run is known of its ranks, into the object. */
static int add_ranks(struct roll_job *job, uint32_t run, const struct roll_verdict_list *part, struct roll_lanes *lanes,
                     struct roll_report_room *room, json_t *out, json_t *left_out)
{
    roll_feed_t *feed = job->run[run].feed;
    struct roll_rankset waiting = {.used = 0}, awaited = {.used = 0};
    struct roll_field_place *list = NULL;
    size_t n = 0;
    roll_verdict_waiting(part, &waiting);
    roll_verdict_awaited(part, &awaited);
    int err = roll_lanes_end(lanes, job, run, &waiting, &awaited);
    err = err != 0 ? err : places_of(feed, &waiting, &awaited, &list, &n);
    if (err == 0) {
        uint64_t last_ns = lanes->moment[lanes->moments - 1].time_ns;
        json_object_set_new(out, "places", roll_field_places_json(list, n));
        json_object_set_new(out, "losses", roll_node_losses_json(feed));
        json_object_set_new(out, "status", status_json(feed, part, last_ns, room, left_out));
        json_object_set_new(out, "why", why_json(roll_feed_engine(feed), list, n, room, left_out));
        json_object_set_new(out, "moments", moments_json(lanes, run, list, n)); /* writes over the states in the list */
        size_t lost;
        json_object_set_new(out, "calls", roll_report_calls_json(job, run, lanes, &room->bytes, &lost));
        if (lost > 0) {
            leave_out(left_out, "the calls around %zu findings", lost);
        }
    }
    roll_rankset_fini(&waiting);
    roll_rankset_fini(&awaited);
    free(list);
    return err;
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
    err = err != 0 || !known ? err : add_ranks(job, run, part, lanes, room, out, left_out);
    if (err == 0) {
        json_object_set_new(out, "waits",
                            json_pack("{s:o,s:o}", "edges", roll_verdict_waits_json(&shown, EDGES_MOST), "groups",
                                      first_of(json_object_get(out, "why"), GROUPS_FIRST)));
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
            leave_out(out, "%" PRIu64 " %s", list[k].n, list[k].text);
        }
    }
    if (s->cut) {
        leave_out(out, "a trace was cut short or damaged: what came behind that place is not known");
    }
    for (unsigned k = 0; k < ROLL_LOSS_LIMIT; k++) {
        if (roll_loss_is_unrecorded(k) && s->losses[k] > 0) {
            leave_out(out, "%" PRIu64 " times something could not be recorded: %s", s->losses[k], roll_loss_name(k));
        }
    }
    json_array_foreach(unreached, i, place)
    {
        const char *command = json_string_value(json_object_get(place, "command"));
        if (i < GROUPS_FIRST) {
            leave_out(out, "digests tell of a place of which no records are here%s%s",
                      command != NULL ? "; they are to be had by: " : "", command != NULL ? command : "");
        }
    }
    json_decref(unreached);
    return out;
}
