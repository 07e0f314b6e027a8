/*
 * agent.c: the agent's loop.
 *
 * One thread polls everything: the socket to the root, inotify on the directory, a pidfd per rank, and, every 20 to 30
 * milliseconds, the rings themselves: what a look costs does not depend on how many records it finds, and a verdict may
 * be that much later. Waking up costs less than a look, and so a glance at the heads of the rings decides whether there
 * is one; all that is due by time alone goes with the heartbeat. Where rings are only folded (agent_digest.h), nothing
 * that a look finds is told before the heartbeat, and glances are rarer.
 *
 * A doorbell from the ranks was rejected: it would put a system call into NCCL calls of the job, one for each time that
 * a node wakes up, to save the agent less than a thousandth of a core. So was a scheduling class of its own: what the
 * job loses is the processor time, and a class changes only when it is taken; at SCHED_IDLE the agent was not heard for
 * seconds beside busy processes (docs/DAEMON.md). The root may be away for any time: only
 * cursors are kept here, no records, and the ranks never notice.
 */
#include "daemon/agent/agent_state.h"

#include "daemon/base/clock.h"
#include "daemon/base/lock.h"
#include "daemon/base/log.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/random.h>
#include <unistd.h>
#include <zmq.h>

#define BUSY_MS      20               /* between two glances at the rings while much moves */
#define IDLE_MS      50               /* between two glances at most, when little or nothing moves */
#define FOLD_MS      50               /* likewise, where digests are told with the next beat at the earliest */
#define MUCH         400              /* records in one look */
#define HASTE_MS     1                /* between two looks while one cannot take all that is there */
#define LEAVE_MS     2                /* between two looks when the agent is to end */
#define RECORDS_A_MS 1024             /* a look comes before a rank that does nothing but call can fill its ring */
#define SLEEP_NS     (2 * ROLL_MS)    /* whose lateness is compared with the waiting of a rank that calls */
#define REST_NS      (10 * ROLL_MS)   /* and of one that makes no calls */
#define RESCAN_NS    (1000 * ROLL_MS) /* the directory is listed this often, because inotify can overflow */
#define BEAT_MS      100              /* the root stops its clock for a run whose agents it does not hear */
#define HELLO_NS     (3000 * ROLL_MS)
#define STOP_NS      (1500 * ROLL_MS) /* longest time for an orderly exit */

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

/* loop */

static int64_t pump(struct roll_agent *a, uint64_t now, bool beat)
{
    struct roll_agent_out out = {roll_agent_send, a, a->buffer};
    int64_t total = 0;
    bool drained = true;
    roll_agent_leave_cut(a);
    roll_agent_look(a, now);
    for (size_t i = 0; i < a->used; i++) {
        struct roll_agent_ring *ring = a->rings[i];
        roll_agent_sources_look(a->sources, ring);
        if (a->welcomed) {
            int64_t n = ring->digest && a->digests ? roll_agent_digests_pump(a->digests, ring, now)
                                                   : roll_agent_ring_pump(ring, &out, now);
            total += n > 0 ? n : 0;
        }
        roll_agent_late_read(ring, now);
        drained =
            drained && roll_agent_ring_drained(ring) && !roll_agent_digests_lacks(a->digests, ring, ring->drain_head);
    }
    if (a->welcomed && a->digests && (beat || (a->drain && drained))) {
        roll_agent_digests_tell(a->digests, now);
    }
    if (a->trace) {
        a->soon = roll_agent_trace_pump(a->trace, now);
    }
    a->progress += (uint64_t)total;
    if (a->drain && drained && a->welcomed) {
        a->drain = roll_agent_heartbeat(a, a->drain) == 0 ? 0 : a->drain; /* where there is no room, the next turn */
    }
    return total;
}

static bool has_calls(void *ctx, uint32_t pid)
{
    struct roll_agent *a = ctx;
    for (size_t i = 0; i < a->used; i++) {
        if (a->rings[i]->map.header->pid == pid && roll_agent_ring_head(a->rings[i]) > 0) {
            return true;
        }
    }
    return false;
}

static void send_note(void *ctx, json_t *note)
{
    struct roll_agent *a = ctx;
    char *text = json_dumps(note, JSON_COMPACT);
    struct roll_frame_head head = {.type = ROLL_FRAME_NOTE};
    uint64_t seq;
    if (text && a->trace) {
        roll_agent_trace_note(a->trace, text, roll_mono_ns());
    }
    if (text && a->welcomed) {
        roll_agent_send(a, head, text, strlen(text), &seq);
    }
    free(text);
}

