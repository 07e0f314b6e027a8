/*
 * gather.c: gathers the ranks' shares as they lie, with an AllGather that knows nothing of slices, and puts the slices
 * in their places on the host.
 */
#include "moe_core/train/gather.h"

#include <stdlib.h>
#include <string.h>

ncclComm_t gather_comm(const struct job *job, enum tensor_buffer buffer)
{
    return buffer == TENSOR_EXPERTS ? job->block : buffer == TENSOR_SHARED ? job->tp : NULL;
}

static int ranks_of(const struct job *job, enum tensor_buffer buffer)
{
    return buffer == TENSOR_EXPERTS ? job->ep_size * job->parts : buffer == TENSOR_SHARED ? job->tp_size : 1;
}

float *gather_shares(const struct model *m, enum tensor_buffer buffer, const float *share, int64_t count)
{
    ncclComm_t comm = gather_comm(m->job, buffer);
    float *all = NULL, *out = NULL;
    size_t bytes = (size_t)(count * ranks_of(m->job, buffer)) * sizeof(float);
    if (moe_device_alloc(m->job->device, bytes, (void **)&all) != 0) {
        return NULL;
    }
    int rc = 0;
    if (comm == NULL) {
        rc = moe_device_copy(m->job->device, all, share, bytes);
    } else {
        ncclResult_t nc =
            ncclAllGather(share, all, (size_t)count, ncclFloat32, comm, moe_device_stream(m->job->device));
        rc = job_nccl_failed(m->job, "AllGather of parameters", nc);
    }
    out = malloc(bytes + 1);
    if (rc == 0 && out != NULL) {
        rc = moe_device_copy(m->job->device, out, all, bytes);
    }
    rc = moe_device_sync(m->job->device) != 0 || rc != 0;
    moe_device_free(m->job->device, &all);
    if (rc != 0) {
        free(out);
        out = NULL;
    }
    return out;
}

void gather_place(const struct job *job, const struct tensor *t, const float *shares, int64_t stride, float *to)
{
    for (int32_t rank = 0; rank < ranks_of(job, t->buffer); rank++) {
        int64_t block, column;
        tensor_place(t, job, rank, &block, &column);
        for (int64_t i = 0; i < tensor_runs(t); i++) {
            struct tensor_run run = tensor_run(t, block, column, i);
            memcpy(to + run.whole_at, shares + rank * stride + run.local_at, (size_t)run.count * sizeof(*to));
        }
    }
}

static int64_t buffer_count(const struct model *m, enum tensor_buffer buffer)
{
    return buffer == TENSOR_EXPERTS ? m->experts.count : buffer == TENSOR_SHARED ? m->shared.count : m->dense.count;
}

double *gather_buffer(const struct model *m, enum tensor_buffer buffer, const float *share)
{
    int32_t count = 0;
    int64_t elements = 0, mine = buffer_count(m, buffer);
    struct tensor *tensors = tensors_new(&m->shape, &count);
    float *shares = gather_shares(m, buffer, share, mine), *whole = NULL;
    for (int32_t i = 0; i < count; i++) {
        elements += tensors[i].buffer == buffer ? tensor_count(&tensors[i]) : 0;
    }
    whole = calloc((size_t)elements + 1, sizeof(*whole));
    double *out = calloc((size_t)elements + 1, sizeof(*out));
    bool good = tensors != NULL && shares != NULL && whole != NULL && out != NULL;
    for (int32_t i = 0; i < count && good; i++) {
        const struct tensor *t = &tensors[i];
        if (t->buffer == buffer) {
            gather_place(m->job, t, shares + t->local_at, mine, whole + t->whole_at);
        }
    }
    for (int64_t i = 0; i < elements && good; i++) {
        out[i] = (double)whole[i];
    }
    free(tensors);
    free(shares);
    free(whole);
    if (!good) {
        free(out);
        out = NULL;
    }
    return out;
}
