/*
 * api.h: the real functions behind the wrappers, found late.
 */
#ifndef ROLL_INTERPOSER_WRAP_API_H
#define ROLL_INTERPOSER_WRAP_API_H

#include "interposer/wrap/nccl_types.h"

#include <stdatomic.h>
#include <stdint.h>

#define ROLL_EXPORT      __attribute__((visibility("default")))
#define ROLL_LIKELY(x)   __builtin_expect(!!(x), 1)
#define ROLL_UNLIKELY(x) __builtin_expect(!!(x), 0)

enum roll_api_id {
#define ROLL_API_CALL(id, name, ...)      ROLL_API_##name = (id),
#define ROLL_API_LIFE(id, name, ...)      ROLL_API_##name = (id),
#define ROLL_API_PASS(id, ret, name, ...) ROLL_API_##name = (id),
#define ROLL_API_JUMP(id, name)           ROLL_API_##name = (id),
#include "interposer/wrap/api.def"
    ROLL_API_LIMIT = 160, /* ids are below this */
};

typedef void (*roll_function_t)(void);

/*
 * A process may hold more than one NCCL. Each NCCL that is recorded has a set: wrappers of its own and the addresses
 * that these forward to, so that the functions of two NCCLs are never mixed. Set 0 has the exported wrappers and
 * forwards to what the loader binds; every other set belongs to one loaded object, and the dlsym hook and the fronts
 * hand out its wrappers. wrap.c and life.c are compiled once for each set, with ROLL_SET the number of the set: they
 * hold the wrappers and their static data.
 */
#define ROLL_API_SETS 3
#ifndef ROLL_SET
#define ROLL_SET 0
#endif

#define ROLL_TEXT_OF(x) #x
#define ROLL_TEXT(x)    ROLL_TEXT_OF(x)
/* Gives an exported function of this file a second, hidden name: its address without the loader's choice among several.
 */
#define ROLL_OWN(name)                                                                                                 \
    __asm__(".globl roll_own_" #name "\n.hidden roll_own_" #name "\n.set roll_own_" #name ", " #name "\n");
#if ROLL_SET == 0
#define ROLL_WRAPPER ROLL_EXPORT
#define ROLL_LABEL(name)
#define ROLL_OWN_WRAPPER(name) ROLL_OWN(name)
#else
#define ROLL_WRAPPER     __attribute__((visibility("hidden")))
#define ROLL_LABEL(name) __asm__("roll_set" ROLL_TEXT(ROLL_SET) "_" #name)
#define ROLL_OWN_WRAPPER(name)
#endif

/* The addresses of the real functions, by set and id; NULL until found. Written once each, read by every wrapper. */
extern roll_function_t roll_api_real[ROLL_API_SETS][ROLL_API_LIMIT] __attribute__((visibility("hidden")));

/* The name of a function, NULL for an unused id. */
const char *roll_api_name(unsigned id);

/*
 * Finds the real function of an id and remembers it. Set 0: RTLD_NEXT, then the NCCL that is already in the process
 * under any scope, then the same with the pnccl twin; other sets: the object that they are bound to. NULL when that
 * NCCL does not have it (asked again at the next call). Keeps errno. Any thread; may take the loader's lock.
 */
roll_function_t roll_api_resolve(unsigned set, unsigned id);

/* The result of a wrapper that has no function to forward to: ncclInvalidUsage where the NCCL of the set lacks the
 * function, ncclSystemError where there is no NCCL at all. The one line on standard error says which. Keeps errno. */
ncclResult_t roll_api_absent(unsigned set, unsigned id);

/* The set of the NCCL that is loaded as `map` (a struct link_map); a free set is bound to it if it has none yet. -1:
 * all sets are taken. The object stays loaded from then on. Any thread; may take the loader's lock. */
int roll_api_bind(void *map);

/* Finds a function of another library that is already in the process; `library` is the start of its file name. NULL
 * when there is none. */
roll_function_t roll_symbol_resolve(const char *name, const char *library);

/*
 * The number of NCCLs in the process besides that of set 0: 0 as a rule. An NCCL calls some of its public functions by
 * name, and such a call comes by our exported wrappers whichever NCCL it is. So where this number is not 0, the
 * exported wrappers look in which object their caller lies.
 */
extern _Atomic unsigned roll_api_others __attribute__((visibility("hidden")));

/* The function that an exported wrapper of this id forwards to for the caller at `pc`; NULL when there is none. Like
 * roll_api_resolve. */
roll_function_t roll_api_real_for(unsigned id, uintptr_t pc);

/* Whether the code at `pc` belongs to one of the other NCCLs: then NCCL makes the call, not the application. Lock-free.
 */
int roll_api_within(uintptr_t pc);

/* The real function of a set, with its type; NULL when there is none. ROLL_REAL: in a wrapper, the function of the
 * wrapper's own set. */
#define ROLL_REAL_OF(set, name, type)                                                                                  \
    ((type)(ROLL_LIKELY(roll_api_real[set][ROLL_API_##name] != NULL) ? roll_api_real[set][ROLL_API_##name]             \
                                                                     : roll_api_resolve(set, ROLL_API_##name)))
#define ROLL_REAL(name, type)                                                                                          \
    (ROLL_SET == 0 && ROLL_UNLIKELY(atomic_load_explicit(&roll_api_others, memory_order_relaxed) != 0)                 \
         ? (type)roll_api_real_for(ROLL_API_##name, (uintptr_t)__builtin_return_address(0))                            \
         : ROLL_REAL_OF(ROLL_SET, name, type))

#endif
