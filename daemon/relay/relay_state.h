/*
 * relay_state.h: what the files of the relay share. Private to relay*.c; one thread.
 */
#ifndef ROLL_DAEMON_RELAY_RELAY_STATE_H
#define ROLL_DAEMON_RELAY_RELAY_STATE_H

#include "daemon/base/map.h"
#include "daemon/base/memory.h"
#include "daemon/digest/sum.h"
#include "daemon/feed/late.h"
#include "daemon/relay/relay.h"
#include "daemon/wire/credit.h"
#include "daemon/wire/net.h"
#include "trace/frame.h"

#define ROLL_RELAY_SOCKETS  2                /* plain (ipc, tcp without keys) and CURVE */
#define ROLL_RELAY_CHILDREN 4096             /* more are refused: a level takes some 64 */
#define ROLL_RELAY_PAYLOAD  (32u * 1024u)    /* of one DIGEST frame */
#define ROLL_RELAY_LOST_NS  (2000 * ROLL_MS) /* a child may speak of a ring that it has lost for so long */
#define ROLL_RELAY_ID_BYTES 255u             /* longest routing id of ZeroMQ */

/* A frame that was passed on: its number above, and the number that its sender gave it. */
struct relay_passed {
    uint64_t above, own;
};

struct relay_child { /* an agent, or another relay */
    void *socket;
    size_t id_bytes;
    uint8_t id[ROLL_RELAY_ID_BYTES];
    char *host;     /* owned */
    uint32_t place; /* number of its host and directory: that of its predecessor, too. Its number in sums */
    bool synced;    /* its frames come without a gap */
    bool silent;    /* it has said nothing for long, and that was told above */
    bool relay;     /* by its HELLO; else an agent */
    bool forgot;    /* rings of it were forgotten: what it says of them makes it announce them anew */
    bool missed;    /* its queue was full when a switch came for it: it announces its rings anew, and is told by that */
    uint64_t lost_ns; /* when it was told that another one has a ring of its; 0: never */
    bool waits;       /* it has said HELLO, and is welcomed when the level above has welcomed this one */
    uint64_t hello_seq, expected, seen_ns, resync_ns;
    uint64_t drain_sent, drain_echo;  /* numbers of the drain that it was told of last, and that it has done */
    uint64_t closed_ns, went_ns;      /* of the relay, when the child was last heard */
    struct roll_late_link link;       /* how late its heartbeats come */
    struct roll_frame_heartbeat beat; /* the newest; what an older child does not say is 0 */
    bool has_beat;                    /* one has come */
    struct relay_passed *passed;      /* owned; in order, from `passed_at` on */
    size_t passed_at, passed_used, passed_room;
};

struct relay_ring {
    uint64_t stream;
    uint32_t run;
    struct relay_child *child; /* borrowed; NULL: its agent has left */
    uint32_t place;            /* of that agent, also when it has left */
    uint64_t left_ns;          /* when it did */
    bool live;
    bool here; /* it was announced above in this conversation */
};

/* What a child has told of a run. */
struct relay_part {
    uint64_t calls;
    bool told;
};

struct relay_run {
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    uint64_t stream;         /* of one of its rings that is known above; 0: none is */
    roll_sum_t *sum;         /* owned; NULL: the run was forgotten, and its place is free */
    struct relay_part *part; /* by the place of a child; owned */
    size_t parts;
    uint64_t calls_told, told_ns;
    uint64_t heard_ns;       /* when some process of it was last known to live, or its agents spoke of it */
    bool live;               /* some does */
    bool lacks, waits;       /* rings of it are not known above; and it is not told because of that */
    bool early;              /* it was not told, or was told without them */
    struct roll_digest said; /* its newest hints: a sum tells a hint once, and a root may have been started anew */
    bool again;              /* they are told again */
    bool no_room_told;       /* the log says that there was no room for what a child tells */
};

struct roll_relay {
    struct roll_relay_options o;
    void *below[ROLL_RELAY_SOCKETS], *below_monitor[ROLL_RELAY_SOCKETS];
    struct roll_guard guard[ROLL_RELAY_SOCKETS]; /* of `below` */
    void *above, *above_monitor;
    struct roll_net_dial dial; /* of `above` */
    char endpoint[ROLL_RELAY_LISTEN_MAX][256];
    uint64_t socket_file[ROLL_RELAY_LISTEN_MAX]; /* inodes; 0: the endpoint is no file */
    char host[ROLL_NAME_BYTES];
    struct roll_net_batch batch; /* frames for above that the socket does not have yet */
    uint64_t seq;                /* number of the newest frame above */
    struct roll_credit credit;   /* what of them was not read there */
    bool welcomed, said_connected, said_unreachable;
    uint64_t lost_ns; /* when it was said that nobody above answers */
    char policy[16];  /* "": none was told */
    uint64_t hello_seq, hello_ns, heartbeat_ns, tell_ns;
    uint64_t begun_ns;               /* when this conversation began */
    uint64_t turn_ns;                /* when the loop last came round */
    uint64_t late_ns;                /* how late it was then, in all */
    uint64_t closed_ns;              /* how long nothing was read from below for that, in all */
    uint64_t went_ns;                /* for how long the loop went round, slow or not; of a stop little counts */
    uint64_t below_ns, below_now_ns; /* how late those below were, in all; and what is not in it yet */
    struct roll_late_missed missed;  /* when some of those below were not heard */
    uint64_t drain;                  /* number of the drain that the level above waits for; 0 = none */
    struct relay_child **child;
    size_t children, child_room;
    struct roll_map child_at; /* hash of a routing id -> index of `child` */
    struct relay_ring *ring;
    size_t rings, ring_room;
    struct roll_map ring_at; /* stream -> index of `ring` */
    struct relay_run *run;
    size_t runs, run_room;
    char **place; /* host and directory of each such number; owned */
    size_t places, place_room;
    struct roll_digest came, up;
    uint8_t *payload;                  /* of DIGEST frames */
    uint64_t refused, refused_said_ns; /* frames, parts of digests and connections, in all */
    uint64_t refused_below;            /* by relays below this one, in all */
    struct roll_memory_ebb ebb;
};

