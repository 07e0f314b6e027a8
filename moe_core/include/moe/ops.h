/*
 * ops.h: the table of functions behind which the back ends are interchangeable.
 *
 * Every function enqueues on the device's stream and returns 0 or an error of the launch. All matrices are row-major
 * float32; all pointers are device memory. Callers have checked shapes. Row and element numbers are 64 bit: rows x
 * width may exceed 2^31. A new back end fills in the table and nothing else.
 */
#ifndef MOE_OPS_H
#define MOE_OPS_H

#include "device.h"
#include "dtype.h"
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

/* One product per group; rows of group i start at the prefix sum of m. Rows beyond the sum are never read or
 * written. */
struct moe_grouped {
    enum moe_grouped_kind kind;
    int64_t groups, n, k;
    int64_t rows;     /* rows of the buffers: the sum of m must not exceed it */
    const int64_t *m; /* [groups], device */
    const float *in;
    const float *w; /* [groups, n, k] */
    const float *x; /* WGRAD only */
    float *out;
    float beta; /* WGRAD only, 0 or 1: a group without rows stores zeros (0) or leaves its slice bitwise alone (1) */
};

/* How scores become a choice and weights: router.h has the table. */
struct moe_scoring {
    enum moe_score score;
    bool after, renormalise;
    float scale;
    int32_t groups, group_topk; /* groups <= 1: no limit */
};

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

struct moe_topk_backward {
    int64_t tokens, experts;
    int32_t k;
    struct moe_scoring how;
    const float *logits, *scores, *probs, *d_probs;
    const int32_t *index; /* -1: dropped; its d_probs is ignored, its score still counts in a renormalised sum */
    const int32_t *all;   /* [T,k]: the choice before anything was dropped */
    float *d_logits;      /* overwritten */
};

/* Takes choices beyond the capacity away: router.h. counts [E] is changed in place. */
struct moe_drop {
    int64_t tokens, experts, capacity;
    int32_t k;
    bool by_position, pad;
    float *probs;
    int32_t *index;
    int64_t *counts;
};

/* counts[b, e]: tokens of sequence b that chose e; token t belongs to sequence t mod sequences. */
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

/* The auxiliary losses of router.h and their gradients. A coefficient of 0 leaves its pointers unread. */
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

/* bias[e] += rate * sign(sum of counts - E counts[e]); counts become 0. */
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

/* Builds a mask-kind row map: int32 [T, 2E+1] (permute.h). counts [E] says where each expert's rows start. */
struct moe_row_map_build {
    int64_t tokens, experts;
    int32_t k;
    int64_t rows;
    const int32_t *index; /* [T,k]; -1: no expert */
    const int64_t *counts;
    int32_t *map;
};

/* to[row] = from[token]; rows that no token maps to become zero. */
struct moe_map_gather {
    int64_t tokens, experts, rows, width;
    const int32_t *map;
    const float *from; /* [T,width] */
    float *to;         /* [rows,width] */
};

/* to[token] = beta * to[token] + sum over its rows of (probs ? probs[token,expert] : 1) * from[row]; tokens without
 * rows add zero. */
struct moe_map_scatter {
    int64_t tokens, experts, rows, width;
    const int32_t *map;
    const float *probs; /* [T,E] or NULL */
    const float *from;  /* [rows,width] */
    float *to;          /* [T,width] */
    float beta;         /* 0 or 1 */
};

/* d_rows[row] = probs * dy[token], rows without a token zero; d_probs[token,expert] = <dy[token], rows[row]>, zero
 * elsewhere. */
struct moe_map_scatter_backward {
    int64_t tokens, experts, rows_count, width;
    const int32_t *map;
    const float *probs, *dy, *rows;
    float *d_rows, *d_probs;
};

