/*
 * run_launch.c: the job under rollcall, from the private directory to the exit code.
 *
 * One loop over descriptors (signals as a signalfd, the ranks' output, a timer), because a launcher must never miss the
 * end of a child or sleep through a Ctrl-C. The job comes first: when something fails on our side, one line says so and
 * the job runs. Only --timeout and --fail-on-finding change its exit code, because they ask for that.
 */
#include "daemon/base/units.h"
#include "daemon/console/console.h"
#include "daemon/console/run/program.h"
#include "daemon/console/run/run.h"
#include "daemon/console/text.h"
#include "daemon/wire/client.h"

#include "trace/err.h"
#include "trace/ident.h"
#include "trace/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DRAIN_WAIT_MS 15000
#define STILL_MS      5000 /* a rehearsal with a finding that has not moved for so long is said to stand */
#define MOMENT_MS     2000 /* a signal that is sent to all reaches this program at most so much later than a rank */

static const char room_help[] =
    "free some, enlarge it (mount -o remount,size=2G /dev/shm), or name another folder with ROLLCALL_DIR";

struct launcher {
    struct roll_run_options o;
    struct roll_place place;
    struct roll_bind bind;
    char dir[PATH_MAX];
    int dir_lock; /* held while the directory is in use; -1 = there is none */
    struct roll_warden warden;
    struct roll_run_daemon daemon;
    struct roll_run_job job;
    roll_announcer_t *announcer;
    FILE *json;           /* borrowed */
    uint64_t *peak_bytes; /* borrowed; NULL = not wanted */
    sigset_t old_mask;
    int signal_fd;

    bool timed_out, daemon_died, begun;
    const char *unwatched; /* why nobody watched the job, or not to its end; NULL = it was watched */
    bool unheard;          /* the root did not send its last verdicts */
    bool is_short;         /* where rings are made, there was no room for a single one */
    bool stood;            /* that a rehearsal stands has been said */
    int asked;             /* how many signals have asked us to stop */
    uint64_t kill_at;      /* when SIGKILL follows; 0 = never */
    uint64_t moved_at;     /* when a rank last made a call or printed */
    uint64_t progress, output;
};

static uint64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/*
 * Writes into the rings that the job is being ended, so that the ends that follow are no findings. Only for a root of
 * our own: to the ranks of other nodes, which another launcher has, an end here may be the cause of a wait.
 * A rank that the same signal has ended a moment ago was sent it together with this program (kill(1) with a list,
 * a service manager that ends a group of processes).
 */
static void note_asked(struct launcher *r, int sig)
{
    if (r->dir[0] == '\0' || r->o.daemon != NULL) {
        return;
    }
    roll_run_note_asked(r->dir);
    for (uint32_t i = 0; i < r->job.count; i++) {
        const struct roll_run_rank *rank = &r->job.rank[i];
        if (rank->ended_ms > 0 && now_ms() - rank->ended_ms < MOMENT_MS && WIFSIGNALED(rank->status) &&
            WTERMSIG(rank->status) == sig) {
            roll_run_note_exit(r->dir, rank->pid, rank->status | ROLL_EXIT_ASKED);
        }
    }
}

/* Called when the job's only process was stopped at the terminal: stops this program as well, and hands the terminal on
 * again when it is continued. */
static void stopped(struct launcher *r)
{
    pid_t group = r->job.rank[0].pid;
    tcsetpgrp(STDIN_FILENO, getpgrp());
    kill(0, SIGSTOP);
    tcsetpgrp(STDIN_FILENO, group);
    kill(-group, SIGCONT);
}

static void note_peak(struct launcher *r, int rank, const struct rusage *usage)
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

static void reap(struct launcher *r)
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
            r->job.rank[rank].ended_ms = now_ms();
            bool asked = r->asked > 0 && r->o.daemon == NULL;
            roll_run_note_exit(r->dir, pid, asked ? status | ROLL_EXIT_ASKED : status);
        }
    }
}

