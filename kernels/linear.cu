/*
 * linear.cu: the table's products (moe/ops.h) by the grouped products of gemm.cu, and of rows rounded to FP8 by
 * quantize.cu where the pass asks for it.
 *
 * What is rounded, and weights that dgrad needs turned, lie in scratch memory for the time of the pass. Keeping the
 * turned weights was rejected: whoever writes weights (an optimizer, FSDP) would have to tell; turning them moves two
 * bytes for each weight, a few percent of a product with a thousand rows a group.
 *
 * A device has one moe_kernel_gemm, made at its first product: device memory for the plans of 4096 groups, a megabyte
 * that never grows. It is made in relaxed capture mode, so that the first product may be a captured one.
 */
#include "kernels/device.cuh"
#include "kernels/kernels.h"
#include "kernels/quantize.cuh"

#include "common/fp8.h"

static const int64_t most_groups = 4096;

static int gemm_of(moe_device_t *device, moe_kernel_gemm_t **out)
{
    moe_cuda_state *state = moe_state(device);
    int rc = 0;
    if (state->gemm == NULL) {
        enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
        moe_kernel_gemm_t *gemm = NULL;
        if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) {
            return MOE_E_DEVICE;
        }
        rc = moe_kernel_gemm_new(most_groups, &gemm);
        cudaThreadExchangeStreamCaptureMode(&mode);
        state->gemm = gemm;
    }
    *out = static_cast<moe_kernel_gemm_t *>(state->gemm);
    return rc;
}

extern "C" void moe_cuda_gemm_close(void *gemm)
{
    moe_kernel_gemm_t *g = static_cast<moe_kernel_gemm_t *>(gemm);
    moe_kernel_gemm_destroy(&g);
}

/* products of FP8 by FP8 */

/* Rows of the pass, x or else dy, rounded for its kind: scratch for as long as this lives. */
class Rounded
{
  public:
    Rounded(moe_device_t *device, const struct moe_linear_pass *p, bool x)
        : bytes(device, bytes_of(p, x ? p->k : p->n)), scales(device, scales_of(p, x ? p->k : p->n))
    {
        struct moe_quantize q = {};
        q.how = p->fp8;
        q.down = p->kind == MOE_LINEAR_WGRAD;
        q.groups = p->groups;
        q.rows = p->rows;
        q.width = x ? p->k : p->n;
        q.m = p->m;
        q.type = p->activation;
        q.to_type = x ? MOE_E4M3 : p->fp8_grad;
        q.from = x ? p->x : p->dy;
        q.to = bytes.data;
        q.scales = scales.data;
        rc = bytes.rc ? bytes.rc : scales.rc;
        rc = rc ? rc : moe_cuda_quantize(device, &q);
    }
    Scratch<uint8_t> bytes;
    Scratch<float> scales;
    int rc;

  private:
    static int64_t bytes_of(const struct moe_linear_pass *p, int64_t width)
    {
        return width * (p->kind == MOE_LINEAR_WGRAD ? moe_fp8_pitch(p->rows, p->groups) : p->rows);
    }
    static int64_t scales_of(const struct moe_linear_pass *p, int64_t width)
    {
        return p->kind == MOE_LINEAR_WGRAD ? moe_fp8_pitch(p->rows, p->groups) / 128 * width
                                           : p->rows * ((width + 127) / 128);
    }
};

static struct moe_kernel_fp8 fp8_of(const struct moe_linear_pass *p)
{
    struct moe_kernel_fp8 f = {};
    f.kind = p->kind;
    f.groups = p->groups;
    f.n = p->n;
    f.k = p->k;
    f.rows = p->rows;
    f.m = p->m;
    f.group = p->group;
    f.in_type = p->kind == MOE_LINEAR_FORWARD ? MOE_E4M3 : p->fp8_grad;
    f.out = p->out;
    f.block_scales = p->block_scales;
    f.bias = p->bias;
    f.grad = p->grad;
    f.bias_probs = p->bias_probs;
    f.bias_scale = p->bias_scale;
    f.beta = p->beta;
    return f;
}

static int linear_fp8(moe_device_t *device, moe_kernel_gemm_t *gemm, const struct moe_linear_pass *p)
{
    struct moe_kernel_fp8 f = fp8_of(p), none = f;
    int *error = moe_state(device)->error;
    none.groups = 0; /* asks whether there is such a product, before rows are rounded and errors found for one */
    int rc = moe_kernel_gemm_fp8(gemm, &none, error, device->stream);
    if (rc != 0 || p->groups == 0) {
        return rc;
    }
    if (p->activation != MOE_BF16 || p->weight != MOE_E4M3) {
        return MOE_E_ARG;
    }
    bool wgrad = p->kind == MOE_LINEAR_WGRAD, turned = p->kind == MOE_LINEAR_DGRAD;
    Rounded in(device, p, p->kind == MOE_LINEAR_FORWARD);
    Scratch<uint8_t> weights(device, turned ? p->groups * p->n * p->k : 0);
    rc = in.rc ? in.rc : weights.rc;
    f.in = in.bytes.data;
    f.in_scales = in.scales.data;
    if (rc == 0 && turned) {
        f.other = weights.data;
        rc = moe_turn_weights(p, weights.data, device->stream);
    }
    if (rc == 0 && wgrad) {
        Rounded x(device, p, true);
        f.other = x.bytes.data;
        f.other_scales = x.scales.data;
        return x.rc ? x.rc : moe_kernel_gemm_fp8(gemm, &f, error, device->stream);
    }
    return rc ? rc : moe_kernel_gemm_fp8(gemm, &f, error, device->stream);
}

extern "C" int moe_cuda_linear(moe_device_t *device, const struct moe_linear_pass *pass)
{
    moe_kernel_gemm_t *gemm = NULL;
    int rc = gemm_of(device, &gemm);
    if (rc == 0 && pass->fp8 != MOE_FP8_STORAGE && pass->kind <= MOE_LINEAR_WGRAD) {
        return linear_fp8(device, gemm, pass);
    }
    return rc ? rc : moe_kernel_linear(gemm, MOE_KERNEL_AUTO, pass, moe_state(device)->error, device->stream);
}

extern "C" int moe_cuda_grouped(moe_device_t *device, const struct moe_grouped *args)
{
    moe_kernel_gemm_t *gemm = NULL;
    int rc = gemm_of(device, &gemm);
    return rc ? rc : moe_kernel_grouped(gemm, args, moe_state(device)->error, device->stream);
}

extern "C" int moe_cuda_gemm(moe_device_t *device, const struct moe_gemm *args)
{
    moe_kernel_gemm_t *gemm = NULL;
    int rc = gemm_of(device, &gemm);
    return rc ? rc : moe_kernel_product(gemm, args, device->stream);
}
