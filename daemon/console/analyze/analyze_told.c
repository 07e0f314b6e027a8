/*
 * analyze_told.c: what came of an analysis: its verdicts, where ranks stood, and the figures of each run and of all.
 */
#include "daemon/console/analyze/analyze_state.h"

#include "daemon/base/bus_guard.h"
#include "daemon/base/json.h"

#include <string.h>

struct roll_verdict_copy *roll_analysis_next(roll_analysis_t *a)
{
    for (size_t i = 0; i < a->runs; i++) {
        struct roll_verdict_copy *verdict = roll_feed_next(a->run[i].feed);
        if (verdict != NULL) {
            return verdict;
        }
    }
    struct roll_verdict_copy *verdict = a->digests != NULL ? roll_digests_next(a->digests) : NULL;
    return verdict != NULL ? verdict : a->reports != NULL ? roll_reports_next(a->reports) : NULL;
}

json_t *roll_analysis_unreached(const roll_analysis_t *a)
{
    return a->digests != NULL ? roll_digests_unreached(a->digests) : json_array();
}

/* Whether a process died while a rank was inside a call. */
static bool ended_badly(roll_engine_t *engine)
{
    struct roll_engine_summary summary;
    struct roll_view_source v;
    bool dead = false, inside = false;
    roll_engine_summary(engine, &summary);
    for (uint32_t i = 0; summary.findings == 0 && roll_engine_source(engine, i, &v); i++) {
        dead = dead || v.proc == ROLL_PROC_DEAD;
        inside = inside || v.in_call || v.pending > 0;
    }
    return dead && inside;
}

json_t *roll_analysis_standing(const roll_analysis_t *a)
{
    json_t *list = json_array();
    for (size_t i = 0; i < a->runs; i++) {
        roll_engine_t *engine = roll_feed_engine(a->run[i].feed);
        struct roll_view_source v;
        char text[4096];
        bool tell = ended_badly(engine);
        for (uint32_t k = 0; tell && roll_engine_source(engine, k, &v); k++) {
            if (v.info.world_rank >= 0 &&
                roll_engine_why(engine, (uint32_t)v.info.world_rank, text, sizeof(text)) >= 0) {
                json_array_append_new(list, json_pack("{s:o, s:i, s:i, s:o}", "job", roll_text_to_json(a->run[i].job),
                                                      "restart", (int)a->run[i].restart, "rank", (int)v.info.world_rank,
                                                      "text", roll_text_to_json(text)));
            }
        }
    }
    return list;
}

bool roll_analysis_run(const roll_analysis_t *a, size_t i, struct roll_analysis_run *out)
{
    if (i >= a->runs) {
        return false;
    }
    *out = (struct roll_analysis_run){.job = a->run[i].job, .restart = a->run[i].restart, .missing = a->run[i].missing};
    roll_engine_summary(roll_feed_engine(a->run[i].feed), &out->engine);
    out->engine.lost = roll_feed_losses(a->run[i].feed, out->losses);
    out->older = roll_feed_older(a->run[i].feed);
    return true;
}

void roll_analysis_summary(const roll_analysis_t *a, struct roll_analysis_summary *out)
{
    *out = (struct roll_analysis_summary){
        .runs = a->runs, .files = a->files, .unreadable = a->unreadable, .unjudged = a->unjudged};
    out->cut = a->cut || roll_guard_cuts() > 0; /* a file may be cut while it is read */
    struct roll_analysis_run run;
    for (size_t i = 0; roll_analysis_run(a, i, &run); i++) {
        const struct roll_engine_summary s = run.engine;
        for (unsigned k = 0; k < ROLL_LOSS_LIMIT; k++) {
            out->losses[k] += run.losses[k];
        }
        out->missing += run.missing;
        out->older += run.older;
        out->verdicts_lost += roll_feed_verdicts_lost(a->run[i].feed);
        out->engine.calls += s.calls;
        out->engine.records += s.records;
        out->engine.verdicts += s.verdicts;
        out->engine.findings += s.findings;
        out->engine.lost += s.lost;
        out->engine.sources += s.sources;
        out->engine.comms += s.comms;
        out->engine.sources_live += s.sources_live;
        out->engine.incomplete += s.incomplete;
        roll_engine_failed_add(&out->engine.failed, &s.failed);
    }
    if (a->digests != NULL) {
        struct roll_digests_summary s;
        roll_digests_summary(a->digests, &s);
        out->digests = s.files;
        out->digested = s.calls;
        out->unreached = s.unreached;
        out->engine.lost += s.lost;
        out->older += s.older;
        out->engine.findings += s.findings;
        out->engine.verdicts += s.findings;
    }
    if (a->reports != NULL) {
        struct roll_reports_summary s;
        roll_reports_summary(a->reports, &s);
        out->engine.sources += (uint32_t)s.ranks;
        out->engine.comms += (uint32_t)s.comms;
        out->engine.calls += s.calls;
        out->engine.findings += s.findings;
    }
}
