/*
 * root_state.h: what the files of the root share. Private to root*.c; everything belongs to the root's one thread, but
 * for the snapshot under its lock.
 */
#ifndef ROLL_DAEMON_ROOT_ROOT_STATE_H
#define ROLL_DAEMON_ROOT_ROOT_STATE_H

#include "daemon/base/map.h"
#include "daemon/base/memory.h"
#include "daemon/feed/clock.h"
#include "daemon/feed/families.h"
#include "daemon/feed/feed.h"
#include "daemon/feed/late.h"
#include "daemon/http/metrics.h"
#include "daemon/root/root.h"
#include "daemon/store/segment.h"
#include "daemon/verdict/verdict.h"
#include "daemon/verdict/verdict_tally.h"
#include "daemon/wire/guard.h"
#include "daemon/wire/page_words.h"
#include "daemon/wire/role.h"
#include "trace/control.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>

#define ROLL_ID_BYTES     255u /* longest routing id of ZeroMQ */
#define ROLL_PEER_CHAINS  4096 /* chains in which agents are looked up: with a few thousand agents one in each */
#define ROLL_ROOT_RUNS    64u  /* that are kept; beyond, one gives way (root_place.c) */
#define ROLL_ROOT_SOCKETS 2    /* plain (ipc, inproc, tcp without keys) and CURVE */

struct roll_sources;

/* Where a frame came from and its answer goes. */
struct roll_address {
    void *socket;
    size_t bytes;
    uint8_t id[ROLL_ID_BYTES];
    struct roll_role role; /* of the key, where there are keys */
    int fd;                /* of the connection on which the frame came; of where an answer goes it says nothing */
};

/* What was switched on one level of a run: the job, a group or a layer. */
struct roll_switch {
    uint32_t level, layer;
    uint64_t comm_key;
    uint32_t on, off;
    uint32_t cleared; /* were switched, and are neither on nor off any more */
};

/* A communicator whose switch has given its place to that of another one: a page may have it still. */
#define ROLL_REPLACED_MOST 256u /* of these the newest are known */
struct roll_replaced {
    uint64_t comm_key;
    uint32_t cleared; /* 0: the communicator has a switch again */
};

struct roll_run {
    uint64_t id; /* order of appearance, from 1 */
    char job[ROLL_NAME_BYTES];
    uint64_t heard_ns;  /* when it began, or was heard through a peer whose rings have been forgotten (root_place.c) */
    uint64_t joined_ns; /* when it began, or a ring came that was not known before */
    uint32_t restart;
    roll_feed_t *feed;
    roll_segments_t *trace;            /* NULL = none */
    bool trace_urgent;                 /* what is to be written must not wait: a verdict, the end of a process */
    struct roll_verdict_list verdicts; /* all, in order */
    uint64_t said; /* verdicts up to this number are in the NDJSON file already, because an earlier root wrote them */
    enum roll_policy policy;
    bool policy_set;
    bool switches_known; /* an agent has said what a predecessor of this root switched */
    bool replaying;      /* the verdicts are those of a predecessor's trace */
    bool decided;        /* by what its calls are compared: a ring of it has come */
    bool unsized;        /* that ring did not know how many ranks there are, and it would have mattered */
    struct roll_switch *switches;
    size_t switches_used, switches_room;
    struct roll_replaced *replaced; /* number n of them is [n % ROLL_REPLACED_MOST]; owned */
    size_t replaced_room;
    uint64_t replaced_upto;         /* the number behind the newest */
    struct roll_feed_clock clock;   /* when time passes for its engine */
    struct roll_late_missed missed; /* what of that time was not seen, as was known afterwards */
    uint64_t seen_ns;               /* when it was looked at last whether all of its ranks are seen, */
    bool seen;                      /* and whether they were; */
    bool waits;                     /* an agent of its has been silent for long, and is not taken for gone yet */
    uint64_t late_ns; /* since when agents of its that are not taken for gone are not heard, or tell what is old, or not
                         all that they have; or since when the root is behind; 0: not so */
    uint64_t missing_ns;           /* since when nobody holds the rings of more live ranks than those; 0: not so */
    size_t forgone;                /* live ranks whose rings nobody holds, and that are not awaited any more */
    bool forgoes;                  /* the engine has not been told yet that these are not heard */
    struct roll_rankset looked_at; /* ranks whose stacks were taken on suspicion */
    struct {
        uint64_t due_ns, begun_ns; /* mono: when a bundle is to be written, and when the last one was begun; 0: none */
        uint64_t verdict;          /* because of which it is due */
        struct roll_rankset culprits; /* of all proven findings */
    } incident;                       /* root_incident.c */
    struct roll_sources *sources;     /* lines of source that are kept (root_source.c); NULL until there are any */
    struct roll_digested *digested;   /* the run is compared by digests (root_digest.c); NULL: all records come here */
    roll_feed_t *judge; /* the feed of the records that were asked for, while there are such; borrowed; else NULL */
    bool narrow;        /* it has the calls on some communicators alone, which is nothing to show of a rank */
    uint64_t no_room;   /* the most that the engine of a case that is over had no room for; see roll_run_no_room */
    bool no_room_told;  /* the log says that there was no room */
    uint64_t ended_ns;  /* when it was first seen without a live rank, after the last one: root_room.c; 0: it has one */
    uint64_t verdicts_lost; /* by the root; roll_run_verdicts_lost adds those that the feed lost */
    uint64_t since_ns; /* wall clock of the run's first ring; where this root goes on with a trace: of its first tick */
};

