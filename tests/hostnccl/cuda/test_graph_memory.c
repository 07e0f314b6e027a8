/*
 * test_graph_memory.c: memory that a graph owns: in stream order in a capture, and by nodes of its own; how long it
 * lives, who may free it, what it costs the device, and what a graph that has such nodes cannot do. What is expected is
 * the vendor's documentation of these nodes.
 */
#include "tests/hostnccl/cuda/gate.h"

#include <string.h>

enum { BYTES = 3 * 4096 + 100 };

static cudaStream_t stream;

static int make_stream(void **state)
{
    (void)state;
    return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess;
}

static uint64_t attribute(enum cudaGraphMemAttributeType what)
{
    uint64_t value = ~UINT64_C(0);
    assert_success(cudaDeviceGetGraphMemAttribute(0, what, &value));
    return value;
}

static uint64_t used(void)
{
    uint64_t bytes = attribute(cudaGraphMemAttrUsedMemCurrent);
    assert_int_equal(bytes, attribute(cudaGraphMemAttrReservedMemCurrent));
    return bytes;
}

/* What the device has given away. */
static size_t taken(void)
{
    size_t left, total;
    assert_success(cudaMemGetInfo(&left, &total));
    return total - left;
}

static void begin(void)
{
    assert_success(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
}

static cudaGraph_t end(void)
{
    cudaGraph_t graph = NULL;
    assert_success(cudaStreamEndCapture(stream, &graph));
    return graph;
}

/* The capture is invalid and ends without a graph; the stream works again. */
static void end_invalid(void)
{
    cudaGraph_t graph = (cudaGraph_t)&stream;
    assert_cuda(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
    assert_null(graph);
    assert_success(cudaStreamSynchronize(stream));
}

static cudaGraphExec_t made(cudaGraph_t graph, unsigned long long flags)
{
    cudaGraphExec_t exec = NULL;
    assert_success(cudaGraphInstantiate(&exec, graph, flags));
    return exec;
}

/* Allocates and fills in a capture, and leaves the memory. */
static cudaGraph_t leaving(char **memory, int value)
{
    begin();
    assert_success(cudaMallocAsync((void **)memory, BYTES, stream));
    assert_non_null(*memory);
    assert_success(cudaMemsetAsync(*memory, value, BYTES, stream));
    return end();
}

static void run(cudaGraphExec_t exec)
{
    assert_success(cudaGraphLaunch(exec, stream));
    assert_success(cudaStreamSynchronize(stream));
}

static size_t count_of(cudaGraph_t graph, enum cudaGraphNodeType type)
{
    cudaGraphNode_t nodes[16];
    size_t count = 16, found = 0;
    assert_success(cudaGraphGetNodes(graph, nodes, &count));
    for (size_t i = 0; i < count; i++) {
        enum cudaGraphNodeType is;
        assert_success(cudaGraphNodeGetType(nodes[i], &is));
        found += is == type;
    }
    return found;
}

/* A launch finds what the one before it wrote only where the program put it: the memory begins anew. */
static void test_memory_of_a_capture(void **state)
{
    (void)state;
    char *memory = NULL, out[4] = "", *other = NULL;
    size_t before = taken();
    begin();
    assert_success(cudaMallocAsync((void **)&memory, BYTES, stream));
    assert_success(cudaMemcpyAsync(&out[0], memory + BYTES - 1, 1, cudaMemcpyDeviceToHost, stream));
    assert_success(cudaMemsetAsync(memory, 7, BYTES, stream));
    assert_success(cudaMemcpyAsync(&out[1], memory + BYTES - 1, 1, cudaMemcpyDeviceToHost, stream));
    assert_success(cudaFreeAsync(memory, stream));
    cudaGraph_t graph = end();
    assert_int_equal(count_of(graph, cudaGraphNodeTypeMemAlloc), 1);
    assert_int_equal(count_of(graph, cudaGraphNodeTypeMemFree), 1);
    cudaGraphExec_t exec = made(graph, 0);
    assert_int_equal(used(), 0); /* nothing has been launched */
    assert_int_equal(taken(), before);
    for (int i = 0; i < 3; i++) {
        memset(out, 1, sizeof(out));
        run(exec);
        assert_int_equal(out[0], 0); /* hostcuda's fresh memory */
        assert_int_equal(out[1], 7);
        assert_int_equal(used(), 0);
        assert_int_equal(taken(), before);
    }
    assert_int_equal(attribute(cudaGraphMemAttrUsedMemHigh), BYTES);
    assert_int_equal(attribute(cudaGraphMemAttrReservedMemHigh), BYTES);
    uint64_t value = 1;
    assert_cuda(cudaErrorInvalidValue, cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &value));
    value = 0;
    assert_cuda(cudaErrorInvalidValue, cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &value));
    assert_success(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &value));
    assert_int_equal(attribute(cudaGraphMemAttrUsedMemHigh), 0);
    assert_success(cudaDeviceGraphMemTrim(0));

    /* nobody else has the address while the graph lives, and nobody but the graph frees it */
    assert_success(cudaMalloc((void **)&other, BYTES));
    assert_true(other + BYTES <= memory || memory + BYTES <= other);
    assert_success(cudaFree(other));
    assert_cuda(cudaErrorInvalidValue, cudaFree(memory));
    assert_cuda(cudaErrorInvalidValue, cudaFreeAsync(memory, stream));
    assert_success(cudaGraphExecDestroy(exec));
    assert_success(cudaGraphDestroy(graph));
    struct cudaPointerAttributes what;
    assert_success(cudaPointerGetAttributes(&what, memory));
    assert_int_equal(what.type, cudaMemoryTypeUnregistered);
}

