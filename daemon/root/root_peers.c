/*
 * root_peers.c: the agents as the root knows them: which there are, what their frames bring, what they are told.
 *
 * Agents number their frames; as long as the numbers follow each other, frames are fed; at the first gap (a cut link, a
 * restart on either side) the agent is asked to begin again, and is told per ring what is here already. So nothing is
 * taken twice or taken for lost.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/wire/net.h"
#include "trace/err.h"
#include "trace/ident.h"

#include <stdlib.h>
#include <string.h>

#define ACK_NS        (100 * ROLL_MS) /* as often as heartbeats ask for it */
#define ACK_RECORDS   1024 /* an ACK goes out after so many records as well: an eighth of an agent's window */
#define AGAIN_NS      (1000 * ROLL_MS) /* as seldom, where only digests come */
#define RESYNC_NS     (200 * ROLL_MS)
#define LATE_NS       (500 * ROLL_MS) /* an agent lets five heartbeats go by: another one may have taken its place */
#define FRESH_RECORDS 2048            /* a ring is up to date when at most so many of its records are on their way */
#define MAX_PEERS     65536

/* peers */

/* ZeroMQ numbers the routing ids that it makes, and an agent chooses its own: the checksum spreads both kinds. */
static struct roll_peer **chain_of(roll_root_t *root, const struct roll_address *at)
{
    return &root->peer_chain[roll_crc32c(0, at->id, at->bytes) % ROLL_PEER_CHAINS];
}

static struct roll_peer *find_peer(roll_root_t *root, const struct roll_address *at)
{
    for (struct roll_peer *p = *chain_of(root, at); p; p = p->next) {
        if (p->at.socket == at->socket && p->at.bytes == at->bytes && memcmp(p->at.id, at->id, at->bytes) == 0) {
            return p;
        }
    }
    return NULL;
}

static struct roll_peer *add_peer(roll_root_t *root, const struct roll_address *at)
{
    if (root->peers_used >= MAX_PEERS || ROLL_GROW(root->peers, root->peers_room, root->peers_used + 1) != 0 ||
        ROLL_GROW(root->due, root->due_room, root->peers_used + 1) != 0) {
        return NULL;
    }
    struct roll_peer *p = calloc(1, sizeof(*p));
    if (p) {
        struct roll_peer **chain = chain_of(root, at);
        p->at = *at;
        p->next = *chain;
        *chain = p;
        root->peers[root->peers_used++] = p;
    }
    return p;
}

static void drop_peer(roll_root_t *root, struct roll_peer *peer)
{
    struct roll_peer **link = chain_of(root, &peer->at);
    while (*link && *link != peer) {
        link = &(*link)->next;
    }
    if (*link) {
        *link = peer->next;
    }
    for (size_t i = 0; peer->is_due && i < root->due_used; i++) {
        if (root->due[i] == peer) {
            root->due[i] = root->due[--root->due_used];
            break;
        }
    }
    for (size_t i = 0; i < root->peers_used; i++) {
        if (root->peers[i] == peer) {
            root->peers[i] = root->peers[--root->peers_used];
            roll_streams_fini(peer);
            free(peer);
            return;
        }
    }
}

static bool holds_live(const struct roll_peer *peer)
{
    for (size_t i = 0; i < peer->used; i++) {
        if (peer->streams[i].live) {
            return true;
        }
    }
    return false;
}

/* Tells engine and trace that a rank is not heard. */
static void tell_one(roll_root_t *root, struct roll_run *run, const struct roll_peer *peer, uint64_t stream)
{
    struct roll_frame_sight sight = {.heard = 0};
    struct roll_frame_head head = {.type = ROLL_FRAME_SIGHT, .stream = stream};
    uint8_t raw[ROLL_FRAME_HEAD_BYTES + sizeof(sight)];
    struct roll_frame frame;
    int64_t n = roll_frame_make(&head, &sight, sizeof(sight), raw, sizeof(raw), &frame);
    if (n > 0 && run->digested) {
        (void)roll_digested_frame(root, run, peer, &frame, raw, (size_t)n);
    } else if (n > 0) {
        (void)roll_run_frame(root, run, &frame, raw, (size_t)n);
    }
}

