/*
 * job.c: one rank of a simulated program, for real: makes the acts of a program's text on NCCL (hostnccl, under
 * `rollcall run`).
 *
 * roll_sim_job FILE; the rank is RANK. Acts that only a model can make (a device that jams, two threads that meet) are
 * refused: roll_sim --sample does not choose programs with them. Ranks meet through files that the lowest member
 * renames into place.
 */
#include "tests/simulation/program.h"

#include <cuda_runtime.h>
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BUFFER_BYTES (4u << 20)

static struct program program;
static uint32_t me;
static ncclComm_t comm[COMMS_MAX];
static bool made[COMMS_MAX];
static cudaStream_t stream[STREAMS_MAX];
static char *buffer[2];

static void need(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "roll_sim_job: rank %u: %s\n", me, what);
        _exit(9);
    }
}

static void wait_ns(uint64_t ns)
{
    struct timespec left = {(time_t)(ns / S_), (long)(ns % S_)};
    while (nanosleep(&left, &left) != 0) {
    }
}

/* The lowest member gives the id of a communicator. */
static ncclUniqueId share(int index)
{
    ncclUniqueId id;
    char path[512], tmp[520];
    const char *dir = getenv("ROLLCALL_DIR");
    need(dir != NULL, "ROLLCALL_DIR is not set: start me with rollcall run");
    snprintf(path, sizeof(path), "%s/sim-%d.id", dir, index);
    snprintf(tmp, sizeof(tmp), "%s.tmp", path);
    if (me == mask_first(program.comm[index].members)) {
        need(ncclGetUniqueId(&id) == ncclSuccess, "no unique id");
        FILE *out = fopen(tmp, "wb");
        need(out && fwrite(&id, sizeof(id), 1, out) == 1 && fclose(out) == 0 && rename(tmp, path) == 0,
             "the unique id cannot be written");
        return id;
    }
    for (;;) { /* as long as it takes: the runner ends a job that hangs */
        FILE *in = fopen(path, "rb");
        size_t n = in ? fread(&id, sizeof(id), 1, in) : 0;
        if (in) {
            fclose(in);
        }
        if (n == 1) {
            return id;
        }
        wait_ns(5 * MS_);
    }
}

/* A nonblocking communicator: until it is done with what was asked of it. */
static void settle(int index)
{
    ncclResult_t state = ncclInProgress;
    while (program.comm[index].nonblocking && ncclCommGetAsyncError(comm[index], &state) == ncclSuccess &&
           state == ncclInProgress) {
        wait_ns(MS_ / 10);
    }
}

static void taken(ncclResult_t result, int index)
{
    need(result == ncclSuccess || (result == ncclInProgress && program.comm[index].nonblocking), "a call was refused");
    settle(index);
}

static void make_comm(const struct act *a)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = !program.comm[a->comm].nonblocking;
    if (a->kind == ACT_INIT) {
        int size = (int)mask_count(program.comm[a->comm].members);
        ncclResult_t result = ncclCommInitRankConfig(&comm[a->comm], size, share(a->comm),
                                                     (int)comm_rank(&program, a->comm, me), &config);
        taken(result, a->comm);
        __atomic_store_n(&made[a->comm], true, __ATOMIC_RELEASE);
        return;
    }
    ncclComm_t none = NULL;
    int color = a->child < 0 ? NCCL_SPLIT_NOCOLOR : program.comm[a->child].color;
    taken(ncclCommSplit(comm[a->comm], color, (int)me, a->child < 0 ? &none : &comm[a->child], &config), a->comm);
    if (a->child >= 0) {
        settle(a->child);
        __atomic_store_n(&made[a->child], true, __ATOMIC_RELEASE);
    }
}

