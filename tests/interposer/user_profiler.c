/*
 * user_profiler.c: a profiler plugin of the user, for the chain: writes what it is told to the file USER_PROFILER_LOG,
 * one line a callback, and checks that its contexts, handles and parents are its own.
 *
 * USER_PROFILER_VERSION (compiled in) is the only version that it has; the mask is USER_PROFILER_MASK.
 */
#include "hostnccl/nccl/profiler_abi.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define MAGIC 0x75736572u

struct mine {
    unsigned magic;
    unsigned long type;
    struct mine *parent;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *out;

static struct mine *new_mine(unsigned long type)
{
    struct mine *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        abort();
    }
    m->magic = MAGIC;
    m->type = type;
    return m;
}

static void check(const struct mine *m)
{
    if (m != NULL && m->magic != MAGIC) {
        abort(); /* a handle that this plugin did not make */
    }
}

static void start_log(void)
{
    const char *path = getenv("USER_PROFILER_LOG");
    if (out == NULL && path != NULL) {
        out = fopen(path, "ae");
    }
    if (out == NULL) {
        abort();
    }
}

static int begin(void **context, int *mask)
{
    const char *text = getenv("USER_PROFILER_MASK");
    pthread_mutex_lock(&lock);
    start_log();
    fprintf(out, "init\n");
    fflush(out);
    pthread_mutex_unlock(&lock);
    *context = new_mine(0);
    *mask = text != NULL ? atoi(text) : 0;
    return getenv("USER_PROFILER_REFUSES") != NULL;
}

#if USER_PROFILER_VERSION >= 5
static int init(void **context, uint64_t hash, int *mask, const char *name, int nodes, int nranks, int rank,
                void *logger)
{
    (void)hash, (void)name, (void)nodes, (void)nranks, (void)rank, (void)logger;
    return begin(context, mask);
}
#elif USER_PROFILER_VERSION == 4
static int init(void **context, int *mask, const char *name, uint64_t hash, int nodes, int nranks, int rank,
                void *logger)
{
    (void)hash, (void)name, (void)nodes, (void)nranks, (void)rank, (void)logger;
    return begin(context, mask);
}
#else
static int init(void **context, int *mask)
{
    return begin(context, mask);
}
#endif

static int start(void *context, void **handle, void *descr)
{
#if USER_PROFILER_VERSION >= 5
    const struct hn_descr_v5 *d = descr;
#else
    const struct hn_descr_v4 *d = descr;
#endif
    struct mine *parent = d->parent;
    check(context);
    check(parent);
#if USER_PROFILER_VERSION >= 5
    if (d->type == HN_EVENT_COLL) {
        check(d->coll.group);
    }
#endif
    struct mine *m = new_mine((unsigned long)d->type);
    m->parent = parent;
    pthread_mutex_lock(&lock);
    fprintf(out, "start %lu parent %lu\n", m->type, parent != NULL ? parent->type : 0);
    fflush(out);
    pthread_mutex_unlock(&lock);
    *handle = m;
    return 0;
}

static int stop(void *handle)
{
    struct mine *m = handle;
    check(m);
    pthread_mutex_lock(&lock);
    fprintf(out, "stop %lu\n", m->type);
    fflush(out);
    pthread_mutex_unlock(&lock);
    return 0; /* kept: others may have it as their parent */
}

static int state(void *handle, int number, void *args)
{
    (void)args;
    check(handle);
    pthread_mutex_lock(&lock);
    fprintf(out, "state %d\n", number);
    fflush(out);
    pthread_mutex_unlock(&lock);
    return 0;
}

static int finalize(void *context)
{
    check(context);
    pthread_mutex_lock(&lock);
    fprintf(out, "finalize\n");
    fflush(out);
    pthread_mutex_unlock(&lock);
    return 0;
}

#define NAME_OF(v) ncclProfiler_v##v
#define NAME(v)    NAME_OF(v)
extern const struct hn_profiler NAME(USER_PROFILER_VERSION);
const struct hn_profiler NAME(USER_PROFILER_VERSION) = {
    "user",
#if USER_PROFILER_VERSION >= 5
    {.v5 = init},
#elif USER_PROFILER_VERSION == 4
    {.v4 = init},
#else
    {.v1 = init},
#endif
    start,        stop, state, finalize,
};
