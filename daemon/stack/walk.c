/*
 * walk.c: libunwind over a copied stack.
 *
 * libunwind's own ptrace accessors were rejected: they read word by word from a thread that has to stay stopped, and
 * look through /proc/PID/maps at every frame. Here the stack is a copy, other memory comes through a cache of pages,
 * and the unwind table of a module is found once. What libunwind cannot finish is tried with libdwfl (walk_dwfl.c).
 */
#include "daemon/stack/walk.h"

#include "trace/err.h"

#include <string.h>

#ifdef __x86_64__
#include <libunwind.h>

/* libunwind exports this function for callers that find unwind tables themselves; it has no public declaration. */
#define SEARCH_TABLE UNW_OBJ(dwarf_search_unwind_table)
extern int SEARCH_TABLE(unw_addr_space_t as, unw_word_t ip, unw_dyn_info_t *di, unw_proc_info_t *pi,
                        int need_unwind_info, void *arg);

struct walker {
    struct roll_target *target;
    struct roll_modules *modules;
    const struct roll_capture *capture;
    bool guessed; /* some code had no unwind table, so libunwind went on, or ended, by a rule of thumb */
};

static unw_addr_space_t space;

static int find_proc_info(unw_addr_space_t as, unw_word_t ip, unw_proc_info_t *pi, int need, void *arg)
{
    struct walker *w = arg;
    const struct roll_module *m = roll_modules_find(w->modules, ip);
    if (!m || m->table == 0) {
        w->guessed = true;
        return -UNW_ENOINFO;
    }
    unw_dyn_info_t di = {.format = UNW_INFO_FORMAT_REMOTE_TABLE, .start_ip = m->start, .end_ip = m->end};
    di.u.rti.segbase = m->table;
    di.u.rti.table_data = m->table_rows;
    di.u.rti.table_len = m->rows * 2 * sizeof(int32_t) / sizeof(unw_word_t);
    int rc = SEARCH_TABLE(as, ip, &di, pi, need, arg);
    w->guessed = w->guessed || rc < 0;
    return rc;
}

static void put_unwind_info(unw_addr_space_t as, unw_proc_info_t *pi, void *arg)
{
    (void)as, (void)pi, (void)arg;
}

static int get_dyn_info_list(unw_addr_space_t as, unw_word_t *out, void *arg)
{
    (void)as, (void)out, (void)arg;
    return -UNW_ENOINFO;
}

static int access_mem(unw_addr_space_t as, unw_word_t address, unw_word_t *value, int write, void *arg)
{
    (void)as;
    struct walker *w = arg;
    const struct roll_capture *c = w->capture;
    if (write) {
        return -UNW_EINVAL;
    }
    if (address >= c->low && address - c->low + sizeof(*value) <= c->bytes) {
        memcpy(value, c->stack + (address - c->low), sizeof(*value));
        return 0;
    }
    uint64_t word;
    if (!roll_target_word(w->target, address, &word)) {
        return -UNW_EINVAL;
    }
    *value = word;
    return 0;
}

static int access_reg(unw_addr_space_t as, unw_regnum_t reg, unw_word_t *value, int write, void *arg)
{
    (void)as;
    const struct walker *w = arg;
    const struct user_regs_struct *r = &w->capture->regs;
    const unsigned long long *const at[] = {&r->rax, &r->rdx, &r->rcx, &r->rbx, &r->rsi, &r->rdi,
                                            &r->rbp, &r->rsp, &r->r8,  &r->r9,  &r->r10, &r->r11,
                                            &r->r12, &r->r13, &r->r14, &r->r15, &r->rip};
    _Static_assert(UNW_X86_64_RAX == 0 && UNW_X86_64_RDX == 1 && UNW_X86_64_RSP == 7 && UNW_X86_64_RIP == 16,
                   "the order of libunwind's registers");
    if (write || reg < 0 || (size_t)reg >= sizeof(at) / sizeof(at[0])) {
        return -UNW_EBADREG;
    }
    *value = *at[reg];
    return 0;
}

