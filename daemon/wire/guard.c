/*
 * guard.c: see guard.h. The descriptor of a connection is libzmq's, so it is only asked, and shut down, never closed:
 * libzmq then sees the end of the connection as any other. It is known by its inode as well, because libzmq may have
 * closed it, and somebody may have opened another of its number, before the monitor says so.
 *
 * A parser of ZMTP in front of the sockets was rejected: it would have to decrypt. A ROUTER that takes no parts
 * (ZMQ_SERVER) is a draft that no distribution builds.
 */
#include "daemon/wire/guard.h"

#include "daemon/base/array.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define SUSPECT_BYTES (ROLL_GUARD_BYTES / 4)

struct roll_guarded {
    int fd;
    ino_t inode;
    uint64_t base; /* what it had received when a message of it was taken last */
    bool suspect;
};

static bool received(const struct roll_guarded *c, uint64_t *bytes)
{
    struct tcp_info info;
    struct stat st;
    socklen_t size = sizeof(info);
    memset(&info, 0, sizeof(info));
    if (fstat(c->fd, &st) != 0 || st.st_ino != c->inode ||
        getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) {
        return false;
    }
    *bytes = info.tcpi_bytes_received;
    return true;
}

static struct roll_guarded *find(struct roll_guard *guard, int fd)
{
    for (size_t i = 0; i < guard->used; i++) {
        if (guard->at[i].fd == fd) {
            return &guard->at[i];
        }
    }
    return NULL;
}

static void set_suspect(struct roll_guard *guard, struct roll_guarded *c, bool suspect)
{
    guard->suspects += (size_t)suspect - (size_t)c->suspect;
    c->suspect = suspect;
}

static void drop(struct roll_guard *guard, struct roll_guarded *c)
{
    set_suspect(guard, c, false);
    *c = guard->at[--guard->used];
}

void roll_guard_event(struct roll_guard *guard, uint16_t event, int fd)
{
    struct roll_guarded *c = find(guard, fd);
    if (c && (event == ZMQ_EVENT_CLOSED || event == ZMQ_EVENT_DISCONNECTED || event == ZMQ_EVENT_ACCEPTED)) {
        drop(guard, c);
    }
    struct stat st;
    if (event != ZMQ_EVENT_ACCEPTED || fstat(fd, &st) != 0) {
        return;
    }
    struct roll_guarded one = {.fd = fd, .inode = st.st_ino};
    if (received(&one, &one.base) && ROLL_GROW(guard->at, guard->room, guard->used + 1) == 0) {
        one.base = 0;
        guard->at[guard->used++] = one;
    }
}

void roll_guard_took(struct roll_guard *guard, zmq_msg_t *part)
{
    struct roll_guarded *c = guard->suspects > 0 ? find(guard, zmq_msg_get(part, ZMQ_SRCFD)) : NULL;
    if (c && c->suspect && received(c, &c->base)) {
        set_suspect(guard, c, false);
    }
}

unsigned roll_guard_look(struct roll_guard *guard)
{
    unsigned closed = 0;
    for (size_t i = guard->used; i-- > 0;) {
        struct roll_guarded *c = &guard->at[i];
        uint64_t bytes;
        if (!received(c, &bytes)) {
            drop(guard, c);
        } else if (c->suspect && bytes - c->base > ROLL_GUARD_BYTES) {
            /* Reset, when libzmq closes it: a peer that is in the middle of sending would not hear of less for minutes.
             */
            setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
            shutdown(c->fd, SHUT_RDWR);
            drop(guard, c);
            closed++;
        } else if (bytes - c->base > SUSPECT_BYTES) {
            /* A message of it that was taken meanwhile went unseen: one more look, from now on with open eyes. */
            c->base = c->suspect ? c->base : bytes;
            set_suspect(guard, c, true);
        }
    }
    guard->refused += closed;
    return closed;
}

void roll_guard_fini(struct roll_guard *guard)
{
    free(guard->at);
    memset(guard, 0, sizeof(*guard));
}
