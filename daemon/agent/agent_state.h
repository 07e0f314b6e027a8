/*
 * agent_state.h: what the files of the agent's loop share. Private to agent.c, agent_frames.c and agent_dir.c; one
 * thread.
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_STATE_H
#define ROLL_DAEMON_AGENT_AGENT_STATE_H

#include "daemon/agent/agent.h"
#include "daemon/agent/agent_calls.h"
#include "daemon/agent/agent_control.h"
#include "daemon/agent/agent_digest.h"
#include "daemon/agent/agent_facts.h"
#include "daemon/agent/agent_late.h"
#include "daemon/agent/agent_lines.h"
#include "daemon/agent/agent_ring.h"
#include "daemon/agent/agent_sight.h"
#include "daemon/agent/agent_source.h"
#include "daemon/agent/agent_stack.h"
#include "daemon/agent/agent_tail.h"
#include "daemon/agent/agent_trace.h"
#include "daemon/agent/agent_unseen.h"
#include "daemon/base/log.h"
#include "daemon/wire/credit.h"
#include "daemon/wire/net.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct roll_agent_bad_file { /* a ring that could not be read, which is logged once. The name counts too: a new file may
                     get the number of a removed one */
    dev_t dev;
    ino_t ino;
    char *path;
    bool old; /* it is left by an older job, and goes when it is a day old */
};

struct roll_agent {
    const struct roll_agent_options *o;
    void *socket, *monitor;
    struct roll_net_dial dial;
    int socket_fd, monitor_fd; /* to poll them by */
    int inotify;
    int processes; /* an epoll descriptor: readable when a process has ended; by it the pidfds of all rings are polled
                    */
    struct roll_net_batch batch; /* frames of this turn that the socket does not have yet */
    uint64_t seq;
    struct roll_credit credit; /* what the root has not read */
    bool welcomed;
    uint64_t hello_seq, hello_ns, rescan_ns, live_ns, start_ns;
    uint64_t beat_ns;               /* the last heartbeat, with which all goes that is due as often */
    uint64_t old_ns;                /* when rings of older jobs were looked at last */
    uint64_t lost_ns;               /* when it was said that nobody answers */
    enum roll_log_level lost_level; /* of that line, and of the one that answers it */
    bool said_unreachable, said_connected, said_short;
    bool rescan;
    bool moves;     /* the last look found something new */
    bool soon;      /* something has come that the next look must not wait for */
    bool listens;   /* what the root says ends a sleep */
    uint64_t drain; /* number of the drain in progress; 0 = none */
    uint64_t progress;
    struct roll_agent_ring **rings;
    size_t used, room;
    uint64_t cuts; /* roll_guard_cuts, when the rings were last looked through for one that was cut */
    struct roll_agent_bad_file *bad;
    size_t bad_used, bad_room;
    struct roll_agent_controls controls;
    roll_agent_stacks_t *stacks;
    roll_agent_facts_t *facts;
    roll_agent_calls_t *calls;
    roll_agent_lines_t *lines;
    roll_agent_tails_t *tails;
    roll_agent_trace_t *trace;     /* NULL = none */
    roll_agent_digests_t *digests; /* NULL without memory: then nothing is known of rings of such runs */
    roll_unseen_t *unseen;         /* NULL without memory */
    roll_agent_sight_t *sight;     /* NULL without memory */
    struct roll_agent_late late;
    roll_agent_sources_t *sources; /* likewise */
    uint8_t *buffer;
    char host[ROLL_NAME_BYTES];
};

/* agent_frames.c */
/* Sends a frame with the next number, with the next roll_agent_flush at the latest; a roll_agent_send_fn. */
int roll_agent_send(void *agent, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq);
void roll_agent_flush(struct roll_agent *a);               /* before anything else is sent through the socket */
void roll_agent_hello(struct roll_agent *a, uint64_t now); /* begins a conversation with the root */
void roll_agent_lost(struct roll_agent *a, uint64_t now); /* the connection to it is gone; told once until it is back */
int roll_agent_heartbeat(struct roll_agent *a, uint64_t token); /* 0, or BUSY: there is no room */
void roll_agent_receive(struct roll_agent *a, uint64_t now);    /* takes what the root has sent */

/* agent_dir.c */
void roll_agent_scan(struct roll_agent *a, uint64_t now); /* opens the rings that are new in the directory */
/* Ring i is left, its file stays, and is not opened again. */
void roll_agent_leave_bad(struct roll_agent *a, size_t i);
/* Looks at all ranks of the node at one moment: which live, and how far each ring has come. */
void roll_agent_look(struct roll_agent *a, uint64_t now);
/* Removes rings whose process ended in good order, when the root has all of their records. Rings of dead processes stay
 * as evidence for a day. leaving: the agent ends, and waits for no launcher. */
void roll_agent_clean(struct roll_agent *a, uint64_t now, bool leaving);
/* Whether an agent that is to end has told the root all that it still wants to know of this ring. */
bool roll_agent_ring_may_go(const struct roll_agent *a, size_t i);

/* agent_cut.c */
/* Leaves the rings and control pages whose files have been cut while they were used. */
void roll_agent_leave_cut(struct roll_agent *a);

#endif
