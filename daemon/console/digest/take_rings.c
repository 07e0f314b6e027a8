/*
 * take_rings.c: the rings of a series that is read, with their definitions; and all that is held of a series, freed.
 *
 * Of each ring the newest records stay in memory, as many as a ring of the usual size holds: so where an excerpt has to
 * begin is found as an agent finds it in its ring. Keeping all records was rejected: a node's traces of a day are
 * gigabytes.
 */
#include "daemon/console/digest/digest.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/feed/feed.h"
#include "trace/def.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define IMAGE       65536u /* records of a ring that are kept, of the first rings */
#define IMAGE_SMALL 8192u  /* of the others: a node has eight ranks, and a hundred rings are a hostile directory */
#define RINGS_LARGE 32u
#define INSIDE_NS   (1000 * ROLL_MS)

struct taken_ring *roll_taken_ring(const struct roll_taken *t, uint64_t epoch)
{
    uint32_t i = roll_map_get(&t->ring_at, epoch);
    return i == ROLL_MAP_NONE ? NULL : t->ring[i];
}

static void ring_destroy(struct taken_ring *r)
{
    if (r) {
        roll_fold_destroy(&r->fold);
        free(r->header);
        free(r->defs);
        free(r->chunk);
        free(r->comm);
        free(r->image);
        free(r);
    }
}

void roll_taken_fini(struct roll_taken *t)
{
    for (size_t i = 0; i < t->rings; i++) {
        ring_destroy(t->ring[i]);
    }
    for (size_t i = 0; i < t->keys; i++) {
        roll_spans_fini(&t->key[i].spans);
    }
    for (size_t i = 0; i < t->excerpts; i++) {
        for (size_t k = 0; k < t->excerpt[i].parts; k++) {
            free(t->excerpt[i].part[k].place);
        }
        free(t->excerpt[i].part);
        free(t->excerpt[i].comm);
    }
    for (size_t i = 0; i < t->places; i++) {
        roll_spans_fini(&t->place[i].spans);
    }
    roll_sum_destroy(&t->sum);
    roll_digest_fini(&t->cut);
    roll_digest_fini(&t->up);
    roll_digest_fini(&t->hints);
    roll_map_fini(&t->ring_at);
    roll_map_fini(&t->key_at);
    free(t->ring);
    free(t->key);
    free(t->place);
    free(t->observed);
    free(t->excerpt);
    free(t->segment);
    free(t->nexts);
}

int roll_taken_add_ring(struct roll_taken *t, const struct roll_frame *frame, bool *cut)
{
    struct roll_ring_header h;
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    if (roll_feed_run_of(frame, job, &restart) != 0 ||
        (t->named && (strcmp(job, t->job) != 0 || restart != t->restart))) {
        *cut = true; /* damaged, or of another run, whose traces are another series */
        return 0;
    }
    if (roll_taken_ring(t, frame->head.stream)) {
        return 0;
    }
    memcpy(&h, frame->payload, sizeof(h));
    struct taken_ring *r = calloc(1, sizeof(*r));
    int err = r ? ROLL_GROW(t->ring, t->ring_room, t->rings + 1) : ROLL_E_NOMEM;
    err = err ? err : roll_map_reserve(&t->ring_at);
    if (!err) {
        r->epoch = frame->head.stream;
        r->clock_offset = (int64_t)(h.clock_real_ns - h.clock_mono_ns);
        r->slots = t->rings < RINGS_LARGE ? IMAGE : IMAGE_SMALL;
        while (r->slots < t->how->history) {
            r->slots *= 2;
        }
        r->header = malloc(ROLL_RING_HEADER_BYTES);
        r->image = calloc(r->slots, sizeof(*r->image));
        r->fold = roll_fold_new(INSIDE_NS);
        err = r->header && r->image && r->fold ? 0 : ROLL_E_NOMEM;
    }
    if (err) {
        ring_destroy(r);
        return err;
    }
    memcpy(r->header, frame->payload, ROLL_RING_HEADER_BYTES);
    (void)roll_map_add(&t->ring_at, r->epoch, (uint32_t)t->rings);
    t->ring[t->rings++] = r;
    if (!t->named) {
        memcpy(t->job, job, sizeof(t->job));
        memcpy(t->host, h.host, sizeof(t->host) - 1);
        t->restart = restart;
        t->named = true;
    }
    return 0;
}

static int take_comm(struct taken_ring *r, const struct roll_def *def)
{
    int err = roll_fold_comm(r->fold, def->id, &def->comm.info);
    if (err == 0) {
        err = ROLL_GROW(r->comm, r->comm_room, r->comms + 1);
    }
    if (err == 0) {
        r->comm[r->comms++] = (struct taken_comm){
            .key = def->comm.info.key, .size = (uint32_t)def->comm.info.nranks, .id = (uint16_t)def->id};
    }
    return err == ROLL_E_NOMEM ? err : 0; /* one that cannot be is the engine's to refuse */
}

int roll_taken_add_defs(struct taken_ring *r, const struct roll_frame *frame, bool *cut)
{
    uint64_t first = frame->head.first;
    size_t bytes = frame->head.payload;
    struct roll_def def;
    int err = 0;
    if (first > ROLL_RING_MAX_DEFS_BYTES || first + bytes <= r->defs_offset) {
        return 0;
    }
    for (size_t at = 0; at < bytes && err == 0;) {
        uint64_t offset = first + at;
        if (roll_def_decode(frame->payload, bytes, &at, &def) != 0) {
            *cut = true;
            return 0;
        }
        err = def.type == ROLL_DEF_COMM && offset >= r->defs_offset ? take_comm(r, &def) : 0;
    }
    err = err ? err : ROLL_GROW(r->defs, r->defs_room, r->defs_used + bytes);
    err = err ? err : ROLL_GROW(r->chunk, r->chunk_room, r->chunks + 1);
    if (!err) {
        memcpy(r->defs + r->defs_used, frame->payload, bytes);
        r->chunk[r->chunks++] = (struct taken_chunk){first, r->defs_used, bytes};
        r->defs_used += bytes;
        r->defs_offset = first + bytes;
    }
    return err;
}
