/*
 * points.h: check points of a communicator: hashes of the first calls of a window, at numbers of calls that ranks which
 * know nothing of each other choose alike.
 *
 * A window is compared when all its 64 calls are made, which takes two seconds where 31 are made in one. So whoever
 * tells of calls also tells the hash at the *roundest* number that was reached since it told last: the one that the
 * highest power of two divides. Where two tell every k calls or oftener, each tells every multiple of each power of two
 * above k, because no rounder one lies beside it: they meet after 2 k calls at most, at any speed. Smaller windows were
 * rejected: what is fast enough for 31 calls a second is too much for 500, and too slow where one is made. Pure.
 */
#ifndef ROLL_DAEMON_DIGEST_POINTS_H
#define ROLL_DAEMON_DIGEST_POINTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_POINT_ROUNDS 6u  /* powers of two that divide a number within a window */
#define ROLL_POINT_KEPT   16u /* of each; of the roundest that is the reach of 1,024 calls, of odd numbers 32 */

struct roll_point {
    uint64_t hash; /* that was told first */
    uint32_t at;   /* calls; 0: nothing was told */
    bool differs;  /* that another hash was told there has been said */
};

/* Those that were told of one communicator. Zero-initialised is empty. */
struct roll_points {
    struct roll_point point[ROLL_POINT_ROUNDS][ROLL_POINT_KEPT];
};

/* The roundest number above `from` and not above `to`, which is larger. */
uint32_t roll_point_roundest(uint32_t from, uint32_t to);
/* Takes a check point, no multiple of a window. Returns whether it is the first that differs from what was told of it
 * before. One that is older than what is kept is passed over. */
bool roll_points_take(struct roll_points *points, uint32_t at, uint64_t hash);
/* Of those above `from` and not above `to` the roundest that was told, and of these the highest; NULL: there is none.
 */
const struct roll_point *roll_points_roundest(const struct roll_points *points, uint32_t from, uint32_t to);

#endif
