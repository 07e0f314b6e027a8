/*
 * walk_dwfl.c: libdwfl's unwinder over a copied stack, for stacks that libunwind cannot walk.
 *
 * libdwfl reads .eh_frame and .debug_frame from the files, also where there is no binary search table, and takes
 * longer, so it is the second choice. libdwfl's own way into a process (it attaches with SIGSTOP) is not used:
 * registers and stack are those of the capture.
 */
#include "daemon/stack/walk.h"

#include "daemon/stack/symbol_file.h"
#include "trace/err.h"

#include <elfutils/libdwfl.h>
#include <limits.h>
#include <string.h>

#ifdef __x86_64__

struct attached {
    struct roll_target *target;
    pid_t tid;
    const struct roll_capture *capture;
    struct roll_walk *out;
};

static const struct roll_target
    *looked_at; /* a global, because libdwfl hands no argument to find_file; there is only one thread */

static int no_debuginfo(Dwfl_Module *module, void **user, const char *name, Dwarf_Addr base, const char *file,
                        const char *link, GElf_Word crc, char **out)
{
    (void)module, (void)user, (void)name, (void)base, (void)file, (void)link, (void)crc, (void)out;
    return -1;
}

/* Finds the file of a module for libdwfl. In another mount namespace the same path may be another build. Elsewhere
 * libdwfl's own way works: it opens only regular files, and reads deleted ones and the vdso from memory. */
static int find_file(Dwfl_Module *module, void **user, const char *name, Dwarf_Addr base, char **file, Elf **elf)
{
    char path[PATH_MAX + 64];
    const char *space = strrchr(name, ' ');
    bool deleted = space && strcmp(space, " (deleted)") == 0;
    if (name[0] != '/' || !looked_at->other_root || deleted) {
        return dwfl_linux_proc_find_elf(module, user, name, base, file, elf);
    }
    int fd = roll_symbol_file_open(roll_target_path(looked_at, name, path, sizeof(path)));
    *file = fd >= 0 ? strdup(path) : NULL;
    return fd;
}

static pid_t next_thread(Dwfl *dwfl, void *arg, void **thread)
{
    (void)dwfl;
    struct attached *a = arg;
    if (*thread) {
        return 0;
    }
    *thread = a;
    return a->tid;
}

static bool read_word(Dwfl *dwfl, Dwarf_Addr address, Dwarf_Word *out, void *arg)
{
    (void)dwfl;
    struct attached *a = arg;
    const struct roll_capture *c = a->capture;
    if (address >= c->low && address - c->low + sizeof(*out) <= c->bytes) {
        memcpy(out, c->stack + (address - c->low), sizeof(*out));
        return true;
    }
    uint64_t word;
    bool read = roll_target_word(a->target, address, &word);
    *out = read ? word : 0;
    return read;
}

static bool set_registers(Dwfl_Thread *thread, void *arg)
{
    const struct attached *a = arg;
    const struct user_regs_struct *r = &a->capture->regs;
    const Dwarf_Word regs[] = {r->rax, r->rdx, r->rcx, r->rbx, r->rsi, r->rdi, r->rbp, r->rsp, r->r8,
                               r->r9,  r->r10, r->r11, r->r12, r->r13, r->r14, r->r15, r->rip}; /* DWARF's order */
    return dwfl_thread_state_registers(thread, 0, sizeof(regs) / sizeof(regs[0]), regs);
}

static const Dwfl_Thread_Callbacks callbacks = {
    .next_thread = next_thread,
    .memory_read = read_word,
    .set_initial_registers = set_registers,
};

static int on_frame(Dwfl_Frame *frame, void *arg)
{
    struct attached *a = arg;
    struct roll_walk *out = a->out;
    Dwarf_Addr pc;
    bool activation;
    if (!dwfl_frame_pc(frame, &pc, &activation) || pc == 0) {
        return DWARF_CB_ABORT;
    }
    if (out->depth == ROLL_STACK_DEPTH) {
        out->cut = true;
        return DWARF_CB_ABORT;
    }
    out->exact[out->depth] = activation;
    out->pc[out->depth++] = pc;
    return DWARF_CB_OK;
}

int roll_walk_dwfl(struct roll_target *target, pid_t tid, const struct roll_capture *capture, struct roll_walk *out)
{
    static const Dwfl_Callbacks files = {.find_elf = find_file, .find_debuginfo = no_debuginfo};
    struct attached a = {target, tid, capture, out};
    *out = (struct roll_walk){0};
    looked_at = target;
    Dwfl *dwfl = dwfl_begin(&files);
    if (!dwfl) {
        return ROLL_E_NOMEM;
    }
    dwfl_report_begin(dwfl);
    int err = dwfl_linux_proc_report(dwfl, target->pid) == 0 ? 0 : ROLL_E_NOTFOUND;
    if (dwfl_report_end(dwfl, NULL, NULL) != 0) {
        err = ROLL_E_NOTFOUND;
    }
    if (!err && !dwfl_attach_state(dwfl, NULL, target->pid, &callbacks, &a)) {
        err = ROLL_E_UNSUPPORTED;
    }
    if (!err) {
        int rc = dwfl_getthread_frames(dwfl, tid, on_frame, &a);
        out->cut = out->cut || rc < 0;
        err = out->depth > 0 ? 0 : ROLL_E_CORRUPT;
    }
    dwfl_end(dwfl);
    return err;
}

#else

int roll_walk_dwfl(struct roll_target *target, pid_t tid, const struct roll_capture *capture, struct roll_walk *out)
{
    (void)target, (void)tid, (void)capture;
    *out = (struct roll_walk){0};
    return ROLL_E_UNSUPPORTED;
}

#endif