/* Tells engines and trace that the peer's live ranks are not heard. The agent's next frames will say that they are
 * heard again. */
static void tell_unheard(roll_root_t *root, const struct roll_peer *peer)
{
    for (size_t i = 0; i < peer->used; i++) {
        if (peer->streams[i].live) {
            tell_one(root, peer->streams[i].run, peer, peer->streams[i].stream);
        }
    }
}

void roll_peers_forgo(roll_root_t *root, struct roll_run *run)
{
    struct roll_eyes_at at = {.is_made = false};
    struct roll_feed_stream ring;
    for (size_t i = 0; roll_feed_stream(run->feed, i, &ring); i++) {
        bool lives = ring.proc == ROLL_PROC_RUNNING || ring.proc == ROLL_PROC_STOPPED;
        if (lives && ring.heard && !roll_eyes_peer(root, run, ring.stream, &at)) {
            tell_one(root, run, NULL, ring.stream);
        }
    }
    roll_eyes_at_fini(&at);
    run->forgoes = false;
}

/* Nothing is heard of this agent any more. Where its ranks still ran, the peer is kept, so that they are shown as not
 * heard under its name. */
static void lose_peer(roll_root_t *root, struct roll_peer *peer)
{
    if (holds_live(peer)) {
        if (!peer->gone) {
            tell_unheard(root, peer);
        }
        peer->gone = true;
        peer->synced = false;
    } else {
        drop_peer(root, peer);
    }
}

/* The peer does not speak for this ring any more. A relay has to know, because it still counts the rank's calls among
 * those of its other agents. */
static void lose_ring(struct roll_peer *peer, struct roll_peer_stream *s, const struct roll_peer *to)
{
    struct roll_frame_sight sight = {.heard = 0};
    struct roll_frame_head head = {.type = ROLL_FRAME_SIGHT, .stream = s->stream};
    struct roll_run *run = s->run;
    peer->lost_ns = roll_mono_ns();
    if (peer->relay && !peer->gone) {
        (void)roll_net_send(peer->at.socket, peer->at.id, peer->at.bytes, &head, &sight, sizeof(sight));
    }
    roll_streams_drop(peer, s);
    if (peer->place != to->place && roll_streams_count(peer, run) == 0) {
        roll_digested_left(run, peer);
    }
}

/* Takes a ring from the peers that are gone or not heard, because another agent has announced it. A peer that is not
 * heard would tell later, when it is taken for gone, that nobody hears the ring. And from relays, or for one: an agent
 * goes to another relay, and the first one is heard as ever. */
static void take_over(roll_root_t *root, const struct roll_peer *by, uint64_t stream)
{
    for (size_t i = root->peers_used; i-- > 0;) {
        struct roll_peer *peer = root->peers[i];
        bool moved = peer->relay || by->relay;
        bool away = peer != by && (moved || peer->gone || by->seen_ns - peer->seen_ns > LATE_NS);
        struct roll_peer_stream *s = away ? roll_streams_find(peer, stream) : NULL;
        if (s) {
            lose_ring(peer, s, by);
        }
        if (s && peer->gone) {
            lose_peer(root, peer);
        }
    }
}

static void send_welcome(roll_root_t *root, const struct roll_address *to, uint64_t seq, bool resync)
{
    json_t *json = json_pack("{s:b}", "resync", (int)resync);
    if (json && root->policy_set) {
        json_object_set_new(json, "policy", json_string(roll_policy_name(root->policy)));
    }
    struct roll_frame_head head = {.type = ROLL_FRAME_WELCOME, .seq = seq};
    if (json) {
        roll_net_send_json(to->socket, to->id, to->bytes, &head, json);
    }
    json_decref(json);
}

static uint32_t ack_flags(const roll_root_t *root, const struct roll_run *run)
{
    return roll_digested_flags(run) | (roll_incident_keeps(root, run) ? ROLL_ACK_KEEP : 0);
}

