/*
 * permute.h: rows of tokens into expert order and back, chunks of rows into another order, rows padded and trimmed.
 *
 * A row map says which row of the permuted buffer each (token, expert) has. Row = rows reserved for experts before e +
 * tokens before t of e: expert-major, token order kept, whatever the kind. There are three kinds, as in the frameworks
 * (moe.md 2.1, 2.2, 2.5), and they give the same results in every bit: a token's rows are summed in float32, highest
 * row first, and cast once.
 *
 *   MASK    int32 [T, 2E+1]: columns 0..n-1 the token's rows, descending; E..E+n-1 their experts; 2E is n; the rest is
 *           never read. TransformerEngine, map_type "mask".
 *   INDEX   int32 [k][T] rows (k-major, -1: dropped), then int32 [k][T] experts. TransformerEngine, map_type "index".
 *   SORTED  int32 [R]: the flat choice t k + j that each row comes from, -1: padding; then what INDEX holds, so that
 *           the way back is a gather too. Megatron-LM's unfused argsort and index_select; its scatter-add is not
 *           copied: atomic sums differ from run to run.
 *
 * The buffer on the device begins with a header (magic, kind, T, E, k, R), which the stream compares with the
 * arguments before it follows a row number; a row number is compared with R before it is followed. So a foreign, stale
 * or failed map is error MAP in the stream and nothing is written, and a pair of different kinds is refused at once.
 *
 * Where this differs from the originals, on purpose (Megatron-LM #3626, TransformerEngine #3346): every shape comes
 * from an argument, never from an operand, so that with no rows the map is valid, unpermute stores zeros [T,H] and
 * every gradient has its full shape; 0 rows can be said; a row beyond the buffer is error CAPACITY, not a write.
 *
 * All pointers to data are device memory; rows are of any of F32, BF16, F16, probabilities float32. One thread at a
 * time for each handle. Work is enqueued on the device's stream.
 */
#ifndef MOE_PERMUTE_H
#define MOE_PERMUTE_H

#include "device.h"
#include "dtype.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum moe_map_kind { MOE_MAP_MASK = 0, MOE_MAP_INDEX = 1, MOE_MAP_SORTED = 2, MOE_MAP_CHUNK = 3, MOE_MAP_KINDS };

#define MOE_MAP_MAGIC 0x4d70614du /* "MapM" */

/* What a map's device buffer begins with; the int32 cells follow at once. A map that failed has magic 0. */
struct moe_map_header {
    uint32_t magic; /* MOE_MAP_MAGIC */
    int32_t kind;   /* enum moe_map_kind */
    int32_t k;      /* INDEX, SORTED; else 0 */
    int32_t reserved;
    int64_t tokens;  /* T; CHUNK: 0 */
    int64_t experts; /* E; CHUNK: 0 */
    int64_t rows;    /* R, padding included */
    int64_t routed;  /* rows that have a token */
    int64_t unused[2];
};

/* Bytes of the device buffer of a map: header and cells. Unused shapes are 0. Any thread. */
size_t moe_map_bytes(enum moe_map_kind kind, int64_t tokens, int64_t experts, int32_t k, int64_t rows);

/* "mask", "index", "sorted", "chunk" or "?". Static storage. */
const char *moe_map_kind_name(enum moe_map_kind kind);

/* How probabilities lie: [T,E] as the router gives them, or [T,k] by choice (not with a MASK map). */
enum moe_prob_layout { MOE_PROBS_BY_EXPERT = 0, MOE_PROBS_BY_CHOICE = 1 };

typedef struct moe_row_map moe_row_map_t;

struct moe_row_map_config {
    enum moe_map_kind kind; /* not CHUNK */
    int64_t max_tokens, experts;
    int32_t k;        /* INDEX, SORTED: most choices of a token */
    int64_t max_rows; /* SORTED: most rows; 0: max_tokens * k */
};

/* An empty map. *out is owned; borrows device. Errors: NOMEM, SHAPE. */
int moe_row_map_create(moe_device_t *device, const struct moe_row_map_config *config, moe_row_map_t **out);
/* The same for a MASK map. */
int moe_row_map_new(moe_device_t *device, int64_t max_tokens, int64_t experts, moe_row_map_t **out);
void moe_row_map_destroy(moe_row_map_t **map);

/*
 * What a map is built from: the choices, as index [T,k] (-1: none) or as a routing map [T,E] (not 0: chosen), and how
 * many rows each expert has. Rows of an expert, in this order of precedence: `capacity` each (drop-and-pad), counts
 * [E], else as many as chose it, rounded up to a multiple of `align` (pad offsets; 0 and 1: none). Rows without a
 * token are padding: zero after permute, never seen by a token.
 */
