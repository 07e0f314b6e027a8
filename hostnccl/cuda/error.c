/* error.c: names and texts of errors, from error.def, which uses numbers instead of the header's names, so that an
 * older header of the vendor will do.
 */
#include "hostnccl/cuda/hostcuda.h"

struct description {
    int number;
    const char *name, *text;
};

static const struct description descriptions[] = {
#define X(name, number, text) {number, #name, text},
#include "hostnccl/cuda/error.def"
#undef X
};

static const struct description *describe(cudaError_t error)
{
    static const struct description unknown = {0, "unrecognized error code", "unrecognized error code"};
    for (size_t i = 0; i < sizeof(descriptions) / sizeof(*descriptions); i++) {
        if (descriptions[i].number == (int)error) {
            return &descriptions[i];
        }
    }
    return &unknown;
}

HOSTCUDA_EXPORT const char *cudaGetErrorName(cudaError_t error)
{
    return describe(error)->name;
}

HOSTCUDA_EXPORT const char *cudaGetErrorString(cudaError_t error)
{
    return describe(error)->text;
}
