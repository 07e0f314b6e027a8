/*
 * stuck.h: what the files of the detector `stuck` share. The detector looks for calls that have all they need and do
 * not end.
 *
 *   detect_stuck.c     its hooks: when a call is looked for, and when a verdict is said or withdrawn
 *   stuck_find.c       the search for a call in which all members stand
 *   stuck_stand.c      how one rank stands to one call
 *   stuck_wait.c       how long the waits of a host have lasted so far, and how long one must last to count
 *   stuck_lone.c       a rank that stays in a call of its own, and nobody waits for it
 *   stuck_leave.c      how ranks leave the finding about that
 *   stuck_trouble.c    whether another trouble may be the reason
 *   stuck_say.c        the texts of the verdicts
 *   stuck_facts.c      what the nodes report about a call that has been told
 *   stuck_hosts.c      the hosts of a set of ranks
 *
 * A rank *stands in* a call when nothing says that the call is over on this rank, and its host waits for it (or has
 * been silent for as long as a wait must last).
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_STUCK_H
#define ROLL_DAEMON_ENGINE_DETECT_STUCK_H

#include "daemon/engine/detect/detector.h"

#define STUCK_USUAL    4u         /* patience at a place of the program that is known, in units of suspect_ns */
#define STUCK_UNUSUAL  12u        /* patience at any other place: the first step, a new phase */
#define STUCK_WORK_MAX (1u << 20) /* log entries that all searches of one tick may look at together */
#define STUCK_SITES    64u
#define STUCK_CREATION 24u /* patience for the creation of a communicator: thousands of ranks take minutes */
#define STUCK_LONES    16u /* different findings about lone ranks that may stand at once: more of them are noise */

/* A finding about ranks that stay in calls of their own: stuck_lone.c. */
struct stuck_lone {
    uint64_t key;        /* the place of the program */
    uint64_t number;     /* the verdict that stands; 0 = the place is free */
    uint32_t ranks;      /* how many of its ranks have not come back */
    uint32_t said;       /* how many the verdict names */
    uint64_t changed_ns; /* patience clock at which one of them last came back */
    bool kept;           /* one of them has come back in no good order: the verdict is not withdrawn */
    uint64_t by;         /* a later finding that may be why the ranks are there; 0 = none */
};

struct stuck_engine {
    uint64_t run_ns;  /* patience clock of the last run */
    uint64_t work_ns; /* patience clock of the tick to which `work` belongs */
    uint32_t work;    /* log entries that may still be looked at in that tick: stuck_work */
    uint32_t next;    /* index of the source at which the next run begins */
    /* Index of the source that was found waiting when all waiters of a verdict were last looked through. */
    uint32_t waiter;
    struct stuck_case *asked; /* the verdict about which the nodes are asked: stuck_facts.c; NULL = none; owned */
    struct stuck_lone lone[STUCK_LONES];
    uint32_t lones;  /* how many of them have a verdict */
    uint32_t founds; /* how many findings there were when they were last held against these */
    uint32_t said;   /* how often a call in which all stand has been told */
    uint32_t held;   /* how often when that was last held against these */
};
STATE_OF_ENGINE(stuck)

/* What the waits of one rank have been like. */
struct stuck_source {
    uint64_t last; /* ticket of the newest wait that has returned */
    uint64_t longest_ns;
    /* Ticket + 1 and length of the last wait that was too long for its record to say how long. */
    uint64_t long_wait, long_ns;
    uint64_t told;       /* ticket + 1 of the newest wait that a verdict has been said about */
    uint64_t verdict;    /* number of the verdict of which that wait is a part; 0 = none */
    uint64_t clear;      /* the host is known to have left all calls before this ticket */
    uint64_t asked_ns;   /* patience clock of the last answer of stuck_stands, plus one; 0 = none */
    bool stands;         /* the last answer of stuck_stands */
    uint32_t lone;       /* 1 + index of the finding in stuck_engine.lone of which the rank is a part; 0 = of none */
    uint64_t lone_at;    /* ticket + 1 of the call in which the rank was last seen to stay alone */
    uint64_t lone_ns;    /* patience clock at that moment, plus one; 0 = never */
    uint64_t lone_since; /* patience clock at which the host was seen to be inside that call */
    struct {
        uint32_t key, count;
    } site[STUCK_SITES]; /* by call site and operation; a new site displaces an old one with the same index */
};
STATE_OF_SOURCE(stuck)

