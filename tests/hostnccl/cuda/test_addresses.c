/*
 * test_addresses.c: addresses and memory apart (cuMemAddressReserve, cuMemCreate, cuMemMap): as a framework's allocator
 * grows a piece of memory, and as two processes share it; and libraries of device code in the driver interface.
 */
#include "tests/hostnccl/cuda/gate.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hostnccl/include/cuda.h"

enum { PIECE = 4 << 20, PIECES = 3, ROOM = 64 << 20 };

static const CUmemAllocationProp DEVICE_1 = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}};
static const CUmemAccessDesc WRITE = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                                      .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

static void *at(CUdeviceptr address, size_t offset)
{
    return (void *)(uintptr_t)(address + offset);
}

static CUmemGenericAllocationHandle create(size_t bytes, CUmemAllocationHandleType type)
{
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = DEVICE_1;
    properties.requestedHandleTypes = type;
    assert_int_equal(cuMemCreate(&handle, bytes, &properties, 0), CUDA_SUCCESS);
    return handle;
}

static CUdeviceptr reserve(size_t bytes)
{
    CUdeviceptr address = 0;
    assert_int_equal(cuMemAddressReserve(&address, bytes, 0, 0, 0), CUDA_SUCCESS);
    assert_int_equal(address % (2 << 20), 0);
    return address;
}

static void map(CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle)
{
    assert_int_equal(cuMemMap(address, bytes, 0, handle, 0), CUDA_SUCCESS);
    assert_int_equal(cuMemSetAccess(address, bytes, &WRITE, 1), CUDA_SUCCESS);
}

static size_t free_bytes(void)
{
    size_t free_now = 0, total = 0;
    assert_success(cudaSetDevice(1));
    assert_success(cudaMemGetInfo(&free_now, &total));
    return free_now;
}

