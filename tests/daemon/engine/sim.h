/*
 * sim.h: scenarios for the engine in a few lines: what each rank calls, in its own order; then fed in many
 * interleavings.
 *
 * A scenario is a list of events per rank. sim_expect feeds it to fresh engines in several orders (each keeps every
 * rank's own order), lets ten seconds pass, and demands the same findings each time: lines "certainty code culprits",
 * sorted, joined by "; ". Findings count that stand at the end; "" = no finding, none that was taken back either.
 */
#ifndef ROLL_TESTS_DAEMON_ENGINE_SIM_H
#define ROLL_TESTS_DAEMON_ENGINE_SIM_H

#include "daemon/engine/engine.h"
#include "trace/op.h"

#include <stdbool.h>

#define SIM_COMMS 64u
#define SIM_SITES 1024u
#define S_        1000000000ull

struct sim_event {
    enum { SIM_RECORD, SIM_DEFINE, SIM_PROC, SIM_LOST, SIM_PASS } kind;
    struct roll_record rec;
    struct roll_def def;
    enum roll_proc_state proc;
    int32_t status;
    uint64_t first, count; /* SIM_LOST; SIM_PASS: first ns */
};

struct sim_rank {
    struct sim_event *event;
    size_t events, room;
    uint64_t ticket;
    uint32_t group, open_group, grouped;
    uint32_t step;
    uint16_t comm_id[SIM_COMMS];
    uint16_t comms;
    uint32_t seq[SIM_COMMS];
    uint32_t *p2p[SIM_COMMS]; /* [peer * 2 + direction] */
    int32_t in_comm[SIM_COMMS];
    uint64_t graph[SIM_COMMS]; /* hash of the collectives, by graph id */
    bool site[SIM_SITES];      /* the call site is defined */
};

struct sim {
    uint32_t ranks;
    struct sim_rank *rank;
    struct {
        uint64_t key;
        uint32_t size;
        uint32_t member[1024];
    } comm[SIM_COMMS];
    uint32_t comms;
    struct roll_engine_config config;
    const struct roll_expected *expected; /* what was rehearsed; NULL: nothing */
    bool finish;                          /* call roll_engine_finish after the last tick */
    uint64_t patience_ns;                 /* time that passes after the last event; default 10 s */
    bool skip_last_source;                /* the last rank is never seen */
    uint16_t site;                        /* the place in the program of the calls that follow; 0 = not known */
    uint16_t helper;                      /* the place of the function that makes these calls; 0 = none */
    bool guessed; /* behind that function, words of the stack that are no callers: others on each rank */
    bool python;  /* the place is a line of Python, too */
};

struct sim *sim_new(uint32_t ranks);
void sim_destroy(struct sim **sim);

/* A communicator of `size` ranks: all of `ranks` (NULL: 0 .. size-1). Returns its number. */
uint32_t sim_comm(struct sim *sim, const char *label, const uint32_t *ranks, uint32_t size);
uint32_t sim_world(struct sim *sim);

/* One collective of one rank; returns its record so that fields may be changed. */
struct roll_record *sim_call(struct sim *sim, uint32_t rank, uint32_t comm, enum roll_op op, uint64_t count);
/* The same collective on all members. */
void sim_all(struct sim *sim, uint32_t comm, enum roll_op op, uint64_t count);
struct roll_record *sim_send(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t to, uint64_t count);
struct roll_record *sim_recv(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t from, uint64_t count);
void sim_group(struct sim *sim, uint32_t rank);
void sim_group_end(struct sim *sim, uint32_t rank);
/* A rank captures `calls` AllReduces of `count`, count + 1, ... into graph `id`, and defines it. */
void sim_capture(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t id, uint32_t calls, uint64_t count);
/* The rank launches graph `id`: a GraphLaunch with the hash of what it holds on this communicator. */
struct roll_record *sim_launch(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t id);
/* The host waits for a stream: returned at once, or not (yet). */
struct roll_record *sim_sync(struct sim *sim, uint32_t rank);
struct roll_record *sim_stuck(struct sim *sim, uint32_t rank);
struct roll_record *sim_record(struct sim *sim, uint32_t rank, enum roll_op op, uint32_t comm);
/* A grouped product of Transformer Engine, seen from outside, that has returned. */
void sim_product(struct sim *sim, uint32_t rank, uint32_t rows, uint16_t groups);
/* The last record of the rank again, as returned. */
void sim_return(struct sim *sim, uint32_t rank);
void sim_lose(struct sim *sim, uint32_t rank, uint64_t count);
/* What this rank does next is read so much later; for all ranks time passes. */
void sim_pass(struct sim *sim, uint32_t rank, uint64_t ns);
void sim_proc(struct sim *sim, uint32_t rank, enum roll_proc_state state, int32_t status);
void sim_step(struct sim *sim, uint32_t step);
/* Forward of one MoE layer on `ep`: counts, then (unless skipped) the list of `duties` backward all-to-alls. */
void sim_moe_forward(struct sim *sim, uint32_t rank, uint32_t ep, uint32_t layer, uint64_t rows, uint32_t duties);

/* The pieces of feeding, for who feeds in a way of its own: a rank's source is opened, an event is given, time passes
 * in ticks of 20 ms. */
uint32_t sim_open(const struct sim *sim, roll_engine_t *e, uint32_t rank);
void sim_feed(roll_engine_t *e, uint32_t source, const struct sim_event *event, uint64_t *now);
void sim_wait(roll_engine_t *e, uint64_t ns, uint64_t *now);

/* Feeds the scenario once in order number `order`; returns all verdicts' lines, owned. notes: notes too; text: with
 * their texts. */
char *sim_run(const struct sim *sim, uint32_t order, bool notes, bool text);
/* Findings that were superseded, confirmed or withdrawn later, too. */
char *sim_run_all(const struct sim *sim, uint32_t order);
void sim_expect_at(const struct sim *sim, const char *findings, const char *file, int line);
#define sim_expect(sim, findings) sim_expect_at(sim, findings, __FILE__, __LINE__)
/* The same of findings and notes together. */
void sim_expect_with_notes(const struct sim *sim, const char *said);
#define SIM_ORDERS 9u
/* One more order for sim_run and sim_run_all: each rank has a clock of its own, which sim_pass moves on, and what the
 * ranks do is read when they do it. */
#define SIM_BY_TIME 100u

/* Signals and exit codes as wait statuses. */
#define SIM_SIGNAL(n) (n)
#define SIM_EXIT(n)   ((n) << 8)

#endif
