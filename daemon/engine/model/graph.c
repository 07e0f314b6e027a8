/*
 * graph.c: what was captured into which CUDA graph, per rank.
 *
 * The record of a launch holds only the hash of what is replayed, so that a rank with thousands of captured calls makes
 * one record a step. When the hashes of two ranks differ, people want to know which call differs first. For them the
 * newest CAPTURED_MAX captured calls are remembered in a ring, without the rest of their records. To read the calls
 * from the log again was rejected: a captured call waits for nothing, so the log forgets it at once.
 */
#include "daemon/base/array.h"
#include "daemon/engine/model/source.h"

#include <stdlib.h>

#define GRAPHS_MAX 1024u

/* The definition of one graph: its calls are those with tickets from `first` to `last`. */
struct graph_span {
    uint64_t first, last;
    uint32_t parts;
    struct {
        uint32_t collectives;
        uint16_t comm;
    } part[8];
};

void graph_note_call(struct source *s, const struct roll_record *rec, uint64_t ticket)
{
    /* The ring grows up to its bound, and goes round from then on. */
    if (s->captures < CAPTURED_MAX && ROLL_GROW(s->captured, s->capture_room, s->captures + 1u) != 0) {
        return;
    }
    s->captured[s->captures % CAPTURED_MAX] = (struct captured){.ticket = ticket,
                                                                .count = rec->count,
                                                                .peer = rec->peer,
                                                                .comm = rec->comm,
                                                                .callsite = rec->callsite,
                                                                .graph = rec->aux,
                                                                .op = rec->op,
                                                                .dtype = rec->dtype,
                                                                .redop = rec->redop,
                                                                .flags = rec->flags};
    s->captures++;
}

void graph_define(struct source *s, const struct roll_def *def)
{
    if (def->id == 0 || def->id > GRAPHS_MAX) {
        return;
    }
    if (ROLL_GROW_ZERO(s->graph, s->graphs, def->id + 1u) != 0) {
        return;
    }
    struct graph_span *g = &s->graph[def->id];
    *g = (struct graph_span){.first = def->graph.info.first_ticket, .last = def->graph.info.last_ticket};
    for (; g->parts < def->graph.info.parts && g->parts < sizeof(g->part) / sizeof(g->part[0]); g->parts++) {
        g->part[g->parts].collectives = def->graph.part[g->parts].collectives;
        g->part[g->parts].comm = def->graph.part[g->parts].comm;
    }
}

void graph_forget(struct source *s)
{
    free(s->captured);
    free(s->graph);
    s->captured = NULL;
    s->graph = NULL;
}

bool graph_collective(const struct source *s, uint32_t id, uint32_t comm, uint32_t n, struct roll_record *out,
                      uint32_t *total)
{
    const struct graph_span *g = id < s->graphs ? &s->graph[id] : NULL;
    *total = 0;
    for (uint32_t i = 0; g && i < g->parts; i++) {
        *total = g->part[i].comm == comm ? g->part[i].collectives : *total;
    }
    uint32_t kept = s->captures < CAPTURED_MAX ? s->captures : CAPTURED_MAX, seen = 0;
    for (uint32_t i = s->captures - kept; g && i != s->captures; i++) {
        const struct captured *c = &s->captured[i % CAPTURED_MAX];
        if (c->graph != id || c->comm != comm || c->count == 0 || roll_op_class(c->op) != ROLL_CLASS_COLL ||
            c->ticket < g->first || c->ticket > g->last || seen++ != n) {
            continue;
        }
        *out = (struct roll_record){.seal = roll_seal(c->ticket, ROLL_STATE_RETURNED),
                                    .count = c->count,
                                    .peer = c->peer,
                                    .comm = c->comm,
                                    .callsite = c->callsite,
                                    .step = ROLL_STEP_NONE,
                                    .layer = ROLL_LAYER_NONE,
                                    .op = c->op,
                                    .dtype = c->dtype,
                                    .redop = c->redop,
                                    .flags = c->flags,
                                    .aux = c->graph};
        return true;
    }
    return false;
}