/* Launches behind each other share what they allocate: the device pays once, and until the last of them has freed. */
static void test_launches_in_flight(void **state)
{
    (void)state;
    char *memory = NULL;
    struct gate gate;
    size_t before = taken();
    begin();
    assert_success(cudaMallocAsync((void **)&memory, BYTES, stream));
    assert_success(cudaMemsetAsync(memory, 1, BYTES, stream));
    assert_success(cudaFreeAsync(memory, stream));
    cudaGraph_t graph = end();
    cudaGraphExec_t exec = made(graph, 0);
    gate_close(&gate, stream);
    assert_success(cudaGraphLaunch(exec, stream));
    assert_success(cudaGraphLaunch(exec, stream));
    assert_int_equal(used(), BYTES);
    assert_int_equal(taken(), before + BYTES);
    assert_success(cudaGraphExecDestroy(exec)); /* the launches have what they need */
    assert_success(cudaGraphDestroy(graph));
    gate_open(&gate);
    assert_success(cudaStreamSynchronize(stream));
    assert_int_equal(used(), 0);
    assert_int_equal(taken(), before);
}

static void test_memory_that_is_left(void **state)
{
    (void)state;
    char *memory = NULL, out = 0;
    size_t before = taken();
    cudaGraph_t graph = leaving(&memory, 9);
    cudaGraphExec_t exec = made(graph, 0);
    assert_cuda(cudaErrorInvalidValue, cudaFreeAsync(memory, stream)); /* there is none yet */
    assert_cuda(cudaErrorInvalidValue, cudaFree(memory));
    run(exec);
    assert_int_equal(used(), BYTES);
    assert_cuda(cudaErrorInvalidValue, cudaGraphLaunch(exec, stream)); /* it is still there */
    assert_success(cudaMemcpyAsync(&out, memory + 5, 1, cudaMemcpyDeviceToHost, stream));
    assert_success(cudaStreamSynchronize(stream));
    assert_int_equal(out, 9);
    assert_success(cudaFreeAsync(memory, stream));
    assert_cuda(cudaErrorInvalidValue, cudaFreeAsync(memory, stream));
    run(exec); /* again, behind the free */
    assert_int_equal(used(), BYTES);
    assert_success(cudaFree(memory));
    assert_cuda(cudaErrorInvalidValue, cudaFree(memory));
    assert_int_equal(used(), 0);
    assert_int_equal(taken(), before);

    /* it outlives its graph, until it is freed */
    run(exec);
    assert_success(cudaGraphExecDestroy(exec));
    assert_success(cudaGraphDestroy(graph));
    assert_success(cudaMemcpy(&out, memory + 6, 1, cudaMemcpyDeviceToHost));
    assert_int_equal(out, 9);
    assert_int_equal(used(), BYTES);
    assert_success(cudaFreeAsync(memory, stream));
    assert_success(cudaStreamSynchronize(stream));
    assert_int_equal(taken(), before);
    assert_cuda(cudaErrorInvalidValue, cudaFree(memory));
}

