/*
 * finding.cc: see finding.h. Exceptions were rejected for the end of a launch: a fiber's stack holds nothing that must
 * be taken down, and the scheduler simply never returns to it.
 */
#include "tests/kernels_emu/finding.h"

#include "tests/kernels_emu/fiber.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>

static void say(const struct emu_grid *grid, const struct emu_site *site, uint32_t thread, const char *what)
{
    static std::mutex lock;
    static std::set<std::string> said;
    char line[1024];
    snprintf(line, sizeof(line), "%s: %s:%d (%s): %s", grid->kernel->entry.name, site ? site->file : "?",
             site ? site->line : 0, site ? site->instruction : "?", what);
    std::lock_guard<std::mutex> guard(lock);
    if (said.insert(line).second) {
        fprintf(stderr, "kernels_emu: %s; block %u, thread %u\n", line, grid->block->number, thread);
    }
}

void emu_stop(struct emu_thread *T, int error, const struct emu_site *site, const char *format, ...)
{
    char what[600];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    struct emu_grid *grid = T->block->grid;
    say(grid, site, T->number, what);
    grid->fault = error;
    emu_fiber_leave(&T->own->stack_pointer, grid->scheduler, true);
    abort(); /* nobody returns to a thread of a grid that has ended */
}

void emu_stop_grid(struct emu_grid *grid, int error, const struct emu_site *site, uint32_t thread, const char *format,
                   ...)
{
    char what[600];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    say(grid, site, thread, what);
    grid->fault = error;
}

void emu_found(struct emu_thread *T, const struct emu_site *site, const char *format, ...)
{
    char what[600];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    say(T->block->grid, site, T->number, what);
    T->block->grid->finding = EMU_LAUNCH_FAILURE;
}

void emu_trap(struct emu_thread *T, const struct emu_site *site)
{
    emu_stop(T, EMU_LAUNCH_FAILURE, site, "the kernel traps");
}

void emu_unmodelled(struct emu_thread *T, const struct emu_site *site)
{
    emu_stop(T, EMU_ILLEGAL_INSTRUCTION, site, "the emulator has no model of this instruction");
}
