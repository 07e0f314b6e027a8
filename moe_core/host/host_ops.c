/*
 * host_ops.c: the host back end's table, its products (BLAS) and its element-wise functions.
 *
 * Grouped products are host_linear.c's. Enqueuing reads no data: counts may be the result of earlier work in the
 * stream.
 */
#include "moe_core/base/fail.h"
#include "moe_core/host/device_host.h"

#include <cblas.h>
#include <limits.h>
#include <math.h>
#include <string.h>

struct zero {
    void *data;
    size_t bytes;
};

static int run_zero(const void *args)
{
    const struct zero *z = args;
    memset(z->data, 0, z->bytes);
    return 0;
}

static bool fits_blas(int64_t a, int64_t b, int64_t c)
{
    return a <= INT_MAX && b <= INT_MAX && c <= INT_MAX;
}

int moe_host_product(const struct moe_gemm *g)
{
    if (!fits_blas(g->m, g->n, g->k)) {
        return MOE_E_SHAPE;
    }
    if (g->m == 0 || g->n == 0) {
        return 0;
    }
    int lda = (int)(g->ta ? g->m : g->k);
    int ldb = (int)(g->tb ? g->k : g->n);
    if (g->k == 0) {
        for (int64_t i = 0; i < g->m * g->n; i++) {
            g->c[i] = g->beta == 0.0f ? 0.0f : g->beta * g->c[i];
        }
        return 0;
    }
    cblas_sgemm(CblasRowMajor, g->ta ? CblasTrans : CblasNoTrans, g->tb ? CblasTrans : CblasNoTrans, (int)g->m,
                (int)g->n, (int)g->k, g->alpha, g->a, lda, g->b, ldb, g->beta, g->c, (int)g->n);
    return 0;
}

static int run_gemm(const void *args)
{
    return moe_host_product(args);
}

