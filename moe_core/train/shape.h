/*
 * shape.h: the model's sizes, and where each tensor lies in the flat buffers of parameters and of gradients.
 *
 * Two flat buffers: dense (on every rank) and experts (the rank's share: per layer w1 [L,2F,H], then w2 [L,H,F]).
 * Flat, because a gradient AllReduce and AdamW then each are one call over a range.
 */
#ifndef MOE_TRAIN_SHAPE_H
#define MOE_TRAIN_SHAPE_H

#include <stdint.h>

enum { VOCAB = 256 };

struct shape {
    int64_t context, hidden, ffn, experts, layers, local; /* local: experts of this rank */
    int32_t topk;
};

/* Elements before the tensor in the dense buffer: embedding [C,256,H]; per layer norm [H], gate [E,H]; final norm [H];
 * head [256,H]. */
static inline int64_t shape_norm(const struct shape *s, int64_t layer)
{
    return s->context * VOCAB * s->hidden + layer * (s->hidden + s->experts * s->hidden);
}
static inline int64_t shape_gate(const struct shape *s, int64_t layer)
{
    return shape_norm(s, layer) + s->hidden;
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

/* The same for the buffer of experts, with `experts` of them in it. */
static inline int64_t shape_w1(const struct shape *s, int64_t layer, int64_t experts)
{
    return layer * experts * 3 * s->ffn * s->hidden;
}
static inline int64_t shape_w2(const struct shape *s, int64_t layer, int64_t experts)
{
    return shape_w1(s, layer, experts) + experts * 2 * s->ffn * s->hidden;
}

#endif
