/* test_graph.c: graphs: building, looking at, freezing, launching, changing, and what keeps what alive. */
#include "tests/hostnccl/cuda/gate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS_MAX = 64 };

static atomic_int step_count;
static _Atomic long steps[STEPS_MAX];

static void note(void *what)
{
    int at = atomic_fetch_add(&step_count, 1);
    if (at < STEPS_MAX) {
        atomic_store(&steps[at], (long)(intptr_t)what);
    }
}

static cudaStream_t make_stream(void)
{
    cudaStream_t stream = NULL;
    assert_success(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static cudaGraphNode_t add_note(cudaGraph_t graph, long what, const cudaGraphNode_t *before, size_t count)
{
    cudaGraphNode_t node = NULL;
    const struct cudaHostNodeParams params = {note, (void *)(intptr_t)what};
    assert_success(cudaGraphAddHostNode(&node, graph, before, count, &params));
    return node;
}

static cudaGraphExec_t freeze(cudaGraph_t graph)
{
    cudaGraphExec_t exec = NULL;
    assert_success(cudaGraphInstantiate(&exec, graph, 0));
    return exec;
}

static void launch(cudaGraphExec_t exec, cudaStream_t stream)
{
    atomic_store(&step_count, 0);
    assert_success(cudaGraphLaunch(exec, stream));
    assert_success(cudaStreamSynchronize(stream));
}

static void test_a_launch_follows_the_edges(void **state)
{
    (void)state;
    cudaStream_t stream = make_stream();
    cudaGraph_t graph;
    assert_success(cudaGraphCreate(&graph, 0));
    /* 1 -> 2 -> 4, 1 -> 3 -> 4, made in another order and joined by edges said later. */
    cudaGraphNode_t four = add_note(graph, 4, NULL, 0), one = add_note(graph, 1, NULL, 0);
    cudaGraphNode_t middle[] = {add_note(graph, 2, &one, 1), add_note(graph, 3, &one, 1)}, both[] = {four, four};
#if CUDART_VERSION >= 13000
    assert_success(cudaGraphAddDependencies(graph, middle, both, NULL, 2));
    assert_cuda(cudaErrorInvalidValue, cudaGraphAddDependencies(graph, middle, both, NULL, 1)); /* the edge is there */
#else
    assert_success(cudaGraphAddDependencies(graph, middle, both, 2));
#endif
    cudaGraphExec_t exec = freeze(graph);
    for (int round = 0; round < 20; round++) {
        launch(exec, stream);
        assert_int_equal(atomic_load(&step_count), 4);
        assert_int_equal(atomic_load(&steps[0]), 1);
        assert_int_equal(atomic_load(&steps[1]) + atomic_load(&steps[2]), 5);
        assert_int_equal(atomic_load(&steps[3]), 4);
    }
    assert_success(cudaGraphExecDestroy(exec));
    assert_success(cudaGraphDestroy(graph));
    assert_cuda(cudaErrorInvalidValue, cudaGraphDestroy(graph));
    assert_cuda(cudaErrorInvalidValue, cudaGraphLaunch(exec, stream));
    assert_success(cudaStreamDestroy(stream));
}

static void wait_for(void *sem)
{
    while (sem_wait(sem)) {
    }
}

static void post(void *sem)
{
    sem_post(sem);
}

/* Branches run beside each other, whichever was made first: each waits for something that the other does. */
static void test_branches_run_at_the_same_time(void **state)
{
    (void)state;
    sem_t first, second;
    cudaStream_t stream = make_stream();
    cudaGraph_t graph;
    cudaGraphNode_t a[2], b[2];
    sem_init(&first, 0, 0);
    sem_init(&second, 0, 0);
    const struct cudaHostNodeParams steps_of[4] = {
        {wait_for, &first}, {post, &second}, {post, &first}, {wait_for, &second}};
    assert_success(cudaGraphCreate(&graph, 0));
    assert_success(cudaGraphAddHostNode(&a[0], graph, NULL, 0, &steps_of[0]));
    assert_success(cudaGraphAddHostNode(&a[1], graph, &a[0], 1, &steps_of[1]));
    assert_success(cudaGraphAddHostNode(&b[0], graph, NULL, 0, &steps_of[2]));
    assert_success(cudaGraphAddHostNode(&b[1], graph, &b[0], 1, &steps_of[3]));
    cudaGraphExec_t exec = freeze(graph);
    for (int round = 0; round < 3; round++) {
        launch(exec, stream);
    }
    assert_success(cudaGraphExecDestroy(exec));
    assert_success(cudaGraphDestroy(graph));
    assert_success(cudaStreamDestroy(stream));
}

/* A launch comes after what is on its stream and after the launch before, on whatever stream that was; later work comes
 * after it. */
static void test_launches_of_one_executable_graph_wait_for_each_other(void **state)
{
    (void)state;
    struct gate gate;
    cudaStream_t first = make_stream(), second = make_stream();
    cudaGraph_t graph;
    assert_success(cudaGraphCreate(&graph, 0));
    (void)add_note(graph, 1, NULL, 0);
    (void)add_note(graph, 1, NULL, 0); /* two lanes */
    cudaGraphExec_t exec = freeze(graph);
    atomic_store(&step_count, 0);
    gate_close(&gate, first);
    assert_success(cudaGraphLaunch(exec, first));
    assert_success(cudaGraphLaunch(exec, second));
    assert_success(cudaLaunchHostFunc(second, note, (void *)2));
    sleep_ms(30);
    assert_int_equal(atomic_load(&step_count), 0);
    assert_cuda(cudaErrorNotReady, cudaStreamQuery(second));
    assert_success(cudaGraphExecDestroy(exec)); /* what was launched still runs */
    assert_success(cudaGraphDestroy(graph));
    gate_open(&gate);
    assert_success(cudaStreamSynchronize(second));
    assert_int_equal(atomic_load(&step_count), 5);
    assert_int_equal(atomic_load(&steps[4]), 2);
    assert_success(cudaStreamSynchronize(first));
    assert_success(cudaStreamDestroy(first));
    assert_success(cudaStreamDestroy(second));
}

/* Copies and fills are captured with their arguments; the memory is read when the graph runs, also pageable memory. */
static void test_captured_copies_read_their_source_at_every_launch(void **state)
{
    (void)state;
    cudaStream_t stream = make_stream();
    cudaGraph_t graph = NULL;
    char source[32], back[32];
    char *device;
    assert_success(cudaMalloc((void **)&device, 32));
    memset(source, 'a', sizeof(source));
    memset(back, '-', sizeof(back));
    assert_success(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_success(cudaMemcpyAsync(device, source, 32, cudaMemcpyHostToDevice, stream));
    assert_success(cudaMemsetAsync(device + 8, 'x', 8, stream));
    assert_success(cudaMemcpyAsync(back, device, 32, cudaMemcpyDeviceToHost, stream));
    assert_cuda(cudaErrorInvalidValue, cudaMemcpyAsync(device + 16, source, 32, cudaMemcpyHostToDevice, stream));
    assert_success(cudaStreamEndCapture(stream, &graph));
    assert_int_equal(back[0], '-');
    cudaGraphExec_t exec = freeze(graph);
    for (char letter = 'b'; letter < 'e'; letter++) {
        memset(source, letter, sizeof(source));
        launch(exec, stream);
        assert_true(back[0] == letter && back[8] == 'x' && back[15] == 'x' && back[31] == letter);
    }
    assert_success(cudaGraphExecDestroy(exec));
    assert_success(cudaGraphDestroy(graph));
    assert_success(cudaFree(device));
    assert_success(cudaStreamDestroy(stream));
}

static void test_copies_and_fills_made_by_hand(void **state)
{
    (void)state;
    cudaStream_t stream = make_stream();
    cudaGraph_t graph;
    cudaGraphNode_t fill, copy, line;
    uint16_t *device;
    uint16_t host[2][4] = {{0}}, first = 0;
    assert_success(cudaMalloc((void **)&device, 64));
    struct cudaMemsetParams set = {.dst = device, .value = 0xbeef, .elementSize = 2, .width = 32, .height = 1};
    struct cudaMemcpy3DParms from = {.srcPtr = {device, 16, 16, 4},
                                     .srcPos = {2, 1, 0},
                                     .dstPtr = {host, 8, 8, 2},
                                     .extent = {4, 2, 1},
                                     .kind = cudaMemcpyDeviceToHost};
    assert_success(cudaGraphCreate(&graph, 0));
    assert_success(cudaGraphAddMemsetNode(&fill, graph, NULL, 0, &set));
    assert_success(cudaGraphAddMemcpyNode(&copy, graph, &fill, 1, &from));
    assert_success(cudaGraphAddMemcpyNode1D(&line, graph, &copy, 1, &first, device, 2, cudaMemcpyDeviceToHost));
    set.elementSize = 3;
    assert_cuda(cudaErrorInvalidValue, cudaGraphAddMemsetNode(&fill, graph, NULL, 0, &set));
    from.extent.height = 4; /* over the end of the memory */
    from.srcPos.y = 3;
    assert_cuda(cudaErrorInvalidValue, cudaGraphAddMemcpyNode(&copy, graph, NULL, 0, &from));
    cudaGraphExec_t exec = freeze(graph);
    launch(exec, stream);
    assert_true(host[0][0] == 0xbeef && host[1][1] == 0xbeef && host[0][2] == 0 && host[1][2] == 0 && first == 0xbeef);
    assert_success(cudaGraphMemsetNodeGetParams(fill, &set));
    assert_true(set.elementSize == 2 && set.value == 0xbeef && set.width == 32);
    set.value = 0xcafe; /* in the executable graph alone */
    assert_success(cudaGraphExecMemsetNodeSetParams(exec, fill, &set));
    launch(exec, stream);
    assert_int_equal(first, 0xcafe);
    assert_success(cudaGraphMemsetNodeGetParams(fill, &set));
    assert_int_equal(set.value, 0xbeef);
    assert_success(cudaGraphExecMemcpyNodeSetParams1D(exec, line, &first, device + 1, 2, cudaMemcpyDeviceToHost));
    assert_cuda(cudaErrorInvalidValue,
                cudaGraphExecMemcpyNodeSetParams1D(exec, line, device, device + 1, 2, cudaMemcpyDeviceToDevice));
    assert_cuda(cudaErrorInvalidValue, cudaGraphExecMemsetNodeSetParams(exec, copy, &set)); /* not a fill */
    assert_success(cudaGraphExecDestroy(exec));
    assert_success(cudaGraphDestroy(graph));
    assert_success(cudaFree(device));
    assert_success(cudaStreamDestroy(stream));
}

static void test_a_child_graph_is_a_copy_between_its_neighbours(void **state)
{
    (void)state;
    cudaStream_t stream = make_stream();
    cudaGraph_t child, graph, inner = NULL;
    cudaGraphNode_t node;
    assert_success(cudaGraphCreate(&child, 0));
    assert_success(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t two = add_note(child, 2, NULL, 0);
    (void)add_note(child, 3, &two, 1);
    cudaGraphNode_t one = add_note(graph, 1, NULL, 0);
    assert_success(cudaGraphAddChildGraphNode(&node, graph, &one, 1, child));
    (void)add_note(graph, 4, &node, 1);
    (void)add_note(child, 9, NULL, 0); /* too late for the copy */
    assert_success(cudaGraphChildGraphNodeGetGraph(node, &inner));
    assert_ptr_not_equal(inner, child);
    assert_cuda(cudaErrorInvalidValue, cudaGraphDestroy(inner)); /* the node's */
    assert_success(cudaGraphDestroy(child));
    cudaGraphExec_t exec = freeze(graph);
    launch(exec, stream);
    assert_int_equal(atomic_load(&step_count), 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(atomic_load(&steps[i]), i + 1);
    }
    /* A launch into a captured stream is a child graph, too. */
    size_t count = 1;
    enum cudaGraphNodeType type;
    cudaGraph_t captured = NULL;
    assert_success(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_success(cudaGraphLaunch(exec, stream));
    assert_success(cudaStreamEndCapture(stream, &captured));
    assert_success(cudaGraphGetNodes(captured, &node, &count));
    assert_success(cudaGraphNodeGetType(node, &type));
    assert_true(count == 1 && type == cudaGraphNodeTypeGraph);
    cudaGraphExec_t outer = freeze(captured);
    launch(outer, stream);
    assert_int_equal(atomic_load(&step_count), 4);
    assert_success(cudaGraphExecDestroy(outer));
    assert_success(cudaGraphDestroy(captured));
    assert_success(cudaGraphExecDestroy(exec));
    assert_success(cudaGraphDestroy(graph));
    assert_success(cudaStreamDestroy(stream));
}

/* An event node records for the outside: pending from the launch on, done when the node has run. */
static void test_external_events_tie_a_launch_to_other_streams(void **state)
{
    (void)state;
    struct gate gate;
    cudaStream_t stream = make_stream(), other = make_stream();
    cudaEvent_t go, done;
    cudaGraph_t graph = NULL;
    assert_success(cudaEventCreate(&go));
    assert_success(cudaEventCreate(&done));
    assert_success(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_success(cudaStreamWaitEvent(stream, go, cudaEventWaitExternal));
    assert_success(cudaLaunchHostFunc(stream, note, (void *)1));
    assert_success(cudaEventRecordWithFlags(done, stream, cudaEventRecordExternal));
    assert_success(cudaStreamEndCapture(stream, &graph));
    cudaGraphExec_t exec = freeze(graph);
    for (int round = 0; round < 2; round++) {
        atomic_store(&step_count, 0);
        gate_close(&gate, other);
        assert_success(cudaEventRecord(go, other));
        assert_success(cudaGraphLaunch(exec, stream));
        assert_cuda(cudaErrorNotReady, cudaEventQuery(done));
        sleep_ms(20);
        assert_int_equal(atomic_load(&step_count), 0);
        gate_open(&gate);
        assert_success(cudaEventSynchronize(done));
        assert_int_equal(atomic_load(&step_count), 1);
        assert_success(cudaStreamSynchronize(other));
    }
    assert_success(cudaStreamSynchronize(stream));
    assert_success(cudaGraphExecDestroy(exec));
    assert_success(cudaGraphDestroy(graph));
    assert_success(cudaEventDestroy(go));
    assert_success(cudaEventDestroy(done));
    assert_success(cudaStreamDestroy(stream));
    assert_success(cudaStreamDestroy(other));
}

static void test_an_update_needs_the_same_shape(void **state)
{
    (void)state;
    cudaStream_t stream = make_stream();
    cudaGraph_t graph, same, shorter, other_kind;
    cudaGraphExecUpdateResultInfo info;
    cudaGraphNode_t empty;
    assert_success(cudaGraphCreate(&graph, 0));
    assert_success(cudaGraphCreate(&same, 0));
    assert_success(cudaGraphCreate(&shorter, 0));
    assert_success(cudaGraphCreate(&other_kind, 0));
    cudaGraphNode_t node = add_note(graph, 1, NULL, 0);
    (void)add_note(graph, 2, &node, 1);
    cudaGraphNode_t changed = add_note(same, 11, NULL, 0);
    (void)add_note(same, 12, &changed, 1);
    (void)add_note(shorter, 5, NULL, 0);
    cudaGraphNode_t kind = add_note(other_kind, 6, NULL, 0);
    assert_success(cudaGraphAddEmptyNode(&empty, other_kind, &kind, 1));
    cudaGraphExec_t exec = freeze(graph);
    assert_success(cudaGraphExecUpdate(exec, same, &info));
    assert_int_equal(info.result, cudaGraphExecUpdateSuccess);
    launch(exec, stream);
    assert_true(atomic_load(&steps[0]) == 11 && atomic_load(&steps[1]) == 12);
    assert_cuda(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(exec, shorter, &info));
    assert_int_equal(info.result, cudaGraphExecUpdateErrorTopologyChanged);
    assert_cuda(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(exec, other_kind, &info));
    assert_int_equal(info.result, cudaGraphExecUpdateErrorNodeTypeChanged);
    assert_ptr_equal(info.errorNode, empty);
    launch(exec, stream); /* a refused update changes nothing */
    assert_true(atomic_load(&steps[0]) == 11 && atomic_load(&steps[1]) == 12);
    const struct cudaHostNodeParams params = {note, (void *)21};
    assert_success(cudaGraphExecHostNodeSetParams(exec, node, &params)); /* named by the graph that was instantiated */
    assert_cuda(cudaErrorInvalidValue, cudaGraphExecHostNodeSetParams(exec, changed, &params));
    launch(exec, stream);
    assert_true(atomic_load(&steps[0]) == 21 && atomic_load(&steps[1]) == 12);
    assert_success(cudaGraphExecDestroy(exec));
    assert_success(cudaGraphDestroy(graph));
    assert_success(cudaGraphDestroy(same));
    assert_success(cudaGraphDestroy(shorter));
    assert_success(cudaGraphDestroy(other_kind));
    assert_success(cudaStreamDestroy(stream));
}

/* A launch that runs keeps what it was launched with. */
static void test_an_update_does_not_touch_a_launch_that_runs(void **state)
{
    (void)state;
    struct gate gate;
    cudaStream_t stream = make_stream();
    cudaGraph_t graph;
    assert_success(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t node = add_note(graph, 1, NULL, 0);
    cudaGraphExec_t exec = freeze(graph);
    const struct cudaHostNodeParams params = {note, (void *)2};
    atomic_store(&step_count, 0);
    gate_close(&gate, stream);
    assert_success(cudaGraphLaunch(exec, stream));
    assert_success(cudaGraphExecHostNodeSetParams(exec, node, &params));
    assert_success(cudaGraphLaunch(exec, stream));
    gate_open(&gate);
    assert_success(cudaStreamSynchronize(stream));
    assert_true(atomic_load(&steps[0]) == 1 && atomic_load(&steps[1]) == 2);
    assert_success(cudaGraphExecDestroy(exec));
    assert_success(cudaGraphDestroy(graph));
    assert_success(cudaStreamDestroy(stream));
}

static void test_a_graph_tells_what_is_in_it(void **state)
{
    (void)state;
    cudaGraph_t graph, clone;
    cudaGraphNode_t nodes[4], found = NULL;
    struct cudaHostNodeParams params;
    size_t count = 0;
    assert_success(cudaGraphCreate(&graph, 0));
    assert_cuda(cudaErrorInvalidValue, cudaGraphCreate(&clone, 1));
    cudaGraphNode_t a = add_note(graph, 1, NULL, 0), b = add_note(graph, 2, &a, 1), c = add_note(graph, 3, NULL, 0);
    assert_success(cudaGraphGetNodes(graph, NULL, &count));
    assert_int_equal(count, 3);
    count = 4;
    assert_success(cudaGraphGetNodes(graph, nodes, &count));
    assert_true(count == 3 && nodes[0] == a && nodes[1] == b && nodes[2] == c && !nodes[3]);
    assert_success(cudaGraphGetRootNodes(graph, nodes, &count));
    assert_true(count == 2 && nodes[0] == a && nodes[1] == c);
    assert_success(cudaGraphHostNodeGetParams(b, &params));
    assert_true(params.fn == note && params.userData == (void *)2);
    assert_success(cudaGraphClone(&clone, graph));
    assert_success(cudaGraphNodeFindInClone(&found, b, clone));
    assert_ptr_not_equal(found, b);
    assert_success(cudaGraphHostNodeGetParams(found, &params));
    assert_ptr_equal(params.userData, (void *)2);
    assert_cuda(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, found, graph));
    assert_success(cudaGraphDestroyNode(a));
    assert_cuda(cudaErrorInvalidValue, cudaGraphDestroyNode(a));
    count = 0;
    assert_success(cudaGraphGetRootNodes(graph, NULL, &count));
    assert_int_equal(count, 2); /* b depends on nothing now */
    assert_success(cudaGraphGetNodes(clone, NULL, &count));
    assert_int_equal(count, 3);
    assert_success(cudaGraphDestroy(graph));
    assert_success(cudaGraphDestroy(clone));
}

static void test_a_cycle_cannot_be_frozen(void **state)
{
    (void)state;
    cudaGraph_t graph;
    cudaGraphExec_t exec = NULL;
    cudaGraphInstantiateParams params = {0};
    assert_success(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t a = add_note(graph, 1, NULL, 0), b = add_note(graph, 2, &a, 1);
#if CUDART_VERSION >= 13000
    assert_success(cudaGraphAddDependencies(graph, &b, &a, NULL, 1));
#else
    assert_success(cudaGraphAddDependencies(graph, &b, &a, 1));
#endif
    assert_cuda(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, graph, 0));
    assert_cuda(cudaErrorInvalidValue, cudaGraphInstantiateWithParams(&exec, graph, &params));
    assert_int_equal(params.result_out, cudaGraphInstantiateInvalidStructure);
#if CUDART_VERSION >= 13000
    assert_success(cudaGraphRemoveDependencies(graph, &b, &a, NULL, 1));
#else
    assert_success(cudaGraphRemoveDependencies(graph, &b, &a, 1));
#endif
    assert_success(cudaGraphInstantiateWithFlags(&exec, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
    unsigned long long flags = 0;
    assert_success(cudaGraphExecGetFlags(exec, &flags));
    assert_int_equal(flags, cudaGraphInstantiateFlagAutoFreeOnLaunch);
    assert_success(cudaGraphExecDestroy(exec));
    assert_cuda(cudaErrorNotSupported,
                cudaGraphInstantiateWithFlags(&exec, graph, cudaGraphInstantiateFlagDeviceLaunch));
    assert_success(cudaGraphDestroy(graph));
}

/* user objects */

static bool reaches(atomic_int *value, int wanted)
{
    for (int i = 0; i < 100000 && atomic_load(value) != wanted; i++) {
        sleep_ms(2);
    }
    return atomic_load(value) == wanted;
}

static void test_a_user_object_lives_as_long_as_what_holds_it(void **state)
{
    (void)state;
    struct gate gate;
    cudaStream_t stream = make_stream();
    cudaUserObject_t object = NULL;
    cudaGraph_t graph, clone;
    atomic_int dead = 0;
    assert_cuda(cudaErrorInvalidValue, cudaUserObjectCreate(&object, &dead, bump, 1, 0));
    assert_success(cudaUserObjectCreate(&object, &dead, bump, 1, cudaUserObjectNoDestructorSync));
    assert_success(cudaGraphCreate(&graph, 0));
    (void)add_note(graph, 1, NULL, 0);
    assert_success(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    assert_success(cudaGraphClone(&clone, graph));
    cudaGraphExec_t exec = freeze(clone);
    assert_success(cudaGraphDestroy(graph));
    assert_success(cudaGraphDestroy(clone));
    gate_close(&gate, stream);
    assert_success(cudaGraphLaunch(exec, stream));
    assert_success(cudaGraphExecDestroy(exec)); /* the launch still holds it */
    sleep_ms(20);
    assert_int_equal(atomic_load(&dead), 0);
    gate_open(&gate);
    assert_success(cudaStreamSynchronize(stream));
    assert_true(reaches(&dead, 1));
    assert_cuda(cudaErrorInvalidValue, cudaUserObjectRetain(object, 1));
    assert_success(cudaStreamDestroy(stream));
}

static void test_user_objects_are_counted(void **state)
{
    (void)state;
    cudaUserObject_t object = NULL;
    cudaGraph_t graph;
    atomic_int dead = 0;
    assert_success(cudaUserObjectCreate(&object, &dead, bump, 2, cudaUserObjectNoDestructorSync));
    assert_success(cudaUserObjectRetain(object, 3));
    assert_cuda(cudaErrorInvalidValue, cudaUserObjectRelease(object, 6)); /* more than there are */
    assert_success(cudaUserObjectRelease(object, 4));
    assert_success(cudaGraphCreate(&graph, 0));
    assert_success(cudaGraphRetainUserObject(graph, object, 2, 0));
    assert_success(cudaUserObjectRelease(object, 1));
    assert_cuda(cudaErrorInvalidValue, cudaGraphReleaseUserObject(graph, object, 3));
    assert_success(cudaGraphReleaseUserObject(graph, object, 1));
    sleep_ms(10);
    assert_int_equal(atomic_load(&dead), 0);
    assert_success(cudaGraphReleaseUserObject(graph, object, 1));
    assert_true(reaches(&dead, 1));
    assert_success(cudaGraphDestroy(graph));
}

static void test_a_graph_can_be_drawn(void **state)
{
    (void)state;
    char path[] = "/tmp/hostcuda-dot-XXXXXX", text[512] = "";
    cudaGraph_t graph;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_success(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t a = add_note(graph, 1, NULL, 0);
    (void)add_note(graph, 2, &a, 1);
    assert_success(cudaGraphDebugDotPrint(graph, path, 0));
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    assert_true(fread(text, 1, sizeof(text) - 1, in) > 0);
    fclose(in);
    unlink(path);
    assert_non_null(strstr(text, "\"0\" -> \"1\""));
    assert_non_null(strstr(text, "host"));
    assert_cuda(cudaErrorOperatingSystem, cudaGraphDebugDotPrint(graph, "/nowhere/at/all", 0));
    assert_success(cudaGraphDestroy(graph));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_launch_follows_the_edges),
        cmocka_unit_test(test_branches_run_at_the_same_time),
        cmocka_unit_test(test_launches_of_one_executable_graph_wait_for_each_other),
        cmocka_unit_test(test_captured_copies_read_their_source_at_every_launch),
        cmocka_unit_test(test_copies_and_fills_made_by_hand),
        cmocka_unit_test(test_a_child_graph_is_a_copy_between_its_neighbours),
        cmocka_unit_test(test_external_events_tie_a_launch_to_other_streams),
        cmocka_unit_test(test_an_update_needs_the_same_shape),
        cmocka_unit_test(test_an_update_does_not_touch_a_launch_that_runs),
        cmocka_unit_test(test_a_graph_tells_what_is_in_it),
        cmocka_unit_test(test_a_cycle_cannot_be_frozen),
        cmocka_unit_test(test_a_user_object_lives_as_long_as_what_holds_it),
        cmocka_unit_test(test_user_objects_are_counted),
        cmocka_unit_test(test_a_graph_can_be_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
