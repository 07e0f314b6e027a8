/*
 * run_reap.c: children that end, and signals that ask the job to.
 *
 * Everything comes through one signalfd, in the order in which it happened here: a handler would have to remember what
 * it may not do.
 */
#include "daemon/console/run/run_launcher.h"

#include "daemon/console/console.h"
#include "trace/ring.h"

#include <stdio.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOMENT_MS 2000 /* a signal that is sent to all reaches this program at most so much later than a rank */

/*
 * Writes into the rings that the job is being ended, so that the ends that follow are no findings. Only for a root of
 * our own: to the ranks of other nodes, which another launcher has, an end here may be the cause of a wait.
 * A rank that the same signal has ended a moment ago was sent it together with this program (kill(1) with a list,
 * a service manager that ends a group of processes).
 */
static void note_asked(struct roll_launcher *r, int sig)
{
    if (r->dir[0] == '\0' || r->o.daemon != NULL) {
        return;
    }
    roll_run_note_asked(r->dir);
    for (uint32_t i = 0; i < r->job.count; i++) {
        const struct roll_run_rank *rank = &r->job.rank[i];
        if (rank->ended_ms > 0 && roll_launcher_now_ms() - rank->ended_ms < MOMENT_MS && WIFSIGNALED(rank->status) &&
            WTERMSIG(rank->status) == sig) {
            roll_run_note_exit(r->dir, rank->pid, rank->status | ROLL_EXIT_ASKED);
        }
    }
}

/* Called when the job's only process was stopped at the terminal: stops this program as well, and hands the terminal on
 * again when it is continued. */
static void stopped(struct roll_launcher *r)
{
    pid_t group = r->job.rank[0].pid;
    tcsetpgrp(STDIN_FILENO, getpgrp());
    kill(0, SIGSTOP);
    tcsetpgrp(STDIN_FILENO, group);
    kill(-group, SIGCONT);
}

static void note_peak(struct roll_launcher *r, int rank, const struct rusage *usage)
{
    uint32_t number = r->job.rank[rank].number;
    if (r->peak_bytes != NULL && number < r->o.ranks) {
        r->peak_bytes[number] = (uint64_t)usage->ru_maxrss * 1024;
    }
}

static void give_up(int fd)
{
    if (fd >= 0) {
        close(fd);
    }
}

/* The next child that has ended, or with `stops` has stopped; 0 = none. It is not reaped yet, so that the pidfd (*fd,
 * returned owned; -1 = none) is of that child for certain. */
static pid_t next_child(int stops, int *fd)
{
    siginfo_t info = {.si_pid = 0};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | stops) != 0 || info.si_pid <= 0) {
        return 0;
    }
    *fd = roll_pidfd(info.si_pid);
    return info.si_pid;
}

static void reap(struct roll_launcher *r)
{
    struct rusage usage;
    int status, rank, group, stops = r->job.terminal ? WUNTRACED : 0;
    for (pid_t pid; (pid = next_child(stops, &group)) > 0;) {
        if (wait4(pid, &status, WNOHANG | stops, &usage) != pid) {
            give_up(group);
            return;
        }
        if (WIFSTOPPED(status)) {
            give_up(group);
            stopped(r);
        } else if (pid == r->daemon.pid) {
            give_up(group);
            roll_warden_forget(&r->warden, pid);
            r->daemon.pid = 0;
            r->daemon_died = true;
            if (r->announcer != NULL) {
                roll_announcer_give_up(r->announcer);
            }
            r->unwatched = "the daemon ended before the job did";
            roll_say("the daemon ended (%s %d); the job runs on unwatched",
                     WIFSIGNALED(status) ? "signal" : "exit code",
                     WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        } else if (pid == r->warden.pid) {
            give_up(group);
            r->warden.pid = 0;
        } else if ((rank = roll_run_job_reaped(&r->job, pid, status, group, &r->warden)) >= 0) {
            note_peak(r, rank, &usage);
            if (r->o.status != NULL && r->asked == 0) {
                r->o.status[r->job.rank[rank].number] = status;
            }
            r->job.rank[rank].ended_ms = roll_launcher_now_ms();
            bool asked = r->asked > 0 && r->o.daemon == NULL;
            roll_run_note_exit(r->dir, pid, asked ? status | ROLL_EXIT_ASKED : status);
        }
    }
}

void roll_launcher_end_job(struct roll_launcher *r, int sig)
{
    if (r->asked > 0) {
        sig = SIGKILL;
    } else {
        reap(r); /* what has ended by now has ended by itself */
        note_asked(r, sig);
    }
    r->asked++;
    if (r->announcer != NULL) {
        roll_announcer_ended(r->announcer);
    }
    roll_run_job_signal(&r->job, sig);
    r->kill_at = roll_launcher_now_ms() + (uint64_t)(r->o.grace_s * 1000);
}

/* Says what is waited for, because the ranks may take all of the grace time. */
static void say_asked(const struct roll_launcher *r, int sig)
{
    const char *name = sig == SIGINT ? "SIGINT" : sig == SIGTERM ? "SIGTERM" : sig == SIGHUP ? "SIGHUP" : "SIGQUIT";
    if (!r->o.quiet && r->job.alive > 0 && r->asked == 1 && r->o.ranks > 0) {
        bool one = r->job.alive == 1;
        roll_say("%s is passed on to %u rank%s, which %s %g s to end; a second one kills %s", name, r->job.alive,
                 one ? "" : "s", one ? "has" : "have", r->o.grace_s, one ? "it" : "them");
    } else if (!r->o.quiet && r->job.alive > 0 && r->asked == 1) {
        roll_say("%s is passed on to the job, which has %g s to end; a second one kills it", name, r->o.grace_s);
    }
}

void roll_launcher_signals(struct roll_launcher *r)
{
    struct signalfd_siginfo info;
    while (read(r->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD) {
            reap(r);
        } else {
            roll_launcher_end_job(r, (int)info.ssi_signo);
            say_asked(r, (int)info.ssi_signo);
        }
    }
}
