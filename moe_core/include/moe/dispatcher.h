/*
 * dispatcher.h: token dispatchers: rows of tokens to the ranks that own their experts, and back.
 *
 * A dispatcher owns everything between the router's choice and the experts: permutation, exchange of counts,
 * collectives, sorting, and the same in reverse. Each kind issues exactly the collectives of its framework, forward and
 * backward, on the same communicators and in the same order; the table stands at the head of its source file and in
 * docs/MOE.md. Backward is not a function. Its collectives are nodes of the layer's plan (plan.h), one obligation each,
 * so that an observer can compare what all ranks are going to issue before any of them waits.
 *
 *   kind        collectives on             source
 *   alltoall    tp_ep (counts), ep, etp    Megatron-LM token_dispatcher.py, MoEAlltoAllTokenDispatcher
 *   allgather   tp_ep                      Megatron-LM token_dispatcher.py, MoEAllGatherTokenDispatcher
 *   deepep      tp_ep                      Megatron-LM fused_a2a.py over DeepEP: dispatch, combine
 *   hybridep    tp_ep                      Megatron-LM fused_a2a.py over DeepEP's hybrid-ep
 *
 * A layer-forward calls prepare, forward, the experts, combine; push_dispatch and push_combine put backward on the
 * plan.
 */
#ifndef MOE_DISPATCHER_H
#define MOE_DISPATCHER_H

#include "device.h"
#include "dtype.h"
#include "plan.h"

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_dispatcher moe_dispatcher_t;
struct moe_shared; /* shared.h */
struct moe_shared_weights;

enum moe_dispatcher_kind {
    MOE_DISPATCH_ALLTOALL = 0,
    MOE_DISPATCH_ALLGATHER = 1,
    MOE_DISPATCH_DEEPEP = 2,
    MOE_DISPATCH_HYBRIDEP = 3,
    MOE_DISPATCH_KINDS
};

/*
 * The communicators of a layer, all borrowed; NULL stands for a group of one rank. A rank's number in tp_ep is its ep
 * rank * size of etp + its etp rank. Where ep or etp has one rank, tp_ep may be NULL; the dispatcher then uses the
 * other of the two.
 */
struct moe_groups {
    ncclComm_t ep;    /* expert parallel: each rank has its own experts */
    ncclComm_t etp;   /* expert tensor parallel: each rank has a slice of the same experts */
    ncclComm_t tp_ep; /* the product of etp and ep */
    ncclComm_t tp;    /* attention tensor parallel: shared expert, replicated router */
};

/*
 * How ranks with different numbers of tokens are made equal for the kinds that need equal numbers (hybridep, allgather;
 * Megatron-LM #4816). uneven.h says what each does.
 */
enum moe_uneven {
    MOE_UNEVEN_NONE = 0, /* nothing is padded: different numbers hang (hazard H7) */
    MOE_UNEVEN_MAX,   /* remedy R4: an AllReduce MAX of T on the dispatch group, rounded up to MOE_TOKEN_ALIGN; the host
                         waits for it; once per microbatch (moe_dispatcher_share) */
    MOE_UNEVEN_BOUND, /* remedy R4': T is padded to token_bound; no exchange and no wait */
};
#define MOE_TOKEN_ALIGN 64

/*
 * Wrong behaviour of frameworks, for reproducing it; every member is off by default. H numbers are the hazards of
 * docs/MOE.md. A kind refuses a behaviour that its framework does not have. The `empty_` members and static_rows ask
 * moe_remedies at the moment when they are about to go wrong: FILL cures the former, SPLITS the latter. SANITIZE zeroes
 * the rows that slack_uninitialised leaves.
 */
struct moe_dispatcher_legacy {
    bool empty_unpermute;     /* H4: combine of a rank without rows gives 0 rows, whatever shape was asked for */
    bool empty_from_input;    /* H5: a rank without rows takes its expert rows from its own input, so dispatch has no
                                 backward */
    bool empty_returns_early; /* H6: a rank without rows leaves dispatch early and never enters combine */
    bool static_rows;    /* H12: the buffer has T k rows even where the routing map has fewer: error SPLIT on that rank
                            alone; with slack_uninitialised the surplus rows are sent as they are */
    bool local_capacity; /* H13: the capacity is computed from this rank's own T */
    bool slack_uninitialised; /* H14: rows beyond the sum of m keep whatever the memory held */
};

