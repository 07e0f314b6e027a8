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
 * Without a file the GPUs are those of the CUDA runtime of this process (hostcuda), if it has one: their names, places
 * on the bus and memory, of which as much is used as the processes of the rehearsal use (shared.c). So a framework that
 * asks NVML and the runtime hears the same, and the daemon, which has no runtime, hears of no GPU.
 *
 * Types and values are those of NVML's API reference. The library lies in a folder of its own: a program that found it
 * by accident would believe that there are GPUs.
 */
#include "hostnccl/cuda/private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GPUS_MAX 64u
#define LINKS    18u
#define XIDS     16u
#define API      __attribute__((visibility("default")))

enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16
};

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
    const struct hostcuda_private *runtime; /* whose devices these are; NULL: a file says what there is */
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

/* A GPU as the runtime knows it; the runtime's last error stays. */
static int about_of(const void *device, struct hostcuda_about *about)
{
    if (!nvml.runtime) {
        return NOT_SUPPORTED;
    }
    nvml.runtime->quiet(true);
    int error = (int)nvml.runtime->physical_about((int)((const struct gpu *)device - nvml.gpu), about);
    nvml.runtime->quiet(false);
    return error ? INVALID_ARGUMENT : SUCCESS;
}

API int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
    const char *path = getenv("HOSTCUDA_NVML");
    char line[256], word[16], number[3][32];
    int error = SUCCESS;
    FILE *f = path ? fopen(path, "re") : NULL;
    memset(&nvml, 0, sizeof(nvml));
    nvml.runtime = path ? NULL : hostcuda_find_loaded();
    struct hostcuda_about about;
    while (nvml.runtime && nvml.gpus < GPUS_MAX && !about_of(&nvml.gpu[nvml.gpus], &about)) {
        nvml.gpus++;
    }
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

/* what frameworks ask */

API int nvmlInit(void);
int nvmlInit(void)
{
    return nvmlInit_v2();
}

API int nvmlInitWithFlags(unsigned flags);
int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return nvmlInit_v2();
}

API const char *nvmlErrorString(int error);
const char *nvmlErrorString(int error)
{
    static const struct {
        int error;
        const char *text;
    } texts[] = {
        {SUCCESS, "Success"},         {INVALID_ARGUMENT, "Invalid Argument"},   {NOT_SUPPORTED, "Not Supported"},
        {NOT_FOUND, "Not Found"},     {INSUFFICIENT_SIZE, "Insufficient Size"}, {TIMEOUT, "Timeout"},
        {GPU_IS_LOST, "GPU is lost"}, {RESET_REQUIRED, "GPU requires reset"}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        if (texts[i].error == error) {
            return texts[i].text;
        }
    }
    return "Unknown Error";
}

API int nvmlSystemGetCudaDriverVersion(int *version);
int nvmlSystemGetCudaDriverVersion(int *version)
{
    return !version        ? INVALID_ARGUMENT
           : !nvml.runtime ? NOT_SUPPORTED
                           : (int)nvml.runtime->cudaRuntimeGetVersion(version);
}

API int nvmlSystemGetCudaDriverVersion_v2(int *version);
int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

/* Copies a text with its end. */
static int give(char *out, unsigned size, const char *text)
{
    size_t length = strlen(text) + 1;
    if (!out) {
        return INVALID_ARGUMENT;
    }
    if (length > size) {
        return INSUFFICIENT_SIZE;
    }
    memcpy(out, text, length);
    return SUCCESS;
}

API int nvmlSystemGetDriverVersion(char *out, unsigned size);
int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    return give(out, size, "0.0.0");
}

API int nvmlDeviceGetCount(unsigned *count);
int nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

API int nvmlDeviceGetHandleByIndex(unsigned index, void **device);
int nvmlDeviceGetHandleByIndex(unsigned index, void **device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

API int nvmlDeviceGetIndex(void *device, unsigned *index);
int nvmlDeviceGetIndex(void *device, unsigned *index)
{
    *index = (unsigned)((struct gpu *)device - nvml.gpu);
    return SUCCESS;
}

API int nvmlDeviceGetMinorNumber(void *device, unsigned *number);
int nvmlDeviceGetMinorNumber(void *device, unsigned *number)
{
    return nvmlDeviceGetIndex(device, number);
}

API int nvmlDeviceGetName(void *device, char *out, unsigned size);
int nvmlDeviceGetName(void *device, char *out, unsigned size)
{
    struct hostcuda_about about;
    int error = about_of(device, &about);
    return error ? error : give(out, size, about.name);
}

/* "GPU-" and the runtime's number of the device, as the vendor's. */
static void write_uuid(const struct hostcuda_about *about, char text[48])
{
    char *at = text + sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++) {
        at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (unsigned char)about->uuid[i]);
    }
}

API int nvmlDeviceGetUUID(void *device, char *out, unsigned size);
int nvmlDeviceGetUUID(void *device, char *out, unsigned size)
{
    struct hostcuda_about about;
    char text[48];
    int error = about_of(device, &about);
    if (!error) {
        write_uuid(&about, text);
    }
    return error ? error : give(out, size, text);
}

