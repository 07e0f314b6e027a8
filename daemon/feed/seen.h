/*
 * seen.h: what a run did, in few words: its groups, their calls and bytes, its steps, its slowest rank. For the end of
 * a job that was healthy.
 */
#ifndef ROLL_DAEMON_FEED_SEEN_H
#define ROLL_DAEMON_FEED_SEEN_H

#include "daemon/feed/feed.h"

#include <jansson.h>

/*
 * Returns one object, owned (NULL: out of memory): "ranks" as text, "steps" (null: not known), "steps_source" ("job",
 * "learned": about so many, or null), "groups", which are the communicators folded into families, those with most bytes
 * first, and no more than a dozen ("groups_more": how
 * many kinds are left out), and "slowest" (null: not measured).
 */
json_t *roll_feed_seen(roll_feed_t *feed);

#endif
