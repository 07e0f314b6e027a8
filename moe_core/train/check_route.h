/*
 * check_route.h: --check with rows of 16 bits: the job's routing, for the reference to take over.
 */
#ifndef MOE_CORE_TRAIN_CHECK_ROUTE_H
#define MOE_CORE_TRAIN_CHECK_ROUTE_H

#include "moe_core/train/model.h"

/* What the routers of all data ranks chose in a step, on rank 0: [data ranks, microbatches, layers, T, k]. */
struct routing {
    int32_t *choice, *kept; /* before and after dropping; NULL on other ranks, and where the model keeps no routing */
    int32_t *gathered;      /* device: every rank's; NULL: the model keeps no routing */
};

/* Makes room for the routing of a step. One that is all zero needs no free. Local. Errors: NOMEM. */
int routing_new(const struct model *model, struct routing *out);
void routing_free(const struct model *model, struct routing *routing);
/*
 * Gathers the routing of the step that model_microbatch ran. Collective on world, and takes no memory. Errors: COMM,
 * DEVICE.
 */
int routing_gather(const struct model *model, struct routing *routing);

/* The elements of one data rank's microbatch, [layers, T, k], begin here. */
int64_t routing_at(const struct model *model, int32_t data_rank, uint32_t microbatch);

#endif
