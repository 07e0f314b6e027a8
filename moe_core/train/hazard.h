/*
 * hazard.h: the mistakes that frameworks have been seen to make around their MoE layers, each as a program that
 * moe_train can be, with its healthy twin (hazard.c has the table; numbers as in docs/MOE.md). inject.h has the faults
 * of a single call, and the library itself the wrong behaviour inside a layer (moe_options).
 */
#ifndef MOE_CORE_TRAIN_HAZARD_H
#define MOE_CORE_TRAIN_HAZARD_H

#include "moe_core/include/moe/facts.h"

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct hazard_row;
struct job;
struct model;

/* The hazard asked for on the command line. */
struct hazard_choice {
    const struct hazard_row *row; /* NULL: none */
    bool healthy;                 /* the same program without the mistake */
    int32_t rank;                 /* the rank that makes the mistake, where one rank does */
    uint32_t step;                /* the first step with the mistake */
};

/* Parses NAME[:healthy][:rank=R][:step=S]. 0, or -1 with one line on standard error. */
int hazard_parse(const char *text, struct hazard_choice *choice);
/* Prints the table for --help. */
void hazard_help(FILE *out);

/* The memory of the program. */
struct hazard {
    const struct hazard_choice *choice;
    const struct job *job;
    const struct model *model;
    moe_facts_t *facts;
    float *work; /* device */
    float *reduced;
    float *bias; /* device [experts] */
    float *flag; /* pinned [1] */
};

/*
 * Makes the program's memory. A run without a hazard makes no call: where the choice is NULL, the functions below issue
 * no collective. Error codes of moe_core, in this function and all below.
 */
int hazard_new(const struct hazard_choice *choice, const struct job *job, const struct model *model,
               struct hazard *hazard);
void hazard_destroy(struct hazard *hazard);

/* Whether this rank leaves out its microbatch (H22). */
bool hazard_skips_microbatch(const struct hazard *hazard, uint32_t step);
/* Runs the program's part between backward and the reduction of gradients. May not return (H18). */
int hazard_before_reduce(struct hazard *hazard, uint32_t step);
/* Runs the program's part after the reduction. *skip: no rank updates its weights in this step. */
int hazard_after_reduce(struct hazard *hazard, uint32_t step, bool *skip);
/* Prints what the program found, after the wait at the end of a step. */
void hazard_end_step(struct hazard *hazard);

#endif
