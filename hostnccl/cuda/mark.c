/*
 * mark.c: marks: points that streams pass. The word that counts the open places is the futex word itself, so a question
 * costs one load and a wait one system call. A condition variable per event would cost two locks for each of the two.
 */
#include "hostnccl/cuda/work.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

struct hostcuda_mark *hostcuda_mark_new(void)
{
    struct hostcuda_mark *mark = calloc(1, sizeof(*mark));
    if (mark) {
        atomic_init(&mark->open, 1);
        atomic_init(&mark->refs, 1);
    }
    return mark;
}

struct hostcuda_mark *hostcuda_mark_ref(struct hostcuda_mark *mark)
{
    atomic_fetch_add_explicit(&mark->refs, 1, memory_order_relaxed);
    return mark;
}

void hostcuda_mark_put(struct hostcuda_mark *mark)
{
    if (mark && atomic_fetch_sub_explicit(&mark->refs, 1, memory_order_acq_rel) == 1) {
        free(mark);
    }
}

void hostcuda_mark_open(struct hostcuda_mark *mark)
{
    atomic_fetch_add_explicit(&mark->open, 1, memory_order_relaxed);
}

void hostcuda_mark_close(struct hostcuda_mark *mark)
{
    /*
     * A place cannot know beforehand that it is the last one: so each place stamps the time, and the last stamp stays.
     */
    atomic_store_explicit(&mark->time_ns, hostcuda_now_ns(), memory_order_relaxed);
    /* acq_rel: a thread that sees 0 sees all that the streams did before, and the time. */
    if (atomic_fetch_sub_explicit(&mark->open, 1, memory_order_acq_rel) == 1) {
        syscall(SYS_futex, &mark->open, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}

bool hostcuda_mark_reached(const struct hostcuda_mark *mark)
{
    return atomic_load_explicit(&mark->open, memory_order_acquire) == 0;
}

void hostcuda_mark_wait(struct hostcuda_mark *mark)
{
    uint32_t open;
    while ((open = atomic_load_explicit(&mark->open, memory_order_acquire)) != 0) {
        syscall(SYS_futex, &mark->open, FUTEX_WAIT_PRIVATE, open, NULL, NULL, 0);
    }
}
