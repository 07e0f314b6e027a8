/*
 * gemm_index.h: the index arithmetic of the grouped products: tiles, shared memory, descriptors, accumulators.
 *
 * Pure functions, for the device and for the host: the machine that builds has no GPU, so the arithmetic on which a
 * kernel's correctness depends is kept apart from the kernels. tests/moe_core/test_gemm_index.c checks it: the test
 * simulates the copy engine and the matrix unit on the host with these same functions.
 *
 * Facts of the architecture used here (PTX ISA, "Asynchronous warpgroup level matrix instructions"): with the 128-byte
 * swizzle the unit is an atom of 8 rows x 128 bytes, 1024-byte aligned, in which the 16-byte piece c of row r lies at
 * piece c ^ r. "K-major": the 128 bytes run along the contraction; "MN-major": along the operand's own rows or columns.
 */
#ifndef ROLL_KERNELS_GEMM_GEMM_INDEX_H
#define ROLL_KERNELS_GEMM_GEMM_INDEX_H

#include <stdint.h>

#ifdef __CUDACC__
#define MOE_HD static __host__ __device__ __forceinline__
#else
#define MOE_HD static inline
#endif

/* which tile */

enum moe_gemm_kind { MOE_GEMM_FORWARD = 0, MOE_GEMM_DGRAD = 1, MOE_GEMM_WGRAD = 2 };

/* The problem of one group: out[rows, cols] is a sum over `depth`. */
struct moe_gemm_shape {
    int64_t rows, cols, depth;
};

MOE_HD struct moe_gemm_shape moe_gemm_shape_of(int kind, int64_t m, int64_t n, int64_t k)
{
    struct moe_gemm_shape s;
    s.rows = kind == MOE_GEMM_WGRAD ? n : m;
    s.cols = kind == MOE_GEMM_FORWARD ? n : k;
    s.depth = kind == MOE_GEMM_FORWARD ? k : kind == MOE_GEMM_DGRAD ? n : m;
    return s;
}

