/* test_memory.c: memory: who owns an address, limits, and frees that must not succeed. */
#include "tests/hostnccl/cuda/gate.h"

#include <stdlib.h>
#include <string.h>

enum { LIMIT = 64 << 20 };

static void test_pointers_tell_their_kind(void **state)
{
    (void)state;
    struct cudaPointerAttributes a;
    void *device, *pinned, *managed;
    char *plain = malloc(100);
    assert_success(cudaSetDevice(2));
    assert_success(cudaMalloc(&device, 1000));
    assert_success(cudaSetDevice(0));
    assert_success(cudaMallocHost(&pinned, 1000));
    assert_success(cudaMallocManaged(&managed, 1000, cudaMemAttachGlobal));

    assert_success(cudaPointerGetAttributes(&a, (char *)device + 999));
    assert_int_equal(a.type, cudaMemoryTypeDevice);
    assert_int_equal(a.device, 2);
    assert_ptr_equal(a.devicePointer, (char *)device + 999);
    assert_null(a.hostPointer);

    assert_success(cudaPointerGetAttributes(&a, pinned));
    assert_int_equal(a.type, cudaMemoryTypeHost);
    assert_ptr_equal(a.devicePointer, pinned);
    assert_ptr_equal(a.hostPointer, pinned);

    assert_success(cudaPointerGetAttributes(&a, managed));
    assert_int_equal(a.type, cudaMemoryTypeManaged);

    assert_success(cudaPointerGetAttributes(&a, plain));
    assert_int_equal(a.type, cudaMemoryTypeUnregistered);

    assert_success(cudaFree(device));
    assert_success(cudaPointerGetAttributes(&a, device));
    assert_int_equal(a.type, cudaMemoryTypeUnregistered);
    assert_success(cudaFreeHost(pinned));
    assert_success(cudaFree(managed));
    free(plain);
}

static void test_wrong_frees_are_refused(void **state)
{
    (void)state;
    void *device, *pinned;
    int local = 0;
    assert_success(cudaMalloc(&device, 1000));
    assert_success(cudaMallocHost(&pinned, 1000));
    assert_cuda(cudaErrorInvalidValue, cudaFree((char *)device + 1));
    assert_cuda(cudaErrorInvalidValue, cudaFree(&local));
    assert_cuda(cudaErrorInvalidValue, cudaFree(pinned));
    assert_cuda(cudaErrorInvalidValue, cudaFreeHost(device));
    assert_success(cudaFree(device));
    assert_cuda(cudaErrorInvalidValue, cudaFree(device));
    assert_success(cudaFreeHost(pinned));
    assert_cuda(cudaErrorInvalidValue, cudaFreeHost(pinned));
    assert_success(cudaFree(NULL));
    assert_success(cudaFreeHost(NULL));
}

static void test_the_limit_of_a_device_holds(void **state)
{
    (void)state;
    size_t free_bytes, total, after;
    void *first, *second, *host;
    assert_success(cudaMemGetInfo(&free_bytes, &total));
    assert_int_equal(total, LIMIT);
    assert_int_equal(free_bytes, LIMIT);
    assert_success(cudaMalloc(&first, LIMIT / 2));
    assert_success(cudaMemGetInfo(&after, &total));
    assert_int_equal(after, LIMIT / 2);
    assert_cuda(cudaErrorMemoryAllocation, cudaMalloc(&second, LIMIT / 2 + 1));
    assert_null(second);
    assert_success(cudaMallocHost(&host, LIMIT)); /* host memory is not the device's */
    assert_success(cudaFreeHost(host));
    assert_success(cudaSetDevice(1));
    assert_success(cudaMalloc(&second, LIMIT));
    assert_success(cudaFree(second));
    assert_success(cudaSetDevice(0));
    assert_success(cudaFree(first));
    assert_success(cudaMemGetInfo(&after, &total));
    assert_int_equal(after, LIMIT);
    assert_cuda(cudaErrorMemoryAllocation, cudaMalloc(&first, SIZE_MAX));
    assert_cuda(cudaErrorMemoryAllocation, cudaGetLastError());
}

