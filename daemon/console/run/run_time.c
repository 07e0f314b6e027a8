/*
 * run_time.c: what happens to a job because time passes: --timeout, the grace time, and a rehearsal that stands.
 *
 * Timers of the kernel were rejected: each look is over in microseconds, and only the loop knows when the last one was.
 */
#include "daemon/console/run/run_launcher.h"

#include "daemon/console/console.h"
#include "trace/ident.h"

#include <stdio.h>
#include <string.h>

#define STILL_MS 5000 /* a rehearsal with a finding that has not moved for so long is said to stand */

/* Says, before --timeout ends the job, who is waited for and what the others wait in. */
static void say_how_it_stands(const struct roll_launcher *r)
{
    struct roll_ident ident = {.job = ""};
    if (r->o.daemon != NULL) { /* the root has other jobs as well */
        roll_ident_read(roll_launcher_environment, &ident);
    }
    if (!r->o.quiet && r->announcer != NULL && r->daemon.endpoint[0] != '\0') {
        roll_run_say_stand(r->daemon.endpoint, ident.job);
    }
}

/* Notes whether anything has moved. True: each rank has begun. */
static bool look_at_progress(struct roll_launcher *r, uint64_t now)
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
static uint64_t watch_stand(struct roll_launcher *r, uint64_t now)
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

int roll_launcher_time(struct roll_launcher *r)
{
    uint64_t now = roll_launcher_now_ms(), next = watch_stand(r, now);
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
            roll_launcher_end_job(r, SIGTERM);
            return (int)(r->o.grace_s * 1000);
        }
        next = step < next ? step : next;
    }
    return next > 1u << 30 ? -1 : (int)next;
}
