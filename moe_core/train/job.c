/*
 * job.c: rank, communicators and device of this process.
 *
 * world by a unique id, ep and edp by splitting world, with names where the library knows names: what a Megatron job
 * looks like to an observer. One device per process, the one of LOCAL_RANK, modulo what there is.
 *
 * Agreements have memory that is never asked for: words of the program, which are registered with the runtime. A rank
 * that could not even make its device takes part in them, on the default stream. Allocated ones were rejected: they are
 * what such a rank lacks.
 */
#include "moe_core/train/job.h"

#include "moe_core/include/moe/error.h"
#include "moe_core/train/rendezvous.h"
#include "moe_core/train/watchdog.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t agreement[JOB_WORDS];

/* A number from the environment; `fallback` where the variable is absent; -1 where its text is no number. */
static int32_t env_number(const char *name, int32_t fallback)
{
    const char *text = getenv(name);
    if (text == NULL || text[0] == '\0') {
        return fallback;
    }
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    return errno == 0 && *end == '\0' && value >= 0 && value <= INT_MAX ? (int32_t)value : -1;
}

bool job_nccl_failed(const struct job *job, const char *what, ncclResult_t nc)
{
    if (nc != ncclSuccess) {
        fprintf(stderr, "moe_train: rank %d: %s: %s\n", job->rank, what, ncclGetErrorString(nc));
    }
    return nc != ncclSuccess;
}

static cudaStream_t stream_of(const struct job *job)
{
    return job->device != NULL ? moe_device_stream(job->device) : NULL;
}

static int wait_for(const struct job *job)
{
    if (job->device != NULL) {
        return moe_device_sync(job->device);
    }
    return cudaStreamSynchronize(NULL) == cudaSuccess ? 0 : MOE_E_DEVICE;
}

int job_least(const struct job *job, ncclComm_t comm, int64_t mine, int64_t *least)
{
    job->words[0] = mine;
    ncclResult_t nc = ncclAllReduce(job->words, job->words, 1, ncclInt64, ncclMin, comm, stream_of(job));
    int rc = job_nccl_failed(job, "AllReduce of an agreement", nc) ? MOE_E_COMM : wait_for(job);
    *least = job->words[0];
    return rc;
}

int job_range(const struct job *job, ncclComm_t comm, uint64_t mine, uint64_t *least, uint64_t *most)
{
    uint64_t *pair = (uint64_t *)job->words;
    cudaStream_t stream = moe_device_stream(job->device);
    pair[0] = pair[1] = mine;
    ncclResult_t nc = ncclAllReduce(&pair[0], &pair[0], 1, ncclUint64, ncclMin, comm, stream);
    nc = nc != ncclSuccess ? nc : ncclAllReduce(&pair[1], &pair[1], 1, ncclUint64, ncclMax, comm, stream);
    int rc = job_nccl_failed(job, "AllReduce of checksums", nc) ? MOE_E_COMM : moe_device_sync(job->device);
    *least = pair[0];
    *most = pair[1];
    return rc;
}

int job_failed(const struct job *job, bool failed, int32_t *who)
{
    int64_t least = 0;
    int rc = job_least(job, job->world, failed ? -1 - job->rank : 0, &least);
    *who = least < 0 ? (int32_t)(-1 - least) : -1;
    return rc;
}

int job_all_start(const struct job *job, const char *why)
{
    char *text = (char *)&job->words[1];
    const size_t bytes = (JOB_WORDS - 1) * sizeof(job->words[0]);
    int32_t who = -1;
    if (job->world_size == 1) {
        return why != NULL ? -1 : 0;
    }
    int rc = job_failed(job, why != NULL, &who);
    if (rc != 0 || who < 0) {
        return rc != 0 ? -1 : 0;
    }
    memset(text, 0, bytes);
    if (who == job->rank) {
        snprintf(text, bytes, "%s", why);
    }
    ncclResult_t nc = ncclBroadcast(text, text, bytes, ncclUint8, who, job->world, stream_of(job));
    rc = job_nccl_failed(job, "Broadcast of why a rank cannot start", nc) ? MOE_E_COMM : wait_for(job);
    if (rc == 0 && why == NULL) {
        fprintf(stderr, "moe_train: rank %d ends, because rank %d cannot start: %s\n", job->rank, who, text);
    }
    return -1;
}