struct moe_dispatcher_config {
    enum moe_dispatcher_kind kind;
    int64_t max_tokens;      /* the largest T of any rank of the group; every rank must give the same number */
    int64_t hidden, experts; /* H, and E over all ranks */
    int32_t topk;            /* k */
    enum moe_dtype type;     /* the type of rows: float32, bfloat16, float16 */
    bool probs_travel; /* probabilities travel with the rows (prob places ACTIVATION and INPUT); else combine merges
                          them at the source */
    int64_t expert_capacity; /* drop-and-pad: rows of each expert from each rank, equal on all ranks, and no counts are
                                exchanged; 0: as many as the counts say */
    int64_t row_multiple; /* rows of each local expert are padded to a multiple of this number (quantised types); 0 or
                             1: no padding */
    int64_t row_budget; /* hybridep: the most rows received, so that the host need not wait for the number; further rows
                           are dropped and flagged; 0: exact rows, one wait */
    enum moe_uneven uneven;
    int64_t token_bound; /* T_pad for MOE_UNEVEN_BOUND */
    float budget_factor; /* hybridep, instead of row_budget: each layer-forward takes int(T_pad k factor), rounded up to
                            row_multiple */
    int32_t node_ranks;  /* deepep, hybridep: how many ranks of the group are on this node; 0: found by host names
                            (ep_buffer.h) */
    struct moe_groups groups;
    struct moe_shared
        *shared; /* alltoall: a shared expert that runs beside the dispatcher's collectives; borrowed; NULL: none */
    struct moe_dispatcher_legacy legacy;
    int32_t world_rank; /* appears in messages */
    uint32_t layer;     /* appears in messages */
};

/* What the router chose; device memory, borrowed until backward has run. */
struct moe_routing {
    int64_t tokens;        /* T */
    const int32_t *index;  /* [T,k] expert of each choice; -1: dropped or masked */
    const float *probs;    /* [T,E] weight of each chosen expert */
    const int64_t *counts; /* [E] this rank's rows for each expert; in drop-and-pad the capacity, for every expert */
};

/* What the host knows after moe_dispatcher_prepare. */
struct moe_dispatch_plan {
    int64_t sent;     /* rows of the source-ordered buffer, padding included */
    int64_t received; /* rows of the experts' buffer: the exact number, or the budget */
    bool exact;       /* `received` is the exact number of rows; otherwise it is an upper bound */
    int64_t padded;   /* how many of the received rows are zero rows of remedy PAD */
    int64_t
        filler; /* how many of the received rows are zero rows that row_multiple adds; 0 where only the device knows */
    int64_t empty_experts; /* local experts without rows; -1: the host does not know */
    int64_t slack;         /* legacy static_rows: rows beyond those that the routing map fills */
    uint32_t
        remedied;  /* bits of remedy.h: what cured something in this forward, by itself or because it was agreed on */
    int32_t peers; /* members of the all-to-all; 0: the kind has no splits (allgather) */
    const int64_t *split_sent,
        *split_received; /* [peers] rows for and from each member; borrowed until the next prepare */
};

/*
 * Makes a dispatcher. *out is owned by the caller; borrows device, the groups and the shared expert. All functions of a
 * dispatcher: one thread at a time. Errors: NOMEM, SHAPE (E is no multiple of ep, ranks that do not fit tp_ep),
 * UNSUPPORTED (an option that the kind does not have), COMM.
 */
int moe_dispatcher_new(moe_device_t *device, const struct moe_dispatcher_config *config, moe_dispatcher_t **out);

/*
 * The same in two steps, for a caller whose ranks agree in between that each has taken the first one: `open` refuses
 * what can be refused and calls no peer; `make` does the rest, with the exchange that makes the group's buffer, where
 * the kind has one (COLLECTIVE). What keeps a rank from going on in `make` is told in that exchange; what comes behind
 * it is not. The dispatcher serves once it is made, and is destroyed after any failure. Errors: as moe_dispatcher_new.
 */
int moe_dispatcher_open(moe_device_t *device, const struct moe_dispatcher_config *config, moe_dispatcher_t **out);
int moe_dispatcher_make(moe_dispatcher_t *dispatcher);
/* Frees the dispatcher and clears the pointer. NULL is allowed. */
void moe_dispatcher_destroy(moe_dispatcher_t **dispatcher);

/*
 * The kind's name: "alltoall", "allgather", "deepep" or "hybridep"; "?" for a number that is no kind. Any thread;
 * static storage.
 */
const char *moe_dispatcher_name(enum moe_dispatcher_kind kind);

/*
 * The dispatch group: tp_ep, or ep where there is no tp_ep. It holds all ranks that share experts or slices of experts.
 * Borrowed; NULL: one rank.
 */
ncclComm_t moe_dispatcher_comm(const moe_dispatcher_t *dispatcher);
/* The size of the dispatch group; 1 where it is NULL. */
int32_t moe_dispatcher_ranks(const moe_dispatcher_t *dispatcher);
/* This rank's number in the dispatch group. */
int32_t moe_dispatcher_rank(const moe_dispatcher_t *dispatcher);
/* The number of experts of this rank, L. */
int64_t moe_dispatcher_local(const moe_dispatcher_t *dispatcher);
/* The most rows that the experts' buffer can have: the max_rows with which the experts are made. */
int64_t moe_dispatcher_max_rows(const moe_dispatcher_t *dispatcher);

