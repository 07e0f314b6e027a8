/*
 * machine.h: what the oracle is made of: processes with threads, streams and communicators, and what they share. One
 * machine runs at a time. The parts: execute.c lets time pass and makes the acts; calls.c, waits.c and polls.c are the
 * hosts, queues.c, collectives.c and messages.c the devices; faults.c ends processes; records.c writes.
 */
#ifndef ROLL_TESTS_SIMULATION_ORACLE_MACHINE_H
#define ROLL_TESTS_SIMULATION_ORACLE_MACHINE_H

#include "tests/simulation/execute.h"

#define LAUNCHES_MAX 3000u /* of one rank */
#define OPS_MAX      24000u
#define SLOTS_MAX    600u /* collectives of one communicator */
#define PAIRS_MAX    3600u
#define MESSAGES_MAX 64u   /* of one pair */
#define DEVICE_NS    2000u /* from the end of a wait to what comes of it */
#define IN_PROGRESS  7u    /* ncclInProgress */

enum launch_state { QUEUED, RUNNING, DONE };

/* A collective or a message of a launch. */
struct op {
    uint16_t act;
    uint16_t pair;  /* of a message: the number of its sender, receiver and communicator, from get_pair */
    uint8_t side;   /* of a message: 0 is sent, 1 received */
    uint8_t n;      /* of a message: the n-th of its side and pair */
    uint64_t bytes; /* of a message */
    bool over;      /* of a message: it is done */
};

/* What a group, or a call outside groups, does on one communicator. Its collectives run first, one after the other,
 * then all of its messages together. */
struct launch {
    uint32_t first_op, ops, colls; /* in machine.op: where its ops begin, how many, how many of them are collectives */
    uint32_t at;                   /* the collective that runs; colls: the messages run */
    uint16_t slot;                 /* of the collective that runs */
    uint8_t streams;               /* mask */
    uint8_t comm, state;
    uint32_t log;   /* the record that tells the completion */
    uint32_t first; /* the record of the first call */
};

/* The launches of a stream or of a communicator, in order. */
struct fifo {
    uint16_t launch[LAUNCHES_MAX];
    uint32_t head, tail;
};

/* The n-th collective of a communicator. */
struct slot {
    mask_t arrived;
    uint16_t act; /* of the member that came first */
    bool bad;     /* two members' calls do not fit, or a member has left */
};

/* What a thread waits for. */
enum block { FREE, ON_STREAMS, ON_CREATION, ON_COMM, ON_CONNECT, ON_MEET, ON_JOIN, ON_NOTHING };

/* A thread. */
struct host {
    uint64_t clock; /* when its next act is due */
    uint16_t list[ACTS_MAX];
    uint32_t acts, pc;
    uint16_t act; /* the newest act that it has made */
    bool ended;

    enum block block;
    uint8_t streams;   /* ON_STREAMS: mask; launches from number `upto` on are not waited for */
    uint32_t upto;     /* ON_STREAMS */
    uint64_t connects; /* ON_CONNECT: mask of communicators */
    int comm;          /* ON_COMM: the communicator; ON_CREATION: the one that is made, or split */
    uint32_t creation; /* ON_CREATION: which of machine.creation */
    uint32_t log;      /* the record of the call that waits; UINT32_MAX = none */
    struct poll poll;

    bool in_group;
    uint32_t group;     /* the group's number; 0: the group has no call yet */
    uint32_t group_log; /* the record of the group's first call */
    uint32_t pending[256];
    uint32_t pendings; /* acts of the group */
};

/* A rank. */
struct process {
    struct host host[THREADS_MAX];
    struct launch launch[LAUNCHES_MAX];
    uint32_t launches;
    struct fifo stream[STREAMS_MAX], comm[COMMS_MAX];
    uint32_t seq[COMMS_MAX];               /* collectives that were called */
    uint32_t coll[COMMS_MAX];              /* collectives that have begun to run */
    uint16_t p2p[COMMS_MAX][RANKS_MAX][2]; /* messages to and from each peer that were called */
    uint8_t id[COMMS_MAX];                 /* the number by which its records call the communicator; 0 = not defined */
    uint8_t ids, splits[COMMS_MAX];        /* numbers given out; splits of each communicator */
    uint32_t groups;                       /* groups that had a call */
    uint64_t doom, halt;                   /* when the process is killed, stopped; NEVER */
    int32_t doom_signal;
    uint32_t met[THREADS_MAX]; /* how often each thread has come to ACT_MEET */
    uint64_t made;             /* mask of communicators that are there */
    bool over, stopped;
    bool jammed; /* its device begins nothing more */
};

struct machine {
    const struct program *p;
    struct story *out;
    struct rng rng;
    uint64_t now;
    uint32_t mark; /* the act that is the mistake, made by the ranks `who` */
    mask_t who;
    uint32_t threads; /* of each rank */
    bool polls;       /* a thread has polled */
    bool full;        /* a bound was too small: the run is worth nothing */
    struct process proc[RANKS_MAX];
    struct op op[OPS_MAX];
    uint32_t ops;
    struct slot slot[COMMS_MAX][SLOTS_MAX];
    mask_t creation[COMMS_MAX][8]; /* members that have called: the n-th split of a communicator; [7]: its init */
    mask_t connected[COMMS_MAX];   /* members that have made their first collective */
    struct {
        uint8_t posted[2]; /* messages that run or ran, of the sender and of the receiver */
        uint8_t gone[2][MESSAGES_MAX];
        uint32_t bytes[2][MESSAGES_MAX];
    } pair[PAIRS_MAX];
    uint32_t pairs;
    uint16_t pair_of[COMMS_MAX][RANKS_MAX][RANKS_MAX]; /* by sender and receiver; 0 = none yet */
    struct {
        uint8_t rank;
        uint16_t launch;
    } running[512];
    uint32_t runnings;
};

