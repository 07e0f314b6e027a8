/*
 * first_moe.c: first faults in mixtures of experts, and in the numbers that replicas must have alike.
 */
#include "tests/daemon/engine/firsts.h"

/* mixture of experts */

static void one_layer(struct story *t, uint32_t layer, uint64_t rows, uint32_t duties, uint32_t rows_of_last,
                      uint32_t duties_of_last)
{
    t->step++;
    EACH(r, &t->left)
    {
        t->sim->rank[r].step = t->step;
        first_call(t, r, t->left.ep, A2A, 64, 20);
        sim_moe_forward(t->sim, r, t->left.ep, layer, r == LAST ? rows_of_last : rows,
                        r == LAST ? duties_of_last : duties);
        first_call(t, r, t->left.ep, A2A, 64, 21);
        first_wait(t, r, false);
    }
    story_pass(t, S_);
}

static void has_no_tokens(struct story *t, int kind)
{
    one_layer(t, 2, 8, kind ? 0 : 2, 0, kind ? 0 : 2);
}

/* kind 0: an evaluation, without backward. 1: the others wait in backward, the last one goes on to the sum of
 * gradients. */
static void owes(struct story *t, int kind)
{
    one_layer(t, 2, 8, 2, 0, 0);
    EACH(r, &t->left)
    {
        if (kind == 1) {
            first_call(t, r, r == LAST ? t->left.dp : t->left.ep, r == LAST ? AR : A2A, 64, r == LAST ? 23 : 22);
            first_wait(t, r, true);
        }
    }
    story_pass(t, 8 * S_);
}

static void is_remedied(struct story *t, int kind)
{
    (void)kind;
    struct roll_record *rec = scene_moe(t->sim, LAST, t->left.ep, ROLL_OP_MOE_REMEDY, 2, ROLL_PHASE_FORWARD);
    rec->peer = ROLL_REMEDY_FILL;
    rec->step = ++t->step;
    story_pass(t, S_);
}

static void product_steps(struct story *t, uint32_t steps, bool last_skips)
{
    for (uint32_t i = 0; i < steps; i++) {
        EACH(r, &t->left)
        {
            bool skips = last_skips && r == LAST;
            first_call(t, r, t->left.ep, A2A, 64, 20);
            t->sim->site = 21;
            if (!skips) {
                sim_product(t->sim, r, 77, 4);
            }
            first_call(t, r, t->left.ep, A2A, 128, 22);
            if (!skips) {
                first_call(t, r, t->left.ep, A2A, 256, 23);
                first_wait(t, r, last_skips);
            }
        }
        story_pass(t, S_ / 5);
    }
}

/* Experts of a job without moe_core. kind 1: the last rank waits for the sum of gradients. */
static void makes_no_product(struct story *t, int kind)
{
    product_steps(t, 4, false);
    product_steps(t, 1, true);
    if (kind == 1) {
        first_call(t, LAST, t->left.dp, AR, 512, 24);
        first_wait(t, LAST, true);
    }
    story_pass(t, 8 * S_);
}

static void makes_its_backward_late(struct story *t, int kind)
{
    (void)kind;
    first_call(t, LAST, t->left.ep, A2A, 256, 23);
    first_wait(t, LAST, true);
    first_all_return(t, 0);
    story_pass(t, S_);
}

/* Numbers that must be alike; then the collective, which comes to its end. kind + 100: no such collective is made. */
static void number_differs(struct story *t, int kind)
{
    t->step++;
    EACH(r, &t->left)
    {
        t->sim->rank[r].step = t->step;
        scene_uniform(t->sim, r, t->left.ep, kind % 100, r == LAST ? 17 : 24);
        if (kind < 100) {
            first_call(t, r, t->left.ep, AG, r == LAST ? 17 : 24, 20)->layer = 2;
        }
        first_wait(t, r, false);
    }
    story_pass(t, 2 * S_);
}

/* kind 0: the last rank's buffer does not fit its splits. 1: its router chooses others when it runs again. */
static void routes(struct story *t, int kind)
{
    uint32_t n = t->left.size;
    t->step++;
    EACH(r, &t->left)
    {
        t->sim->rank[r].step = t->step;
        scene_splits(t->sim, r, t->left.ep, 4 * n + (kind == 0 && r == LAST ? 3 : 0), n, 4, ROLL_PHASE_FORWARD, 0);
    }
    if (kind == 1) {
        scene_splits(t->sim, LAST, t->left.ep, 0, n, 5, ROLL_PHASE_RECOMPUTE, 0);
    }
    story_pass(t, 2 * S_);
}

enum number { REPLICA, NOT_SUMMED, NOT_FINITE };

