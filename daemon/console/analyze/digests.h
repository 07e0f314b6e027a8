/*
 * digests.h: .rdig files (docs/RDIG.md), judged: the digests of all nodes are added up as a root adds them up, and the
 * excerpts go to an engine. One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_ANALYZE_DIGESTS_H
#define ROLL_DAEMON_CONSOLE_ANALYZE_DIGESTS_H

#include "daemon/digest/rdig.h"
#include "daemon/feed/feed.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct roll_digests roll_digests_t;

/* Borrows the settings, by which places are judged that no excerpt of an end reaches. NULL: no memory. */
roll_digests_t *roll_digests_new(const struct roll_engine_config *config);
void roll_digests_destroy(roll_digests_t **digests);
/* Adds a file, all of it or nothing. Errors of roll_rdig_check and roll_rdig_next, NOTFOUND, DENIED, IO, NOMEM; LIMIT:
 * larger than such a file is. */
int roll_digests_add(roll_digests_t *digests, const char *path);

/* The feed of a run, into *out (borrowed). *traced: it has been fed traces of the run. anew: then that is forgotten,
 * and a feed that has been fed nothing takes its place. 0; NOTFOUND: the run is not meant; NOMEM. */
typedef int roll_digests_feed_of(void *ctx, const char *job, uint32_t restart, bool anew, bool *traced,
                                 roll_feed_t **out);
/* Feeds each run, and compares. What cannot be judged is one line on standard error each. Of a run of which traces were
 * given as well the fuller of both is judged, and that is said. *cut: set when something is damaged or missing. 0 or
 * NOMEM. */
int roll_digests_judge(roll_digests_t *digests, roll_digests_feed_of *feed_of, void *ctx, bool *cut);
/* The next verdict, returned owned; NULL: there is none. */
struct roll_verdict_copy *roll_digests_next(roll_digests_t *digests);

struct roll_digests_summary {
    size_t files;
    uint64_t calls;    /* that were digested */
    uint64_t lost;     /* records that the nodes' traces lack, and the feeds do not know of */
    uint64_t older;    /* the same of those that are older than the traces */
    uint64_t findings; /* at places, beside those of the feeds */
    size_t unreached;  /* places that differ or stand, of which there are no records */
};
void roll_digests_summary(const roll_digests_t *digests, struct roll_digests_summary *out);
/* What is to be done about them: an array of objects (returned owned; NULL without memory) with `job`, `restart`,
 * `hosts`, and what else is known: `comm_key`, `seq`, `last`, `command`. */
json_t *roll_digests_unreached(const roll_digests_t *digests);

/* digests.c, digests_feed.c, digests_compare.c, digests_place.c */

struct digest_file {
    char *path;
    void *map; /* of the whole file; owned */
    size_t bytes;
};
struct digest_section {
    struct roll_rdig_view view;
    const char *path;     /* of its file */
    uint64_t epoch;       /* of its first ring; 0: there is none */
    uint64_t next, begin; /* sums over its rings */
    bool dropped;         /* another one tells more of the same */
};
struct roll_digests {
    const struct roll_engine_config *config;
    struct digest_file *file;
    size_t files, file_room;
    struct digest_section *section;
    size_t sections, section_room;
    struct roll_verdict_copy **verdict; /* owned but for those below `given` */
    size_t verdicts, verdict_room, given;
    struct roll_digests_summary summary;
    json_t *unreached;
    bool *cut; /* while it is judged */
};
/* Takes the verdict. 0, NOMEM. */
int roll_digests_keep(roll_digests_t *digests, struct roll_verdict_copy *verdict);

/* Feeds the excerpts of these sections, of one run. heads: the places of rings come before; else all of the traces are
 * there. 0, NOMEM. */
int roll_digests_feed(roll_digests_t *digests, const struct digest_section *const *section, size_t n, bool heads,
                      roll_feed_t *feed);

/* One run: its sections, those of the end first. */
struct digest_run {
    const struct digest_section **section; /* those of the end, then places, then ranges */
    size_t ends, all;
    roll_feed_t *feed; /* which has been fed the ends, and is finished */
};
/* Adds up and compares; judges places, and tells which cannot be. 0, NOMEM. */
int roll_digests_compare(roll_digests_t *digests, const struct digest_run *run);

#endif
