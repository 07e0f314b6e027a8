/*
 * stuck.h: calls that have all they need and do not end: what detect_stuck.c (when to speak, and the words),
 * stuck_find.c (who stands where), stuck_trouble.c (whether other trouble may be the reason) and stuck_facts.c (what
 * the nodes know about it) share.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_STUCK_H
#define ROLL_DAEMON_ENGINE_DETECT_STUCK_H

#include "daemon/engine/detect/detector.h"

#define STUCK_USUAL    4u         /* patience where the place is known, in suspect_ns */
#define STUCK_UNUSUAL  12u        /* and where it is not: the first step, a new phase */
#define STUCK_WORK_MAX (1u << 20) /* log entries that the analysis may look at in one tick, whoever asks */
#define STUCK_SITES    64u

struct stuck_engine {
    uint64_t run_ns;          /* patience clock of the last run */
    uint64_t work_ns;         /* patience clock of the tick that `work` belongs to */
    uint32_t work;            /* what is left of its bound: stuck_work */
    uint32_t next;            /* source that is looked at first in the next run */
    uint32_t waiter;          /* a source that was last seen to wait still */
    struct stuck_case *asked; /* the case that the nodes are asked about: stuck_facts.c; owned */
};
STATE_OF_ENGINE(stuck)

/* What the waits of one rank have been like. */
struct stuck_source {
    uint64_t last; /* ticket of its newest wait that has returned */
    uint64_t longest_ns;
    uint64_t long_wait, long_ns; /* ticket + 1 of its last wait that its record cannot measure, and how long it was */
    uint64_t told;               /* ticket + 1 of the wait of which it has been told */
    uint64_t verdict;            /* number of the verdict that this wait is part of; 0 = none */
    uint64_t clear;    /* its host has left all calls before this ticket, as far as they have been looked at */
    uint64_t asked_ns; /* patience clock at which stuck_stands was answered last, plus one */
    bool stands;       /* that answer */
    struct {
        uint32_t key, count;
    } site[STUCK_SITES]; /* by call site and operation; a newcomer displaces the old one */
};
STATE_OF_SOURCE(stuck)

/* The call in which everybody stands, under examination. */
struct stuck {
    struct roll_engine *e;
    uint32_t work; /* entries that may still be looked at */
    /* The calls that have been looked at, and whether all stand in them: the answer is the same for all members. Owned,
     * a hash table. */
    uint64_t *seen;
    uint32_t seens, seen_at;  /* how many; where the one stands that is looked at */
    bool stands;              /* the call that was looked at last had been found to be one in which all stand */
    uint64_t hint, hint_back; /* ticket of the last member's call, and how far from its newest */
    struct comm *comm;
    struct roll_record rec;
    const struct source *first;         /* whose record it is */
    struct roll_rankset in, left, away; /* world ranks */
    uint64_t first_since;               /* that at which the first of them did */
    uint64_t since;                     /* patience clock at which the last of them came into it */
    uint64_t longest_ns;                /* of all waits of those ranks before */
    bool loose;                         /* the one that is asked about stands in a wait of its own: see stuck_find.c */
    bool lax;                           /* a wait that has come back may have been for it: see stuck_find_last */
    bool known;                         /* all those who have not left it learn completion */
    bool rooted;                        /* some have left it, as they may, and its root has not */
    bool ripe;                          /* every patience has run out */
    bool asked;                         /* for stuck_stands: whoever is stuck for a told reason stands nowhere else */
};

/* stuck_wait.c */
/* Takes in a wait of s that has returned; since: as for stuck_returned. NULL: no memory. */
struct stuck_source *stuck_measure(const struct roll_engine *e, struct source *s, const struct roll_record *rec,
                                   uint64_t since);
/* How long this wait of s must last before it is spoken of. */
uint64_t stuck_patience(const struct roll_engine *e, const struct source *s, const struct roll_record *wait);
/* How long the rank's last wait beyond the 4.3 s that a record can say has lasted, if it is the one with this ticket.
 */
bool stuck_long_wait(const struct source *s, uint64_t ticket, uint64_t *ns);
/* Another verdict has taken the place of this one. */
void stuck_renumber(struct roll_engine *e, uint64_t from, uint64_t to);

