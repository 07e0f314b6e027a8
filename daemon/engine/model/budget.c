/*
 * budget.c: see budget.h.
 */
#include "daemon/engine/model/budget.h"

/* Parts of roll_engine_config.memory as it was when the engine was made; in brackets with 512 MiB. */
#define OF_ONE 2u    /* a source has at most this part of it (256 MiB), and more in large jobs */
#define OF_OWN 2048u /* so much a source has by itself (256 KiB): three times what ranks of large jobs need */
#define OF_RANK                                                                                                        \
    32768u              /* and so much more there is for each rank of the job (16 KiB): its place in 40 communicators  \
                         */
#define A_RECORD   512u /* bytes more with each record: its place in the log, twice, in its window, and in its pair */
#define RANKS_MOST 65536u
#define RANKS_FACTOR                                                                                                   \
    16u /* what one source says of the size of the job is believed up to so many for each that came                    \
         */

/* Bytes for the size of the job, as far as what is said of that is believed. */
static uint64_t of_ranks(const struct roll_engine *e)
{
    uint64_t shown = (uint64_t)e->sources * RANKS_FACTOR, told = e->world_told;
    uint64_t ranks = told < shown ? told : shown;
    return (ranks < RANKS_MOST ? ranks : RANKS_MOST) * (e->room / OF_RANK);
}

uint64_t budget_most(const struct roll_engine *e)
{
    return e->room / OF_ONE + of_ranks(e);
}

/* How many of so many bytes are not the source's own. */
static uint64_t beyond_own(const struct roll_engine *e, const struct source *s, uint64_t bytes)
{
    uint64_t own = e->room / OF_OWN + (s->records < UINT32_MAX ? s->records : UINT32_MAX) * A_RECORD;
    return bytes > own ? bytes - own : 0;
}

/* The source has so many bytes now. */
static void set_held(struct roll_engine *e, struct source *s, uint64_t bytes)
{
    e->shared -= s->shared;
    s->held = bytes;
    s->shared = beyond_own(e, s, bytes);
    e->shared += s->shared;
}

static bool has_room(const struct roll_engine *e, const struct source *s, uint64_t bytes)
{
    uint64_t most = budget_most(e), shared = e->config.memory + of_ranks(e);
    if (bytes > most || s->held > most - bytes) {
        return false;
    }
    uint64_t beyond = beyond_own(e, s, s->held + bytes);
    return beyond <= s->shared || e->shared + (beyond - s->shared) <= shared;
}

bool budget_has(struct roll_engine *e, const struct source *s, uint64_t bytes)
{
    bool has = has_room(e, s, bytes);
    while (!has && e->forget(e)) {
        has = has_room(e, s, bytes);
    }
    return has;
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

void budget_give_back(struct roll_engine *e, struct source *s, uint64_t bytes)
{
    set_held(e, s, s->held > bytes ? s->held - bytes : 0);
}

void budget_hand_over(struct roll_engine *e, struct source *from, struct source *to, uint64_t bytes)
{
    if (from != to) {
        budget_give_back(e, from, bytes);
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
