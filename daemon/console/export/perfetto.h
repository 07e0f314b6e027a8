/*
 * perfetto.h: a recorded job as a Perfetto trace (docs/EXPORT.md says what is where in it). One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_EXPORT_PERFETTO_H
#define ROLL_DAEMON_CONSOLE_EXPORT_PERFETTO_H

#include "daemon/console/export/job.h"

#include <stddef.h>

/* Reads as roll_job_read, and writes `out`. 0, UNSUPPORTED (this rollcall was built without it: one line says so), and
 * the errors of reading and writing, of which one line was said. */
int roll_export_perfetto(char **path, size_t paths, unsigned threads, const char *only, const char *out,
                         struct roll_analysis_summary *summary);

#endif
