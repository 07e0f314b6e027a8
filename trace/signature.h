/*
 * signature.h: the parts of a collective that must be equal on all ranks, folded into 64 bits.
 *
 * AllGather and Broadcast are turned into bytes, AlltoAll, Gather and Scatter are lowered to byte transfers; reductions
 * depend on count, datatype and operator, rooted calls on the root. Whether the call was captured into a graph is part
 * of the signature, because a captured call does not run. There is one definition for everything that compares calls:
 * the engine, the hash of a graph's collectives, a rank that compares itself with the other ranks of its node. Inline,
 * because two of these are hot paths. Pure; any thread.
 */
#ifndef ROLL_TRACE_SIGNATURE_H
#define ROLL_TRACE_SIGNATURE_H

#include "trace/op.h"
#include "trace/record.h"

#include <stdbool.h>
#include <stdint.h>

struct roll_signed_call {
    uint64_t count;
    int32_t peer;
    uint8_t op, dtype, redop, flags; /* as in the record */
};

/* NCCL moves bytes for these: a different datatype with as many bytes is no difference. */
static inline bool roll_signature_bytes(unsigned op, unsigned flags)
{
    return roll_op_has(op, ROLL_TRAIT_BYTES) || (flags & ROLL_FLAG_BYTES) != 0;
}

static inline uint64_t roll_signature(const struct roll_signed_call *call)
{
    uint64_t amount = call->count;
    uint64_t kind = (uint64_t)call->op | (uint64_t)(uint32_t)call->peer << 32;
    if ((call->flags & ROLL_FLAG_UNSIZED) != 0) {
        amount = 0;
    } else if (roll_signature_bytes(call->op, call->flags)) {
        size_t width = roll_dtype_bytes(call->dtype);
        amount *= width != 0 ? width : 1;
    } else {
        kind |= (uint64_t)call->dtype << 8 | (uint64_t)call->redop << 16;
    }
    kind |= (uint64_t)(call->flags & ROLL_FLAG_CAPTURED) << 24;
    uint64_t h = (amount + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    h ^= h >> 29;
    h = (h ^ kind) * 0x94d049bb133111ebu;
    return h ^ h >> 32;
}

/* The signature of a recorded call. */
static inline uint64_t roll_record_signature(const struct roll_record *rec)
{
    struct roll_signed_call call = {.count = rec->count,
                                    .peer = rec->peer,
                                    .op = rec->op,
                                    .dtype = rec->dtype,
                                    .redop = rec->redop,
                                    .flags = rec->flags};
    return roll_signature(&call);
}

/*
 * The hash of a list of signatures, in order. A polynomial, so that the hash of two lists laid end to end follows from
 * the hashes of both: hash(a, b) = hash(a) * base^(length of b) + hash(b). roll_sequence_hash appends one signature.
 */
#define ROLL_SEQUENCE_BASE 0xd6e8feb86659fd93u
static inline uint64_t roll_sequence_hash(uint64_t hash, uint64_t signature)
{
    return hash * ROLL_SEQUENCE_BASE + signature;
}

static inline uint64_t roll_sequence_join(uint64_t a, uint64_t b, uint32_t length_of_b)
{
    uint64_t base = ROLL_SEQUENCE_BASE;
    for (; length_of_b != 0; length_of_b >>= 1) {
        a *= (length_of_b & 1) != 0 ? base : 1;
        base *= base;
    }
    return a + b;
}

#endif
