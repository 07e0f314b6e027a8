/*
 * machine.h: what translated kernels are written against: a thread, its registers' environment, and the instructions
 * that are more than arithmetic (number.h).
 *
 * One thread of the operating system runs a grid block after block; the threads of a block are fibers, which give the
 * processor away only inside these functions, wherever a GPU's thread would wait. An offset is a place in the shared
 * memory of the block. Every function takes the place in the source for messages, and may end the launch (finding.h).
 */
#ifndef ROLL_TESTS_KERNELS_EMU_MACHINE_H
#define ROLL_TESTS_KERNELS_EMU_MACHINE_H

#include "tests/kernels_emu/number.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

struct emu_block;
struct emu_thread_state;

/* A place in the source of a kernel. */
struct emu_site {
    const char *file;
    int line;
    const char *instruction;
};

struct emu_thread {
    uint32_t tid[3], ntid[3], ctaid[3], nctaid[3];
    uint32_t number;  /* of the thread in its block */
    uint32_t dynamic; /* where the dynamic shared memory begins */
    uint8_t *shared;
    uint32_t shared_bytes;
    struct emu_block *block;
    struct emu_thread_state *own; /* the runtime's (block.h) */

    uint64_t shared_address() const
    {
        return (uint64_t)shared;
    }
};

/* how a kernel is known */

struct emu_parameter {
    uint32_t offset, bytes;
};
typedef void emu_body(struct emu_thread *thread, const char *parameters);
struct emu_registration {
    emu_registration(const char *name, emu_body *body, uint32_t shared_bytes, uint32_t threads_max,
                     const struct emu_parameter *parameters, size_t count);
};

/* memory */

enum emu_space { EMU_GLOBAL, EMU_SHARED, EMU_GENERIC };
enum emu_how {
    EMU_READ = 1,
    EMU_WRITE = 2,
    EMU_STRONG = 4,   /* atomic, relaxed or volatile: does not race with its like */
    EMU_CONSTANT = 8, /* a load that trusts nobody writes while the kernel runs (ld.global.nc) */
};

/* Checks an access and counts it; the address at which it really happens. */
uint64_t emu_at(struct emu_thread *T, uint64_t address, uint32_t bytes, enum emu_space space, int how,
                const struct emu_site *site);

/* Blocks run one after the other, and fibers are not interrupted, so these are plain. Memory that the host or another
 * stream touches meanwhile would be a race on a GPU, too. */
#define EMU_ATOMIC(name, make)                                                                                         \
    template <class V> static inline V emu_atomic_##name(uint64_t at, V v)                                             \
    {                                                                                                                  \
        V old;                                                                                                         \
        memcpy(&old, (const void *)at, sizeof(old));                                                                   \
        V made = make;                                                                                                 \
        memcpy((void *)at, &made, sizeof(made));                                                                       \
        return old;                                                                                                    \
    }
EMU_ATOMIC(add, V(old + v))
EMU_ATOMIC(or, V(old | v))
EMU_ATOMIC(and, V(old &v))
EMU_ATOMIC(min, v < old ? v : old)
EMU_ATOMIC(max, v > old ? v : old)
EMU_ATOMIC(exch, v)
template <class V> static inline V emu_atomic_cas(uint64_t at, V expected, V v)
{
    V old;
    memcpy(&old, (const void *)at, sizeof(old));
    if (old == expected) {
        memcpy((void *)at, &v, sizeof(v));
    }
    return old;
}

/* threads that meet */

enum emu_shuffle { EMU_SHUFFLE_BFLY, EMU_SHUFFLE_UP, EMU_SHUFFLE_DOWN, EMU_SHUFFLE_IDX };

/* count 0: the whole block. */
void emu_barrier(struct emu_thread *T, uint32_t id, uint32_t count, const struct emu_site *site);
bool emu_barrier_or(struct emu_thread *T, uint32_t id, bool value, const struct emu_site *site);
bool emu_barrier_and(struct emu_thread *T, uint32_t id, bool value, const struct emu_site *site);
void emu_sync_warp(struct emu_thread *T, uint32_t mask, const struct emu_site *site);
uint32_t emu_shuffle(struct emu_thread *T, enum emu_shuffle how, uint32_t value, uint32_t lane, uint32_t clamp,
                     uint32_t mask, bool *is_in_range, const struct emu_site *site);
uint32_t emu_ballot(struct emu_thread *T, bool value, uint32_t mask, const struct emu_site *site);
uint32_t emu_reduce_max(struct emu_thread *T, uint32_t value, uint32_t mask, const struct emu_site *site);
uint32_t emu_reduce_min(struct emu_thread *T, uint32_t value, uint32_t mask, const struct emu_site *site);

