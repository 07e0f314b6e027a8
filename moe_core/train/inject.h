/*
 * inject.h: faults that moe_train can commit on request, for the fault catalogue (inject.c has the table).
 */
#ifndef MOE_CORE_TRAIN_INJECT_H
#define MOE_CORE_TRAIN_INJECT_H

#include "moe_core/include/moe/reduce.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct fault;

struct inject {
    const struct fault *fault; /* NULL: none */
    int32_t rank;
    uint32_t step;
    int64_t layer; /* -1: the dense bucket */
};

/* Parses FAULT[:rank=R][:step=S][:layer=L]. 0, or -1 with one line on standard error. */
int inject_parse(const char *text, struct inject *inject);

/* Prints the table of faults for --help. */
void inject_help(FILE *out);

/* Whether this rank commits its fault in this step. */
bool inject_due(const struct inject *inject, int32_t rank, uint32_t step);

/*
 * Commits faults of the process itself (exit, kill, stop, sleep), at the start of the step in which they are due. May
 * not return.
 */
void inject_process(const struct inject *inject, int32_t rank, uint32_t step);

/* The root of the step's Broadcast: 0, or another one when that is the fault. */
int inject_root(const struct inject *inject, int32_t rank, uint32_t step);

/* Whether backward leaves out this layer. */
bool inject_skip_backward(const struct inject *inject, int32_t rank, uint32_t step, int64_t layer);

/* Whether the fault is committed in a gradient reduction (step_reduce.c without buckets). A fault must have been
 * chosen. */
bool inject_reduces(const struct inject *inject);
/* Whether experts are reduced before the dense parameters in this step (the opposite of the right order). */
bool inject_swap(const struct inject *inject, int32_t rank, uint32_t step);

/* Reduces one bucket; wrongly where the fault is due. Error codes of moe_core. */
int inject_reduce(const struct inject *inject, int32_t rank, uint32_t step, moe_device_t *device,
                  const struct moe_bucket *bucket);

#endif
