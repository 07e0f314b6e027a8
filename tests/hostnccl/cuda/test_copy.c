/* test_copy.c: copies and fills: every direction, when they return, and what they refuse. */
#include "tests/hostnccl/cuda/gate.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES = 1000 };

static struct {
    unsigned char *device, *device2, *pinned, *managed, *plain, *plain2;
} mem;

static int make(void **state)
{
    nothing_left(state);
    assert_success(cudaMalloc((void **)&mem.device, BYTES));
    assert_success(cudaSetDevice(1));
    assert_success(cudaMalloc((void **)&mem.device2, BYTES));
    assert_success(cudaSetDevice(0));
    assert_success(cudaMallocHost((void **)&mem.pinned, BYTES));
    assert_success(cudaMallocManaged((void **)&mem.managed, BYTES, cudaMemAttachGlobal));
    mem.plain = malloc(BYTES);
    mem.plain2 = malloc(BYTES);
    for (int i = 0; i < BYTES; i++) {
        mem.plain[i] = (unsigned char)(i * 7 + 1);
    }
    return 0;
}

static int unmake(void **state)
{
    assert_success(cudaFree(mem.device));
    assert_success(cudaFree(mem.device2));
    assert_success(cudaFreeHost(mem.pinned));
    assert_success(cudaFree(mem.managed));
    free(mem.plain);
    free(mem.plain2);
    return nothing_left(state);
}

static void test_bytes_survive_every_direction(void **state)
{
    (void)state;
    assert_success(cudaMemcpy(mem.device, mem.plain, BYTES, cudaMemcpyHostToDevice));
    assert_success(cudaMemcpy(mem.managed, mem.device, BYTES, cudaMemcpyDeviceToDevice));
    assert_success(cudaMemcpyPeer(mem.device2, 1, mem.managed, 0, BYTES));
    assert_success(cudaMemcpy(mem.pinned, mem.device2, BYTES, cudaMemcpyDeviceToHost));
    assert_success(cudaMemcpy(mem.plain2, mem.pinned, BYTES, cudaMemcpyHostToHost));
    assert_memory_equal(mem.plain, mem.plain2, BYTES);
    memset(mem.plain2, 0, BYTES);
    assert_success(cudaMemcpy(mem.device2, mem.device, BYTES, cudaMemcpyDefault));
    assert_success(cudaMemcpy(mem.plain2, mem.device2, BYTES, cudaMemcpyDefault));
    assert_memory_equal(mem.plain, mem.plain2, BYTES);
}

