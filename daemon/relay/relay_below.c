/*
 * relay_below.c: the relay as a root: the agents that it serves, and what it does with each of their frames.
 *
 * Digests end here, in the sum of their run; every other frame about a ring is passed on as it is, with this relay's
 * next number. A frame is read only where there is room for it above, so nothing is kept here and nothing lost: when
 * the level above is slow, the agents' own windows fill, and their rings hold what is not sent. A queue of the relay's
 * own was rejected: it would have to be bounded, and what it dropped would be noticed only by the root.
 *
 * A relay that dies loses nothing for the same reason: agents begin again with its successor, and tell totals.
 */
#include "daemon/relay/relay_state.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "daemon/digest/digest_bytes.h"
#include "daemon/feed/clock.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESYNC_NS (200 * ROLL_MS)
#define MESSAGES  256   /* that are read in a turn */
#define PASSED    65536 /* numbers that are kept of a child, when nothing is acknowledged */

/* children */

static const char *noun(const struct relay_child *child)
{
    return child->relay ? "relay" : "agent";
}

static uint64_t hash_of(const void *socket, const void *id, size_t bytes)
{
    uint32_t a = roll_crc32c((uint32_t)(uintptr_t)socket, id, bytes), b = roll_crc32c(a ^ 0x9e3779b9u, id, bytes);
    return (uint64_t)a << 32 | b;
}

/* The child of this address; NULL: there is none. */
static struct relay_child *child_of(const struct roll_relay *r, const void *socket, const void *id, size_t bytes)
{
    uint32_t at = roll_map_get(&r->child_at, hash_of(socket, id, bytes));
    struct relay_child *child = at != ROLL_MAP_NONE ? r->child[at] : NULL;
    bool same = child && child->socket == socket && child->id_bytes == bytes && memcmp(child->id, id, bytes) == 0;
    return same ? child : NULL;
}

static void child_destroy(struct relay_child **child)
{
    if (*child) {
        free((*child)->host);
        free((*child)->passed);
        free(*child);
        *child = NULL;
    }
}

/* The map of addresses is made anew: children leave seldom. */
static void drop_child(struct roll_relay *r, struct relay_child *child)
{
    for (size_t i = 0; i < r->rings; i++) {
        if (r->ring[i].child == child) {
            r->ring[i].child = NULL;
            r->ring[i].left_ns = roll_mono_ns();
        }
    }
    size_t keep = 0;
    roll_map_fini(&r->child_at);
    for (size_t i = 0; i < r->children; i++) {
        if (r->child[i] != child) {
            r->child[keep] = r->child[i];
            (void)roll_map_add(&r->child_at,
                               hash_of(r->child[keep]->socket, r->child[keep]->id, r->child[keep]->id_bytes),
                               (uint32_t)keep);
            keep++;
        }
    }
    r->children = keep;
    child_destroy(&child);
}

static struct relay_child *add_child(struct roll_relay *r, void *socket, const void *id, size_t bytes)
{
    uint64_t hash = hash_of(socket, id, bytes);
    if (r->children >= ROLL_RELAY_CHILDREN || roll_map_get(&r->child_at, hash) != ROLL_MAP_NONE ||
        ROLL_GROW(r->child, r->child_room, r->children + 1) != 0) {
        return NULL;
    }
    struct relay_child *child = calloc(1, sizeof(*child));
    if (!child || roll_map_add(&r->child_at, hash, (uint32_t)r->children) != 0) {
        free(child);
        return NULL;
    }
    child->socket = socket;
    child->id_bytes = bytes;
    memcpy(child->id, id, bytes);
    r->child[r->children++] = child;
    return child;
}

static void hello(struct roll_relay *r, void *socket, const void *id, size_t bytes, const struct roll_frame *frame,
                  const struct roll_role *role, uint64_t now)
{
    json_t *json = roll_net_json(frame);
    const char *host = json ? json_string_value(json_object_get(json, "host")) : NULL;
    if (role->host[0] && strcmp(role->host, host ? host : "?") != 0) {
        roll_relay_refuse(r, child_of(r, socket, id, bytes), "its key is that of another host");
        json_decref(json);
        return;
    }
    const char *dir = json ? json_string_value(json_object_get(json, "dir")) : NULL;
    const char *program = json ? json_string_value(json_object_get(json, "agent")) : NULL;
    struct relay_child *child = child_of(r, socket, id, bytes);
    bool new = !child;
    uint32_t place = 0;
    if (json && roll_relay_place_of(r, host ? host : "?", dir ? dir : "", &place) &&
        (child || (child = add_child(r, socket, id, bytes)))) {
        free(child->host);
        child->host = strdup(host ? host : "?");
        child->place = place;
        child->relay = program && strcmp(program, ROLL_NET_RELAY) == 0;
        child->forgot = child->missed = false;
        child->synced = true;
        child->silent = false;
        child->hello_seq = frame->head.seq;
        child->expected = frame->head.seq + 1;
        child->seen_ns = now;
        child->closed_ns = r->closed_ns;
        child->went_ns = r->went_ns;
        child->beat.unheard = 0;
        child->beat.look_ns = 0;
        child->drain_sent = child->drain_echo = 0; /* in a new conversation it has heard of none */
        child->passed_at = child->passed_used = 0;
        child->waits = !r->welcomed;
        if (new) {
            roll_log(ROLL_LOG_INFO, "relay: %s on %s is here", noun(child), child->host ? child->host : "?");
        }
        if (r->welcomed) {
            roll_relay_welcome(r, child, false);
        }
    } else {
        roll_relay_refuse(r, child, "too many agents, or no memory");
    }
    json_decref(json);
}

