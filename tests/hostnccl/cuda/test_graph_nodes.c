/*
 * test_graph_nodes.c: nodes that are described by the struct for any kind, through the runtime and the driver; nodes
 * with a condition, which keeps the value of its handle; nodes that are switched off.
 */
#include "tests/hostnccl/cuda/child.h"
#include "tests/hostnccl/cuda/gate.h"

#include <cuda.h>
#include <string.h>

static _Atomic unsigned int seen; /* a bit for each function that has run */
static atomic_int runs;

static void note(void *bit)
{
    atomic_fetch_or(&seen, 1u << (uintptr_t)bit);
    atomic_fetch_add(&runs, 1);
}

static cudaError_t add(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *before, size_t count,
                       struct cudaGraphNodeParams *params)
{
#if CUDART_VERSION >= 13000
    return cudaGraphAddNode(node, graph, before, NULL, count, params);
#else
    return cudaGraphAddNode(node, graph, before, count, params);
#endif
}

static cudaGraphNode_t add_note(cudaGraph_t graph, uintptr_t bit, const cudaGraphNode_t *before, size_t count)
{
    cudaGraphNode_t node = NULL;
    struct cudaGraphNodeParams params = {.type = cudaGraphNodeTypeHost};
    params.host.fn = note;
    params.host.userData = (void *)bit;
    assert_success(add(&node, graph, before, count, &params));
    return node;
}

/* Launches twice, and says what has run, of which each must have run twice. */
static unsigned int launched(cudaGraphExec_t exec)
{
    atomic_store(&seen, 0);
    atomic_store(&runs, 0);
    for (int i = 0; i < 2; i++) {
        assert_success(cudaGraphLaunch(exec, NULL));
    }
    assert_success(cudaDeviceSynchronize());
    assert_int_equal(atomic_load(&runs), 2 * __builtin_popcount(atomic_load(&seen)));
    return atomic_load(&seen);
}

static unsigned int ran(cudaGraph_t graph)
{
    cudaGraphExec_t exec;
    assert_success(cudaGraphInstantiate(&exec, graph, 0));
    unsigned int what = launched(exec);
    assert_success(cudaGraphExecDestroy(exec));
    return what;
}

