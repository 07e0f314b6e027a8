/*
 * view_state.c: how far a call has come, in one word for a table and in words for a sentence, and which call a rank is
 * inside.
 *
 * Both forms ask the same questions in the same order, so that the table and the sentence about one rank never differ.
 * To keep the word beside each call was rejected: most calls are never looked at.
 */
#include "daemon/engine/view.h"

uint64_t view_inside(const struct source *s)
{
    uint64_t oldest = 0;
    for (uint32_t i = 0; i < s->threads; i++) {
        uint64_t inside = s->thread[i].inside;
        if (inside != 0 && (oldest == 0 || inside < oldest)) {
            oldest = inside;
        }
    }
    return oldest;
}

/* The device is known to be through with this call. */
static bool is_done(const struct source *s, const struct roll_record *rec)
{
    bool done = roll_seal_state(rec->seal) == ROLL_STATE_COMPLETE;
    for (uint32_t i = 0; i < s->queues && !done; i++) {
        bool here = i == rec->stream || rec->group != 0; /* a call of a group may stand on another call's stream */
        done = here && roll_seal_ticket(rec->seal) < s->queue[i].done;
    }
    return done;
}

/* The call is nonblocking, and NCCL may still be at work on it in the background: no answer has said that it is done.
 */
static bool in_progress(const struct source *s, const struct roll_record *rec)
{
    const struct member *m = source_member(s, rec->comm);
    return rec->result == NCCL_IN_PROGRESS && !(m && m->settled > roll_seal_ticket(rec->seal));
}

/* Nothing of this call was enqueued: NCCL refused the call, or its group. */
static bool in_vain(const struct source *s, const struct roll_record *rec)
{
    const struct entry *entry = source_entry(s, roll_seal_ticket(rec->seal));
    return call_failed(rec) || (entry && refused_call(s, entry));
}

const char *view_state(const struct source *s, const struct roll_record *rec)
{
    if (rec->op == ROLL_OP_NONE) {
        return "";
    }
    if (roll_seal_state(rec->seal) == ROLL_STATE_ENTERED) {
        return "entered";
    }
    if (in_vain(s, rec)) {
        return "refused";
    }
    if ((rec->flags & ROLL_FLAG_CAPTURED) != 0) {
        return "captured";
    }
    if (source_group_open(s, rec)) {
        return "in group";
    }
    return in_progress(s, rec) ? "in progress" : is_done(s, rec) ? "complete" : "returned";
}

void view_words_state(struct words *w, const struct roll_engine *e, const struct source *s,
                      const struct roll_record *rec)
{
    if (roll_seal_state(rec->seal) == ROLL_STATE_ENTERED) {
        words_add(w, " (entered, not returned)");
    } else if (call_failed(rec)) {
        words_add(w, " (returned %s: nothing was enqueued)", roll_result_name(rec->result));
    } else if (in_vain(s, rec)) {
        words_add(w, " (its group returned an error or was only simulated: nothing was enqueued)");
    } else if ((rec->flags & ROLL_FLAG_CAPTURED) != 0) {
        words_add(w, " (captured into CUDA graph %u: it runs when that is launched)", rec->aux);
    } else if (source_group_open(s, rec)) {
        words_add(w, " (in a group that has not been ended: not enqueued yet)");
    } else if (in_progress(s, rec)) {
        uint64_t since = source_wall(s, rec);
        words_add(w, " (returned, in progress in the background for %.1f s)",
                  e->now > since ? (double)(e->now - since) / 1e9 : 0.0);
    } else if (is_done(s, rec)) {
        words_add(w, " (complete on the device)");
    } else if (s->completes) {
        words_add(w, " (returned, not complete on the device)");
    }
}
