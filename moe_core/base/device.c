/*
 * device.c: devices of any back end: the choice of the back end, the loading of its code, and what all devices have:
 * one stream (memory.c has its memory).
 *
 * The CUDA back end is loaded when it is asked for: a program of moe_core runs where there is no CUDA, and the library
 * is built and installed without. The library is looked for beside libmoe_core.so first, so that a build tree and an
 * installation each find their own. It is opened with RTLD_NOW: the kernels register themselves when the library is
 * loaded, and a runtime that lacks the functions for that (hostcuda's) must be an error of this call and not the end of
 * the process.
 */
#include "moe_core/base/device.h"

#include "moe_core/base/fail.h"
#include "moe_core/base/memory.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FAIL(code, ...) moe_fail(code, MOE_NO_RANK, MOE_NO_LAYER, __VA_ARGS__)

/* the back ends */

static const struct moe_backend *host_backend(int *rc)
{
    *rc = 0;
    return moe_host_backend();
}

/*
 * Writes the path of the kernels' library in the folder of libmoe_core.so. False: the folder cannot be found, or the
 * path does not fit.
 */
static bool beside_us(char *path, size_t room)
{
    Dl_info us;
    if (dladdr((const void *)(uintptr_t)moe_device_new, &us) == 0 || us.dli_fname == NULL) {
        return false;
    }
    const char *slash = strrchr(us.dli_fname, '/');
    int folder = slash != NULL ? (int)(slash - us.dli_fname) + 1 : 0;
    int n = snprintf(path, room, "%.*s%s", folder, us.dli_fname, MOE_KERNELS_LIBRARY);
    return folder > 0 && n > 0 && (size_t)n < room;
}

/* The library stays open for the life of the process: kernels cannot be unloaded while a context knows them. */
static const struct moe_backend *cuda_backend(int *rc)
{
    char path[4096];
    /*
     * The loader's message is no evidence: for a library that exists but needs another one that does not, it says "No
     * such file" as well.
     */
    bool beside = beside_us(path, sizeof(path)) && access(path, F_OK) == 0;
    void *library = dlopen(beside ? path : MOE_KERNELS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *said = dlerror();
        *rc = FAIL(MOE_E_UNSUPPORTED, "no CUDA back end: %s", said != NULL ? said : MOE_KERNELS_LIBRARY);
        return NULL;
    }
    moe_kernels_backend_fn *get = NULL;
    *(void **)&get = dlsym(library, MOE_KERNELS_BACKEND);
    const struct moe_backend *backend = get != NULL ? get() : NULL;
    if (backend == NULL || backend->abi != MOE_BACKEND_ABI || backend->layout != (uint32_t)MOE_BACKEND_LAYOUT) {
        *rc = FAIL(MOE_E_UNSUPPORTED, "%s is of another version: its interface is %u of layout %08x, not %d of %08x",
                   MOE_KERNELS_LIBRARY, backend ? backend->abi : 0, backend ? backend->layout : 0, MOE_BACKEND_ABI,
                   (unsigned)MOE_BACKEND_LAYOUT);
        dlclose(library);
        return NULL;
    }
    *rc = 0;
    return backend;
}

static const struct {
    const char *name;
    const struct moe_backend *(*find)(int *rc);
} backends[] = {{"host", host_backend}, {"cuda", cuda_backend}};

static const struct moe_backend *find_backend(const char *name, int *rc)
{
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        if (strcmp(name, backends[i].name) == 0) {
            return backends[i].find(rc);
        }
    }
    *rc = FAIL(MOE_E_ARG, "no back end is called \"%s\" (there are host and cuda)", name);
    return NULL;
}

/* life */

static int make(const char *name, cudaStream_t stream, bool borrowed, moe_device_t **out)
{
    *out = NULL;
    if (name == NULL) {
        return FAIL(MOE_E_ARG, "the name of the back end is NULL");
    }
    int rc = 0;
    const struct moe_backend *backend = find_backend(name, &rc);
    if (backend == NULL) {
        return rc;
    }
    moe_device_t *device = calloc(1, sizeof(*device));
    if (device == NULL) {
        return FAIL(MOE_E_NOMEM, "a device");
    }
    device->first_layer = device->last_layer = MOE_NO_LAYER;
    device->backend = backend;
    device->stream = stream;
    device->borrowed = borrowed;
    char why[128] = "";
    rc = backend->open(device, why, sizeof(why));
    if (rc != 0) {
        free(device);
        return FAIL(rc, "a device of the %s back end: %s", backend->name, why);
    }
    rc = moe_memory_new(device);
    if (rc != 0) {
        backend->close(device);
        free(device);
        return rc;
    }
    *out = device;
    return 0;
}

int moe_device_new(const char *name, moe_device_t **out)
{
    return make(name, NULL, false, out);
}

int moe_device_new_on(const char *name, cudaStream_t stream, moe_device_t **out)
{
    return make(name, stream, true, out);
}

int moe_device_new_host(moe_device_t **out)
{
    return moe_device_new("host", out);
}

void moe_device_destroy(moe_device_t **device)
{
    if (*device != NULL) {
        cudaStreamSynchronize((*device)->stream);
        moe_memory_destroy(*device);
        (*device)->backend->close(*device);
        free(*device);
        *device = NULL;
    }
}

const char *moe_device_name(const moe_device_t *device)
{
    return device->backend->name;
}

cudaStream_t moe_device_stream(const moe_device_t *device)
{
    return device->stream;
}

const struct moe_ops *moe_device_ops(const moe_device_t *device)
{
    return device->backend->ops();
}

/* the stream */

int moe_device_copy(moe_device_t *device, void *to, const void *from, size_t bytes)
{
    if (bytes == 0) {
        return 0;
    }
    cudaError_t err = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, device->stream);
    return err == cudaSuccess ? 0 : FAIL(MOE_E_DEVICE, "cudaMemcpyAsync: %s", cudaGetErrorString(err));
}

void moe_device_at(moe_device_t *device, int32_t rank, uint32_t layer)
{
    bool any = device->first_layer != MOE_NO_LAYER;
    device->rank = rank;
    device->last_layer = !any || layer > device->last_layer ? layer : device->last_layer;
    device->first_layer = !any || layer < device->first_layer ? layer : device->first_layer;
}

int moe_device_sync(moe_device_t *device)
{
    int found = 0;
    cudaError_t err = device->backend->sync(device, &found);
    uint32_t first = device->first_layer, last = device->last_layer;
    device->first_layer = device->last_layer = MOE_NO_LAYER;
    if (err != cudaSuccess) {
        return FAIL(MOE_E_DEVICE, "cudaStreamSynchronize: %s", cudaGetErrorString(err));
    }
    if (found == 0) {
        return 0;
    }
    int32_t rank = first != MOE_NO_LAYER ? device->rank : MOE_NO_RANK;
    return first == last
               ? moe_fail(found, rank, first, "found while the stream ran")
               : moe_fail_layers(found, rank, "found while the stream ran, in one of the layers %u to %u", first, last);
}
