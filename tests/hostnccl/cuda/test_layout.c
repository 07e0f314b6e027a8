/*
 * test_layout.c: each of the two runtimes has the layouts of its own release of CUDA, and writes no byte more. Compiled
 * twice; layout.def says where its numbers are from, so that no header of the vendor is needed.
 */
#include "tests/hostnccl/cuda/gate.h"

#include <stddef.h>
#include <string.h>

#if CUDART_VERSION >= 13000
#define OF(twelve, thirteen) thirteen
#else
#define OF(twelve, thirteen) twelve
#endif
#define SIZE(type, twelve, thirteen) _Static_assert(sizeof(type) == OF(twelve, thirteen), #type);
#define PLACE(type, member, twelve, thirteen)                                                                          \
    _Static_assert(offsetof(type, member) == OF(twelve, thirteen), #type "." #member);
#include "tests/hostnccl/cuda/layout.def"

enum { UNTOUCHED = 0xa5, BEYOND = 256 };

static void assert_untouched_from(const unsigned char *bytes, size_t size)
{
    for (size_t i = 0; i < BEYOND; i++) {
        assert_int_equal(bytes[size + i], UNTOUCHED);
    }
}

static void test_properties_end_where_the_release_says(void **state)
{
    (void)state;
    unsigned char bytes[sizeof(struct cudaDeviceProp) + BEYOND];
    struct cudaDeviceProp properties;
    int value = 0;
    memset(bytes, UNTOUCHED, sizeof(bytes));
    assert_success(cudaGetDeviceProperties((struct cudaDeviceProp *)(void *)bytes, 0));
    assert_untouched_from(bytes, OF(1032, 1008));
    memcpy(&properties, bytes, sizeof(properties));
    assert_int_equal(properties.warpSize, 32);
    assert_success(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    assert_int_equal(properties.multiProcessorCount, value);
    assert_success(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    assert_int_equal(properties.sharedMemPerBlockOptin, value);
#if CUDART_VERSION < 13000
    assert_success(cudaDeviceGetAttribute(&value, cudaDevAttrClockRate, 0));
    assert_int_equal(properties.clockRate, value);
    assert_success(cudaDeviceGetAttribute(&value, cudaDevAttrMemoryClockRate, 0));
    assert_int_equal(properties.memoryClockRate, value);
#endif
}

static void test_attributes_of_a_pointer_end_where_the_release_says(void **state)
{
    (void)state;
    unsigned char bytes[sizeof(struct cudaPointerAttributes) + BEYOND];
    void *memory;
    assert_success(cudaMalloc(&memory, 64));
    for (int i = 0; i < 2; i++) {
        memset(bytes, UNTOUCHED, sizeof(bytes));
        assert_success(cudaPointerGetAttributes((struct cudaPointerAttributes *)(void *)bytes, i ? memory : bytes));
        assert_untouched_from(bytes, OF(24, 88));
    }
    assert_success(cudaFree(memory));
}

static void test_the_release_is_told(void **state)
{
    (void)state;
    int version = 0;
    assert_success(cudaRuntimeGetVersion(&version));
    assert_int_equal(version / 1000, CUDART_VERSION / 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_properties_end_where_the_release_says),
        cmocka_unit_test(test_attributes_of_a_pointer_end_where_the_release_says),
        cmocka_unit_test(test_the_release_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
