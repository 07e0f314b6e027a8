/*
 * plan.h: one run of the world, all of it: a line of text that plays again.
 */
#ifndef ROLL_TESTS_WORLD_PLAN_H
#define ROLL_TESTS_WORLD_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAULTS_MAX   12u
#define DROPS_MAX    48u
#define HOURS_MAX    168u /* a week */
#define SLACK_MAX    60000u
#define PLAN_BYTES   2048u
#define PLAN_RECORDS 65536u /* of a ring, where nothing else is asked for: as the interposer makes them */

enum fault_kind {
#define FAULT_ROW(name, word, whom, a, b) FAULT_##name,
#include "tests/world/fault.def"
#undef FAULT_ROW
    FAULT_KINDS
};

struct fault {
    enum fault_kind kind;
    uint32_t at_ms;  /* since the first call of the job */
    uint32_t target; /* a daemon: 0 the root, then relays, then agents; a host; a rank; taken modulo their number */
    uint32_t a, b;
};

struct plan {
    uint64_t seed;     /* of the program, and of all chance in the world */
    bool sick;         /* with one mistake */
    uint32_t per_node; /* ranks of a host */
    uint32_t relays;   /* between agents and root: 0 to 2, side by side */
    bool digest;       /* the job is compared by digests */
    bool trace;        /* the root keeps a trace, from which it resumes */
    uint32_t records;  /* of a ring */
    bool statuses;     /* the launcher notes how processes end */
    uint32_t hours;    /* it goes on for so long at least, and jobs pause for most of it; 0: as long as they need */
    uint32_t slack;    /* ms; in quiet stretches of them timers of daemons end together, so far apart (quiet.h) */
    bool second;       /* a second job, healthy, on hosts of its own; that is the one which is hostile */
    struct fault fault[FAULTS_MAX];
    uint32_t faults;
    struct drop {
        bool rank;             /* a rank is left out, else `count` units */
        uint16_t first, count; /* units */
    } drop[DROPS_MAX];         /* what of the correct program is left out, in this order */
    uint32_t drops;
};

/* How a fault kind is written, and whom it hits. */
const char *fault_word(enum fault_kind kind);
char fault_whom(enum fault_kind kind);

/* Makes the plan of a seed. Same seed, same plan. */
void plan_make(struct plan *plan, uint64_t seed);
/* Writes it as one line. Returns `out`. */
const char *plan_text(const struct plan *plan, char out[PLAN_BYTES]);
/* Reads such a line. False, with a word on standard error, when it is none. */
bool plan_parse(struct plan *plan, const char *text);

#endif
