/*
 * replay.c: `roll_replay DIR`, one rank of a job that is made again: its calls in the order of their records, on the
 * streams that they were on, behind the events that they stood behind, and what became of its process in the end. It is
 * started by `rollcall replay` as a job of `rollcall run --hostnccl`, and may be started under a debugger as well.
 *
 * One host thread makes the calls of all, in the order in which they were entered: records tell no more of how threads
 * waited for each other. Between two calls it waits as long as the rank did, but 20 ms at most, unless
 * ROLL_REPLAY_PACED is set: a hang does not depend on it, and nobody wants to wait for a day.
 */
#include "hostnccl/replay/replay.h"

#include "trace/op.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BEHIND 8u /* calls behind which one may stand: trace/record.h */
#define LEAST  (64u << 10)

/* plans */

static const void *map_file(const char *dir, uint32_t rank, const char *suffix, size_t *bytes)
{
    char path[4096];
    struct stat st;
    snprintf(path, sizeof(path), "%s/rank-%u.%s", dir, rank, suffix);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        stop(path, "cannot be read");
    }
    *bytes = (size_t)st.st_size;
    void *at = *bytes > 0 ? mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    close(fd);
    if (at == MAP_FAILED) {
        stop(path, "cannot be mapped");
    }
    return at;
}

static void read_plan(struct rank *r, const char *dir, uint32_t rank)
{
    size_t bytes, calls;
    const char *plan = map_file(dir, rank, "plan", &bytes);
    r->dir = dir;
    if (bytes < sizeof(r->head)) {
        stop(dir, "the plan is cut short");
    }
    memcpy(&r->head, plan, sizeof(r->head));
    r->comm = (const struct roll_replay_comm *)(plan + sizeof(r->head));
    r->rec = map_file(dir, rank, "calls", &calls);
    if (memcmp(r->head.magic, ROLL_REPLAY_MAGIC, sizeof(r->head.magic)) != 0 ||
        r->head.version != ROLL_REPLAY_VERSION || r->head.rank != rank ||
        bytes - sizeof(r->head) != r->head.comms * sizeof(*r->comm) || calls != r->head.calls * ROLL_RECORD_BYTES) {
        stop(dir, "no plan of this rank and this version");
    }
    r->marked = calloc(r->head.calls + 1, sizeof(*r->marked));
    r->event = calloc(r->head.calls + 1, sizeof(*r->event));
    if (r->marked == NULL || r->event == NULL) {
        stop(dir, "out of memory");
    }
}

/* events */

/* The calls behind which the call with this ticket stands by events. How many. */
static size_t behind(const struct rank *r, uint64_t ticket, uint64_t out[BEHIND])
{
    const struct roll_record *rec = &r->rec[ticket];
    enum roll_op_class class = roll_op_class(rec->op);
    size_t n = 0;
    if (class != ROLL_CLASS_COLL && class != ROLL_CLASS_P2P && class != ROLL_CLASS_SYNC) {
        return 0;
    }
    for (uint64_t at = ticket, far = rec->aux; far != 0 && far <= at && n < BEHIND;) {
        at -= far;
        if (r->rec[at].op != ROLL_OP_STREAM_WAIT) {
            out[n++] = at;
            break;
        }
        for (unsigned i = 0; i < ROLL_BEHIND_PACKED && n < BEHIND; i++) {
            uint64_t one = roll_behind_packed(r->rec[at].count, i);
            if (one != 0 && one <= at) {
                out[n++] = at - one;
            }
        }
        far = r->rec[at].aux;
    }
    return n;
}

static void mark_all(struct rank *r)
{
    uint64_t at[BEHIND];
    for (uint64_t t = 0; t < r->head.calls; t++) {
        for (size_t n = behind(r, t, at); n > 0; n--) {
            r->marked[at[n - 1]] = true;
        }
        size_t bytes = bytes_of(r, &r->rec[t]);
        r->bytes = bytes > r->bytes ? bytes : r->bytes;
    }
}

/* The call has been issued: whoever stands behind it can find it. */
static void note_issued(struct rank *r, uint64_t ticket)
{
    if (r->marked[ticket] && r->event[ticket] == NULL) {
        cuda(cudaEventCreateWithFlags(&r->event[ticket], cudaEventDisableTiming), "cudaEventCreateWithFlags");
        cuda(cudaEventRecord(r->event[ticket], stream_of(r, r->rec[ticket].stream)), "cudaEventRecord");
    }
}

