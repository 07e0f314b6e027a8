/*
 * perfetto.c: from calls and verdicts to tracks, slices, arrows and marks.
 *
 * A process of the job is a process of the trace. Perfetto takes two processes of one number for one, and the numbers
 * of processes of several hosts are alike, so they are numbered here and their own number stands in their name. What a
 * process calls on one communicator is one track, because these calls follow each other; a second host thread that
 * calls there, which NCCL does not allow at once, gets a track of its own, because slices of one track must not cut
 * each other. A slice is the time which the host spent in a call, which is what was recorded, and not that of the
 * device.
 */
#include "daemon/console/export/perfetto.h"

#include "daemon/base/array.h"
#include "daemon/console/console.h"
#include "daemon/console/export/out.h"
#include "daemon/console/export/pf_write.h"
#include "trace/err.h"
#include "trace/ident.h"
#include "trace/op.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FINDINGS      1u  /* number of the track of findings */
#define RING_SHIFT    24u /* tracks of a process: its number above, and their own below */
#define CULPRITS_MOST 64u /* of one finding, on whose tracks there is a mark */
#define LABELS        256u

/* What is told of an event: NOTE(NAME, "as people read it"). */
#define NOTES(NOTE)                                                                                                    \
    NOTE(SEQ, "sequence number")                                                                                       \
    NOTE(COUNT, "count")                                                                                               \
    NOTE(DTYPE, "datatype")                                                                                            \
    NOTE(REDOP, "reduction")                                                                                           \
    NOTE(ROOT, "root")                                                                                                 \
    NOTE(PEER, "peer")                                                                                                 \
    NOTE(BYTES, "bytes")                                                                                               \
    NOTE(PLACE, "called at")                                                                                           \
    NOTE(STEP, "step")                                                                                                 \
    NOTE(MICROBATCH, "microbatch")                                                                                     \
    NOTE(LAYER, "layer")                                                                                               \
    NOTE(PHASE, "phase")                                                                                               \
    NOTE(STREAM, "stream")                                                                                             \
    NOTE(GROUP, "group")                                                                                               \
    NOTE(TICKET, "call")                                                                                               \
    NOTE(CAPTURED, "captured into a graph")                                                                            \
    NOTE(REPLAYED, "replayed by a graph")                                                                              \
    NOTE(RESULT, "result")                                                                                             \
    NOTE(LONGER, "took longer than is shown")                                                                          \
    NOTE(TEXT, "text")                                                                                                 \
    NOTE(CODE, "code")                                                                                                 \
    NOTE(CERTAINTY, "certainty")                                                                                       \
    NOTE(CULPRITS, "culprits")                                                                                         \
    NOTE(WAITING, "waiting")                                                                                           \
    NOTE(COMM, "communicator")                                                                                         \
    NOTE(JOB, "job")                                                                                                   \
    NOTE(NUMBER, "number")                                                                                             \
    NOTE(ENDED, "ended by verdict")

enum note {
#define NOTE(name, text) NOTE_##name,
    NOTES(NOTE)
#undef NOTE
        NOTES_ALL
};

struct track {
    uint16_t comm, thread;
    uint32_t next; /* 1 + the next track of the same communicator; 0 = none */
};

/* What has been written of one process. */
struct process {
    bool begun;
    struct track *track; /* owned, as are the next two */
    size_t tracks, room;
    uint32_t *first; /* by communicator: 1 + its first track */
    size_t firsts;
    uint64_t *place; /* by call site: the number of its words; 0 = not looked up; UINT64_MAX: there are none */
    size_t places;
};

struct writer {
    roll_pf_t *pf;
    struct process *process; /* owned; by ring */
    size_t processes;
    uint64_t note[NOTES_ALL], category[16], op[LABELS], dtype[LABELS], redop[LABELS], phase[LABELS], result[LABELS];
    uint64_t latest_ns; /* the latest beginning of a call */
    int err;
};

/* What is told of one event, as it is collected. */
struct told {
    struct roll_pf_note note[ROLL_PF_NOTES];
    size_t n;
};

static void tell(const struct writer *w, struct told *t, enum note name, enum roll_pf_kind kind, uint64_t value,
                 const char *text)
{
    if (t->n < ROLL_PF_NOTES && (kind != ROLL_PF_INTERNED || value != 0)) {
        t->note[t->n++] = (struct roll_pf_note){.name = w->note[name], .kind = kind, .value = value, .text = text};
    }
}

