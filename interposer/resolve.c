/*
 * resolve.c: finds the real functions, at the first call of each and not before.
 *
 * RTLD_NEXT alone is not enough: when NCCL came into the process through a dlopen with local scope (how Python loads
 * extension modules) the application's calls reach our wrapper, but RTLD_NEXT finds nothing, and at load time it finds
 * nothing in any case. A handle to the object that is already loaded works always; it is taken with RTLD_NOLOAD so that
 * we never bring an NCCL into a process that has none. The handle stays open: the addresses are kept. (What dlsym finds by
 * RTLD_NEXT the loader itself keeps loaded, as a dependency of this library.)
 * Linking with NCCL was rejected: it would load one into every process, perhaps another than the framework's.
 */
#include "interposer/api.h"

#include "interposer/compat.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define NAME_BYTES 96u

roll_function_t roll_api_real[ROLL_API_LIMIT];

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

static void *nccl_object(void)
{
    static _Atomic(void *) cached;
    void *handle = atomic_load_explicit(&cached, memory_order_acquire);
    if (handle == NULL) {
        handle = roll_dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
        if (handle == NULL) {
            handle = loaded_object("libnccl.so");
        }
        atomic_store_explicit(&cached, handle, memory_order_release);
    }
    return handle;
}

roll_function_t roll_api_resolve(unsigned id)
{
    int saved = errno;
    const char *name = roll_api_name(id);
    char twin[NAME_BYTES];
    void *found = NULL;
    if (name != NULL) {
        found = roll_dlsym_next(name);
        void *handle = found == NULL ? nccl_object() : NULL;
        if (found == NULL && handle != NULL) {
            found = roll_dlsym(handle, name);
        }
        /* NCCL keeps a strong twin of every function; builds that hide the weak name still have it. */
        if (found == NULL) {
            snprintf(twin, sizeof twin, "p%s", name);
            found = roll_dlsym_next(twin);
        }
        if (found == NULL && handle != NULL) {
            found = roll_dlsym(handle, twin);
        }
    }
    roll_function_t real = NULL;
    memcpy(&real, &found, sizeof real);
    if (real != NULL) {
        __atomic_store_n(&roll_api_real[id], real, __ATOMIC_RELEASE);
    }
    errno = saved;
    return real;
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
