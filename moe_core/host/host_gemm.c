/*
 * host_gemm.c: how a group's product is computed, in which parts and on how many threads.
 *
 * The BLAS's own threads were rejected: the BLAS splits each product, and the groups of a rank are many and small. Here
 * the parts of all groups are one list from which the threads take; each thread calls the BLAS for itself
 * (device_host.c keeps the BLAS at one thread). The number of threads is 1 unless MOE_HOST_THREADS says otherwise: a
 * job has a rank for each core.
 */
#include "moe_core/host/host_gemm.h"

#include "moe_core/base/fail.h"
#include "moe_core/include/moe/device.h"

#include <cblas.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

/* one product */

const struct moe_host_small *moe_host_small_table(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
        return &moe_host_small_avx2;
    }
#endif
    return &moe_host_small_plain;
}

/*
 * Measured (roll_bench moe): above these numbers of rows the packing of the BLAS pays. Narrow weights may have more
 * rows, because our loops spare the widening too.
 */
int64_t moe_host_small_most(enum moe_grouped_kind kind, enum moe_dtype w_type)
{
    static const int64_t most[2][3] = {{8, 8, 12}, {16, 12, 12}};
    return w_type > MOE_F16 ? 0 : most[w_type != MOE_F32][kind];
}

static int blas_product(const struct moe_product *p)
{
    const int64_t sizes[] = {p->m, p->n, p->k, p->in_stride, p->w_stride, p->x_stride, p->out_stride};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i] > INT_MAX) {
            return MOE_E_SHAPE;
        }
    }
    int m = (int)p->m, n = (int)p->n, k = (int)p->k, in = (int)p->in_stride, out = (int)p->out_stride;
    switch (p->kind) {
    case MOE_GROUPED_FORWARD:
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1.0f, p->in, in, p->w, (int)p->w_stride, 0.0f,
                    p->out, out);
        break;
    case MOE_GROUPED_DGRAD:
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, k, n, 1.0f, p->in, in, p->w, (int)p->w_stride, 0.0f,
                    p->out, out);
        break;
    default:
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, k, m, 1.0f, p->in, in, p->x, (int)p->x_stride, p->beta,
                    p->out, out);
    }
    return 0;
}

int moe_host_group_product(const struct moe_product *p)
{
    if (p->m == 0 || p->n == 0 || p->k == 0) {
        return 0;
    }
    if (p->m > moe_host_small_most(p->kind, p->w_type)) {
        return blas_product(p);
    }
    const struct moe_host_small *small = moe_host_small_table();
    if (p->kind == MOE_GROUPED_WGRAD) {
        small->wgrad(p);
    } else {
        (p->kind == MOE_GROUPED_FORWARD ? small->forward : small->dgrad)[p->w_type](p);
    }
    return 0;
}

/* parts */

/* A part has this many products of two numbers, about a millisecond of work. */
enum { PART_WORK = 1 << 25 };

/*
 * The least columns of a part: the BLAS packs the rows once for each part. In DGRAD a row has n numbers and the
 * weights' rows are cut: 256 columns cost a seventh of the processor time of Qwen3's and gpt-oss's shapes, 1024 columns
 * a twentieth, 3072 a hundredth. Packing of our own, of the next weights while these are multiplied, was rejected: it
 * took a sixth longer than the BLAS.
 */
static const int64_t part_width[] = {
    [MOE_GROUPED_FORWARD] = 256, [MOE_GROUPED_DGRAD] = 3072, [MOE_GROUPED_WGRAD] = 256};

int64_t moe_host_parts(const struct moe_product *p)
{
    int64_t width = p->kind == MOE_GROUPED_DGRAD ? p->k : p->n, most = width / part_width[p->kind];
    int64_t want = p->m * p->n / PART_WORK * p->k + p->m * p->n % PART_WORK * p->k / PART_WORK + 1;
    return want > most ? (most > 0 ? most : 1) : want;
}

void moe_host_part(const struct moe_product *p, int64_t i, int64_t parts, int64_t *from, int64_t *to)
{
    int64_t width = p->kind == MOE_GROUPED_DGRAD ? p->k : p->n, step = (width / parts + 63) / 64 * 64;
    *from = parts == 1 || i * step > width ? (parts == 1 ? 0 : width) : i * step;
    *to = i == parts - 1 || *from + step > width ? width : *from + step;
}

