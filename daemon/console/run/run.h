/*
 * run.h: the parts of `rollcall run`: the private directory, the warden, the daemon, the ranks, their watch, the
 * verdicts. run_launch.c puts them together. Everything but the announcer's thread belongs to the main thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_RUN_RUN_H
#define ROLL_DAEMON_CONSOLE_RUN_RUN_H

#include "daemon/console/place.h"
#include "daemon/console/run/bind.h"
#include "trace/rankset.h"

#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct roll_run_options {
    uint32_t ranks;                 /* -n; 0 = run the command once, as it is */
    const struct roll_rankset *run; /* with `ranks`: those of them that are started; NULL = all. Borrowed */
    uint32_t nodes;                 /* the ranks get the places of a job on so many nodes; 0 = 1 */
    bool hostnccl, prefix, quiet, fail_on_finding;
    bool brief;              /* at the end of a job without findings nothing is said of what it did */
    bool frames;             /* verdicts show every frame of a call */
    bool rehearses;          /* a report follows, which also says so when nothing was recorded */
    bool no_gpu;             /* the machine has none: a job that needs one is for `rollcall rehearse` */
    bool python_stacks;      /* ranks register a signal for their Python stacks */
    bool nvtx;               /* steps are read from the job's NVTX marks */
    bool digest, stream;     /* how calls are compared, whatever the number of ranks; for a root of our own */
    const char *policy;      /* NULL = not given */
    const char *on_mismatch; /* report, error or abort; NULL = not given */
    const char *stacks;      /* "auto" or "ask"; NULL = not given */
    const char *json, *trace, *http, *daemon;
    const char *expect;                                  /* a file of `rollcall rehearse --save`; NULL = none */
    const char *incident;                                /* --incident-dir */
    const char *trace_segment, *trace_limit, *trace_age; /* NULL = the daemon's default */
    double timeout_s;                                    /* 0 = none */
    double grace_s;
    int bind;                      /* enum roll_bind_kind */
    const struct roll_bind *bound; /* the bindings that were picked */
    double start_s;                /* so much longer may nothing move before each rank has made its first call */
    int *status; /* receives the wait status of each of `ranks` that ended by itself; NULL = not wanted. Borrowed */
    const char *scratch; /* a folder that goes as well when this program is killed; NULL = none */
    const char *behind;  /* libraries that come behind librollcall.so in LD_PRELOAD; NULL = none */
    const char *zygote;  /* Python modules that are imported once for all ranks; NULL = by each rank */
    char **command;
};

/* the whole (run_launch.c) */

/*
 * Runs the job (options->command) under rollcall and returns the exit code of `rollcall run`. Verdicts are copied to
 * `json` (NULL = nowhere; borrowed). `peak_bytes` (NULL = not wanted) has room for the most memory that each of
 * options->ranks processes had. Borrows all. Once in a process, from its only thread: signals are blocked,
 * children of any kind are reaped, and the environment of this process names the job.
 */
int roll_run_launch(const struct roll_run_options *options, const struct roll_place *place, FILE *json,
                    uint64_t *peak_bytes);

/* private directory (run_dir.c) */

struct roll_warden;
/*
 * Makes BASE/run-<pid> (`run-<pid>.<n>` where that belongs to a run that lives), mode 0700, after checks that BASE is
 * ours alone, and removes what runs that have died have left below BASE. The warden is told before the directory is
 * made. *lock (returns owned) is for as long as the directory is in use: closing it lets others remove the directory.
 * 0, or an error with one clear line in why.
 */
int roll_run_dir_new(struct roll_warden *warden, char *out, size_t size, int *lock, char *why, size_t why_size);
/* The job is over: removes what the job itself has put there (HOSTNCCL_DIR), so that the daemon can remove the rest. */
void roll_run_dir_clear(const char *dir);
/* Removes the directory, and the default directory above it when nothing else is in it. */
void roll_run_dir_remove(const char *dir);

/* the warden (run_warden.c) */

/*
 * A process that outlives this one by a moment: when `rollcall run` is killed with SIGKILL, the warden ends the ranks'
 * process groups and the daemon and removes the directory. `run` tells the warden through a socket what to guard; end
 * of file on that socket means that `run` is gone.
 */
struct roll_warden {
    pid_t pid;
    int fd;
};
/* Starts the warden, before any thread is started and before anything is made that it guards. `scratch` (NULL = none)
 * is copied, and removed whole. 0 or ROLL_E_IO. */
int roll_warden_start(struct roll_warden *warden, const char *scratch);
/* The directory that goes when `run` is killed; "" = none. In place of the one that was named before. */
void roll_warden_guard_dir(struct roll_warden *warden, const char *dir);
/* The process group that this process leads or will lead, or the process alone. It has not been reaped yet. */
void roll_warden_guard_group(struct roll_warden *warden, pid_t group);
void roll_warden_guard_daemon(struct roll_warden *warden, pid_t pid);
/* That process was reaped and its group is empty: the number may be another's from now on. */
void roll_warden_forget(struct roll_warden *warden, pid_t pid);
/* Called when everything has ended in good order: the warden ends without doing anything. */
void roll_warden_dismiss(struct roll_warden *warden);

