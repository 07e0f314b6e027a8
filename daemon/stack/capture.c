/*
 * capture.c: PTRACE_SEIZE, PTRACE_INTERRUPT, registers, one read of the stack, PTRACE_DETACH.
 *
 * PTRACE_ATTACH was rejected: it sends a SIGSTOP that stays behind when the tracer dies at the wrong moment, and it confuses a process that
 * is stopped already. With SEIZE a tracer that dies leaves nothing. A signal that arrives just then is handed on with the detach.
 */
#include "daemon/stack/capture.h"

#include "daemon/clock.h"
#include "trace/err.h"

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __x86_64__

#define SPIN_NS  (50 * UINT64_C(1000)) /* between two looks whether it has stopped */
#define LATE_MAX 64u
#define RED_ZONE 128u /* below the stack pointer, in use by leaf functions */

/* Waits for the thread to stop. 0, TIMEOUT, NOTFOUND; *signal is what has to be delivered with the detach. */
static int wait_stopped(pid_t tid, uint64_t deadline, int *signal)
{
    const struct timespec nap = {0, (long)SPIN_NS};
    *signal = 0;
    for (;;) {
        int status = 0;
        pid_t got = waitpid(tid, &status, __WALL | WNOHANG);
        if (got == tid) {
            if (!WIFSTOPPED(status)) {
                return ROLL_E_NOTFOUND;
            }
            if (status >> 16 == 0) { /* a signal was about to be delivered */
                *signal = WSTOPSIG(status);
            }
            return 0;
        }
        if (got < 0 && errno != EINTR) {
            return ROLL_E_NOTFOUND;
        }
        if (roll_mono_ns() > deadline) {
            return ROLL_E_TIMEOUT;
        }
        nanosleep(&nap, NULL);
    }
}

static void copy_stack(struct roll_target *t, struct roll_capture *out)
{
    uint64_t sp = out->regs.rsp;
    const struct roll_map *map = roll_target_map(t, sp);
    out->low = sp - RED_ZONE;
    out->bytes = 0;
    if (!map) {
        return; /* mapped since the list was read: words are read one by one */
    }
    if (out->low < map->start) {
        out->low = map->start;
    }
    uint64_t room = map->end - out->low;
    size_t want = room < ROLL_CAPTURE_BYTES ? (size_t)room : ROLL_CAPTURE_BYTES;
    /* The main thread's stack grows downwards after maps was read: then sp lies in no mapping, see above. */
    struct iovec to = {out->stack, want}, from = {(void *)(uintptr_t)out->low, want};
    ssize_t n = process_vm_readv(t->pid, &to, 1, &from, 1, 0);
    out->bytes = n > 0 ? (size_t)n : 0;
}

/* What the kernel says about a thread that sleeps in a system call: its number, sp, pc. -1: it does not, or we may not know. */
static long read_syscall(const struct roll_target *t, pid_t tid, struct user_regs_struct *regs)
{
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", (int)t->pid, (int)tid);
    FILE *f = fopen(path, "re");
    if (!f) {
        return -1;
    }
    bool read = fgets(text, sizeof text, f) != NULL;
    fclose(f);
    long number = -1;
    unsigned long long sp = 0, pc = 0;
    const char *last = strrchr(text, ' '), *before = last;
    while (before && before > text && *--before != ' ') {
    }
    if (!read || !last || sscanf(text, "%ld", &number) != 1 || sscanf(before, " %llx %llx", &sp, &pc) != 2 || pc == 0) {
        return -1;
    }
    memset(regs, 0, sizeof *regs);
    regs->rip = pc;
    regs->rsp = sp;
    return number;
}

/* Without stopping it: what a thread that sleeps has on its stack stays as it is. Its other registers are not known, so a walk may end
 * early. */
static int capture_asleep(struct roll_target *t, pid_t tid, struct roll_capture *out)
{
    struct user_regs_struct again;
    if (read_syscall(t, tid, &out->regs) < 0) {
        return ROLL_E_TIMEOUT;
    }
    copy_stack(t, out);
    out->blind = true;
    return read_syscall(t, tid, &again) >= 0 && again.rsp == out->regs.rsp && again.rip == out->regs.rip
               ? 0
               : ROLL_E_TIMEOUT;
}

