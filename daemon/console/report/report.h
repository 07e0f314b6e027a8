/*
 * report.h: `rollcall report`: what was recorded of a job, judged, as one file for people: HTML that shows the views of
 * the web page without a server, or Markdown for a ticket. One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_REPORT_REPORT_H
#define ROLL_DAEMON_CONSOLE_REPORT_REPORT_H

#include "daemon/console/analyze/analyze.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct roll_report_options {
    const char *job;    /* only this one, named as in analyze/jobs.h; NULL: all */
    const char *output; /* the file; NULL: standard output */
    unsigned threads;   /* as of analyze */
    bool markdown;      /* else HTML */
    bool has_source;    /* lines of the job's files are shown where they are here */
};

/*
 * Reads all of these paths (files and directories, as analyze takes them) and writes the report. *summary: what analyze
 * would say of them. 0; NOTFOUND: there is nothing, or nothing of that job, of which one line was said; NOMEM; the
 * first error of writing, of which one line was said.
 */
int roll_report_write(char **path, size_t paths, const struct roll_report_options *options,
                      struct roll_analysis_summary *summary);

#endif
