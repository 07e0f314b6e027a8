/*
 * graph_job.c: programs that capture NCCL calls into CUDA graphs and launch them: `interposer_graph MODE`. On the
 * fakes.
 */
#include "interposer/wrap/nccl_types.h"
#include "tests/interposer/fakecuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROLL_API_CALL(id, name, params, ...)      ncclResult_t name params;
#define ROLL_API_LIFE(id, name, params, args)     ncclResult_t name params;
#define ROLL_API_PASS(id, ret, name, params, ...) ret name params;
#define ROLL_API_JUMP(id, name)
#define ROLL_API_VERSION 22809
#include "interposer/wrap/api.def"
#undef ROLL_API_VERSION

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "graph_job: line %d: %s\n", __LINE__, #condition);                                         \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

#define STREAM(n) ((void *)(uintptr_t)(0x7000 + 16 * (n)))

static char buffer[65536];

static ncclComm_t new_comm(int rank, int nranks)
{
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    ncclGetUniqueId(&id);
    return ncclCommInitRank(&comm, nranks, id, rank) == ncclSuccess ? comm : NULL;
}

static ncclResult_t reduce(ncclComm_t comm, size_t count, void *stream)
{
    return ncclAllReduce(buffer, buffer, count, 7, ncclSum, comm, stream);
}

/* `calls` AllReduces of count, count + 1, ... captured on `stream`, instantiated; NULL on failure. */
static void *captured(ncclComm_t comm, void *stream, size_t count, int calls, void **graph)
{
    void *exec = NULL;
    if (cudaStreamBeginCapture(stream, 0) != 0) {
        return NULL;
    }
    for (int i = 0; i < calls; i++) {
        if (reduce(comm, count + (size_t)i, stream) != ncclSuccess) {
            return NULL;
        }
    }
    return cudaStreamEndCapture(stream, graph) == 0 && cudaGraphInstantiate(&exec, *graph, 0) == 0 ? exec : NULL;
}

static int plain(void)
{
    ncclComm_t comm = new_comm(0, 2);
    void *graph = NULL, *exec, *empty = NULL, *none = NULL;
    CHECK(reduce(comm, 5, STREAM(1)) == ncclSuccess);
    CHECK(fake_queries == 0); /* while no capture is open, CUDA is asked nothing */
    exec = captured(comm, STREAM(1), 10, 3, &graph);
    CHECK(exec != NULL);
    int asked = fake_queries;
    CHECK(asked > 0);
    CHECK(reduce(comm, 6, STREAM(1)) == ncclSuccess);
    CHECK(fake_queries == asked);
    CHECK(cudaGraphLaunch(exec, STREAM(2)) == 0);
    CHECK(cudaGraphLaunch(exec, STREAM(2)) == 0);
    CHECK(fake_launches == 2);
    /* A graph without NCCL calls writes no record. */
    CHECK(cudaStreamBeginCapture(STREAM(3), 0) == 0);
    CHECK(cudaStreamEndCapture(STREAM(3), &empty) == 0);
    CHECK(cudaGraphInstantiateWithFlags(&none, empty, 0) == 0);
    CHECK(cudaGraphLaunch(none, STREAM(2)) == 0);
    /* The executable graph lives on without its graph. After it is destroyed, its address is used again by a graph that
     * holds nothing.
     */
    CHECK(cudaGraphDestroy(graph) == 0);
    CHECK(cudaGraphLaunch(exec, STREAM(2)) == 0);
    CHECK(cudaGraphExecDestroy(exec) == 0);
    void *again[2] = {NULL, NULL};
    CHECK(cudaGraphInstantiateWithFlags(&again[0], empty, 0) == 0);
    CHECK(cudaGraphInstantiateWithFlags(&again[1], empty, 0) == 0);
    CHECK(again[0] == exec || again[1] == exec);
    CHECK(cudaGraphLaunch(exec, STREAM(2)) == 0);
    fake_launch_error = 719;
    exec = captured(comm, STREAM(1), 20, 1, &graph);
    CHECK(cudaGraphLaunch(exec, STREAM(2)) == 719);
    fake_launch_error = 0;
    CHECK(reduce(comm, 7, STREAM(1)) == ncclSuccess);
    return 0;
}

