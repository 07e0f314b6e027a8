/*
 * pydump.c: the handler of the stack signal, and PR_SET_PTRACER.
 *
 * The dumper is CPython's own, made for signal handlers: it takes no lock and no GIL, so it also works while a thread
 * hangs in C with the GIL held. The handler opens its file anew each time, because a program may close descriptors that
 * it did not open. A signal that does not carry our cookie is ignored. Anything that runs Python code instead (a
 * handler in Python) was rejected: it waits for the interpreter.
 */
#include "interposer/record/pydump.h"

#include "interposer/bind/compat.h"
#include "interposer/record/session.h"
#include "trace/pystacks.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PATH_BYTES 4096u

typedef const char *dumper(int fd, void *interpreter, void *thread);

static char path[PATH_BYTES];
static _Atomic(dumper *) dump;
static pid_t announcer; /* process that the file belongs to; a forked child leaves the file alone */

static void write_all(int fd, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return;
        }
        text += n;
        bytes -= (size_t)n;
    }
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    int saved = errno;
    dumper *function = atomic_load_explicit(&dump, memory_order_acquire);
    if (info->si_code == SI_QUEUE && info->si_value.sival_int == ROLL_PYSTACKS_COOKIE && function != NULL) {
        int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0) {
            function(fd, NULL, NULL);
            write_all(fd, ROLL_PYSTACKS_END, sizeof(ROLL_PYSTACKS_END) - 1);
            close(fd);
        }
    }
    errno = saved;
}

/* ROLLCALL_STACK_SIGNAL: a number, or "off"; 0 = none. */
static int signal_number(void)
{
    const char *text = getenv("ROLLCALL_STACK_SIGNAL");
    if (text == NULL || text[0] == '\0') {
        return SIGRTMIN + ROLL_PYSTACKS_SIGNAL;
    }
    int number = 0;
    for (; *text >= '0' && *text <= '9' && number < 1000; text++) {
        number = number * 10 + (*text - '0');
    }
    /* Only real-time signals are taken: the others mean something to schedulers and programs. */
    return *text == '\0' && number >= SIGRTMIN && number <= SIGRTMAX ? number : 0;
}

static int announce(const char *dir, int number)
{
    char line[128];
    int n = snprintf(path, sizeof(path), "%s/" ROLL_PYSTACKS_NAME, dir, (int)getpid());
    if (n < 0 || (size_t)n >= sizeof(path)) {
        return -1;
    }
    /* A file of this pid may be left from a process that was killed. */
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return -1;
    }
    n = snprintf(line, sizeof(line), ROLL_PYSTACKS_HEAD, (int)getpid(), number);
    write_all(fd, line, (size_t)n);
    close(fd);
    announcer = getpid();
    return 0;
}

void roll_pydump_start(const char *dir)
{
    struct sigaction old, act = {.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
    int saved = errno, number = signal_number();
    union {
        void *object;
        dumper *function;
    } found = {.object = roll_dlsym(RTLD_DEFAULT, "_Py_DumpTracebackThreads")};
    if (found.object == NULL) {
        roll_dlerror_clear();
    } else if (number != 0 && sigaction(number, NULL, &old) == 0 && (old.sa_flags & SA_SIGINFO) == 0 &&
               old.sa_handler == SIG_DFL) {
        act.sa_sigaction = on_signal;
        sigfillset(&act.sa_mask);
        atomic_store_explicit(&dump, found.function, memory_order_release);
        if (sigaction(number, &act, NULL) == 0 && announce(dir, number) != 0) {
            sigaction(number, &old, NULL);
        }
    }
    errno = saved;
}

void roll_pydump_end(void)
{
    if (announcer != 0 && announcer == getpid()) {
        unlink(path);
    }
}

/* who may look */

static bool setting_is(const char *value, const char *word)
{
    return value != NULL && strcmp(value, word) == 0;
}

/* The pid of the agent that serves DIR, found by the agent's lock: the control page names the agent only once it has
 * seen our ring. 0 = none. */
static uint32_t agent_by_lock(const char *dir)
{
    static char lock[PATH_BYTES];
    char text[16] = "";
    uint32_t pid = 0;
    int n = snprintf(lock, sizeof(lock), "%s/agent.lock", dir);
    int fd = n > 0 && (size_t)n < sizeof(lock) ? open(lock, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (fd >= 0) {
        ssize_t got = read(fd, text, sizeof(text) - 1);
        close(fd);
        for (ssize_t i = 0; i < got && text[i] >= '0' && text[i] <= '9'; i++) {
            pid = pid * 10 + (uint32_t)(text[i] - '0');
        }
    }
    return pid;
}

void roll_ptracer_refresh(const char *dir)
{
    static _Atomic uint32_t named;
    static _Atomic int how; /* ROLLCALL_PTRACER: 0 = not read yet, 1 = name the agent, 2 = nothing more to do */
    struct roll_control *control = roll_session->control;
    int saved = errno;
    if (atomic_load_explicit(&how, memory_order_relaxed) == 0) {
        const char *setting = getenv("ROLLCALL_PTRACER");
        if (setting_is(setting, "any")) {
            prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0,
                  0); /* fails where the kernel does not ask for a tracer, which does no harm */
        }
        atomic_store_explicit(&how, setting_is(setting, "any") || setting_is(setting, "off") ? 2 : 1,
                              memory_order_relaxed);
    }
    if (control != NULL && atomic_load_explicit(&how, memory_order_relaxed) == 1) {
        uint32_t agent = atomic_load_explicit(&control->agent_pid, memory_order_relaxed);
        agent = agent == 0 && dir != NULL ? agent_by_lock(dir) : agent;
        if (agent != 0 && atomic_exchange_explicit(&named, agent, memory_order_relaxed) != agent) {
            prctl(PR_SET_PTRACER, (unsigned long)agent, 0, 0, 0);
        }
    }
    errno = saved;
}