static void test_what_is_left_is_freed_by_the_next_launch(void **state)
{
    (void)state;
    char *memory = NULL, out = 0;
    cudaGraph_t graph = leaving(&memory, 4);
    cudaGraphExec_t exec = made(graph, cudaGraphInstantiateFlagAutoFreeOnLaunch);
    for (int i = 0; i < 3; i++) {
        run(exec);
        assert_int_equal(used(), BYTES);
        assert_success(cudaMemcpy(&out, memory, 1, cudaMemcpyDeviceToHost));
        assert_int_equal(out, 4);
        assert_success(cudaMemsetAsync(memory, 5, BYTES, stream));
    }
    assert_success(cudaFree(memory));
    assert_int_equal(used(), 0);
    run(exec); /* nothing is left: nothing to free */
    assert_success(cudaFree(memory));
    assert_success(cudaGraphExecDestroy(exec));
    assert_success(cudaGraphDestroy(graph));
}

/* Memory that one graph allocates and another frees. */
static void test_memory_between_graphs(void **state)
{
    (void)state;
    char *memory = NULL, out = 0;
    size_t before = taken();
    cudaGraph_t first = leaving(&memory, 3);
    begin();
    assert_success(cudaMemcpyAsync(&out, memory, 1, cudaMemcpyDeviceToHost, stream));
    assert_success(cudaFreeAsync(memory, stream));
    cudaGraph_t second = end();
    cudaGraphNode_t node = NULL;
    assert_cuda(cudaErrorInvalidValue, cudaGraphAddMemFreeNode(&node, first, NULL, 0, memory));  /* too late */
    assert_cuda(cudaErrorInvalidValue, cudaGraphAddMemFreeNode(&node, second, NULL, 0, memory)); /* twice */
    cudaGraphExec_t allocates = made(first, 0), frees = made(second, 0);
    assert_cuda(cudaErrorInvalidValue, cudaGraphLaunch(frees, stream)); /* nothing is there */
    for (int i = 0; i < 2; i++) {
        out = 0;
        assert_success(cudaGraphLaunch(allocates, stream));
        assert_success(cudaGraphLaunch(frees, stream));
        assert_success(cudaStreamSynchronize(stream));
        assert_int_equal(out, 3);
        assert_int_equal(taken(), before);
    }
    assert_cuda(cudaErrorInvalidValue, cudaGraphLaunch(frees, stream));
    assert_cuda(cudaErrorInvalidValue, cudaFree(memory));
    assert_success(cudaGraphExecDestroy(allocates));
    assert_success(cudaGraphExecDestroy(frees));
    assert_success(cudaGraphDestroy(first));
    assert_success(cudaGraphDestroy(second));
}

static void test_nodes_by_hand(void **state)
{
    (void)state;
    cudaGraph_t graph, other;
    cudaGraphNode_t node[4];
    struct cudaMemAllocNodeParams params = {.poolProps = {.allocType = cudaMemAllocationTypePinned,
                                                          .location = {.type = cudaMemLocationTypeDevice, .id = 1}},
                                            .bytesize = BYTES};
    assert_success(cudaGraphCreate(&graph, 0));
    assert_success(cudaGraphCreate(&other, 0));
    assert_success(cudaGraphAddMemAllocNode(&node[0], graph, NULL, 0, &params));
    char *memory = params.dptr;
    struct cudaMemsetParams fill = {.dst = memory, .value = 6, .elementSize = 1, .width = BYTES, .height = 1};
    assert_success(cudaGraphAddMemsetNode(&node[1], graph, &node[0], 1, &fill));
    assert_success(cudaGraphAddMemFreeNode(&node[2], graph, &node[1], 1, memory));
    assert_cuda(cudaErrorInvalidValue, cudaGraphAddMemFreeNode(&node[3], graph, &node[1], 1, memory));
    assert_cuda(cudaErrorInvalidValue, cudaGraphAddMemFreeNode(&node[3], other, NULL, 0, memory));
    assert_cuda(cudaErrorInvalidValue, cudaGraphAddMemFreeNode(&node[3], other, NULL, 0, memory + 1));
    void *freed = NULL;
    assert_success(cudaGraphMemFreeNodeGetParams(node[2], &freed));
    assert_ptr_equal(freed, memory);
    assert_cuda(cudaErrorInvalidValue, cudaGraphMemFreeNodeGetParams(node[0], &freed));
    memset(&params, 0xff, sizeof(params));
    assert_success(cudaGraphMemAllocNodeGetParams(node[0], &params));
    assert_ptr_equal(params.dptr, memory);
    assert_int_equal(params.bytesize, BYTES);
    assert_int_equal(params.poolProps.location.id, 1);
    struct cudaPointerAttributes what;
    assert_success(cudaPointerGetAttributes(&what, memory));
    assert_int_equal(what.type, cudaMemoryTypeDevice);
    assert_int_equal(what.device, 1);
    cudaGraphExec_t exec = made(graph, 0);
    run(exec);
    params.bytesize = 0;
    assert_cuda(cudaErrorInvalidValue, cudaGraphAddMemAllocNode(&node[3], graph, NULL, 0, &params));
    params.bytesize = 16;
    params.poolProps.location.id = 99;
    assert_cuda(cudaErrorInvalidDevice, cudaGraphAddMemAllocNode(&node[3], graph, NULL, 0, &params));
    assert_success(cudaGraphExecDestroy(exec));
    assert_success(cudaGraphDestroy(graph));
    assert_success(cudaGraphDestroy(other));
}

