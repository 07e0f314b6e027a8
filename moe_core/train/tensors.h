/*
 * tensors.h: the model's tensors one by one: their names, their shapes, and how a rank's share lies in the whole.
 */
#ifndef MOE_CORE_TRAIN_TENSORS_H
#define MOE_CORE_TRAIN_TENSORS_H

#include "moe_core/train/job.h"
#include "moe_core/train/shape.h"

/* The flat buffers of shape.h. */
enum tensor_buffer { TENSOR_DENSE, TENSOR_EXPERTS, TENSOR_SHARED, TENSOR_BUFFERS };

enum { TENSOR_NAME = 48 };

/*
 * A whole tensor is [blocks, outer, width, inner]: blocks are experts, width is the side that ranks share (F of an
 * expert, S of a shared expert). A rank has blocks first_block.. and columns first_column.. of the width, everything
 * else whole.
 */
struct tensor {
    char name[TENSOR_NAME]; /* as in a state dict: "layers.0.experts.w1" */
    const char *kind;       /* what it is called within its layer: "w1" */
    int64_t layer;          /* -1: outside of layers */
    enum tensor_buffer buffer;
    int64_t local_at, whole_at; /* elements before it in a rank's buffer, and in one that holds all ranks' shares */
    int64_t dims[3];            /* the whole shape, of `ndims` numbers */
    int32_t ndims;
    int64_t blocks, outer, width, inner;
    int64_t local_blocks, local_width; /* of any rank's share */
};

/* The tensors in the order of a model's forward. Owned by the caller (free); NULL when memory is short. Any thread. */
struct tensor *tensors_new(const struct shape *shape, int32_t *count);

int64_t tensor_count(const struct tensor *t);       /* elements of the whole */
int64_t tensor_local_count(const struct tensor *t); /* of a rank's share */

/* A piece of a rank's share whose elements are neighbours in the whole, too. */
struct tensor_run {
    int64_t local_at, whole_at, count; /* from the beginning of the tensor */
};
/*
 * The runs of the share with blocks from first_block and columns from first_column: how many, and the one numbered
 * `run`, in the order in which they lie in the share. Any thread.
 */
int64_t tensor_runs(const struct tensor *t);
struct tensor_run tensor_run(const struct tensor *t, int64_t first_block, int64_t first_column, int64_t run);

/* The first block and the first column of the share that rank `rank` of the job holds. Any thread. */
void tensor_place(const struct tensor *t, const struct job *job, int32_t rank, int64_t *first_block,
                  int64_t *first_column);
/* The lowest rank that holds the element of the whole tensor. Any thread. */
int32_t tensor_owner(const struct tensor *t, const struct job *job, int64_t element);

#endif
