/*
 * agent_frames.c: the agent's conversation with the root: what it says of itself, and what it does with each frame.
 *
 * A frame gets the next number when it is sent, and only then: a frame for which the socket has no room has no number,
 * so the root sees no gap. What the rings send goes through roll_agent_send, too (agent_ring_send.c).
 */
#include "daemon/agent/agent_state.h"

#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <string.h>
#include <unistd.h>
#include <zmq.h>

int roll_agent_send(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    struct roll_agent *a = ctx;
    bool records = head.type == ROLL_FRAME_RECORDS || head.type == ROLL_FRAME_UPDATES; /* all else is little */
    if (records && !roll_credit_has(&a->credit)) {
        return ROLL_E_BUSY;
    }
    head.seq = a->seq + 1;
    int err = roll_net_batch_add(&a->batch, a->socket, NULL, 0, &head, payload, bytes);
    if (!err) {
        a->seq++;
        *seq = a->seq;
        roll_credit_sent(&a->credit, a->seq, ROLL_FRAME_HEAD_BYTES + bytes);
    }
    return err;
}

void roll_agent_flush(struct roll_agent *a)
{
    roll_net_batch_flush(&a->batch, a->socket);
}

void roll_agent_hello(struct roll_agent *a, uint64_t now)
{
    roll_agent_flush(a);
    a->welcomed = false;
    a->hello_ns = now;
    roll_agent_stacks_forget(a->stacks); /* the root asks its questions again in the new conversation */
    roll_agent_facts_forget(a->facts);
    roll_agent_calls_forget(a->calls);
    roll_agent_lines_forget(a->lines);
    roll_agent_tails_forget(a->tails);
    json_t *hello = json_pack("{s:s,s:o,s:i,s:s,s:o}", "agent", "rollcalld", "host", roll_text_to_json(a->host), "pid",
                              (int)getpid(), "version", ROLL_VERSION, "dir", roll_text_to_json(a->o->dir));
    if (!hello) {
        return;
    }
    struct roll_frame_head head = {.type = ROLL_FRAME_HELLO, .seq = a->seq + 1};
    if (roll_net_send_json(a->socket, NULL, 0, &head, hello) == 0) {
        a->hello_seq = ++a->seq;
    }
    json_decref(hello);
}

void roll_agent_lost(struct roll_agent *a, uint64_t now)
{
    if (a->welcomed && !a->said_unreachable) {
        bool lives = false;
        for (size_t i = 0; i < a->used; i++) {
            lives = lives || !a->rings[i]->gone;
        }
        a->said_unreachable = true;
        a->lost_ns = now;
        a->lost_level = lives ? ROLL_LOG_WARNING : ROLL_LOG_INFO; /* when the job is over, its root may end first */
        roll_log(a->lost_level, "agent: %s has gone away; the ranks go on recording, and the agent goes on trying",
                 a->o->endpoint);
    }
}

int roll_agent_heartbeat(struct roll_agent *a, uint64_t token)
{
    struct roll_frame_head head = {.type = ROLL_FRAME_HEARTBEAT, .first = token, .count = 0};
    struct roll_frame_heartbeat beat;
    uint64_t seq;
    roll_agent_late_beat(&a->late, a->rings, a->used, &beat);
    return roll_agent_send(a, head, &beat, sizeof(beat), &seq);
}

/* frames in */

static void welcome(struct roll_agent *a, const struct roll_frame *frame, uint64_t now)
{
    json_t *json = roll_net_json(frame);
    bool resync = json && json_is_true(json_object_get(json, "resync"));
    const char *name = json ? json_string_value(json_object_get(json, "policy")) : NULL;
    enum roll_policy policy;
    if (name && roll_policy_by_name(name, &policy) == 0) {
        roll_agent_controls_policy(&a->controls, policy);
    }
    json_decref(json);
    if (resync) { /* the root does not know us, or has missed a frame: begin the conversation again */
        roll_agent_hello(a, now);
        return;
    }
    if (frame->head.seq != a->hello_seq || a->welcomed) {
        return;
    }
    a->welcomed = true;
    roll_credit_read(&a->credit, a->hello_seq);
    if (a->said_unreachable) { /* as loud as what it answers, so that a log of warnings alone does not end with that */
        roll_log(a->lost_level, "agent: connected to %s, after %.1f s", a->o->endpoint,
                 (double)(now - a->lost_ns) / 1e9);
    } else if (!a->said_connected) {
        roll_log(ROLL_LOG_INFO, "agent: connected to %s", a->o->endpoint);
    }
    a->said_connected = true;
    a->said_unreachable = false;
    roll_unseen_again(a->unseen);
    if (a->digests) {
        roll_agent_digests_again(a->digests);
    }
    for (size_t i = 0; i < a->used; i++) {
        a->rings[i]->link = ROLL_LINK_NEW;
    }
}

