/*
 * ops.h: the table of functions behind which the back ends are interchangeable.
 *
 * Every function of the table enqueues on the device's stream and returns 0 or the error of the launch. Matrices are
 * row-major, float32 unless a type says otherwise; all pointers are device memory, borrowed until the enqueued work has
 * run. Callers have checked shapes. Row and element numbers have 64 bits: rows x width may exceed 2^31. One thread at a
 * time, the device's. A new back end fills in the table and nothing else.
 */
#ifndef MOE_OPS_H
#define MOE_OPS_H

#include "activation.h"
#include "device.h"
#include "dtype.h"
#include "fp8.h"
#include "permute.h"
#include "router.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* c[m,n] = alpha * op(a)[m,k] * op(b)[k,n] + beta * c */
struct moe_gemm {
    bool ta, tb;
    int64_t m, n, k;
    float alpha, beta;
    const float *a, *b;
    float *c;
};

enum moe_grouped_kind {
    MOE_GROUPED_FORWARD, /* out_i[m_i,n] = in_i[m_i,k] w_i[n,k]^T */
    MOE_GROUPED_DGRAD,   /* out_i[m_i,k] = in_i[m_i,n] w_i[n,k] */
    MOE_GROUPED_WGRAD,   /* out_i[n,k] = beta * out_i + in_i[m_i,n]^T x_i[m_i,k] */
};

/*
 * One product per group; the rows of group i begin at the prefix sum of m. Rows beyond the sum of m are never read or
 * written.
 */
struct moe_grouped {
    enum moe_grouped_kind kind;
    int64_t groups, n, k;
    int64_t rows;     /* rows of the buffers; the sum of m must not exceed it */
    const int64_t *m; /* [groups], device */
    const float *in;
    const float *w; /* [groups, n, k] */
    const float *x; /* WGRAD only */
    float *out;
    float beta; /* WGRAD only, 0 or 1: for a group without rows, 0 stores zeros and 1 leaves the slice bitwise unchanged
                 */
};

/* How scores become a choice and weights; the table is in router.h. */
struct moe_scoring {
    enum moe_score score;
    bool after, renormalise;
    float scale;
    int32_t groups, group_topk; /* groups <= 1: no limit */
};

/* Scores and chooses: router.h. */
struct moe_topk {
    int64_t tokens, experts;
    int32_t k;
    struct moe_scoring how;
    const float *gate_bias;   /* [E] or NULL: added to logits, in place */
    const float *expert_bias; /* [E] or NULL */
    float *logits;            /* [T,E] */
    float *scores;            /* [T,E], kept for backward */
    float *probs;             /* [T,E]: weight of each chosen expert, 0 elsewhere */
    int32_t *index;           /* [T,k]: chosen experts, best first; ties: lowest index first */
    int64_t *counts;          /* [E]: tokens that chose the expert */
};

/* The gradient of moe_topk, from d_probs to d_logits. */
struct moe_topk_backward {
    int64_t tokens, experts;
    int32_t k;
    struct moe_scoring how;
    const float *logits, *scores, *probs, *d_probs;
    const int32_t
        *index; /* [T,k]; -1: dropped: its d_probs is ignored, but its score still counts in a renormalised sum */
    const int32_t *all; /* [T,k]: the choice before anything was dropped */
    float *d_logits;    /* overwritten */
};

/* Drops choices beyond the capacity (router.h); probs, index and counts [E] are changed in place. */
struct moe_drop {
    int64_t tokens, experts, capacity;
    int32_t k;
    bool by_position, pad;
    float *probs;
    int32_t *index;
    int64_t *counts;
};

/* counts[b, e] = tokens of sequence b that chose e; token t belongs to sequence t mod sequences. */
struct moe_count_sequences {
    int64_t tokens, experts, sequences;
    int32_t k;
    const int32_t *index;
    int64_t *counts;
};

/* to[i] += from[i] */
struct moe_add_counts {
    int64_t count;
    const int64_t *from;
    int64_t *to;
};

