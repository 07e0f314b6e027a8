/*
 * count_boxes.c: the copies of a grouped product, played one by one with the kernels' own index functions: what
 * kernel-report's arithmetic (report/plan.py) is held against.
 *
 * count_boxes PATH KIND N K TEAM_LOG M... prints the bytes inside the group that all copies read from the L2, the bytes
 * that land in shared memory, and the stages of all blocks. PATH: 0 wgmma, 1 FP8 weights, 2 FP8 by FP8. It knows
 * nothing of sums: every box of every stage of every block is looked at.
 */
#include "kernels/gemm/gemm_index.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct count {
    int64_t read, landed, stages;
};

/* Elements of [at, at + length) below `end`. */
static int64_t inside(int64_t at, int64_t length, int64_t end)
{
    int64_t there = end - at < length ? end - at : length;
    return at >= end ? 0 : there;
}

static int bits(unsigned mask)
{
    return mask == 0 ? 0 : (int)(mask & 1) + bits(mask >> 1);
}

/* One operand's stage: `edge` rows or columns in boxes of 64, `line` bytes of depth, `size` bytes of an element. */
static void operand(struct count *c, struct moe_gemm_share share, int64_t at, int64_t edge, int64_t end, int64_t depth,
                    int64_t deep, int64_t depth_end, int size, bool in_one)
{
    for (int box = 0; box < (in_one ? 1 : (int)(edge / 64)); box++) {
        if ((box & share.others) == share.mine) {
            int64_t wide = in_one ? edge : 64;
            c->read += inside(at + box * 64, wide, end) * inside(depth, deep, depth_end) * size;
            c->landed += wide * deep * size * bits(share.to);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 7) {
        fprintf(stderr, "usage: count_boxes PATH KIND N K TEAM_LOG M...\n");
        return 2;
    }
    int path = atoi(argv[1]), kind = atoi(argv[2]), team_log = atoi(argv[5]);
    int64_t n = atoll(argv[3]), k = atoll(argv[4]);
    struct moe_gemm_cut cut = path == 0 ? moe_gemm_cut_of(GEMM_HOPPER_ROWS, GEMM_HOPPER_COLS, 128)
                                        : moe_gemm_cut_of(GEMM_SCALED_ROWS, GEMM_SCALED_COLS, path == 2 ? 128 : 64);
    cut.team_log = team_log;
    int a_size = path == 2 ? 1 : 2, b_size = path == 0 ? 2 : 1;
    int64_t deep = 128 / a_size;
    struct count c = {0, 0, 0};
    for (int i = 6; i < argc; i++) {
        int64_t m = atoll(argv[i]);
        struct moe_gemm_shape s = moe_gemm_shape_of(kind, m, n, k);
        struct moe_gemm_grid g = moe_gemm_grid_of(s, cut);
        int64_t places = moe_gemm_places(kind, m, n, k, cut, 0);
        for (int64_t at = 0; at < places << team_log; at++) {
            int32_t rank = (int32_t)(at & ((1 << team_log) - 1));
            struct moe_gemm_tile t = moe_gemm_team_tile(at >> team_log, g, rank);
            for (int64_t depth = 0; depth < s.depth; depth += deep) {
                operand(&c, moe_gemm_share_a(g.team, rank), t.row * cut.tile_rows, cut.tile_rows, s.rows, depth, deep,
                        s.depth, a_size, false);
                operand(&c, moe_gemm_share_b(g.team, rank), t.col * cut.tile_cols, cut.tile_cols, s.cols, depth, deep,
                        s.depth, b_size, path == 1);
                c.stages++;
            }
        }
    }
    printf("%lld %lld %lld\n", (long long)c.read, (long long)c.landed, (long long)c.stages);
    return 0;
}
