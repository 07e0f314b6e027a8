/*
 * relay_above.c: the relay as an agent: what it tells the level above, and to whom below it gives what it hears.
 *
 * What the level above sends about a ring goes to the agent that has the ring; what is about a run, to all agents with
 * rings of the run. Nothing that comes from above is kept here: whatever is lost is asked for or told again by the
 * root, as it is to agents.
 */
#include "daemon/relay/relay_state.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "daemon/digest/digest_bytes.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HELLO_NS     (3000 * ROLL_MS)
#define HEARTBEAT_NS (100 * ROLL_MS)
#define TELL_NS      (100 * ROLL_MS)
#define COUNT_NS     (1000 * ROLL_MS) /* how often the number of calls is told when nothing else is new */

/* out */

void roll_relay_hello(struct roll_relay *r, uint64_t now)
{
    roll_net_batch_flush(&r->batch, r->above);
    r->welcomed = false;
    r->hello_ns = now;
    json_t *hello = json_pack("{s:s,s:o,s:i,s:s,s:o}", "agent", ROLL_NET_RELAY, "host", roll_text_to_json(r->host),
                              "pid", (int)getpid(), "version", ROLL_VERSION, "dir", roll_text_to_json(r->endpoint[0]));
    if (!hello) {
        return;
    }
    struct roll_frame_head head = {.type = ROLL_FRAME_HELLO, .seq = r->seq + 1};
    if (roll_net_send_json(r->above, NULL, 0, &head, hello) == 0) {
        r->hello_seq = ++r->seq;
    }
    json_decref(hello);
}

void roll_relay_lost(struct roll_relay *r, uint64_t now)
{
    if (r->welcomed && !r->said_unreachable) {
        r->said_unreachable = true;
        r->lost_ns = now;
        roll_log(ROLL_LOG_WARNING, "relay: %s has gone away; the agents keep what they have, and are told later",
                 r->o.above);
    }
}

static int heartbeat(struct roll_relay *r, uint64_t token, uint64_t now)
{
    struct roll_frame_heartbeat beat;
    struct roll_frame_head head = {.type = ROLL_FRAME_HEARTBEAT, .first = token};
    uint64_t seq;
    roll_relay_late_tell(r, &beat, now);
    return roll_relay_send(r, head, &beat, sizeof(beat), &seq);
}

/* All of it is told anew: everything in a digest is a total. */
static void tell_again(struct relay_run *run)
{
    roll_sum_again(run->sum);
    run->calls_told = 0;
    run->again = true;
}

static void tell_run(struct roll_relay *r, struct relay_run *run, uint64_t now)
{
    struct roll_digest_cursor cursor = {0};
    uint64_t calls = 0, seq;
    if (run->stream == 0 || run->waits) {
        return;
    }
    if (run->early) { /* in a new conversation, and when the rings have come without which it was told */
        roll_relay_leave_unknown(r, run, now);
        tell_again(run);
    }
    run->early = run->lacks;
    for (size_t i = 0; i < run->parts; i++) {
        calls += run->part[i].calls;
    }
    roll_digest_clear(&r->up);
    roll_sum_cut(run->sum, now, &r->up);
    if (run->live) {
        roll_sum_forget(run->sum, now);
    }
    roll_digest_keep_hints(&run->said, &r->up, run->again);
    run->again = false;
    struct roll_frame_head head = {.type = ROLL_FRAME_DIGEST, .stream = run->stream, .first = calls};
    size_t bytes = roll_digest_encode(&r->up, &cursor, r->payload, ROLL_RELAY_PAYLOAD);
    if (bytes == 0 && !r->up.short_of_memory && (calls == run->calls_told || now - run->told_ns < COUNT_NS)) {
        return;
    }
    int err = 0;
    do {
        err = roll_relay_send(r, head, r->payload, bytes, &seq);
    } while (!err && (bytes = roll_digest_encode(&r->up, &cursor, r->payload, ROLL_RELAY_PAYLOAD)) != 0);
    if (err || r->up.short_of_memory) {
        tell_again(run);
        return;
    }
    run->calls_told = calls;
    run->told_ns = now;
}

/* Tells of the drain those children that have not heard of it: one that begins anew in the middle of it, say. */
static void pass_drain(struct roll_relay *r)
{
    struct roll_frame_head head = {.type = ROLL_FRAME_HEARTBEAT, .first = r->drain};
    for (size_t i = 0; r->drain != 0 && i < r->children; i++) {
        struct relay_child *child = r->child[i];
        if (child->synced && !child->waits && child->drain_sent < r->drain &&
            roll_net_send(child->socket, child->id, child->id_bytes, &head, NULL, 0) == 0) {
            child->drain_sent = r->drain;
        }
    }
}

