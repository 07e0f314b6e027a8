/*
 * shared.c: what all processes of a rehearsal use of each device, so that one process sees a device as full as on a
 * real one, where several ranks, or a job's helpers, share it. HOSTCUDA_SHARED names a file, which every process maps:
 * a slot for each process, in which only this process writes. Without the variable each process has its devices for
 * itself.
 *
 * A process holds a lock on the byte of its slot's number (fcntl's, of the process, which no child inherits). The
 * kernel takes the lock away when the process ends in any way, and what the slot says counts no more. Rejected: a
 * counter per device, which a killed process would leave too high; numbers of processes, because another process may
 * get them. Two processes that ask for the last bytes at one time may both get them: memory here is only reserved.
 */
#include "hostnccl/cuda/memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLOTS = 4096 };

struct slot {
    _Atomic int pid;
    int unused;
    _Atomic uint64_t used[HOSTCUDA_DEVICES_MAX]; /* by the number before CUDA_VISIBLE_DEVICES */
};

struct table {
    _Atomic unsigned int top; /* slots that were ever used; only grows */
    char unused[60];
    struct slot slots[SLOTS];
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct table *table;
static int file = -1;
static int own = -1; /* the slot of this process; written once, before the runtime counts anything */

/* Whether the byte of a slot could be locked, which locks it where `keep` is set. */
static bool is_free(int slot, bool keep)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    return keep ? !fcntl(file, F_SETLK, &lock) : !fcntl(file, F_GETLK, &lock) && lock.l_type == F_UNLCK;
}

static void open_table(void)
{
    const char *path = getenv("HOSTCUDA_SHARED");
    if (!path || !*path) {
        return;
    }
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *mapped = file < 0 || ftruncate(file, sizeof(struct table))
                       ? MAP_FAILED
                       : mmap(NULL, sizeof(struct table), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) {
        fprintf(stderr, "hostcuda: HOSTCUDA_SHARED=%s: cannot be used, each process counts its own memory\n", path);
        return;
    }
    table = mapped;
}

void hostcuda_shared_join(void)
{
    pthread_once(&once, open_table);
    for (int i = 0; table && own < 0 && i < SLOTS; i++) {
        if (!is_free(i, true)) {
            continue;
        }
        for (int d = 0; d < HOSTCUDA_DEVICES_MAX; d++) { /* of a process that has ended */
            atomic_store(&table->slots[i].used[d], 0);
        }
        atomic_store(&table->slots[i].pid, (int)getpid());
        unsigned int top = atomic_load(&table->top);
        while (top < (unsigned int)i + 1 && !atomic_compare_exchange_weak(&table->top, &top, (unsigned int)i + 1)) {
        }
        own = i;
    }
}

void hostcuda_shared_set(int physical, size_t used)
{
    if (own >= 0) {
        atomic_store_explicit(&table->slots[own].used[physical], used, memory_order_relaxed);
    }
}

size_t hostcuda_shared_others(int physical, bool is_exact)
{
    size_t sum = 0;
    pthread_once(&once, open_table);
    unsigned int top = table ? atomic_load(&table->top) : 0;
    for (unsigned int i = 0; i < top && i < SLOTS; i++) {
        uint64_t used = atomic_load_explicit(&table->slots[i].used[physical], memory_order_relaxed);
        if (used && (int)i != own && (!is_exact || !is_free((int)i, false))) {
            sum += used;
        }
    }
    return sum;
}

size_t hostcuda_shared_users(int physical, struct hostcuda_user *users, size_t room)
{
    size_t count = 0;
    pthread_once(&once, open_table);
    unsigned int top = table ? atomic_load(&table->top) : 0;
    for (unsigned int i = 0; i < top && i < SLOTS; i++) {
        uint64_t used = atomic_load_explicit(&table->slots[i].used[physical], memory_order_relaxed);
        int pid = atomic_load(&table->slots[i].pid);
        if (!used || (int)i == own || is_free((int)i, false)) {
            continue;
        }
        if (count < room) {
            users[count] = (struct hostcuda_user){.pid = pid, .used_bytes = used};
        }
        count++;
    }
    return count;
}