struct moe_map_source {
    const int32_t *index;
    const uint8_t *mask;
    const int64_t *counts;
    int64_t align;
    int64_t capacity; /* 0: none */
    bool drop;        /* choices beyond an expert's rows, or beyond the buffer's, are dropped, last tokens first;
                         otherwise they are error SPLIT or CAPACITY in the stream */
    int64_t *chosen;  /* out, [E] or NULL: tokens that chose each expert, dropped ones included */
    int64_t *m;       /* out, [E] or NULL: rows of each expert, padding included */
};

/*
 * Builds the map of `tokens` tokens with at most k choices each in buffers of `rows` rows; rows may be more than are
 * routed. k is E or less; a MASK map from a routing map takes k = 0 (any). Errors: MAP (handle), SHAPE, ARG, CAPACITY
 * (known now to be too many); in the stream: EXPERT (out of range, or twice in a token, or more than k), COUNT, SPLIT
 * (an expert's rows are fewer than the tokens that chose it), CAPACITY (the experts' rows are more than the buffer's).
 * After an error in the stream the map is invalid: every use of it is error MAP and writes nothing.
 */
int moe_row_map_build_from(moe_row_map_t *map, const struct moe_map_source *source, int32_t k, int64_t tokens,
                           int64_t rows);

/* The same from index [T,k] and counts [E]; more choices than rows are refused at once (CAPACITY). */
int moe_row_map_build(moe_row_map_t *map, const int32_t *index, int32_t k, int64_t tokens, const int64_t *counts,
                      int64_t rows);

/* The device buffer, borrowed, and its kind; NULL for a map that is not built. */
const struct moe_map_header *moe_row_map_buffer(const moe_row_map_t *map);
enum moe_map_kind moe_row_map_kind(const moe_row_map_t *map);

/*
 * What each movement is about. The caller says which map it means: a handle that is destroyed, never built, or of
 * another kind, T or R is error MAP.
 */
struct moe_movement {
    enum moe_map_kind kind;
    enum moe_dtype type; /* of x, y, rows and their gradients */
    int64_t tokens, rows, hidden;
    enum moe_prob_layout layout;
    bool zero_by_prob; /* permute: a row whose probability is exactly 0 is a zero row (TransformerEngine's convention
                          for padded routing maps), and its gradient is not passed on */
};

/* out [R,H] from x [T,H], padding rows zero; with probs also row_probs [R], 0 for padding. probs and row_probs or both
 * NULL (probs alone where zero_by_prob asks). Errors: MAP, ARG, SHAPE. */
int moe_map_permute(moe_row_map_t *map, const struct moe_movement *move, const void *x, const float *probs, void *out,
                    float *row_probs);

/* dx [T,H] = beta dx + sum of d_out's rows of the token, beta 0 or 1; d_probs ([T,E] or [T,k], every element written,
 * or NULL) from d_row_probs [R]. probs: the forward's, read only with zero_by_prob. Errors: MAP, ARG, SHAPE. */
int moe_map_permute_backward(moe_row_map_t *map, const struct moe_movement *move, const void *d_out,
                             const float *d_row_probs, const float *probs, float beta, void *dx, float *d_probs);

/* y [T,H] = sum over the token's rows of probs * in[row]; probs NULL: plain sums. zero_by_prob is ignored. Errors: MAP,
 * ARG, SHAPE. */
int moe_map_unpermute(moe_row_map_t *map, const struct moe_movement *move, const void *in, const float *probs, void *y);

/* d_in [R,H] and d_probs from dy [T,H] and the forward's `in` and probs; every element of both is written. probs NULL:
 * d_in alone, `in` and d_probs NULL. Errors: MAP, ARG, SHAPE. */
int moe_map_unpermute_backward(moe_row_map_t *map, const struct moe_movement *move, const void *dy, const void *in,
                               const float *probs, void *d_in, float *d_probs);

/* The four movements in float32 over the map as it was built, with probs [T,E]. */
int moe_permute(moe_row_map_t *map, const float *x, int64_t hidden, float *out);
int moe_permute_backward(moe_row_map_t *map, const float *d_out, int64_t hidden, float *dx, float beta);
int moe_unpermute(moe_row_map_t *map, const float *in, const float *probs, int64_t hidden, float *y);
int moe_unpermute_backward(moe_row_map_t *map, const float *dy, const float *in, const float *probs, int64_t hidden,
                           float *d_in, float *d_probs);

#ifdef __cplusplus
}
#endif
#endif
