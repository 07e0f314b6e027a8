/*
 * graphs.c: calls captured into CUDA graphs, and their launches; two host threads on one communicator.
 */
#include "tests/catalogue/catalogue.h"

#include <pthread.h>
#include <unistd.h>

#define LAYERS 4

static void layers(struct cat *c, ncclComm_t comm, size_t count)
{
    for (int i = 0; i < LAYERS; i++) {
        NCCL(ncclAllReduce(c->send, c->recv, count + (size_t)i, ncclFloat32, ncclSum, comm, c->stream));
    }
}

static void begin(struct cat *c)
{
    CUDA(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal));
}

static cudaGraphExec_t end(struct cat *c)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamEndCapture(c->stream, &graph));
    CUDA(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return exec;
}

static cudaGraphExec_t captured(struct cat *c, size_t count)
{
    begin(c);
    layers(c, c->world, count);
    return end(c);
}

static void launch(struct cat *c, cudaGraphExec_t exec, int times)
{
    for (int i = 0; i < times; i++) {
        CUDA(cudaGraphLaunch(exec, c->stream));
        cat_sync(c);
    }
}

/* The last rank goes on eagerly where the others capture. */
static void capture_some(struct cat *c)
{
    cudaGraphExec_t exec = NULL;
    layers(c, c->world, 100);
    cat_sync(c);
    if (c->culprit) {
        layers(c, c->world, 100);
    } else {
        exec = captured(c, 100);
        launch(c, exec, 3);
    }
    cat_sync(c);
    if (exec) {
        CUDA(cudaGraphExecDestroy(exec));
    }
}

/* The last rank replays the graph of another batch size. */
static void other_graph(struct cat *c)
{
    cudaGraphExec_t small = captured(c, 100), large = captured(c, 1000);
    for (int step = 0; step < 4; step++) {
        launch(c, c->culprit && step == 2 ? small : large, 1);
    }
    CUDA(cudaGraphExecDestroy(small));
    CUDA(cudaGraphExecDestroy(large));
}

/* The last rank replays once less. */
static void replay_less(struct cat *c)
{
    cudaGraphExec_t exec = captured(c, 100);
    for (int step = 0; step < 4; step++) {
        if (!(c->culprit && step == 2)) {
            CUDA(cudaGraphLaunch(exec, c->stream));
        }
        layers(c, c->world, 300);
    }
    cat_sync(c);
    CUDA(cudaGraphExecDestroy(exec));
}

/* The graph of the last rank has one layer less. */
static void layer_less(struct cat *c)
{
    begin(c);
    layers(c, c->world, 100);
    if (!c->culprit) {
        NCCL(ncclAllReduce(c->send, c->recv, 500, ncclFloat32, ncclSum, c->world, c->stream));
    }
    layers(c, c->world, 600);
    cudaGraphExec_t exec = end(c);
    launch(c, exec, 3);
    CUDA(cudaGraphExecDestroy(exec));
}

/* Each rank captures at its own pace. */
static void capture_late(struct cat *c)
{
    layers(c, c->world, 100);
    cat_sync(c);
    usleep((useconds_t)c->rank * 200 * 1000);
    cudaGraphExec_t exec = captured(c, 100);
    usleep((useconds_t)(c->size - c->rank) * 100 * 1000);
    launch(c, exec, 5);
    layers(c, c->world, 100);
    cat_sync(c);
    CUDA(cudaGraphExecDestroy(exec));
}

/* Two graphs in turn, with ordinary calls between. */
static void two_graphs(struct cat *c)
{
    cudaGraphExec_t even = captured(c, 100), odd = captured(c, 200);
    for (int step = 0; step < 10; step++) {
        launch(c, step % 2 ? odd : even, 1);
        layers(c, c->world, 64);
    }
    cat_sync(c);
    CUDA(cudaGraphExecDestroy(even));
    CUDA(cudaGraphExecDestroy(odd));
}

/* Sends and receives along the ring, in a graph. */
static void p2p_graph(struct cat *c)
{
    begin(c);
    NCCL(ncclGroupStart());
    NCCL(ncclSend(c->send, 256, ncclFloat32, c->next, c->world, c->stream));
    NCCL(ncclRecv(c->recv, 256, ncclFloat32, c->prev, c->world, c->stream));
    NCCL(ncclGroupEnd());
    cudaGraphExec_t exec = end(c);
    launch(c, exec, 6);
    NCCL(ncclGroupStart());
    NCCL(ncclSend(c->send, 128, ncclFloat32, c->next, c->world, c->stream));
    NCCL(ncclRecv(c->recv, 128, ncclFloat32, c->prev, c->world, c->stream));
    NCCL(ncclGroupEnd());
    cat_sync(c);
    CUDA(cudaGraphExecDestroy(exec));
}

