/*
 * cmd_analyze.c: rollcall analyze: recorded traces and rings, judged after the fact by the engine that judges live.
 *
 * Of several jobs each has a heading with its own figures, and its verdicts below it: who is wrong is said of one job.
 * Without, a verdict on "rank 3" would be anybody's.
 *
 * The exit code is the first of these that holds: 1 there is a finding; 3 something could not be read at all; 4
 * something was cut, lost or not usable, so that nobody can say "clean"; 0 otherwise.
 */
#include "daemon/base/json.h"
#include "daemon/base/memory.h"
#include "daemon/base/text.h"
#include "daemon/console/analyze/analyze.h"
#include "daemon/console/analyze/jobs.h"
#include "daemon/console/console.h"
#include "daemon/console/file.h"
#include "daemon/console/text.h"
#include "daemon/expect/expect.h"
#include "daemon/verdict/verdict.h"
#include "daemon/verdict/verdict_json.h"
#include "daemon/verdict/verdict_text.h"
#include "trace/err.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STANDING_MOST 16 /* ranks that are listed of a job that was ended from outside; further ones repeat these */

int cmd_analyze(const struct roll_command *self, int argc, char **argv);

/* Prints one verdict; by: the later one that ended it, or NULL. False when there is no memory for it. */
static bool print_verdict(const struct roll_verdict_copy *verdict, const struct roll_verdict_copy *by, bool json,
                          unsigned style)
{
    json_t *shown = roll_verdict_to_json(verdict), *end = by && !json ? roll_verdict_to_json(by) : NULL;
    bool there = shown && (end || !by || json);
    if (there && json) {
        roll_json_line(shown, stdout);
    } else if (there) {
        roll_verdict_print_of(stdout, shown, end, style);
    }
    json_decref(shown);
    json_decref(end);
    return there;
}

/* What is printed of one job: of the one whose name and restart these are. */
struct part {
    const char *job; /* NULL: of all jobs */
    uint32_t restart;
};

static bool is_of_part(const struct part *part, const char *job, uint32_t restart)
{
    return part->job == NULL || (part->restart == restart && strcmp(part->job, job) == 0);
}

/* Prints the verdicts of a part. Returns how many could not be printed, because there was no memory. */
static uint64_t print_verdicts(const struct roll_verdict_list *list, const struct part *part, bool json, unsigned style)
{
    uint64_t lost = 0;
    for (size_t i = 0; i < list->used; i++) {
        if (is_of_part(part, list->at[i]->job, list->at[i]->restart)) {
            lost += !print_verdict(list->at[i], roll_verdict_list_ended_by(list, list->at[i]), json, style);
        }
    }
    return lost;
}

/* Prints for people where the ranks stood: only the first few, because the others repeat these. */
static void print_standing(const json_t *standing, const struct part *part)
{
    size_t i, n = 0;
    json_t *rank;
    json_array_foreach(standing, i, rank)
    {
        int64_t restart = json_integer_value(json_object_get(rank, "restart"));
        const char *job = json_string_value(json_object_get(rank, "job"));
        if (is_of_part(part, job != NULL ? job : "", (uint32_t)restart) && n++ < STANDING_MOST) {
            fputs(n > 1 ? "" : "Where the ranks stood when it ended:\n", stdout);
            roll_line_print(roll_json_text(rank, "text", ""), stdout);
        }
    }
    if (n > STANDING_MOST) {
        printf("and %zu more rank%s\n", n - STANDING_MOST, n == STANDING_MOST + 1 ? "" : "s");
    }
    if (n > 0) {
        putchar('\n');
    }
}

static struct roll_summary summary_of(const struct roll_engine_summary *s, const uint64_t *losses, uint64_t older,
                                      uint64_t missing, uint64_t findings)
{
    struct roll_summary summary = {.ranks = s->sources,
                                   .of_ranks = missing > 0 ? s->sources + missing : 0,
                                   .calls = s->calls,
                                   .comms = s->comms,
                                   .findings = findings,
                                   .lost = s->lost,
                                   .older = older,
                                   .incomplete = s->incomplete};
    for (unsigned k = 0; k < ROLL_LOSS_LIMIT; k++) {
        summary.unrecorded[k] = roll_loss_is_unrecorded(k) ? losses[k] : 0;
    }
    roll_summary_failed(&summary, s->failed.calls, s->failed.rank, roll_op_name(s->failed.op),
                        roll_result_name(s->failed.result));
    return summary;
}

