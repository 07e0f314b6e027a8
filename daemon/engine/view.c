/*
 * view.c: read-only views for the faces: what each rank and each communicator is doing. Why a rank does not go on is
 * told by view_why.c.
 *
 * A view is filled when somebody asks for it. To keep views up to date with each record was rejected: a face looks
 * about once a second, and a million records may come in between.
 */
#include "daemon/engine/view.h"

#include <stdio.h>
#include <string.h>

uint32_t roll_engine_sources(const roll_engine_t *e)
{
    return e->sources;
}

uint32_t roll_engine_live(const roll_engine_t *e)
{
    return e->live;
}

void roll_engine_failed_add(struct roll_engine_failed *sum, const struct roll_engine_failed *more)
{
    bool earlier = more->calls > 0 && (sum->calls == 0 || more->first_ns < sum->first_ns);
    uint64_t calls = sum->calls + more->calls;
    *sum = earlier ? *more : *sum;
    sum->calls = calls;
}

void roll_engine_summary(const roll_engine_t *e, struct roll_engine_summary *out)
{
    *out = (struct roll_engine_summary){.calls = e->calls,
                                        .records = e->records,
                                        .verdicts = e->numbers,
                                        .findings = e->findings,
                                        .lost = e->lost,
                                        .sources = e->sources,
                                        .sources_live = e->live,
                                        .comms = e->comms,
                                        .failed = e->failed,
                                        .step = ROLL_STEP_NONE};
    for (uint32_t i = 0; i < e->sources; i++) {
        uint32_t step = e->source[i]->step;
        out->step = step != ROLL_STEP_NONE && (out->step == ROLL_STEP_NONE || step > out->step) ? step : out->step;
    }
    if (out->step == ROLL_STEP_NONE) {
        out->step = round_now(e);
        out->step_is_learned = out->step != ROLL_STEP_NONE;
    }
    for (uint32_t i = 0; i < e->comms; i++) {
        const struct comm *c = e->comm[i];
        for (uint32_t seq = c->base; seq < c->high; seq++) {
            const struct slot *s = comm_slot(c, seq);
            out->incomplete += s->arrived > 0 && s->arrived < c->size;
        }
    }
}

/* How many calls on the streams of a source are not complete; counted up to `most`. */
static uint32_t pending(const struct source *s, uint32_t most)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->queues && n < most; i++) {
        uint64_t ticket = s->queue[i].head - 1;
        struct entry *entry = s->queue[i].head ? source_entry(s, ticket) : NULL;
        for (; entry && n < most; entry = source_chain(s, &ticket)) {
            n += !entry_complete(s, entry);
        }
    }
    return n;
}

static enum roll_op inside_of(const struct source *s)
{
    uint64_t inside = view_inside(s);
    const struct entry *entry = inside ? source_entry(s, inside - 1) : NULL;
    return entry ? (enum roll_op)entry->rec.op : ROLL_OP_NONE;
}

static bool fill_source(const roll_engine_t *e, uint32_t i, uint32_t most, struct roll_view_source *out)
{
    if (i >= e->sources) {
        return false;
    }
    const struct source *s = e->source[i];
    *out = (struct roll_view_source){.info = s->info,
                                     .proc = s->proc,
                                     .exit_status = s->exit_status,
                                     .records = s->records,
                                     .calls = s->calls,
                                     .lost = s->lost,
                                     .last_ns = s->last_ns,
                                     .last = s->last,
                                     .last_comm_key = s->last_key,
                                     .state = view_state(s, &s->last),
                                     .in_call = view_inside(s) != 0,
                                     .inside = inside_of(s),
                                     .heard = !s->unheard || s->no_room,
                                     .pending = pending(s, most),
                                     .step = s->step,
                                     .first_step = s->first_step};
    out->info.world_rank = (int32_t)s->world;
    return true;
}

bool roll_engine_source(const roll_engine_t *e, uint32_t i, struct roll_view_source *out)
{
    return fill_source(e, i, UINT32_MAX, out);
}

bool roll_engine_source_brief(const roll_engine_t *e, uint32_t i, struct roll_view_source *out)
{
    return fill_source(e, i, 1, out);
}

