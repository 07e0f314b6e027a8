/*
 * device_host.h: what the two halves of the host back end share.
 */
#ifndef MOE_CORE_HOST_DEVICE_HOST_H
#define MOE_CORE_HOST_DEVICE_HOST_H

#include "moe_core/include/moe/ops.h"

#include <stdatomic.h>

#pragma GCC visibility push(hidden)

/* The host back end's functions: device_host.c enqueues, host_*.c compute. Static storage. */
const struct moe_ops *moe_host_ops(void);

/* device->state of a host device. */
struct moe_host_state {
    _Atomic int async_error; /* the first error of its work; 0: none */
};

/* The name of the back end: whose table has this pointer is a host device. */
extern const char moe_host_name[];

/* The bodies, run by the stream: `args` is the struct of ops.h of the same name. Each returns 0 or an error code. */
int moe_host_linear(const void *args);
int moe_host_quantize(const void *args);
int moe_host_grouped(const void *args);
int moe_host_topk(const void *args);
int moe_host_topk_backward(const void *args);
int moe_host_drop(const void *args);
int moe_host_count_sequences(const void *args);
int moe_host_add_counts(const void *args);
int moe_host_balance(const void *args);
int moe_host_balance_backward(const void *args);
int moe_host_bias_update(const void *args);
int moe_host_column_sum(const void *args);
int moe_host_row_map_build(const void *args);
int moe_host_map_gather(const void *args);
int moe_host_map_scatter(const void *args);
int moe_host_map_scatter_backward(const void *args);
int moe_host_chunk_map(const void *args);
int moe_host_chunk_order(const void *args);
int moe_host_chunk_sort(const void *args);
int moe_host_pad_rows(const void *args);
int moe_host_pad_counts(const void *args);
int moe_host_checksum(const void *args);
int moe_host_cast(const void *args);
int moe_host_sum_abs(const void *args);
int moe_host_not_finite(const void *args);
int moe_host_act(const void *args);
int moe_host_act_backward(const void *args);
int moe_host_row_scale(const void *args);
int moe_host_row_scale_backward(const void *args);
int moe_host_token_gate(const void *args);
int moe_host_token_gate_backward(const void *args);
int moe_host_fill_counts(const void *args);
int moe_host_zero_slack(const void *args);
int moe_host_dummy_rows(const void *args);
int moe_host_pick_rows(const void *args);
int moe_host_flex_layout(const void *args);
int moe_host_flex_pack(const void *args);
int moe_host_flex_unpack(const void *args);
int moe_host_flex_choices(const void *args);
int moe_host_flex_dropped(const void *args);

/* c[m,n] = alpha op(a) op(b) + beta c in float32; k = 0 included. Errors: SHAPE (more than the BLAS can count). */
int moe_host_product(const struct moe_gemm *g);

#pragma GCC visibility pop

#endif
