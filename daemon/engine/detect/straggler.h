/*
 * straggler.h: what the files of the detector `straggler` share. The detector finds ranks that arrive last.
 *
 *   detect_straggler.c    which communicator is looked at, and what a look means
 *   straggler_measure.c   how late one member came, from its log
 *   straggler_say.c       the verdicts and their texts
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_STRAGGLER_H
#define ROLL_DAEMON_ENGINE_DETECT_STRAGGLER_H

#include "daemon/engine/detect/stuck.h"

#define BACK_MAX      2048u /* log entries of one member that are looked at */
#define PLACES        4u    /* places of the program that are followed per communicator */
#define NOTE_LOOKS    32u
#define NOTE_LATE     30
#define SUSPECT_LOOKS 64u

/* How late a member has come at one place. */
struct lateness {
    uint64_t looks;     /* one bit for each look, bit 0 the newest: the member was late */
    uint64_t sum_ns;    /* how late, over all looks */
    uint64_t mean_ns;   /* moving mean of how late, over the looks in which it was late */
    uint64_t own_ns;    /* moving mean of the part of that time inside calls of `op` */
    uint8_t op;         /* the recorded operation in which most of that time passes; NONE: in none */
    uint32_t step, seq; /* the step and call since which the member is late */
};

/* One place of the program, and how late the members come there. */
struct place {
    uint64_t key;
    uint32_t looks;
    uint64_t interval_ns;    /* moving mean of the time from one call to the next */
    uint64_t all_ns;         /* that time over all looks */
    struct lateness *member; /* by rank; owned */
    bool noted, suspected, slow_said, slower;
    /* The trend: means of blocks of intervals, each without the longest interval of its block. */
    uint32_t in_block, slow_blocks, step, seq;
    uint64_t sum_ns, max_ns, base_ns, blocks;
    uint32_t slow_step, slow_seq;
};

/* What is known about who arrives last on a communicator. */
struct straggler_comm {
    struct stretch *x;  /* the members that the current look has measured; owned; NULL: no look is under way */
    uint32_t at;        /* the rank that is measured next */
    uint32_t wanted;    /* number of the call that is looked at; NO_SEQ: not chosen yet */
    uint32_t tries;     /* how often the current look has waited for a member */
    uint32_t members;   /* room in x */
    uint32_t high;      /* comm.high when the last look began */
    uint32_t seq;       /* number of the newest call that was looked at, plus one */
    uint32_t strangers; /* looks at places other than `place`, since a place was last given up */
    struct place place[PLACES];
};
STATE_OF_COMM(straggler)

/* One member between two neighbouring calls n and n + 1. All times are by the member's own clock. */
struct stretch {
    uint64_t before, call;  /* tickets of calls n and n + 1 */
    uint64_t release, back; /* when its host came back from a wait for n, and from a wait for n + 1 */
    /* Time from `release` to call n + 1, less the waits behind other NCCL calls; length of the wait behind n + 1. */
    uint64_t arrive_ns, wait_ns;
    uint64_t mix;       /* hash of the NCCL calls in between */
    uint64_t inside_ns; /* the longest sum of times inside recorded calls of one operation */
    uint8_t inside_op;
    uint64_t late_ns;
};

/* straggler_measure.c */
/*
 * Finds the newest two neighbouring calls of the member for each of which its host has waited, the first time before it
 * made the second call. seq: number of the second call; NO_SEQ: any. Walks back from `from` over what the log still
 * holds, within the bound. *end is set where the log holds no more.
 */
bool straggler_find_stretch(const struct source *s, const struct member *m, uint64_t from, uint32_t *seq,
                            struct stretch *x, uint32_t *work, bool *end);
/* The same for another member. Ranks run one program, so the call is first looked for at this ticket, where it stands
 * in the log of the first member. */
bool straggler_find_same(const struct source *s, const struct member *m, uint64_t ticket, uint32_t *seq,
                         struct stretch *x, uint32_t *work, bool *end);

/* straggler_say.c */
/* Says which members arrive last at the place, if any do often enough. suspect: by the stricter measure, as suspected;
 * else as a note. */
void straggler_tell_late(struct roll_engine *e, struct comm *c, struct place *p, const struct stretch *x, bool suspect);
/* Notes that the time from one call of the place to the next has grown to now_ns. */
void straggler_tell_slow(struct roll_engine *e, struct comm *c, struct place *p, const struct stretch *x,
                         uint64_t now_ns);

#endif