/* What the detector keeps of a communicator. */
struct stuck_comm {
    uint64_t looked_ns;   /* patience clock at which its creation was looked at last, plus one */
    uint64_t awaited_ns;  /* patience clock at which it was last found that members wait in a call, plus one */
    uint32_t awaited_seq; /* the newest such call */
    uint64_t split_ns;    /* patience clock at which members were last found inside a split of it, plus one */
};
STATE_OF_COMM(stuck)

/* A call under examination: whether all its members stand in it. */
struct stuck {
    struct roll_engine *e;
    uint32_t work; /* log entries that may still be looked at */
    /* A hash table of the calls that have been looked at, and whether all members stand in each: the answer for a call
     * is the same whichever member is asked about. Owned. */
    uint64_t *seen;
    uint32_t seens, seen_at; /* number of calls in `seen`; index of the current call there */
    bool unsure;             /* in this tick: a member of a call that was looked at is not heard, or was left aside */
    bool stands;             /* the current call had been looked at before, and all its members stood in it */
    /* Ticket + 1 of the call in the log of the member before; its distance from the end of that log. */
    uint64_t hint, hint_back;
    struct comm *comm;
    struct roll_record rec;
    const struct source *first; /* the source to which `rec` belongs */
    /* World ranks that stand in the call, have left it, or stand in it without a wait. */
    struct roll_rankset in, left, away;
    uint64_t first_since; /* patience clock at which the first of the waits began */
    uint64_t since;       /* patience clock at which the last of the waits began */
    uint64_t longest_ns;  /* the longest wait of these ranks so far */
    /* The source that is asked about is inside a wait: then others may be in waits that an incomplete call explains
     * (stuck_stand.c). Of lone ranks: they are in calls of several communicators. */
    bool loose;
    bool lax;    /* a wait that has returned may have been for the call, and does not count: see stuck_find_last */
    bool known;  /* all members that stand in the call learn completion */
    bool rooted; /* some members have left the call, as its operation allows, and its root has not */
    bool ripe;   /* the patience of every member has run out */
    /* The search is for stuck_stands: a rank that is stuck for a reason that has been told does not count as standing.
     */
    bool asked;
    uint64_t by; /* stuck_is_troubled: the verdict in whose call a rank stands on which those of a lone one depend */
    bool awaited_known; /* what ranks wait for in this run has been looked up: the communicators bear it, and `awaited`
                         */
    bool awaited_all;   /* it is not known for whom some rank waits */
    struct roll_rankset awaited; /* world ranks for whose messages others wait */
};

/* stuck_wait.c */
/* Notes a wait of s that has returned, and its length; `since` is that of stuck_returned. NULL: no memory. */
struct stuck_source *stuck_measure(const struct roll_engine *e, struct source *s, const struct roll_record *rec,
                                   uint64_t since);
/* How long this wait of s must last before a verdict is said about it. */
uint64_t stuck_patience(const struct roll_engine *e, const struct source *s, const struct roll_record *wait);
/* The length of a wait too long for its record (more than 4.3 s). False: the wait with this ticket is not the last such
 * wait of s. */
bool stuck_long_wait(const struct source *s, uint64_t ticket, uint64_t *ns);
/* Verdict `to` has taken the place of verdict `from`: the waits of `from` are now those of `to`. */
void stuck_renumber(struct roll_engine *e, uint64_t from, uint64_t to);

/* stuck_hosts.c */
struct stuck_host {
    uint32_t first, count; /* range in `source` */
};
/* The sources of some ranks, host by host. */
struct stuck_hosts {
    uint32_t *source;        /* indices of sources, host by host; owned */
    struct stuck_host *host; /* owned */
    uint32_t hosts;
};
/* Groups the sources of these ranks by host, in the order in which the hosts appear. *out owns its arrays; without
 * memory it has no hosts. */
void stuck_hosts_of(struct stuck_hosts *out, const struct roll_engine *e, const struct roll_rankset *set);
void stuck_hosts_fini(struct stuck_hosts *hosts);
/* Adds "host a (ranks 0-3), host b (rank 4)" for the ranks of the set. */
void stuck_words_hosts(struct words *w, const struct roll_engine *e, const struct roll_rankset *set);

/* stuck_stand.c */
/* The call can be stuck: it is neither captured nor a collective of no elements, which NCCL drops. */
bool stuck_is_call(const struct roll_record *rec);
/* When `wait` returns, this earlier call of s is over. */
bool stuck_covers(struct stuck *k, const struct source *s, const struct roll_record *wait, uint64_t wait_ticket,
                  const struct roll_record *call, uint64_t ticket);