static void send_ack(const roll_root_t *root, struct roll_net_batch *batch, struct roll_peer *peer,
                     struct roll_peer_stream *s, uint64_t now)
{
    struct roll_feed_stream view;
    if (!roll_feed_find(s->run->feed, s->stream, &view)) {
        return;
    }
    struct roll_frame_ack ack = {.next_ticket = view.next_ticket, .defs_offset = view.defs_offset};
    struct roll_frame_head head = {.type = ROLL_FRAME_ACK,
                                   .flags = ack_flags(root, s->run),
                                   .stream = s->stream,
                                   .seq = peer->expected - 1,
                                   .first = view.open_ticket};
    if (roll_net_batch_add(batch, peer->at.socket, peer->at.id, peer->at.bytes, &head, &ack, sizeof(ack)) == 0) {
        s->due = s->urgent = false;
        s->flags = head.flags;
        s->fed = 0;
        s->ack_ns = now;
    }
}

/* A stream of this peer is to be acknowledged. */
static void note_due(roll_root_t *root, struct roll_peer *peer)
{
    if (!peer->is_due) {
        peer->is_due = true;
        root->due[root->due_used++] = peer;
    }
}

/*
 * How long an acknowledgement waits that nobody needs to go on. Of a case that has calls on some communicators alone
 * each ring sends a few frames a second: thousands of answers ten times a second are as much work as the frames, and
 * all that they say is how much has been read.
 */
static uint64_t ack_pause(const struct roll_run *run)
{
    return run->narrow ? AGAIN_NS : ACK_NS;
}

/* Acknowledges what was fed: by now all of it is in the trace file. Asked after each turn, so only those peers are
 * looked at from which something has come. */
void roll_peers_acknowledge(roll_root_t *root, uint64_t now)
{
    size_t keep = 0;
    root->acknowledge_ns = UINT64_MAX;
    for (size_t i = 0; i < root->due_used; i++) {
        struct roll_peer *peer = root->due[i];
        struct roll_net_batch batch = {.parts = 0};
        peer->is_due = false;
        for (size_t k = 0; k < peer->used; k++) {
            struct roll_peer_stream *s = &peer->streams[k];
            uint64_t pause = s->due ? ack_pause(s->run) : 0;
            if (s->due && (s->urgent || s->fed >= ACK_RECORDS || now - s->ack_ns > pause)) {
                send_ack(root, &batch, peer, s, now);
            }
            if (s->due) {
                uint64_t at = s->ack_ns + pause;
                peer->is_due = true;
                root->acknowledge_ns = at < root->acknowledge_ns ? at : root->acknowledge_ns;
            }
        }
        roll_net_batch_flush(&batch, peer->at.socket);
        if (peer->is_due) {
            root->due[keep++] = peer;
        }
    }
    root->due_used = keep;
}

uint64_t roll_peers_wait_ns(const roll_root_t *root, uint64_t now)
{
    if (root->due_used == 0) {
        return UINT64_MAX;
    }
    return root->acknowledge_ns > now ? root->acknowledge_ns - now : 0;
}

/* frames of agents */

/* The number of an agent's host and directory. An agent that was started anew has that of its predecessor, so what it
 * tells takes the place of what the predecessor told. Without memory, and where there are too many: a number that
 * nobody has. */
static uint32_t place_of(roll_root_t *root, const char *host, const char *dir)
{
    size_t bytes = strlen(host) + strlen(dir) + 2, step = 0, used = root->places_used;
    char *name = malloc(bytes);
    if (!name) {
        return UINT32_MAX;
    }
    snprintf(name, bytes, "%s\n%s", host, dir);
    uint64_t hash = roll_hash64(0, name, bytes - 1);
    uint32_t at = roll_map_each(&root->place_at, hash, &step);
    while (at != ROLL_MAP_NONE && strcmp(root->places[at], name) != 0) {
        at = roll_map_each(&root->place_at, hash, &step);
    }
    if (at != ROLL_MAP_NONE) {
        free(name);
        return at;
    }
    if (used == MAX_PEERS || ROLL_GROW(root->places, root->places_room, used + 1) != 0 ||
        roll_map_add(&root->place_at, hash, (uint32_t)used) != 0) {
        free(name);
        return UINT32_MAX;
    }
    root->places[root->places_used++] = name;
    return (uint32_t)used;
}

