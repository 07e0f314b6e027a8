/*
 * credit.h: how much an agent or a relay may have on its way: bytes that it has sent and that the other side has not
 * read.
 *
 * Each ring has a window of its own (agent_ring.h), and some hundred rings together may owe more than anybody should
 * have to hold who does not get to reading: after a pause all of them come at once. So who has sent so much waits until
 * some of it was read. What was read stands in each ACK, whose `seq` is the number of the last frame: nothing more has
 * to be asked. To let the guard's bound (guard.h) grow with what a peer has announced was rejected: announcing is
 * cheap.
 *
 * One thread.
 */
#ifndef ROLL_DAEMON_WIRE_CREDIT_H
#define ROLL_DAEMON_WIRE_CREDIT_H

#include <stdbool.h>
#include <stdint.h>

#define ROLL_CREDIT_BYTES (UINT64_C(64) << 20)
#define ROLL_CREDIT_MARKS 128u

/* All zero: nothing is on its way. */
struct roll_credit {
    uint64_t sent, read; /* bytes in all; `read` is behind by what lies between two marks at most */
    uint64_t marked;     /* `sent` at the newest mark */
    uint64_t full_ns;    /* since when there is no room, and nothing was read; 0: there is */
    struct {
        uint64_t seq, sent;
    } mark[ROLL_CREDIT_MARKS]; /* a ring */
    unsigned first, marks;
};

/* A frame of so many bytes was sent with this number. */
void roll_credit_sent(struct roll_credit *credit, uint64_t seq, uint64_t bytes);
/* The other side has read all frames up to this number, or they are lost and will be sent anew. */
void roll_credit_read(struct roll_credit *credit, uint64_t seq);
/* More may be sent. Where nothing was acknowledged for long, it may as well: the other side refuses what it reads, and
 * what it cannot hold is its guard's affair. */
bool roll_credit_has(struct roll_credit *credit);
/* The other side has a megabyte and more to read. */
bool roll_credit_is_used(const struct roll_credit *credit);

#endif
