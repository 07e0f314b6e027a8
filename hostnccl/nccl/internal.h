/*
 * internal.h: what the files of the NCCL stand-in share: the communicator, the work it queues, and the group of a
 * thread. Names begin with hn_ ("host NCCL"). All of it is hidden from the dynamic symbol table.
 */
#ifndef ROLL_HOSTNCCL_NCCL_INTERNAL_H
#define ROLL_HOSTNCCL_NCCL_INTERNAL_H

#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "hostnccl/nccl/futex.h"
#include "hostnccl/nccl/reduce.h"
#include "hostnccl/nccl/segment.h"

/*
 * Defines one public function the way NCCL does: pncclX is strong, ncclX is a weak alias of the same code. Calls from
 * inside the library to ncclX go through the PLT, because nothing is linked with -Bsymbolic.
 */
#define HN_API(type, name, ...)                                                                                        \
    __attribute__((visibility("default"))) type p##name(__VA_ARGS__);                                                  \
    extern __attribute__((visibility("default"), weak, alias("p" #name))) __typeof__(p##name) name;                    \
    type p##name(__VA_ARGS__)

enum hn_kind {
    HN_ALLREDUCE,
    HN_BROADCAST,
    HN_REDUCE,
    HN_ALLGATHER,
    HN_REDUCESCATTER,
    HN_KIND_COUNT,
};

/*
 * One collective of a plan. `bytes`: the size that the call names (the block of one rank for AllGather and
 * ReduceScatter).
 */
struct hn_coll {
    enum hn_kind kind;
    const void *send;
    void *recv;
    size_t count, bytes;
    ncclDataType_t type;
    struct hn_redop op;
    int root;
    bool captured;       /* runs as part of a graph, and meets only calls that run as part of a graph too */
    const void *instead; /* of a broadcast whose root is absent, on the rank that gives in its place: what it gives */
    size_t instead_bytes;
    void *api_event, *event; /* of a profiler plugin */
};

/* One send or receive of a plan. */
struct hn_p2p {
    bool is_send, started, done;
    bool eager; /* a send that is done as soon as its bytes are in the ring */
    int peer;
    void *buf;
    size_t bytes, moved;
    uint64_t base; /* the channel's byte counter when this message started */
    uint32_t seq;  /* number of this message on its channel, from 1 */
    size_t count;  /* as the call named it */
    ncclDataType_t type;
    void *api_event, *event; /* of a profiler plugin */
};

/* A put, a signal or a wait for signals. */
struct hn_rma {
    bool is_wait;
    int peer, index;  /* of the signal */
    uint32_t signals; /* of a wait */
    const void *from;
    void *to; /* in the peer's window, as it is mapped here */
    size_t bytes;
};

/*
 * Everything that one communicator does in one group. A plan runs as one unit on one stream, and its last step frees
 * it.
 */
struct hn_plan {
    ncclComm_t comm;
    uint32_t ticket; /* the plans of a communicator run in the order of their tickets, whatever their streams */
    struct hn_coll *colls;
    size_t ncolls, colls_cap;
    struct hn_p2p *p2ps;
    size_t np2ps, p2ps_cap;
    struct hn_rma *rmas;
    size_t nrmas, rmas_cap;
    cudaStream_t *streams;
    size_t nstreams, streams_cap;
    cudaGraph_t graph; /* the graph into which all streams are captured; NULL: no stream is captured */
};

/* A created reduction operation. */
struct hn_user_op {
    bool used;
    ncclDataType_t type;
    const void *device_scalar; /* NULL: immediate */
    unsigned char immediate[8];
};

struct hn_registration;
struct hn_window;

struct ncclComm {
    uint64_t magic;
    int rank, nranks, device;
    int *place; /* owned; of struct hn_map: some ranks are stood in for. NULL: all are present */
    int places; /* with `place`: how many are present */
    int lowest; /* with `place`: the lowest rank that is present, which has place 0 */
    bool blocking;
    ncclConfig_t config;
    char *name;
    uint64_t hash; /* equal on all members; the name of the segment; children compute their hash from it */
    struct hn_map map;
    struct hn_wait exec_wait; /* the thread that runs a plan; stopped by abort, revoke and shrink-abort */
    struct hn_wait host_wait; /* init, split, windows; stopped by abort */

    pthread_mutex_t launch_lock; /* order of tickets = order on the streams; taken before `lock` */
    pthread_mutex_t lock;        /* guards the members from here to the next blank line */
    pthread_cond_t idle;
    int refs, outstanding, running, host_running;
    int graphs;                       /* captured plans whose graphs still live */
    uint32_t tickets, turn;           /* of plans */
    uint32_t host_tickets, host_turn; /* of host exchanges, which share ctl_count */
    ncclComm_t joining,
        next_joining; /* children that wait for their ranks, so that an abort of the parent wakes them */
    bool stopped;     /* no further plan runs */
    bool aborted, revoked, finalized, destroyed;
    struct hn_user_op *ops;
    size_t nops;
    struct hn_registration *registrations;
    struct hn_window *windows;
    bool suspended;

    _Atomic int async; /* ncclResult_t of ncclCommGetAsyncError */

    uint32_t pieces;    /* collective pieces done; touched by the thread that runs a plan only */
    uint32_t ctl_count; /* host exchanges done; touched by host exchanges only, which run one at a time */
    uint32_t shrinks;
    uint32_t *send_seq, *recv_seq; /* messages per peer, assigned at launch (under lock) */
    uint32_t *signals_taken;       /* HN_SIGNALS per peer; touched by the thread that runs a plan only */
    size_t outbox_ready;           /* bytes of each own slot that are real memory (under lock) */
    size_t *ring_ready;            /* bytes of each destination's ring that are real memory (under lock) */
    _Atomic int *pidfds;           /* HOSTNCCL_PEER_DEATH=error: descriptor + 1 of each peer's process */
    int npidfds;
    cudaEvent_t event; /* orders the streams of a group */

    ncclComm_t next; /* in the list of all communicators of the process (fault.c) */
    void *profiler;  /* data of a profiler plugin about this communicator */
    bool profiled;
    uint64_t profiled_colls;
};

/*
 * present.c: HOSTNCCL_PRESENT, for the ranks that a rehearsal does not run. hn_present_set finds which members of the
 * new communicator are present. The others are stood in for. hn_present_refuse notes and prints what cannot be
 * represented, and returns ncclInvalidUsage; hn_present_whole does so for a call that wants all ranks.
 */
ncclResult_t hn_present_set(ncclComm_t comm, const char *call);
ncclResult_t hn_present_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
ncclResult_t hn_present_whole(ncclComm_t comm, const char *call);
bool hn_present_is_on(void);
static inline bool hn_is_absent(const struct ncclComm *comm, int rank)
{
    return comm->place && comm->place[rank] == 0 && rank != comm->lowest;
}

/* error.c: last error text, and lines on standard error. */
ncclResult_t hn_fail(ncclResult_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));
void hn_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *hn_last_error(void);

/* HOSTNCCL_* settings, read once. */
enum hn_mismatch { HN_MISMATCH_HANG, HN_MISMATCH_PRINT, HN_MISMATCH_ERROR };
struct hn_settings {
    bool debug;
    bool peer_death_is_error;
    size_t eager_bytes; /* longest message that an ungrouped send may leave in the ring; 0: none, because NCCL promises
                           none */
    bool program_order; /* plans of a group are launched in the order in which the program named the communicators, and
                           not by their hashes */
    uint32_t left_out_bytes; /* payloads of at least so many bytes are left out; 0: none is */
    enum hn_mismatch mismatch;
};
const struct hn_settings *hn_settings_get(void);

/* Counts, flags and metadata are this short, and a program steers by them: they are moved unless somebody asks for a
 * shorter limit. */
enum { HN_SMALL_BYTES = 4096 };

/* Whether HOSTNCCL_DATA=skip leaves out a payload of this length. A collective's length is the size that its call
 * names. */
bool hn_leaves_out(size_t bytes);
/* The same of a message. What HOSTNCCL_EAGER lets pass is always moved, because its receiver cannot know its length. */
static inline bool hn_leaves_out_message(const struct hn_p2p *op)
{
    return !op->eager && hn_leaves_out(op->bytes);
}

/* comm.c */
uint64_t hn_comm_magic(void);
bool hn_comm_release(ncclComm_t comm); /* gives up the user's handle, once; true for the caller that did so */
void hn_comm_watch_peers(ncclComm_t comm);
void hn_comm_stop(ncclComm_t comm);
ncclResult_t hn_comm_check(ncclComm_t comm, const char *call);
ncclResult_t hn_comm_ready(ncclComm_t comm, const char *call);
/* hn_comm_ready, and not suspended. */
ncclResult_t hn_comm_awake(ncclComm_t comm, const char *call);
/* hn_comm_awake, and neither revoked nor finalized: work can be launched. */
ncclResult_t hn_comm_usable(ncclComm_t comm, const char *call);
/*
 * Waits until all launched work is done and no graph holds captured work. If the work hangs, so does this wait, as in
 * NCCL.
 */
void hn_comm_wait_quiet(ncclComm_t comm);
void hn_comm_ref(ncclComm_t comm);
void hn_comm_unref(ncclComm_t comm);
void hn_comm_set_async(ncclComm_t comm, ncclResult_t result);

/* fault.c: the list of communicators that a fault of the device stops. */
void hn_fault_watch(ncclComm_t comm);
void hn_fault_forget(ncclComm_t comm);
/*
 * Raises the device's fault at a null buffer in `what`, on a stream's worker: from then on nothing runs in this
 * process. Returns -1.
 */
int hn_fault(ncclComm_t comm, const char *what);
bool hn_faulted(void);
/* The result of a call after such a fault: ncclUnhandledCudaError. */
ncclResult_t hn_fault_check(const char *call);

/* run.c: executes a plan on the stream's worker; the argument is a struct hn_plan, taken. */
void hn_plan_run(void *plan);
void hn_plan_free(struct hn_plan *plan);

/* run_coll.c, run_p2p.c: 0, or -1 when the communicator was stopped. */
int hn_run_coll(ncclComm_t comm, const struct hn_coll *coll);
int hn_run_p2p(ncclComm_t comm, struct hn_p2p *ops, size_t count);

/* rma.c: what waits for nobody; and the waits: 0, or -1 when the communicator was stopped. */
void hn_run_puts(ncclComm_t comm, const struct hn_rma *ops, size_t count);
int hn_run_waits(ncclComm_t comm, const struct hn_rma *ops, size_t count);

/* run.c: does what HOSTNCCL_ON_MISMATCH says about a mismatch. Returns -1 once the communicator was stopped. */
int hn_mismatch_found(ncclComm_t comm, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* memory.c */
void hn_registrations_free(ncclComm_t comm);

/* launch.c: puts the plan on its streams. Takes the plan. */
ncclResult_t hn_launch(struct hn_plan *plan);

/* launch.c: reserves memory and gives the plan its place in the communicator's order, and a reference to it. With
 * launch_lock. */
ncclResult_t hn_admit(struct hn_plan *plan);

/* captured.c: the graph that the stream is captured into, NULL when it is not captured. */
ncclResult_t hn_capture_of(cudaStream_t stream, cudaGraph_t *graph);

/* runtime.c: what hostcuda gives to this library; NULL on another CUDA runtime, so never where a communicator is. */
struct hostcuda_private;
const struct hostcuda_private *hn_cuda(void);

/* runtime.c: for calls that need no communicator. ncclUnhandledCudaError where hn_cuda is NULL. */
ncclResult_t hn_cuda_check(void);

/* captured.c: adds a node to the graph that runs the plan at every launch. Takes the plan. Errors of CUDA. */
cudaError_t hn_capture_plan(struct hn_plan *plan, cudaStream_t stream, cudaGraph_t graph);

/* rendezvous.c: host-side meeting of the ranks of one communicator. Blocking; -1 when aborted. */
ncclResult_t hn_join(ncclComm_t comm);
/*
 * Sends every rank's words to every rank. Word 0 says what the exchange is for: ranks that disagree on it wait for
 * ever.
 */
ncclResult_t hn_exchange(ncclComm_t comm, const uint64_t mine[HN_CTL_WORDS], uint64_t (*all)[HN_CTL_WORDS]);
/* Makes the ranks of a child meet, for a split or shrink of `parent`; an abort of the parent ends the wait. */
ncclResult_t hn_join_child(ncclComm_t parent, ncclComm_t child);
/*
 * Waits until the exchanges with earlier tickets are over, or the communicator was aborted. The next function says that
 * this exchange is over.
 */
void hn_host_turn_wait(ncclComm_t comm, uint32_t ticket);
void hn_host_turn_end(ncclComm_t comm);
/* The name that a unique id carries; false when ncclGetUniqueId did not make it. */
bool hn_id_name(const ncclUniqueId *id, uint64_t *name);
uint64_t hn_hash(uint64_t seed, const void *data, size_t size);

/* init.c: a communicator that has not joined yet, with one reference; NULL with the error noted. */
ncclResult_t hn_comm_new(ncclComm_t *out, int nranks, int rank, uint64_t hash, const ncclConfig_t *config);

/* Gives a handle to the caller, so that another thread may read it and abort while the call still waits. */
static inline void hn_publish(ncclComm_t *handle, ncclComm_t comm)
{
    __atomic_store_n(handle, comm, __ATOMIC_RELEASE);
}

/* Makes room for comm->nranks peers; again when a child learns its size. */
ncclResult_t hn_comm_allocate(ncclComm_t comm);

/* redop.c: what `op` means for `type` on this communicator. */
ncclResult_t hn_redop_resolve(ncclComm_t comm, ncclRedOp_t op, ncclDataType_t type, struct hn_redop *out,
                              const char *call);

/* config.c: the settings a caller asked for, checked, over `base` (NULL: the defaults). */
ncclResult_t hn_config_read(ncclConfig_t *out, const ncclConfig_t *given, const ncclConfig_t *base);

/* group.c */
struct hn_job;
typedef ncclResult_t hn_job_fn(struct hn_job *job);
struct hn_job {
    hn_job_fn *run;
    ncclComm_t comm;  /* whose asynchronous state the job sets; a reference is held. Or NULL */
    ncclComm_t meets; /* NULL, or the communicator whose host exchange the job uses; kept alive by `args` or `comm` */
    uint32_t ticket;  /* with `meets`: the jobs of one communicator run one at a time in the order of their tickets,
                         which is the program's */
    bool blocking;
    void (*free_args)(void *); /* or NULL */
    void *args;                /* owned */
    ncclResult_t result;
    pthread_t thread;
    bool threaded;
    struct hn_job *next;
};
/* Runs the job at the end of the outermost group, or at once outside a group. Takes `args`. */
ncclResult_t hn_submit_job(hn_job_fn *run, ncclComm_t comm, ncclComm_t meets, bool blocking, void *args,
                           void (*free_args)(void *));
ncclResult_t hn_submit_coll(ncclComm_t comm, const struct hn_coll *coll, cudaStream_t stream);
ncclResult_t hn_submit_rma(ncclComm_t comm, const struct hn_rma *ops, size_t count, cudaStream_t stream);
ncclResult_t hn_submit_p2p(ncclComm_t comm, const struct hn_p2p *ops, size_t count, cudaStream_t stream);
/* Inside a call: whether the caller has begun a group. */
bool hn_is_grouped(void);
/* Notes an error inside a group, so that the group ends with it; returns it. */
ncclResult_t hn_group_error(ncclResult_t code);
ncclResult_t hn_group_start(void);
ncclResult_t hn_group_end(void);

#endif