/* Asks the job to end with this signal. SIGKILL follows after the grace time, or at once when the user asks again. */
static void end_job(struct launcher *r, int sig)
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
    r->kill_at = now_ms() + (uint64_t)(r->o.grace_s * 1000);
}

/* Says what is waited for, because the ranks may take all of the grace time. */
static void say_asked(const struct launcher *r, int sig)
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

static void handle_signals(struct launcher *r)
{
    struct signalfd_siginfo info;
    while (read(r->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD) {
            reap(r);
        } else {
            end_job(r, (int)info.ssi_signo);
            say_asked(r, (int)info.ssi_signo);
        }
    }
}

static const char *environment(const char *name)
{
    return getenv(name);
}

/* Says, before --timeout ends the job, who is waited for and what the others wait in. */
static void say_how_it_stands(const struct launcher *r)
{
    struct roll_ident ident = {.job = ""};
    if (r->o.daemon != NULL) { /* the root has other jobs as well */
        roll_ident_read(environment, &ident);
    }
    if (!r->o.quiet && r->announcer != NULL && r->daemon.endpoint[0] != '\0') {
        roll_run_say_stand(r->daemon.endpoint, ident.job);
    }
}

/* Notes whether anything has moved. True: each rank has begun. */
static bool look_at_progress(struct launcher *r, uint64_t now)
{
    bool are_ranks = r->o.ranks > 0;
    uint64_t progress;
    /* Under another launcher nobody tells of a rank whose ring is gone that it has ended: what was seen once stays. */
    r->begun = roll_run_progress(r->dir, &r->job, are_ranks, &progress) || (!are_ranks && r->begun);
    if (progress != r->progress || r->output != r->job.output) {
        r->progress = progress;
        r->output = r->job.output;
        r->moved_at = now;
    }
    return r->begun;
}

/* Says of a rehearsal that stands after its finding how it ends: PyTorch's watchdog takes ten minutes, without a word.
 * Returns ms until the next look, UINT64_MAX for none. */
static uint64_t watch_stand(struct launcher *r, uint64_t now)
{
    const char *waiting;
    char until[96];
    if (!r->o.rehearses || r->o.quiet || r->stood || r->asked > 0 || r->announcer == NULL) {
        return UINT64_MAX;
    }
    waiting = roll_announcer_waiting(r->announcer);
    if (waiting == NULL) {
        return 500;
    }
    look_at_progress(r, now);
    if (now - r->moved_at < STILL_MS) {
        return 500;
    }
    r->stood = true;
    if (r->o.timeout_s > 0) {
        snprintf(until, sizeof(until), "--timeout ends it when nothing has moved for %g s, Ctrl-C now", r->o.timeout_s);
    } else {
        snprintf(until, sizeof(until), "Ctrl-C ends it now, and --timeout S does so by itself");
    }
    if (waiting[0] != '\0') {
        bool many = strpbrk(waiting, ",-") != NULL;
        roll_say("the job is still running: rank%s %s wait%s, until PyTorch's watchdog (ten minutes as a rule) or the "
                 "job itself ends that; %s",
                 many ? "s" : "", waiting, many ? "" : "s", until);
    } else {
        roll_say("the job is still running, and nothing has moved for %d s; PyTorch's watchdog ends a wait after ten "
                 "minutes as a rule; %s",
                 STILL_MS / 1000, until);
    }
    return UINT64_MAX;
}

/* Checks whether anything has moved and whether the grace time has run out. Returns ms until the next look, -1 for
 * none. */
