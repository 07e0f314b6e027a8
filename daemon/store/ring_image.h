/*
 * ring_image.h: the tail of a ring as few bytes that travel: a ring file with fewer records than the ring, compressed.
 * Pure; any thread.
 *
 * The image is a whole ring of its own (docs/RING.md): each record has its ticket, so whoever reads it counts what is
 * missing as records that were overwritten.
 */
#ifndef ROLL_DAEMON_STORE_RING_IMAGE_H
#define ROLL_DAEMON_STORE_RING_IMAGE_H

#include "trace/ring.h"

#include <stddef.h>
#include <stdint.h>

#define ROLL_RING_IMAGE_RECORDS 32768u /* most records of an image */
#define ROLL_RING_IMAGE_BYTES                                                                                          \
    (UINT64_C(72) << 20) /* most bytes of one, unpacked: a ring's definitions may be 64 MiB                            \
                          */

struct roll_ring_image {
    uint8_t *bytes; /* owned by the caller */
    size_t used;
    uint32_t records; /* of which the image has room */
    uint64_t head;    /* tickets that the ring had handed out */
};

/*
 * Makes an image of the newest records: of `records` at most (rounded down to a power of two, 64 at least), and of as
 * few as it takes to be no larger than `most` bytes. Beside the ring's writer. 0; NOMEM; SIZE: the definitions alone
 * are too large.
 */
int roll_ring_image_make(const struct roll_ring *ring, uint32_t records, size_t most, struct roll_ring_image *out);

/*
 * Unpacks an image (hostile): *data, owned by the caller, is a ring that roll_ring_view takes. NOMEM; CORRUPT; SIZE:
 * more than ROLL_RING_IMAGE_BYTES; the errors of roll_ring_check.
 */
int roll_ring_image_open(const void *image, size_t bytes, uint8_t **data, size_t *size);

#endif
