/*
 * node_gpu.c: facts of the GPUs by NVML, which is loaded when it is there.
 *
 * The few declarations of NVML that are needed stand here: its header comes with the CUDA toolkit, and its interface is
 * stable by name and version (NVML API reference). NVML tells only of Xid errors that come while one waits for them, so
 * this file waits for a moment; earlier ones are in the kernel's log.
 */
#include "daemon/agent/node_facts.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

#define GPUS_MAX  64u
#define LINKS_MAX 18u /* NVLinks of one GPU */
#define XID_MS    300u
#define XIDS_MAX  8

enum {
    NVML_SUCCESS = 0,
    NVML_GPU_IS_LOST = 15,
    NVML_RESET_REQUIRED = 16,
    NVML_UNCORRECTED = 1, /* memory errors */
    NVML_VOLATILE = 0,    /* counted since the driver was loaded */
    NVML_XID = 8,
    NVML_SLOWED = 0x8 | 0x40 | 0x80, /* slowed by hardware: slowdown, heat, power brake */
    NVML_LINK_REPLAY = 0,
    NVML_LINK_RECOVERY = 1,
};

typedef void *device_t;

struct event {
    device_t device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

static struct {
    int (*init)(void);
    int (*count)(unsigned *);
    int (*handle)(unsigned, device_t *);
    int (*ecc)(device_t, int, int, unsigned long long *);
    int (*throttle)(device_t, unsigned long long *);
    int (*link_state)(device_t, unsigned, int *);
    int (*link_errors)(device_t, unsigned, int, unsigned long long *);
    int (*events)(void **);
    int (*watch)(device_t, unsigned long long, void *);
    int (*wait)(void *, struct event *, unsigned);
} nvml;

static bool load(void *library)
{
    const struct {
        void *to;
        const char *name;
    } all[] = {
        {&nvml.init, "nvmlInit_v2"},
        {&nvml.count, "nvmlDeviceGetCount_v2"},
        {&nvml.handle, "nvmlDeviceGetHandleByIndex_v2"},
        {&nvml.ecc, "nvmlDeviceGetTotalEccErrors"},
        {&nvml.throttle, "nvmlDeviceGetCurrentClocksThrottleReasons"},
        {&nvml.link_state, "nvmlDeviceGetNvLinkState"},
        {&nvml.link_errors, "nvmlDeviceGetNvLinkErrorCounter"},
        {&nvml.events, "nvmlEventSetCreate"},
        {&nvml.watch, "nvmlDeviceRegisterEvents"},
        {&nvml.wait, "nvmlEventSetWait_v2"},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        *(void **)all[i].to = dlsym(library, all[i].name);
    }
    return nvml.init && nvml.count && nvml.handle;
}

static void tell_links(const struct roll_node *n, unsigned gpu, device_t device)
{
    unsigned bad = 0, first = 0;
    for (unsigned i = 0; nvml.link_state && nvml.link_errors && i < LINKS_MAX; i++) {
        int up = 0;
        unsigned long long replay = 0, recovery = 0;
        if (nvml.link_state(device, i, &up) != NVML_SUCCESS || !up) {
            continue;
        }
        (void)nvml.link_errors(device, i, NVML_LINK_REPLAY, &replay);
        (void)nvml.link_errors(device, i, NVML_LINK_RECOVERY, &recovery);
        if (replay + recovery > 0) {
            first = bad++ == 0 ? i : first;
        }
    }
    if (bad > 0) {
        roll_node_say(n, ROLL_FACT_GPU_NVLINK, "GPU %u: %u NVLink%s with replays or recoveries (the first: %u)", gpu,
                      bad, bad == 1 ? "" : "s", first);
    }
}

static void tell_one(const struct roll_node *n, unsigned gpu, device_t device)
{
    unsigned long long errors = 0, why = 0;
    if (nvml.ecc && nvml.ecc(device, NVML_UNCORRECTED, NVML_VOLATILE, &errors) == NVML_SUCCESS && errors > 0) {
        roll_node_say(n, ROLL_FACT_GPU_ECC, "GPU %u: %llu uncorrected memory errors", gpu, errors);
    }
    if (nvml.throttle && nvml.throttle(device, &why) == NVML_SUCCESS && (why & NVML_SLOWED) != 0) {
        roll_node_say(n, ROLL_FACT_GPU_SLOW, "GPU %u is slowed down by its hardware (%s)", gpu,
                      (why & 0x40)   ? "heat"
                      : (why & 0x80) ? "power brake"
                                     : "slowdown");
    }
    tell_links(n, gpu, device);
}

static void tell_lost(const struct roll_node *n, unsigned gpu, int error)
{
    if (error == NVML_GPU_IS_LOST) {
        roll_node_say(n, ROLL_FACT_GPU_LOST, "GPU %u has fallen off the bus", gpu);
    } else if (error == NVML_RESET_REQUIRED) {
        roll_node_say(n, ROLL_FACT_GPU_LOST, "GPU %u needs a reset", gpu);
    }
}

static void tell_xids(const struct roll_node *n, const device_t *device, unsigned gpus)
{
    void *set = NULL;
    if (!nvml.events || !nvml.watch || !nvml.wait || nvml.events(&set) != NVML_SUCCESS) {
        return;
    }
    for (unsigned i = 0; i < gpus; i++) {
        if (device[i]) {
            (void)nvml.watch(device[i], NVML_XID, set);
        }
    }
    struct event event;
    for (int k = 0; k < XIDS_MAX && nvml.wait(set, &event, k == 0 ? XID_MS : 0) == NVML_SUCCESS; k++) {
        for (unsigned i = 0; i < gpus; i++) {
            if (device[i] && device[i] == event.device && event.type == NVML_XID) {
                roll_node_say(n, ROLL_FACT_GPU_XID, "GPU %u: Xid %llu", i, event.data);
            }
        }
    }
}

void roll_gpu_tell(const struct roll_node *n)
{
    device_t device[GPUS_MAX] = {NULL};
    unsigned gpus = 0;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        roll_node_say(n, ROLL_FACT_UNKNOWN, "the GPUs cannot be asked (no libnvidia-ml.so.1)");
        return;
    }
    int error = load(library) ? nvml.init() : -1;
    if (error == NVML_SUCCESS) {
        error = nvml.count(&gpus);
    }
    if (error != NVML_SUCCESS) {
        roll_node_say(n, ROLL_FACT_UNKNOWN, "the GPUs cannot be asked (NVML error %d)", error);
        return; /* NVML is not closed: the driver's state is not known, and the process ends soon */
    }
    gpus = gpus < GPUS_MAX ? gpus : GPUS_MAX;
    for (unsigned i = 0; i < gpus; i++) {
        error = nvml.handle(i, &device[i]);
        if (error != NVML_SUCCESS) {
            device[i] = NULL;
            tell_lost(n, i, error);
            continue;
        }
        unsigned long long ignored;
        error = nvml.throttle ? nvml.throttle(device[i], &ignored) : NVML_SUCCESS;
        if (error == NVML_GPU_IS_LOST || error == NVML_RESET_REQUIRED) {
            tell_lost(n, i, error);
            device[i] = NULL;
        } else {
            tell_one(n, i, device[i]);
        }
    }
    tell_xids(n, device, gpus);
}
