/*
 * job_mpi.c: a job that mpirun starts: MPI carries the unique id and the barriers of the host, NCCL the data.
 *
 * The job has no RANK unless the test sets one: rollcall must take ranks from Open MPI's own variables. MPI_Abort is
 * the job's way out.
 */
#include "tests/jobs/plan.h"

#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>

#define MOST_ELEMENTS 512

static void check(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "job: %s failed\n", what);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static double reduce_layer(ncclComm_t comm, cudaStream_t stream, size_t count, float value)
{
    static float send[MOST_ELEMENTS], recv[MOST_ELEMENTS];
    double total = 0;
    for (size_t i = 0; i < count; i++) {
        send[i] = value;
    }
    check(ncclAllReduce(send, recv, count, ncclFloat32, ncclSum, comm, stream) == ncclSuccess, "ncclAllReduce");
    check(cudaStreamSynchronize(stream) == cudaSuccess, "cudaStreamSynchronize");
    for (size_t i = 0; i < count; i++) {
        total += (double)recv[i];
    }
    return total;
}

static double train_step(const struct plan *plan, ncclComm_t comm, cudaStream_t stream, int step)
{
    double total = 0;
    for (int layer = 0; layer < PLAN_LAYERS; layer++) {
        size_t count = plan_layer[layer];
        if (layer == 1 && plan_mistake(plan, step, "skip")) {
            continue;
        }
        if (layer == 1 && plan_mistake(plan, step, "size")) {
            count -= 8;
        }
        if (layer == 1 && plan_mistake(plan, step, "extra")) {
            reduce_layer(comm, stream, 40, 1);
        }
        total += reduce_layer(comm, stream, count, (float)(plan->rank + step + layer));
    }
    return total;
}

int main(int argc, char **argv)
{
    struct plan plan = {0};
    ncclUniqueId id;
    ncclComm_t comm;
    cudaStream_t stream;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &plan.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &plan.size);
    plan_begin(&plan);
    if (plan.rank == 0) {
        check(ncclGetUniqueId(&id) == ncclSuccess, "ncclGetUniqueId");
    }
    MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD);
    check(cudaStreamCreate(&stream) == cudaSuccess, "cudaStreamCreate");
    check(ncclCommInitRank(&comm, plan.size, id, plan.rank) == ncclSuccess, "ncclCommInitRank");
    double total = 0;
    for (int step = 0; step < PLAN_STEPS; step++) {
        total += train_step(&plan, comm, stream, step);
        if (plan.rank == 0) {
            printf("step %d total %.1f\n", step, total);
            fflush(stdout);
        }
    }
    ncclCommDestroy(comm);
    MPI_Finalize();
    return 0;
}
