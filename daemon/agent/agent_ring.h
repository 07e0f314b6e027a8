/*
 * agent_ring.h: one ring as its agent sees it: how much of it the root has, and the state of its process. Private to
 * the agent.
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_RING_H
#define ROLL_DAEMON_AGENT_AGENT_RING_H

#include "trace/frame.h"
#include "trace/ring.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The state of a ring in the conversation: it is announced (RING), the root says how much it has already (ACK), then
 * the records are sent. */
enum roll_link { ROLL_LINK_NEW, ROLL_LINK_ANNOUNCED, ROLL_LINK_LIVE };

#define ROLL_SIGHT_THREADS 64u /* threads of one process whose waiting for a CPU is measured */
struct roll_sight_of_ring;     /* agent_sight.c */
struct roll_sources_of_ring;   /* agent_source.c */

#define ROLL_PENDING_MAX 4096u /* calls of one ring inside NCCL that the agent watches: more than it has threads */

struct roll_agent_ring {
    char path[512];
    dev_t dev;
    ino_t ino;
    uint64_t epoch; /* by the header, as it was when the ring was opened */
    uint64_t cuts;  /* roll_guard_cuts, when it was */
    struct roll_ring map;
    enum roll_link link;
    uint64_t announce_seq; /* number of the RING frame: older ACKs do not answer it */
    uint64_t announce_ns;

    uint64_t upto;        /* head when all rings of the node were looked at; tickets above wait for the next look */
    uint64_t sent, acked; /* next ticket to send; every ticket below is at the root */
    uint64_t told;        /* behind the last record that was sent: what lies between it and `sent` is lost */
    uint64_t counted;     /* what is lost below this ticket has been counted: a new conversation may begin at `told`.
                             The header holds it for a new agent */
    uint64_t defs_sent;
    uint64_t recheck,
        recheck_end;   /* tickets that the root may still hold as entered, and that are looked at once more */
    uint64_t *pending; /* tickets sent as entered, ascending */
    size_t pending_used;
    uint64_t stuck_ticket, stuck_ns; /* a ticket that was handed out and not written, and since when we wait for it */
    uint64_t stuck_head;             /* the tickets below this one had been handed out then */
    uint64_t read_ns;                /* what was in the ring at this time has been sent; 0: nothing is known */
    uint64_t mark, mark_ns;          /* an end of the ring and its time: when all below is sent, read_ns moves on */
    uint64_t given_upto;             /* nobody waits any more for tickets below this one */
    uint64_t back_head;              /* head, when it was last seen below `sent`, where it cannot be; 0: it never was */
    uint64_t acked_seq;              /* number of the newest of our frames that the root has taken */

    int pidfd;                              /* -1 = none */
    bool unannounced;                       /* the process is gone, and its announcement of Python stacks is removed */
    bool digest;                            /* its run is compared by digests (agent_digest.h) */
    bool keep;                              /* its records may be asked for after the end of its process */
    bool second;                            /* this is the second reader of the ring, which counts no losses in it */
    const struct roll_agent_ring *follower; /* borrowed; a reader whose records come before the end of the process is
                                               told; NULL: there is none */
    bool gone;                              /* the process does not exist any more */
    bool foreign;                           /* the process writes, but its pid is of another pid namespace */
    bool stopped;
    uint64_t gone_ns; /* when the end was noticed, CLOCK_MONOTONIC */
    uint64_t gone_head;
    uint64_t traced_ns; /* since when a tracer was seen to hold the main thread; 0 = none does */
    uint64_t look_ns;   /* last look into /proc */
    uint64_t look_head; /* head at that look */
    uint64_t moved_ns;  /* last such look at which head was another one than before */

    struct roll_sight_of_ring *sight;     /* owned; NULL until the process is looked at */
    struct roll_sources_of_ring *sources; /* owned; NULL until a definition is looked at */
    uint32_t starved, starved_said;       /* permille now, and in the last SIGHT frame */
    uint64_t starved_ns;                  /* when the last SIGHT frame was sent */

    struct roll_frame_status status; /* last STATUS that was sent */
    uint64_t status_ns, status_seq;
    bool caught_up;                        /* a STATUS of this conversation was sent when all records were */
    uint64_t drain_head;                   /* head that a drain waits for */
    bool drain_status;                     /* STATUS must be sent again for a drain */
    uint64_t done[ROLL_RING_DONE_STREAMS]; /* values of the header's cells that have been sent as complete */
};

/* Sends a frame: returns 0 or BUSY; *seq becomes the number that the frame got. */
typedef int (*roll_agent_send_fn)(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes,
                                  uint64_t *seq);
struct roll_agent_out {
    roll_agent_send_fn send;
    void *ctx;
    uint8_t *buffer; /* ROLL_AGENT_BATCH records, or as many bytes of definitions */
};
#define ROLL_AGENT_BATCH  960u  /* records in one frame: below 64 KiB with its head */
#define ROLL_AGENT_WINDOW 8192u /* records sent and not acknowledged, per ring */

/* Maps a ring file. Errors as roll_ring_open, NOMEM. Returns owned. */
int roll_agent_ring_new(const char *path, struct roll_agent_ring **out);
void roll_agent_ring_destroy(struct roll_agent_ring **ring);

/* Whether the ring belongs to an older job: its process was gone, and had been silent for long, before this agent saw
 * it. */
bool roll_agent_ring_stale(const struct roll_agent_ring *ring, uint64_t *age_ns);

/* Looks at the process: pidfd, start time, stopped or not. now: CLOCK_MONOTONIC. */
void roll_agent_ring_look(struct roll_agent_ring *ring, uint64_t now);

/* The state of the process, as far as the ring and the last look at the process tell. */
enum roll_proc_state roll_agent_ring_proc(const struct roll_agent_ring *ring);

/* Sends what is ready to be sent. Returns how many records went out, or a negative error (BUSY: the queue is full). */
int64_t roll_agent_ring_pump(struct roll_agent_ring *ring, const struct roll_agent_out *out, uint64_t now);

/* Whether there is something to send, as far as the ring tells without a system call. may_wait: so many records, and
 * with them the ends of calls, are no reason; 0: all are. */
bool roll_agent_ring_has_news(const struct roll_agent_ring *ring, uint64_t may_wait);

/* Whether records wait because as many as the window allows are on their way, or are too many for one look. */
bool roll_agent_ring_waits(const struct roll_agent_ring *ring);

/* Takes an ACK of the root. */
void roll_agent_ring_ack(struct roll_agent_ring *ring, const struct roll_frame *frame);

/* Whether everything up to now is acknowledged by the root, the state of the process included. */
bool roll_agent_ring_settled(const struct roll_agent_ring *ring);
/* Whether everything that a drain asked for has been sent. */
bool roll_agent_ring_drained(const struct roll_agent_ring *ring);

static inline uint64_t roll_agent_ring_head(const struct roll_agent_ring *ring)
{
    return roll_ring_head(&ring->map);
}

#endif
