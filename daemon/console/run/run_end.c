/*
 * run_end.c: what is said when a job is over, and the exit code. That nobody watched is said last, where it is seen.
 */
#include "daemon/console/run/run_launcher.h"

#include "daemon/console/console.h"
#include "daemon/console/text.h"
#include "trace/err.h"

#include <string.h>

/* Why no rank was recorded, as far as that can be seen from here. */
static void say_unrecorded(const struct roll_launcher *r)
{
    const char *rehearse =
        r->o.no_gpu && !r->o.rehearses && !r->o.hostnccl
            ? "; this machine has no GPU: `rollcall rehearse -- COMMAND` runs a PyTorch job without one, "
              "`rollcall run --hostnccl -- COMMAND` a program that needs NCCL and the CUDA runtime "
              "alone"
            : "";
    if (r->is_short) {
        roll_say("no rank was recorded, because there was no room in %s: %s", r->dir, ROLL_LAUNCHER_ROOM_HELP);
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
static bool has_rings(const struct roll_launcher *r)
{
    uint64_t sum = 0;
    (void)roll_run_progress(r->dir, &r->job, r->o.ranks > 0, &sum);
    return sum > 0;
}

void roll_launcher_sum_up(struct roll_launcher *r)
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

void roll_launcher_say_unwatched(const struct roll_launcher *r)
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

int roll_launcher_code(const struct roll_launcher *r, int start_error)
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
