/*
 * block.h: a grid that runs, the block at hand, its warps and threads, as the runtime's files share them. Translated
 * code sees machine.h alone.
 *
 * A grid belongs to one thread of the operating system and needs no lock. Clusters of blocks, mostly of one, run one
 * after the other, in an order that the environment chooses: the kernels here never wait for a block of another
 * cluster, and one that did would be reported as a deadlock. What is asynchronous on a GPU (boxes on their way, sums of
 * the matrix unit, cp.async) is kept apart from its result until something waits for it.
 */
#ifndef ROLL_TESTS_KERNELS_EMU_BLOCK_H
#define ROLL_TESTS_KERNELS_EMU_BLOCK_H

#include "hostnccl/cuda/code.h"
#include "tests/kernels_emu/machine.h"

#include <map>
#include <string>
#include <vector>

enum {
    EMU_WARP = 32,
    EMU_GROUP = 128,    /* threads that wgmma takes */
    EMU_THREADS = 1024, /* most of a block */
    EMU_SHARED_MAX = 227 << 10,
    EMU_SYSTEM_SHARED = 1024, /* bytes in front of a block's own */
    EMU_AGENTS = 64,          /* most mbarriers and warpgroups of a block */
    EMU_CLUSTER = 8,          /* most blocks of a cluster */
};

/* Vector clocks: for each thread of the block, and behind them each agent, the latest of its times that is known. */
typedef std::vector<uint32_t> emu_clock;

struct emu_copy { /* a cp.async that has not been waited for */
    uint32_t to;
    uint64_t from;
    uint32_t bytes;
    const struct emu_site *site;
};

struct emu_sum { /* a sum of the matrix unit, behind its token */
    uint32_t token, group;
    float value;
};

enum emu_state { EMU_RUNS, EMU_WAITS, EMU_ENDED };

struct emu_thread_state {
    void *stack_pointer;
    enum emu_state state;
    const struct emu_site *waits_at;
    /* cp.async */
    std::vector<struct emu_copy> copies;
    std::vector<size_t> copy_groups; /* where each ends in `copies` */
    /* wgmma */
    std::vector<struct emu_sum> sums;
    uint32_t tokens, groups, groups_done;
    bool is_fenced; /* since a register of the sums was last touched */
    /* sm_90 */
    std::vector<uint64_t> maps; /* acquired */
    bool has_waited;            /* for the kernel before */
    uint32_t met;               /* the phase of the cluster's barrier in which it has arrived */
    /* races (race.h) */
    uint32_t clock, fenced;
    uint32_t lanes[EMU_WARP];
    emu_clock known, known_fenced;
};

struct emu_meeting { /* the lanes of a warp in one instruction */
    uint32_t live, arrived, mask;
    uint64_t values[2][EMU_WARP];
    int turn;
    const char *kind;
    const struct emu_site *site;
};

struct emu_barrier_state { /* bar.sync */
    uint32_t arrived, count;
    bool any, all, result_any, result_all;
    const struct emu_site *site;
    std::vector<struct emu_thread *> waiting;
};

struct emu_mbarrier_state {
    uint32_t expected, pending, phase, agent, maker;
    int64_t bytes; /* still to come */
    bool is_known_to_engine;
    std::vector<struct emu_thread *> waiting;
    emu_clock seen;
};

struct emu_warpgroup {
    uint32_t arrived, agent, clock;
    uint64_t a, b;
    const struct emu_site *site;
    float *d[EMU_GROUP];
    std::vector<uint32_t> group_clocks; /* of the agent at each commit */
    std::vector<struct emu_thread *> waiting;
};

struct emu_box { /* on its way */
    struct hostcuda_tensor_map map;
    uint32_t to, barrier, bytes;
    int32_t x, y;
    const struct emu_site *site;
    uint32_t thread;
    bool is_first; /* of the copies of it that go to the blocks of a cluster */
};

