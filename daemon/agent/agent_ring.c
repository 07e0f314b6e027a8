/*
 * agent_ring.c: one ring and its process: mapped, looked at, and how much of it the root has.
 *
 * Each time a conversation begins, the root says what it has of the ring (RING, then its ACK), so one rule serves a new
 * connection, a restarted agent and a restarted root. What is sent between: agent_ring_send.c.
 */
#include "daemon/agent/agent_ring.h"

#include "daemon/agent/agent_source.h"
#include "daemon/base/bus_guard.h"
#include "daemon/base/clock.h"
#include "daemon/base/proc.h"
#include "daemon/feed/feed.h"
#include "trace/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOK_NS       (100 * ROLL_MS) /* between two looks at a process that has a pidfd */
#define LOOK_CALM_NS  (500 * ROLL_MS) /* likewise, when it has made no call for CALM_NS */
#define CALM_NS       (2000 * ROLL_MS)
#define LOOK_BLIND_NS (20 * ROLL_MS)   /* between two looks at a process that has none */
#define TRACED_NS     (1000 * ROLL_MS) /* a debugger holds a process longer than this, a look at its stacks does not */
#define STALE_NS      (600000 * ROLL_MS)
#define SPARE_FDS     16 /* descriptors that pidfds leave free for rings, /proc and connections */

/* process */

/* Where either side could not read the number of its boot, nothing says that they differ: a ring of an earlier boot is
 * removed, and this may be one of a living job. */
static bool same_boot(const struct roll_ring_header *h)
{
    static const uint8_t none[16];
    const uint8_t *ours = roll_proc_boot_id();
    return memcmp(h->boot_id, none, 16) == 0 || memcmp(ours, none, 16) == 0 || memcmp(h->boot_id, ours, 16) == 0;
}

static void found_gone(struct roll_agent_ring *ring, uint64_t now)
{
    ring->gone = true;
    ring->gone_ns = now;
    ring->gone_head = roll_agent_ring_head(ring);
}

void roll_agent_ring_look(struct roll_agent_ring *ring, uint64_t now)
{
    const struct roll_ring_header *h = ring->map.header;
    if (ring->gone) {
        if (roll_agent_ring_head(ring) !=
            ring->gone_head) { /* the ring still moves, so the pid belongs to another namespace */
            ring->gone = false;
            ring->foreign = true;
        }
        return;
    }
    uint64_t pause = ring->pidfd < 0 ? LOOK_BLIND_NS : now - ring->moved_ns < CALM_NS ? LOOK_NS : LOOK_CALM_NS;
    if (ring->foreign || now - ring->look_ns < pause) {
        return;
    }
    bool first = ring->look_ns == 0; /* or somebody asks for a look at the process itself */
    ring->look_ns = now;
    /* Whoever has made a call since then was not stopped, and the pidfd tells when the process ends. */
    uint64_t head = roll_agent_ring_head(ring), before = ring->look_head;
    ring->look_head = head;
    ring->moved_ns = head != before ? now : ring->moved_ns;
    if (ring->pidfd >= 0 && head != before && !first && !ring->stopped && ring->traced_ns == 0) {
        return;
    }
    struct roll_proc_stat stat;
    /* Of the main thread: the file of the process has the same state and start, and adds up the times of all threads.
     */
    int err = roll_proc_stat((pid_t)h->pid, (pid_t)h->pid, &stat);
    if (err && err != ROLL_E_NOTFOUND) {
        return; /* we ourselves lack descriptors or memory, or may not look: that says nothing about the process */
    }
    bool exists = !err && (h->start_ticks == 0 || stat.start_ticks == 0 || stat.start_ticks == h->start_ticks);
    if (!exists || (ring->pidfd < 0 && (stat.state == 'Z' || stat.state == 'X'))) {
        found_gone(ring, now);
        return;
    }
    /* Whoever takes a stack holds a thread for a moment, ourselves included: traced counts as stopped when it lasts. */
    ring->traced_ns = stat.state != 't' ? 0 : ring->traced_ns ? ring->traced_ns : now;
    ring->stopped = stat.state == 'T' || (stat.state == 't' && now - ring->traced_ns >= TRACED_NS);
}

