/*
 * inject.c: the faults that moe_train can commit, one table row each.
 *
 * A fault is committed by one rank in one step, at a call that the job makes anyway; everything else stays as it is.
 * So the hang that follows is the one that a real program with that mistake would have. Zero-token ranks are no fault
 * here: they arise by themselves.
 */
#include "moe_core/train/inject.h"

#include "moe_core/include/moe/error.h"

#include <errno.h>
#include <nccl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum fault_kind {
    F_NONE,
    F_SKIP,
    F_EXTRA,
    F_COUNT,
    F_DTYPE,
    F_OP,
    F_ROOT,
    F_SWAP,
    F_ZERO,
    F_NAN,
    F_BACKWARD,
    F_EXIT,
    F_KILL,
    F_STOP,
    F_SLEEP,
};

struct fault {
    const char *name;
    enum fault_kind kind;
    const char *help;
};

static const struct fault faults[] = {
    {"skip-collective", F_SKIP, "leaves out the gradient AllReduce (dense; with layer=L that layer's experts)"},
    {"extra-collective", F_EXTRA, "makes the gradient AllReduce twice"},
    {"wrong-count", F_COUNT, "reduces one element less than its peers"},
    {"zero-count", F_ZERO, "reduces zero elements: NCCL drops the call"},
    {"wrong-dtype", F_DTYPE, "reduces as int32 what its peers reduce as float32"},
    {"wrong-op", F_OP, "takes the maximum where its peers sum"},
    {"wrong-root", F_ROOT, "names rank 1 as root of the step's Broadcast instead of rank 0"},
    {"swap-comms", F_SWAP, "reduces the experts (edp) before the dense parameters (world): opposite order"},
    {"skip-backward", F_BACKWARD, "leaves out the backward of one MoE layer (layer=L, default 0)"},
    {"nan", F_NAN, "writes a NaN into a gradient before it is reduced"},
    {"exit", F_EXIT, "exits with status 0 at the start of the step"},
    {"kill", F_KILL, "kills itself with SIGKILL at the start of the step"},
    {"stop", F_STOP, "stops itself with SIGSTOP at the start of the step"},
    {"sleep", F_SLEEP, "stays busy in host code from the start of the step on"},
};

static const struct fault *find(const char *name, size_t bytes)
{
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        if (strlen(faults[i].name) == bytes && memcmp(faults[i].name, name, bytes) == 0) {
            return &faults[i];
        }
    }
    return NULL;
}

static int parse_member(const char *at, struct inject *inject)
{
    const char *value = strchr(at, '=');
    if (value == NULL) {
        return -1;
    }
    size_t bytes = (size_t)(value - at);
    char *end = NULL;
    errno = 0;
    long number = strtol(value + 1, &end, 10);
    if (errno != 0 || end == value + 1 || (*end != '\0' && *end != ':') || number < 0 || number > INT32_MAX) {
        return -1;
    }
    if (bytes == 4 && memcmp(at, "rank", 4) == 0) {
        inject->rank = (int32_t)number;
    } else if (bytes == 4 && memcmp(at, "step", 4) == 0) {
        inject->step = (uint32_t)number;
    } else if (bytes == 5 && memcmp(at, "layer", 5) == 0) {
        inject->layer = number;
    } else {
        return -1;
    }
    return 0;
}

int inject_parse(const char *text, struct inject *inject)
{
    size_t bytes = strcspn(text, ":");
    *inject = (struct inject){.fault = find(text, bytes), .rank = 1, .step = 5, .layer = -1};
    if (inject->fault == NULL) {
        fprintf(stderr, "moe_train: unknown fault '%.*s'; --help lists them\n", (int)bytes, text);
        return -1;
    }
    for (const char *at = text + bytes; *at == ':'; at += strcspn(at, ":")) {
        if (parse_member(++at, inject) != 0) {
            fprintf(stderr, "moe_train: '%s': expected rank=R, step=S or layer=L with a number\n", at);
            return -1;
        }
    }
    return 0;
}

void inject_help(FILE *out)
{
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        fprintf(out, "      %-17s %s\n", faults[i].name, faults[i].help);
    }
}

bool inject_due(const struct inject *inject, int32_t rank, uint32_t step)
{
    return inject->fault != NULL && inject->rank == rank && inject->step == step;
}

static bool is_due(const struct inject *inject, int32_t rank, uint32_t step, enum fault_kind kind)
{
    return inject_due(inject, rank, step) && inject->fault->kind == kind;
}

