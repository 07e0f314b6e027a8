// A C++ program against the vendor's headers: sums of all pairs of fp8 values, and of many half and bfloat16 pairs, are the
// bits that the vendor's own host conversions give.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <nccl.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) != 0) {                                                                                             \
            std::fprintf(stderr, "%s failed\n", #call);                                                                \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

template <typename T> static T from_bits(uint32_t bits)
{
    T v;
    std::memcpy(&v, &bits, sizeof(v));
    return v;
}

// Sums in[0] and in[1] on two devices and compares with the vendor's types.
template <typename T> static int compare(ncclComm_t *comms, ncclDataType_t type, const char *name)
{
    const uint32_t patterns = 1u << (8 * sizeof(T)), step = sizeof(T) == 1 ? 1 : 251;
    std::vector<T> in[2], out[2];

    for (uint32_t a = 0; a < patterns; a += step) {
        for (uint32_t b = 0; b < patterns; b += step) {
            in[0].push_back(from_bits<T>(a));
            in[1].push_back(from_bits<T>(b));
        }
    }
    TRY(ncclGroupStart());
    for (int d = 0; d < 2; d++) {
        out[d].resize(in[d].size());
        TRY(ncclAllReduce(in[d].data(), out[d].data(), in[d].size(), type, ncclSum, comms[d], cudaStreamPerThread));
    }
    TRY(ncclGroupEnd());
    for (int d = 0; d < 2; d++) {
        TRY(cudaSetDevice(d));
        TRY(cudaStreamSynchronize(cudaStreamPerThread));
    }
    for (size_t i = 0; i < in[0].size(); i++) {
        T want = T(float(in[0][i]) + float(in[1][i]));
        bool both_nan = std::isnan(float(want)) && std::isnan(float(out[0][i]));
        if (!both_nan && (std::memcmp(&want, &out[0][i], sizeof(want)) || std::memcmp(&want, &out[1][i], sizeof(want)))) {
            std::fprintf(stderr, "%s: %g + %g is %g, not %g\n", name, double(float(in[0][i])), double(float(in[1][i])),
                         double(float(out[0][i])), double(float(want)));
            return 1;
        }
    }
    return 0;
}

int main()
{
    ncclComm_t comms[2];

    TRY(ncclCommInitAll(comms, 2, nullptr));
    TRY(compare<__nv_fp8_e4m3>(comms, ncclFloat8e4m3, "e4m3"));
    TRY(compare<__nv_fp8_e5m2>(comms, ncclFloat8e5m2, "e5m2"));
    TRY(compare<__half>(comms, ncclFloat16, "half"));
    TRY(compare<__nv_bfloat16>(comms, ncclBfloat16, "bfloat16"));
    TRY(ncclCommDestroy(comms[0]));
    TRY(ncclCommDestroy(comms[1]));
    return 0;
}