static void test_nodes_of_every_kind(void **state)
{
    (void)state;
    cudaGraph_t graph, child, moved, inner = NULL;
    cudaGraphNode_t node[8];
    cudaEvent_t event;
    char *memory, read[8] = "";
    struct cudaGraphNodeParams params = {.type = cudaGraphNodeTypeMemset};
    assert_success(cudaMalloc((void **)&memory, 64));
    assert_success(cudaEventCreate(&event));
    assert_success(cudaGraphCreate(&graph, 0));
    assert_success(cudaGraphCreate(&child, 0));
    assert_success(cudaGraphCreate(&moved, 0));
    add_note(child, 1, NULL, 0);
    add_note(moved, 2, NULL, 0);

    params.memset.dst = memory;
    params.memset.value = 7;
    params.memset.elementSize = 1;
    params.memset.width = 8;
    params.memset.height = 1;
    assert_success(add(&node[0], graph, NULL, 0, &params));
    params = (struct cudaGraphNodeParams){.type = cudaGraphNodeTypeMemcpy};
    params.memcpy.copyParams.srcPtr = (struct cudaPitchedPtr){memory, 8, 8, 1};
    params.memcpy.copyParams.dstPtr = (struct cudaPitchedPtr){read, 8, 8, 1};
    params.memcpy.copyParams.extent = (struct cudaExtent){8, 1, 1};
    params.memcpy.copyParams.kind = cudaMemcpyDeviceToHost;
    assert_success(add(&node[1], graph, &node[0], 1, &params));
    params = (struct cudaGraphNodeParams){.type = cudaGraphNodeTypeGraph};
    params.graph.graph = child;
    assert_success(add(&node[2], graph, &node[1], 1, &params));
    params.graph.graph = moved;
    params.graph.ownership = cudaGraphChildGraphOwnershipMove;
    assert_success(add(&node[3], graph, &node[2], 1, &params));
    assert_cuda(cudaErrorInvalidValue, add(&node[4], graph, &node[2], 1, &params)); /* it is taken */
    assert_success(cudaGraphChildGraphNodeGetGraph(node[3], &inner));
    assert_ptr_equal(inner, moved);
    assert_cuda(cudaErrorInvalidValue, cudaGraphDestroy(moved));
    params = (struct cudaGraphNodeParams){.type = cudaGraphNodeTypeEventRecord};
    params.eventRecord.event = event;
    assert_success(add(&node[4], graph, &node[3], 1, &params));
    params = (struct cudaGraphNodeParams){.type = cudaGraphNodeTypeEmpty};
    assert_success(add(&node[5], graph, &node[4], 1, &params));
    add_note(moved, 3, NULL, 0); /* its handle is still good */
    assert_int_equal(ran(graph), 1 << 1 | 1 << 2 | 1 << 3);
    assert_memory_equal(read, "\7\7\7\7\7\7\7\7", 8);
    assert_success(cudaEventQuery(event));

    /* the same struct changes a node, here and in an executable graph */
    cudaGraphExec_t exec;
    assert_success(cudaGraphInstantiate(&exec, graph, 0));
    params = (struct cudaGraphNodeParams){.type = cudaGraphNodeTypeMemset};
    params.memset.dst = memory;
    params.memset.value = 9;
    params.memset.elementSize = 1;
    params.memset.width = 8;
    params.memset.height = 1;
    assert_success(cudaGraphExecNodeSetParams(exec, node[0], &params));
    launched(exec);
    assert_int_equal(read[7], 9);
    assert_cuda(cudaErrorInvalidValue, cudaGraphNodeSetParams(node[1], &params)); /* of another kind */
    params.memset.value = 4;
    assert_success(cudaGraphNodeSetParams(node[0], &params));
    launched(exec);
    assert_int_equal(read[7], 9); /* an executable graph is its own */
    assert_success(cudaGraphExecDestroy(exec));
    ran(graph);
    assert_int_equal(read[7], 4);

    /* what is not here says so */
    params = (struct cudaGraphNodeParams){.type = cudaGraphNodeTypeExtSemaphoreWait};
    assert_cuda(cudaErrorNotSupported, add(&node[6], graph, NULL, 0, &params));
    params = (struct cudaGraphNodeParams){.type = cudaGraphNodeTypeMemFree}; /* of nothing */
    assert_cuda(cudaErrorInvalidValue, add(&node[6], graph, NULL, 0, &params));
    params = (struct cudaGraphNodeParams){.type = (enum cudaGraphNodeType)99};
    assert_cuda(cudaErrorInvalidValue, add(&node[6], graph, NULL, 0, &params));
    assert_cuda(cudaErrorInvalidValue, add(&node[6], graph, NULL, 0, NULL));
    assert_success(cudaGraphDestroy(graph));
    assert_cuda(cudaErrorInvalidValue, cudaGraphDestroy(moved)); /* it was the node's */
    assert_success(cudaGraphDestroy(child));
    assert_success(cudaFree(memory));
}

static cudaGraph_t *add_condition(cudaGraph_t graph, unsigned int value, unsigned int flags,
                                  enum cudaGraphConditionalNodeType type, unsigned int size)
{
    cudaGraphNode_t node;
    struct cudaGraphNodeParams params = {.type = cudaGraphNodeTypeConditional};
    assert_success(cudaGraphConditionalHandleCreate(&params.conditional.handle, graph, value, flags));
    params.conditional.type = type;
    params.conditional.size = size;
    assert_success(add(&node, graph, NULL, 0, &params));
    assert_non_null(params.conditional.phGraph_out);
    return params.conditional.phGraph_out;
}

static void test_a_condition_keeps_the_value_of_its_handle(void **state)
{
    (void)state;
    static const struct {
        unsigned int value, flags, size;
        enum cudaGraphConditionalNodeType type;
        unsigned int runs; /* bits of the bodies that run */
    } rows[] = {
        {0, cudaGraphCondAssignDefault, 1, cudaGraphCondTypeIf, 0},
        {1, cudaGraphCondAssignDefault, 1, cudaGraphCondTypeIf, 1},
        {5, cudaGraphCondAssignDefault, 2, cudaGraphCondTypeIf, 1},
        {0, cudaGraphCondAssignDefault, 2, cudaGraphCondTypeIf, 2},
        {1, 0, 2, cudaGraphCondTypeIf, 2}, /* a launch does not begin with the value */
        {0, cudaGraphCondAssignDefault, 1, cudaGraphCondTypeWhile, 0},
        {1, cudaGraphCondAssignDefault, 1, cudaGraphCondTypeWhile, 1}, /* once, or it would never end */
        {2, cudaGraphCondAssignDefault, 4, cudaGraphCondTypeSwitch, 4},
        {4, cudaGraphCondAssignDefault, 4, cudaGraphCondTypeSwitch, 0},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        cudaGraph_t graph, clone;
        assert_success(cudaGraphCreate(&graph, 0));
        cudaGraph_t *bodies = add_condition(graph, rows[i].value, rows[i].flags, rows[i].type, rows[i].size);
        for (unsigned int k = 0; k < rows[i].size; k++) {
            cudaGraphNode_t first = add_note(bodies[k], k, NULL, 0);
            (void)add_note(bodies[k], k + 8, &first, 1);
        }
        assert_int_equal(ran(graph), rows[i].runs | rows[i].runs << 8);
        assert_success(cudaGraphClone(&clone, graph));
        assert_cuda(cudaErrorInvalidValue, cudaGraphDestroy(bodies[0]));
        assert_success(cudaGraphDestroy(graph));
        assert_int_equal(ran(clone), rows[i].runs | rows[i].runs << 8);
        assert_success(cudaGraphDestroy(clone));
    }
}

