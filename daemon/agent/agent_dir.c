/*
 * agent_dir.c: the ring directory as its agent sees it: which rings are there, which of their processes live, and which
 * rings may go.
 *
 * A ring is found by inotify, or by the next scan: inotify can overflow, and its limits are per user. The agent looks
 * at all processes at one moment, before it sends anything, because a death that is noticed later than the records of
 * others would look like a rank that did not arrive.
 */
#include "daemon/agent/agent_state.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "trace/err.h"
#include "trace/pystacks.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEEP_NS     (2000 * ROLL_MS)               /* a finished ring waits this long for its launcher's exit status */
#define OLD_RING_NS (UINT64_C(86400000) * ROLL_MS) /* rings of dead processes are removed after a day */
#define LOOK_OLD_NS (UINT64_C(3600000) * ROLL_MS)  /* those that are only left here are looked at as often */

static bool known(const struct roll_agent *a, const char *path, const struct stat *st)
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

/* Whether this entry of the directory is a ring that is open: then nobody has to ask for the file. */
static bool is_open(const struct roll_agent *a, const struct dirent *entry)
{
    for (size_t i = 0; i < a->used; i++) {
        const char *slash = strrchr(a->rings[i]->path, '/');
        if (a->rings[i]->ino == entry->d_ino && slash && strcmp(slash + 1, entry->d_name) == 0) {
            return true;
        }
    }
    return false;
}

static void remember_bad(struct roll_agent *a, const char *path, const struct stat *st, bool old)
{
    char *name = strdup(path);
    if (!name) {
        return;
    }
    if (ROLL_GROW(a->bad, a->bad_room, a->bad_used + 1) != 0) {
        free(name);
        return;
    }
    a->bad[a->bad_used++] = (struct roll_agent_bad_file){st->st_dev, st->st_ino, name, old};
}

/* Without a place among the descriptors that are polled, the process is looked at in /proc more often. */
static void watch_process(const struct roll_agent *a, struct roll_agent_ring *ring)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = ring->pidfd};
    if (ring->pidfd >= 0 && epoll_ctl(a->processes, EPOLL_CTL_ADD, ring->pidfd, &event) != 0) {
        close(ring->pidfd);
        ring->pidfd = -1;
    }
}

static int add_ring(struct roll_agent *a, struct roll_agent_ring *ring)
{
    int err = ROLL_GROW(a->rings, a->room, a->used + 1);
    if (err) {
        return err;
    }
    a->rings[a->used++] = ring;
    watch_process(a, ring);
    const struct roll_ring_header *h = ring->map.header;
    roll_agent_controls_need(&a->controls, a->o->dir, h->job, h->restart, a->o->policy);
    return 0;
}

