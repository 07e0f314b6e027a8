/*
 * code.cc: the emulator as hostcuda's library of device code (HOSTCUDA_CODE, hostnccl/cuda/code.h): which kernels there
 * are, and the environment.
 *
 *   KERNELS_EMU_ORDER   ascending, descending, random (default) or starving
 *   KERNELS_EMU_SEED    a number
 *   KERNELS_EMU_RACES   0: races are not looked for
 *   KERNELS_EMU_COUNTS  file, see count.cc
 */
#include "tests/kernels_emu/block.h"
#include "tests/kernels_emu/memory.h"

#include <cstdio>
#include <cstdlib>

static std::map<std::string, struct emu_kernel> *kernels(void)
{
    static auto *all = new std::map<std::string, struct emu_kernel>; /* used by constructors of other files */
    return all;
}

emu_registration::emu_registration(const char *name, emu_body *body, uint32_t shared_bytes, uint32_t threads_max,
                                   const struct emu_parameter *parameters, size_t count)
{
    struct emu_kernel *k = &(*kernels())[name];
    k->bytes.clear(); /* the last one counts: mutants stand in for a kernel of the same name */
    for (size_t i = 0; i < count; i++) {
        k->bytes.push_back(parameters[i].bytes);
    }
    k->body = body;
    k->parameters = parameters;
    k->entry = {name, count, k->bytes.data(), threads_max, shared_bytes};
}

static struct emu_settings read_settings(void)
{
    static const char *const orders[] = {"ascending", "descending", "random", "starving"};
    struct emu_settings s = {EMU_RANDOM, 1, true, getenv("KERNELS_EMU_COUNTS")};
    const char *order = getenv("KERNELS_EMU_ORDER"), *seed = getenv("KERNELS_EMU_SEED");
    const char *races = getenv("KERNELS_EMU_RACES");
    bool is_known = order == nullptr;
    for (int i = 0; i < 4 && order; i++) {
        if (strcmp(order, orders[i]) == 0) {
            s.order = (enum emu_order)i;
            is_known = true;
        }
    }
    if (!is_known) {
        fprintf(stderr, "kernels_emu: KERNELS_EMU_ORDER=%s is no order; random\n", order);
    }
    s.seed = seed ? strtoull(seed, nullptr, 0) : 1;
    s.checks_races = !races || strcmp(races, "0") != 0;
    return s;
}

const struct emu_settings *emu_environment(void)
{
    static const struct emu_settings settings = read_settings();
    return &settings;
}

static const struct hostcuda_code_entry *find(const char *name)
{
    auto found = kernels()->find(name);
    return found == kernels()->end() ? nullptr : &found->second.entry;
}

static int run(const struct hostcuda_code_launch *launch)
{
    return emu_grid_run(&kernels()->at(launch->entry->name), launch);
}

extern "C" __attribute__((visibility("default"))) const struct hostcuda_code *hostcuda_code_table(void)
{
    static const struct hostcuda_code table = {HOSTCUDA_CODE_VERSION, find, run, emu_memory_told};
    return &table;
}
