/*
 * seats.c: see seats.h. A limit alone was rejected: forty connections that send a byte every few seconds would hold all
 * places, and a limit for each connection's time alone lets them come back faster than they go. The oldest one goes, so
 * whoever asks and reads at once is served, whatever the others do.
 */
#include "daemon/http/seats.h"

#include <stddef.h>
#include <sys/socket.h>

void roll_seats_init(struct roll_seats *seats)
{
    *seats = (struct roll_seats){.turn = 0};
    for (size_t i = 0; i < ROLL_SEATS_MOST; i++) {
        seats->at[i].fd = -1;
    }
}

static struct roll_seat *find(struct roll_seats *seats, int fd)
{
    for (size_t i = 0; i < ROLL_SEATS_MOST; i++) {
        if (seats->at[i].fd == fd) {
            return &seats->at[i];
        }
    }
    return NULL;
}

void roll_seats_take(struct roll_seats *seats, int fd)
{
    struct roll_seat *unused = find(seats, -1), *oldest = NULL;
    unsigned used = 0;
    for (size_t i = 0; i < ROLL_SEATS_MOST; i++) {
        struct roll_seat *s = &seats->at[i];
        used += s->fd >= 0;
        oldest = s->fd >= 0 && (!oldest || s->since < oldest->since) ? s : oldest;
    }
    if (oldest && used >= ROLL_SEATS_KEPT) {
        shutdown(oldest->fd, SHUT_RDWR); /* the server sees its end, and closes it */
        oldest->fd = -1;
        unused = unused ? unused : oldest;
    }
    if (unused) {
        *unused = (struct roll_seat){.fd = fd, .since = ++seats->turn};
    }
}

void roll_seats_answered(struct roll_seats *seats, int fd)
{
    struct roll_seat *s = find(seats, fd);
    if (s) {
        s->since = ++seats->turn;
    }
}

void roll_seats_leave(struct roll_seats *seats, int fd)
{
    struct roll_seat *s = find(seats, fd);
    if (s) {
        s->fd = -1;
    }
}
