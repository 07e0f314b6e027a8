/*
 * compat.c: see compat.h. Also defines stat and lstat, hidden: their default versions appeared in glibc 2.33. Building
 * against an old sysroot instead was rejected: nobody has one at hand.
 */
#include "interposer/bind/compat.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ROLL_OLDEST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define ROLL_OLDEST "GLIBC_2.17"
#endif

#ifdef ROLL_OLDEST
#define ROLL_BIND(name) __asm__(".symver " #name "," #name "@" ROLL_OLDEST)
ROLL_BIND(dlvsym);
ROLL_BIND(dlopen);
ROLL_BIND(dlclose);
ROLL_BIND(dlerror);
#if defined(__x86_64__)
__asm__(".symver dladdr1,dladdr1@GLIBC_2.3.3");
#else
ROLL_BIND(dladdr1);
#endif
ROLL_BIND(pthread_getattr_np);
ROLL_BIND(pthread_attr_getstack);
ROLL_BIND(pthread_attr_destroy);
ROLL_BIND(pthread_getspecific);
#endif
#pragma weak dlvsym
#pragma weak dlopen
#pragma weak dlclose
#pragma weak dlerror
#pragma weak dladdr1
#pragma weak pthread_getattr_np
#pragma weak pthread_attr_getstack
#pragma weak pthread_attr_destroy
#pragma weak pthread_getspecific

extern void *__libc_stack_end;

/* The dlsym behind ours, read by the assembly of dlsym.c; NULL until it is first asked for. */
extern roll_dlsym_t roll_dlsym_real __attribute__((visibility("hidden")));
roll_dlsym_t roll_dlsym_real;

/* The main thread's stack grows on demand: only this much below its top is trusted to be stack and nothing else. */
#define MAIN_STACK_BYTES (64u * 1024u * 1024u)

/*
 * Finds the dlsym behind ours. Calling dlsym by its name would find the one that this library defines. dlvsym finds
 * libc's dlsym whatever stands between; that dlsym is then asked for the next one, so that another library's hook keeps
 * its place. Threads that race find the same function. Other processors than the two below have no hook here, and the
 * plain name means libc's dlsym.
 */
roll_dlsym_t roll_dlsym_behind(void)
{
    roll_dlsym_t real = __atomic_load_n(&roll_dlsym_real, __ATOMIC_ACQUIRE);
    if (real == NULL) {
#ifdef ROLL_OLDEST
        void *found = &dlvsym != NULL ? dlvsym(RTLD_NEXT, "dlsym", ROLL_OLDEST) : NULL;
        memcpy(&real, &found, sizeof(real));
        void *next = real != NULL ? real(RTLD_NEXT, "dlsym") : NULL;
        if (next != NULL) {
            memcpy(&real, &next, sizeof(real));
        }
#else
        real = dlsym;
#endif
        __atomic_store_n(&roll_dlsym_real, real, __ATOMIC_RELEASE);
    }
    return real;
}

/* The result is volatile, because a tail call would look up on behalf of our caller. */
void *roll_dlsym_next(const char *name)
{
    roll_dlsym_t real = roll_dlsym_behind();
    void *volatile found = real != NULL ? real(RTLD_NEXT, name) : NULL;
    return found;
}

void *roll_dlsym(void *handle, const char *name)
{
    roll_dlsym_t real = roll_dlsym_behind();
    void *volatile found = real != NULL ? real(handle, name) : NULL;
    return found;
}

void *roll_object_of(const void *address)
{
    Dl_info info;
    void *map = NULL;
    return &dladdr1 != NULL && dladdr1(address, &info, &map, RTLD_DL_LINKMAP) != 0 ? map : NULL;
}

/* An object that came as a dependency can be looked into only while it is opened by itself. */
void *roll_dlsym_within(const struct link_map *map, const char *name)
{
    void *handle = roll_dlopen(map->l_name[0] != '\0' ? map->l_name : NULL, RTLD_LAZY | RTLD_NOLOAD);
    void *found = handle != NULL ? roll_dlsym(handle, name) : NULL;
    if (handle != NULL && &dlclose != NULL) {
        dlclose(handle);
    }
    return found;
}

const char *roll_symbol_of(const void *address)
{
    Dl_info info;
    struct link_map *map = NULL;
    bool found = &dladdr1 != NULL && dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP) != 0;
    return found ? info.dli_sname : NULL;
}

roll_specific_t roll_specific(void)
{
    return &pthread_getspecific;
}

void roll_dlerror_clear(void)
{
    if (&dlerror != NULL) {
        (void)dlerror();
    }
}

void *roll_dlopen(const char *path, int flags)
{
    return &dlopen != NULL ? dlopen(path, flags) : NULL;
}

static bool is_main_thread(void)
{
    return syscall(SYS_gettid) == getpid();
}

int roll_stack_bounds(uintptr_t *low, uintptr_t *high)
{
    if (is_main_thread()) {
        struct rlimit limit;
        uintptr_t bytes = MAIN_STACK_BYTES;
        if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < bytes) {
            bytes = limit.rlim_cur;
        }
        *high = (uintptr_t)__libc_stack_end;
        *low = *high - bytes;
        return 1;
    }
    pthread_attr_t attr;
    void *base = NULL;
    size_t bytes = 0;
    if (&pthread_getattr_np == NULL || &pthread_attr_getstack == NULL ||
        pthread_getattr_np(pthread_self(), &attr) != 0) {
        return 0;
    }
    int known = pthread_attr_getstack(&attr, &base, &bytes) == 0;
    pthread_attr_destroy(&attr);
    *low = (uintptr_t)base;
    *high = (uintptr_t)base + bytes;
    return known;
}

int stat(const char *restrict path, struct stat *restrict out)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, out, 0);
}

int lstat(const char *restrict path, struct stat *restrict out)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}
