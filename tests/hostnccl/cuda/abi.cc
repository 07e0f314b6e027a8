// Describes every value, layout and prototype of one set of CUDA headers. Compiled twice, with ABI_FUNCTION naming the result;
// the mangled type of a function holds its whole prototype, so comparing strings compares prototypes.
#include "tests/hostnccl/cuda/abi.h"

#include <cstddef>
#include <typeinfo>

#ifndef ABI_RUNTIME_ALONE // of CUDA 12 the runtime is compared, since only that is there for two releases
#include <cuda.h>
#include <cuda_profiler_api.h>
#endif
#include <cuda_runtime_api.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" // the vendor's view of some of what is there

std::vector<abi_row> ABI_FUNCTION()
{
    return {
#define VALUE(name, value) {#name, std::to_string((long)(name))},
#define SIZE(type)         {"sizeof " #type, std::to_string(sizeof(type)) + " aligned " + std::to_string(alignof(type))},
#define FIELD(type, field)                                                                                             \
    {#type "." #field, std::to_string(offsetof(type, field)) + " type " + typeid(((type *)nullptr)->field).name()},
#define FUNCTION(call) {#call "()", typeid(decltype(call)).name()},
#include "abi_list.h"
    };
}
