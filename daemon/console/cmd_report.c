/*
 * cmd_report.c: rollcall report: recorded traces, judged, as one file for people who have no rollcall.
 *
 * The exit code is that of analyze for the same files, so that a script may make a report and know what it says.
 */
#include "daemon/console/analyze/analyze.h"
#include "daemon/console/analyze/jobs.h"
#include "daemon/console/console.h"
#include "daemon/console/export/out.h"
#include "daemon/console/report/report.h"
#include "daemon/console/text.h"
#include "trace/err.h"

#include <stdio.h>
#include <string.h>

int cmd_report(const struct roll_command *self, int argc, char **argv);

static bool ends(const char *text, const char *suffix)
{
    size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

int cmd_report(const struct roll_command *self, int argc, char **argv)
{
    struct roll_report_options o = {.job = NULL};
    struct roll_analysis_summary s = {.runs = 0};
    bool no_source = false, force = false;
    uint32_t threads = 0;
    const struct roll_option options[] = {
        {"output", 'o', ROLL_OPT_TEXT, "FILE", "the file (default: report.html; with --md standard output)", &o.output},
        {"force", 0, ROLL_OPT_FLAG, NULL, "replace a file of that name that is there", &force},
        {"md", 0, ROLL_OPT_FLAG, NULL, "Markdown for a ticket, in place of HTML", &o.markdown},
        {"no-source", 0, ROLL_OPT_FLAG, NULL, "no lines of the job's own files", &no_source},
        ROLL_JOB_OPTION(o.job),
        ROLL_READ_OPTIONS(threads),
        {0},
    };
    int code;
    int first = roll_read_options(self, options, argc, argv, "name a trace: a directory of --trace, or files", &code);
    if (first < 0) {
        return code;
    }
    if (o.output != NULL && (ends(o.output, ".rtrc") || ends(o.output, ".ring") || ends(o.output, ".rdig"))) {
        return roll_usage(self, "--output %s: that is the name of what was recorded", o.output);
    }
    o.threads = threads;
    o.has_source = !no_source;
    o.output = o.output != NULL || o.markdown ? o.output : "report.html";
    o.output = o.output != NULL && strcmp(o.output, "-") == 0 ? NULL : o.output;
    if (o.output != NULL && roll_out_name(o.output, force) != 0) {
        return ROLL_EXIT_UNREACHABLE;
    }
    if (roll_report_write(argv + first, (size_t)(argc - first), &o, &s) != 0) {
        return ROLL_EXIT_UNREACHABLE;
    }
    if (o.output != NULL) {
        char findings[48], ranks[48];
        printf("%s of %s in %s\n", roll_plural(s.engine.findings, "finding", "findings", findings, sizeof(findings)),
               roll_plural(s.engine.sources, "rank", "ranks", ranks, sizeof(ranks)), o.output);
    }
    return roll_analysis_exit(&s, 0);
}
