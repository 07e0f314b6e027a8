/*
 * replay.h: a rank that makes its recorded calls again: what its files share. What the threads of a rank share is
 * written before a call is over, and read by calls that began behind it.
 */
#ifndef ROLL_HOSTNCCL_REPLAY_REPLAY_H
#define ROLL_HOSTNCCL_REPLAY_REPLAY_H

#include "trace/record.h"
#include "trace/replay.h"

#include <cuda_runtime.h>
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STREAMS (UINT16_MAX + 1)

struct rank {
    const char *dir;
    struct roll_replay_head head;
    const struct roll_replay_comm *comm; /* the head's `comms` */
    const struct roll_record *rec;       /* by ticket; seal 0: there is none */
    bool *marked;                        /* by ticket: a later call stands behind it by an event */
    cudaEvent_t *event;                  /* by ticket, of those that are marked and issued */
    cudaStream_t stream[STREAMS];
    bool has_stream[STREAMS];
    ncclComm_t handle[UINT16_MAX + 1]; /* by the rank's own id; NULL: there is none */
    uint32_t split[UINT16_MAX + 1];    /* children that were asked of it so far */
    void *send, *recv;
    size_t bytes; /* of each of the two */
};

/* A host thread of the rank. */
struct actor {
    struct rank *rank;
    uint16_t thread;      /* as its records name it */
    uint32_t group;       /* that is open; 0 = none */
    uint64_t group_first; /* its first ticket */
    bool inside;          /* a call; these say how it was recorded: */
    bool returns;
    uint64_t until_ns;
};

/* replay_turn.c */
/* Makes all calls, each when it is its turn, and comes back when all that came back have. */
void make_all(struct rank *r, void (*make)(struct actor *, uint64_t ticket));

/* replay_stream.c */
/* Ends the rank, which cannot be made again. */
void stop(const char *what, const char *why) __attribute__((noreturn));
/* The same where CUDA has refused a call. */
void cuda(cudaError_t error, const char *what);
/* The stream of this number, which is made if it is new. Any thread. */
cudaStream_t stream_of(struct rank *r, uint16_t id);

/* replay_calls.c */
/* Makes the call of a record on NCCL; what NCCL says to it is the record's own business. */
void make_call(struct rank *r, const struct roll_record *rec);
/* Elements of a call as they are made, alike on all ranks; and the bytes of the larger of its buffers. */
size_t elements_of(const struct rank *r, const struct roll_record *rec);
size_t bytes_of(const struct rank *r, const struct roll_record *rec);
const struct roll_replay_comm *comm_of(const struct rank *r, uint32_t id);

#endif
