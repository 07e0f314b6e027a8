/* fakeother.c: the few functions of the CUDA runtime and of moe_core that the interposer stands before; each returns a
 * number that tells that it was reached. Compiled twice, as libcudart.so.13 and as libmoe_core.so. */
#include <stdint.h>

#ifdef FAKE_CUDART
#include "tests/interposer/fakecuda.h"

/* Through the PLT, so that the preload sees the driver's functions called by the runtime. */
#define FAKE_RUNTIME(name, params, args, driver)                                                                       \
    int cuda##name params                                                                                              \
    {                                                                                                                  \
        return driver args;                                                                                            \
    }
FAKE_GRAPH_FUNCTIONS(FAKE_RUNTIME)

int cudaStreamSynchronize(void *stream);
int cudaStreamSynchronize_ptsz(void *stream);
int cudaEventSynchronize(void *event);
int cudaDeviceSynchronize(void);
int cudaEventRecord(void *event, void *stream);
int cudaFree(void *memory);
int cudaFreeHost(void *memory);
int cudaMemcpy(void *to, const void *from, unsigned long bytes, int kind);
int cudaMemcpy_ptds(void *to, const void *from, unsigned long bytes, int kind);
int cudaMemcpyAsync(void *to, const void *from, unsigned long bytes, int kind, void *stream);
int cudaMemcpyAsync_ptsz(void *to, const void *from, unsigned long bytes, int kind, void *stream);
int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags);
int bare_cudaEventRecordWithFlags(void *event, void *stream, unsigned flags);
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags);
int bare_cudaStreamWaitEvent(void *stream, void *event, unsigned flags);
int cudaEventDestroy(void *event);
int cudaStreamDestroy(void *stream);
int cudaGetDevice(int *device);
int cudaStreamQuery(void *stream);
int bare_cudaStreamQuery(void *stream);
int cudaStreamQuery_ptsz(void *stream);
int cudaEventQuery(void *event);
void fake_set_ready(int now);

static int ready;

void fake_set_ready(int now)
{
    ready = now;
}

int cudaStreamQuery(void *stream)
{
    (void)stream;
    return ready ? 0 : 600;
}

/* For measuring: the same where no preload stands before it. */
int bare_cudaStreamQuery(void *stream)
{
    (void)stream;
    return ready ? 0 : 600;
}

int cudaStreamQuery_ptsz(void *stream)
{
    (void)stream;
    return ready ? 0 : 600;
}

int cudaEventQuery(void *event)
{
    (void)event;
    return ready ? 0 : 600;
}

int cudaStreamSynchronize(void *stream)
{
    (void)stream;
    return 31;
}

int cudaStreamSynchronize_ptsz(void *stream)
{
    (void)stream;
    return 32;
}

int cudaEventSynchronize(void *event)
{
    (void)event;
    return 33;
}

int cudaDeviceSynchronize(void)
{
    return 34;
}

/* One number for each function and its arguments in their order. */
static int told(int which, const void *to, const void *from, unsigned long bytes, int kind, const void *stream)
{
    return (int)((uintptr_t)which + (uintptr_t)to + 2 * (uintptr_t)from + 3 * bytes + 4 * (uintptr_t)(unsigned)kind +
                 5 * (uintptr_t)stream);
}

int cudaFree(void *memory)
{
    return told(40, memory, 0, 0, 0, 0);
}

int cudaFreeHost(void *memory)
{
    return told(41, memory, 0, 0, 0, 0);
}

int cudaMemcpy(void *to, const void *from, unsigned long bytes, int kind)
{
    return told(42, to, from, bytes, kind, 0);
}

int cudaMemcpy_ptds(void *to, const void *from, unsigned long bytes, int kind)
{
    return told(43, to, from, bytes, kind, 0);
}

int cudaMemcpyAsync(void *to, const void *from, unsigned long bytes, int kind, void *stream)
{
    return told(44, to, from, bytes, kind, stream);
}

int cudaMemcpyAsync_ptsz(void *to, const void *from, unsigned long bytes, int kind, void *stream)
{
    return told(45, to, from, bytes, kind, stream);
}

int cudaEventRecord(void *event, void *stream)
{
    (void)event;
    (void)stream;
    return 35;
}

int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags)
{
    (void)event;
    (void)stream;
    (void)flags;
    return 0;
}

/* For measuring: the same where no preload stands before it. */
int bare_cudaEventRecordWithFlags(void *event, void *stream, unsigned flags)
{
    (void)event;
    (void)stream;
    (void)flags;
    return 0;
}

int cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    (void)stream;
    (void)event;
    (void)flags;
    return 0;
}

int bare_cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    (void)stream;
    (void)event;
    (void)flags;
    return 0;
}

int cudaEventDestroy(void *event)
{
    (void)event;
    return 0;
}

int cudaStreamDestroy(void *stream)
{
    (void)stream;
    return 0;
}

int cudaGetDevice(int *device)
{
    *device = 3;
    return 0;
}
#else
void moe_observe(const void *event);
uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard);

void moe_observe(const void *event)
{
    (void)event;
}

uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard)
{
    (void)comm;
    (void)layer;
    (void)hazard;
    return 0x80;
}
#endif
