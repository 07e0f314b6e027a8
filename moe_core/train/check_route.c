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

/* Every rank's choices on the host, [ranks, of_rank]; owned, NULL on failure. */
static int32_t *gather(const struct model *m, const int32_t *mine)
{
    int32_t *all = NULL, *out = NULL;
    size_t bytes = (size_t)(of_rank(m) * m->job->world_size) * sizeof(*out);
    if (moe_device_alloc(m->job->device, bytes, (void **)&all) != 0) {
        return NULL;
    }
    ncclResult_t nc =
        ncclAllGather(mine, all, (size_t)of_rank(m), ncclInt32, m->job->world, moe_device_stream(m->job->device));
    bool good = !job_nccl_failed(m->job, "AllGather of the routing", nc) && moe_device_sync(m->job->device) == 0;
    out = good ? malloc(bytes) : NULL;
    if (out != NULL) {
        memcpy(out, all, bytes);
    }
    moe_device_free(m->job->device, &all);
    return out;
}

/* The tokens of a data rank, of which each of `slices` ranks routed a part. */
static int32_t *put_together(const struct model *m, const int32_t *all)
{
    const struct train_options *o = m->options;
    int64_t ranks_each = m->job->world_size / m->job->data_size, rows = o->microbatches * m->shape.layers;
    int64_t slices = options_replicate(o) && o->tp_mode == MOE_TP_SPLIT_TOKENS ? ranks_each : 1;
    int64_t row = o->tokens * o->topk, part = row / slices;
    int32_t *out = malloc((size_t)(m->job->data_size * of_rank(m)) * sizeof(*out));
    for (int64_t d = 0; d < m->job->data_size && out != NULL; d++) {
        for (int64_t i = 0; i < rows * slices; i++) {
            int64_t r = i / slices, slice = i % slices;
            memcpy(out + d * of_rank(m) + r * row + slice * part, all + (d * ranks_each + slice) * of_rank(m) + r * row,
                   (size_t)part * sizeof(*out));
        }
    }
    return out;
}

int routing_gather(const struct model *m, struct routing *out)
{
    *out = (struct routing){.choice = NULL};
    if (m->choice == NULL) {
        return 0;
    }
    int32_t *choice = gather(m, m->choice), *kept = gather(m, m->kept);
    int rc = choice != NULL && kept != NULL ? 0 : MOE_E_COMM;
    if (rc == 0 && m->job->rank == 0) {
        out->choice = put_together(m, choice);
        out->kept = put_together(m, kept);
        rc = out->choice != NULL && out->kept != NULL ? 0 : MOE_E_NOMEM;
    }
    free(choice);
    free(kept);
    return rc;
}

void routing_free(struct routing *r)
{
    free(r->choice);
    free(r->kept);
    *r = (struct routing){.choice = NULL};
}