/* Findings of a job that stand: those of its engine, and those at places that its digests told of. */
static uint64_t findings_of(const struct roll_verdict_list *list, const char *job, uint32_t restart)
{
    const struct part part = {job, restart};
    uint64_t n = 0;
    for (size_t i = 0; i < list->used; i++) {
        n += is_of_part(&part, list->at[i]->job, list->at[i]->restart) && roll_verdict_stands(list->at[i]);
    }
    return n;
}

static json_t *jobs_to_json(const roll_analysis_t *a, const struct roll_verdict_list *list)
{
    json_t *jobs = json_array();
    struct roll_analysis_run run;
    for (size_t i = 0; roll_analysis_run(a, i, &run); i++) {
        json_array_append_new(
            jobs, json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "job", roll_text_to_json(run.job),
                            "restart", (json_int_t)run.restart, "ranks", (json_int_t)run.engine.sources, "calls",
                            (json_int_t)run.engine.calls, "comms", (json_int_t)run.engine.comms, "findings",
                            (json_int_t)findings_of(list, run.job, run.restart), "lost", (json_int_t)run.engine.lost,
                            "older", (json_int_t)run.older, "missing", (json_int_t)run.missing));
    }
    return jobs;
}

static void print_job_line(const char *job, uint32_t restart, const char *text)
{
    char name[ROLL_JOB_NAME_BYTES], line[ROLL_JOB_NAME_BYTES + ROLL_SUMMARY_TEXT + 8];
    snprintf(line, sizeof(line), "job %s%s%s", roll_job_name(job, restart, name, sizeof(name)), *text ? ": " : "",
             text);
    roll_line_print(line, stdout);
    putchar('\n');
}

static bool is_run(const roll_analysis_t *a, const char *job, uint32_t restart)
{
    struct roll_analysis_run run;
    for (size_t i = 0; roll_analysis_run(a, i, &run); i++) {
        if (run.restart == restart && strcmp(run.job, job) == 0) {
            return true;
        }
    }
    return false;
}

/* Prints for people what is said of each job, where there are several. Returns how many verdicts could not be printed.
 */
static uint64_t print_jobs(const roll_analysis_t *a, const struct roll_verdict_list *list, const json_t *standing,
                           unsigned style)
{
    struct roll_analysis_run run;
    uint64_t lost = 0;
    for (size_t i = 0; roll_analysis_run(a, i, &run); i++) {
        char text[ROLL_SUMMARY_TEXT];
        const struct part part = {run.job, run.restart};
        const struct roll_summary summary =
            summary_of(&run.engine, run.losses, run.older, run.missing, findings_of(list, run.job, run.restart));
        print_job_line(run.job, run.restart, roll_summary_text(&summary, text, sizeof(text)));
        lost += print_verdicts(list, &part, false, style);
        print_standing(standing, &part);
    }
    for (size_t i = 0; i < list->used; i++) { /* reports of other tools are of no run */
        const struct part part = {list->at[i]->job, list->at[i]->restart};
        bool told = is_run(a, part.job, part.restart);
        for (size_t k = 0; k < i && !told; k++) {
            told = is_of_part(&part, list->at[k]->job, list->at[k]->restart);
        }
        if (!told) {
            print_job_line(part.job, part.restart, "");
            lost += print_verdicts(list, &part, false, style);
        }
    }
    return lost;
}

/* Adds what is told of digests, where some were given. */
static void add_digests(json_t *line, const struct roll_analysis_summary *s, json_t *unreached)
{
    if (s->digests > 0) {
        json_object_set_new(line, "digests", json_integer((json_int_t)s->digests));
        json_object_set_new(line, "digested", json_integer((json_int_t)s->digested));
        json_object_set(line, "unreached", unreached);
    }
}

