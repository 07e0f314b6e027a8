/*
 * rows.h: rows that are moved without a token map: chunks into another order, rows padded and trimmed.
 *
 * A chunk map comes from the rows of each chunk and the order wanted (TransformerEngine's sort of chunks by index), or
 * from the counts of all expert-parallel ranks: what was received by source rank then becomes expert-major
 * (Megatron-LM, AlltoAll dispatcher). Padding: zeros behind the rows, so that all ranks dispatch equally many
 * (Megatron-LM #4816), or behind the rows of each expert, for types that need aligned groups. Everything is enqueued on
 * the device's stream; pointers to data are device memory; rows are of any type, FP8 included; one thread at a time.
 */
#ifndef MOE_ROWS_H
#define MOE_ROWS_H

#include "device.h"
#include "dtype.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_chunks moe_chunks_t;

/* An empty chunk map for up to max_rows rows. *out is owned; borrows device. Errors: NOMEM, SHAPE. */
int moe_chunks_new(moe_device_t *device, int64_t max_rows, moe_chunks_t **out);
void moe_chunks_destroy(moe_chunks_t **chunks);

/*
 * Chunk order[0] comes first, then chunk order[1], ...; split [n] rows of each, order int32 [n] a permutation. slack:
 * the chunks may have fewer rows than `rows`, the rest are zero rows after the sort. Errors: MAP, SHAPE, CAPACITY; in
 * the stream: SPLIT (the rows do not add up), EXPERT (order is no permutation). After those there is no map.
 */
int moe_chunks_order(moe_chunks_t *chunks, const int64_t *split, const int32_t *order, int64_t n, int64_t rows,
                     bool slack);

/* What the counts of all ranks say: counts [ranks, stride], of which the first `experts` of each line are read. */
struct moe_chunk_counts {
    int64_t ranks, experts, stride, rank;
    const int64_t *counts;
    int64_t *m; /* out, [experts / ranks]: rows of each of this rank's experts */
};

/* From (source rank, expert) order to expert-major order. Errors as above. */
int moe_chunks_counts(moe_chunks_t *chunks, const struct moe_chunk_counts *counts, int64_t rows, bool slack);

/* to [rows,width] from `from`, and probs_to [rows] from probs_from (both or neither); inverse: the way back, which is
 * also the gradient. Errors: MAP (never built, or for other rows), ARG, SHAPE. */
int moe_chunks_sort(moe_chunks_t *chunks, enum moe_dtype type, int64_t rows, int64_t width, bool inverse,
                    const void *from, void *to, const float *probs_from, float *probs_to);

/* to [padded,width] = from [rows,width] and zeros; padded 0 or more beyond rows. from may be to. Errors: ARG, SHAPE,
 * CAPACITY (fewer padded rows than rows). */
int moe_rows_pad(moe_device_t *device, enum moe_dtype type, int64_t rows, int64_t padded, int64_t width,
                 const void *from, void *to);
/* to [rows,width] = the first rows of from [padded,width]: pad's gradient. Errors as above. */
int moe_rows_trim(moe_device_t *device, enum moe_dtype type, int64_t rows, int64_t padded, int64_t width,
                  const void *from, void *to);

/* Groups that follow one another: group i has m[i] rows, padded to a multiple of `align`. */
struct moe_row_groups {
    int64_t groups, align;
    const int64_t *m;  /* [groups] */
    int64_t *padded_m; /* out, [groups] or NULL */
};

/* Pads each group (trim: takes the padding away); the buffers have `rows` rows unpadded and `padded` rows padded, what
 * is left of `to` behind the last group becomes zero. Errors: ARG, SHAPE; in the stream: COUNT, SPLIT, CAPACITY. */
int moe_rows_pad_groups(moe_device_t *device, enum moe_dtype type, const struct moe_row_groups *groups, bool trim,
                        int64_t rows, int64_t padded, int64_t width, const void *from, void *to);

#ifdef __cplusplus
}
#endif
#endif
