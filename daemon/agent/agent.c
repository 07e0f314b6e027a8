/*
 * agent.c: the agent's loop.
 *
 * One thread polls everything: the socket to the root, inotify on the directory, a pidfd per rank, and, every few
 * milliseconds, the rings themselves. A doorbell from the ranks was rejected: it would put a system call into every
 * NCCL call. The root may be away for any time: only cursors are kept here, no records, and the ranks never notice.
 */
#include "daemon/agent/agent.h"

#include "daemon/agent/agent_control.h"
#include "daemon/agent/agent_facts.h"
#include "daemon/agent/agent_ring.h"
#include "daemon/agent/agent_sight.h"
#include "daemon/agent/agent_stack.h"
#include "daemon/agent/agent_trace.h"
#include "daemon/agent/agent_unseen.h"
#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/json.h"
#include "daemon/base/lock.h"
#include "daemon/base/log.h"
#include "daemon/wire/net.h"
#include "trace/err.h"
#include "trace/ident.h"
#include "trace/pystacks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#define BUSY_MS      2                /* between two looks at the rings while something moves */
#define IDLE_MS      10               /* between two looks at most, when nothing moves */
#define RESCAN_NS    (1000 * ROLL_MS) /* the directory is listed this often, because inotify can overflow */
#define HEARTBEAT_NS (100 * ROLL_MS)  /* the root stops its clock for a run whose agents it does not hear */
#define HELLO_NS     (3000 * ROLL_MS)
#define CONTROL_NS   (100 * ROLL_MS)                /* how often agent_seen_ns of the control pages is set */
#define STOP_NS      (1500 * ROLL_MS)               /* longest time for an orderly exit */
#define KEEP_NS      (2000 * ROLL_MS)               /* a finished ring waits this long for its launcher's exit status */
#define OLD_RING_NS  (UINT64_C(86400000) * ROLL_MS) /* rings of an older job are removed after a day */
#define MAX_POLLED   256
#define FIXED_POLLED 4

struct bad_file { /* a ring that could not be read, which is logged once. The name counts too: a new file may get the
                     number of a removed one */
    dev_t dev;
    ino_t ino;
    char *path;
};

struct agent {
    const struct roll_agent_options *o;
    void *socket, *monitor;
    int inotify;
    uint64_t seq;
    bool welcomed;
    uint64_t hello_seq, hello_ns, heartbeat_ns, rescan_ns, control_ns, live_ns, start_ns;
    bool said_unreachable, said_connected, said_short;
    bool rescan;
    uint64_t drain; /* number of the drain in progress; 0 = none */
    uint64_t progress;
    struct roll_agent_ring **rings;
    size_t used, room;
    struct bad_file *bad;
    size_t bad_used, bad_room;
    struct roll_agent_controls controls;
    roll_agent_stacks_t *stacks;
    roll_agent_facts_t *facts;
    roll_agent_trace_t *trace; /* NULL = none */
    roll_unseen_t *unseen;     /* NULL without memory */
    roll_agent_sight_t *sight; /* NULL without memory */
    struct pollfd *ended;      /* room for one process per ring */
    size_t ended_room;
    uint8_t *buffer;
    char host[ROLL_NAME_BYTES];
};

/* lock */

static void lock_path(const char *dir, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/agent.lock", dir);
}

int roll_agent_lock(const char *dir, int *out, int *pid)
{
    char path[PATH_MAX];
    lock_path(dir, path);
    return roll_lock_take(path, out, pid);
}

void roll_agent_unlock(const char *dir, int *fd)
{
    char path[PATH_MAX];
    lock_path(dir, path);
    roll_lock_leave(path, fd);
}

/* frames out */

static int send_frame(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    struct agent *a = ctx;
    head.seq = a->seq + 1;
    int err = roll_net_send(a->socket, NULL, 0, &head, payload, bytes);
    if (!err) {
        a->seq++;
        *seq = a->seq;
    }
    return err;
}

