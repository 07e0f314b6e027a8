/*
 * process.c: a daemon's loop on a stack of its own, which is left wherever it would wait.
 *
 * Threads were rejected: their order would be the machine's. A process that is killed is never entered again; what it
 * held is taken away from outside, as a kernel does it.
 */
#include "tests/world/quiet.h"
#include "tests/world/world.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define STACK_BYTES (1u << 20)
#define GUARD_BYTES (1u << 16)
#define TURNS_MAX   20000u /* in a second: a loop that waits for nothing is a fault */

struct inside {
    ucontext_t context;
    jmp_buf at;
    bool begun;
    uint8_t *stack;
    void *fake; /* of the address sanitizer */
};

struct process *process_now;
static struct process table[WORLD_PROCESSES];
static struct inside insides[WORLD_PROCESSES];
static ucontext_t outside;
static pid_t next_pid;
#ifdef __SANITIZE_ADDRESS__
static const void *outside_stack;
static size_t outside_bytes;
static void *outside_fake;
#else
static jmp_buf outside_at;
#endif

struct process *process_at(uint32_t i)
{
    return i < WORLD_PROCESSES && table[i].state != PROCESS_NONE ? &table[i] : NULL;
}

bool process_lives(const struct process *p)
{
    return p && (p->state == PROCESS_WAITS || p->state == PROCESS_RUNS);
}

/* From one stack to another: swapcontext makes two system calls each time, for a signal mask that is always the same.
 * The sanitizer is told of swapcontext only. */
#ifdef __SANITIZE_ADDRESS__
static void leave(struct process *p, bool for_good)
{
    struct inside *in = p->inside;
    process_now = NULL;
    __sanitizer_start_switch_fiber(for_good ? NULL : &in->fake, outside_stack, outside_bytes);
    swapcontext(&in->context, &outside);
    __sanitizer_finish_switch_fiber(in->fake, &outside_stack, &outside_bytes);
}

static void go_inside(struct inside *in)
{
    __sanitizer_start_switch_fiber(&outside_fake, in->stack + GUARD_BYTES, STACK_BYTES);
    swapcontext(&outside, &in->context);
    __sanitizer_finish_switch_fiber(outside_fake, NULL, NULL);
}
#else
static void leave(struct process *p, bool for_good)
{
    struct inside *in = p->inside;
    process_now = NULL;
    if (for_good || _setjmp(in->at) == 0) {
        _longjmp(outside_at, 1);
    }
}

static void go_inside(struct inside *in)
{
    if (_setjmp(outside_at) != 0) {
        return;
    }
    if (in->begun) {
        _longjmp(in->at, 1);
    }
    in->begun = true;
    swapcontext(&outside, &in->context);
}
#endif

static void enter(void)
{
    struct process *p = process_now;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(NULL, &outside_stack, &outside_bytes);
#endif
    p->main(p);
    p->state = PROCESS_OVER;
    leave(p, true);
    abort();
}

static void prepare(struct inside *in)
{
    getcontext(&in->context);
    in->fake = NULL;
    in->begun = false;
    in->context.uc_stack.ss_sp = in->stack + GUARD_BYTES;
    in->context.uc_stack.ss_size = STACK_BYTES;
    in->context.uc_link = NULL;
    makecontext(&in->context, enter, 0);
}

struct process *process_begin(const char *name, struct host *host, void (*main)(struct process *), void *argument)
{
    uint32_t i = 0;
    while (i < WORLD_PROCESSES && table[i].state != PROCESS_NONE) {
        i++;
    }
    if (i == WORLD_PROCESSES) {
        return NULL;
    }
    struct process *p = &table[i];
    struct inside *in = &insides[i];
    if (!in->stack) {
        in->stack = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (in->stack == MAP_FAILED || mprotect(in->stack, GUARD_BYTES, PROT_NONE) != 0) {
            abort();
        }
    }
    *p = (struct process){.host = host,
                          .pid = 2000 + next_pid++,
                          .state = PROCESS_WAITS,
                          .wake_ns = world.now_ns,
                          .index = (int)i,
                          .main = main,
                          .argument = argument,
                          .inside = in};
    snprintf(p->name, sizeof(p->name), "%s", name);
    prepare(in);
    return p;
}

static void take_away(struct process *p, bool orderly)
{
    socket_free(p, orderly);
    heap_free(p);
    calls_free(p);
#ifdef __SANITIZE_ADDRESS__
    struct inside *in = p->inside;
    __asan_unpoison_memory_region(in->stack + GUARD_BYTES, STACK_BYTES);
#endif
}

void process_run(struct process *p)
{
    if (p->stopped_ns > world.now_ns) {
        p->wake_ns = p->stopped_ns;
        return;
    }
    p->turns++;
    world.turns++;
    if (world.now_ns - p->second_ns >= S_) {
        p->second_ns = world.now_ns;
        p->second_turns = 0;
    }
    if (++p->second_turns > TURNS_MAX) {
        world_fail("%s turns more than %u times in a second", p->name, TURNS_MAX);
    }
    p->state = PROCESS_RUNS;
    process_now = p;
    go_inside(p->inside);
    process_now = NULL;
    if (p->state == PROCESS_RUNS) {
        p->state = PROCESS_WAITS;
    } else if (p->state == PROCESS_DEAD) {
        take_away(p, false);
    }
}

void process_kill(struct process *p)
{
    if (process_lives(p)) {
        p->state = PROCESS_DEAD;
        take_away(p, false);
    }
}

void process_forget(struct process *p)
{
    take_away(p, true);
    p->state = PROCESS_NONE;
}

void process_wait(uint64_t until_ns)
{
    struct process *p = process_now;
    uint64_t late = p->slow_us ? world_below(p->slow_us) * US_ : 0;
    uint64_t news = link_soonest(p);
    until_ns = quiet_until(until_ns);
    until_ns = news < until_ns ? news : until_ns;
    p->wake_ns = until_ns == WORLD_NEVER ? until_ns : until_ns + late;
    leave(p, false);
}

void process_wake(struct process *p, uint64_t at_ns)
{
    at_ns += p->slow_us ? world_below(p->slow_us) * US_ : 0;
    if (p->state == PROCESS_WAITS && at_ns < p->wake_ns) {
        p->wake_ns = at_ns;
    }
}

bool process_call(void)
{
    return process_now && process_now->dies_in > 0 && --process_now->dies_in == 0;
}

void process_die(void)
{
    struct process *p = process_now;
    p->state = PROCESS_DEAD;
    leave(p, true);
    abort();
}
