/*
 * dtype.c: element types by name and size, and the host's conversions of whole rows.
 *
 * The number formats are hostnccl's (common/smallfloat.h): one rounding rule for what is computed and what is reduced.
 */
#include "moe_core/host/dtype_host.h"

#include "common/smallfloat.h"

#include <string.h>

size_t moe_dtype_bytes(enum moe_dtype type)
{
    static const size_t bytes[MOE_DTYPES] = {4, 2, 2, 1, 1};
    return (unsigned)type < MOE_DTYPES ? bytes[type] : 0;
}

const char *moe_dtype_name(enum moe_dtype type)
{
    static const char *const names[MOE_DTYPES] = {"float32", "bfloat16", "float16", "float8e4m3", "float8e5m2"};
    return (unsigned)type < MOE_DTYPES ? names[type] : "?";
}

void moe_widen(enum moe_dtype type, const void *from, int64_t n, float *to)
{
    const uint16_t *half = from;
    const uint8_t *byte = from;
    switch (type) {
    case MOE_BF16:
        for (int64_t i = 0; i < n; i++) {
            to[i] = hn_bf16_get(half[i]);
        }
        break;
    case MOE_F16:
        for (int64_t i = 0; i < n; i++) {
            to[i] = hn_f16_get(half[i]);
        }
        break;
    case MOE_E4M3:
        for (int64_t i = 0; i < n; i++) {
            to[i] = hn_e4m3_get(byte[i]);
        }
        break;
    case MOE_E5M2:
        for (int64_t i = 0; i < n; i++) {
            to[i] = hn_e5m2_get(byte[i]);
        }
        break;
    default:
        memcpy(to, from, (size_t)n * sizeof(*to));
    }
}

void moe_narrow(enum moe_dtype type, const float *from, int64_t n, void *to)
{
    uint16_t *half = to;
    uint8_t *byte = to;
    switch (type) {
    case MOE_BF16:
        for (int64_t i = 0; i < n; i++) {
            half[i] = hn_bf16_put(from[i]);
        }
        break;
    case MOE_F16:
        for (int64_t i = 0; i < n; i++) {
            half[i] = hn_f16_put(from[i]);
        }
        break;
    case MOE_E4M3:
        for (int64_t i = 0; i < n; i++) {
            byte[i] = hn_e4m3_put(from[i]);
        }
        break;
    case MOE_E5M2:
        for (int64_t i = 0; i < n; i++) {
            byte[i] = hn_e5m2_put(from[i]);
        }
        break;
    default:
        memcpy(to, from, (size_t)n * sizeof(float));
    }
}