/* All children have done what a drain asks for. */
static bool drained(const struct roll_relay *r)
{
    for (size_t i = 0; i < r->children; i++) {
        const struct relay_child *child = r->child[i];
        if (!child->silent && child->drain_echo < r->drain) {
            return false;
        }
    }
    return true;
}

void roll_relay_tell_above(struct roll_relay *r, uint64_t now)
{
    roll_net_dial_again(&r->dial, r->above, r->o.above);
    if (!r->welcomed && now - r->hello_ns > HELLO_NS) {
        if (!r->said_unreachable) {
            r->said_unreachable = true;
            r->lost_ns = now;
            roll_log(ROLL_LOG_WARNING,
                     "relay: %s cannot be reached; the agents keep what they have, and are told later", r->o.above);
        }
        roll_relay_hello(r, now);
    }
    if (!r->welcomed) {
        return;
    }
    pass_drain(r);
    bool over = !roll_relay_runs_wait(r, now) && r->drain != 0 && drained(r) && roll_relay_has_room(r);
    if ((over || now - r->tell_ns >= TELL_NS) && roll_relay_has_room(r)) {
        r->tell_ns = now;
        for (size_t i = 0; i < r->runs; i++) {
            if (r->run[i].sum) {
                tell_run(r, &r->run[i], now);
            }
        }
    }
    if (over && heartbeat(r, r->drain, now) == 0) { /* behind the digests */
        r->drain = 0;
    }
    if (now - r->heartbeat_ns >= HEARTBEAT_NS) {
        r->heartbeat_ns = now;
        (void)heartbeat(r, 0, now);
    }
    roll_net_batch_flush(&r->batch, r->above);
}

/* in */

/* The level above has begun a conversation: all that the children have is told in it. */
static void begin(struct roll_relay *r, uint64_t now)
{
    r->welcomed = true;
    r->drain = 0;
    if (r->said_unreachable) { /* as loud as what it answers */
        roll_log(ROLL_LOG_WARNING, "relay: connected to %s, after %.1f s", r->o.above,
                 (double)(now - r->lost_ns) / 1e9);
    } else if (!r->said_connected) {
        roll_log(ROLL_LOG_INFO, "relay: connected to %s", r->o.above);
    }
    r->said_connected = true;
    r->said_unreachable = false;
    roll_relay_runs_begin(r, now);
    for (size_t i = 0; i < r->children; i++) {
        struct relay_child *child = r->child[i];
        roll_relay_welcome(r, child, !child->waits);
        child->synced = child->synced && child->waits;
        child->waits = false;
    }
}

static void welcome(struct roll_relay *r, const struct roll_frame *frame, uint64_t now)
{
    json_t *json = roll_net_json(frame);
    const char *policy = json ? json_string_value(json_object_get(json, "policy")) : NULL;
    bool resync = json && json_is_true(json_object_get(json, "resync"));
    snprintf(r->policy, sizeof(r->policy), "%s", policy ? policy : "");
    json_decref(json);
    if (resync) {
        roll_relay_hello(r, now);
    } else if (frame->head.seq == r->hello_seq && !r->welcomed) {
        roll_credit_read(&r->credit, r->hello_seq);
        begin(r, now);
    }
}

/* A switch that a child misses would stay missed: the root knows only that this relay has heard of it. Keeping it here
 * until there is room was rejected: it would be a second list of what is switched, which has to be the root's. */
static void miss(struct relay_child *child)
{
    if (!child->missed) {
        roll_log(ROLL_LOG_WARNING,
                 "relay: %s on %s cannot be told what is switched: it takes nothing from its queue, and is told all of "
                 "it when it does",
                 child->relay ? "the relay" : "the agent", child->host ? child->host : "?");
    }
    child->missed = true;
}

static void pass_down(struct roll_relay *r, struct relay_child *child, const struct roll_frame_head *head,
                      const void *payload, size_t bytes)
{
    int err = roll_net_send(child->socket, child->id, child->id_bytes, head, payload, bytes);
    if (err == ROLL_E_BUSY && head->type == ROLL_FRAME_CONTROL) {
        miss(child);
    } else if (err && err != ROLL_E_UNREACHABLE) {
        roll_relay_refuse(r, child, "nothing can be sent to it");
    }
}

/* About one ring: to the agent that has it. An ACK says up to which frame of its own numbers the agent was read. */
static void to_owner(struct roll_relay *r, const struct roll_frame *frame)
{
    const struct relay_ring *ring = roll_relay_ring_of(r, frame->head.stream);
    if (!ring || !ring->child || !ring->child->synced) {
        return;
    }
    struct roll_frame_head head = frame->head;
    if (head.type == ROLL_FRAME_ACK) {
        head.seq = roll_relay_own_number(ring->child, head.seq);
    }
    pass_down(r, ring->child, &head, frame->payload, frame->head.payload);
}

