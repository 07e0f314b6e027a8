/*
 * perfetto_findings.c: verdicts, and what was lost, as marks of a Perfetto trace: on a track of their own, and, where a
 * finding names ranks, on theirs.
 */
#include "daemon/console/export/perfetto_state.h"

#include "trace/err.h"
#include "trace/ident.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CULPRITS_MOST 64u /* of one finding, on whose tracks there is a mark */

/* Marks a finding on the tracks of its culprits, where the first call that shows it was made, and joins the marks. */
static void mark_culprits(struct roll_perfetto *w, struct roll_job *job, const struct roll_verdict_copy *copy,
                          const struct roll_pf_event *on_top)
{
    const struct roll_verdict *said = &copy->said;
    uint32_t run = roll_job_run_of(job, copy);
    size_t n = roll_rankset_count(&said->culprits);
    for (size_t i = 0; i < n && i < CULPRITS_MOST && run != ROLL_JOB_NONE && w->err == 0; i++) {
        uint32_t ring = roll_job_ring_of(job, run, roll_rankset_at(&said->culprits, i));
        if (ring != ROLL_JOB_NONE && roll_perfetto_process(w, job, ring) != NULL) {
            struct roll_pf_event mark = *on_top;
            mark.track = roll_perfetto_number(ring, 0);
            mark.time_ns = said->event_ns != 0 ? said->event_ns : mark.time_ns;
            roll_pf_event(w->pf, &mark);
        }
    }
}

void roll_perfetto_verdict(struct roll_perfetto *w, struct roll_job *job, const struct roll_verdict_copy *copy)
{
    const struct roll_verdict *said = &copy->said;
    struct roll_perfetto_told t = {.n = 0};
    char culprits[512], waiting[512], name[640], comm[sizeof(said->comm_name)], *text = strdup(copy->text);
    if (text == NULL) {
        w->err = ROLL_E_NOMEM;
        return;
    }
    roll_job_plain(text, true);
    memcpy(comm, said->comm_name, sizeof(comm));
    roll_job_plain(comm, false);
    roll_rankset_format(&said->culprits, culprits, sizeof(culprits));
    roll_rankset_format(&said->waiting, waiting, sizeof(waiting));
    snprintf(name, sizeof(name), "%s%s%s %s%s%s", copy->ended_how != NULL ? copy->ended_how : "",
             copy->ended_how != NULL ? ": " : "", roll_certainty_name(said->certainty), roll_verdict_name(said->code),
             roll_rankset_count(&said->culprits) > 1 ? ": ranks "
             : culprits[0] != '\0'                   ? ": rank "
                                                     : "",
             culprits);
    roll_perfetto_tell(w, &t, ROLL_NOTE_TEXT, ROLL_PF_TEXT, 0, text);
    roll_perfetto_tell(w, &t, ROLL_NOTE_CODE, ROLL_PF_TEXT, 0, roll_verdict_name(said->code));
    roll_perfetto_tell(w, &t, ROLL_NOTE_CERTAINTY, ROLL_PF_TEXT, 0, roll_certainty_name(said->certainty));
    roll_perfetto_tell(w, &t, ROLL_NOTE_CULPRITS, ROLL_PF_TEXT, 0, culprits);
    roll_perfetto_tell(w, &t, ROLL_NOTE_WAITING, ROLL_PF_TEXT, 0, waiting);
    roll_perfetto_tell(w, &t, ROLL_NOTE_JOB, ROLL_PF_TEXT, 0, copy->job);
    roll_perfetto_tell(w, &t, ROLL_NOTE_NUMBER, ROLL_PF_UINT, said->number, NULL);
    if (said->comm_key != 0) {
        roll_perfetto_tell(w, &t, ROLL_NOTE_COMM, ROLL_PF_TEXT, 0, comm);
        roll_perfetto_tell(w, &t, ROLL_NOTE_SEQ, ROLL_PF_UINT, said->seq, NULL);
    }
    if (copy->ended_by != 0) {
        roll_perfetto_tell(w, &t, ROLL_NOTE_ENDED, ROLL_PF_UINT, copy->ended_by, NULL);
    }
    bool finding = roll_verdict_is_finding(said);
    uint64_t both[2] = {said->number, roll_job_run_of(job, copy)};
    struct roll_pf_event mark = {.type = ROLL_PF_INSTANT,
                                 .time_ns = said->time_ns != 0 ? said->time_ns : w->latest_ns,
                                 .track = ROLL_PERFETTO_FINDINGS,
                                 .category = roll_pf_intern(w->pf, ROLL_PF_CATEGORY, finding ? "finding" : "note"),
                                 .text = name,
                                 .flow = finding ? roll_hash64(1, both, sizeof(both)) : 0,
                                 .note = t.note,
                                 .notes = t.n};
    if (finding) {
        mark_culprits(w, job, copy, &mark);
    }
    roll_pf_event(w->pf, &mark);
    free(text);
}

void roll_perfetto_losses(struct roll_perfetto *w, const struct roll_analysis_summary *s)
{
    char text[160];
    if (!s->cut && s->engine.lost + s->older == 0) {
        return;
    }
    snprintf(text, sizeof(text),
             "not all is here: %" PRIu64 " records were lost, %" PRIu64 " older calls are not in this recording%s",
             s->engine.lost, s->older, s->cut ? ", and a trace was cut short or damaged" : "");
    roll_pf_event(w->pf, &(struct roll_pf_event){.type = ROLL_PF_INSTANT,
                                                 .time_ns = w->latest_ns,
                                                 .track = ROLL_PERFETTO_FINDINGS,
                                                 .category = roll_pf_intern(w->pf, ROLL_PF_CATEGORY, "note"),
                                                 .text = text});
}