static void test_what_such_a_graph_cannot_do(void **state)
{
    (void)state;
    char *memory = NULL;
    cudaGraph_t graph = leaving(&memory, 1), copy, parent, child;
    cudaGraphExec_t exec = made(graph, 0), again;
    cudaGraphNode_t nodes[2], node;
    size_t count = 2;
    assert_success(cudaGraphGetNodes(graph, nodes, &count));
    assert_cuda(cudaErrorInvalidValue, cudaGraphInstantiate(&again, graph, 0));
    assert_cuda(cudaErrorNotSupported, cudaGraphClone(&copy, graph));
    assert_cuda(cudaErrorNotSupported, cudaGraphDestroyNode(nodes[1]));
#if CUDART_VERSION >= 13000
    assert_cuda(cudaErrorNotSupported, cudaGraphRemoveDependencies(graph, &nodes[0], &nodes[1], NULL, 1));
#else
    assert_cuda(cudaErrorNotSupported, cudaGraphRemoveDependencies(graph, &nodes[0], &nodes[1], 1));
#endif
    assert_success(cudaGraphCreate(&parent, 0));
    assert_cuda(cudaErrorNotSupported, cudaGraphAddChildGraphNode(&node, parent, NULL, 0, graph));

    /* nor can a graph inside another get such nodes */
    assert_success(cudaGraphCreate(&child, 0));
    assert_success(cudaGraphAddEmptyNode(&node, child, NULL, 0));
    assert_success(cudaGraphAddChildGraphNode(&node, parent, NULL, 0, child));
    cudaGraph_t inner;
    assert_success(cudaGraphChildGraphNodeGetGraph(node, &inner));
    struct cudaMemAllocNodeParams params = {
        .poolProps = {.allocType = cudaMemAllocationTypePinned, .location = {.type = cudaMemLocationTypeDevice}},
        .bytesize = BYTES};
    assert_cuda(cudaErrorNotSupported, cudaGraphAddMemAllocNode(&node, inner, NULL, 0, &params));
    begin();
    assert_cuda(cudaErrorStreamCaptureUnsupported, cudaGraphLaunch(exec, stream));
    end_invalid();

    /* an update may change what is around the memory, not the memory */
    cudaGraphExecUpdateResultInfo info;
    assert_success(cudaGraphExecUpdate(exec, graph, &info));
    char *others = NULL;
    cudaGraph_t alike = leaving(&others, 1);
    assert_cuda(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(exec, alike, &info));
    assert_int_equal(info.result, cudaGraphExecUpdateErrorParametersChanged);
    run(exec);
    assert_success(cudaFree(memory));

    assert_success(cudaGraphExecDestroy(exec));
    exec = made(graph, 0); /* the first one is gone */
    assert_success(cudaGraphDestroy(graph));
    assert_success(cudaGraphExecDestroy(exec));
    assert_success(cudaGraphDestroy(parent));
    assert_success(cudaGraphDestroy(child));
    assert_success(cudaGraphDestroy(alike));
}