struct roll_peer_stream {
    uint64_t stream;
    struct roll_run *run;
    bool due, urgent; /* an ACK has to go out; it has to go out at once */
    bool fresh;       /* everything that the ring's agent had when it connected is here */
    bool live;        /* the ring's process lives, by the last STATUS */
    bool unset;       /* the ring's agent has to be told how the engine is set */
    uint64_t dark_ns; /* since when the relay does not hear the ring's agent; 0: it does, or the peer is that agent */
    uint32_t fed;     /* records since the last ACK */
    uint64_t ack_ns;
    uint32_t flags; /* of the last ACK */
};

/* What a peer has still to be told of what is switched in a run, and how far it has been (root_remedy_tell.c). */
struct roll_owed {
    bool any;          /* it has to be told something */
    bool again;        /* and behind that all of it once more */
    bool begun;        /* the question and the policy have been told, */
    uint64_t replaced; /* the replaced communicators below this number, */
    size_t next;       /* and so many of the switches, each of which has several changes */
};

struct roll_peer_run { /* of a peer's rings those of one run */
    const struct roll_run *run;
    struct roll_owed owed;
    size_t rings, live,
        fresh;   /* all; those whose processes live; of these those of which all that was there has come */
    size_t dark; /* those whose agents the relay does not hear any more */
};

struct roll_peer_eye {                /* how well a peer sees, and how late it is heard (root_late.c) */
    struct roll_frame_heartbeat beat; /* the newest; what an older peer does not say is 0 */
    bool has_beat;                    /* one has come */
    struct roll_late_link link;
    struct roll_late own, waited, below, way; /* late: the peer, for want of a CPU; those below it; the link to it */
    uint64_t gap_ns;                          /* of what came since the last heartbeat, how late */
    uint64_t closed_ns, went_ns;              /* of the root, when the peer was last heard */
};

struct roll_root_eye {     /* the same of the root */
    uint64_t turn_ns;      /* when its loop last came round */
    uint64_t closed_ns;    /* for how long it did not read, in all */
    uint64_t went_ns;      /* for how long it went round, slow or not; of a stop little counts */
    uint64_t late_ns;      /* for how long it has not read all that there is; 0: it is not late */
    uint64_t missed_ns;    /* what was left out of the patience of all runs, in all */
    struct roll_late late; /* how late it was */
    bool behind;           /* there is more than it has read */
};

struct roll_peer { /* an agent, or a relay */
    struct roll_address at;
    struct roll_peer *next; /* the next peer in the same chain of peer_chain */
    char host[ROLL_NAME_BYTES];
    uint32_t pid;
    uint32_t place; /* number of the agent's host and directory: that of its predecessor, too */
    bool relay;     /* by its HELLO; else an agent */
    bool gone;   /* the agent has been silent for long or has left; the peer is kept while no other agent has announced
                    the rings of its live ranks */
    bool synced; /* the peer's frames come without a gap */
    uint64_t expected; /* number of the peer's next frame */
    uint64_t seen_ns, resync_ns;
    uint64_t lost_ns; /* when another peer has announced a ring of its; 0: never */
    uint64_t drain_sent, drain_echo;
    struct roll_peer_stream *streams;
    size_t used, room;
    struct roll_map stream_at; /* stream -> index of `streams` */
    struct roll_peer_eye eye;
    uint32_t unheard;           /* live rings of which something is missing at the moment, as the peer says */
    uint32_t agents;            /* of a relay: those that it serves; 0: this is an agent */
    struct roll_peer_run *runs; /* of which it has rings; owned */
    size_t runs_used, runs_room;
    uint64_t unasked; /* the case of which it was said that the peer cannot be asked */
    bool owed;        /* it has to be told something of what is switched in some of its runs */
    bool owed_said;   /* and the log says that its queue had no room for that */
    bool is_due;      /* the peer stands in the root's list of those to which an acknowledgement is due */
};

