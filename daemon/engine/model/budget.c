/*
 * budget.c: see budget.h.
 */
#include "daemon/engine/model/budget.h"

#define GIVEN        (UINT64_C(256) << 10) /* bytes that a source has by itself: three times what ranks of large jobs need */
#define OF_RECORD    512u /* bytes more with each record: its place in the log, twice, in its window, and in its pair */
#define OF_RANK      16384u /* bytes more with each rank of the job: its place in 40 communicators of all ranks */
#define RANKS_MOST   65536u
#define RANKS_FACTOR 16u /* what one source says of the size of the job is believed up to so many for each that came   \
                          */

/* Ranks of the job, as far as that is believed. */
static uint64_t ranks(const struct roll_engine *e)
{
    uint64_t shown = (uint64_t)e->sources * RANKS_FACTOR, told = e->world_told;
    uint64_t most = told < shown ? told : shown;
    return most < RANKS_MOST ? most : RANKS_MOST;
}

uint64_t budget_most(const struct roll_engine *e)
{
    return e->config.memory / 2 + ranks(e) * OF_RANK;
}

/* How many of so many bytes are not the source's own. */
static uint64_t beyond_own(const struct source *s, uint64_t bytes)
{
    uint64_t own = GIVEN + (s->records < UINT32_MAX ? s->records : UINT32_MAX) * OF_RECORD;
    return bytes > own ? bytes - own : 0;
}

/* The source has so many bytes now. */
static void set_held(struct roll_engine *e, struct source *s, uint64_t bytes)
{
    e->shared -= s->shared;
    s->held = bytes;
    s->shared = beyond_own(s, bytes);
    e->shared += s->shared;
}

bool budget_has(const struct roll_engine *e, const struct source *s, uint64_t bytes)
{
    uint64_t most = budget_most(e), shared = e->config.memory + ranks(e) * OF_RANK;
    if (bytes > most || s->held > most - bytes) {
        return false;
    }
    uint64_t beyond = beyond_own(s, s->held + bytes);
    return beyond <= s->shared || e->shared + (beyond - s->shared) <= shared;
}

bool budget_take(struct roll_engine *e, struct source *s, uint64_t bytes)
{
    bool has = budget_has(e, s, bytes);
    if (has) {
        set_held(e, s, s->held + bytes);
    }
    return has;
}

void budget_charge(struct roll_engine *e, struct source *s, uint64_t bytes)
{
    set_held(e, s, s->held + bytes);
}

void budget_hand_over(struct roll_engine *e, struct source *from, struct source *to, uint64_t bytes)
{
    if (from != to) {
        set_held(e, from, from->held > bytes ? from->held - bytes : 0);
        set_held(e, to, to->held + bytes);
    }
}

void budget_refuse_words(struct roll_engine *e, struct source *s)
{
    s->refusals++;
    e->refusals++;
}

void budget_refuse(struct roll_engine *e, struct source *s)
{
    budget_refuse_words(e, s);
    if (!s->no_room) {
        s->no_room = s->unheard = s->aside = true;
        e->no_rooms++;
        e->sight_changed = true;
    }
}

void budget_fog(struct source *s, const struct roll_record *rec, uint64_t ticket)
{
    bool one = s->fog == 0 || s->fog_stream == rec->stream;
    s->fog_stream = one && rec->stream != 0 ? rec->stream : ALL_QUEUES;
    s->fog = s->fog != 0 ? s->fog : ticket + 1;
    s->fog_last = ticket + 1;
}

void budget_fog_lifts(struct source *s, uint32_t stream, uint64_t upto)
{
    if (s->fog == 0 || (stream != ALL_QUEUES && stream != s->fog_stream)) {
        return;
    }
    if (s->fog_last <= upto) {
        s->fog = s->fog_last = 0;
    } else if (s->fog <= upto) {
        s->fog = upto + 1;
    }
}
