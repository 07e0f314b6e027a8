/*
 * root_streams.c: the rings that an agent holds, as the root knows them: found by their numbers, counted for each run,
 * and taken out when another agent has announced them or their run is forgotten.
 *
 * How many of a run's rings are up to date is asked in each turn of the root, of a relay for each of its runs; so it is
 * counted when something of a ring changes. To count when it is asked, and to remember the last answer, was rejected: a
 * relay has many runs, and one answer was never the one that was asked for next.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/array.h"
#include "trace/err.h"

#include <stdlib.h>

/* There are at most as many as the root keeps runs. */
struct roll_peer_run *roll_streams_run(const struct roll_peer *peer, const struct roll_run *run)
{
    for (size_t i = 0; i < peer->runs_used; i++) {
        if (peer->runs[i].run == run) {
            return &peer->runs[i];
        }
    }
    return NULL;
}

static struct roll_peer_run *add_count(struct roll_peer *peer, const struct roll_run *run)
{
    struct roll_peer_run *count = roll_streams_run(peer, run);
    if (!count && ROLL_GROW(peer->runs, peer->runs_room, peer->runs_used + 1) == 0) {
        count = &peer->runs[peer->runs_used++];
        *count = (struct roll_peer_run){.run = run};
    }
    return count;
}

static bool counts(const struct roll_peer_stream *s)
{
    return s->live && s->fresh;
}

struct roll_peer_stream *roll_streams_find(struct roll_peer *peer, uint64_t stream)
{
    uint32_t at = roll_map_get(&peer->stream_at, stream);
    return at != ROLL_MAP_NONE ? &peer->streams[at] : NULL;
}

struct roll_peer_stream *roll_streams_add(struct roll_peer *peer, uint64_t stream, struct roll_run *run)
{
    struct roll_peer_run *count = add_count(peer, run);
    if (!count || ROLL_GROW(peer->streams, peer->room, peer->used + 1) != 0 ||
        roll_map_add(&peer->stream_at, stream, (uint32_t)peer->used) != 0) {
        return NULL;
    }
    struct roll_peer_stream *s = &peer->streams[peer->used++];
    *s = (struct roll_peer_stream){.stream = stream, .run = run};
    count->rings++;
    return s;
}

void roll_streams_set(struct roll_peer *peer, struct roll_peer_stream *s, bool live, bool fresh)
{
    struct roll_peer_run *count = roll_streams_run(peer, s->run);
    count->live -= s->live;
    count->fresh -= counts(s);
    s->live = live;
    s->fresh = fresh;
    count->live += s->live;
    count->fresh += counts(s);
}

void roll_streams_darken(struct roll_peer *peer, struct roll_peer_stream *s, uint64_t since_ns)
{
    struct roll_peer_run *count = roll_streams_run(peer, s->run);
    count->dark -= s->dark_ns != 0;
    s->dark_ns = since_ns;
    count->dark += s->dark_ns != 0;
}

void roll_streams_drop(struct roll_peer *peer, struct roll_peer_stream *s)
{
    uint32_t at = (uint32_t)(s - peer->streams), last = (uint32_t)--peer->used;
    struct roll_peer_run *count = roll_streams_run(peer, s->run);
    count->live -= s->live;
    count->fresh -= counts(s);
    count->dark -= s->dark_ns != 0;
    if (--count->rings == 0) {
        *count = peer->runs[--peer->runs_used];
    }
    roll_map_remove(&peer->stream_at, s->stream, at);
    if (at != last) {
        roll_map_renumber(&peer->stream_at, peer->streams[last].stream, last, at);
        *s = peer->streams[last];
    }
}

void roll_streams_forget(roll_root_t *root, const struct roll_run *run)
{
    for (size_t i = 0; i < root->peers_used; i++) {
        struct roll_peer *peer = root->peers[i];
        for (size_t k = roll_streams_run(peer, run) ? peer->used : 0; k-- > 0;) {
            if (peer->streams[k].run == run) {
                roll_streams_drop(peer, &peer->streams[k]);
            }
        }
    }
}

void roll_streams_clear(struct roll_peer *peer)
{
    roll_map_fini(&peer->stream_at);
    peer->used = peer->runs_used = 0;
}

void roll_streams_fini(struct roll_peer *peer)
{
    roll_streams_clear(peer);
    free(peer->streams);
    free(peer->runs);
}

size_t roll_streams_count(const struct roll_peer *peer, const struct roll_run *run)
{
    const struct roll_peer_run *count = roll_streams_run(peer, run);
    return count ? count->rings : 0;
}

size_t roll_streams_fresh(const struct roll_peer *peer, const struct roll_run *run)
{
    const struct roll_peer_run *count = roll_streams_run(peer, run);
    return count ? count->fresh : 0;
}

size_t roll_streams_live(const struct roll_peer *peer, const struct roll_run *run)
{
    const struct roll_peer_run *count = roll_streams_run(peer, run);
    return count ? count->live : 0;
}

size_t roll_streams_dark(const struct roll_peer *peer, const struct roll_run *run, uint64_t *since_ns)
{
    const struct roll_peer_run *count = roll_streams_run(peer, run);
    size_t dark = 0;
    for (size_t i = count && count->dark > 0 ? peer->used : 0; i-- > 0;) {
        const struct roll_peer_stream *s = &peer->streams[i];
        if (s->run == run && s->live && s->dark_ns != 0) {
            *since_ns = dark == 0 || s->dark_ns < *since_ns ? s->dark_ns : *since_ns;
            dark++;
        }
    }
    return dark;
}

/* The peer says one number for all its rings. Those of other runs may be meant, so only what these cannot make up is
 * counted: a ring of one job must not hold up the patience of another. */
size_t roll_streams_unread(const struct roll_peer *peer, const struct roll_run *run)
{
    size_t others = 0;
    for (size_t i = 0; i < peer->runs_used; i++) {
        others += peer->runs[i].run != run ? peer->runs[i].live : 0;
    }
    return peer->unheard > others ? peer->unheard - others : 0;
}