/* The number of a label, which is looked up once. */
static uint64_t label(struct writer *w, uint64_t table[LABELS], enum roll_pf_space space, uint8_t id,
                      const char *(*name)(unsigned id))
{
    if (table[id] == 0) {
        table[id] = roll_pf_intern(w->pf, space, name(id));
    }
    return table[id];
}

static uint64_t category(struct writer *w, unsigned class)
{
    static const char *const name[] = {
        [ROLL_CLASS_NONE] = "other",         [ROLL_CLASS_COLL] = "collective",
        [ROLL_CLASS_P2P] = "message",        [ROLL_CLASS_RMA] = "one-sided",
        [ROLL_CLASS_GROUP] = "group",        [ROLL_CLASS_COMM] = "communicator",
        [ROLL_CLASS_SYNC] = "wait",          [ROLL_CLASS_MOE] = "moe",
        [ROLL_CLASS_EXT] = "compute",        [ROLL_CLASS_POLL] = "poll",
        [ROLL_CLASS_ORDER] = "stream order",
    };
    if (w->category[class] == 0) {
        w->category[class] = roll_pf_intern(w->pf, ROLL_PF_CATEGORY, name[class]);
    }
    return w->category[class];
}

/* processes and their tracks */

static uint64_t number_of(uint32_t ring, uint32_t track)
{
    return ((uint64_t)ring + 1) << RING_SHIFT | track;
}

static struct process *process_of(struct writer *w, struct roll_job *job, uint32_t ring)
{
    w->err = w->err != 0 ? w->err : ROLL_GROW_ZERO(w->process, w->processes, (size_t)ring + 1);
    if (w->err != 0) {
        return NULL;
    }
    struct process *p = &w->process[ring];
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
        roll_pf_track(w->pf,
                      &(struct roll_pf_track){
                          .number = number_of(ring, 0), .name = name, .description = of, .process = (int32_t)ring + 1});
    }
    return p;
}

/* Whether a call stands on its communicator's track. What makes and ends communicators stands on the host's: such a
 * call may be the first word of a communicator of which no other member is known yet, and so no name. */
static bool is_on_comm(const struct roll_job_call *call)
{
    return call->rec->comm != 0 && roll_op_class(call->rec->op) != ROLL_CLASS_COMM;
}

static void begin_track(struct writer *w, const struct roll_job *job, const struct roll_job_call *call, uint32_t number,
                        bool is_first)
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
    roll_pf_track(w->pf, &(struct roll_pf_track){.number = number_of(call->ring, number),
                                                 .parent = number_of(call->ring, 0),
                                                 .name = name,
                                                 .description = of[0] != '\0' ? of : NULL});
}

/* The track of a call, which is begun when it is new. 0: an error. */
static uint64_t track_of(struct writer *w, struct roll_job *job, const struct roll_job_call *call)
{
    struct process *p = process_of(w, job, call->ring);
    uint16_t comm = is_on_comm(call) ? call->rec->comm : 0, thread = call->rec->thread;
    if (p == NULL || (w->err = ROLL_GROW_ZERO(p->first, p->firsts, (size_t)comm + 1)) != 0) {
        return 0;
    }
    uint32_t last = 0;
    for (uint32_t at = p->first[comm]; at != 0; at = p->track[at - 1].next) {
        if (p->track[at - 1].thread == thread) {
            return number_of(call->ring, at);
        }
        last = at;
    }
    if ((w->err = ROLL_GROW(p->track, p->room, p->tracks + 1)) != 0) {
        return 0;
    }
    p->track[p->tracks++] = (struct track){comm, thread, 0};
    *(last != 0 ? &p->track[last - 1].next : &p->first[comm]) = (uint32_t)p->tracks;
    begin_track(w, job, call, (uint32_t)p->tracks, last == 0);
    return number_of(call->ring, (uint32_t)p->tracks);
}

/* calls */