/* processes by more than a number (run_group.c) */

/* A descriptor (returns owned) of a process that has not been reaped; -1 = the kernel gives none. */
int roll_pidfd(pid_t pid);
/* kill(2) for it. */
int roll_pidfd_signal(int fd, int signal);
/*
 * Sends a signal (0 = none) to the process group whose leader `fd` is (-1 = no descriptor), which may have been reaped.
 * Whoever has its number by now gets nothing. dir: of the run, by which an older kernel is asked for the members of a
 * group without a leader. Returns whether somebody was there.
 */
bool roll_group_signal(int fd, pid_t group, int signal, const char *dir);
/* Whether that process has not ended; a zombie has. */
bool roll_pidfd_lives(int fd);
/* Whether such a group has a member that has not ended. */
bool roll_group_lives(int fd, pid_t group, const char *dir);
/* Whether a process lives whose program began with this ROLLCALL_DIR. */
bool roll_run_has_processes(const char *dir);

/* the daemon (run_daemon.c) */

struct roll_run_daemon {
    pid_t pid;          /* 0 = none */
    char endpoint[256]; /* of the root; "" = unknown */
    char lacks[64];     /* options that it could not be started with, and was started without; "" = none */
    bool writes;        /* bundles about findings, when it ends as well */
};
/* Starts rollcalld and waits until it is ready; where it ends, tries again without --http, --incident-dir, --trace. 0,
 * or an error after lines on standard error; ROLL_E_ARG: it does not understand its options, and would not later. */
int roll_run_daemon_start(struct roll_run_daemon *daemon, const struct roll_run_options *options,
                          const struct roll_place *place, const char *dir, const sigset_t *mask,
                          struct roll_warden *warden);
/* Ends the daemon: SIGTERM, after a moment SIGKILL; reaps it. */
void roll_run_daemon_stop(struct roll_run_daemon *daemon);

/* between fork and exec (run_child.c) */

/*
 * Runs in a child: a process group of its own, guarded by the warden, the environment of all ranks, the program. `port`
 * is for MASTER_PORT. What exec says is written to error_fd (-1 = nowhere).
 */
_Noreturn void roll_run_become(const struct roll_run_options *options, const struct roll_place *place, const char *dir,
                               const sigset_t *mask, struct roll_warden *warden, int port, char *const command[],
                               int error_fd);

/* the ranks (run_ranks.c) */

struct roll_run_output {
    int fd; /* read end; -1 = closed or passed through */
    int to; /* descriptor that the output is copied to */
    size_t used;
    char line[8192]; /* an unfinished line, with --prefix */
};
struct roll_run_rank {
    uint32_t number;   /* RANK */
    pid_t pid;         /* also its process group; 0 = not started */
    bool alive;        /* it has not been reaped: until then its number is its own */
    int group;         /* once it is not alive: pidfd of the leader of the group, where processes were left in it; -1 */
    bool has_left;     /* once it is not alive: its group was not empty then */
    int status;        /* wait status, valid once the rank is not alive */
    uint64_t ended_ms; /* CLOCK_MONOTONIC, when that status was learnt; 0 = not yet */
    struct roll_run_output out[2];
};
struct roll_run_job {
    struct roll_run_rank *rank; /* owned */
    uint32_t count, alive;
    int first_failure; /* exit code of the rank that failed first; 0 = none */
    bool prefix;
    bool terminal;   /* the job has the terminal's foreground */
    uint64_t output; /* bytes that the ranks have printed */
};
/* Starts all ranks. 0; or ROLL_E_NOTFOUND, DENIED, IO when the command cannot be run, after one line on standard error.
 */
int roll_run_job_start(struct roll_run_job *job, const struct roll_run_options *options, const struct roll_place *place,
                       const char *dir, const sigset_t *mask, struct roll_warden *warden);
/* Notes the end of a child that was just reaped. group: a pidfd of it (takes; -1 = none). Returns its rank, or -1 when
 * the child is no rank. */
int roll_run_job_reaped(struct roll_run_job *job, pid_t pid, int status, int group, struct roll_warden *warden);
/* Sends a signal to the process group of every rank that lives. */
void roll_run_job_signal(struct roll_run_job *job, int signal);
/* Copies the output that a rank has printed. Returns false at the end of that output. */
bool roll_run_job_relay(struct roll_run_job *job, uint32_t rank, int which);
/* Ends the processes that are left in the ranks' process groups (only with -n, where we are the launcher). */
void roll_run_job_sweep(struct roll_run_job *job, const char *dir);
void roll_run_job_fini(struct roll_run_job *job);
/* setenv(3) in a child that becomes a rank; what cannot be set is noted. */
void roll_env_set(const char *name, const char *value, bool replace);
/* Puts `first` in front of a list with colons in our environment, and notes likewise. */
void roll_env_prepend(const char *name, const char *first);
/* 0, or errno of the first variable that could not be set. */
int roll_env_lacks(void);
/* The exit code that a shell gives for a wait status. */
int roll_run_code(int status);