bool roll_peers_may_report(const struct roll_address *from, const char *host)
{
    return from->role.host[0] == '\0' || strcmp(from->role.host, host) == 0;
}

void roll_peers_hello(roll_root_t *root, const struct roll_address *from, const struct roll_frame *frame, uint64_t now)
{
    json_t *json = roll_net_json(frame);
    const char *host = json_string_value(json_object_get(json, "host"));
    if (!roll_peers_may_report(from, host ? host : "?")) {
        if (root->refused_frames++ == 0) {
            roll_log(ROLL_LOG_WARNING, "root: an agent of host %s has the key of host %s: refused (said once, counted)",
                     host ? host : "?", from->role.host);
        }
        json_decref(json);
        return;
    }
    struct roll_peer *peer = find_peer(root, from);
    bool new = peer == NULL;
    if (!json || (new && !(peer = add_peer(root, from)))) {
        json_decref(json);
        return;
    }
    strncpy(peer->host, host ? host : "?", sizeof(peer->host) - 1);
    const char *dir = json_string_value(json_object_get(json, "dir"));
    peer->place = place_of(root, peer->host, dir ? dir : "");
    peer->pid = (uint32_t)json_integer_value(json_object_get(json, "pid"));
    const char *program = json_string_value(json_object_get(json, "agent"));
    peer->relay = program && strcmp(program, ROLL_NET_RELAY) == 0;
    json_decref(json);
    peer->at.role = from->role;
    peer->synced = true;
    peer->gone = peer->owed = peer->owed_said = false; /* it is told of the run of each ring that it announces */
    peer->expected = frame->head.seq + 1;
    peer->seen_ns = now;
    roll_place_keep_heard(root, peer, now); /* its rings are announced in a moment */
    roll_streams_clear(peer);
    peer->unheard = peer->agents = 0;
    roll_peer_late_begin(root, peer);
    peer->drain_sent = 0;
    if (new) {
        roll_log(ROLL_LOG_INFO, "root: %s on %s (pid %u) is here", roll_peer_noun(peer), peer->host, peer->pid);
    }
    send_welcome(root, from, frame->head.seq, false);
}

static void ring(roll_root_t *root, struct roll_peer *peer, const struct roll_frame *frame, const void *raw,
                 size_t bytes)
{
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    struct roll_run *run = NULL;
    struct roll_ring_header header;
    struct roll_feed_stream view;
    int err = roll_feed_run_of(frame, job, &restart);
    if (!err) {
        memcpy(&header, frame->payload, sizeof(header));
        header.host[sizeof(header.host) - 1] = '\0';
        err = roll_peers_may_report(&peer->at, header.host) ? 0 : ROLL_E_DENIED;
    }
    if (!err) {
        err = roll_run_of(root, job, restart, header.world_size, &run);
    }
    bool known = !err && roll_feed_find(run->feed, frame->head.stream, &view);
    if (!err) {
        err = roll_run_frame(root, run, frame, raw, bytes);
    }
    struct roll_peer_stream *s = roll_streams_find(peer, frame->head.stream);
    bool new = !s;
    if (!err && new && !(s = roll_streams_add(peer, frame->head.stream, run))) {
        err = ROLL_E_NOMEM;
    }
    if (err) {
        root->refused_frames++;
        if (run || err != ROLL_E_LIMIT) { /* else the log says that there is no place for the run */
            roll_log(ROLL_LOG_WARNING, "root: a ring of the %s on %s is refused: %s", roll_peer_noun(peer), peer->host,
                     roll_strerror(err));
        }
        return;
    }
    if (!known) {
        run->joined_ns = roll_mono_ns();
    }
    s->unset = true; /* of a known ring, too: behind a relay an agent has begun anew, and may have missed it */
    roll_remedy_tell(peer, run);
    if (new &&known) { /* else no other agent can have it: when a job begins, nobody is looked through for each ring */
        take_over(root, peer, frame->head.stream);
    }
    s->due = s->urgent = true;
    note_due(root, peer);
    /* For the engine its process lives from here on, or as it was known to, before this agent has sent a STATUS. */
    bool lives = !known || view.proc == ROLL_PROC_RUNNING || view.proc == ROLL_PROC_STOPPED;
    roll_streams_set(peer, s, new ? lives : s->live, false);
    roll_streams_darken(peer, s, 0);
    roll_digested_ring(run, frame);
}

