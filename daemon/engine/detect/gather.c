/*
 * gather.c: see gather.h.
 *
 * One mistake of the program shows in each layer of a model and on each communicator of a kind, one after the other
 * within a step. Told one by one they once were seventeen findings of one cause. Waiting for the end of the step was
 * rejected: where the cause hangs the job, the step does not end. So all cases that come within a moment (stall/20
 * after the last one, at most stall/4) are told together. Later cases are told in a fuller verdict, at growing
 * distances.
 */
#include "daemon/engine/detect/gather.h"

#include "daemon/engine/detect/detector.h"

#include <stdlib.h>
#include <string.h>

uint64_t gather_family(const struct comm *c)
{
    uint64_t hash = c->label[0] ? c->size : c->key;
    for (const char *at = c->label; *at; at++) {
        hash = say_key(hash, (uint64_t)(unsigned char)*at, 0, 0);
    }
    return hash;
}

struct gathered *gather_find(const struct roll_engine *e, uint64_t key)
{
    struct gathered *g = gather_of_engine(e)->first;
    while (g && g->key != key) {
        g = g->next;
    }
    return g;
}

struct gathered *gather_open(struct roll_engine *e, uint64_t key, enum roll_verdict_code code,
                             enum roll_certainty certainty, bool *fresh)
{
    struct gathered *g = gather_find(e, key);
    *fresh = !g;
    if (!g && (g = calloc(1, sizeof(*g)))) {
        *g = (struct gathered){.key = key,
                               .code = code,
                               .certainty = certainty,
                               .step = ROLL_STEP_NONE,
                               .layer = ROLL_LAYER_NONE,
                               .next = gather_of_engine(e)->first};
        gather_of_engine(e)->first = g;
    }
    return g;
}

void gather_side(struct gathered *g, const struct source *s, uint32_t index, const struct roll_rankset *ranks,
                 const struct roll_record *rec)
{
    if (g->sides == ROLL_VERDICT_SIDES) {
        return;
    }
    struct roll_verdict_side *side = &g->side[g->sides++];
    (void)roll_rankset_copy(&side->ranks, ranks);
    side->source = index;
    if (rec) {
        side->rec = *rec;
        side->rec.enter_ns = source_wall(s, rec);
    }
}

/* Adds the members of `from`. True: some of them are new. */
static bool add_all(struct roll_rankset *into, const struct roll_rankset *from)
{
    size_t before = roll_rankset_count(into);
    (void)roll_rankset_union(into, from);
    return roll_rankset_count(into) != before;
}

void gather_add(struct roll_engine *e, struct gathered *g, struct comm *c, uint32_t step, uint32_t microbatch,
                uint32_t layer, const struct roll_rankset *culprits, const struct roll_rankset *waiting)
{
    bool first = g->told == 0 && !g->pending;
    if (first) {
        g->comm = c;
        g->step = step;
        g->microbatch = microbatch;
        g->layer = layer;
    }
    bool grown = add_all(&g->culprits, culprits);
    grown = (waiting && add_all(&g->waiting, waiting)) || grown;
    if (layer != ROLL_LAYER_NONE && !roll_rankset_has(&g->layers, layer)) {
        (void)roll_rankset_add(&g->layers, layer);
        grown = true;
    }
    g->many_steps = g->many_steps || step != g->step;
    if (c) {
        (void)roll_rankset_add(&g->comms, c->id);
    }
    if (grown || first) {
        g->since = g->pending ? g->since : e->clock;
        g->ago = e->clock;
        g->pending = true;
    }
    if (e->finishing) {
        (void)gather_flush(e, g);
    }
}