/* To all agents with rings of the run, which an agent knows by one of its own rings. */
static void to_run(struct roll_relay *r, const struct roll_frame *frame)
{
    const struct relay_ring *ring = roll_relay_ring_of(r, frame->head.stream);
    if (ring) {
        r->run[ring->run].heard_ns = roll_mono_ns();
    }
    for (size_t i = 0; ring && i < r->children; i++) {
        struct roll_frame_head head = frame->head;
        head.stream = r->child[i]->synced ? roll_relay_stream_in(r, r->child[i], ring->run) : 0;
        if (head.stream != 0) {
            pass_down(r, r->child[i], &head, frame->payload, frame->head.payload);
        }
    }
}

static void to_all(struct roll_relay *r, const struct roll_frame_head *head, const void *payload, size_t bytes)
{
    for (size_t i = 0; i < r->children; i++) {
        if (r->child[i]->synced) {
            pass_down(r, r->child[i], head, payload, bytes);
        }
    }
}

/* The streams of a question that this child has; owned. */
static json_t *streams_of(const struct roll_relay *r, const struct relay_child *child, const json_t *streams)
{
    json_t *mine = json_array(), *text;
    size_t i;
    json_array_foreach((json_t *)streams, i, text)
    {
        const char *name = json_string_value(text);
        const struct relay_ring *ring = name ? roll_relay_ring_of(r, strtoull(name, NULL, 16)) : NULL;
        if (ring && ring->child == child) {
            json_array_append(mine, text);
        }
    }
    return mine;
}

/* A question that names rings: an agent answers for each ring in it, also that it does not have the ring, so each agent
 * is asked for its own. A question that names none goes to all. */
static void ask(struct roll_relay *r, const struct roll_frame *frame)
{
    json_t *json = roll_net_json(frame);
    const json_t *streams = json ? json_object_get(json, "streams") : NULL;
    if (!streams) {
        to_all(r, &frame->head, frame->payload, frame->head.payload);
    }
    for (size_t i = 0; streams && i < r->children; i++) {
        json_t *mine = streams_of(r, r->child[i], streams), *one = json_copy(json);
        if (one && json_array_size(mine) > 0 && r->child[i]->synced) {
            json_object_set(one, "streams", mine);
            (void)roll_net_send_json(r->child[i]->socket, r->child[i]->id, r->child[i]->id_bytes, &frame->head, one);
        }
        json_decref(mine);
        json_decref(one);
    }
    json_decref(json);
}

static void handle(struct roll_relay *r, const struct roll_frame *frame, uint64_t now)
{
    switch (frame->head.type) {
    case ROLL_FRAME_WELCOME:
        welcome(r, frame, now);
        break;
    case ROLL_FRAME_ACK:
        roll_credit_read(&r->credit, frame->head.seq);
        to_owner(r, frame);
        break;
    case ROLL_FRAME_SETTINGS:
        to_owner(r, frame);
        break;
    case ROLL_FRAME_EXCERPT:
        to_run(r, frame);
        break;
    case ROLL_FRAME_SIGHT: /* it is announced elsewhere */
        roll_relay_lose_ring(r, frame->head.stream, now);
        break;
    case ROLL_FRAME_CONTROL:
        to_all(r, &frame->head, frame->payload, frame->head.payload);
        break;
    case ROLL_FRAME_ASK:
        ask(r, frame);
        break;
    case ROLL_FRAME_HEARTBEAT:
        if (frame->head.first != 0) {
            r->drain = frame->head.first; /* the next turn tells of it */
        }
        break;
    case ROLL_FRAME_ERROR: {
        char words[400];
        roll_log(ROLL_LOG_WARNING, "relay: the root refuses what is sent: %s",
                 roll_error_of_json(frame->payload, frame->head.payload, words, sizeof(words)));
        break;
    }
    default:
        break; /* a newer root may send other types */
    }
}

void roll_relay_hear_above(struct roll_relay *r, uint64_t now)
{
    for (int i = 0; i < 4096; i++) {
        zmq_msg_t msg;
        zmq_msg_init(&msg);
        if (roll_net_recv(&msg, r->above) < 0) {
            zmq_msg_close(&msg);
            return;
        }
        struct roll_frame frame;
        if (roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL) == 0) {
            handle(r, &frame, now);
        }
        zmq_msg_close(&msg);
    }
}
