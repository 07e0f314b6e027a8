/*
 * root.c: the root's loop: sockets, time, and the order of a turn.
 *
 * One thread: what has come is fed, then time passes, then acknowledgements, answers and verdicts go out. Several
 * threads were rejected: the engine takes millions of records a second on one core, and the order of frames is what
 * makes a trace repeatable.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/clock.h"
#include "daemon/base/dir.h"
#include "daemon/base/log.h"
#include "daemon/wire/doors.h"
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

#define BATCH    512             /* frames taken before time is looked at again */
#define BATCH_NS (50 * ROLL_MS)  /* and the time after which it is in any case: a question may take long to answer */
#define POLL_MS  10              /* a verdict waits longer than that anyway, for calls that could say more */
#define GUARD_NS (20 * ROLL_MS)  /* how often a root that is behind looks at what connections bring */
#define SHARE_NS (200 * ROLL_MS) /* between two looks at how much room each run has */
#define REST_MS  100 /* how long the loop sleeps at most: then peers, stacks and the figures are looked at */
#define LEAVE_NS (5000 * ROLL_MS)  /* a root that is to end waits so long for records, as a drain does */
#define WRITE_NS (10000 * ROLL_MS) /* and so long for a bundle about a finding */

#define NO_REPORT                                                                                                      \
    "this key is for looking and may not report: ranks and agents take one with the role node (`rollcall keygen "      \
    "--role node --name NAME DIR`)"

/* A bad frame is counted, answered and logged, at most once a second. */
static void bad_frame(roll_root_t *root, const struct roll_address *from, const char *why, uint64_t now)
{
    root->bad_frames++;
    if (now - root->bad_said_ns < 1000 * ROLL_MS && root->bad_frames > 1) {
        return;
    }
    root->bad_said_ns = now;
    roll_log(ROLL_LOG_WARNING, "root: a bad frame from a peer: %s (%llu so far)", why,
             (unsigned long long)root->bad_frames);
    json_t *json = json_pack("{s:s}", "error", why);
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
        bad_frame(root, from, roll_strerror(err), now);
        return;
    }
    if (frame.head.type != ROLL_FRAME_QUERY && (from->role.denied & ROLL_DENY_REPORT)) {
        bad_frame(root, from, NO_REPORT, now);
        return;
    }
    switch (frame.head.type) {
    case ROLL_FRAME_HELLO:
        roll_peers_hello(root, from, &frame, now);
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
        roll_peers_frame(root, from, &frame, raw, bytes, now);
        break;
    case ROLL_FRAME_ANSWER: /* an answer has no number among the agent's frames: nothing else is lost with it */
        roll_peers_answer(root, from, &frame);
        break;
    case ROLL_FRAME_QUERY:
        if (roll_guard_reads(&root->guard[from->socket == root->socket[1]], from->fd, from->id, from->bytes)) {
            roll_query(root, from, &frame);
        }
        break;
    default:
        bad_frame(root, from, roll_strerror(ROLL_E_UNSUPPORTED), now);
        break;
    }
}

/* loop */

/* Takes what waits on one socket, until it is BATCH frames or more, or has taken BATCH_NS: then as many as that count.
 * Returns how many. */
static int receive(roll_root_t *root, void *socket, struct roll_guard *guard)
{
    bool keyed = socket == root->socket[1]; /* of which libzmq knows who sends */
    uint64_t now = roll_mono_ns();
    int n = 0;
    while (n < BATCH) {
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
        n += !more;
        zmq_msg_close(&id);
        while (more) { /* one part is one frame; each part that is no frame is refused by itself */
            zmq_msg_init(&body);
            if (roll_net_recv(&body, socket) < 0) {
                zmq_msg_close(&body);
                break;
            }
            more = zmq_msg_more(&body);
            n++;
            roll_guard_took(guard, &body);
            from.fd = zmq_msg_get(&body, ZMQ_SRCFD);
            if (keyed && part == 0) {
                roll_role_of(&body, &from.role);
            }
            if (part++ < ROLL_NET_PARTS) {
                handle(root, &from, zmq_msg_data(&body), zmq_msg_size(&body), now);
            }
            zmq_msg_close(&body);
        }
        if (roll_mono_ns() - now > BATCH_NS) {
            return n > BATCH ? n : BATCH;
        }
    }
    return n;
}

static void look_at_connections(roll_root_t *root, bool behind)
{
    for (int i = 0; i < ROLL_ROOT_SOCKETS; i++) {
        unsigned closed = roll_guard_look(&root->guard[i], behind);
        root->bad_frames += closed;
        if (closed > 0) {
            roll_log(ROLL_LOG_WARNING,
                     "root: %u connection%s closed: a message without end, more than can be read, or answers "
                     "that are not",
                     closed, closed == 1 ? " is" : "s are");
        }
    }
    root->bad_frames += roll_doors_tell("root");
}