/* How a rank stands to a call: the head of this file. */
enum standing {
    STAND_ELSEWHERE, /* nothing says that the rank is in the call */
    STAND_IN,
    STAND_LEFT,
    STAND_AWAY, /* the rank is in no wait, and has been silent for as long as a wait must last */
};

/* How s stands to the call with this ticket. Where s is in the call, k->since, k->ripe and the like take its wait in.
 */
enum standing stuck_standing(struct stuck *k, const struct source *s, const struct roll_record *call, uint64_t ticket);
/* The call is over on s: its host or its device has said so. *perhaps: a wait that may have been for the call has
 * returned. */
bool stuck_has_left(struct stuck *k, const struct source *s, const struct roll_record *call, uint64_t ticket,
                    bool *perhaps);
/* An incomplete call on a stream that `wait` covers explains the wait; such waits are the matter of judge/waitgraph.c.
 */
bool stuck_is_explained(const struct source *s, const struct roll_record *wait, uint64_t wait_ticket);
/* Some thread of s is inside some call. */
bool stuck_is_inside(const struct source *s);

/* stuck_find.c */
/*
 * Finds the oldest call before a wait in which all members stand. True: *at is its ticket, and *k says the rest.
 * t: the thread that waits. NULL: the host of s is inside no call, and the call looked for is one that the device of s
 * is not known to have completed.
 */
bool stuck_find(struct stuck *k, const struct source *s, const struct thread *t, uint64_t *at);
/*
 * Finds the newest such call where stuck_find finds none, and counts no wait as the end of a call that was for a stream
 * without NCCL calls: such a wait may have been for the call or not. Each member that has returned from such a wait
 * must now be in a later wait that surely covers the call. So either this call is not over, or a kernel behind it is
 * not.
 */
bool stuck_find_last(struct stuck *k, const struct source *s, const struct thread *t, uint64_t *at);
/* The ticket behind the newest record before `upto` that is no poll: a loop of polls writes several records a second.
 */
uint64_t stuck_newest(struct stuck *k, const struct source *s, uint64_t upto);
/* Frees what *k owns. */
void stuck_fini(struct stuck *k);
uint32_t stuck_work(struct roll_engine *e); /* the log entries that may still be looked at in this tick */

/* stuck_lone.c */
/* Looks whether s, whose thread t is inside a call, stays there for itself, and notes the answer. together: it stands
 * in a call with all other members of a communicator. */
void stuck_lone_note(struct stuck *run, struct source *s, const struct thread *t, bool together);
/* Says the verdicts about the ranks that were noted and whose patience has run out. */
void stuck_lone_tell(struct stuck *run);
/* Withdraws the verdicts about ranks that have all come back. Asked in each tick. */
void stuck_lone_returned(struct roll_engine *e);

/* stuck_leave.c */
/* The rank is no part of its finding, which is returned, any more. */
struct stuck_lone *stuck_lone_leave(struct roll_engine *e, struct stuck_source *w);
/* The finding has no ranks left: its place is free. */
void stuck_lone_close(struct roll_engine *e, struct stuck_lone *l);

/* stuck_trouble.c */
/* True: something else that the records show is wrong with what the ranks of *k depend on, and they may wait for that.
 */
bool stuck_is_troubled(struct stuck *k);
/* The number of a finding that stands, that was made after k->first_since or shortly before, and that is about a
 * communicator of the source with this index, or names its rank; 0: there is none. */
uint64_t stuck_found_by(const struct stuck *k, uint32_t source);

/* stuck_say.c */
/* Says the verdict about the call of *k. behind: how many calls behind it may be meant as well. Returns the number of
 * the verdict; 0: no memory. */
uint64_t stuck_say(struct stuck *k, uint32_t behind);
/* Says the verdict about the creation k->rec, from which no member returns. */
void stuck_say_creation(struct stuck *k);

/* stuck_facts.c */
/* Begins to take facts of the nodes about this verdict, which has just been said. Copies what it needs of *k and text.
 */
void stuck_case_open(struct stuck *k, uint64_t number, const char *text);
/* Says the verdict with the facts that have come, when the others have had their time. */
void stuck_case_tick(struct roll_engine *e);
void stuck_case_close(struct roll_engine *e, uint64_t number); /* the verdict has been withdrawn; 0: any verdict */

#endif
