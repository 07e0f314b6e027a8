/*
 * permute.h: rows of tokens into expert order and back.
 *
 * A row map of the mask kind is int32 [T, 2E+1] on the device: columns 0..n-1 the token's rows, descending; columns
 * E..E+n-1 the experts that match; column 2E n itself; the rest is never read. Row of (t, e) = tokens of experts
 * before e + tokens before t of e: expert-major, token order kept. Source: TransformerEngine permutation (map_type
 * "mask"). Where it differs, on purpose (Megatron-LM #3626): with no rows the map is still valid, unpermute gives
 * zeros [T,H], and every shape comes from an argument, never from an operand. The handle knows its kind and shape, so
 * a pair that does not match is refused.
 */
#ifndef MOE_PERMUTE_H
#define MOE_PERMUTE_H

#include "device.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_row_map moe_row_map_t;

/* An empty map for up to max_tokens tokens. *out is owned; borrows device. Errors: NOMEM, SHAPE. One thread at
 * a time. */
int moe_row_map_new(moe_device_t *device, int64_t max_tokens, int64_t experts, moe_row_map_t **out);
void moe_row_map_destroy(moe_row_map_t **map);

/*
 * Builds the map from index [T,k] and counts [E] (device, borrowed for the call's work). `rows` is the size of the
 * permuted buffers: counts may hold more rows than the tokens fill (padding), such rows are zero. Errors: SHAPE (T),
 * CAPACITY (T k > rows); in the stream: EXPERT, CAPACITY, SPLIT (an expert's count is below the tokens that chose it).
 */
int moe_row_map_build(moe_row_map_t *map, const int32_t *index, int32_t k, int64_t tokens, const int64_t *counts,
                      int64_t rows);

/* out [rows,H] from x [T,H]; rows without a token become zero. Errors: MAP. */
int moe_permute(moe_row_map_t *map, const float *x, int64_t hidden, float *out);

/* dx [T,H] = beta dx + sum of d_out's rows of the token; beta is 0 or 1. Errors: MAP. */
int moe_permute_backward(moe_row_map_t *map, const float *d_out, int64_t hidden, float *dx, float beta);

/* y [T,H] = sum over the token's rows of probs[t,e] * in[row]; probs [T,E] or NULL for plain sums. Errors: MAP. */
int moe_unpermute(moe_row_map_t *map, const float *in, const float *probs, int64_t hidden, float *y);

/* d_in [rows,H] and d_probs [T,E] from dy [T,H] and the forward's `in` and `probs`. Every element of both is written.
 * Errors: MAP. */
int moe_unpermute_backward(moe_row_map_t *map, const float *dy, const float *in, const float *probs, int64_t hidden,
                           float *d_in, float *d_probs);

#ifdef __cplusplus
}
#endif
#endif
