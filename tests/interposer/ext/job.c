/*
 * job.c: one rank of an MoE job that uses Transformer Engine and cuBLAS, not moe_core: `ext_job
 * calls|sick|healthy|empty[-v]`.
 *
 * calls: every kind of function once, for the records. The others train a few steps on hostnccl: dispatch, experts,
 * combine, and their backward. sick: in the last step the last rank leaves its experts out and goes on to the
 * gradients. empty: now and then the last rank has no rows and makes no product, but its backward is whole: healthy.
 * With "-v" after the word exchanges are all-to-all-vs as PyTorch makes them: sends and receives in a group, empty ones
 * left out.
 */
#include "tests/interposer/ext/stub.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS 5

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "ext_job: line %d: %s\n", __LINE__, #condition);                                           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static int rank, size;
static cudaStream_t stream;
static float *a, *b;

static ncclComm_t join(const char *name)
{
    char path[512], temporary[520];
    ncclUniqueId id;
    ncclComm_t comm;
    snprintf(path, sizeof(path), "%s/ext-%s.id", getenv("ROLLCALL_DIR"), name);
    snprintf(temporary, sizeof(temporary), "%s.new", path);
    FILE *f = NULL;
    if (rank == 0) {
        CHECK(ncclGetUniqueId(&id) == ncclSuccess && (f = fopen(temporary, "wb")) != NULL);
        CHECK(fwrite(&id, sizeof(id), 1, f) == 1 && fclose(f) == 0 && rename(temporary, path) == 0);
    } else {
        for (int i = 0; i < 500000 && (f = fopen(path, "rb")) == NULL; i++) {
            usleep(1000);
        }
        CHECK(f != NULL && fread(&id, sizeof(id), 1, f) == 1);
        fclose(f);
    }
    CHECK(ncclCommInitRank(&comm, size, id, rank) == ncclSuccess);
    return comm;
}

static void experts(size_t rows)
{
    struct stub_tensor part = {2, {rows, 16}, 6}, none = {2, {0, 16}, 6};
    void *in[3] = {&part, &none, &part};
    nvte_multi_tensor_gemm(P(1), in, P(3), P(4), P(5), 2 + rank % 2, true, false, true, P(6), false, true, 7, NULL);
}

static void every_call(void)
{
    struct stub_tensor part = {2, {10, 16}, 6}, none = {2, {0, 16}, 6}, grouped = {1, {9, 0}, 6};
    void *in[4] = {&part, &none, NULL, &part};
    int m[3] = {4, 4, 4}, n[3] = {7, 0, 5}, k[3] = {3, 3, 3}, sizes[3] = {1, 1, 2};
    nvte_multi_tensor_gemm(P(1), in, P(3), P(4), P(5), 4, true, false, true, P(6), false, true, 7, NULL);
    _Z29nvte_multi_stream_cublas_gemmPKPvS1_PS_S1_S2_ibbbS2_bbiP11CUstream_st(P(1), in, P(3), P(4), P(5), 1, true,
                                                                              false, true, P(6), false, true, 7, NULL);
    nvte_grouped_gemm(P(1), 2, &grouped, 4, P(5), P(6), P(7), P(8), P(9), P(10), P(11), NULL);
    _Z12nvte_permutePvS_S_S_S_S_S_iiiiP11CUstream_st(NULL, P(2), P(3), P(4), P(5), P(6), P(7), 8, 9, 10, 11, NULL);
    nvte_fused_topk_with_score_function_forward(P(1), 2, 3, 4, 5, 6, 7, 8.5f, 9, P(10), P(11), P(12), P(13), P(14));
    nvte_ep_dispatch(P(1), P(2), P(3), (struct stub_window){P(4), 5, P(6)}, 7.25);
    CHECK(cublasSgemmGroupedBatched(P(1), P(2), P(3), m, n, k, P(7), P(8), P(9), P(10), P(11), P(12), P(13), P(14), 3,
                                    sizes) == 13);
    for (int i = 0; i < 10; i++) { /* the first is recorded, nine are counted */
        CHECK(cublasGemmEx(P(1), 2, 3, 4, 5, 6, P(7), P(8), 14, 10, P(11), 12, 13, P(14), P(15), 16, 17, 18, 19) == 0);
    }
    void *dense = &part;
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    nvte_cublas_gemm(P(1), dense, P(3), P(4), P(5), true, false, true, P(6), true, false, 7, NULL);
    CHECK(stub_calls == 7);
}

static bool in_sends;

/* Exchanges rows. `starved` is the rank that gets none; `back`: the rows go back to where they came from. */
static void exchange(ncclComm_t ep, size_t count, int starved, bool back)
{
    if (!in_sends) {
        CHECK(ncclAlltoAll(a, b, count, ncclFloat32, ep, stream) == ncclSuccess);
        return;
    }
    CHECK(ncclGroupStart() == ncclSuccess);
    for (int peer = 0; peer < size; peer++) {
        if ((back ? rank : peer) != starved) {
            CHECK(ncclSend(a, count, ncclFloat32, peer, ep, stream) == ncclSuccess);
        }
        if ((back ? peer : rank) != starved) {
            CHECK(ncclRecv(b, count, ncclFloat32, peer, ep, stream) == ncclSuccess);
        }
    }
    CHECK(ncclGroupEnd() == ncclSuccess);
}

/* One step of training; experts run in forward and in backward where there are rows. */
static void train(const char *mode, int step, ncclComm_t ep, ncclComm_t dp)
{
    bool sick = strncmp(mode, "sick", 4) == 0 && step == STEPS - 1;
    bool empty = strncmp(mode, "empty", 5) == 0 && step % 2 == 1;
    int starved = sick || empty ? size - 1 : -1;
    bool rows = rank != starved;
    exchange(ep, 8, starved, false);
    if (rows) {
        experts(10 + (size_t)rank);
    }
    exchange(ep, 16, starved, true);
    if (rows || !sick) {
        exchange(ep, 32, starved, false);
        if (rows && in_sends) {
            experts(10 + (size_t)rank);
        }
        exchange(ep, 32, starved, true);
    }
    CHECK(ncclAllReduce(a, b, 64, ncclFloat32, ncclSum, dp, stream) == ncclSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    in_sends = strstr(argv[1], "-v") != NULL;
    rank = atoi(getenv("RANK"));
    size = atoi(getenv("WORLD_SIZE"));
    CHECK(cudaStreamCreate(&stream) == cudaSuccess);
    CHECK(cudaMalloc((void **)&a, 65536) == cudaSuccess && cudaMalloc((void **)&b, 65536) == cudaSuccess);
    ncclComm_t ep = join("ep"), dp = join("dp");
    if (strcmp(argv[1], "calls") == 0) {
        every_call();
    }
    for (int step = 0; step < STEPS && strcmp(argv[1], "calls") != 0; step++) {
        train(argv[1], step, ep, dp);
    }
    CHECK(ncclCommDestroy(ep) == ncclSuccess && ncclCommDestroy(dp) == ncclSuccess);
    return 0;
}
