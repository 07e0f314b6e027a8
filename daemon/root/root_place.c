/*
 * root_place.c: which run gives way to a new one, where a root watches as many as it may; and what becomes of the new
 * one where none does.
 *
 * A run that has ended goes first, the oldest of them. Then one whose ranks nobody has heard for a minute: their nodes
 * have gone, and will never say that the ranks have ended; a root that lives for months would be full of such runs. If
 * they are heard after all, their agents announce them anew. A run that is heard never goes: its agent would begin
 * again and again. To let the newest run go unwatched for good was rejected: its agent asks again every 2 s, and has
 * all of it in its rings.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "trace/err.h"
#include "trace/ident.h"

#include <stdio.h>
#include <string.h>

#define UNHEARD_NS   (60000 * ROLL_MS)
#define UNWATCHED_NS (10000 * ROLL_MS) /* five times as long as an agent waits before it asks again */

/* When some rank of the run was last heard that lives, as far as is known. */
static uint64_t heard_ns(const roll_root_t *root, const struct roll_run *run, uint64_t now)
{
    uint64_t newest = run->heard_ns;
    for (size_t i = 0; i < root->peers_used; i++) {
        const struct roll_peer *peer = root->peers[i];
        uint64_t seen = peer->gone ? peer->seen_ns : now;
        newest = seen > newest && roll_streams_live(peer, run) > 0 ? seen : newest;
    }
    return newest;
}

void roll_place_keep_heard(const roll_root_t *root, const struct roll_peer *peer, uint64_t now)
{
    uint64_t seen = peer->gone ? peer->seen_ns : now;
    for (size_t i = 0; i < root->runs_used; i++) {
        struct roll_run *run = root->runs[i];
        run->heard_ns = seen > run->heard_ns && roll_streams_live(peer, run) > 0 ? seen : run->heard_ns;
    }
}

static size_t oldest_ended(const roll_root_t *root)
{
    size_t i = 0;
    while (i < root->runs_used && roll_run_live(root->runs[i])) {
        i++;
    }
    return i;
}

/* The run that nobody has heard for longest, if that is long; else the number of runs. */
static size_t longest_unheard(const roll_root_t *root, uint64_t now)
{
    size_t at = root->runs_used;
    uint64_t least = now - UNHEARD_NS;
    for (size_t i = 0; i < root->runs_used && now > UNHEARD_NS; i++) {
        uint64_t heard = heard_ns(root, root->runs[i], now);
        if (heard < least) {
            least = heard;
            at = i;
        }
    }
    return at;
}

static void note_unwatched(roll_root_t *root, const char *name, uint64_t now)
{
    uint64_t hash = roll_hash64(0, name, strlen(name));
    size_t at = 0;
    for (size_t i = 0; i < ROLL_ROOT_RUNS; i++) {
        if (root->unwatched[i].hash == hash) {
            at = i;
            break;
        }
        at = root->unwatched[i].ns < root->unwatched[at].ns ? i : at;
    }
    root->unwatched[at].hash = hash;
    root->unwatched[at].ns = now;
}

size_t roll_place_unwatched(const roll_root_t *root, uint64_t now)
{
    size_t n = 0;
    for (size_t i = 0; i < ROLL_ROOT_RUNS; i++) {
        n += root->unwatched[i].ns != 0 && now - root->unwatched[i].ns < UNWATCHED_NS;
    }
    return n;
}

int roll_place_make(roll_root_t *root, const char *job, uint32_t restart, uint64_t now)
{
    char name[ROLL_NAME_BYTES + 16];
    if (root->runs_used < ROLL_ROOT_RUNS) {
        return 0;
    }
    size_t at = oldest_ended(root);
    bool ended = at < root->runs_used;
    at = ended ? at : longest_unheard(root, now);
    snprintf(name, sizeof(name), "%s.%u", job, restart);
    if (at == root->runs_used) {
        note_unwatched(root, name, now);
        roll_log_about(ROLL_LOG_WARNING, name,
                       "root: %s is not watched: %u jobs run and are watched, which is as many as one root watches; it "
                       "is, from the moment at which one of them ends (start a second root for more)",
                       name, ROLL_ROOT_RUNS);
        return ROLL_E_LIMIT;
    }
    const struct roll_run *run = root->runs[at];
    if (ended) {
        roll_log(ROLL_LOG_INFO, "root: %s.%u has ended, and is forgotten: %s takes its place", run->job, run->restart,
                 name);
    } else {
        roll_log(ROLL_LOG_WARNING,
                 "root: %s.%u is forgotten: its ranks have not been heard for more than %.0f s, and %s takes its place",
                 run->job, run->restart, (double)UNHEARD_NS * 1e-9, name);
    }
    roll_run_forget(root, at);
    return 0;
}