static void housekeep(struct roll_agent *a, uint64_t now, bool beat)
{
    if (a->welcomed || a->trace) {
        roll_unseen_look(a->unseen, now, has_calls, send_note, a);
    }
    if (a->rescan || now - a->rescan_ns > RESCAN_NS) {
        roll_agent_scan(a, now);
    }
    if (beat) {
        roll_agent_controls_seen(&a->controls, now);
    }
    roll_net_dial_again(&a->dial, a->socket, a->o->endpoint);
    if (!a->welcomed && now - a->hello_ns > HELLO_NS) {
        if (!a->said_unreachable) {
            a->said_unreachable = true;
            a->lost_ns = now;
            a->lost_level = ROLL_LOG_WARNING;
            roll_log(ROLL_LOG_WARNING,
                     "agent: %s cannot be reached; the ranks go on recording, and the agent goes on trying",
                     a->o->endpoint);
        }
        roll_agent_hello(a, now);
    }
    roll_agent_clean(a, now, false);
}

/*
 * Notes by how much a sleep was too long. A thread that stands ready behind others waits about as long whatever it has
 * slept before; as a share of its time that is more for a rank that sleeps 2 ms at a time than for an agent that sleeps
 * 10. What is noted is the share of such a rank.
 */
static void note_sleep(struct roll_agent *a, uint64_t asked_ns, uint64_t slept_ns)
{
    uint64_t late_ns = slept_ns > asked_ns + ROLL_MS ? slept_ns - asked_ns - ROLL_MS : 0;
    uint64_t stands_for_ns = a->moves ? SLEEP_NS : REST_NS;
    uint64_t share_ns = late_ns * slept_ns / (stands_for_ns + ROLL_MS + late_ns);
    roll_agent_sight_late(a->sight, late_ns > share_ns ? late_ns : share_ns);
}

/* Receives what is there. What the socket says of its room holds for the first message of the look that follows. */
static void take_input(struct roll_agent *a, uint64_t now)
{
    bool input = false;
    roll_net_ask(a->socket, &input, &a->batch.room);
    if (input) {
        roll_agent_receive(a, now);
        a->batch.room = false; /* an answer may have taken it */
    }
}

/*
 * Sleeps until a descriptor is ready or the time is over, and reads the descriptors that woke it. Plain poll, for which
 * a ZeroMQ socket has a descriptor: zmq_poll makes eight system calls for what one can do. That descriptor tells of
 * changes only, and sending takes note of them as well, hence the question before a sleep that the socket can end.
 * While all rings travel freely nothing comes that could not wait for the next glance, acknowledgements above all: then
 * the socket ends no sleep, and is asked after it.
 */
static void wait_for_work(struct roll_agent *a, int timeout_ms)
{
    bool listens = a->listens || timeout_ms > IDLE_MS;
    struct pollfd items[] = {{.fd = listens ? a->socket_fd : -1, .events = POLLIN},
                             {.fd = a->inotify, .events = POLLIN},
                             {.fd = a->monitor_fd, .events = POLLIN},
                             {.fd = roll_agent_stacks_fd(a->stacks), .events = POLLIN},
                             {.fd = a->processes, .events = POLLIN}};
    bool waits = listens && roll_net_has_input(a->socket);
    uint64_t slept = roll_mono_ns();
    int woken = poll(items, sizeof(items) / sizeof(*items), waits ? 0 : timeout_ms);
    uint64_t now = roll_mono_ns();
    if (woken <= 0 && !waits) {
        note_sleep(a, (uint64_t)timeout_ms * ROLL_MS, now - slept);
        if (!listens) {
            take_input(a, now);
        }
        return;
    }
    if (items[1].revents) {
        char events[4096];
        a->rescan = read(a->inotify, events, sizeof(events)) > 0;
    }
    a->soon = a->soon || items[1].revents || items[3].revents || items[4].revents; /* a look takes who has ended */
    unsigned happened = items[2].revents ? roll_net_monitor_read(a->monitor, "agent", NULL, &a->dial) : 0;
    if (happened & ROLL_NET_LOST) {
        roll_agent_lost(a, now);
    }
    if (happened & ROLL_NET_CONNECTED) {
        roll_agent_hello(a, now);
    }
    if (waits || !listens || items[0].revents) {
        take_input(a, now);
    }
}

/* Whether what is in rings that are compared by digests waits until the next beat. */
static bool only_folds(const struct roll_agent *a)
{
    return !a->trace && a->digests && !roll_agent_digests_sends(a->digests);
}

