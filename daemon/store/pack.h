/*
 * pack.h: PACK frames: many frames of a trace in one, compressed without loss. Byte by byte: docs/FRAME.md.
 *
 * A packer and an unpacker carry the predictions that they have learned from one PACK to the next, so the PACKs of a
 * segment are read in order from its first. One thread each.
 */
#ifndef ROLL_DAEMON_STORE_PACK_H
#define ROLL_DAEMON_STORE_PACK_H

#include "trace/frame.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_PACK_RECORDS     16384u               /* a PACK is closed when it holds this many records */
#define ROLL_PACK_BYTES       (1024u * 1024u)      /* a PACK is closed when it holds this many bytes before zstd */
#define ROLL_PACK_MAX_COLUMNS (6u * 1024u * 1024u) /* most bytes before zstd that a reader accepts */
#define ROLL_PACK_MAX_FRAMES  (8u * 1024u * 1024u) /* most bytes of plain frames that a reader makes of one PACK */
#define ROLL_PACK_LEVEL       3 /* level of zstd: the columns are mostly noise, in which a higher level finds no more */

/* The beginning of a PACK's payload, in front of the compressed bytes. */
struct roll_pack_head {
    uint32_t frames;  /* number of frames in the PACK, at least 1 */
    uint32_t columns; /* bytes after decompression */
};
_Static_assert(sizeof(struct roll_pack_head) == 8, "part of the format");

typedef struct roll_packer roll_packer_t;
typedef struct roll_unpacker roll_unpacker_t;

/* NULL when out of memory. */
roll_packer_t *roll_packer_new(void);
void roll_packer_destroy(roll_packer_t **packer);
/* Forgets everything, frames that wait to be packed included: the next PACK begins a segment. */
void roll_packer_reset(roll_packer_t *packer);
/*
 * Takes one frame, decoded and as it was encoded (both borrowed). PACK frames are refused (ARG). 0 or NOMEM; after
 * NOMEM the packer must be reset.
 */
int roll_packer_add(roll_packer_t *packer, const struct roll_frame *frame, const void *raw, size_t bytes);
/* The number of frames that wait; *bytes is their size before zstd; *full: they must be packed before the next frame is
 * added. */
uint32_t roll_packer_waiting(const roll_packer_t *packer, size_t *bytes, bool *full);
/*
 * Packs the waiting frames into one encoded PACK frame (`repeats`: the frames are also in earlier segments). *out
 * borrows the packer until the next call. NOTFOUND when no frame waits, NOMEM, IO (zstd).
 */
int roll_packer_finish(roll_packer_t *packer, bool repeats, const uint8_t **out, size_t *bytes);

/* NULL when out of memory. */
roll_unpacker_t *roll_unpacker_new(void);
void roll_unpacker_destroy(roll_unpacker_t **unpacker);
/*
 * Unpacks one decoded PACK frame (borrowed) into plain frames end to end; *out borrows the unpacker until the next
 * call. The number 0 in its head begins anew. Bounded in time and memory by the two limits above. Errors: ARG (no
 * PACK), INCOMPLETE (the PACK before it was not seen), LIMIT, CORRUPT, NOMEM; then the rest of the segment cannot be
 * read.
 */
int roll_unpacker_take(roll_unpacker_t *unpacker, const struct roll_frame *pack, const uint8_t **out, size_t *bytes);

#endif
