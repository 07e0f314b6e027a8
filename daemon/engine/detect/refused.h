/*
 * refused.h: what the files of the detector `refused` share. The detector follows calls of which nothing was enqueued.
 *
 *   detect_refused.c   who waits for such a call where the walk of the wait graph or the alignment finds it
 *   refused_place.c    who waits at the place of a refused collective, and when that is told
 *   refused_note.c     a note for ranks that ended after an error, for whom nobody waits
 *   refused_match.c    such calls are taken out of what they had been matched with
 *   refused_declined.c calls that rollcall itself refused, which stay there until it is told how they differ
 *   refused_creation.c such calls that were to make a communicator
 *   refused_why.c      what was wrong with a call
 *   refused_who.c      which ranks were refused at one place, and who of them is accused
 *   refused_story.c    what was refused to each of them, why, and what each did instead
 *   refused_say.c      the verdicts and their texts
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_REFUSED_H
#define ROLL_DAEMON_ENGINE_DETECT_REFUSED_H

#include "daemon/engine/detect/detector.h"

/* A refused call of a member, kept until the member makes another call in its place. */
struct refusal {
    struct roll_record rec; /* op NONE: no call was refused */
    uint64_t since;         /* patience clock at which the refusal was known */
    bool open;              /* the member has made no other call in its place */
    bool left_out;          /* the member made another call in its place, and left this one out */
    bool passed_over;       /* the member may have made the call again, but did something else first */
    bool told;
    bool settled; /* it has been told when the member could not make it any more */
};

struct refused_engine {
    bool errors;      /* some call of some rank was refused */
    bool declined;    /* by rollcall itself */
    uint32_t *failed; /* sources whose last call was a creation that was refused, as of this tick; owned */
    size_t failed_room;
    uint32_t faileds;
};
STATE_OF_ENGINE(refused)

struct refused_source {
    bool said;     /* it has been told that a call of this rank was refused */
    bool noted;    /* it has been told in a note only: nobody waited for the call */
    bool creation; /* that call was to make a communicator */
};
STATE_OF_SOURCE(refused)

struct refused_comm {
    uint32_t declined;      /* members with a call that rollcall itself refused, while that is matched */
    uint64_t looked_ns;     /* patience clock at which its members were looked at last for calls that were refused */
    uint64_t created_ns[2]; /* the same, plus one, for what was refused in two of the creations that it has part in; */
    uint32_t created[2];    /* which ones: creation_split */
    uint64_t unread_as_of;  /* the patience clock, plus one, when the next one was found */
    bool unread;            /* a refused member's process has ended, and its last records may still come */
    uint64_t lost_as_of;    /* changes of processes, aborts and members by when the next two were found; 0: never */
    const struct source *lost; /* a member that has died or has aborted it; NULL: none has */
    bool lost_more;            /* and so have others */
};
STATE_OF_COMM(refused)

struct refused_member {
    struct refusal coll, message; /* the last refused collective and the last refused message */
    /* The last collective that rollcall itself refused, while it is matched; of a group the first one on this
     * communicator. The calls of the group have the numbers up to declined_upto, which is excluded. */
    struct refusal declined;
    uint32_t declined_upto;
    uint32_t splits;   /* calls of CommSplit on this communicator that were refused; */
    uint64_t split_at; /* ticket + 1 of the newest of them */
};
STATE_OF_MEMBER(refused)

/* Values of ncclResult_t that bear on who is to blame. */
enum { NCCL_INVALID_ARGUMENT = 4, NCCL_INVALID_USAGE = 5, NCCL_REMOTE_ERROR = 6, NCCL_TIMEOUT = 8 };

/* What the rank did instead of making the call again. */
enum refused_outcome { NOT_AGAIN, DESTROYED, ENDED, WENT_ON, PASSED_OVER };

