/*
 * guard.c: see guard.h. The descriptor of a connection is libzmq's, so it is only asked, and shut down, never closed:
 * libzmq then sees the end of the connection as any other. It is known by its inode as well, because libzmq may have
 * closed it, and somebody may have opened another of its number, before the monitor says so.
 *
 * A parser of ZMTP in front of the sockets was rejected: it would have to decrypt. A ROUTER that takes no parts
 * (ZMQ_SERVER) is a draft that no distribution builds. Another libzmq, in which a PING is no danger, is not what
 * distributions have.
 */
#include "daemon/wire/guard.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/wire/counted.h"
#include "trace/err.h"
#include "trace/ident.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUSPECT_BYTES (ROLL_GUARD_BYTES / 4)
#define CURVE_BYTES   33  /* the name of the command, nonce, authenticator, flags */
#define SHORT_BYTES   255 /* a longer part has eight bytes of length */
#define PART_BYTES    64  /* of memory, that libzmq needs for a part beside its bytes */
#define UNREAD_MOST   64  /* questions that wait on a slow way; an answer has some hundred KiB at most, as a rule */
#define SHUT_NS       (10000 * ROLL_MS)
#define IDLE_MS       200 /* how often the watch looks whether the watched thread turns */
#define BUSY_MS       10  /* and at the connections, while it does not */

struct roll_guarded {
    ino_t inode;    /* 0: this descriptor is not watched */
    uint64_t base;  /* what it had received when a message of it was taken last */
    uint64_t taken; /* bytes of all parts that were taken, as they were on the wire */
    uint64_t parts;
    unsigned unread; /* questions in a row that came while it had not read what was sent to it */
    bool suspect;
    bool local; /* it is of ipc */
    char peer[ROLL_GUARD_PEER_BYTES];
};

static bool received(const struct roll_guarded *c, int fd, uint64_t *bytes)
{
    struct tcp_info info;
    struct stat st;
    socklen_t size = sizeof(info);
    memset(&info, 0, sizeof(info));
    if (fstat(fd, &st) != 0 || st.st_ino != c->inode) {
        return false;
    }
    if (c->local) {
        *bytes = roll_counted(fd, c->inode);
        return true;
    }
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) {
        return false;
    }
    *bytes = info.tcpi_bytes_received;
    return true;
}

/* Notes of which kind a connection is, and who is at its other end. */
static void meet(struct roll_guarded *c, int fd)
{
    struct sockaddr_storage at;
    socklen_t size = sizeof(at);
    struct ucred who;
    char text[INET6_ADDRSTRLEN] = "";
    memset(&at, 0, sizeof(at));
    if (getpeername(fd, (struct sockaddr *)&at, &size) != 0) {
        return;
    }
    c->local = at.ss_family == AF_UNIX;
    const void *ip = at.ss_family == AF_INET ? (const void *)&((struct sockaddr_in *)&at)->sin_addr
                                             : (const void *)&((struct sockaddr_in6 *)&at)->sin6_addr;
    size = sizeof(who);
    if (c->local && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0) {
        snprintf(c->peer, sizeof(c->peer), "process %d of user %u", (int)who.pid, (unsigned)who.uid);
    } else if (!c->local && inet_ntop(at.ss_family, ip, text, sizeof(text))) {
        snprintf(c->peer, sizeof(c->peer), "%s", strncmp(text, "::ffff:", 7) == 0 ? text + 7 : text);
    }
}

static struct roll_guarded *find(struct roll_guard *guard, int fd)
{
    return fd >= 0 && (size_t)fd < guard->used && guard->at[fd].inode != 0 ? &guard->at[fd] : NULL;
}

static void set_suspect(struct roll_guard *guard, struct roll_guarded *c, bool suspect)
{
    guard->suspects += (size_t)suspect - (size_t)c->suspect;
    c->suspect = suspect;
}

static void drop(struct roll_guard *guard, struct roll_guarded *c)
{
    set_suspect(guard, c, false);
    *c = (struct roll_guarded){.inode = 0};
}

void roll_guard_init(struct roll_guard *guard, bool curve)
{
    *guard = (struct roll_guard){.wrapping = curve ? CURVE_BYTES : 0};
    pthread_mutex_init(&guard->lock, NULL);
}

