/*
 * test_model.cc: layout.h against the tables of the PTX ISA (9.0: "Matrix Descriptor Format", "Strides", the canonical
 * layouts, the figures of the fragments of wgmma and mma) and of the CUDA programming guide (the swizzle pattern of 128
 * bytes). The tables here are those figures as numbers; nothing of layout.h or of the kernels is used to make them, so
 * that a mistake which both share is found.
 */
#include "tests/kernels_emu/layout.h"

#include <cstdio>
#include <vector>

static int failures;

static void check(bool holds, const char *what, uint32_t got, uint32_t want)
{
    if (!holds && failures++ < 20) {
        fprintf(stderr, "%s: %u, the table says %u\n", what, got, want);
    }
}

/* descriptors */

/* A field's bits, and how its number is encoded: sizes and addresses as (x & 0x3ffff) >> 4. */
static const struct {
    const char *name;
    uint32_t low, bits;
    bool is_bytes;
    uint32_t emu_descriptor::*member;
} fields[] = {{"start address", 0, 14, true, &emu_descriptor::start},
              {"leading dimension byte offset", 16, 14, true, &emu_descriptor::leading},
              {"stride dimension byte offset", 32, 14, true, &emu_descriptor::stride},
              {"base offset", 49, 3, false, &emu_descriptor::base},
              {"swizzling mode", 62, 2, false, &emu_descriptor::swizzle}};

static void test_descriptor(void)
{
    for (auto &field : fields) {
        for (uint32_t bit = 0; bit < field.bits; bit++) {
            uint32_t want = field.is_bytes ? 16u << bit : 1u << bit;
            uint64_t encoded = field.is_bytes ? (want & 0x3ffff) >> 4 : want;
            struct emu_descriptor d = emu_descriptor_of(encoded << field.low);
            check(d.*field.member == want, field.name, d.*field.member, want);
            for (auto &other : fields) { /* and in no other field */
                if (&other != &field) {
                    check(d.*other.member == 0, other.name, d.*other.member, 0);
                }
            }
        }
    }
    /* What lies between the fields means nothing. */
    struct emu_descriptor d =
        emu_descriptor_of(UINT64_C(3) << 14 | UINT64_C(3) << 30 | UINT64_C(7) << 46 | UINT64_C(0x3ff) << 52);
    check(!d.start && !d.leading && !d.stride && !d.base && !d.swizzle, "bits between the fields", 1, 0);
}

/* swizzle: row r of 128 bytes, place c of 16 bytes: which piece lies there (and where piece c lies: it is its own
 * inverse) */

static const uint8_t pattern_128[8][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}, {2, 3, 0, 1, 6, 7, 4, 5},
                                          {3, 2, 1, 0, 7, 6, 5, 4}, {4, 5, 6, 7, 0, 1, 2, 3}, {5, 4, 7, 6, 1, 0, 3, 2},
                                          {6, 7, 4, 5, 2, 3, 0, 1}, {7, 6, 5, 4, 3, 2, 1, 0}};

static void test_swizzle(void)
{
    for (uint32_t at = 0; at < 4 * 1024; at++) {
        uint32_t row = at / 128, piece = at / 16 % 8;
        uint32_t want = row * 128 + pattern_128[row % 8][piece] * 16u + at % 16;
        check(emu_swizzle_128(at) == want, "swizzle of 128 bytes", emu_swizzle_128(at), want);
    }
}

/* canonical layouts with 128-byte swizzle, in elements: T = 16 / bytes of an element; each mode a list of sizes and
 * steps, the last size being as large as needed */

enum { LBO = -1, SBO = -2, FREE = 0 };
struct mode {
    int32_t size, step; /* size FREE: the rest; step LBO or SBO: the descriptor's, else elements */
};

static uint32_t step_of(const struct mode &m, const struct emu_descriptor &d, uint32_t element)
{
    return m.step == LBO ? d.leading / element : m.step == SBO ? d.stride / element : (uint32_t)m.step;
}

static uint32_t offset_of(const std::vector<struct mode> &modes, uint32_t i, const struct emu_descriptor &d,
                          uint32_t element)
{
    uint32_t at = 0;
    for (auto &m : modes) {
        at += (m.size == FREE ? i : i % (uint32_t)m.size) * step_of(m, d, element);
        i = m.size == FREE ? 0 : i / (uint32_t)m.size;
    }
    return at;
}

/* The exclusive-or of three bits with the three bits that lie three places higher, counted in pieces of 16 bytes. */
static uint32_t swizzled(uint32_t byte)
{
    for (uint32_t bit = 4; bit < 7; bit++) {
        byte ^= (byte >> (bit + 3) & 1) << bit;
    }
    return byte;
}

