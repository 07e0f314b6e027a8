/*
 * ref_model.h: the reference of the whole model: one process, double precision.
 */
#ifndef MOE_CORE_TRAIN_REF_MODEL_H
#define MOE_CORE_TRAIN_REF_MODEL_H

#include "moe_core/train/shape.h"

#include <stdint.h>

#include "moe_core/reference/ref_layer.h"

/* Parameters or gradients in the flat layouts of shape.h, with all experts and the whole shared experts. */
struct ref_params {
    double *dense, *experts, *shared;
    const double *expert_bias; /* [layers,E] or NULL; a parameter only */
};

/* How the job differs from the plain one. */
struct ref_how {
    struct moe_router_config router;
    enum moe_activation activation;
    enum moe_prob_place place;
    int32_t slices; /* a batch's tokens are routed in so many equal parts (tp mode split); else 1 */
    int digits;     /* significant bits to which a layer's input is rounded (bfloat16 8, float16 11); 0: no rounding */
    double loss_scale; /* of the auxiliary losses */
    int64_t *earlier;  /* [layers,E]: tokens of the step's earlier microbatches on this rank that chose each expert,
                          before anything was dropped; added to */
    uint32_t microbatch;
    /*
     * NULL, or the routing to take over, before and after dropping: [layers, slices, room / slices, k], of which each
     * slice has its tokens first. regret [1]: raised to how far it is from the best one (ref_router.h).
     */
    const int32_t *choice, *kept;
    int64_t room;
    double *regret;
};

/*
 * Adds the mean loss over `tokens` lines of batch [tokens, C+1] to *loss and its gradient, times `weight`, to grads.
 * Returns 0, or -1 when there is not enough memory.
 */
int ref_model(const struct shape *shape, const struct ref_how *how, const struct ref_params *params,
              const uint8_t *batch, int64_t tokens, double weight, double *loss, const struct ref_params *grads);

#endif
