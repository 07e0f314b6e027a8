/* fakecuda.c: libcuda.so.1 for tests: captures, graphs and launches that do nothing but count; handles are used again. */
#include "tests/interposer/fakecuda.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define STREAMS 256
#define HANDLES 512

int fake_queries, fake_launches, fake_launch_error;

static struct {
    void *stream;
    unsigned long long id;
} captured[STREAMS];
static unsigned long long ids;
static char handle[HANDLES], used[HANDLES];

static int new_handle(void **out)
{
    for (int i = 0; i < HANDLES; i++) {
        if (!used[i]) {
            used[i] = 1;
            *out = &handle[i];
            return 0;
        }
    }
    return 2;
}

static int free_handle(void *at)
{
    used[(char *)at - handle] = 0;
    return 0;
}

static unsigned long long *capture_of(void *stream)
{
    for (int i = 0; i < STREAMS; i++) {
        if (captured[i].id != 0 && captured[i].stream == stream) {
            return &captured[i].id;
        }
    }
    return NULL;
}

static int add(void *stream, unsigned long long id)
{
    int at = 0;
    while (captured[at].id != 0) {
        at++;
    }
    captured[at].stream = stream;
    captured[at].id = id;
    return 0;
}

void fake_join(void *stream, void *origin)
{
    add(stream, *capture_of(origin));
}

int cuStreamBeginCapture_v2(void *stream, int mode)
{
    (void)mode;
    return capture_of(stream) != NULL ? 401 : add(stream, ++ids);
}

int cuStreamEndCapture(void *stream, void **graph)
{
    unsigned long long *id = capture_of(stream), ended = id != NULL ? *id : 0;
    if (id == NULL) {
        *graph = NULL;
        return 401;
    }
    for (int i = 0; i < STREAMS; i++) {
        captured[i].id = captured[i].id == ended ? 0 : captured[i].id;
    }
    return new_handle(graph);
}

int cuStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id, void *graph, void *deps, void *count)
{
    (void)graph, (void)deps, (void)count;
    unsigned long long *seen = capture_of(stream);
    fake_queries++;
    if ((uintptr_t)stream <= 1) {
        return 906;
    }
    *status = seen != NULL;
    if (seen != NULL) {
        *id = *seen;
    }
    return 0;
}

int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
    (void)graph, (void)flags;
    return new_handle(exec);
}

int cuGraphClone(void **clone, void *graph)
{
    (void)graph;
    return new_handle(clone);
}

int cuGraphAddChildGraphNode(void **node, void *graph, const void *deps, unsigned long n, void *child)
{
    (void)node, (void)graph, (void)deps, (void)n, (void)child;
    return 0;
}

int cuGraphExecUpdate_v2(void *exec, void *graph, void *result)
{
    (void)exec, (void)graph, (void)result;
    return 0;
}

int cuGraphExecDestroy(void *exec)
{
    return free_handle(exec);
}

int cuGraphDestroy(void *graph)
{
    return free_handle(graph);
}

int cuGraphLaunch(void *exec, void *stream)
{
    (void)exec, (void)stream;
    fake_launches++;
    return fake_launch_error;
}

/* What cuGetProcAddress answers is not what the library exports: as with the real driver, for some functions. */
static int launch_inside(void *exec, void *stream)
{
    (void)exec, (void)stream;
    fake_launches += 100;
    return fake_launch_error;
}

int cuGetProcAddress_v2(const char *symbol, void **answer, int version, unsigned long long flags, void *status)
{
    (void)version, (void)flags, (void)status;
    *answer = strcmp(symbol, "cuGraphLaunch") == 0 ? (void *)launch_inside : NULL;
    return *answer != NULL ? 0 : 500;
}
