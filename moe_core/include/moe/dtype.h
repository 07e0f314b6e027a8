/*
 * dtype.h: the element types of the library's tensors.
 */
#ifndef MOE_DTYPE_H
#define MOE_DTYPE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The element types. Narrowing rounds to nearest, ties to even; the FP8 types saturate at their largest finite value.
 */
enum moe_dtype { MOE_F32 = 0, MOE_BF16 = 1, MOE_F16 = 2, MOE_E4M3 = 3, MOE_E5M2 = 4, MOE_DTYPES };

/* The size of one element in bytes; 0 for a number that is no type. Any thread. */
size_t moe_dtype_bytes(enum moe_dtype type);
/*
 * The type's name: "float32", "bfloat16", "float16", "float8e4m3" or "float8e5m2"; "?" for a number that is no type.
 * Any thread; static storage.
 */
const char *moe_dtype_name(enum moe_dtype type);

#ifdef __cplusplus
}
#endif
#endif
