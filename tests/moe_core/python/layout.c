/*
 * layout.c: sizes, offsets and enumerators of moe_core's headers as the compiler has them, for the test of the ctypes
 * declarations.
 *
 * Prints "size STRUCT BYTES", "at STRUCT MEMBER OFFSET BYTES" and "enum NAME VALUE" lines. A member that the headers
 * get and this table lacks still changes the size or the offsets of what follows.
 */
#include "moe_core/include/moe/error.h"
#include "moe_core/include/moe/layer.h"
#include "moe_core/include/moe/linear.h"
#include "moe_core/include/moe/reduce.h"
#include "trace/op.h"

#include <stddef.h>
#include <stdio.h>

#define SIZE(type) printf("size %s %zu\n", #type, sizeof(type))
#define AT(type, member)                                                                                               \
    printf("at %s %s %zu %zu\n", #type, #member, offsetof(type, member), sizeof(((type *)NULL)->member))
#define ENUM(name) printf("enum %s %d\n", #name, (int)(name))

static void router(void)
{
    SIZE(struct moe_router_options);
    AT(struct moe_router_options, score);
    AT(struct moe_router_options, after);
    AT(struct moe_router_options, gate_bias);
    AT(struct moe_router_options, expert_bias);
    AT(struct moe_router_options, groups);
    AT(struct moe_router_options, group_topk);
    AT(struct moe_router_options, scale);
    AT(struct moe_router_options, capacity_factor);
    AT(struct moe_router_options, by_position);
    AT(struct moe_router_options, pad_to_capacity);
    AT(struct moe_router_options, coeff);
    AT(struct moe_router_options, sequences);
    AT(struct moe_router_options, gate_type);
    SIZE(struct moe_router_config);
    AT(struct moe_router_config, max_tokens);
    AT(struct moe_router_config, hidden);
    AT(struct moe_router_config, experts);
    AT(struct moe_router_config, topk);
    AT(struct moe_router_config, renormalise);
    AT(struct moe_router_config, options);
    AT(struct moe_router_config, balance);
    AT(struct moe_router_config, global);
}

static void options(void)
{
    SIZE(struct moe_dispatcher_legacy);
    AT(struct moe_dispatcher_legacy, empty_unpermute);
    AT(struct moe_dispatcher_legacy, empty_from_input);
    AT(struct moe_dispatcher_legacy, empty_returns_early);
    AT(struct moe_dispatcher_legacy, static_rows);
    AT(struct moe_dispatcher_legacy, local_capacity);
    AT(struct moe_dispatcher_legacy, slack_uninitialised);
    SIZE(struct moe_options);
    AT(struct moe_options, legacy_skip_empty);
    AT(struct moe_options, legacy_wgrad_uninitialised);
    AT(struct moe_options, legacy_recompute_flip);
    AT(struct moe_options, legacy_router_unsummed);
    AT(struct moe_options, legacy_router_summed_twice);
    AT(struct moe_options, dispatcher);
    AT(struct moe_options, keep_routing);
    AT(struct moe_options, sanitize);
    SIZE(struct moe_groups);
    AT(struct moe_groups, ep);
    AT(struct moe_groups, etp);
    AT(struct moe_groups, tp_ep);
    AT(struct moe_groups, tp);
    SIZE(struct moe_clamp);
    AT(struct moe_clamp, alpha);
    AT(struct moe_clamp, limit);
    AT(struct moe_clamp, offset);
}

static void memory(void)
{
    SIZE(struct moe_allocator);
    AT(struct moe_allocator, alloc);
    AT(struct moe_allocator, release);
    AT(struct moe_allocator, arg);
    SIZE(struct moe_memory_figures);
    AT(struct moe_memory_figures, fixed);
    AT(struct moe_memory_figures, in_use);
    AT(struct moe_memory_figures, reserved);
    AT(struct moe_memory_figures, most_in_use);
    AT(struct moe_memory_figures, most_reserved);
    AT(struct moe_memory_figures, most);
    AT(struct moe_memory_figures, allocations);
}

static void linear(void)
{
    SIZE(struct moe_param);
    AT(struct moe_param, data);
    AT(struct moe_param, scale);
    AT(struct moe_param, main_grad);
    AT(struct moe_param, main_grad_type);
    AT(struct moe_param, has_added_flag);
    AT(struct moe_param, grad_added_to_main_grad);
    AT(struct moe_param, zero_out_wgrad);
    AT(struct moe_param, overwrite_main_grad);
    SIZE(struct moe_linear_config);
    AT(struct moe_linear_config, groups);
    AT(struct moe_linear_config, out_features);
    AT(struct moe_linear_config, in_features);
    AT(struct moe_linear_config, max_rows);
    AT(struct moe_linear_config, activation);
    AT(struct moe_linear_config, weight);
    AT(struct moe_linear_config, bias);
    AT(struct moe_linear_config, has_bias);
    AT(struct moe_linear_config, block_scales);
    AT(struct moe_linear_config, fuse_wgrad_accumulation);
    AT(struct moe_linear_config, delay_wgrad);
    AT(struct moe_linear_config, packed);
    AT(struct moe_linear_config, bias_scale);
    AT(struct moe_linear_config, fp8);
    SIZE(struct moe_linear_call);
    AT(struct moe_linear_call, weights);
    AT(struct moe_linear_call, biases);
    AT(struct moe_linear_call, bias_grads);
    AT(struct moe_linear_call, bias_probs);
    AT(struct moe_linear_call, weights_frozen);
    AT(struct moe_linear_call, biases_frozen);
    ENUM(MOE_MICROBATCH_FIRST);
    ENUM(MOE_MICROBATCH_LATER);
}

static void layer(void)
{
    SIZE(struct moe_fp8);
    AT(struct moe_fp8, rows);
    AT(struct moe_fp8, grad);
    AT(struct moe_fp8, wide_wgrad);
    SIZE(struct moe_layer_config);
    AT(struct moe_layer_config, layer);
    AT(struct moe_layer_config, world_rank);
    AT(struct moe_layer_config, max_tokens);
    AT(struct moe_layer_config, hidden);
    AT(struct moe_layer_config, ffn);
    AT(struct moe_layer_config, experts);
    AT(struct moe_layer_config, topk);
    AT(struct moe_layer_config, renormalise);
    AT(struct moe_layer_config, router);
    AT(struct moe_layer_config, balance);
    AT(struct moe_layer_config, global);
    AT(struct moe_layer_config, ep);
    AT(struct moe_layer_config, options);
    AT(struct moe_layer_config, dispatcher);
    AT(struct moe_layer_config, groups);
    AT(struct moe_layer_config, tp_mode);
    AT(struct moe_layer_config, router_sum);
    AT(struct moe_layer_config, type);
    AT(struct moe_layer_config, weight);
    AT(struct moe_layer_config, bias);
    AT(struct moe_layer_config, block_scales);
    AT(struct moe_layer_config, fp8);
    AT(struct moe_layer_config, has_bias);
    AT(struct moe_layer_config, activation);
    AT(struct moe_layer_config, clamp);
    AT(struct moe_layer_config, place);
    AT(struct moe_layer_config, experts_recompute);
    AT(struct moe_layer_config, recompute);
    AT(struct moe_layer_config, delay_wgrad);
    AT(struct moe_layer_config, shared_ffn);
    AT(struct moe_layer_config, shared_bias);
    AT(struct moe_layer_config, shared_gate);
    AT(struct moe_layer_config, shared_overlap);
    AT(struct moe_layer_config, uneven);
    AT(struct moe_layer_config, token_bound);
    AT(struct moe_layer_config, row_multiple);
    AT(struct moe_layer_config, row_budget);
    AT(struct moe_layer_config, budget_factor);
    AT(struct moe_layer_config, in_flight);
    AT(struct moe_layer_config, facts);
    AT(struct moe_layer_config, ready);
    AT(struct moe_layer_config, ready_arg);
}

static void weights(void)
{
    SIZE(struct moe_shared_weights);
    AT(struct moe_shared_weights, w1);
    AT(struct moe_shared_weights, w2);
    AT(struct moe_shared_weights, b1);
    AT(struct moe_shared_weights, b2);
    AT(struct moe_shared_weights, gate);
    AT(struct moe_shared_weights, d_w1);
    AT(struct moe_shared_weights, d_w2);
    AT(struct moe_shared_weights, d_b1);
    AT(struct moe_shared_weights, d_b2);
    AT(struct moe_shared_weights, d_gate);
    AT(struct moe_shared_weights, overwrite);
    AT(struct moe_shared_weights, frozen);
    SIZE(struct moe_layer_weights);
    AT(struct moe_layer_weights, gate);
    AT(struct moe_layer_weights, w1);
    AT(struct moe_layer_weights, w2);
    AT(struct moe_layer_weights, d_gate);
    AT(struct moe_layer_weights, d_w1);
    AT(struct moe_layer_weights, d_w2);
    AT(struct moe_layer_weights, gate_bias);
    AT(struct moe_layer_weights, expert_bias);
    AT(struct moe_layer_weights, d_gate_bias);
    AT(struct moe_layer_weights, b1);
    AT(struct moe_layer_weights, b2);
    AT(struct moe_layer_weights, d_b1);
    AT(struct moe_layer_weights, d_b2);
    AT(struct moe_layer_weights, scale1);
    AT(struct moe_layer_weights, scale2);
    AT(struct moe_layer_weights, shared);
    AT(struct moe_layer_weights, frozen);
    SIZE(struct moe_step);
    AT(struct moe_step, step);
    AT(struct moe_step, microbatch);
    AT(struct moe_step, alone);
    AT(struct moe_step, tag);
    SIZE(struct moe_bucket);
    AT(struct moe_bucket, grad);
    AT(struct moe_bucket, count);
    AT(struct moe_bucket, scale);
    AT(struct moe_bucket, comm);
    AT(struct moe_bucket, layer);
    SIZE(ncclUniqueId);
    AT(ncclUniqueId, internal);
}

static void enums(void)
{
    ENUM(MOE_SCORE_SOFTMAX);
    ENUM(MOE_SCORE_SIGMOID);
    ENUM(MOE_SCORE_SQRTSOFTPLUS);
    ENUM(MOE_SWIGLU);
    ENUM(MOE_GEGLU);
    ENUM(MOE_SWIGLU_CLAMPED);
    ENUM(MOE_GEGLU_TANH);
    ENUM(MOE_PROB_SOURCE);
    ENUM(MOE_PROB_ACTIVATION);
    ENUM(MOE_PROB_INPUT);
    ENUM(MOE_DISPATCH_ALLTOALL);
    ENUM(MOE_DISPATCH_ALLGATHER);
    ENUM(MOE_DISPATCH_DEEPEP);
    ENUM(MOE_DISPATCH_HYBRIDEP);
    ENUM(MOE_TP_SEQUENCE);
    ENUM(MOE_TP_SPLIT_TOKENS);
    ENUM(MOE_TP_SHARD_EXPERTS);
    ENUM(MOE_ROUTER_SUM_LAYER);
    ENUM(MOE_ROUTER_SUM_CALLER);
    ENUM(MOE_RECOMPUTE_NONE);
    ENUM(MOE_RECOMPUTE_ACTIVATION);
    ENUM(MOE_RECOMPUTE_FC1);
    ENUM(MOE_UNEVEN_NONE);
    ENUM(MOE_UNEVEN_MAX);
    ENUM(MOE_UNEVEN_BOUND);
    ENUM(MOE_F32);
    ENUM(MOE_BF16);
    ENUM(MOE_F16);
    ENUM(MOE_LOSS_SWITCH);
    ENUM(MOE_LOSS_SEQUENCE);
    ENUM(MOE_LOSS_GLOBAL);
    ENUM(MOE_LOSS_Z);
    ENUM(MOE_LAYER_GATE);
    ENUM(MOE_LAYER_GATE_BIAS);
    ENUM(MOE_LAYER_W1);
    ENUM(MOE_LAYER_B1);
    ENUM(MOE_LAYER_W2);
    ENUM(MOE_LAYER_B2);
    ENUM(MOE_LAYER_SHARED_W1);
    ENUM(MOE_LAYER_SHARED_B1);
    ENUM(MOE_LAYER_SHARED_W2);
    ENUM(MOE_LAYER_SHARED_B2);
    ENUM(MOE_LAYER_SHARED_GATE);
    ENUM(ROLL_PHASE_NONE);
    ENUM(ROLL_PHASE_FORWARD);
    ENUM(ROLL_PHASE_BACKWARD);
    ENUM(ROLL_PHASE_RECOMPUTE);
    ENUM(ROLL_PHASE_REDUCE);
    ENUM(ROLL_PHASE_OPTIMIZER);
#define MOE_ERR(name, value, text) printf("enum MOE_E_" #name " %d\n", (int)MOE_E_##name);
#include "moe_core/include/moe/err.def"
#undef MOE_ERR
}

int main(void)
{
    router();
    options();
    memory();
    linear();
    layer();
    weights();
    enums();
    return 0;
}
