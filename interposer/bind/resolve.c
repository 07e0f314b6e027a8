/*
 * resolve.c: finds the real functions, at the first call of each and not before.
 *
 * RTLD_NEXT alone is not enough: when NCCL came into the process through a dlopen with local scope (how Python loads
 * extension modules) the application's calls reach our wrapper, but RTLD_NEXT finds nothing, and at load time it finds
 * nothing in any case. A handle to the object that is already loaded always works. It is opened with RTLD_NOLOAD, so
 * that we never bring an NCCL into a process that has none. The handle stays open: the addresses are kept. (What dlsym
 * finds by RTLD_NEXT the loader itself keeps loaded, as a dependency of this library.) Linking with NCCL was rejected:
 * it would load one into every process, perhaps another than the framework's.
 *
 * Two NCCLs are never mixed: where RTLD_NEXT finds an NCCL, the functions that it lacks are absent, though another
 * object may have them; and each further NCCL is asked through its own handle.
 */
#include "interposer/wrap/api.h"

#include "interposer/bind/compat.h"
#include "interposer/record/session.h"
#include "interposer/record/thread.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define NAME_BYTES 96u

roll_function_t roll_api_real[ROLL_API_SETS][ROLL_API_LIMIT];

/* The objects to which the sets above 0 are bound. */
static void *_Atomic bound[ROLL_API_SETS];

/* Every NCCL but that of set 0, with the addresses of its code. An NCCL for which no set was left has set 0 here.
 * Appended under roll_lock, read without a lock. */
#define OTHERS 16u
static struct other {
    uintptr_t start, end;
    void *map;
    unsigned set;
} others[OTHERS];
_Atomic unsigned roll_api_others;

static const char *const names[ROLL_API_LIMIT] = {
#define ROLL_API_CALL(id, name, ...)      [id] = #name,
#define ROLL_API_LIFE(id, name, ...)      [id] = #name,
#define ROLL_API_PASS(id, ret, name, ...) [id] = #name,
#define ROLL_API_JUMP(id, name)           [id] = #name,
#include "interposer/wrap/api.def"
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
    if (length >= sizeof(search->path)) {
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

/* The NCCL of set 0: the one in the global scope behind us, else the one that the name libnccl.so.2 leads to. */
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

/* Finds a function, or else its pnccl twin: NCCL keeps a strong twin of every function, also in builds that hide the
 * weak name. */
static void *find(void *(*lookup)(void *, const char *), void *handle, const char *name)
{
    char twin[NAME_BYTES];
    void *found = lookup(handle, name);
    if (found == NULL) {
        snprintf(twin, sizeof(twin), "p%s", name);
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
    memcpy(&real, &found, sizeof(real));
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

static const struct other *other_at(uintptr_t pc)
{
    unsigned count = atomic_load_explicit(&roll_api_others, memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        if (pc >= others[i].start && pc < others[i].end) {
            return &others[i];
        }
    }
    return NULL;
}

int roll_api_within(uintptr_t pc)
{
    return other_at(pc) != NULL;
}

static roll_function_t real_of(unsigned set, unsigned id)
{
    roll_function_t known = __atomic_load_n(&roll_api_real[set][id], __ATOMIC_ACQUIRE);
    return known != NULL ? known : roll_api_resolve(set, id);
}

/* A call that is made while a wrapper is open comes from that wrapper's NCCL, whatever its return address says:
 * ncclBcast may end with a jump to ncclBroadcast, which leaves no trace of ncclBcast. */
roll_function_t roll_api_real_for(unsigned id, uintptr_t pc)
{
    const struct roll_thread *t = &roll_thread_self;
    if (t->depth != 0 && t->set != 0) {
        return real_of(t->set, id);
    }
    const struct other *other = other_at(pc);
    if (other == NULL || other->set != 0) {
        return real_of(other != NULL ? other->set : 0, id);
    }
    int saved = errno;
    roll_function_t real = NULL;
    void *found = find(roll_dlsym, other->map, roll_api_name(id));
    memcpy(&real, &found, sizeof(real));
    errno = saved;
    return real;
}

static int find_range(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    struct other *other = arg;
    const struct link_map *map = other->map;
    if (info->dlpi_addr != map->l_addr || info->dlpi_name == NULL || strcmp(info->dlpi_name, map->l_name) != 0) {
        return 0;
    }
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t low = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, high = low + info->dlpi_phdr[i].p_memsz;
        if (info->dlpi_phdr[i].p_type == PT_LOAD) {
            other->start = low < other->start ? low : other->start;
            other->end = high > other->end ? high : other->end;
        }
    }
    return 1;
}

/* The set of a known object; -1 where no set was left for it; 0: the object is not known. Under roll_lock. */
static int known_set(const void *map)
{
    unsigned count = atomic_load_explicit(&roll_api_others, memory_order_relaxed);
    for (unsigned i = 0; i < count; i++) {
        if (others[i].map == map) {
            return others[i].set != 0 ? (int)others[i].set : -1;
        }
    }
    return 0;
}

/* Under roll_lock. */
static int append_other(struct other *other)
{
    unsigned count = atomic_load_explicit(&roll_api_others, memory_order_relaxed);
    other->set = count + 1 < ROLL_API_SETS ? count + 1 : 0;
    if (count < OTHERS) {
        others[count] = *other;
        if (other->set != 0) {
            atomic_store_explicit(&bound[other->set], other->map, memory_order_release);
        }
        atomic_store_explicit(&roll_api_others, count + 1, memory_order_release);
    }
    return other->set != 0 ? (int)other->set : -1;
}

int roll_api_bind(void *map)
{
    const struct link_map *object = map;
    struct other other = {UINTPTR_MAX, 0, map, 0};
    int saved = errno;
    pthread_mutex_lock(&roll_lock);
    int set = known_set(map);
    pthread_mutex_unlock(&roll_lock);
    if (set == 0) {
        /* The object is opened by itself, because only then can it be asked by handle. It is never closed, so the
         * addresses stay valid. This happens outside our lock, because the auditor comes here with the loader's lock
         * held. */
        (void)roll_dlopen(object->l_name, RTLD_LAZY | RTLD_NOLOAD);
        dl_iterate_phdr(find_range, &other);
        pthread_mutex_lock(&roll_lock);
        set = known_set(map);
        set = set != 0 ? set : append_other(&other);
        pthread_mutex_unlock(&roll_lock);
        if (set < 0) {
            roll_say("this process uses more than %d NCCLs; calls of %s are not recorded", ROLL_API_SETS,
                     object->l_name);
        }
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
    memcpy(&real, &found, sizeof(real));
    errno = saved;
    return real;
}
