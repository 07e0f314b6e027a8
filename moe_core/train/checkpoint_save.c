/*
 * checkpoint_save.c: gathers one tensor at a time on all ranks, and rank 0 writes it.
 *
 * All memory is made before the first gather, and the ranks agree that each has it: a rank that finds none in the
 * middle would leave its peers in an AllGather. What rank 0 cannot write does not end the gathers either; all learn of
 * it when they are over.
 */
#include "moe_core/train/checkpoint_inside.h"

#include "moe_core/include/moe/error.h"
#include "moe_core/train/gather.h"

#include <stdlib.h>
#include <string.h>

/* What saving needs besides the file: made before the first gather. */
struct save_room {
    struct gather_room gather;
    float *whole;            /* rank 0: the largest tensor */
    struct ckpt_tensor *all; /* the tensors of the file, in order */
    int32_t count;
};

/* Errors: NOMEM. */
static int save_room_new(const struct checkpoint *c, struct save_room *room)
{
    int64_t shares = 0, whole = 0;
    for (int32_t i = 0; i < c->count; i++) {
        const struct tensor *t = &c->tensors[i];
        int64_t gathered = gather_elements(c->model->job, t->buffer, tensor_local_count(t));
        shares = gathered > shares ? gathered : shares;
        whole = tensor_count(t) > whole ? tensor_count(t) : whole;
    }
    *room = (struct save_room){.count = 0};
    room->all = checkpoint_describe_all(c, &room->count);
    if (c->model->job->rank == 0) {
        room->whole = malloc((size_t)whole * sizeof(*room->whole) + 1);
    }
    bool lacks = room->all == NULL || (c->model->job->rank == 0 && room->whole == NULL);
    return lacks ? MOE_E_NOMEM : gather_room_new(c->model->job, shares, &room->gather);
}

static void save_room_free(const struct checkpoint *c, struct save_room *room)
{
    gather_room_free(c->model->job, &room->gather);
    free(room->whole);
    free(room->all);
}

/* Gathers a tensor of one kind on all ranks; rank 0 writes it. *err: rank 0's, the first one stays. */
static int save_tensor(struct checkpoint *c, int kind, const struct tensor *t, struct save_room *room,
                       struct ckpt_out *out, int *err)
{
    const struct model *m = c->model;
    const float *share = checkpoint_array(checkpoint_params(m, t->buffer), kind) + t->local_at;
    int64_t mine = tensor_local_count(t);
    int rc = gather_shares(m, t->buffer, share, mine, &room->gather);
    if (rc == 0 && m->job->rank == 0 && *err == 0) {
        gather_place(m->job, t, room->gather.host, mine, room->whole);
        *err = ckpt_write(out, room->whole, tensor_count(t));
    }
    return rc;
}

/* Gathers and writes all tensors. *err: of rank 0's writing, which ends no gather. */
static int save_all(struct checkpoint *c, const char *name, const struct checkpoint_facts *f, struct save_room *room,
                    int *err)
{
    const struct model *m = c->model;
    struct ckpt_out out = {.folder = -1};
    const bool writes = m->job->rank == 0;
    int rc = 0;
    *err = writes ? ckpt_write_begin(&out, c->options->save, name, f->at, f->used, room->all, room->count) : 0;
    for (int kind = 0; kind < CHECKPOINT_KINDS && rc == 0; kind++) {
        for (int32_t i = 0; i < c->count && rc == 0; i++) {
            rc = save_tensor(c, kind, &c->tensors[i], room, &out, err);
        }
    }
    if (writes && *err == 0 && m->expert_bias != NULL) {
        *err = ckpt_write(&out, m->expert_bias, m->shape.layers * m->shape.experts);
    }
    if (writes && *err == 0 && rc == 0) {
        *err = ckpt_write_end(&out);
    }
    ckpt_write_abort(&out);
    return rc;
}

int checkpoint_save(struct checkpoint *c, uint32_t step)
{
    const char *folder = c->options->save;
    struct checkpoint_facts f = checkpoint_facts_of(c, step);
    struct save_room room;
    char name[64];
    int err = 0, lacks = save_room_new(c, &room);
    snprintf(name, sizeof(name), "step-%08u.safetensors", step);
    if (lacks != 0) {
        fprintf(stderr, "moe_train: --save: rank %d has no memory to gather %s/%s; older files there are whole\n",
                c->model->job->rank, folder, name);
    }
    int rc = checkpoint_all_good(c, lacks != 0);
    rc = rc ? rc : save_all(c, name, &f, &room, &err);
    if (err != 0) {
        fprintf(stderr, "moe_train: --save: %s/%s cannot be written: %s; older files there are whole\n", folder, name,
                strerror(-err));
    }
    save_room_free(c, &room);
    return rc ? rc : checkpoint_all_good(c, err != 0);
}