static ncclResult_t collective(const struct act *a)
{
    ncclComm_t c = comm[a->comm];
    cudaStream_t s = stream[a->stream];
    ncclDataType_t type = (ncclDataType_t)a->dtype;
    ncclRedOp_t op = (ncclRedOp_t)a->redop;
    int root = a->peer < 0 ? 0 : (int)comm_rank(&program, a->comm, (uint32_t)a->peer);
    switch (a->op) {
    case ROLL_OP_ALLREDUCE:
        return ncclAllReduce(buffer[0], buffer[1], a->count, type, op, c, s);
    case ROLL_OP_BROADCAST:
        return ncclBroadcast(buffer[0], buffer[1], a->count, type, root, c, s);
    case ROLL_OP_REDUCE:
        return ncclReduce(buffer[0], buffer[1], a->count, type, op, root, c, s);
    case ROLL_OP_ALLGATHER:
        return ncclAllGather(buffer[0], buffer[1], a->count, type, c, s);
    case ROLL_OP_REDUCESCATTER:
        return ncclReduceScatter(buffer[0], buffer[1], a->count, type, op, c, s);
    case ROLL_OP_ALLTOALL:
        return ncclAlltoAll(buffer[0], buffer[1], a->count, type, c, s);
    case ROLL_OP_GATHER:
        return ncclGather(buffer[0], buffer[1], a->count, type, root, c, s);
    case ROLL_OP_SCATTER:
        return ncclScatter(buffer[0], buffer[1], a->count, type, root, c, s);
    default:
        return ncclInvalidArgument;
    }
}

static void message(const struct act *a, bool grouped)
{
    int peer = (int)comm_rank(&program, a->comm, (uint32_t)a->peer);
    ncclDataType_t type = (ncclDataType_t)a->dtype;
    ncclResult_t result = a->kind == ACT_SEND
                              ? ncclSend(buffer[0], a->count, type, peer, comm[a->comm], stream[a->stream])
                              : ncclRecv(buffer[1], a->count, type, peer, comm[a->comm], stream[a->stream]);
    need(result == ncclSuccess || result == ncclInProgress, "a message was refused");
    if (!grouped) {
        settle(a->comm);
    }
}

static void wait_event(const struct act *a)
{
    cudaEvent_t event;
    need(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess &&
             cudaEventRecord(event, stream[a->stream]) == cudaSuccess && cudaEventSynchronize(event) == cudaSuccess &&
             cudaEventDestroy(event) == cudaSuccess,
         "an event failed");
}

static void poll(const struct act *a)
{
    cudaEvent_t event = NULL;
    if (a->count != 0) {
        need(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess &&
                 cudaEventRecord(event, stream[a->stream]) == cudaSuccess,
             "an event failed");
    }
    while ((event ? cudaEventQuery(event) : cudaStreamQuery(stream[a->stream])) == cudaErrorNotReady) {
        wait_ns(MS_);
    }
}

struct fate {
    uint64_t after_ns;
    int signal;
};

static void *meet_fate(void *arg)
{
    struct fate *fate = arg;
    wait_ns(fate->after_ns);
    kill(getpid(), fate->signal);
    return NULL;
}

static void doom(uint64_t after_ns, int signal)
{
    static struct fate fate;
    pthread_t thread;
    fate = (struct fate){after_ns, signal};
    if (after_ns == 0) {
        kill(getpid(), signal);
    } else {
        need(pthread_create(&thread, NULL, meet_fate, &fate) == 0, "no thread");
    }
}