/* the matrix unit of sm_80, and copies past the registers */

void emu_load_matrix(struct emu_thread *T, uint32_t *r, uint64_t offset, bool is_transposed,
                     const struct emu_site *site);
void emu_mma(struct emu_thread *T, float *d, const uint32_t *a, const uint32_t *b, bool is_half,
             const struct emu_site *site);
/* `bytes` of 16 from a global address, zeros behind them. */
void emu_copy_async(struct emu_thread *T, uint64_t offset, uint64_t from, uint32_t most, uint32_t bytes,
                    const struct emu_site *site);
void emu_copy_commit(struct emu_thread *T, const struct emu_site *site);
void emu_copy_wait(struct emu_thread *T, uint32_t groups_left, const struct emu_site *site);

/* sm_90: barriers with transactions, the copy engine, its maps, wgmma */

void emu_mbarrier_init(struct emu_thread *T, uint64_t offset, uint32_t arrivals, const struct emu_site *site);
void emu_mbarrier_arrive(struct emu_thread *T, uint64_t offset, uint32_t expected_bytes, const struct emu_site *site);
bool emu_mbarrier_wait(struct emu_thread *T, uint64_t offset, uint32_t parity, const struct emu_site *site);
void emu_fence_async(struct emu_thread *T, const struct emu_site *site);
void emu_fence_mbarrier_init(struct emu_thread *T, const struct emu_site *site);
void emu_copy_box(struct emu_thread *T, uint64_t offset, uint64_t map, int32_t x, int32_t y, uint64_t barrier,
                  const struct emu_site *site);
/* Into each block of the cluster whose bit is set in `blocks`. */
void emu_copy_box_to(struct emu_thread *T, uint64_t offset, uint64_t map, int32_t x, int32_t y, uint64_t barrier,
                     uint32_t blocks, const struct emu_site *site);
void emu_map_acquire(struct emu_thread *T, uint64_t map, uint32_t bytes, const struct emu_site *site);
void emu_map_set_address(struct emu_thread *T, uint64_t offset, uint64_t address, const struct emu_site *site);
void emu_map_set_dim(struct emu_thread *T, uint64_t offset, uint32_t dim, uint32_t value, const struct emu_site *site);
void emu_map_publish(struct emu_thread *T, uint64_t to, uint64_t offset, uint32_t bytes, const struct emu_site *site);
void emu_set_registers(struct emu_thread *T, bool is_more, uint32_t count, const struct emu_site *site);

enum emu_element { EMU_BF16, EMU_F16, EMU_E4M3, EMU_E5M2 };

void emu_wgmma_fence(struct emu_thread *T, const struct emu_site *site);
/* a_type, b_type: the operands', which may differ where both have 8 bits. d: this thread's n / 2 sums. They come back
 * as tokens, which emu_settled changes into numbers once the group is waited for. */
void emu_wgmma(struct emu_thread *T, uint32_t n, uint32_t k, enum emu_element a_type, enum emu_element b_type, float *d,
               uint64_t a, uint64_t b, bool adds, int scale_a, int scale_b, int a_is_mn_major, int b_is_mn_major,
               const struct emu_site *site);
void emu_wgmma_commit(struct emu_thread *T, const struct emu_site *site);
void emu_wgmma_wait(struct emu_thread *T, uint32_t groups_left, const struct emu_site *site);
/* A register that may hold a sum: its number, or the end of the launch where the matrix unit is still at it. */
float emu_settled(struct emu_thread *T, float value, const struct emu_site *site);
static inline uint32_t emu_settled(struct emu_thread *T, uint32_t value, const struct emu_site *site)
{
    return emu_bits<uint32_t>(emu_settled(T, emu_bits<float>(value), site));
}

/* clusters: an offset with a block's number in it names a place in that block's shared memory */

uint32_t emu_map_rank(struct emu_thread *T, uint32_t offset, uint32_t rank, const struct emu_site *site);
void emu_mbarrier_arrive_at(struct emu_thread *T, uint64_t place, const struct emu_site *site);
void emu_cluster_arrive(struct emu_thread *T, const struct emu_site *site);
void emu_cluster_wait(struct emu_thread *T, const struct emu_site *site);

/* launches that overlap */

void emu_wait_for_primary(struct emu_thread *T, const struct emu_site *site);
void emu_release_dependents(struct emu_thread *T, const struct emu_site *site);

/* ends */

void emu_trap(struct emu_thread *T, const struct emu_site *site);
void emu_unmodelled(struct emu_thread *T, const struct emu_site *site);

#endif
