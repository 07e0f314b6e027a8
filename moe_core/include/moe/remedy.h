/*
 * remedy.h: the remedies that a layer can be given at run time; the library asks moe_remedies of observe.h for them.
 *
 * The bits are those of common/remedy.def: they are never changed and never reused. A local remedy acts on one rank
 * alone; a symmetric one is in force once all ranks have agreed on it. R numbers are the rows of docs/MOE.md, Remedies.
 */
#ifndef MOE_REMEDY_H
#define MOE_REMEDY_H

enum moe_remedy {
    /*
     * Local, R3: a rank without rows walks its whole backward plan with inputs of zero rows; exact (Megatron-LM #3626).
     */
    MOE_REMEDY_FILL = 1u << 0,
    /* Symmetric, agreed in the token-count exchange, R2 on the wire: each rank without rows is sent one zero row. */
    MOE_REMEDY_PAD = 1u << 1,
    /*
     * Local, R1: weight gradients of empty groups are stored as zeros, by a predicate on the device's counts
     * (TransformerEngine #3019).
     */
    MOE_REMEDY_ZERO_WGRAD = 1u << 2,
    /*
     * Symmetric, R4: tokens are padded to the largest number of any rank of the dispatch group, and trimmed after
     * (Megatron-LM #4816).
     */
    MOE_REMEDY_UNEVEN = 1u << 3,
    /* Symmetric, R4': tokens are padded to a fixed bound, without R4's exchange and wait. In force before the ranks
     * know whether their numbers differ; reported as used where they do. */
    MOE_REMEDY_BOUND = 1u << 4,
    /* Local, R5: slack rows are zeroed. */
    MOE_REMEDY_SANITIZE = 1u << 5,
    /* Local, R6: the send buffer has as many rows as the counts add up to. */
    MOE_REMEDY_SPLITS = 1u << 6,
    /* Local, R7: recompute keeps the routing of the first forward. */
    MOE_REMEDY_ROUTING = 1u << 7,
    /*
     * Symmetric, R8: one AllReduce of the router's gradient over tp, refused where another sum is declared (torchtitan
     * #2416).
     */
    MOE_REMEDY_ROUTER_SUM = 1u << 8,
    /* Local, R2: each local expert without rows gets one zero row of probability 0 (Megatron-LM #4851). */
    MOE_REMEDY_DUMMY = 1u << 9,
};

#endif
