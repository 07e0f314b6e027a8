/*
 * capture.c: PTRACE_SEIZE, PTRACE_INTERRUPT, registers, one read of the stack, PTRACE_DETACH.
 *
 * PTRACE_ATTACH was rejected: it sends a SIGSTOP that stays behind when the tracer dies at the wrong moment, and it
 * confuses a process that is stopped already. With SEIZE a tracer that dies leaves nothing. A signal that arrives
 * during the stop is handed on with the detach. A thread is only stopped where the program cannot tell afterwards;
 * elsewhere its stack is read as it lies.
 */
#include "daemon/stack/capture.h"

#include "daemon/base/clock.h"
#include "daemon/base/file.h"
#include "trace/err.h"

#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __x86_64__

#define SPIN_NS  (50 * UINT64_C(1000)) /* between two looks whether the thread has stopped */
#define LATE_MAX 64u
#define RED_ZONE 128u /* bytes below the stack pointer that leaf functions use */
#define TRIES    3    /* tries to read the stack of a sleeper that must not be stopped */

#define ERESTARTNOHAND 514 /* the kernel's own number, which only tracers see */

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

/* Waits for the thread to stop. 0, TIMEOUT, NOTFOUND; *signal is the signal that has to be delivered with the detach.
 */
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
    const struct roll_mapping *map = roll_target_mapping(t, sp);
    out->low = sp - RED_ZONE;
    out->bytes = 0;
    if (!map) {
        return; /* the stack was mapped after the list was read; its words are then read one by one */
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

/* Reads what the kernel says about a thread that sleeps in a system call: sp and pc. Returns the number of the call;
 * -1: the thread does not sleep in one, or we may not know. */
static long read_syscall(const struct roll_target *t, pid_t tid, struct user_regs_struct *regs)
{
    char path[64], text[256];
    snprintf(path, sizeof(path), "/proc/%d/task/%d/syscall", (int)t->pid, (int)tid);
    bool read = roll_read_text(path, text, sizeof(text)) > 0;
    long number = -1;
    unsigned long long sp = 0, pc = 0;
    const char *last = strrchr(text, ' '), *before = last;
    while (before && before > text && *--before != ' ') {
    }
    if (!read || !last || sscanf(text, "%ld", &number) != 1 || sscanf(before, " %llx %llx", &sp, &pc) != 2 || pc == 0) {
        return -1;
    }
    memset(regs, 0, sizeof(*regs));
    regs->rip = pc;
    regs->rsp = sp;
    return number;
}

/* Captures a sleeping thread without stopping it: the stack of a thread that sleeps does not change. The other
 * registers are not known, so a walk may end early. */
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

/*
 * System calls that go on by themselves when their thread is stopped for a moment. Any other may end with EINTR
 * (epoll_wait, a socket with a timeout, io_uring_enter, a file system in user space: see signal(7)) or with less than
 * was asked for (a write, recv with MSG_WAITALL), whatever the program expects: a thread that sleeps in one is not
 * stopped.
 */
static bool goes_on_when_stopped(long number)
{
    static const long calls[] = {SYS_futex,           SYS_poll,  SYS_ppoll,         SYS_select,
                                 SYS_pselect6,        SYS_wait4, SYS_waitid,        SYS_nanosleep,
                                 SYS_clock_nanosleep, SYS_pause, SYS_rt_sigsuspend, SYS_restart_syscall};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        if (number == calls[i]) {
            return true;
        }
    }
    return false;
}

/* A thread may fall asleep in another system call after it was asked to stop. Then its EINTR is replaced, before the
 * program sees it, by the number that the kernel itself uses for "call again, unless a handler runs". This is done only
 * for calls that have done nothing yet. */
