/*
 * pf_write.h: a Perfetto trace, packet by packet: names that are written once, tracks, and events on them. What a call
 * becomes is perfetto_calls.c's. Errors stick: the first one is what roll_pf_end returns. One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_EXPORT_PF_WRITE_H
#define ROLL_DAEMON_CONSOLE_EXPORT_PF_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct roll_pf roll_pf_t;

/* Writes to this descriptor (borrowed). NULL: no memory. */
roll_pf_t *roll_pf_new(int fd);
/* Whether something went wrong: then nothing more is written. 0, NOMEM, or an error of writing. */
int roll_pf_error(const roll_pf_t *pf);
/* Writes what is held back, and frees. 0, or the first error. */
int roll_pf_end(roll_pf_t **pf);

/* The spaces of names. */
enum roll_pf_space { ROLL_PF_CATEGORY, ROLL_PF_EVENT, ROLL_PF_NOTE, ROLL_PF_WORD, ROLL_PF_SPACES };
/* The number that stands for a name in its space; the same text has one number. 0: an error. */
uint64_t roll_pf_intern(roll_pf_t *pf, enum roll_pf_space space, const char *text);

/* A track. Numbers are the caller's: never 0, and one of its own for each. */
struct roll_pf_track {
    uint64_t number, parent; /* parent 0: none */
    const char *name;
    const char *description; /* NULL = none */
    int32_t process;         /* it is that of a process of this number; 0: it is none */
};
void roll_pf_track(roll_pf_t *pf, const struct roll_pf_track *track);

/* What is told of an event beside its name. */
struct roll_pf_note {
    uint64_t name; /* of ROLL_PF_NOTE */
    enum roll_pf_kind { ROLL_PF_UINT, ROLL_PF_INT, ROLL_PF_BOOL, ROLL_PF_TEXT, ROLL_PF_INTERNED } kind;
    uint64_t value; /* INTERNED: of ROLL_PF_WORD */
    const char *text;
};
#define ROLL_PF_NOTES 20u

enum roll_pf_type { ROLL_PF_BEGIN = 1, ROLL_PF_END = 2, ROLL_PF_INSTANT = 3 }; /* as Perfetto has them */
struct roll_pf_event {
    enum roll_pf_type type;
    uint64_t time_ns, track;
    uint64_t category, name; /* numbers; 0 = none */
    const char *text;        /* a name that is not interned; NULL = none */
    uint64_t flow;           /* events of one flow are joined by arrows, in the order of their times; 0 = none */
    const struct roll_pf_note *note;
    size_t notes; /* ROLL_PF_NOTES at most */
};
void roll_pf_event(roll_pf_t *pf, const struct roll_pf_event *event);

#endif
