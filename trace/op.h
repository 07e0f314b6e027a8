/*
 * op.h: names and classes of operations (op.def), datatypes (dtype.def), reductions and phases.
 *
 * Datatype and reduction numbers are NCCL's own (nccl.h, ncclDataType_t and ncclRedOp_t); user-created reductions
 * (ncclRedOpCreatePreMulSum) are all recorded as ROLL_RED_PREMUL, because their handles differ from rank to rank.
 */
#ifndef ROLL_TRACE_OP_H
#define ROLL_TRACE_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum roll_op {
    ROLL_OP_NONE = 0,
#define ROLL_OP_ROW(name, id, label, class, traits) ROLL_OP_##name = (id),
#include "trace/op.def"
#undef ROLL_OP_ROW
    ROLL_OP_LIMIT = 96, /* ids are below this: tables may be indexed by id */
};

enum roll_op_class {
    ROLL_CLASS_NONE = 0,
    ROLL_CLASS_COLL,
    ROLL_CLASS_P2P,
    ROLL_CLASS_RMA,
    ROLL_CLASS_GROUP,
    ROLL_CLASS_COMM,
    ROLL_CLASS_SYNC,
    ROLL_CLASS_MOE,
    ROLL_CLASS_EXT,
    ROLL_CLASS_POLL,
    ROLL_CLASS_ORDER,
};

/* NCCL's ncclDataType_t; ROLL_DTYPE_NONE where a call has none. */
enum roll_dtype {
#define ROLL_DTYPE_ROW(name, number, label, bytes) ROLL_DTYPE_##name = (number),
#include "trace/dtype.def"
#undef ROLL_DTYPE_ROW
    ROLL_DTYPE_LIMIT = 12,
    ROLL_DTYPE_NONE = 255,
};

/* NCCL's ncclRedOp_t; user-created ones are folded into PREMUL. */
enum roll_redop {
    ROLL_RED_SUM = 0,
    ROLL_RED_PROD = 1,
    ROLL_RED_MAX = 2,
    ROLL_RED_MIN = 3,
    ROLL_RED_AVG = 4,
    ROLL_RED_PREMUL = 5,
    ROLL_RED_LIMIT = 6,
    ROLL_RED_NONE = 255,
};

/* Where in a training step a call was made, as reported by moe_core. */
enum roll_phase {
    ROLL_PHASE_NONE = 0,
    ROLL_PHASE_FORWARD = 1,
    ROLL_PHASE_BACKWARD = 2,
    ROLL_PHASE_RECOMPUTE = 3,
    ROLL_PHASE_REDUCE = 4, /* gradient reduction */
    ROLL_PHASE_OPTIMIZER = 5,
};

/* Labels for people: "AllReduce", "float32", "sum", "forward". Unknown numbers give "?". Any thread; static storage. */
const char *roll_op_name(unsigned op);
const char *roll_dtype_name(unsigned dtype);
const char *roll_redop_name(unsigned redop);
const char *roll_phase_name(unsigned phase);
const char *roll_result_name(unsigned result); /* ncclResult_t: "ncclInvalidArgument" */

/* The class of an operation; ROLL_CLASS_NONE for an unknown id. Inline, because it is asked several times for every
 * record.
 */
extern const uint8_t roll_op_classes[ROLL_OP_LIMIT];
static inline enum roll_op_class roll_op_class(unsigned op)
{
    return op < ROLL_OP_LIMIT ? (enum roll_op_class)roll_op_classes[op] : ROLL_CLASS_NONE;
}

/* What NCCL does with a collective, and what a wait waits for: the columns of op.def. */
enum roll_op_trait {
    ROLL_TRAIT_ROOT = 1,
    ROLL_TRAIT_REDOP = 2,
    ROLL_TRAIT_BYTES = 4,
    ROLL_TRAIT_MEETS = 8,
    ROLL_TRAIT_LOWERED = 16,
    ROLL_TRAIT_ALL = 32,
    ROLL_TRAIT_MAY = 64,
};
#define R_ROOT    ROLL_TRAIT_ROOT
#define R_REDOP   ROLL_TRAIT_REDOP
#define R_BYTES   ROLL_TRAIT_BYTES
#define R_MEETS   ROLL_TRAIT_MEETS
#define R_LOWERED ROLL_TRAIT_LOWERED
#define S_ALL     ROLL_TRAIT_ALL
#define S_MAY     ROLL_TRAIT_MAY
/* The operations that have one of these traits, a bit for each id. A constant where `traits` is one: a look into a
 * table cost the engine 2 % of its time. Operations with traits have ids below 64: op.c asserts that. */
static inline uint64_t roll_ops_with(unsigned traits)
{
    return 0
#define ROLL_OP_ROW(name, id, label, class, has) | (((has)&traits) != 0 ? UINT64_C(1) << ((id)&63) : 0)
#include "trace/op.def"
#undef ROLL_OP_ROW
        ;
}
/* Whether an operation is among some of roll_ops_with; an unknown one never is. */
static inline bool roll_op_among(unsigned op, uint64_t ops)
{
    return op < 64 && (ops >> op & 1) != 0;
}
/* Whether an operation has one of these traits; an unknown one has none. */
static inline bool roll_op_has(unsigned op, unsigned traits)
{
    return roll_op_among(op, roll_ops_with(traits));
}

/* Size of one element in bytes; 0 for an unknown or absent datatype. Inline: the interposer asks for every call. */
static inline size_t roll_dtype_bytes(unsigned dtype)
{
    static const uint8_t widths[ROLL_DTYPE_LIMIT] = {
#define ROLL_DTYPE_ROW(name, number, label, bytes) [number] = (bytes),
#include "trace/dtype.def"
#undef ROLL_DTYPE_ROW
    };
    return dtype < ROLL_DTYPE_LIMIT ? widths[dtype] : 0;
}

/* The operation with this label, as printed by roll_op_name; ROLL_OP_NONE when there is none. */
enum roll_op roll_op_by_name(const char *label);

#endif