MOE_HD int64_t moe_gemm_ceil(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

struct moe_gemm_tile {
    int64_t row, col; /* in tiles */
};

static const int64_t moe_gemm_band = 8;

/*
 * Tile number `at` of a group of `high` x `wide` tiles. Bands of tile rows, down each column of a band before the next
 * column: the hundred or so tiles that run at once then share few rows and few columns, which the L2 holds. band: at
 * most 16.
 */
MOE_HD struct moe_gemm_tile moe_gemm_raster_of(int64_t at, int64_t high, int64_t wide, int64_t band)
{
    struct moe_gemm_tile t;
    if (high * wide < INT32_MAX / 16) { /* nearly always; 64-bit divisions are slow on the device */
        uint32_t w = (uint32_t)wide, n = (uint32_t)at, rows = (uint32_t)band, top = n / (rows * w) * rows;
        uint32_t tall = (uint32_t)high - top < rows ? (uint32_t)high - top : rows, in = n - top * w;
        t.row = top + in % tall;
        t.col = in / tall;
        return t;
    }
    int64_t first = at / (band * wide) * band;
    int64_t height = high - first < band ? high - first : band;
    int64_t inside = at - first * wide;
    t.row = first + inside % height;
    t.col = inside / height;
    return t;
}

MOE_HD struct moe_gemm_tile moe_gemm_raster(int64_t at, int64_t high, int64_t wide)
{
    return moe_gemm_raster_of(at, high, wide, moe_gemm_band);
}

/*
 * Teams: two or four blocks of a cluster that take neighbouring tiles of a group at once, stage by stage in step, and
 * give each other what they copy. Tiles of one row need the same stage of A, tiles of one column the same stage of B:
 * each box of it is read from the L2 once and lands in the shared memory of all of them.
 *
 * How a team stands is decided for each group, from its own size: two by two, all in a column or all in a row. A place
 * beyond the group's last row or column has no tile; its block copies its share for the others nevertheless.
 */
struct moe_gemm_team {
    int32_t high_log, wide_log; /* it is 1 << high_log tiles high and 1 << wide_log wide */
};

/* How a path cuts a group: a tile's edges, what one stage of its operands has in bytes, and how many blocks a team has
 * (1 << team_log; 0: every block for itself). */
struct moe_gemm_cut {
    int32_t tile_rows, tile_cols, a_bytes, b_bytes, team_log;
};

/* Edges of a tile, for each path. */
enum {
    GEMM_HOPPER_ROWS = 128,
    GEMM_HOPPER_COLS = 256,
    GEMM_SCALED_ROWS = 128,
    GEMM_SCALED_COLS = 128,
    GEMM_MMA_ROWS = 128,
    GEMM_MMA_COLS = 128,
    GEMM_SIMT_ROWS = 128,
    GEMM_SIMT_COLS = 128,
};

/* A stage has 128 bytes of depth of each row and column; of an FP8 weight beside 16-bit activations half of it. */
MOE_HD struct moe_gemm_cut moe_gemm_cut_of(int rows, int cols, int b_line)
{
    struct moe_gemm_cut c = {rows, cols, rows * 128, cols * b_line, 0};
    return c;
}

/* A group as its teams see it: `high` x `wide` places of teams. */
struct moe_gemm_grid {
    int64_t high, wide;
    struct moe_gemm_team team;
};

MOE_HD int64_t moe_gemm_ceil_log(int64_t a, int32_t log)
{
    return (a + ((int64_t)1 << log) - 1) >> log;
}

/* The way to stand that needs the fewest places, because each costs the same time; among those the one that reads least
 * from the L2. */
MOE_HD struct moe_gemm_grid moe_gemm_grid_of(struct moe_gemm_shape shape, struct moe_gemm_cut cut)
{
    int64_t high = moe_gemm_ceil(shape.rows, cut.tile_rows), wide = moe_gemm_ceil(shape.cols, cut.tile_cols);
    struct moe_gemm_grid best = {0, 0, {0, 0}};
    int32_t least = 0;
    for (int32_t log = 0; log <= cut.team_log; log++) {
        int32_t rest = cut.team_log - log, bytes = (cut.a_bytes << log) + (cut.b_bytes << rest);
        struct moe_gemm_grid g = {moe_gemm_ceil_log(high, log), moe_gemm_ceil_log(wide, rest), {log, rest}};
        int64_t more = g.high * g.wide - best.high * best.wide;
        if (log == 0 || more < 0 || (more == 0 && bytes < least)) {
            best = g;
            least = bytes;
        }
    }
    return best;
}

/*
 * The number of places of a group. A weight gradient has its places without rows too, because its tiles store zeros; it
 * has none when it accumulates.
 */
MOE_HD int64_t moe_gemm_places(int kind, int64_t m, int64_t n, int64_t k, struct moe_gemm_cut cut, int accumulate)
{
    struct moe_gemm_grid g = moe_gemm_grid_of(moe_gemm_shape_of(kind, m, n, k), cut);
    return m == 0 && (kind != MOE_GEMM_WGRAD || accumulate) ? 0 : g.high * g.wide;
}

static const int64_t moe_gemm_team_band = 16;

/*
 * The tile of block `rank` of the team that has place number `at`; it may lie beyond the group. In bands of 16 tile
 * rows a group of 2048 rows is one band, and each of its columns comes from the device's memory once; for other shapes
 * scripts/kernel-report finds bands of 8 and of 16 within a tenth of each other.
 */
MOE_HD struct moe_gemm_tile moe_gemm_team_tile(int64_t at, struct moe_gemm_grid grid, int32_t rank)
{
    struct moe_gemm_tile t = moe_gemm_raster_of(at, grid.high, grid.wide, moe_gemm_team_band >> grid.team.high_log);
    t.row = (t.row << grid.team.high_log) + (rank >> grid.team.wide_log);
    t.col = (t.col << grid.team.wide_log) + (rank & ((1 << grid.team.wide_log) - 1));
    return t;
}

/* Block `rank`'s part in the copies of one operand: each box with (box & others) == mine, for the blocks in `to`. */
struct moe_gemm_share {
    uint16_t others, mine, to; /* to: bit i is block i of the cluster */
};

/* A's stage is the same for the blocks of a row of the team. */
MOE_HD struct moe_gemm_share moe_gemm_share_a(struct moe_gemm_team team, int32_t rank)
{
    int32_t wide = 1 << team.wide_log;
    struct moe_gemm_share s;
    s.others = (uint16_t)(wide - 1);
    s.mine = (uint16_t)(rank & (wide - 1));
    s.to = (uint16_t)(((1u << wide) - 1) << (rank >> team.wide_log << team.wide_log));
    return s;
}

/* B's for those of a column. */
MOE_HD struct moe_gemm_share moe_gemm_share_b(struct moe_gemm_team team, int32_t rank)
{
    int32_t high = 1 << team.high_log, every = team.wide_log == 0 ? 0xf : team.wide_log == 1 ? 0x5 : 0x1;
    int32_t column = every & ((1 << (high << team.wide_log)) - 1);
    struct moe_gemm_share s;
    s.others = (uint16_t)(high - 1);
    s.mine = (uint16_t)(rank >> team.wide_log);
    s.to = (uint16_t)(column << (rank & ((1 << team.wide_log) - 1)));
    return s;
}

/* the counts */

/* The summand of a group in a prefix sum. Impossible counts add a harmless number: at most rows + 1. */
MOE_HD int64_t moe_gemm_count(int64_t m, int64_t rows)
{
    return m < 0 ? 0 : m > rows ? rows + 1 : m;
}

/* the ring of stages between producers and consumers */

/*
 * A place in a ring of stages. A stage's full barrier completes the phases 0, 1, 0, ...; a wait for parity p returns
 * once the phase of parity p is over. A consumer's first wait on any stage is for 0. A producer's first wait on an
 * empty barrier is for 1, which a fresh barrier answers at once.
 */
struct moe_gemm_ring {
    uint32_t stage, parity;
};

MOE_HD void moe_gemm_ring_next(struct moe_gemm_ring *ring, uint32_t stages)
{
    ring->stage++;
    if (ring->stage == stages) {
        ring->stage = 0;
        ring->parity ^= 1;
    }
}

/* shared memory with the 128-byte swizzle */

/* Byte `offset` of an unswizzled tile whose base is 1024-byte aligned: where the copy engine puts it. */
MOE_HD uint32_t moe_swizzle128(uint32_t offset)
{
    return offset ^ ((offset >> 3) & 0x70u);
}

/* Element (mn, depth) of a K-major tile of rows of 128 bytes. */
MOE_HD uint32_t moe_kmajor_offset(uint32_t mn, uint32_t depth, uint32_t bytes)
{
    return moe_swizzle128(mn * 128u + depth * bytes);
}

/* Element (mn, depth) of an MN-major tile of 16-bit elements, `deep` of them deep: one copied box of [deep][64] after
 * the other. */
MOE_HD uint32_t moe_mnmajor_offset(uint32_t mn, uint32_t depth, uint32_t deep)
{
    return mn / 64u * deep * 128u + moe_swizzle128(depth * 128u + mn % 64u * 2u);
}

/* The matrix descriptor: addresses and offsets in units of 16 bytes, swizzle mode 1 (128 bytes) in the top two bits.
 * stride: bytes from one group of eight 128-byte rows to the next. lead: MN-major only, from one run of 64 elements
 * to the next. */
MOE_HD uint64_t moe_wgmma_descriptor(uint32_t address, uint32_t lead, uint32_t stride)
{
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)((lead & 0x3ffffu) >> 4) << 16 |
           (uint64_t)((stride & 0x3ffffu) >> 4) << 32 | (uint64_t)1 << 62;
}

