/*
 * relay_runs.c: which runs and rings a relay knows, when the level above knows them too, and when they are forgotten.
 *
 * What a relay tells of a run is told under one of its rings, and is refused above where that ring, or another one for
 * which it speaks, was not announced there. So a run is told when the rings of its agents have been passed up in this
 * conversation; one that does not come holds the others up for COME_NS at most, and all is told again when it comes.
 *
 * A run of which no process is known to live is forgotten after a while, and sooner where there is no place for
 * another one; whatever comes of it later makes its agent begin again, and announce it anew. To forget a run when its
 * last process ends was rejected: a root asks for its records and drains it for some time.
 */
#include "daemon/relay/relay_state.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/feed/feed.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COME_NS    (5000 * ROLL_MS)   /* as long as a root waits for the rings of a run */
#define FORGET_NS  (600000 * ROLL_MS) /* as long as a root keeps the records of a run that is over */
#define RUNS       64u                /* as many as a root keeps */
#define CHILD_RUNS 16u /* of these an agent may have, so that one that lies does not shut out the others */
#define RINGS      131072u
#define STAND_NS   (250 * ROLL_MS)

/* what is forgotten */

static void drop_ring(struct roll_relay *r, size_t at)
{
    size_t last = --r->rings;
    roll_map_remove(&r->ring_at, r->ring[at].stream, (uint32_t)at);
    if (r->ring[at].child) {
        r->ring[at].child->forgot = true;
    }
    if (at != last) {
        roll_map_renumber(&r->ring_at, r->ring[last].stream, (uint32_t)last, (uint32_t)at);
        r->ring[at] = r->ring[last];
    }
}

static void fini_run(struct relay_run *run)
{
    roll_sum_destroy(&run->sum);
    roll_digest_fini(&run->said);
    free(run->part);
    *run = (struct relay_run){.sum = NULL};
}

static void forget_run(struct roll_relay *r, uint32_t at)
{
    for (size_t i = r->rings; i-- > 0;) {
        if (r->ring[i].run == at) {
            drop_ring(r, i);
        }
    }
    fini_run(&r->run[at]);
}

static bool lives(const struct relay_ring *ring)
{
    return ring->live && ring->child && !ring->child->silent;
}

/* Notes of each run whether some process of it lives. */
static void see_lives(struct roll_relay *r, uint64_t now)
{
    for (size_t i = 0; i < r->runs; i++) {
        r->run[i].live = false;
    }
    for (size_t i = 0; i < r->rings; i++) {
        if (lives(&r->ring[i])) {
            r->run[r->ring[i].run].live = true;
            r->run[r->ring[i].run].heard_ns = now;
        }
    }
}

/* Makes room for a run by forgetting one of which nobody lives, and nothing was heard for longest; child: only one in
 * which it has rings; NULL: any. */
static void forget_one(struct roll_relay *r, const struct relay_child *child, uint64_t now)
{
    uint32_t oldest = UINT32_MAX;
    see_lives(r, now);
    for (uint32_t i = 0; i < r->runs; i++) {
        const struct relay_run *run = &r->run[i];
        if (run->sum && !run->live && (!child || roll_relay_rings_in(r, child, i) > 0) &&
            (oldest == UINT32_MAX || run->heard_ns < r->run[oldest].heard_ns)) {
            oldest = i;
        }
    }
    if (oldest != UINT32_MAX) {
        forget_run(r, oldest);
    }
}

void roll_relay_runs_look(struct roll_relay *r, uint64_t now)
{
    see_lives(r, now);
    for (uint32_t i = 0; i < r->runs; i++) {
        if (r->run[i].sum && now - r->run[i].heard_ns > FORGET_NS) {
            forget_run(r, i);
        }
    }
    for (size_t i = r->rings; i-- > 0;) { /* of agents that have left, and that nobody announced since */
        if (!r->ring[i].child && now - r->ring[i].left_ns > FORGET_NS) {
            drop_ring(r, i);
        }
    }
}

