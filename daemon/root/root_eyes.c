/*
 * root_eyes.c: the words about eyes that are closed, or were lately: for `status`, `top` and `why`.
 *
 * Whoever looks at a job that seems to stand must know first whether it is only not seen. The same few texts serve all
 * faces; numbers stand beside them for programs. Who is late by less than half a second is not told of: that is what a
 * busy node is like.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/clock.h"
#include "daemon/base/json.h"

#include <stdio.h>
#include <string.h>

#define SAY_NS    (500 * ROLL_MS)
#define SILENT_NS (1000 * ROLL_MS)
#define EYES_MOST 8u /* that are told one by one */
#define EYE_BYTES 256u

struct eye {
    const char *kind; /* "root", "silent", "agent", "link", "rings", "below" */
    const char *host; /* borrowed */
    uint64_t ns, waited_ns;
    unsigned ranks;
    bool relay;
};

/* The worst ones, the worst first. */
struct eyes {
    struct eye at[EYES_MOST];
    size_t used, more;
};

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

static void add(struct eyes *eyes, struct eye eye)
{
    size_t i = eyes->used < EYES_MOST ? eyes->used++ : EYES_MOST;
    if (i == EYES_MOST) {
        eyes->more++;
        if (eyes->at[--i].ns >= eye.ns) {
            return;
        }
    }
    for (; i > 0 && eyes->at[i - 1].ns < eye.ns; i--) {
        eyes->at[i] = eyes->at[i - 1];
    }
    eyes->at[i] = eye;
}

/* Whether this ring's agent is one that the relay does not hear any more; *since_ns is set where it is. */
static bool is_dark(const struct roll_peer *peer, uint64_t stream, uint64_t *since_ns)
{
    uint32_t at = roll_map_get(&peer->stream_at, stream);
    bool dark = at != ROLL_MAP_NONE && peer->streams[at].live && peer->streams[at].dark_ns != 0;
    *since_ns = dark ? peer->streams[at].dark_ns : *since_ns;
    return dark;
}

/* How a peer is seen that has live ranks of the run; v: only what is said of this one, NULL: of all. A relay has ranks
 * of many nodes: that one of them is not heard says nothing about the others. */
static void look_at_peer(const roll_root_t *root, const struct roll_peer *peer, const struct roll_run *run,
                         const struct roll_view_source *v, uint64_t now, struct eyes *eyes)
{
    const struct roll_peer_eye *e = &peer->eye;
    uint64_t silent = roll_peer_silence_ns(root, peer, now), own = roll_late_lately(&e->own, now);
    uint64_t way = roll_late_lately(&e->way, now), below = roll_late_lately(&e->below, now);
    bool is_silent = peer->gone || silent >= SILENT_NS;
    struct eye eye = {.host = peer->host, .relay = peer->relay};
    uint64_t dark_ns = now;
    unsigned dark = v ? is_dark(peer, v->info.stream, &dark_ns) : (unsigned)roll_streams_dark(peer, run, &dark_ns);
    if (!is_silent && own < SAY_NS && way < SAY_NS && below < SAY_NS && e->beat.look_ns < SAY_NS && dark == 0) {
        return;
    }
    eye.ranks = (unsigned)roll_streams_live(peer, run);
    if (eye.ranks == 0) {
        return;
    }
    if (is_silent) {
        eye.kind = "silent";
        eye.ns = now - peer->seen_ns;
        add(eyes, eye);
        return;
    }
    if (own >= SAY_NS) {
        eye.kind = "agent";
        eye.ns = own;
        eye.waited_ns = roll_late_lately(&e->waited, now);
        add(eyes, eye);
        eye.waited_ns = 0;
    }
    if (way >= SAY_NS && way > own) { /* a heartbeat that was made before its agent was late comes as late */
        eye.kind = "link";
        eye.ns = way;
        add(eyes, eye);
    }
    if (below >= SAY_NS) {
        eye.kind = "below";
        eye.ns = below;
        add(eyes, eye);
    }
    bool is_meant = !v || !peer->relay || !v->heard;
    bool unread = is_meant && e->beat.look_ns >= SAY_NS && e->beat.unheard > 0;
    if (unread || dark > 0) { /* also ranks that the relay has given up: its heartbeats do not speak of them any more */
        eye.kind = "rings";
        eye.ns = dark > 0 ? now - dark_ns : 0;
        eye.ns = unread && e->beat.look_ns > eye.ns ? e->beat.look_ns : eye.ns;
        eye.ranks = dark + (unread ? e->beat.unheard : 0);
        add(eyes, eye);
    }
}

