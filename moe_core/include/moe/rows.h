/*
 * rows.h: rows that are moved without a token map: chunks into another order, rows padded and trimmed.
 *
 * A chunk map is built from the rows of each chunk and the order wanted (TransformerEngine's sort of chunks by index),
 * or from the counts of all expert-parallel ranks, so that rows received by source rank become expert-major
 * (Megatron-LM, AlltoAll dispatcher). Padding adds zeros behind the rows, so that all ranks dispatch equally many
 * (Megatron-LM #4816), or behind the rows of each expert, for types that need aligned groups. All work is enqueued on
 * the device's stream. Pointers to data are device memory, borrowed until that work has run. Rows are of any type, FP8
 * included. One thread at a time.
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

/*
 * Makes an empty chunk map for up to max_rows rows. *out is owned by the caller; borrows device. Errors: NOMEM, SHAPE.
 */
int moe_chunks_new(moe_device_t *device, int64_t max_rows, moe_chunks_t **out);
/* Frees the map and clears the pointer. NULL is allowed. */
void moe_chunks_destroy(moe_chunks_t **chunks);

/*
 * Builds the map in which chunk order[0] comes first, then chunk order[1], and so on. split [n] gives the rows of each
 * chunk; order, int32 [n], is a permutation. With slack the chunks may have fewer rows than `rows`, and the rest are
 * zero rows after the sort. Errors: MAP, SHAPE, CAPACITY; in the stream: SPLIT (the rows do not add up), EXPERT (order
 * is no permutation). After an error in the stream the map is not built.
 */
int moe_chunks_order(moe_chunks_t *chunks, const int64_t *split, const int32_t *order, int64_t n, int64_t rows,
                     bool slack);

/*
 * The counts of all ranks: counts [ranks, stride], of which the first `experts` of each line are read. rank: this rank.
 */
struct moe_chunk_counts {
    int64_t ranks, experts, stride, rank;
    const int64_t *counts;
    int64_t *m; /* out, [experts / ranks]: rows of each of this rank's experts */
};

/* Builds the map from (source rank, expert) order to expert-major order. Errors: those of moe_chunks_order. */
int moe_chunks_counts(moe_chunks_t *chunks, const struct moe_chunk_counts *counts, int64_t rows, bool slack);

/*
 * Moves rows from [rows,width] to [rows,width], and probs_from [rows] to probs_to [rows] (give both or neither).
 * `inverse` is the way back, which is also the gradient. Errors: MAP (never built, or built for another number of
 * rows), ARG, SHAPE.
 */
int moe_chunks_sort(moe_chunks_t *chunks, enum moe_dtype type, int64_t rows, int64_t width, bool inverse,
                    const void *from, void *to, const float *probs_from, float *probs_to);

/*
 * Copies from [rows,width] to [padded,width] and zeroes the rows beyond `rows`; padded >= rows. from may be to. Errors:
 * ARG, SHAPE, CAPACITY (padded < rows).
 */
int moe_rows_pad(moe_device_t *device, enum moe_dtype type, int64_t rows, int64_t padded, int64_t width,
                 const void *from, void *to);
/*
 * Copies the first `rows` rows of from [padded,width] to [rows,width]: the gradient of moe_rows_pad. Errors: those of
 * moe_rows_pad.
 */
int moe_rows_trim(moe_device_t *device, enum moe_dtype type, int64_t rows, int64_t padded, int64_t width,
                  const void *from, void *to);

/* Groups that follow one another: group i has m[i] rows, padded to a multiple of `align`. */
struct moe_row_groups {
    int64_t groups, align;
    const int64_t *m;  /* [groups] */
    int64_t *padded_m; /* out, [groups] or NULL */
};

/*
 * Pads each group, or with trim takes the padding away. The unpadded buffer has `rows` rows, the padded one `padded`
 * rows; the rows of `to` behind the last group become zero. Errors: ARG, SHAPE; in the stream: COUNT, SPLIT, CAPACITY.
 */
int moe_rows_pad_groups(moe_device_t *device, enum moe_dtype type, const struct moe_row_groups *groups, bool trim,
                        int64_t rows, int64_t padded, int64_t width, const void *from, void *to);

#ifdef __cplusplus
}
#endif
#endif