/* Takes a note about a process that has no ring: the note itself names the run. */
static void note(roll_root_t *root, const struct roll_frame *frame, const void *raw, size_t bytes)
{
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    struct roll_run *run;
    int err = roll_feed_run_of(frame, job, &restart);
    if (!err) {
        err = roll_run_of(root, job, restart, ROLL_WORLD_UNASKED, &run);
    }
    if (!err) {
        err = roll_run_frame(root, run, frame, raw, bytes);
    }
    if (err) {
        root->refused_frames++;
    }
}

/* Notes what a STATUS says of the ring: whether its process lives, and whether the root is up to date with it. */
static void note_status(struct roll_peer *peer, struct roll_peer_stream *s, const struct roll_frame *frame)
{
    struct roll_frame_status status;
    struct roll_feed_stream view;
    memcpy(&status, frame->payload, sizeof(status));
    bool live = status.proc_state == ROLL_PROC_RUNNING || status.proc_state == ROLL_PROC_STOPPED;
    bool fresh = s->fresh || s->run->digested ||
                 (roll_feed_find(s->run->feed, s->stream, &view) && view.next_ticket + FRESH_RECORDS >= status.head);
    roll_streams_set(peer, s, live, fresh);
}

/* An agent behind a relay that is not heard any more is not among those of which the relay's heartbeats speak: it is
 * given up, and nobody's patience is stretched for it. That it is not heard is shown on. */
static void note_sight(struct roll_peer *peer, struct roll_peer_stream *s, const struct roll_frame *frame, uint64_t now)
{
    struct roll_frame_sight sight = {.heard = 1};
    if (frame->head.type == ROLL_FRAME_SIGHT && frame->head.payload >= sizeof(sight)) {
        memcpy(&sight, frame->payload, sizeof(sight));
    }
    if (!sight.heard && s->dark_ns == 0) {
        roll_streams_darken(peer, s, now - peer->eye.beat.look_ns);
    } else if (sight.heard && s->dark_ns != 0) {
        roll_streams_darken(peer, s, 0);
    }
}

static void data(roll_root_t *root, struct roll_peer *peer, const struct roll_frame *frame, const void *raw,
                 size_t bytes, uint64_t now)
{
    struct roll_peer_stream *s = roll_streams_find(peer, frame->head.stream);
    if (!s) {
        root->refused_frames++;
        return;
    }
    note_sight(peer, s, frame, now);
    int err = s->run->digested ? roll_digested_frame(root, s->run, peer, frame, raw, bytes)
                               : roll_run_frame(root, s->run, frame, raw, bytes);
    if (err && root->refused_frames++ == 0) {
        roll_log(ROLL_LOG_WARNING, "root: a frame of the %s on %s is refused: %s (said once, counted)",
                 roll_peer_noun(peer), peer->host, roll_strerror(err));
    }
    s->due = true;
    note_due(root, peer);
    s->fed += frame->head.count;
    if (frame->head.type == ROLL_FRAME_STATUS) {
        s->urgent = true;
        note_status(peer, s, frame);
    }
    root->batches += frame->head.type == ROLL_FRAME_RECORDS;
}