/*
 * The auxiliary losses of router.h and their gradients. Where a coefficient is 0, the pointers of its loss are not
 * read.
 */
struct moe_balance {
    int64_t tokens, experts;
    int32_t k;
    enum moe_score score;
    float coeff[MOE_LOSSES];
    int64_t sequences, ranks, microbatches;
    const float *logits, *scores;
    const int64_t *counts;          /* [E], over the group */
    const int64_t *sequence_counts; /* [sequences, E], over the group */
    const int64_t *global_counts;   /* [E], over the group and `microbatches` */
    float *losses;                  /* forward: [MOE_LOSSES], overwritten */
    float loss_scale;               /* backward */
    float *d_logits;                /* backward: added to */
};

/* bias[e] += rate * sign(sum of counts - E counts[e]), after which counts are 0. */
struct moe_bias_update {
    int64_t experts;
    float rate;
    int64_t *counts; /* [E] */
    float *bias;     /* [E] */
};

/* out[j] += sum over rows of in[row, j] */
struct moe_column_sum {
    int64_t rows, width;
    const float *in;
    float *out;
};

/*
 * What a row map or chunk map must be (permute.h has the layouts). Every function that takes a view first compares it
 * with the header of the device buffer: a mismatch is MOE_E_MAP in the stream, and nothing is written. A row number out
 * of range is MOE_E_MAP too: the function does not follow that number, but rows with valid numbers may already have
 * been moved. All offsets have 64 bits.
 */
struct moe_map_view {
    enum moe_map_kind kind;
    int32_t k; /* INDEX, SORTED; else 0 */
    int64_t tokens, experts, rows;
    const struct moe_map_header *map; /* device: header, then int32 cells */
};

/*
 * Builds a row map (permute.h: moe_map_source). The header is written last, with magic 0 after an error. Either index
 * or mask says who chose; the other is NULL. The rows of an expert are `capacity` where that is above 0, else counts[e]
 * where counts are given, else the tokens that chose the expert, rounded up to align.
 */
struct moe_row_map_build {
    enum moe_map_kind kind;
    int64_t tokens, experts;
    int32_t k;             /* INDEX and SORTED: columns of index; from a mask: the most choices of a token */
    int64_t rows;          /* rows of the buffers; the experts' rows must not exceed it */
    const int32_t *index;  /* [T,k]; -1: no expert */
    const uint8_t *mask;   /* [T,E] */
    const int64_t *counts; /* [E] or NULL */
    int64_t align, capacity;
    bool drop;           /* choices without a row are dropped; otherwise they are SPLIT or CAPACITY */
    int64_t *chosen, *m; /* out, [E] or NULL: tokens that chose each expert, rows of each expert */
    struct moe_map_header *map;
};

/*
 * Permute: to[row] = from[token]; rows without a token become zero. Where probs are given, row_probs[row] is the row's
 * probability, 0 for rows without a token. With zero_by_prob, rows whose probability is exactly 0 become zero.
 */
struct moe_map_gather {
    struct moe_map_view view;
    enum moe_dtype type;
    int64_t width;
    const void *from; /* [T,width] */
    void *to;         /* [rows,width] */
    enum moe_prob_layout layout;
    bool zero_by_prob;
    const float *probs; /* [T,E] or [T,k], or NULL */
    float *row_probs;   /* [rows] or NULL */
};

/*
 * Unpermute, and permute's backward: to[token] = beta * to[token] + the sum over the token's rows, highest row first,
 * of (probs ? probs[token,expert] : 1) * from[row], in float32, cast once; tokens without rows add zero. With
 * zero_by_prob, probs are no factors, and rows whose probability is exactly 0 are left out of the sum.
 * d_probs[token,expert] = d_row_probs[row], and 0 elsewhere.
 */
