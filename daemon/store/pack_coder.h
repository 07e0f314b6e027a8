/*
 * pack_coder.h: columns of bytes and bits, written or read by the same calls. Private to pack*.c.
 *
 * One function describes both directions: code_number(c, column, predicted, &value) writes value when the coder writes,
 * and sets it when it reads. So the model that predicts is written once, and a writer and a reader that disagree cannot
 * be had.
 */
#ifndef ROLL_DAEMON_PACK_CODER_H
#define ROLL_DAEMON_PACK_CODER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* In the order in which they stand in a PACK. */
enum roll_pack_column {
    PACK_KIND,   /* one byte a frame */
    PACK_FRAME,  /* classes of the numbers of a frame: ring, records, first, seq */
    PACK_MISS,   /* one byte a record: what was not as predicted */
    PACK_NUMBER, /* classes of what was not */
    PACK_GAP,    /* classes of the time from the return of one call to the next */
    PACK_CALL,   /* classes of the time in calls */
    PACK_STATE,  /* classes of STATUS and TICK */
    PACK_BITS,   /* what the classes leave open, as bits */
    PACK_RAW,    /* bytes as they are: definitions, new signatures */
    PACK_COLUMNS
};

struct roll_pack_bytes {
    uint8_t *data;
    size_t used, room; /* reading: used = end, at = where we are */
    size_t at;
};

struct roll_pack_coder {
    bool reading;
    int err; /* the first: NOMEM, CORRUPT; nothing is coded behind it */
    struct roll_pack_bytes column[PACK_COLUMNS];
    uint64_t bits;
    unsigned held; /* bits in `bits`: written and not yet a byte, or read and not yet used */
};

void roll_pack_fail(struct roll_pack_coder *c, int err);
void roll_pack_code_bytes(struct roll_pack_coder *c, enum roll_pack_column column, void *bytes, size_t n);
void roll_pack_code_byte(struct roll_pack_coder *c, enum roll_pack_column column, uint8_t *byte);
/*
 * A number near `predicted`: its signed distance as a class (bit length and the bit below the highest) in `column`, the
 * bits below in PACK_BITS. Noise costs its entropy and little more; what is exactly as predicted is class 0.
 */
void roll_pack_code_number(struct roll_pack_coder *c, enum roll_pack_column column, uint64_t predicted,
                           uint64_t *value);
/* Ends the bits of a block. */
void roll_pack_flush_bits(struct roll_pack_coder *c);
/* Bytes in all columns. */
size_t roll_pack_size(const struct roll_pack_coder *c);
void roll_pack_clear(struct roll_pack_coder *c);
void roll_pack_fini(struct roll_pack_coder *c); /* of a writing coder: it owns its columns */

#endif