/* Returns whether the process ends here. */
static bool make_act(const struct act *a, bool *grouped)
{
    switch ((enum kind)a->kind) {
    case ACT_COLL:
        if (*grouped) {
            need(collective(a) == ncclSuccess, "a collective was refused");
        } else {
            taken(collective(a), a->comm);
        }
        break;
    case ACT_SEND:
    case ACT_RECV:
        message(a, *grouped);
        break;
    case ACT_GROUP:
        need(ncclGroupStart() == ncclSuccess, "a group was refused");
        *grouped = true;
        break;
    case ACT_END: {
        ncclResult_t result = ncclGroupEnd();
        need(result == ncclSuccess || result == ncclInProgress, "a group was refused");
        *grouped = false;
        for (uint32_t c = 0; result == ncclInProgress && c < program.comms; c++) {
            if (comm[c]) {
                settle((int)c);
            }
        }
        break;
    }
    case ACT_STREAM:
        (void)cudaStreamSynchronize(stream[a->stream]);
        break;
    case ACT_EVENT:
        wait_event(a);
        break;
    case ACT_DEVICE:
        (void)cudaDeviceSynchronize();
        break;
    case ACT_POLL:
        poll(a);
        break;
    case ACT_PAUSE:
        wait_ns(a->count);
        break;
    case ACT_INIT:
    case ACT_SPLIT:
        make_comm(a);
        break;
    case ACT_DESTROY:
        (void)ncclCommDestroy(comm[a->comm]);
        break;
    case ACT_ABORT:
        (void)ncclCommAbort(comm[a->comm]);
        break;
    case ACT_DOOM:
        doom(a->count, a->peer);
        break;
    case ACT_STOP:
        doom(a->count, SIGSTOP);
        break;
    case ACT_SPIN:
        for (;;) {
            wait_ns(MS_);
        }
    case ACT_EXIT:
        return true;
    default:
        need(0, "an act that cannot be made for real");
    }
    return false;
}

/* Makes the acts of one thread; returns its exit, or NULL. */
static const struct act *run_thread(uint8_t thread)
{
    bool grouped = false;
    for (uint32_t i = 0; i < program.acts; i++) {
        const struct act *a = &program.act[i];
        if ((a->ranks & BIT(me)) == 0 || a->thread != thread) {
            continue;
        }
        while (a->comm >= 0 && a->kind != ACT_INIT && !__atomic_load_n(&made[a->comm], __ATOMIC_ACQUIRE)) {
            wait_ns(MS_); /* a second thread begins with a communicator when the first one has made it */
        }
        if (make_act(a, &grouped)) {
            return a;
        }
    }
    return NULL;
}

static void *second(void *arg)
{
    const struct act *end = run_thread(1);
    (void)arg;
    if (end) {
        _exit((int)end->count);
    }
    return NULL;
}

static bool read_program(const char *path)
{
    char line[256];
    FILE *in = fopen(path, "r");
    bool found = false;
    while (in && !found && fgets(line, sizeof(line), in)) {
        found = strncmp(line, "ranks ", 6) == 0 && program_parse_line(&program, line) && program_parse(&program, in);
    }
    if (in) {
        fclose(in);
    }
    return found;
}

int main(int argc, char **argv)
{
    const char *rank = getenv("RANK");
    pthread_t thread;
    bool threads = false;
    if (argc != 2 || !rank || !read_program(argv[1])) {
        fprintf(stderr, "usage: rollcall run -n N --hostnccl -- roll_sim_job FILE\n");
        return 2;
    }
    me = (uint32_t)atoi(rank);
    for (int i = 0; i < 2; i++) {
        void *memory = NULL;
        need(cudaMalloc(&memory, BUFFER_BYTES) == cudaSuccess, "no memory");
        buffer[i] = memory;
    }
    for (uint32_t i = 0; i < STREAMS_MAX; i++) {
        need(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking) == cudaSuccess, "no stream");
    }
    for (uint32_t i = 0; i < program.acts; i++) {
        threads = threads || program.act[i].thread != 0;
    }
    if (threads) {
        need(pthread_create(&thread, NULL, second, NULL) == 0, "no thread");
    }
    const struct act *end = run_thread(0);
    if (threads && (!end || end->error == 0)) {
        need(pthread_join(thread, NULL) == 0, "no second thread");
    }
    int code = end ? (int)end->count : 0;
    if (end && end->error == 1) {
        _exit(code);
    }
    return code;
}
