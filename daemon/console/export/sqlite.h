/*
 * sqlite.h: a recorded job as an SQLite database (docs/EXPORT.md has its tables and views). One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_EXPORT_SQLITE_H
#define ROLL_DAEMON_CONSOLE_EXPORT_SQLITE_H

#include "daemon/console/export/job.h"

#include <stddef.h>

/* As roll_export_perfetto. */
int roll_export_sqlite(char **path, size_t paths, unsigned threads, const char *only, const char *out,
                       struct roll_analysis_summary *summary);

/* sqlite_schema.c: what makes the tables; and what makes indexes and views, when all rows are there. */
extern const char roll_sqlite_tables[], roll_sqlite_views[];

#endif