static void numbers_are_wrong(struct story *t, int kind)
{
    t->step++;
    EACH(r, &t->left)
    {
        t->sim->rank[r].step = t->step;
        if (kind == REPLICA) {
            scene_tensor(t->sim, r, t->left.dp, MOE_TENSOR_ROUTER, MOE_TENSOR_REPLICA, 1000 + (r == LAST), 0);
        } else if (kind == NOT_SUMMED) {
            scene_tensor(t->sim, r, t->left.dp, MOE_TENSOR_ROUTER, MOE_TENSOR_PART, scene_bits(3.0 + r),
                         scene_bits_float(90.0f));
            scene_tensor(t->sim, r, t->left.dp, MOE_TENSOR_ROUTER, MOE_TENSOR_SUM, scene_bits(3.0 + r), 0);
        } else if (r == LAST) {
            scene_tensor(t->sim, r, t->left.dp, MOE_TENSOR_EXPERTS, MOE_TENSOR_NOTFINITE, 512, 0);
        }
    }
    story_pass(t, 2 * S_);
}

static const struct first at[] = {
    {ROW(MOE_ZERO_TOKENS), "goes on", SAME, has_no_tokens, 0, "note moe-zero-tokens L", NULL, NULL, NULL},
    {ROW(MOE_GEMM_SKIPPED), "goes on", SAME, has_no_tokens, 1, "note moe-gemm-skipped L", NULL, NULL, NULL},
    {ROW(MOE_OBLIGATION), "an evaluation", SAME, owes, 0, "predicted moe-obligation-missing L", NULL,
     "withdrawn moe-obligation-missing", NULL},
    {ROW(MOE_OBLIGATION), "hangs", APART, owes, 1, "proven moe-obligation-missing L", NULL, NULL, NULL},
    {ROW(MOE_REMEDIED), "goes on", SAME, is_remedied, 0, "note moe-remedied L", NULL, NULL, NULL},
    {ROW(MOE_GEMM_MISSING), "comes late", SAME, makes_no_product, 0, "suspected moe-gemm-missing L",
     makes_its_backward_late, "withdrawn moe-gemm-missing", NULL},
    {ROW(MOE_GEMM_MISSING), "hangs", APART, makes_no_product, 1, "suspected moe-gemm-missing L", NULL, NULL, NULL},
    {ROW(MOE_TOKENS_UNEQUAL), "comes true", SAME, number_differs, MOE_UNIFORM_TOKENS, "proven moe-tokens-unequal L",
     NULL, NULL, NULL},
    {ROW(MOE_TOKENS_UNEQUAL), "does not come true", SAME, number_differs, 100 + MOE_UNIFORM_TOKENS,
     "predicted moe-tokens-unequal L", NULL, "withdrawn moe-tokens-unequal", NULL},
    {ROW(MOE_TOKENS_UNEQUAL), "goes no further", APART, number_differs, 100 + MOE_UNIFORM_TOKENS,
     "predicted moe-tokens-unequal L", NULL, NULL, NULL},
    {ROW(MOE_SPLIT_SUM), "goes on", SAME, routes, 0, "proven moe-split-sum L", NULL, NULL, NULL},
    {ROW(MOE_RECOMPUTE), "goes on", SAME, routes, 1, "proven moe-recompute-differs L", NULL, NULL, NULL},
    {ROW(MOE_CAPACITY), "comes true", SAME, number_differs, MOE_UNIFORM_CAPACITY, "proven moe-capacity-differs L", NULL,
     NULL, NULL},
    {ROW(MOE_CAPACITY), "does not come true", SAME, number_differs, 100 + MOE_UNIFORM_CAPACITY,
     "predicted moe-capacity-differs L", NULL, "withdrawn moe-capacity-differs", NULL},
    {ROW(MOE_BUFFER), "shows nowhere", SAME, number_differs, 100 + MOE_UNIFORM_BUFFER, "predicted moe-buffer-differs L",
     NULL, NULL, NULL},
    {ROW(MOE_BUFFER), "comes true", SAME, number_differs, MOE_UNIFORM_BUFFER, "proven moe-buffer-differs L", NULL, NULL,
     NULL},
    {ROW(REPLICA_MISMATCH), "goes on", SAME, numbers_are_wrong, REPLICA, "proven replica-mismatch L", NULL, NULL, NULL},
    {ROW(GRADIENT_NOT_SUMMED), "goes on", SAME, numbers_are_wrong, NOT_SUMMED, "proven gradient-not-summed 0-L", NULL,
     NULL, NULL},
    {ROW(GRADIENT_NOT_FINITE), "goes on", SAME, numbers_are_wrong, NOT_FINITE, "proven gradient-not-finite L", NULL,
     NULL, NULL},
};
const struct first_table first_moe = {at, sizeof(at) / sizeof(at[0])};