void roll_guard_event(struct roll_guard *guard, uint16_t event, int fd)
{
    pthread_mutex_lock(&guard->lock);
    struct roll_guarded *c = find(guard, fd);
    if (c && (event == ZMQ_EVENT_CLOSED || event == ZMQ_EVENT_DISCONNECTED || event == ZMQ_EVENT_ACCEPTED)) {
        drop(guard, c);
    }
    struct stat st;
    if (event == ZMQ_EVENT_ACCEPTED && fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) &&
        ROLL_GROW_ZERO(guard->at, guard->used, (size_t)fd + 1) == 0) {
        guard->at[fd] = (struct roll_guarded){.inode = st.st_ino};
        meet(&guard->at[fd], fd);
    }
    pthread_mutex_unlock(&guard->lock);
}

void roll_guard_peer(struct roll_guard *guard, int fd, char out[ROLL_GUARD_PEER_BYTES])
{
    pthread_mutex_lock(&guard->lock);
    const struct roll_guarded *c = find(guard, fd);
    snprintf(out, ROLL_GUARD_PEER_BYTES, "%s", c && c->peer[0] ? c->peer : "somebody");
    pthread_mutex_unlock(&guard->lock);
}

void roll_guard_took(struct roll_guard *guard, zmq_msg_t *part)
{
    int fd = zmq_msg_get(part, ZMQ_SRCFD);
    pthread_mutex_lock(&guard->lock);
    struct roll_guarded *c = find(guard, fd);
    if (c) {
        uint64_t bytes = zmq_msg_size(part) + guard->wrapping;
        c->taken += bytes + (bytes > SHORT_BYTES ? 9 : 2);
        c->parts++;
    }
    if (c && c->suspect && received(c, fd, &c->base)) {
        set_suspect(guard, c, false);
    }
    pthread_mutex_unlock(&guard->lock);
}

/* What the bytes that were not taken need in memory, if the parts in them are as large as the others were. */
static uint64_t waiting(const struct roll_guarded *c, uint64_t bytes)
{
    uint64_t here = bytes > c->taken ? bytes - c->taken : 0;
    uint64_t part = c->parts > 0 ? c->taken / c->parts : 2;
    return here + here / part * PART_BYTES;
}

/* Reset, when libzmq closes it: a peer that is in the middle of sending would not hear of less for minutes. */
static void shut(struct roll_guard *guard, struct roll_guarded *c, int fd)
{
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
    shutdown(fd, SHUT_RDWR);
    drop(guard, c);
    guard->closed++;
}

/* Whether this asker was shut, and has not been quiet since. Under the lock. */
static bool was_shut(struct roll_guard *guard, uint64_t asker, uint64_t now)
{
    for (size_t i = 0; i < ROLL_GUARD_SHUT; i++) {
        if (guard->shut[i].asker == asker && now - guard->shut[i].ns < SHUT_NS) {
            guard->shut[i].ns = now;
            return true;
        }
    }
    return false;
}

bool roll_guard_reads(struct roll_guard *guard, int fd, const void *id, size_t bytes)
{
    uint64_t asker = roll_hash64(0, id, bytes) | 1, now = roll_mono_ns();
    pthread_mutex_lock(&guard->lock);
    if (was_shut(guard, asker, now)) {
        pthread_mutex_unlock(&guard->lock);
        return false;
    }
    struct roll_guarded *c = find(guard, fd);
    int waits = 0;
    if (c) {
        c->unread = ioctl(fd, SIOCOUTQ, &waits) == 0 && waits > 0 ? c->unread + 1 : 0;
    }
    bool reads = !c || c->unread <= UNREAD_MOST;
    if (!reads) {
        shut(guard, c, fd);
        guard->shut[guard->shuts % ROLL_GUARD_SHUT].asker = asker;
        guard->shut[guard->shuts++ % ROLL_GUARD_SHUT].ns = now;
    }
    pthread_mutex_unlock(&guard->lock);
    return reads;
}

