/*
 * layer_memory.c: what a layer holds of the device's pool, and when it goes back.
 *
 * The parts take and give their own memory; this file says when a forward or a backward is over, which only the layer
 * knows. What a forward leaves belongs to its backward: where none follows (inference, a refused forward), or where the
 * forward will run again (recompute), it goes back at once. Freeing at the next forward instead, as autograd's graph
 * does when it is dropped, would let every layer of a model keep its last rows.
 */
#include "moe_core/base/memory.h"

#include "moe_core/layer/layer_state.h"

#include <string.h>

static bool stands(const moe_layer_t *l)
{
    return l->dispatcher != NULL && moe_dispatcher_standing(l->dispatcher);
}

int layer_take(moe_layer_t *l, size_t bytes, size_t most, void *at)
{
    void *memory = NULL;
    memcpy(&memory, at, sizeof(memory));
    if (!stands(l)) {
        return moe_pool_take(l->device, bytes, at);
    }
    return memory == NULL ? moe_device_alloc(l->device, most, at) : 0;
}

void layer_give(moe_layer_t *l, void *at)
{
    if (!stands(l)) {
        moe_pool_give(l->device, at);
    }
}

int layer_stand(moe_layer_t *l)
{
    size_t wide = (size_t)(l->own_max * l->config.hidden) * sizeof(float),
           rows = (size_t)l->own_max * layer_row_bytes(l);
    if (!stands(l)) {
        return 0;
    }
    int rc = layer_f32(l) ? 0 : layer_take(l, 0, wide, &l->x32);
    rc = rc || layer_f32(l) ? rc : layer_take(l, 0, wide, &l->dx32);
    rc = rc || layer_f32(l) ? rc : layer_take(l, 0, rows, &l->d_input);
    return rc || !l->config.recompute
               ? rc
               : layer_take(l, 0, (size_t)l->config.max_tokens * layer_row_bytes(l), &l->y_again);
}

void layer_release_rows(moe_layer_t *l)
{
    moe_experts_release(l->experts);
    moe_dummy_release(l->dummy);
    moe_dispatcher_release(l->dispatcher);
}

void layer_release(moe_layer_t *l)
{
    layer_release_rows(l);
    layer_give(l, &l->x32);
    layer_give(l, &l->dx32);
    layer_give(l, &l->d_input);
    layer_give(l, &l->y_again);
}

void layer_free_memory(moe_layer_t *l)
{
    void *memory[] = {&l->x32, &l->dx32, &l->d_input, &l->y_again};
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
        if (stands(l)) {
            moe_device_free(l->device, memory[i]);
        } else {
            moe_pool_give(l->device, memory[i]);
        }
    }
}
