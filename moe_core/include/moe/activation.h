/*
 * activation.h: the gated activations of a feed-forward, which stand between fc1 and fc2.
 *
 * fc1 gives each row [gate | linear], 2F numbers wide; the activation makes F numbers of it. It computes in float32 and
 * casts once.
 *
 * MOE_SWIGLU          silu(gate) * linear
 * MOE_GEGLU           gelu(gate) * linear, gelu(x) = x Phi(x) (erf: torch's default)
 * MOE_GEGLU_TANH      gelu(gate) * linear, gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
 * MOE_SWIGLU_CLAMPED  g = min(gate, limit), l = min(max(linear, -limit), limit): g sigmoid(alpha g) * (l + offset)
 *
 * The gradient through a clamp is that of torch.clamp: it is passed on where the number lies inside or on the bound,
 * and is zero elsewhere. NaN passes through. Sources: Megatron-LM experts.py (--swiglu, gated
 * GELU, --activation-func-clamp-value, glu_linear_offset); gpt-oss for alpha 1.702, limit 7, offset 1.
 */
#ifndef MOE_ACTIVATION_H
#define MOE_ACTIVATION_H

#ifdef __cplusplus
extern "C" {
#endif

enum moe_activation {
    MOE_SWIGLU = 0,
    MOE_GEGLU = 1,
    MOE_SWIGLU_CLAMPED = 2,
    MOE_GEGLU_TANH = 3,
    MOE_ACTIVATIONS,
};

/*
 * The numbers of MOE_SWIGLU_CLAMPED; the other activations do not read them. alpha = limit = 0 means those of gpt-oss:
 * alpha 1.702, limit 7, offset 1.
 */
struct moe_clamp {
    float alpha, limit, offset;
};

#ifdef __cplusplus
}
#endif
#endif
