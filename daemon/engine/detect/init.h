/*
 * init.h: what detect_init.c, which looks for members that have not joined a creation, init_say.c, which says so, and
 * init_inside.c, which knows where the ranks are, share. Private to these.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_INIT_H
#define ROLL_DAEMON_ENGINE_DETECT_INIT_H

#include "daemon/engine/detect/detector.h"

/* Who is inside a creation, and who is not. */
struct absent {
    struct roll_rankset ranks, inside; /* world ranks that are absent, and that are inside the creation */
    struct roll_rankset never; /* those of `ranks` that cannot come any more: dead, ended, or gone from the parent */
    uint32_t unseen;           /* number of absent members whose process is not known */
    bool unsure; /* live ranks that are not heard, or were left aside, may be some of them, or be inside */
};

/* Some of them never will come. */
static inline bool absent_is_over(const struct absent *a)
{
    return roll_rankset_count(&a->never) > 0;
}

/* init_say.c: says the verdict about the creation in which s waits by its call `rec`. */
void init_say(struct roll_engine *e, struct source *s, const struct roll_record *rec, const struct absent *a);

/* init_inside.c: takes a record, new or grown; the hook of the detector. */
void init_record(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket, bool first);
/* All members have joined the creation that this call of s makes: what was suspected of it is withdrawn. What was
 * proven stays. */
void init_joined(struct roll_engine *e, const struct source *s, const struct roll_record *rec);

#endif
