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

int cudaEventRecord(void *event, void *stream)
{
    (void)event;
    (void)stream;
    return 35;
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
