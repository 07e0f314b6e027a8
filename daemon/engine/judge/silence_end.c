/*
 * silence_end.c: the end of a silence: what came up meanwhile is judged afresh.
 *
 * To end a silence after some time was rejected: ranks that hang wait for hours, and the same trouble would be told
 * again and again.
 */
#include "daemon/engine/judge/silence.h"

/* Ends the silence of a communicator. */
static void unmute(struct roll_engine *e, struct comm *c)
{
    c->muted = false;
    c->explains = false;
    c->era++;
    e->muted_comms--;
    for (uint32_t i = 0; c->pair && i <= c->pair_mask; i++) {
        if (c->pair[i]) {
            c->pair[i]->said = false;
            pair_stir(c->pair[i]);
        }
    }
    align_resume(e, c);
}

void comm_taken_back(struct roll_engine *e, struct comm *c, uint32_t seq)
{
    if (c->muted && c->mute_seq == seq) {
        unmute(e, c);
    }
}

void comms_doubtful(struct roll_engine *e, uint64_t mutes, uint64_t number)
{
    for (uint32_t i = 0; e->mutes != mutes && i < e->comms; i++) {
        struct comm *c = e->comm[i];
        c->mute_doubt = c->muted && c->mute_turn > mutes ? number : c->mute_doubt;
    }
}

void comms_taken_back(struct roll_engine *e, uint64_t number)
{
    for (uint32_t i = 0; e->muted_comms > 0 && i < e->comms; i++) {
        if (e->comm[i]->muted && e->comm[i]->mute_doubt == number) {
            unmute(e, e->comm[i]);
        }
    }
}

void comms_doubted(struct roll_engine *e, uint64_t number)
{
    for (uint32_t i = 0; e->muted_comms > 0 && i < e->comms; i++) {
        if (e->comm[i]->muted && e->comm[i]->mute_doubt == number) {
            e->comm[i]->doubted = number;
            unmute(e, e->comm[i]);
        }
    }
}

void comms_decided(struct roll_engine *e, uint64_t number)
{
    for (uint32_t i = 0; i < e->comms; i++) {
        e->comm[i]->doubted = e->comm[i]->doubted == number ? 0 : e->comm[i]->doubted;
    }
}

/* The member has got past the trouble, or has left the communicator. With the last member that can still move, the
 * silence ends; where members have only left, those of which nothing has come yet may be read a moment later. */
static void pass(struct roll_engine *e, struct member *m, bool left)
{
    struct comm *c = m->comm;
    m->passed = true;
    for (uint32_t r = 0; r < c->size; r++) {
        const struct member *o = &c->member[r];
        bool moves =
            o->source != NO_SOURCE ? source_alive(e->source[o->source]) && !o->gone : left && !c->open && !c->aborted;
        if (moves && !o->passed) {
            return;
        }
    }
    unmute(e, c);
}

void silence_over(struct roll_engine *e, struct source *s, const struct roll_record *rec)
{
    struct member *m = e->muted_comms > 0 ? source_member(s, rec->comm) : NULL;
    if (m && m->comm->muted && !m->passed && silence_is_call(rec) && silence_is_beyond(m, s, rec)) {
        pass(e, m, false);
    }
}

void silence_gone(struct roll_engine *e, struct member *m)
{
    if (m->comm->muted && !m->passed) {
        struct source *s = e->source[m->source];
        s->gave_up = m->comm->explains ? s->next : s->gave_up;
        pass(e, m, true);
    }
}

void silence_made(struct source *s, const struct roll_record *rec)
{
    if (silence_is_call(rec) && roll_seal_ticket(rec->seal) >= s->gave_up) {
        s->gave_up = 0;
    }
}

void silence_waited(struct roll_engine *e, struct source *s, const struct roll_record *wait)
{
    for (uint32_t i = 0; e->muted_comms > 0 && silence_is_good_wait(wait) && i < s->members; i++) {
        struct member *m = s->member[i];
        if (m && m->comm->muted && !m->passed && silence_covers(s, m, wait)) {
            pass(e, m, false);
        }
    }
}

/* Where all members have got past the trouble already when it becomes known, the next record or tick ends the silence,
 * so that the detectors that are being asked about the trouble still see it. */
void silence_settle(struct roll_engine *e)
{
    e->mute_fresh = false;
    for (uint32_t i = 0; e->muted_comms > 0 && i < e->comms; i++) {
        struct comm *c = e->comm[i];
        for (uint32_t r = 0; c->muted && r < c->size; r++) {
            if (c->member[r].passed) {
                pass(e, &c->member[r], c->member[r].gone);
                break;
            }
        }
    }
}
