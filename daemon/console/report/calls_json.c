/*
 * calls_json.c: see calls_json.h. Rows and columns are those of daemon/feed/call_rows.h, which says why they are so;
 * here communicators and call sites come from the trace's job in place of one rank's definitions.
 */
#include "daemon/console/report/calls_json.h"

#include "daemon/base/json.h"
#include "daemon/feed/call_rows.h"
#include "trace/err.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MS_NS UINT64_C(1000000)

/* Whether a call before this one in the lane has the same number in the definitions of its process. */
static bool is_again(const struct roll_moment_lane *lane, uint32_t i, bool site)
{
    for (uint32_t k = 0; k < i; k++) {
        const struct roll_record *a = &lane->call[k].rec, *b = &lane->call[i].rec;
        if (site ? a->callsite == b->callsite : a->comm == b->comm) {
            return true;
        }
    }
    return false;
}

static json_t *comms_json(const struct roll_job *job, const struct roll_moment_lane *lane)
{
    json_t *list = json_array();
    const struct roll_job_ring *ring = &job->ring[lane->ring];
    for (uint32_t i = 0; i < lane->calls; i++) {
        const struct roll_lane_call *call = &lane->call[i];
        char key[24], name[160];
        if (call->comm == ROLL_JOB_NONE || is_again(lane, i, false)) {
            continue;
        }
        const struct roll_job_member *member = call->rec.comm < ring->members ? &ring->member[call->rec.comm] : NULL;
        snprintf(key, sizeof(key), "0x%016" PRIx64, job->comm[call->comm].key);
        roll_job_comm_name(job, call->comm, name, sizeof(name));
        json_array_append_new(list, json_pack("{s:i,s:s,s:o,s:i,s:i}", "id", (int)call->rec.comm, "key", key, "name",
                                              roll_text_to_json(name), "rank", member ? (int)member->rank : -1, "size",
                                              (int)job->comm[call->comm].size));
    }
    return list;
}

static json_t *sites_json(const struct roll_job *job, const struct roll_moment_lane *lane)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < lane->calls; i++) {
        uint16_t site = lane->call[i].rec.callsite;
        struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
        char place[200];
        const char *source;
        if (site != 0 && !is_again(lane, i, true)) {
            roll_job_place(frame, roll_job_frames(job, lane->ring, site, frame), place, sizeof(place), &source);
            if (place[0] != '\0') {
                json_array_append_new(list, json_pack("{s:i,s:o}", "id", (int)site, "place", roll_text_to_json(place)));
            }
        }
    }
    return list;
}

static json_t *lane_json(const struct roll_job *job, const struct roll_moment_lane *lane)
{
    json_t *rows = json_array();
    uint64_t base_ms = UINT64_MAX;
    struct roll_feed_stream view;
    for (uint32_t i = 0; i < lane->calls; i++) {
        uint64_t ms = lane->call[i].real_ns / MS_NS;
        base_ms = ms < base_ms ? ms : base_ms;
    }
    for (uint32_t i = 0; i < lane->calls; i++) {
        const struct roll_lane_call *call = &lane->call[i];
        const struct roll_call_row row = {&call->rec, call->real_ns - base_ms * MS_NS, call->comm != ROLL_JOB_NONE,
                                          call->rec.callsite != 0, false};
        json_array_append_new(rows, roll_call_row_json(&row));
    }
    roll_job_ring_view(job, lane->ring, &view);
    return json_pack("{s:i,s:o,s:{s:s,s:I,s:o,s:o,s:o,s:o}}", "rank", (int)roll_job_rank(job, lane->ring), "host",
                     roll_text_to_json(view.host), "calls", "schema", "rollcall.calls/1", "base_ms",
                     (json_int_t)(lane->calls > 0 ? base_ms : 0), "comms", comms_json(job, lane), "sites",
                     sites_json(job, lane), "columns", roll_call_columns_json(), "rows", rows);
}

json_t *roll_report_calls_json(const struct roll_job *job, uint32_t run, const struct roll_lanes *lanes, size_t *bytes,
                               size_t *lost)
{
    json_t *list = json_array();
    *lost = 0;
    for (size_t i = lanes->moments; i-- > 0;) { /* the end first, and the newest findings */
        const struct roll_moment *m = &lanes->moment[i];
        if (m->run != run) {
            continue;
        }
        json_t *answers = json_array();
        for (uint32_t k = 0; k < m->lanes; k++) {
            json_array_append_new(answers, lane_json(job, &m->lane[k]));
        }
        json_t *one = json_pack("{s:I,s:I,s:o}", "number", (json_int_t)m->number, "time_ns", (json_int_t)m->time_ns,
                                "answers", answers);
        size_t size = json_dumpb(one, NULL, 0, JSON_COMPACT | JSON_ENSURE_ASCII);
        if (one != NULL && size <= *bytes) {
            *bytes -= size;
            json_array_append(list, one);
        } else {
            ++*lost;
        }
        json_decref(one);
    }
    return list;
}