static int watch_time(struct launcher *r)
{
    uint64_t now = now_ms(), next = watch_stand(r, now);
    if (r->kill_at != 0) {
        if (now >= r->kill_at) {
            roll_run_job_signal(&r->job, SIGKILL);
            r->kill_at = 0;
        } else {
            next = r->kill_at - now < next ? r->kill_at - now : next;
        }
    }
    if (r->o.timeout_s > 0 && !r->timed_out && r->asked == 0) {
        uint64_t limit = (uint64_t)(r->o.timeout_s * 1000);
        if (!look_at_progress(r, now)) { /* a framework is imported for half a minute */
            limit += (uint64_t)(r->o.start_s * 1000);
        }
        uint64_t step = limit / 8 < 20 ? 20 : limit / 8 > 500 ? 500 : limit / 8;
        if (now - r->moved_at >= limit) {
            bool starting = limit > (uint64_t)(r->o.timeout_s * 1000);
            roll_say(starting ? "nothing has moved for %g s, and not all ranks have made a first call (--timeout): "
                                "ending the job"
                              : "nothing has moved for %g s (--timeout): ending the job",
                     (double)limit / 1000);
            r->timed_out = true;
            say_how_it_stands(r);
            end_job(r, SIGTERM);
            return (int)(r->o.grace_s * 1000);
        }
        next = step < next ? step : next;
    }
    return next > 1u << 30 ? -1 : (int)next;
}

/* One turn of the loop: waits until a descriptor is ready or a signal comes, at most `limit` ms (-1 = any time).
 * Returns true when `done_fd`
 * (-1 = none) is readable. */
static bool turn(struct launcher *r, struct pollfd *fds, int done_fd, int limit)
{
    nfds_t n = 0;
    fds[n++] = (struct pollfd){r->signal_fd, POLLIN, 0};
    fds[n++] = (struct pollfd){done_fd, POLLIN, 0};
    for (uint32_t i = 0; i < 2 * r->job.count; i++) {
        fds[n++] = (struct pollfd){r->job.rank[i / 2].out[i % 2].fd, POLLIN, 0};
    }
    if (poll(fds, n, limit) <= 0) {
        return false;
    }
    for (uint32_t i = 0; i < 2 * r->job.count; i++) {
        if (fds[2 + i].revents != 0) {
            roll_run_job_relay(&r->job, i / 2, (int)(i % 2));
        }
    }
    if (fds[0].revents != 0) {
        handle_signals(r);
    }
    return done_fd >= 0 && fds[1].revents != 0;
}

static bool outputs_open(const struct launcher *r)
{
    for (uint32_t i = 0; i < 2 * r->job.count; i++) {
        if (r->job.rank[i / 2].out[i % 2].fd >= 0) {
            return true;
        }
    }
    return false;
}

static void wait_for_job(struct launcher *r)
{
    struct pollfd *fds = calloc(2 + 2 * (size_t)r->job.count, sizeof(*fds));
    if (fds == NULL) {
        return;
    }
    r->moved_at = now_ms();
    while (r->job.alive > 0) {
        turn(r, fds, -1, watch_time(r));
    }
    /* Relays what the ranks printed last. A grandchild may keep a pipe open for ever, so this has an end. */
    for (uint64_t until = now_ms() + 300; outputs_open(r) && now_ms() < until;) {
        turn(r, fds, -1, 50);
    }
    if (r->o.ranks > 0 || r->asked > 0) {
        roll_run_job_sweep(&r->job, r->dir);
    }
    if (r->announcer != NULL) {
        int done_fd = roll_announcer_finish(r->announcer);
        int asked = r->asked;
        for (uint64_t until = now_ms() + DRAIN_WAIT_MS; now_ms() < until;) {
            if (turn(r, fds, done_fd, 100)) {
                break;
            }
            if (r->asked > asked) {
                roll_announcer_give_up(
                    r->announcer); /* the user asked again to stop while we waited for the root's last verdicts */
                break;
            }
        }
    }
    free(fds);
}