API int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    char text[48];
    for (unsigned i = 0; uuid && i < nvml.gpus; i++) {
        if (!nvmlDeviceGetUUID(&nvml.gpu[i], text, sizeof(text)) && strcmp(text, uuid) == 0) {
            *device = &nvml.gpu[i];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

/* The domain may be written with 4 or with 8 digits. */
API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device)
{
    unsigned domain, number, slot, own_domain, own, own_slot;
    struct hostcuda_about about;
    for (unsigned i = 0; bus && sscanf(bus, "%x:%x:%x", &domain, &number, &slot) == 3 && i < nvml.gpus; i++) {
        if (!about_of(&nvml.gpu[i], &about) && sscanf(about.bus, "%x:%x:%x", &own_domain, &own, &own_slot) == 3 &&
            domain == own_domain && number == own && slot == own_slot) {
            *device = &nvml.gpu[i];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
};

_Static_assert(sizeof(struct pci) == 68, "as NVML's bindings for Python have it");

API int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci);
int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci)
{
    struct hostcuda_about about;
    int error = pci ? about_of(device, &about) : INVALID_ARGUMENT;
    if (!error) {
        *pci = (struct pci){.domain = 0};
        (void)sscanf(about.bus, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
        snprintf(pci->text, sizeof(pci->text), "%s", about.bus);
        snprintf(pci->legacy, sizeof(pci->legacy), "%.12s", about.bus + 4);
    }
    return error;
}

struct memory {
    unsigned long long total, free, used;
};

API int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory);
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
    struct hostcuda_about about;
    int error = memory ? about_of(device, &about) : INVALID_ARGUMENT;
    if (!error) {
        size_t used = about.used_bytes + about.others_bytes;
        used = used < about.total_bytes ? used : about.total_bytes;
        *memory = (struct memory){about.total_bytes, about.total_bytes - used, used};
    }
    return error;
}

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

_Static_assert(sizeof(struct memory) == 24 && sizeof(struct memory_v2) == 40, "likewise");

API int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory);
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory)
{
    struct memory first;
    int error = memory ? nvmlDeviceGetMemoryInfo(device, &first) : INVALID_ARGUMENT;
    if (!error) {
        memory->total = first.total;
        memory->reserved = 0;
        memory->free = first.free;
        memory->used = first.used;
    }
    return error;
}

API int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor);
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    struct hostcuda_about about;
    int error = major && minor ? about_of(device, &about) : INVALID_ARGUMENT;
    if (!error) {
        *major = about.major;
        *minor = about.minor;
    }
    return error;
}

/* This process and the others of the rehearsal that have memory there. Elements have 16 bytes, and 24 since version 2.
 */
static int processes(void *device, unsigned *count, char *list, size_t element)
{
    enum { USERS_MAX = 1024 };
    static __thread struct hostcuda_user users[USERS_MAX];
    struct hostcuda_about about;
    int error = count ? about_of(device, &about) : INVALID_ARGUMENT;
    if (error) {
        return error;
    }
    size_t found = 0, room = *count;
    if (about.used_bytes) {
        users[found++] = (struct hostcuda_user){.pid = (int)getpid(), .used_bytes = about.used_bytes};
    }
    found += nvml.runtime->users(about.physical, users + found, USERS_MAX - found);
    found = found < USERS_MAX ? found : USERS_MAX;
    *count = (unsigned)found;
    if (room < found) {
        return INSUFFICIENT_SIZE;
    }
    for (size_t i = 0; list && i < found; i++, list += element) {
        unsigned pid = (unsigned)users[i].pid;
        unsigned long long used = users[i].used_bytes;
        memset(list, 0, element);
        memcpy(list, &pid, sizeof(pid));
        memcpy(list + 8, &used, sizeof(used));
        memset(list + 16, 0xff, element - 16); /* no part of a GPU */
    }
    return SUCCESS;
}

API int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *list);
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *list)
{
    return processes(device, count, list, 16);
}

API int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, void *list);
int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, void *list)
{
    return processes(device, count, list, 24);
}

API int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *list);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *list)
{
    return processes(device, count, list, 24);
}

/* All devices reach each other, as the runtime says. */
API int nvmlDeviceGetP2PStatus(void *device, void *peer, int index, int *status);
int nvmlDeviceGetP2PStatus(void *device, void *peer, int index, int *status)
{
    (void)index;
    if (!device || !peer || !status) {
        return INVALID_ARGUMENT;
    }
    *status = 0;
    return SUCCESS;
}

/* Functions that frameworks look up together with the others; there are no links, fabrics, sensors or parts here. */
#define UNSUPPORTED(name)                                                                                              \
    API int name(void);                                                                                                \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        return NOT_SUPPORTED;                                                                                          \
    }
UNSUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType)
UNSUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
UNSUPPORTED(nvmlDeviceGetGpuFabricInfo)
UNSUPPORTED(nvmlDeviceGetGpuFabricInfoV)
UNSUPPORTED(nvmlDeviceGetMigMode)
UNSUPPORTED(nvmlDeviceGetUtilizationRates)
UNSUPPORTED(nvmlDeviceGetTemperature)
UNSUPPORTED(nvmlDeviceGetPowerUsage)
UNSUPPORTED(nvmlDeviceGetClockInfo)
