/*
 * root.c: the root's loop: sockets, agents, time.
 *
 * One thread. Agents number their frames; as long as the numbers follow each other, frames are fed; at the first gap (a
 * cut link, a restart on either side) the agent is asked to begin again, and is told per ring what is here already. So
 * nothing is taken twice or taken for lost. Several threads were rejected: the engine takes millions of records a
 * second on one core, and the order of frames is what makes a trace repeatable.
 */
#include "daemon/base/array.h"
#include "daemon/root/root_state.h"

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#define BATCH         512 /* messages taken before time is looked at again */
#define POLL_MS       5
#define ACK_NS        (20 * ROLL_MS)
#define ACK_RECORDS   1024 /* or so many records, an eighth of an agent's window */
#define RESYNC_NS     (200 * ROLL_MS)
#define SILENT_NS     ROLL_FEED_UNSEEN_NS /* an agent that says nothing for so long is gone */
#define HEARD_NS      (250 * ROLL_MS)     /* an agent that has not been heard for so long may have news that we lack */
#define FRESH_RECORDS 2048 /* a ring is up to date when at most so many of its records are on their way */
#define MAX_PEERS     65536

/* peers */

/* ZeroMQ numbers its routing ids, or the agent has chosen one: the checksum spreads both. */
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
    if (root->peers_used >= MAX_PEERS || ROLL_GROW(root->peers, root->peers_room, root->peers_used + 1) != 0) {
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
    for (size_t i = 0; i < root->peers_used; i++) {
        if (root->peers[i] == peer) {
            root->peers[i] = root->peers[--root->peers_used];
            free(peer->streams);
            free(peer);
            return;
        }
    }
}

