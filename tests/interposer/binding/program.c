/*
 * program.c: a program that is not linked with NCCL and reaches it in one of many ways: `binding_program WAY
 * [PATH...]`. Built with and without the dlsym of its own that it brings as a hook (hook.c does that for preloading).
 */
#include "tests/interposer/binding/calls.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what)
{
    fprintf(stderr, "binding_program: %s\n", what);
    return 1;
}

/* Fills the table by looking each name up. Every success must leave no error behind. */
static int look_up(void *handle, struct calls *nccl)
{
    static const char *const names[CALLS_COUNT] = CALLS_NAMES;
    void *found[CALLS_COUNT];
    _Static_assert(sizeof(found) == sizeof(*nccl), "one pointer for each name");
    for (int i = 0; i < CALLS_COUNT; i++) {
        found[i] = dlsym(handle, names[i]);
        if (found[i] == NULL) {
            return fail(dlerror());
        }
        if (dlerror() != NULL) {
            return fail("an error after a lookup that succeeded");
        }
    }
    memcpy(nccl, found, sizeof(found));
    return 0;
}

#define NO_HOST "ncclResetDebugInitInternal"

/* A function that this NCCL lacks is not found, and dlerror names it; a function under its twin's name is NCCL's own.
 */
static int check_absent(void *handle)
{
    /* The first three are newer than the front's release. hostnccl has all that the table has, but one. */
    static const char *const names[] = {
        "ncclCommGrow", "ncclAllReduceConfig", "ncclParamBind", NO_HOST, "ncclNoSuchFunction", "nccl", "n", ""};
    bool is_front = dlsym(handle, "roll_front") != NULL;
    for (size_t i = is_front ? 0 : 3; i < sizeof(names) / sizeof(names[0]); i++) {
        if (is_front && strcmp(names[i], NO_HOST) == 0) {
            continue;
        }
        dlerror();
        if (dlsym(handle, names[i]) != NULL) {
            return fail(names[i]);
        }
        const char *error = dlerror();
        if (error == NULL || strstr(error, names[i]) == NULL) {
            return fail("no dlerror for what is absent");
        }
    }
    return 0;
}

static int call_through(void *handle)
{
    struct calls nccl;
    if (handle == NULL && dlerror() != NULL) {
        return fail("cannot be opened");
    }
    int rc = look_up(handle, &nccl);
    rc = rc != 0 ? rc : check_absent(handle);
    return rc != 0 ? rc : calls_make(&nccl);
}

static int open_and_call(const char *path, int flags)
{
    void *handle = dlopen(path, flags);
    return handle != NULL ? call_through(handle) : fail(dlerror());
}

/* An extension that is linked with NCCL: opened, called, closed again. */
static int extension(const char *path, int flags)
{
    void *handle = dlopen(path, flags);
    int (*calls)(void) = handle != NULL ? (int (*)(void))dlsym(handle, "calls_linked") : NULL;
    if (calls == NULL) {
        return fail(dlerror());
    }
    int rc = calls();
    return rc != 0 ? rc : dlclose(handle);
}

/* A library without NCCL has none of NCCL's functions, although the process has them, and dlerror says so. */
static int check_elsewhere(void)
{
    void *handle = dlopen("libm.so.6", RTLD_NOW);
    dlerror();
    void *found = handle != NULL ? dlsym(handle, "ncclAllReduce") : NULL;
    const char *error = dlerror();
    return found == NULL && error != NULL && strstr(error, "libm.so.6: undefined symbol: ncclAllReduce") != NULL
               ? 0
               : fail("a library without NCCL");
}

static int in_global_scope(const char *path, void *where)
{
    if (where == RTLD_DEFAULT && dlsym(where, "ncclAllReduce") != NULL) {
        return fail("ncclAllReduce is there before any NCCL is");
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (handle == NULL) {
        return fail(dlerror());
    }
    int rc = check_elsewhere();
    return rc != 0 ? rc : call_through(where);
}

/* An NCCL in a local scope is not to be seen by RTLD_DEFAULT. */
static int local_is_hidden(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL || dlsym(RTLD_DEFAULT, "ncclAllReduce") != NULL || dlsym(RTLD_NEXT, "ncclAllReduce") != NULL ||
        dlsym(dlopen(NULL, RTLD_NOW), "ncclAllReduce") != NULL) {
        return fail("a local NCCL is seen in the global scope");
    }
    return call_through(handle);
}

/* Two NCCLs: calls on a communicator must reach the NCCL that made it. The pnccl functions bypass us and tell the two
 * apart. */
static int two(const char *first, const char *second)
{
    void *a = dlopen(first, RTLD_NOW | RTLD_LOCAL), *b = dlopen(second, RTLD_NOW | RTLD_LOCAL);
    if (a == NULL || b == NULL || dlsym(a, "pncclAllReduce") == dlsym(b, "pncclAllReduce")) {
        return fail("not two NCCLs");
    }
    if (dlsym(a, "ncclAllReduce") == dlsym(b, "ncclAllReduce")) {
        return fail("one wrapper for two NCCLs");
    }
    int rc = call_through(a);
    return rc != 0 ? rc : call_through(b);
}

/* Several NCCLs that return their own number: each call, and each public function that it calls, stays in its own NCCL.
 */