static void test_async_copies_follow_their_stream(void **state)
{
    (void)state;
    cudaStream_t stream;
    struct gate gate;
    assert_success(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    memset(mem.pinned, 1, BYTES);
    memset(mem.managed, 0, BYTES);
    gate_close(&gate, stream);
    assert_success(cudaMemcpyAsync(mem.managed, mem.pinned, BYTES, cudaMemcpyHostToDevice, stream));
    sleep_ms(20);
    assert_int_equal(mem.managed[0], 0);
    mem.pinned[0] = 2; /* pinned memory is read when the copy runs, not when it is queued */
    gate_open(&gate);
    assert_success(cudaStreamSynchronize(stream));
    assert_int_equal(mem.managed[0], 2);
    assert_int_equal(mem.managed[1], 1);
    assert_success(cudaStreamDestroy(stream));
}

static void test_pageable_source_may_be_reused_at_once(void **state)
{
    (void)state;
    cudaStream_t stream;
    struct gate gate;
    unsigned char first = mem.plain[0];
    assert_success(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    gate_close(&gate, stream);
    assert_success(cudaMemcpyAsync(mem.device, mem.plain, BYTES, cudaMemcpyHostToDevice, stream));
    mem.plain[0] = (unsigned char)(first + 1);
    gate_open(&gate);
    assert_success(cudaMemcpyAsync(mem.plain2, mem.device, BYTES, cudaMemcpyDeviceToHost, stream));
    assert_int_equal(mem.plain2[0], first); /* a pageable target is complete when the call returns */
    assert_success(cudaStreamSynchronize(stream));
    assert_success(cudaStreamDestroy(stream));
}

static void test_synchronous_copy_waits_for_blocking_streams(void **state)
{
    (void)state;
    cudaStream_t stream;
    assert_success(cudaStreamCreate(&stream));
    for (int i = 1; i <= 100; i++) {
        assert_success(cudaMemsetAsync(mem.device, i, BYTES, stream));
    }
    assert_success(cudaMemcpy(mem.plain2, mem.device, BYTES, cudaMemcpyDeviceToHost));
    assert_int_equal(mem.plain2[0], 100);
    assert_int_equal(mem.plain2[BYTES - 1], 100);
    assert_success(cudaStreamDestroy(stream));
}

static void test_copies_within_device_memory_do_not_wait(void **state)
{
    (void)state;
    cudaStream_t stream;
    struct gate gate;
    assert_success(cudaMemcpy(mem.device, mem.plain, BYTES, cudaMemcpyHostToDevice));
    assert_success(cudaStreamCreate(&stream));
    gate_close(&gate, stream);
    uint64_t before = now_ms();
    assert_success(cudaMemcpy(mem.device2, mem.device, BYTES, cudaMemcpyDeviceToDevice));
    assert_success(cudaMemset(mem.device, 0, BYTES));
    assert_true(now_ms() - before < 200000); /* the wait has an end */
    gate_open(&gate);
    assert_success(cudaMemcpy(mem.plain2, mem.device2, BYTES, cudaMemcpyDeviceToHost));
    assert_memory_equal(mem.plain, mem.plain2, BYTES);
    assert_success(cudaStreamDestroy(stream));
}

static void test_two_dimensions_touch_only_the_rectangle(void **state)
{
    (void)state;
    enum { WIDTH = 30, HEIGHT = 9, SRC_PITCH = 40, DST_PITCH = 100 };
    assert_success(cudaMemset(mem.device, 9, BYTES));
    assert_success(cudaMemcpy2D(mem.device, DST_PITCH, mem.plain, SRC_PITCH, WIDTH, HEIGHT, cudaMemcpyHostToDevice));
    assert_success(cudaMemcpy(mem.plain2, mem.device, BYTES, cudaMemcpyDeviceToHost));
    for (int i = 0; i < BYTES; i++) {
        int row = i / DST_PITCH, column = i % DST_PITCH;
        bool is_inside = row < HEIGHT && column < WIDTH;
        assert_int_equal(mem.plain2[i], is_inside ? mem.plain[row * SRC_PITCH + column] : 9);
    }
    assert_success(cudaMemset2D(mem.device, DST_PITCH, 4, 1, 10));
    assert_success(cudaMemcpy(mem.plain2, mem.device, BYTES, cudaMemcpyDeviceToHost));
    for (int row = 0; row < 10; row++) {
        assert_int_equal(mem.plain2[row * DST_PITCH], 4);
        assert_int_not_equal(mem.plain2[row * DST_PITCH + 99], 4);
    }
    assert_cuda(cudaErrorInvalidPitchValue,
                cudaMemcpy2D(mem.device, WIDTH - 1, mem.plain, SRC_PITCH, WIDTH, 2, cudaMemcpyHostToDevice));
    assert_cuda(cudaErrorInvalidValue,
                cudaMemcpy2D(mem.device, DST_PITCH, mem.plain, SRC_PITCH, WIDTH, 12, cudaMemcpyHostToDevice));
    assert_success(cudaMemcpy2D(mem.device, DST_PITCH, mem.plain, SRC_PITCH, WIDTH, 0, cudaMemcpyHostToDevice));
}

static void test_wrong_copies_are_refused(void **state)
{
    (void)state;
    assert_cuda(cudaErrorInvalidValue, cudaMemcpy(mem.device, mem.plain, BYTES + 1, cudaMemcpyHostToDevice));
    assert_cuda(cudaErrorInvalidValue, cudaMemcpy(mem.plain, mem.plain2, 8, cudaMemcpyHostToDevice));
    assert_cuda(cudaErrorInvalidValue, cudaMemcpy(mem.plain, mem.plain2, 8, cudaMemcpyDeviceToHost));
    assert_cuda(cudaErrorInvalidValue, cudaMemcpy(mem.plain, mem.device, 8, cudaMemcpyHostToHost));
    assert_cuda(cudaErrorInvalidValue, cudaMemcpy(NULL, mem.device, 8, cudaMemcpyDeviceToHost));
    assert_cuda(cudaErrorInvalidMemcpyDirection, cudaMemcpy(mem.plain, mem.device, 8, (enum cudaMemcpyKind)9));
    assert_cuda(cudaErrorInvalidValue, cudaMemset(mem.plain, 0, 8));
    assert_cuda(cudaErrorInvalidValue, cudaMemset(mem.device, 0, BYTES + 1));
    assert_cuda(cudaErrorInvalidDevice, cudaMemcpyPeer(mem.device, 0, mem.device2, 99, 8));
    assert_success(cudaMemcpy(mem.device, mem.plain, 0, cudaMemcpyHostToDevice));
    assert_success(cudaMemset(mem.device, 0, 0));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, unmake)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_bytes_survive_every_direction),
        TEST(test_async_copies_follow_their_stream),
        TEST(test_pageable_source_may_be_reused_at_once),
        TEST(test_synchronous_copy_waits_for_blocking_streams),
        TEST(test_copies_within_device_memory_do_not_wait),
        TEST(test_two_dimensions_touch_only_the_rectangle),
        TEST(test_wrong_copies_are_refused),
    };
    return cmocka_run_group_tests_name("hostcuda.copy", tests, NULL, NULL);
}
