/*
 * agent_ring.h: one ring as its agent sees it: what of it the root has, and what became of its process. Private to the
 * agent.
 */
#ifndef ROLL_DAEMON_AGENT_RING_H
#define ROLL_DAEMON_AGENT_RING_H

#include "trace/frame.h"
#include "trace/ring.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A ring is announced (RING), the root says what it has of it already (ACK), then it streams. */
enum roll_link { ROLL_LINK_NEW, ROLL_LINK_ANNOUNCED, ROLL_LINK_LIVE };

#define ROLL_SIGHT_THREADS 64u /* of one process, whose waiting for a CPU is looked at */
struct roll_sight_of_ring;     /* agent_sight.c */

#define ROLL_PENDING_MAX 4096u /* calls of one ring inside NCCL that the agent watches: more than it has threads */

struct roll_agent_ring {
    char path[512];
    dev_t dev;
    ino_t ino;
    struct roll_ring map;
    enum roll_link link;
    uint64_t announce_seq; /* number of the RING frame: older ACKs do not answer it */
    uint64_t announce_ns;

    uint64_t
        upto; /* tickets handed out when all rings of the node were looked at; those above wait for the next look */
    uint64_t sent, acked; /* tickets: next to send; everything below is safe at the root */
    uint64_t defs_sent;
    uint64_t recheck, recheck_end; /* tickets that the root may still hold as entered: looked at once more */
    uint64_t *pending;             /* tickets sent as entered, ascending */
    size_t pending_used;
    uint64_t stuck_ticket,
        stuck_ns;       /* a ticket that was handed out and is not written, and since when we wait for it */
    uint64_t acked_seq; /* number of the newest of our frames that the root has taken */

    int pidfd;        /* -1 = none */
    bool unannounced; /* gone, and its announcement of Python stacks has been removed */
    bool second;      /* another reader of a ring that has one: it counts no losses in it */
    bool gone;        /* the process does not exist any more */
    bool foreign;     /* its pid means nothing here (another pid namespace), yet it writes */
    bool stopped;
    uint64_t gone_ns; /* when that was noticed, CLOCK_MONOTONIC */
    uint64_t gone_head;
    uint64_t traced_ns; /* since when a tracer holds its main thread, as far as was seen; 0 = none does */
    uint64_t look_ns;   /* last look into /proc */

    struct roll_sight_of_ring *sight; /* owned; NULL until its process is looked at */
    uint32_t starved, starved_said;   /* permille: now, and as told */
    uint64_t starved_ns;              /* when that was */

    struct roll_frame_status status; /* last sent */
    uint64_t status_ns, status_seq;
    uint64_t drain_head;                   /* tickets that a drain waits for */
    bool drain_status;                     /* STATUS must be sent again for a drain */
    uint64_t done[ROLL_RING_DONE_STREAMS]; /* of the header's cells, what has been sent as complete */
};

/* How frames leave: returns 0 or BUSY; *seq becomes the number that the frame got. */
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

/* Was its process gone, and silent for long, before this agent saw it: the remains of an older job? */
bool roll_agent_ring_stale(const struct roll_agent_ring *ring, uint64_t *age_ns);

/* Looks at the process: pidfd, start time, stopped or not. now: CLOCK_MONOTONIC. */
void roll_agent_ring_look(struct roll_agent_ring *ring, uint64_t now);

/* Sends what there is to send. Returns the records that went out (progress), or a negative error (BUSY: queue full). */
int64_t roll_agent_ring_pump(struct roll_agent_ring *ring, const struct roll_agent_out *out, uint64_t now);

/* The root acknowledges. */
void roll_agent_ring_ack(struct roll_agent_ring *ring, const struct roll_frame *frame);

/* Everything up to now is at the root and acknowledged, the state of the process included. */
bool roll_agent_ring_settled(const struct roll_agent_ring *ring);
/* Everything that a drain asked for has been sent. */
bool roll_agent_ring_drained(const struct roll_agent_ring *ring);

static inline uint64_t roll_agent_ring_head(const struct roll_agent_ring *ring)
{
    return atomic_load_explicit(&ring->map.header->head, memory_order_acquire);
}

#endif
