/*
 * hazard.h: programs that moe_train can be: what frameworks have been seen to do wrong around their MoE layers, each
 * with its healthy twin (hazard.c has the table; numbers as in docs/MOE.md). Faults of one call are inject.h's, wrong
 * behaviour inside a layer is the library's (moe_options).
 */
#ifndef MOE_TRAIN_HAZARD_H
#define MOE_TRAIN_HAZARD_H

#include "moe_core/include/moe/facts.h"

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct hazard_row;
struct job;
struct model;

/* What was asked for on the command line. */
struct hazard_choice {
    const struct hazard_row *row; /* NULL: none */
    bool healthy;                 /* the same program without the mistake */
    int32_t rank;                 /* that makes it, where one rank does */
    uint32_t step;                /* from which it is made */
};

/* Parses NAME[:healthy][:rank=R][:step=S]. 0, or -1 with one line on standard error. */
int hazard_parse(const char *text, struct hazard_choice *choice);
/* The table for --help. */
void hazard_help(FILE *out);

/* The program's own memory. */
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

/* Error codes of moe_core, here and below. Collective calls only where the choice is not NULL: a run without a hazard
 * is as it was. */
int hazard_new(const struct hazard_choice *choice, const struct job *job, const struct model *model,
               struct hazard *hazard);
void hazard_destroy(struct hazard *hazard);

/* Whether this rank leaves out its microbatch (H22). */
bool hazard_skips_microbatch(const struct hazard *hazard, uint32_t step);
/* Between backward and the reduction of gradients. May not return (H18). */
int hazard_before_reduce(struct hazard *hazard, uint32_t step);
/* After the reduction. *skip: no rank updates its weights in this step. */
int hazard_after_reduce(struct hazard *hazard, uint32_t step, bool *skip);
/* After the step's wait: tells what was found. */
void hazard_end_step(struct hazard *hazard);

#endif
