/*
 * test_kernel.c: launches of kernels under each policy, in every form; what is checked before, and what is counted.
 */
#include "tests/hostnccl/cuda/child.h"

#include "hostnccl/cuda/driver_kernel.h"

/* What the compiler calls in a program with kernels. */
void **__cudaRegisterFatBinary(void *image);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, uint3 *thread,
                            uint3 *block, dim3 *threads, dim3 *grid, int *warp);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t bytes, int constant,
                       int global);
unsigned int __cudaPushCallConfiguration(dim3 grid, dim3 threads, size_t shared_bytes, struct CUstream_st *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *threads, size_t *shared_bytes, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *func);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 threads, void **arguments, size_t shared_bytes,
                               cudaStream_t stream);

static const char stub_add, stub_other; /* stand for the functions of the host */
static char variable[100];
static void **module;

static const dim3 ONE = {1, 1, 1}, WARP = {32, 1, 1};

static void register_kernels(const char *policy)
{
    if (policy) {
        setenv("HOSTCUDA_KERNELS", policy, 1);
    }
    setenv("HOSTCUDA_REPORT", report_folder(), 1);
    module = __cudaRegisterFatBinary(NULL);
    __cudaRegisterFunction(module, &stub_add, NULL, "add_numbers", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterFunction(module, &stub_other, NULL, "other", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterVar(module, variable, NULL, "variable", 0, sizeof(variable), 0, 0);
}

static void skips(void)
{
    char report[4096];
    cudaKernel_t kernel;
    cudaLaunchConfig_t config = {.gridDim = ONE, .blockDim = WARP};
    register_kernels("skip");
    expect(cudaLaunchKernel(&stub_add, ONE, WARP, NULL, 0, NULL) == cudaSuccess);
    expect(cudaLaunchKernelExC(&config, &stub_add, NULL) == cudaSuccess);
    expect(cudaLaunchCooperativeKernel(&stub_add, ONE, WARP, NULL, 0, cudaStreamPerThread) == cudaSuccess);
    expect(__cudaGetKernel(&kernel, &stub_other) == cudaSuccess);
    expect(__cudaLaunchKernel(kernel, ONE, WARP, NULL, 0, NULL) == cudaSuccess);
    expect(cudaGetLastError() == cudaSuccess);
    expect(cudaDeviceSynchronize() == cudaSuccess);
    read_report(report, sizeof(report));
    expect(strstr(report, "kernel skipped 00000000000000000003 add_numbers\n"));
    expect(strstr(report, "kernel skipped 00000000000000000001 other\n"));
}

static void refuses_what_a_gpu_would(void)
{
    int bytes = 100 << 10;
    struct cudaFuncAttributes attributes;
    cudaStream_t gone = (cudaStream_t)(uintptr_t)64;
    register_kernels("skip");
    expect(cudaLaunchKernel(variable, ONE, WARP, NULL, 0, NULL) == cudaErrorInvalidDeviceFunction);
    expect(cudaLaunchKernel(&stub_add, (dim3){0, 1, 1}, WARP, NULL, 0, NULL) == cudaErrorInvalidConfiguration);
    expect(cudaLaunchKernel(&stub_add, (dim3){1, 65536, 1}, WARP, NULL, 0, NULL) == cudaErrorInvalidConfiguration);
    expect(cudaLaunchKernel(&stub_add, ONE, (dim3){1025, 1, 1}, NULL, 0, NULL) == cudaErrorInvalidConfiguration);
    expect(cudaLaunchKernel(&stub_add, ONE, WARP, NULL, 0, gone) == cudaErrorInvalidResourceHandle);
    expect(cudaLaunchKernel(&stub_add, ONE, WARP, NULL, (size_t)bytes, NULL) == cudaErrorInvalidValue);
    expect(cudaFuncSetAttribute(&stub_add, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) == cudaSuccess);
    expect(cudaLaunchKernel(&stub_add, ONE, WARP, NULL, (size_t)bytes, NULL) == cudaSuccess);
    expect(cudaFuncGetAttributes(&attributes, &stub_add) == cudaSuccess);
    expect(attributes.maxDynamicSharedSizeBytes == bytes && attributes.maxThreadsPerBlock == 1024);
    expect(cudaFuncSetAttribute(&stub_add, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20) ==
           cudaErrorInvalidValue);
    __cudaUnregisterFatBinary(module);
    expect(cudaLaunchKernel(&stub_add, ONE, WARP, NULL, 0, NULL) == cudaErrorInvalidDeviceFunction);
}

/* As when a process of a framework ends: each of many modules goes by itself, and takes its own kernels only. */
static void modules_go_one_by_one(void)
{
    enum { MODULES = 300, KERNELS = 40 };
    static char stubs[MODULES][KERNELS][16];
    static void **modules[MODULES];
    setenv("HOSTCUDA_KERNELS", "skip", 1);
    for (int m = 0; m < MODULES; m++) {
        modules[m] = __cudaRegisterFatBinary(NULL);
        for (int k = 0; k < KERNELS; k++) {
            __cudaRegisterFunction(modules[m], stubs[m][k], NULL, "kernel", -1, NULL, NULL, NULL, NULL, NULL);
        }
    }
    /* the same address again, for the last module: then it is no kernel of the first one any more */
    __cudaRegisterFunction(modules[MODULES - 1], stubs[0][0], NULL, "kernel", -1, NULL, NULL, NULL, NULL, NULL);
    for (int first = 0; first < 3; first++) { /* every third, so that neighbours stay and go */
        for (int m = first; m < MODULES; m += 3) {
            if (m != MODULES - 1) {
                __cudaUnregisterFatBinary(modules[m]);
            }
        }
        for (int m = 0; m < MODULES; m++) {
            bool is_there = m % 3 > first || m == MODULES - 1;
            for (int k = 0; k < KERNELS; k++) {
                cudaError_t got = cudaLaunchKernel(stubs[m][k], ONE, WARP, NULL, 0, NULL);
                expect(got == (is_there || (m == 0 && k == 0) ? cudaSuccess : cudaErrorInvalidDeviceFunction));
            }
        }
    }
    __cudaUnregisterFatBinary(modules[MODULES - 1]);
    expect(cudaLaunchKernel(stubs[0][0], ONE, WARP, NULL, 0, NULL) == cudaErrorInvalidDeviceFunction);
}

static void captures_what_it_skips(void)
{
    char report[4096];
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t node;
    enum cudaGraphNodeType type;
    struct cudaKernelNodeParams params;
    size_t count = 1;
    register_kernels("skip");
    expect(cudaStreamCreate(&stream) == cudaSuccess);
    expect(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    expect(cudaLaunchKernel(&stub_add, (dim3){7, 1, 1}, WARP, NULL, 0, stream) == cudaSuccess);
    expect(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    expect(cudaGraphGetNodes(graph, &node, &count) == cudaSuccess && count == 1);
    expect(cudaGraphNodeGetType(node, &type) == cudaSuccess && type == cudaGraphNodeTypeKernel);
    expect(cudaGraphKernelNodeGetParams(node, &params) == cudaSuccess && params.gridDim.x == 7);
    expect(cudaGraphAddKernelNode(&node, graph, &node, 1, &params) == cudaSuccess);
    expect(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    for (int i = 0; i < 3; i++) {
        expect(cudaGraphLaunch(exec, stream) == cudaSuccess);
    }
    expect(cudaStreamSynchronize(stream) == cudaSuccess);
    read_report(report, sizeof(report));
    expect(strstr(report, "kernel skipped 00000000000000000006 add_numbers\n"));
}

static void keeps_what_stands_between_the_brackets(void)
{
    dim3 grid, threads;
    size_t bytes;
    cudaStream_t stream;
    expect(__cudaPushCallConfiguration((dim3){3, 2, 1}, WARP, 11, cudaStreamPerThread) == 0);
    expect(__cudaPushCallConfiguration(ONE, ONE, 0, NULL) == 0);
    expect(__cudaPopCallConfiguration(&grid, &threads, &bytes, (void *)&stream) == cudaSuccess);
    expect(grid.x == 1 && !bytes && !stream);
    expect(__cudaPopCallConfiguration(&grid, &threads, &bytes, (void *)&stream) == cudaSuccess);
    expect(grid.x == 3 && grid.y == 2 && threads.x == 32 && bytes == 11 && stream == cudaStreamPerThread);
    expect(__cudaPopCallConfiguration(&grid, &threads, &bytes, (void *)&stream) == cudaErrorMissingConfiguration);
}

static void refuses_all(void)
{
    char report[4096];
    register_kernels("refuse");
    expect(cudaLaunchKernel(&stub_add, ONE, WARP, NULL, 0, NULL) == cudaErrorNotSupported);
    expect(cudaGetLastError() == cudaErrorNotSupported);
    expect(cudaLaunchKernel(&stub_other, ONE, WARP, NULL, 0, NULL) == cudaErrorNotSupported);
    read_report(report, sizeof(report));
    expect(strstr(report, "kernel refused 00000000000000000001 other\n"));
}

static void refuses_without_a_word(void)
{
    struct cudaFuncAttributes attributes;
    register_kernels(NULL);
    expect(cudaFuncGetAttributes(&attributes, &stub_add) == cudaErrorNoKernelImageForDevice);
    expect(cudaGetLastError() == cudaErrorNoKernelImageForDevice);
    expect(cudaLaunchKernel(&stub_add, ONE, WARP, NULL, 0, NULL) == cudaErrorNotSupported);
}

static void add_numbers(void **parameters)
{
    **(int **)parameters[0] += *(int *)parameters[1];
}

static void runs_twins(void)
{
    int *sum, more = 5, read = 0;
    char report[4096];
    const size_t bytes[] = {sizeof(void *), sizeof(int)};
    register_kernels("host");
    expect(hostcuda_register_kernel("add_numbers", add_numbers, 2, bytes) == 0);
    expect(cudaMalloc((void **)&sum, sizeof(*sum)) == cudaSuccess);
    void *arguments[] = {&sum, &more};
    expect(cudaLaunchKernel(&stub_add, ONE, WARP, arguments, 0, NULL) == cudaSuccess);
    more = 7;
    expect(cudaLaunchKernel(&stub_add, ONE, WARP, arguments, 0, NULL) == cudaSuccess);
    expect(cudaLaunchKernel(&stub_other, ONE, WARP, NULL, 0, NULL) == cudaSuccess);
    expect(cudaMemcpy(&read, sum, sizeof(read), cudaMemcpyDeviceToHost) == cudaSuccess);
    expect(read == 12);
    read_report(report, sizeof(report));
    expect(strstr(report, "kernel run 00000000000000000002 add_numbers\n"));
    expect(strstr(report, "kernel skipped 00000000000000000001 other\n"));
}

static void copies_variables(void)
{
    char in[100], out[100] = "";
    void *address;
    size_t size;
    register_kernels("skip");
    memset(in, 7, sizeof(in));
    expect(cudaGetSymbolSize(&size, variable) == cudaSuccess && size == sizeof(variable));
    expect(cudaMemcpyFromSymbol(out, variable, sizeof(out), 0, cudaMemcpyDeviceToHost) == cudaSuccess);
    expect(out[0] == 0 && out[99] == 0);
    expect(cudaMemcpyToSymbol(variable, in, 50, 50, cudaMemcpyHostToDevice) == cudaSuccess);
    expect(cudaMemcpyToSymbol(variable, in, 51, 50, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    expect(cudaGetSymbolAddress(&address, variable) == cudaSuccess);
    expect(cudaMemcpy(out, address, sizeof(out), cudaMemcpyDeviceToHost) == cudaSuccess);
    expect(out[49] == 0 && out[50] == 7 && out[99] == 7);
    expect(cudaGetSymbolAddress(&address, in) == cudaErrorInvalidSymbol);
}

static void counts_blocks(void)
{
    int blocks = -1;
    size_t bytes;
    register_kernels("skip");
    expect(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, &stub_add, 1024, 0) == cudaSuccess && blocks == 2);
    expect(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, &stub_add, 32, 0) == cudaSuccess && blocks == 32);
    expect(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, &stub_add, 32, 100 << 10) == cudaSuccess);
    expect(blocks == 2);
    expect(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, &stub_add, 0, 0) == cudaErrorInvalidValue);
    expect(cudaOccupancyAvailableDynamicSMemPerBlock(&bytes, &stub_add, 2, 1024) == cudaSuccess);
    expect(bytes == (114 << 10) - 1024);
}

static void loads_libraries(void)
{
    static const char ptx[] = "// made by hand\n.version 8.0\n.visible .entry twice(.param .u64 p)\n{ ret; }\n";
    cudaLibrary_t library;
    cudaKernel_t kernel;
    unsigned int count;
    register_kernels("skip");
    expect(cudaLibraryLoadData(&library, "no code", NULL, NULL, 0, NULL, NULL, 0) == cudaErrorInvalidKernelImage);
    expect(cudaLibraryLoadFromFile(&library, "/does/not/exist", NULL, NULL, 0, NULL, NULL, 0) == cudaErrorFileNotFound);
    expect(cudaLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0) == cudaSuccess);
    expect(cudaLibraryGetKernel(&kernel, library, "once") == cudaErrorSymbolNotFound);
    expect(cudaLibraryGetKernel(&kernel, library, "twice") == cudaSuccess);
    expect(cudaLaunchKernel(kernel, ONE, WARP, NULL, 0, NULL) == cudaSuccess);
    expect(cudaLibraryGetKernelCount(&count, library) == cudaErrorNotSupported);
    expect(cudaLibraryGetKernelCount(&count, library) == cudaErrorNotSupported);
    expect(cudaLibraryUnload(library) == cudaSuccess);
    expect(cudaLibraryUnload(library) == cudaErrorInvalidResourceHandle);
}

static void nonsense(void)
{
    register_kernels("perhaps");
    expect(cudaLaunchKernel(&stub_add, ONE, WARP, NULL, 0, NULL) == cudaErrorNotSupported);
}

/* One line, with the words. */
static void assert_line(const char *text, const char *words)
{
    assert_non_null(strstr(text, words));
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
}

static void test_a_skipped_launch_is_checked_and_counted(void **state)
{
    (void)state;
    char text[1024];
    run_child(skips, text, sizeof(text));
    assert_string_equal(text, "");
    run_child(refuses_what_a_gpu_would, text, sizeof(text));
    run_child(captures_what_it_skips, text, sizeof(text));
    run_child(modules_go_one_by_one, text, sizeof(text));
    run_child(keeps_what_stands_between_the_brackets, text, sizeof(text));
}

static void test_a_refused_launch_is_an_error_and_says_so_once(void **state)
{
    (void)state;
    char text[1024];
    run_child(refuses_all, text, sizeof(text));
    assert_line(text, "add_numbers is refused: HOSTCUDA_KERNELS=refuse");
    run_child(refuses_without_a_word, text, sizeof(text));
    assert_line(text, "HOSTCUDA_KERNELS=skip");
    run_child(nonsense, text, sizeof(text));
    assert_non_null(strstr(text, "HOSTCUDA_KERNELS=perhaps"));
}

static void test_a_kernel_with_a_twin_runs_on_the_host(void **state)
{
    (void)state;
    char text[1024];
    run_child(runs_twins, text, sizeof(text));
}

static void test_variables_occupancy_and_libraries(void **state)
{
    (void)state;
    char text[1024];
    run_child(copies_variables, text, sizeof(text));
    run_child(counts_blocks, text, sizeof(text));
    run_child(loads_libraries, text, sizeof(text));
    assert_line(text, "cudaLibraryGetKernelCount is not supported"); /* once */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_skipped_launch_is_checked_and_counted),
        cmocka_unit_test(test_a_refused_launch_is_an_error_and_says_so_once),
        cmocka_unit_test(test_a_kernel_with_a_twin_runs_on_the_host),
        cmocka_unit_test(test_variables_occupancy_and_libraries),
    };
    return cmocka_run_group_tests(tests, make_reports, remove_reports);
}
