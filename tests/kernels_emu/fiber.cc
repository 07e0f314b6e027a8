/*
 * fiber.cc: see fiber.h. The switch keeps the registers that a call must keep; a fresh stack looks as if it had been
 * switched away from just before start(argument). The address sanitizer is told of each switch, or it would take a
 * fiber's stack for memory out of bounds.
 */
#include "tests/kernels_emu/fiber.h"

#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__)
#error "the switch between fibers is written for x86-64"
#endif

enum { STACK_BYTES = 256 << 10, STACKS = 8 * 1024 /* of the threads of a cluster */ };

extern "C" void emu_switch(void **save, void *to);
asm(R"(
.text
.globl emu_switch
.hidden emu_switch
.type emu_switch,@function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emu_switch,.-emu_switch
)");

static thread_local char *stacks;
static thread_local struct {
    void (*start)(void *argument);
    void *argument;
} starting;

#if defined(__SANITIZE_ADDRESS__)
static thread_local void *scheduler_fake, *fiber_fake[STACKS];
static thread_local const void *scheduler_bottom;
static thread_local size_t scheduler_bytes, running;
#endif

static void first(void)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_bytes);
#endif
    starting.start(starting.argument);
}

/* Kept on the stack until the fiber is first entered. */
struct frame {
    void *r15, *r14, *r13, *r12, *rbx, *rbp;
    void (*entry)(void);
    void *no_return;
    void (*start)(void *argument);
    void *argument;
};

void *emu_fiber_prepare(size_t i, void (*start)(void *argument), void *argument)
{
    if (!stacks) {
        void *made = mmap(nullptr, (size_t)STACK_BYTES * STACKS, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (made == MAP_FAILED || i >= STACKS) {
            return nullptr;
        }
        stacks = (char *)made;
    }
    char *top = stacks + STACK_BYTES * (i + 1);
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(top - STACK_BYTES, STACK_BYTES); /* an earlier block may have left its marks */
    fiber_fake[i] = nullptr;
#endif
    struct frame *frame = (struct frame *)(top - 128);
    *frame = {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, first, nullptr, start, argument};
    starting.start = start;
    return frame;
}

void emu_fiber_enter(void **scheduler, void *fiber, size_t i)
{
    struct frame *frame = (struct frame *)fiber;
    if ((char *)fiber == stacks + STACK_BYTES * (i + 1) - 128) { /* for the first time */
        starting.argument = frame->argument;
        starting.start = frame->start;
    }
#if defined(__SANITIZE_ADDRESS__)
    running = i;
    __sanitizer_start_switch_fiber(&scheduler_fake, stacks + STACK_BYTES * i, STACK_BYTES);
#endif
    emu_switch(scheduler, fiber);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
#endif
}

void emu_fiber_leave(void **fiber, void *scheduler, bool for_ever)
{
#if defined(__SANITIZE_ADDRESS__)
    size_t mine = running;
    __sanitizer_start_switch_fiber(for_ever ? nullptr : &fiber_fake[mine], scheduler_bottom, scheduler_bytes);
#endif
    (void)for_ever;
    emu_switch(fiber, scheduler);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fiber_fake[mine], nullptr, nullptr);
#endif
}