/* The number of the words for a call site; 0 = none. */
static uint64_t place_of(struct writer *w, const struct roll_job *job, const struct roll_job_call *call)
{
    struct process *p = &w->process[call->ring];
    uint16_t site = call->rec->callsite;
    if (site == 0 || (w->err = ROLL_GROW_ZERO(p->place, p->places, (size_t)site + 1)) != 0) {
        return 0;
    }
    if (p->place[site] == 0) {
        struct roll_symbol_frame frame[ROLL_SYMBOL_FRAMES];
        char words[320];
        const char *source;
        roll_job_place(frame, roll_job_frames(job, call->ring, site, frame), words, sizeof(words), &source);
        p->place[site] = words[0] != '\0' ? roll_pf_intern(w->pf, ROLL_PF_WORD, words) : UINT64_MAX;
    }
    return p->place[site] != UINT64_MAX ? p->place[site] : 0;
}

static bool is_refused(const struct roll_record *rec)
{
    return roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED && rec->result != 0;
}

/* What the two ends of a message, and all members of a collective, have in common; 0: the call has no other end. */
static uint64_t flow_of(const struct roll_job *job, const struct roll_job_call *call)
{
    const struct roll_record *rec = call->rec;
    enum roll_op_class class = roll_op_class(rec->op);
    if (call->comm == ROLL_JOB_NONE || is_refused(rec)) {
        return 0;
    }
    struct {
        uint64_t key;
        uint32_t run, seq, from, to, kind, flags;
    } same = {.key = job->comm[call->comm].key, .run = job->comm[call->comm].run, .seq = rec->seq, .kind = class};
    same.flags = rec->flags & (ROLL_FLAG_CAPTURED | ROLL_FLAG_REPLAYED);
    if (class == ROLL_CLASS_P2P && rec->peer >= 0) {
        bool sends = rec->op == ROLL_OP_SEND;
        same.from = (uint32_t)(sends ? call->member : rec->peer);
        same.to = (uint32_t)(sends ? rec->peer : call->member);
    } else if (class == ROLL_CLASS_COLL && rec->count > 0) { /* NCCL drops a collective of no elements */
        same.kind |= rec->op == ROLL_OP_GRAPH_LAUNCH ? 1u << 8 : 0;
        same.flags = 0; /* members of one number meet there, whether one has captured it or not */
    } else if (rec->op == ROLL_OP_COMM_INIT) {
        same.seq = 0;
    } else {
        return 0;
    }
    uint64_t flow = roll_hash64(0, &same, sizeof(same));
    return flow != 0 ? flow : 1;
}

static void tell_call(struct writer *w, const struct roll_job *job, const struct roll_job_call *call, struct told *t)
{
    const struct roll_record *rec = call->rec;
    enum roll_op_class class = roll_op_class(rec->op);
    bool comm = class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P || class == ROLL_CLASS_RMA;
    if (comm) {
        tell(w, t, NOTE_SEQ, ROLL_PF_UINT, rec->seq, NULL);
    }
    if (comm && rec->op != ROLL_OP_GRAPH_LAUNCH) {
        tell(w, t, NOTE_COUNT, ROLL_PF_UINT, rec->count, NULL);
        if (rec->dtype != ROLL_DTYPE_NONE) {
            tell(w, t, NOTE_DTYPE, ROLL_PF_INTERNED, label(w, w->dtype, ROLL_PF_WORD, rec->dtype, roll_dtype_name),
                 NULL);
        }
        if (roll_op_has(rec->op, ROLL_TRAIT_REDOP) && rec->redop != ROLL_RED_NONE) {
            tell(w, t, NOTE_REDOP, ROLL_PF_INTERNED, label(w, w->redop, ROLL_PF_WORD, rec->redop, roll_redop_name),
                 NULL);
        }
        if (rec->peer >= 0) {
            tell(w, t, roll_op_has(rec->op, ROLL_TRAIT_ROOT) ? NOTE_ROOT : NOTE_PEER, ROLL_PF_UINT, (uint64_t)rec->peer,
                 NULL);
        }
    }
    if (class == ROLL_CLASS_COMM && call->comm != ROLL_JOB_NONE) {
        char name[192];
        roll_job_comm_name(job, call->comm, name, sizeof(name));
        tell(w, t, NOTE_COMM, ROLL_PF_INTERNED, roll_pf_intern(w->pf, ROLL_PF_WORD, name), NULL);
    }
    if (call->bytes > 0) {
        tell(w, t, NOTE_BYTES, ROLL_PF_UINT, call->bytes, NULL);
    }
    tell(w, t, NOTE_PLACE, ROLL_PF_INTERNED, place_of(w, job, call), NULL);
    if (rec->step != ROLL_STEP_NONE) {
        tell(w, t, NOTE_STEP, ROLL_PF_UINT, rec->step, NULL);
        tell(w, t, NOTE_MICROBATCH, ROLL_PF_UINT, rec->microbatch, NULL);
    }
    if (rec->layer != ROLL_LAYER_NONE) {
        tell(w, t, NOTE_LAYER, ROLL_PF_UINT, rec->layer, NULL);
    }
    if (rec->phase != ROLL_PHASE_NONE) {
        tell(w, t, NOTE_PHASE, ROLL_PF_INTERNED, label(w, w->phase, ROLL_PF_WORD, rec->phase, roll_phase_name), NULL);
    }
    if (rec->stream != 0) {
        tell(w, t, NOTE_STREAM, ROLL_PF_UINT, rec->stream, NULL);
    }
    if (rec->group != 0) {
        tell(w, t, NOTE_GROUP, ROLL_PF_UINT, rec->group, NULL);
    }
    if ((rec->flags & (ROLL_FLAG_CAPTURED | ROLL_FLAG_REPLAYED)) != 0) {
        tell(w, t, (rec->flags & ROLL_FLAG_CAPTURED) != 0 ? NOTE_CAPTURED : NOTE_REPLAYED, ROLL_PF_BOOL, 1, NULL);
    }
    tell(w, t, NOTE_TICKET, ROLL_PF_UINT, roll_seal_ticket(rec->seal), NULL);
}

