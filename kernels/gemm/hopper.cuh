/*
 * hopper.cuh: the instructions of sm_90a that C++ has no names for: barriers, the copy engine, tensor maps, registers.
 *
 * Each function is one instruction, named for what it does, and knows nothing of products. The matrix instructions are
 * in wgmma.cuh. Addresses of shared memory are 32-bit numbers of the shared window.
 */
#ifndef ROLL_KERNELS_GEMM_HOPPER_CUH
#define ROLL_KERNELS_GEMM_HOPPER_CUH

#include <cuda.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t smem_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* launches that overlap: the next kernel's blocks may start, and wait for this kernel's end before they read */

static __device__ __forceinline__ void release_dependents()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ void wait_for_primary()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* mbarrier */

static __device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

/* Makes initialised barriers known to the copy engine; a block barrier must follow. */
static __device__ __forceinline__ void barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Arrives once, and announces `bytes` bytes that copies must deliver before the phase is over. */
static __device__ __forceinline__ void barrier_arrive_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

/* Returns when the phase of this parity is over. */
static __device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
    uint32_t done = 0;
    while (!done) {
        asm volatile("{\n\t.reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
    }
}

/* clusters: `rank` is a block's number in its cluster */

/*
 * Arrives at the barrier that lies at the same place in the shared memory of block `rank`. With the scope of the
 * cluster in its name (.release.cluster) the assembler puts a fence of the whole device before it, into the inner loop:
 * it would order this thread's own loads and stores, and what a stage's release is about are the matrix unit's reads,
 * which its wait has ended.
 */
static __device__ __forceinline__ void barrier_arrive_at(uint32_t bar, uint32_t rank)
{
    asm volatile("{\n\t.reg .b32 there;\n\t"
                 "mapa.shared::cluster.u32 there, %0, %1;\n\t"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n\t}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}

/* Every thread of every block of the cluster comes here before one goes on. Whole warps call it, converged. */
static __device__ __forceinline__ void team_meet()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* Call it before the copy engine or the matrix unit reads what this thread stored into shared memory. */
static __device__ __forceinline__ void fence_async_proxy()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* the copy engine */

/*
 * Copies one box at (x: innermost, y) of a two-dimensional map into shared memory; elements outside the map become
 * zero.
 */
static __device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap *map, int32_t x, int32_t y, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
                 "[%4];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(bar)
                 : "memory");
}

/* As copy_box, into the same place of each block in `blocks` (bit i: rank i), whose own barrier is told of it. */
static __device__ __forceinline__ void copy_box_to(uint32_t to, const CUtensorMap *map, int32_t x, int32_t y,
                                                   uint32_t bar, uint16_t blocks)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(bar), "h"(blocks)
                 : "memory");
}

/* Call it before this thread's first use of a map in device memory that another kernel has made. */
static __device__ __forceinline__ void map_acquire(const CUtensorMap *map)
{
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

/* Sets the base address, the number of rows (dimension 1) and their width (dimension 0) of a map in shared memory. */
static __device__ __forceinline__ void map_set_address(uint32_t map, const void *address)
{
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(map), "l"(address)
                 : "memory");
}

static __device__ __forceinline__ void map_set_rows(uint32_t map, uint32_t rows)
{
    asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;" ::"r"(map), "r"(rows)
                 : "memory");
}

static __device__ __forceinline__ void map_set_width(uint32_t map, uint32_t width)
{
    asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 0, %1;" ::"r"(map), "r"(width)
                 : "memory");
}

/*
 * Copies a map from shared to device memory, where the copy engine sees it. The whole warp calls this function,
 * converged.
 */
static __device__ __forceinline__ void map_publish(CUtensorMap *to, uint32_t from)
{
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], "
                 "128;" ::"l"(to),
                 "r"(from)
                 : "memory");
}

/* registers: warpgroups of one block trade them */

template <int COUNT> static __device__ __forceinline__ void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> static __device__ __forceinline__ void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* the matrix unit's bookkeeping */

static __device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/*
 * Keeps the compiler from moving the zeroing or the reading of these registers across this place: it does not know that
 * an instruction goes on writing them. Call it before the first instruction of a sum, and behind the wait for the last
 * one.
 */
template <int N> static __device__ __forceinline__ void wgmma_settle(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}

template <int LEFT> static __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

#endif