/* numbers */

static void note_passed(struct relay_child *child, uint64_t above, uint64_t own)
{
    if (child->passed_at == child->passed_used) {
        child->passed_at = child->passed_used = 0;
    }
    if (child->passed_at > PASSED / 2) {
        memmove(child->passed, child->passed + child->passed_at,
                (child->passed_used - child->passed_at) * sizeof(*child->passed));
        child->passed_used -= child->passed_at;
        child->passed_at = 0;
    }
    if (child->passed_used >= PASSED || ROLL_GROW(child->passed, child->passed_room, child->passed_used + 1) != 0) {
        if (child->passed_used > 0) {
            child->passed[child->passed_used - 1] = (struct relay_passed){above, own}; /* acknowledged a little later */
        }
        return;
    }
    child->passed[child->passed_used++] = (struct relay_passed){above, own};
}

/* digests */

/* Nobody above hears of what was refused here. */
static void note_no_room(struct relay_run *run, const struct relay_child *child)
{
    struct roll_sum_figures f;
    roll_sum_figures(run->sum, &f);
    if (f.no_room > 0 && !run->no_room_told) {
        run->no_room_told = true;
        roll_log(ROLL_LOG_WARNING,
                 "relay: %s.%u: an agent tells of more communicators than there is room for (the first is on host %s): "
                 "what does not fit is not compared (said once)",
                 run->job, run->restart, child->host);
    }
}

static int take_digest(struct roll_relay *r, const struct relay_child *child, const struct relay_ring *ring,
                       const struct roll_frame *frame, uint64_t now)
{
    struct relay_run *run = &r->run[ring->run];
    int err = ROLL_GROW_ZERO(run->part, run->parts, (size_t)child->place + 1);
    if (err) {
        return err;
    }
    roll_digest_clear(&r->came);
    err = frame->head.payload ? roll_digest_decode(frame->payload, frame->head.payload, &r->came) : 0;
    if (err) {
        return err;
    }
    run->part[child->place] = (struct relay_part){.calls = frame->head.first, .told = true};
    size_t lies = roll_digest_leave_out(&r->came, roll_relay_rings_in(r, child, ring->run));
    if (lies > 0 && (child->lost_ns == 0 || now > child->lost_ns + ROLL_RELAY_LOST_NS)) {
        roll_relay_refuse(r, child, "a digest speaks for more ranks than it has: that part is left out");
    }
    struct roll_sum_figures before, behind;
    roll_sum_figures(run->sum, &before);
    err = roll_sum_take(run->sum, child->place, &r->came, now);
    roll_sum_figures(run->sum, &behind);
    lies = behind.refused - behind.no_room - (before.refused - before.no_room); /* for want of room: note_no_room */
    if (lies > 0) {
        r->refused += lies - 1;
        roll_relay_refuse(r, child, "a digest has parts that cannot be: these are left out");
    }
    note_no_room(run, child);
    return err;
}

/* frames */

static void pass_up(struct roll_relay *r, struct relay_child *child, const struct roll_frame *frame)
{
    struct roll_frame_head head = frame->head;
    uint64_t above;
    int err = roll_relay_send(r, head, frame->payload, frame->head.payload, &above);
    if (err) { /* there was room; the connection has gone meanwhile */
        child->synced = false;
    } else {
        note_passed(child, above, frame->head.seq);
    }
}

/* The child begins its conversation again, and announces all that it has. */
static void begin_again(struct roll_relay *r, struct relay_child *child, uint64_t now)
{
    child->synced = false;
    if (r->welcomed && now - child->resync_ns > RESYNC_NS) {
        child->resync_ns = now;
        roll_relay_welcome(r, child, true);
    }
}

