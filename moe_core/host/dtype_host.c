/*
 * dtype_host.c: the host's conversions of whole rows.
 *
 * The number formats are those of hostnccl (common/smallfloat.h): one rounding rule for what is computed and what is
 * reduced.
 */
#include "moe_core/host/dtype_host.h"

#include "common/smallfloat.h"

#include <string.h>

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