/* What a launch moved and computed; count.cc says what each is. */
struct emu_counts {
    uint64_t global_read, global_written, global_atomics;
    uint64_t shared_read, shared_written;
    uint64_t async_copied, boxes, box_bytes, box_zero_bytes;
    uint64_t matrix_read; /* shared memory that wgmma reads */
    uint64_t mma_flop, wgmma_flop;
    uint64_t touched_read, touched_written;
};

struct emu_kernel {
    struct hostcuda_code_entry entry;
    emu_body *body;
    const struct emu_parameter *parameters;
    std::vector<size_t> bytes;
};

struct emu_block {
    struct emu_grid *grid;
    uint8_t *shared; /* its own */
    uint32_t rank;   /* in its cluster */
    uint32_t number, threads, live;
    std::vector<struct emu_thread> thread;
    std::vector<struct emu_thread_state> state;
    std::vector<struct emu_meeting> warp;
    std::vector<struct emu_warpgroup> group;
    std::map<uint32_t, struct emu_barrier_state> barrier;
    std::map<uint32_t, struct emu_mbarrier_state> mbarrier;
    std::vector<struct emu_box> boxes;
    uint64_t ready[EMU_THREADS / 64];
    uint32_t ready_count;
    int starved_lane; /* -1: none */
    int starved_warp; /* -1: all */
    uint32_t registers_each, registers_in_use;
    /* races */
    emu_clock base; /* of each thread at the last barrier of all */
    uint32_t agent_clock[EMU_AGENTS];
    uint32_t agents;
    bool has_clocks; /* threads keep vector clocks of their own */
};

enum emu_order { EMU_ASCENDING, EMU_DESCENDING, EMU_RANDOM, EMU_STARVING };

/* The environment, read once. */
struct emu_settings {
    enum emu_order order;
    uint64_t seed;
    bool checks_races;
    const char *counts; /* file; NULL: none */
};
const struct emu_settings *emu_environment(void);

/* barrier.cluster: who has come, and who waits (cluster.cc). */
struct emu_meeting_of_cluster {
    uint32_t arrived, phase;
    std::vector<struct emu_thread *> waiting;
};

struct emu_grid {
    const struct emu_kernel *kernel;
    const struct hostcuda_code_launch *launch;
    const char *parameters; /* as the kernel reads them */
    size_t parameter_bytes;
    uint32_t shared_bytes; /* all of a block */
    uint32_t dynamic;
    uint64_t random_state;
    struct emu_cells *cells; /* race.cc */
    bool checks_races;
    void *scheduler; /* its stack pointer */
    int fault;       /* a cudaError_t: the launch ends */
    int finding;     /* a cudaError_t: the launch goes on, and fails */
    struct emu_counts counts;
    struct emu_block *block; /* at hand, one of the cluster's */
    std::vector<struct emu_block> cluster;
    struct emu_meeting_of_cluster meeting;
};

/* schedule.cc */

uint64_t emu_random(struct emu_grid *grid);
/* The fiber gives the processor away until someone calls emu_ready. Returns false never: a grid that ends forgets its
 * fibers. */
void emu_wait(struct emu_thread *T, const struct emu_site *site);
void emu_ready(struct emu_thread *T);
/* Runs the threads of grid->cluster, which have been prepared, to their end or to a fault. */
void emu_run_cluster(struct emu_grid *grid);

/* cluster.cc: a thread has ended: the others may have been waiting for it. */
void emu_cluster_thread_ended(struct emu_grid *grid);

/* barrier.cc: a thread has ended: those that wait may have been waiting for it. */
void emu_barrier_thread_ended(struct emu_block *block);
/* meet.cc */
void emu_meeting_thread_ended(struct emu_thread *T);
/* copy_engine.cc: a box arrives at grid->block. */
void emu_box_land(struct emu_grid *grid, size_t index);

/* grid.cc: 0, or a cudaError_t. */
int emu_grid_run(const struct emu_kernel *kernel, const struct hostcuda_code_launch *launch);

/* count.cc: appends the counts of a launch to the file. */
void emu_counts_write(const struct emu_grid *grid, double seconds);

#endif
