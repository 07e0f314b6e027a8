/*
 * api_check.c: the table against the header that applications are compiled with: a row that drifts is a build error.
 *
 * Compiled, never linked into anything: it holds nothing but assertions. Rows newer than the header are left out.
 */
#include <nccl.h>

#define ROLL_API_VERSION NCCL_VERSION_CODE

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define SAME_PROTOTYPE(ret, name, params)                                                                              \
    _Static_assert(__builtin_types_compatible_p(__typeof__(name), ret params), #name " differs from nccl.h");
#define ROLL_API_CALL(id, name, params, ...)      SAME_PROTOTYPE(ncclResult_t, name, params)
#define ROLL_API_LIFE(id, name, params, args)     SAME_PROTOTYPE(ncclResult_t, name, params)
#define ROLL_API_PASS(id, ret, name, params, ...) SAME_PROTOTYPE(ret, name, params)
#define ROLL_API_JUMP(id, name)
#include "interposer/wrap/api.def"

/* The few values that the wrappers know by number. */
_Static_assert(ncclSystemError == 2 && ncclInvalidUsage == 5 && ncclInProgress == 7 && ncclNumOps == 5 &&
                   ncclNumTypes == 12,
               "nccl.h values");
_Static_assert(sizeof(ncclUniqueId) == 128, "nccl.h unique id");
_Static_assert(__builtin_offsetof(ncclConfig_t, blocking) == 16 && __builtin_offsetof(ncclConfig_t, commName) == 48,
               "nccl.h config");
