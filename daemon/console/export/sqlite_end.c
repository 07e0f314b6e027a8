/*
 * sqlite_end.c: the tables of what is known only when everything has been read: runs, communicators, ranks with their
 * call sites, and verdicts.
 */
#include "daemon/console/export/sqlite_state.h"
#include "daemon/feed/site.h"
#include "daemon/verdict/verdict_json.h"
#include "trace/op.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

static void write_rank(struct roll_sqlite *w, const struct roll_job *job, uint32_t ring)
{
    static const char *const state[] = {
        [ROLL_PROC_RUNNING] = "running",
        [ROLL_PROC_STOPPED] = "stopped",
        [ROLL_PROC_FINISHED] = "finished",
        [ROLL_PROC_DEAD] = "dead",
    };
    const struct roll_job_ring *r = &job->ring[ring];
    struct roll_feed_stream view;
    struct roll_view_source source = {.step = ROLL_STEP_NONE};
    bool known = roll_engine_source(roll_feed_engine(job->run[r->run].feed), r->source, &source);
    roll_job_ring_view(job, ring, &view);
    int32_t rank = known ? source.info.world_rank : view.world_rank;
    roll_sqlite_row(w, ROLL_TABLE_ranks);
    roll_sqlite_number(w, ring);
    roll_sqlite_number(w, r->run);
    roll_sqlite_number_if(w, rank >= 0, (uint64_t)rank);
    roll_sqlite_number_if(w, view.local_rank >= 0, (uint64_t)view.local_rank);
    roll_sqlite_words(w, view.host);
    roll_sqlite_number(w, view.pid);
    roll_sqlite_words(w, view.exe);
    roll_sqlite_words(w, view.proc >= ROLL_PROC_RUNNING && view.proc <= ROLL_PROC_DEAD ? state[view.proc] : NULL);
    int status = view.exit_status & ~ROLL_EXIT_ASKED;
    bool ended = view.exit_status != ROLL_EXIT_UNKNOWN && status != ROLL_EXIT_UNKNOWN;
    roll_sqlite_number_if(w, ended && WIFEXITED(status), (uint64_t)WEXITSTATUS(status));
    roll_sqlite_number_if(w, ended && WIFSIGNALED(status), (uint64_t)WTERMSIG(status));
    roll_sqlite_number(w, source.calls);
    roll_sqlite_number(w, view.lost);
    roll_sqlite_number(w, source.pending);
    roll_sqlite_number_if(w, source.last_ns != 0, source.last_ns);
    roll_sqlite_number_if(w, source.step != ROLL_STEP_NONE, source.step);
    roll_sqlite_done(w);
    for (size_t i = 0; i < r->members; i++) {
        if (r->member[i].comm != 0) {
            roll_sqlite_row(w, ROLL_TABLE_members);
            roll_sqlite_number(w, r->member[i].comm - 1);
            roll_sqlite_number(w, ring);
            roll_sqlite_number(w, (uint64_t)r->member[i].rank);
            roll_sqlite_done(w);
        }
    }
}

static char *frames_text(const struct roll_symbol_frame *frame, int frames)
{
    json_t *list = json_array();
    for (int i = 0; i < frames; i++) {
        char line[1024];
        const struct roll_symbol_frame *f = &frame[i];
        if (f->line > 0) {
            snprintf(line, sizeof(line), "%s (%s:%u)", f->function, f->file, f->line);
        } else {
            snprintf(line, sizeof(line), "%s (%s+0x%" PRIx64 ")", f->function, f->module, f->offset);
        }
        roll_job_plain(line, false);
        json_array_append_new(list, json_string(line));
    }
    char *out = json_dumps(list, JSON_COMPACT);
    json_decref(list);
    return out;
}

static void write_callsites(struct roll_sqlite *w, const struct roll_job *job, uint32_t ring)
{
    struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
    for (uint32_t id = 1; id < job->ring[ring].callsites && w->err == SQLITE_OK; id++) {
        char place[320];
        const char *source;
        int frames = roll_job_frames(job, ring, (uint16_t)id, frame);
        if (frames <= 0) {
            continue;
        }
        roll_job_place(frame, frames, place, sizeof(place), &source);
        char *all = frames_text(frame, frames);
        roll_sqlite_row(w, ROLL_TABLE_callsites);
        roll_sqlite_number(w, ring);
        roll_sqlite_number(w, id);
        roll_sqlite_words(w, place);
        roll_sqlite_words(w, source);
        roll_sqlite_words(w, all);
        roll_sqlite_done(w);
        free(all);
    }
}

