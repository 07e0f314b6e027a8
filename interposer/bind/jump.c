/*
 * jump.c: forwards functions whose prototypes we do not know: a jump that leaves every argument register as it is.
 *
 * The address comes from the table that all wrappers use (roll_api_real); the first call of each function asks
 * roll_api_resolve. Copying NVIDIA's newer structs into our table instead was rejected: they change from release to
 * release. On processors without thunks (thunk.h) nothing is defined here: the application then binds to NCCL's own
 * symbols, which has the same effect as forwarding.
 */
#include "interposer/bind/thunk.h"
#include "interposer/wrap/api.h"

#if ROLL_THUNKS

/* Called from the assembly, so the linker must keep it. */
roll_function_t roll_jump_find(unsigned id, uintptr_t pc) __attribute__((visibility("hidden"), used));

/* Stands in for a function that the loaded NCCL lacks, or where there is no NCCL: it does nothing and returns an error.
 */
static ncclResult_t invalid_usage(void)
{
    return ncclInvalidUsage;
}

static ncclResult_t system_error(void)
{
    return ncclSystemError;
}

roll_function_t roll_jump_find(unsigned id, uintptr_t pc)
{
    roll_function_t real = roll_api_real_for(id, pc);
    if (real == NULL) {
        real = (roll_function_t)(roll_api_absent(0, id) == ncclSystemError ? system_error : invalid_usage);
    }
    return real;
}

ROLL_THUNK_SLOW(roll_jump_find)

#define ROLL_API_CALL(id, name, ...)
#define ROLL_API_LIFE(id, name, ...)
#define ROLL_API_PASS(id, ret, name, ...)
#define ROLL_API_JUMP(id, name)                                                                                        \
    ROLL_THUNK(#name, roll_api_real, #id, roll_api_others)                                                             \
    ROLL_OWN(name)
#include "interposer/wrap/api.def"

#endif
