/*
 * pack_coder.h: columns of bytes and bits, written or read by the same calls. Private to pack*.c.
 *
 * One function describes both directions: roll_pack_code_number writes value when the coder writes, and sets it when it
 * reads. So the model that predicts is written only once, and writer and reader cannot disagree.
 */
#ifndef ROLL_DAEMON_STORE_PACK_CODER_H
#define ROLL_DAEMON_STORE_PACK_CODER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The columns, in the order in which they stand in a PACK. */
enum roll_pack_column {
    PACK_KIND,   /* one byte a frame */
    PACK_FRAME,  /* classes of the numbers of a frame: ring, records, first, seq */
    PACK_MISS,   /* one byte a record: bits that say which fields were not predicted */
    PACK_NUMBER, /* classes of the fields of records that were not predicted */
    PACK_GAP,    /* classes of the time from the return of one call to the next */
    PACK_CALL,   /* classes of the time in calls */
    PACK_STATE,  /* classes of STATUS and TICK */
    PACK_BITS,   /* the bits of numbers below their classes */
    PACK_RAW,    /* bytes as they are: definitions, new signatures */
    PACK_COLUMNS
};

struct roll_pack_bytes {
    uint8_t *data;
    size_t used, room; /* when reading, `used` is the end of the column */
    size_t at;         /* when reading, the next byte */
};

struct roll_pack_coder {
    bool reading;
    int err; /* first error: NOMEM, CORRUPT; after it nothing is coded */
    struct roll_pack_bytes column[PACK_COLUMNS];
    uint64_t bits;
    unsigned held; /* number of bits in `bits`: written and not yet a byte, or read and not yet used */
};

void roll_pack_fail(struct roll_pack_coder *c, int err);
void roll_pack_code_bytes(struct roll_pack_coder *c, enum roll_pack_column column, void *bytes, size_t n);
void roll_pack_code_byte(struct roll_pack_coder *c, enum roll_pack_column column, uint8_t *byte);
/*
 * Codes a number near `predicted`: its signed distance as a class (bit length and the bit below the highest) in
 * `column`, the lower bits in PACK_BITS. Noise costs little more than its entropy; a number that is exactly as
 * predicted is class 0.
 */
void roll_pack_code_number(struct roll_pack_coder *c, enum roll_pack_column column, uint64_t predicted,
                           uint64_t *value);
/* Ends the bits of a block. */
void roll_pack_flush_bits(struct roll_pack_coder *c);
/* The number of bytes in all columns. */
size_t roll_pack_size(const struct roll_pack_coder *c);
void roll_pack_clear(struct roll_pack_coder *c);
void roll_pack_fini(struct roll_pack_coder *c); /* only for a writing coder, which owns its columns */

#endif
