/*
 * options.h: the command line of moe_train.
 */
#ifndef MOE_TRAIN_OPTIONS_H
#define MOE_TRAIN_OPTIONS_H

#include "moe_core/train/inject.h"

#include <stdbool.h>
#include <stdint.h>

struct train_options {
    uint32_t steps, microbatches;
    uint64_t seed;
    int64_t layers, hidden, ffn, experts, tokens, context;
    int32_t topk, ep;
    double lr;
    uint32_t timeout_s;
    int32_t spawn; /* ranks to start, 0: this process is a rank */
    bool exact, legacy_skip, check, verbose;
    const char *text; /* NULL: a licence text */
    struct inject inject;
};

/* What options_parse found. */
enum options_result { OPTIONS_RUN = 0, OPTIONS_DONE = 1, OPTIONS_USAGE = 2 };

/* Fills in *options from the command line; prints help, version or one line about what is wrong. Strings are borrowed
 * from argv. */
enum options_result options_parse(int argc, char **argv, struct train_options *options);

#endif
