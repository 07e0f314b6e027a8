/*
 * options.h: the command line of moe_train.
 */
#ifndef MOE_CORE_TRAIN_OPTIONS_H
#define MOE_CORE_TRAIN_OPTIONS_H

#include "moe_core/train/hazard.h"
#include "moe_core/train/inject.h"
#include "moe_core/train/legacy.h"

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
    bool exact, check, verbose, must_learn;
    int32_t dispatcher; /* enum moe_dispatcher_kind */
    int32_t etp, tp;
    int32_t tp_mode;    /* enum moe_tp_mode */
    int32_t activation; /* enum moe_activation */
    int32_t place;      /* enum moe_prob_place */
    int32_t dtype;      /* enum moe_dtype of rows */
    int32_t uneven;     /* enum moe_uneven */
    const char *hold;   /* NULL, or a file that must exist before the second step begins */
    const char *router; /* a preset of router.h, or NULL */
    bool bias, shared_gate, shared_overlap;
    int64_t shared; /* width of the shared expert, 0: none */
    double capacity;
    bool pad_capacity, recompute, keep_routing, vary_tokens;
    int64_t token_bound;
    bool overlap;
    int64_t buckets;      /* bytes, 0: the simple reduction (one bucket with overlap) */
    uint32_t empty_every; /* 0: never */
    struct legacy legacy;
    const char *text;          /* NULL: a licence text */
    const char *save, *resume; /* NULL, or a folder (or file) of checkpoints */
    uint32_t save_every;       /* 0: only at the end */
    uint32_t until;            /* 0, or the step before which the job ends although --steps says more */
    uint32_t validate;         /* 0: never; else also after the last step */
    struct inject inject;
    struct hazard_choice hazard;
    bool facts;
};

/* Whether several ranks of tp are given the same tokens (tp_mode split or shard). */
static inline bool options_replicate(const struct train_options *o)
{
    return o->tp > 1 && o->tp_mode != MOE_TP_SEQUENCE;
}

/* The result of options_parse. */
enum options_result { OPTIONS_RUN = 0, OPTIONS_DONE = 1, OPTIONS_USAGE = 2 };

/* Fills in *options from the command line; prints help, version or one line about what is wrong. Strings are borrowed
 * from argv. */
enum options_result options_parse(int argc, char **argv, struct train_options *options);

/* The word for a value of an option with a fixed set of words, such as "swiglu" of --activation. NULL: there is none.
 */
const char *options_choice_name(const char *option, int32_t value);

/* The steps before which the job ends. */
static inline uint32_t options_end(const struct train_options *o)
{
    return o->until > 0 && o->until < o->steps ? o->until : o->steps;
}

#endif