/*
 * Milliseconds until the next glance, after one that moved so much. Rings that are folded only let it wait longer, for
 * nobody is told before the beat; rings of which nothing can be sent, because there is no root, or no process any more,
 * until the beat.
 */
static int next_pace(struct roll_agent *a, int pace, int64_t moved)
{
    int most = BEAT_MS;
    bool asked = roll_agent_calls_waits(a->calls) || roll_agent_lines_waits(a->lines);
    bool haste = a->soon || a->drain || asked, folds = true, waits = only_folds(a);
    a->listens = !a->welcomed || a->used == 0;
    for (size_t i = 0; i < a->used; i++) {
        const struct roll_agent_ring *ring = a->rings[i];
        bool fold = ring->digest && waits;
        int fills = (int)((ring->map.mask + 1) / RECORDS_A_MS), idle = fold ? FOLD_MS : IDLE_MS;
        idle = fills < idle ? fills : idle;
        most = !ring->gone && (a->welcomed || a->trace) && idle < most ? idle : most;
        folds = folds && fold;
        haste = haste || (moved > 0 && a->welcomed && roll_agent_ring_waits(ring));
        a->listens = a->listens || ring->link != ROLL_LINK_LIVE || roll_agent_ring_waits(ring);
    }
    if (haste) {
        return HASTE_MS;
    }
    pace = folds ? most : moved >= MUCH ? BUSY_MS : pace < IDLE_MS ? pace + 1 : IDLE_MS;
    return most < LEAVE_MS ? LEAVE_MS : pace < most ? pace : most;
}

/* Whether something has come since the last look. A glance finds out without a system call, so that a sleep after which
 * there is nothing costs little more than itself. */
static bool has_news(const struct roll_agent *a)
{
    if (a->soon || a->drain || a->rescan || atomic_load(a->o->stop)) {
        return true;
    }
    bool waits = only_folds(a);
    for (size_t i = 0; i < a->used && (a->welcomed || a->trace); i++) {
        const struct roll_agent_ring *ring = a->rings[i];
        bool fold = ring->digest && waits;
        if ((ring->digest && !fold) || roll_agent_ring_has_news(ring, fold ? ring->map.mask / 4 : 0)) {
            return true;
        }
    }
    return false;
}

/* One look at everything; how many records it moved. */
static int64_t look(struct roll_agent *a, uint64_t now, bool beat)
{
    a->soon = false;
    housekeep(a, now, beat);
    int64_t moved = pump(a, now, beat);
    if (a->welcomed && beat) { /* behind what the rings have told: it says how much of them the root has */
        (void)roll_agent_heartbeat(a, 0);
    }
    roll_agent_flush(a);
    a->batch.room = false;
    return moved;
}

static const struct roll_agent_ring *ring_of(void *ctx, uint64_t epoch)
{
    const struct roll_agent *a = ctx;
    for (size_t i = 0; i < a->used; i++) {
        if (a->rings[i]->epoch == epoch) {
            return a->rings[i];
        }
    }
    return NULL;
}

static void loop(struct roll_agent *a)
{
    int pace = LEAVE_MS;
    uint64_t stop_ns = 0, looked_ns = 0;
    for (;;) {
        uint64_t now = roll_mono_ns(), due_ns = looked_ns + (uint64_t)pace * ROLL_MS;
        wait_for_work(a, now < due_ns ? (int)((due_ns - now + ROLL_MS - 1) / ROLL_MS) : 0);
        now = roll_mono_ns();
        if (now < due_ns && !a->drain && !(a->soon && now - looked_ns >= HASTE_MS * ROLL_MS)) {
            pace = a->soon ? HASTE_MS : pace;
            continue; /* acknowledgements alone are no reason to read the rings more often */
        }
        if (looked_ns != 0) {
            roll_agent_late_looked(&a->late, due_ns, now);
        }
        looked_ns = now;
        /* With the glance that is next to it, so that a beat needs none of its own. */
        bool beat = now - a->beat_ns + (uint64_t)pace * ROLL_MS / 2 >= BEAT_MS * ROLL_MS;
        int64_t moved = 0;
        if (beat || has_news(a)) {
            a->beat_ns = beat ? now : a->beat_ns;
            moved = look(a, now, beat);
        } else {
            roll_agent_sight_look(a->sight, a->rings, a->used, now);
        }
        roll_agent_stacks_pump(a->stacks, a->socket, now);
        roll_agent_facts_pump(a->facts, a->socket, now);
        roll_agent_calls_pump(a->calls, a->rings, a->used, a->socket);
        roll_agent_lines_pump(a->lines, a->sources, a->socket, now);
        a->soon = roll_agent_tails_pump(a->tails, a->socket, ring_of, a) || a->soon;
        a->moves = moved > 0;
        pace = atomic_load(a->o->stop) ? LEAVE_MS : next_pace(a, pace, moved);
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
            settled = roll_agent_ring_may_go(a, i);
        }
        if ((settled && moved == 0) || now - stop_ns > STOP_NS) {
            return;
        }
    }
}

