/* test_driver.c: the driver interface: reached by linking, dlsym, cuGetProcAddress and the runtime; the same handles as
 * the runtime's.
 */
#include "tests/hostnccl/cuda/gate.h"

#include <dlfcn.h>
#include <string.h>

#include "hostnccl/cuda/driver_kernel.h"

#define assert_driver(expected, call) assert_int_equal(expected, call)
#define assert_done(call)             assert_driver(CUDA_SUCCESS, call)

enum { PTSZ = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM };

static uint64_t word_at(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void test_the_driver_starts_and_knows_the_devices(void **state)
{
    (void)state;
    int count = 0, version = 0, major = 0, wide = 0;
    CUdevice device = -1;
    char name[64] = "";
    assert_driver(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    assert_done(cuInit(0));
    assert_done(cuDriverGetVersion(&version));
    assert_true(version >= 12000);
    assert_done(cuDeviceGetCount(&count));
    assert_true(count >= 2);
    assert_done(cuDeviceGet(&device, 1));
    assert_int_equal(device, 1);
    assert_driver(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, count));
    assert_done(cuDeviceGetName(name, sizeof(name), 0));
    assert_true(strlen(name) > 0);
    assert_done(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
    assert_true(major > 0);
    assert_done(cuDeviceGetAttribute(&wide, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0));
    assert_int_equal(wide, 1);
    const void *table = &count;
    const CUuuid nobodys = {{7}};
    assert_driver(CUDA_ERROR_NOT_FOUND, cuGetExportTable(&table, &nobodys));
    assert_null(table);
    assert_driver(CUDA_ERROR_INVALID_VALUE, cuGetExportTable(NULL, &nobodys));
}

static void test_contexts_follow_the_device_of_the_thread(void **state)
{
    (void)state;
    CUcontext first, second, now;
    CUdevice device = -1;
    int current = -1;
    assert_done(cuDevicePrimaryCtxRetain(&first, 0));
    assert_done(cuDevicePrimaryCtxRetain(&second, 1));
    assert_done(cuCtxSetCurrent(second));
    assert_success(cudaGetDevice(&current));
    assert_int_equal(current, 1);
    assert_done(cuCtxPushCurrent(first));
    assert_done(cuCtxGetDevice(&device));
    assert_int_equal(device, 0);
    assert_done(cuCtxPopCurrent(&now));
    assert_ptr_equal(now, first);
    assert_done(cuCtxGetCurrent(&now));
    assert_ptr_equal(now, second);
    assert_done(cuCtxSetCurrent(NULL));
    assert_done(cuCtxGetCurrent(&now));
    assert_null(now);
    assert_driver(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetDevice(&device));
    assert_driver(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent((CUcontext)&device));
    assert_done(cuCtxSetCurrent(first));
    assert_done(cuDevicePrimaryCtxRelease(0));
    assert_done(cuDevicePrimaryCtxRelease(1));
    assert_driver(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(1));
}

/* Programs (Triton among them) read a limit, raise it, and look whether it rose. */
static void test_limits_are_kept_for_each_device(void **state)
{
    (void)state;
    CUcontext first, second;
    size_t stack = 0, heap = 0, l2 = 0;
    int most = 0;
    assert_done(cuDevicePrimaryCtxRetain(&first, 0));
    assert_done(cuDevicePrimaryCtxRetain(&second, 1));
    assert_done(cuCtxSetCurrent(second));
    assert_done(cuCtxGetLimit(&stack, CU_LIMIT_STACK_SIZE));
    assert_int_equal(stack, 1024);
    assert_done(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
    assert_done(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 0));
    assert_done(cuCtxGetLimit(&heap, CU_LIMIT_MALLOC_HEAP_SIZE));
    assert_int_equal(heap, 0);
    assert_success(cudaDeviceGetLimit(&stack, cudaLimitStackSize)); /* the runtime's are the same */
    assert_int_equal(stack, 4096);
    assert_done(cuDeviceGetAttribute(&most, (CUdevice_attribute)cudaDevAttrMaxPersistingL2CacheSize, 1));
    assert_done(cuCtxSetLimit(CU_LIMIT_PERSISTING_L2_CACHE_SIZE, SIZE_MAX));
    assert_done(cuCtxGetLimit(&l2, CU_LIMIT_PERSISTING_L2_CACHE_SIZE));
    assert_int_equal(l2, most);
    assert_driver(CUDA_ERROR_UNSUPPORTED_LIMIT, cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 3));
    assert_driver(CUDA_ERROR_INVALID_VALUE, cuCtxSetLimit((CUlimit)77, 3));
    assert_driver(CUDA_ERROR_INVALID_VALUE, cuCtxGetLimit(NULL, CU_LIMIT_STACK_SIZE));
    assert_done(cuCtxSetCurrent(NULL));
    assert_driver(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetLimit(&stack, CU_LIMIT_STACK_SIZE));
    assert_done(cuCtxSetCurrent(first));
    assert_done(cuCtxGetLimit(&stack, CU_LIMIT_STACK_SIZE));
    assert_int_equal(stack, 1024);
    assert_done(cuDevicePrimaryCtxRelease(0));
    assert_done(cuDevicePrimaryCtxRelease(1));
}

static void test_errors_have_names_and_leave_the_last_error_of_the_runtime_alone(void **state)
{
    (void)state;
    const char *text = NULL;
    assert_done(cuGetErrorName(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, &text));
    assert_string_equal(text, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION");
    assert_done(cuGetErrorString(CUDA_ERROR_INVALID_HANDLE, &text));
    assert_true(strlen(text) > 5);
    assert_driver(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)4242, &text));
    assert_null(text);
    assert_driver(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery((CUstream)(uintptr_t)64));
    assert_success(cudaPeekAtLastError());
    assert_cuda(cudaErrorInvalidResourceHandle, cudaStreamQuery((cudaStream_t)(uintptr_t)64));
    assert_cuda(cudaErrorInvalidResourceHandle, cudaGetLastError());
}