void roll_relay_runs_fini(struct roll_relay *r)
{
    for (size_t i = 0; i < r->runs; i++) {
        fini_run(&r->run[i]);
    }
    free(r->run);
    free(r->ring);
    roll_map_fini(&r->ring_at);
}

/* who has moved */

/* What the agent of this place told of the run is taken out. */
static void leave(struct relay_run *run, uint32_t place, uint64_t now)
{
    roll_sum_leave(run->sum, place, now);
    if (place < run->parts) {
        run->part[place] = (struct relay_part){.told = false};
    }
}

static bool has_rings(const struct roll_relay *r, uint32_t run, uint32_t place)
{
    for (size_t i = 0; i < r->rings; i++) {
        if (r->ring[i].run == run && r->ring[i].place == place) {
            return true;
        }
    }
    return false;
}

void roll_relay_lose_ring(struct roll_relay *r, uint64_t stream, uint64_t now)
{
    uint32_t at = roll_map_get(&r->ring_at, stream);
    if (at == ROLL_MAP_NONE) {
        return;
    }
    const struct relay_ring ring = r->ring[at];
    roll_relay_tell_lost(r, ring.child, stream);
    drop_ring(r, at);
    r->run[ring.run].early = true; /* what was told under this ring meanwhile was told by nobody */
    if (!has_rings(r, ring.run, ring.place)) {
        leave(&r->run[ring.run], ring.place, now);
    }
}

void roll_relay_leave_unknown(const struct roll_relay *r, struct relay_run *run, uint64_t now)
{
    bool *here = calloc(run->parts + 1, sizeof(*here));
    for (size_t i = 0; here && i < r->rings; i++) {
        const struct relay_ring *ring = &r->ring[i];
        if (ring->here && &r->run[ring->run] == run && ring->place < run->parts) {
            here[ring->place] = true;
        }
    }
    for (uint32_t i = 0; here && i < run->parts; i++) {
        if (run->part[i].told && !here[i]) {
            leave(run, i, now);
        }
    }
    free(here);
}

/* what is announced */

static size_t count_runs(const struct roll_relay *r, const struct relay_child *child)
{
    size_t n = 0;
    for (uint32_t i = 0; i < r->runs; i++) {
        n += r->run[i].sum && (!child || roll_relay_rings_in(r, child, i) > 0);
    }
    return n;
}

static int run_of(struct roll_relay *r, const struct relay_child *child, const struct roll_frame *frame, uint64_t now,
                  uint32_t *run)
{
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    int err = roll_feed_run_of(frame, job, &restart);
    size_t at = r->runs;
    if (err) {
        return err;
    }
    for (size_t i = 0; i < r->runs; i++) {
        if (r->run[i].sum && r->run[i].restart == restart && strcmp(r->run[i].job, job) == 0) {
            *run = (uint32_t)i;
            return 0;
        }
    }
    if (count_runs(r, child) >= CHILD_RUNS) {
        forget_one(r, child, now);
    }
    if (count_runs(r, NULL) >= RUNS) {
        forget_one(r, NULL, now);
    }
    if (count_runs(r, child) >= CHILD_RUNS || count_runs(r, NULL) >= RUNS) {
        return ROLL_E_LIMIT;
    }
    for (size_t i = r->runs; i-- > 0;) { /* the place of a run that was forgotten */
        at = r->run[i].sum ? at : i;
    }
    err = ROLL_GROW(r->run, r->run_room, at + 1);
    roll_sum_t *sum = err ? NULL : roll_sum_new(&(struct roll_sum_config){.stand_ns = STAND_NS});
    if (!sum) {
        return err ? err : ROLL_E_NOMEM;
    }
    r->run[at] = (struct relay_run){.restart = restart, .sum = sum};
    memcpy(r->run[at].job, job, sizeof(job));
    r->runs += at == r->runs;
    *run = (uint32_t)at;
    return 0;
}