static void write_comm(struct roll_sqlite *w, const struct roll_job *job, uint32_t comm)
{
    const struct roll_job_comm *c = &job->comm[comm];
    struct roll_view_comm view = {.key = 0};
    char name[192];
    bool known = roll_job_comm_view(job, comm, &view);
    if (known) {
        roll_feed_comm_site(job->run[c->run].feed, &view, ROLL_SITE_READ);
    }
    roll_job_comm_name(job, comm, name, sizeof(name));
    roll_sqlite_row(w, ROLL_TABLE_communicators);
    roll_sqlite_number(w, comm);
    roll_sqlite_number(w, c->run);
    roll_sqlite_key(w, c->key);
    roll_sqlite_words(w, name);
    roll_sqlite_words(w, c->label);
    roll_sqlite_words(w, known ? view.role : NULL);
    roll_sqlite_number(w, c->size);
    if (known) {
        roll_sqlite_ranks(w, &view.members);
    } else {
        roll_sqlite_null(w);
    }
    roll_sqlite_words(w, known && view.made_by != ROLL_OP_NONE ? roll_op_name(view.made_by) : NULL);
    roll_sqlite_words(w, known ? view.place : NULL);
    roll_sqlite_key(w, known ? view.parent_key : 0);
    roll_sqlite_done(w);
}

static void write_verdict_ranks(struct roll_sqlite *w, uint64_t verdict, const char *role,
                                const struct roll_rankset *set)
{
    for (size_t i = 0; i < set->used; i++) {
        for (uint64_t rank = set->range[i].first; rank <= set->range[i].last; rank++) {
            roll_sqlite_row(w, ROLL_TABLE_verdict_ranks);
            roll_sqlite_number(w, verdict);
            roll_sqlite_words(w, role);
            roll_sqlite_number(w, rank);
            roll_sqlite_done(w);
        }
    }
}

static void write_verdict(struct roll_sqlite *w, const struct roll_job *job, uint64_t id)
{
    const struct roll_verdict_copy *copy = job->verdicts.at[id];
    const struct roll_verdict *said = &copy->said;
    uint32_t run = roll_job_run_of(job, copy);
    uint32_t comm = said->comm_key != 0 ? roll_job_comm_of(job, run, said->comm_key) : ROLL_JOB_NONE;
    char *json = roll_verdict_to_text(copy);
    roll_sqlite_try(w, json == NULL ? SQLITE_NOMEM : SQLITE_OK);
    roll_sqlite_row(w, ROLL_TABLE_verdicts);
    roll_sqlite_number(w, id);
    roll_sqlite_number_if(w, run != ROLL_JOB_NONE, run);
    roll_sqlite_number(w, said->number);
    roll_sqlite_words(w, roll_verdict_name(said->code));
    roll_sqlite_words(w, roll_certainty_name(said->certainty));
    roll_sqlite_number(w, roll_verdict_stands(copy));
    roll_sqlite_number_if(w, copy->ended_by != 0, copy->ended_by);
    roll_sqlite_number(w, said->time_ns);
    roll_sqlite_number_if(w, said->event_ns != 0, said->event_ns);
    roll_sqlite_number_if(w, comm != ROLL_JOB_NONE, comm);
    roll_sqlite_number_if(w, said->comm_key != 0, said->seq);
    roll_sqlite_words(w, said->field);
    roll_sqlite_number_if(w, said->step != ROLL_STEP_NONE, said->step);
    roll_sqlite_number_if(w, said->layer != ROLL_LAYER_NONE, said->layer);
    roll_sqlite_ranks(w, &said->culprits);
    roll_sqlite_ranks(w, &said->waiting);
    roll_sqlite_words_of(w, copy->text, true);
    roll_sqlite_words(w, json);
    roll_sqlite_done(w);
    free(json);
    write_verdict_ranks(w, id, "culprit", &said->culprits);
    write_verdict_ranks(w, id, "waiting", &said->waiting);
}

void roll_sqlite_write_end(struct roll_sqlite *w, const struct roll_job *job)
{
    for (uint32_t i = 0; i < job->runs; i++) {
        roll_sqlite_row(w, ROLL_TABLE_runs);
        roll_sqlite_number(w, i);
        roll_sqlite_words(w, roll_feed_job(job->run[i].feed));
        roll_sqlite_number(w, roll_feed_restart(job->run[i].feed));
        roll_sqlite_done(w);
    }
    for (uint32_t i = 0; i < job->comms; i++) {
        write_comm(w, job, i);
    }
    for (uint32_t i = 0; i < job->rings; i++) {
        write_rank(w, job, i);
        write_callsites(w, job, i);
    }
    for (size_t i = 0; i < job->verdicts.used; i++) {
        write_verdict(w, job, i);
    }
}
