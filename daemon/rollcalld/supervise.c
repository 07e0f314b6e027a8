/*
 * supervise.c: see supervise.h. The worker is a fork, not a new program: a supervisor that would have to find its own
 * program again starts another one after an update.
 *
 * The supervisor waits in sigwaitinfo and allocates nothing, so that there is little that could kill it. That systemd
 * could restart the daemon was not enough: agents that ranks start have no systemd, and a second is less than what
 * patience forgives.
 */
#include "daemon/rollcalld/supervise.h"

#include "daemon/base/clock.h"
#include "daemon/base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MINUTE_NS (60000 * ROLL_MS)
#define PAUSE_NS  (200 * ROLL_MS) /* before a worker whose predecessor lived for less than this is started */
#define GIVEN_UP  3

static pid_t supervisor; /* in the worker; 0: there is none */
static atomic_uint passed_on, others;

bool roll_supervise_insists(pid_t sender)
{
    return atomic_fetch_add(supervisor != 0 && sender == supervisor ? &passed_on : &others, 1) > 0;
}

void roll_supervise_ready(struct roll_supervised *s)
{
    if (s && !s->ready) {
        s->ready = true;
        kill(supervisor, SIGUSR1);
    }
}

static void be_worker(pid_t parent)
{
    sigset_t none;
    supervisor = parent;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(GIVEN_UP); /* it had died before it could be watched */
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* When the last deaths were. */
struct deaths {
    uint64_t at[ROLL_SUPERVISE_DEATHS];
    unsigned used;
};

/* Notes a death. Returns how many there were within the last minute. */
static unsigned note(struct deaths *d, uint64_t now)
{
    unsigned keep = 0;
    for (unsigned i = 0; i < d->used; i++) {
        if (now - d->at[i] < MINUTE_NS) {
            d->at[keep++] = d->at[i];
        }
    }
    if (keep < ROLL_SUPERVISE_DEATHS) {
        d->at[keep] = now;
        d->used = keep + 1;
        return d->used;
    }
    return keep + 1;
}

/* Everything that is open here beyond standard input, output and error is held open for the worker that is to say that
 * it is ready, and keeps those waiting who read from it. */
static void close_rest(void)
{
    for (int fd = 3; fd < 1024; fd++) {
        close(fd);
    }
}

/* Waits for the end of the worker, and passes on signals. Returns how it ended; *asked: the last signal that was passed
 * on. */
static int wait_for(pid_t worker, const sigset_t *set, int *asked, void (*to_log)(void *arg), void *arg)
{
    int status = 0;
    for (;;) {
        siginfo_t info;
        int number = sigwaitinfo(set, &info);
        if (number == SIGTERM || number == SIGINT) {
            *asked = number;
            kill(worker, number);
        } else if (number == SIGUSR1) {
            to_log(arg);
            close_rest();
        }
        if (waitpid(worker, &status, WNOHANG) == worker) {
            return status;
        }
    }
}

static bool is_death(int status, bool first)
{
    return WIFSIGNALED(status) || (!first && WIFEXITED(status) && WEXITSTATUS(status) == GIVEN_UP);
}

static void say(const char *name, pid_t worker, int status, unsigned deaths)
{
    char how[64];
    if (WIFSIGNALED(status)) {
        snprintf(how, sizeof(how), "was ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else {
        snprintf(how, sizeof(how), "could not start");
    }
    if (deaths > ROLL_SUPERVISE_DEATHS) {
        roll_log(ROLL_LOG_ERROR, "%s: process %d %s; that was the %uth time within a minute: it is not started again",
                 name, (int)worker, how, deaths);
    } else {
        roll_log(ROLL_LOG_WARNING, "%s: process %d %s; it is started again (%u time%s within a minute)", name,
                 (int)worker, how, deaths, deaths == 1 ? "" : "s");
    }
}

int roll_supervise(const char *name, void (*to_log)(void *arg), void *arg, struct roll_supervised **out)
{
    sigset_t set, ends;
    pid_t self = getpid();
    struct deaths deaths = {.used = 0};
    int asked = 0;
    struct roll_supervised *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        *out = NULL;
        return -1; /* without a supervisor, then */
    }
    *out = shared;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    set = ends;
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    for (bool first = true;; first = false) {
        uint64_t begun = roll_mono_ns();
        pid_t worker = fork();
        if (worker == 0) {
            be_worker(self);
            return -1;
        }
        if (worker < 0 && first) {
            sigprocmask(SIG_UNBLOCK, &set, NULL);
            return -1;
        }
        int status = worker < 0 ? GIVEN_UP << 8 : wait_for(worker, &set, &asked, to_log, arg);
        if (!is_death(status, first)) {
            return WEXITSTATUS(status);
        }
        if (asked) {
            return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : GIVEN_UP;
        }
        uint64_t now = roll_mono_ns();
        unsigned so_many = note(&deaths, now);
        shared->deaths++;
        to_log(arg);
        say(name, worker, status, so_many);
        if (so_many > ROLL_SUPERVISE_DEATHS) {
            return GIVEN_UP;
        }
        struct timespec pause = {0, PAUSE_NS};
        if (now - begun < PAUSE_NS && sigtimedwait(&ends, NULL, &pause) > 0) {
            return GIVEN_UP; /* asked to end while there was no worker */
        }
    }
}
