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
#include "daemon/console/run/run_launcher.h"
#include "trace/err.h"
#include "trace/ident.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#define DRAIN_WAIT_MS 15000

/* One turn of the loop: waits until a descriptor is ready or a signal comes, at most `limit` ms (-1 = any time).
 * Returns true when `done_fd` (-1 = none) is readable. */
static bool turn(struct roll_launcher *r, struct pollfd *fds, int done_fd, int limit)
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
        roll_launcher_signals(r);
    }
    return done_fd >= 0 && fds[1].revents != 0;
}

static bool outputs_open(const struct roll_launcher *r)
{
    for (uint32_t i = 0; i < 2 * r->job.count; i++) {
        if (r->job.rank[i / 2].out[i % 2].fd >= 0) {
            return true;
        }
    }
    return false;
}

static void wait_for_job(struct roll_launcher *r)
{
    struct pollfd *fds = calloc(2 + 2 * (size_t)r->job.count, sizeof(*fds));
    if (fds == NULL) {
        return;
    }
    r->moved_at = roll_launcher_now_ms();
    while (r->job.alive > 0) {
        turn(r, fds, -1, roll_launcher_time(r));
    }
    /* Relays what the ranks printed last. A grandchild may keep a pipe open for ever, so this has an end. */
    for (uint64_t until = roll_launcher_now_ms() + 300; outputs_open(r) && roll_launcher_now_ms() < until;) {
        turn(r, fds, -1, 50);
    }
    if (r->o.ranks > 0 || r->asked > 0) {
        roll_run_job_sweep(&r->job, r->dir);
    }
    if (r->announcer != NULL) {
        int done_fd = roll_announcer_finish(r->announcer);
        int asked = r->asked;
        for (uint64_t until = roll_launcher_now_ms() + DRAIN_WAIT_MS; roll_launcher_now_ms() < until;) {
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

static void block_signals(struct roll_launcher *r)
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
    roll_ident_read(roll_launcher_environment, &ident);
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
static void say_lacking(struct roll_launcher *r)
{
    char free_text[32], want[32];
    uint64_t ranks = r->o.run != NULL ? roll_rankset_count(r->o.run) : r->o.ranks > 0 ? r->o.ranks : 1;
    uint64_t wanted = ranks * roll_place_ring_bytes(), room = roll_place_free_bytes(r->dir);
    r->is_short = room < roll_place_ring_bytes();
    if (room < wanted && !r->o.quiet) {
        roll_say("%s has %s free, and the records of %" PRIu64 " rank%s take %s: what has no room runs unwatched; %s",
                 r->dir, roll_units_bytes_text((double)room, free_text, sizeof(free_text)), ranks,
                 ranks == 1 ? "" : "s", roll_units_bytes_text((double)wanted, want, sizeof(want)),
                 ROLL_LAUNCHER_ROOM_HELP);
    }
    if (r->o.ranks > 0 && !r->o.quiet && roll_python_is_fed(r->o.command)) {
        roll_say("with -n the ranks read nothing from standard input: %s gets no script; name a file", r->o.command[0]);
    }
}

/* Sets up everything that has to be there before the job starts. For each part that fails one line says so, and the job
 * runs without it. 0; ROLL_E_ARG when an option is wrong in itself: then no job is started, as with other wrong ones.
 */
static int prepare(struct roll_launcher *r)
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

int roll_run_launch(const struct roll_run_options *options, const struct roll_place *place, FILE *json,
                    uint64_t *peak_bytes)
{
    static struct roll_launcher r; /* large */
    r = (struct roll_launcher){
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
            roll_ident_read(roll_launcher_environment, &ident);
        }
        r.announcer = roll_announcer_new(r.daemon.endpoint, ident.job, r.json, r.o.quiet, r.o.frames);
    }
    wait_for_job(&r);
    if (start_error == 0) {
        roll_launcher_sum_up(&r);
        roll_launcher_say_unwatched(&r);
    }
    int code = roll_launcher_code(&r, start_error);
    roll_announcer_destroy(&r.announcer);
    if (r.dir[0] != '\0') {
        roll_run_dir_clear(r.dir);
    }
    roll_run_daemon_stop(&r.daemon);
    roll_run_job_fini(&r.job);
    if (r.dir[0] != '\0') {
        roll_run_dir_remove(r.dir);
    }
    if (r.dir_lock >= 0) {
        close(r.dir_lock);
    }
    roll_warden_dismiss(&r.warden);
    close(r.signal_fd);
    sigprocmask(SIG_SETMASK, &r.old_mask, NULL);
    return code;
}
