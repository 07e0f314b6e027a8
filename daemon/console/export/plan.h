/*
 * plan.h: a recorded job as plans for ranks that make its calls again (trace/replay.h). One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_EXPORT_PLAN_H
#define ROLL_DAEMON_CONSOLE_EXPORT_PLAN_H

#include "daemon/console/export/alike.h"
#include "daemon/console/export/job.h"

#include <stddef.h>
#include <stdint.h>

#define ROLL_PLAN_RANKS 256u /* more than a laptop runs */

/*
 * Writes the plans of a job into this directory, which is there. *ranks: how many it has; standing (empty before): what
 * stands in it. 0; UNSUPPORTED: it cannot be
 * made again as it was, and one line says why; and the errors of reading and writing, with one line.
 * After an error no file of it is left.
 */
int roll_plan_write(char **path, size_t paths, unsigned threads, const char *only, const char *dir, uint32_t *ranks,
                    struct roll_standing *standing, struct roll_analysis_summary *summary);

#endif
