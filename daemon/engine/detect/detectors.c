/*
 * detectors.c: the table of detectors (detectors.def), and the loops over it: who is asked, who is opened, who is
 * closed.
 */
#include "daemon/engine/detect/detector.h"

const struct detector *const detectors[DETECTORS] = {
#define DETECTOR(name, engine, source, comm, member) [DETECTOR_##name] = &detect_##name,
#include "daemon/engine/detect/detectors.def"
#undef DETECTOR
};

static bool ask_disagree(struct roll_engine *e, const struct finding *f)
{
    for (size_t i = 0; i < DETECTORS; i++) {
        if (detectors[i]->disagree && detectors[i]->disagree(e, f)) {
            return true;
        }
    }
    return false;
}

/* The rank that is waited for has ended because its launcher was ending the job: no detector has to say so. */
static bool is_asked_end(struct roll_engine *e, const struct block *b)
{
    bool is_end = b->kind == BLOCK_DEAD || b->kind == BLOCK_FINISHED || b->kind == BLOCK_LEFT;
    if (!is_end || !b->rank->asked) {
        return false;
    }
    const struct entry *waits = b->waiter ? source_entry(b->waiter, b->ticket) : NULL;
    if (waits && b->comm) {
        comm_mute_at(e, b->comm, b->waiter, &waits->rec);
        comm_explained(e, b->comm);
    }
    return true;
}

static bool ask_block(struct roll_engine *e, const struct block *b, enum ask whom)
{
    if (is_asked_end(e, b)) {
        return true;
    }
    if (whom == ASK_END) {
        return detect_refused.block(e, b) || detect_missing.block(e, b);
    }
    if (whom == ASK_CREATION) {
        return detect_zero.block(e, b) || detect_circular.block(e, b);
    }
    for (size_t i = 0; i < DETECTORS; i++) {
        if (detectors[i]->block && detectors[i]->block(e, b)) {
            return true;
        }
    }
    return false;
}

static bool ask_end_is_told(const struct source *s)
{
    return refused_end(s) || process_end_follows(s);
}

const struct judge_ask detectors_ask = {
    .disagree = ask_disagree, .block = ask_block, .end_is_told = ask_end_is_told, .rehearsed = rehearsed_of};

bool detectors_pair(struct roll_engine *e, struct pair *p, uint32_t index)
{
    for (size_t i = 0; i < DETECTORS; i++) {
        if (detectors[i]->pair && detectors[i]->pair(e, p, index)) {
            return true;
        }
    }
    return false;
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