static void look(struct roll_guard *guard, bool behind)
{
    pthread_mutex_lock(&guard->lock);
    for (size_t i = 0; i < guard->used; i++) {
        struct roll_guarded *c = find(guard, (int)i);
        uint64_t bytes;
        if (!c) {
            continue;
        }
        if (!received(c, (int)i, &bytes)) {
            drop(guard, c);
        } else if (waiting(c, bytes) > ROLL_GUARD_WAITING ||
                   (!behind && c->suspect && bytes - c->base > ROLL_GUARD_BYTES)) {
            shut(guard, c, (int)i);
        } else if (!behind && bytes - c->base > SUSPECT_BYTES) {
            /* A message of it that was taken meanwhile went unseen: one more look, from now on with open eyes. */
            c->base = c->suspect ? c->base : bytes;
            set_suspect(guard, c, true);
        }
    }
    pthread_mutex_unlock(&guard->lock);
}

unsigned roll_guard_look(struct roll_guard *guard, bool behind)
{
    look(guard, behind);
    pthread_mutex_lock(&guard->lock);
    unsigned closed = guard->closed;
    guard->closed = 0;
    pthread_mutex_unlock(&guard->lock);
    return closed;
}

void roll_guard_fini(struct roll_guard *guard)
{
    free(guard->at);
    pthread_mutex_destroy(&guard->lock);
    memset(guard, 0, sizeof(*guard));
}

/* the watch */

/* A connection of which no guard knows, because it has come since the watched thread was at its sockets last, may bring
 * no more than one that is known and of which nothing was taken. */
static void look_at_new(struct roll_guard *guard, int guards)
{
    for (int fd = 0, top = roll_counted_top(); fd < top; fd++) {
        const struct roll_guarded none = {.parts = 0};
        struct stat st;
        ino_t inode;
        uint64_t bytes;
        bool known = false;
        if (!roll_counted_new(fd, &inode, &bytes) || waiting(&none, bytes) <= ROLL_GUARD_WAITING) {
            continue;
        }
        for (int i = 0; i < guards; i++) {
            pthread_mutex_lock(&guard[i].lock);
            const struct roll_guarded *c = find(&guard[i], fd);
            known = known || (c && c->inode == inode);
            pthread_mutex_unlock(&guard[i].lock);
        }
        roll_counted_old(fd);
        if (!known && fstat(fd, &st) == 0 && st.st_ino == inode) {
            pthread_mutex_lock(&guard[0].lock);
            shut(&guard[0], &(struct roll_guarded){.suspect = false}, fd);
            pthread_mutex_unlock(&guard[0].lock);
        }
    }
}

static void *keep_watch(void *argument)
{
    struct roll_guard_watch *w = argument;
    unsigned seen = atomic_load_explicit(&w->turn, memory_order_relaxed);
    bool busy = false;
    while (poll(&(struct pollfd){w->ends, POLLIN, 0}, 1, busy ? BUSY_MS : IDLE_MS) == 0) {
        unsigned turn = atomic_load_explicit(&w->turn, memory_order_relaxed);
        busy = turn == seen;
        seen = turn;
        for (int i = 0; i < w->guards && busy; i++) {
            look(&w->guard[i], true);
        }
        if (busy) {
            look_at_new(w->guard, w->guards);
        }
    }
    return NULL;
}

int roll_guard_watch(struct roll_guard_watch *watch, struct roll_guard *guard, int guards)
{
    sigset_t all, old;
    *watch = (struct roll_guard_watch){.guard = guard, .guards = guards, .ends = eventfd(0, EFD_CLOEXEC)};
    if (watch->ends < 0) {
        return ROLL_E_NOMEM;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals belong to the daemon's own threads */
    watch->threaded = pthread_create(&watch->thread, NULL, keep_watch, watch) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!watch->threaded) {
        close(watch->ends);
        return ROLL_E_NOMEM;
    }
    return 0;
}

void roll_guard_turn(struct roll_guard_watch *watch)
{
    /* Only a hint for when to look: the lock of each guard orders everything else. */
    atomic_fetch_add_explicit(&watch->turn, 1, memory_order_relaxed);
    roll_counted_era();
}

void roll_guard_watch_end(struct roll_guard_watch *watch)
{
    if (watch->threaded) {
        eventfd_write(watch->ends, 1);
        pthread_join(watch->thread, NULL);
        close(watch->ends);
        watch->threaded = false;
    }
}