static struct roll_peer_stream *find_stream(struct roll_peer *peer, uint64_t stream)
{
    for (size_t i = 0; i < peer->used; i++) {
        if (peer->streams[i].stream == stream) {
            return &peer->streams[i];
        }
    }
    return NULL;
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

/* The engine and the trace learn it; that they are heard again, the agent's next frames say. */
static void tell_unheard(roll_root_t *root, struct roll_peer *peer)
{
    struct roll_frame_sight sight = {.heard = 0};
    uint8_t raw[ROLL_FRAME_HEAD_BYTES + sizeof(sight)];
    for (size_t i = 0; i < peer->used; i++) {
        struct roll_frame_head head = {.type = ROLL_FRAME_SIGHT, .stream = peer->streams[i].stream};
        struct roll_frame frame;
        int64_t n = peer->streams[i].live ? roll_frame_make(&head, &sight, sizeof(sight), raw, sizeof(raw), &frame) : 0;
        if (n > 0) {
            (void)roll_run_frame(root, peer->streams[i].run, &frame, raw, (size_t)n);
        }
    }
}

/* Nothing is heard of this agent any more: its ranks that still ran are not heard, and shown as that by its name. */
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

/* A ring that another agent announces is that one's now. */
static void take_over(roll_root_t *root, const struct roll_peer *by, uint64_t stream)
{
    for (size_t i = root->peers_used; i-- > 0;) {
        struct roll_peer *peer = root->peers[i];
        struct roll_peer_stream *s = peer->gone && peer != by ? find_stream(peer, stream) : NULL;
        if (s) {
            *s = peer->streams[--peer->used];
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

static void send_ack(struct roll_peer *peer, struct roll_peer_stream *s, uint64_t now)
{
    struct roll_feed_stream view;
    if (!roll_feed_find(s->run->feed, s->stream, &view)) {
        return;
    }
    struct roll_frame_ack ack = {.next_ticket = view.next_ticket, .defs_offset = view.defs_offset};
    struct roll_frame_head head = {
        .type = ROLL_FRAME_ACK, .stream = s->stream, .seq = peer->expected - 1, .first = view.open_ticket};
    if (roll_net_send(peer->at.socket, peer->at.id, peer->at.bytes, &head, &ack, sizeof(ack)) == 0) {
        s->due = s->urgent = false;
        s->fed = 0;
        s->ack_ns = now;
    }
}

/* What was fed is in the trace file by now: say so. */
static void send_acks(roll_root_t *root, uint64_t now)
{
    for (size_t i = 0; i < root->peers_used; i++) {
        struct roll_peer *peer = root->peers[i];
        for (size_t k = 0; k < peer->used; k++) {
            struct roll_peer_stream *s = &peer->streams[k];
            if (s->due && (s->urgent || s->fed >= ACK_RECORDS || now - s->ack_ns > ACK_NS)) {
                send_ack(peer, s, now);
            }
        }
    }
}

/* frames of agents */

static void hello(roll_root_t *root, const struct roll_address *from, const struct roll_frame *frame, uint64_t now)
{
    json_t *json = roll_net_json(frame);
    struct roll_peer *peer = find_peer(root, from);
    bool new = peer == NULL;
    if (!json || (new && !(peer = add_peer(root, from)))) {
        json_decref(json);
        return;
    }
    const char *host = json_string_value(json_object_get(json, "host"));
    strncpy(peer->host, host ? host : "?", sizeof(peer->host) - 1);
    peer->pid = (uint32_t)json_integer_value(json_object_get(json, "pid"));
    json_decref(json);
    peer->synced = true;
    peer->gone = false;
    peer->expected = frame->head.seq + 1;
    peer->seen_ns = now;
    peer->used = 0;
    peer->drain_sent = 0;
    if (new) {
        roll_log(ROLL_LOG_INFO, "root: agent on %s (pid %u) is here", peer->host, peer->pid);
    }
    send_welcome(root, from, frame->head.seq, false);
}

static void ring(roll_root_t *root, struct roll_peer *peer, const struct roll_frame *frame, const void *raw,
                 size_t bytes)
{
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    struct roll_run *run;
    int err = roll_feed_run_of(frame, job, &restart);
    if (!err) {
        err = roll_run_of(root, job, restart, &run);
    }
    if (!err) {
        err = roll_run_frame(root, run, frame, raw, bytes);
    }
    if (!err) {
        err = ROLL_GROW(peer->streams, peer->room, peer->used + 1);
    }
    if (err) {
        root->refused_frames++;
        roll_log(ROLL_LOG_WARNING, "root: a ring of the agent on %s is refused: %s", peer->host, roll_strerror(err));
        return;
    }
    struct roll_peer_stream *s = find_stream(peer, frame->head.stream);
    if (!s) {
        s = &peer->streams[peer->used++];
        *s = (struct roll_peer_stream){.stream = frame->head.stream, .run = run};
        roll_remedy_resend(peer, run);
        roll_remedy_ask(peer, run);
        roll_run_tell_settings(run, peer, frame->head.stream);
        take_over(root, peer, frame->head.stream);
    }
    s->due = s->urgent = true;
    s->fresh = false;
}

/* About a process that has no ring: the note itself says of which run. */
static void note(roll_root_t *root, const struct roll_frame *frame, const void *raw, size_t bytes)
{
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    struct roll_run *run;
    int err = roll_feed_run_of(frame, job, &restart);
    if (!err) {
        err = roll_run_of(root, job, restart, &run);
    }
    if (!err) {
        err = roll_run_frame(root, run, frame, raw, bytes);
    }
    if (err) {
        root->refused_frames++;
    }
}

/* What a STATUS says about the ring's being up to date. */
static void note_status(struct roll_peer_stream *s, const struct roll_frame *frame)
{
    struct roll_frame_status status;
    struct roll_feed_stream view;
    memcpy(&status, frame->payload, sizeof(status));
    s->live = status.proc_state == ROLL_PROC_RUNNING || status.proc_state == ROLL_PROC_STOPPED;
    s->fresh =
        s->fresh || (roll_feed_find(s->run->feed, s->stream, &view) && view.next_ticket + FRESH_RECORDS >= status.head);
}

static void data(roll_root_t *root, struct roll_peer *peer, const struct roll_frame *frame, const void *raw,
                 size_t bytes)
{
    struct roll_peer_stream *s = find_stream(peer, frame->head.stream);
    if (!s) {
        root->refused_frames++;
        return;
    }
    int err = roll_run_frame(root, s->run, frame, raw, bytes);
    if (err && root->refused_frames++ == 0) {
        roll_log(ROLL_LOG_WARNING, "root: a frame of the agent on %s is refused: %s (said once, counted)", peer->host,
                 roll_strerror(err));
    }
    s->due = true;
    s->fed += frame->head.count;
    if (frame->head.type == ROLL_FRAME_STATUS) {
        s->urgent = true;
        note_status(s, frame);
    }
    root->batches += frame->head.type == ROLL_FRAME_RECORDS;
}

static void agent_frame(roll_root_t *root, const struct roll_address *from, const struct roll_frame *frame,
                        const void *raw, size_t bytes, uint64_t now)
{
    struct roll_peer *peer = find_peer(root, from);
    if (!peer || !peer->synced || frame->head.seq != peer->expected) {
        if (!peer) { /* an agent that knew our predecessor */
            send_welcome(root, from, 0, true);
        } else if (now - peer->resync_ns > RESYNC_NS) {
            peer->synced = false;
            peer->resync_ns = now;
            send_welcome(root, from, 0, true);
        }
        return;
    }
    peer->expected++;
    peer->seen_ns = now;
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
        for (size_t i = 0; i < peer->used; i++) { /* acknowledgements may have been lost */
            peer->streams[i].due = peer->streams[i].urgent = true;
        }
        break;
    case ROLL_FRAME_BYE:
        roll_log(ROLL_LOG_INFO, "root: agent on %s (pid %u) leaves", peer->host, peer->pid);
        lose_peer(root, peer);
        break;
    default:
        data(root, peer, frame, raw, bytes);
        break;
    }
}

/* A bad frame is counted, answered and logged, at most once a second. */
static void bad_frame(roll_root_t *root, const struct roll_address *from, int err, uint64_t now)
{
    root->bad_frames++;
    if (now - root->bad_said_ns < 1000 * ROLL_MS && root->bad_frames > 1) {
        return;
    }
    root->bad_said_ns = now;
    roll_log(ROLL_LOG_WARNING, "root: a bad frame from a peer: %s (%llu so far)", roll_strerror(err),
             (unsigned long long)root->bad_frames);
    json_t *json = json_pack("{s:s}", "error", roll_strerror(err));
    struct roll_frame_head head = {.type = ROLL_FRAME_ERROR};
    if (json) {
        roll_net_send_json(from->socket, from->id, from->bytes, &head, json);
    }
    json_decref(json);
}

static void handle(roll_root_t *root, const struct roll_address *from, const void *raw, size_t bytes, uint64_t now)
{
    struct roll_frame frame;
    int err = roll_frame_decode(raw, bytes, &frame, NULL);
    if (err) {
        bad_frame(root, from, err, now);
        return;
    }
    switch (frame.head.type) {
    case ROLL_FRAME_HELLO:
        hello(root, from, &frame, now);
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
        agent_frame(root, from, &frame, raw, bytes, now);
        break;
    case ROLL_FRAME_ANSWER: /* not in the numbering of the agent's frames: nothing is lost with it but an answer */
        if (find_peer(root, from)) {
            roll_stacks_answer(root, &frame);
            roll_facts_answer(root, &frame);
            roll_remedy_answer(root, find_peer(root, from), &frame);
        }
        break;
    case ROLL_FRAME_QUERY:
        roll_query(root, from, &frame);
        break;
    default:
        bad_frame(root, from, ROLL_E_UNSUPPORTED, now);
        break;
    }
}

/* loop */

/* Takes what waits on one socket, at most BATCH messages. Returns how many. */
static int receive(roll_root_t *root, void *socket)
{
    uint64_t now = roll_mono_ns();
    int n = 0;
    for (; n < BATCH; n++) {
        struct roll_address from = {.socket = socket};
        zmq_msg_t id, body;
        zmq_msg_init(&id);
        if (roll_net_recv(&id, socket) < 0) {
            zmq_msg_close(&id);
            break;
        }
        from.bytes = zmq_msg_size(&id) < ROLL_ID_BYTES ? zmq_msg_size(&id) : ROLL_ID_BYTES;
        memcpy(from.id, zmq_msg_data(&id), from.bytes);
        int more = zmq_msg_more(&id), part = 0;
        zmq_msg_close(&id);
        while (more) { /* one part is one frame; whatever else a peer sends is refused part by part */
            zmq_msg_init(&body);
            if (roll_net_recv(&body, socket) < 0) {
                zmq_msg_close(&body);
                break;
            }
            more = zmq_msg_more(&body);
            if (part++ < 16) {
                handle(root, &from, zmq_msg_data(&body), zmq_msg_size(&body), now);
            }
            zmq_msg_close(&body);
        }
    }
    return n;
}

/*
 * Are all live ranks of the run (their number: live) seen, and is all that they sent here? While we are behind
 * ourselves they are not: what waits in our own sockets is news that has come and has not been read. What records prove
 * by themselves is said all the same.
 */
static bool all_seen(const roll_root_t *root, const struct roll_run *run, size_t live, uint64_t now, bool behind)
{
    size_t seen = 0;
    for (size_t i = 0; i < root->peers_used; i++) {
        const struct roll_peer *peer = root->peers[i];
        for (size_t k = 0; k < peer->used && now - peer->seen_ns < HEARD_NS; k++) {
            const struct roll_peer_stream *s = &peer->streams[k];
            seen += s->run == run && s->live && s->fresh;
        }
    }
    return seen >= live && !behind;
}

static void tick(roll_root_t *root, uint64_t now, bool behind)
{
    for (size_t i = 0; i < root->runs_used; i++) {
        struct roll_run *run = root->runs[i];
        struct roll_engine_summary summary;
        roll_engine_summary(roll_feed_engine(run->feed), &summary);
        roll_feed_clock_see(&run->clock, now, all_seen(root, run, summary.sources_live, now, behind));
        if (roll_feed_clock_is_due(&run->clock, now, summary.sources_live > 0)) {
            roll_run_tick(root, run, now, false);
        }
        roll_run_keep(run, now, false);
    }
}

static void look_after_peers(roll_root_t *root, uint64_t now)
{
    for (size_t i = root->peers_used; i-- > 0;) {
        struct roll_peer *peer = root->peers[i];
        if (!peer->gone && now - peer->seen_ns > SILENT_NS) {
            roll_log(ROLL_LOG_WARNING,
                     "root: agent on %s (pid %u) has been silent for 10 s; its ranks are not seen any more", peer->host,
                     peer->pid);
            lose_peer(root, peer);
        }
    }
}

static bool any_live(const roll_root_t *root)
{
    for (size_t i = 0; i < root->runs_used; i++) {
        if (roll_run_live(root->runs[i])) {
            return true;
        }
    }
    return false;
}

/* The last turn: whole jobs get their last word, unfinished ones do not. */
static void finish(roll_root_t *root)
{
    uint64_t now = roll_mono_ns();
    for (size_t i = 0; i < root->runs_used; i++) {
        struct roll_run *run = root->runs[i];
        roll_run_tick(root, run, now, !roll_run_live(run));
        roll_run_keep(run, now, true);
    }
    send_acks(root, now);
    roll_push_verdicts(root);
}

bool roll_root_run(roll_root_t *root)
{
    zmq_pollitem_t items[2 * ROLL_ROOT_SOCKETS];
    int n = 0;
    for (int i = 0; i < ROLL_ROOT_SOCKETS; i++) {
        if (root->socket[i]) {
            items[n++] = (zmq_pollitem_t){root->socket[i], 0, ZMQ_POLLIN, 0};
            items[n++] = (zmq_pollitem_t){root->monitor[i], 0, ZMQ_POLLIN, 0};
        }
    }
    uint64_t minute_ns = 0;
    root->live_ns = roll_mono_ns();
    for (;;) {
        zmq_poll(items, n, POLL_MS);
        int taken = 0;
        bool behind = false;
        for (int i = 0; i < n; i += 2) {
            int from = receive(root, items[i].socket);
            taken += from;
            behind = behind || from == BATCH;
            roll_net_monitor_read(items[i + 1].socket, "root");
        }
        uint64_t now = roll_mono_ns();
        tick(root, now, behind);
        send_acks(root, now);
        roll_serve_drains(root, now);
        roll_push_verdicts(root);
        if (now - minute_ns > 100 * ROLL_MS) {
            minute_ns = now;
            look_after_peers(root, now);
            roll_stacks_tick(root, now);
            roll_root_metrics_refresh(root, now);
            bool kept = any_live(root) || (root->o.parent != 0 && getppid() == root->o.parent);
            root->live_ns = kept ? now : root->live_ns;
        }
        bool over = root->o.linger_s && now - root->live_ns > root->o.linger_s * (1000 * ROLL_MS);
        if ((atomic_load(root->o.stop) || over) && root->o.agent_stop) {
            atomic_store(root->o.agent_stop, true);
        }
        bool agent_over = !root->o.agent_done || atomic_load(root->o.agent_done);
        if ((atomic_load(root->o.stop) || over) && agent_over && taken == 0) {
            break;
        }
    }
    finish(root);
    return roll_tally_findings(&root->tally) > 0;
}

/* life */

static int open_sockets(roll_root_t *root, char *why, size_t why_size)
{
    bool wanted[ROLL_ROOT_SOCKETS] = {false};
    for (unsigned i = 0; i < root->o.listens; i++) {
        wanted[root->o.keys && roll_net_takes_keys(root->o.listen[i])] = true;
    }
    for (int i = 0; i < ROLL_ROOT_SOCKETS; i++) {
        if (!wanted[i]) {
            continue;
        }
        root->socket[i] = roll_net_router(root->o.context, i ? root->o.keys : NULL);
        root->monitor[i] =
            root->socket[i] ? roll_net_monitor(root->o.context, root->socket[i], i ? "curve" : "plain") : NULL;
        if (!root->monitor[i]) {
            snprintf(why, why_size, "cannot make a socket: %s", zmq_strerror(errno));
            return ROLL_E_IO;
        }
    }
    for (unsigned i = 0; i < root->o.listens; i++) {
        const char *endpoint = root->o.listen[i];
        void *socket = root->socket[root->o.keys && roll_net_takes_keys(endpoint)];
        if (roll_net_bind(socket, endpoint) != 0) {
            int e = errno;
            snprintf(why, why_size, "cannot listen on %s: %s", endpoint, zmq_strerror(e));
            return e == EADDRINUSE ? ROLL_E_BUSY : (e == EACCES ? ROLL_E_DENIED : ROLL_E_ARG);
        }
        size_t size = sizeof(root->endpoint[i]);
        if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, root->endpoint[i], &size) != 0) {
            snprintf(root->endpoint[i], sizeof(root->endpoint[i]), "%s", endpoint);
        }
        if (strncmp(root->endpoint[i], "ipc://", 6) == 0) {
            chmod(root->endpoint[i] + 6, 0600);
        }
    }
    return 0;
}

static int open_files(roll_root_t *root, char *why, size_t why_size)
{
    if (root->o.json_path) {
        root->json_fd = open(root->o.json_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        if (root->json_fd < 0) {
            snprintf(why, why_size, "--json %s: %s", root->o.json_path, strerror(errno));
            return ROLL_E_IO;
        }
    }
    if (root->o.trace_dir) {
        char reason[4096 + 128];
        int err = roll_segment_dir(root->o.trace_dir, reason, sizeof(reason));
        if (err) {
            snprintf(why, why_size, "--trace %.400s", reason);
            return err;
        }
    }
    return 0;
}

int roll_root_new(const struct roll_root_options *options, roll_root_t **out, char *why, size_t why_size)
{
    roll_root_t *root = calloc(1, sizeof(*root));
    if (!root) {
        snprintf(why, why_size, "%s", roll_strerror(ROLL_E_NOMEM));
        return ROLL_E_NOMEM;
    }
    root->o = *options;
    root->json_fd = -1;
    root->policy = options->policy;
    root->policy_set = options->policy_set;
    root->start_time = (double)roll_real_ns() * 1e-9;
    pthread_mutex_init(&root->snapshot_lock, NULL);
    int err = open_files(root, why, why_size);
    if (!err) {
        err = open_sockets(root, why, why_size);
    }
    if (!err) {
        err = roll_root_metrics_open(root, why, why_size);
    }
    if (err) {
        roll_root_destroy(&root);
        return err;
    }
    *out = root;
    return 0;
}

const char *roll_root_endpoint(const roll_root_t *root, unsigned i)
{
    return i < root->o.listens ? root->endpoint[i] : NULL;
}

void roll_root_destroy(roll_root_t **pointer)
{
    roll_root_t *root = *pointer;
    if (!root) {
        return;
    }
    roll_metrics_destroy(&root->metrics);
    roll_stacks_destroy(root);
    roll_facts_destroy(root);
    for (int i = 0; i < ROLL_ROOT_SOCKETS; i++) {
        if (root->socket[i]) {
            zmq_socket_monitor(root->socket[i], NULL, 0);
        }
        if (root->monitor[i]) {
            zmq_close(root->monitor[i]);
        }
        if (root->socket[i]) {
            zmq_close(root->socket[i]);
        }
    }
    roll_tally_fini(&root->tally);
    while (root->peers_used > 0) {
        drop_peer(root, root->peers[0]);
    }
    for (size_t i = 0; i < root->runs_used; i++) {
        roll_run_destroy(&root->runs[i]);
    }
    for (size_t i = 0; i < root->subscribers_used; i++) {
        roll_subscriber_fini(&root->subscribers[i]);
    }
    if (root->json_fd >= 0) {
        close(root->json_fd);
    }
    pthread_mutex_destroy(&root->snapshot_lock);
    free(root->peers);
    free(root->runs);
    free(root->subscribers);
    free(root->drains);
    free(root);
    *pointer = NULL;
}