/* A frame about a ring that this child has announced. */
static void about_ring(struct roll_relay *r, struct relay_child *child, const struct roll_frame *frame, uint64_t now)
{
    struct relay_ring *ring = roll_relay_ring_of(r, frame->head.stream);
    if (!ring && child->forgot) {
        begin_again(r, child, now);
        return;
    }
    if (!ring || ring->child != child) {
        roll_relay_refuse(r, child, "a frame is about a ring that the agent has not announced, or another one has");
        return;
    }
    r->run[ring->run].heard_ns = now;
    if (frame->head.type == ROLL_FRAME_DIGEST) {
        int err = take_digest(r, child, ring, frame, now);
        if (err) {
            roll_relay_refuse(r, child,
                              err == ROLL_E_VERSION ? "a digest is of another release: use one release on all nodes"
                                                    : "a digest has parts that cannot be");
        }
        return;
    }
    if (frame->head.type == ROLL_FRAME_STATUS) {
        struct roll_frame_status status;
        memcpy(&status, frame->payload, sizeof(status));
        ring->live = status.proc_state == ROLL_PROC_RUNNING || status.proc_state == ROLL_PROC_STOPPED;
    }
    pass_up(r, child, frame);
}

static void take_heartbeat(struct roll_relay *r, struct relay_child *child, const struct roll_frame *frame,
                           uint64_t now)
{
    struct roll_frame_heartbeat beat = {.unheard = 0};
    child->drain_echo = frame->head.first > child->drain_echo ? frame->head.first : child->drain_echo;
    memcpy(&beat, frame->payload, frame->head.payload < sizeof(beat) ? frame->head.payload : sizeof(beat));
    roll_relay_late_beat(r, child, &beat, now);
}

static void numbered(struct roll_relay *r, void *socket, const void *id, size_t bytes, const struct roll_frame *frame,
                     uint64_t now)
{
    struct relay_child *child = child_of(r, socket, id, bytes);
    if (!child) { /* it knew a predecessor of this relay */
        struct relay_child unknown = {.socket = socket, .id_bytes = bytes};
        memcpy(unknown.id, id, bytes);
        roll_relay_welcome(r, &unknown, true);
        return;
    }
    roll_relay_late_heard(r, child, now);
    if (child->waits) {
        return;
    }
    if (!r->welcomed || !child->synced || frame->head.seq != child->expected) {
        begin_again(r, child, now);
        return;
    }
    int err;
    child->expected++;
    switch (frame->head.type) {
    case ROLL_FRAME_RING:
        err = roll_relay_note_ring(r, child, frame, now);
        if (err) {
            roll_relay_refuse(r, child, err == ROLL_E_LIMIT ? "too many rings or runs" : roll_strerror(err));
        } else {
            pass_up(r, child, frame);
            roll_relay_ring_of(r, frame->head.stream)->here = child->synced;
        }
        break;
    case ROLL_FRAME_NOTE:
        pass_up(r, child, frame);
        break;
    case ROLL_FRAME_HEARTBEAT:
        take_heartbeat(r, child, frame, now);
        if (child->missed) { /* who sends may also read again */
            begin_again(r, child, now);
        }
        break;
    case ROLL_FRAME_BYE:
        roll_log(ROLL_LOG_INFO, "relay: %s on %s leaves", noun(child), child->host ? child->host : "?");
        roll_relay_tell_unheard(r, child);
        drop_child(r, child);
        break;
    default:
        about_ring(r, child, frame, now);
        break;
    }
}

/* A console has come to the wrong door. */
static void refer(const struct roll_relay *r, void *socket, const void *id, size_t bytes, uint64_t seq)
{
    char text[400];
    snprintf(text, sizeof(text), "this is a relay, which judges nothing: ask the root, %s", r->o.above);
    json_t *json = json_pack("{s:s,s:o}", "error", text, "root", roll_text_to_json(r->o.above));
    struct roll_frame_head head = {.type = ROLL_FRAME_REPLY, .seq = seq};
    if (json) {
        (void)roll_net_send_json(socket, id, bytes, &head, json);
    }
    json_decref(json);
}

/* Whether the key of the sender may send this frame: none of an agent without the role, and none under the name of a
 * child on another host, which libzmq gives to whoever comes with it last. */
static bool may_send(const struct roll_role *role, const struct relay_child *child, uint16_t type)
{
    bool foreign = child && child->host && role->host[0] && strcmp(role->host, child->host) != 0;
    return type == ROLL_FRAME_QUERY || (!(role->denied & ROLL_DENY_REPORT) && !foreign);
}