struct roll_cursor {
    uint64_t run; /* its id */
    size_t next;  /* index of the next verdict to push */
    char *text;   /* JSON of that verdict, where the subscriber had no room for it yet; owned; NULL = none */
};
struct roll_subscriber {
    struct roll_address at;
    char job[ROLL_NAME_BYTES]; /* "" = all */
    uint64_t from;             /* lowest number of a verdict that is pushed */
    uint64_t pushed;
    struct roll_cursor *cursor;
    size_t used, room;
};

struct roll_drain {
    struct roll_address at;
    uint64_t seq; /* number of the query */
    uint64_t token, deadline_ns;
    bool final;
    char job[ROLL_NAME_BYTES];
};

struct roll_root {
    struct roll_root_options o;
    void *socket[ROLL_ROOT_SOCKETS], *monitor[ROLL_ROOT_SOCKETS];
    struct roll_guard guard[ROLL_ROOT_SOCKETS];
    struct roll_guard_watch watch;
    char endpoint[ROLL_ROOT_LISTEN_MAX][256];
    uint64_t socket_file[ROLL_ROOT_LISTEN_MAX]; /* inodes; 0: the endpoint is no file */
    int json_fd;
    uint64_t token, next_run;
    enum roll_policy policy; /* policy of new runs */
    bool policy_set;
    struct roll_tally tally; /* findings of all runs that there were */
    bool json_torn;          /* the last line of the NDJSON file is not whole */
    uint64_t live_ns;        /* mono: when some rank last lived */
    uint64_t bad_frames, refused_frames, bad_said_ns, json_errors;
    uint64_t refused_below; /* frames and connections that relays have refused, as their heartbeats tell */
    struct roll_run **runs;
    size_t runs_used, runs_room;
    struct roll_peer **peers;
    size_t peers_used, peers_room;
    struct roll_peer **due; /* the peers with a stream that is to be acknowledged; there is room for all peers */
    size_t due_used, due_room;
    uint64_t acknowledge_ns;                        /* mono: when the first of them has waited for long enough */
    struct roll_peer *peer_chain[ROLL_PEER_CHAINS]; /* the same peers by a hash of their routing ids */
    struct roll_subscriber *subscribers;
    size_t subscribers_used, subscribers_room;
    struct roll_drain *drains;
    size_t drains_used, drains_room;
    roll_metrics_t *metrics;
    struct roll_page_words page_words;
    roll_page_t *page;                              /* NULL = none */
    uint64_t page_ns, page_fresh_ns, page_every_ns; /* when its listeners were told last, and how often they are */
    pthread_mutex_t snapshot_lock;
    struct roll_metrics_snapshot snapshot;
    struct roll_metrics_snapshot forgotten; /* the counters of runs that are no longer kept: a counter never falls */
    uint64_t snapshot_ns, snapshot_every_ns, batches, bytes, engine_ns;
    uint64_t shared_ns; /* when room was shared out last: root_room.c */
    struct roll_memory_ebb ebb;
    struct { /* runs for which there was no place, and when that was found last */
        uint64_t hash, ns;
    } unwatched[ROLL_ROOT_RUNS];
    double start_time;
    uint64_t begun_ns; /* the same by the monotonic clock */
    char **places;     /* the host and directory of each such number; owned */
    size_t places_used, places_room;
    struct roll_map place_at; /* a hash of such a name -> its number */
    struct roll_root_eye eye;
    struct roll_root_collections *collections; /* root_collect.c; NULL until needed */
    json_t *stack_tops; /* root_stack.c: "RUN.RANK" -> {"taken_ns", "top"}, what `why` tells; owned; likewise */
    struct roll_root_facts *facts;       /* root_facts.c; NULL until needed */
    struct roll_root_incident *incident; /* root_incident.c; NULL until needed */
};

/* root_peers.c */
void roll_peers_hello(roll_root_t *root, const struct roll_address *from, const struct roll_frame *frame, uint64_t now);
/* Whether the key of a sender may report of this host. */
bool roll_peers_may_report(const struct roll_address *from, const char *host);
/* Takes a numbered frame of an agent; raw: its bytes. */
void roll_peers_frame(roll_root_t *root, const struct roll_address *from, const struct roll_frame *frame,
                      const void *raw, size_t bytes, uint64_t now);
/* Takes an answer of an agent, which has no number among the agent's frames. */
void roll_peers_answer(roll_root_t *root, const struct roll_address *from, const struct roll_frame *frame);
/* Acknowledges what has been fed and is in the trace by now. */
void roll_peers_acknowledge(roll_root_t *root, uint64_t now);
/* How long it is, in ns, until an acknowledgement is due by time; UINT64_MAX: none waits. */
uint64_t roll_peers_wait_ns(const roll_root_t *root, uint64_t now);
/* Takes agents that have been silent for long for gone. */
void roll_peers_look_after(roll_root_t *root, uint64_t now);
/* Tells the run's engine that live ranks whose rings nobody holds are not heard: they have been awaited for long. */
void roll_peers_forgo(roll_root_t *root, struct roll_run *run);
void roll_peers_fini(roll_root_t *root);

