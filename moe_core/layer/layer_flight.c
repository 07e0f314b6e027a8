/*
 * layer_flight.c: several microbatches of one layer between forward and backward, as pipelines have them (1F1B).
 *
 * What a step has is a struct moe_layer of its own, with its parts and their memory; the handle's is the first of them.
 * So nothing in the parts knows of microbatches, and one at a time costs nothing. A table of saved buffers, swapped
 * into the parts before each backward, was rejected: every part would have to list what it keeps, and a list that
 * forgets one buffer is a wrong gradient. Which of them a forward takes, and when one more is made (a collective),
 * follows from the order of forwards and backwards alone, which is the same on all ranks: agreements between ranks that
 * live in the parts stay between the same microbatches. Taking whatever place is free was rejected: a forward that was
 * dropped frees its place when this rank's garbage collector comes, and its peers' at another time, or never.
 */
#include "moe_core/layer/layer_state.h"

static bool same(const struct moe_step *a, const struct moe_step *b)
{
    return a->step == b->step && a->microbatch == b->microbatch && a->tag == b->tag;
}

/* Whether a microbatch waits for its backward. */
static bool waits(const moe_layer_t *l)
{
    return l->plan.used > 0 && layer_goes_back(l);
}

static int make_one_more(moe_layer_t *l, moe_layer_t **out)
{
    int rc = layer_make(l->device, &l->config, l, &l->flight[l->flying]);
    *out = l->flight[l->flying];
    l->flying += rc == 0;
    return rc;
}

/*
 * Finds the place of a forward: that of its own name, else one to which a backward came or need not come, else a new
 * one, else the one whose forward is longest ago and was dropped.
 */
static int find_place(moe_layer_t *l, const struct moe_step *step, moe_layer_t **out)
{
    *out = l;
    if (l->config.in_flight < 2) {
        return 0;
    }
    moe_layer_t *free = NULL, *first = NULL;
    int32_t waiting = 0;
    for (int32_t i = l->flying; i-- > 0;) {
        moe_layer_t *f = l->flight[i];
        free = f->due || f->dw_waits ? free : f;
        first = f->due && (first == NULL || f->began < first->began) ? f : first;
        waiting += waits(f) || f->dw_waits;
        if (f->due && same(&f->step, step)) {
            *out = f;
            return 0;
        }
    }
    if (free != NULL) {
        *out = free;
        return 0;
    }
    if (l->flying < l->config.in_flight) {
        return make_one_more(l, out);
    }
    if (first != NULL && !waits(first)) {
        *out = first;
        return 0;
    }
    return waiting == l->flying
               ? LAYER_FAIL(l, MOE_E_STATE,
                            "forward of one more microbatch while %d wait for their backward: raise in_flight", waiting)
               : LAYER_FAIL(l, MOE_E_STATE,
                            "forward of one more microbatch while %d wait for their backward, the oldest of %d places "
                            "among them, and the others were dropped without one: raise in_flight",
                            waiting, l->flying);
}

int moe_layer_forward(moe_layer_t *l, const struct moe_layer_weights *weights, const struct moe_step *step,
                      const void *x, int64_t tokens, void *y)
{
    moe_layer_t *f = NULL;
    int rc = find_place(l, step, &f);
    if (rc != 0) {
        return rc;
    }
    /* Agreements are the layer's: a place that is new, or was long not used, knows only of older ones. */
    moe_dispatcher_follow(f->dispatcher, f != l->last ? l->last->dispatcher : NULL);
    l->last = f;
    f->began = ++l->turn;
    rc = layer_forward(f, weights, step, x, tokens, y);
    f->due = rc == 0 && layer_goes_back(f);
    return rc;
}

static int go_back(moe_layer_t *l, const void *dy, void *dx)
{
    l->due = false;
    return layer_backward(l, dy, dx);
}

int moe_layer_backward_of(moe_layer_t *l, const struct moe_step *step, const void *dy, void *dx)
{
    moe_layer_t *one[] = {l}, **flight = l->flight != NULL ? l->flight : one;
    for (int32_t i = 0; i < (l->flight != NULL ? l->flying : 1); i++) {
        if (flight[i]->plan.used > 0 && same(&flight[i]->step, step)) {
            return go_back(flight[i], dy, dx);
        }
    }
    return LAYER_FAIL(l, MOE_E_STATE, "no forward of microbatch %u of step %u waits for its backward", step->microbatch,
                      step->step);
}

void moe_layer_drop(moe_layer_t *l, const struct moe_step *step)
{
    moe_layer_t *one[] = {l}, **flight = l->flight != NULL ? l->flight : one;
    for (int32_t i = 0; i < (l->flight != NULL ? l->flying : 1); i++) {
        if (flight[i]->plan.used > 0 && same(&flight[i]->step, step)) {
            layer_forget(flight[i]);
        }
    }
}

int moe_layer_backward(moe_layer_t *l, const void *dy, void *dx)
{
    moe_layer_t *only = l->flight == NULL ? l : l->last;
    int32_t waiting = 0;
    for (int32_t i = 0; i < l->flying; i++) {
        only = waits(l->flight[i]) ? l->flight[i] : only;
        waiting += waits(l->flight[i]);
    }
    return waiting < 2 ? go_back(only, dy, dx)
                       : LAYER_FAIL(l, MOE_E_STATE, "%d microbatches wait for their backward: say which", waiting);
}

/* The oldest whose backward_dw is due. */
static moe_layer_t *oldest(moe_layer_t *l)
{
    moe_layer_t *found = NULL;
    for (int32_t i = 0; i < l->flying; i++) {
        moe_layer_t *f = l->flight[i];
        if (f->dw_waits && (found == NULL || f->began < found->began)) {
            found = f;
        }
    }
    return found;
}

int moe_layer_backward_dw(moe_layer_t *l)
{
    moe_layer_t *next = l->flight != NULL ? oldest(l) : NULL;
    int rc = layer_backward_dw(next != NULL ? next : l);
    while (next != NULL && (next = oldest(l)) != NULL) { /* behind a failure, too: none is left that nobody can end */
        struct moe_failure first;
        moe_failure_keep(&first);
        int later = layer_backward_dw(next);
        if (rc != 0) {
            moe_failure_restore(&first);
        }
        rc = rc ? rc : later;
    }
    return rc;
}

int moe_layer_new(moe_device_t *device, const struct moe_layer_config *config, moe_layer_t **out)
{
    return layer_make(device, config, NULL, out);
}

void moe_layer_destroy(moe_layer_t **layer)
{
    moe_layer_t *l = *layer;
    if (l == NULL) {
        return;
    }
    for (int32_t i = l->flying; i-- > 1;) {
        layer_unmake(&l->flight[i]);
    }
    layer_unmake(layer);
}
