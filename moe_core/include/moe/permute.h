/*
 * permute.h: rows of tokens into expert order and back.
 *
 * A row map says which row of the permuted buffer each (token, expert) has. Row = the rows reserved for experts before
 * e, plus the tokens before t that chose e: the rows are expert-major and keep the order of tokens. There are three
 * kinds of map, as in the frameworks. They give the same results in every bit: a token's rows are summed in float32,
 * highest row first, and cast once.
 *
 *   MASK    int32 [T, 2E+1]: columns 0..n-1 hold the token's rows, descending; columns E..E+n-1 their experts; column
 * 2E is n; the rest is never read. TransformerEngine, map_type "mask". INDEX   int32 [k][T] rows (k-major, -1:
 * dropped), then int32 [k][T] experts. TransformerEngine, map_type "index". SORTED  int32 [R]: the flat choice t k + j
 * that each row comes from, -1: padding; then the cells of INDEX, so that the way back is a gather too. Megatron-LM's
 * unfused argsort and index_select; its scatter-add is not copied, because atomic sums differ from run to run.
 *
 * The device buffer of a map begins with a header (magic, kind, T, E, k, R). The stream compares the header with the
 * arguments before it follows any row number, and each row number with R before it follows that number. So a map that
 * is foreign, stale or failed is error MAP in the stream and nothing is written, and a pair of different kinds is
 * refused at once.
 *
 * These functions differ from the originals on purpose (Megatron-LM #3626, TransformerEngine #3346): every shape comes
 * from an argument, never from an operand, so that with no rows the map is valid, unpermute stores zeros [T,H] and
 * every gradient has its full shape; 0 rows can be asked for; and a row beyond the buffer is error CAPACITY instead of
 * a write.
 *
 * All pointers to data are device memory, borrowed until the enqueued work has run. Rows are F32, BF16 or F16,
 * probabilities float32. Each handle: one thread at a time. Work is enqueued on the device's stream.
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

/* The beginning of a map's device buffer; the int32 cells follow without a gap. A map that failed has magic 0. */
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

/*
 * The size of a map's device buffer in bytes, header and cells. Pass 0 for shapes that the kind does not use. Any
 * thread.
 */
size_t moe_map_bytes(enum moe_map_kind kind, int64_t tokens, int64_t experts, int32_t k, int64_t rows);

/*
 * The kind's name: "mask", "index", "sorted" or "chunk"; "?" for a number that is no kind. Any thread; static storage.
 */
const char *moe_map_kind_name(enum moe_map_kind kind);

/* The layout of probabilities: [T,E] as the router gives them, or [T,k] by choice (not with a MASK map). */
enum moe_prob_layout { MOE_PROBS_BY_EXPERT = 0, MOE_PROBS_BY_CHOICE = 1 };

typedef struct moe_row_map moe_row_map_t;

struct moe_row_map_config {
    enum moe_map_kind kind; /* not CHUNK */
    int64_t max_tokens, experts;
    int32_t k;        /* INDEX, SORTED: the most choices of a token */
    int64_t max_rows; /* SORTED: the most rows; 0: max_tokens * k */
    bool pooled; /* the map's memory is taken from the device's pool by each build, for the tokens that there are, and
                    goes back with moe_row_map_drop; otherwise it is made once for max_tokens */
};

/* Makes an empty map of any kind. *out is owned by the caller; borrows device. Errors: NOMEM, SHAPE. */
int moe_row_map_create(moe_device_t *device, const struct moe_row_map_config *config, moe_row_map_t **out);
/* Makes an empty MASK map. *out is owned by the caller; borrows device. Errors: NOMEM, SHAPE. */
int moe_row_map_new(moe_device_t *device, int64_t max_tokens, int64_t experts, moe_row_map_t **out);
/* Frees the map and clears the pointer. NULL is allowed. */
void moe_row_map_destroy(moe_row_map_t **map);
/*
 * Gives the memory of a pooled map back to the pool: the map is one that was never built. Movements that are enqueued
 * still run. Does nothing for NULL and for other maps.
 */
void moe_row_map_drop(moe_row_map_t *map);

/*
 * The source of a map: the choices, as index [T,k] (-1: none) or as a routing map `mask` [T,E] (not 0: chosen), and the
 * number of rows of each expert. That number is, in this order of precedence: `capacity` (drop-and-pad); counts [E];
 * the tokens that chose the expert, rounded up to a multiple of `align` (pad offsets; 0 and 1: no rounding). Rows
 * without a token are padding: they are zero after permute, and no token reads them.
 */