static void text_of(const roll_root_t *root, const struct eye *eye, uint64_t now, char *out, size_t size)
{
    const char *noun = eye->relay ? "relay" : "agent";
    char ranks[40], cpu[64] = "";
    snprintf(ranks, sizeof(ranks), "%u rank%s", eye->ranks, eye->ranks == 1 ? "" : "s");
    if (eye->waited_ns > eye->ns / 2) {
        snprintf(cpu, sizeof(cpu), ", %.1f s of it without a CPU", seconds(eye->waited_ns));
    }
    if (strcmp(eye->kind, "root") == 0) {
        snprintf(out, size, "root late: %.1f s", seconds(eye->ns));
    } else if (strcmp(eye->kind, "silent") == 0) {
        uint64_t root_ns = roll_root_lately(root, now);
        snprintf(out, size, "%s of %s: not heard since %.1f s (%s silent", noun, eye->host, seconds(eye->ns), noun);
        size_t used = strlen(out);
        if (root_ns >= SAY_NS && used < size) {
            snprintf(out + used, size - used, "; root late: %.1f s", seconds(root_ns));
            used = strlen(out);
        }
        snprintf(out + used, size - used, "), %s", ranks);
    } else if (strcmp(eye->kind, "agent") == 0) {
        snprintf(out, size, "%s of %s late: %.1f s%s, %s", noun, eye->host, seconds(eye->ns), cpu, ranks);
    } else if (strcmp(eye->kind, "link") == 0) {
        snprintf(out, size, "link to the %s of %s late: %.1f s, %s", noun, eye->host, seconds(eye->ns), ranks);
    } else if (strcmp(eye->kind, "below") == 0) {
        snprintf(out, size, "behind the relay of %s late: %.1f s", eye->host, seconds(eye->ns));
    } else {
        snprintf(out, size,
                 eye->relay ? "behind the relay of %s: not heard since %.1f s, %s"
                            : "rings of %s: not read since %.1f s, %s",
                 eye->host, seconds(eye->ns), ranks);
    }
}

static void find(const roll_root_t *root, const struct roll_run *run, uint64_t now, struct eyes *eyes)
{
    uint64_t root_ns = roll_root_lately(root, now);
    *eyes = (struct eyes){.used = 0};
    for (size_t i = 0; i < root->peers_used; i++) {
        if (roll_streams_count(root->peers[i], run) > 0) {
            look_at_peer(root, root->peers[i], run, NULL, now, eyes);
        }
    }
    if (root_ns >= SAY_NS) {
        add(eyes, (struct eye){.kind = "root", .host = "", .ns = root_ns});
    }
}

json_t *roll_eyes_json(const roll_root_t *root, const struct roll_run *run)
{
    uint64_t now = roll_mono_ns();
    struct eyes eyes;
    char text[EYE_BYTES];
    json_t *list = json_array();
    find(root, run, now, &eyes);
    for (size_t i = 0; i < eyes.used; i++) {
        const struct eye *eye = &eyes.at[i];
        text_of(root, eye, now, text, sizeof(text));
        json_array_append_new(list, json_pack("{s:s,s:o,s:b,s:I,s:I,s:i,s:o}", "eye", eye->kind, "host",
                                              roll_text_to_json(eye->host), "relay", (int)eye->relay, "late_ns",
                                              (json_int_t)eye->ns, "waited_ns", (json_int_t)eye->waited_ns, "ranks",
                                              (int)eye->ranks, "text", roll_text_to_json(text)));
    }
    if (eyes.more > 0) {
        snprintf(text, sizeof(text), "%zu more are late or silent", eyes.more);
        json_array_append_new(list, json_pack("{s:s,s:s,s:b,s:i,s:i,s:i,s:s}", "eye", "more", "host", "", "relay", 0,
                                              "late_ns", 0, "waited_ns", 0, "ranks", 0, "text", text));
    }
    return list;
}