extern struct machine sim;

/* calls.c: the host calls. Each thread that makes an act is `thread` of `rank`, and `act` the act's number. */

/* A collective or a message. */
void call_make(uint32_t rank, uint32_t thread, uint16_t act);
/* A group's end launches one communicator after the other, in ascending order of their hashes. */
void call_end_group(uint32_t rank, uint32_t thread, uint16_t act);

/* waits.c */

/* A thread begins to wait for streams, by a call or by a loop of polls. */
void wait_begin(uint32_t rank, uint32_t thread, uint16_t act);
/* A communicator is made from an id or by a split. */
void creation_begin(uint32_t rank, uint32_t thread, uint16_t act);
/* A communicator is destroyed or aborted. */
void comm_end(uint32_t rank, uint32_t thread, uint16_t act);
/* Every thread of the process but this one has made all of its acts. */
bool others_ended(const struct process *q, const struct host *h);
/* Each thread whose wait is over goes on. */
void waits_end(void);

/* polls.c */

/* A thread begins a loop of polls. Its first record is written after 100 ms, the later ones as story_poll_on says. */
void polls_begin(struct host *h, enum roll_op op, uint16_t stream, uint16_t comm, uint64_t place);
/* The loop ends at this time, if the thread is in one. */
void polls_end(uint32_t rank, struct host *h, uint64_t at);
/* The loop's next record. */
void polls_write(uint32_t rank, uint32_t thread);
/* When the next record of a loop is due, and the thread in whose loop; NEVER. */
uint64_t polls_next(uint32_t *rank, uint32_t *thread);

/* queues.c */

/* A launch gets one more collective or message. */
void launch_add(struct launch *l, uint16_t act, uint16_t pair, unsigned side, uint64_t bytes);
/* What one group, or one call, does on one communicator becomes one launch, and enters its queues. */
void queue_launch(uint32_t rank, const uint32_t *act, uint32_t acts, int comm, uint32_t first, uint32_t log);
/* The devices do all that they can. `fresh`: ranks whose queues have a new head. */
void queues_run(mask_t fresh);
/* The rank's launches on the communicator (-1: on all) are over for it, and its peers get nothing more from them. */
void queues_withdraw(uint32_t rank, int comm);

/* collectives.c */

/* The launch gets a collective, before those that NCCL runs later. */
void collective_add(struct launch *l, uint16_t act);
/* The launch comes to its next collective. */
void collective_arrive(uint32_t rank, struct launch *l);
/* All members have come to the launch's collective, with calls that fit. */
bool collective_done(const struct launch *l);
/* The rank gives up the collective that it is in. Members that still wait there wait for ever. */
void collective_leave(uint32_t rank, const struct launch *l);

/* messages.c */

/* AlltoAll, Gather and Scatter: NCCL makes them of messages. */
bool is_lowered(unsigned op);
/* The launch gets the messages that the act is made of. A message of a rank to itself is none. */
void messages_add(struct launch *l, uint16_t act, uint32_t rank);
/* The launch comes to its messages. */
void messages_post(struct launch *l);
/* All messages of the launch are done. A message is done when its partner has come to it, too; a send that is larger
 * than its receive never is, nor a receive that gets less. */
bool messages_done(struct launch *l);
/* The launch's messages that are not done are gone for their partners. */
void messages_leave(const struct launch *l);

/* faults.c */

/* The process is no more: its launches are withdrawn, its threads ended. */
void process_end(uint32_t rank, enum roll_proc_state state, int32_t status);
/* The process ends as the act ACT_EXIT says. */
void process_exit(uint32_t rank, const struct act *a);
/* When a process is killed or stopped next, whatever it does, and the rank that it is; NEVER. */
uint64_t fate_next(uint32_t *rank);
/* The rank is killed or stopped: its hour `at` has come. */
void fate_strike(uint32_t rank, uint64_t at);

/* records.c */

/* The record of a call that begins now. */
struct log *record_write(uint32_t rank, uint32_t thread, uint16_t act, enum roll_op op);
/* The number of the rank's newest record. */
uint32_t record_last(uint32_t rank);
/* The communicator's definition, if the rank has not written it yet. */
void record_define(uint32_t rank, int comm);
/* A nonblocking communicator's state changes back to success, which is a record of its own. */
void record_async(uint32_t rank, uint32_t thread, uint16_t act, int comm);

static inline uint64_t act_bytes(const struct act *a)
{
    return a->count * dtype_width(a->dtype);
}

static inline bool is_nonblocking(const struct act *a)
{
    return a->comm >= 0 && sim.p->comm[a->comm].nonblocking;
}

#endif