static void test_conditions_inside_conditions_and_captures(void **state)
{
    (void)state;
    cudaGraph_t graph, *outer, *inner, captured;
    cudaGraphNode_t last, node;
    cudaStream_t stream;
    struct cudaGraphNodeParams params = {.type = cudaGraphNodeTypeConditional};
    assert_success(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    assert_success(cudaGraphCreate(&graph, 0));
    outer = add_condition(graph, 1, cudaGraphCondAssignDefault, cudaGraphCondTypeWhile, 1);
    inner = add_condition(outer[0], 0, cudaGraphCondAssignDefault, cudaGraphCondTypeIf, 2);
    add_note(inner[0], 1, NULL, 0);
    assert_success(cudaStreamBeginCaptureToGraph(stream, inner[1], NULL, NULL, 0, cudaStreamCaptureModeRelaxed));
    assert_success(cudaLaunchHostFunc(stream, note, (void *)2));
    assert_success(cudaStreamEndCapture(stream, &captured));
    assert_ptr_equal(captured, inner[1]);
    size_t count = 1;
    assert_success(cudaGraphGetNodes(graph, &node, &count));
    last = add_note(graph, 3, &node, 1); /* behind the bodies */
    assert_non_null(last);
    assert_int_equal(ran(graph), 1 << 2 | 1 << 3);

    /* what is no condition */
    assert_cuda(cudaErrorInvalidValue, cudaGraphConditionalHandleCreate(&params.conditional.handle, graph, 0, 2));
    assert_cuda(cudaErrorInvalidValue, cudaGraphConditionalHandleCreate(NULL, graph, 0, 0));
    params.conditional.handle = 12;
    params.conditional.size = 1;
    assert_cuda(cudaErrorInvalidValue, add(&node, graph, NULL, 0, &params));
    assert_success(cudaGraphConditionalHandleCreate(&params.conditional.handle, graph, 0, 0));
    params.conditional.size = 3;
    assert_cuda(cudaErrorInvalidValue, add(&node, graph, NULL, 0, &params));
    params.conditional.size = 0;
    assert_cuda(cudaErrorInvalidValue, add(&node, graph, NULL, 0, &params));
    assert_success(cudaGraphDestroy(graph));
}

static void test_a_node_is_switched_off(void **state)
{
    (void)state;
    cudaGraph_t graph, wide;
    cudaGraphNode_t node, host;
    cudaGraphExec_t exec;
    cudaGraphExecUpdateResultInfo info;
    char *memory, byte = 0;
    unsigned int is_on = 7;
    assert_success(cudaMalloc((void **)&memory, 64));
    assert_success(cudaGraphCreate(&graph, 0));
    struct cudaMemsetParams fill = {.dst = memory, .value = 3, .elementSize = 1, .width = 1, .height = 1};
    assert_success(cudaGraphAddMemsetNode(&node, graph, NULL, 0, &fill));
    host = add_note(graph, 1, NULL, 0);
    assert_success(cudaGraphInstantiate(&exec, graph, 0));
    assert_success(cudaGraphNodeGetEnabled(exec, node, &is_on));
    assert_int_equal(is_on, 1);
    assert_cuda(cudaErrorInvalidValue, cudaGraphNodeSetEnabled(exec, host, 0));
    assert_success(cudaGraphNodeSetEnabled(exec, node, 0));
    assert_success(cudaGraphNodeGetEnabled(exec, node, &is_on));
    assert_int_equal(is_on, 0);
    assert_int_equal(launched(exec), 1 << 1);
    assert_success(cudaMemcpy(&byte, memory, 1, cudaMemcpyDeviceToHost));
    assert_int_equal(byte, 0);
    fill.value = 5; /* it stays off when it is changed, alone and with the whole */
    assert_success(cudaGraphExecMemsetNodeSetParams(exec, node, &fill));
    assert_success(cudaGraphClone(&wide, graph));
    assert_success(cudaGraphExecUpdate(exec, wide, &info));
    launched(exec);
    assert_success(cudaMemcpy(&byte, memory, 1, cudaMemcpyDeviceToHost));
    assert_int_equal(byte, 0);
    assert_success(cudaGraphNodeSetEnabled(exec, node, 1));
    launched(exec);
    assert_success(cudaMemcpy(&byte, memory, 1, cudaMemcpyDeviceToHost));
    assert_int_equal(byte, 3);
    assert_success(cudaGraphExecDestroy(exec));
    assert_success(cudaGraphDestroy(graph));
    assert_success(cudaGraphDestroy(wide));
    assert_success(cudaFree(memory));
}

static void test_the_driver_says_the_same(void **state)
{
    (void)state;
    CUgraph graph;
    CUgraphNode node[4];
    CUgraphConditionalHandle handle;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .dstMemoryType = CU_MEMORYTYPE_HOST};
    CUDA_HOST_NODE_PARAMS host = {.fn = note, .userData = (void *)4};
    char *memory, read[4] = "";
    assert_int_equal(cuInit(0), CUDA_SUCCESS);
    assert_success(cudaMalloc((void **)&memory, 64));
    assert_int_equal(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    params.memset.dst = (CUdeviceptr)(uintptr_t)memory;
    params.memset.value = 6;
    params.memset.elementSize = 1;
    params.memset.width = 4;
    params.memset.height = 1;
    assert_int_equal(cuGraphAddNode(&node[0], graph, NULL, NULL, 0, &params), CUDA_SUCCESS);
    copy.srcDevice = (CUdeviceptr)(uintptr_t)memory;
    copy.dstHost = read;
    copy.WidthInBytes = 4;
    copy.Height = copy.Depth = 1;
    assert_int_equal(cuGraphAddMemcpyNode(&node[1], graph, &node[0], 1, &copy, NULL), CUDA_SUCCESS);
    assert_int_equal(cuGraphAddHostNode(&node[2], graph, &node[1], 1, &host), CUDA_SUCCESS);
    assert_int_equal(cuGraphConditionalHandleCreate(&handle, graph, NULL, 1, cudaGraphCondAssignDefault), CUDA_SUCCESS);
    params = (CUgraphNodeParams){.type = (CUgraphNodeType)cudaGraphNodeTypeConditional};
    params.conditional.handle = handle;
    params.conditional.size = 1;
    assert_int_equal(cuGraphAddNode(&node[3], graph, &node[2], NULL, 1, &params), CUDA_SUCCESS);
    add_note(params.conditional.phGraph_out[0], 5, NULL, 0);
    assert_int_equal(ran(graph), 1 << 4 | 1 << 5);
    assert_int_equal(read[3], 6);
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    assert_int_equal(cuGraphAddMemcpyNode(&node[1], graph, NULL, 0, &copy, NULL), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(cuGraphDestroy(graph), CUDA_SUCCESS);
    assert_success(cudaFree(memory));
}

static void says_conditions_once(void)
{
    for (int i = 0; i < 2; i++) {
        cudaGraph_t graph;
        expect(cudaGraphCreate(&graph, 0) == cudaSuccess);
        add_condition(graph, 0, 0, cudaGraphCondTypeIf, 1);
        expect(cudaGraphDestroy(graph) == cudaSuccess);
    }
}

static void test_one_line_says_what_a_condition_is(void **state)
{
    (void)state;
    char text[1024];
    run_child(says_conditions_once, text, sizeof(text));
    const char *first = strstr(text, "a graph has conditions");
    assert_non_null(first);
    assert_null(strstr(first + 1, "a graph has conditions"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_line_says_what_a_condition_is), /* first: it forks */
        cmocka_unit_test(test_nodes_of_every_kind),
        cmocka_unit_test(test_a_condition_keeps_the_value_of_its_handle),
        cmocka_unit_test(test_conditions_inside_conditions_and_captures),
        cmocka_unit_test(test_a_node_is_switched_off),
        cmocka_unit_test(test_the_driver_says_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