static void test_operands(void)
{
    for (uint32_t element = 1; element <= 2; element++) {
        int32_t T = 16 / (int32_t)element;
        const struct {
            bool is_mn_major;
            std::vector<struct mode> mn, k;
        } layouts[] = {{false, {{8, 8 * T}, {FREE, SBO}}, {{T, 1}, {FREE, T}}},
                       {true, {{T, 1}, {8, T}, {FREE, LBO}}, {{8, 8 * T}, {FREE, SBO}}}};
        static const struct emu_descriptor places[] = {
            {1024, 16, 1024, 0, 1}, {4096, 8192, 1024, 0, 1}, {1024 + 32, 16, 2048, 0, 1}, {2048, 1024, 8192, 0, 1}};
        for (auto &layout : layouts) {
            if (layout.is_mn_major && element == 1) {
                continue; /* the instruction has no such operands */
            }
            for (auto &d : places) {
                for (uint32_t mn = 0; mn < 256; mn++) {
                    for (uint32_t k = 0; k < 32 / element; k++) {
                        uint32_t flat = d.start + element * (offset_of(layout.mn, mn, d, element) +
                                                             offset_of(layout.k, k, d, element));
                        uint32_t got = emu_operand_at(d, mn, k, layout.is_mn_major, element);
                        check(got == swizzled(flat), layout.is_mn_major ? "MN-major operand" : "K-major operand", got,
                              swizzled(flat));
                    }
                }
            }
        }
    }
}

/* fragments: the figures, a row of a figure as the threads that hold its columns in pairs */

static void test_wgmma_sums(void)
{
    /* Row of D, the first of its four threads, the first register of the row; registers go on by four every eight
     * columns. The figure names these rows; those between follow by four threads each. */
    static const struct {
        uint32_t row, thread, reg;
    } figure[] = {{0, 0, 0},   {1, 4, 0},    {7, 28, 0},  {8, 0, 2},    {9, 4, 2},    {15, 28, 2}, {16, 32, 0},
                  {23, 60, 0}, {24, 32, 2},  {31, 60, 2}, {32, 64, 0},  {39, 92, 0},  {40, 64, 2}, {47, 92, 2},
                  {48, 96, 0}, {55, 124, 0}, {56, 96, 2}, {57, 100, 2}, {62, 120, 2}, {63, 124, 2}};
    std::vector<uint8_t> seen(64 * 256);
    for (uint32_t t = 0; t < 128; t++) {
        for (uint32_t i = 0; i < 128; i++) {
            uint32_t row, col;
            emu_wgmma_place(t, i, &row, &col);
            check(row < 64 && col < 256 && !seen[row * 256 + col]++, "each sum once", row * 256 + col, 0);
        }
    }
    for (auto &line : figure) {
        for (uint32_t col = 0; col < 256; col++) {
            uint32_t t = line.thread + col % 8 / 2, i = line.reg + col / 8 * 4 + col % 2, row, at;
            emu_wgmma_place(t, i, &row, &at);
            check(row == line.row && at == col, "sum of wgmma", row * 256 + at, line.row * 256 + col);
        }
    }
}

/* mma.m16n8k16: which thread and register has (row, column): the figures of A, B and C, whose rows or columns of eight
 * belong to four threads each. */
static void test_mma(void)
{
    uint32_t row, col;
    for (uint32_t r = 0; r < 16; r++) {
        for (uint32_t c = 0; c < 16; c++) { /* A: a0 a1 upper left, a2 a3 lower left, a4 a5 upper right, a6 a7 */
            static const uint32_t first[2][2] = {{0, 4}, {2, 6}};
            uint32_t lane = r % 8 * 4 + c % 8 / 2, i = first[r / 8][c / 8] + c % 2;
            emu_mma_a(lane, i, &row, &col);
            check(row == r && col == c, "A of mma", row * 16 + col, r * 16 + c);
        }
        for (uint32_t n = 0; n < 8;
             n++) { /* B: rows of k; b0 b1 above, b2 b3 below; a column belongs to four threads */
            uint32_t lane = n * 4 + r % 8 / 2, i = r / 8 * 2 + r % 2;
            emu_mma_b(lane, i, &row, &col);
            check(row == r && col == n, "B of mma", row * 8 + col, r * 8 + n);
            uint32_t of_c = r % 8 * 4 + n / 2;
            emu_mma_c(of_c, r / 8 * 2 + n % 2, &row, &col);
            check(row == r && col == n, "C of mma", row * 8 + col, r * 8 + n);
        }
    }
    for (uint32_t lane = 0; lane < 32;
         lane++) { /* ldmatrix: thread 4 r + c has the elements 2 c and 2 c + 1 of row r */
        for (uint32_t half = 0; half < 2; half++) {
            emu_ldmatrix(lane, half, false, &row, &col);
            check(row * 4 + col / 2 == lane && col % 2 == half, "ldmatrix", row * 8 + col, lane * 2 + half);
            emu_ldmatrix(lane, half, true, &row, &col);
            check(col * 4 + row / 2 == lane && row % 2 == half, "ldmatrix.trans", row * 8 + col, lane * 2 + half);
        }
    }
}

int main(void)
{
    test_descriptor();
    test_swizzle();
    test_operands();
    test_wgmma_sums();
    test_mma();
    if (failures) {
        fprintf(stderr, "%d places differ from the tables\n", failures);
    }
    return failures ? 1 : 0;
}