/* System calls that end with EINTR when their thread is stopped for a moment, whatever the program has asked for (signal(7)). Others go on. */
static bool ends_when_stopped(long number)
{
    static const long calls[] = {SYS_epoll_wait, SYS_epoll_pwait,  SYS_epoll_pwait2,   SYS_semop,
                                 SYS_semtimedop, SYS_io_getevents, SYS_rt_sigtimedwait};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        if (number == calls[i]) {
            return true;
        }
    }
    return false;
}

/* Threads that were asked to stop and have not yet: a detach needs a stopped thread. */
static struct {
    pid_t tid[LATE_MAX];
    size_t used;
} late;

static bool forget_late(pid_t tid)
{
    for (size_t i = 0; i < late.used; i++) {
        if (late.tid[i] == tid) {
            late.tid[i] = late.tid[--late.used];
            return true;
        }
    }
    return false;
}

size_t roll_capture_release(void)
{
    for (size_t i = late.used; i-- > 0;) {
        int signal;
        pid_t tid = late.tid[i];
        int err = wait_stopped(tid, 0, &signal);
        if (err != ROLL_E_TIMEOUT) {
            if (!err) {
                ptrace(PTRACE_DETACH, tid, NULL, (void *)(intptr_t)signal);
            }
            forget_late(tid);
        }
    }
    return late.used;
}

/* Asks the thread to stop, and waits. */
static int stop(pid_t tid, uint64_t deadline, int *signal, int *error)
{
    if (!forget_late(tid)) {
        if (late.used == LATE_MAX) {
            return ROLL_E_TIMEOUT;
        }
        if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) != 0) {
            *error = errno;
            return errno == ESRCH ? ROLL_E_NOTFOUND : ROLL_E_DENIED;
        }
        if (ptrace(PTRACE_INTERRUPT, tid, NULL, NULL) != 0) {
            return ROLL_E_NOTFOUND;
        }
    }
    int err = wait_stopped(tid, deadline, signal);
    if (err == ROLL_E_TIMEOUT) {
        late.tid[late.used++] = tid;
    }
    return err;
}

int roll_capture_thread(struct roll_target *t, const struct roll_thread_info *thread, uint64_t patience_ns,
                        struct roll_capture *out, int *error)
{
    pid_t tid = thread->tid;
    int signal = 0;
    out->bytes = 0;
    out->blind = false;
    out->stopped_ns = 0;
    *error = 0;
    uint64_t begin = roll_mono_ns();
    if (ends_when_stopped(read_syscall(t, tid, &out->regs)) && capture_asleep(t, tid, out) == 0) {
        return 0;
    }
    /* What sleeps where no signal reaches it would not stop before it wakes: it is not even asked. */
    int err = thread->state == 'D' ? ROLL_E_TIMEOUT : stop(tid, begin + patience_ns, &signal, error);
    if (!err) {
        struct iovec regs = {&out->regs, sizeof out->regs};
        if (ptrace(PTRACE_GETREGSET, tid, (void *)NT_PRSTATUS, &regs) == 0) {
            copy_stack(t, out);
        } else {
            err = ROLL_E_NOTFOUND;
        }
        ptrace(PTRACE_DETACH, tid, NULL, (void *)(intptr_t)signal);
        out->stopped_ns = roll_mono_ns() - begin;
    } else if (err == ROLL_E_TIMEOUT) {
        err = capture_asleep(t, tid, out);
    }
    return err;
}

#else

size_t roll_capture_release(void)
{
    return 0;
}

int roll_capture_thread(struct roll_target *t, const struct roll_thread_info *thread, uint64_t patience_ns,
                        struct roll_capture *out, int *error)
{
    (void)t, (void)thread, (void)patience_ns, (void)out;
    *error = 0;
    return ROLL_E_UNSUPPORTED;
}

#endif