static void test_memory_grows_piece_by_piece(void **state)
{
    (void)state;
    static char written[PIECES * PIECE], read[PIECES * PIECE];
    size_t before = free_bytes(), granule = 0;
    CUmemGenericAllocationHandle handle[PIECES];
    struct cudaPointerAttributes attributes;
    assert_int_equal(cuMemGetAllocationGranularity(&granule, &DEVICE_1, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                     CUDA_SUCCESS);
    assert_int_equal(granule, 2 << 20);
    CUdeviceptr base = reserve(ROOM);
    for (int i = 0; i < PIECES; i++) {
        handle[i] = create(PIECE, CU_MEM_HANDLE_TYPE_NONE);
        map(base + (CUdeviceptr)i * PIECE, PIECE, handle[i]);
    }
    assert_int_equal(before - free_bytes(), PIECES * PIECE);
    memset(written, 7, sizeof(written));
    /* one copy over all pieces, and what was never written is zero */
    assert_success(cudaMemcpy(read, at(base, 0), sizeof(read), cudaMemcpyDeviceToHost));
    assert_int_equal(read[0] | read[sizeof(read) - 1], 0);
    assert_success(cudaMemcpy(at(base, 0), written, sizeof(written), cudaMemcpyHostToDevice));
    assert_success(cudaMemset(at(base, PIECE - 100), 9, 200));
    assert_success(cudaPointerGetAttributes(&attributes, at(base, PIECE + 5)));
    assert_int_equal(attributes.type, cudaMemoryTypeDevice);
    assert_int_equal(attributes.device, 1);

    /* a piece keeps what it holds while it lies nowhere */
    CUdeviceptr other = reserve(PIECE);
    assert_int_equal(cuMemUnmap(base + PIECE, PIECE), CUDA_SUCCESS);
    map(other, PIECE, handle[1]);
    assert_success(cudaMemcpy(read, at(other, 0), PIECE, cudaMemcpyDeviceToHost));
    assert_int_equal(read[0], 9);
    assert_int_equal(read[99], 9);
    assert_int_equal(read[100], 7);

    /* who frees it otherwise is wrong */
    assert_cuda(cudaErrorInvalidValue, cudaFree(at(base, 0)));
    assert_cuda(cudaErrorInvalidValue, cudaIpcCloseMemHandle(at(base, 0)));
    assert_int_equal(cuMemAddressFree(base, ROOM), CUDA_ERROR_INVALID_VALUE); /* something lies there */

    /* what lies somewhere gives one more handle */
    CUmemGenericAllocationHandle again = 0;
    CUmemAllocationProp properties;
    assert_int_equal(cuMemRetainAllocationHandle(&again, at(other, 77)), CUDA_SUCCESS);
    assert_true(again == handle[1]);
    assert_int_equal(cuMemRelease(again), CUDA_SUCCESS);
    assert_int_equal(cuMemGetAllocationPropertiesFromHandle(&properties, handle[1]), CUDA_SUCCESS);
    assert_int_equal(properties.location.id, 1);
    assert_int_equal(properties.requestedHandleTypes, CU_MEM_HANDLE_TYPE_NONE);
    assert_int_equal(cuMemRetainAllocationHandle(&again, at(base, PIECE)), CUDA_ERROR_INVALID_VALUE);

    /* memory lives until it is released and lies nowhere */
    assert_int_equal(cuMemRelease(handle[1]), CUDA_SUCCESS);
    assert_int_equal(cuMemRelease(handle[1]), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(before - free_bytes(), PIECES * PIECE);
    assert_int_equal(cuMemRetainAllocationHandle(&again, at(other, 0)), CUDA_SUCCESS);
    assert_int_equal(cuMemRelease(again), CUDA_SUCCESS);
    assert_int_equal(cuMemUnmap(other, PIECE), CUDA_SUCCESS);
    assert_int_equal(before - free_bytes(), (PIECES - 1) * PIECE);
    assert_int_equal(cuMemUnmap(base, PIECE), CUDA_SUCCESS);
    assert_int_equal(cuMemUnmap(base + 2 * PIECE, PIECE), CUDA_SUCCESS);
    assert_int_equal(cuMemRelease(handle[0]), CUDA_SUCCESS);
    assert_int_equal(cuMemRelease(handle[2]), CUDA_SUCCESS);
    assert_int_equal(free_bytes(), before);
    assert_int_equal(cuMemAddressFree(base, ROOM), CUDA_SUCCESS);
    assert_int_equal(cuMemAddressFree(base, ROOM), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemAddressFree(other, PIECE), CUDA_SUCCESS);
    assert_cuda(cudaErrorInvalidValue, cudaMemset(at(base, 0), 0, 1));
}

static void test_one_memory_at_two_addresses_and_behind_a_descriptor(void **state)
{
    (void)state;
    int file = -1;
    char byte = 0;
    CUmemGenericAllocationHandle own = create(PIECE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), theirs, plain;
    size_t before = free_bytes();
    CUdeviceptr base = reserve(3 * PIECE);
    assert_int_equal(cuMemExportToShareableHandle(&file, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                     CUDA_SUCCESS);
    assert_int_equal(
        cuMemImportFromShareableHandle(&theirs, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        CUDA_SUCCESS);
    assert_int_equal(close(file), 0);
    map(base, PIECE, own);
    map(base + PIECE, PIECE, own);
    map(base + 2 * PIECE, PIECE, theirs);
    assert_success(cudaMemset(at(base, 1000), 5, 1));
    for (int i = 1; i < 3; i++) {
        assert_success(cudaMemcpy(&byte, at(base, (size_t)i * PIECE + 1000), 1, cudaMemcpyDeviceToHost));
        assert_int_equal(byte, 5);
        byte = 0;
    }
    assert_int_equal(free_bytes(), before); /* another process's memory counts there */
    assert_int_equal(cuMemUnmap(base, 3 * PIECE), CUDA_SUCCESS);
    assert_int_equal(cuMemRelease(own), CUDA_SUCCESS);
    assert_int_equal(cuMemRelease(theirs), CUDA_SUCCESS);
    assert_int_equal(cuMemAddressFree(base, 3 * PIECE), CUDA_SUCCESS);

    plain = create(PIECE, CU_MEM_HANDLE_TYPE_NONE); /* what was not made for others is not given to them */
    assert_int_equal(cuMemExportToShareableHandle(&file, plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                     CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemRelease(plain), CUDA_SUCCESS);
}

static void test_what_does_not_fit_is_refused(void **state)
{
    (void)state;
    CUmemGenericAllocationHandle handle = create(PIECE, CU_MEM_HANDLE_TYPE_NONE), none;
    CUmemAllocationProp fabric = DEVICE_1;
    CUdeviceptr base = reserve(2 * PIECE), odd;
    fabric.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    assert_int_equal(cuMemCreate(&none, PIECE, &fabric, 0), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(cuMemCreate(&none, PIECE + 1, &DEVICE_1, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemCreate(&none, (size_t)1 << 40, &DEVICE_1, 0), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(cuMemAddressReserve(&odd, 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemMap(base + PIECE + PIECE / 2, PIECE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemMap(base, PIECE, 0, handle + 64, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemMap(base, PIECE / 2, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemSetAccess(base, PIECE, &WRITE, 1), CUDA_ERROR_INVALID_VALUE); /* nothing lies there */
    map(base, PIECE, handle);
    assert_int_equal(cuMemMap(base, PIECE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemUnmap(base, PIECE / 2), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemUnmap(base, 2 * PIECE), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemUnmap(base, PIECE), CUDA_SUCCESS);
    assert_int_equal(cuMemUnmap(base, PIECE), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemRelease(handle), CUDA_SUCCESS);
    assert_int_equal(cuMemAddressFree(base, 2 * PIECE), CUDA_SUCCESS);
}

/* Hundreds of pieces come and go in an order that is none; each stays where it is, with what it holds. */
static void test_many_pieces_in_any_order(void **state)
{
    (void)state;
    enum { GRANULE = 2 << 20, SLOTS = 300, TURNS = 2000 };
    static CUmemGenericAllocationHandle held[SLOTS];
    CUdeviceptr base[2] = {reserve((size_t)SLOTS / 2 * GRANULE), reserve((size_t)SLOTS / 2 * GRANULE)};
    size_t before = free_bytes(), count = 0;
    unsigned int dice = 1;
    for (int turn = 0; turn < TURNS; turn++) {
        dice = dice * 1103515245 + 12345;
        size_t slot = dice / 65536 % SLOTS;
        CUdeviceptr here = base[slot % 2] + slot / 2 * GRANULE;
        int number = (int)slot, seen = 0;
        if (held[slot]) {
            assert_success(cudaMemcpy(&seen, at(here, 64), sizeof(seen), cudaMemcpyDeviceToHost));
            assert_int_equal(seen, number);
            assert_int_equal(cuMemMap(here, GRANULE, 0, held[slot], 0), CUDA_ERROR_INVALID_VALUE);
            assert_int_equal(cuMemUnmap(here, GRANULE), CUDA_SUCCESS);
            assert_int_equal(cuMemRelease(held[slot]), CUDA_SUCCESS);
            held[slot] = 0;
            count--;
        } else {
            assert_int_equal(cuMemUnmap(here, GRANULE), CUDA_ERROR_INVALID_VALUE);
            held[slot] = create(GRANULE, CU_MEM_HANDLE_TYPE_NONE);
            map(here, GRANULE, held[slot]);
            assert_success(cudaMemcpy(at(here, 64), &number, sizeof(number), cudaMemcpyHostToDevice));
            count++;
        }
        assert_int_equal(before - free_bytes(), count * GRANULE);
    }
    for (size_t slot = 0; slot < SLOTS; slot++) {
        if (held[slot]) {
            assert_int_equal(cuMemUnmap(base[slot % 2] + slot / 2 * GRANULE, GRANULE), CUDA_SUCCESS);
            assert_int_equal(cuMemRelease(held[slot]), CUDA_SUCCESS);
        }
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cuMemAddressFree(base[i], (size_t)SLOTS / 2 * GRANULE), CUDA_SUCCESS);
    }
    assert_int_equal(free_bytes(), before);
}

static void test_libraries_and_their_kernels(void **state)
{
    (void)state;
    static const char ptx[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry add_one() { ret; }\n";
    CUlibrary library;
    CUkernel kernel;
    CUfunction function;
    CUuuid first, second;
    int value = 0;
    assert_int_equal(cuLibraryLoadData(&library, "no image", NULL, NULL, 0, NULL, NULL, 0), CUDA_ERROR_INVALID_IMAGE);
    assert_int_equal(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0), CUDA_SUCCESS);
    assert_int_equal(cuLibraryGetKernel(&kernel, library, "add_two"), CUDA_ERROR_NOT_FOUND);
    assert_int_equal(cuLibraryGetKernel(&kernel, library, "add_one"), CUDA_SUCCESS);
    assert_int_equal(cuKernelGetFunction(&function, kernel), CUDA_SUCCESS);
    assert_int_equal(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0), CUDA_SUCCESS);
    assert_int_equal(value, 1024);
    assert_int_equal(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 << 10, kernel, 0),
                     CUDA_SUCCESS);
    assert_int_equal(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function),
                     CUDA_SUCCESS);
    assert_int_equal(value, 100 << 10);
    assert_int_equal(cuLibraryUnload(library), CUDA_SUCCESS);
    assert_int_equal(cuLibraryUnload(library), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(cuDeviceGetUuid(&first, 0), CUDA_SUCCESS);
    assert_int_equal(cuDeviceGetUuid(&second, 1), CUDA_SUCCESS);
    assert_memory_not_equal(&first, &second, sizeof(first));
}

static int start(void **state)
{
    (void)state;
    setenv("HOSTCUDA_KERNELS", "skip", 1); /* a kernel that would be refused has no attributes */
    setenv("HOSTCUDA_DEVICES", "2", 1);
    unsetenv("CUDA_VISIBLE_DEVICES");
    return cuInit(0) == CUDA_SUCCESS ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_grows_piece_by_piece),
        cmocka_unit_test(test_one_memory_at_two_addresses_and_behind_a_descriptor),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
        cmocka_unit_test(test_many_pieces_in_any_order),
        cmocka_unit_test(test_libraries_and_their_kernels),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
