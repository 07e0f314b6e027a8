/*
 * counted.c: see counted.h. libzmq receives by recv(2) alone, and a function of that name in the program comes before
 * that of libc: so this one counts. Where it does not come first (a libzmq that was loaded later, as in the console)
 * nothing is counted, and nothing else changes.
 *
 * Rejected: to ask the kernel, which counts for TCP only (TCP_INFO), and knows of these sockets no more than what waits
 * at the moment; a proxy in front of the socket, which would copy everything once more; the growth of the process,
 * which does not say by whom.
 */
#include "daemon/wire/counted.h"

#include <stdatomic.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* One thread receives on a descriptor, and others read: the inode is written last and read first, so a count is never
 * taken for that of a later connection; one that is read between the two is one of none. */
static struct {
    _Atomic uint64_t inode, bytes;
    _Atomic unsigned era;
} counted[ROLL_COUNTED_FDS];
static _Atomic unsigned era;
static _Atomic int top; /* behind the highest descriptor that was counted */

static void count(int fd, uint64_t bytes)
{
    struct stat st;
    if (fd < 0 || fd >= ROLL_COUNTED_FDS || fstat(fd, &st) != 0) {
        return;
    }
    uint64_t before = atomic_load_explicit(&counted[fd].bytes, memory_order_relaxed);
    if (atomic_load_explicit(&counted[fd].inode, memory_order_relaxed) != st.st_ino) {
        before = 0;
        int end = atomic_load_explicit(&top, memory_order_relaxed);
        while (end <= fd &&
               !atomic_compare_exchange_weak_explicit(&top, &end, fd + 1, memory_order_relaxed, memory_order_relaxed)) {
        }
        atomic_store_explicit(&counted[fd].inode, 0, memory_order_relaxed);
        atomic_store_explicit(&counted[fd].era, atomic_load_explicit(&era, memory_order_relaxed), memory_order_relaxed);
    }
    atomic_store_explicit(&counted[fd].bytes, before + bytes, memory_order_relaxed);
    atomic_store_explicit(&counted[fd].inode, st.st_ino, memory_order_release);
}

__attribute__((visibility("default"))) ssize_t recv(int fd, void *out, size_t bytes, int flags)
{
    ssize_t n = recvfrom(fd, out, bytes, flags, NULL, NULL); /* the same, by its definition */
    if (n > 0 && !(flags & MSG_PEEK)) {
        count(fd, (uint64_t)n); /* which changes no errno: it has succeeded */
    }
    return n;
}

uint64_t roll_counted(int fd, ino_t inode)
{
    bool is_it =
        fd >= 0 && fd < ROLL_COUNTED_FDS && atomic_load_explicit(&counted[fd].inode, memory_order_acquire) == inode;
    return is_it ? atomic_load_explicit(&counted[fd].bytes, memory_order_relaxed) : 0;
}

int roll_counted_top(void)
{
    return atomic_load_explicit(&top, memory_order_relaxed);
}

void roll_counted_era(void)
{
    atomic_fetch_add_explicit(&era, 1, memory_order_relaxed);
}

bool roll_counted_new(int fd, ino_t *inode, uint64_t *bytes)
{
    if (fd < 0 || fd >= ROLL_COUNTED_FDS ||
        (*inode = atomic_load_explicit(&counted[fd].inode, memory_order_acquire)) == 0) {
        return false;
    }
    *bytes = atomic_load_explicit(&counted[fd].bytes, memory_order_relaxed);
    return atomic_load_explicit(&counted[fd].era, memory_order_relaxed) ==
           atomic_load_explicit(&era, memory_order_relaxed);
}

void roll_counted_old(int fd)
{
    atomic_store_explicit(&counted[fd].era, atomic_load_explicit(&era, memory_order_relaxed) - 1, memory_order_relaxed);
}