/* From the counts of all ep ranks: rows of each local expert, and where each received row goes to be expert-major. */
struct moe_chunk_map {
    int64_t ranks, experts, stride, rank, rows; /* stride: int64 elements per rank in `counts` */
    const int64_t *counts;                      /* [ranks, stride] */
    int64_t *m;                                 /* [experts / ranks] */
    int32_t *map;                               /* [rows] */
};

struct moe_chunk_sort {
    int64_t rows, width;
    bool inverse;
    const int32_t *map;
    const float *from;
    float *to;
};

/* Adds the zero row of remedy PAD for every rank without rows (dispatch.h). counts is changed in place. */
struct moe_pad_counts {
    int64_t ranks, experts, stride;
    int64_t *counts;
};

/* act = silu(gate) * up, h = [gate | up] of width 2 * width */
struct moe_swiglu {
    int64_t rows, width;
    const float *h;
    const float *d_act; /* backward only */
    float *out;         /* forward: act [rows,width]; backward: d_h [rows,2*width] */
};

struct moe_scale {
    size_t count;
    float factor;
    float *data;
};

enum moe_linear_kind { MOE_LINEAR_FORWARD, MOE_LINEAR_DGRAD, MOE_LINEAR_WGRAD, MOE_LINEAR_BGRAD };

/* One group's pointers; a table of them lies in device memory. */
struct moe_linear_group {
    const void *weight; /* [N,K] */
    const float *scale; /* of an FP8 weight, else NULL */
    const void *bias;   /* [N] or NULL */
    void *d_weight;     /* [N,K] */
    void *d_bias;       /* [N] or NULL */
};

/* The grouped linear of linear.h, one pass. Groups without rows: WGRAD with beta 0 stores zeros, with beta 1 does nothing; BGRAD stores zeros. */
struct moe_linear_pass {
    enum moe_linear_kind kind;
    int64_t groups, n, k, rows;
    const int64_t *m;                     /* [groups], device */
    const struct moe_linear_group *group; /* [groups], device */
    enum moe_dtype activation, weight, bias, grad;
    bool block_scales;
    const void *x;  /* FORWARD, WGRAD */
    const void *dy; /* DGRAD, WGRAD, BGRAD */
    void *out;      /* FORWARD y, DGRAD dx */
    float beta;     /* WGRAD, 0 or 1 */
};

/*
 * A 64-bit checksum of a tensor's bytes: the sum, modulo 2^64, over the 8-byte words w[i] (little-endian; the last one filled up with zeros) of
 * mix(w[i] + mix(i + 1)), mix being the finaliser of a 64-bit hash, plus mix of the number of bytes. A sum does not care for the order in which it is taken, so
 * it is the same on every back end and for every number of threads; the position in each word's hash makes it see exchanged words.
 */
struct moe_checksum {
    const void *data;
    size_t bytes;
    uint64_t *out; /* device, overwritten */
};

/* to[i] = from[i] in another element type (dtype.h says how it is rounded). The arrays do not overlap. */
struct moe_cast {
    int64_t count;
    enum moe_dtype from_type, to_type;
    const void *from;
    void *to;
};

struct moe_device_ops {
    const char *name;
    int (*zero)(moe_device_t *device, void *data, size_t bytes);
    int (*gemm)(moe_device_t *device, const struct moe_gemm *args);
    int (*grouped)(moe_device_t *device, const struct moe_grouped *args);
    int (*linear)(moe_device_t *device, const struct moe_linear_pass *args);
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
    int (*chunk_sort)(moe_device_t *device, const struct moe_chunk_sort *args);
    int (*pad_counts)(moe_device_t *device, const struct moe_pad_counts *args);
    int (*swiglu)(moe_device_t *device, const struct moe_swiglu *args);
    int (*swiglu_backward)(moe_device_t *device, const struct moe_swiglu *args);
    int (*scale)(moe_device_t *device, const struct moe_scale *args);
    int (*checksum)(moe_device_t *device, const struct moe_checksum *args);
    int (*cast)(moe_device_t *device, const struct moe_cast *args);
};

#ifdef __cplusplus
}
#endif
#endif
