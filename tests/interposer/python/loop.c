/* loop.c: calls of NCCL by threads of C: without end, for threads of Python that go on without the interpreter's lock;
 * and by a thread without Python, while the thread that wants the call waits or goes on. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

int ncclAllReduce(const void *from, void *to, size_t count, int dtype, int redop, void *comm, void *stream);
void embedded_loop(void *comm);
void embedded_elsewhere(void *comm, size_t count);
void embedded_begin(void *comm, size_t count, size_t times);
void embedded_end(void);

static struct {
    void *comm;
    size_t count, times;
    pthread_t thread;
} wanted;

void embedded_loop(void *comm)
{
    for (;;) {
        ncclAllReduce(NULL, NULL, 1, 7, 0, comm, NULL);
    }
}

static void *call(void *unused)
{
    for (size_t i = 0; i < wanted.times; i++) {
        ncclAllReduce(NULL, NULL, wanted.count, 7, 0, wanted.comm, NULL);
    }
    return unused;
}

void embedded_begin(void *comm, size_t count, size_t times)
{
    wanted.comm = comm;
    wanted.count = count;
    wanted.times = times;
    pthread_create(&wanted.thread, NULL, call, NULL);
}

void embedded_end(void)
{
    pthread_join(wanted.thread, NULL);
}

void embedded_elsewhere(void *comm, size_t count)
{
    embedded_begin(comm, count, 1);
    embedded_end();
}
