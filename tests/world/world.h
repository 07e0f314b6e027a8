/*
 * world.h: one simulated cluster in one process and one thread: hosts with clocks, processes that are real daemons,
 * ranks that write real rings, links between them, and the time of all of them.
 *
 * The daemons' code is linked as it is shipped. What they ask of the system is answered here: libzmq is replaced by
 * socket.c over the links of link.c, and the calls of libc that wait, tell the time or make something that dies with a
 * process are replaced at link time (calls.c, heap.c; CMakeLists.txt lists them). A loop of a daemon runs on a stack of
 * its own (process.c) and hands over wherever it would wait. So nothing of the daemons was made for being simulated,
 * and nothing costs anything when real. Pointers to a "system interface" in each daemon were rejected: they would be
 * read in each call, and what does not go through them would be missed.
 *
 * The same plan (plan.h) gives the same run on every machine: there is one generator of numbers, and no other source
 * of chance or time.
 */
#ifndef ROLL_TESTS_WORLD_WORLD_H
#define ROLL_TESTS_WORLD_WORLD_H

#include "tests/simulation/program.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define WORLD_NEVER     UINT64_MAX
#define WORLD_HOSTS     8u
#define WORLD_PROCESSES 16u
#define WORLD_PATH      256u

struct process;

struct host {
    char name[16];
    char rings[WORLD_PATH]; /* its ring directory, a real one */
    uint64_t mono_ns;       /* CLOCK_MONOTONIC is this much ahead of the world's time */
    int64_t real_ns;        /* and CLOCK_REALTIME */
    uint32_t starved;       /* permille, as PSI tells */
    uint64_t unwatched_ns;  /* until then inotify has nothing left */
};

/* What is simulated; one at a time. */
struct world {
    uint64_t now_ns;
    uint64_t slack_ns; /* timers end at whole multiples of this, until quiet_ns; 0: when they are due (quiet.h) */
    uint64_t quiet_ns;
    struct rng rng;
    struct host host[WORLD_HOSTS];
    uint32_t hosts;
    char dir[WORLD_PATH]; /* holds all files; removed at the end */
    bool loud;            /* what the daemons log is shown */
    char trouble[512];    /* what went wrong first; "" = nothing yet */
    uint64_t turns;       /* how often a process was let run */
    uint64_t print;       /* of all messages, and when they came: two runs with the same one went the same way */
};
extern struct world world;

/* Once, before the first run. */
void world_init(void);
/* Notes what went wrong, if it is the first. */
void world_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A number below n; 0 when n is 0. */
uint32_t world_below(uint32_t n);
bool world_chance(uint32_t permille);

/* process.c: a daemon on a stack of its own */

enum process_state { PROCESS_NONE, PROCESS_WAITS, PROCESS_RUNS, PROCESS_OVER, PROCESS_DEAD };

struct process {
    char name[24];
    struct host *host;
    pid_t pid;
    enum process_state state;
    uint64_t wake_ns;    /* when it goes on at the latest */
    uint64_t stopped_ns; /* until then it is stopped (SIGSTOP); 0 = it runs */
    uint32_t slow_us;    /* it gets the processor at most so late */
    uint32_t dies_in;    /* calls of the system after which it is killed; 0 = never */
    _Atomic bool stop;   /* what a daemon is told by a signal */
    int code;            /* what its main function returned */
    int index;
    bool touched; /* its descriptors have to be looked at */
    /* what it has used */
    size_t heap_bytes, heap_blocks, heap_most;
    uint64_t turns, second_ns, second_turns, polled_ns;
    void (*main)(struct process *);
    void *argument;
    void *inside; /* process.c's own */
};

/* Begins a process. NULL when there are too many. */
struct process *process_begin(const char *name, struct host *host, void (*main)(struct process *), void *argument);
/* The process ends now, in the middle of whatever it does: its memory, descriptors, mappings, locks and sockets go. */
void process_kill(struct process *p);
/* Frees the place of one that is over or dead. */
void process_forget(struct process *p);
/* Lets it go on, until it waits again. */
void process_run(struct process *p);
bool process_lives(const struct process *p);
/* Who runs; NULL: the world itself. */
extern struct process *process_now;
struct process *process_at(uint32_t i); /* NULL when there is none */
/* For the running process: waits until then or until process_wake; dies where it is to die. */
void process_wait(uint64_t until_ns);
/* Something has come for it, which it sees at that time. */
void process_wake(struct process *p, uint64_t at_ns);
/* A call of the system: the instant at which a process may be killed. Returns true when it is to die in this call;
 * process_die then does not return. */
bool process_call(void);
void process_die(void) __attribute__((noreturn));

/* heap.c: what belongs to a process and goes with it */
void heap_free(struct process *p); /* all that it has */
size_t heap_left(const struct process *p, size_t *blocks);

/* calls.c, files.c: what libc is asked */
void calls_free(struct process *p); /* closes and unmaps all that it has */
int calls_left(const struct process *p);
struct disk {
    uint64_t full_until_ns; /* writes fail with ENOSPC until then */
    uint32_t flips;         /* so many of the next writes have a bit turned */
    uint64_t writes, refused;
};
extern struct disk disk;
/* Nothing of the last world is known any more. */
void calls_reset(void);

/* socket.c: ZeroMQ */
void socket_free(struct process *p, bool orderly); /* closes all sockets of a process */
void socket_reset(void);                           /* and those of all, with their links */
bool socket_fd_ready(int fd);                      /* of ZMQ_FD */
bool socket_is_fd(int fd);

/* link.c: the network */
/* When something happens on a link by itself; WORLD_NEVER. */
uint64_t link_next(void);
/* Does what is due. */
void link_turn(void);
/* When the next message comes for a process, of those that are on their way; WORLD_NEVER. */
uint64_t link_soonest(const struct process *p);
void link_reset(void);
/* Faults of the link of process p upwards. */
void link_break(struct process *p);
void link_cut(struct process *p, uint64_t until_ns);
void link_slow(struct process *p, uint32_t us);
enum link_harm { LINK_LOSE, LINK_DOUBLE, LINK_FLIP };
/* The next message on the way up (or down) is harmed. */
void link_harm(struct process *p, bool down, enum link_harm harm, uint32_t n);

#endif
