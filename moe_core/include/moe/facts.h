/*
 * facts.h: facts about tensors, for an observer: checksums of replicas, sums of gradients before and after their
 * reduction, and counts of elements that are not finite.
 *
 * The stream computes a fact where it is asked for. moe_facts_report reports the facts (MOE_TENSOR of observe.h) after
 * the stream was synchronised, which every training loop does once per step, so nothing here waits. Each fact costs one
 * reading of its tensor; the caller decides how often.
 */
#ifndef MOE_FACTS_H
#define MOE_FACTS_H

#include "device.h"
#include "layer.h"
#include "observe.h"

#include <nccl.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_facts moe_facts_t;

/*
 * What a fact is about. comm: the ranks that hold replicas of the tensor, or sum its gradient; borrowed until the fact
 * is reported. layer: UINT32_MAX for none.
 */
struct moe_subject {
    enum moe_tensor tensor;
    uint32_t layer;
    ncclComm_t comm;
};

/*
 * Makes room for `most` facts per step. *out is owned by the caller; borrows device. All functions of this file: one
 * thread at a time, the device's. Errors: NOMEM.
 */
int moe_facts_new(moe_device_t *device, uint32_t most, moe_facts_t **out);
/* Frees the facts and clears the pointer. NULL is allowed. */
void moe_facts_destroy(moe_facts_t **facts);

/* Begins a step; facts that were not reported are dropped. */
void moe_facts_begin(moe_facts_t *facts, const struct moe_step *step);

/*
 * Takes the checksum of `bytes` bytes of device memory at `data`, which must be equal on all ranks of comm. Errors of
 * this function and of the three below: CAPACITY (more than `most` facts), DEVICE.
 */
int moe_facts_replica(moe_facts_t *facts, const struct moe_subject *subject, const void *data, size_t bytes);

/*
 * Takes the sum of this rank's share of a float32 gradient of `count` elements as it enters its reduction (scaled
 * already). Every rank of comm reports both this fact and the next, with the same count.
 */
int moe_facts_share(moe_facts_t *facts, const struct moe_subject *subject, const float *grad, size_t count);
/* Takes the sum of the reduced float32 gradient of `count` elements, as the optimizer uses it. */
int moe_facts_sum(moe_facts_t *facts, const struct moe_subject *subject, const float *grad, size_t count);

/*
 * Counts the elements of grad [groups, elements] that are not finite, and those of them in groups with m[i] = 0 (m:
 * [groups] on the device; NULL: not known).
 */
int moe_facts_finite(moe_facts_t *facts, const struct moe_subject *subject, const float *grad, const int64_t *m,
                     int64_t groups, int64_t elements);

/*
 * Reports the facts taken since moe_facts_begin. Call it after the stream was synchronised; the function does not wait.
 */
void moe_facts_report(moe_facts_t *facts);

#ifdef __cplusplus
}
#endif
#endif