/*
 * Whether all sizes are known beforehand (expert_capacity, row_budget, budget_factor), so that memory is made once, for
 * max_rows, and stays: a graph may have captured it.
 */
bool moe_dispatcher_standing(const moe_dispatcher_t *dispatcher);

/*
 * Says where the next layer-forward is: step, microbatch, layer and phase, copied from `at`. Call it before prepare.
 * The dispatcher needs it for the events that it reports itself: MOE_UNIFORM (observe.h), for a number that must be
 * equal on all ranks and that nothing in the dispatcher makes equal.
 */
void moe_dispatcher_at(moe_dispatcher_t *dispatcher, const struct moe_event *at);

/*
 * Says whether the next layer-forwards belong to microbatches whose layers all have the same T, so that MOE_UNEVEN_MAX
 * asks once per microbatch (uneven.h), by the step and the number of moe_dispatcher_at. By default each layer-forward
 * asks for itself. The same on all ranks.
 */
void moe_dispatcher_share(moe_dispatcher_t *dispatcher, bool microbatch);

/*
 * Sets a number, at most 32767, that all ranks of the dispatch group must give alike; 0 by default. It travels in every
 * exchange from then on, in the word of the proposals. After prepare moe_dispatcher_alike says whether all ranks gave
 * the same one, the same answer on every rank; where they did not, *rank is the first rank of the group that differs
 * from rank 0, *theirs its number and *first that of rank 0. Where the host does not wait for an exchange the answer
 * comes late, and is true until then: with a row budget in the next layer-forward but one, whose prepare is then ARG
 * on all ranks, once for what was said until then; with expert_capacity, where ranks exchange nothing, an AllGather of
 * int64 [1] on tp_ep carries the number in the first layer-forward of each step (moe_dispatcher_at), and is waited for
 * in the dispatcher's first one only. Of captured layer-forwards nothing is compared.
 */
void moe_dispatcher_set_alike(moe_dispatcher_t *dispatcher, uint16_t number);
bool moe_dispatcher_alike(const moe_dispatcher_t *dispatcher, int32_t *rank, uint16_t *theirs, uint16_t *first);

/*
 * Says that the layer's last prepare was that of `last`, a dispatcher for another microbatch of the same layer, made
 * from the same configuration: what its ranks agreed on is in force in the next prepare, as if that had been this
 * dispatcher's own. NULL: it was. The same on all ranks. Borrows `last` until that prepare. Same thread.
 */
void moe_dispatcher_follow(moe_dispatcher_t *dispatcher, const moe_dispatcher_t *last);

/*
 * Exchanges what the kind exchanges (counts, routing maps, numbers of tokens), and with it the remedies that each rank
 * proposes (bits of remedy.h). *agreed is the bitwise AND of all ranks' proposals, the same on every rank; it is 0
 * where a kind exchanges nothing (alltoall with expert_capacity). PAD is in force in the same forward. UNEVEN and BOUND
 * change the exchange itself and are in force from the next forward on. Waits for the stream where the kind needs
 * numbers on the host. Errors that are local, and come before any collective: SHAPE (T), ARG (a pointer is missing).
 * Errors found in the exchanged numbers, so that every rank of the group returns the same error and none is left
 * waiting: COUNT (a count is negative or more than max_tokens), SPLIT (a rank's counts add up to more than its T k),
 * NOMEM (a rank declined: moe_dispatcher_decline). NOMEM where this rank finds no memory after the exchange is its own.
 * Errors of the exchange: COMM, DEVICE.
 */
int moe_dispatcher_prepare(moe_dispatcher_t *dispatcher, const struct moe_routing *routing, uint32_t proposed,
                           uint32_t *agreed);

/*
 * Takes the place of prepare on a rank that has no memory to go on, with its number of tokens: the rank takes part in
 * the exchange and says so, and all ranks of the group get NOMEM, with this rank's number in the message, instead of
 * waiting for it. The exchange itself needs no memory that a rank could lack. Where all sizes are known beforehand
 * (expert_capacity, a row budget) there is no such exchange: all memory was made with the dispatcher. COLLECTIVE in
 * place of prepare, and a wait. Returns NOMEM and leaves moe_last_error as it was.
 */
int moe_dispatcher_decline(moe_dispatcher_t *dispatcher, int64_t tokens);

/* The numbers of the last prepare. Borrowed. */
const struct moe_dispatch_plan *moe_dispatcher_plan(const moe_dispatcher_t *dispatcher);

