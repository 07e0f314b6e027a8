/*
 * state.c: the tables of the detectors' states: made when somebody keeps something, freed with their objects.
 */
#include "daemon/engine/detect/detector.h"

#include <stdlib.h>

void *state_make(void ***table, uint32_t places, uint32_t at, size_t bytes)
{
    if (!*table) {
        *table = calloc(places, sizeof(**table));
    }
    if (*table && !(*table)[at]) {
        (*table)[at] = calloc(1, bytes);
    }
    return *table ? (*table)[at] : NULL;
}

void state_free(void ***table, uint32_t places)
{
    for (uint32_t i = 0; *table && i < places; i++) {
        free((*table)[i]);
    }
    free(*table);
    *table = NULL;
}

int detector_open(struct roll_engine *e, const struct detector *detector)
{
    if (detector->engine_bytes != 0 &&
        !state_make(&e->state, STATE_ENGINE_PLACES, detector->engine_place, detector->engine_bytes)) {
        return ROLL_E_NOMEM;
    }
    return detector->init ? detector->init(e) : 0;
}

int detectors_open(struct roll_engine *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < DETECTORS; i++) {
        rc = detector_open(e, detectors[i]);
    }
    return rc;
}

static void source_close(struct source *s)
{
    for (size_t i = 0; s->state && i < DETECTORS; i++) {
        if (detectors[i]->source_fini) {
            detectors[i]->source_fini(s);
        }
    }
    state_free(&s->state, STATE_SOURCE_PLACES);
}

static void member_close(struct member *m)
{
    for (size_t i = 0; m->state && i < DETECTORS; i++) {
        if (detectors[i]->member_fini) {
            detectors[i]->member_fini(m);
        }
    }
    state_free(&m->state, STATE_MEMBER_PLACES);
}

static void comm_close(struct comm *c)
{
    for (uint32_t r = 0; r < c->room; r++) {
        member_close(&c->member[r]);
    }
    for (size_t i = 0; c->state && i < DETECTORS; i++) {
        if (detectors[i]->comm_fini) {
            detectors[i]->comm_fini(c);
        }
    }
    state_free(&c->state, STATE_COMM_PLACES);
}

void detectors_close(struct roll_engine *e)
{
    for (size_t i = 0; e->state && i < DETECTORS; i++) {
        if (detectors[i]->fini && (detectors[i]->engine_bytes == 0 || e->state[detectors[i]->engine_place])) {
            detectors[i]->fini(e);
        }
    }
    for (uint32_t i = 0; i < e->sources; i++) {
        source_close(e->source[i]);
    }
    for (uint32_t i = 0; i < e->comms; i++) {
        comm_close(e->comm[i]);
    }
    state_free(&e->state, STATE_ENGINE_PLACES);
}
