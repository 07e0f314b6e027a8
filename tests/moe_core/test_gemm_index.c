/*
 * test_gemm_index.c: the index arithmetic of the grouped products on the device (kernels/gemm/gemm_index.h), played
 * through on the host.
 *
 * The machine that builds has no GPU. What a kernel's instructions do with these indices is written down here from the
 * architecture's documents, apart from the kernels: the copy engine with its swizzle and its zeros beyond the edge, the
 * matrix unit's reading by descriptor, the spread of its sums over threads, ldmatrix, barriers with phases. Numbers are
 * small integers in 16 bits, so every product must come out exactly.
 */
#include "kernels/gemm/gemm_index.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 128, COLS = 256, DEPTH = 64, STAGES = 4 };

static uint64_t random_state = 5;

static int64_t random_below(int64_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((random_state >> 33) % (uint64_t)n);
}

/* tiles */

static void test_raster_names_every_tile_once(void **state)
{
    (void)state;
    for (int64_t high = 1; high < 40; high += high < 18 ? 1 : 7) {
        for (int64_t wide = 1; wide < 12; wide++) {
            bool seen[40 * 12] = {false};
            for (int64_t i = 0; i < high * wide; i++) {
                struct moe_gemm_tile t = moe_gemm_raster(i, high, wide);
                assert_in_range(t.row, 0, high - 1);
                assert_in_range(t.col, 0, wide - 1);
                assert_false(seen[t.row * wide + t.col]);
                seen[t.row * wide + t.col] = true;
            }
        }
    }
}

/* More tiles than 32 bits count: the last ones, in a last band that is 3 high. */
static void test_raster_beyond_32_bits(void **state)
{
    (void)state;
    int64_t high = ((int64_t)1 << 33) + 3, wide = 5;
    for (int64_t i = 0; i < 3 * wide; i++) {
        struct moe_gemm_tile t = moe_gemm_raster(high * wide - 3 * wide + i, high, wide);
        assert_int_equal(t.row, high - 3 + i % 3);
        assert_int_equal(t.col, i / 3);
    }
}

static void test_tiles_are_counted_without_overflow(void **state)
{
    (void)state;
    struct moe_gemm_cut cut = moe_gemm_cut_of(ROWS, COLS, 128);
    assert_int_equal(moe_gemm_places(MOE_GEMM_FORWARD, 0, 768, 2048, cut, 0), 0);
    assert_int_equal(moe_gemm_places(MOE_GEMM_FORWARD, 129, 768, 2048, cut, 0), 2 * 3);
    assert_int_equal(moe_gemm_places(MOE_GEMM_DGRAD, 1, 768, 2049, cut, 0), 9);
    assert_int_equal(moe_gemm_places(MOE_GEMM_WGRAD, 0, 768, 2048, cut, 0), 6 * 8); /* zeros are stored */
    assert_int_equal(moe_gemm_places(MOE_GEMM_WGRAD, 0, 768, 2048, cut, 1), 0);     /* nothing is touched */
    assert_int_equal(moe_gemm_places(MOE_GEMM_WGRAD, 5, 768, 2048, cut, 1), 6 * 8);
    assert_int_equal(moe_gemm_places(MOE_GEMM_FORWARD, (int64_t)1 << 40, 1 << 20, 64, cut, 0),
                     ((int64_t)1 << 33) * 4096);
    /* What the plan adds up cannot overflow, whatever the counts are. */
    assert_int_equal(moe_gemm_count(INT64_MIN, 100), 0);
    assert_int_equal(moe_gemm_count(INT64_MAX, 100), 101);
    assert_int_equal(moe_gemm_count(100, 100), 100);
}

/* the copy engine */

/* A matrix of 16-bit numbers behind a tensor map: rows and width end where the map ends. */
struct matrix {
    const int16_t *data;
    int64_t width, rows, pitch;
};

/* One box into shared memory: row after row of `wide` elements, 16-byte pieces shifted with the 128-byte swizzle (by
 * address), zeros beyond the edges. */
static void play_copy(uint8_t *shared, uint32_t to, const struct matrix *m, int64_t x, int64_t y, int wide, int high)
{
    for (int r = 0; r < high; r++) {
        for (int c = 0; c < wide; c++) {
            bool inside = y + r >= 0 && y + r < m->rows && x + c >= 0 && x + c < m->width;
            int16_t value = inside ? m->data[(y + r) * m->pitch + x + c] : 0;
            uint32_t address = to + (uint32_t)(r * wide + c) * 2, line = address / 128, piece = address / 16 % 8;
            memcpy(shared + line * 128 + (piece ^ line % 8) * 16 + address % 16, &value, 2);
        }
    }
}