/* root_late.c: which eyes are closed */
/* The loop has come round and is about to read: what it did not read meanwhile must not be counted against those whose
 * frames come now. */
void roll_root_late_turn(roll_root_t *root, uint64_t now);
/* It has read; behind: there is more. */
void roll_root_late_read(roll_root_t *root, uint64_t now, bool behind);
/* How late the root was lately, or is. */
uint64_t roll_root_lately(const roll_root_t *root, uint64_t now);
/* A peer that is known is heard: sets seen_ns. */
void roll_peer_late_heard(roll_root_t *root, struct roll_peer *peer, uint64_t now);
/* Its heartbeat. */
void roll_peer_late_beat(roll_root_t *root, struct roll_peer *peer, const struct roll_frame *frame, uint64_t now);
/* It begins a conversation. */
void roll_peer_late_begin(const roll_root_t *root, struct roll_peer *peer);
/* How long the peer has said nothing while the root listened. */
uint64_t roll_peer_silence_ns(const roll_root_t *root, const struct roll_peer *peer, uint64_t now);
/* What the peer had to tell a moment ago is here. */
bool roll_peer_is_heard(const struct roll_peer *peer, uint64_t now);
/* The peer has been silent for so long that it is to be taken for gone. */
bool roll_peer_is_lost(const roll_root_t *root, const struct roll_peer *peer, uint64_t now);
/* Looks whether all live ranks of the run are seen (live: how many), and if not, why: sets seen, waits and late_ns of
 * the run. */
void roll_root_late_see(const roll_root_t *root, struct roll_run *run, size_t live, uint64_t now);
/* Looks so now and then, tells the run's clock, and returns whether it is time for a tick. asked: records that agents
 * were asked for are on their way. */
bool roll_root_late_is_due(const roll_root_t *root, struct roll_run *run, size_t live, bool asked, uint64_t now);

/* root_eyes.c: the words for it */
/* The eyes of this run that are closed, or were lately, the worst first; returned owned. */
json_t *roll_eyes_json(const roll_root_t *root, const struct roll_run *run);
/* What a status says of one agent besides; adds to `agent`. */
void roll_eyes_tell(const roll_root_t *root, const struct roll_peer *peer, json_t *agent);
/* Which peer has which ring of a run, for one answer. To look through all peers for each rank was rejected: where many
 * ranks are not heard, 2,048 agents would be asked for each of 16,384. Zero-initialised is valid. */
struct roll_eyes_at {
    bool is_made;
    struct roll_map peer; /* stream -> index of the root's `peers` */
};
/* The peer that has this ring of the run; borrowed; NULL: nobody. Until roll_eyes_at_fini no peer may come or go. */
const struct roll_peer *roll_eyes_peer(const roll_root_t *root, const struct roll_run *run, uint64_t stream,
                                       struct roll_eyes_at *at);
void roll_eyes_at_fini(struct roll_eyes_at *at);
/* How this rank of the run is seen, whose ring the peer has (NULL: nobody has it): "not heard since 12.0 s (agent
 * silent)", "seen late (agent late: 3.1 s)"; "": well. Returns out. */
const char *roll_eyes_of(const roll_root_t *root, const struct roll_run *run, const struct roll_peer *peer,
                         const struct roll_view_source *v, char *out, size_t size);

/* root_streams.c */
/* What people call the peer. */
static inline const char *roll_peer_noun(const struct roll_peer *peer)
{
    return peer->relay ? "relay" : "agent";
}
/* What is known of the peer's rings in this run; NULL: it has none. */
struct roll_peer_run *roll_streams_run(const struct roll_peer *peer, const struct roll_run *run);
struct roll_peer_stream *roll_streams_find(struct roll_peer *peer, uint64_t stream); /* NULL: the peer has none */
struct roll_peer_stream *roll_streams_add(struct roll_peer *peer, uint64_t stream, struct roll_run *run); /* or NULL */
void roll_streams_drop(struct roll_peer *peer, struct roll_peer_stream *s);
void roll_streams_clear(struct roll_peer *peer);
void roll_streams_fini(struct roll_peer *peer);
/* Notes whether the ring's process lives, and whether the root is up to date with the ring. */
void roll_streams_set(struct roll_peer *peer, struct roll_peer_stream *s, bool live, bool fresh);
/* How many rings of this run the peer has; and how many whose processes live, and of which all that was there has come.
 */
