/*
 * machine.h: what the oracle is made of: processes with threads, streams and communicators, and what they share. One
 * machine runs at a time. The parts: execute.c lets time pass and makes the acts; calls.c, waits.c and polls.c are the
 * hosts, queues.c and messages.c the devices; faults.c ends processes; records.c writes.
 */
#ifndef ROLL_TESTS_SIMULATION_ORACLE_MACHINE_H
#define ROLL_TESTS_SIMULATION_ORACLE_MACHINE_H

#include "tests/simulation/execute.h"

#define LAUNCHES_MAX 3000u /* of one rank */
#define OPS_MAX      24000u
#define SLOTS_MAX    600u
#define PAIRS_MAX    3600u
#define MESSAGES_MAX 64u
#define DEVICE_NS    2000u
#define IN_PROGRESS  7u

enum launch_state { QUEUED, RUNNING, DONE };

struct op {
    uint16_t act;
    uint16_t pair; /* of a message, or UINT16_MAX */
    uint8_t side;
    uint8_t n;
    uint64_t bytes;
    bool over;
};

struct launch {
    uint32_t first_op, ops, colls; /* collectives first, then messages */
    uint32_t at;                   /* the collective that runs; colls: the messages do */
    uint16_t slot;
    uint8_t streams; /* mask */
    uint8_t comm, state;
    bool on_slot;
    uint32_t log;   /* the record by which its completion is told */
    uint32_t first; /* the record of its first call */
};

struct fifo {
    uint16_t launch[LAUNCHES_MAX];
    uint32_t head, tail;
};

struct slot {
    mask_t arrived;
    uint16_t act; /* of the first */
    bool bad;
};

enum block { FREE, ON_STREAMS, ON_CREATION, ON_COMM, ON_CONNECT, ON_MEET, ON_JOIN, ON_NOTHING };

struct host {
    uint64_t clock;
    uint16_t list[ACTS_MAX];
    uint32_t acts, pc;
    enum block block;
    uint64_t connects; /* communicators whose connections it waits for */
    struct poll poll;
    uint8_t streams; /* waited for */
    uint32_t upto;   /* launches before this one */
    int comm;        /* waited for; and of a creation: the parent */
    uint32_t creation;
    uint32_t log; /* the record that is open; UINT32_MAX = none */
    uint16_t act;
    bool in_group;
    uint32_t group;     /* 0: not given out yet */
    uint32_t group_log; /* its first record */
    uint32_t pending[256];
    uint32_t pendings;
    bool ended;
};

struct process {
    struct host host[THREADS_MAX];
    struct launch launch[LAUNCHES_MAX];
    uint32_t launches, settled;
    struct fifo stream[STREAMS_MAX], comm[COMMS_MAX];
    uint32_t seq[COMMS_MAX], coll[COMMS_MAX];
    uint16_t p2p[COMMS_MAX][RANKS_MAX][2];
    uint8_t id[COMMS_MAX];
    uint8_t ids, splits[COMMS_MAX];
    uint32_t groups;
    uint64_t doom, halt; /* when it is killed, stopped */
    int32_t doom_signal;
    uint32_t met[THREADS_MAX]; /* meetings of the threads that each has come to */
    uint64_t made;             /* communicators that are there */
    bool over, stopped, jammed;
};

struct machine {
    const struct program *p;
    struct story *out;
    struct rng rng;
    uint64_t now;
    uint32_t mark;
    mask_t who;
    uint32_t threads; /* that the program's ranks have */
    bool polls;       /* some host does, or has */
    struct process proc[RANKS_MAX];
    struct op op[OPS_MAX];
    uint32_t ops;
    struct slot slot[COMMS_MAX][SLOTS_MAX];
    mask_t creation[COMMS_MAX][8]; /* by parent and number of the split; [comm][7] for an init */
    mask_t connected[COMMS_MAX];   /* have made their first collective */
    struct {
        uint8_t posted[2];
        uint8_t gone[2][MESSAGES_MAX];
        uint32_t bytes[2][MESSAGES_MAX];
    } pair[PAIRS_MAX];
    uint32_t pairs;
    uint16_t pair_of[COMMS_MAX][RANKS_MAX][RANKS_MAX];
    struct {
        uint8_t rank;
        uint16_t launch;
    } running[512];
    uint32_t runnings;
    bool full;
};

extern struct machine sim;

/* records.c */
struct log *record_write(uint32_t rank, uint32_t thread, uint16_t act, enum roll_op op);
uint32_t record_last(uint32_t rank);
void record_define(uint32_t rank, int comm);
/* The state of a nonblocking communicator changes back to success: that is recorded. */
void record_async(uint32_t rank, uint32_t thread, uint16_t act, int comm);

/* polls.c */
/* A loop of polls: said by a record after 100 ms, and by others as story_poll_on says. */
void polls_begin(struct host *h, enum roll_op op, uint16_t stream, uint16_t comm, uint64_t place);
void polls_end(uint32_t rank, struct host *h, uint64_t at);
void polls_write(uint32_t rank, uint32_t thread);
/* Of the hosts that poll: who says next that it still does. */
uint64_t polls_next(uint32_t *rank, uint32_t *thread);

/* queues.c */
uint64_t act_bytes(const struct act *a);
void launch_add(struct launch *l, uint16_t act, uint16_t pair, unsigned side, uint64_t bytes);
/* What one group, or one call, does on one communicator. */
void queue_launch(uint32_t rank, const uint32_t *act, uint32_t acts, int comm, uint32_t first, uint32_t log);
/* The devices do all that they can; true when anything was finished. */
bool queues_run(mask_t fresh);
/* What this rank has begun on the communicator (-1: on all) is over for it, and its peers get nothing more from it. */
void queues_withdraw(uint32_t rank, int comm);

/* messages.c */
bool is_lowered(unsigned op);
void message_add(struct launch *l, uint16_t act, int comm, uint32_t src, uint32_t dst, unsigned side, uint64_t bytes);
/* AlltoAll, Gather and Scatter are sends and receives. */
void message_add_lowered(struct launch *l, uint16_t act, uint32_t rank);
void messages_post(struct launch *l);
/* A message is done when its partner is there; a send that is larger than its receive never is, nor a receive that gets
 * less. */
bool messages_done(struct launch *l);

/* calls.c */
bool is_nonblocking(const struct act *a);
void call_make(uint32_t rank, uint32_t thread, uint16_t act);
/* The end of a group launches one communicator after the other, in ascending order of their hashes. */
void call_end_group(uint32_t rank, uint32_t thread, uint16_t act);

/* waits.c */
void wait_begin(uint32_t rank, uint32_t thread, uint16_t act);
void creation_begin(uint32_t rank, uint32_t thread, uint16_t act);
void comm_end(uint32_t rank, uint32_t thread, uint16_t act);
bool others_ended(const struct process *q, const struct host *h);
void waits_end(void);

/* faults.c */
void process_end(uint32_t rank, enum roll_proc_state state, int32_t status);
void process_exit(uint32_t rank, const struct act *a);
/* A rank is killed or stopped at its hour, whatever it does. */
uint64_t fate_next(uint32_t *rank);

#endif
