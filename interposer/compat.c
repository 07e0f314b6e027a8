/*
 * compat.c: see compat.h. Also defines stat and lstat, hidden: their default versions appeared in glibc 2.33. Building against an old sysroot instead was rejected: nobody has one at hand.
 */
#include "interposer/compat.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
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
ROLL_BIND(dlsym);
ROLL_BIND(dlopen);
ROLL_BIND(pthread_getattr_np);
ROLL_BIND(pthread_attr_getstack);
ROLL_BIND(pthread_attr_destroy);
#endif
#pragma weak dlsym
#pragma weak dlopen
#pragma weak pthread_getattr_np
#pragma weak pthread_attr_getstack
#pragma weak pthread_attr_destroy

extern void *__libc_stack_end;

/* The main thread's stack grows on demand: only this much below its top is trusted to be stack and nothing else. */
#define MAIN_STACK_BYTES (64u * 1024u * 1024u)

void *roll_dlsym_next(const char *name)
{
    return &dlsym != NULL ? dlsym(RTLD_NEXT, name) : NULL;
}

void *roll_dlsym(void *handle, const char *name)
{
    return &dlsym != NULL ? dlsym(handle, name) : NULL;
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
