/*
 * hook.c: other preloaded libraries, to be loaded before and after ours. HOOK_DLSYM: a dlsym of its own that counts and
 * passes on, as overlays and profilers bring. HOOK_SHIM: an ncclAllReduce that counts and calls the one behind it by
 * RTLD_NEXT. Each prints its count when the program ends. HOOK_MAIN: a program with such a dlsym of its own.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static int count;

#ifdef HOOK_DLSYM
__attribute__((visibility("default"))) void *dlsym(void *handle, const char *name)
{
    static void *(*real)(void *, const char *);
    if (real == NULL) {
        void *first = dlvsym(RTLD_NEXT, "dlsym", HOOK_DLSYM), *next;
        memcpy(&real, &first, sizeof(real));
        next = real(RTLD_NEXT, "dlsym");
        memcpy(&real, &next, sizeof(real));
    }
    count += strcmp(name, "ncclAllReduce") == 0;
    return real(handle, name);
}
#else
typedef int (*all_reduce_t)(const void *, void *, size_t, int, int, void *, void *);
int ncclAllReduce(const void *send, void *recv, size_t n, int type, int op, void *comm, void *stream);

int ncclAllReduce(const void *send, void *recv, size_t n, int type, int op, void *comm, void *stream)
{
    static all_reduce_t real;
    if (real == NULL) {
        real = (all_reduce_t)dlsym(RTLD_NEXT, "ncclAllReduce");
    }
    count++;
    return real != NULL ? real(send, recv, n, type, op, comm, stream) : 5;
}
#endif

__attribute__((destructor)) static void tell(void)
{
    if (count > 0) {
        fprintf(stderr, "hook: %d\n", count);
    }
}

#ifdef HOOK_MAIN
int main(void)
{
    static const char *const names[] = {"malloc", "ncclAllReduce", "cudaStreamSynchronize", "no_such_function", "n"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        printf("%s: %d %d\n", names[i], dlsym(RTLD_DEFAULT, names[i]) != NULL, dlsym(RTLD_NEXT, names[i]) != NULL);
    }
    return 0;
}
#endif