size_t roll_streams_count(const struct roll_peer *peer, const struct roll_run *run);
size_t roll_streams_fresh(const struct roll_peer *peer, const struct roll_run *run);
/* How many whose processes live. */
size_t roll_streams_live(const struct roll_peer *peer, const struct roll_run *run);
/* In how many of these something is missing, by what the peer says of all its rings: at least so many. */
size_t roll_streams_unread(const struct roll_peer *peer, const struct roll_run *run);
/* Notes since when the relay does not hear the ring's agent; 0: it is heard. */
void roll_streams_darken(struct roll_peer *peer, struct roll_peer_stream *s, uint64_t since_ns);
/* Of how many live ranks of this run that is so; *since_ns is set to the earliest time, where there is any. */
size_t roll_streams_dark(const struct roll_peer *peer, const struct roll_run *run, uint64_t *since_ns);
/* The run is about to be destroyed: no agent's ring is one of it any more. */
void roll_streams_forget(roll_root_t *root, const struct roll_run *run);

/* root_run.c */
#define ROLL_WORLD_UNASKED INT32_MIN /* nobody was asked: what names the run is no ring */
/* Finds or makes the run. world: how many ranks it has, as a ring of it says; -1: the ring does not know. 0, NOMEM,
 * LIMIT. */
int roll_run_of(roll_root_t *root, const char *job, uint32_t restart, int32_t world, struct roll_run **out);
/* The run that a query is about: of those that its "job" and "restart" leave, the newest of which a rank runs; where
 * none runs, the newest. An agent that finds the rings of a job that is over makes a run that is newer than a job that
 * lives. Unless the query names the restart, a rank that is left over from an older attempt does not count. NULL: there
 * is none. */
struct roll_run *roll_run_select(roll_root_t *root, const json_t *query);
int roll_run_frame(roll_root_t *root, struct roll_run *run, const struct roll_frame *frame, const void *raw,
                   size_t bytes);
void roll_run_tick(roll_root_t *root, struct roll_run *run, uint64_t mono_ns, bool final);
/* The engine judges as under the run's policy from here on; the trace and the agents of the run are told so. */
void roll_run_settings(roll_root_t *root, struct roll_run *run);
/* Tells an agent how the engine is set for the run of one of its rings. 0; BUSY: its queue is full; UNREACHABLE, NOMEM,
 * IO. */
int roll_run_tell_settings(const struct roll_run *run, const struct roll_peer *peer, uint64_t stream);
void roll_run_keep(struct roll_run *run, uint64_t mono_ns, bool at_once); /* writes out what waits for the trace */
void roll_run_destroy(struct roll_run **run);
bool roll_run_live(const struct roll_run *run);
void roll_run_forget(roll_root_t *root,
                     size_t i); /* the run at this place in root->runs: nobody looks at it any more */
/* root_place.c */
/* Makes a place for a run of this name. 0; LIMIT: there is none, and that is logged and counted. */
int roll_place_make(roll_root_t *root, const char *job, uint32_t restart, uint64_t now);
/* The rings of a peer are about to be forgotten: notes that their runs have been heard until now. */
void roll_place_keep_heard(const roll_root_t *root, const struct roll_peer *peer, uint64_t now);
/* How many runs there are, or were a moment ago, for which there is no place. */
size_t roll_place_unwatched(const roll_root_t *root, uint64_t now);
/* root_room.c */
/* Shares out among the runs what their ranks may ask for; runs that have ended are forgotten where that needs it. */
void roll_room_share(roll_root_t *root, uint64_t now);
/* root_loss.c */
/* How often there was no room for what a rank or an agent of the run asked for; and says so in the log, once. */
uint64_t roll_run_no_room(const struct roll_run *run);
void roll_room_look(struct roll_run *run);
/* Counts a verdict that could not be kept, written or shown; the first of a run is logged. what: "is not ..." */
void roll_run_lose_verdict(struct roll_run *run, uint64_t number, const char *what);
/* How many verdicts of the run were lost, wherever that happened. */
uint64_t roll_run_verdicts_lost(const struct roll_run *run);

/* The feed whose engine knows most of the run. */
static inline roll_feed_t *roll_run_judge(const struct roll_run *run)
{
    return run->judge && !run->narrow ? run->judge : run->feed;
}
/* Says a verdict, and keeps it. Takes it. */
void roll_run_say(roll_root_t *root, struct roll_run *run, struct roll_verdict_copy *verdict);
/* Takes what the run's feed has found, or what its digests have led to. */
void roll_run_verdicts(roll_root_t *root, struct roll_run *run);
/* Highest number of a verdict of this run that the file of --json holds. */
uint64_t roll_run_said_before(const roll_root_t *root, const struct roll_run *run);