/* Prints the summary. `standing`, `unreached` and `jobs` (borrowed) become members of the JSON, the first two where
 * they say something. */
static void print_summary(const struct roll_analysis_summary *s, json_t *standing, json_t *unreached, json_t *jobs,
                          bool json)
{
    char text[ROLL_SUMMARY_TEXT], of[48] = "", beside[96] = "", whole[ROLL_SUMMARY_TEXT + 256];
    struct roll_summary summary = summary_of(&s->engine, s->losses, s->older, s->missing, s->engine.findings);
    if (json) {
        json_t *line = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:b}",
                                 "schema", "rollcall.summary/1", "runs", (json_int_t)s->runs, "ranks",
                                 (json_int_t)s->engine.sources, "calls", (json_int_t)s->engine.calls, "records",
                                 (json_int_t)s->engine.records, "comms", (json_int_t)s->engine.comms, "findings",
                                 (json_int_t)s->engine.findings, "verdicts", (json_int_t)s->engine.verdicts, "lost",
                                 (json_int_t)s->engine.lost, "older", (json_int_t)s->older, "unrecorded",
                                 roll_summary_unrecorded_json(&summary), "incomplete", (json_int_t)s->engine.incomplete,
                                 "unjudged", (json_int_t)s->unjudged, "missing", (json_int_t)s->missing, "cut", s->cut);
        if (line != NULL && s->engine.failed.calls > 0) {
            json_object_set_new(line, "failed",
                                json_pack("{s:I,s:I,s:s,s:s}", "calls", (json_int_t)summary.failed.calls, "rank",
                                          (json_int_t)summary.failed.rank, "op", summary.failed.op, "result",
                                          summary.failed.result));
        }
        if (line != NULL) {
            if (json_array_size(standing) > 0) {
                json_object_set(line, "standing", standing);
            }
            add_digests(line, s, unreached);
            json_object_set(line, "jobs", jobs);
            roll_json_line(line, stdout);
        }
        json_decref(line);
        return;
    }
    roll_summary_text(&summary, text, sizeof(text));
    if (s->unjudged > 0 && s->unjudged == s->runs) {
        snprintf(text, sizeof(text), "nothing could be judged: no entry of the dumps is usable");
    }
    if (s->digests > 0 && s->digested > s->engine.calls) {
        printf("Of %" PRIu64 " calls the newest were looked at one by one, the others by their digests.\n",
               s->digested);
    }
    if (s->runs > 1) {
        snprintf(of, sizeof(of), "%zu jobs: ", s->runs);
    }
    if (s->unreadable > 0) { /* "0 findings, nothing lost" is said of the others alone */
        char many[48];
        snprintf(
            beside, sizeof(beside), "Not judged: %s. Of the others: ",
            roll_plural(s->unreadable, "file that cannot be read", "files that cannot be read", many, sizeof(many)));
    }
    snprintf(whole, sizeof(whole), "%s%s%s%s%s%s", beside, of, text,
             s->unjudged > 0 && s->unjudged < s->runs ? ", of some dumps no entry is usable" : "",
             s->cut ? ", a trace was cut short" : "", s->unreached > 0 ? ", not all could be judged" : "");
    roll_line_print(whole, stdout);
}