static void handle(struct roll_relay *r, void *socket, const void *id, size_t id_bytes, const void *raw, size_t bytes,
                   const struct roll_role *role, uint64_t now)
{
    struct roll_frame frame;
    int err = roll_frame_decode(raw, bytes, &frame, NULL);
    if (err) {
        roll_relay_refuse(r, child_of(r, socket, id, id_bytes), roll_strerror(err));
        return;
    }
    if (!may_send(role, role->denied || role->host[0] ? child_of(r, socket, id, id_bytes) : NULL, frame.head.type)) {
        roll_relay_refuse(r, child_of(r, socket, id, id_bytes), "its key has not the role node, or is of another host");
        return;
    }
    switch (frame.head.type) {
    case ROLL_FRAME_HELLO:
        hello(r, socket, id, id_bytes, &frame, role, now);
        break;
    case ROLL_FRAME_QUERY:
        refer(r, socket, id, id_bytes, frame.head.seq);
        break;
    case ROLL_FRAME_ANSWER: /* it has no number among the agent's frames, and none among ours */
        if (r->welcomed && child_of(r, socket, id, id_bytes)) {
            (void)roll_net_batch_add(&r->batch, r->above, NULL, 0, &frame.head, frame.payload, frame.head.payload);
        }
        break;
    case ROLL_FRAME_RING:
    case ROLL_FRAME_DEFS:
    case ROLL_FRAME_RECORDS:
    case ROLL_FRAME_UPDATES:
    case ROLL_FRAME_STATUS:
    case ROLL_FRAME_SIGHT:
    case ROLL_FRAME_HEARTBEAT:
    case ROLL_FRAME_BYE:
    case ROLL_FRAME_NOTE:
    case ROLL_FRAME_DIGEST:
    case ROLL_FRAME_EXCERPT:
    case ROLL_FRAME_PLACE:
        numbered(r, socket, id, id_bytes, &frame, now);
        break;
    default:
        roll_relay_refuse(r, child_of(r, socket, id, id_bytes), roll_strerror(ROLL_E_UNSUPPORTED));
        break;
    }
}

int roll_relay_hear_below(struct roll_relay *r, int which, uint64_t now)
{
    void *socket = r->below[which];
    int n = 0;
    for (int messages = 0; messages < MESSAGES && (!r->welcomed || roll_relay_has_room(r)); messages++) {
        uint8_t id[ROLL_RELAY_ID_BYTES];
        zmq_msg_t msg;
        zmq_msg_init(&msg);
        if (roll_net_recv(&msg, socket) < 0) {
            zmq_msg_close(&msg);
            break;
        }
        size_t id_bytes = zmq_msg_size(&msg) < sizeof(id) ? zmq_msg_size(&msg) : sizeof(id);
        memcpy(id, zmq_msg_data(&msg), id_bytes);
        bool more = zmq_msg_more(&msg);
        struct roll_role role = {.denied = 0};
        zmq_msg_close(&msg);
        for (unsigned part = 0; more; part++) {
            zmq_msg_init(&msg);
            if (roll_net_recv(&msg, socket) < 0) {
                zmq_msg_close(&msg);
                break;
            }
            more = zmq_msg_more(&msg);
            n++;
            roll_guard_took(&r->guard[which], &msg);
            if (part == 0 && which == 1) { /* the socket with keys */
                roll_role_of(&msg, &role);
            }
            if (part < ROLL_NET_PARTS) {
                handle(r, socket, id, id_bytes, zmq_msg_data(&msg), zmq_msg_size(&msg), &role, now);
            }
            zmq_msg_close(&msg);
        }
        roll_net_batch_flush(&r->batch, r->above); /* so one message from below is at most one message above */
    }
    return n;
}

static bool holds_rings(const struct roll_relay *r, const struct relay_child *child)
{
    for (size_t i = 0; i < r->rings; i++) {
        if (r->ring[i].child == child) {
            return true;
        }
    }
    return false;
}

void roll_relay_look_after(struct roll_relay *r, uint64_t now)
{
    roll_relay_runs_look(r, now);
    for (size_t i = r->children; i-- > 0;) {
        struct relay_child *child = r->child[i];
        if (child->silent && !holds_rings(r, child)) { /* another agent has announced them */
            drop_child(r, child);
            continue;
        }
        if (!child->silent && roll_relay_is_lost(r, child, now)) {
            roll_log(ROLL_LOG_WARNING, "relay: %s on %s has been silent for %.0f s; its ranks are not seen any more",
                     noun(child), child->host ? child->host : "?", (double)(now - child->seen_ns) * 1e-9);
            roll_relay_tell_unheard(r, child);
            child->silent = true;
            child->synced = false;
        }
    }
}

void roll_relay_below_fini(struct roll_relay *r)
{
    for (size_t i = 0; i < r->children; i++) {
        child_destroy(&r->child[i]);
    }
    roll_relay_runs_fini(r);
    for (size_t i = 0; i < r->places; i++) {
        free(r->place[i]);
    }
    roll_map_fini(&r->child_at);
    free(r->child);
    free(r->place);
}