/* root_digest.c: runs whose calls are compared by digests */
int roll_digested_new(struct roll_run *run);
void roll_digested_destroy(struct roll_digested **digested);
/* Takes a ring that an agent announces, a frame about a ring of the run, or a word about the process behind one. */
void roll_digested_ring(struct roll_run *run, const struct roll_frame *frame);
/* The peer holds no ring of the run any more, because another one has announced them: what it told is taken out. */
void roll_digested_left(struct roll_run *run, const struct roll_peer *peer);
int roll_digested_frame(roll_root_t *root, struct roll_run *run, const struct roll_peer *peer,
                        const struct roll_frame *frame, const void *raw, size_t bytes);
/* Looks at what the digests say, and asks for records where something does not agree. */
void roll_digested_look(roll_root_t *root, struct roll_run *run, uint64_t now, bool last);
/* The root is to end: a wrong call that waits, and what a run that is over has left, is looked at. Returns whether
 * records are on their way. */
bool roll_digested_leave(roll_root_t *root, struct roll_run *run, uint64_t now);
/* Logs what is left open when the root ends. */
void roll_digested_tell_left(const struct roll_run *run);
/* Records have been asked for, and have not all come. */
bool roll_digested_waits(const struct roll_run *run);
/* The engine of the open case has not seen all that ranks have called: what is incomplete there may not be so. */
bool roll_digested_sees_part(const struct roll_run *run);
/* How long it is, in ns, until roll_digested_look has something to do; for a run that has digests. */
uint64_t roll_digested_wait_ns(const struct roll_run *run, uint64_t now);
/* Says the verdicts of that engine. */
void roll_digested_verdicts(roll_root_t *root, struct roll_run *run);
uint32_t roll_digested_flags(const struct roll_run *run); /* of ACK frames */
json_t *roll_digested_json(const struct roll_run *run);   /* for the status */

/* root_fronts.c: what is known of such a run while no records are here: fronts, and the last call of each ring */
/* No records are here, and none have been asked for. */
bool roll_digested_calm(const struct roll_run *run);
/* A viewer wants the records of this rank and of those that it calls with to be looked at; -1: of no rank in
 * particular.
 */
void roll_digested_wanted(struct roll_run *run, int64_t rank);
/* Source i of the engine that knows most of the run, with what digests know of it; false: there is none. */
bool roll_run_source(const struct roll_run *run, uint32_t i, struct roll_view_source *out);
/* The same with `pending` at most 1, for a look at all of them. */
bool roll_run_source_brief(const struct roll_run *run, uint32_t i, struct roll_view_source *out);
/* The same of the newest process of a rank. */
bool roll_run_rank(const struct roll_run *run, uint32_t rank, struct roll_view_source *out);
/* The findings of the run that stand, those of earlier cases included; and how many calls it has made. */
uint64_t roll_run_findings(const struct roll_run *run);
uint64_t roll_run_calls(const struct roll_run *run);
/* Communicators as in the status, those that are furthest apart first, at most `rows`; and by their sizes. */
json_t *roll_fronts_comms(const struct roll_run *run, size_t rows);
json_t *roll_fronts_families(const struct roll_run *run);
/* How many ranks the communicator has, as digests say; 0: they say nothing of it. */
uint32_t roll_fronts_size(const struct roll_run *run, uint64_t key);
/* How many communicators have members on several nodes. */
size_t roll_fronts_count(const struct roll_run *run);
/* Wall clock of the last move that digests have told, which come ten times a second; 0: they have told none. */
uint64_t roll_fronts_moved(const struct roll_run *run);
/* Calls a second; null where the run is not compared by digests. Returned owned. */
json_t *roll_fronts_rate(const struct roll_run *run);
/* What the run did, as far as digests tell it (daemon/feed/seen.h has the rest). */
json_t *roll_fronts_seen(const struct roll_run *run);
/* Says what is known of a rank, in one paragraph. */
void roll_fronts_why(const struct roll_run *run, const struct roll_view_source *rank, FILE *out);

/* root_query.c */
void roll_query(roll_root_t *root, const struct roll_address *from, const struct roll_frame *frame);
/* Whether a query changes what the job or the daemon does, stops a rank for a moment, or reads its environment. */
bool roll_query_switches(const json_t *query);
/* What a query is answered, but for those that are answered later; of one that this role does not allow, an error.
 * Borrows the query; returns owned; NULL: there is no memory. */
json_t *roll_query_answer(roll_root_t *root, const struct roll_role *role, const json_t *query);
void roll_push_verdicts(roll_root_t *root);
void roll_subscriber_fini(struct roll_subscriber *subscriber);
void roll_serve_drains(roll_root_t *root, uint64_t now);

/* root_why.c */
/* The findings of a run that stand, newest first, each with how far all members of its communicator have come: looked
 * up once for an answer about all ranks, while nothing is fed. */
