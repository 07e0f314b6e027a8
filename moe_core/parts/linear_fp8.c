/*
 * linear_fp8.c: what a grouped linear with products of FP8 by FP8 may ask for, and of which device.
 *
 * One set of combinations for all devices, refused when the linear is made: what the kernels of the matrix unit take.
 * Falling back to products of the rows as they are was rejected, because a run would then have other numbers on another
 * GPU, and nobody would be told. Refusing in the first pass was rejected, because the first backward comes late.
 */
#include "moe_core/parts/linear_fp8.h"

#include "moe_core/base/fail.h"

#define FAIL(code, ...) moe_fail(code, MOE_NO_RANK, MOE_NO_LAYER, __VA_ARGS__)

enum { MULTIPLE = 16 }; /* bytes that the copy engine needs rows to be a multiple of */

enum moe_fp8_rows moe_linear_fp8_rows(const struct moe_fp8 *fp8, enum moe_linear_kind kind)
{
    bool wide = kind > MOE_LINEAR_WGRAD || (kind == MOE_LINEAR_WGRAD && fp8->wide_wgrad);
    return wide ? MOE_FP8_STORAGE : fp8->rows;
}

enum moe_dtype moe_linear_fp8_grad(const struct moe_fp8 *fp8)
{
    return fp8->grad != MOE_F32 ? fp8->grad : fp8->rows == MOE_FP8_TENSOR ? MOE_E5M2 : MOE_E4M3;
}

static int check_config(const struct moe_linear_config *c)
{
    enum moe_dtype grad = moe_linear_fp8_grad(&c->fp8);
    if (c->fp8.rows != MOE_FP8_TENSOR && c->fp8.rows != MOE_FP8_BLOCKS) {
        return FAIL(MOE_E_ARG, "way %d of rounding rows to FP8", (int)c->fp8.rows);
    }
    if (c->weight != MOE_E4M3 || c->activation != MOE_BF16 || (grad != MOE_E4M3 && grad != MOE_E5M2)) {
        return FAIL(MOE_E_ARG, "FP8 by FP8: %s weights, %s rows and %s gradients, not float8e4m3, bfloat16 and FP8",
                    moe_dtype_name(c->weight), moe_dtype_name(c->activation), moe_dtype_name(grad));
    }
    if (c->out_features % MULTIPLE != 0 || c->in_features % MULTIPLE != 0) {
        return FAIL(MOE_E_SHAPE, "FP8 by FP8: %lld x %lld features, not multiples of %d", (long long)c->out_features,
                    (long long)c->in_features, MULTIPLE);
    }
    return 0;
}

/* Asks the device, by passes of no groups. */
static int check_device(moe_device_t *device, const struct moe_linear_config *c)
{
    int rc = 0;
    for (int kind = MOE_LINEAR_FORWARD; rc == 0 && kind <= MOE_LINEAR_WGRAD; kind++) {
        struct moe_linear_pass none = {.kind = (enum moe_linear_kind)kind,
                                       .n = c->out_features,
                                       .k = c->in_features,
                                       .activation = c->activation,
                                       .weight = c->weight,
                                       .block_scales = c->block_scales,
                                       .fp8 = moe_linear_fp8_rows(&c->fp8, (enum moe_linear_kind)kind),
                                       .fp8_grad = moe_linear_fp8_grad(&c->fp8)};
        rc = moe_device_ops(device)->linear(device, &none);
    }
    return rc != MOE_E_UNSUPPORTED
               ? rc
               : FAIL(rc, "FP8 by FP8: device \"%s\" has no such product (sm_90a has)", moe_device_name(device));
}

int moe_linear_fp8_check(moe_device_t *device, const struct moe_linear_config *config)
{
    const struct moe_fp8 *f = &config->fp8;
    if (f->rows == MOE_FP8_STORAGE && (f->grad != MOE_F32 || f->wide_wgrad)) {
        return FAIL(MOE_E_ARG, "rows stay as they are, and %s is set for rows of FP8",
                    f->wide_wgrad ? "wide_wgrad" : "the type of gradients");
    }
    if (f->rows == MOE_FP8_STORAGE) {
        return 0;
    }
    int rc = check_config(config);
    return rc ? rc : check_device(device, config);
}
