/*
 * mbarrier.cc: barriers with a count of arrivals and of bytes. A phase is over when both are met; waiting for a parity
 * waits for the phase of that parity, and for ever where it is the one after. A wait that would succeed now and then
 * fails in the random orders, as try_wait may.
 */
#include "tests/kernels_emu/mbarrier.h"
#include "tests/kernels_emu/finding.h"
#include "tests/kernels_emu/race.h"

enum { COUNT_MAX = (1 << 20) - 1 };

struct emu_mbarrier_state *emu_mbarrier_at(struct emu_thread *T, uint64_t offset, const struct emu_site *site)
{
    auto found = T->block->mbarrier.find((uint32_t)offset);
    if (found == T->block->mbarrier.end()) {
        emu_stop(T, EMU_ILLEGAL_ADDRESS, site, "there is no initialised mbarrier at %llu",
                 (unsigned long long)offset - EMU_SYSTEM_SHARED);
    }
    return &found->second;
}

void emu_mbarrier_settle(struct emu_block *block, struct emu_mbarrier_state *m)
{
    (void)block;
    if (m->pending == 0 && m->bytes == 0) {
        m->phase++;
        m->pending = m->expected;
        for (struct emu_thread *t : m->waiting) {
            emu_ready(t);
        }
        m->waiting.clear();
    }
}

void emu_mbarrier_init(struct emu_thread *T, uint64_t offset, uint32_t arrivals, const struct emu_site *site)
{
    if (offset % 8 || offset + 8 > T->shared_bytes || arrivals == 0 || arrivals > COUNT_MAX) {
        emu_stop(T, EMU_ILLEGAL_ADDRESS, site, "an mbarrier at %llu for %u arrivals",
                 (unsigned long long)offset - EMU_SYSTEM_SHARED, arrivals);
    }
    uint32_t agent = emu_agent_new(T, site);
    emu_race_access(T, offset, 8, true, EMU_WRITE, site);
    struct emu_mbarrier_state m = {};
    m.expected = m.pending = arrivals;
    m.agent = agent;
    m.maker = T->number;
    m.seen.assign(T->block->threads + EMU_AGENTS, 0);
    T->block->mbarrier[(uint32_t)offset] = m;
}

/* Its being used must be ordered behind its being made. */
static struct emu_mbarrier_state *use(struct emu_thread *T, uint64_t offset, const struct emu_site *site)
{
    struct emu_mbarrier_state *m = emu_mbarrier_at(T, offset, site);
    emu_race_access(T, offset, 8, true, EMU_READ | EMU_STRONG, site);
    return m;
}

void emu_mbarrier_arrive(struct emu_thread *T, uint64_t offset, uint32_t expected_bytes, const struct emu_site *site)
{
    struct emu_mbarrier_state *m = use(T, offset, site);
    if (m->pending == 0) {
        emu_stop(T, EMU_LAUNCH_FAILURE, site, "more arrivals than the mbarrier expects in a phase (%u)", m->expected);
    }
    m->bytes += expected_bytes;
    m->pending--;
    if (m->bytes > COUNT_MAX) {
        emu_stop(T, EMU_LAUNCH_FAILURE, site, "more bytes than an mbarrier counts: %lld", (long long)m->bytes);
    }
    if (emu_environment()->checks_races) {
        emu_clock known;
        emu_clock_known(T, &known);
        emu_clock_join(&m->seen, known);
        T->own->clock++;
    }
    emu_mbarrier_settle(T->block, m);
}

bool emu_mbarrier_wait(struct emu_thread *T, uint64_t offset, uint32_t parity, const struct emu_site *site)
{
    struct emu_mbarrier_state *m = use(T, offset, site);
    enum emu_order order = emu_environment()->order;
    if (parity > 1) {
        emu_stop(T, EMU_ILLEGAL_INSTRUCTION, site, "the parity is %u", parity);
    }
    if ((m->phase & 1) == parity) {
        m->waiting.push_back(T);
        emu_wait(T, site);
        if ((m->phase & 1) == parity) { /* it was over, and the next one of this parity has begun */
            return false;
        }
    } else if ((order == EMU_RANDOM || order == EMU_STARVING) && emu_random(T->block->grid) % 8 == 0) {
        emu_ready(T);
        emu_wait(T, site);
        return false;
    }
    if (emu_environment()->checks_races) {
        emu_clock_join(&T->own->known, m->seen);
    }
    return true;
}

void emu_fence_mbarrier_init(struct emu_thread *T, const struct emu_site *site)
{
    (void)site;
    for (auto &m : T->block->mbarrier) {
        m.second.is_known_to_engine |= m.second.maker == T->number;
    }
}

void emu_fence_async(struct emu_thread *T, const struct emu_site *site)
{
    emu_fence_mbarrier_init(T, site);
    T->own->fenced = T->own->clock;
    if (T->block->has_clocks && emu_environment()->checks_races) {
        emu_clock_known(T, &T->own->known_fenced);
    }
}
