/*
 * refusing.h: a host back end whose products refuse empty groups, as some grouped GEMMs do (Megatron-LM #4851).
 *
 * On the plain host back end an expert without rows is no trouble, so a test of dummy rows passes there with and
 * without them. The refusal happens in the stream, where the counts are, and is an error of moe_device_sync, as that of
 * a kernel would be. What the product itself would give is given as well: a refusal is seen by its code alone.
 */
#ifndef ROLL_TESTS_MOE_CORE_REFUSING_H
#define ROLL_TESTS_MOE_CORE_REFUSING_H

#include "moe_core/base/device.h"
#include "tests/moe_core/support.h"

#include <stdatomic.h>

/* NOTHING: empty groups are allowed. ALL: a product of no rows at all is refused. ANY: one of an empty group, too. */
enum refusing { REFUSE_NOTHING, REFUSE_ALL, REFUSE_ANY };

static struct refusing_state {
    _Atomic int how;
    _Atomic bool refused;
    _Atomic int products;             /* calls of `linear` */
    _Atomic int spread, moved;        /* calls of dummy_rows and of pick_rows: what the device form is made of */
    _Atomic int cleared;              /* of zero_slack */
    const struct moe_backend *behind; /* the plain host back end */
} refusing_state;

struct refusing_counts {
    int64_t groups;
    const int64_t *m;
};

static inline void refusing_look(void *data)
{
    struct refusing_counts *c = data;
    int64_t empty = 0;
    for (int64_t i = 0; i < c->groups; i++) {
        empty += c->m[i] == 0;
    }
    int how = atomic_load(&refusing_state.how);
    if ((how == REFUSE_ALL && empty == c->groups) || (how == REFUSE_ANY && empty > 0)) {
        atomic_store(&refusing_state.refused, true);
    }
    free(c);
}

static inline int refusing_linear(moe_device_t *device, const struct moe_linear_pass *pass)
{
    struct refusing_counts *c = malloc(sizeof(*c));
    *c = (struct refusing_counts){pass->groups, pass->m};
    atomic_fetch_add(&refusing_state.products, 1);
    if (cudaLaunchHostFunc(device->stream, refusing_look, c) != cudaSuccess) {
        free(c);
        return MOE_E_DEVICE;
    }
    return refusing_state.behind->ops()->linear(device, pass);
}

static inline int refusing_dummy_rows(moe_device_t *device, const struct moe_dummy_rows *rows)
{
    atomic_fetch_add(&refusing_state.spread, 1);
    return refusing_state.behind->ops()->dummy_rows(device, rows);
}

static inline int refusing_pick_rows(moe_device_t *device, const struct moe_pick_rows *rows)
{
    atomic_fetch_add(&refusing_state.moved, 1);
    return refusing_state.behind->ops()->pick_rows(device, rows);
}

static inline int refusing_zero_slack(moe_device_t *device, const struct moe_zero_slack *slack)
{
    atomic_fetch_add(&refusing_state.cleared, 1);
    return refusing_state.behind->ops()->zero_slack(device, slack);
}

static inline const struct moe_ops *refusing_ops(void)
{
    static struct moe_ops ops;
    ops = *refusing_state.behind->ops();
    ops.linear = refusing_linear;
    ops.dummy_rows = refusing_dummy_rows;
    ops.pick_rows = refusing_pick_rows;
    ops.zero_slack = refusing_zero_slack;
    return &ops;
}

static inline cudaError_t refusing_sync(moe_device_t *device, int *error)
{
    cudaError_t err = refusing_state.behind->sync(device, error);
    bool refused = atomic_exchange(&refusing_state.refused, false);
    *error = *error == 0 && refused ? MOE_E_SHAPE : *error;
    return err;
}

/* From now on the device's products refuse what `how` says, and its calls are counted from 0. One device at a time. */
static inline void refuse(moe_device_t *device, enum refusing how)
{
    static struct moe_backend backend;
    if (device->backend != &backend) {
        refusing_state.behind = device->backend;
        backend = *device->backend;
        backend.ops = refusing_ops;
        backend.sync = refusing_sync;
        device->backend = &backend;
    }
    atomic_store(&refusing_state.how, (int)how);
    atomic_store(&refusing_state.refused, false);
    atomic_store(&refusing_state.products, 0);
    atomic_store(&refusing_state.spread, 0);
    atomic_store(&refusing_state.moved, 0);
    atomic_store(&refusing_state.cleared, 0);
}

#endif