static void send_hello(struct agent *a, uint64_t now)
{
    a->welcomed = false;
    a->hello_ns = now;
    roll_agent_stacks_forget(a->stacks); /* the root asks its questions again in the new conversation */
    roll_agent_facts_forget(a->facts);
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

static void send_heartbeat(struct agent *a, uint64_t token)
{
    struct roll_frame_head head = {.type = ROLL_FRAME_HEARTBEAT, .first = token, .count = 0};
    uint64_t seq;
    send_frame(a, head, NULL, 0, &seq);
}

/* rings */

static bool known(const struct agent *a, const char *path, const struct stat *st)
{
    for (size_t i = 0; i < a->used; i++) {
        if (a->rings[i]->ino == st->st_ino && a->rings[i]->dev == st->st_dev) {
            return true;
        }
    }
    for (size_t i = 0; i < a->bad_used; i++) {
        if (a->bad[i].ino == st->st_ino && a->bad[i].dev == st->st_dev && strcmp(a->bad[i].path, path) == 0) {
            return true;
        }
    }
    return false;
}

static void remember_bad(struct agent *a, const char *path, const struct stat *st)
{
    char *name = strdup(path);
    if (!name) {
        return;
    }
    if (ROLL_GROW(a->bad, a->bad_room, a->bad_used + 1) != 0) {
        free(name);
        return;
    }
    a->bad[a->bad_used++] = (struct bad_file){st->st_dev, st->st_ino, name};
}

static int add_ring(struct agent *a, struct roll_agent_ring *ring)
{
    int err = ROLL_GROW(a->rings, a->room, a->used + 1);
    if (err) {
        return err;
    }
    a->rings[a->used++] = ring;
    const struct roll_ring_header *h = ring->map.header;
    roll_agent_controls_need(&a->controls, a->o->dir, h->job, h->restart, a->o->policy);
    return 0;
}

static void open_ring(struct agent *a, const char *path, const struct stat *st)
{
    struct roll_agent_ring *ring = NULL;
    int err = roll_agent_ring_new(path, &ring);
    if (err == ROLL_E_LIMIT ||
        err == ROLL_E_NOMEM) { /* our limits, not the ring, are the reason: the next scan tries again */
        if (!a->said_short) {
            a->said_short = true;
            roll_log(ROLL_LOG_WARNING, "agent: %s: %s; rings wait until there is more (ulimit -n, ulimit -v)", path,
                     roll_strerror(err));
        }
        return;
    }
    if (err) {
        remember_bad(a, path, st);
        roll_log(ROLL_LOG_WARNING, "agent: %s: %s; this ring is ignored%s", path, roll_strerror(err),
                 err == ROLL_E_VERSION ? ": use librollcall.so and rollcalld of the same release" : "");
        return;
    }
    uint64_t age;
    if (roll_agent_ring_stale(ring, &age)) {
        if (age > OLD_RING_NS) {
            unlink(path);
        } else {
            remember_bad(a, path, st);
            roll_log(ROLL_LOG_INFO, "agent: %s: left by an older job, not streamed (rollcall analyze reads it)", path);
        }
        roll_agent_ring_destroy(&ring);
        return;
    }
    if (add_ring(a, ring) != 0) {
        roll_agent_ring_destroy(&ring);
    } else if (a->trace) {
        roll_agent_trace_add(a->trace, ring);
    }
}

static void scan(struct agent *a, uint64_t now)
{
    a->rescan = false;
    a->rescan_ns = now;
    DIR *d = opendir(a->o->dir);
    if (!d) {
        return;
    }
    struct dirent *entry;
    while ((entry = readdir(d)) != NULL) {
        size_t n = strlen(entry->d_name);
        struct stat st;
        char path[PATH_MAX];
        if (n < 6 || strcmp(entry->d_name + n - 5, ".ring") != 0 || entry->d_name[0] == '.') {
            continue;
        }
        snprintf(path, sizeof(path), "%s/%s", a->o->dir, entry->d_name);
        if (lstat(path, &st) == 0 && S_ISREG(st.st_mode) && !known(a, path, &st)) {
            open_ring(a, path, &st);
        }
    }
    closedir(d);
}

/* Whether another ring of this (job, restart) exists besides number `but`. */
static bool job_in_use(const struct agent *a, size_t but)
{
    const struct roll_ring_header *h = a->rings[but]->map.header;
    for (size_t i = 0; i < a->used; i++) {
        const struct roll_ring_header *other = a->rings[i]->map.header;
        if (i != but && other->restart == h->restart && strncmp(other->job, h->job, sizeof(h->job)) == 0) {
            return true;
        }
    }
    return false;
}

/* Removes the announcement of Python stacks (*.pystacks) that a killed process could not remove itself. */
static void remove_announcement(const struct agent *a, const struct roll_agent_ring *ring)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/" ROLL_PYSTACKS_NAME, a->o->dir, (int)ring->map.header->pid);
    unlink(path);
}