int cmd_analyze(const struct roll_command *self, int argc, char **argv)
{
    bool json = false, frames = false;
    const char *policy = NULL, *expect = NULL, *job = NULL;
    struct roll_expected *expected = NULL;
    char why[256];
    uint32_t threads = 0;
    struct roll_engine_config config = {0};
    const struct roll_option options[] = {
        {"policy", 0, ROLL_OPT_TEXT, "POLICY",
         "judge as under this policy, not the one of the trace: observe, advise, auto", &policy},
        {"expect", 0, ROLL_OPT_TEXT, "FILE", "note where the job leaves what `rollcall rehearse --save` kept there",
         &expect},
        ROLL_JOB_OPTION(job),
        ROLL_READ_OPTIONS(threads),
        {"verbose", 'v', ROLL_OPT_FLAG, NULL, "every frame of a call: libraries and native code as well", &frames},
        {"json", 0, ROLL_OPT_FLAG, NULL, "one rollcall.verdict/1 object a line, then one rollcall.summary/1", &json},
        {0},
    };
    int code;
    int first = roll_read_options(self, options, argc, argv, "name a trace: a directory of --trace, or files", &code);
    if (first < 0) {
        return code;
    }
    if (policy && roll_policy_by_name(policy, &config.policy) != 0) {
        return roll_usage(self, "option '--policy %s': wants observe, advise or auto", policy);
    }
    if (expect && roll_expected_read(expect, &expected, why, sizeof(why)) != 0) {
        roll_say("--expect %s%s", expect, why);
        return ROLL_EXIT_UNREACHABLE;
    }
    roll_analysis_t *a = roll_analysis_new(&config, policy != NULL);
    int err = a == NULL ? ROLL_E_NOMEM : 0;
    if (a != NULL) {
        roll_analysis_expect(a, expected);
        roll_analysis_job(a, job);
        roll_analysis_threads(a, threads);
    }
    unsigned style = (roll_colour_wanted(STDOUT_FILENO) ? ROLL_VERDICT_COLOR : ROLL_VERDICT_PLAIN) |
                     ROLL_VERDICT_COLUMNS(roll_columns_wanted(STDOUT_FILENO)) |
                     (frames ? ROLL_VERDICT_FRAMES : ROLL_VERDICT_PLAIN);
    for (int i = first; i < argc && err != ROLL_E_NOMEM; i++) {
        err = roll_analysis_add(a, argv[i]);
    }
    /* A judgement that lacked memory anywhere may be a wrong one, which is worse than none. */
    if (err == ROLL_E_NOMEM || roll_analysis_finish(a) == ROLL_E_NOMEM || roll_memory_failures() > 0) {
        roll_say("%s: nothing is judged", roll_strerror(ROLL_E_NOMEM));
        roll_analysis_destroy(&a);
        roll_expected_destroy(&expected);
        return ROLL_EXIT_UNREACHABLE;
    }
    /* All verdicts are collected before the first is printed, so that one that a later one withdrew takes one line. */
    struct roll_verdict_list list = {.at = NULL};
    uint64_t lost = 0;
    for (struct roll_verdict_copy *verdict; (verdict = roll_analysis_next(a)) != NULL;) {
        lost += roll_verdict_list_add(&list, verdict) != 0;
    }
    const struct part whole = {.job = NULL};
    struct roll_analysis_summary s;
    json_t *standing = roll_analysis_standing(a), *unreached = roll_analysis_unreached(a);
    json_t *jobs = jobs_to_json(a, &list);
    roll_analysis_summary(a, &s);
    if (!json && s.runs > 1) {
        lost += print_jobs(a, &list, standing, style);
    } else {
        lost += print_verdicts(&list, &whole, json, style);
        if (!json) {
            print_standing(standing, &whole);
        }
    }
    bool is_none = job != NULL && s.runs == 0 && s.files > 0;
    if (is_none) {
        roll_analysis_say_none(a);
    }
    roll_verdict_list_fini(&list);
    roll_analysis_destroy(&a);
    roll_expected_destroy(&expected);
    lost += s.verdicts_lost;
    if (lost > 0) {
        roll_say("%" PRIu64 " of the verdicts could not be shown: there is no memory", lost);
    }
    if (s.files == 0 || is_none) {
        if (s.unreadable == 0 && !is_none) {
            roll_file_say_none(ROLL_NONE_JUDGED, argv + first, (size_t)(argc - first));
        }
        json_decref(standing);
        json_decref(unreached);
        json_decref(jobs);
        return ROLL_EXIT_UNREACHABLE;
    }
    print_summary(&s, standing, unreached, jobs, json);
    json_decref(standing);
    json_decref(unreached);
    json_decref(jobs);
    return roll_analysis_exit(&s, lost);
}
