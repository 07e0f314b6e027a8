/*
 * bench_python_calls.c: loaded into a Python interpreter by bench_python.py: makes NCCL calls from the frame of Python
 * that asks for them, or from a thread that has no Python, and times them. Loops over the call in Python were rejected:
 * they would measure ctypes.
 */
#include <nccl.h>

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define BATCHES 4000
#define CALLS   64 /* in a batch: the clock is read twice for all of them */

/* Both for bench_python.py: the median time of a call, in ns, and the time of one call alone. */
double roll_bench_calls(ncclComm_t comm);
double roll_bench_calls_elsewhere(ncclComm_t comm);
double roll_bench_one_call(ncclComm_t comm);
/* A communicator that a thread without Python has made. */
void *roll_bench_init_elsewhere(void);

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double roll_bench_calls(ncclComm_t comm)
{
    static double took[BATCHES];
    for (int b = 0; b < BATCHES; b++) {
        double from = now_ns();
        for (int i = 0; i < CALLS; i++) {
            (void)ncclAllReduce(NULL, NULL, 1, ncclFloat, ncclSum, comm, NULL);
        }
        took[b] = (now_ns() - from) / CALLS;
    }
    qsort(took, BATCHES, sizeof(took[0]), by_value);
    return took[BATCHES / 2];
}

struct elsewhere {
    ncclComm_t comm;
    double result;
};

static void *thread_main(void *arg)
{
    struct elsewhere *e = arg;
    e->result = roll_bench_calls(e->comm);
    return NULL;
}

double roll_bench_calls_elsewhere(ncclComm_t comm)
{
    struct elsewhere e = {comm, -1};
    pthread_t thread;
    if (pthread_create(&thread, NULL, thread_main, &e) == 0) {
        pthread_join(thread, NULL);
    }
    return e.result;
}

static void *init_main(void *arg)
{
    ncclUniqueId id = {{0}};
    (void)ncclCommInitRank(arg, 1, id, 0);
    return NULL;
}

void *roll_bench_init_elsewhere(void)
{
    ncclComm_t comm = NULL;
    pthread_t thread;
    if (pthread_create(&thread, NULL, init_main, &comm) == 0) {
        pthread_join(thread, NULL);
    }
    return comm;
}

double roll_bench_one_call(ncclComm_t comm)
{
    double from = now_ns();
    (void)ncclAllReduce(NULL, NULL, 1, ncclFloat, ncclSum, comm, NULL);
    return now_ns() - from;
}
