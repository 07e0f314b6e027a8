/*
 * verdict.h: a verdict that outlives the engine's queue: typed, for every part of this process that asks something of
 * it.
 *
 * The engine lends a verdict until the next call of one of its functions. The copy made here owns all that the verdict
 * points to: ranks, text, and the frames of its call sites, which are resolved when the copy is made, because later
 * definitions could change what they say. JSON is for the edge (a file, a console, another process): whoever writes or
 * sends a verdict makes its JSON (verdict_json.h) and drops it afterwards. A copy that kept its JSON was rejected: the
 * set of 16,384 ranks is a few bytes here and about a megabyte there, for as long as the run lives. Handing JSON around
 * inside the process was rejected, too: each reader turned names back into codes, and texts back into sets of ranks.
 */
#ifndef ROLL_DAEMON_VERDICT_VERDICT_H
#define ROLL_DAEMON_VERDICT_VERDICT_H

#include "daemon/engine/engine.h"
#include "daemon/stack/symbol.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A call site of a verdict. Strings are owned by the copy. */
struct roll_verdict_site {
    struct roll_symbol_frame *frame; /* innermost first */
    size_t frames;
};
#define ROLL_VERDICT_SITES (ROLL_VERDICT_SIDES + 1) /* one for each side, and one for the communicator */

struct roll_verdict_copy {
    struct roll_verdict said; /* the copy owns what `said` points to; the text is valid UTF-8 */
    char *job;
    uint32_t restart;
    struct roll_verdict_site site[ROLL_VERDICT_SITES]; /* each call site once, also where several sides share it */
    uint32_t sites;
    int side_site[ROLL_VERDICT_SIDES]; /* index of `site`; -1 = not known */
    int comm_site;                     /* index of `site` for where the communicator was made; likewise */
    uint64_t ended_by;                 /* number of the later verdict of the list that ended this finding; 0 = none */
    const char *ended_how;             /* what it has become by that, a word of life.def; NULL = it was not ended */
    char *text, *field;                /* what `said` points to */
    json_t *attached;                  /* members of its JSON that another process made; NULL = none */
};

/*
 * Copies a verdict (borrowed, as are the others), returned owned; NULL when out of memory. symbols and engine may be
 * NULL: then without call sites. The caller may change time_ns, which the verdict shows. One thread per table of
 * symbols; the copy itself may be used by any one thread at a time.
 */
struct roll_verdict_copy *roll_verdict_copy_new(const struct roll_verdict *verdict, const roll_engine_t *engine,
                                                roll_symbols_t *symbols, const char *job, uint32_t restart);
void roll_verdict_copy_destroy(struct roll_verdict_copy **copy);

/* Adds a member that another process made: from here on it stands at the end of the verdict's JSON. Takes value (NULL:
 * it could not be made). Errors: NOMEM. */
int roll_verdict_attach(struct roll_verdict_copy *copy, const char *member, json_t *value);

/* Whether the verdict was a finding when it was said: all verdicts but notes are. */
static inline bool roll_verdict_is_finding(const struct roll_verdict *verdict)
{
    return verdict->certainty != ROLL_NOTE;
}
/* Number of the earlier verdict that this one supersedes, confirms or withdraws; 0 = none. */
uint64_t roll_verdict_retires(const struct roll_verdict *verdict);
/* What that earlier verdict has become by it: "replaced", "confirmed" or "withdrawn" (life.def); NULL: there is none.
 */
const char *roll_verdict_makes(const struct roll_verdict *verdict);

/* Verdicts in the order in which they were said. Zero-initialised is empty. */
struct roll_verdict_list {
    struct roll_verdict_copy **at; /* owned, as are the copies */
    size_t used, room;
};
/* Takes the copy, and notes which earlier finding of the same run the new verdict ends. Errors: NOMEM (the copy is
 * destroyed). */
int roll_verdict_list_add(struct roll_verdict_list *list, struct roll_verdict_copy *copy);
/* Is this verdict of a list a finding that no later verdict of the list has ended? */
static inline bool roll_verdict_stands(const struct roll_verdict_copy *copy)
{
    return roll_verdict_is_finding(&copy->said) && copy->ended_by == 0;
}
/* The verdict of the list that ended this one (of the same list); NULL = none. Borrowed. */
struct roll_verdict_copy *roll_verdict_list_ended_by(const struct roll_verdict_list *list,
                                                     const struct roll_verdict_copy *copy);
void roll_verdict_list_fini(struct roll_verdict_list *list);

#endif