static void test_memory_is_aligned_and_nothing_is_nothing(void **state)
{
    (void)state;
    for (size_t bytes = 1; bytes < 5000; bytes = bytes * 3 + 1) {
        void *memory;
        assert_success(cudaMalloc(&memory, bytes));
        assert_int_equal((uintptr_t)memory % 256, 0);
        memset(memory, 1, bytes);
        assert_success(cudaFree(memory));
    }
    void *none = &none;
    assert_success(cudaMalloc(&none, 0));
    assert_null(none);
    assert_cuda(cudaErrorInvalidValue, cudaMalloc(NULL, 4));
    assert_cuda(cudaErrorInvalidValue, cudaMallocManaged(&none, 0, cudaMemAttachGlobal));
    assert_cuda(cudaErrorInvalidValue, cudaMallocManaged(&none, 8, 77));
    assert_cuda(cudaErrorInvalidValue, cudaHostAlloc(&none, 8, 64));
}

static void test_pitch_is_aligned_and_covers_the_width(void **state)
{
    (void)state;
    void *memory;
    size_t pitch;
    assert_success(cudaMallocPitch(&memory, &pitch, 1000, 3));
    assert_true(pitch >= 1000);
    assert_int_equal(pitch % 512, 0);
    memset(memory, 0, pitch * 3);
    assert_success(cudaFree(memory));
    assert_cuda(cudaErrorMemoryAllocation, cudaMallocPitch(&memory, &pitch, SIZE_MAX / 2, 3));
}

static void test_registered_memory_is_known_until_unregistered(void **state)
{
    (void)state;
    struct cudaPointerAttributes a;
    char *plain = malloc(4096);
    void *device;
    unsigned int flags;
    assert_success(cudaHostRegister(plain, 4096, cudaHostRegisterPortable));
    assert_success(cudaPointerGetAttributes(&a, plain + 100));
    assert_int_equal(a.type, cudaMemoryTypeHost);
    assert_success(cudaHostGetDevicePointer(&device, plain + 8, 0));
    assert_ptr_equal(device, plain + 8);
    assert_success(cudaHostGetFlags(&flags, plain));
    assert_true(flags & cudaHostRegisterPortable);
    assert_cuda(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(plain + 1000, 8, 0));
    assert_cuda(cudaErrorInvalidValue, cudaFreeHost(plain));
    assert_cuda(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(plain + 1));
    assert_success(cudaHostUnregister(plain));
    assert_cuda(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(plain));
    assert_cuda(cudaErrorInvalidValue, cudaHostGetDevicePointer(&device, plain, 0));
    assert_cuda(cudaErrorInvalidValue, cudaHostRegister(NULL, 8, 0));
    assert_cuda(cudaErrorInvalidValue, cudaHostRegister(plain, 0, 0));
    free(plain);
}

