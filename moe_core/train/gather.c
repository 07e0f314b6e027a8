/*
 * gather.c: gathers the ranks' shares as they lie, with an AllGather that knows nothing of slices, and puts the slices
 * in their places on the host.
 */
#include "moe_core/train/gather.h"

#include "moe_core/include/moe/error.h"

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

int64_t gather_elements(const struct job *job, enum tensor_buffer buffer, int64_t count)
{
    return count * ranks_of(job, buffer);
}

int gather_room_new(const struct job *job, int64_t most, struct gather_room *out)
{
    size_t bytes = (size_t)most * sizeof(float);
    *out = (struct gather_room){.most = most};
    int rc = moe_device_alloc(job->device, bytes, (void **)&out->device);
    out->host = rc == 0 ? malloc(bytes + 1) : NULL;
    if (out->host == NULL) {
        gather_room_free(job, out);
        return MOE_E_NOMEM;
    }
    return 0;
}

void gather_room_free(const struct job *job, struct gather_room *room)
{
    moe_device_free(job->device, &room->device);
    free(room->host);
    *room = (struct gather_room){.most = 0};
}

int gather_shares(const struct model *m, enum tensor_buffer buffer, const float *share, int64_t count,
                  struct gather_room *room)
{
    const struct job *job = m->job;
    ncclComm_t comm = gather_comm(job, buffer);
    size_t bytes = (size_t)gather_elements(job, buffer, count) * sizeof(float);
    int rc = 0;
    if (comm == NULL) {
        rc = moe_device_copy(job->device, room->device, share, bytes);
    } else {
        ncclResult_t nc =
            ncclAllGather(share, room->device, (size_t)count, ncclFloat32, comm, moe_device_stream(job->device));
        rc = job_nccl_failed(job, "AllGather of parameters", nc) ? MOE_E_COMM : 0;
    }
    rc = rc ? rc : moe_device_copy(job->device, room->host, room->device, bytes);
    int waited = moe_device_sync(job->device);
    return rc ? rc : waited;
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
    struct gather_room room = {.most = 0};
    float *whole = NULL;
    bool gathered = gather_room_new(m->job, gather_elements(m->job, buffer, mine), &room) == 0 &&
                    gather_shares(m, buffer, share, mine, &room) == 0;
    for (int32_t i = 0; i < count; i++) {
        elements += tensors[i].buffer == buffer ? tensor_count(&tensors[i]) : 0;
    }
    whole = calloc((size_t)elements + 1, sizeof(*whole));
    double *out = calloc((size_t)elements + 1, sizeof(*out));
    bool good = tensors != NULL && gathered && whole != NULL && out != NULL;
    for (int32_t i = 0; i < count && good; i++) {
        const struct tensor *t = &tensors[i];
        if (t->buffer == buffer) {
            gather_place(m->job, t, room.host + t->local_at, mine, whole + t->whole_at);
        }
    }
    for (int64_t i = 0; i < elements && good; i++) {
        out[i] = (double)whole[i];
    }
    free(tensors);
    gather_room_free(m->job, &room);
    free(whole);
    if (!good) {
        free(out);
        out = NULL;
    }
    return out;
}
