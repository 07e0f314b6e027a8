/*
 * shared_ranks.h: a shared expert on one or several ranks (threads of this process, on hostnccl), forward and backward.
 */
#ifndef ROLL_TESTS_MOE_CORE_SHARED_RANKS_H
#define ROLL_TESTS_MOE_CORE_SHARED_RANKS_H

#include "tests/moe_core/typed.h"

#include "moe_core/include/moe/shared.h"

enum { SHARED_RANKS = 4, SHARED_TOKENS = 8, SHARED_HIDDEN = 6, SHARED_FFN = 8 };

/* What outputs and gradients hold before anything is added to them. */
#define SHARED_BEFORE_OUTPUT 0.25f
#define SHARED_BEFORE_GRAD   0.125f

struct shared_case {
    enum moe_shared_mode mode;
    enum moe_activation activation;
    enum moe_dtype type, main_grad;
    bool bias, gate, add, overwrite;
    int64_t tokens; /* of all ranks */
};

/* What one rank wrote, widened; and as bytes, to compare runs. */
struct shared_result {
    int rc;
    double y[SHARED_TOKENS * SHARED_HIDDEN], dx[SHARED_TOKENS * SHARED_HIDDEN];
    double w1[2 * SHARED_FFN * SHARED_HIDDEN], w2[SHARED_HIDDEN * SHARED_FFN], b1[2 * SHARED_FFN], b2[SHARED_HIDDEN],
        gate[SHARED_HIDDEN];
    int told[8], n_told;
};

/* The model and all tokens, as numbers that the scenario's type has. */
struct shared_data {
    double x[SHARED_TOKENS * SHARED_HIDDEN], dy[SHARED_TOKENS * SHARED_HIDDEN];
    double w1[2 * SHARED_FFN * SHARED_HIDDEN], w2[SHARED_HIDDEN * SHARED_FFN], b1[2 * SHARED_FFN], b2[SHARED_HIDDEN],
        gate[SHARED_HIDDEN];
};

struct shared_arrays {
    void *x, *dy, *y, *dx, *other;
    struct moe_shared_weights w;
};

void shared_make_data(const struct shared_case *s, struct shared_data *d);
/* Tokens of each rank. */
int64_t shared_tokens(const struct shared_case *s, int ranks);
/* The rank's part of the model and the tokens, on the device; shared_free_arrays frees it. */
void shared_make_arrays(moe_device_t *device, const struct shared_case *s, int ranks, int rank,
                        struct shared_arrays *a);
void shared_free_arrays(moe_device_t *device, struct shared_arrays *a);
/* Runs `n` cases on all ranks, one after the other. overlap: with a stream of its own. results [ranks][n] come as
 * zeros. Fails the test when a step fails. */
void shared_run(const struct shared_case *cases, int n, int ranks, bool overlap, struct shared_result *results);

#endif
