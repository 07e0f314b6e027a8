/*
 * reduce.c: arithmetic of the collectives.
 *
 * Integers wrap, as on the device: signed sums and products are done unsigned. float and double use the processor's
 * arithmetic. The narrow formats are widened to float, combined, and rounded back once per step, so that the running
 * value after every rank is a value of the type, as in the buffers of NCCL's rings. Maximum and minimum prefer a number
 * to a NaN (fmax, fmin). The order is the caller's: rank 0 first, so all ranks get equal bits.
 *
 * One macro writes the three loops for one type; a table by ncclDataType_t holds them. Rejected: one generic loop over
 * double, which is wrong for 64-bit integers and rounds float twice.
 */
#include "hostnccl/nccl/reduce.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/smallfloat.h"

typedef void scale_fn(void *out, const void *x, size_t count, const void *scalar);
typedef void next_fn(void *acc, const void *x, size_t count, enum hn_reduce kind);
typedef void last_fn(void *acc, size_t count, int divisor);
typedef void put_fn(void *out, double value);

struct type_ops {
    size_t size;
    scale_fn *scale;
    next_fn *next;
    last_fn *last;
    put_fn *put;
};

#define LOOP(expr)                                                                                                     \
    for (size_t i = 0; i < count; i++) {                                                                               \
        a[i] = (expr);                                                                                                 \
    }                                                                                                                  \
    break

/* STORE: element in memory. WORK: type of the arithmetic. GET, PUT: between them. MAX, MIN on WORK. */
#define DEFINE_TYPE(NAME, STORE, WORK, GET, PUT, MAX, MIN)                                                             \
    static void NAME##_scale(void *out, const void *x, size_t count, const void *scalar)                               \
    {                                                                                                                  \
        STORE *a = out, s;                                                                                             \
        const STORE *b = x;                                                                                            \
        memcpy(&s, scalar, sizeof(s));                                                                                 \
        const WORK scale = GET(s);                                                                                     \
        for (size_t i = 0; i < count; i++) {                                                                           \
            a[i] = PUT((WORK)(GET(b[i]) * scale));                                                                     \
        }                                                                                                              \
    }                                                                                                                  \
    static void NAME##_next(void *acc, const void *x, size_t count, enum hn_reduce kind)                               \
    {                                                                                                                  \
        STORE *a = acc;                                                                                                \
        const STORE *b = x;                                                                                            \
        switch (kind) {                                                                                                \
        case HN_SUM:                                                                                                   \
            LOOP(PUT((WORK)(GET(a[i]) + GET(b[i]))));                                                                  \
        case HN_PROD:                                                                                                  \
            LOOP(PUT((WORK)(GET(a[i]) * GET(b[i]))));                                                                  \
        case HN_MAX:                                                                                                   \
            LOOP(PUT(MAX(GET(a[i]), GET(b[i]))));                                                                      \
        case HN_MIN:                                                                                                   \
            LOOP(PUT(MIN(GET(a[i]), GET(b[i]))));                                                                      \
        }                                                                                                              \
    }

