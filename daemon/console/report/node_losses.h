/*
 * node_losses.h: what was lost on which node of a run: a report that says "12 records are lost" leaves its reader to
 * guess where to look. One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_REPORT_NODE_LOSSES_H
#define ROLL_DAEMON_CONSOLE_REPORT_NODE_LOSSES_H

#include "daemon/feed/feed.h"

#include <jansson.h>

#define ROLL_NODE_LOSSES_MOST 256u

/*
 * An array of {"host", "lost": records, "older": records from before the recording, "unrecorded": times, "starved":
 * permille of the time, the most of its ranks}, of the nodes of which one of the four is not 0: the
 * ROLL_NODE_LOSSES_MOST that lost most, those first. Returned owned; NULL: no memory.
 */
json_t *roll_node_losses_json(const roll_feed_t *feed);

#endif
