/*
 * api.h: the real functions behind the wrappers, found late.
 */
#ifndef ROLL_INTERPOSER_API_H
#define ROLL_INTERPOSER_API_H

#include "interposer/nccl_types.h"

#include <stdint.h>

#define ROLL_EXPORT      __attribute__((visibility("default")))
#define ROLL_LIKELY(x)   __builtin_expect(!!(x), 1)
#define ROLL_UNLIKELY(x) __builtin_expect(!!(x), 0)

enum roll_api_id {
#define ROLL_API_CALL(id, name, ...)      ROLL_API_##name = (id),
#define ROLL_API_LIFE(id, name, ...)      ROLL_API_##name = (id),
#define ROLL_API_PASS(id, ret, name, ...) ROLL_API_##name = (id),
#define ROLL_API_JUMP(id, name)           ROLL_API_##name = (id),
#include "interposer/api.def"
    ROLL_API_LIMIT = 160, /* ids are below this */
};

typedef void (*roll_function_t)(void);

/* The addresses of the real functions, by id; NULL until found. Written once each, read by every wrapper. */
extern roll_function_t roll_api_real[ROLL_API_LIMIT] __attribute__((visibility("hidden")));

/* The name of a function, NULL for an unused id. */
const char *roll_api_name(unsigned id);

/*
 * Finds the real function of an id and remembers it: RTLD_NEXT, then the NCCL that is already in the process under any
 * scope, then the same with the pnccl twin. NULL when the loaded NCCL does not have it (asked again at the next call).
 * Keeps errno. Any thread; may take the loader's lock.
 */
roll_function_t roll_api_resolve(unsigned id);

/* The same for a function of another library already in the process: `library` is the start of its file name. */
roll_function_t roll_symbol_resolve(const char *name, const char *library);

/* The real function with its type; NULL when absent. */
#define ROLL_REAL(name, type)                                                                                          \
    ((type)(ROLL_LIKELY(roll_api_real[ROLL_API_##name] != NULL) ? roll_api_real[ROLL_API_##name]                       \
                                                                : roll_api_resolve(ROLL_API_##name)))

#endif