/* interpreters that become ranks (run_zygote.c) */

#define ROLL_ZYGOTES_MAX 2u
struct roll_zygote {
    pid_t pid;
    int fd;
};
struct roll_zygotes {
    struct roll_zygote zygote[ROLL_ZYGOTES_MAX];
    unsigned count; /* 0 = each rank is a program of its own */
    bool is_bad;
};
/* Where the script begins (or -m, or -c) in a command that is a Python interpreter with its options; -1: it is none, or
 * the script is not named. */
int roll_python_script(char *const command[]);
/* Such a command reads its script from standard input. */
bool roll_python_is_fed(char *const command[]);
/* Starts zygotes that import options->zygote, and waits until they have. When they cannot fork ranks, one line says why
 * and all->count is 0; so it is, without a line, when a signal asks this program to stop. */
void roll_zygotes_start(struct roll_zygotes *all, const struct roll_run_options *options,
                        const struct roll_place *place, const char *dir, const sigset_t *mask,
                        struct roll_warden *warden, int port);
/* Forks a rank with these variables ("RANK=0 LOCAL_RANK=0") and these pipes for its output (-1 = ours). 0 or an error.
 */
int roll_zygote_fork(struct roll_zygotes *all, uint32_t rank, const char *variables, const int out[2],
                     struct roll_warden *warden, pid_t *pid);
/* Ends the zygotes and reaps them. Their ranks become children of this process. */
void roll_zygotes_end(struct roll_zygotes *all, struct roll_warden *warden);

/* rings (run_watch.c) */

/*
 * *sum: a number that grows with the rings in dir, and when any of their ranks makes a call that is no poll. True: each
 * rank has made a call, or has ended. are_ranks: the processes of `job` are the ranks; else, under another launcher,
 * the rings say how many ranks there are, and the ring of a rank that has ended may be gone.
 */
bool roll_run_progress(const char *dir, const struct roll_run_job *job, bool are_ranks, uint64_t *sum);
/* Writes the wait status, with ROLL_EXIT_ASKED or without, into the ring of this process, when it has one. */
void roll_run_note_exit(const char *dir, pid_t pid, int status);
/* Writes into the ring of each process that lives that the job is being ended, before the signal is sent: how those
 * processes end is then no finding, whoever reaps them. */
void roll_run_note_asked(const char *dir);

/* what the root is asked beside the verdicts (run_ask.c) */

/* Says of a job that stands ("": the root has but one) which rank is waited for and what it does, and what the others
 * wait in, unless a verdict has said it. One answer after the other, with short patience; nothing where none comes. */
void roll_run_say_stand(const char *endpoint, const char *job);
/* Says where the page is that was asked for with --http. */
void roll_run_say_page(const char *endpoint);

/* verdicts (run_announce.c) */

typedef struct roll_announcer roll_announcer_t;
/* Starts a thread that prints the verdicts of `job` ("" = of the root, which is ours alone) as they come, and copies
 * them to `json` (NULL = nowhere; borrowed, closed by the caller after destroy). frames: with every frame of a call.
 * NULL when out of memory. */
roll_announcer_t *roll_announcer_new(const char *endpoint, const char *job, FILE *json, bool quiet, bool frames);
/* Called when the job is over: asks the root for its last verdicts and the summary. The descriptor that is returned
 * becomes readable when they have come or cannot come. */
int roll_announcer_finish(roll_announcer_t *announcer);
/* Called when we have ended the job ourselves and said so: the deaths of its ranks are then not announced. */
void roll_announcer_ended(roll_announcer_t *announcer);
/* Called when the daemon is gone: the thread stops asking it. */
void roll_announcer_give_up(roll_announcer_t *announcer);
/* While the job runs: the ranks that wait for what the first finding says, as text ("" = none are known; borrowed);
 * NULL = there was no finding so far. */
const char *roll_announcer_waiting(const roll_announcer_t *announcer);
/* The root's summary (borrowed), once the descriptor was readable; NULL when the summary never came. */
const json_t *roll_announcer_summary(const roll_announcer_t *announcer);
/* What the root says that the run did (daemon/feed/seen.h; borrowed), likewise; NULL also for an older root. */
const json_t *roll_announcer_did(const roll_announcer_t *announcer);
uint64_t roll_announcer_findings(const roll_announcer_t *announcer);
/* Joins the thread. */
void roll_announcer_destroy(roll_announcer_t **announcer);

#endif
