/*
 * facts.h: facts about tensors, for an observer: checksums of replicas, sums of gradients before and after their
 * reduction, elements that are no number.
 *
 * A fact is computed by the stream where it is asked for, and reported (MOE_TENSOR of observe.h) by moe_facts_report
 * after the stream was synchronised, as every training loop does once per step: nothing here waits. Costs one reading
 * of the tensor each; who calls it decides how often.
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

/* What a fact is about. comm: the ranks that hold replicas, or sum the gradient; borrowed until it is reported. layer:
 * UINT32_MAX for none. */
struct moe_subject {
    enum moe_tensor tensor;
    uint32_t layer;
    ncclComm_t comm;
};

/* Room for `most` facts per step. *out is owned; borrows device. Errors: NOMEM. One thread at a time, the device's. */
int moe_facts_new(moe_device_t *device, uint32_t most, moe_facts_t **out);
void moe_facts_destroy(moe_facts_t **facts);

/* Begins a step: facts that were not reported are forgotten. */
void moe_facts_begin(moe_facts_t *facts, const struct moe_step *step);

/* The checksum of `bytes` bytes that are to be equal on all ranks of comm. Errors here and below: CAPACITY (more than
 * `most`), DEVICE. */
int moe_facts_replica(moe_facts_t *facts, const struct moe_subject *subject, const void *data, size_t bytes);

/* This rank's share of a float32 gradient, as it enters its reduction (scaled already), and what is used as the
 * gradient afterwards. Every rank of comm reports both; in each, count elements. */
int moe_facts_share(moe_facts_t *facts, const struct moe_subject *subject, const float *grad, size_t count);
int moe_facts_sum(moe_facts_t *facts, const struct moe_subject *subject, const float *grad, size_t count);

/* Elements of grad [groups, elements] that are no finite number, and those of them in groups with m[i] = 0 (device;
 * NULL: not known). */
int moe_facts_finite(moe_facts_t *facts, const struct moe_subject *subject, const float *grad, const int64_t *m,
                     int64_t groups, int64_t elements);

/* Reports what was asked for since moe_facts_begin. The stream must have been synchronised since; does not wait. */
void moe_facts_report(moe_facts_t *facts);

#ifdef __cplusplus
}
#endif
#endif