uint64_t gather_flush(struct roll_engine *e, struct gathered *g)
{
    struct roll_verdict *v = g->pending ? say(e, g->code, g->certainty) : NULL;
    g->pending = false;
    if (!v) {
        return g->number;
    }
    struct words w = {.used = 0};
    if (g->told == 0) {
        say_confirms(e, v, g->confirms);
    } else {
        say_supersedes(e, v, g->number);
    }
    g->number = v->number;
    g->told++;
    g->since = e->clock;
    if (g->comm) {
        say_comm(v, g->comm, 0);
    }
    for (uint32_t i = 0; i < g->sides; i++) {
        struct roll_verdict_side *side = &v->side[v->sides++];
        (void)roll_rankset_copy(&side->ranks, &g->side[i].ranks);
        side->rec = g->side[i].rec;
        side->source = g->side[i].source;
        v->event_ns = v->event_ns ? v->event_ns : side->rec.enter_ns;
    }
    if (!g->unnamed) {
        (void)roll_rankset_copy(&v->culprits, &g->culprits);
    }
    (void)roll_rankset_copy(&v->waiting, &g->waiting);
    (void)roll_rankset_copy(&v->layers, &g->layers);
    v->step = g->step;
    v->microbatch = g->microbatch;
    v->layer = g->layer;
    v->phase = g->phase;
    v->remedy = g->remedy;
    g->words(e, g, &w);
    if (g->remedy != 0) {
        bool one = roll_rankset_count(&g->layers) == 1;
        words_remedy(&w, e, g->remedy, one ? g->layer : ROLL_LAYER_NONE);
    }
    say_text(e, v, "%s", w.text);
    return g->number;
}

void gather_flush_code(struct roll_engine *e, enum roll_verdict_code code)
{
    struct gathered *oldest;
    do {
        oldest = NULL;
        for (struct gathered *g = gather_of_engine(e)->first; g; g = g->next) { /* the list holds the newest first */
            bool wanted = g->pending && g->told == 0 && g->code == code;
            oldest = wanted && (!oldest || g->since <= oldest->since) ? g : oldest;
        }
        if (oldest) {
            (void)gather_flush(e, oldest);
        }
    } while (oldest);
}

void gather_place(const struct gathered *g, struct words *w)
{
    char folded[128];
    if (roll_rankset_count(&g->layers) < 2) {
        words_place(w, g->step, g->microbatch, g->layer);
    } else {
        (void)roll_rankset_format(&g->layers, folded, sizeof(folded));
        words_add(w, "MoE layers %s", folded);
        if (g->step != ROLL_STEP_NONE) {
            words_add(w, ", ");
            words_place(w, g->step, g->microbatch, ROLL_LAYER_NONE);
        }
    }
    words_add(w, g->many_steps ? " and later" : "");
}

void gather_comm(const struct gathered *g, struct words *w)
{
    if (roll_rankset_count(&g->comms) > 1) { /* communicators of one kind: gather_family */
        words_add(w, "each of %zu communicators ", roll_rankset_count(&g->comms));
        words_comm_short(w, g->comm, &(struct roll_rankset){.used = 0});
        words_add(w, " (%u ranks each)", g->comm->size);
    } else {
        words_comm(w, g->comm);
    }
}

static void gather_tick(struct roll_engine *e)
{
    for (struct gathered *g = gather_of_engine(e)->first; g; g = g->next) {
        uint64_t stall = e->config.stall_ns;
        uint64_t rest = g->told == 0 ? stall / 20 : stall << (g->told < 6 ? g->told : 6);
        bool quiet = e->clock - g->ago >= rest, long_ago = g->told == 0 && e->clock - g->since >= stall / 4;
        if (g->pending && (quiet || long_ago || e->finishing)) {
            (void)gather_flush(e, g);
        }
    }
}

static void gather_fini(struct roll_engine *e)
{
    struct gather_engine *own = gather_of_engine(e);
    while (own->first) {
        struct gathered *g = own->first;
        own->first = g->next;
        roll_rankset_fini(&g->culprits);
        roll_rankset_fini(&g->waiting);
        roll_rankset_fini(&g->layers);
        roll_rankset_fini(&g->comms);
        for (uint32_t i = 0; i < ROLL_VERDICT_SIDES; i++) {
            roll_rankset_fini(&g->side[i].ranks);
        }
        free(g);
    }
}

const struct detector detect_gather = {
    .name = "gather", ENGINE_STATE(gather), .tick = gather_tick, .fini = gather_fini};