/*
 * Sends the rows of x [T,H] to the ranks of their experts and leaves the result in the buffers below. Borrows x until
 * backward has run. Errors: STATE (before prepare, or the shared expert's weights are missing), ARG (x is NULL), COMM,
 * DEVICE.
 */
int moe_dispatcher_forward(moe_dispatcher_t *dispatcher, const void *x);

/*
 * The buffers below hold as many rows as this forward has. Their memory comes from the device's pool (device.h) while
 * it is needed and goes back in backward; so ask for a pointer when it is used, and do not keep it. Where all sizes are
 * known beforehand (expert_capacity, row_budget, budget_factor) the memory is made once and stays, because a graph may
 * have captured it.
 */

/*
 * After forward: the received rows in expert-major order, [received,H]. Borrowed until moe_dispatcher_experts_done or
 * the next prepare, as the probabilities below.
 */
const void *moe_dispatcher_rows(const moe_dispatcher_t *dispatcher);
/* After forward: the probabilities of the received rows, [received]; NULL where none travel. */
const float *moe_dispatcher_row_probs(const moe_dispatcher_t *dispatcher);
/* After forward: the rows of each local expert, [L], on the device. */
const int64_t *moe_dispatcher_m(const moe_dispatcher_t *dispatcher);
/* After forward: the buffer [received,H] into which the experts write and from which combine reads. Borrowed until
 * combine. */
void *moe_dispatcher_expert_out(moe_dispatcher_t *dispatcher);

/*
 * Sets the weights of the shared expert (shared.h), borrowed until backward has run. Call it before forward; only with
 * a shared expert.
 */
void moe_dispatcher_set_shared_weights(moe_dispatcher_t *dispatcher, const struct moe_shared_weights *weights);

/*
 * Says that the experts of this rank were skipped in this forward, so that their output is fresh memory which autograd
 * does not know (hazard H1). The collectives of this forward then have no backward: push_dispatch pushes nothing, and
 * push_combine pushes only what the source framework does for its probabilities. Call it after forward; it holds for
 * that forward.
 */
void moe_dispatcher_detach(moe_dispatcher_t *dispatcher);

/*
 * Brings the experts' output back to the tokens: y [T,H] is overwritten, and contains the output of the shared expert
 * where there is one. Errors: STATE (before forward), ARG (y is NULL), COMM, DEVICE; SHAPE with legacy.empty_unpermute.
 */
int moe_dispatcher_combine(moe_dispatcher_t *dispatcher, void *y);

/*
 * Pushes the backward nodes of dispatch. Call it before the experts' node is pushed: nodes are pushed in the order of
 * forward. Errors: STATE (before prepare), CAPACITY (the plan is full).
 */
int moe_dispatcher_push_dispatch(moe_dispatcher_t *dispatcher, struct moe_plan *plan);
/*
 * Pushes the backward nodes of combine. Call it after the experts' node was pushed. Errors: STATE (before prepare),
 * CAPACITY (the plan is full).
 */
int moe_dispatcher_push_combine(moe_dispatcher_t *dispatcher, struct moe_plan *plan);

/*
 * Names the gradients before the plan runs: dy [T,H] is read, dx [T,H] is added to; both are borrowed until the plan
 * has run. The nodes fail with STATE if this call is missing.
 */
void moe_dispatcher_begin_backward(moe_dispatcher_t *dispatcher, const void *dy, void *dx);
/*
 * After the backward nodes of combine have run: the gradient of the experts' output, [received,H]. Borrowed until
 * moe_dispatcher_experts_done or the next prepare.
 */
const void *moe_dispatcher_d_expert_out(const moe_dispatcher_t *dispatcher);
/* After the backward nodes of combine: where the experts' backward leaves the gradient of their rows, [received,H].
 * Borrowed until the nodes of dispatch run. */
void *moe_dispatcher_d_rows(moe_dispatcher_t *dispatcher);
/* Likewise the gradient of the rows' probabilities, [received]; NULL where none travel. */
float *moe_dispatcher_d_row_probs(moe_dispatcher_t *dispatcher);
/*
 * After the dispatch nodes have run: the gradient of the probabilities, [T,E], every element written. Borrowed until
 * the next prepare or moe_dispatcher_release.
 */
const float *moe_dispatcher_d_probs(const moe_dispatcher_t *dispatcher);

/*
 * Says that the experts read their rows, the rows' probabilities and the gradient of their output no more: with delayed
 * weight gradients after those, otherwise after their backward. Their memory goes back to the pool; without this call
 * it does so at the next prepare.
 */
void moe_dispatcher_experts_done(moe_dispatcher_t *dispatcher);
/*
 * Gives all memory of the last forward and backward back to the pool: after a forward that no backward follows, or
 * after the gradients were used. The next call must be prepare.
 */
void moe_dispatcher_release(moe_dispatcher_t *dispatcher);

#ifdef __cplusplus
}
#endif
#endif
