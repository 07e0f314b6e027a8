/*
 * perfetto.c: a recorded job as a Perfetto trace: its names come first, then calls as they are read
 * (perfetto_calls.c), and at the end what is known only then: processes that made no call, verdicts and losses.
 */
#include "daemon/console/export/perfetto.h"

#include "daemon/console/console.h"
#include "daemon/console/export/out.h"
#include "daemon/console/export/perfetto_state.h"
#include "trace/err.h"

#include <stdlib.h>

static int end(void *ctx, struct roll_job *job)
{
    struct roll_perfetto *w = ctx;
    roll_pf_track(w->pf, &(struct roll_pf_track){.number = ROLL_PERFETTO_FINDINGS, .name = "findings"});
    for (size_t i = 0; i < job->rings && roll_perfetto_process(w, job, (uint32_t)i) != NULL; i++) {
    }
    for (size_t i = 0; i < job->verdicts.used && w->err == 0; i++) {
        roll_perfetto_verdict(w, job, job->verdicts.at[i]);
    }
    roll_perfetto_losses(w, &job->summary);
    return w->err != 0 ? w->err : roll_pf_error(w->pf);
}

int roll_export_perfetto(char **path, size_t paths, unsigned threads, const char *only, const char *out,
                         struct roll_analysis_summary *summary)
{
    struct roll_perfetto *w = calloc(1, sizeof(*w));
    int fd = w != NULL ? roll_out_begin(out) : ROLL_E_NOMEM;
    if (fd < 0) {
        free(w);
        return fd;
    }
    w->pf = roll_pf_new(fd);
    int err = w->pf == NULL ? ROLL_E_NOMEM : 0, last = 0;
    if (err == 0) {
        struct roll_job_writer writer = {.ctx = w, .call = roll_perfetto_call, .end = end};
        roll_perfetto_notes_begin(w);
        err = roll_pf_error(w->pf);
        err = err != 0 ? err : roll_job_read(path, paths, threads, only, &writer, summary);
        last = roll_pf_end(&w->pf);
    }
    bool said = err == ROLL_E_NOTFOUND || err == ROLL_E_UNSUPPORTED; /* already */
    if (!said && (err != 0 || last != 0)) {
        roll_say("%s: %s", out, roll_strerror(err != 0 ? err : last));
    }
    err = err != 0 ? err : last;
    last = roll_out_end(err == 0);
    roll_perfetto_tracks_fini(w);
    free(w);
    return err != 0 ? err : last;
}
