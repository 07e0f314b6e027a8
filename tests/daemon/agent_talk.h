/*
 * agent_talk.h: one ring, an agent's side of it, and a root that says what a test lets it say: for tests of how a ring
 * travels. No process and no socket.
 */
#ifndef ROLL_TESTS_DAEMON_AGENT_TALK_H
#define ROLL_TESTS_DAEMON_AGENT_TALK_H

#include "tests/daemon/synth.h"

#include "daemon/agent/agent_ring.h"

struct agent_talk {
    char dir[64];
    struct synth rank;
    uint16_t comm; /* of the rank's calls */
    struct roll_agent_ring *ring;
    uint64_t seq, now;
    uint64_t next, came;                   /* behind the last record that came; how many came */
    uint64_t updates, update, rings, ends; /* that came: of calls, the last of them, RING, and STATUS of an end */
    uint8_t buffer[ROLL_AGENT_BATCH * ROLL_RECORD_BYTES];
};

/* A ring of so many records in a folder of its own, and an agent that has found it. */
void agent_talk_begin(struct agent_talk *t, const char *job, uint32_t records);
void agent_talk_end(struct agent_talk *t);
/* The agent is started anew, and finds the ring as its predecessor left it. */
void agent_talk_restart(struct agent_talk *t);
/* n calls of the rank that have returned; the ticket of the last. */
uint64_t agent_talk_calls(struct agent_talk *t, unsigned n);
/* The agent looks at the ring so many times, step_ns apart. */
void agent_talk_pump(struct agent_talk *t, int turns, uint64_t step_ns);
/* The root has read up to this ticket; open: the first call that it knows as entered; flags: of the ACK. */
void agent_talk_acknowledge(struct agent_talk *t, uint64_t next, uint64_t open, uint32_t flags);
/* A conversation begins: the ring is announced, looked at `turns` times, and acknowledged. */
void agent_talk_converse(struct agent_talk *t, int turns, uint64_t step_ns, uint64_t next, uint64_t open,
                         uint32_t flags);

#endif
