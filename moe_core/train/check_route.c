/*
 * check_route.c: gathers what each rank's routers chose, and puts it together for each data rank.
 *
 * With rows of 16 bits a token whose best experts nearly tie may go to another one than in the reference, and then its
 * gradients are others, though nothing is wrong. So the reference takes over the job's choice, and how far that is from
 * the best one is checked instead (ref_router.h, regret). With float32 rows the reference chooses for itself.
 */
#include "moe_core/train/check_route.h"

#include "moe_core/include/moe/error.h"

#include <stdlib.h>
#include <string.h>

static int64_t of_microbatch(const struct model *m)
{
    return m->shape.layers * m->options->tokens * m->options->topk;
}

static int64_t of_rank(const struct model *m)
{
    return m->options->microbatches * of_microbatch(m);
}

int64_t routing_at(const struct model *m, int32_t data_rank, uint32_t microbatch)
{
    return data_rank * of_rank(m) + microbatch * of_microbatch(m);
}

int routing_new(const struct model *m, struct routing *out)
{
    size_t ranks = (size_t)m->job->world_size, whole = (size_t)(m->job->data_size * of_rank(m)) * sizeof(*out->choice);
    *out = (struct routing){.choice = NULL};
    if (m->choice == NULL) {
        return 0;
    }
    int rc =
        moe_device_alloc(m->job->device, ranks * (size_t)of_rank(m) * sizeof(*out->gathered), (void **)&out->gathered);
    if (rc == 0 && m->job->rank == 0) {
        out->choice = malloc(whole + 1);
        out->kept = malloc(whole + 1);
        rc = out->choice != NULL && out->kept != NULL ? 0 : MOE_E_NOMEM;
    }
    if (rc != 0) {
        routing_free(m, out);
    }
    return rc;
}

void routing_free(const struct model *m, struct routing *r)
{
    moe_device_free(m->job->device, &r->gathered);
    free(r->choice);
    free(r->kept);
    *r = (struct routing){.choice = NULL};
}

/* The tokens of a data rank, of which each of `slices` ranks routed a part. */
static void put_together(const struct model *m, const int32_t *all, int32_t *out)
{
    const struct train_options *o = m->options;
    int64_t ranks_each = m->job->world_size / m->job->data_size, rows = o->microbatches * m->shape.layers;
    int64_t slices = options_replicate(o) && o->tp_mode == MOE_TP_SPLIT_TOKENS ? ranks_each : 1;
    int64_t row = o->tokens * o->topk, part = row / slices;
    for (int64_t d = 0; d < m->job->data_size; d++) {
        for (int64_t i = 0; i < rows * slices; i++) {
            int64_t r = i / slices, slice = i % slices;
            memcpy(out + d * of_rank(m) + r * row + slice * part, all + (d * ranks_each + slice) * of_rank(m) + r * row,
                   (size_t)part * sizeof(*out));
        }
    }
}

/* Every rank's choices, put together in `out`, where that is not NULL. */
static int gather(const struct model *m, struct routing *r, const int32_t *mine, int32_t *out)
{
    ncclResult_t nc = ncclAllGather(mine, r->gathered, (size_t)of_rank(m), ncclInt32, m->job->world,
                                    moe_device_stream(m->job->device));
    int rc = job_nccl_failed(m->job, "AllGather of the routing", nc) ? MOE_E_COMM : moe_device_sync(m->job->device);
    if (rc == 0 && out != NULL) {
        put_together(m, r->gathered, out);
    }
    return rc;
}

int routing_gather(const struct model *m, struct routing *r)
{
    int rc = r->gathered != NULL ? gather(m, r, m->choice, r->choice) : 0;
    return rc || r->gathered == NULL ? rc : gather(m, r, m->kept, r->kept);
}