static void stand_behind(struct rank *r, uint64_t ticket)
{
    uint64_t at[BEHIND];
    for (size_t n = behind(r, ticket, at); n > 0; n--) {
        if (r->event[at[n - 1]] != NULL) {
            cuda(cudaStreamWaitEvent(stream_of(r, r->rec[ticket].stream), r->event[at[n - 1]], 0),
                 "cudaStreamWaitEvent");
        }
    }
}

/* calls */

static void host_waits(struct rank *r, uint64_t ticket)
{
    const struct roll_record *rec = &r->rec[ticket];
    uint64_t at[BEHIND];
    size_t n = behind(r, ticket, at);
    if (rec->op == ROLL_OP_EVENT_SYNC && n > 0) {
        for (; n > 0; n--) {
            (void)(r->event[at[n - 1]] != NULL && cudaEventSynchronize(r->event[at[n - 1]]) != cudaSuccess);
        }
    } else if (roll_op_has(rec->op, ROLL_TRAIT_ALL)) {
        (void)cudaDeviceSynchronize();
    } else {
        stand_behind(r, ticket);
        (void)cudaStreamSynchronize(stream_of(r, rec->stream));
    }
}

/* A loop that asks until it is ready; one that came back without goes on without. */
static void host_polls(struct rank *r, const struct roll_record *rec)
{
    bool leaves = roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED && rec->result != 0;
    const struct timespec pause = {.tv_nsec = 1000000};
    while (rec->op != ROLL_OP_COMM_QUERY && cudaStreamQuery(stream_of(r, rec->stream)) == cudaErrorNotReady &&
           !leaves) {
        nanosleep(&pause, NULL);
    }
}

static void end_group(struct actor *a, const struct roll_record *rec, uint64_t ticket)
{
    struct rank *r = a->rank;
    if (a->group == 0) {
        (void)ncclGroupStart(); /* a group of no calls */
        a->group_first = ticket;
    }
    if (rec->count == 1) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 22, 0)
        ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
        (void)ncclGroupSimulateEnd(&info);
#endif
    } else {
        (void)ncclGroupEnd();
    }
    for (uint64_t t = a->group_first; t < ticket; t++) {
        if (r->rec[t].thread == a->thread) {
            note_issued(r, t);
        }
    }
    a->group = 0;
}

static void make(struct actor *a, uint64_t ticket)
{
    struct rank *r = a->rank;
    const struct roll_record *rec = &r->rec[ticket];
    switch (roll_op_class(rec->op)) {
    case ROLL_CLASS_GROUP:
        end_group(a, rec, ticket);
        break;
    case ROLL_CLASS_COLL:
    case ROLL_CLASS_P2P:
    case ROLL_CLASS_COMM:
        if (rec->group != 0 && (rec->flags & ROLL_FLAG_IN_GROUP) != 0 && a->group == 0) {
            (void)ncclGroupStart();
            a->group = rec->group;
            a->group_first = ticket;
        }
        stand_behind(r, ticket);
        make_call(r, rec);
        if (a->group == 0) {
            note_issued(r, ticket);
        }
        break;
    case ROLL_CLASS_SYNC:
        host_waits(r, ticket);
        break;
    case ROLL_CLASS_POLL:
        host_polls(r, rec);
        break;
    default: /* what is no call of NCCL and no wait */
        break;
    }
}

/* How the process ended. */
static void end_as_recorded(const struct rank *r)
{
    if (r->head.fate == ROLL_REPLAY_KILLED) {
        (void)signal(r->head.code, SIG_DFL);
        (void)kill(getpid(), r->head.code);
    }
    if (r->head.fate == ROLL_REPLAY_LEAVES) {
        _exit(r->head.code);
    }
    while (r->head.fate != ROLL_REPLAY_EXITS) {
        pause();
    }
    exit(r->head.code); /* threads may be inside calls, as they were then */
}

int main(int argc, char **argv)
{
    static struct rank r;
    const char *rank = getenv("RANK"), *local = getenv("LOCAL_RANK");
    int devices = 0;
    if (argc != 2 || rank == NULL) {
        fprintf(stderr,
                "usage: rollcall run -n N --hostnccl -- roll_replay DIR     DIR: of `rollcall replay --plan`\n");
        return 2;
    }
    read_plan(&r, argv[1], (uint32_t)strtoul(rank, NULL, 10));
    mark_all(&r);
    cuda(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    cuda(cudaSetDevice(devices > 0 && local != NULL ? atoi(local) % devices : 0), "cudaSetDevice");
    r.bytes = r.bytes > LEAST ? r.bytes : LEAST;
    cuda(cudaMalloc(&r.send, r.bytes), "cudaMalloc");
    cuda(cudaMalloc(&r.recv, r.bytes), "cudaMalloc");
    make_all(&r, make);
    end_as_recorded(&r);
    return 0;
}