/* Two communicators, messages, a joined stream, a stream that is not captured, a call that fails, a call of nothing. */
static int mixed(void)
{
    ncclComm_t a = new_comm(0, 2), b = new_comm(1, 4);
    void *graph = NULL, *exec = NULL;
    CHECK(cudaStreamBeginCapture(STREAM(1), 0) == 0);
    fake_join(STREAM(2), STREAM(1));
    CHECK(reduce(a, 10, STREAM(1)) == ncclSuccess);
    CHECK(reduce(b, 11, STREAM(2)) == ncclSuccess);
    CHECK(reduce(b, 12, STREAM(3)) == ncclSuccess); /* not captured */
    CHECK(reduce(a, 0, STREAM(1)) == ncclSuccess);
    CHECK(ncclAllReduce(buffer, buffer, 13, 7, 5, a, STREAM(1)) == ncclInvalidArgument);
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclSend(buffer, 14, 7, 1, a, STREAM(1)) == ncclSuccess);
    CHECK(ncclRecv(buffer, 15, 7, 1, a, STREAM(1)) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    CHECK(cudaStreamEndCapture(STREAM(1), &graph) == 0);
    CHECK(cudaGraphInstantiate(&exec, graph, 0) == 0);
    CHECK(cudaGraphLaunch(exec, STREAM(1)) == 0);
    CHECK(ncclSend(buffer, 16, 7, 1, a, STREAM(1)) == ncclSuccess);
    return 0;
}

/* The same calls reach a graph in different ways: at once, as parent and child, twice into one graph, by an update, by
 * a clone. */
static int derived(void)
{
    ncclComm_t comm = new_comm(0, 2);
    void *whole = NULL, *first = NULL, *second = NULL, *exec[6], *clone = NULL, *parent = NULL;
    exec[0] = captured(comm, STREAM(1), 10, 5, &whole);
    exec[1] = captured(comm, STREAM(1), 10, 2, &first);
    exec[2] = captured(comm, STREAM(1), 12, 3, &second);
    CHECK(exec[0] != NULL && exec[1] != NULL && exec[2] != NULL);
    CHECK(cudaGraphAddChildGraphNode(NULL, first, NULL, 0, second) == 0);
    CHECK(cudaGraphInstantiate(&exec[3], first, 0) == 0);
    CHECK(cudaGraphClone(&clone, whole) == 0);
    CHECK(cudaGraphInstantiate(&exec[4], clone, 0) == 0);
    CHECK(cudaStreamBeginCapture(STREAM(1), 0) == 0); /* launches into a capture */
    CHECK(cudaGraphLaunch(exec[1], STREAM(1)) == 0);
    CHECK(cudaGraphLaunch(exec[2], STREAM(1)) == 0);
    CHECK(cudaStreamEndCapture(STREAM(1), &parent) == 0);
    CHECK(cudaGraphInstantiate(&exec[5], parent, 0) == 0);
    CHECK(cudaGraphLaunch(exec[0], STREAM(1)) == 0);
    CHECK(cudaGraphLaunch(exec[3], STREAM(1)) == 0);
    CHECK(cudaGraphLaunch(exec[4], STREAM(1)) == 0);
    CHECK(cudaGraphLaunch(exec[5], STREAM(1)) == 0);
    CHECK(cudaGraphExecUpdate(exec[2], whole, NULL) == 0);
    CHECK(cudaGraphLaunch(exec[2], STREAM(1)) == 0);
    CHECK(cudaGraphLaunch(exec[1], STREAM(1)) == 0); /* another hash than these five */
    return 0;
}

/* The driver's entry points, one of them as cuGetProcAddress gives it. */
static int driver(void)
{
    ncclComm_t comm = new_comm(0, 2);
    void *graph = NULL, *exec = NULL, *found = NULL, *twice = NULL;
    CHECK(cuStreamBeginCapture_v2(STREAM(1), 0) == 0);
    CHECK(reduce(comm, 10, STREAM(1)) == ncclSuccess);
    CHECK(cuStreamEndCapture(STREAM(1), &graph) == 0);
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0) == 0);
    CHECK(cuGraphLaunch(exec, STREAM(1)) == 0);
    CHECK(cuGetProcAddress_v2("cuGraphLaunch", &found, 12000, 0, NULL) == 0);
    CHECK(cuGetProcAddress_v2("cuGraphLaunch", &twice, 13000, 0, NULL) == 0);
    CHECK(found == twice);
    CHECK(cuGetProcAddress_v2("cuNothing", &twice, 13000, 0, NULL) == 500 && twice == NULL);
    CHECK(fake_launches == 1);
    CHECK(((int (*)(void *, void *))found)(exec, STREAM(1)) == 0);
    CHECK(fake_launches == 101);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    found = dlsym(library, "cuGraphLaunch"); /* how a runtime that is linked in finds it */
    CHECK(((int (*)(void *, void *))found)(exec, STREAM(1)) == 0);
    CHECK(fake_launches == 102);
    dlclose(library);
    return 0;
}