/* A function of its own, so that its name appears in a stack. */
static _Noreturn __attribute__((noinline)) void busy_in_host_code(void)
{
    double sum = 0;
    for (;;) {
        struct timespec nap = {.tv_nsec = 1000000};
        for (unsigned i = 0; i < 100000; i++) {
            sum += 1.0 / (i + 1.0);
        }
        nap.tv_nsec += sum < 0; /* never true; keeps the compiler from removing the loop */
        nanosleep(&nap, NULL);
    }
}

void inject_process(const struct inject *inject, int32_t rank, uint32_t step)
{
    if (!inject_due(inject, rank, step)) {
        return;
    }
    switch (inject->fault->kind) {
    case F_EXIT:
        exit(0); /* as a rank does that believes the job is done: destructors run, and an observer is told */
    case F_KILL:
        raise(SIGKILL);
        break;
    case F_STOP:
        raise(SIGSTOP);
        break;
    case F_SLEEP:
        busy_in_host_code();
    default:
        break;
    }
}

int inject_root(const struct inject *inject, int32_t rank, uint32_t step)
{
    return is_due(inject, rank, step, F_ROOT) ? 1 : 0;
}

bool inject_skip_backward(const struct inject *inject, int32_t rank, uint32_t step, int64_t layer)
{
    return is_due(inject, rank, step, F_BACKWARD) && layer == (inject->layer < 0 ? 0 : inject->layer);
}

bool inject_reduces(const struct inject *inject)
{
    switch (inject->fault->kind) {
    case F_SKIP:
    case F_EXTRA:
    case F_COUNT:
    case F_ZERO:
    case F_DTYPE:
    case F_OP:
    case F_SWAP:
    case F_NAN:
        return true;
    default:
        return false;
    }
}

bool inject_swap(const struct inject *inject, int32_t rank, uint32_t step)
{
    return is_due(inject, rank, step, F_SWAP);
}

static int poison(const void *args)
{
    float *const *grad = args;
    **grad = __builtin_nanf("");
    return 0;
}

/*
 * Makes the gradient's AllReduce with an argument that may be wrong. Every rank makes this call at the same place of
 * the program in every step: the fault is a wrong argument, not another place (another place would be a call that the
 * other ranks do not make).
 */
static int reduce_as(moe_device_t *device, const struct moe_bucket *bucket, enum fault_kind wrong)
{
    int ranks = 1;
    struct moe_bucket alone = *bucket;
    alone.comm = NULL; /* scales, and sums over no other rank */
    int rc = moe_reduce(device, &alone);
    if (rc != 0 || bucket->comm == NULL || ncclCommCount(bucket->comm, &ranks) != ncclSuccess || ranks == 1) {
        return rc;
    }
    size_t count = wrong == F_ZERO ? 0 : wrong == F_COUNT ? bucket->count - 1 : bucket->count;
    ncclDataType_t type = wrong == F_DTYPE ? ncclInt32 : ncclFloat32;
    ncclRedOp_t op = wrong == F_OP ? ncclMax : ncclSum;
    ncclResult_t nc =
        ncclAllReduce(bucket->grad, bucket->grad, count, type, op, bucket->comm, moe_device_stream(device));
    return nc == ncclSuccess ? 0 : MOE_E_COMM;
}

static bool wrongs_an_argument(const struct inject *inject)
{
    enum fault_kind kind = inject->fault != NULL ? inject->fault->kind : F_NONE;
    return kind == F_COUNT || kind == F_ZERO || kind == F_DTYPE || kind == F_OP;
}

int inject_reduce(const struct inject *inject, int32_t rank, uint32_t step, moe_device_t *device,
                  const struct moe_bucket *bucket)
{
    uint32_t wanted = inject->layer < 0 ? UINT32_MAX : (uint32_t)inject->layer;
    bool due = inject_due(inject, rank, step) && bucket->layer == wanted;
    if (wrongs_an_argument(inject)) {
        return reduce_as(device, bucket, due ? inject->fault->kind : F_NONE);
    }
    if (!due) {
        return moe_reduce(device, bucket);
    }
    int rc = 0;
    switch (inject->fault->kind) {
    case F_SKIP:
        return 0;
    case F_EXTRA:
        rc = moe_reduce(device, bucket);
        return rc ? rc : moe_reduce(device, bucket);
    case F_NAN:
        rc = moe_device_call(device, poison, &bucket->grad, sizeof(bucket->grad));
        return rc ? rc : moe_reduce(device, bucket);
    default:
        return moe_reduce(device, bucket);
    }
}