int roll_relay_note_ring(struct roll_relay *r, struct relay_child *child, const struct roll_frame *frame, uint64_t now)
{
    uint32_t run = 0;
    int err = run_of(r, child, frame, now, &run);
    struct relay_ring *ring = err ? NULL : roll_relay_ring_of(r, frame->head.stream); /* others may have been dropped */
    bool new = !ring;
    if (!err && !ring) {
        err = r->rings >= RINGS ? ROLL_E_LIMIT : ROLL_GROW(r->ring, r->ring_room, r->rings + 1);
        err = err ? err : roll_map_add(&r->ring_at, frame->head.stream, (uint32_t)r->rings);
        ring = err ? NULL : &r->ring[r->rings++];
        if (ring) {
            *ring = (struct relay_ring){.stream = frame->head.stream, .live = true}; /* until a STATUS says else */
        }
    }
    if (!err) {
        const struct relay_ring before = *ring;
        ring->child = child; /* the newest announcement counts: an agent was started anew, or has moved */
        ring->place = child->place;
        ring->run = run;
        if (!new &&before.place != child->place) {
            roll_relay_tell_lost(r, before.child, ring->stream);
        }
        if (!new &&before.place != child->place && !has_rings(r, before.run, before.place)) {
            leave(&r->run[before.run], before.place, now);
        }
        r->run[run].heard_ns = now;
    }
    return err;
}

/* what may be told above */

void roll_relay_runs_begin(struct roll_relay *r, uint64_t now)
{
    r->begun_ns = now;
    for (size_t i = 0; i < r->rings; i++) {
        r->ring[i].here = false;
    }
    for (size_t i = 0; i < r->runs; i++) {
        r->run[i].early = true; /* all of it is told when its rings have come */
    }
}

bool roll_relay_runs_wait(struct roll_relay *r, uint64_t now)
{
    bool wait = false;
    for (size_t i = 0; i < r->runs; i++) {
        r->run[i].stream = 0;
        r->run[i].waits = r->run[i].lacks = false;
    }
    for (size_t i = 0; i < r->rings; i++) {
        const struct relay_ring *ring = &r->ring[i];
        struct relay_run *run = &r->run[ring->run];
        run->stream = ring->here ? ring->stream : run->stream;
        run->lacks = run->lacks || (!ring->here && ring->child && !ring->child->silent);
    }
    for (size_t i = 0; i < r->runs; i++) {
        struct relay_run *run = &r->run[i];
        run->waits = run->sum && run->lacks && now - r->begun_ns < COME_NS;
        wait = wait || run->waits;
    }
    return wait;
}

/* places */

static bool is_used(const struct roll_relay *r, size_t place)
{
    for (size_t i = 0; i < r->children; i++) {
        if (r->child[i]->place == place) {
            return true;
        }
    }
    for (size_t i = 0; i < r->runs; i++) {
        if (place < r->run[i].parts && r->run[i].part[place].told) {
            return true;
        }
    }
    return false;
}

bool roll_relay_place_of(struct roll_relay *r, const char *host, const char *dir, uint32_t *place)
{
    size_t bytes = strlen(host) + strlen(dir) + 2, at = 0;
    char *name = malloc(bytes);
    if (!name) {
        return false;
    }
    snprintf(name, bytes, "%s\n%s", host, dir);
    while (at < r->places && strcmp(r->place[at], name) != 0) {
        at++;
    }
    bool known = at < r->places;
    for (size_t i = 0; at == ROLL_RELAY_CHILDREN && i < ROLL_RELAY_CHILDREN; i++) { /* the number of one that is gone */
        if (!is_used(r, i)) {
            free(r->place[i]);
            r->place[i] = NULL;
            at = i;
        }
    }
    if (known || at == ROLL_RELAY_CHILDREN || (at == r->places && ROLL_GROW(r->place, r->place_room, at + 1) != 0)) {
        free(name);
    } else {
        r->place[at] = name;
        r->places += at == r->places;
        known = true;
    }
    *place = (uint32_t)at;
    return known;
}