static ncclConfig_t named(const char *name)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0)
    config.commName = name;
#else
    (void)name;
#endif
    return config;
}

/*
 * Whether tensor parallelism refuses the options: the ranks of a tensor parallel group, and those that share experts,
 * must divide certain sizes.
 */
static bool refused_by_tp(const struct train_options *o, const struct job *job, bool shard)
{
    const struct {
        bool needed;
        const char *name;
        int64_t number;
        int32_t parts;
    } table[] = {
        {true, "the number of ranks", job->world_size, o->tp},
        {true, "--ffn", o->ffn, job->parts},
        {true, "--shared", o->shared, o->tp},
        {o->tp > 1 && o->tp_mode == MOE_TP_SPLIT_TOKENS, "--tokens", o->tokens, o->tp},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].needed && table[i].number % table[i].parts != 0) {
            fprintf(stderr, "moe_train: %s (%lld) is no multiple of %d (--tp %d, --etp %d)\n", table[i].name,
                    (long long)table[i].number, table[i].parts, o->tp, o->etp);
            return true;
        }
    }
    if (shard && o->etp > 1) {
        fprintf(stderr,
                "moe_train: --tp-mode shard already shares each expert among the ranks of --tp: leave out --etp\n");
        return true;
    }
    return false;
}

/* Whether an option names a rank that does not exist, so that its fault would never happen. */
static bool out_of_range(const char *option, bool given, int32_t rank, const struct job *job)
{
    if (given && rank >= job->world_size) {
        fprintf(stderr, "moe_train: %s names rank %d; there are %d ranks\n", option, rank, job->world_size);
        return true;
    }
    return false;
}

/* Computes the groups of this rank from rank and world_size. */
static int lay_out(const struct train_options *o, struct job *job)
{
    job->tp_size = o->tp;
    bool shard = o->tp > 1 && o->tp_mode == MOE_TP_SHARD_EXPERTS;
    job->parts = shard ? o->tp : o->etp;
    int32_t most = job->world_size / job->parts;
    job->ep_size = o->ep > 0 ? o->ep : most < 4 ? most : 4;
    if (job->ep_size < 1 || job->world_size % (job->ep_size * job->parts) != 0 || o->experts % job->ep_size != 0) {
        fprintf(stderr, "moe_train: %d ranks%s and %lld experts are not both multiples of --ep %d\n", job->world_size,
                job->parts > 1 ? " (divided by those that share experts)" : "", (long long)o->experts, job->ep_size);
        return -1;
    }
    if (refused_by_tp(o, job, shard) || out_of_range("--inject", o->inject.fault != NULL, o->inject.rank, job) ||
        out_of_range("--hazard", o->hazard.row != NULL, o->hazard.rank, job)) {
        return -1;
    }
    job->edp_size = job->world_size / (job->ep_size * job->parts);
    job->part = job->rank % job->parts;
    job->ep_rank = job->rank / job->parts % job->ep_size;
    job->edp_rank = job->rank / (job->parts * job->ep_size);
    job->tp_rank = job->rank % o->tp;
    job->data_size = options_replicate(o) ? job->world_size / o->tp : job->world_size;
    job->data_rank = options_replicate(o) ? job->rank / o->tp : job->rank;
    return 0;
}

static int place(const struct train_options *o, struct job *job)
{
    job->rank = env_number("RANK", 0);
    job->world_size = env_number("WORLD_SIZE", 1);
    job->local_rank = env_number("LOCAL_RANK", job->rank);
    if (job->rank < 0 || job->world_size < 1 || job->local_rank < 0 || job->rank >= job->world_size) {
        fprintf(stderr,
                "moe_train: RANK %d, WORLD_SIZE %d, LOCAL_RANK %d: RANK must be below WORLD_SIZE, and none below 0; or "
                "start with --spawn N\n",
                job->rank, job->world_size, job->local_rank);
        return -1;
    }
    return lay_out(o, job);
}