/* Captures whose ends are not seen, and more graphs than there is room for; calls after them are still recorded right.
 */
static int bounded(void)
{
    ncclComm_t comm = new_comm(0, 2);
    void *graph = NULL, *exec = NULL;
    for (int i = 0; i < 200; i++) {
        CHECK(cudaStreamBeginCapture(STREAM(100 + i), 0) == 0); /* never ended */
        CHECK(reduce(comm, 1, STREAM(100 + i)) == ncclSuccess);
    }
    for (int i = 0; i < 5000; i++) {
        exec = captured(comm, STREAM(1), 10, 2, &graph);
        CHECK(exec != NULL);
        CHECK(cudaGraphExecDestroy(exec) == 0);
        CHECK(cudaGraphDestroy(graph) == 0);
    }
    exec = captured(comm, STREAM(1), 10, 2, &graph);
    CHECK(cudaGraphLaunch(exec, STREAM(1)) == 0);
    /* More messages than a graph is followed for. */
    CHECK(cudaStreamBeginCapture(STREAM(1), 0) == 0);
    for (int i = 0; i < 9000; i++) {
        CHECK(ncclSend(buffer, 1, 7, 1, comm, STREAM(1)) == ncclSuccess);
    }
    CHECK(cudaStreamEndCapture(STREAM(1), &graph) == 0);
    return 0;
}

/* Calls on two streams, a group, a graph and its launches, calls while a capture is open; the device is done in the
 * middle. */
static int completion(void)
{
    ncclComm_t comm = new_comm(0, 2);
    void *graph = NULL, *exec = NULL;
    CHECK(reduce(comm, 1, STREAM(1)) == ncclSuccess); /* ticket 1 */
    CHECK(reduce(comm, 2, STREAM(2)) == ncclSuccess); /* 2 */
    CHECK(reduce(comm, 3, STREAM(1)) == ncclSuccess); /* 3 */
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(reduce(comm, 4, STREAM(3)) == ncclSuccess);                                      /* 4 */
    CHECK(reduce(comm, 5, STREAM(1)) == ncclSuccess);                                      /* 5 */
    CHECK(ncclGroupEnd() == ncclSuccess);                                                  /* 6, on stream 3 */
    CHECK(ncclAllReduce(buffer, buffer, 1, 7, 5, comm, STREAM(2)) == ncclInvalidArgument); /* 7 */
    exec = captured(comm, STREAM(4), 10, 2, &graph);                                       /* 8, 9 */
    CHECK(exec != NULL);
    CHECK(cudaGraphLaunch(exec, STREAM(4)) == 0); /* 10 */
    CHECK(cudaGraphLaunch(exec, STREAM(4)) == 0); /* 11 */
    fake_run();
    CHECK(reduce(comm, 6, STREAM(5)) == ncclSuccess); /* 12: asks events, is not complete itself */
    CHECK(reduce(comm, 7, STREAM(5)) == ncclSuccess); /* 13 */
    CHECK(cudaStreamBeginCapture(STREAM(6), 0) == 0); /* of nothing */
    CHECK(reduce(comm, 8, STREAM(5)) == ncclSuccess); /* 14 */
    CHECK(reduce(comm, 9, NULL) == ncclSuccess);      /* 15: the legacy stream may not be used now */
    CHECK(cudaStreamEndCapture(STREAM(6), &graph) == 0);
    CHECK(fake_unsafe == 0);
    return 0;
}

/* Far more calls than there are events, on a device that is never done. */
static int behind(void)
{
    ncclComm_t comm = new_comm(0, 2);
    for (int i = 0; i < 1000; i++) {
        CHECK(reduce(comm, 1, STREAM(1)) == ncclSuccess);
    }
    CHECK(fake_events_made <= 64);
    return 0;
}

static int narrow(void)
{
    fake_no_wide = 1;
    return behind();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(void);
    } modes[] = {
        {"plain", plain},     {"mixed", mixed},           {"derived", derived}, {"driver", driver},
        {"bounded", bounded}, {"completion", completion}, {"behind", behind},   {"narrow", narrow},
    };
    for (size_t i = 0; argc > 1 && i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            return modes[i].run();
        }
    }
    return 2;
}