/* Values are written in stream order, into registered memory of the program's own. */
static void test_words_are_written_and_awaited_in_order(void **state)
{
    (void)state;
    static _Alignas(4096) uint64_t page[512];
    CUdeviceptr device;
    CUstream writer, waiter;
    struct gate gate;
    atomic_int done = 0;
    assert_done(cuStreamCreate(&writer, cudaStreamNonBlocking));
    assert_done(cuStreamCreate(&waiter, cudaStreamNonBlocking));
    assert_driver(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue64(writer, (CUdeviceptr)(uintptr_t)page, 1, 0));
    assert_done(cuMemHostRegister(page, sizeof(page), cudaHostRegisterMapped));
    assert_done(cuMemHostGetDevicePointer(&device, page, 0));
    gate_close(&gate, writer);
    assert_done(cuStreamWriteValue64(writer, device, UINT64_C(0x1234567890), 0));
    assert_done(cuStreamWriteValue32(writer, device + 8, 7, 0));
    assert_done(cuStreamWaitValue64(waiter, device, UINT64_C(0x1234567890), CU_STREAM_WAIT_VALUE_EQ));
    assert_done(cuStreamWaitValue32(waiter, device + 8, 5, CU_STREAM_WAIT_VALUE_GEQ));
    assert_done(cuLaunchHostFunc(waiter, bump, &done));
    sleep_ms(20);
    assert_true(word_at(&page[0]) == 0 && !atomic_load(&done));
    assert_driver(CUDA_ERROR_NOT_READY, cuStreamQuery(waiter));
    gate_open(&gate);
    assert_done(cuStreamSynchronize(waiter));
    assert_true(word_at(&page[0]) == UINT64_C(0x1234567890) && word_at(&page[1]) == 7 && atomic_load(&done) == 1);
    /* Refused: beyond the memory, not aligned, an unknown flag. */
    assert_driver(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue64(writer, device + sizeof(page), 1, 0));
    assert_driver(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue64(writer, device + 4, 1, 0));
    assert_driver(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue64(writer, device, 1, 1));
    assert_driver(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(writer, device, 1, 4));
    assert_done(cuStreamDestroy(writer));
    assert_done(cuStreamDestroy(waiter));
    assert_done(cuCtxSynchronize());
    assert_done(cuMemHostUnregister(page));
}

