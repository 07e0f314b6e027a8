/*
 * kernel_code.c: the library of device code that HOSTCUDA_CODE names (code.h), opened when it is first needed. One that
 * cannot be used is said once, and launches are then refused as without it: a program that wanted its kernels to run
 * must not go on as if they had.
 */
#include "hostnccl/cuda/kernel.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct hostcuda_code *code;

static void load(void)
{
    const char *path = getenv("HOSTCUDA_CODE");
    const struct hostcuda_code *(*table)(void) = NULL;
    if (!path || !*path) {
        return;
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *why = library ? NULL : dlerror();
    void *found = library ? dlsym(library, "hostcuda_code_table") : NULL;
    memcpy(&table, &found, sizeof(table));
    const struct hostcuda_code *made = table ? table() : NULL;
    if (made && made->version == HOSTCUDA_CODE_VERSION) {
        code = made;
        return;
    }
    fprintf(stderr, "hostcuda: HOSTCUDA_CODE=%s is of no use: %s; kernels are refused\n", path,
            why     ? why
            : !made ? "it has no hostcuda_code_table()"
                    : "it was built for another hostcuda");
}

const struct hostcuda_code *hostcuda_code_loaded(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return code;
}

const struct hostcuda_code_entry *hostcuda_code_of(struct hostcuda_function *function)
{
    const struct hostcuda_code *loaded = hostcuda_code_loaded();
    enum hostcuda_policy policy = hostcuda_policy();
    if (!loaded || function->twin || policy == HOSTCUDA_KERNELS_SKIP || policy == HOSTCUDA_KERNELS_REFUSE) {
        return NULL;
    }
    if (!atomic_load(&function->is_code_known)) { /* two threads find the same */
        atomic_store(&function->code, loaded->find(function->name));
        atomic_store(&function->is_code_known, true);
    }
    return atomic_load(&function->code);
}

void hostcuda_code_memory(const void *start, size_t bytes, bool is_there)
{
    const struct hostcuda_code *loaded = hostcuda_code_loaded();
    if (loaded && loaded->memory) {
        loaded->memory(start, bytes, is_there);
    }
}