void roll_eyes_tell(const roll_root_t *root, const struct roll_peer *peer, json_t *agent)
{
    const struct roll_peer_eye *e = &peer->eye;
    uint64_t now = roll_mono_ns();
    json_object_set_new(agent, "silent_ns", json_integer((json_int_t)roll_peer_silence_ns(root, peer, now)));
    json_object_set_new(agent, "tells_late", json_boolean(e->beat.made_ns != 0));
    json_object_set_new(agent, "late_ns", json_integer((json_int_t)roll_late_lately(&e->own, now)));
    json_object_set_new(agent, "late_total_ns", json_integer((json_int_t)e->own.total_ns));
    json_object_set_new(agent, "waited_ns", json_integer((json_int_t)roll_late_lately(&e->waited, now)));
    json_object_set_new(agent, "link_late_ns", json_integer((json_int_t)roll_late_lately(&e->way, now)));
    json_object_set_new(agent, "below_late_ns", json_integer((json_int_t)roll_late_lately(&e->below, now)));
    json_object_set_new(agent, "unread", json_integer(e->beat.unheard));
    json_object_set_new(agent, "unread_ns", json_integer((json_int_t)e->beat.look_ns));
    if (peer->relay) {
        json_object_set_new(agent, "refused",
                            json_integer((json_int_t)(e->beat.refused < INT64_MAX ? e->beat.refused : INT64_MAX)));
    }
}

/* Without memory the map says less, and ranks are shown without their eyes. */
static void enter_peers(const roll_root_t *root, const struct roll_run *run, struct roll_map *at)
{
    for (size_t i = 0; i < root->peers_used; i++) {
        const struct roll_peer *peer = root->peers[i];
        for (size_t s = roll_streams_count(peer, run) > 0 ? peer->used : 0; s-- > 0;) {
            uint64_t stream = peer->streams[s].stream;
            if (peer->streams[s].run == run && roll_map_get(at, stream) == ROLL_MAP_NONE) {
                (void)roll_map_add(at, stream, (uint32_t)i);
            }
        }
    }
}

const struct roll_peer *roll_eyes_peer(const roll_root_t *root, const struct roll_run *run, uint64_t stream,
                                       struct roll_eyes_at *at)
{
    if (!at->is_made) {
        at->is_made = true;
        enter_peers(root, run, &at->peer);
    }
    uint32_t i = roll_map_get(&at->peer, stream);
    return i != ROLL_MAP_NONE ? root->peers[i] : NULL;
}

void roll_eyes_at_fini(struct roll_eyes_at *at)
{
    roll_map_fini(&at->peer);
}

const char *roll_eyes_of(const roll_root_t *root, const struct roll_run *run, const struct roll_peer *peer,
                         const struct roll_view_source *v, char *out, size_t size)
{
    uint64_t now = roll_mono_ns(), root_ns = roll_root_lately(root, now);
    struct eyes eyes = {.used = 0};
    out[0] = '\0';
    if (peer) {
        look_at_peer(root, peer, run, v, now, &eyes);
    }
    const struct eye *eye = &eyes.at[0];
    const char *noun = eyes.used > 0 && eye->relay ? "relay" : "agent";
    if (eyes.used == 0 && root_ns >= SAY_NS) {
        snprintf(out, size, "seen late (root late: %.1f s)", seconds(root_ns));
    } else if (eyes.used == 0) {
        return out;
    } else if (strcmp(eye->kind, "silent") == 0) {
        snprintf(out, size, "not heard since %.1f s (%s silent)", seconds(eye->ns), noun);
    } else if (strcmp(eye->kind, "rings") == 0) {
        snprintf(out, size,
                 eye->relay ? "not heard since %.1f s (behind the relay)" : "not read since %.1f s (agent late)",
                 seconds(eye->ns));
    } else if (strcmp(eye->kind, "agent") == 0) {
        snprintf(out, size, "seen late (%s late: %.1f s)", noun, seconds(eye->ns));
    } else {
        snprintf(out, size, "seen late (%s late: %.1f s)", strcmp(eye->kind, "link") == 0 ? "link" : "below the relay",
                 seconds(eye->ns));
    }
    return out;
}
