/*
 * cmd_analyze.c: rollcall analyze: recorded traces and rings, judged after the fact by the engine that judges live.
 *
 * The exit code is the first of these that holds: 1 there is a finding; 3 something could not be read at all; 4
 * something was cut, lost or not usable, so that nobody can say "clean"; 0 otherwise.
 */
#include "daemon/base/memory.h"
#include "daemon/console/analyze/analyze.h"
#include "daemon/console/console.h"
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

static bool is_any_unrecorded(const struct roll_analysis_summary *s)
{
    bool any = false;
    for (unsigned k = 0; k < ROLL_LOSS_LIMIT; k++) {
        any = any || (roll_loss_is_unrecorded(k) && s->losses[k] > 0);
    }
    return any;
}

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

/* Prints the verdicts, one run after another. All verdicts are collected before the first is printed, so that a verdict
 * that a later one withdrew takes only one line. Returns how many could not be printed, because there was no memory. */
static uint64_t print_verdicts(roll_analysis_t *a, bool json, unsigned style)
{
    struct roll_verdict_list list = {.at = NULL};
    struct roll_verdict_copy *verdict;
    uint64_t lost = 0;
    while ((verdict = roll_analysis_next(a)) != NULL) {
        lost += roll_verdict_list_add(&list, verdict) != 0;
    }
    for (size_t i = 0; i < list.used; i++) {
        lost += !print_verdict(list.at[i], roll_verdict_list_ended_by(&list, list.at[i]), json, style);
    }
    roll_verdict_list_fini(&list);
    return lost;
}

/* Prints for people where the ranks stood: only the first few, because the others repeat these. */
static void print_standing(const json_t *standing)
{
    size_t i, n = json_array_size(standing);
    json_t *rank;
    json_array_foreach(standing, i, rank)
    {
        if (i < STANDING_MOST) {
            printf("%s%s\n", i > 0 ? "" : "Where the ranks stood when it ended:\n",
                   json_string_value(json_object_get(rank, "text")));
        }
    }
    if (n > STANDING_MOST) {
        printf("and %zu more rank%s\n", n - STANDING_MOST, n == STANDING_MOST + 1 ? "" : "s");
    }
    if (n > 0) {
        putchar('\n');
    }
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

/* Prints the summary. `standing` and `unreached` (borrowed) become members of the JSON where they say something. */
static void print_summary(const struct roll_analysis_summary *s, json_t *standing, json_t *unreached, bool json)
{
    char text[ROLL_SUMMARY_TEXT];
    struct roll_summary summary = {.ranks = s->engine.sources,
                                   .of_ranks = s->missing > 0 ? s->engine.sources + s->missing : 0,
                                   .calls = s->engine.calls,
                                   .comms = s->engine.comms,
                                   .findings = s->engine.findings,
                                   .lost = s->engine.lost,
                                   .incomplete = s->engine.incomplete};
    for (unsigned k = 0; k < ROLL_LOSS_LIMIT; k++) {
        summary.unrecorded[k] = roll_loss_is_unrecorded(k) ? s->losses[k] : 0;
    }
    if (json) {
        json_t *line =
            json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:b}", "schema",
                      "rollcall.summary/1", "runs", (json_int_t)s->runs, "ranks", (json_int_t)s->engine.sources,
                      "calls", (json_int_t)s->engine.calls, "records", (json_int_t)s->engine.records, "comms",
                      (json_int_t)s->engine.comms, "findings", (json_int_t)s->engine.findings, "verdicts",
                      (json_int_t)s->engine.verdicts, "lost", (json_int_t)s->engine.lost, "unrecorded",
                      roll_summary_unrecorded_json(&summary), "incomplete", (json_int_t)s->engine.incomplete,
                      "unjudged", (json_int_t)s->unjudged, "missing", (json_int_t)s->missing, "cut", s->cut);
        if (line != NULL) {
            if (json_array_size(standing) > 0) {
                json_object_set(line, "standing", standing);
            }
            add_digests(line, s, unreached);
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
    printf("%s%s%s%s\n", text, s->unjudged > 0 && s->unjudged < s->runs ? ", of some dumps no entry is usable" : "",
           s->cut ? ", a trace was cut short" : "", s->unreached > 0 ? ", not all could be judged" : "");
}

int cmd_analyze(const struct roll_command *self, int argc, char **argv)
{
    bool json = false, frames = false;
    const char *policy = NULL, *expect = NULL;
    struct roll_expected *expected = NULL;
    char why[256];
    uint32_t threads = 0;
    struct roll_engine_config config = {0};
    const struct roll_option options[] = {
        {"policy", 0, ROLL_OPT_TEXT, "POLICY",
         "judge as under this policy, not the one of the trace: observe, advise, auto", &policy},
        {"expect", 0, ROLL_OPT_TEXT, "FILE", "note where the job leaves what `rollcall rehearse --save` kept there",
         &expect},
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
        roll_analysis_threads(a, threads);
    }
    unsigned style = (roll_colour_wanted(STDOUT_FILENO) ? ROLL_VERDICT_COLOR : ROLL_VERDICT_PLAIN) |
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
    uint64_t lost = print_verdicts(a, json, style);
    json_t *standing = roll_analysis_standing(a);
    if (!json) {
        print_standing(standing);
    }
    struct roll_analysis_summary s;
    json_t *unreached = roll_analysis_unreached(a);
    roll_analysis_summary(a, &s);
    roll_analysis_destroy(&a);
    roll_expected_destroy(&expected);
    lost += s.verdicts_lost;
    if (lost > 0) {
        roll_say("%" PRIu64 " of the verdicts could not be shown: there is no memory", lost);
    }
    if (s.files == 0) {
        if (s.unreadable == 0) {
            roll_say("no trace (*.rtrc), no ring (*.ring), no digest (*.rdig) and no dump of the Flight Recorder was "
                     "found in the "
                     "given places");
        }
        json_decref(standing);
        json_decref(unreached);
        return ROLL_EXIT_UNREACHABLE;
    }
    print_summary(&s, standing, unreached, json);
    json_decref(standing);
    json_decref(unreached);
    if (s.engine.findings > 0) {
        return ROLL_EXIT_FINDING;
    }
    if (s.unreadable > 0) {
        return ROLL_EXIT_UNREACHABLE;
    }
    /* A trace without a rank ends before anything was recorded. */
    return s.cut || s.unjudged > 0 || s.unreached > 0 || s.missing > 0 || lost > 0 || s.engine.lost > 0 ||
                   is_any_unrecorded(&s) || s.engine.sources == 0
               ? ROLL_EXIT_INCOMPLETE
               : ROLL_EXIT_CLEAN;
}