static void open_ring(struct roll_agent *a, const char *path, const struct stat *st)
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
        remember_bad(a, path, st, false);
        roll_log(ROLL_LOG_WARNING, "agent: %s: %s; this ring is ignored%s", path, roll_strerror(err),
                 err == ROLL_E_VERSION ? ": use librollcall.so and rollcalld of the same release" : "");
        return;
    }
    uint64_t age;
    if (roll_agent_ring_stale(ring, &age)) {
        if (age > OLD_RING_NS) {
            unlink(path);
        } else {
            remember_bad(a, path, st, true);
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

void roll_agent_scan(struct roll_agent *a, uint64_t now)
{
    a->rescan = false;
    a->rescan_ns = now;
    roll_log_tick(false);
    DIR *d = opendir(a->o->dir);
    if (!d) {
        return;
    }
    struct dirent *entry;
    while ((entry = readdir(d)) != NULL) {
        size_t n = strlen(entry->d_name);
        struct stat st;
        char path[PATH_MAX];
        if (n < 6 || strcmp(entry->d_name + n - 5, ".ring") != 0 || entry->d_name[0] == '.' || is_open(a, entry)) {
            continue;
        }
        snprintf(path, sizeof(path), "%s/%s", a->o->dir, entry->d_name);
        if (lstat(path, &st) == 0 && S_ISREG(st.st_mode) && !known(a, path, &st)) {
            open_ring(a, path, &st);
        }
    }
    closedir(d);
}

/* Whether another ring of this (job, restart) exists besides number `but`; with live, one whose process lives. */
static bool job_in_use(const struct roll_agent *a, size_t but, bool live)
{
    const struct roll_ring_header *h = a->rings[but]->map.header;
    for (size_t i = 0; i < a->used; i++) {
        const struct roll_ring_header *other = a->rings[i]->map.header;
        if (i != but && other->restart == h->restart && strncmp(other->job, h->job, sizeof(h->job)) == 0 &&
            !(live && a->rings[i]->gone)) {
            return true;
        }
    }
    return false;
}

/* Removes the announcement of Python stacks (*.pystacks) that a killed process could not remove itself. */
static void remove_announcement(const struct roll_agent *a, const struct roll_agent_ring *ring)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/" ROLL_PYSTACKS_NAME, a->o->dir, (int)ring->map.header->pid);
    unlink(path);
}

static void leave_ring(struct roll_agent *a, size_t i)
{
    struct roll_agent_ring *ring = a->rings[i];
    if (a->trace) {
        roll_agent_trace_drop(a->trace, ring, roll_mono_ns());
    }
    roll_agent_digests_drop(a->digests, ring);
    if (!job_in_use(a, i, false)) {
        roll_agent_controls_drop(&a->controls, ring->map.header->job, ring->map.header->restart);
    }
    roll_agent_ring_destroy(&a->rings[i]);
    a->rings[i] = a->rings[--a->used];
}

static void drop_ring(struct roll_agent *a, size_t i)
{
    unlink(a->rings[i]->path);
    leave_ring(a, i);
}

void roll_agent_leave_bad(struct roll_agent *a, size_t i)
{
    const struct roll_agent_ring *ring = a->rings[i];
    remember_bad(a, ring->path, &(struct stat){.st_dev = ring->dev, .st_ino = ring->ino}, false);
    leave_ring(a, i);
}

/* Removes those rings of an older job that have become a day old meanwhile, and forgets files that are gone. */
static void clean_old(struct roll_agent *a)
{
    size_t kept = 0;
    for (size_t i = 0; i < a->bad_used; i++) {
        struct roll_agent_bad_file *bad = &a->bad[i];
        struct roll_agent_ring *ring = NULL;
        uint64_t age = 0;
        if (bad->old && roll_agent_ring_new(bad->path, &ring) == 0) {
            bool same = ring->ino == bad->ino && ring->dev == bad->dev;
            if (same && roll_agent_ring_stale(ring, &age) && age > OLD_RING_NS) {
                unlink(bad->path);
            }
            roll_agent_ring_destroy(&ring);
        }
        if (access(bad->path, F_OK) == 0) {
            a->bad[kept++] = *bad;
        } else {
            free(bad->path);
        }
    }
    a->bad_used = kept;
}

void roll_agent_clean(struct roll_agent *a, uint64_t now, bool leaving)
{
    if (now > a->old_ns + LOOK_OLD_NS) {
        a->old_ns = now;
        clean_old(a);
    }
    for (size_t i = a->used; i-- > 0;) {
        struct roll_agent_ring *ring = a->rings[i];
        if (ring->gone && !ring->unannounced) {
            ring->unannounced = true;
            remove_announcement(a, ring);
        }
        bool is_known = (ring->status.exit_status & ~ROLL_EXIT_ASKED) != ROLL_EXIT_UNKNOWN;
        bool patient = !leaving && !is_known && now - ring->gone_ns < KEEP_NS;
        /* The next agent is asked for what was kept as this one would be. Where the root ends as well there is nobody
         * who would ask, unless somebody goes on here. */
        bool kept = ring->keep && (!leaving || !a->o->with_root || job_in_use(a, i, true));
        if (ring->gone && !patient && !kept && ring->status.proc_state == ROLL_PROC_FINISHED &&
            roll_agent_ring_settled(ring)) {
            drop_ring(a, i);
        } else if (ring->gone && now > ring->gone_ns + OLD_RING_NS) {
            /* Evidence for a day, whatever came of it. A sum, because an end may be noticed after this look began. */
            drop_ring(a, i);
        }
    }
}

/* Behind ranks that have ended the root may be about to ask: so long the end waits, within its bounds. Where others go
 * on here, the next agent is asked. */
bool roll_agent_ring_may_go(const struct roll_agent *a, size_t i)
{
    const struct roll_agent_ring *ring = a->rings[i];
    bool wanted = ring->keep && !a->o->with_root && !job_in_use(a, i, true);
    return !ring->gone || (roll_agent_ring_settled(ring) && !wanted);
}

/* processes */

static void process_ended(struct roll_agent *a, int pidfd, uint64_t now)
{
    for (size_t i = 0; i < a->used; i++) {
        struct roll_agent_ring *ring = a->rings[i];
        if (ring->pidfd == pidfd) {
            close(ring->pidfd);
            ring->pidfd = -1;
            ring->gone = true;
            ring->gone_ns = now;
            ring->gone_head = roll_agent_ring_head(ring);
            return;
        }
    }
}

/* Finds all processes that have ended, because their rings are of an earlier moment. */
static void look_for_ended(struct roll_agent *a, uint64_t now)
{
    struct epoll_event ended[64];
    for (int n = 64; n == 64;) {
        n = epoll_wait(a->processes, ended, 64, 0);
        for (int i = 0; i < n; i++) {
            process_ended(a, ended[i].data.fd, now);
        }
    }
}

void roll_agent_look(struct roll_agent *a, uint64_t now)
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
