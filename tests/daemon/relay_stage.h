/*
 * relay_stage.h: a real relay, between a root and agents that are sockets of the test.
 */
#ifndef ROLL_TESTS_DAEMON_RELAY_STAGE_H
#define ROLL_TESTS_DAEMON_RELAY_STAGE_H

#include "daemon/digest/digest_bytes.h"
#include "daemon/wire/net.h"
#include "tests/daemon/harness.h"
#include "tests/daemon/synth.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

struct agent {
    void *socket;
    uint64_t seq; /* of its newest frame */
};

struct stage {
    void *context, *root;
    bool inside; /* a message of the relay, of which the next part is a frame */
    uint8_t relay_id[255];
    size_t relay_bytes;
    pid_t relay;
    char above[320], below[320];
};

/* A frame that has come, with its payload. */
struct got {
    struct roll_frame_head head;
    uint8_t payload[8192];
};

/* Starts the relay; *s is set. */
void stage_open(struct stage *s);
/* Ends it in good order. */
void stage_close(struct stage *s);
/* Closes the sockets of two agents, a ring, and the stage. */
void stage_close_all(struct stage *s, struct agent *one, struct agent *two, struct synth *rank);

/* The next frame of the relay, and the next one that is no heartbeat and no digest. */
void root_takes_any(struct stage *s, struct got *got);
void root_takes(struct stage *s, struct got *got);
/* The next frame that is what is asked for, of which `ctx` knows; what comes before it is shown to it, too. The test
 * fails when it does not come for as many heartbeats as make up all of its waits. */
void root_waits(struct stage *s, struct got *got, bool (*fits)(const struct got *got, void *ctx), void *ctx);
void root_sends(struct stage *s, const struct roll_frame_head *head, const void *payload, size_t bytes);
/* The root is another one, which has never heard of the relay, and takes its HELLO. */
void root_is_another(struct stage *s, struct got *got);

/* An agent of this name comes with this number, and is welcomed. */
void agent_comes(struct stage *s, struct agent *a, const char *id, uint64_t seq);
/* It is asked to begin anew, and does; `id` as before. */
void agent_comes_again(struct agent *a, const char *id);
void agent_sends(struct agent *a, struct roll_frame_head head, const void *payload, size_t bytes);
void agent_announces(struct agent *a, const struct synth *rank);
/* Tells a digest (consumed) under this ring, and so many calls in all. */
void agent_digests(struct agent *a, uint64_t stream, struct roll_digest *d, uint64_t calls);
/* The next frame for the agent, and the next one of this type. */
void agent_takes(struct agent *a, struct got *got);
void agent_waits(struct agent *a, struct got *got, uint16_t type);
/* Such a frame asks the agent to begin again. */
void expect_begin_again(const struct got *got);

#endif
