/*
 * dtype.c: element types by name and size.
 */
#include "moe_core/include/moe/dtype.h"

size_t moe_dtype_bytes(enum moe_dtype type)
{
    static const size_t bytes[MOE_DTYPES] = {sizeof(float), 2, 2, 1, 1};
    return (unsigned)type < MOE_DTYPES ? bytes[type] : 0;
}

const char *moe_dtype_name(enum moe_dtype type)
{
    static const char *const names[MOE_DTYPES] = {"float32", "bfloat16", "float16", "float8e4m3", "float8e5m2"};
    return (unsigned)type < MOE_DTYPES ? names[type] : "?";
}