/* Two communicators and messages in one graph. */
static void many_in_one(struct cat *c)
{
    ncclComm_t two;
    NCCL(ncclCommSplit(c->world, 0, c->rank, &two, NULL));
    begin(c);
    layers(c, c->world, 100);
    layers(c, two, 200);
    NCCL(ncclGroupStart());
    NCCL(ncclSend(c->send, 256, ncclFloat32, c->next, two, c->stream));
    NCCL(ncclRecv(c->recv, 256, ncclFloat32, c->prev, two, c->stream));
    NCCL(ncclGroupEnd());
    cudaGraphExec_t exec = end(c);
    launch(c, exec, 5);
    layers(c, two, 64);
    cat_sync(c);
    CUDA(cudaGraphExecDestroy(exec));
    NCCL(ncclCommDestroy(two));
}

/* two threads */

struct pair {
    struct cat *c;
    pthread_mutex_t lock;
    int turns;
};

/* A group that takes its time, under the lock where there is one. */
static void *saver(void *arg)
{
    struct pair *p = arg;
    for (int i = 0; i < p->turns; i++) {
        if (!p->c->culprit) {
            pthread_mutex_lock(&p->lock);
        }
        NCCL(ncclGroupStart());
        cat_step(p->c, 256);
        usleep(20 * 1000);
        NCCL(ncclGroupEnd());
        if (!p->c->culprit) {
            pthread_mutex_unlock(&p->lock);
        }
        usleep(1000);
    }
    return NULL;
}

/* All calls are equal, so their order does not matter and only the race is wrong. */
static void two_threads(struct cat *c)
{
    struct pair p = {.c = c, .lock = PTHREAD_MUTEX_INITIALIZER, .turns = 5};
    pthread_t thread;
    if (pthread_create(&thread, NULL, saver, &p) != 0) {
        cat_cuda(cudaErrorUnknown, "pthread_create");
    }
    saver(&p);
    pthread_join(thread, NULL);
    cat_sync(c);
}

/* Two threads that move by turns: `plan` has a letter for each move, small for the first thread, large for the second.
 */
struct hands {
    struct cat *c;
    const char *plan;
    pthread_barrier_t moved;
};

static void move_in_turn(struct hands *h, bool second)
{
    for (const char *move = h->plan; *move; move++) {
        bool mine = second == (*move < 'a');
        if (mine && (*move | 32) == 's') {
            NCCL(ncclGroupStart());
        } else if (mine && (*move | 32) == 'e') {
            NCCL(ncclGroupEnd());
        } else if (mine) {
            cat_step(h->c, 256);
            usleep(100); /* the race lasts longer than what could be the clock's error */
        }
        pthread_barrier_wait(&h->moved);
    }
}

static void *second_hand(void *arg)
{
    move_in_turn(arg, true);
    return NULL;
}

/* A group of each of two threads, call by call in turn; or one whole group after the other. */
static void two_groups(struct cat *c)
{
    struct hands h = {.c = c, .plan = c->culprit ? "sScCcCeE" : "scceSCCE"};
    pthread_t thread;
    if (pthread_barrier_init(&h.moved, NULL, 2) != 0 || pthread_create(&thread, NULL, second_hand, &h) != 0) {
        cat_cuda(cudaErrorUnknown, "pthread_create");
    }
    move_in_turn(&h, false);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&h.moved);
    cat_sync(c);
}

static void *own_communicator(void *arg)
{
    struct pair *p = arg;
    ncclComm_t two = cat_join(p->c, "second");
    for (int i = 0; i < 20; i++) {
        NCCL(ncclAllReduce(p->c->send, p->c->recv, 128, ncclFloat32, ncclSum, two, p->c->other));
        CUDA(cudaStreamSynchronize(p->c->other));
    }
    NCCL(ncclCommDestroy(two));
    return NULL;
}

/* Two threads, each with its communicator and stream. */
static void thread_each(struct cat *c)
{
    struct pair p = {.c = c};
    pthread_t thread;
    if (pthread_create(&thread, NULL, own_communicator, &p) != 0) {
        cat_cuda(cudaErrorUnknown, "pthread_create");
    }
    for (int i = 0; i < 20; i++) {
        NCCL(ncclAllReduce(c->send, c->recv, 256, ncclFloat32, ncclSum, c->world, c->stream));
        cat_sync(c);
    }
    pthread_join(thread, NULL);
}

const struct cat_program cat_graphs[] = {
    {"capture-some", capture_some, "capture-mismatch", NULL, "proven", "last", 2, false},
    {"other-graph", other_graph, "graph-mismatch", NULL, "proven", "last", 2, false},
    {"replay-less", replay_less, "call-skipped", "call-skipped|call-added|sequence-tie", "proven", "last", 2, false},
    {"layer-less", layer_less, "call-skipped", "call-skipped|call-added|sequence-tie", "proven", "last", 2, false},
    {"two-threads", two_threads, "thread-race", NULL, "proven", "last!", 2, false},
    {"thread-groups", two_groups, "thread-race", NULL, "proven", "last!", 2, false},
    {0},
};

const struct cat_program cat_graphs_healthy[] = {
    {"capture-late", capture_late, "-", NULL, "-", "none", 2, false},
    {"two-graphs", two_graphs, "-", NULL, "-", "none", 2, false},
    {"p2p-graph", p2p_graph, "-", NULL, "-", "none", 2, false},
    {"many-in-one", many_in_one, "-", NULL, "-", "none", 2, false},
    {"thread-each", thread_each, "-", NULL, "-", "none", 2, false},
    {0},
};
