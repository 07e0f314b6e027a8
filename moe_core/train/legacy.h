/*
 * legacy.h: the wrong behaviours of frameworks that --legacy NAME switches on, one table row each.
 */
#ifndef MOE_CORE_TRAIN_LEGACY_H
#define MOE_CORE_TRAIN_LEGACY_H

#include "moe_core/include/moe/layer.h"

#include <stdbool.h>
#include <stdio.h>

struct legacy {
    struct moe_options layer;
    bool bucket_wait, bucket_only_with_grad; /* bucket.h */
};

/* Switches NAME on. 0, or -1 with one line on standard error. */
int legacy_parse(const char *name, struct legacy *legacy);

/* Prints the table for --help. */
void legacy_help(FILE *out);

#endif