/*
 * An operand's stage is copied in boxes: when it is K-major all its rows at once, 128 bytes of depth, or 64 rows where
 * a team shares the copies; else one for each run of 64 elements.
 */
enum { MOE_BOX_BYTES = 64 * 128 /* 64 deep, 64 wide, 16 bits */ };

struct moe_gemm_box {
    int32_t x, y;    /* in the tensor map: innermost first */
    uint32_t offset; /* bytes behind the operand's place in the stage */
};

/* Box number `box` of the stage at `depth` for the rows or columns from `at` on. */
MOE_HD struct moe_gemm_box moe_gemm_box_at(int mn_major, int64_t at, int64_t depth, int box)
{
    struct moe_gemm_box b;
    b.x = (int32_t)(mn_major ? at + box * 64 : depth);
    b.y = (int32_t)(mn_major ? depth : at + box * 64);
    b.offset = (uint32_t)(box * MOE_BOX_BYTES);
    return b;
}

/* Bytes by which a descriptor's address moves for `steps` instructions along the depth (32 bytes of it each). */
MOE_HD uint32_t moe_wgmma_advance(int mn_major, uint32_t steps)
{
    return mn_major ? steps * 16u * 128u : steps * 32u;
}

/* The descriptor of an operand for instruction number `step` of a stage. */
MOE_HD uint64_t moe_wgmma_operand(uint32_t address, int mn_major, uint32_t step)
{
    return moe_wgmma_descriptor(address + moe_wgmma_advance(mn_major, step), mn_major ? MOE_BOX_BYTES : 16, 1024);
}

