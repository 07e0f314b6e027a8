/*
 * seats.h: who is connected to the metrics endpoint, so that nobody who comes is kept waiting by those who stay. Used
 * inside daemon/http only, on the thread of the server.
 */
#ifndef ROLL_DAEMON_HTTP_SEATS_H
#define ROLL_DAEMON_HTTP_SEATS_H

#include <stdint.h>

#define ROLL_SEATS_KEPT 24u /* connections that may stay: a new one beyond them takes the place of the oldest */
/* That the server accepts: listeners have places of their own (ROLL_PAGE_LISTENERS), and there is room for new ones
 * while old ones are closed. */
#define ROLL_SEATS_MOST 224u

struct roll_seats {
    struct roll_seat {
        int fd;         /* -1 = free */
        uint64_t since; /* order in which it came, or was last answered */
    } at[ROLL_SEATS_MOST];
    uint64_t turn;
};

void roll_seats_init(struct roll_seats *seats);
/* A connection came; where too many are there, the one that came or was answered longest ago is shut down. */
void roll_seats_take(struct roll_seats *seats, int fd);
/* A connection was answered. */
void roll_seats_answered(struct roll_seats *seats, int fd);
/* A connection is gone. */
void roll_seats_leave(struct roll_seats *seats, int fd);

#endif
