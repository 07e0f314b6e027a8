/*
 * wgmma.cc: the matrix unit of sm_90: 128 threads ask together for 64 x N sums, which appear in their registers some
 * time before the group that they commit has been waited for.
 *
 * A thread gets tokens instead of sums: numbers that only emu_settled can change into what they stand for, and only
 * once the group is done. Translated code calls it wherever such a register is used, and moves tokens freely, as ptxas
 * renames registers. Holding the sums back by the registers' addresses was rejected: a register that is moved has
 * another one.
 */
#include "tests/kernels_emu/finding.h"
#include "tests/kernels_emu/layout.h"
#include "tests/kernels_emu/race.h"

enum { SUMS_MAX = 128, KEPT_SUMS = 1 << 10, SWIZZLE_128 = 1, PIECE = 16 /* bytes that swizzle keeps together */ };
static const uint32_t TOKEN = 0xffe00000u, TOKEN_MASK = 0xfff00000u; /* NaNs that no arithmetic makes */

static bool is_token(float value)
{
    return (emu_bits<uint32_t>(value) & TOKEN_MASK) == TOKEN;
}

static struct emu_sum *sum_of(struct emu_thread *T, float token, const struct emu_site *site)
{
    struct emu_thread_state *own = T->own;
    uint32_t number = emu_bits<uint32_t>(token) & ~TOKEN_MASK;
    struct emu_sum *sum = own->sums.empty() ? nullptr : &own->sums[number % KEPT_SUMS];
    if (!sum || sum->token != number) {
        emu_stop(T, EMU_ILLEGAL_STATE, site, "a sum of the matrix unit that is older than the emulator keeps");
    }
    return sum;
}

float emu_settled(struct emu_thread *T, float value, const struct emu_site *site)
{
    if (!is_token(value)) {
        return value;
    }
    const struct emu_sum *sum = sum_of(T, value, site);
    if (sum->group >= T->own->groups_done) {
        emu_stop(T, EMU_LAUNCH_FAILURE, site, "a register of wgmma is used before wgmma.wait_group");
    }
    T->own->is_fenced = false;
    return sum->value;
}

static float give_token(struct emu_thread *T, float value)
{
    struct emu_thread_state *own = T->own;
    uint32_t number = own->tokens++ & ~TOKEN_MASK;
    own->sums.resize(KEPT_SUMS);
    own->sums[number % KEPT_SUMS] = {number, own->groups, value};
    return emu_bits<float>(TOKEN | number);
}

static struct emu_warpgroup *group_of(struct emu_thread *T, const struct emu_site *site)
{
    struct emu_warpgroup *g = &T->block->group[T->number / EMU_GROUP];
    if (T->block->threads < (T->number / EMU_GROUP + 1) * EMU_GROUP) {
        emu_stop(T, EMU_ILLEGAL_INSTRUCTION, site, "wgmma needs a whole warpgroup");
    }
    if (g->clock == 0) {
        g->agent = emu_agent_new(T, site);
        g->clock = 1;
    }
    return g;
}

void emu_wgmma_fence(struct emu_thread *T, const struct emu_site *site)
{
    group_of(T, site);
    T->own->is_fenced = true;
}

/* operands */

/* The numbers of a piece, `next` floats from one to the next. */
static void widen(float *to, size_t next, const uint8_t *from, enum emu_element type)
{
    uint16_t bits[PIECE / 2];
    memcpy(bits, from, PIECE);
    switch (type) {
    case EMU_BF16:
        for (size_t i = 0; i < PIECE / 2; i++) {
            to[i * next] = emu_float_of_bf16(bits[i]);
        }
        break;
    case EMU_F16:
        for (size_t i = 0; i < PIECE / 2; i++) {
            to[i * next] = emu_float_of_f16(bits[i]);
        }
        break;
    case EMU_E4M3:
    case EMU_E5M2:
        for (size_t i = 0; i < PIECE; i++) {
            to[i * next] = emu_float_of_fp8(from[i], type == EMU_E4M3);
        }
        break;
    }
}

/* Reads an operand into numbers[k][edge], piece by piece; notes the reads of the agent. */
static void fetch(struct emu_thread *T, uint64_t bits, uint32_t edge, uint32_t depth, bool is_mn_major,
                  enum emu_element type, float *numbers, const struct emu_site *site)
{
    struct emu_descriptor d = emu_descriptor_of(bits);
    const struct emu_warpgroup *g = &T->block->group[T->number / EMU_GROUP];
    uint32_t size = type == EMU_E4M3 || type == EMU_E5M2 ? 1 : 2, count = PIECE / size;
    if (d.swizzle != SWIZZLE_128 || d.base || (is_mn_major && size == 1)) {
        emu_stop(T, EMU_ILLEGAL_INSTRUCTION, site, "the emulator has no model of this descriptor: %#llx",
                 (unsigned long long)bits);
    }
    const uint32_t edge_step = is_mn_major ? count : 1, depth_step = is_mn_major ? 1 : count;
    const size_t next = is_mn_major ? 1 : edge; /* from one number of a piece to the next */
    for (uint32_t k = 0; k < depth; k += depth_step) {
        for (uint32_t i = 0; i < edge; i += edge_step) {
            uint32_t at = emu_operand_at(d, i, k, is_mn_major, size);
            if (at < EMU_SYSTEM_SHARED || at + PIECE > T->shared_bytes) {
                emu_stop(T, EMU_ILLEGAL_ADDRESS, site, "the descriptor reaches out of shared memory: offset %lld",
                         (long long)at - EMU_SYSTEM_SHARED);
            }
            widen(&numbers[(size_t)k * edge + i], next, T->shared + at, type);
            emu_race_agent(T, g->agent, g->clock, at, PIECE, EMU_READ, site);
        }
    }
    T->block->grid->counts.matrix_read += (uint64_t)edge * depth * size;
}

