/*
 * perfetto_calls.c: a call as a slice of a Perfetto trace: what is told of it, and the arrows that join it to others.
 *
 * A slice is the time which the host spent in a call, which is what was recorded, and not that of the device.
 */
#include "daemon/console/export/perfetto_state.h"

#include "daemon/base/array.h"
#include "trace/ident.h"
#include "trace/op.h"

/* The number of the words for a call site; 0 = none. */
static uint64_t place_of(struct roll_perfetto *w, const struct roll_job *job, const struct roll_job_call *call)
{
    struct roll_perfetto_process *p = &w->process[call->ring];
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

static void tell_call(struct roll_perfetto *w, const struct roll_job *job, const struct roll_job_call *call,
                      struct roll_perfetto_told *t)
{
    const struct roll_record *rec = call->rec;
    enum roll_op_class class = roll_op_class(rec->op);
    bool comm = class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P || class == ROLL_CLASS_RMA;
    if (comm) {
        roll_perfetto_tell(w, t, ROLL_NOTE_SEQ, ROLL_PF_UINT, rec->seq, NULL);
    }
    if (comm && rec->op != ROLL_OP_GRAPH_LAUNCH) {
        roll_perfetto_tell(w, t, ROLL_NOTE_COUNT, ROLL_PF_UINT, rec->count, NULL);
        if (rec->dtype != ROLL_DTYPE_NONE) {
            roll_perfetto_tell(w, t, ROLL_NOTE_DTYPE, ROLL_PF_INTERNED,
                               roll_perfetto_label(w, w->dtype, ROLL_PF_WORD, rec->dtype, roll_dtype_name), NULL);
        }
        if (roll_op_has(rec->op, ROLL_TRAIT_REDOP) && rec->redop != ROLL_RED_NONE) {
            roll_perfetto_tell(w, t, ROLL_NOTE_REDOP, ROLL_PF_INTERNED,
                               roll_perfetto_label(w, w->redop, ROLL_PF_WORD, rec->redop, roll_redop_name), NULL);
        }
        if (rec->peer >= 0) {
            roll_perfetto_tell(w, t, roll_op_has(rec->op, ROLL_TRAIT_ROOT) ? ROLL_NOTE_ROOT : ROLL_NOTE_PEER,
                               ROLL_PF_UINT, (uint64_t)rec->peer, NULL);
        }
    }
    if (class == ROLL_CLASS_COMM && call->comm != ROLL_JOB_NONE) {
        char name[192];
        roll_job_comm_name(job, call->comm, name, sizeof(name));
        roll_perfetto_tell(w, t, ROLL_NOTE_COMM, ROLL_PF_INTERNED, roll_pf_intern(w->pf, ROLL_PF_WORD, name), NULL);
    }
    if (call->bytes > 0) {
        roll_perfetto_tell(w, t, ROLL_NOTE_BYTES, ROLL_PF_UINT, call->bytes, NULL);
    }
    roll_perfetto_tell(w, t, ROLL_NOTE_PLACE, ROLL_PF_INTERNED, place_of(w, job, call), NULL);
    if (rec->step != ROLL_STEP_NONE) {
        roll_perfetto_tell(w, t, ROLL_NOTE_STEP, ROLL_PF_UINT, rec->step, NULL);
        roll_perfetto_tell(w, t, ROLL_NOTE_MICROBATCH, ROLL_PF_UINT, rec->microbatch, NULL);
    }
    if (rec->layer != ROLL_LAYER_NONE) {
        roll_perfetto_tell(w, t, ROLL_NOTE_LAYER, ROLL_PF_UINT, rec->layer, NULL);
    }
    if (rec->phase != ROLL_PHASE_NONE) {
        roll_perfetto_tell(w, t, ROLL_NOTE_PHASE, ROLL_PF_INTERNED,
                           roll_perfetto_label(w, w->phase, ROLL_PF_WORD, rec->phase, roll_phase_name), NULL);
    }
    if (rec->stream != 0) {
        roll_perfetto_tell(w, t, ROLL_NOTE_STREAM, ROLL_PF_UINT, rec->stream, NULL);
    }
    if (rec->group != 0) {
        roll_perfetto_tell(w, t, ROLL_NOTE_GROUP, ROLL_PF_UINT, rec->group, NULL);
    }
    if ((rec->flags & (ROLL_FLAG_CAPTURED | ROLL_FLAG_REPLAYED)) != 0) {
        roll_perfetto_tell(w, t, (rec->flags & ROLL_FLAG_CAPTURED) != 0 ? ROLL_NOTE_CAPTURED : ROLL_NOTE_REPLAYED,
                           ROLL_PF_BOOL, 1, NULL);
    }
    roll_perfetto_tell(w, t, ROLL_NOTE_TICKET, ROLL_PF_UINT, roll_seal_ticket(rec->seal), NULL);
}

static void end_slice(struct roll_perfetto *w, const struct roll_job_call *call, uint64_t track)
{
    const struct roll_record *rec = call->rec;
    struct roll_perfetto_told t = {.n = 0};
    if (rec->result != 0) {
        roll_perfetto_tell(w, &t, ROLL_NOTE_RESULT, ROLL_PF_INTERNED,
                           roll_perfetto_label(w, w->result, ROLL_PF_WORD, rec->result, roll_result_name), NULL);
    }
    if (rec->call_ns == UINT32_MAX) {
        roll_perfetto_tell(w, &t, ROLL_NOTE_LONGER, ROLL_PF_BOOL, 1, NULL);
    }
    roll_pf_event(w->pf, &(struct roll_pf_event){.type = ROLL_PF_END,
                                                 .time_ns = call->real_ns + rec->call_ns,
                                                 .track = track,
                                                 .note = t.note,
                                                 .notes = t.n});
}

int roll_perfetto_call(void *ctx, struct roll_job *job, const struct roll_job_call *call)
{
    struct roll_perfetto *w = ctx;
    const struct roll_record *rec = call->rec;
    bool is_back = roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
    uint64_t track = call->news != ROLL_FEED_COMPLETED ? roll_perfetto_track(w, job, call) : 0;
    if (track == 0) {
        return w->err;
    }
    unsigned class = roll_op_class(rec->op);
    bool is_moment = class == ROLL_CLASS_MOE; /* something that was observed, and no call */
    w->latest_ns = call->real_ns > w->latest_ns ? call->real_ns : w->latest_ns;
    if (call->news == ROLL_FEED_FIRST) {
        struct roll_perfetto_told t = {.n = 0};
        tell_call(w, job, call, &t);
        roll_pf_event(
            w->pf, &(struct roll_pf_event){.type = is_moment ? ROLL_PF_INSTANT : ROLL_PF_BEGIN,
                                           .time_ns = call->real_ns,
                                           .track = track,
                                           .category = roll_perfetto_category(w, class),
                                           .name = roll_perfetto_label(w, w->op, ROLL_PF_EVENT, rec->op, roll_op_name),
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
