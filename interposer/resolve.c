/*
 * resolve.c: finds the real functions, at the first call of each and not before.
 *
 * RTLD_NEXT alone is not enough: when NCCL came into the process through a dlopen with local scope (how Python loads
 * extension modules) the application's calls reach our wrapper, but RTLD_NEXT finds nothing, and at load time it finds
 * nothing in any case. A handle to the object that is already loaded works always; it is taken with RTLD_NOLOAD so that
 * we never bring an NCCL into a process that has none. The handle stays open: the addresses are kept. (What dlsym finds by
 * RTLD_NEXT the loader itself keeps loaded, as a dependency of this library.)
 * Linking with NCCL was rejected: it would load one into every process, perhaps another than the framework's.
 *
 * Two NCCLs are never mixed: where RTLD_NEXT finds an NCCL, the functions that it lacks are absent, though another object
 * may have them; and each further NCCL is asked through its own handle.
 */
#include "interposer/api.h"

#include "interposer/compat.h"
#include "interposer/session.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define NAME_BYTES 96u

roll_function_t roll_api_real[ROLL_API_SETS][ROLL_API_LIMIT];

/* The objects of the sets above 0. */
static void *_Atomic bound[ROLL_API_SETS];

static const char *const names[ROLL_API_LIMIT] = {
#define ROLL_API_CALL(id, name, ...)      [id] = #name,
#define ROLL_API_LIFE(id, name, ...)      [id] = #name,
#define ROLL_API_PASS(id, ret, name, ...) [id] = #name,
#define ROLL_API_JUMP(id, name)           [id] = #name,
#include "interposer/api.def"
};

const char *roll_api_name(unsigned id)
{
    return id < ROLL_API_LIMIT ? names[id] : NULL;
}

struct search {
    const char *prefix;
    char path[4096];
};

static int match_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    struct search *search = arg;
    const char *base = info->dlpi_name == NULL ? NULL : strrchr(info->dlpi_name, '/');
    base = base == NULL ? info->dlpi_name : base + 1;
    if (base == NULL || strncmp(base, search->prefix, strlen(search->prefix)) != 0) {
        return 0;
    }
    size_t length = strlen(info->dlpi_name);
    if (length >= sizeof search->path) {
        return 0;
    }
    memcpy(search->path, info->dlpi_name, length + 1);
    return 1;
}

/* A handle to the object already in the process whose file name begins with prefix. */
static void *loaded_object(const char *prefix)
{
    struct search search = {.prefix = prefix};
    if (dl_iterate_phdr(match_object, &search) == 0) {
        return NULL;
    }
    return roll_dlopen(search.path, RTLD_LAZY | RTLD_NOLOAD);
}

/* The NCCL that set 0 stands for: the one in the global scope behind us, else the one that DT_NEEDED would be given. */
static void *nccl_object(void)
{
    static void *_Atomic cached;
    void *handle = atomic_load_explicit(&cached, memory_order_acquire);
    if (handle == NULL) {
        void *anchor = roll_dlsym_next("pncclGetVersion");
        anchor = anchor != NULL ? anchor : roll_dlsym_next("ncclGetVersion");
        const struct link_map *map = anchor != NULL ? roll_object_of(anchor) : NULL;
        handle = map != NULL ? roll_dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
        if (handle == NULL) {
            handle = roll_dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
        }
        if (handle == NULL) {
            handle = loaded_object("libnccl.so");
        }
        atomic_store_explicit(&cached, handle, memory_order_release);
    }
    return handle;
}

/* NCCL keeps a strong twin of every function; builds that hide the weak name still have it. */
static void *find(void *(*lookup)(void *, const char *), void *handle, const char *name)
{
    char twin[NAME_BYTES];
    void *found = lookup(handle, name);
    if (found == NULL) {
        snprintf(twin, sizeof twin, "p%s", name);
        found = lookup(handle, twin);
    }
    return found;
}

static void *lookup_next(void *unused, const char *name)
{
    (void)unused;
    return roll_dlsym_next(name);
}

roll_function_t roll_api_resolve(unsigned set, unsigned id)
{
    int saved = errno;
    const char *name = roll_api_name(id);
    void *found = NULL;
    if (name != NULL && set == 0) {
        found = find(lookup_next, NULL, name);
    }
    if (name != NULL && found == NULL) {
        void *handle = set == 0 ? nccl_object() : atomic_load_explicit(&bound[set], memory_order_acquire);
        found = handle != NULL ? find(roll_dlsym, handle, name) : NULL;
    }
    roll_function_t real = NULL;
    memcpy(&real, &found, sizeof real);
    if (real != NULL) {
        __atomic_store_n(&roll_api_real[set][id], real, __ATOMIC_RELEASE);
    }
    errno = saved;
    return real;
}

ncclResult_t roll_api_absent(unsigned set, unsigned id)
{
    int saved = errno;
    bool any = set != 0 || nccl_object() != NULL;
    const char *name = roll_api_name(id);
    roll_say("%s was called, but %s", name != NULL ? name : "an NCCL function",
             any ? "the NCCL of this process does not have it" : "there is no NCCL in this process");
    errno = saved;
    return any ? ncclInvalidUsage : ncclSystemError;
}

int roll_api_bind(void *map)
{
    const struct link_map *object = map;
    int saved = errno, set = -1;
    /* Opened on its own account: only then can it be asked by handle; and never closed: the addresses stay good. */
    for (int i = 1; i < ROLL_API_SETS && set < 0; i++) {
        void *owner = atomic_load_explicit(&bound[i], memory_order_acquire);
        if (owner == NULL) {
            (void)roll_dlopen(object->l_name, RTLD_LAZY | RTLD_NOLOAD);
        }
        if (owner == map ||
            (owner == NULL && (atomic_compare_exchange_strong(&bound[i], &owner, map) || owner == map))) {
            set = i;
        }
    }
    if (set < 0) {
        roll_say("this process uses more than %d NCCLs; calls of %s are not recorded", ROLL_API_SETS, object->l_name);
    }
    errno = saved;
    return set;
}

roll_function_t roll_symbol_resolve(const char *name, const char *library)
{
    int saved = errno;
    void *found = roll_dlsym_next(name);
    if (found == NULL) {
        void *handle = loaded_object(library);
        found = handle != NULL ? roll_dlsym(handle, name) : NULL;
    }
    roll_function_t real = NULL;
    memcpy(&real, &found, sizeof real);
    errno = saved;
    return real;
}