/* the matrix unit */

/* Element (mn, depth) of an operand of one instruction, read as the descriptor says. Canonical layouts with the
 * 128-byte swizzle, in units of 16 bytes: K-major ((8, n), 2) : ((8, stride), 1), MN-major ((8, n), (8, k)) : ((1,
 * lead), (8, stride)). */
static int16_t play_read(const uint8_t *shared, uint64_t descriptor, bool mn_major, uint32_t mn, uint32_t depth)
{
    uint32_t address = (uint32_t)(descriptor & 0x3fff) << 4, lead = (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
             stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    int16_t value;
    assert_int_equal(descriptor >> 62, 1);     /* 128-byte swizzle */
    assert_int_equal(descriptor >> 49 & 7, 0); /* atoms begin at multiples of 1024 bytes */
    assert_int_equal(stride % 1024, 0);
    address += mn_major ? mn / 64 * lead + mn % 64 * 2 + depth / 8 * stride + depth % 8 * 128
                        : mn / 8 * stride + mn % 8 * 128 + depth * 2;
    memcpy(&value, shared + (address ^ (address >> 7 & 7) << 4), 2);
    return value;
}

/* a whole tile */

struct problem {
    int kind;
    int64_t m, n, k;
    int16_t *a, *b; /* as they lie in memory */
    int64_t a_width, b_width;
    struct moe_gemm_shape shape;
};

static int16_t a_of(const struct problem *p, int64_t row, int64_t depth)
{
    return p->kind == MOE_GEMM_WGRAD ? p->a[depth * p->a_width + row] : p->a[row * p->a_width + depth];
}

static int16_t b_of(const struct problem *p, int64_t col, int64_t depth)
{
    return p->kind == MOE_GEMM_FORWARD ? p->b[col * p->b_width + depth] : p->b[depth * p->b_width + col];
}

static struct problem problem_new(int kind, int64_t m, int64_t n, int64_t k)
{
    struct problem p = {.kind = kind, .m = m, .n = n, .k = k, .shape = moe_gemm_shape_of(kind, m, n, k)};
    int64_t b_rows = kind == MOE_GEMM_WGRAD ? m : n;
    p.a_width = kind == MOE_GEMM_FORWARD ? k : n;
    p.b_width = k;
    p.a = calloc((size_t)(m * p.a_width), 2);
    p.b = calloc((size_t)(b_rows * p.b_width), 2);
    assert_non_null(p.a);
    assert_non_null(p.b);
    for (int64_t i = 0; i < m * p.a_width; i++) {
        p.a[i] = (int16_t)(random_below(15) - 7);
    }
    for (int64_t i = 0; i < b_rows * p.b_width; i++) {
        p.b[i] = (int16_t)(random_below(15) - 7);
    }
    return p;
}

/* The stage at `depth` of a tile, as the producer of gemm_hopper.cu asks for it; in a team in boxes of 64. */
static void play_stage(const struct problem *p, uint8_t *stage, struct moe_gemm_tile tile, int64_t depth, bool team)
{
    bool a_mn = p->kind == MOE_GEMM_WGRAD, b_mn = p->kind != MOE_GEMM_FORWARD;
    struct matrix a = {p->a, p->a_width, p->m, p->a_width},
                  b = {p->b, p->b_width, p->kind == MOE_GEMM_WGRAD ? p->m : p->n, p->b_width};
    for (int box = 0; box < (a_mn || team ? ROWS / 64 : 1); box++) {
        struct moe_gemm_box at = moe_gemm_box_at(a_mn, tile.row * ROWS, depth, box);
        play_copy(stage, at.offset, &a, at.x, at.y, 64, a_mn || team ? 64 : ROWS);
    }
    for (int box = 0; box < (b_mn || team ? COLS / 64 : 1); box++) {
        struct moe_gemm_box at = moe_gemm_box_at(b_mn, tile.col * COLS, depth, box);
        play_copy(stage, ROWS * 128 + at.offset, &b, at.x, at.y, 64, b_mn || team ? 64 : COLS);
    }
}

/* All instructions of a stage for one warpgroup, sums in its threads' registers. */
static void play_multiply(const struct problem *p, const uint8_t *stage, int half, int32_t (*acc)[COLS / 2])
{
    bool a_mn = p->kind == MOE_GEMM_WGRAD, b_mn = p->kind != MOE_GEMM_FORWARD;
    for (uint32_t step = 0; step < DEPTH / 16; step++) {
        uint64_t a = moe_wgmma_operand((uint32_t)half * MOE_BOX_BYTES, a_mn, step),
                 b = moe_wgmma_operand(ROWS * 128, b_mn, step);
        int16_t left[64][16], right[COLS][16];
        for (uint32_t d = 0; d < 16; d++) {
            for (uint32_t i = 0; i < 64; i++) {
                left[i][d] = play_read(stage, a, a_mn, i, d);
            }
            for (uint32_t i = 0; i < COLS; i++) {
                right[i][d] = play_read(stage, b, b_mn, i, d);
            }
        }
        for (int t = 0; t < 128; t++) {
            for (int i = 0; i < COLS / 2; i++) {
                for (int d = 0; d < 16; d++) {
                    acc[t][i] += left[moe_wgmma_row(t, i)][d] * right[moe_wgmma_col(t, i)][d];
                }
            }
        }
    }
}

/* A warp's sums through its staging to the output, as store_grad does it: 32 columns of four bytes at a time. */
static void play_store(const struct problem *p, int32_t (*acc)[COLS / 2], int half, struct moe_gemm_tile tile,
                       int32_t *out)
{
    for (int warp = 0; warp < 4; warp++) {
        for (int chunk = 0; chunk < COLS / 32; chunk++) {
            uint8_t staging[2048];
            memset(staging, 0xee, sizeof(staging));
            for (int lane = 0; lane < 32; lane++) {
                for (int j = 0; j < 4; j++) {
                    for (int e = 0; e < 4; e++) {
                        int i = (chunk * 4 + j) * 4 + e;
                        uint32_t at = (uint32_t)(j * 32 + lane % 4 * 8 + e % 2 * 4),
                                 r = (uint32_t)(lane / 4 + e / 2 * 8);
                        assert_int_equal(moe_wgmma_row(warp * 32 + lane, i), warp * 16 + (int)r);
                        assert_int_equal(moe_wgmma_col(warp * 32 + lane, i), chunk * 32 + (int)at / 4);
                        memcpy(staging + moe_staging_offset(r, at), &acc[warp * 32 + lane][i], 4);
                    }
                }
            }
            for (int i = 0; i < 4 * 32; i++) {
                uint32_t r = (uint32_t)(i / 32 * 4 + i % 32 / 8), piece = (uint32_t)(i % 8);
                int64_t row = tile.row * ROWS + half * 64 + warp * 16 + r,
                        col = tile.col * COLS + chunk * 32 + piece * 4;
                if (row < p->shape.rows && col < p->shape.cols) {
                    memcpy(out + row * p->shape.cols + col, staging + moe_staging_offset(r, piece * 16), 16);
                }
            }
        }
    }
}

static void play_product(int kind, int64_t m, int64_t n, int64_t k, int team_log)
{
    struct problem p = problem_new(kind, m, n, k);
    struct moe_gemm_shape s = p.shape;
    struct moe_gemm_cut cut = moe_gemm_cut_of(ROWS, COLS, 128);
    cut.team_log = team_log;
    struct moe_gemm_grid grid = moe_gemm_grid_of(s, cut);
    int32_t *out = calloc((size_t)(s.rows * s.cols) + 4, sizeof(*out)), (*acc)[COLS / 2] = NULL;
    uint8_t *stage = malloc((ROWS + COLS) * 128);
    acc = malloc(128 * sizeof(*acc));
    assert_true(out != NULL && stage != NULL && acc != NULL);
    memset(out, 0x55, (size_t)(s.rows * s.cols) * sizeof(*out));
    for (int64_t i = 0; i < (grid.high * grid.wide) << team_log; i++) {
        struct moe_gemm_tile tile = team_log == 0
                                        ? moe_gemm_raster(i, grid.high, grid.wide)
                                        : moe_gemm_team_tile(i >> team_log, grid, (int32_t)(i % (1 << team_log)));
        for (int half = 0; half < 2; half++) {
            memset(acc, 0, 128 * sizeof(*acc));
            for (int64_t depth = 0; depth < s.depth; depth += DEPTH) {
                memset(stage, 0x77, (ROWS + COLS) * 128);
                play_stage(&p, stage, tile, depth, team_log > 0);
                play_multiply(&p, stage, half, acc);
            }
            play_store(&p, acc, half, tile, out);
        }
    }
    for (int64_t row = 0; row < s.rows; row++) {
        for (int64_t col = 0; col < s.cols; col++) {
            int32_t want = 0;
            for (int64_t d = 0; d < s.depth; d++) {
                want += a_of(&p, row, d) * b_of(&p, col, d);
            }
            assert_int_equal(out[row * s.cols + col], want);
        }
    }
    free(p.a);
    free(p.b);
    free(out);
    free(stage);
    free(acc);
}

static void test_a_tile_of_each_kind_comes_out_right(void **state)
{
    (void)state;
    play_product(MOE_GEMM_FORWARD, 70, 264, 88, 0);
    play_product(MOE_GEMM_DGRAD, 131, 72, 264, 0);
    play_product(MOE_GEMM_WGRAD, 67, 136, 264, 0);
    play_product(MOE_GEMM_WGRAD, 1, 8, 8, 0);
}

static void test_tiles_of_a_team_come_out_right(void **state)
{
    (void)state;
    play_product(MOE_GEMM_FORWARD, 70, 264, 88, 1);
    play_product(MOE_GEMM_DGRAD, 131, 72, 264, 2);
    play_product(MOE_GEMM_WGRAD, 67, 136, 264, 2);
}

/* FP8 weights, widened into the place where the copy engine would put 16-bit ones */

static void test_widened_weights_lie_as_copied_ones(void **state)
{
    (void)state;
    for (int forward = 0; forward < 2; forward++) {
        static int16_t numbers[128 * 64];
        static uint8_t copied[128 * 128], widened[128 * 128];
        struct matrix b = {numbers, forward ? 64 : 128, forward ? 128 : 64, forward ? 64 : 128};
        for (int i = 0; i < 128 * 64; i++) {
            numbers[i] = (int16_t)random_below(32768);
        }
        for (int box = 0; box < (forward ? 1 : 2); box++) {
            struct moe_gemm_box at = moe_gemm_box_at(!forward, 0, 0, box);
            play_copy(copied, at.offset, &b, at.x, at.y, 64, forward ? 128 : 64);
        }
        memset(widened, 0, sizeof(widened));
        for (uint32_t piece = 0; piece < 128 * 64 / 16; piece++) {
            struct moe_widen_place to = moe_widen_place_of(forward, piece);
            memcpy(widened + to.first, numbers + piece * 16, 16);
            memcpy(widened + to.second, numbers + piece * 16 + 8, 16);
        }
        assert_memory_equal(copied, widened, sizeof(copied));
    }
}

/* mma.sync */

/* ldmatrix.x4: lanes 8i..8i+7 name the rows of matrix i; what register `matrix` of `lane` holds in its half `which`. */
static int16_t play_ldmatrix(const uint8_t *stage, const uint32_t *address, bool trans, int lane, int matrix, int which)
{
    int row = trans ? lane % 4 * 2 + which : lane / 4, col = trans ? lane / 4 : lane % 4 * 2 + which;
    int16_t value;
    memcpy(&value, stage + address[matrix * 8 + row] + col * 2, 2);
    return value;
}

static void test_ldmatrix_gives_the_fragments_of_mma(void **state)
{
    (void)state;
    for (int mn_major = 0; mn_major < 2; mn_major++) {
        static uint8_t stage[128 * 40 * 2];
        for (uint32_t mn = 0; mn < 128; mn++) {
            for (uint32_t d = 0; d < 32; d++) {
                int16_t mark = (int16_t)(mn * 32 + d);
                assert_in_range(moe_mma_offset(mn, d, mn_major), 0, sizeof(stage) - 2);
                memcpy(stage + moe_mma_offset(mn, d, mn_major), &mark, 2);
            }
        }
        uint32_t left[32], right[32];
        for (int lane = 0; lane < 32; lane++) {
            struct moe_mma_piece l = moe_mma_left(lane, mn_major), r = moe_mma_right(lane, mn_major);
            left[lane] = moe_mma_offset((uint32_t)(48 + l.mn), (uint32_t)(16 + l.depth), mn_major);
            right[lane] = moe_mma_offset((uint32_t)(96 + r.mn), (uint32_t)(16 + r.depth), mn_major);
            assert_int_equal(left[lane] % 16, 0);
            assert_int_equal(right[lane] % 16, 0);
        }
        for (int lane = 0; lane < 32; lane++) {
            for (int i = 0; i < 8; i++) {
                int reg = i / 2, which = i % 2;
                int depth_a = 16 + lane % 4 * 2 + which + reg / 2 * 8, row = 48 + lane / 4 + reg % 2 * 8;
                int depth_b = 16 + lane % 4 * 2 + which + reg % 2 * 8, col = 96 + lane / 4 + reg / 2 * 8;
                assert_int_equal(play_ldmatrix(stage, left, mn_major, lane, reg, which), row * 32 + depth_a);
                assert_int_equal(play_ldmatrix(stage, right, mn_major, lane, reg, which), col * 32 + depth_b);
            }
        }
    }
}

/* Eight rows that one phase of ldmatrix or of a staging access touches: no two in the same 16 bytes of the 32 banks. */
static void test_no_bank_conflicts(void **state)
{
    (void)state;
    for (int mn_major = 0; mn_major < 2; mn_major++) {
        for (int phase = 0; phase < 4; phase++) {
            unsigned banks = 0;
            for (int lane = phase * 8; lane < phase * 8 + 8; lane++) {
                struct moe_mma_piece p = moe_mma_left(lane, mn_major);
                banks |= 1u << moe_mma_offset((uint32_t)p.mn, (uint32_t)p.depth, mn_major) / 16 % 8;
            }
            assert_int_equal(banks, 0xff);
        }
    }
    for (uint32_t piece = 0; piece < 8; piece++) {
        unsigned across = 0, along = 0;
        for (uint32_t i = 0; i < 8; i++) {
            across |= 1u << moe_staging_offset(i, piece * 16) / 16 % 8;
            along |= 1u << moe_staging_offset(piece, i * 16) / 16 % 8;
        }
        assert_int_equal(across & along, 0xff);
    }
}

/* the ring's barriers */

struct barrier {
    int arrivals, left, phase;
};

static void arrive(struct barrier *b)
{
    assert_true(b->left > 0);
    if (--b->left == 0) {
        b->left = b->arrivals;
        b->phase++;
    }
}

/* mbarrier.try_wait.parity: the phase of this parity is over. A fresh barrier is in phase 0: parity 1 counts as over.
 */
static bool over(const struct barrier *b, uint32_t parity)
{
    return (uint32_t)(b->phase & 1) != parity;
}

/* One producer and `readers` consumers, in random order, over tiles of random depth: each consumer must find the block
 * that it expects in the stage, and no party may wait for ever. */
static void play_ring(int readers, uint32_t stages)
{
    enum { BLOCKS = 400, MOST = 8 };
    struct barrier full[MOST], empty[MOST];
    int content[MOST], next[MOST] = {0}, produced = 0, held[MOST];
    struct moe_gemm_ring at[MOST], in = {0, 1};
    for (uint32_t s = 0; s < stages; s++) {
        full[s] = (struct barrier){1, 1, 0};
        empty[s] = (struct barrier){readers, readers, 0};
        content[s] = -1;
    }
    for (int r = 0; r < readers; r++) {
        at[r] = (struct moe_gemm_ring){0, 0};
        held[r] = -1;
    }
    int done = 0;
    for (long turns = 0; done < readers; turns++) {
        assert_true(turns < 1000000);
        int who = (int)random_below(readers + 1);
        if (who == readers) {
            if (produced < BLOCKS && over(&empty[in.stage], in.parity)) {
                content[in.stage] = produced++;
                arrive(&full[in.stage]);
                moe_gemm_ring_next(&in, stages);
            }
        } else if (next[who] < BLOCKS) {
            if (over(&full[at[who].stage], at[who].parity)) {
                assert_int_equal(content[at[who].stage], next[who]);
                if (held[who] >= 0) { /* the products before: their stage is still as it was */
                    assert_int_equal(content[held[who]], next[who] - 1);
                    arrive(&empty[held[who]]);
                }
                held[who] = (int)at[who].stage;
                next[who]++;
                moe_gemm_ring_next(&at[who], stages);
                if (random_below(3) == 0 || next[who] == BLOCKS) { /* a tile ends: nothing is held */
                    arrive(&empty[held[who]]);
                    held[who] = -1;
                }
                done += next[who] == BLOCKS;
            }
        }
    }
    assert_int_equal(produced, BLOCKS);
}

static void test_ring_neither_overtakes_nor_hangs(void **state)
{
    (void)state;
    for (uint32_t stages = 2; stages <= STAGES; stages++) {
        for (int i = 0; i < 10; i++) {
            play_ring(2, stages);
            play_ring(8, stages);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_raster_names_every_tile_once),
        cmocka_unit_test(test_raster_beyond_32_bits),
        cmocka_unit_test(test_tiles_are_counted_without_overflow),
        cmocka_unit_test(test_a_tile_of_each_kind_comes_out_right),
        cmocka_unit_test(test_tiles_of_a_team_come_out_right),
        cmocka_unit_test(test_widened_weights_lie_as_copied_ones),
        cmocka_unit_test(test_ldmatrix_gives_the_fragments_of_mma),
        cmocka_unit_test(test_no_bank_conflicts),
        cmocka_unit_test(test_ring_neither_overtakes_nor_hangs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