/* relay_state.c: what both conversations need */
/* Notes a frame that cannot be taken; said at times. child: may be NULL. */
void roll_relay_refuse(struct roll_relay *r, const struct relay_child *child, const char *what);
/* Sends a frame above with the next number; *seq becomes it. Errors as roll_net_batch_add. */
int roll_relay_send(struct roll_relay *r, struct roll_frame_head head, const void *payload, size_t bytes,
                    uint64_t *seq);
/* There is room above for all that one message of a child can hold. */
bool roll_relay_has_room(struct roll_relay *r);
/* Says above that the live rings of a child are not heard. */
void roll_relay_tell_unheard(struct roll_relay *r, const struct relay_child *child);
/* Tells a child, if it is a relay, that a ring is announced by another one. */
void roll_relay_tell_lost(struct roll_relay *r, struct relay_child *child, uint64_t stream);
/* Tells a child to begin again (resync), or that it is welcome. */
void roll_relay_welcome(struct roll_relay *r, struct relay_child *child, bool resync);
/* The number that the child gave to the newest of its frames that was read above, where that read up to `above`. */
uint64_t roll_relay_own_number(struct relay_child *child, uint64_t above);
struct relay_ring *roll_relay_ring_of(const struct roll_relay *r, uint64_t stream); /* NULL: nobody announced it */
/* A ring of this child in this run; 0: there is none. */
uint64_t roll_relay_stream_in(const struct roll_relay *r, const struct relay_child *child, uint32_t run);
/* How many rings of this run the child has. */
size_t roll_relay_rings_in(const struct roll_relay *r, const struct relay_child *child, uint32_t run);

/* relay_late.c: how late the relay and those below are */
/* The loop has come round. */
void roll_relay_late_turn(struct roll_relay *r, uint64_t now);
/* A child is heard; that it is heard as ever is known when its heartbeat has been taken, too. */
void roll_relay_late_heard(struct roll_relay *r, struct relay_child *child, uint64_t now);
void roll_relay_late_beat(struct roll_relay *r, struct relay_child *child, const struct roll_frame_heartbeat *beat,
                          uint64_t now);
/* How long the child has said nothing while the relay listened. */
uint64_t roll_relay_silence_ns(const struct roll_relay *r, const struct relay_child *child, uint64_t now);
/* The child has been silent for so long that the level above must know. */
bool roll_relay_is_lost(const struct roll_relay *r, const struct relay_child *child, uint64_t now);
/* What a heartbeat says above; *beat is set. */
void roll_relay_late_tell(struct roll_relay *r, struct roll_frame_heartbeat *beat, uint64_t now);

/* relay_runs.c: runs, rings, places */
/* Takes an announcement. 0, NOMEM, LIMIT, or as roll_feed_run_of. */
int roll_relay_note_ring(struct roll_relay *r, struct relay_child *child, const struct roll_frame *frame, uint64_t now);
/* The level above has heard of a ring elsewhere: its agent has moved. What was told of its ranks is taken out, when it
 * has no ring of the run here any more. */
void roll_relay_lose_ring(struct roll_relay *r, uint64_t stream, uint64_t now);
/* Takes out of a run's sum what was told by agents of which no ring is known above in this conversation: they may speak
 * for their ranks elsewhere, and who comes here after all tells everything again. */
void roll_relay_leave_unknown(const struct roll_relay *r, struct relay_run *run, uint64_t now);
/* The number of a child's host and directory: an agent that was started anew has that of its predecessor, so what it
 * tells takes the place of what that one told. false: no memory, or too many. */
bool roll_relay_place_of(struct roll_relay *r, const char *host, const char *dir, uint32_t *place);
/* A conversation above begins: no ring is known there. */
void roll_relay_runs_begin(struct roll_relay *r, uint64_t now);
/* Finds for each run the ring under which it is told, and whether it waits for rings; returns whether any does. */
bool roll_relay_runs_wait(struct roll_relay *r, uint64_t now);
/* Forgets runs that are over, and rings that nobody has. */
void roll_relay_runs_look(struct roll_relay *r, uint64_t now);
void roll_relay_runs_fini(struct roll_relay *r);

/* relay_above.c: the conversation with the level above */
void roll_relay_hello(struct roll_relay *r, uint64_t now);
void roll_relay_lost(struct roll_relay *r, uint64_t now); /* the connection above is gone; told once until it is back */
/* Takes what has come from above. */
void roll_relay_hear_above(struct roll_relay *r, uint64_t now);
/* What is due: HELLO, HEARTBEAT, digests. */
void roll_relay_tell_above(struct roll_relay *r, uint64_t now);

/* relay_below.c: the agents */
/* Takes what waits on one socket, as far as there is room above. Returns how many frames. */
int roll_relay_hear_below(struct roll_relay *r, int socket, uint64_t now);
/* Takes children that say nothing for silent. */
void roll_relay_look_after(struct roll_relay *r, uint64_t now);
void roll_relay_below_fini(struct roll_relay *r);

#endif
