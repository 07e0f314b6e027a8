/*
 * alignment.c: the last rank leaves out a call, adds one (also where nobody calls anything any more), or swaps two; all
 * its other calls are right.
 *
 * Counts differ from call to call, as between the layers of a model, so that a missing call can be told from a wrong
 * one.
 */
#include "tests/catalogue/catalogue.h"

#define LAYERS 6

static size_t layer_count(int layer)
{
    return (size_t)(layer + 1) * 128;
}

static void model_step(struct cat *c, int left_out, int twice)
{
    for (int layer = 0; layer < LAYERS; layer++) {
        if (layer != left_out) {
            cat_step(c, layer_count(layer));
        }
        if (layer == twice) {
            cat_step(c, layer_count(layer));
        }
    }
}

static void skipped(struct cat *c)
{
    for (int step = 0; step < 3; step++) {
        model_step(c, -1, -1);
        cat_sync(c);
    }
    model_step(c, c->culprit ? 2 : -1, -1);
    model_step(c, -1, -1);
    cat_sync(c);
}

static void added(struct cat *c)
{
    for (int step = 0; step < 3; step++) {
        model_step(c, -1, -1);
        cat_sync(c);
    }
    model_step(c, -1, c->culprit ? 2 : -1);
    model_step(c, -1, -1);
    cat_sync(c);
}

static void reordered(struct cat *c)
{
    model_step(c, -1, -1);
    cat_sync(c);
    cat_step(c, layer_count(c->culprit ? 1 : 0));
    cat_step(c, layer_count(c->culprit ? 0 : 1));
    model_step(c, -1, -1);
    cat_sync(c);
}

/*
 * A barrier in a branch that one rank takes (to NCCL a small all-reduce) meets the peers' all-reduce, and everybody is
 * stuck there: by its place in the program it is another call and no wrong count. Nothing can prove any more that the
 * call was added, and does not stand in place of a missing one.
 */
static void barrier_branch(struct cat *c)
{
    for (int step = 0; step < 3; step++) {
        model_step(c, -1, -1);
        cat_sync(c);
    }
    if (c->culprit) {
        NCCL(ncclAllReduce(c->send, c->recv, 1, ncclFloat32, ncclSum, c->world, c->stream));
        cat_sync(c);
    }
    model_step(c, -1, -1);
    cat_sync(c);
}

/* Half of the ranks take one branch, half the other: nobody can say who is right. */
static void branches(struct cat *c)
{
    model_step(c, -1, -1);
    cat_sync(c);
    bool left = !c->sick || c->rank < c->size / 2;
    for (int i = 0; i < 4; i++) {
        if (left) {
            NCCL(ncclAllGather(c->send, c->recv, 300, ncclFloat32, c->world, c->stream));
        } else {
            NCCL(ncclReduceScatter(c->send, c->recv, 70, ncclFloat32, ncclSum, c->world, c->stream));
        }
    }
    cat_sync(c);
}

const struct cat_program cat_alignment[] = {
    {"skipped", skipped, "call-skipped", "call-skipped|call-added|sequence-tie", "proven", "last", 2, false},
    {"added", added, "call-added", "call-added|call-skipped|sequence-tie", "proven", "last", 2, false},
    {"reordered", reordered, "calls-reordered", "calls-reordered|sequence-tie", "proven", "last", 2, false},
    {"barrier-branch", barrier_branch, "call-added", "call-added|sequence-tie", "suspected", "last", 2, false},
    {"branches", branches, "sequence-tie|op-mismatch", NULL, "proven", "none", 4, false},
    {0},
};