/* Why no rank was recorded, as far as that can be seen from here. */
static void say_unrecorded(const struct launcher *r)
{
    const char *rehearse =
        r->o.no_gpu && !r->o.rehearses && !r->o.hostnccl
            ? "; this machine has no GPU: `rollcall rehearse -- COMMAND` runs a PyTorch job without one, "
              "`rollcall run --hostnccl -- COMMAND` a program that needs NCCL and the CUDA runtime "
              "alone"
            : "";
    if (r->is_short) {
        roll_say("no rank was recorded, because there was no room in %s: %s", r->dir, room_help);
    } else if (r->o.rehearses) {
        return;
    } else if (r->job.first_failure != 0 && r->asked == 0) {
        roll_say("no rank recorded a call of NCCL, so there was nothing to judge: the job ended with code %d before "
                 "one%s",
                 r->job.first_failure, rehearse);
    } else {
        roll_say("no rank recorded a call of NCCL, so there was nothing to judge: a job on gloo or MPI makes none; one "
                 "that does can be asked with `rollcall doctor -- COMMAND`, or `rollcall doctor PID` while it runs%s",
                 rehearse);
    }
}

/* Some rank has recorded calls here, whatever the root has heard of them. */
static bool has_rings(const struct launcher *r)
{
    uint64_t sum = 0;
    (void)roll_run_progress(r->dir, &r->job, r->o.ranks > 0, &sum);
    return sum > 0;
}

static void print_summary(struct launcher *r)
{
    const json_t *s = r->announcer != NULL ? roll_announcer_summary(r->announcer) : NULL;
    char text[ROLL_SUMMARY_TEXT];
    if (s == NULL && r->unwatched == NULL) {
        r->unheard = true;
    } else if (s != NULL && r->is_short && roll_json_int(s, "ranks", 0) == 0) {
        r->unwatched = "there was no room for its records";
    } else if (s != NULL && r->o.daemon != NULL && roll_json_int(s, "ranks", 0) == 0 && has_rings(r)) {
        r->unwatched = "nothing of what its ranks recorded has come to the root; the agent's lines above say why";
        return;
    }
    if (r->o.quiet) {
        return;
    }
    if (s == NULL) {
        return;
    }
    struct roll_summary summary = {
        .ranks = (uint64_t)roll_json_int(s, "ranks", 0),
        .of_ranks = r->o.ranks > 0 ? r->job.count : 0,
        .digests = json_is_true(json_object_get(s, "digests")),
        .calls = (uint64_t)roll_json_int(s, "calls", 0),
        .comms = (uint64_t)roll_json_int(s, "comms", 0),
        .findings = (uint64_t)roll_json_int(s, "findings", 0),
        .lost = (uint64_t)roll_json_int(s, "lost", 0),
        .incomplete = (uint64_t)roll_json_int(s, "incomplete", 0),
    };
    roll_summary_unrecorded(json_object_get(s, "unrecorded"), &summary);
    const json_t *failed = json_object_get(s, "failed");
    roll_summary_failed(&summary, (uint64_t)roll_json_int(failed, "calls", 0),
                        (uint64_t)roll_json_int(failed, "rank", 0), roll_json_text(failed, "op", "?"),
                        roll_json_text(failed, "result", "?"));
    if (summary.ranks == 0) {
        say_unrecorded(r);
        return;
    }
    if (json_is_true(json_object_get(s, "undrained"))) {
        roll_say("the daemon did not read everything in time: the verdicts may be incomplete");
    }
    if (summary.findings == 0 && !r->o.brief) {
        roll_seen_say(roll_announcer_did(r->announcer));
    }
    roll_say("%s", roll_summary_text(&summary, text, sizeof(text)));
}

static void block_signals(struct launcher *r)
{
    static const int caught[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof(caught) / sizeof(caught[0]); i++) {
        sigaddset(&set, caught[i]);
    }
    sigprocmask(SIG_BLOCK, &set, &r->old_mask);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTTOU, SIG_IGN); /* to take the terminal back from the background */
    r->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Where no scheduler names the job, this run names it, so that a second run never continues the first one's trace. */
static void name_job(void)
{
    struct roll_ident ident;
    roll_ident_read(environment, &ident);
    if (strcmp(ident.job, "local") != 0) {
        return;
    }
    char stamp[32], name[ROLL_JOB_BYTES];
    time_t now = time(NULL);
    struct tm utc;
    strftime(stamp, sizeof(stamp), "%Y%m%dT%H%M%SZ", gmtime_r(&now, &utc));
    snprintf(name, sizeof(name), "run-%s-%d", stamp, (int)getpid());
    setenv("ROLLCALL_JOB", name, 1);
}

