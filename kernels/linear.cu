/*
 * linear.cu: the table's products (moe/ops.h) by the grouped products of gemm.cu.
 *
 * A device has one moe_kernel_gemm, made at its first product: device memory for the plans of 4096 groups, a megabyte
 * that never grows. It is made in relaxed capture mode, so that the first product may be a captured one.
 */
#include "kernels/device.cuh"
#include "kernels/kernels.h"

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

extern "C" int moe_cuda_linear(moe_device_t *device, const struct moe_linear_pass *pass)
{
    moe_kernel_gemm_t *gemm = NULL;
    int rc = gemm_of(device, &gemm);
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
