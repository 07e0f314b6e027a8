/*
 * dispatcher_alltoall.h: what the parts of the all-to-all dispatcher share: sizes (dispatcher_alltoall_plan.c), steps
 * with their memory (dispatcher_alltoall_steps.c), and the order of both (dispatcher_alltoall.c).
 */
#ifndef MOE_CORE_DISPATCH_DISPATCHER_ALLTOALL_H
#define MOE_CORE_DISPATCH_DISPATCHER_ALLTOALL_H

#include "moe_core/dispatch/dispatcher_kind.h"
#include "moe_core/include/moe/permute.h"

#pragma GCC visibility push(hidden)

/*
 * The orders in which rows lie on their way from the tokens to the experts. A layout skips the steps that it does not
 * need.
 */
enum moe_alltoall_step {
    AT_SOURCE, /* permuted: this rank's tokens, by expert */
    AT_EP,     /* after the all-to-all: by source rank with this rank's etp index, then by local expert */
    AT_ETP,    /* after the gather over etp: by etp rank, then as AT_EP */
    AT_SORTED, /* by local expert, sources in order of etp rank, then ep rank */
    AT_PADDED, /* each expert's rows filled up to row_multiple */
    AT_STEPS
};

struct moe_alltoall {
    int sources;      /* ranks that send to this rank's experts: etp x ep */
    int64_t stride;   /* int64 elements per rank in the exchange: counts, then tokens and mask */
    int64_t max_sent; /* the most rows in AT_SOURCE */
    int64_t map_rows; /* rows of AT_SOURCE that the routing map fills, PAD's included; the other rows of plan.sent are
                         slack */
    int64_t ep_rows, unpadded;      /* rows in AT_EP, and in AT_ETP */
    int64_t capacity;               /* drop-and-pad: rows of each expert from each rank in this forward */
    bool cut_dispatch, view_fails;  /* legacy behaviours of this forward */
    int64_t *own, *all;             /* device [stride], [ranks of tp_ep, stride] */
    int64_t *host_all, *host_own;   /* pinned mirrors of `all`, and of the tokens and mask in `own` */
    int64_t *host_sizes, *sizes;    /* pinned and device: [E] this rank's counts, then [sources, local] chunks */
    int64_t *send_rows, *recv_rows; /* host [ep] */
    int64_t *etp_rows;              /* host [etp]: rows that each etp rank has after AT_EP */
    int64_t *m;                     /* device [local], before padding */
    /* Drop-and-pad: the last comparison of what ranks must give alike. */
    cudaEvent_t read;                       /* reached when host_all holds every rank's word */
    bool compared;                          /* there is one, and nobody was found to differ before it */
    uint32_t step;                          /* its step */
    moe_row_map_t *map;                     /* tokens to AT_SOURCE */
    struct moe_map_header *chunks;          /* device: AT_ETP to AT_SORTED, [unpadded] */
    enum moe_alltoall_step taken[AT_STEPS]; /* for each step, the last step up to it that this layout does */
    enum moe_alltoall_step last;            /* taken[AT_STEPS - 1] */
    /* What the pool gives; docs/MOE.md, Memory, says from when to when. */
    void *scratch[AT_STEPS]; /* rows after each step; the last step's rows are in the front's buffers */
    float *scratch_probs[AT_STEPS];
    void *returned; /* the experts' output in source order, kept for the gradient of probabilities */
};

/* Computes the most rows of each buffer: sets max_sent and d->max_rows. */
void moe_alltoall_limits(moe_dispatcher_t *d, struct moe_alltoall *s);
/* Makes host and device memory for the sizes. Errors: NOMEM. */
int moe_alltoall_sizes_new(moe_dispatcher_t *d, struct moe_alltoall *s);
void moe_alltoall_sizes_destroy(moe_dispatcher_t *d, struct moe_alltoall *s);
/*
 * Exchanges the counts, checks them and fills in everything that follows from them: d->plan, splits, chunk map, d->m.
 */
int moe_alltoall_exchange(moe_dispatcher_t *d, struct moe_alltoall *s, uint32_t proposed, uint32_t *agreed);
/* Takes part in that exchange without rows, and tells all ranks that this one has no memory. */
void moe_alltoall_decline(moe_dispatcher_t *d);

/* What a walk over the steps carries: it decides the end buffers. */
enum moe_alltoall_cargo { ROWS, EXPERT_OUT, D_EXPERT_OUT, D_ROWS };

/* dispatcher_alltoall_steps.c */

/* The rows, and where they travel the probabilities, after a step; NULL: none are held. */
void *moe_alltoall_at(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, enum moe_alltoall_step step);
float *moe_alltoall_probs_at(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, enum moe_alltoall_step step);
/* Whether this layout does the step. */
bool moe_alltoall_takes(const moe_dispatcher_t *d, enum moe_alltoall_step step);
/* Takes the buffers that a step fills, or gives back those that the next one has read; probabilities beside the rows
 * where they go along. */
int moe_alltoall_take(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, enum moe_alltoall_step to, bool probs);
void moe_alltoall_give(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, enum moe_alltoall_step from, bool probs);

/* One collective each: it takes the buffer that it fills and gives back the one that it has read. `down`: towards the
 * tokens. */
int moe_alltoall_over_ep(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, bool down, const char *what);
int moe_alltoall_gather_up(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, const char *what);
int moe_alltoall_scatter_down(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, const char *what);
int moe_alltoall_probs_over_ep(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, bool down, const char *what);
int moe_alltoall_probs_over_etp(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, bool down, const char *what);
/* Moves rows from AT_ETP to the experts' order, and back. */
int moe_alltoall_order_up(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, bool probs);
int moe_alltoall_order_down(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, bool probs);

#pragma GCC visibility pop

#endif