static int access_fpreg(unw_addr_space_t as, unw_regnum_t reg, unw_fpreg_t *value, int write, void *arg)
{
    (void)as, (void)reg, (void)value, (void)write, (void)arg;
    return -UNW_EBADREG;
}

static int resume(unw_addr_space_t as, unw_cursor_t *cursor, void *arg)
{
    (void)as, (void)cursor, (void)arg;
    return -UNW_EINVAL;
}

static int get_proc_name(unw_addr_space_t as, unw_word_t ip, char *out, size_t bytes, unw_word_t *offset, void *arg)
{
    (void)as, (void)ip, (void)out, (void)bytes, (void)offset, (void)arg;
    return -UNW_ENOINFO;
}

static unw_accessors_t accessors = {
    .find_proc_info = find_proc_info,
    .put_unwind_info = put_unwind_info,
    .get_dyn_info_list_addr = get_dyn_info_list,
    .access_mem = access_mem,
    .access_reg = access_reg,
    .access_fpreg = access_fpreg,
    .resume = resume,
    .get_proc_name = get_proc_name,
};

int roll_walk_libunwind(struct roll_target *target, struct roll_modules *modules, const struct roll_capture *capture,
                        struct roll_walk *out)
{
    struct walker w = {target, modules, capture, false};
    unw_cursor_t cursor;
    *out = (struct roll_walk){0};
    if (!space && !(space = unw_create_addr_space(&accessors, 0))) {
        return ROLL_E_NOMEM;
    }
    /* Unwind rules are remembered by address, and another process has other code there. */
    unw_flush_cache(space, 0, 0);
    int step = unw_init_remote(&cursor, space, &w);
    if (step < 0) {
        return ROLL_E_CORRUPT;
    }
    uint64_t last_sp = 0;
    do {
        unw_word_t ip = 0, sp = 0;
        if (unw_get_reg(&cursor, UNW_REG_IP, &ip) < 0 || unw_get_reg(&cursor, UNW_REG_SP, &sp) < 0 || ip == 0) {
            break;
        }
        if (out->depth == ROLL_STACK_DEPTH || (out->depth > 0 && sp == last_sp && ip == out->pc[out->depth - 1])) {
            out->cut = true; /* the stack is too deep, or leads back to itself */
            return 0;
        }
        out->exact[out->depth] = out->depth == 0 || unw_is_signal_frame(&cursor) > 0;
        out->pc[out->depth++] = ip;
        last_sp = sp;
        step = unw_step(&cursor);
    } while (step > 0);
    out->cut = step < 0 || w.guessed;
    return 0;
}

void roll_walk_fini(void)
{
    if (space) {
        unw_destroy_addr_space(space);
        space = NULL;
    }
}

#else

int roll_walk_libunwind(struct roll_target *target, struct roll_modules *modules, const struct roll_capture *capture,
                        struct roll_walk *out)
{
    (void)target, (void)modules, (void)capture;
    *out = (struct roll_walk){0};
    return ROLL_E_UNSUPPORTED;
}

void roll_walk_fini(void)
{
}

#endif

int roll_walk_thread(struct roll_target *target, struct roll_modules *modules, pid_t tid,
                     const struct roll_capture *capture, struct roll_walk *out)
{
    int err = roll_walk_libunwind(target, modules, capture, out);
    if (err == 0 && !out->cut && out->depth > 1) {
        return 0;
    }
    if (err == 0 && out->depth == ROLL_STACK_DEPTH) {
        return 0;
    }
    static struct roll_walk other; /* large, and there is one thread */
    int second = roll_walk_dwfl(target, tid, capture, &other);
    if (second == 0 && (err != 0 || other.depth > out->depth)) {
        *out = other;
        return 0;
    }
    return err;
}
