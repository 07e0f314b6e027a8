/* gate.h: what the tests of streams share: a gate that holds a stream until it is opened, and the check of a call. */
#ifndef ROLL_TESTS_HOSTNCCL_CUDA_GATE_H
#define ROLL_TESTS_HOSTNCCL_CUDA_GATE_H

/* cmocka wants these first. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#define assert_cuda(expected, call) assert_string_equal(cudaGetErrorName(expected), cudaGetErrorName(call))
#define assert_success(call)        assert_cuda(cudaSuccess, call)

/* Blocks its stream from gate_close until gate_open. */
struct gate {
    sem_t sem;
};

static inline void gate_hold(void *gate)
{
    while (sem_wait(&((struct gate *)gate)->sem)) {
    }
}

static inline void gate_close(struct gate *gate, cudaStream_t stream)
{
    sem_init(&gate->sem, 0, 0);
    assert_success(cudaLaunchHostFunc(stream, gate_hold, gate));
}

static inline void gate_open(struct gate *gate)
{
    sem_post(&gate->sem);
}

static inline void bump(void *counter)
{
    atomic_fetch_add((atomic_int *)counter, 1);
}

static inline uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

static inline void sleep_ms(unsigned int ms)
{
    struct timespec span = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&span, NULL);
}

/* Every test starts and ends with nothing running and no error left over. */
static inline int nothing_left(void **state)
{
    (void)state;
    cudaDeviceSynchronize();
    cudaGetLastError();
    return 0;
}

#endif