struct roll_why_verdict {
    const struct roll_verdict_copy *verdict; /* borrowed from the run */
    uint64_t done;
};
struct roll_why {
    const struct roll_run *run;
    struct roll_why_verdict *at; /* owned */
    size_t used, room;
};
int roll_why_begin(const struct roll_run *run, struct roll_why *out); /* 0, NOMEM */
void roll_why_end(struct roll_why *why);
/* The verdict that explains why this rank waits (borrowed from the run); NULL when none does for certain. */
const struct roll_verdict_copy *roll_why_verdict(const struct roll_why *why, const struct roll_view_source *rank);
/* Where in Python the rank's last call was made (daemon/stack/symbol.h); false when nothing tells. */
bool roll_why_place(const struct roll_run *run, const struct roll_view_source *rank, char *out, size_t size,
                    const char **text);
/* Writes a sentence about where the last calls of these ranks, which stand alike, were made; nothing when nothing
 * tells. */
void roll_why_called(const struct roll_run *run, const struct roll_rankset *ranks, FILE *out);
/* Prints the verdict's number, code and first sentence, behind a space. */
void roll_why_quote(const struct roll_verdict *verdict, FILE *out);
/* root_query_why.c: what ranks wait for (docs/DAEMON.md); returns owned. */
json_t *roll_why_query(roll_root_t *root, struct roll_run *run, const json_t *query);

/* root_stands.c: how ranks stand, for every face that shows it */
struct roll_stands {
    const struct roll_run *run;
    struct roll_rankset waiting, awaited; /* of findings that stand, and of what is seen besides */
};
/* Looked up once for an answer about all ranks, while nothing is fed. */
void roll_stands_begin(const struct roll_run *run, struct roll_stands *out);
void roll_stands_end(struct roll_stands *stands);
char roll_stands_letter(const struct roll_stands *stands, const struct roll_view_source *v);
/* Adds the ranks for which this one waits: as its records say, else as a finding does. None where it does not wait, or
 * where everybody has made the call. */
void roll_stands_awaits(const struct roll_stands *stands, const struct roll_view_source *v, struct roll_rankset *out);

/* root_comms.c: the communicators that a status lists, of more than `rows` none, and all of them by families, whose
 * places it completes; where only digests are here, as fronts tell of them. Both owned. */
void roll_comms_json(const struct roll_run *run, struct roll_comm_families *families, size_t rows, json_t **comms,
                     json_t **folded);

/* root_status.c */
#define ROLL_STATUS_ROWS                                                                                               \
    1024u /* ranks, and communicators, that a status lists one by one where nobody says how many                       \
           */
/* rows: with more ranks than this, those that stand alike are told as one; with more communicators, their families. */
json_t *roll_status_json(roll_root_t *root, struct roll_run *run, size_t rows);
json_t *roll_summary_json(struct roll_run *run);
/* Describes the run: job, restart, ranks, hosts, since when; a user sees by it which run answers. Returned owned. */
json_t *roll_about_json(const struct roll_run *run);

/* What was lost, by cause. Returned owned. */
json_t *roll_losses_json(const struct roll_run *run);

/* root_nodes.c: the nodes of the run, the worst first */
json_t *roll_nodes_query(roll_root_t *root, struct roll_run *run, const json_t *query);

/* root_rows.c */
/* Ranks that stand alike as one row each, as many rows as a screen has; returned owned. */
const char *roll_proc_name(unsigned proc); /* of enum roll_proc_state */
json_t *roll_rows_json(const struct roll_run *run, const struct roll_comm_families *families);

/* root_remedy.c */
void roll_remedy_auto(roll_root_t *root, struct roll_run *run, const struct roll_verdict *verdict);
json_t *roll_remedy_query(roll_root_t *root, struct roll_run *run, const json_t *query);
json_t *roll_policy_query(roll_root_t *root, struct roll_run *run, const json_t *query);
json_t *roll_remedy_state(const struct roll_run *run);
void roll_remedy_answer(roll_root_t *root, const struct roll_peer *peer,
                        const struct roll_frame *frame); /* of a known agent */

/* root_remedy_tell.c: what peers are told of it */
/* Sends a change to all peers. Those that have rings of the run, and no room for it, are told all of the run later. */
void roll_remedy_send(roll_root_t *root, const struct roll_run *run, const struct roll_control_change *change);
/* Asks an agent what a predecessor of this root switched for a run of which it has rings, unless that is known, and
 * tells it what this one has switched, and of the rings of which `unset` is set how the engine is set: now, or when it
 * has room; behind a relay once for all that is to be told until the relay is heard the next time. */
void roll_remedy_tell(struct roll_peer *peer, const struct roll_run *run);
/* Goes on telling a peer of which `owed` is set. */
void roll_remedy_tell_owed(struct roll_peer *peer);

/* root_stack.c */
json_t *roll_stacks_query(roll_root_t *root, struct roll_run *run, const json_t *query);
void roll_stacks_suspect(roll_root_t *root, struct roll_run *run,
                         const struct roll_verdict *verdict); /* a verdict was said */
