/*
 * relay_state.c: what both conversations of the relay look up and say: rings and their agents, numbers, frames above.
 */
#include "daemon/relay/relay_state.h"

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "trace/err.h"

#define SAID_NS (60000 * ROLL_MS)

void roll_relay_refuse(struct roll_relay *r, const struct relay_child *child, const char *what)
{
    uint64_t now = roll_mono_ns();
    r->refused++;
    if (r->refused_said_ns == 0 || now - r->refused_said_ns > SAID_NS) {
        r->refused_said_ns = now;
        roll_log(ROLL_LOG_WARNING, "relay: a frame of %s%s is refused: %s (%llu refused so far)",
                 !child         ? "a stranger"
                 : child->relay ? "the relay on "
                                : "the agent on ",
                 child && child->host ? child->host : "", what, (unsigned long long)r->refused);
    }
}

int roll_relay_send(struct roll_relay *r, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    head.seq = r->seq + 1;
    int err = roll_net_batch_add(&r->batch, r->above, NULL, 0, &head, payload, bytes);
    if (!err) {
        *seq = ++r->seq;
        roll_credit_sent(&r->credit, r->seq, ROLL_FRAME_HEAD_BYTES + bytes);
    }
    return err;
}

bool roll_relay_has_room(struct roll_relay *r)
{
    return roll_credit_has(&r->credit) && roll_net_has_room(r->above);
}

void roll_relay_tell_unheard(struct roll_relay *r, const struct relay_child *child)
{
    struct roll_frame_sight sight = {.heard = 0};
    uint64_t seq;
    for (size_t i = 0; i < r->rings && r->welcomed; i++) {
        const struct relay_ring *ring = &r->ring[i];
        if (ring->child == child && ring->live) {
            struct roll_frame_head head = {.type = ROLL_FRAME_SIGHT, .stream = ring->stream};
            (void)roll_relay_send(r, head, &sight, sizeof(sight), &seq);
        }
    }
}

void roll_relay_tell_lost(struct roll_relay *r, struct relay_child *child, uint64_t stream)
{
    struct roll_frame_sight sight = {.heard = 0};
    struct roll_frame_head head = {.type = ROLL_FRAME_SIGHT, .stream = stream};
    if (child) {
        child->lost_ns = roll_mono_ns();
    }
    if (child && child->relay &&
        roll_net_send(child->socket, child->id, child->id_bytes, &head, &sight, sizeof(sight)) == ROLL_E_BUSY) {
        roll_relay_refuse(r, child, "it cannot be told that a ring is announced elsewhere");
    }
}

void roll_relay_welcome(struct roll_relay *r, struct relay_child *child, bool resync)
{
    json_t *json = json_pack("{s:b}", "resync", (int)resync);
    struct roll_frame_head head = {.type = ROLL_FRAME_WELCOME, .seq = resync ? 0 : child->hello_seq};
    if (json && r->policy[0]) {
        json_object_set_new(json, "policy", json_string(r->policy));
    }
    if (json) {
        (void)roll_net_send_json(child->socket, child->id, child->id_bytes, &head, json);
    }
    json_decref(json);
}

uint64_t roll_relay_own_number(struct relay_child *child, uint64_t above)
{
    while (child->passed_at < child->passed_used && child->passed[child->passed_at].above <= above) {
        child->passed_at++;
    }
    return child->passed_at < child->passed_used ? child->passed[child->passed_at].own - 1 : child->expected - 1;
}

struct relay_ring *roll_relay_ring_of(const struct roll_relay *r, uint64_t stream)
{
    uint32_t at = roll_map_get(&r->ring_at, stream);
    return at != ROLL_MAP_NONE ? &r->ring[at] : NULL;
}

uint64_t roll_relay_stream_in(const struct roll_relay *r, const struct relay_child *child, uint32_t run)
{
    for (size_t i = 0; i < r->rings; i++) {
        if (r->ring[i].child == child && r->ring[i].run == run) {
            return r->ring[i].stream;
        }
    }
    return 0;
}

size_t roll_relay_rings_in(const struct roll_relay *r, const struct relay_child *child, uint32_t run)
{
    size_t n = 0;
    for (size_t i = 0; i < r->rings; i++) {
        n += r->ring[i].child == child && r->ring[i].run == run;
    }
    return n;
}
