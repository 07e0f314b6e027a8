/*
 * dlsym.c: gives programs that look NCCL's functions up (ctypes, vLLM, JAX) our wrappers, and only for functions that
 * their NCCL has.
 *
 * This library defines dlsym. Its entry is assembly (dlsym_entry.h): a name that is none of ours jumps on to the real
 * dlsym with the caller's return address in place, because that is how the loader knows on whose behalf RTLD_NEXT and
 * RTLD_DEFAULT look. A C function that forwards was rejected for that reason.
 *
 * For our own names one rule holds: the answer is a wrapper only if that wrapper forwards to the very function that
 * the lookup would have found without us. So a lookup never changes which NCCL is called, another shim that looks up
 * what lies behind it never gets itself back, and two NCCLs are never mixed (see sets in api.h). Names of the pnccl
 * kind, and functions that are never recorded, are answered with the real function. A function that the lookup would
 * not have found without us is not found, and dlerror has the usual text.
 */
#include "interposer/bind/dlsym.h"

#include "interposer/bind/compat.h"
#include "interposer/bind/dlsym_entry.h"
#include "interposer/bind/elfsym.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <string.h>

#if ROLL_HOOK_DLSYM

/* The addresses of the wrappers, by set and id. NULL for functions that are only forwarded. */
#define EXTERN_OF_SETS(name) extern void roll_own_##name(void), roll_set1_##name(void), roll_set2_##name(void);

#define ROLL_API_CALL(id, name, ...)      EXTERN_OF_SETS(name)
#define ROLL_API_LIFE(id, name, ...)      EXTERN_OF_SETS(name)
#define ROLL_API_PASS(id, ret, name, ...) extern void roll_own_##name(void);
#define ROLL_API_JUMP(id, name)           extern void roll_own_##name(void);
#pragma GCC visibility push(hidden)
#include "interposer/wrap/api.def"
#define ROLL_HOOK(name, library) extern void roll_own_##name(void);
#include "interposer/bind/hook.def"
#pragma GCC visibility pop