/* What a verdict about a refused call says. */
struct refused_case {
    struct source *rank; /* one of the refused ranks; `member` and `rec`: its member and its call */
    const struct member *member;
    const struct roll_record *rec;
    struct roll_rankset culprits, waiting; /* world ranks; owned */
    struct roll_rankset spared;            /* refused there too, by an error whose cause lies elsewhere; owned */
    struct roll_rankset pending;     /* refused there too, and may make the call again for all that is proven; owned */
    struct roll_rankset behind;      /* world ranks that wait in other calls than `waits` for the same reason; owned */
    const struct source *waiter;     /* a source that waits for the refused call; NULL: nobody waits */
    const struct roll_record *waits; /* the call in which `waiter` waits */
    const struct roll_record *instead; /* WENT_ON: the call that was made in its place */
    struct comm *comm;
    uint64_t mutes; /* e->mutes before the case has silenced any communicator, where it may be suspected only */
    enum refused_outcome outcome;
    enum roll_certainty certainty;
};

/* refused_match.c */
/* Some verdict says that a call of s was refused. */
bool refused_is_said(const struct source *s);
/* A note, and no finding, says that a call of s was refused. */
bool refused_is_noted(const struct source *s);
/* Marks it as told that a call of s was refused. False: there is no memory for the mark. Then the verdict must not be
 * said, because it would be said again. */
bool refused_set_said(struct source *s, bool noted);
/* The newest entry with which the member took the number seq; NULL: it is not in the log any more. */
struct entry *refused_entry_at(const struct roll_engine *e, const struct member *m, uint32_t seq, uint64_t *ticket);
/* Call b may be call a made again: the same operation and count, and the same datatype or an impossible one in a. */
bool refused_is_alike(const struct roll_record *a, const struct roll_record *b);
/*
 * The refused collective of the member is still to come, as far as its peers say who wait in this call at its place
 * (NULL: who wait in other calls). It is not where the member has made it again with no elements: such a call takes no
 * number, so nothing else shows it. A call of the peers that is like the refused one is that call in any case.
 */
bool refused_is_awaited(const struct roll_engine *e, const struct member *m, const struct roll_record *waits);
/* Forgets the refused calls of a source of which records are lost. */
void refused_lost(struct roll_engine *e, uint32_t source, uint64_t count);

/* rollcall refused the call that the member has at this place. */
bool declined_at(const struct member *m, uint32_t seq);
/* Takes the calls that rollcall refused to the member, its newest ones, out of what they were matched with, and keeps
 * the first of them as a refused call like any other. */
void refused_give_up(struct roll_engine *e, struct member *m);

/* refused_place.c */
/* Tells of the refused collectives of a communicator at whose places others wait. */
void refused_place_tick(struct roll_engine *e, struct comm *c);
/* The process of a member whose collective was refused has ended, and its last records may still come. */
bool refused_any_unread(const struct roll_engine *e, struct comm *c);

/* refused_note.c: tells, in notes, of ranks that ended after an error and for whom nobody waits. */
void refused_note_tick(struct roll_engine *e);

/* refused_creation.c: tells of ranks that wait inside a creation that others were refused. */
void refused_creation_tick(struct roll_engine *e);

/* refused_declined.c */
/* A call of s that rollcall refused is part of a disagreement: that disagreement is, or will be, told as the reason why
 * s goes no further. */
bool declined_is_told(const struct source *s);
/* A call that agrees with all others after a while is given up: it is told as any refused call is. */
void declined_tick(struct roll_engine *e, struct comm *c);

/* refused_why.c */
/* Adds why NCCL cannot have taken this call, and returns the name of the argument; "" where the record does not show
 * it. */
const char *refused_wrong_argument(const struct roll_engine *e, const struct source *s, const struct member *m,
                                   const struct roll_record *rec, struct words *w);
/* The record of the call shows an argument that NCCL cannot have taken. */
bool refused_is_wrong(const struct roll_engine *e, const struct member *m, const struct roll_record *rec);
/* Another call of the refused group whose argument NCCL cannot have taken: this call is why the whole group was
 * refused. NULL: none is known. */
