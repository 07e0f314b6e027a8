/*
 * memory_op.c: operations on single words of memory that a stream does: writing and waiting. The driver interface
 * offers them to programs that signal and await through memory.
 *
 * No writer wakes a wait: the word is plain memory that any processor may write. So the wait looks at the word, often
 * at first, then every half millisecond; a condition that never holds costs next to nothing.
 */
#include "hostnccl/cuda/graph.h"

#include <time.h>

enum { SPINS = 200, PAUSE_NS = 500000 };

static bool holds(const struct hostcuda_memory_op *op)
{
    bool is_wide = op->what == HOSTCUDA_WAIT_64;
    uint64_t now = is_wide ? __atomic_load_n((uint64_t *)op->address, __ATOMIC_ACQUIRE)
                           : __atomic_load_n((uint32_t *)op->address, __ATOMIC_ACQUIRE);
    uint64_t mask = is_wide ? UINT64_MAX : UINT32_MAX, value = op->value & mask;
    switch (op->how & 3u) {
    case 0: /* at least, in the cyclic order of numbers */
        return is_wide ? (int64_t)(now - value) >= 0 : (int32_t)(uint32_t)(now - value) >= 0;
    case 1: /* equal */
        return now == value;
    case 2: /* a common bit */
        return (now & value) != 0;
    default: /* not all bits set in either */
        return (~(now | value) & mask) != 0;
    }
}

static void await(const struct hostcuda_memory_op *op)
{
    for (unsigned int tries = 0; !holds(op) && !hostcuda_fault(); tries++) {
        if (tries > SPINS) {
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        }
    }
}

void hostcuda_memory_ops_run(const struct hostcuda_memory_op *ops, size_t count)
{
    for (const struct hostcuda_memory_op *op = ops; op < ops + count; op++) {
        switch (op->what) {
        case HOSTCUDA_WRITE_32: /* release: who sees the value sees what the stream did before */
            __atomic_store_n((uint32_t *)op->address, (uint32_t)op->value, __ATOMIC_RELEASE);
            break;
        case HOSTCUDA_WRITE_64:
            __atomic_store_n((uint64_t *)op->address, op->value, __ATOMIC_RELEASE);
            break;
        case HOSTCUDA_WAIT_32:
        case HOSTCUDA_WAIT_64:
            await(op);
            break;
        default: /* a barrier: the order above is already total here */
            break;
        }
    }
}