/* A thread of its own looks at them while the root is at work. */
static void watch_connections(roll_root_t *root)
{
    if (roll_guard_watch(&root->watch, root->guard, ROLL_ROOT_SOCKETS) != 0) {
        roll_log(ROLL_LOG_WARNING, "root: no thread can be had that looks at connections while the root is at work");
    }
}

static void tick(roll_root_t *root, uint64_t now)
{
    if (now - root->shared_ns >= SHARE_NS) {
        root->shared_ns = now;
        roll_room_share(root, now);
    }
    for (size_t i = 0; i < root->runs_used; i++) {
        struct roll_run *run = root->runs[i];
        size_t live = roll_engine_live(roll_feed_engine(run->feed));
        roll_digested_look(root, run, now, false);
        bool is_due = roll_root_late_is_due(root, run, live, roll_digested_waits(run), now);
        if (run->forgoes) {
            roll_peers_forgo(root, run);
        }
        if (is_due) {
            roll_run_tick(root, run, now, false);
        }
        roll_run_keep(run, now, false);
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

/* The root is to end: what the last digests left open is looked at once more, as long as agents may answer. Returns
 * whether records are on their way. */
static bool looks_on(roll_root_t *root, uint64_t now)
{
    bool waits = false;
    for (size_t i = 0; i < root->runs_used; i++) {
        waits = roll_digested_leave(root, root->runs[i], now) || waits;
    }
    return waits;
}

/* The last turn: the engine gives its last verdicts about jobs that have ended, and none about jobs that still run. */
static void finish(roll_root_t *root)
{
    uint64_t now = roll_mono_ns();
    for (size_t i = 0; i < root->runs_used; i++) {
        struct roll_run *run = root->runs[i];
        roll_digested_tell_left(run);
        roll_run_tick(root, run, now, !roll_run_live(run));
        roll_run_keep(run, now, true);
    }
    roll_peers_acknowledge(root, now);
    roll_push_verdicts(root);
}

/* When this run needs the loop, in ns from now, if nothing comes; 0: as soon as it may. */
static uint64_t run_wait_ns(const struct roll_run *run, uint64_t now)
{
    if (!run->seen || run->trace || roll_digested_waits(run)) {
        return 0;
    }
    uint64_t look = run->digested ? roll_digested_wait_ns(run, now) : UINT64_MAX;
    uint64_t tick = roll_feed_clock_wait_ns(&run->clock, now, roll_run_live(run));
    return look < tick ? look : tick;
}

/*
 * How long the loop may sleep if nothing comes: until the first thing that is due by time, within POLL_MS and REST_MS.
 * What comes wakes it at once, so a verdict is said as soon as before. A loop that wakes every POLL_MS takes five times
 * as much of a core where nothing happens.
 */
static long sleep_ms(const roll_root_t *root, uint64_t now, bool stops)
{
    uint64_t wait = REST_MS * ROLL_MS, acknowledge = roll_peers_wait_ns(root, now);
    if (stops || root->drains_used > 0) {
        return POLL_MS;
    }
    wait = acknowledge < wait ? acknowledge : wait;
    for (size_t i = 0; i < root->runs_used && wait > POLL_MS * ROLL_MS; i++) {
        uint64_t run = run_wait_ns(root->runs[i], now);
        wait = run < wait ? run : wait;
    }
    long ms = (long)((wait + ROLL_MS - 1) / ROLL_MS);
    return ms > POLL_MS ? ms : POLL_MS;
}

bool roll_root_run(roll_root_t *root)
{
    zmq_pollitem_t items[2 * ROLL_ROOT_SOCKETS + 1];
    struct roll_guard *guard[ROLL_ROOT_SOCKETS];
    int n = 0;
    for (int i = 0; i < ROLL_ROOT_SOCKETS; i++) {
        if (root->socket[i]) {
            guard[n / 2] = &root->guard[i];
            items[n++] = (zmq_pollitem_t){root->socket[i], 0, ZMQ_POLLIN, 0};
            items[n++] = (zmq_pollitem_t){root->monitor[i], 0, ZMQ_POLLIN, 0};
        }
    }
    int page = roll_root_page_fd(root), polled = n + (page >= 0); /* the page stands behind the sockets */
    items[n] = (zmq_pollitem_t){NULL, page, ZMQ_POLLIN, 0};
    uint64_t minute_ns = 0, looked_ns = 0, stop_ns = 0;
    bool writes = false;
    root->live_ns = roll_mono_ns();
    watch_connections(root);
    for (;;) {
        zmq_poll(items, polled, sleep_ms(root, roll_mono_ns(), stop_ns != 0 || atomic_load(root->o.stop)));
        int taken = 0;
        bool behind = false;
        roll_guard_turn(&root->watch);
        roll_root_late_turn(root, roll_mono_ns());
        for (int i = 0; i < n; i += 2) {
            int from = receive(root, items[i].socket, guard[i / 2]);
            taken += from;
            behind = behind || from >= BATCH;
            roll_net_monitor_read(items[i + 1].socket, "root", guard[i / 2], NULL);
        }
        uint64_t now = roll_mono_ns();
        roll_root_late_read(root, now, behind);
        (void)roll_memory_ebb(&root->ebb, behind, now);
        tick(root, now);
        roll_peers_acknowledge(root, now);
        roll_serve_drains(root, now);
        roll_push_verdicts(root);
        if (behind && now - looked_ns > GUARD_NS) {
            looked_ns = now;
            look_at_connections(root, true);
        }
        roll_root_page_answer(root);
        if (now - minute_ns > 100 * ROLL_MS) {
            minute_ns = now;
            roll_log_tick(false);
            look_at_connections(root, behind);
            roll_peers_look_after(root, now);
            roll_collect_tick(root, now);
            roll_sources_tick(root);
            writes = roll_incident_turn(root, now, stop_ns != 0);
            roll_root_metrics_refresh(root, now);
            roll_root_page_tell(root, now);
            bool kept = any_live(root) || (root->o.parent != 0 && getppid() == root->o.parent);
            root->live_ns = kept ? now : root->live_ns;
        }
        bool over = root->o.linger_s && now - root->live_ns > root->o.linger_s * (1000 * ROLL_MS);
        bool stops = atomic_load(root->o.stop) || over;
        if (stops && stop_ns == 0) {
            stop_ns = now;
            writes = roll_incident_turn(root, now, true);
        }
        if (writes && now - stop_ns < WRITE_NS && stops) {
            continue; /* the agents serve it, too */
        }
        if (stops && now - stop_ns < LEAVE_NS && looks_on(root, now)) {
            continue;
        }
        if (stops && root->o.agent_stop) {
            atomic_store(root->o.agent_stop, true);
        }
        bool agent_over = !root->o.agent_done || atomic_load(root->o.agent_done);
        if (stops && agent_over && taken == 0) {
            break;
        }
    }
    roll_guard_watch_end(&root->watch);
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
        if (roll_net_bind(socket, endpoint, root->o.beyond) != 0) {
            int e = errno;
            snprintf(why, why_size, "cannot listen on %s: %s", endpoint, zmq_strerror(e));
            return e == EADDRINUSE ? ROLL_E_BUSY : (e == EACCES ? ROLL_E_DENIED : ROLL_E_IO);
        }
        size_t size = sizeof(root->endpoint[i]);
        if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, root->endpoint[i], &size) != 0) {
            snprintf(root->endpoint[i], sizeof(root->endpoint[i]), "%s", endpoint);
        }
        root->socket_file[i] = roll_net_own_file(root->endpoint[i]);
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
            return err == ROLL_E_ARG ? ROLL_E_IO : err; /* the option is well, its place is not */
        }
    }
    if (root->o.incident_dir) {
        char reason[4096 + 128];
        int fd = -1, err = roll_dir_open(root->o.incident_dir, ROLL_DIR_MAKE, &fd, reason, sizeof(reason));
        if (err) {
            snprintf(why, why_size, "--incident-dir %.400s", reason);
            return err == ROLL_E_ARG ? ROLL_E_IO : err;
        }
        close(fd);
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
    root->begun_ns = roll_mono_ns();
    pthread_mutex_init(&root->snapshot_lock, NULL);
    for (int i = 0; i < ROLL_ROOT_SOCKETS; i++) {
        roll_guard_init(&root->guard[i], i == 1); /* the socket with keys */
    }
    int err = open_files(root, why, why_size);
    if (!err) {
        err = open_sockets(root, why, why_size);
    }
    if (!err) {
        err = roll_root_page_open(root, why, why_size);
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
    roll_page_destroy(&root->page);
    roll_collect_destroy(root);
    roll_stacks_destroy(root);
    roll_facts_destroy(root);
    roll_incident_destroy(root);
    for (int i = 0; i < ROLL_ROOT_SOCKETS; i++) {
        roll_guard_fini(&root->guard[i]);
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
    for (unsigned i = 0; i < root->o.listens; i++) {
        roll_net_leave_file(root->endpoint[i], root->socket_file[i]);
    }
    roll_tally_fini(&root->tally);
    roll_peers_fini(root);
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
    free(root->runs);
    free(root->subscribers);
    free(root->drains);
    free(root);
    *pointer = NULL;
}