static void end_slice(struct writer *w, const struct roll_job_call *call, uint64_t track)
{
    const struct roll_record *rec = call->rec;
    struct told t = {.n = 0};
    if (rec->result != 0) {
        tell(w, &t, NOTE_RESULT, ROLL_PF_INTERNED, label(w, w->result, ROLL_PF_WORD, rec->result, roll_result_name),
             NULL);
    }
    if (rec->call_ns == UINT32_MAX) {
        tell(w, &t, NOTE_LONGER, ROLL_PF_BOOL, 1, NULL);
    }
    roll_pf_event(w->pf, &(struct roll_pf_event){.type = ROLL_PF_END,
                                                 .time_ns = call->real_ns + rec->call_ns,
                                                 .track = track,
                                                 .note = t.note,
                                                 .notes = t.n});
}

static int take_call(void *ctx, struct roll_job *job, const struct roll_job_call *call)
{
    struct writer *w = ctx;
    const struct roll_record *rec = call->rec;
    bool is_back = roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
    uint64_t track = call->news != ROLL_FEED_COMPLETED ? track_of(w, job, call) : 0;
    if (track == 0) {
        return w->err;
    }
    unsigned class = roll_op_class(rec->op);
    bool is_moment = class == ROLL_CLASS_MOE; /* something that was observed, and no call */
    w->latest_ns = call->real_ns > w->latest_ns ? call->real_ns : w->latest_ns;
    if (call->news == ROLL_FEED_FIRST) {
        struct told t = {.n = 0};
        tell_call(w, job, call, &t);
        roll_pf_event(w->pf, &(struct roll_pf_event){.type = is_moment ? ROLL_PF_INSTANT : ROLL_PF_BEGIN,
                                                     .time_ns = call->real_ns,
                                                     .track = track,
                                                     .category = category(w, class),
                                                     .name = label(w, w->op, ROLL_PF_EVENT, rec->op, roll_op_name),
                                                     .flow = flow_of(job, call),
                                                     .note = t.note,
                                                     .notes = t.n});
    }
    if (is_back && !is_moment) {
        end_slice(w, call, track);
    }
    w->err = w->err != 0 ? w->err : roll_pf_error(w->pf);
    return w->err;
}

/* findings */

/* Marks a finding on the tracks of its culprits, where the first call that shows it was made, and joins the marks. */
static void mark_culprits(struct writer *w, struct roll_job *job, const struct roll_verdict_copy *copy,
                          const struct roll_pf_event *on_top)
{
    const struct roll_verdict *said = &copy->said;
    uint32_t run = roll_job_run_of(job, copy);
    size_t n = roll_rankset_count(&said->culprits);
    for (size_t i = 0; i < n && i < CULPRITS_MOST && run != ROLL_JOB_NONE && w->err == 0; i++) {
        uint32_t ring = roll_job_ring_of(job, run, roll_rankset_at(&said->culprits, i));
        if (ring != ROLL_JOB_NONE && process_of(w, job, ring) != NULL) {
            struct roll_pf_event mark = *on_top;
            mark.track = number_of(ring, 0);
            mark.time_ns = said->event_ns != 0 ? said->event_ns : mark.time_ns;
            roll_pf_event(w->pf, &mark);
        }
    }
}

