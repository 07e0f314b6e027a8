/*
 * find.c: the runtime of this process, for the driver interface and for NCCL. Neither is linked against a runtime,
 * because a program brings either the runtime of CUDA 12 or that of CUDA 13, and both must work beside it: what they
 * need is in the private table, which is the same in both. Only where the program has no runtime yet (ctypes that loads
 * NCCL alone) one is loaded.
 */
#include "hostnccl/cuda/private.h"

#include <dlfcn.h>
#include <string.h>

/* The newest first. */
static const char *const names[] = {"libcudart.so.13", "libcudart.so.12"};
enum { NAMES = sizeof(names) / sizeof(*names) };

static const struct hostcuda_private *table_of(void *library)
{
    cudaError_t (*ask)(const void **table, const cudaUUID_t *name) = NULL;
    const void *table = NULL;
    cudaUUID_t name;
    void *found = dlsym(library, "cudaGetExportTable");
    memcpy(&ask, &found, sizeof(ask));
    memcpy(&name, HOSTCUDA_PRIVATE_ID, sizeof(name));
    return ask && ask(&table, &name) == cudaSuccess ? table : NULL;
}

/* Of two runtimes that are loaded, the one that is in use counts, because the other refuses to start; else the first
 * one. */
static const struct hostcuda_private *look(int mode)
{
    const struct hostcuda_private *best = NULL;
    for (int i = 0; i < NAMES; i++) {
        void *library = dlopen(names[i], mode);
        const struct hostcuda_private *table = library ? table_of(library) : NULL;
        if (table && (!best || table->is_started())) {
            best = table;
        }
        if (library && !(mode & RTLD_NOLOAD)) {
            break;
        }
    }
    return best;
}

const struct hostcuda_private *hostcuda_find_loaded(void)
{
    return look(RTLD_LAZY | RTLD_NOLOAD);
}

const struct hostcuda_private *hostcuda_find(void)
{
    const struct hostcuda_private *found = hostcuda_find_loaded();
    return found ? found : look(RTLD_LAZY);
}
