/*
 * straggler.h: who arrives last: what detect_straggler.c (which communicator is looked at, and what a look says),
 * straggler_measure.c (how late one member came, from its log) and straggler_say.c (the words) share.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_STRAGGLER_H
#define ROLL_DAEMON_ENGINE_DETECT_STRAGGLER_H

#include "daemon/engine/detect/stuck.h"

#define BACK_MAX      2048u /* of one member */
#define PLACES        4u    /* of the program, per communicator */
#define NOTE_LOOKS    32u
#define NOTE_LATE     30
#define SUSPECT_LOOKS 64u

/* What a member has been like at one place. */
struct lateness {
    uint64_t looks;     /* bit 0 the newest: late */
    uint64_t mean_ns;   /* by how much, over late looks; moving */
    uint64_t own_ns;    /* inside `op`, of that; moving */
    uint8_t op;         /* in which recorded call the most of it passes; NONE: in none */
    uint32_t step, seq; /* since then */
};

struct place {
    uint64_t key;
    uint32_t looks;
    uint64_t interval_ns;    /* moving mean */
    struct lateness *member; /* owned */
    bool noted, suspected, slow_said, slower;
    /* The trend: means of blocks of intervals, without the longest of each. */
    uint32_t in_block, slow_blocks, step, seq;
    uint64_t sum_ns, max_ns, base_ns, blocks;
    uint32_t slow_step, slow_seq;
};

/* Who arrives last, as far as it was looked at. */
struct straggler_comm {
    struct stretch *x;  /* of the members that have been looked at; owned; NULL: no look is under way */
    uint32_t at;        /* the next one */
    uint32_t wanted;    /* the call that is looked at */
    uint32_t tries;     /* how often it was waited for a member */
    uint32_t members;   /* room in x */
    uint32_t high;      /* of the communicator when it was looked at last */
    uint32_t seq;       /* newest call that was looked at, plus one */
    uint32_t strangers; /* looks at other places than those below, since one of them made room */
    struct place place[PLACES];
};
STATE_OF_COMM(straggler)

/* One member between two calls. All times by its own clock. */
struct stretch {
    uint64_t before, call;       /* tickets of n and n + 1 */
    uint64_t release, back;      /* its host came back from n, from n + 1 */
    uint64_t arrive_ns, wait_ns; /* time to n + 1, less what was for others; time inside the wait behind n + 1 */
    uint64_t mix;                /* of the calls in between */
    uint64_t inside_ns;          /* the longest sum of times inside recorded calls of one kind */
    uint8_t inside_op;
    uint64_t late_ns;
};

/* straggler_measure.c */
/*
 * The newest two neighbouring calls of the member between and behind which its host waited. seq: number of the second;
 * NO_SEQ: any. Walks back from `from` over what the log still holds, within the bound. *end: its log holds no more.
 */
bool straggler_find_stretch(const struct source *s, const struct member *m, uint64_t from, uint32_t *seq,
                            struct stretch *x, uint32_t *work, bool *end);
/* The same for a further member: ranks run one program, so the call usually stands where the first one has it. */
bool straggler_find_same(const struct source *s, const struct member *m, uint64_t ticket, uint32_t *seq,
                         struct stretch *x, uint32_t *work, bool *end);

/* straggler_say.c */
void straggler_tell_late(struct roll_engine *e, struct comm *c, struct place *p, const struct stretch *x, bool suspect);
void straggler_tell_slow(struct roll_engine *e, struct comm *c, struct place *p, const struct stretch *x,
                         uint64_t now_ns);

#endif