__attribute__((target_clones("avx2", "default"))) static void add_products(float *sums, const float *a, const float *b,
                                                                           uint32_t n, uint32_t depth)
{
    for (uint32_t m = 0; m < 64; m++) {
        float *to = sums + m * n;
        for (uint32_t k = 0; k < depth; k++) {
            float x = a[k * 64 + m];
            const float *y = b + k * n;
            for (uint32_t j = 0; j < n; j++) {
                to[j] += x * y[j];
            }
        }
    }
}

/* Where in the 64 x n sums each thread's lie. */
static const uint16_t *places_of(uint32_t n)
{
    static thread_local struct {
        uint32_t n;
        uint16_t at[EMU_GROUP * SUMS_MAX];
    } last;
    for (uint32_t t = 0; t < EMU_GROUP && last.n != n; t++) {
        for (uint32_t i = 0; i < n / 2; i++) {
            uint32_t row, col;
            emu_wgmma_place(t, i, &row, &col);
            last.at[t * SUMS_MAX + i] = (uint16_t)(row * n + col);
        }
    }
    last.n = n;
    return last.at;
}

/* The last of the 128 threads computes for all. */
static void compute(struct emu_thread *T, struct emu_warpgroup *g, uint32_t n, uint32_t k, enum emu_element a_type,
                    enum emu_element b_type, bool adds, bool a_is_mn_major, bool b_is_mn_major,
                    const struct emu_site *site)
{
    static thread_local std::vector<float> a, b, sums;
    a.resize(64 * k);
    b.resize(n * k);
    sums.assign(64 * n, 0);
    fetch(T, g->a, 64, k, a_is_mn_major, a_type, a.data(), site);
    fetch(T, g->b, n, k, b_is_mn_major, b_type, b.data(), site);
    const uint16_t *place = places_of(n);
    for (uint32_t t = 0; t < EMU_GROUP && adds; t++) {
        for (uint32_t i = 0; i < n / 2; i++) {
            sums[place[t * SUMS_MAX + i]] = g->d[t][i];
        }
    }
    add_products(sums.data(), a.data(), b.data(), n, k);
    for (uint32_t t = 0; t < EMU_GROUP; t++) {
        for (uint32_t i = 0; i < n / 2; i++) {
            g->d[t][i] = sums[place[t * SUMS_MAX + i]];
        }
    }
    T->block->grid->counts.wgmma_flop += (uint64_t)2 * 64 * n * k;
}

void emu_wgmma(struct emu_thread *T, uint32_t n, uint32_t k, enum emu_element a_type, enum emu_element b_type, float *d,
               uint64_t a, uint64_t b, bool adds, int scale_a, int scale_b, int a_is_mn_major, int b_is_mn_major,
               const struct emu_site *site)
{
    struct emu_warpgroup *g = group_of(T, site);
    bool has_numbers = false;
    if (scale_a != 1 || scale_b != 1 || n > 2 * SUMS_MAX) {
        emu_stop(T, EMU_ILLEGAL_INSTRUCTION, site, "the emulator has no model of a negated operand");
    }
    for (uint32_t i = 0; i < n / 2; i++) {
        if (is_token(d[i])) {
            d[i] = sum_of(T, d[i], site)->value; /* the unit adds to its own sums without a wait */
        } else {
            has_numbers = true;
        }
    }
    if (!T->own->is_fenced && (has_numbers || T->own->tokens > 0)) {
        emu_found(T, site, "no wgmma.fence since the registers were last used by the thread itself");
    }
    if (g->arrived == 0) {
        g->a = a, g->b = b, g->site = site;
    } else if (g->a != a || g->b != b || g->site != site) {
        emu_stop(T, EMU_ILLEGAL_INSTRUCTION, site, "the threads of the warpgroup disagree about the operands");
    }
    g->d[T->number % EMU_GROUP] = d;
    if (++g->arrived < EMU_GROUP) {
        g->waiting.push_back(T);
        emu_wait(T, site);
    } else {
        compute(T, g, n, k, a_type, b_type, adds, a_is_mn_major != 0, b_is_mn_major != 0, site);
        g->arrived = 0;
        for (struct emu_thread *t : g->waiting) {
            emu_ready(t);
        }
        g->waiting.clear();
    }
    for (uint32_t i = 0; i < n / 2; i++) {
        d[i] = give_token(T, d[i]);
    }
}

void emu_wgmma_commit(struct emu_thread *T, const struct emu_site *site)
{
    struct emu_warpgroup *g = group_of(T, site);
    T->own->groups++;
    if (g->group_clocks.size() < T->own->groups) { /* the first thread of the group to come here */
        g->group_clocks.push_back(g->clock++);
    }
}

void emu_wgmma_wait(struct emu_thread *T, uint32_t groups_left, const struct emu_site *site)
{
    const struct emu_warpgroup *g = group_of(T, site);
    struct emu_thread_state *own = T->own;
    if (own->groups <= groups_left) {
        return;
    }
    own->groups_done = own->groups - groups_left;
    uint32_t *known = &own->known[T->block->threads + g->agent], done = g->group_clocks[own->groups_done - 1];
    *known = *known < done ? done : *known;
}