static void test_every_condition_of_a_wait(void **state)
{
    (void)state;
    static const struct {
        unsigned int flag;
        uint32_t value, before, after; /* waits while the word is `before` */
    } cases[] = {
        {CU_STREAM_WAIT_VALUE_GEQ, 5, 4, 6},
        {CU_STREAM_WAIT_VALUE_GEQ, 2, UINT32_MAX, 3}, /* cyclic: the largest number comes before 2 */
        {CU_STREAM_WAIT_VALUE_EQ, 5, 6, 5},
        {CU_STREAM_WAIT_VALUE_AND, 6, 1, 2},
        {CU_STREAM_WAIT_VALUE_NOR, 0xffff0000, 0xffff, 0xfffe},
    };
    uint32_t *word;
    CUstream stream;
    assert_done(cuMemHostAlloc((void **)&word, 4096, cudaHostAllocMapped));
    assert_done(cuStreamCreate(&stream, cudaStreamNonBlocking));
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        __atomic_store_n(word, cases[i].before, __ATOMIC_RELEASE);
        assert_done(cuStreamWaitValue32(stream, (CUdeviceptr)(uintptr_t)word, cases[i].value, cases[i].flag));
        sleep_ms(5);
        assert_driver(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
        __atomic_store_n(word, cases[i].after, __ATOMIC_RELEASE);
        assert_done(cuStreamSynchronize(stream));
    }
    assert_done(cuStreamDestroy(stream));
    assert_done(cuMemFreeHost(word));
}