struct moe_map_scatter {
    struct moe_map_view view;
    enum moe_dtype type;
    int64_t width;
    enum moe_prob_layout layout;
    bool zero_by_prob;
    const float *probs;       /* [T,E] or [T,k], or NULL */
    const void *from;         /* [rows,width] */
    void *to;                 /* [T,width] */
    float beta;               /* 0 or 1 */
    const float *d_row_probs; /* [rows] or NULL */
    float *d_probs;           /* in the layout of probs; NULL where d_row_probs is NULL */
};

/*
 * Unpermute's backward: d_from[row] = probs * dy[token], rows without a token zero; d_probs[token,expert] = <dy[token],
 * from[row]> in float32, and zero elsewhere.
 */
struct moe_map_scatter_backward {
    struct moe_map_view view;
    enum moe_dtype type;
    int64_t width;
    enum moe_prob_layout layout;
    const float *probs;
    const void *dy, *from; /* [T,width], [rows,width] */
    void *d_from;          /* [rows,width] */
    float *d_probs;
};

/*
 * Builds a chunk map from the counts of all ep ranks: int32 [rows], the output row of each received row so that the
 * output is expert-major; -1: none (slack). m receives the rows of each local expert.
 */
struct moe_chunk_map {
    int64_t ranks, experts, stride, rank, rows; /* stride: int64 elements per rank in `counts` */
    bool slack;            /* the chunks may have fewer rows than `rows`; otherwise that is SPLIT */
    const int64_t *counts; /* [ranks, stride] */
    int64_t *m;            /* [experts / ranks] */
    struct moe_map_header *map;
};

/*
 * Builds a chunk map from any chunks: the output is chunk order[0], then chunk order[1], and so on. order must be a
 * permutation (EXPERT).
 */
struct moe_chunk_order {
    int64_t chunks, rows;
    bool slack;
    const int64_t *split; /* [chunks]: rows of each */
    const int32_t *order; /* [chunks] */
    struct moe_map_header *map;
};

/*
 * Moves rows by a chunk map. Forward: to[map[r]] = from[r]; inverse: to[r] = from[map[r]]. Rows of `to` that receive
 * nothing become zero. Row probabilities are moved the same way.
 */
struct moe_chunk_sort {
    int64_t rows, width;
    enum moe_dtype type;
    bool inverse;
    const struct moe_map_header *map; /* kind CHUNK of `rows` rows */
    const void *from;
    void *to;
    const float *probs_from; /* [rows] or NULL */
    float *probs_to;         /* [rows]; NULL where probs_from is NULL */
};

/*
 * Copies rows and zeroes the rest: to [padded,width] = from [rows,width], then zeros. With trim: to [rows,width] = the
 * first rows of from [padded,width]. With groups, group i has m[i] rows unpadded and m[i] rounded up to align rows
 * padded; groups follow one another on both sides, and the rows of `to` behind the last group are zeroed. Any type, FP8
 * included.
 */
struct moe_pad_rows {
    enum moe_dtype type;
    bool trim;
    int64_t rows, padded, width;
    int64_t groups;    /* 0: one group of `rows` */
    const int64_t *m;  /* [groups] */
    int64_t align;     /* with groups; 0 and 1: no padding */
    int64_t *padded_m; /* out, [groups] or NULL */
    const void *from;
    void *to;
};

/*
 * Adds the zero row of remedy PAD for every rank without rows: the row is sent by the next rank, to the first expert of
 * the rank without rows. counts [ranks, stride] is changed in place.
 */
struct moe_pad_counts {
    int64_t ranks, experts, stride;
    int64_t *counts;
};

/* act = silu(gate) * up, from h = [gate | up] of width 2 * width. */
struct moe_swiglu {
    int64_t rows, width;
    const float *h;
    const float *d_act; /* backward only */
    float *out;         /* forward: act [rows,width]; backward: d_h [rows,2*width] */
};

/* data[i] *= factor. */
struct moe_scale {
    size_t count;
    float factor;
    float *data;
};