typedef ncclResult_t (*bcast_t)(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
typedef ncclResult_t (*reduce_t)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t,
                                 cudaStream_t);
typedef ncclResult_t (*init_t)(ncclComm_t *, int, ncclUniqueId, int);
static int tags(int n, char **paths)
{
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < n; i++) {
            void *library = dlopen(paths[i], RTLD_NOW | RTLD_LOCAL);
            init_t init = library != NULL ? (init_t)dlsym(library, "ncclCommInitRank") : NULL;
            bcast_t bcast = library != NULL ? (bcast_t)dlsym(library, "ncclBcast") : NULL;
            reduce_t reduce = library != NULL ? (reduce_t)dlsym(library, "ncclReduce") : NULL;
            int (*team)(void *, int) =
                library != NULL ? (int (*)(void *, int))dlsym(library, "ncclTeamRankToLsa") : NULL;
            ncclUniqueId id = {{(char)i}};
            ncclComm_t comm;
            if (init == NULL || bcast == NULL || reduce == NULL || team == NULL) {
                return fail(dlerror());
            }
            if (init(&comm, 1, id, 0) != ncclSuccess || (int)bcast(NULL, 1, ncclFloat, 0, comm, NULL) != 3 + i ||
                (int)reduce(NULL, NULL, 1, ncclFloat, ncclSum, 0, comm, NULL) != 3 + i || team(NULL, 10) != 13 + i) {
                return fail("a call went to another NCCL than it was looked up in");
            }
        }
    }
    return 0;
}

/* The twin's names are never wrapped. */
static int twins(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW);
    void *twin = handle != NULL ? dlsym(handle, "pncclAllReduce") : NULL;
    Dl_info info;
    if (twin == NULL || dladdr(twin, &info) == 0 || strstr(info.dli_fname, "libnccl") == NULL) {
        return fail("pncclAllReduce is not NCCL's own");
    }
    return 0;
}

/* A wrapper is called where there is no NCCL: by a program that was linked with weak names. */
extern ncclResult_t ncclAllReduce(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t)
    __attribute__((weak));
static int missing(void)
{
    if (ncclAllReduce == NULL) {
        return fail("the weak name is not bound to the preload");
    }
    for (int i = 0; i < 3; i++) {
        if (ncclAllReduce(NULL, NULL, 0, ncclFloat, ncclSum, NULL, NULL) != ncclSystemError) {
            return fail("no NCCL, and not ncclSystemError");
        }
    }
    return 0;
}

/* A front with nothing behind it. */
static int nothing_behind(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW);
    int version = 0;
    ncclResult_t (*get_version)(int *) =
        handle != NULL ? (ncclResult_t(*)(int *))dlsym(handle, "ncclGetVersion") : NULL;
    if (get_version == NULL || get_version(&version) != ncclSystemError || get_version(&version) != ncclSystemError) {
        return fail("not ncclSystemError from a front with nothing behind it");
    }
    /* The functions that every program calls next, and whose text it prints. */
    static const char *const texts[] = {"ncclGetErrorString", "pncclGetErrorString", "ncclGetLastError"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        const char *(*text)(uintptr_t) = (const char *(*)(uintptr_t))dlsym(handle, texts[i]);
        if (text == NULL || text(0) == NULL || strstr(text(0), "NCCL") == NULL) {
            return fail("no text from a front with nothing behind it");
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "", *path = argc > 2 ? argv[2] : NULL;
    if (strcmp(way, "handle") == 0) {
        return open_and_call(path, RTLD_NOW | RTLD_LOCAL);
    } else if (strcmp(way, "default") == 0) {
        return in_global_scope(path, RTLD_DEFAULT);
    } else if (strcmp(way, "next") == 0) {
        return in_global_scope(path, RTLD_NEXT);
    } else if (strcmp(way, "main") == 0) {
        return in_global_scope(path, dlopen(NULL, RTLD_NOW));
    } else if (strcmp(way, "namespace") == 0) {
        return call_through(dlmopen(LM_ID_NEWLM, path, RTLD_NOW));
    } else if (strcmp(way, "hidden") == 0) {
        return local_is_hidden(path);
    } else if (strcmp(way, "two") == 0 && argc > 3) {
        return two(path, argv[3]);
    } else if (strcmp(way, "tags") == 0) {
        return tags(argc - 2, argv + 2);
    } else if (strcmp(way, "twins") == 0) {
        return twins(path);
    } else if (strcmp(way, "nothing") == 0) {
        return nothing_behind(path);
    } else if (strcmp(way, "missing") == 0) {
        return missing();
    } else if (strcmp(way, "local") == 0) {
        return extension(path, RTLD_NOW | RTLD_LOCAL);
    } else if (strcmp(way, "global") == 0) {
        return extension(path, RTLD_NOW | RTLD_GLOBAL);
    } else if (strcmp(way, "lazy") == 0) {
        return extension(path, RTLD_LAZY | RTLD_LOCAL);
    } else if (strcmp(way, "twice") == 0) {
        int rc = extension(path, RTLD_NOW | RTLD_LOCAL);
        return rc != 0 ? rc : extension(path, RTLD_NOW | RTLD_LOCAL);
    } else if (strcmp(way, "deep-now") == 0) {
        return extension(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    } else if (strcmp(way, "deep-lazy") == 0) {
        return extension(path, RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);
    }
    return fail("unknown way");
}