/* Says beforehand what the ranks will lack. */
static void say_lacking(struct launcher *r)
{
    char free_text[32], want[32];
    uint64_t ranks = r->o.run != NULL ? roll_rankset_count(r->o.run) : r->o.ranks > 0 ? r->o.ranks : 1;
    uint64_t wanted = ranks * roll_place_ring_bytes(), room = roll_place_free_bytes(r->dir);
    r->is_short = room < roll_place_ring_bytes();
    if (room < wanted && !r->o.quiet) {
        roll_say("%s has %s free, and the records of %" PRIu64 " rank%s take %s: what has no room runs unwatched; %s",
                 r->dir, roll_units_bytes_text((double)room, free_text, sizeof(free_text)), ranks,
                 ranks == 1 ? "" : "s", roll_units_bytes_text((double)wanted, want, sizeof(want)), room_help);
    }
    if (r->o.ranks > 0 && !r->o.quiet && roll_python_is_fed(r->o.command)) {
        roll_say("with -n the ranks read nothing from standard input: %s gets no script; name a file", r->o.command[0]);
    }
}

/* Sets up everything that has to be there before the job starts. For each part that fails one line says so, and the job
 * runs without it. 0; ROLL_E_ARG when an option is wrong in itself: then no job is started, as with other wrong ones.
 */
static int prepare(struct launcher *r)
{
    char why[512] = "";
    name_job();
    if (r->place.preload[0] == '\0') {
        r->unwatched = "librollcall.so was not found beside this program";
        return 0;
    }
    if (strpbrk(r->place.preload, " :") != NULL) {
        roll_say("LD_PRELOAD cannot hold %s, which has a blank or a colon in it: install it elsewhere",
                 r->place.preload);
        r->unwatched = "its library cannot be preloaded";
        r->place.preload[0] = '\0';
        return 0;
    }
    bool guarded = roll_warden_start(&r->warden, r->o.scratch) == 0;
    int error = errno;
    if (roll_run_dir_new(&r->warden, r->dir, sizeof(r->dir), &r->dir_lock, why, sizeof(why)) != 0) {
        roll_say("%s", why);
        r->unwatched = "there is no directory for its records";
        r->place.preload[0] = '\0';
        r->dir[0] = '\0';
        return 0;
    }
    roll_bind_pick(r->o.bind, &r->place, r->o.hostnccl, r->o.command, &r->bind);
    r->o.bound = &r->bind;
    /* Nobody asks how a rehearsal is bound: there is one way. A command that cannot be run is not bound at all, and
     * the attempt to run it says why. */
    if (!r->o.quiet && !r->o.rehearses && roll_program_runs(r->o.command[0])) {
        roll_say("bound by %s", r->bind.why);
    }
    const char *tool = getenv("NVTX_INJECTION64_PATH");
    if (r->o.nvtx && tool != NULL && strcmp(tool, r->place.preload) != 0) {
        roll_say("--nvtx: NVTX_INJECTION64_PATH names %s, which keeps its place: steps are not read from marks", tool);
    }
    say_lacking(r);
    if (!guarded) {
        roll_say("cannot start a helper process: %s; if `rollcall run` is killed with SIGKILL, %s stays until the next "
                 "run, and the ranks run on",
                 strerror(error), r->dir);
    }
    int err = roll_run_daemon_start(&r->daemon, &r->o, &r->place, r->dir, &r->old_mask, &r->warden);
    if (err != 0) {
        r->unwatched = "its daemon could not be started";
    } else if (r->daemon.lacks[0] != '\0') {
        roll_say("the job is watched, but without %s, for the reason%s above", r->daemon.lacks,
                 strstr(r->daemon.lacks, " and ") != NULL ? "s" : "");
    }
    if (err == 0 && r->o.http != NULL && !r->o.quiet && strstr(r->daemon.lacks, "--http") == NULL) {
        roll_run_say_page(r->daemon.endpoint);
    }
    return err == ROLL_E_ARG ? err : 0;
}