static void test_free_waits_for_the_device(void **state)
{
    (void)state;
    cudaStream_t stream;
    char *device, *pinned;
    assert_success(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    assert_success(cudaMalloc((void **)&device, 1 << 20));
    assert_success(cudaMallocHost((void **)&pinned, 1 << 20));
    for (int i = 0; i < 50; i++) {
        assert_success(cudaMemcpyAsync(device, pinned, 1 << 20, cudaMemcpyHostToDevice, stream));
    }
    assert_success(cudaFree(device)); /* a sanitizer would see the copies write to freed memory */
    assert_success(cudaStreamQuery(stream));
    assert_success(cudaFreeHost(pinned));
    assert_success(cudaStreamDestroy(stream));
}

static void test_memory_in_stream_order_is_freed_when_its_turn_comes(void **state)
{
    (void)state;
    cudaStream_t stream;
    struct gate gate;
    struct cudaPointerAttributes a;
    void *memory;
    assert_success(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    assert_success(cudaMallocAsync(&memory, 4096, stream));
    gate_close(&gate, stream);
    assert_success(cudaMemsetAsync(memory, 3, 4096, stream));
    assert_success(cudaFreeAsync(memory, stream));
    assert_success(cudaPointerGetAttributes(&a, memory));
    assert_int_equal(a.type, cudaMemoryTypeDevice);
    gate_open(&gate);
    assert_success(cudaStreamSynchronize(stream));
    assert_success(cudaPointerGetAttributes(&a, memory));
    assert_int_equal(a.type, cudaMemoryTypeUnregistered);
    assert_cuda(cudaErrorInvalidValue, cudaFreeAsync(memory, stream));
    assert_success(cudaStreamDestroy(stream));
}

static void test_fresh_memory_holds_the_chosen_byte(void **state)
{
    (void)state;
    unsigned char *memory;
    assert_success(cudaMalloc((void **)&memory, 300));
    for (int i = 0; i < 300; i++) {
        assert_int_equal(memory[i], 0xa5);
    }
    assert_success(cudaFree(memory));
}

static void test_reset_frees_what_belongs_to_the_device(void **state)
{
    (void)state;
    struct cudaPointerAttributes a;
    void *here, *there;
    cudaStream_t stream;
    size_t free_bytes, total;
    assert_success(cudaMalloc(&there, 64));
    assert_success(cudaSetDevice(5));
    assert_success(cudaMalloc(&here, 64));
    assert_success(cudaStreamCreate(&stream));
    assert_success(cudaMemsetAsync(here, 0, 64, stream));
    assert_success(cudaStreamSynchronize(stream));
    assert_success(cudaDeviceReset());
    assert_success(cudaPointerGetAttributes(&a, here));
    assert_int_equal(a.type, cudaMemoryTypeUnregistered);
    assert_cuda(cudaErrorInvalidResourceHandle, cudaStreamQuery(stream));
    assert_success(cudaMemGetInfo(&free_bytes, &total));
    assert_int_equal(free_bytes, total);
    assert_success(cudaSetDevice(0));
    assert_success(cudaFree(there));
}

static void test_reset_never_waits_for_a_blocked_stream(void **state)
{
    (void)state;
    static struct gate gate;
    void *memory;
    cudaStream_t stream;
    struct cudaPointerAttributes a;
    assert_success(cudaSetDevice(6));
    assert_success(cudaMalloc(&memory, 64));
    assert_success(cudaStreamCreate(&stream));
    gate_close(&gate, stream);
    assert_success(cudaMemsetAsync(memory, 1, 64, stream));
    uint64_t before = now_ms();
    assert_success(cudaDeviceReset());
    assert_true(now_ms() - before < 200000);              /* the wait has an end */
    assert_success(cudaPointerGetAttributes(&a, memory)); /* still in use, so still there */
    assert_int_equal(a.type, cudaMemoryTypeDevice);
    gate_open(&gate);
    assert_success(cudaDeviceSynchronize());
    assert_success(cudaFree(memory));
    assert_success(cudaSetDevice(0));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, nothing_left, nothing_left)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_pointers_tell_their_kind),
        TEST(test_wrong_frees_are_refused),
        TEST(test_the_limit_of_a_device_holds),
        TEST(test_memory_is_aligned_and_nothing_is_nothing),
        TEST(test_pitch_is_aligned_and_covers_the_width),
        TEST(test_registered_memory_is_known_until_unregistered),
        TEST(test_free_waits_for_the_device),
        TEST(test_memory_in_stream_order_is_freed_when_its_turn_comes),
        TEST(test_fresh_memory_holds_the_chosen_byte),
        TEST(test_reset_frees_what_belongs_to_the_device),
        TEST(test_reset_never_waits_for_a_blocked_stream),
    };
    setenv("HOSTCUDA_MEMORY", "64M", 1); /* LIMIT */
    setenv("HOSTCUDA_FILL", "0xa5", 1);
    return cmocka_run_group_tests_name("hostcuda.memory", tests, NULL, NULL);
}