static void note_heartbeat(roll_root_t *root, struct roll_peer *peer, const struct roll_frame *frame, uint64_t now)
{
    roll_peer_late_beat(root, peer, frame, now);
    peer->unheard = peer->eye.beat.unheard;
    peer->agents = peer->eye.beat.agents;
}

/* Earlier acknowledgements may have been lost. A ring that sends digests only waits for none but that of its STATUS,
 * and must hear when it need not be kept any more. */
static void repeat_acks(const roll_root_t *root, struct roll_peer *peer, uint64_t now)
{
    for (size_t i = 0; i < peer->used; i++) {
        struct roll_peer_stream *s = &peer->streams[i];
        bool records = !s->run->digested || (s->run->judge && !s->run->narrow);
        if (records || now - s->ack_ns > AGAIN_NS || s->flags != ack_flags(root, s->run)) {
            s->due = s->urgent = true;
        }
    }
}

void roll_peers_frame(roll_root_t *root, const struct roll_address *from, const struct roll_frame *frame,
                      const void *raw, size_t bytes, uint64_t now)
{
    struct roll_peer *peer = find_peer(root, from);
    if (peer && !roll_peers_may_report(from, peer->host)) { /* another agent's name, which libzmq gave away */
        root->refused_frames++;
        return;
    }
    if (!peer || !peer->synced || frame->head.seq != peer->expected) {
        if (!peer) { /* the agent knew a predecessor of this root */
            send_welcome(root, from, 0, true);
        } else if (now - peer->resync_ns > RESYNC_NS) {
            peer->synced = false;
            peer->resync_ns = now;
            send_welcome(root, from, 0, true);
        }
        return;
    }
    peer->expected++;
    roll_peer_late_heard(root, peer, now);
    root->bytes += bytes;
    switch (frame->head.type) {
    case ROLL_FRAME_RING:
        ring(root, peer, frame, raw, bytes);
        break;
    case ROLL_FRAME_NOTE:
        note(root, frame, raw, bytes);
        break;
    case ROLL_FRAME_HEARTBEAT:
        if (frame->head.first > peer->drain_echo) {
            peer->drain_echo = frame->head.first;
        }
        note_heartbeat(root, peer, frame, now);
        repeat_acks(root, peer, now);
        note_due(root, peer);
        if (peer->owed) { /* who sends may also read again */
            roll_remedy_tell_owed(peer);
        }
        break;
    case ROLL_FRAME_BYE:
        roll_log(ROLL_LOG_INFO, "root: %s on %s (pid %u) leaves", roll_peer_noun(peer), peer->host, peer->pid);
        lose_peer(root, peer);
        break;
    default:
        data(root, peer, frame, raw, bytes, now);
        break;
    }
}

void roll_peers_answer(roll_root_t *root, const struct roll_address *from, const struct roll_frame *frame)
{
    struct roll_peer *peer = find_peer(root, from);
    if (peer && roll_peers_may_report(from, peer->host)) {
        roll_collect_answer(root, peer, frame);
        roll_facts_answer(root, frame);
        roll_incident_answer(root, peer, frame);
        roll_remedy_answer(root, peer, frame);
    }
}

/* time */

void roll_peers_look_after(roll_root_t *root, uint64_t now)
{
    for (size_t i = root->peers_used; i-- > 0;) {
        struct roll_peer *peer = root->peers[i];
        if (!peer->gone && roll_peer_is_lost(root, peer, now)) {
            roll_log(ROLL_LOG_WARNING,
                     "root: %s on %s (pid %u) has been silent for %.0f s; its ranks are not seen any more",
                     roll_peer_noun(peer), peer->host, peer->pid, (double)(now - peer->seen_ns) * 1e-9);
            lose_peer(root, peer);
        }
    }
}

void roll_peers_fini(roll_root_t *root)
{
    while (root->peers_used > 0) {
        drop_peer(root, root->peers[0]);
    }
    while (root->places_used > 0) {
        free(root->places[--root->places_used]);
    }
    free(root->places);
    roll_map_fini(&root->place_at);
    free(root->peers);
    free(root->due);
}
