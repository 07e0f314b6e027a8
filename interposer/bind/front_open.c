/*
 * front_open.c: finds the real NCCL behind a front, and the wrappers that its functions jump to.
 *
 * The search goes in this order: the file that ROLLCALL_NCCL names; an NCCL that is in the process already (a
 * framework's, which came by DT_NEEDED); libnccl.so.2 where the loader would look, but not the front itself. The loader
 * cannot find the last one: to it the front is libnccl.so.2. So this file searches the directories of LD_LIBRARY_PATH
 * and the loader's cache. Of the cache only the strings are read, which are paths, whatever the format around them.
 */
#include "interposer/bind/front.h"

#include "interposer/bind/compat.h"
#include "interposer/bind/dlsym.h"
#include "interposer/bind/elfsym.h"
#include "interposer/bind/thunk.h"
#include "interposer/record/session.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if ROLL_THUNKS /* without them there are no fronts */

#define SONAME     "libnccl.so.2"
#define CACHE      "/etc/ld.so.cache"
#define CANDIDATES 8u

/* The variables below are written under `opening`; only the last is read without it. */
static char path[4096];
static struct {
    char path[CANDIDATES][512];
    unsigned count;
} loaded;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static void *_Atomic real_nccl;

static int note_loaded(struct dl_phdr_info *info, size_t size, void *unused)
{
    (void)size;
    (void)unused;
    const char *base = info->dlpi_name == NULL ? NULL : strrchr(info->dlpi_name, '/');
    if (base != NULL && strncmp(base, "/libnccl.so", 11) == 0 && strlen(info->dlpi_name) < sizeof(loaded.path[0]) &&
        loaded.count < CANDIDATES) {
        strcpy(loaded.path[loaded.count++], info->dlpi_name);
    }
    return 0;
}

/* Opens a file that may be the real NCCL. NULL when it is no NCCL, or is a front. */
static void *open_nccl(const char *file, int flags)
{
    void *handle = roll_dlopen(file, RTLD_LAZY | RTLD_LOCAL | flags);
    if (handle != NULL &&
        (roll_dlsym(handle, "ncclCommInitRank") == NULL || roll_dlsym(handle, "roll_front") != NULL)) {
        handle = NULL; /* left open: closing a library that has run constructors is a risk for nothing */
    }
    return handle;
}

static void *open_loaded(void)
{
    void *handle = NULL;
    loaded.count = 0;
    dl_iterate_phdr(note_loaded, NULL);
    for (unsigned i = 0; i < loaded.count && handle == NULL; i++) {
        handle = open_nccl(loaded.path[i], RTLD_NOLOAD);
    }
    return handle;
}

static void *open_in_library_path(void)
{
    const char *at = getenv("LD_LIBRARY_PATH");
    void *handle = NULL;
    while (at != NULL && *at != '\0' && handle == NULL) {
        size_t n = strcspn(at, ":;");
        if (n > 0 && n < sizeof(path) - sizeof(SONAME) - 1) {
            snprintf(path, sizeof(path), "%.*s/%s", (int)n, at, SONAME);
            handle = access(path, R_OK) == 0 ? open_nccl(path, 0) : NULL;
        }
        at += n + (at[n] != '\0');
    }
    return handle;
}

static void *open_in_cache(void)
{
    static const char wanted[] = "/" SONAME;
    void *handle = NULL;
    int fd = open(CACHE, O_RDONLY | O_CLOEXEC);
    off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    if (end > 0) {
        size_t bytes = (size_t)end;
        const char *map = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        const char *at = map == MAP_FAILED ? NULL : map;
        /* The match includes the terminating zero, so that a longer path is not taken for this file's. */
        while (handle == NULL && at != NULL &&
               (at = memmem(at, bytes - (size_t)(at - map), wanted, sizeof(wanted))) != NULL) {
            const char *start = at;
            while (start > map && start[-1] != '\0') {
                start--;
            }
            handle = *start == '/' ? open_nccl(start, 0) : NULL;
            at += sizeof(wanted);
        }
        if (map != MAP_FAILED) {
            munmap((void *)(uintptr_t)map, bytes);
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    return handle;
}

/* Says once that the front is of another release than the NCCL: then lookups in the front find other functions than
 * that NCCL has. */
static void compare_releases(const int *front, void *handle)
{
    int (*get_version)(int *) = NULL;
    int version = 0;
    void *found = roll_dlsym(handle, "ncclGetVersion");
    memcpy(&get_version, &found, sizeof(get_version));
    for (unsigned id = 0; id < ROLL_API_LIMIT && get_version != NULL && get_version(&version) == 0; id++) {
        const char *name = roll_api_name(id);
        if (name == NULL) {
            continue;
        }
        bool here = roll_elf_symbol(roll_object_of(front), name) != NULL;
        bool there = roll_dlsym(handle, name) != NULL;
        if (here != there) {
            roll_say(
                "the front for NCCL %d.%d.%d stands before NCCL %d.%d.%d, which %s %s; take the front of that release",
                *front / 10000, *front / 100 % 100, *front % 100, version / 10000, version / 100 % 100, version % 100,
                there ? "also has" : "lacks", name);
            return;
        }
    }
}

static void *open_real(const int *front)
{
    const char *named = getenv("ROLLCALL_NCCL");
    void *handle = NULL;
    if (named != NULL && named[0] != '\0') {
        handle = open_nccl(named, 0);
        if (handle == NULL) {
            roll_say("ROLLCALL_NCCL=%s cannot be loaded as NCCL", named);
        }
    } else {
        handle = open_loaded();
        handle = handle != NULL ? handle : open_in_library_path();
        handle = handle != NULL ? handle : open_in_cache();
        if (handle == NULL) {
            roll_say("no %s found behind the front; set ROLLCALL_NCCL to the path of the real one", SONAME);
        }
    }
    if (handle != NULL) {
        compare_releases(front, handle);
    }
    return handle;
}

roll_function_t roll_front_function(const int *front, unsigned id, int twin, int *there)
{
    static bool tried;
    int saved = errno;
    void *handle = atomic_load_explicit(&real_nccl, memory_order_acquire);
    if (handle == NULL) {
        pthread_mutex_lock(&opening);
        handle = atomic_load_explicit(&real_nccl, memory_order_acquire);
        if (handle == NULL && !tried) {
            handle = open_real(front);
            tried = handle == NULL;
            atomic_store_explicit(&real_nccl, handle, memory_order_release);
        }
        pthread_mutex_unlock(&opening);
    }
    *there = handle != NULL;
    roll_function_t function = handle != NULL ? roll_lookup_recorded(handle, id, twin != 0) : NULL;
    errno = saved;
    return function;
}

#endif