static void drop_ring(struct agent *a, size_t i)
{
    struct roll_agent_ring *ring = a->rings[i];
    if (a->trace) {
        roll_agent_trace_drop(a->trace, ring, roll_mono_ns());
    }
    unlink(ring->path);
    if (!job_in_use(a, i)) {
        roll_agent_controls_drop(&a->controls, ring->map.header->job, ring->map.header->restart);
    }
    roll_agent_ring_destroy(&a->rings[i]);
    a->rings[i] = a->rings[--a->used];
}

/* Removes rings whose process ended in good order, when the root has all of their records. Rings of dead processes stay
 * as evidence. */
static void clean(struct agent *a, uint64_t now, bool leaving)
{
    for (size_t i = a->used; i-- > 0;) {
        struct roll_agent_ring *ring = a->rings[i];
        if (ring->gone && !ring->unannounced) {
            ring->unannounced = true;
            remove_announcement(a, ring);
        }
        bool patient = !leaving && ring->status.exit_status == ROLL_EXIT_UNKNOWN && now - ring->gone_ns < KEEP_NS;
        if (ring->gone && !patient && ring->status.proc_state == ROLL_PROC_FINISHED && roll_agent_ring_settled(ring)) {
            drop_ring(a, i);
        }
    }
}

/* frames in */

static void welcome(struct agent *a, const struct roll_frame *frame, uint64_t now)
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
        send_hello(a, now);
        return;
    }
    if (frame->head.seq != a->hello_seq || a->welcomed) {
        return;
    }
    a->welcomed = true;
    if (!a->said_connected || a->said_unreachable) {
        roll_log(ROLL_LOG_INFO, "agent: connected to %s", a->o->endpoint);
    }
    a->said_connected = true;
    a->said_unreachable = false;
    roll_unseen_again(a->unseen);
    for (size_t i = 0; i < a->used; i++) {
        a->rings[i]->link = ROLL_LINK_NEW;
    }
}