/* Prints the tops that were kept of these ranks: those that are alike once, with the ranks they are of. */
void roll_stacks_why(const roll_root_t *root, const struct roll_run *run, const struct roll_rankset *ranks, FILE *out);
/* The run is forgotten: what was kept of its ranks goes. */
void roll_stacks_forget(roll_root_t *root, const struct roll_run *run);
void roll_stacks_destroy(roll_root_t *root);

/* root_collect.c: what agents of single ranks are asked for (root_collect.h) */
/* Of a known agent (borrowed): what it says of a ring that it does not serve is not taken, and counted. */
void roll_collect_answer(roll_root_t *root, struct roll_peer *peer, const struct roll_frame *frame);
void roll_collect_tick(roll_root_t *root, uint64_t now);
void roll_collect_destroy(roll_root_t *root);

/* root_calls.c: the calls of some ranks around a moment */
json_t *roll_calls_query(roll_root_t *root, struct roll_run *run, const json_t *query);

/* root_source.c: the lines of source that a verdict names, and what of them is kept */
#define ROLL_SOURCES_KEPT 64u /* findings of a run whose lines are kept */
void roll_sources_tick(roll_root_t *root);
void roll_sources_destroy(struct roll_sources **sources);
json_t *roll_source_query(roll_root_t *root, struct roll_run *run, const json_t *query);

/* root_stack_top.c */
/* The innermost frames of the main thread in an agent's stacks, innermost first; returned owned; NULL: there are none.
 */
json_t *roll_stacks_top(const json_t *stack);
/* Those of them that are the program's own, likewise. */
json_t *roll_stacks_own(const json_t *stack);
/* The answers of a collection as they stand in a verdict; returned owned. */
json_t *roll_stacks_answers(const json_t *answers);
/* Prints what was kept of these ranks (taken_ns, top, own), the own frames first, behind a space; nothing for NULL. */
void roll_stacks_tell_top(const json_t *kept, const struct roll_rankset *ranks, FILE *out);

/* root_facts.c */
#define ROLL_ROOT_FACTS_BYTES 16384u /* most bytes of one answer; an agent sends at most 16 facts of 160 bytes */
void roll_facts_suspect(roll_root_t *root, struct roll_run *run,
                        const struct roll_verdict *verdict);               /* a verdict was said */
void roll_facts_answer(roll_root_t *root, const struct roll_frame *frame); /* of a known agent */
void roll_facts_destroy(roll_root_t *root);

/* root_incident.c: bundles about findings */
/* The question of a console for the tail of a rank (`rank`, `records`), for an answer (`id`), or about this root. */
json_t *roll_incident_query(roll_root_t *root, struct roll_run *run, const json_t *query);
/* Of a known agent (borrowed): it is taken from the one that was asked alone. */
void roll_incident_answer(roll_root_t *root, const struct roll_peer *peer, const struct roll_frame *frame);
/* A verdict is said: a bundle may be due. */
void roll_incident_suspect(roll_root_t *root, struct roll_run *run, const struct roll_verdict *verdict);
/* Whether the rings of this run are to be kept when their processes have ended, because a bundle may want them. */
bool roll_incident_keeps(const roll_root_t *root, const struct roll_run *run);
/* Starts what is due, and looks after what has been started. Returns whether a bundle is due or being written: a root
 * that is to end (stops) waits for that. */
bool roll_incident_turn(roll_root_t *root, uint64_t now, bool stops);
void roll_incident_destroy(roll_root_t *root);

/* root_page.c */
int roll_root_page_open(roll_root_t *root, char *why,
                        size_t why_size);       /* 0; NOMEM. Without a cookie there is no page, and a line says so. */
int roll_root_page_fd(const roll_root_t *root); /* becomes readable when the page has a question; -1: there is none */
void roll_root_page_answer(roll_root_t *root);
void roll_root_page_tell(roll_root_t *root, uint64_t now);

/* root_page_view.c: all returned owned */
void roll_page_field(const struct roll_run *run, json_t **places, json_t **field);
json_t *roll_page_findings(const struct roll_run *run);
json_t *roll_page_waits(roll_root_t *root, struct roll_run *run);
json_t *roll_page_query(const roll_root_t *root); /* where the page is */

/* root_metrics.c */
int roll_root_metrics_open(roll_root_t *root, char *why, size_t why_size);
void roll_root_metrics_refresh(roll_root_t *root, uint64_t now);
void roll_root_metrics_verdict(roll_root_t *root, const struct roll_verdict *verdict);
/* Keeps the counters of a run that is about to be destroyed. */
void roll_root_metrics_forget(roll_root_t *root, const struct roll_run *run);

#endif
