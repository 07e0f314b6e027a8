/*
 * layout.h: where elements lie, for the matrix units and the copy engine: the PTX ISA's tables as functions, without
 * state, so that tests hold them against the tables (test_model.cc).
 */
#ifndef ROLL_TESTS_KERNELS_EMU_LAYOUT_H
#define ROLL_TESTS_KERNELS_EMU_LAYOUT_H

#include <cstdint>

/* 128-byte swizzle: in every 1024 bytes, the 16-byte piece of a row of 128 bytes is exclusive-or-ed with the number of
 * the row. */
static inline uint32_t emu_swizzle_128(uint32_t offset)
{
    return offset ^ ((offset >> 7 & 7) << 4);
}

/* A matrix descriptor of wgmma, taken apart; bytes. */
struct emu_descriptor {
    uint32_t start, leading, stride, base, swizzle; /* swizzle: 0 none, 1: 128 bytes, 2: 64, 3: 32 */
};

static inline struct emu_descriptor emu_descriptor_of(uint64_t bits)
{
    return {(uint32_t)(bits & 0x3fff) << 4, (uint32_t)(bits >> 16 & 0x3fff) << 4, (uint32_t)(bits >> 32 & 0x3fff) << 4,
            (uint32_t)(bits >> 49 & 7), (uint32_t)(bits >> 62)};
}

/*
 * Where element (mn, k) of an operand with 128-byte swizzle lies. K-major: eight rows of 128 bytes make an atom, atoms
 * of eight rows of mn are `stride` apart. MN-major: an atom is 64 elements of mn in eight steps of k; atoms follow each
 * other along k by `stride` and along mn by `leading`.
 */
static inline uint32_t emu_operand_at(struct emu_descriptor d, uint32_t mn, uint32_t k, bool is_mn_major,
                                      uint32_t element_bytes)
{
    uint32_t at = is_mn_major ? d.start + mn % 64 * element_bytes + mn / 64 * d.leading + k % 8 * 128 + k / 8 * d.stride
                              : d.start + mn / 8 * d.stride + mn % 8 * 128 + k * element_bytes;
    return emu_swizzle_128(at);
}

/* Which element of the 64 x N result thread t of the warpgroup has as its i-th sum. */
static inline void emu_wgmma_place(uint32_t t, uint32_t i, uint32_t *row, uint32_t *col)
{
    *row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
    *col = i / 4 * 8 + t % 4 * 2 + i % 2;
}

/* mma.m16n8k16: the row and column of the i-th 16-bit number of a lane's fragment of A and B (rows of B are k), and of
 * its i-th sum. */
static inline void emu_mma_a(uint32_t lane, uint32_t i, uint32_t *row, uint32_t *col)
{
    *row = lane / 4 + i / 2 % 2 * 8;
    *col = lane % 4 * 2 + i % 2 + i / 4 * 8;
}

static inline void emu_mma_b(uint32_t lane, uint32_t i, uint32_t *row, uint32_t *col)
{
    *row = lane % 4 * 2 + i % 2 + i / 2 * 8;
    *col = lane / 4;
}

static inline void emu_mma_c(uint32_t lane, uint32_t i, uint32_t *row, uint32_t *col)
{
    *row = lane / 4 + i / 2 * 8;
    *col = lane % 4 * 2 + i % 2;
}

/* ldmatrix: which element of an 8 x 8 matrix is the lane's lower or upper half. */
static inline void emu_ldmatrix(uint32_t lane, uint32_t half, bool is_transposed, uint32_t *row, uint32_t *col)
{
    *row = is_transposed ? lane % 4 * 2 + half : lane / 4;
    *col = is_transposed ? lane / 4 : lane % 4 * 2 + half;
}

#endif