bool roll_engine_rank(const roll_engine_t *e, uint32_t world_rank, struct roll_view_source *out)
{
    const struct source *s = source_newest(e, world_rank);
    return s && roll_engine_source(e, s->number, out);
}

/* A guess at the role of a communicator, from its members and its traffic; for people only. */
static const char *role_of(const struct roll_engine *e, const struct comm *c)
{
    static const char *const known[] = {"edp", "etp", "ep", "dp", "tp", "pp", "cp", "world"};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        size_t n = strlen(known[i]);
        if (strncmp(c->label, known[i], n) == 0 && (c->label[n] < 'a' || c->label[n] > 'z')) {
            return known[i];
        }
    }
    if (c->moe > 0) {
        return "ep";
    }
    if (c->size == e->sources && c->parent_key == 0) {
        return "world";
    }
    return c->p2p > c->coll * 4 ? "pp" : "";
}

static void forget_sets(struct roll_engine *e)
{
    roll_rankset_clear(&e->view_members);
    roll_rankset_clear(&e->view_behind);
}

uint64_t roll_engine_done(const roll_engine_t *e, uint64_t key)
{
    const struct comm *c = comm_find(e, key);
    uint32_t least = c && c->size > 0 ? UINT32_MAX : 0;
    for (uint32_t r = 0; c && r < c->size; r++) {
        least = c->member[r].next < least ? c->member[r].next : least;
    }
    return least;
}

bool roll_engine_has_all(const roll_engine_t *e, uint64_t comm_key)
{
    const struct comm *c = comm_find(e, comm_key);
    return c && c->seen == c->size;
}

bool roll_engine_knows(const roll_engine_t *e, uint64_t comm_key)
{
    return comm_find(e, comm_key) != NULL;
}

bool roll_engine_layers(const roll_engine_t *e, struct roll_rankset *layers)
{
    for (uint32_t layer = 0; layer < ROLL_CONTROL_LAYERS; layer++) {
        if (e->moe_layers[layer / 64] >> layer % 64 & 1) {
            (void)roll_rankset_add(layers, layer);
        }
    }
    return e->moe_whole;
}

bool roll_engine_comm(const roll_engine_t *engine, uint32_t i, struct roll_view_comm *out)
{
    /* The sets that the view lends live in the engine. */
    struct roll_engine *e = (struct roll_engine *)(uintptr_t)engine;
    if (i >= e->comms) {
        return false;
    }
    const struct comm *c = e->comm[i];
    *out = (struct roll_view_comm){.key = c->key,
                                   .size = c->size,
                                   .seen = c->seen,
                                   .named = comm_is_named(c),
                                   .made_by = comm_made_by(c->origin),
                                   .parent_key = c->parent_key,
                                   .color = c->origin == ROLL_COMM_SPLIT ? c->color : ROLL_COLOR_NONE,
                                   .believed = c->believed,
                                   .made_source = c->made_source,
                                   .made_callsite = c->made_callsite,
                                   .traffic = c->traffic};
    memcpy(out->label, c->label, sizeof(out->label));
    snprintf(out->role, sizeof(out->role), "%s", role_of(e, c));
    uint32_t least = UINT32_MAX, most = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        uint32_t next = c->member[r].next;
        least = next < least ? next : least;
        most = next > most ? next : most;
    }
    out->done = least;
    out->ahead = most;
    forget_sets(e);
    for (uint32_t r = 0; r < c->size; r++) {
        uint32_t world = comm_world(e, c, r);
        if (world == NO_SOURCE) {
            continue;
        }
        (void)roll_rankset_add(&e->view_members, world);
        if (most > least && c->member[r].next == least) {
            (void)roll_rankset_add(&e->view_behind, world);
        }
    }
    struct words w; /* of 4 KiB, which are not worth clearing for each communicator */
    w.text[w.used = 0] = '\0';
    words_comm_short(&w, c, &e->view_members);
    snprintf(out->name, sizeof(out->name), "%.127s", w.text);
    w.text[w.used = 0] = '\0';
    words_comm_place(&w, c);
    snprintf(out->place, sizeof(out->place), "%.199s", w.text);
    out->stride = members_stride(&e->view_members);
    out->family = comm_family(c, &e->view_members);
    out->members = e->view_members;
    out->behind = e->view_behind;
    return true;
}