/* threads */

enum { MOST_THREADS = 64 };

/*
 * The tasks 0 to n - 1. A thread works on its own copy of the list, made under the lock: the pool's list is cleared
 * while other threads still run their tasks.
 */
struct list {
    int (*task)(void *arg, int64_t i, int worker);
    void *arg;
    int64_t n;
};

/* One list at a time. `round` tells sleepers that there is a new one; `inside` counts who may still take from it. */
static struct {
    pthread_mutex_t user; /* held by the device whose list is being worked on */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    uint64_t round;
    int inside;
    struct list list; /* task = NULL: there is no list */
    _Atomic int64_t next;
    _Atomic int error;
} pool = {.user = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .work = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER};

static int pool_threads = 1;    /* threads in the pool; written once, before any thread reads it */
static _Atomic int pool_wanted; /* threads to use; 0: all */
static pthread_once_t pool_once = PTHREAD_ONCE_INIT;

static void take_tasks(const struct list *list, int worker)
{
    int wanted = atomic_load(&pool_wanted);
    if (wanted != 0 && worker >= wanted) {
        return;
    }
    for (int64_t i = atomic_fetch_add(&pool.next, 1); i < list->n; i = atomic_fetch_add(&pool.next, 1)) {
        int none = 0, rc = list->task(list->arg, i, worker);
        if (rc != 0) {
            atomic_compare_exchange_strong(&pool.error, &none, rc);
        }
    }
}

static void *work_on(void *arg)
{
    int worker = (int)(intptr_t)arg;
    uint64_t seen = 0;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (pool.round == seen) {
            pthread_cond_wait(&pool.work, &pool.lock);
        }
        seen = pool.round;
        struct list list = pool.list;
        if (list.task == NULL) {
            continue; /* woken too late: the list is done */
        }
        pool.inside++;
        pthread_mutex_unlock(&pool.lock);
        take_tasks(&list, worker);
        pthread_mutex_lock(&pool.lock);
        pool.inside--;
        pthread_cond_signal(&pool.done);
    }
    return NULL;
}

/*
 * Starts threads that take no signals, because signals belong to the program. Where the system allows fewer threads
 * than asked for, there are fewer.
 */
static void start_pool(void)
{
    const char *wanted = getenv("MOE_HOST_THREADS");
    long n = wanted != NULL ? strtol(wanted, NULL, 10) : 1;
    n = n < 1 ? 1 : n > MOST_THREADS ? MOST_THREADS : n;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (long i = 1; i < n; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work_on, (void *)(intptr_t)i) != 0) {
            break;
        }
        pthread_detach(thread);
        pool_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int moe_host_threads(void)
{
    pthread_once(&pool_once, start_pool);
    return pool_threads;
}

int moe_device_host_threads(int n)
{
    int there = moe_host_threads();
    atomic_store(&pool_wanted, n < 0 ? 0 : n);
    return n < 1 || n > there ? there : n;
}

int moe_host_parallel(int64_t n, int (*task)(void *arg, int64_t i, int worker), void *arg)
{
    if (n < 2 || moe_host_threads() == 1 || atomic_load(&pool_wanted) == 1 || pthread_mutex_trylock(&pool.user) != 0) {
        int first = 0;
        for (int64_t i = 0; i < n; i++) {
            int rc = task(arg, i, 0);
            first = first != 0 ? first : rc;
        }
        return first;
    }
    struct list list = {task, arg, n};
    pthread_mutex_lock(&pool.lock);
    pool.list = list;
    atomic_store(&pool.next, 0);
    atomic_store(&pool.error, 0);
    pool.round++;
    pthread_cond_broadcast(&pool.work);
    pthread_mutex_unlock(&pool.lock);
    take_tasks(&list, 0);
    pthread_mutex_lock(&pool.lock);
    pool.list.task = NULL; /* a thread that has not come yet is not needed any more */
    while (pool.inside > 0) {
        pthread_cond_wait(&pool.done, &pool.lock);
    }
    pthread_mutex_unlock(&pool.lock);
    int rc = atomic_load(&pool.error);
    pthread_mutex_unlock(&pool.user);
    return rc;
}
