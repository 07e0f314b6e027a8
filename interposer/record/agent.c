/*
 * agent.c: starts the agent of this node, so that setting LD_PRELOAD and ROLLCALL_DAEMON is all a user has to do.
 *
 * The application must not notice: no SIGCHLD, no zombie, no inherited descriptor, no copy of a large address space. So
 * a child is cloned that shares memory and suspends its parent (as vfork does), has no exit signal, and itself clones
 * the process that becomes the agent; it is reaped at once by number, and the agent belongs to init. posix_spawn was
 * rejected: its child raises SIGCHLD and can be stolen by an application that waits for any child. Two ranks that come
 * here at once may both start one; --if-none lets the second leave quietly.
 *
 * What the agent has to say while it starts (keys that are not there, a library that its node lacks) goes to its log
 * file: the rank's own standard error is the job's.
 */
#include "interposer/record/session.h"

#include "trace/err.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_BYTES   (64u * 1024u)
#define MAX_VARIABLES 4096u
#define PATH_BYTES    4096u

struct launch {
    const char *path;
    char *const *argv;
    char **envp;
    const char *log; /* the agent's standard error */
    volatile int error;
    uint8_t *inner_stack;
};

/* Whether the lock of dir's agent is held. /proc/locks is read for it, because trying to take the lock could make a
 * starting agent fail. */
static bool agent_runs(const char *dir, char path[PATH_BYTES])
{
    char line[256], wanted[64];
    struct stat st;
    if (snprintf(path, PATH_BYTES, "%s/agent.lock", dir) >= (int)PATH_BYTES || stat(path, &st) != 0) {
        return false;
    }
    snprintf(wanted, sizeof(wanted), " %02x:%02x:%lu ", major(st.st_dev), minor(st.st_dev), (unsigned long)st.st_ino);
    int fd = open("/proc/locks", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    bool held = false;
    size_t used = 0;
    for (;;) {
        ssize_t n = read(fd, line + used, sizeof(line) - 1 - used);
        if (n <= 0) {
            break;
        }
        used += (size_t)n;
        line[used] = '\0';
        char *start = line, *end = NULL;
        while ((end = strchr(start, '\n')) != NULL) {
            *end = '\0';
            held = held || (strstr(start, "FLOCK") != NULL && strstr(start, wanted) != NULL);
            start = end + 1;
        }
        used = strlen(start);
        memmove(line, start, used);
        if (used == sizeof(line) - 1) {
            used = 0; /* no line of that file is so long */
        }
    }
    close(fd);
    return held;
}

static int own_path(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    uintptr_t here = (uintptr_t)&roll_session;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        if (info->dlpi_phdr[i].p_type == PT_LOAD && here >= start && here < start + info->dlpi_phdr[i].p_memsz) {
            snprintf(arg, PATH_BYTES, "%s", info->dlpi_name);
            return 1;
        }
    }
    return 0;
}

/* ROLLCALL_BIN, else beside this library (../bin), else along PATH. */
static int find_daemon(char out[PATH_BYTES])
{
    const char *named = getenv("ROLLCALL_BIN");
    if (named != NULL && named[0] != '\0') {
        return snprintf(out, PATH_BYTES, "%s", named) < (int)PATH_BYTES && access(out, X_OK) == 0 ? 0 : ROLL_E_NOTFOUND;
    }
    static char own[PATH_BYTES];
    dl_iterate_phdr(own_path, own);
    char *slash = strrchr(own, '/');
    if (slash != NULL) {
        *slash = '\0';
        /* The second path is for library directories with the machine's name below lib/. */
        static const char *const beside[] = {"/../bin/rollcalld", "/../../bin/rollcalld"};
        for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++) {
            if (snprintf(out, PATH_BYTES, "%s%s", own, beside[i]) < (int)PATH_BYTES && access(out, X_OK) == 0) {
                return 0;
            }
        }
    }
    const char *at = getenv("PATH");
    while (at != NULL && *at != '\0') {
        size_t n = strcspn(at, ":");
        if (n > 0 && snprintf(out, PATH_BYTES, "%.*s/rollcalld", (int)n, at) < (int)PATH_BYTES &&
            access(out, X_OK) == 0) {
            return 0;
        }
        at += n + (at[n] == ':');
    }
    return ROLL_E_NOTFOUND;
}

/* Runs in the process that becomes the agent. That process shares the application's memory until exec, so this function
 * touches nothing but its stack. */
static int become_agent(void *arg)
{
    struct launch *launch = arg;
    syscall(SYS_setsid);
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        memset(&action, 0, sizeof(action));
        action.sa_handler = SIG_DFL;
        sigaction(number, &action, NULL);
    }
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3 && null >= 0; fd++) {
        dup2(null, fd);
    }
    int log = open(launch->log, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
    if (log >= 0) {
        dup2(log, 2);
    }
#ifdef SYS_close_range
    bool closed = syscall(SYS_close_range, 3u, ~0u, 0u) == 0;
#else
    bool closed = false;
#endif
    for (int fd = 3; !closed && fd < 65536; fd++) {
        close(fd);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(launch->path, launch->argv, launch->envp);
    launch->error = errno;
    _exit(127);
}

/* Runs in the process between the application and the agent, which ends as soon as the agent has been executed. */
static int become_middle(void *arg)
{
    struct launch *launch = arg;
    if (clone(become_agent, launch->inner_stack + STACK_BYTES, CLONE_VM | CLONE_VFORK, launch) < 0) {
        launch->error = errno;
    }
    _exit(0);
}

/* The application's environment without LD_PRELOAD: the agent is not a rank. */
static void agent_environment(char **out)
{
    unsigned n = 0;
    for (char **at = environ; at != NULL && *at != NULL && n + 1 < MAX_VARIABLES; at++) {
        if (strncmp(*at, "LD_PRELOAD=", 11) != 0) {
            out[n++] = *at;
        }
    }
    out[n] = NULL;
}

int roll_agent_start(const char *dir, const char *endpoint)
{
    /* static: only one thread of a process comes here, once, and its stack may be small */
    static char path[PATH_BYTES], log[PATH_BYTES];
    if (agent_runs(dir, path)) {
        return 0;
    }
    int rc = find_daemon(path);
    if (rc != 0) {
        return rc;
    }
    if (snprintf(log, sizeof(log), "%s/agent.log", dir) >= (int)sizeof(log)) {
        return ROLL_E_SIZE;
    }
    size_t bytes = 2 * STACK_BYTES + MAX_VARIABLES * sizeof(char *);
    uint8_t *stacks = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stacks == MAP_FAILED) {
        return ROLL_E_NOMEM;
    }
    char *argv[] = {path,        "--agent",
                    "--dir",     (char *)(uintptr_t)dir,
                    "--connect", (char *)(uintptr_t)endpoint,
                    "--detach",  "--if-none",
                    "--linger",  "30",
                    NULL};
    struct launch launch = {
        .path = path,
        .log = log,
        .argv = argv,
        .envp = (char **)(void *)(stacks + 2 * STACK_BYTES),
        .inner_stack = stacks + STACK_BYTES,
    };
    agent_environment(launch.envp);
    /* No handler of the application may run in the child, which shares its memory. */
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    int pid = clone(become_middle, stacks + STACK_BYTES, CLONE_VM | CLONE_VFORK, &launch);
    int error = pid < 0 ? errno : 0;
    if (pid > 0) {
        while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR) {
        }
        error = launch.error;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    munmap(stacks, bytes);
    return error == 0 ? 0 : ROLL_E_IO;
}