bool job_fits(const struct train_options *o, int32_t ranks)
{
    struct job job = {.world_size = ranks};
    return lay_out(o, &job) == 0;
}

/* Makes one more communicator, of the ranks with the same colour. */
static ncclResult_t split(const struct job *job, int32_t colour, const char *name, ncclComm_t *out)
{
    ncclConfig_t config = named(name);
    return ncclCommSplit(job->world, colour, job->rank, out, &config);
}

/* Makes the communicators that only some layouts need; jobs without them issue no further calls. */
static ncclResult_t more_communicators(const struct train_options *o, struct job *job)
{
    ncclResult_t nc = ncclSuccess;
    job->block = job->ep;
    job->data = job->world;
    if (job->parts > 1) {
        nc = split(job, job->edp_rank, "tp_ep", &job->block);
    }
    if (nc == ncclSuccess && o->etp > 1) {
        nc = split(job, job->rank / o->etp, "etp", &job->etp);
    }
    if (nc == ncclSuccess && o->tp > 1) {
        nc = split(job, job->rank / o->tp, "tp", &job->tp);
        nc = nc != ncclSuccess ? nc : split(job, job->tp_rank, "dp", &job->data);
    }
    return nc;
}

static int communicators(const struct train_options *o, struct job *job)
{
    char path[4000];
    ncclUniqueId id;
    uint32_t limit_s = o->timeout_s > WATCHDOG_START_S ? o->timeout_s : WATCHDOG_START_S;
    if (rendezvous_path(path, sizeof(path)) != 0 || rendezvous_meet(path, job->rank, limit_s, &id) != 0) {
        return -1;
    }
    ncclConfig_t world = named("world");
    ncclResult_t nc = ncclCommInitRankConfig(&job->world, job->world_size, id, job->rank, &world);
    rendezvous_leave(path, job->rank);
    if (job_nccl_failed(job, "ncclCommInitRankConfig", nc)) {
        return -1;
    }
    nc = split(job, job->edp_rank * job->parts + job->part, "ep", &job->ep);
    nc = nc != ncclSuccess ? nc : split(job, job->ep_rank * job->parts + job->part, "edp", &job->edp);
    nc = nc != ncclSuccess ? nc : more_communicators(o, job);
    return job_nccl_failed(job, "ncclCommSplit", nc) ? -1 : 0;
}

int job_start(const struct train_options *options, struct job *job)
{
    *job = (struct job){0};
    int devices = 0;
    if (place(options, job) != 0) {
        return -1;
    }
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 1 ||
        cudaSetDevice(job->local_rank % devices) != cudaSuccess ||
        cudaHostRegister(agreement, sizeof(agreement), cudaHostRegisterPortable) != cudaSuccess) {
        fprintf(stderr, "moe_train: rank %d: no CUDA device (hostnccl's runtime or a real one)\n", job->rank);
        return -1;
    }
    job->words = agreement;
    if (communicators(options, job) != 0) {
        return -1;
    }
    job->joined = true;
    if (moe_device_new_host(&job->device) != 0) {
        fprintf(stderr, "moe_train: rank %d: %s\n", job->rank, moe_last_error());
        return -1;
    }
    return 0;
}

void job_end(struct job *job)
{
    moe_device_destroy(&job->device);
    if (job->parts == 1) {
        job->block = NULL;
    }
    if (job->tp_size <= 1) {
        job->data = NULL;
    }
    ncclComm_t *comms[] = {&job->data, &job->tp, &job->etp, &job->block, &job->edp, &job->ep, &job->world};
    for (size_t i = 0; i < sizeof(comms) / sizeof(comms[0]); i++) {
        if (*comms[i] != NULL) {
            ncclCommDestroy(*comms[i]);
            *comms[i] = NULL;
        }
    }
    if (job->words != NULL) {
        cudaHostUnregister(job->words);
        job->words = NULL;
    }
}