/*
 * The gated activation (activation.h). Rows past the sum of m are slack, neither read nor written.
 *
 * forward   act[r] = f(h[r]) * (probs ? probs[r] : 1)
 * backward  d_h[r] = d_act[r] * (probs ? probs[r] : 1) * f'(h[r])
 *           d_probs[r] += <d_act[r], f(h[r])>, the sum in float32
 */
struct moe_act {
    int64_t groups;   /* of m */
    const int64_t *m; /* [groups], device; NULL: no slack */
    int64_t rows, width;
    enum moe_activation kind;
    struct moe_clamp clamp; /* the numbers to use; zeros have no special meaning here */
    enum moe_dtype type;    /* of h, act, d_act, d_h */
    const void *h;          /* [rows, 2 width]: [gate | linear] */
    const float *probs;     /* [rows] or NULL */
    void *act;              /* forward: [rows,width] */
    const void *d_act;      /* backward: [rows,width] */
    void *d_h;              /* backward: [rows, 2 width] */
    float *d_probs;         /* backward: [rows], added to, or NULL */
};

/*
 * Rows times one number each; probs = NULL: 1. Rows past the sum of m are slack, neither read nor written. in and out
 * may be the same buffer.
 *
 * forward   out[r] = beta * out[r] + probs[r] * in[r]
 * backward  the same with in = d_out and out = d_in, and d_probs[r] += <in[r], x[r]>
 */
struct moe_row_scale {
    int64_t groups;
    const int64_t *m; /* [groups], device; NULL: no slack */
    int64_t rows, width;
    enum moe_dtype type; /* of in, out, x */
    const float *probs;  /* [rows] or NULL */
    const void *in;
    void *out;
    float beta;     /* 0 or 1 */
    const void *x;  /* backward: [rows,width], the rows that forward multiplied */
    float *d_probs; /* backward: [rows], added to, or NULL */
};

/*
 * The gate of a shared expert: score[t] = sigmoid(<x[t], gate>). Backward, with s = score[t] and dl = d_score[t] s (1 -
 * s): dx[t] += dl gate, d_gate += the sum of dl x[t].
 */
struct moe_token_gate {
    int64_t tokens, width;
    enum moe_dtype type, gate_type, grad; /* of x and dx; of gate; of d_gate */
    const void *x;                        /* [tokens,width] */
    const void *gate;                     /* [width] */
    float *score;                         /* [tokens]; forward: written */
    const float *d_score;                 /* backward: [tokens] */
    void *dx;                             /* backward: [tokens,width], added to */
    void *d_gate;                         /* backward: [width], beta * itself + the sum; NULL: not wanted */
    float beta;                           /* 0 or 1 */
};

/* to[i] = value. The value travels in the call, where a copy from the host would need pinned memory. */
struct moe_fill_counts {
    int64_t count, value;
    int64_t *to;
};

/* Writes zeros into the slack rows, those past the sum of m (remedy R5). */
struct moe_zero_slack {
    int64_t groups, rows, row_bytes;
    const int64_t *m;
    void *data; /* [rows, row_bytes] */
};

/*
 * The device form of Megatron-LM #4851: a zero row for every group without rows (remedy R2), decided on the device.
 * padded[i] = max(m[i], 1). map [rows + groups] gives for each row of the padded buffer its row in the unpadded one;
 * -1: a zero row; -2: slack. Errors in the stream: COUNT, SPLIT.
 */
struct moe_dummy_rows {
    int64_t groups, rows;
    const int64_t *m; /* [groups] */
    int64_t *padded;  /* [groups] */
    int64_t *map;     /* [rows + groups] */
};

/*
 * Moves rows by the map of moe_dummy_rows. Forward: to[r] = from[map[r]]; zero where map[r] is -1, untouched where it
 * is -2. Inverse: to[map[r]] = from[r] where map[r] >= 0; other rows write nothing.
 */
struct moe_pick_rows {
    int64_t rows, row_bytes; /* rows of the map */
    bool inverse;
    const int64_t *map;
    const void *from;
    void *to;
};