static void begin_drain(struct agent *a, uint64_t token, uint64_t now)
{
    scan(a, now);
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
    const struct agent *a = ctx;
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
static void settings(struct agent *a, const struct roll_frame *frame, uint64_t now)
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

static void handle(struct agent *a, const struct roll_frame *frame, uint64_t now)
{
    switch (frame->head.type) {
    case ROLL_FRAME_WELCOME:
        welcome(a, frame, now);
        break;
    case ROLL_FRAME_ACK:
        for (size_t i = 0; i < a->used; i++) {
            if (a->rings[i]->map.header->epoch == frame->head.stream) {
                roll_agent_ring_ack(a->rings[i], frame);
            }
        }
        break;
    case ROLL_FRAME_CONTROL:
        roll_agent_controls_apply(&a->controls, frame);
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
        roll_agent_controls_ask(&a->controls, frame, a->socket);
        break;
    case ROLL_FRAME_ERROR:
        roll_log(ROLL_LOG_WARNING, "agent: the root refuses a frame: %.*s",
                 (int)(frame->head.payload < 400 ? frame->head.payload : 400), (const char *)frame->payload);
        break;
    default:
        break; /* a newer root may send other types */
    }
}

static void receive(struct agent *a, uint64_t now)
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

/* loop */

static void process_ended(struct roll_agent_ring *ring, uint64_t now)
{
    close(ring->pidfd);
    ring->pidfd = -1;
    ring->gone = true;
    ring->gone_ns = now;
    ring->gone_head = roll_agent_ring_head(ring);
}

/* Finds all processes that have ended, in one call, because their rings are of an earlier moment. */
static void look_for_ended(struct agent *a, uint64_t now)
{
    if (ROLL_GROW(a->ended, a->ended_room, a->used) != 0) {
        return; /* the loop's own poll finds most of them */
    }
    for (size_t i = 0; i < a->used; i++) {
        a->ended[i] = (struct pollfd){.fd = a->rings[i]->gone ? -1 : a->rings[i]->pidfd, .events = POLLIN};
    }
    if (a->used > 0 && poll(a->ended, (nfds_t)a->used, 0) > 0) {
        for (size_t i = 0; i < a->used; i++) {
            if (a->ended[i].revents != 0) {
                process_ended(a->rings[i], now);
            }
        }
    }
}

/* Looks at all ranks of the node at one moment: first which live and how far each ring has come; only then is anything
 * sent. */
static void look(struct agent *a, uint64_t now)
{
    look_for_ended(a, now);
    for (size_t i = 0; i < a->used; i++) {
        struct roll_agent_ring *ring = a->rings[i];
        roll_agent_ring_look(ring, now);
        if (!ring->gone) {
            a->live_ns = now;
        }
    }
    roll_agent_sight_look(a->sight, a->rings, a->used, now);
    for (size_t i = 0; i < a->used; i++) {
        a->rings[i]->upto = roll_agent_ring_head(a->rings[i]);
    }
}

static int64_t pump(struct agent *a, uint64_t now)
{
    struct roll_agent_out out = {send_frame, a, a->buffer};
    int64_t total = 0;
    bool drained = true;
    look(a, now);
    for (size_t i = 0; i < a->used; i++) {
        struct roll_agent_ring *ring = a->rings[i];
        if (a->welcomed) {
            int64_t n = roll_agent_ring_pump(ring, &out, now);
            total += n > 0 ? n : 0;
        }
        drained = drained && roll_agent_ring_drained(ring);
    }
    if (a->trace) {
        roll_agent_trace_pump(a->trace, now);
    }
    a->progress += (uint64_t)total;
    if (a->drain && drained && a->welcomed) {
        send_heartbeat(a, a->drain);
        a->drain = 0;
    }
    return total;
}

static bool has_calls(void *ctx, uint32_t pid)
{
    struct agent *a = ctx;
    for (size_t i = 0; i < a->used; i++) {
        if (a->rings[i]->map.header->pid == pid && roll_agent_ring_head(a->rings[i]) > 0) {
            return true;
        }
    }
    return false;
}

static void send_note(void *ctx, json_t *note)
{
    struct agent *a = ctx;
    char *text = json_dumps(note, JSON_COMPACT);
    struct roll_frame_head head = {.type = ROLL_FRAME_NOTE};
    uint64_t seq;
    if (text && a->trace) {
        roll_agent_trace_note(a->trace, text, roll_mono_ns());
    }
    if (text && a->welcomed) {
        send_frame(a, head, text, strlen(text), &seq);
    }
    free(text);
}

static void housekeep(struct agent *a, uint64_t now)
{
    if (a->welcomed || a->trace) {
        roll_unseen_look(a->unseen, now, has_calls, send_note, a);
    }
    if (a->rescan || now - a->rescan_ns > RESCAN_NS) {
        scan(a, now);
    }
    if (now - a->control_ns > CONTROL_NS) {
        a->control_ns = now;
        roll_agent_controls_seen(&a->controls, now);
    }
    if (!a->welcomed && now - a->hello_ns > HELLO_NS) {
        if (!a->said_unreachable) {
            a->said_unreachable = true;
            roll_log(ROLL_LOG_WARNING,
                     "agent: %s cannot be reached; the ranks go on recording, and the agent goes on trying",
                     a->o->endpoint);
        }
        send_hello(a, now);
    }
    if (a->welcomed && now - a->heartbeat_ns > HEARTBEAT_NS) {
        a->heartbeat_ns = now;
        send_heartbeat(a, 0);
    }
    clean(a, now, false);
}

static void process_ended(struct roll_agent_ring *ring, uint64_t now);

/* Sleeps until a descriptor is ready or the time is over, and reads the descriptors that woke it. */
static void wait_for_work(struct agent *a, int timeout_ms)
{
    int stacks = roll_agent_stacks_fd(a->stacks);
    zmq_pollitem_t items[MAX_POLLED] = {{a->socket, 0, ZMQ_POLLIN, 0},
                                        {NULL, a->inotify, ZMQ_POLLIN, 0},
                                        {a->monitor, 0, ZMQ_POLLIN, 0},
                                        {NULL, stacks, stacks >= 0 ? ZMQ_POLLIN : 0, 0}};
    int n = FIXED_POLLED;
    for (size_t i = 0; i < a->used && n < MAX_POLLED; i++) {
        if (a->rings[i]->pidfd >= 0 && !a->rings[i]->gone) {
            items[n++] = (zmq_pollitem_t){NULL, a->rings[i]->pidfd, ZMQ_POLLIN, 0};
        }
    }
    uint64_t slept = roll_mono_ns();
    int woken = zmq_poll(items, n, timeout_ms);
    uint64_t now = roll_mono_ns(), asked = (uint64_t)timeout_ms * ROLL_MS + ROLL_MS;
    if (woken <= 0) {
        roll_agent_sight_late(a->sight, now - slept > asked ? now - slept - asked : 0);
        return;
    }
    if (items[1].revents) {
        char events[4096];
        a->rescan = read(a->inotify, events, sizeof(events)) > 0;
    }
    if (items[2].revents && roll_net_monitor_read(a->monitor, "agent")) {
        send_hello(a, now);
    }
    for (int k = FIXED_POLLED; k < n; k++) {
        for (size_t i = 0; items[k].revents && i < a->used; i++) {
            struct roll_agent_ring *ring = a->rings[i];
            if (ring->pidfd == items[k].fd) {
                process_ended(ring, now);
            }
        }
    }
    if (items[0].revents) {
        receive(a, now);
    }
}

static void loop(struct agent *a)
{
    int timeout = BUSY_MS;
    uint64_t stop_ns = 0, last_pump = 0;
    for (;;) {
        wait_for_work(a, timeout);
        uint64_t now = roll_mono_ns();
        if (now - last_pump < BUSY_MS * ROLL_MS / 2 && !a->drain) {
            continue; /* acknowledgements alone are no reason to read the rings more often */
        }
        last_pump = now;
        housekeep(a, now);
        int64_t moved = pump(a, now);
        roll_agent_stacks_pump(a->stacks, a->socket, now);
        roll_agent_facts_pump(a->facts, a->socket, now);
        timeout = moved > 0 ? BUSY_MS : (timeout < IDLE_MS ? timeout + 1 : IDLE_MS);
        if (atomic_load(a->o->stop) && stop_ns == 0) {
            stop_ns = now;
        }
        if (a->o->parent != 0 && getppid() == a->o->parent) {
            a->live_ns = now; /* counts as life: a job may take minutes to its first communicator */
        }
        uint64_t idle_since = a->live_ns > a->start_ns ? a->live_ns : a->start_ns;
        if (stop_ns == 0 && a->o->linger_s && now - idle_since > a->o->linger_s * (1000 * ROLL_MS)) {
            roll_log(ROLL_LOG_INFO, "agent: no live rank for %u s (--linger): the agent ends", a->o->linger_s);
            stop_ns = now;
        }
        if (stop_ns == 0) {
            continue;
        }
        bool settled = a->welcomed;
        for (size_t i = 0; i < a->used && settled; i++) {
            settled = roll_agent_ring_settled(a->rings[i]) || !a->rings[i]->gone;
        }
        if ((settled && moved == 0) || now - stop_ns > STOP_NS) {
            return;
        }
    }
}

static int open_trace(struct agent *a, char *why, size_t why_size)
{
    char reason[4096 + 128];
    int err = roll_segment_dir(a->o->trace_dir, reason, sizeof(reason));
    if (err) {
        snprintf(why, why_size, "--trace %.200s", reason);
        return err;
    }
    struct roll_agent_trace_options o = {.dir = a->o->trace_dir,
                                         .host = a->host,
                                         .segment_bytes = a->o->trace_segment,
                                         .limit_bytes = a->o->trace_limit,
                                         .age_ns = a->o->trace_age_ns};
    a->trace = roll_agent_trace_new(&o);
    return a->trace ? 0 : ROLL_E_NOMEM;
}

static int start(struct agent *a, char *why, size_t why_size)
{
    const struct roll_agent_options *o = a->o;
    uint64_t random = 0;
    char identity[160];
    if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
        random = roll_real_ns();
    }
    if (gethostname(a->host, sizeof(a->host) - 1) != 0) {
        snprintf(a->host, sizeof(a->host), "unknown");
    }
    snprintf(identity, sizeof(identity), "agent/%s/%d/%016llx", a->host, (int)getpid(), (unsigned long long)random);
    a->buffer = malloc(ROLL_AGENT_BATCH * ROLL_RECORD_BYTES);
    a->inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    a->socket = roll_net_dealer(o->context, roll_net_takes_keys(o->endpoint) ? o->keys : NULL, identity, 500);
    a->stacks = roll_agent_stacks_new(o->dir);
    a->facts = roll_agent_facts_new(a->host, o->dir, o->trace_dir);
    if (!a->buffer || !a->socket || !a->stacks || !a->facts) {
        snprintf(why, why_size, "no memory or no socket: %s", strerror(errno));
        return ROLL_E_NOMEM;
    }
    /* Without inotify (its limits are per user) new rings are found by the rescan, within a second. */
    if (a->inotify >= 0) {
        inotify_add_watch(a->inotify, o->dir, IN_CREATE | IN_MOVED_TO);
    } else {
        roll_log(ROLL_LOG_WARNING, "agent: no inotify (%s): new ranks are noticed within a second", strerror(errno));
    }
    a->monitor = roll_net_monitor(o->context, a->socket, "agent");
    if (!a->monitor || zmq_connect(a->socket, o->endpoint) != 0) {
        snprintf(why, why_size, "cannot connect to %s: %s", o->endpoint, zmq_strerror(errno));
        return ROLL_E_ARG;
    }
    a->start_ns = a->live_ns = roll_mono_ns();
    a->unseen = roll_unseen_new(o->dir, a->host);
    a->sight = roll_agent_sight_new("/proc", "/sys/fs/cgroup");
    return o->trace_dir ? open_trace(a, why, why_size) : 0;
}

