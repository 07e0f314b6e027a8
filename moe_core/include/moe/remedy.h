/*
 * remedy.h: the remedies that a layer can be given at run time; moe_remedies() of observe.h is asked for them.
 *
 * The bits are those of trace/remedy.def: never changed, never reused.
 */
#ifndef MOE_REMEDY_H
#define MOE_REMEDY_H

enum moe_remedy {
    /* Local: a rank without rows walks its whole backward plan with inputs of zero rows. Exact. R3 of the contract. */
    MOE_REMEDY_FILL = 1u << 0,
    /* Symmetric, agreed in the token-count exchange: each rank without rows is sent one zero row. R2 of the
     * contract. */
    MOE_REMEDY_PAD = 1u << 1,
};

#endif