enum moe_linear_kind {
    MOE_LINEAR_FORWARD,
    MOE_LINEAR_DGRAD,
    MOE_LINEAR_WGRAD,
    MOE_LINEAR_BGRAD,
    MOE_LINEAR_PGRAD, /* gradient of bias_probs: float32 out[r] += bias_scale <dy[r], bias> */
};

/* The pointers of one group; the table of all groups is in device memory. */
struct moe_linear_group {
    const void *weight; /* [N,K] */
    const float *scale; /* scales of an FP8 weight, else NULL */
    const void *bias;   /* [N] or NULL */
    void *d_weight;     /* [N,K] */
    void *d_bias;       /* [N] or NULL */
};

/*
 * One pass of the grouped linear of linear.h. For groups without rows, WGRAD and BGRAD store zeros with beta 0 and do
 * nothing with beta 1. FORWARD: y[r] = x[r] w^T + bias_scale * (bias_probs ? bias_probs[r] : 1) * bias, summed in
 * float32, cast once. BGRAD: the sum of bias_probs[r] * dy[r], without bias_scale, because with expert tensor
 * parallelism each of P ranks adds 1/P of the bias while the gradient is whole. With fp8 FORWARD, DGRAD and WGRAD are
 * of rows that are rounded to FP8 (fp8.h), which the back end does itself: bfloat16 activations, e4m3 weights, n and k
 * multiples of 16. A back end that has no such product answers UNSUPPORTED, to a pass of no groups, too.
 */
struct moe_linear_pass {
    enum moe_linear_kind kind;
    int64_t groups, n, k, rows;
    const int64_t *m;                     /* [groups], device */
    const struct moe_linear_group *group; /* [groups], device */
    enum moe_dtype activation, weight, bias, grad;
    bool block_scales;
    const void *x;           /* FORWARD, WGRAD */
    const void *dy;          /* DGRAD, WGRAD, BGRAD, PGRAD */
    void *out;               /* FORWARD: y, DGRAD: dx, PGRAD: float32 [rows] */
    float beta;              /* WGRAD, BGRAD, 0 or 1 */
    const float *bias_probs; /* FORWARD, BGRAD: [rows] or NULL */
    float bias_scale;        /* FORWARD, PGRAD; 0 means 1 */
    enum moe_fp8_rows fp8;   /* FORWARD, DGRAD, WGRAD */
    enum moe_dtype fp8_grad; /* with fp8, DGRAD and WGRAD: e4m3 or e5m2 */
};

/*
 * Rounds the rows of groups to FP8 as fp8.h says; rows past the sum of m are slack, never read. to[r,c] times its scale
 * is the number. The rows of `to` are rows: scales [rows, ceil(width / 128)], with TENSOR the group's scale in all of
 * them. With `down` they are columns, and a scale is that of 128 rows in one column: to [width, pitch], scales [pitch /
 * 128, width], where group i with first row r has columns from moe_fp8_column(r, i) on (common/fp8.h), and pitch is
 * moe_fp8_pitch(rows, groups). What is of no row is left untouched. Errors in the stream: COUNT, SPLIT.
 */
struct moe_quantize {
    enum moe_fp8_rows how; /* TENSOR or BLOCKS */
    bool down;
    int64_t groups, rows, width;
    const int64_t *m;             /* [groups] */
    enum moe_dtype type, to_type; /* to_type: e4m3 or e5m2 */
    const void *from;             /* [rows,width] */
    void *to;
    float *scales;
};

/*
 * A 64-bit checksum of a tensor's bytes: the sum, modulo 2^64, over the 8-byte words w[i] (little-endian; the last one
 * filled up with zeros) of mix(w[i] + mix(i + 1)), plus mix of the number of bytes, where mix is the finaliser of a
 * 64-bit hash. The order of summands does not change a sum, so the checksum is the same on every back end and for every
 * number of threads. The hash of the position i makes exchanged words visible.
 */
struct moe_checksum {
    const void *data;
    size_t bytes;
    uint64_t *out; /* device, overwritten */
};