int roll_agent_run(const struct roll_agent_options *options, char *why, size_t why_size)
{
    struct agent a = {.o = options, .inotify = -1};
    int err = start(&a, why, why_size);
    if (err) {
        goto out;
    }
    uint64_t now = roll_mono_ns();
    scan(&a, now);
    send_hello(&a, now);
    loop(&a);
    clean(&a, roll_mono_ns(), true);
    struct roll_frame_head bye = {.type = ROLL_FRAME_BYE};
    uint64_t seq;
    send_frame(&a, bye, NULL, 0, &seq);
out:
    roll_agent_trace_destroy(&a.trace);
    if (a.monitor) {
        zmq_socket_monitor(a.socket, NULL, 0);
        zmq_close(a.monitor);
    }
    if (a.socket) {
        zmq_close(a.socket);
    }
    if (a.inotify >= 0) {
        close(a.inotify);
    }
    while (a.used > 0) {
        roll_agent_ring_destroy(&a.rings[--a.used]);
    }
    roll_agent_stacks_destroy(&a.stacks);
    roll_agent_facts_destroy(&a.facts);
    roll_agent_controls_fini(&a.controls);
    roll_unseen_destroy(&a.unseen);
    roll_agent_sight_destroy(&a.sight);
    free(a.ended);
    free(a.rings);
    while (a.bad_used > 0) {
        free(a.bad[--a.bad_used].path);
    }
    free(a.bad);
    free(a.buffer);
    return err;
}