static void write_verdict(struct writer *w, struct roll_job *job, const struct roll_verdict_copy *copy)
{
    const struct roll_verdict *said = &copy->said;
    struct told t = {.n = 0};
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
    tell(w, &t, NOTE_TEXT, ROLL_PF_TEXT, 0, text);
    tell(w, &t, NOTE_CODE, ROLL_PF_TEXT, 0, roll_verdict_name(said->code));
    tell(w, &t, NOTE_CERTAINTY, ROLL_PF_TEXT, 0, roll_certainty_name(said->certainty));
    tell(w, &t, NOTE_CULPRITS, ROLL_PF_TEXT, 0, culprits);
    tell(w, &t, NOTE_WAITING, ROLL_PF_TEXT, 0, waiting);
    tell(w, &t, NOTE_JOB, ROLL_PF_TEXT, 0, copy->job);
    tell(w, &t, NOTE_NUMBER, ROLL_PF_UINT, said->number, NULL);
    if (said->comm_key != 0) {
        tell(w, &t, NOTE_COMM, ROLL_PF_TEXT, 0, comm);
        tell(w, &t, NOTE_SEQ, ROLL_PF_UINT, said->seq, NULL);
    }
    if (copy->ended_by != 0) {
        tell(w, &t, NOTE_ENDED, ROLL_PF_UINT, copy->ended_by, NULL);
    }
    bool finding = roll_verdict_is_finding(said);
    uint64_t both[2] = {said->number, roll_job_run_of(job, copy)};
    struct roll_pf_event mark = {.type = ROLL_PF_INSTANT,
                                 .time_ns = said->time_ns != 0 ? said->time_ns : w->latest_ns,
                                 .track = FINDINGS,
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

/* Who opens the trace elsewhere has not seen what was said when it was made. */
static void write_losses(struct writer *w, const struct roll_analysis_summary *s)
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
                                                 .track = FINDINGS,
                                                 .category = roll_pf_intern(w->pf, ROLL_PF_CATEGORY, "note"),
                                                 .text = text});
}

static int end(void *ctx, struct roll_job *job)
{
    struct writer *w = ctx;
    roll_pf_track(w->pf, &(struct roll_pf_track){.number = FINDINGS, .name = "findings"});
    for (size_t i = 0; i < job->rings && process_of(w, job, (uint32_t)i) != NULL; i++) {
    }
    for (size_t i = 0; i < job->verdicts.used && w->err == 0; i++) {
        write_verdict(w, job, job->verdicts.at[i]);
    }
    write_losses(w, &job->summary);
    return w->err != 0 ? w->err : roll_pf_error(w->pf);
}

static void begin(struct writer *w)
{
    static const char *const name[NOTES_ALL] = {
#define NOTE(name, text) [NOTE_##name] = (text),
        NOTES(NOTE)
#undef NOTE
    };
    for (unsigned i = 0; i < NOTES_ALL; i++) {
        w->note[i] = roll_pf_intern(w->pf, ROLL_PF_NOTE, name[i]);
    }
}

int roll_export_perfetto(char **path, size_t paths, unsigned threads, const char *only, const char *out,
                         struct roll_analysis_summary *summary)
{
    struct writer *w = calloc(1, sizeof(*w));
    int fd = w != NULL ? roll_out_begin(out) : ROLL_E_NOMEM;
    if (fd < 0) {
        free(w);
        return fd;
    }
    w->pf = roll_pf_new(fd);
    int err = w->pf == NULL ? ROLL_E_NOMEM : 0, last = 0;
    if (err == 0) {
        struct roll_job_writer writer = {.ctx = w, .call = take_call, .end = end};
        begin(w);
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
    for (size_t i = 0; i < w->processes; i++) {
        free(w->process[i].track);
        free(w->process[i].first);
        free(w->process[i].place);
    }
    free(w->process);
    free(w);
    return err != 0 ? err : last;
}
