/*
 * moe.h: what the detectors of MoE layers share: the promises of one layer, and what a rank said about it.
 */
#ifndef ROLL_ENGINE_MOE_H
#define ROLL_ENGINE_MOE_H

#include "daemon/engine/detect/detector.h"

#define OBLIGE_MAX 256u /* obligations of one layer */

/* One promised collective. */
struct duty {
    uint64_t comm_key;
    uint64_t count;
    uint32_t op;
    uint32_t callsite;
};

struct duty_list {
    uint32_t step;
    uint16_t microbatch, layer;
    uint32_t used;
    bool broken; /* a record was lost or refused: the list says nothing */
    struct duty duty[OBLIGE_MAX];
};

/* What a rank said about one MoE layer last. */
struct layer_note {
    uint32_t step;
    uint16_t microbatch;
    bool idle; /* it has no tokens of its own either */
    bool zero, skipped, remedied;
    bool said_zero, said_skip, said_remedy;
};

/* The rank that will not issue what its peers expect. */
struct cause {
    uint64_t key;                          /* ep communicator */
    struct roll_rankset culprits, waiting; /* world ranks */
    uint32_t step, microbatch, layer, source, peer_source;
    uint64_t ticket, peer_ticket;
    uint32_t missing;
    struct duty duty; /* the first one missing */
    bool told, proven;
    bool skipped;        /* the culprit said that it skipped its experts */
    uint64_t prediction; /* key of the gathering in which it is told (gather.h) */
};

/* --- detect_moe_zero.c --- */
/* Says that this rank left out the experts of some MoE layer of this step because it had no tokens for them; the remedy
 * for that, 0: it did not. */
uint32_t words_left_out_experts(struct words *w, const struct source *s, uint32_t step);

#endif