struct moe_map_source {
    const int32_t *index;
    const uint8_t *mask;
    const int64_t *counts;
    int64_t align;
    int64_t capacity; /* rows of each expert; 0: not set */
    bool drop;        /* choices beyond an expert's rows, or beyond the buffer's, are dropped, last tokens first;
                         otherwise they are error SPLIT or CAPACITY in the stream */
    int64_t *chosen;  /* out, [E] or NULL: tokens that chose each expert, dropped ones included */
    int64_t *m;       /* out, [E] or NULL: rows of each expert, padding included */
};

/*
 * Builds the map of `tokens` tokens with at most k choices each, for buffers of `rows` rows, which may be more than are
 * routed. k must not exceed E; a MASK map from a routing map takes k = 0 (any). Borrows the pointers of `source` until
 * the enqueued work has run. Errors: MAP (handle), SHAPE, ARG, CAPACITY (the host can tell that there are too many
 * rows); in the stream: EXPERT (an index out of range, twice in a token, or more than k choices), COUNT, SPLIT (fewer
 * rows for an expert than tokens that chose it), CAPACITY (more rows than the buffer has). After an error in the stream
 * the map is invalid: every use of it is error MAP and writes nothing.
 */
int moe_row_map_build_from(moe_row_map_t *map, const struct moe_map_source *source, int32_t k, int64_t tokens,
                           int64_t rows);

/*
 * Builds the map from index [T,k] and counts [E], as moe_row_map_build_from does. More choices than rows are refused at
 * once. Errors: those of moe_row_map_build_from.
 */
int moe_row_map_build_index(moe_row_map_t *map, const int32_t *index, int32_t k, int64_t tokens, const int64_t *counts,
                            int64_t rows);

/* The device buffer of a built map, borrowed; NULL for a map that is not built. */
const struct moe_map_header *moe_row_map_buffer(const moe_row_map_t *map);
/* The kind of the map. */
enum moe_map_kind moe_row_map_kind(const moe_row_map_t *map);

/*
 * What a movement is about. The caller says which map it means: a handle that is destroyed, never built, or of another
 * kind, T or R is error MAP.
 */
struct moe_movement {
    enum moe_map_kind kind;
    enum moe_dtype type; /* of x, y, rows and their gradients */
    int64_t tokens, rows, hidden;
    enum moe_prob_layout layout;
    bool zero_by_prob; /* permute: a row whose probability is exactly 0 is a zero row (TransformerEngine's convention
                          for padded routing maps), and its gradient is not passed on */
};

/*
 * Computes out [R,H] from x [T,H], padding rows zero, and with probs also row_probs [R], 0 for padding rows. Give both
 * probs and row_probs, or neither; zero_by_prob needs probs, with or without row_probs. Errors: MAP, ARG, SHAPE.
 */
int moe_map_permute(moe_row_map_t *map, const struct moe_movement *move, const void *x, const float *probs, void *out,
                    float *row_probs);

/*
 * Computes dx [T,H] = beta dx + the sum of d_out over the token's rows, beta 0 or 1; and, unless NULL, d_probs ([T,E]
 * or [T,k], every element written) from d_row_probs [R]. `probs` are those of forward, read only with zero_by_prob.
 * Errors: MAP, ARG, SHAPE.
 */
int moe_map_permute_backward(moe_row_map_t *map, const struct moe_movement *move, const void *d_out,
                             const float *d_row_probs, const float *probs, float beta, void *dx, float *d_probs);

/*
 * Computes y [T,H] = the sum over the token's rows of probs * in[row]; probs = NULL: plain sums. zero_by_prob is
 * ignored. Errors: MAP, ARG, SHAPE.
 */
int moe_map_unpermute(moe_row_map_t *map, const struct moe_movement *move, const void *in, const float *probs, void *y);

/*
 * Computes d_in [R,H] and d_probs from dy [T,H] and forward's `in` and probs; every element of both is written. Where
 * probs is NULL, only d_in is computed, and `in` and d_probs must be NULL. Errors: MAP, ARG, SHAPE.
 */
int moe_map_unpermute_backward(moe_row_map_t *map, const struct moe_movement *move, const void *dy, const void *in,
                               const float *probs, void *d_in, float *d_probs);

/*
 * moe_map_permute in float32 over the map as it was built, without probabilities; `hidden` is H. The three functions
 * below are the other movements in float32, with probs [T,E]. Errors: as above.
 */
int moe_permute(moe_row_map_t *map, const float *x, int64_t hidden, float *out);
int moe_permute_backward(moe_row_map_t *map, const float *d_out, int64_t hidden, float *dx, float beta);
int moe_unpermute(moe_row_map_t *map, const float *in, const float *probs, int64_t hidden, float *y);
int moe_unpermute_backward(moe_row_map_t *map, const float *dy, const float *in, const float *probs, int64_t hidden,
                           float *d_in, float *d_probs);

#ifdef __cplusplus
}
#endif
#endif
