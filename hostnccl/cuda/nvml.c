/*
 * nvml.c: a stand-in for libnvidia-ml.so.1: the few functions that rollcall calls; a file says what they answer.
 *
 * HOSTCUDA_NVML names the file, read at nvmlInit_v2; one word and its numbers a line:
 *   gpus N        there are N GPUs (without a file: none)
 *   lost G        GPU G has fallen off the bus
 *   reset G       GPU G needs a reset
 *   ecc G N       GPU G has had N uncorrected memory errors since the driver was loaded
 *   slow G BITS   BITS say why the clocks of GPU G are low (0x40: heat)
 *   nvlink G L N  NVLink L of GPU G is up and has seen N replays
 *   xid G N       GPU G reports the critical Xid N as soon as a program waits for one
 *   fail N        nvmlInit_v2 returns N
 *   hang          nvmlInit_v2 never returns
 * Types and values are those of NVML's API reference. The library lies in a folder of its own: a program that found it
 * by accident would believe that there are GPUs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GPUS_MAX 64u
#define LINKS    18u
#define XIDS     16u
#define API      __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, TIMEOUT = 10, GPU_IS_LOST = 15, RESET_REQUIRED = 16 };

struct gpu {
    int error;
    unsigned long long ecc, slow, link[LINKS];
    int up[LINKS];
};

struct event {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

static struct {
    unsigned gpus;
    struct gpu gpu[GPUS_MAX];
    struct {
        unsigned gpu;
        unsigned long long xid;
    } xid[XIDS];
    unsigned xids, told;
} nvml;

static void play(const char *word, unsigned long long a, unsigned long long b, unsigned long long c)
{
    struct gpu *g = &nvml.gpu[a % GPUS_MAX];
    if (strcmp(word, "gpus") == 0) {
        nvml.gpus = a < GPUS_MAX ? (unsigned)a : GPUS_MAX;
    } else if (strcmp(word, "lost") == 0) {
        g->error = GPU_IS_LOST;
    } else if (strcmp(word, "reset") == 0) {
        g->error = RESET_REQUIRED;
    } else if (strcmp(word, "ecc") == 0) {
        g->ecc = b;
    } else if (strcmp(word, "slow") == 0) {
        g->slow = b;
    } else if (strcmp(word, "nvlink") == 0) {
        g->up[b % LINKS] = 1;
        g->link[b % LINKS] = c;
    } else if (strcmp(word, "xid") == 0 && nvml.xids < XIDS) {
        nvml.xid[nvml.xids].gpu = (unsigned)a;
        nvml.xid[nvml.xids++].xid = b;
    } else if (strcmp(word, "hang") == 0) {
        for (;;) {
            pause();
        }
    }
}

API int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
    const char *path = getenv("HOSTCUDA_NVML");
    char line[256], word[16], number[3][32];
    int error = SUCCESS;
    FILE *f = path ? fopen(path, "re") : NULL;
    memset(&nvml, 0, sizeof(nvml));
    while (f && fgets(line, sizeof(line), f)) {
        unsigned long long n[3] = {0, 0, 0};
        int got = sscanf(line, "%15s %31s %31s %31s", word, number[0], number[1], number[2]);
        for (int i = 0; i < got - 1; i++) {
            n[i] = strtoull(number[i], NULL, 0);
        }
        if (got >= 1 && strcmp(word, "fail") == 0) {
            error = (int)n[0];
        } else if (got >= 1) {
            play(word, n[0], n[1], n[2]);
        }
    }
    if (f) {
        fclose(f);
    }
    return error;
}

API int nvmlShutdown(void);
int nvmlShutdown(void)
{
    return SUCCESS;
}

API int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = nvml.gpus;
    return SUCCESS;
}

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    if (index >= nvml.gpus) {
        return INVALID_ARGUMENT;
    }
    *device = &nvml.gpu[index];
    return SUCCESS;
}

API int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *errors);
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *errors)
{
    const struct gpu *g = device;
    *errors = kind == 1 && counter == 0 ? g->ecc : 0;
    return g->error;
}

API int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *why);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *why)
{
    const struct gpu *g = device;
    *why = g->slow;
    return g->error;
}

API int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *up);
int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *up)
{
    const struct gpu *g = device;
    if (link >= LINKS) {
        return INVALID_ARGUMENT;
    }
    *up = g->up[link];
    return SUCCESS;
}

API int nvmlDeviceGetNvLinkErrorCounter(void *device, unsigned link, int counter, unsigned long long *errors);
int nvmlDeviceGetNvLinkErrorCounter(void *device, unsigned link, int counter, unsigned long long *errors)
{
    const struct gpu *g = device;
    if (link >= LINKS) {
        return INVALID_ARGUMENT;
    }
    *errors = counter == 0 ? g->link[link] : 0;
    return SUCCESS;
}

API int nvmlEventSetCreate(void **set);
int nvmlEventSetCreate(void **set)
{
    *set = &nvml;
    return SUCCESS;
}

API int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set);
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set)
{
    return device && set && (types & 8) != 0 ? SUCCESS : NOT_SUPPORTED;
}

API int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms);
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms)
{
    (void)timeout_ms; /* all events of the file have come already */
    if (!set || nvml.told == nvml.xids) {
        return TIMEOUT;
    }
    *event = (struct event){
        .device = &nvml.gpu[nvml.xid[nvml.told].gpu % GPUS_MAX], .type = 8, .data = nvml.xid[nvml.told].xid};
    nvml.told++;
    return SUCCESS;
}

API int nvmlEventSetFree(void *set);
int nvmlEventSetFree(void *set)
{
    (void)set;
    return SUCCESS;
}