const struct roll_record *refused_wrong_in_group(const struct roll_engine *e, const struct source *s,
                                                 const struct roll_record *rec);
/* The last error of a rank, if the rank has made no successful call since; NULL: none. */
const struct roll_record *refused_last_error(const struct source *s);
/* The error itself says that its cause is not in this call. */
bool refused_is_from_elsewhere(const struct roll_record *rec);
/* The error may be the echo of a death, or of an abort, of any member. An invalid argument never is. */
bool refused_is_echo(const struct roll_engine *e, const struct source *s, const struct member *m,
                     const struct roll_record *rec);

/* refused_who.c */
/* The outcome as far as the end of s, or of its member, decides it; otherwise NOT_AGAIN. */
enum refused_outcome refused_outcome_of(const struct source *s, const struct member *m);
/* The member of c that belongs to s; NULL: none. */
struct member *refused_member_in(const struct comm *c, const struct roll_engine *e, const struct source *s);
/* The cause of this refused call of s is the rank's own: neither the error nor what happened to its peers says that it
 * lies elsewhere. m: its place on the communicator of the call; NULL: none. */
bool refused_is_own(const struct roll_engine *e, const struct source *s, const struct member *m,
                    const struct roll_record *rec);
/* The rank cannot make the call any more, and its last records have been read: they may come a moment after its end. */
bool refused_is_final(const struct roll_engine *e, const struct source *s, const struct member *m);
/*
 * Adds whoever else was refused at the place of the refused collective of t, and has not made the call again: to the
 * culprits, to those that are spared, or to those that may still make it, where t is to be proven. waits: the call in
 * which the peers wait there; NULL: not known.
 */
void refused_gather(const struct roll_engine *e, struct refused_case *t, const struct roll_record *waits);

/* refused_story.c */
#define REFUSED_STORIES 3u
/* Ranks that made one and the same call, got the same error and did the same instead. */
struct refused_story {
    struct roll_rankset ranks; /* world ranks; owned */
    const struct source *rank; /* the first of them; `member` and `rec`: its member and its call */
    const struct member *member;
    const struct roll_record *rec;
    enum refused_outcome outcome;
};
struct refused_stories {
    struct refused_story story[REFUSED_STORIES];
    uint32_t used;
    struct roll_rankset rest; /* world ranks whose story has no room, or is not known; owned */
};
/* Sorts the culprits of t into stories, that of t->rank first. */
void refused_stories(const struct roll_engine *e, const struct refused_case *t, struct refused_stories *out);
void refused_stories_fini(struct refused_stories *all);
/* Adds the story in one sentence or two, and returns the name of the argument that is wrong; "": it is not known. */
const char *words_story(struct words *w, const struct roll_engine *e, const struct refused_case *t,
                        const struct refused_story *story);

/* refused_say.c */
/* Frees the sets of the case. */
void refused_case_fini(struct refused_case *t);
/* What has been said of the calls refused at this place, its number; 0: nothing. */
uint64_t refused_told_at(const struct roll_engine *e, const struct comm *c, uint32_t seq);
/* Says the verdict; before: the verdict that it supersedes, 0 = none. Returns its number; 0: no memory. */
uint64_t refused_speak(struct roll_engine *e, const struct refused_case *t, uint64_t before);
/*
 * Adds the world ranks that wait in the call `waits` of `waiter` for the refused call. The record of a refused message
 * does not show for whom it was meant where the peer was wrong. So a rank whose oldest call is a message of the refused
 * rank is shown rather than `waiter`, which then goes to t->behind.
 */
void refused_add_waiting(const struct roll_engine *e, struct refused_case *t, const struct source *waiter,
                         const struct entry *waits);
/* Says one verdict about a refused call, however many ranks wait for it and wherever. When more refused calls at the
 * same place become known, a fuller verdict supersedes the first. Without memory for the marks nothing is said. */
void refused_tell_once(struct roll_engine *e, struct refused_case *t);

#endif