_Static_assert(ROLL_API_SETS == 3, "one column of wrappers for each set");
static const struct row {
    const char *name;
    const char *library; /* NULL for NCCL's functions; else the object that the real function lives in */
    uint32_t id;
    bool recorded;
    roll_function_t wrapper[ROLL_API_SETS];
} rows[] = {
#define IN_SETS(name)                     roll_own_##name, roll_set1_##name, roll_set2_##name
#define ROLL_API_CALL(id, name, ...)      {#name, NULL, id, true, {IN_SETS(name)}},
#define ROLL_API_LIFE(id, name, ...)      {#name, NULL, id, true, {IN_SETS(name)}},
#define ROLL_API_PASS(id, ret, name, ...) {#name, NULL, id, false, {roll_own_##name, NULL, NULL}},
#define ROLL_API_JUMP(id, name)           {#name, NULL, id, false, {roll_own_##name, NULL, NULL}},
#include "interposer/wrap/api.def"
#define ROLL_HOOK(name, library) {#name, library, 0, true, {roll_own_##name, NULL, NULL}},
#include "interposer/bind/hook.def"
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

static const struct row *row_of(const char *name)
{
    if (strncmp(name, "nccl", 4) != 0 && strncmp(name, "cu", 2) != 0 && strncmp(name, "nvte_", 5) != 0 &&
        strncmp(name, "_Z", 2) != 0) {
        return NULL;
    }
    for (size_t i = 0; i < ROWS; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

static void *address(roll_function_t function)
{
    void *out;
    memcpy(&out, &function, sizeof(out));
    return out;
}

/* The function that our exported wrapper forwards to; NULL when there is none. */
static void *behind(const struct row *row)
{
    return address(row->library != NULL ? roll_symbol_resolve(row->name, row->library) : roll_api_resolve(0, row->id));
}

/* The last object that was loaded when the program started; objects behind it in the loader's list were dlopened. */
static const struct link_map *last_at_start;

__attribute__((constructor)) static void note_start(void)
{
    const struct link_map *map = _r_debug.r_map;
    while (map != NULL && map->l_next != NULL) {
        map = map->l_next;
    }
    last_at_start = map;
}

static bool there_at_start(const struct link_map *map)
{
    const struct link_map *at = last_at_start;
    while (at != NULL && at != map) {
        at = at->l_prev;
    }
    return at != NULL;
}

bool roll_is_front(void *map)
{
    return roll_elf_symbol(map, "roll_front") != NULL;
}

/* Whether an object is a whole NCCL, and not a shim that wraps a few of its functions. */
static bool is_nccl(void *map)
{
    return roll_elf_symbol(map, "ncclCommInitRank") != NULL && !roll_is_front(map);
}

/* The wrapper that forwards to `found`, the function that the lookup has found; `found` itself where there is no such
 * wrapper. */
static void *wrapper_of(const struct row *row, void *found)
{
    void *map = row->library == NULL ? roll_object_of(found) : NULL;
    if (!row->recorded || (map != NULL && roll_is_front(map))) {
        return found;
    }
    if (found == behind(row)) {
        return address(row->wrapper[0]);
    }
    int set = map != NULL && is_nccl(map) ? roll_api_bind(map) : -1;
    return set > 0 && address(roll_api_resolve((unsigned)set, row->id)) == found ? address(row->wrapper[set]) : found;
}

/* Answers RTLD_DEFAULT for a caller that would be given our wrapper: the wrapper counts only if there is a function
 * behind it that the caller can see. */
static void *answer_default(const struct row *row, void *caller)
{
    void *found = roll_dlsym_next(row->name);
    if (found == NULL && caller != NULL && !there_at_start(caller)) {
        found = roll_dlsym_within(caller, row->name);
        found = found != NULL ? found : behind(row); /* the NCCL of other objects: see Limits in docs/INTERPOSER.md */
    }
    return found != NULL ? wrapper_of(row, found) : NULL;
}

/* Whether `map` comes before this library in the order in which the loader searches. */
static bool before_us(const struct link_map *map, const struct link_map *ours)
{
    const struct link_map *at = ours;
    while (at != NULL && at != map) {
        at = at->l_prev;
    }
    return at != NULL;
}

/*
 * Answers RTLD_NEXT. A caller before us would be given our wrapper, unless a library between has the function. A caller
 * behind us would be given the function that comes after it, which is that of the NCCL it needs. A caller that has the
 * function itself is a shim: it asks for the function behind itself, and its calls came by us already. *known false:
 * the lookup is left to the real dlsym.
 */
static void *answer_next(const struct row *row, struct link_map *caller, struct link_map *ours, bool *known)
{
    void *found = NULL;
    *known = false;
    if (caller == NULL || (caller != ours && before_us(caller, ours))) {
        for (struct link_map *at = caller != NULL ? caller->l_next : ours; at != ours; at = at->l_next) {
            if (roll_elf_symbol(at, row->name) != NULL) {
                return NULL;
            }
        }
        *known = true;
        found = roll_dlsym_next(row->name);
    } else if (roll_elf_symbol(caller, row->name) == NULL) {
        found = roll_dlsym_within(caller, row->name);
        *known = found != NULL && found != address(row->wrapper[0]);
    }
    return found != NULL && *known ? wrapper_of(row, found) : NULL;
}

/* Called by the auditor: returns the function to which an object is bound in place of NCCL's function `found`. */
ROLL_EXPORT void *roll_audit_answer(const char *name, void *found, void *from);
ROLL_EXPORT void *roll_audit_answer(const char *name, void *found, void *from)
{
    const struct row *row = row_of(name);
    if (row == NULL || from == NULL || roll_elf_symbol(from, name) != NULL) {
        return found; /* an object that has such a function itself is a shim, and its calls came by us already */
    }
    int saved = errno;
    void *value = wrapper_of(row, found);
    errno = saved;
    return value;
}

roll_function_t roll_lookup_recorded(void *handle, unsigned id, bool twin)
{
    const char *name = roll_api_name(id);
    const struct row *row = name != NULL ? row_of(name) : NULL;
    char strong[96] = "p";
    if (row == NULL) {
        return NULL;
    }
    strncat(strong, name, sizeof(strong) - 2);
    void *found = roll_dlsym(handle, twin ? strong : name);
    found = found != NULL ? found : roll_dlsym(handle, twin ? name : strong);
    found = found != NULL && !twin ? wrapper_of(row, found) : found;
    roll_function_t function = NULL;
    memcpy(&function, &found, sizeof(function));
    return function;
}

struct roll_answer roll_dlsym_answer(void *handle, const char *name, const void *caller)
{
    const struct row *row = NULL;
    struct roll_answer answer = {NULL, 0};
    if (roll_dlsym_behind() == NULL || name == NULL || (row = row_of(name)) == NULL) {
        return answer;
    }
    int saved = errno;
    void *own = address(row->wrapper[0]), *value = NULL;
    bool known = true;
    if (handle == RTLD_NEXT) {
        value = answer_next(row, roll_object_of(caller), roll_object_of(own), &known);
    } else {
        /* This lookup is made on our own behalf: we are in the global scope, and objects before us there come first for
         * every caller. */
        value = roll_dlsym(handle, name);
        if (value == own) {
            value = answer_default(row, handle == RTLD_DEFAULT ? roll_object_of(caller) : NULL);
        } else if (handle == RTLD_DEFAULT || value == NULL) {
            known = false; /* the real dlsym fails itself, with the text that belongs to the handle */
        } else {
            value = wrapper_of(row, value);
        }
    }
    if (known && value == NULL) {
        (void)roll_dlsym_next(name); /* this lookup fails, and leaves its text for dlerror */
    } else if (known) {
        roll_dlerror_clear();
    }
    answer.value = value;
    answer.known = known;
    errno = saved;
    return answer;
}

#endif
