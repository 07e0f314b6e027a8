/*
 * perfetto_tracks.c: the processes of a job and their tracks, as a Perfetto trace has them.
 *
 * A process of the job is a process of the trace. Perfetto takes two processes of one number for one, and the numbers
 * of processes of several hosts are alike, so they are numbered here and their own number stands in their name. What a
 * process calls on one communicator is one track, because these calls follow each other; a second host thread that
 * calls there, which NCCL does not allow at once, gets a track of its own, because slices of one track must not cut
 * each other.
 */
#include "daemon/console/export/perfetto_state.h"

#include "daemon/base/array.h"
#include "trace/op.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RING_SHIFT 24u /* tracks of a process: its number above, and their own below */

uint64_t roll_perfetto_number(uint32_t ring, uint32_t track)
{
    return ((uint64_t)ring + 1) << RING_SHIFT | track;
}

struct roll_perfetto_process *roll_perfetto_process(struct roll_perfetto *w, struct roll_job *job, uint32_t ring)
{
    w->err = w->err != 0 ? w->err : ROLL_GROW_ZERO(w->process, w->processes, (size_t)ring + 1);
    if (w->err != 0) {
        return NULL;
    }
    struct roll_perfetto_process *p = &w->process[ring];
    if (!p->begun) {
        struct roll_feed_stream view;
        char name[ROLL_NAME_BYTES + 64], of[ROLL_NAME_BYTES + 192];
        int32_t rank = roll_job_rank(job, ring);
        roll_feed_t *feed = job->run[job->ring[ring].run].feed;
        roll_job_ring_view(job, ring, &view);
        if (rank >= 0) {
            snprintf(name, sizeof(name), "rank %" PRId32 " on %s (pid %" PRIu32 ")", rank, view.host, view.pid);
        } else {
            snprintf(name, sizeof(name), "pid %" PRIu32 " on %s", view.pid, view.host);
        }
        snprintf(of, sizeof(of), "job %s, restart %" PRIu32 ", %s", roll_feed_job(feed), roll_feed_restart(feed),
                 view.exe);
        p->begun = true;
        roll_pf_track(w->pf, &(struct roll_pf_track){.number = roll_perfetto_number(ring, 0),
                                                     .name = name,
                                                     .description = of,
                                                     .process = (int32_t)ring + 1});
    }
    return p;
}

/* Whether a call stands on its communicator's track. What makes and ends communicators stands on the host's: such a
 * call may be the first word of a communicator of which no other member is known yet, and so no name. */
static bool is_on_comm(const struct roll_job_call *call)
{
    return call->rec->comm != 0 && roll_op_class(call->rec->op) != ROLL_CLASS_COMM;
}

static void begin_track(struct roll_perfetto *w, const struct roll_job *job, const struct roll_job_call *call,
                        uint32_t number, bool is_first)
{
    char name[192], of[64] = "calls that are about no communicator", thread[32] = "";
    snprintf(name, sizeof(name), "host");
    if (is_on_comm(call) && call->comm != ROLL_JOB_NONE) {
        roll_job_comm_name(job, call->comm, name, sizeof(name) - sizeof(thread));
        snprintf(of, sizeof(of), "communicator %016" PRIx64 ", %" PRIu32 " rank%s", job->comm[call->comm].key,
                 job->comm[call->comm].size, job->comm[call->comm].size == 1 ? "" : "s");
    } else if (is_on_comm(call)) {
        snprintf(name, sizeof(name), "communicator %u, not known", call->rec->comm);
        of[0] = '\0';
    }
    if (!is_first) {
        snprintf(thread, sizeof(thread), ", thread %u", call->rec->thread);
        strcat(name, thread);
    }
    roll_pf_track(w->pf, &(struct roll_pf_track){.number = roll_perfetto_number(call->ring, number),
                                                 .parent = roll_perfetto_number(call->ring, 0),
                                                 .name = name,
                                                 .description = of[0] != '\0' ? of : NULL});
}

uint64_t roll_perfetto_track(struct roll_perfetto *w, struct roll_job *job, const struct roll_job_call *call)
{
    struct roll_perfetto_process *p = roll_perfetto_process(w, job, call->ring);
    uint16_t comm = is_on_comm(call) ? call->rec->comm : 0, thread = call->rec->thread;
    if (p == NULL || (w->err = ROLL_GROW_ZERO(p->first, p->firsts, (size_t)comm + 1)) != 0) {
        return 0;
    }
    uint32_t last = 0;
    for (uint32_t at = p->first[comm]; at != 0; at = p->track[at - 1].next) {
        if (p->track[at - 1].thread == thread) {
            return roll_perfetto_number(call->ring, at);
        }
        last = at;
    }
    if ((w->err = ROLL_GROW(p->track, p->room, p->tracks + 1)) != 0) {
        return 0;
    }
    p->track[p->tracks++] = (struct roll_perfetto_track){comm, thread, 0};
    *(last != 0 ? &p->track[last - 1].next : &p->first[comm]) = (uint32_t)p->tracks;
    begin_track(w, job, call, (uint32_t)p->tracks, last == 0);
    return roll_perfetto_number(call->ring, (uint32_t)p->tracks);
}

void roll_perfetto_tracks_fini(struct roll_perfetto *w)
{
    for (size_t i = 0; i < w->processes; i++) {
        free(w->process[i].track);
        free(w->process[i].first);
        free(w->process[i].place);
    }
    free(w->process);
}
