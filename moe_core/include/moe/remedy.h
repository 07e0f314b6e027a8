/*
 * remedy.h: the remedies that a layer can be given at run time; moe_remedies() of observe.h is asked for them.
 *
 * The bits are those of trace/remedy.def: never changed, never reused.
 */
#ifndef MOE_REMEDY_H
#define MOE_REMEDY_H

enum moe_remedy {
    /* Local: a rank without rows walks its whole backward plan with inputs of zero rows. Exact. R3 (Megatron-LM #3626).
     */
    MOE_REMEDY_FILL = 1u << 0,
    /* Symmetric, agreed in the token-count exchange: each rank without rows is sent one zero row. R2 on the wire. */
    MOE_REMEDY_PAD = 1u << 1,
    /* Local: weight gradients of empty groups stored as zeros by a predicate on the device's counts. R1
       (TransformerEngine #3019). */
    MOE_REMEDY_ZERO_WGRAD = 1u << 2,
    /* Symmetric: MAX of the token numbers over the dispatch group, padding, trim. R4 (Megatron-LM #4816). */
    MOE_REMEDY_UNEVEN = 1u << 3,
    /* Symmetric: the same to a fixed bound, without the exchange and its wait. R4'. */
    MOE_REMEDY_BOUND = 1u << 4,
    /* Local: slack rows are zeroed. R5. */
    MOE_REMEDY_SANITIZE = 1u << 5,
    /* Local: rows of the send buffer = sum of the counts. R6. */
    MOE_REMEDY_SPLITS = 1u << 6,
    /* Local: the first forward's routing is kept in recompute. R7. */
    MOE_REMEDY_ROUTING = 1u << 7,
    /* Symmetric: one all-reduce of the router's gradient over tp, refused where another is declared. R8 (torchtitan
       #2416). */
    MOE_REMEDY_ROUTER_SUM = 1u << 8,
    /* Local: one zero row per local expert without rows, probability 0. R2 of Megatron-LM #4851. */
    MOE_REMEDY_DUMMY = 1u << 9,
};

#endif
