/* reduce.h: arithmetic of the collectives on every NCCL data type. See reduce.c for rounding. */
#ifndef ROLL_HOSTNCCL_NCCL_REDUCE_H
#define ROLL_HOSTNCCL_NCCL_REDUCE_H

#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>

/* The function that combines two elements. */
enum hn_reduce { HN_SUM, HN_PROD, HN_MAX, HN_MIN };

/*
 * The resolved reduction of one call. With PreMulSum every rank multiplies its own input by its own scalar, then all
 * inputs are summed. As in NCCL, an average is PreMulSum with 1/n for floats, and a division of the sum for integers.
 */
struct hn_redop {
    enum hn_reduce kind;
    bool scaled;
    const void *scalar; /* scaled: read when the operation runs; NULL: immediate */
    unsigned char immediate[8];
    int divisor; /* the result is divided by this number; 0: no division */
};

/* Bytes of one element, 0 for an unknown type. */
size_t hn_type_size(ncclDataType_t type);

/* out[i] = x[i], times the scalar where the operation has one. */
void hn_reduce_input(void *out, const void *x, size_t count, ncclDataType_t type, const struct hn_redop *op);

/* acc[i] = acc[i] (op) x[i], rounded once. acc and x do not overlap. */
void hn_reduce_next(void *acc, const void *x, size_t count, ncclDataType_t type, const struct hn_redop *op);

/* Finishes the result after the last rank: the division, where the operation has one. */
void hn_reduce_last(void *acc, size_t count, ncclDataType_t type, const struct hn_redop *op);

/* Writes `value` as one element of `type`: the scalar 1/n of an average over floats. */
void hn_scalar_from_double(void *out, double value, ncclDataType_t type);

#endif
