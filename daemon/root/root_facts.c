/*
 * root_facts.c: when a call does not complete, the agents of its ranks are asked what their nodes know.
 *
 * The answers become NOTE frames of the run: the notes go into its trace and to the engine like any other frame, so
 * that a replay says the same. A question is forgotten after a minute; an answer that comes later, or to no question,
 * is dropped.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define QUESTIONS 16u
#define KEPT_NS   (60000 * ROLL_MS)
#define BACK_S    120 /* how far back the kernel's log matters, before the call was made */

struct question {
    uint64_t id, run, verdict, asked_ns;
};

struct roll_root_facts {
    struct question list[QUESTIONS]; /* a ring */
    uint64_t last_id;
};

void roll_facts_destroy(roll_root_t *root)
{
    free(root->facts);
    root->facts = NULL;
}

/* Does this peer serve a rank of the set in this run? */
static bool serves(const struct roll_peer *peer, const struct roll_run *run, const struct roll_rankset *ranks)
{
    struct roll_feed_stream view;
    for (size_t i = 0; i < peer->used && !peer->gone; i++) {
        if (peer->streams[i].run == run && roll_feed_find(run->feed, peer->streams[i].stream, &view) &&
            view.world_rank >= 0 && roll_rankset_has(ranks, (uint32_t)view.world_rank)) {
            return true;
        }
    }
    return false;
}

/* Collects all ranks of the verdict: those that wait, and those of its sides. */
static void ranks_of(const struct roll_verdict *verdict, struct roll_rankset *out)
{
    for (uint32_t i = 0; i < verdict->sides; i++) {
        roll_rankset_union(out, &verdict->side[i].ranks);
    }
    roll_rankset_union(out, &verdict->waiting);
}

static int64_t age_s(const struct roll_verdict *verdict)
{
    int64_t at = (int64_t)verdict->event_ns, now = (int64_t)roll_real_ns();
    int64_t age = at > 0 && at < now ? (now - at) / 1000000000 : 0;
    return (age < 3600 ? age : 3600) + BACK_S;
}

void roll_facts_suspect(roll_root_t *root, struct roll_run *run, const struct roll_verdict *verdict)
{
    if (verdict->code != ROLL_VERDICT_COLLECTIVE_STUCK || !roll_verdict_is_finding(verdict) ||
        verdict->supersedes != 0 || root->peers_used == 0) {
        return;
    }
    if (!root->facts && !(root->facts = calloc(1, sizeof(*root->facts)))) {
        return;
    }
    struct question *q = &root->facts->list[++root->facts->last_id % QUESTIONS];
    *q = (struct question){
        .id = root->facts->last_id, .run = run->id, .verdict = verdict->number, .asked_ns = roll_mono_ns()};
    json_t *ask = json_pack("{s:s, s:I}", "op", "facts", "back_s", (json_int_t)age_s(verdict));
    struct roll_rankset ranks = {0};
    ranks_of(verdict, &ranks);
    for (size_t i = 0; ask && i < root->peers_used; i++) {
        const struct roll_peer *peer = root->peers[i];
        struct roll_frame_head head = {.type = ROLL_FRAME_ASK, .seq = q->id};
        if (serves(peer, run, &ranks)) {
            int err = roll_net_send_json(peer->at.socket, peer->at.id, peer->at.bytes, &head, ask);
            if (err) {
                roll_log(ROLL_LOG_WARNING, "root: the %s on %s cannot be asked what its node knows: %s",
                         roll_peer_noun(peer), peer->host, roll_strerror(err));
            }
        }
    }
    roll_rankset_fini(&ranks);
    json_decref(ask);
}

/* Feeds the answer to trace and engine, as a NOTE of the run. */
static int keep(roll_root_t *root, struct roll_run *run, const struct question *q, const json_t *answer)
{
    json_t *host = json_object_get(answer, "host"), *facts = json_object_get(answer, "facts");
    json_t *more = json_object_get(answer, "more");
    json_t *note = json_pack("{s:s, s:I, s:s, s:I, s:O, s:O, s:I}", "note", "node-facts", "verdict",
                             (json_int_t)q->verdict, "job", run->job, "restart", (json_int_t)run->restart, "host", host,
                             "facts", facts, "more", json_integer_value(more));
    char *text = note ? json_dumps(note, JSON_COMPACT) : NULL;
    size_t bytes = text ? strlen(text) : 0, room = bytes + ROLL_FRAME_HEAD_BYTES;
    uint8_t *raw = text && bytes <= ROLL_ROOT_FACTS_BYTES ? malloc(room) : NULL;
    struct roll_frame_head head = {.type = ROLL_FRAME_NOTE};
    struct roll_frame frame;
    int err = text && bytes > ROLL_ROOT_FACTS_BYTES ? ROLL_E_SIZE : ROLL_E_NOMEM;
    int64_t n = raw ? roll_frame_make(&head, text, bytes, raw, room, &frame) : err;
    err = n < 0 ? (int)n : roll_run_frame(root, run, &frame, raw, (size_t)n);
    free(raw);
    free(text);
    json_decref(note);
    return err;
}

void roll_facts_answer(roll_root_t *root, const struct roll_frame *frame)
{
    json_t *json = root->facts ? roll_net_json(frame) : NULL;
    const char *op = json_string_value(json_object_get(json, "op"));
    const struct question *q = root->facts ? &root->facts->list[frame->head.seq % QUESTIONS] : NULL;
    bool ours = op && strcmp(op, "facts") == 0 && q->id != 0 && q->id == frame->head.seq &&
                roll_mono_ns() - q->asked_ns < KEPT_NS && json_is_string(json_object_get(json, "host")) &&
                json_is_array(json_object_get(json, "facts"));
    for (size_t i = 0; ours && i < root->runs_used; i++) {
        if (root->runs[i]->id == q->run) {
            root->refused_frames += keep(root, root->runs[i], q, json) != 0;
            break;
        }
    }
    json_decref(json);
}
