/*
 * site.h: where a call was made, in a few words: "train.py:88 step". The engine knows lines of Python, which come by
 * name; native ones need files, which the feed's table of symbols reads (daemon/stack/symbol.h). One thread.
 */
#ifndef ROLL_DAEMON_FEED_SITE_H
#define ROLL_DAEMON_FEED_SITE_H

#include "daemon/feed/feed.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What may be looked up: everything, or only what is known by now, so that no file is read and nobody is waited for. */
enum roll_site_look { ROLL_SITE_READ, ROLL_SITE_KNOWN };

/* The place of a call site of a ring: its line of Python, else the innermost native one that is known. False: neither
 * is. */
bool roll_feed_site(roll_feed_t *feed, uint64_t stream, uint32_t callsite, enum roll_site_look look, char *out,
                    size_t size);

/* Where native code made a communicator of which the engine knows no line: into its empty `place`. */
void roll_feed_comm_site(roll_feed_t *feed, struct roll_view_comm *comm, enum roll_site_look look);

#endif