/* to[i] = from[i] in another element type (dtype.h says how numbers are rounded). The arrays do not overlap. */
struct moe_cast {
    int64_t count;
    enum moe_dtype from_type, to_type;
    const void *from;
    void *to;
};

/*
 * Which rank needs which token: the layout of the Flex dispatchers (dispatcher_flex.h). `ranks` = etp x ranks of ep.
 * Expert e belongs to ep rank p = e / (experts etp / ranks), so its tokens go to the ranks p etp + q for all etp ranks
 * q. A token goes to a rank once, however many of its experts are there. Tokens from `tokens` to `padded` are padding
 * and go nowhere. The choices come from index (one block), or from the routing maps of `blocks` ranks, which lie
 * `mask_stride` bytes apart; each map is [padded, mask_row] bytes, of which the first E of a line count, followed at
 * padded x mask_row by an int64, the tail of the block. Errors in the stream: EXPERT (an index out of range, or twice
 * in a token); the first number of counts is then -1, so that every rank that receives the counts knows of the error.
 */
struct moe_flex_layout {
    int64_t blocks, tokens, padded, experts, ranks, etp;
    int32_t k;
    int64_t mask_row, mask_stride;
    const int32_t *index; /* [tokens,k]; -1: no expert */
    const uint8_t *mask;
    uint8_t *map;      /* out, with index: the routing map [padded, mask_row], or NULL */
    uint8_t *to_ranks; /* out, with index: [padded, ranks], or NULL */
    int64_t *counts;   /* out: [blocks, ranks + experts + 1]: tokens to each rank, tokens of each expert, the tail (with
                          index the tail is not written) */
};

/*
 * words [padded, 2k]: for each choice of a token its expert + 1, then the bits of its float32 probability; zeros where
 * there is no choice, and for padding.
 */
struct moe_flex_pack {
    int64_t tokens, padded, experts;
    int32_t k;
    const int32_t *index; /* [tokens,k] */
    const float *probs;   /* [tokens,E] */
    int32_t *words;
};

/*
 * Unpacks the words of moe_flex_pack on the receiving rank: local experts (global number - first) as index [rows,k]
 * (-1: none, or on another rank) and as mask [rows,local], and their probabilities [rows,local], 0 where not chosen.
 */
struct moe_flex_unpack {
    int64_t rows, first, local;
    int32_t k;
    const int32_t *words; /* [rows, 2k] */
    int32_t *index;
    uint8_t *mask;
    float *probs;
};

/*
 * Converts between [rows,k] and [rows,experts]: by_expert[r, index[r,j]] = by_choice[r,j], and 0 elsewhere; inverse:
 * by_choice[r,j] = by_expert[r, index[r,j]], and 0 where the index is -1.
 */
struct moe_flex_choices {
    int64_t rows, experts;
    int32_t k;
    bool inverse;
    const int32_t *index;
    float *by_choice, *by_expert;
};

/* dropped[0] += the sum over i of max(chosen[i] - m[i], 0): the choices for which a row budget had no row. */
struct moe_flex_dropped {
    int64_t groups;
    const int64_t *chosen, *m;
    int64_t *dropped;
};

/*
 * out[0] = the sum of s(i) in[i] and out[1] = the sum of |in[i]|, in double; s(i) is 1 or -1 by the lowest bit of a
 * hash of i (mix.h). The signs are needed because the plain sum of a router's gradient is zero for every softmax. The
 * order of summation is the back end's, the same in every run.
 */
struct moe_sum_abs {
    int64_t count;
    const float *in;
    double *out; /* device [2], overwritten */
};

/* out[0] = elements of in [groups, elements] that are not finite; out[1] = those of them in groups with m[i] = 0. */
struct moe_not_finite {
    int64_t groups, elements;
    const float *in;
    const int64_t *m; /* [groups] or NULL: none is empty */
    uint64_t *out;    /* device [2], overwritten */
};

