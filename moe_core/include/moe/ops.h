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

struct moe_topk {
    int64_t tokens, experts;
    int32_t k;
    bool renormalise;
    const float *logits; /* [T,E] */
    float *soft;         /* [T,E]: softmax over all experts, kept for backward */
    float *probs;        /* [T,E]: weight of each chosen expert, 0 elsewhere */
    int32_t *index;      /* [T,k]: chosen experts, best first; ties: lowest index first */
    int64_t *counts;     /* [E]: tokens that chose the expert */
};

struct moe_topk_backward {
    int64_t tokens, experts;
    int32_t k;
    bool renormalise;
    const float *soft, *probs, *d_probs;
    const int32_t *index;
    float *d_logits;
};

/* Builds a mask-kind row map: int32 [T, 2E+1] (permute.h). counts [E] says where each expert's rows start. */
struct moe_row_map_build {
    int64_t tokens, experts;
    int32_t k;
    int64_t rows;
    const int32_t *index;
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

struct moe_device_ops {
    const char *name;
    int (*zero)(moe_device_t *device, void *data, size_t bytes);
    int (*gemm)(moe_device_t *device, const struct moe_gemm *args);
    int (*grouped)(moe_device_t *device, const struct moe_grouped *args);
    int (*topk)(moe_device_t *device, const struct moe_topk *args);
    int (*topk_backward)(moe_device_t *device, const struct moe_topk_backward *args);
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
};

#ifdef __cplusplus
}
#endif
#endif
