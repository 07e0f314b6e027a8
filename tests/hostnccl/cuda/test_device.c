/* test_device.c: devices, their properties, peers, errors and versions. */
#include "tests/hostnccl/cuda/gate.h"

#include <cuda_profiler_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *device_of_a_fresh_thread(void *device)
{
    cudaGetDevice(device);
    cudaSetDevice(7);
    return NULL;
}

static void test_devices_are_counted_and_chosen_per_thread(void **state)
{
    (void)state;
    int count = 0, device = -1, theirs = -1;
    pthread_t thread;
    assert_success(cudaGetDeviceCount(&count));
    assert_int_equal(count, 8);
    assert_success(cudaSetDevice(5));
    pthread_create(&thread, NULL, device_of_a_fresh_thread, &theirs);
    pthread_join(thread, NULL);
    assert_int_equal(theirs, 0);
    assert_success(cudaGetDevice(&device));
    assert_int_equal(device, 5);
    assert_cuda(cudaErrorInvalidDevice, cudaSetDevice(8));
    assert_cuda(cudaErrorInvalidDevice, cudaSetDevice(-1));
    assert_success(cudaGetDevice(&device));
    assert_int_equal(device, 5);
    assert_success(cudaSetDevice(0));
}

static void test_properties_tell_devices_apart(void **state)
{
    (void)state;
    struct cudaDeviceProp all[8];
    for (int d = 0; d < 8; d++) {
        char bus[32];
        int back = -1, value = -1;
        assert_success(cudaGetDeviceProperties(&all[d], d));
        assert_string_equal(all[d].name, "hostcuda");
        assert_true(all[d].totalGlobalMem > 0);
        assert_int_equal(all[d].warpSize, 32);
        assert_success(cudaDeviceGetPCIBusId(bus, sizeof(bus), d));
        assert_success(cudaDeviceGetByPCIBusId(&back, bus));
        assert_int_equal(back, d);
        assert_success(cudaDeviceGetAttribute(&value, cudaDevAttrPciBusId, d));
        assert_int_equal(value, all[d].pciBusID);
        for (int other = 0; other < d; other++) {
            assert_int_not_equal(all[d].pciBusID, all[other].pciBusID);
            assert_memory_not_equal(&all[d].uuid, &all[other].uuid, sizeof(all[d].uuid));
        }
    }
    assert_cuda(cudaErrorInvalidDevice, cudaGetDeviceProperties(&all[0], 8));
    char tiny[4];
    assert_cuda(cudaErrorInvalidValue, cudaDeviceGetPCIBusId(tiny, sizeof(tiny), 0));
}

static void test_attributes_equal_the_properties(void **state)
{
    (void)state;
    struct cudaDeviceProp p;
    int value;
    assert_success(cudaGetDeviceProperties(&p, 0));
    assert_success(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    assert_int_equal(value, p.multiProcessorCount);
    assert_success(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
    assert_int_equal(value, p.major);
    assert_success(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    assert_int_equal(value, p.sharedMemPerBlockOptin);
    assert_success(cudaDeviceGetAttribute(&value, cudaDevAttrUnifiedAddressing, 0));
    assert_int_equal(value, 1);
    assert_cuda(cudaErrorInvalidValue, cudaDeviceGetAttribute(&value, (enum cudaDeviceAttr)100000, 0));
    assert_cuda(cudaErrorInvalidDevice, cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 77));
}

static void test_peers_are_enabled_once(void **state)
{
    (void)state;
    int can = -1;
    assert_success(cudaDeviceCanAccessPeer(&can, 0, 1));
    assert_int_equal(can, 1);
    assert_success(cudaDeviceCanAccessPeer(&can, 1, 1));
    assert_int_equal(can, 0);
    assert_cuda(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(1));
    assert_success(cudaDeviceEnablePeerAccess(1, 0));
    assert_cuda(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(1, 0));
    assert_cuda(cudaErrorInvalidValue, cudaDeviceEnablePeerAccess(2, 1));
    assert_cuda(cudaErrorInvalidDevice, cudaDeviceEnablePeerAccess(0, 0));
    assert_success(cudaDeviceDisablePeerAccess(1));
    assert_success(cudaDeviceGetP2PAttribute(&can, cudaDevP2PAttrAccessSupported, 0, 1));
    assert_int_equal(can, 1);
}

static void *errors_of_a_fresh_thread(void *error)
{
    *(cudaError_t *)error = cudaPeekAtLastError();
    return NULL;
}

static void test_last_error_stays_until_asked_for_and_is_the_threads(void **state)
{
    (void)state;
    cudaError_t theirs = cudaErrorUnknown;
    pthread_t thread;
    assert_cuda(cudaErrorInvalidValue, cudaGetDevice(NULL));
    assert_success(cudaSetDevice(0)); /* success does not clear it */
    assert_cuda(cudaErrorInvalidValue, cudaPeekAtLastError());
    pthread_create(&thread, NULL, errors_of_a_fresh_thread, &theirs);
    pthread_join(thread, NULL);
    assert_success(theirs);
    assert_cuda(cudaErrorInvalidValue, cudaGetLastError());
    assert_success(cudaGetLastError());
}

static void test_every_error_has_a_name_and_a_text(void **state)
{
    (void)state;
    assert_string_equal(cudaGetErrorName((cudaError_t)907), "cudaErrorCapturedEvent");
    assert_string_equal(cudaGetErrorName((cudaError_t)2), "cudaErrorMemoryAllocation");
    assert_string_equal(cudaGetErrorName((cudaError_t)719), "cudaErrorLaunchFailure");
    assert_string_equal(cudaGetErrorName((cudaError_t)12345), "unrecognized error code");
    assert_string_equal(cudaGetErrorString((cudaError_t)-1), "unrecognized error code");
    int known = 0;
    for (int number = 0; number <= 10000; number++) {
        if (!strncmp(cudaGetErrorName((cudaError_t)number), "cuda", 4)) {
            assert_true(strlen(cudaGetErrorString((cudaError_t)number)) > 5);
            known++;
        }
    }
    assert_int_equal(known, 134);
}

static void test_versions_are_those_of_the_headers(void **state)
{
    (void)state;
    int runtime = 0, driver = 0;
    assert_success(cudaRuntimeGetVersion(&runtime));
    assert_success(cudaDriverGetVersion(&driver));
    assert_int_equal(runtime, CUDART_VERSION);
    assert_true(driver >= runtime);
    assert_success(cudaProfilerStart());
    assert_success(cudaProfilerStop());
}

static void test_device_flags_are_kept(void **state)
{
    (void)state;
    unsigned int flags = 0;
    assert_success(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
    assert_success(cudaGetDeviceFlags(&flags));
    assert_true(flags & cudaDeviceScheduleBlockingSync);
    assert_cuda(cudaErrorInvalidValue, cudaSetDeviceFlags(cudaDeviceScheduleSpin | cudaDeviceScheduleYield));
    assert_cuda(cudaErrorInvalidValue, cudaSetDeviceFlags(0x10000));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, nothing_left, nothing_left)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_devices_are_counted_and_chosen_per_thread),
        TEST(test_properties_tell_devices_apart),
        TEST(test_attributes_equal_the_properties),
        TEST(test_peers_are_enabled_once),
        TEST(test_last_error_stays_until_asked_for_and_is_the_threads),
        TEST(test_every_error_has_a_name_and_a_text),
        TEST(test_versions_are_those_of_the_headers),
        TEST(test_device_flags_are_kept),
    };
    return cmocka_run_group_tests_name("hostcuda.device", tests, NULL, NULL);
}
