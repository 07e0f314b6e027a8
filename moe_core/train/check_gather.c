/*
 * check_gather.c: gathers the ranks' shares as they lie, with one AllGather for a whole buffer that knows nothing of
 * slices, and puts the slices in their places afterwards.
 */
#include "moe_core/train/check_gather.h"

#include <stdlib.h>
#include <string.h>

/* Gathers every rank's share, one after the other: [ranks, count] floats on the host; owned, NULL on failure. */
static float *gather(const struct model *m, const float *share, int64_t count, ncclComm_t comm)
{
    int ranks = 1;
    float *all = NULL, *out = NULL;
    if (comm != NULL && ncclCommCount(comm, &ranks) != ncclSuccess) {
        return NULL;
    }
    size_t bytes = (size_t)(count * ranks) * sizeof(float);
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

/* Puts a part [rows, columns] into its place in a whole [.., all_columns], widened. */
static const float *place(double *to, const float *from, int64_t rows, int64_t columns, int64_t all_columns)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < columns; c++) {
            to[r * all_columns + c] = (double)*from++;
        }
    }
    return from;
}

double *check_gather_experts(const struct model *m, const float *share)
{
    const struct shape *s = &m->shape;
    struct share local = share_local(s), all = share_all(s);
    int64_t mine = shape_w1(s, local, s->layers), whole = shape_w1(s, all, s->layers), f = s->local_ffn, h = s->hidden;
    int32_t parts = m->job->parts, ranks = m->job->ep_size * parts;
    float *shares = gather(m, share, mine, m->job->block);
    double *out = calloc((size_t)whole + 1, sizeof(*out));
    for (int32_t r = 0; shares != NULL && out != NULL && r < ranks; r++) {
        const float *from = shares + (int64_t)r * mine;
        int64_t first = r / parts * s->local, column = r % parts * f;
        for (int64_t l = 0; l < s->layers; l++) {
            for (int64_t i = first; i < first + s->local; i++) {
                double *w1 = out + shape_w1(s, all, l) + i * 2 * s->ffn * h;
                from = place(w1 + column * h, from, f, h, h);
                from = place(w1 + (s->ffn + column) * h, from, f, h, h);
            }
            for (int64_t i = first; i < first + s->local; i++) {
                from = place(out + shape_w2(s, all, l) + i * h * s->ffn + column, from, h, f, s->ffn);
            }
            for (int64_t i = first; i < first + s->local && s->bias; i++) {
                double *b1 = out + shape_b1(s, all, l) + i * 2 * s->ffn;
                from = place(b1 + column, from, 1, f, f);
                from = place(b1 + s->ffn + column, from, 1, f, f);
            }
            for (int64_t i = first; i < first + s->local && s->bias; i++) {
                from = place(out + shape_b2(s, all, l) + i * h, from, 1, h, h);
            }
        }
    }
    if (shares == NULL) {
        free(out);
        out = NULL;
    }
    free(shares);
    return out;
}

double *check_gather_shared(const struct model *m, const float *share)
{
    const struct shape *s = &m->shape;
    int64_t f = s->local_shared, h = s->hidden, mine = shape_shared_w1(s, f, s->layers);
    double *out = calloc((size_t)shape_shared_w1(s, s->shared, s->layers) + 1, sizeof(*out));
    float *shares = gather(m, share, mine, m->job->tp);
    for (int32_t r = 0; shares != NULL && out != NULL && r < m->job->tp_size; r++) {
        const float *from = shares + r * mine;
        int64_t column = r * f;
        for (int64_t l = 0; l < s->layers && s->shared > 0; l++) {
            double *w1 = out + shape_shared_w1(s, s->shared, l), *b1 = out + shape_shared_b1(s, s->shared, l);
            from = place(w1 + column * h, from, f, h, h);
            from = place(w1 + (s->shared + column) * h, from, f, h, h);
            from = place(out + shape_shared_w2(s, s->shared, l) + column, from, h, f, s->shared);
            if (s->bias) {
                from = place(b1 + column, from, 1, f, f);
                from = place(b1 + s->shared + column, from, 1, f, f);
                from = place(out + shape_shared_b2(s, s->shared, l), from, 1, h, h);
            }
        }
    }
    if (shares == NULL) {
        free(out);
        out = NULL;
    }
    free(shares);
    return out;
}