/* Where 16 raw FP8 weights go, number `piece` of a stage of 64 deep by 128 columns, once they are two pieces of eight
 * 16-bit numbers. Raw: [128 columns][64 deep] (forward), or [64 deep][128 columns]. */
struct moe_widen_place {
    uint32_t first, second;
};

MOE_HD struct moe_widen_place moe_widen_place_of(int forward, uint32_t piece)
{
    uint32_t col = forward ? piece / 4 : piece % 8 * 16, depth = forward ? piece % 4 * 16 : piece / 8;
    struct moe_widen_place p;
    p.first = forward ? moe_kmajor_offset(col, depth, 2) : moe_mnmajor_offset(col, depth, 64);
    p.second = forward ? moe_kmajor_offset(col, depth + 8, 2) : moe_mnmajor_offset(col + 8, depth, 64);
    return p;
}

/* accumulators: register i of thread t (0..127) of a warpgroup, instruction m64nNk* with float32 sums */

MOE_HD int moe_wgmma_row(int thread, int i)
{
    return thread / 32 * 16 + thread % 32 / 4 + (i & 2) * 4;
}

MOE_HD int moe_wgmma_col(int thread, int i)
{
    return i / 4 * 8 + thread % 4 * 2 + (i & 1);
}

/* the epilogue's staging: 16 rows of 128 bytes for each warp */

/* Byte `at` (0..127) of row r (0..15), in pieces of 16 bytes that rows shift against each other: no bank conflicts in
 * either direction. */
MOE_HD uint32_t moe_staging_offset(uint32_t row, uint32_t at)
{
    return row * 128u + (((at >> 4) ^ (row & 7u)) << 4) + (at & 15u);
}

/* mma.sync m16n8k16: which 16 bytes of shared memory each lane names to ldmatrix.x4 */

struct moe_mma_piece {
    int mn, depth; /* the first of eight elements, which run along the depth, or along mn in an MN-major tile */
};

/* The left operand's 16 x 16: registers 0 to 3 are (rows 0-7, depth 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15). */
MOE_HD struct moe_mma_piece moe_mma_left(int lane, int mn_major)
{
    struct moe_mma_piece p;
    int low = lane % 8, second = lane / 8 % 2, third = lane / 16;
    p.mn = second * 8 + (mn_major ? 0 : low);
    p.depth = third * 8 + (mn_major ? low : 0);
    return p;
}

/* The right operand's 16 columns: registers 0 and 1 are columns 0-7 at depth 0-7 and 8-15, 2 and 3 columns 8-15. */
MOE_HD struct moe_mma_piece moe_mma_right(int lane, int mn_major)
{
    struct moe_mma_piece p;
    int low = lane % 8, second = lane / 8 % 2, third = lane / 16;
    p.mn = third * 8 + (mn_major ? 0 : low);
    p.depth = second * 8 + (mn_major ? low : 0);
    return p;
}

/* Element (mn, depth) of a padded stage of mma.sync, 32 deep, 128 wide: pitches of 40 and 136 elements keep the eight
 * rows that one ldmatrix phase reads in different banks. */
MOE_HD uint32_t moe_mma_offset(uint32_t mn, uint32_t depth, int mn_major)
{
    return (mn_major ? depth * 136u + mn : mn * 40u + depth) * 2u;
}

#endif
