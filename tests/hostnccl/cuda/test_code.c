/*
 * test_code.c: kernels whose code a library runs on the processor (HOSTCUDA_CODE): launches in order and in graphs,
 * what is refused, a fault, libraries of no use, and the descriptions of tensors that such code reads.
 */
#include "tests/hostnccl/cuda/child.h"

#include "hostnccl/cuda/code.h"

void **__cudaRegisterFatBinary(void *image);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, uint3 *thread,
                            uint3 *block, dim3 *threads, dim3 *grid, int *warp);
int cuTensorMapEncodeTiled(void *map, int type, unsigned int rank, void *address, const uint64_t *dims,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int l2, int fill);

enum { NUMBERS = 10, DRIVER_INVALID_VALUE = 1 };

static const char stub_add, stub_faulty, stub_unknown;
static const dim3 GRID = {3, 2, 1}, THREADS = {32, 2, 1};

static void begin(const char *library, const char *policy)
{
    setenv("HOSTCUDA_CODE", library, 1);
    if (policy) {
        setenv("HOSTCUDA_KERNELS", policy, 1);
    }
    void **module = __cudaRegisterFatBinary(NULL);
    __cudaRegisterFunction(module, &stub_add, NULL, "add_numbers", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterFunction(module, &stub_faulty, NULL, "faulty", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterFunction(module, &stub_unknown, NULL, "unknown", -1, NULL, NULL, NULL, NULL, NULL);
}

static void read_back(const uint64_t *from, uint64_t to[NUMBERS])
{
    expect(cudaMemcpy(to, from, NUMBERS * sizeof(*to), cudaMemcpyDeviceToHost) == cudaSuccess);
}

static void runs(void)
{
    uint64_t *out, more = 5, read[NUMBERS];
    char *other;
    struct cudaFuncAttributes attributes;
    begin(ROLL_CODE_LIBRARY, NULL);
    expect(cudaMalloc((void **)&out, NUMBERS * sizeof(*out)) == cudaSuccess);
    expect(cudaMalloc((void **)&other, 1000) == cudaSuccess && cudaFree(other) == cudaSuccess);
    expect(cudaMemset(out, 0, NUMBERS * sizeof(*out)) == cudaSuccess);
    expect(cudaFuncGetAttributes(&attributes, &stub_add) == cudaSuccess);
    void *arguments[] = {&out, &more};
    expect(cudaLaunchKernel(&stub_add, GRID, THREADS, arguments, 100, NULL) == cudaSuccess);
    more = 7; /* each launch has the arguments of its own time */
    expect(cudaLaunchKernel(&stub_add, GRID, THREADS, arguments, 100, NULL) == cudaSuccess);
    read_back(out, read);
    expect(read[0] == 12 && read[1] == 3 && read[2] == 2 && read[3] == 1 && read[4] == 32 && read[5] == 2);
    expect(read[6] == 1 && read[7] == 100 && read[8] == NUMBERS * sizeof(*out) && read[9] == 0);
}

/* A launch says whether it may begin before the kernel in front of it has ended. */
static void overlaps(void)
{
    uint64_t *out, more = 5, read[NUMBERS];
    cudaLaunchAttribute overlap = {.id = cudaLaunchAttributeProgrammaticStreamSerialization};
    cudaLaunchConfig_t config = {.gridDim = GRID, .blockDim = THREADS, .attrs = &overlap, .numAttrs = 1};
    void *arguments[] = {&out, &more};
    begin(ROLL_CODE_LIBRARY, NULL);
    expect(cudaMalloc((void **)&out, NUMBERS * sizeof(*out)) == cudaSuccess);
    expect(cudaMemset(out, 0, NUMBERS * sizeof(*out)) == cudaSuccess);
    for (int allowed = 1; allowed >= 0; allowed--) {
        overlap.val.programmaticStreamSerializationAllowed = allowed;
        expect(cudaLaunchKernelExC(&config, &stub_add, arguments) == cudaSuccess);
        read_back(out, read);
        expect(read[9] == (uint64_t)allowed);
    }
    expect(read[0] == 10);
}

static void runs_in_graphs(void)
{
    uint64_t *out, more = 2, read[NUMBERS];
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    begin(ROLL_CODE_LIBRARY, "host");
    expect(cudaMalloc((void **)&out, NUMBERS * sizeof(*out)) == cudaSuccess);
    expect(cudaMemset(out, 0, NUMBERS * sizeof(*out)) == cudaSuccess);
    expect(cudaStreamCreate(&stream) == cudaSuccess);
    expect(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    void *arguments[] = {&out, &more};
    expect(cudaLaunchKernel(&stub_add, GRID, THREADS, arguments, 0, stream) == cudaSuccess);
    expect(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    more = 100;
    expect(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    expect(cudaGraphLaunch(exec, stream) == cudaSuccess && cudaGraphLaunch(exec, stream) == cudaSuccess);
    expect(cudaStreamSynchronize(stream) == cudaSuccess);
    read_back(out, read);
    expect(read[0] == 4);
}

/* Kernels may touch a graph's memory between its allocation and its end, and no other. */
static void is_told_of_memory_of_graphs(void)
{
    enum { BYTES = 5000, OUT = NUMBERS * sizeof(uint64_t) };
    uint64_t *out[3], more = 1, read[NUMBERS];
    void *memory;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    begin(ROLL_CODE_LIBRARY, NULL);
    expect(cudaStreamCreate(&stream) == cudaSuccess);
    for (int i = 0; i < 3; i++) {
        expect(cudaMalloc((void **)&out[i], OUT) == cudaSuccess);
    }
    expect(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
    for (int i = 0; i < 3; i++) { /* before, while it is there, behind */
        void *arguments[] = {&out[i], &more};
        expect(cudaLaunchKernel(&stub_add, GRID, THREADS, arguments, 0, stream) == cudaSuccess);
        expect(i != 0 || cudaMallocAsync(&memory, BYTES, stream) == cudaSuccess);
        expect(i != 1 || cudaFreeAsync(memory, stream) == cudaSuccess);
    }
    expect(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    expect(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    for (int launch = 0; launch < 2; launch++) {
        expect(cudaGraphLaunch(exec, stream) == cudaSuccess && cudaStreamSynchronize(stream) == cudaSuccess);
        for (int i = 0; i < 3; i++) {
            read_back(out[i], read);
            expect(read[8] == 3 * OUT + (i == 1 ? BYTES : 0));
        }
    }
    expect(cudaGraphExecDestroy(exec) == cudaSuccess && cudaGraphDestroy(graph) == cudaSuccess);
    void *arguments[] = {&out[0], &more};
    expect(cudaLaunchKernel(&stub_add, GRID, THREADS, arguments, 0, stream) == cudaSuccess);
    expect(cudaStreamSynchronize(stream) == cudaSuccess);
    read_back(out[0], read);
    expect(read[8] == 3 * OUT);
}

static void refuses(void)
{
    uint64_t *out, more = 1;
    void *arguments[] = {&out, &more};
    begin(ROLL_CODE_LIBRARY, NULL);
    expect(cudaMalloc((void **)&out, NUMBERS * sizeof(*out)) == cudaSuccess);
    expect(cudaLaunchKernel(&stub_add, GRID, (dim3){65, 1, 1}, arguments, 0, NULL) == cudaErrorLaunchOutOfResources);
    expect(cudaLaunchKernel(&stub_add, GRID, THREADS, NULL, 0, NULL) == cudaErrorInvalidValue);
    expect(cudaFuncSetAttribute(&stub_add, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10) == cudaSuccess);
    expect(cudaLaunchKernel(&stub_add, GRID, THREADS, arguments, 224 << 10, NULL) == cudaErrorInvalidValue);
    expect(cudaLaunchKernel(&stub_add, GRID, THREADS, arguments, 223 << 10, NULL) == cudaSuccess);
    expect(cudaLaunchKernel(&stub_unknown, GRID, THREADS, NULL, 0, NULL) == cudaErrorNotSupported);
}

static void faults(void)
{
    uint64_t *out, more = 1;
    void *arguments[] = {&out, &more};
    begin(ROLL_CODE_LIBRARY, NULL);
    expect(cudaMalloc((void **)&out, NUMBERS * sizeof(*out)) == cudaSuccess);
    expect(cudaLaunchKernel(&stub_faulty, GRID, THREADS, NULL, 0, NULL) == cudaSuccess);
    expect(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
    expect(cudaLaunchKernel(&stub_add, GRID, THREADS, arguments, 0, NULL) == cudaErrorIllegalAddress);
}

static void skips(void)
{
    uint64_t *out, more = 1, read[NUMBERS];
    void *arguments[] = {&out, &more};
    begin(ROLL_CODE_LIBRARY, "skip");
    expect(cudaMalloc((void **)&out, NUMBERS * sizeof(*out)) == cudaSuccess);
    expect(cudaMemset(out, 0, NUMBERS * sizeof(*out)) == cudaSuccess);
    expect(cudaLaunchKernel(&stub_add, GRID, THREADS, arguments, 0, NULL) == cudaSuccess);
    read_back(out, read);
    expect(read[0] == 0);
}

static void is_of_no_use(void)
{
    begin("/does/not/exist.so", NULL);
    expect(cudaLaunchKernel(&stub_unknown, GRID, THREADS, NULL, 0, NULL) == cudaErrorNotSupported);
}

static void is_of_another_release(void)
{
    begin(ROLL_CODE_LIBRARY_OLD, NULL);
    expect(cudaLaunchKernel(&stub_unknown, GRID, THREADS, NULL, 0, NULL) == cudaErrorNotSupported);
}

static void is_no_library_of_code(void)
{
    begin("libc.so.6", NULL);
    expect(cudaLaunchKernel(&stub_unknown, GRID, THREADS, NULL, 0, NULL) == cudaErrorNotSupported);
}

static void test_kernels_of_a_library_run(void **state)
{
    (void)state;
    char text[1024];
    run_child(runs, text, sizeof(text));
    assert_string_equal(text, "");
    run_child(runs_in_graphs, text, sizeof(text));
    run_child(is_told_of_memory_of_graphs, text, sizeof(text));
    run_child(overlaps, text, sizeof(text));
    run_child(skips, text, sizeof(text));
}

static void test_what_a_gpu_would_refuse_is_refused(void **state)
{
    (void)state;
    char text[1024];
    run_child(refuses, text, sizeof(text));
    run_child(faults, text, sizeof(text));
}

static void test_a_library_of_no_use_is_said(void **state)
{
    (void)state;
    static const struct {
        void (*run)(void);
        const char *words;
    } rows[] = {{is_of_no_use, "HOSTCUDA_CODE=/does/not/exist.so is of no use: "},
                {is_of_another_release, "it was built for another hostcuda; kernels are refused"},
                {is_no_library_of_code, "it has no hostcuda_code_table()"}};
    char text[1024];
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        run_child(rows[i].run, text, sizeof(text));
        assert_non_null(strstr(text, rows[i].words));
    }
}

/* A description of bfloat16 numbers, 100 rows of 80, in boxes of 64 x 64 with 128-byte swizzle; each row of the table
 * changes one argument. */
static void test_descriptions_of_tensors(void **state)
{
    (void)state;
    static const struct {
        unsigned int rank;
        uintptr_t at;
        uint64_t rows, stride;
        uint32_t box, step;
        int type, swizzle;
        int result;
    } rows[] = {
        {2, 4096, 100, 160, 64, 1, 9, 3, 0},
        {2, 4096, UINT64_C(1) << 32, 160, 64, 1, 9, 0, 0},
        {0, 4096, 100, 160, 64, 1, 9, 3, DRIVER_INVALID_VALUE},
        {6, 4096, 100, 160, 64, 1, 9, 3, DRIVER_INVALID_VALUE},
        {2, 4104, 100, 160, 64, 1, 9, 3, DRIVER_INVALID_VALUE},
        {2, 0, 100, 160, 64, 1, 9, 3, DRIVER_INVALID_VALUE},
        {2, 4096, 0, 160, 64, 1, 9, 3, DRIVER_INVALID_VALUE},
        {2, 4096, (UINT64_C(1) << 32) + 1, 160, 64, 1, 9, 3, DRIVER_INVALID_VALUE},
        {2, 4096, 100, 168, 64, 1, 9, 3, DRIVER_INVALID_VALUE},
        {2, 4096, 100, 144, 64, 1, 9, 3, DRIVER_INVALID_VALUE},
        {2, 4096, 100, UINT64_C(1) << 40, 64, 1, 9, 3, DRIVER_INVALID_VALUE},
        {2, 4096, 100, 160, 257, 1, 9, 0, DRIVER_INVALID_VALUE},
        {2, 4096, 100, 160, 72, 1, 9, 3, DRIVER_INVALID_VALUE},
        {2, 4096, 100, 160, 4, 1, 9, 0, DRIVER_INVALID_VALUE},
        {2, 4096, 100, 160, 64, 9, 9, 3, DRIVER_INVALID_VALUE},
        {2, 4096, 100, 160, 64, 1, 13, 3, DRIVER_INVALID_VALUE},
        {2, 4096, 100, 160, 64, 1, 9, 4, DRIVER_INVALID_VALUE},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        _Alignas(64) struct hostcuda_tensor_map map;
        memset(&map, 0x5a, sizeof(map));
        uint64_t dims[6] = {80, rows[i].rows, 1, 1, 1, 1}, strides[5] = {rows[i].stride, 0, 0, 0, 0};
        uint32_t box[6] = {rows[i].box, 64, 1, 1, 1, 1}, steps[6] = {1, rows[i].step, 1, 1, 1, 1};
        int result = cuTensorMapEncodeTiled(&map, rows[i].type, rows[i].rank, (void *)rows[i].at, dims, strides, box,
                                            steps, 0, rows[i].swizzle, 2, 0);
        assert_int_equal(result, rows[i].result);
        if (result != 0) {
            assert_int_equal(map.magic, 0x5a5a5a5a); /* untouched */
            continue;
        }
        assert_true(map.magic == HOSTCUDA_TENSOR_MAGIC && map.element_bytes == 2 && map.rank == 2);
        assert_true(map.address == rows[i].at && map.strides[0] == rows[i].stride && map.swizzle == rows[i].swizzle);
        assert_true(map.dims[0] == 80 && map.dims[1] == (uint32_t)rows[i].rows && map.box[0] == 64 && map.box[1] == 64);
    }
    _Alignas(64) char transposed[128]; /* heads of 64 inside rows of 8 heads: the second stride is the larger one */
    uint64_t heads[3] = {64, 100, 8}, apart[2] = {1024, 128}, odd[2] = {1024, 112};
    uint32_t cut[3] = {64, 64, 1}, each[3] = {1, 1, 1};
    assert_int_equal(cuTensorMapEncodeTiled(transposed, 9, 3, (void *)4096, heads, apart, cut, each, 0, 3, 2, 0), 0);
    assert_int_equal(cuTensorMapEncodeTiled(transposed, 9, 3, (void *)4096, heads, odd, cut, each, 0, 3, 2, 0),
                     DRIVER_INVALID_VALUE);
    uint64_t some[5] = {80, 100, 1, 1, 1}, strides[4] = {160, 0, 0, 0};
    uint32_t ones[5] = {64, 1, 1, 1, 1};
    _Alignas(64) char map[192];
    assert_int_equal(cuTensorMapEncodeTiled(map + 16, 9, 2, (void *)4096, some, strides, ones, ones + 1, 0, 3, 2, 0),
                     DRIVER_INVALID_VALUE);
    assert_int_equal(cuTensorMapEncodeTiled(map, 9, 2, (void *)4096, some, NULL, ones, ones + 1, 0, 3, 2, 0),
                     DRIVER_INVALID_VALUE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels_of_a_library_run),
        cmocka_unit_test(test_what_a_gpu_would_refuse_is_refused),
        cmocka_unit_test(test_a_library_of_no_use_is_said),
        cmocka_unit_test(test_descriptions_of_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
