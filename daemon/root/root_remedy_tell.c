/*
 * root_remedy_tell.c: what agents and relays are told of what is switched, and what they are owed of it.
 *
 * Each change is sent when it is made. A peer that comes, or that had no room for a change, is told all that is
 * switched in the run: the question what a predecessor switched, the policy, then change by change. Of that a turn
 * sends as much as fits into half of the peer's queue, and the next one goes on behind it, because a run may have more
 * changes than a queue holds: to begin at the front each time would never come to an end, and to send as much as the
 * peer takes would fill the queues of the agents behind a relay. What cannot be sent meanwhile is told when all has
 * been told once more.
 *
 * Communicators that were cleared, and whose place in the list another one has, go first, as the root is the only one
 * to know of them: a page has room for as many communicators as the list.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/log.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <string.h>

#define TURN_FRAMES 256u                          /* a queue has room for twice as many (net.c) */
#define CHANGES     ((size_t)ROLL_ACTION_OFF + 1) /* of a switch: what is cleared, on, off */

static int send_change(struct roll_peer *peer, const struct roll_run *run, const struct roll_control_change *change)
{
    struct roll_frame_control control = {.change = *change, .restart = run->restart};
    memcpy(control.job, run->job, sizeof(control.job));
    struct roll_frame_head head = {.type = ROLL_FRAME_CONTROL};
    return roll_net_send(peer->at.socket, peer->at.id, peer->at.bytes, &head, &control, sizeof(control));
}

static int send_question(const struct roll_peer *peer, const struct roll_run *run)
{
    json_t *ask = json_pack("{s:s,s:s,s:I}", "op", "switches", "job", run->job, "restart", (json_int_t)run->restart);
    struct roll_frame_head head = {.type = ROLL_FRAME_ASK};
    int err = ask ? roll_net_send_json(peer->at.socket, peer->at.id, peer->at.bytes, &head, ask) : ROLL_E_NOMEM;
    json_decref(ask);
    return err;
}

/* Says why a peer cannot be told; of one whose queue is full, once until it has been told all. */
static void say(struct roll_peer *peer, int err)
{
    bool later = err == ROLL_E_BUSY;
    if (err && !(later && peer->owed_said)) {
        roll_log(ROLL_LOG_WARNING, "root: %s on %s cannot be told what is switched: %s", roll_peer_noun(peer),
                 peer->host,
                 later ? "it takes nothing from its queue, and is told all of it when it does" : roll_strerror(err));
    }
    peer->owed_said = peer->owed_said || later;
}

/* It has to be told all of this run. */
static void owe(struct roll_peer *peer, struct roll_peer_run *of)
{
    struct roll_owed *o = &of->owed;
    o->again = o->any && (o->begun || o->again);
    o->any = true;
    peer->owed = true;
}

void roll_remedy_send(roll_root_t *root, const struct roll_run *run, const struct roll_control_change *change)
{
    for (size_t i = 0; i < root->peers_used; i++) {
        struct roll_peer *peer = root->peers[i];
        struct roll_peer_run *of = roll_streams_run(peer, run);
        int err = send_change(peer, run, change);
        if (err == ROLL_E_BUSY && of) { /* else it is told when it announces a ring of the run */
            owe(peer, of);
        }
        say(peer, err == ROLL_E_BUSY && !of ? 0 : err);
    }
}

/* The question goes first: a policy that is told lets ranks take what a predecessor switched off. */
static int begin(struct roll_peer *peer, const struct roll_run *run)
{
    const struct roll_control_change c = {.action = ROLL_ACTION_POLICY, .mask = run->policy};
    int err = run->switches_known ? 0 : send_question(peer, run);
    return err || !run->policy_set ? err : send_change(peer, run, &c);
}

/* The change that comes next; false: all have been told. What was cleared is told, too: the page of a peer that did not
 * hear of it, or was not there, still has it. */
static bool next_change(const struct roll_run *run, struct roll_owed *o, struct roll_control_change *c)
{
    if (run->replaced_upto > o->replaced + ROLL_REPLACED_MOST) {
        o->replaced = run->replaced_upto - ROLL_REPLACED_MOST;
    }
    for (; o->replaced < run->replaced_upto; o->replaced++) {
        const struct roll_replaced *r = &run->replaced[o->replaced % ROLL_REPLACED_MOST];
        *c = (struct roll_control_change){.level = ROLL_LEVEL_GROUP, .mask = r->cleared, .comm_key = r->comm_key};
        if (c->mask) {
            return true;
        }
    }
    for (; o->next < run->switches_used * CHANGES; o->next++) {
        const struct roll_switch *s = &run->switches[o->next / CHANGES];
        const uint32_t mask[CHANGES] = {
            [ROLL_ACTION_CLEAR] = s->cleared, [ROLL_ACTION_ON] = s->on, [ROLL_ACTION_OFF] = s->off};
        *c = (struct roll_control_change){.level = s->level, .layer = s->layer, .comm_key = s->comm_key};
        c->action = (uint32_t)(o->next % CHANGES);
        c->mask = mask[c->action];
        if (c->mask) {
            return true;
        }
    }
    return false;
}

static void pass(const struct roll_run *run, struct roll_owed *o)
{
    if (o->replaced < run->replaced_upto) {
        o->replaced++;
    } else {
        o->next++;
    }
}

/* Goes on telling a peer of one run, with at most *room frames. 0: as far as that goes; else why it cannot be told. */
static int go_on(struct roll_peer *peer, struct roll_peer_run *of, unsigned *room)
{
    struct roll_owed *o = &of->owed;
    struct roll_control_change c;
    int err = 0;
    if (!o->begun) {
        err = begin(peer, of->run);
        o->begun = !err;
        *room -= 1;
    }
    while (!err && *room > 0 && next_change(of->run, o, &c)) {
        err = send_change(peer, of->run, &c);
        if (!err) {
            pass(of->run, o);
            *room -= 1;
        }
    }
    for (size_t i = 0; !err && *room > 0 && i < peer->used; i++) {
        struct roll_peer_stream *s = &peer->streams[i];
        if (s->run == of->run && s->unset) {
            err = roll_run_tell_settings(of->run, peer, s->stream);
            s->unset = err != 0;
            *room -= 1;
        }
    }
    if (!err && *room > 0) { /* else the next turn finds whether something is left */
        *o = (struct roll_owed){.any = o->again};
    }
    return err;
}

void roll_remedy_tell_owed(struct roll_peer *peer)
{
    unsigned room = TURN_FRAMES;
    int err = 0;
    peer->owed = false;
    for (size_t i = 0; i < peer->runs_used; i++) {
        struct roll_peer_run *of = &peer->runs[i];
        if (of->owed.any && !err && room > 0) {
            err = go_on(peer, of, &room);
        }
        peer->owed = peer->owed || of->owed.any;
    }
    say(peer, err);
    peer->owed_said = peer->owed_said && peer->owed;
}

void roll_remedy_tell(struct roll_peer *peer, const struct roll_run *run)
{
    struct roll_peer_run *of = roll_streams_run(peer, run);
    bool owed = peer->owed;
    if (of) {
        owe(peer, of);
    }
    if (of && !owed && !peer->relay) { /* else it is told in its turn */
        roll_remedy_tell_owed(peer);
    }
}
