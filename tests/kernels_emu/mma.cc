/*
 * mma.cc: the matrix unit of sm_80: ldmatrix and mma.m16n8k16, by the PTX ISA's tables of fragments. Sums are added in
 * float32, one after the other: how a tensor core rounds inside is not documented, and the tests' tolerances allow for
 * it.
 */
#include "tests/kernels_emu/finding.h"
#include "tests/kernels_emu/layout.h"
#include "tests/kernels_emu/meet.h"
#include "tests/kernels_emu/race.h"

void emu_load_matrix(struct emu_thread *T, uint32_t *r, uint64_t offset, bool is_transposed,
                     const struct emu_site *site)
{
    if (offset % 16 || offset + 16 > T->shared_bytes || offset < EMU_SYSTEM_SHARED) {
        emu_stop(T, EMU_ILLEGAL_ADDRESS, site, "a row of a matrix at offset %lld of %u",
                 (long long)offset - EMU_SYSTEM_SHARED, T->shared_bytes - EMU_SYSTEM_SHARED);
    }
    emu_race_access(T, offset, 16, true, EMU_READ, site);
    T->block->grid->counts.shared_read += 16;
    const char *kind = is_transposed ? "ldmatrix.trans" : "ldmatrix";
    uint64_t *rows = emu_meet(T, ~0u, offset, kind, site, nullptr);
    uint32_t lane = T->number % EMU_WARP;
    for (uint32_t matrix = 0; matrix < 4; matrix++) {
        uint16_t pair[2];
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t row, col;
            emu_ldmatrix(lane, half, is_transposed, &row, &col);
            memcpy(&pair[half], T->shared + rows[matrix * 8 + row] + col * 2, 2);
        }
        r[matrix] = pair[0] | (uint32_t)pair[1] << 16;
    }
}

struct fragments { /* of a lane */
    float *d;
    const uint32_t *a, *b;
    bool is_half;
};

static float number(const struct fragments *f, const uint32_t *pairs, uint32_t i)
{
    uint16_t bits = (uint16_t)(pairs[i / 2] >> 16 * (i % 2));
    return f->is_half ? emu_float_of_f16(bits) : emu_float_of_bf16(bits);
}

static void multiply(struct emu_thread *T, uint32_t mask, uint64_t *values)
{
    (void)mask;
    float a[16][16], b[16][8], d[16][8];
    uint32_t row, col;
    for (uint32_t lane = 0; lane < EMU_WARP; lane++) {
        const struct fragments *f = (const struct fragments *)values[lane];
        for (uint32_t i = 0; i < 8; i++) {
            emu_mma_a(lane, i, &row, &col);
            a[row][col] = number(f, f->a, i);
        }
        for (uint32_t i = 0; i < 4; i++) {
            emu_mma_b(lane, i, &row, &col);
            b[row][col] = number(f, f->b, i);
            emu_mma_c(lane, i, &row, &col);
            d[row][col] = f->d[i];
        }
    }
    for (int m = 0; m < 16; m++) {
        for (int k = 0; k < 16; k++) {
            for (int n = 0; n < 8; n++) {
                d[m][n] += a[m][k] * b[k][n];
            }
        }
    }
    for (uint32_t lane = 0; lane < EMU_WARP; lane++) {
        const struct fragments *f = (const struct fragments *)values[lane];
        for (uint32_t i = 0; i < 4; i++) {
            emu_mma_c(lane, i, &row, &col);
            f->d[i] = d[row][col];
        }
    }
    T->block->grid->counts.mma_flop += 2 * 16 * 8 * 16;
}

void emu_mma(struct emu_thread *T, float *d, const uint32_t *a, const uint32_t *b, bool is_half,
             const struct emu_site *site)
{
    struct fragments f = {d, a, b, is_half};
    emu_meet(T, ~0u, (uint64_t)&f, is_half ? "mma.f16" : "mma.bf16", site, multiply);
}
