/*
 * exact.h: what the functions that round should have computed, in double: a second opinion beside the host's back end,
 * which computes in float32 itself.
 *
 * Written from the formulas of ops.h, router.h and activation.h, with no text in common with either back end. Arrays
 * are the host's; every function overwrites its outputs unless it says that it adds.
 */
#ifndef ROLL_TESTS_GPU_EXACT_H
#define ROLL_TESTS_GPU_EXACT_H

#include "moe_core/include/moe/ops.h"

enum { MOE_EXACT_EXPERTS = 512 }; /* at most: the arrays of one token */

/* A gated activation of one pair: value, and its derivatives by both. */
struct exact_pair {
    double value, by_gate, by_linear;
};
struct exact_pair exact_gated(enum moe_activation kind, struct moe_clamp clamp, double gate, double linear);

/* Activated rows; NaN in slack rows, which are never written. */
struct exact_act {
    int64_t live, rows, width;
    const double *h, *probs, *d_act; /* probs NULL: 1 */
    double *out, *d_h, *d_probs;     /* forward; backward: d_probs is added to */
};
void exact_act(enum moe_activation kind, struct moe_clamp clamp, const struct exact_act *act);

/* The shared expert's gate: score forward, dx and d_gate backward, as moe_token_gate has them. */
struct exact_tokens {
    int64_t tokens, width;
    double beta, *x, *gate, *score, *d_score, *dx, *d_gate;
};
void exact_token_gate(const struct exact_tokens *tokens, bool backward);

/* The rows that a movement over a map sums: row[t, column] is -1 where the token has none in that column. */
struct exact_movement {
    int64_t tokens, columns, width;
    const int64_t *row;
    const double *x, *rows, *probs;
    bool zero_by_prob, add;
};
/* Unpermute [tokens,width]; the gradient of the probabilities [tokens,columns], x being the tokens' gradient. To be
 * freed; NULL without memory. */
double *exact_scatter(const struct exact_movement *movement);
double *exact_dots(const struct exact_movement *movement);

/* scores [T,E], and probs [T,E] of the choice in args->index; args->logits with their bias already added. Reads index
 * and logits only. */
void exact_topk(const struct moe_topk *args, double *scores, double *probs);
/* d_logits [T,E], from the logits, not from the scores. */
void exact_topk_backward(const struct moe_topk_backward *args, double *d_logits);

/* losses [MOE_LOSSES]. */
void exact_balance(const struct moe_balance *args, double *losses);
/* Adds loss_scale times the gradient to d_logits [T,E]. */
void exact_balance_backward(const struct moe_balance *args, double *d_logits);

#endif