/* Repeats at the end what was said before the job, which may have printed pages since. Also with --quiet, which leaves
 * out what was found: that nobody looked is something else. */
static void say_unwatched(const struct launcher *r)
{
    if (r->unwatched != NULL) {
        roll_say("NOBODY WATCHED this job%s: %s; that no finding is shown says nothing about it",
                 r->daemon_died || r->announcer != NULL ? " to its end" : "", r->unwatched);
    } else if (r->unheard) {
        roll_say("the job is over, but the daemon did not send its last verdicts: what it found is not known here%s",
                 r->o.daemon != NULL ? "; ask it with `rollcall verdicts`" : "");
    } else if (r->daemon.lacks[0] != '\0' && !r->o.quiet) {
        roll_say("the job was watched, but without %s: see the first lines", r->daemon.lacks);
    }
}

static int conclude(struct launcher *r, int start_error)
{
    int code = r->job.first_failure;
    uint64_t findings = r->announcer != NULL ? roll_announcer_findings(r->announcer) : 0;
    if (start_error != 0) {
        return start_error == ROLL_E_NOTFOUND ? 127
               : start_error == ROLL_E_DENIED ? 126
               : start_error == ROLL_E_ARG    ? ROLL_EXIT_USAGE
                                              : ROLL_EXIT_UNREACHABLE;
    }
    if (r->timed_out) {
        return ROLL_EXIT_TIMEOUT;
    }
    if (code == 0 && r->o.fail_on_finding && findings > 0) {
        return ROLL_EXIT_FINDING;
    }
    if (code == 0 && r->o.fail_on_finding && (r->unwatched != NULL || r->unheard)) {
        return ROLL_EXIT_UNREACHABLE;
    }
    return code;
}

int roll_run_launch(const struct roll_run_options *options, const struct roll_place *place, FILE *json,
                    uint64_t *peak_bytes)
{
    static struct launcher r; /* large */
    r = (struct launcher){
        .o = *options, .place = *place, .json = json, .peak_bytes = peak_bytes, .signal_fd = -1, .dir_lock = -1};
    block_signals(&r);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* we, not init, reap the processes that a dying rank leaves behind */
    int start_error = prepare(&r);
    if (start_error != 0) {
        roll_say("nothing was started");
    } else {
        if (r.unwatched != NULL) {
            roll_say("%s; the job runs unwatched%s", r.unwatched,
                     r.o.fail_on_finding ? ", and ends with 3 where it would end with 0 (--fail-on-finding)" : "");
        }
        start_error = roll_run_job_start(&r.job, &r.o, &r.place, r.dir, &r.old_mask, &r.warden);
    }
    if (start_error != 0) {
        roll_run_job_signal(&r.job, SIGKILL);
    } else if (r.daemon.endpoint[0] != '\0') {
        struct roll_ident ident = {0};
        if (r.o.daemon != NULL) {
            roll_ident_read(environment, &ident);
        }
        r.announcer = roll_announcer_new(r.daemon.endpoint, ident.job, r.json, r.o.quiet, r.o.frames);
    }
    wait_for_job(&r);
    if (start_error == 0) {
        print_summary(&r);
        say_unwatched(&r);
    }
    int code = conclude(&r, start_error);
    roll_announcer_destroy(&r.announcer);
    if (r.dir[0] != '\0') {
        roll_run_dir_clear(r.dir);
    }
    roll_run_daemon_stop(&r.daemon);
    roll_run_job_fini(&r.job);
    if (r.dir[0] != '\0') {
        roll_run_dir_remove(r.dir);
    }
    give_up(r.dir_lock);
    roll_warden_dismiss(&r.warden);
    close(r.signal_fd);
    sigprocmask(SIG_SETMASK, &r.old_mask, NULL);
    return code;
}