/* A batch in a captured stream is a node of its own kind, and its values are those of the call. */
static void test_a_captured_write_writes_the_same_value_at_every_launch(void **state)
{
    (void)state;
    uint64_t *words;
    CUstream stream;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUgraphNode node = NULL;
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    size_t count = 1;
    assert_done(cuMemHostAlloc((void **)&words, 4096, cudaHostAllocMapped));
    memset(words, 0, 16);
    CUstreamBatchMemOpParams ops[3] = {0};
    ops[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    ops[0].writeValue.address = (CUdeviceptr)(uintptr_t)&words[0];
    ops[0].writeValue.value64 = 11;
    ops[1].memoryBarrier.operation = CU_STREAM_MEM_OP_BARRIER;
    ops[2] = ops[0];
    ops[2].writeValue.address = (CUdeviceptr)(uintptr_t)&words[1];
    assert_done(cuStreamCreate(&stream, cudaStreamNonBlocking));
    assert_done(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    assert_done(cuStreamBatchMemOp(stream, 3, ops, 0));
    ops[0].writeValue.value64 = ops[2].writeValue.value64 = 99; /* too late */
    assert_done(cuStreamEndCapture(stream, &graph));
    assert_done(cuGraphGetNodes(graph, &node, &count));
    assert_int_equal(count, 1);
    assert_done(cuGraphNodeGetType(node, &type));
    assert_int_equal(type, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
    assert_int_equal(words[0], 0);
    assert_done(cuGraphInstantiate(&exec, graph, 0));
    for (int round = 0; round < 2; round++) {
        words[0] = words[1] = 5;
        assert_done(cuGraphLaunch(exec, stream));
        assert_done(cuStreamSynchronize(stream));
        assert_true(word_at(&words[0]) == 11 && word_at(&words[1]) == 11);
    }
    ops[1].operation = CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
    assert_driver(CUDA_ERROR_NOT_SUPPORTED, cuStreamBatchMemOp(stream, 3, ops, 0));
    assert_driver(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(stream, 257, ops, 0));
    assert_driver(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(stream, 0, ops, 0));
    assert_done(cuGraphExecDestroy(exec));
    assert_done(cuGraphDestroy(graph));
    assert_done(cuStreamDestroy(stream));
    assert_done(cuMemFreeHost(words));
}

/* A stream, an event and a graph made through one interface work in the other. */
static void test_handles_are_the_runtimes(void **state)
{
    (void)state;
    cudaStream_t stream;
    CUevent event;
    cudaGraph_t graph;
    CUgraphExec exec;
    CUstreamCaptureStatus status;
    cuuint64_t id = 0;
    unsigned long long same = 0;
    enum cudaStreamCaptureStatus runtime_status;
    CUgraph captured_into = NULL;
    size_t tips = 99;
    atomic_int done = 0;
    assert_success(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    assert_done(cuEventCreate(&event, cudaEventDisableTiming));
    assert_done(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    assert_success(cudaLaunchHostFunc(stream, bump, &done));
    assert_done(cuStreamGetCaptureInfo(stream, &status, &id, &captured_into, NULL, NULL, &tips));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    assert_int_equal(tips, 1);
#if CUDART_VERSION >= 13000
    assert_success(cudaStreamGetCaptureInfo(stream, &runtime_status, &same, NULL, NULL, NULL, NULL));
#else
    assert_success(cudaStreamGetCaptureInfo_v2(stream, &runtime_status, &same, NULL, NULL, NULL));
#endif
    assert_int_equal(same, id);
    assert_success(cudaStreamEndCapture(stream, &graph));
    assert_ptr_equal(graph, captured_into);
    assert_done(cuGraphInstantiate(&exec, graph, 0));
    assert_success(cudaGraphLaunch(exec, stream));
    assert_done(cuEventRecord(event, stream));
    assert_success(cudaEventSynchronize(event));
    assert_int_equal(atomic_load(&done), 1);
    assert_success(cudaGraphExecDestroy(exec));
    assert_done(cuGraphDestroy(graph));
    assert_success(cudaEventDestroy(event));
    assert_done(cuStreamDestroy(stream));
}

static void *found(const char *name, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *result)
{
    void *function = &result;
    assert_done(cuGetProcAddress(name, &function, version, flags, result));
    return function;
}

static void test_functions_are_found_by_name_and_version(void **state)
{
    (void)state;
    CUdriverProcAddressQueryResult result;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *function = NULL;
    assert_non_null(library);
    assert_ptr_equal(found("cuStreamWriteValue64", 12000, 0, &result), dlsym(library, "cuStreamWriteValue64_v2"));
    assert_int_equal(result, CU_GET_PROC_ADDRESS_SUCCESS);
    assert_ptr_equal(found("cuGraphLaunch", 12000, PTSZ, &result), dlsym(library, "cuGraphLaunch_ptsz"));
    assert_ptr_equal(found("cuStreamGetCaptureInfo", 12000, 0, NULL), dlsym(library, "cuStreamGetCaptureInfo_v2"));
    assert_ptr_equal(found("cuStreamGetCaptureInfo", 12030, 0, NULL), dlsym(library, "cuStreamGetCaptureInfo_v3"));
    assert_ptr_equal(found("cuInit", 12000, PTSZ, &result), dlsym(library, "cuInit")); /* has one form only */
    assert_null(found("cuStreamWriteValue64", 11060, 0, &result));
    assert_int_equal(result, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    assert_null(found("cuArrayCreate", 12000, 0, &result)); /* the vendor has it */
    assert_int_equal(result, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    assert_null(found("cuStreamWriteValue64_v2", 12000, 0, &result)); /* the name without its variant is asked for */
    assert_driver(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress("cuInit", &function, 99000, 0, &result));
    assert_driver(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress(NULL, &function, 12000, 0, &result));
    dlclose(library);
}

static void test_the_runtime_finds_functions_of_the_driver(void **state)
{
    (void)state;
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 13000
    assert_success(cudaGetDriverEntryPointByVersion("cuGraphLaunch", &function, 12000, cudaEnableDefault, &result));
    assert_int_equal(result, cudaDriverEntryPointSuccess);
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    assert_ptr_equal(function, dlsym(library, "cuGraphLaunch"));
    assert_success(
        cudaGetDriverEntryPointByVersion("cuGraphLaunch", &function, 12000, cudaEnablePerThreadDefaultStream, &result));
    assert_ptr_equal(function, dlsym(library, "cuGraphLaunch_ptsz"));
    assert_success(
        cudaGetDriverEntryPointByVersion("cuStreamWaitValue64", &function, 9000, cudaEnableDefault, &result));
    assert_int_equal(result, cudaDriverEntryPointVersionNotSufficent);
    assert_null(function);
    assert_success(cudaGetDriverEntryPointByVersion("cuNothing", &function, 12000, cudaEnableDefault, &result));
    assert_int_equal(result, cudaDriverEntryPointSymbolNotFound);
    dlclose(library);
#else
    assert_success(cudaGetDriverEntryPoint("cuGraphLaunch", &function, cudaEnableDefault, &result));
    assert_non_null(function);
#endif
}

/* kernels */

static void count_kernel(void **parameters)
{
    uint64_t *counter = *(uint64_t **)parameters[0];
    __atomic_fetch_add(counter, *(uint32_t *)parameters[1], __ATOMIC_ACQ_REL);
}

static const char ptx[] = "// counts\n.version 7.0\n.target sm_50\n.address_size 64\n"
                          ".visible .entry count_up(.param .u64 counter, .param .u32 step) { ret; }\n"
                          ".visible .entry other(.param .u64 counter) { ret; }\n";

static void test_a_registered_kernel_is_launched_and_captured(void **state)
{
    (void)state;
    const size_t bytes[] = {sizeof(uint64_t *), sizeof(uint32_t)};
    CUmodule module;
    CUfunction function;
    CUstream stream;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    uint64_t *counter;
    uint32_t step = 3;
    assert_done(cuMemHostAlloc((void **)&counter, 64, 0));
    *counter = 0;
    void *arguments[] = {&counter, &step};
    assert_done(cuModuleLoadData(&module, ptx));
    assert_driver(CUDA_ERROR_NOT_FOUND,
                  cuModuleGetFunction(&function, module, "count_up")); /* nothing stands for it yet */
    assert_int_equal(hostcuda_register_kernel("count_up", count_kernel, 2, bytes), 0);
    assert_int_equal(hostcuda_register_kernel("count_up", count_kernel, 2, bytes), -1);
    assert_int_equal(hostcuda_register_kernel("absent", count_kernel, 2, bytes), 0);
    assert_driver(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "absent")); /* not in the module */
    assert_driver(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "count"));
    assert_done(cuModuleGetFunction(&function, module, "count_up"));
    assert_done(cuStreamCreate(&stream, cudaStreamNonBlocking));
    assert_done(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
    assert_done(cuStreamSynchronize(stream));
    assert_int_equal(*counter, 3);
    assert_done(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    assert_done(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, arguments, NULL));
    step = 1000; /* the node has its own copy */
    assert_done(cuStreamEndCapture(stream, &graph));
    assert_done(cuGraphInstantiate(&exec, graph, 0));
    assert_done(cuGraphDestroy(graph));
    assert_done(cuModuleUnload(module));
    for (int i = 0; i < 4; i++) {
        assert_done(cuGraphLaunch(exec, stream));
    }
    assert_done(cuStreamSynchronize(stream));
    assert_int_equal(*counter, 15);
    assert_driver(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
    CUlaunchConfig config = {
        .gridDimX = 8, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 128, .blockDimY = 1, .blockDimZ = 1};
    int clusters = 0, blocks = 0;
    assert_done(cuOccupancyMaxActiveClusters(&clusters, function, &config));
    assert_done(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 128, 0));
    assert_true(blocks > 0 && clusters >= blocks); /* a cluster of one block */
    assert_driver(CUDA_ERROR_INVALID_VALUE, cuOccupancyMaxActiveClusters(&clusters, function, NULL));
    assert_done(cuGraphExecDestroy(exec));
    assert_done(cuStreamDestroy(stream));
    assert_driver(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&module, "\177ELF and so on"));
    assert_driver(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, "int main(void)"));
    assert_done(cuMemFreeHost(counter));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_driver_starts_and_knows_the_devices),
        cmocka_unit_test(test_contexts_follow_the_device_of_the_thread),
        cmocka_unit_test(test_limits_are_kept_for_each_device),
        cmocka_unit_test(test_errors_have_names_and_leave_the_last_error_of_the_runtime_alone),
        cmocka_unit_test(test_words_are_written_and_awaited_in_order),
        cmocka_unit_test(test_every_condition_of_a_wait),
        cmocka_unit_test(test_a_captured_write_writes_the_same_value_at_every_launch),
        cmocka_unit_test(test_handles_are_the_runtimes),
        cmocka_unit_test(test_functions_are_found_by_name_and_version),
        cmocka_unit_test(test_the_runtime_finds_functions_of_the_driver),
        cmocka_unit_test(test_a_registered_kernel_is_launched_and_captured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