/* stuck_hosts.c */
struct stuck_host {
    uint32_t first, count; /* of its sources, in `source` */
};
struct stuck_hosts {
    uint32_t *source;        /* indices, host by host; owned */
    struct stuck_host *host; /* owned */
    uint32_t hosts;
};
/* Groups the sources of these ranks by host, in the order in which the hosts appear. *out owns arrays, and is empty
 * when there is no memory. */
void stuck_hosts_of(struct stuck_hosts *out, const struct roll_engine *e, const struct roll_rankset *set);
void stuck_hosts_fini(struct stuck_hosts *hosts);
/* Adds "host a (ranks 0-3), host b (rank 4)" for the ranks of the set. */
void stuck_words_hosts(struct words *w, const struct roll_engine *e, const struct roll_rankset *set);

/* stuck_stand.c */
/* A call that counts: not captured, and no collective of no elements, which NCCL drops. */
bool stuck_is_call(const struct roll_record *rec);
/* When `wait` returns, the call with this ticket before it is over. */
bool stuck_covers(struct stuck *k, const struct source *s, const struct roll_record *wait, uint64_t wait_ticket,
                  const struct roll_record *call, uint64_t ticket);
/* How a rank stands to a call. */
enum standing {
    STAND_ELSEWHERE, /* nothing says that it is in the call */
    STAND_IN,
    STAND_LEFT,
    STAND_AWAY, /* inside no wait, and silent for as long */
};

enum standing stuck_standing(struct stuck *k, const struct source *s, const struct roll_record *call, uint64_t ticket);
/* The host or the device of s has said that the call is over. *perhaps: a wait has returned that may have been for it,
 * or not. */
bool stuck_has_left(struct stuck *k, const struct source *s, const struct roll_record *call, uint64_t ticket,
                    bool *perhaps);
/* An incomplete call on a stream that the wait covers explains it: that is waitgraph.c's. */
bool stuck_is_explained(const struct source *s, const struct roll_record *wait, uint64_t wait_ticket);
/* Some thread of s is inside a call, whatever it is. */
bool stuck_is_inside(const struct source *s);

/* stuck_find.c */
/*
 * The oldest call before this wait in which all its members stand: what is before it on its stream is over, or is not
 * known not to be. Its ticket is then in *at, and all else in *k. t: the thread that waits; NULL: the host of s is
 * inside no call, and a call that its device is not known to be through with is looked for.
 */
bool stuck_find(struct stuck *k, const struct source *s, const struct thread *t, uint64_t *at);
/*
 * The newest such call, where each member may have left it by a wait of a stream without NCCL calls of its own, and yet
 * stands in a later wait that surely covers it. Asked about last: what was not over when that wait came back is one of
 * these calls, or a kernel.
 */
bool stuck_find_last(struct stuck *k, const struct source *s, const struct thread *t, uint64_t *at);
/* Behind the newest record before this ticket that does not tell of polls only: a loop of them writes several a second.
 */
uint64_t stuck_newest(struct stuck *k, const struct source *s, uint64_t upto);
void stuck_fini(struct stuck *k);
uint32_t stuck_work(struct roll_engine *e); /* what is left of this tick's bound; kept in the engine's state */

/* stuck_trouble.c */
/* Something else that the records know of is wrong with what these ranks depend on: they may wait for that. */
bool stuck_is_troubled(struct stuck *k);

/* stuck_say.c */
/* Says the call in which all stand; behind: how many calls that may be meant as well were enqueued behind it. Returns
 * the verdict's number; 0: no memory. */
uint64_t stuck_say(struct stuck *k, uint32_t behind);
/* Says that no member comes back from the creation k->rec. */
void stuck_say_creation(struct stuck *k);

/* stuck_facts.c */
/* This verdict has been said: what the nodes know about it is taken from now on. Copies what it needs. */
void stuck_case_open(struct stuck *k, uint64_t number, const char *text);
void stuck_case_tick(struct roll_engine *e);
void stuck_case_close(struct roll_engine *e, uint64_t number); /* it has been withdrawn; 0: whatever it is */

#endif
