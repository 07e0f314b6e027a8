/*
 * ref.h: the reference of one MoE layer: one process, double precision, written for clarity.
 *
 * Shares no code with the library: no permutation, no groups, no buffers; a token at a time, an expert at a time.
 */
#ifndef MOE_CORE_REFERENCE_REF_H
#define MOE_CORE_REFERENCE_REF_H

#include <stdbool.h>
#include <stdint.h>

struct moe_ref {
    int64_t hidden, ffn, experts;
    int32_t topk;
    bool renormalise;
    const double *gate; /* [E,H] */
    const double *w1;   /* [E,2F,H]: gate rows, then up rows */
    const double *w2;   /* [E,H,F] */
};

struct moe_ref_grads {
    double *gate, *w1, *w2; /* shapes as above; added to */
};

/* Finds the experts that a token x [H] goes to, best first (ties: lowest index first), and their weights; both [k]. */
void moe_ref_route(const struct moe_ref *ref, const double *x, int32_t *index, double *weight);

/* Computes y [T,H] from x [T,H]. Returns 0, or -1 when there is not enough memory. */
int moe_ref_forward(const struct moe_ref *ref, int64_t tokens, const double *x, double *y);

/* Computes dx [T,H] (overwritten) and the gradients from dy [T,H]. Returns 0, or -1 when there is not enough memory. */
int moe_ref_backward(const struct moe_ref *ref, int64_t tokens, const double *x, const double *dy, double *dx,
                     const struct moe_ref_grads *grads);

#endif