#define DEFINE_INT(NAME, STORE, WORK)                                                                                  \
    static inline WORK NAME##_get(STORE v)                                                                             \
    {                                                                                                                  \
        return (WORK)v;                                                                                                \
    }                                                                                                                  \
    static inline STORE NAME##_put(WORK v)                                                                             \
    {                                                                                                                  \
        return (STORE)v;                                                                                               \
    }                                                                                                                  \
    static inline WORK NAME##_max(WORK p, WORK q)                                                                      \
    {                                                                                                                  \
        return (STORE)p > (STORE)q ? p : q;                                                                            \
    }                                                                                                                  \
    static inline WORK NAME##_min(WORK p, WORK q)                                                                      \
    {                                                                                                                  \
        return (STORE)p < (STORE)q ? p : q;                                                                            \
    }                                                                                                                  \
    DEFINE_TYPE(NAME, STORE, WORK, NAME##_get, NAME##_put, NAME##_max, NAME##_min)                                     \
    static void NAME##_last(void *acc, size_t count, int divisor)                                                      \
    {                                                                                                                  \
        STORE *a = acc;                                                                                                \
        for (size_t i = 0; i < count; i++) {                                                                           \
            a[i] = (STORE)(a[i] / (__typeof__(+a[i]))divisor); /* promoted: 256 ranks are no int8 */                   \
        }                                                                                                              \
    }                                                                                                                  \
    static void NAME##_double(void *out, double value)                                                                 \
    {                                                                                                                  \
        STORE v = (STORE)value;                                                                                        \
        memcpy(out, &v, sizeof(v));                                                                                    \
    }

#define DEFINE_FLOAT(NAME, STORE, WORK, GET, PUT, MAX, MIN)                                                            \
    DEFINE_TYPE(NAME, STORE, WORK, GET, PUT, MAX, MIN)                                                                 \
    static void NAME##_double(void *out, double value)                                                                 \
    {                                                                                                                  \
        STORE v = PUT((WORK)value);                                                                                    \
        memcpy(out, &v, sizeof(v));                                                                                    \
    }

#define SAME(v) (v)

DEFINE_INT(i8, int8_t, uint32_t)
DEFINE_INT(u8, uint8_t, uint32_t)
DEFINE_INT(i32, int32_t, uint32_t)
DEFINE_INT(u32, uint32_t, uint32_t)
DEFINE_INT(i64, int64_t, uint64_t)
DEFINE_INT(u64, uint64_t, uint64_t)
DEFINE_FLOAT(f16, uint16_t, float, hn_f16_get, hn_f16_put, fmaxf, fminf)
DEFINE_FLOAT(f32, float, float, SAME, SAME, fmaxf, fminf)
DEFINE_FLOAT(f64, double, double, SAME, SAME, fmax, fmin)
DEFINE_FLOAT(bf16, uint16_t, float, hn_bf16_get, hn_bf16_put, fmaxf, fminf)
DEFINE_FLOAT(e4m3, uint8_t, float, hn_e4m3_get, hn_e4m3_put, fmaxf, fminf)
DEFINE_FLOAT(e5m2, uint8_t, float, hn_e5m2_get, hn_e5m2_put, fmaxf, fminf)

#define INT_ROW(NAME, STORE)                                                                                           \
    {                                                                                                                  \
        sizeof(STORE), NAME##_scale, NAME##_next, NAME##_last, NAME##_double                                           \
    }
#define FLOAT_ROW(NAME, STORE)                                                                                         \
    {                                                                                                                  \
        sizeof(STORE), NAME##_scale, NAME##_next, NULL, NAME##_double                                                  \
    }

static const struct type_ops TYPES[] = {
    [ncclInt8] = INT_ROW(i8, int8_t),
    [ncclUint8] = INT_ROW(u8, uint8_t),
    [ncclInt32] = INT_ROW(i32, int32_t),
    [ncclUint32] = INT_ROW(u32, uint32_t),
    [ncclInt64] = INT_ROW(i64, int64_t),
    [ncclUint64] = INT_ROW(u64, uint64_t),
    [ncclFloat16] = FLOAT_ROW(f16, uint16_t),
    [ncclFloat32] = FLOAT_ROW(f32, float),
    [ncclFloat64] = FLOAT_ROW(f64, double),
    [ncclBfloat16] = FLOAT_ROW(bf16, uint16_t),
    [ncclFloat8e4m3] = FLOAT_ROW(e4m3, uint8_t),
    [ncclFloat8e5m2] = FLOAT_ROW(e5m2, uint8_t),
};

static bool type_ok(ncclDataType_t type)
{
    return (unsigned)type < sizeof(TYPES) / sizeof(TYPES[0]);
}

size_t hn_type_size(ncclDataType_t type)
{
    return type_ok(type) ? TYPES[type].size : 0;
}

void hn_reduce_input(void *out, const void *x, size_t count, ncclDataType_t type, const struct hn_redop *op)
{
    if (op->scaled) {
        TYPES[type].scale(out, x, count, op->scalar ? op->scalar : op->immediate);
    } else if (out != x) {
        memmove(out, x, count * TYPES[type].size);
    }
}

void hn_reduce_next(void *acc, const void *x, size_t count, ncclDataType_t type, const struct hn_redop *op)
{
    TYPES[type].next(acc, x, count, op->kind);
}

void hn_reduce_last(void *acc, size_t count, ncclDataType_t type, const struct hn_redop *op)
{
    if (op->divisor && TYPES[type].last) {
        TYPES[type].last(acc, count, op->divisor);
    }
}

void hn_scalar_from_double(void *out, double value, ncclDataType_t type)
{
    TYPES[type].put(out, value);
}
