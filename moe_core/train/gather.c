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

int gather_whole_new(const struct model *m, struct gather_whole *out)
{
    int64_t shares = 0, most = 0, whole[TENSOR_BUFFERS] = {0};
    *out = (struct gather_whole){.tensors = NULL};
    out->tensors = tensors_new(&m->shape, &out->count);
    for (int32_t i = 0; i < out->count && out->tensors != NULL; i++) {
        whole[out->tensors[i].buffer] += tensor_count(&out->tensors[i]);
    }
    for (int b = 0; b < TENSOR_BUFFERS; b++) {
        int64_t gathered = gather_elements(m->job, (enum tensor_buffer)b, buffer_count(m, (enum tensor_buffer)b));
        shares = gathered > shares ? gathered : shares;
        most = whole[b] > most ? whole[b] : most;
        out->elements[b] = whole[b];
    }
    out->whole = m->job->rank == 0 ? malloc((size_t)most * sizeof(*out->whole) + 1) : NULL;
    bool lacks = out->tensors == NULL || (m->job->rank == 0 && out->whole == NULL);
    int rc = lacks ? MOE_E_NOMEM : gather_room_new(m->job, shares, &out->room);
    if (rc != 0) {
        gather_whole_free(m, out);
    }
    return rc;
}

void gather_whole_free(const struct model *m, struct gather_whole *g)
{
    gather_room_free(m->job, &g->room);
    free(g->tensors);
    free(g->whole);
    *g = (struct gather_whole){.tensors = NULL};
}

int gather_buffer(const struct model *m, struct gather_whole *g, enum tensor_buffer buffer, const float *share,
                  double *out)
{
    int64_t mine = buffer_count(m, buffer);
    int rc = gather_shares(m, buffer, share, mine, &g->room);
    if (rc != 0 || out == NULL) {
        return rc;
    }
    for (int32_t i = 0; i < g->count; i++) {
        const struct tensor *t = &g->tensors[i];
        if (t->buffer == buffer) {
            gather_place(m->job, t, g->room.host + t->local_at, mine, g->whole + t->whole_at);
        }
    }
    for (int64_t i = 0; i < g->elements[buffer]; i++) {
        out[i] = (double)g->whole[i];
    }
    return 0;
}
