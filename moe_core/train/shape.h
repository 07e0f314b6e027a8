/*
 * shape.h: the model's sizes, and where each tensor lies in the flat buffers of parameters and of gradients.
 *
 * Three flat buffers, because each is reduced over another group: dense (the same on every rank), shared (the rank's
 * slice of the shared experts) and experts (the rank's experts, or its slice of them). Flat, because a gradient
 * AllReduce and AdamW then each are one call over a range. Optional tensors take no room where they are off.
 */
#ifndef MOE_CORE_TRAIN_SHAPE_H
#define MOE_CORE_TRAIN_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

enum { VOCAB = 256 };

struct shape {
    int64_t context, hidden, ffn, experts, layers;
    int32_t topk;
    int64_t local, local_ffn;     /* experts of this rank, and its part of F */
    int64_t shared, local_shared; /* S of the shared expert, 0: none; this rank's part of it */
    bool bias, gate_bias, shared_gate;
};

/* Elements before the tensor in the dense buffer: embedding [C,256,H]; per layer norm [H], gate [E,H], gate bias [E],
 * and of the shared expert its gate [H]; final norm [H]; head [256,H]. */
static inline int64_t shape_dense_layer(const struct shape *s)
{
    int64_t shared = s->shared > 0 ? (s->shared_gate ? s->hidden : 0) : 0;
    return s->hidden + s->experts * s->hidden + (s->gate_bias ? s->experts : 0) + shared;
}
static inline int64_t shape_norm(const struct shape *s, int64_t layer)
{
    return s->context * VOCAB * s->hidden + layer * shape_dense_layer(s);
}
static inline int64_t shape_gate(const struct shape *s, int64_t layer)
{
    return shape_norm(s, layer) + s->hidden;
}
static inline int64_t shape_gate_bias(const struct shape *s, int64_t layer)
{
    return shape_gate(s, layer) + s->experts * s->hidden;
}
static inline int64_t shape_shared_gate(const struct shape *s, int64_t layer)
{
    return shape_gate_bias(s, layer) + (s->gate_bias ? s->experts : 0);
}
static inline int64_t shape_final_norm(const struct shape *s)
{
    return shape_norm(s, s->layers);
}
static inline int64_t shape_head(const struct shape *s)
{
    return shape_final_norm(s) + s->hidden;
}
static inline int64_t shape_dense(const struct shape *s)
{
    return shape_head(s) + VOCAB * s->hidden;
}

/* Experts of F columns each in a buffer: a rank's share or the whole layer's. */
struct share {
    int64_t experts, ffn;
};
static inline struct share share_local(const struct shape *s)
{
    return (struct share){s->local, s->local_ffn};
}
static inline struct share share_all(const struct shape *s)
{
    return (struct share){s->experts, s->ffn};
}

/* The elements before each tensor of the experts' buffer: per layer w1 [L,2F,H], w2 [L,H,F], b1 [L,2F], b2 [L,H]. */
static inline int64_t shape_w1(const struct shape *s, struct share e, int64_t layer)
{
    return layer * e.experts * (3 * e.ffn * s->hidden + (s->bias ? 2 * e.ffn + s->hidden : 0));
}
static inline int64_t shape_w2(const struct shape *s, struct share e, int64_t layer)
{
    return shape_w1(s, e, layer) + e.experts * 2 * e.ffn * s->hidden;
}
static inline int64_t shape_b1(const struct shape *s, struct share e, int64_t layer)
{
    return shape_w2(s, e, layer) + e.experts * s->hidden * e.ffn;
}
static inline int64_t shape_b2(const struct shape *s, struct share e, int64_t layer)
{
    return shape_b1(s, e, layer) + (s->bias ? e.experts * 2 * e.ffn : 0);
}

/*
 * The elements before each tensor of the shared experts' buffer, with `ffn` columns of S each: per layer w1 [2S,H], w2
 * [H,S], b1 [2S], b2 [H].
 */
static inline int64_t shape_shared_w1(const struct shape *s, int64_t ffn, int64_t layer)
{
    return layer * (ffn * 3 * s->hidden + (s->bias && ffn > 0 ? 2 * ffn + s->hidden : 0));
}
static inline int64_t shape_shared_w2(const struct shape *s, int64_t ffn, int64_t layer)
{
    return shape_shared_w1(s, ffn, layer) + 2 * ffn * s->hidden;
}
static inline int64_t shape_shared_b1(const struct shape *s, int64_t ffn, int64_t layer)
{
    return shape_shared_w2(s, ffn, layer) + s->hidden * ffn;
}
static inline int64_t shape_shared_b2(const struct shape *s, int64_t ffn, int64_t layer)
{
    return shape_shared_b1(s, ffn, layer) + (s->bias ? 2 * ffn : 0);
}

#endif