static void call_again(pid_t tid, const struct user_regs_struct *regs)
{
    static const long calls[] = {SYS_epoll_wait,   SYS_epoll_pwait,     SYS_epoll_pwait2,   SYS_semop,   SYS_semtimedop,
                                 SYS_io_getevents, SYS_rt_sigtimedwait, SYS_io_uring_enter, SYS_read,    SYS_readv,
                                 SYS_write,        SYS_writev,          SYS_recvfrom,       SYS_recvmsg, SYS_recvmmsg,
                                 SYS_sendto,       SYS_sendmsg,         SYS_sendmmsg,       SYS_accept,  SYS_accept4};
    struct user_regs_struct again = *regs;
    struct iovec io = {&again, sizeof(again)};
    if ((long)regs->rax != -EINTR) {
        return;
    }
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        if ((long)regs->orig_rax == calls[i]) {
            again.rax = (unsigned long long)-ERESTARTNOHAND;
            ptrace(PTRACE_SETREGSET, tid, (void *)NT_PRSTATUS, &io);
            return;
        }
    }
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

static void let_go(void)
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
}

static void on_child(int number)
{
    (void)number;
    int saved = errno;
    let_go();
    errno = saved;
}

/* Installs the handler at the first late thread: whatever this process does when the thread stops at last, the handler
 * lets go of it at once. */
static void watch_late(void)
{
    static bool watching;
    if (!watching) {
        struct sigaction act = {.sa_handler = on_child, .sa_flags = SA_RESTART};
        watching = sigaction(SIGCHLD, &act, NULL) == 0;
    }
}

/* Keeps the handler away while the program uses the list of late threads. */
static void hold_handler(bool hold)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(hold ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

size_t roll_capture_release(void)
{
    hold_handler(true);
    let_go();
    size_t left = late.used;
    hold_handler(false);
    return left;
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
        watch_late();
        late.tid[late.used++] = tid;
    }
    return err;
}

/* Captures the stack of a sleeper that must not be stopped. TIMEOUT: the thread is no such sleeper, or it kept moving
 * (*stoppable says which). */
static int capture_sleeper(struct roll_target *t, pid_t tid, struct roll_capture *out, bool *stoppable)
{
    int err = ROLL_E_TIMEOUT;
    *stoppable = false;
    for (int i = 0; i < TRIES && err && !*stoppable; i++) {
        long number = read_syscall(t, tid, &out->regs);
        *stoppable = number < 0 || goes_on_when_stopped(number);
        err = *stoppable ? ROLL_E_TIMEOUT : capture_asleep(t, tid, out);
    }
    return err;
}

static int capture_stopped(struct roll_target *t, pid_t tid, uint64_t deadline, struct roll_capture *out, int *error)
{
    int signal = 0;
    uint64_t begin = roll_mono_ns();
    int err = stop(tid, deadline, &signal, error);
    if (err) {
        return err;
    }
    struct iovec regs = {&out->regs, sizeof(out->regs)};
    if (ptrace(PTRACE_GETREGSET, tid, (void *)NT_PRSTATUS, &regs) == 0) {
        copy_stack(t, out);
        call_again(tid, &out->regs);
    } else {
        err = ROLL_E_NOTFOUND;
    }
    ptrace(PTRACE_DETACH, tid, NULL, (void *)(intptr_t)signal);
    out->stopped_ns = roll_mono_ns() - begin;
    return err;
}

int roll_capture_thread(struct roll_target *t, const struct roll_thread_info *thread, uint64_t patience_ns,
                        struct roll_capture *out, int *error)
{
    pid_t tid = thread->tid;
    bool stoppable;
    out->bytes = 0;
    out->blind = false;
    out->stopped_ns = 0;
    *error = 0;
    int err = capture_sleeper(t, tid, out, &stoppable);
    if (err && stoppable &&
        thread->state != 'D') { /* a thread in state D would not stop before it wakes, so it is not asked */
        hold_handler(true);
        err = capture_stopped(t, tid, roll_mono_ns() + patience_ns, out, error);
        hold_handler(false);
    }
    return err == ROLL_E_TIMEOUT ? capture_asleep(t, tid, out) : err;
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