static void test_what_a_capture_does_not_free(void **state)
{
    (void)state;
    void *memory = NULL, *none = &stream;
    assert_success(cudaMallocAsync(&memory, BYTES, stream));
    begin();
    assert_cuda(cudaErrorInvalidValue, cudaFreeAsync(memory, stream)); /* it is no graph's */
    assert_cuda(cudaErrorStreamCaptureInvalidated, cudaMallocAsync(&none, BYTES, stream));
    assert_null(none);
    end_invalid();
    assert_success(cudaFreeAsync(memory, stream));
    assert_success(cudaStreamSynchronize(stream));
    begin();
    assert_success(cudaMallocAsync(&none, 0, stream)); /* as outside of captures: nothing */
    assert_null(none);
    assert_success(cudaMallocAsync(&memory, BYTES, stream));
    assert_success(cudaFreeAsync(memory, stream));
    assert_cuda(cudaErrorInvalidValue, cudaFreeAsync(memory, stream)); /* twice in one graph */
    end_invalid();
}

/* The pool says where; its own count and its limit are not a graph's. */
static void test_pool(void **state)
{
    (void)state;
    struct cudaMemPoolProps properties = {.allocType = cudaMemAllocationTypePinned,
                                          .location = {.type = cudaMemLocationTypeDevice, .id = 1},
                                          .maxSize = 16};
    cudaMemPool_t pool;
    void *memory = NULL;
    uint64_t in_pool = 1;
    assert_success(cudaMemPoolCreate(&pool, &properties));
    begin();
    assert_success(cudaMallocFromPoolAsync(&memory, BYTES, pool, stream));
    assert_success(cudaFreeAsync(memory, stream));
    cudaGraph_t graph = end();
    struct cudaPointerAttributes what;
    assert_success(cudaPointerGetAttributes(&what, memory));
    assert_int_equal(what.device, 1);
    assert_success(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &in_pool));
    assert_int_equal(in_pool, 0);
    assert_success(cudaMemPoolDestroy(pool));
    cudaGraphExec_t exec = made(graph, 0);
    run(exec);
    assert_success(cudaGraphExecDestroy(exec));
    assert_success(cudaGraphDestroy(graph));
}

/* A launch that the device has no room for does nothing, and takes nothing. */
static void test_no_room(void **state)
{
    (void)state;
    size_t left, total;
    void *small = NULL, *large = NULL;
    assert_success(cudaMemGetInfo(&left, &total));
    begin();
    assert_success(cudaMallocAsync(&small, BYTES, stream));
    assert_success(cudaMallocAsync(&large, left, stream));
    assert_success(cudaFreeAsync(large, stream));
    assert_success(cudaFreeAsync(small, stream));
    cudaGraph_t graph = end();
    cudaGraphExec_t exec = made(graph, 0);
    for (int i = 0; i < 2; i++) {
        assert_cuda(cudaErrorMemoryAllocation, cudaGraphLaunch(exec, stream));
        assert_success(cudaStreamSynchronize(stream));
        assert_int_equal(used(), 0);
    }
    size_t now;
    assert_success(cudaMemGetInfo(&now, &total));
    assert_int_equal(now, left);
    assert_success(cudaGraphExecDestroy(exec));
    assert_success(cudaGraphDestroy(graph));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_memory_of_a_capture, nothing_left, nothing_left),
        cmocka_unit_test_setup_teardown(test_launches_in_flight, nothing_left, nothing_left),
        cmocka_unit_test_setup_teardown(test_memory_that_is_left, nothing_left, nothing_left),
        cmocka_unit_test_setup_teardown(test_what_is_left_is_freed_by_the_next_launch, nothing_left, nothing_left),
        cmocka_unit_test_setup_teardown(test_memory_between_graphs, nothing_left, nothing_left),
        cmocka_unit_test_setup_teardown(test_nodes_by_hand, nothing_left, nothing_left),
        cmocka_unit_test_setup_teardown(test_what_such_a_graph_cannot_do, nothing_left, nothing_left),
        cmocka_unit_test_setup_teardown(test_what_a_capture_does_not_free, nothing_left, nothing_left),
        cmocka_unit_test_setup_teardown(test_pool, nothing_left, nothing_left),
        cmocka_unit_test_setup_teardown(test_no_room, nothing_left, nothing_left),
    };
    return cmocka_run_group_tests(tests, make_stream, NULL);
}
