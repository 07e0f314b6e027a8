/*
 * host_tensor.c: the host back end's functions of whole tensors: checksum, change of type, sums, counts of elements
 * that are not finite.
 */
#include "common/mix.h"
#include "moe_core/host/device_host.h"
#include "moe_core/host/dtype_host.h"

#include <math.h>
#include <string.h>

int moe_host_checksum(const void *args)
{
    const struct moe_checksum *a = args;
    const unsigned char *data = a->data;
    size_t words = a->bytes / sizeof(uint64_t), rest = a->bytes % sizeof(uint64_t);
    uint64_t sum = moe_mix(a->bytes), word = 0;
    for (size_t i = 0; i < words; i++) {
        memcpy(&word, data + i * sizeof(word), sizeof(word));
        sum += moe_mix_word(word, i);
    }
    if (rest > 0) {
        word = 0;
        memcpy(&word, data + words * sizeof(word), rest);
        sum += moe_mix_word(word, words);
    }
    *a->out = sum;
    return 0;
}

enum { PIECE = 1024 }; /* elements converted at a time: float32 is the way between any two types */

int moe_host_cast(const void *args)
{
    const struct moe_cast *a = args;
    size_t from_size = moe_dtype_bytes(a->from_type), to_size = moe_dtype_bytes(a->to_type);
    float piece[PIECE];
    for (int64_t at = 0; at < a->count; at += PIECE) {
        int64_t n = a->count - at < PIECE ? a->count - at : PIECE;
        moe_widen(a->from_type, (const char *)a->from + (size_t)at * from_size, n, piece);
        moe_narrow(a->to_type, piece, n, (char *)a->to + (size_t)at * to_size);
    }
    return 0;
}

int moe_host_sum_abs(const void *args)
{
    const struct moe_sum_abs *a = args;
    double sum = 0.0, size = 0.0;
    for (int64_t i = 0; i < a->count; i++) {
        sum += moe_sign((uint64_t)i) * (double)a->in[i];
        size += fabs((double)a->in[i]);
    }
    a->out[0] = sum;
    a->out[1] = size;
    return 0;
}

int moe_host_not_finite(const void *args)
{
    const struct moe_not_finite *a = args;
    uint64_t all = 0, empty = 0;
    for (int64_t g = 0; g < a->groups; g++) {
        uint64_t here = 0;
        for (int64_t i = 0; i < a->elements; i++) {
            here += isfinite(a->in[g * a->elements + i]) ? 0 : 1;
        }
        all += here;
        empty += a->m != NULL && a->m[g] == 0 ? here : 0;
    }
    a->out[0] = all;
    a->out[1] = empty;
    return 0;
}
