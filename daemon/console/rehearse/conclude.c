/*
 * conclude.c: what follows when the job of a rehearsal has ended: the report, what is kept of it, and what differs from
 * an earlier one.
 */
#include "daemon/base/json.h"
#include "daemon/base/units.h"
#include "daemon/console/rehearse/rehearsal.h"
#include "daemon/console/run/program.h"
#include "daemon/console/text.h"
#include "trace/err.h"

#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Keeps what a live job is expected to do, if the rehearsal went well. 0, or the exit code. */
static int save(const struct roll_rehearsal *r, const json_t *report, const struct roll_expected *expected, int code)
{
    const char *why = roll_json_int(report, "findings_count", 0) > 0 ? "there was a finding"
                      : code != 0                                    ? "the job did not end well"
                      : roll_json_int(report, "lost", 0) > 0         ? "records were lost"
                      : expected == NULL                             ? "there were too many calls for it"
                                                                     : NULL;
    if (why != NULL) {
        roll_say("--save: %s is not written, because %s", r->save, why);
        return ROLL_EXIT_UNREACHABLE;
    }
    int err = roll_expected_write(expected, r->save);
    if (err != 0) {
        roll_say("--save: cannot write %s: %s", r->save,
                 err == ROLL_E_SIZE    ? "it would be larger than 16 MiB: rehearse fewer steps"
                 : err == ROLL_E_NOMEM ? "not enough memory"
                                       : strerror(errno));
        return ROLL_EXIT_UNREACHABLE;
    }
    struct stat st;
    char size[32];
    if (!r->o.quiet && stat(r->save, &st) == 0) {
        roll_say("saved %s: %s, %u ranks, %" PRIu64 " calls", r->save,
                 roll_units_bytes_text((double)st.st_size, size, sizeof(size)), expected->ranks,
                 (uint64_t)roll_json_int(report, "calls", 0));
    }
    if (!r->o.quiet && !expected->repeats) {
        roll_say("--save: nothing repeats in these calls, so a live job is compared up to their end only: rehearse "
                 "more steps (six are enough for most jobs; DDP rearranges its buckets in the second)");
    }
    return 0;
}

/* Says what a job that has failed may have lacked. A program that is started as it is needs no wheel; a script does, as
 * far as anybody knows. */
static void say_no_wheel(const struct roll_rehearsal *r)
{
    char path[PATH_MAX];
    struct roll_program program;
    bool is_script = fnmatch("*python*", r->interpreter, 0) == 0 || fnmatch("*sh", r->o.command[0], 0) == 0 ||
                     (roll_program_find(r->o.command[0], path, sizeof(path)) &&
                      roll_program_inspect(path, &program) == 0 && program.script);
    if (!r->has_wheel && is_script) {
        roll_say("no PyTorch for CUDA was found for this command (looked at %s), so nothing stood in for cuBLAS, cuDNN "
                 "and the like: if the job wanted one of them, name its interpreter with --python",
                 r->interpreter);
    }
}

/* Why there is no report. */
static void say_nothing(const json_t *report, const struct roll_rehearse_rank *rank, uint32_t ranks)
{
    uint32_t i = 0;
    while (rank != NULL && i < ranks && (!rank[i].has_ended || rank[i].status == 0)) {
        i++;
    }
    if (report == NULL) {
        roll_say("not enough memory for the report");
    } else if (rank != NULL && i < ranks) {
        roll_say("no rank recorded a call of NCCL, so there is nothing to report; rank %u ended with code %d", i,
                 roll_run_code(rank[i].status));
    } else {
        roll_say("no rank recorded a call of NCCL, so there is nothing to report");
    }
}

int roll_rehearsal_report(struct roll_rehearsal *r, const uint64_t *peak, uint32_t ranks, int code)
{
    struct roll_rehearse_rank *rank = calloc((size_t)ranks + 1, sizeof(*rank));
    struct roll_expected *expected = NULL;
    bool wants = r->save != NULL || r->before != NULL;
    int own = 0;
    for (uint32_t i = 0; rank != NULL && i < ranks; i++) {
        rank[i].peak_bytes = peak[i];
        rank[i].has_ended = r->o.status[i] != ROLL_EXIT_UNKNOWN;
        rank[i].status = r->o.status[i];
    }
    json_t *out =
        rank != NULL ? roll_rehearse_report(r->o.trace, r->folder, rank, ranks, wants ? &expected : NULL) : NULL;
    bool has_ranks = out != NULL && roll_json_int(out, "ranks", 0) > 0;
    if (!has_ranks && !r->o.quiet) {
        say_nothing(out, rank, ranks);
        if (code != 0) {
            say_no_wheel(r);
        }
    }
    if (out != NULL) {
        json_object_set_new(out, "code", json_integer(code));
    }
    json_t *steered = out != NULL ? roll_steered_json(r->folder) : NULL;
    if (steered != NULL) {
        json_object_set_new(out, "steered", steered);
    }
    if (out != NULL && r->o.run != NULL) {
        json_object_set_new(out, "represent",
                            json_pack("{s:o,s:i}", "ranks", roll_ranks_text_json(r->o.run), "of", (int)r->o.ranks));
    }
    if (out != NULL && r->before != NULL && expected != NULL) {
        json_t *difference = roll_expected_differ(r->before, expected);
        own = r->fail_on_difference && roll_json_int(difference, "count", 0) > 0 ? ROLL_EXIT_FINDING : own;
        json_object_set_new(out, "difference", difference);
    } else if (r->before != NULL) {
        roll_say("--against: there were too many calls, or too little memory, to compare with %s", r->against);
        own = ROLL_EXIT_UNREACHABLE;
    }
    if (out != NULL) {
        if (r->out != NULL && roll_json_line(out, r->out) != 0) {
            roll_say("--json: cannot write %s", r->json);
        }
        if (has_ranks && !r->o.quiet) {
            roll_rehearse_print(out, stderr);
            fflush(stderr);
        }
    }
    if (r->save != NULL) {
        int saved = out != NULL && has_ranks ? save(r, out, expected, code) : ROLL_EXIT_UNREACHABLE;
        own = own != 0 ? own : saved;
    }
    roll_expected_destroy(&expected);
    json_decref(out);
    free(rank);
    return code != 0 ? code : own;
}
