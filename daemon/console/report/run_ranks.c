/*
 * run_ranks.c: what the ranks of a run did, and how they stood at each moment that a report shows.
 */
#include "daemon/console/report/run_parts.h"

#include "daemon/base/array.h"
#include "daemon/console/report/calls_json.h"
#include "daemon/console/report/node_losses.h"
#include "daemon/verdict/verdict_brief.h"
#include "trace/err.h"

#include <stdlib.h>

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

int roll_report_ranks(struct roll_job *job, uint32_t run, const struct roll_verdict_list *part,
                      struct roll_lanes *lanes, struct roll_report_room *room, json_t *out, json_t *left_out)
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
        json_object_set_new(out, "status", roll_report_status(feed, part, last_ns, room, left_out));
        json_object_set_new(out, "why", roll_report_why(roll_feed_engine(feed), list, n, room, left_out));
        json_object_set_new(out, "moments", moments_json(lanes, run, list, n)); /* writes over the states in the list */
        size_t lost;
        json_object_set_new(out, "calls", roll_report_calls_json(job, run, lanes, &room->bytes, &lost));
        if (lost > 0) {
            roll_report_leave_out(left_out, "the calls around %zu findings", lost);
        }
    }
    roll_rankset_fini(&waiting);
    roll_rankset_fini(&awaited);
    free(list);
    return err;
}