enum roll_proc_state roll_agent_ring_proc(const struct roll_agent_ring *ring)
{
    uint32_t said = atomic_load_explicit(&ring->map.header->state, memory_order_acquire);
    if (ring->foreign) {
        return said == ROLL_RING_FINISHED ? ROLL_PROC_FINISHED : ROLL_PROC_RUNNING;
    }
    if (!ring->gone) {
        return ring->stopped ? ROLL_PROC_STOPPED : ROLL_PROC_RUNNING;
    }
    /* A ring that was switched off cannot show how its process ended, so it must raise no alarm. */
    int32_t status = atomic_load_explicit(&ring->map.header->exit_status, memory_order_acquire) & ~ROLL_EXIT_ASKED;
    bool quiet = said == ROLL_RING_DISABLED && (status == ROLL_EXIT_UNKNOWN || status == 0);
    return said == ROLL_RING_FINISHED || quiet ? ROLL_PROC_FINISHED : ROLL_PROC_DEAD;
}

/* life */

/* Opens a pidfd; -1: there is none, and /proc is looked at more often. The last free descriptors are kept for other
 * uses. */
static int open_process(uint32_t pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct rlimit limit;
    if (fd >= 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)fd + SPARE_FDS >= limit.rlim_cur) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* A job's name becomes a part of file names here (control page, trace): whoever wrote the ring has cleaned it, as
 * roll_ident_read does, or is not to be believed. */
static bool job_is_clean(const char *job)
{
    char clean[ROLL_NAME_BYTES];
    roll_feed_clean_job(job, clean);
    return strncmp(job, clean, ROLL_NAME_BYTES) == 0;
}

int roll_agent_ring_new(const char *path, struct roll_agent_ring **out)
{
    struct roll_agent_ring *ring = calloc(1, sizeof(*ring));
    if (!ring) {
        return ROLL_E_NOMEM;
    }
    ring->pidfd = -1;
    ring->upto = UINT64_MAX;
    ring->cuts = roll_guard_cuts();
    snprintf(ring->path, sizeof(ring->path), "%s", path);
    int err = roll_ring_open(path, true, &ring->map);
    struct stat st;
    if (!err && !job_is_clean(ring->map.header->job)) {
        err = ROLL_E_CORRUPT;
    }
    if (!err) {
        ring->pending = malloc(ROLL_PENDING_MAX * sizeof(*ring->pending));
        err = ring->pending ? 0 : ROLL_E_NOMEM;
    }
    if (err) {
        roll_agent_ring_destroy(&ring);
        return err;
    }
    if (stat(path, &st) == 0) {
        ring->dev = st.st_dev;
        ring->ino = st.st_ino;
    }
    struct roll_ring_header *h = ring->map.header;
    uint64_t now = roll_mono_ns();
    ring->epoch = h->epoch;
    uint64_t counted = atomic_load_explicit(&h->counted, memory_order_acquire), head = roll_agent_ring_head(ring);
    ring->counted = counted < head ? counted : head; /* the job may write there, too: nothing to come is passed over */
    if (!same_boot(h)) {
        found_gone(ring, now);
        *out = ring;
        return 0;
    }
    ring->pidfd = open_process(h->pid);
    roll_agent_ring_look(ring, now);
    if (ring->gone && ring->pidfd >= 0) { /* the pid belongs to another process by now */
        close(ring->pidfd);
        ring->pidfd = -1;
    }
    *out = ring;
    return 0;
}

void roll_agent_ring_destroy(struct roll_agent_ring **pointer)
{
    struct roll_agent_ring *ring = *pointer;
    if (!ring) {
        return;
    }
    if (ring->pidfd >= 0) {
        close(ring->pidfd);
    }
    roll_ring_close(&ring->map);
    free(ring->pending);
    free(ring->sight);
    roll_sources_of_ring_destroy(&ring->sources);
    free(ring);
    *pointer = NULL;
}

