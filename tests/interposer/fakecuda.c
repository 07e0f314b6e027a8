/* fakecuda.c: libcuda.so.1 for tests: captures, graphs and launches that do nothing but count; handles are used again.
 */
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
static unsigned long long made_of[HANDLES]; /* the capture that a handle's contents came from */

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

/* completion */

#define DEVICE_BIAS 0x100000000000ull /* device addresses differ from host addresses by this */
#define WRITES      4096
#define EVENTS      256

int fake_unsafe, fake_no_wide, fake_events_made;
static struct {
    unsigned long long at, value;
} writes[WRITES];
static int writes_used;
static char *registered;
static struct {
    int recorded, done;
} events[EVENTS];
static __thread int thread_mode;

static int capturing(void)
{
    for (int i = 0; i < STREAMS; i++) {
        if (captured[i].id != 0) {
            return 1;
        }
    }
    return 0;
}

/* Counts a call that CUDA forbids while a capture of global mode is open anywhere, unless the thread has relaxed its
 * own mode. */
static void unsafe(void *stream)
{
    fake_unsafe += (capturing() && thread_mode != 2) || (stream != NULL && capture_of(stream) != NULL);
}

int cuCtxGetDevice(int *device)
{
    *device = 0;
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = attribute == 122 && device == 0 && !fake_no_wide;
    return 0;
}

int cuMemHostRegister_v2(void *at, unsigned long bytes, unsigned flags)
{
    unsafe(NULL);
    registered = at;
    return bytes == 4096 && ((uintptr_t)at & 4095) == 0 && flags == 3 ? 0 : 1;
}

int cuMemHostGetDevicePointer_v2(unsigned long long *out, void *at, unsigned flags)
{
    *out = (uintptr_t)at + DEVICE_BIAS;
    return at == registered && flags == 0 ? 0 : 1;
}

static int issue(unsigned long long at, unsigned long long value)
{
    unsigned long long place = at - DEVICE_BIAS - (uintptr_t)registered;
    if (place >= 4096 || place % 8 != 0 || writes_used == WRITES) {
        return 1;
    }
    writes[writes_used].at = at - DEVICE_BIAS;
    writes[writes_used++].value = value;
    return 0;
}

int cuStreamWriteValue64_v2(void *stream, unsigned long long at, unsigned long long value, unsigned flags)
{
    (void)flags;
    fake_unsafe += capture_of(stream) != NULL || ((uintptr_t)stream <= 1 && capturing());
    return issue(at, value);
}

int cuEventCreate(void **event, unsigned flags)
{
    unsafe(NULL);
    *event = &events[fake_events_made++];
    return flags == 2 && fake_events_made < EVENTS ? 0 : 1;
}

int cuEventRecord(void *event, void *stream)
{
    int i = (int)((char *)event - (char *)events) / (int)sizeof(events[0]);
    unsafe(stream);
    events[i].recorded = 1;
    events[i].done = 0;
    return 0;
}

int cuEventQuery(void *event)
{
    int i = (int)((char *)event - (char *)events) / (int)sizeof(events[0]);
    unsafe(NULL);
    return events[i].done ? 0 : 600;
}

int cuThreadExchangeStreamCaptureMode(int *wanted)
{
    int before = thread_mode;
    thread_mode = *wanted;
    *wanted = before;
    return 0;
}

int cuModuleLoadData(void **module, const void *image)
{
    unsafe(NULL);
    *module = registered;
    return strstr(image, ".entry roll_count") != NULL ? 0 : 1;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = &writes_used;
    return module == registered && strcmp(name, "roll_count") == 0 ? 0 : 1;
}

/* A node of the capture: at each launch the word grows by one. */
static struct {
    unsigned long long id;
    uint64_t *word;
} counting[STREAMS];
static int countings;

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra)
{
    unsigned long long *id = capture_of(stream), at = *(unsigned long long *)arguments[0];
    if (function != &writes_used || gx * gy * gz * bx * by * bz != 1 || shared != 0 || extra != NULL || id == NULL) {
        return 1;
    }
    counting[countings].id = *id;
    counting[countings++].word = (uint64_t *)(uintptr_t)(at - DEVICE_BIAS);
    return 0;
}

void fake_run(void)
{
    for (int i = 0; i < writes_used; i++) {
        __atomic_store_n((uint64_t *)(uintptr_t)writes[i].at, writes[i].value, __ATOMIC_RELEASE);
    }
    writes_used = 0;
    for (int i = 0; i < EVENTS; i++) {
        events[i].done = events[i].recorded;
    }
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
    int result = new_handle(graph);
    made_of[(char *)*graph - handle] = ended;
    return result;
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
    (void)flags;
    int result = new_handle(exec);
    made_of[(char *)*exec - handle] = made_of[(char *)graph - handle];
    return result;
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
    (void)stream;
    fake_launches++;
    for (int i = 0; i < countings; i++) {
        if (counting[i].id == made_of[(char *)exec - handle]) {
            ++*counting[i].word;
        }
    }
    return fake_launch_error;
}

/* The form of cuGraphLaunch that cuGetProcAddress gives and that the library does not export, as the real driver has it
 * for some functions. */
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
