/*
 * gather.h: whole tensors from the ranks' shares.
 */
#ifndef MOE_CORE_TRAIN_GATHER_H
#define MOE_CORE_TRAIN_GATHER_H

#include "moe_core/train/model.h"
#include "moe_core/train/tensors.h"

/* The communicator of the ranks that together hold a buffer whole; NULL: each rank does. Any thread. */
ncclComm_t gather_comm(const struct job *job, enum tensor_buffer buffer);

/* Memory for gathering: made before the gather, so that a rank that has none can tell its peers instead. */
struct gather_room {
    float *device, *host; /* [ranks, count] */
    int64_t most;         /* elements */
};
/* The elements that gathering `count` of each rank's takes. Any thread. */
int64_t gather_elements(const struct job *job, enum tensor_buffer buffer, int64_t count);
/* Makes room for `most` elements, and gives it back; one that is all zero needs no free. Errors: NOMEM. */
int gather_room_new(const struct job *job, int64_t most, struct gather_room *out);
void gather_room_free(const struct job *job, struct gather_room *room);

/*
 * Every rank's share, one after the other, into room->host: [ranks, count] floats. Collective on gather_comm, and a
 * wait. `share` is device memory. Errors: COMM, DEVICE.
 */
int gather_shares(const struct model *model, enum tensor_buffer buffer, const float *share, int64_t count,
                  struct gather_room *room);

/*
 * Puts the shares of one tensor, [ranks, tensor_local_count], into the whole tensor `to`, on the host. `stride` is the
 * distance of one rank's share from the next one's.
 */
void gather_place(const struct job *job, const struct tensor *t, const float *shares, int64_t stride, float *to);

/* What gathering whole buffers of the model takes. One that is all zero needs no free. */
struct gather_whole {
    struct gather_room room;
    struct tensor *tensors;
    int32_t count;
    float *whole; /* rank 0: the largest buffer */
    int64_t elements[TENSOR_BUFFERS];
};
/* Makes room for any buffer of the model. Local. Errors: NOMEM. */
int gather_whole_new(const struct model *model, struct gather_whole *out);
void gather_whole_free(const struct model *model, struct gather_whole *whole);

/*
 * A whole buffer of the model, widened, in the layout of shape.h, into out [whole->elements]; NULL, and on other ranks
 * than rank 0: this rank takes part and keeps nothing. `share` is this rank's part of it: parameters, gradients or
 * moments. Collective on gather_comm, and takes no memory. Errors: COMM, DEVICE.
 */
int gather_buffer(const struct model *model, struct gather_whole *whole, enum tensor_buffer buffer, const float *share,
                  double *out);

#endif
