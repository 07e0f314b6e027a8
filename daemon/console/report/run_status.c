/*
 * run_status.c: the status of a run that is over, with the members that the page draws (docs/WEB.md). Those that a live
 * root alone has are empty.
 */
#include "daemon/console/report/run_parts.h"

#include "daemon/base/json.h"
#include "daemon/feed/families.h"
#include "daemon/feed/site.h"
#include "trace/remedy.h"

#include <inttypes.h>
#include <stdlib.h>

#define COMMS_MOST 1024u /* as the page asks for */

/* The ranks that are behind stand in the page in words as well: the first ones are enough. */
static json_t *comm_json(const struct roll_view_comm *v)
{
    json_t *comm = roll_comm_json(v);
    roll_report_cut(json_object_get(comm, "behind"), ROLL_REPORT_BEHIND);
    return comm;
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
static json_t *comms_json(roll_feed_t *feed, uint32_t comms, struct roll_report_room *room, json_t *left_out)
{
    const roll_engine_t *engine = roll_feed_engine(feed);
    struct apart *list = calloc((size_t)comms + 1, sizeof(*list));
    struct roll_view_comm v;
    json_t *out = json_array();
    uint32_t n = 0;
    for (; list != NULL && n < comms && roll_engine_comm(engine, n, &v); n++) {
        list[n] = (struct apart){v.ahead - v.done, n};
    }
    qsort(list, n, sizeof(*list), by_apart);
    for (uint32_t i = 0; i < n && i < COMMS_MOST && roll_engine_comm(engine, list[i].comm, &v); i++) {
        roll_feed_comm_site(feed, &v, ROLL_SITE_READ);
        json_t *one = comm_json(&v);
        if (roll_report_take(room, one)) {
            json_array_append(out, one);
        }
        json_decref(one);
    }
    if (json_array_size(out) < comms) {
        roll_report_leave_out(left_out, "%zu of %" PRIu32 " communicators", comms - json_array_size(out), comms);
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

json_t *roll_report_status(roll_feed_t *feed, const struct roll_verdict_list *part, uint64_t last_ns,
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
    roll_report_cut(folded, COMMS_MOST);
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
                     comms_json(feed, s.comms, room, left_out), "agents", "losses", losses_json(losses), "time_ns",
                     (json_int_t)last_ns, "families", folded);
}