/* The table of a back end. The comment of each struct of arguments says what its function does. */
struct moe_ops {
    const char *name;
    int (*zero)(moe_device_t *device, void *data, size_t bytes);
    int (*gemm)(moe_device_t *device, const struct moe_gemm *args);
    int (*grouped)(moe_device_t *device, const struct moe_grouped *args);
    int (*linear)(moe_device_t *device, const struct moe_linear_pass *args);
    int (*quantize)(moe_device_t *device, const struct moe_quantize *args);
    int (*topk)(moe_device_t *device, const struct moe_topk *args);
    int (*topk_backward)(moe_device_t *device, const struct moe_topk_backward *args);
    int (*drop)(moe_device_t *device, const struct moe_drop *args);
    int (*count_sequences)(moe_device_t *device, const struct moe_count_sequences *args);
    int (*add_counts)(moe_device_t *device, const struct moe_add_counts *args);
    int (*balance)(moe_device_t *device, const struct moe_balance *args);
    int (*balance_backward)(moe_device_t *device, const struct moe_balance *args);
    int (*bias_update)(moe_device_t *device, const struct moe_bias_update *args);
    int (*column_sum)(moe_device_t *device, const struct moe_column_sum *args);
    int (*row_map_build)(moe_device_t *device, const struct moe_row_map_build *args);
    int (*map_gather)(moe_device_t *device, const struct moe_map_gather *args);
    int (*map_scatter)(moe_device_t *device, const struct moe_map_scatter *args);
    int (*map_scatter_backward)(moe_device_t *device, const struct moe_map_scatter_backward *args);
    int (*chunk_map)(moe_device_t *device, const struct moe_chunk_map *args);
    int (*chunk_order)(moe_device_t *device, const struct moe_chunk_order *args);
    int (*chunk_sort)(moe_device_t *device, const struct moe_chunk_sort *args);
    int (*pad_rows)(moe_device_t *device, const struct moe_pad_rows *args);
    int (*pad_counts)(moe_device_t *device, const struct moe_pad_counts *args);
    int (*swiglu)(moe_device_t *device, const struct moe_swiglu *args);
    int (*swiglu_backward)(moe_device_t *device, const struct moe_swiglu *args);
    int (*scale)(moe_device_t *device, const struct moe_scale *args);
    int (*checksum)(moe_device_t *device, const struct moe_checksum *args);
    int (*cast)(moe_device_t *device, const struct moe_cast *args);
    int (*sum_abs)(moe_device_t *device, const struct moe_sum_abs *args);
    int (*not_finite)(moe_device_t *device, const struct moe_not_finite *args);
    int (*act)(moe_device_t *device, const struct moe_act *args);
    int (*act_backward)(moe_device_t *device, const struct moe_act *args);
    int (*row_scale)(moe_device_t *device, const struct moe_row_scale *args);
    int (*row_scale_backward)(moe_device_t *device, const struct moe_row_scale *args);
    int (*token_gate)(moe_device_t *device, const struct moe_token_gate *args);
    int (*token_gate_backward)(moe_device_t *device, const struct moe_token_gate *args);
    int (*fill_counts)(moe_device_t *device, const struct moe_fill_counts *args);
    int (*zero_slack)(moe_device_t *device, const struct moe_zero_slack *args);
    int (*dummy_rows)(moe_device_t *device, const struct moe_dummy_rows *args);
    int (*pick_rows)(moe_device_t *device, const struct moe_pick_rows *args);
    int (*flex_layout)(moe_device_t *device, const struct moe_flex_layout *args);
    int (*flex_pack)(moe_device_t *device, const struct moe_flex_pack *args);
    int (*flex_unpack)(moe_device_t *device, const struct moe_flex_unpack *args);
    int (*flex_choices)(moe_device_t *device, const struct moe_flex_choices *args);
    int (*flex_dropped)(moe_device_t *device, const struct moe_flex_dropped *args);
};

#ifdef __cplusplus
}
#endif
#endif