static void begin_drain(struct roll_agent *a, uint64_t token, uint64_t now)
{
    roll_agent_scan(a, now);
    a->drain = token;
    for (size_t i = 0; i < a->used; i++) {
        struct roll_agent_ring *ring = a->rings[i];
        ring->look_ns = 0;
        ring->drain_head = roll_agent_ring_head(ring);
        ring->drain_status = true;
    }
}

/* The process behind a ring, for questions about stacks. */
static pid_t pid_of(void *ctx, uint64_t epoch, const char **why)
{
    const struct roll_agent *a = ctx;
    *why = "its ring is not here any more";
    for (size_t i = 0; i < a->used; i++) {
        const struct roll_agent_ring *ring = a->rings[i];
        if (ring->map.header->epoch != epoch) {
            continue;
        }
        *why = ring->foreign
                   ? "its agent is in another pid namespace: run them in one (Kubernetes: shareProcessNamespace)"
                   : "the process has ended";
        return ring->foreign || ring->gone ? 0 : (pid_t)ring->map.header->pid;
    }
    return 0;
}

/* How the root's engine is set for the run of a ring: this node's trace of that run says the same. */
static void settings(struct roll_agent *a, const struct roll_frame *frame, uint64_t now)
{
    struct roll_frame_settings s;
    if (!a->trace || frame->head.payload < sizeof(s)) {
        return;
    }
    memcpy(&s, frame->payload, sizeof(s));
    for (size_t i = 0; i < a->used; i++) {
        if (a->rings[i]->map.header->epoch == frame->head.stream) {
            roll_agent_trace_settings(a->trace, a->rings[i], &s, now);
        }
    }
}

static void handle(struct roll_agent *a, const struct roll_frame *frame, uint64_t now)
{
    a->soon = a->soon || frame->head.type != ROLL_FRAME_ACK;
    switch (frame->head.type) {
    case ROLL_FRAME_WELCOME:
        welcome(a, frame, now);
        break;
    case ROLL_FRAME_ACK:
        roll_credit_read(&a->credit, frame->head.seq);
        for (size_t i = 0; i < a->used; i++) {
            if (a->rings[i]->map.header->epoch == frame->head.stream) {
                /* A ring that begins to travel, and one that waited for its window, go on at once. */
                a->soon = a->soon || a->rings[i]->link != ROLL_LINK_LIVE || roll_agent_ring_waits(a->rings[i]);
                roll_agent_ring_ack(a->rings[i], frame);
                if (!a->rings[i]->digest) {
                    roll_agent_digests_drop(a->digests, a->rings[i]);
                }
            }
        }
        break;
    case ROLL_FRAME_CONTROL:
        roll_agent_controls_apply(&a->controls, frame);
        break;
    case ROLL_FRAME_EXCERPT:
        if (a->digests) {
            roll_agent_digests_ask(a->digests, frame);
        }
        break;
    case ROLL_FRAME_SETTINGS:
        settings(a, frame, now);
        break;
    case ROLL_FRAME_HEARTBEAT:
        if (frame->head.first != 0) {
            begin_drain(a, frame->head.first, now);
        }
        break;
    case ROLL_FRAME_ASK:
        roll_agent_stacks_ask(a->stacks, frame, pid_of, a);
        roll_agent_facts_ask(a->facts, frame);
        roll_agent_calls_ask(a->calls, frame);
        roll_agent_lines_ask(a->lines, a->sources, a->rings, a->used, frame, now);
        roll_agent_tails_ask(a->tails, frame);
        roll_agent_controls_ask(&a->controls, frame, a->socket);
        break;
    case ROLL_FRAME_ERROR: {
        char words[400];
        roll_log(ROLL_LOG_WARNING, "agent: the root refuses what is sent: %s",
                 roll_error_of_json(frame->payload, frame->head.payload, words, sizeof(words)));
        break;
    }
    default:
        break; /* a newer root may send other types */
    }
}

void roll_agent_receive(struct roll_agent *a, uint64_t now)
{
    for (int i = 0; i < 256; i++) {
        zmq_msg_t msg;
        zmq_msg_init(&msg);
        if (roll_net_recv(&msg, a->socket) < 0) {
            zmq_msg_close(&msg);
            return;
        }
        struct roll_frame frame;
        if (roll_frame_decode(zmq_msg_data(&msg), zmq_msg_size(&msg), &frame, NULL) == 0) {
            handle(a, &frame, now);
        }
        zmq_msg_close(&msg);
    }
}
