/*
 * digest_bytes.h: a digest as bytes, the payload of a DIGEST frame (docs/FRAME.md). Pure; any thread.
 */
#ifndef ROLL_DAEMON_DIGEST_DIGEST_BYTES_H
#define ROLL_DAEMON_DIGEST_DIGEST_BYTES_H

#include "daemon/digest/digest.h"

/* Of what is folded, how it is written, and what its numbers say; a newer one cannot be compared with ours. Of earlier
 * ones the windows are the same. 2: a hint that calls differ always names a whole window, which is what it says in 3,
 * too; a reader of 2 takes the check point that it may name since for a window of its own. 1: no check points, and
 * windows may come before their front. */
#define ROLL_DIGEST_VERSION 3u
#define ROLL_DIGEST_OLDEST  1u

/* How much of a digest has been written; zero-initialised: nothing. */
struct roll_digest_cursor {
    size_t windows, fronts, sums, likes, shares, hints;
};

/*
 * Writes parts of a digest from the cursor on, as many as `room` bytes hold, and moves the cursor behind them. The
 * windows of a communicator and its front go into one payload, if they fit into one (4 KiB are always enough for what a
 * level tells); in the digest they stand in the same order of communicators. Returns how many bytes were written; 0:
 * nothing is left, or `room` is too small for one part.
 */
size_t roll_digest_encode(const struct roll_digest *d, struct roll_digest_cursor *cursor, void *out, size_t room);
/*
 * Appends the parts in a payload to a digest. Borrows data, which may come from anybody. 0; SHORT, SIZE: the bytes are
 * no digest, VERSION: they are of another form, and nothing is appended; NOMEM.
 */
int roll_digest_decode(const void *data, size_t bytes, struct roll_digest *out);

#endif