bool roll_agent_ring_stale(const struct roll_agent_ring *ring, uint64_t *age_ns)
{
    const struct roll_ring_header *h = ring->map.header;
    uint64_t head = roll_agent_ring_head(ring);
    uint64_t last = atomic_load(&h->clock_mono_ns);
    struct roll_record rec;
    if (head > 0 && roll_ring_get(&ring->map, head - 1, &rec) == 0 && rec.enter_ns > last) {
        last = rec.enter_ns;
    }
    uint64_t now = roll_mono_ns();
    *age_ns = same_boot(h) && now > last ? now - last : UINT64_MAX;
    return ring->gone && *age_ns > STALE_NS;
}

/* what the root has */

/* Reading begins at this ticket and this offset of the definitions; calls from `open` on may have returned meanwhile.
 */
static void begin(struct roll_agent_ring *ring, uint64_t ticket, uint64_t open, uint64_t defs)
{
    ring->sent = ring->acked = ring->told = ticket;
    ring->defs_sent = defs < ring->map.defs_bytes ? defs : 0;
    ring->recheck = open < ticket ? open : ticket;
    ring->recheck_end = ticket;
    ring->pending_used = 0;
    memset(ring->done, 0, sizeof(ring->done));
}

void roll_agent_ring_ack(struct roll_agent_ring *ring, const struct roll_frame *frame)
{
    struct roll_frame_ack ack;
    if (frame->head.payload < sizeof(ack)) {
        return;
    }
    memcpy(&ack, frame->payload, sizeof(ack));
    uint64_t head = roll_agent_ring_head(ring);
    ack.next_ticket = ack.next_ticket < head ? ack.next_ticket : head;
    if (ring->link == ROLL_LINK_ANNOUNCED && frame->head.seq >= ring->announce_seq) {
        bool digest = (frame->head.flags & ROLL_ACK_DIGEST) != 0;
        ring->link = ROLL_LINK_LIVE;
        if (!digest || !ring->digest) { /* what has been folded stays folded, whatever the root has */
            begin(ring, digest ? 0 : ack.next_ticket, digest ? 0 : frame->head.first, digest ? 0 : ack.defs_offset);
        }
        ring->digest = digest;
        ring->status_ns = 0;
        ring->caught_up = false;
        ring->status.proc_state = 0;
        ring->starved_said = 0; /* the RING frame has set it to 0 */
        ring->starved_ns = 0;
    } else if (ring->link == ROLL_LINK_LIVE && frame->head.seq >= ring->announce_seq && ack.next_ticket > ring->acked &&
               ack.next_ticket <= ring->sent) {
        ring->acked = ack.next_ticket;
    }
    ring->keep = (frame->head.flags & ROLL_ACK_KEEP) != 0;
    if (frame->head.seq > ring->acked_seq) {
        ring->acked_seq = frame->head.seq;
    }
}

bool roll_agent_ring_waits(const struct roll_agent_ring *ring)
{
    return ring->link == ROLL_LINK_LIVE && ring->sent < ring->upto &&
           !(ring->stuck_ns != 0 && ring->stuck_ticket == ring->sent);
}

bool roll_agent_ring_settled(const struct roll_agent_ring *ring)
{
    return ring->link == ROLL_LINK_LIVE && ring->sent >= roll_agent_ring_head(ring) && ring->acked >= ring->told &&
           ring->recheck == ring->recheck_end && ring->status_ns > 0 && ring->acked_seq >= ring->status_seq &&
           ring->status.proc_state == (uint32_t)roll_agent_ring_proc(ring) &&
           ring->status.exit_status == atomic_load_explicit(&ring->map.header->exit_status, memory_order_acquire);
}

bool roll_agent_ring_drained(const struct roll_agent_ring *ring)
{
    return ring->link == ROLL_LINK_LIVE && ring->sent >= ring->drain_head && ring->recheck == ring->recheck_end &&
           !ring->drain_status;
}
