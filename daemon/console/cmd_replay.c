/*
 * cmd_replay.c: rollcall replay: the recorded calls of all ranks once more, by processes on hostnccl, under rollcall.
 *
 * The plans (export/plan.c) are for one program, hostnccl/replay/, which knows nothing of traces; and that program is
 * run as any job is, by `rollcall run`, so that the hang can be looked at with everything that there is for a job.
 */
#include "daemon/base/dir.h"
#include "daemon/console/analyze/analyze.h"
#include "daemon/console/analyze/jobs.h"
#include "daemon/console/console.h"
#include "daemon/console/export/alike.h"
#include "daemon/console/export/out.h"
#include "daemon/console/export/plan.h"
#include "daemon/console/file.h"
#include "daemon/console/place.h"
#include "trace/err.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int cmd_replay(const struct roll_command *self, int argc, char **argv);

#define ARGUMENTS 16

/* Runs this program again, as `rollcall run`; its exit code. Who interrupts a replay means the job: this process waits
 * for it, and takes the plans away behind it. */
static int run(char *const *argument)
{
    char bin[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", bin, sizeof(bin) - 1);
    int status = 0;
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before[2];
    sigaction(SIGINT, &ignore, &before[0]);
    sigaction(SIGTERM, &ignore, &before[1]);
    pid_t pid = n > 0 ? fork() : -1;
    if (pid == 0) {
        bin[n] = '\0';
        sigaction(SIGINT, &before[0], NULL);
        sigaction(SIGTERM, &before[1], NULL);
        execv(bin, argument);
        _exit(127);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    sigaction(SIGINT, &before[0], NULL);
    sigaction(SIGTERM, &before[1], NULL);
    if (pid < 0) {
        roll_say("cannot start the job: %s", strerror(errno));
        return ROLL_EXIT_UNREACHABLE;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Starts the ranks, or says how to. */
static int start(const struct roll_place *place, const char *dir, uint32_t ranks, const char *timeout,
                 const char *trace, bool keep)
{
    char number[16];
    char *argument[ARGUMENTS] = {(char[]){"rollcall"}, (char[]){"run"}, (char[]){"--hostnccl"}, (char[]){"-n"}, number};
    size_t n = 5;
    snprintf(number, sizeof(number), "%" PRIu32, ranks);
    const char *more[] = {timeout != NULL ? "--timeout" : NULL,
                          timeout,
                          trace != NULL ? "--trace" : NULL,
                          trace,
                          "--",
                          place->replay,
                          dir};
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        if (more[i] != NULL) {
            memcpy(&argument[n++], &more[i], sizeof(more[i])); /* exec writes to none of them */
        }
    }
    if (!keep) {
        return run(argument);
    }
    for (size_t i = 0; i < n; i++) {
        printf("%s%s", i > 0 ? " " : "", argument[i]);
    }
    putchar('\n');
    return ROLL_EXIT_CLEAN;
}

/* Says how the replay compares with what it repeats: a run that was ended early would else say "0 findings". */
static void compare(char *trace, bool alone, unsigned threads, const struct roll_standing *was, double seconds,
                    int code)
{
    enum { TIMED_OUT = 124 };
    struct roll_standing now = {.at = NULL};
    if (!alone) {
        roll_say("replay: not compared with the trace: in %s there was something before, which cannot be told apart",
                 trace);
    } else if (access(trace, F_OK) != 0 || roll_standing_read(trace, threads, &now) != 0) {
        roll_say("replay: nothing was recorded of it that could be compared with the trace");
    } else {
        (void)roll_standing_compare(stderr, was, &now, code == TIMED_OUT ? seconds : 0);
    }
    roll_standing_fini(&now);
}

int cmd_replay(const struct roll_command *self, int argc, char **argv)
{
    static struct roll_place place;
    const char *trace = NULL, *plan = NULL, *job = NULL;
    char dir[PATH_MAX], own[PATH_MAX], timeout[32] = "";
    double seconds = 0;
    uint32_t threads = 0, ranks = 0;
    bool paced = false;
    const struct roll_option options[] = {
        {"plan", 0, ROLL_OPT_TEXT, "DIR", "only write what the ranks are to call into DIR, and print how to run them",
         &plan},
        {"paced", 0, ROLL_OPT_FLAG, NULL, "with the times between calls as recorded, instead of 20 ms at most", &paced},
        {"timeout", 0, ROLL_OPT_SECONDS, "S", "end the job when nothing has moved for S seconds (code 124)", &seconds},
        {"trace", 0, ROLL_OPT_TEXT, "DIR", "keep what is recorded of the replay there", &trace},
        ROLL_JOB_OPTION(job),
        ROLL_READ_OPTIONS(threads),
        {0},
    };
    int code;
    int first = roll_read_options(self, options, argc, argv, "name a trace: a directory of --trace, or files", &code);
    if (first < 0) {
        return code;
    }
    if (seconds > 0) {
        snprintf(timeout, sizeof(timeout), "%.9g", seconds);
    }
    roll_place_find(&place);
    if (place.replay[0] == '\0' || place.hostnccl[0] == '\0') {
        roll_say("the program for the ranks, or hostnccl, was not found beside this one; build or install hostnccl");
        return ROLL_EXIT_UNREACHABLE;
    }
    const char *base = getenv("TMPDIR");
    snprintf(dir, sizeof(dir), "%.*s/rollcall-replay-XXXXXX", PATH_MAX - 64, base != NULL ? base : "/tmp");
    if (plan != NULL ? mkdir(plan, 0700) != 0 : mkdtemp(dir) == NULL) {
        int number = errno;
        char why[PATH_MAX + 128];
        roll_say("%s", roll_dir_cannot_make(plan != NULL ? plan : dir, number, why, sizeof(why)));
        return ROLL_EXIT_UNREACHABLE;
    }
    plan != NULL ? (void)snprintf(dir, sizeof(dir), "%s", plan) : (void)0;
    struct roll_analysis_summary s;
    struct roll_standing was = {.at = NULL};
    int err = roll_plan_write(argv + first, (size_t)(argc - first), threads, job, dir, &ranks, &was, &s);
    if (err == 0 && paced) {
        setenv("ROLL_REPLAY_PACED", "1", 1);
    }
    /* Where it is recorded: a folder that goes with the plans, unless it is to stay. */
    snprintf(own, sizeof(own), "%.*s%s", PATH_MAX - 16, trace != NULL ? trace : dir, trace != NULL ? "" : "/trace");
    trace = trace == NULL && plan == NULL ? own : trace;
    bool alone = !roll_out_is_full(own); /* else older recordings would be read as well */
    code =
        err == 0 ? start(&place, dir, ranks, seconds > 0 ? timeout : NULL, trace, plan != NULL) : ROLL_EXIT_UNREACHABLE;
    if (err == 0 && plan == NULL) {
        compare(own, alone, threads, &was, seconds, code);
    }
    roll_standing_fini(&was);
    if (plan == NULL || err != 0) {
        (void)(roll_directory_remove(dir) != 0 ? rmdir(dir) : 0); /* the plans may have gone by themselves */
    }
    return code;
}