static int run_swiglu(const void *args)
{
    const struct moe_swiglu *s = args;
    for (int64_t r = 0; r < s->rows; r++) {
        const float *gate = s->h + r * 2 * s->width, *up = gate + s->width;
        float *act = s->out + r * s->width;
        for (int64_t i = 0; i < s->width; i++) {
            act[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
        }
    }
    return 0;
}

static int run_swiglu_backward(const void *args)
{
    const struct moe_swiglu *s = args;
    for (int64_t r = 0; r < s->rows; r++) {
        const float *gate = s->h + r * 2 * s->width, *up = gate + s->width, *d_act = s->d_act + r * s->width;
        float *d_gate = s->out + r * 2 * s->width, *d_up = d_gate + s->width;
        for (int64_t i = 0; i < s->width; i++) {
            float sig = 1.0f / (1.0f + expf(-gate[i]));
            d_up[i] = d_act[i] * gate[i] * sig;
            d_gate[i] = d_act[i] * up[i] * sig * (1.0f + gate[i] * (1.0f - sig));
        }
    }
    return 0;
}

static int run_scale(const void *args)
{
    const struct moe_scale *s = args;
    for (size_t i = 0; i < s->count; i++) {
        s->data[i] *= s->factor;
    }
    return 0;
}

static int enqueue_zero(moe_device_t *device, void *data, size_t bytes)
{
    struct zero z = {data, bytes};
    return bytes == 0 ? 0 : moe_device_call(device, run_zero, &z, sizeof(z));
}

/* Each row of the table: an enqueuer of the typed struct for one body. */
#define ENQUEUE(name, type, body)                                                                                      \
    static int enqueue_##name(moe_device_t *device, const struct type *args)                                           \
    {                                                                                                                  \
        return moe_device_call(device, body, args, sizeof(*args));                                                     \
    }
ENQUEUE(gemm, moe_gemm, run_gemm)
ENQUEUE(grouped, moe_grouped, moe_host_grouped)
ENQUEUE(linear, moe_linear_pass, moe_host_linear)
ENQUEUE(quantize, moe_quantize, moe_host_quantize)
ENQUEUE(topk, moe_topk, moe_host_topk)
ENQUEUE(topk_backward, moe_topk_backward, moe_host_topk_backward)
ENQUEUE(drop, moe_drop, moe_host_drop)
ENQUEUE(count_sequences, moe_count_sequences, moe_host_count_sequences)
ENQUEUE(add_counts, moe_add_counts, moe_host_add_counts)
ENQUEUE(balance, moe_balance, moe_host_balance)
ENQUEUE(balance_backward, moe_balance, moe_host_balance_backward)
ENQUEUE(bias_update, moe_bias_update, moe_host_bias_update)
ENQUEUE(column_sum, moe_column_sum, moe_host_column_sum)
ENQUEUE(row_map_build, moe_row_map_build, moe_host_row_map_build)
ENQUEUE(map_gather, moe_map_gather, moe_host_map_gather)
ENQUEUE(map_scatter, moe_map_scatter, moe_host_map_scatter)
ENQUEUE(map_scatter_backward, moe_map_scatter_backward, moe_host_map_scatter_backward)
ENQUEUE(chunk_map, moe_chunk_map, moe_host_chunk_map)
ENQUEUE(chunk_order, moe_chunk_order, moe_host_chunk_order)
ENQUEUE(pad_rows, moe_pad_rows, moe_host_pad_rows)
ENQUEUE(chunk_sort, moe_chunk_sort, moe_host_chunk_sort)
ENQUEUE(pad_counts, moe_pad_counts, moe_host_pad_counts)
ENQUEUE(swiglu, moe_swiglu, run_swiglu)
ENQUEUE(swiglu_backward, moe_swiglu, run_swiglu_backward)
ENQUEUE(scale, moe_scale, run_scale)
ENQUEUE(checksum, moe_checksum, moe_host_checksum)
ENQUEUE(cast, moe_cast, moe_host_cast)
ENQUEUE(sum_abs, moe_sum_abs, moe_host_sum_abs)
ENQUEUE(not_finite, moe_not_finite, moe_host_not_finite)
ENQUEUE(act, moe_act, moe_host_act)
ENQUEUE(act_backward, moe_act, moe_host_act_backward)
ENQUEUE(row_scale, moe_row_scale, moe_host_row_scale)
ENQUEUE(row_scale_backward, moe_row_scale, moe_host_row_scale_backward)
ENQUEUE(token_gate, moe_token_gate, moe_host_token_gate)
ENQUEUE(token_gate_backward, moe_token_gate, moe_host_token_gate_backward)
ENQUEUE(fill_counts, moe_fill_counts, moe_host_fill_counts)
ENQUEUE(zero_slack, moe_zero_slack, moe_host_zero_slack)
ENQUEUE(dummy_rows, moe_dummy_rows, moe_host_dummy_rows)
ENQUEUE(pick_rows, moe_pick_rows, moe_host_pick_rows)
ENQUEUE(flex_layout, moe_flex_layout, moe_host_flex_layout)
ENQUEUE(flex_pack, moe_flex_pack, moe_host_flex_pack)
ENQUEUE(flex_unpack, moe_flex_unpack, moe_host_flex_unpack)
ENQUEUE(flex_choices, moe_flex_choices, moe_host_flex_choices)
ENQUEUE(flex_dropped, moe_flex_dropped, moe_host_flex_dropped)

const struct moe_ops *moe_host_ops(void)
{
    static const struct moe_ops ops = {
        .name = "host",
        .zero = enqueue_zero,
        .gemm = enqueue_gemm,
        .grouped = enqueue_grouped,
        .linear = enqueue_linear,
        .quantize = enqueue_quantize,
        .topk = enqueue_topk,
        .topk_backward = enqueue_topk_backward,
        .drop = enqueue_drop,
        .count_sequences = enqueue_count_sequences,
        .add_counts = enqueue_add_counts,
        .balance = enqueue_balance,
        .balance_backward = enqueue_balance_backward,
        .bias_update = enqueue_bias_update,
        .column_sum = enqueue_column_sum,
        .row_map_build = enqueue_row_map_build,
        .map_gather = enqueue_map_gather,
        .map_scatter = enqueue_map_scatter,
        .map_scatter_backward = enqueue_map_scatter_backward,
        .chunk_map = enqueue_chunk_map,
        .chunk_order = enqueue_chunk_order,
        .pad_rows = enqueue_pad_rows,
        .chunk_sort = enqueue_chunk_sort,
        .pad_counts = enqueue_pad_counts,
        .swiglu = enqueue_swiglu,
        .swiglu_backward = enqueue_swiglu_backward,
        .scale = enqueue_scale,
        .checksum = enqueue_checksum,
        .cast = enqueue_cast,
        .sum_abs = enqueue_sum_abs,
        .not_finite = enqueue_not_finite,
        .act = enqueue_act,
        .act_backward = enqueue_act_backward,
        .row_scale = enqueue_row_scale,
        .row_scale_backward = enqueue_row_scale_backward,
        .token_gate = enqueue_token_gate,
        .token_gate_backward = enqueue_token_gate_backward,
        .fill_counts = enqueue_fill_counts,
        .zero_slack = enqueue_zero_slack,
        .dummy_rows = enqueue_dummy_rows,
        .pick_rows = enqueue_pick_rows,
        .flex_layout = enqueue_flex_layout,
        .flex_pack = enqueue_flex_pack,
        .flex_unpack = enqueue_flex_unpack,
        .flex_choices = enqueue_flex_choices,
        .flex_dropped = enqueue_flex_dropped,
    };
    return &ops;
}
