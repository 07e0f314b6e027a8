/*
 * root_streams.c: the rings that an agent holds, as the root knows them: found by their numbers, and taken out when
 * another agent has announced them or their run is forgotten.
 *
 * The map from numbers to places is made anew when something is taken out, which is seldom; a map that takes out was
 * rejected, because nobody else needs it.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/array.h"
#include "trace/err.h"

struct roll_peer_stream *roll_streams_find(struct roll_peer *peer, uint64_t stream)
{
    uint32_t at = roll_map_get(&peer->stream_at, stream);
    return at != ROLL_MAP_NONE ? &peer->streams[at] : NULL;
}

struct roll_peer_stream *roll_streams_add(struct roll_peer *peer, uint64_t stream, struct roll_run *run)
{
    if (ROLL_GROW(peer->streams, peer->room, peer->used + 1) != 0 ||
        roll_map_add(&peer->stream_at, stream, (uint32_t)peer->used) != 0) {
        return NULL;
    }
    struct roll_peer_stream *s = &peer->streams[peer->used++];
    peer->counted = 0;
    *s = (struct roll_peer_stream){.stream = stream, .run = run};
    return s;
}

/* Places in the list have changed: that is seldom. */
static void map_streams(struct roll_peer *peer)
{
    peer->counted = 0;
    roll_map_fini(&peer->stream_at);
    for (size_t i = 0; i < peer->used; i++) {
        (void)roll_map_add(&peer->stream_at, peer->streams[i].stream, (uint32_t)i);
    }
}

void roll_streams_drop(struct roll_peer *peer, struct roll_peer_stream *s)
{
    *s = peer->streams[--peer->used];
    map_streams(peer);
}

void roll_streams_forget(roll_root_t *root, const struct roll_run *run)
{
    for (size_t i = 0; i < root->peers_used; i++) {
        struct roll_peer *peer = root->peers[i];
        size_t had = peer->used;
        for (size_t k = had; k-- > 0;) {
            if (peer->streams[k].run == run) {
                peer->streams[k] = peer->streams[--peer->used];
            }
        }
        if (peer->used != had) {
            map_streams(peer);
        }
    }
}

void roll_streams_clear(struct roll_peer *peer)
{
    roll_map_fini(&peer->stream_at);
    peer->used = 0;
    peer->counted = 0;
}

size_t roll_streams_fresh(struct roll_peer *peer, const struct roll_run *run)
{
    if (peer->counted != run->id) {
        peer->counted = run->id;
        peer->counted_fresh = 0;
        for (size_t i = 0; i < peer->used; i++) {
            const struct roll_peer_stream *s = &peer->streams[i];
            peer->counted_fresh += s->run == run && s->live && s->fresh;
        }
    }
    return peer->counted_fresh;
}