static int open_trace(struct roll_agent *a, char *why, size_t why_size)
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

/* Returns owned what tells of new rings in `dir`, or -1: its limits are per user. The rescan then finds them, within a
 * second. */
static int watch_of(const char *dir)
{
    int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (watch >= 0 && inotify_add_watch(watch, dir, IN_CREATE | IN_MOVED_TO) >= 0) {
        return watch;
    }
    roll_log(ROLL_LOG_WARNING, "agent: no inotify (%s): new ranks are noticed within a second", strerror(errno));
    if (watch >= 0) {
        close(watch);
    }
    return -1;
}

static int start(struct roll_agent *a, char *why, size_t why_size)
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
    a->inotify = watch_of(o->dir);
    a->processes = epoll_create1(EPOLL_CLOEXEC);
    a->socket = roll_net_dealer(o->context, roll_net_takes_keys(o->endpoint) ? o->keys : NULL, identity, 500);
    a->stacks = roll_agent_stacks_new(o->dir);
    a->facts = roll_agent_facts_new(a->host, o->dir, o->trace_dir);
    a->calls = roll_agent_calls_new();
    a->lines = roll_agent_lines_new();
    a->tails = roll_agent_tails_new(a->host);
    if (!a->buffer || !a->socket || !a->stacks || !a->facts || !a->calls || !a->lines || !a->tails) {
        snprintf(why, why_size, "no memory or no socket: %s", strerror(errno));
        return ROLL_E_NOMEM;
    }
    a->monitor = roll_net_monitor(o->context, a->socket, "agent");
    if (!a->monitor || zmq_connect(a->socket, o->endpoint) != 0) {
        snprintf(why, why_size, "cannot connect to %s: %s", o->endpoint, zmq_strerror(errno));
        return ROLL_E_ARG;
    }
    a->socket_fd = roll_net_fd(a->socket);
    a->monitor_fd = roll_net_fd(a->monitor);
    /* Its descriptor tells of what follows a first look. */
    (void)roll_net_monitor_read(a->monitor, "agent", NULL, &a->dial);
    a->start_ns = a->live_ns = a->old_ns = roll_mono_ns();
    a->digests = roll_agent_digests_new(roll_agent_send, a);
    a->unseen = roll_unseen_new(o->dir, a->host);
    roll_agent_late_init(&a->late, "/proc");
    a->sight = roll_agent_sight_new("/proc", "/sys/fs/cgroup");
    a->sources = roll_agent_sources_new();
    return o->trace_dir ? open_trace(a, why, why_size) : 0;
}

int roll_agent_run(const struct roll_agent_options *options, char *why, size_t why_size)
{
    struct roll_agent a = {.o = options, .inotify = -1, .processes = -1, .late = {.schedstat = -1}};
    int err = start(&a, why, why_size);
    if (err) {
        goto out;
    }
    uint64_t now = roll_mono_ns();
    roll_agent_scan(&a, now);
    roll_agent_hello(&a, now);
    loop(&a);
    roll_agent_clean(&a, roll_mono_ns(), true);
    struct roll_frame_head bye = {.type = ROLL_FRAME_BYE};
    uint64_t seq;
    roll_agent_send(&a, bye, NULL, 0, &seq);
    roll_agent_flush(&a);
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
    roll_agent_digests_destroy(&a.digests);
    while (a.used > 0) {
        roll_agent_ring_destroy(&a.rings[--a.used]);
    }
    if (a.processes >= 0) {
        close(a.processes);
    }
    roll_agent_stacks_destroy(&a.stacks);
    roll_agent_facts_destroy(&a.facts);
    roll_agent_calls_destroy(&a.calls);
    roll_agent_lines_destroy(&a.lines);
    roll_agent_tails_destroy(&a.tails);
    roll_agent_controls_fini(&a.controls);
    roll_unseen_destroy(&a.unseen);
    roll_agent_sight_destroy(&a.sight);
    roll_agent_late_fini(&a.late);
    roll_agent_sources_destroy(&a.sources);
    free(a.rings);
    while (a.bad_used > 0) {
        free(a.bad[--a.bad_used].path);
    }
    free(a.bad);
    free(a.buffer);
    return err;
}
