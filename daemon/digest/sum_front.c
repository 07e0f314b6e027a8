/*
 * sum_front.c: fronts, and those that wait for room: an agent moves from one child to another, and which of both is
 * heard of first is chance. To let the newer child take the members from the older one was rejected: whoever lies would
 * take those of all.
 */
#include "daemon/digest/sum_state.h"

#include "daemon/base/array.h"

#define WAITING    1024u                 /* fronts that wait for room */
#define WAITING_NS UINT64_C(10000000000) /* so long */

static void wait_for_room(struct roll_sum *sum, uint32_t child, const struct roll_digest_front *f)
{
    size_t i = 0;
    while (i < sum->waitings && (sum->waiting[i].child != child || sum->waiting[i].front.key != f->key)) {
        i++;
    }
    if (i < sum->waitings) {
        sum->waiting[i].front = *f;
    } else if (sum->waitings < WAITING && ROLL_GROW(sum->waiting, sum->waiting_room, sum->waitings + 1) == 0) {
        sum->waiting[sum->waitings++] = (struct roll_sum_waiting){.front = *f, .since_ns = sum->now_ns, .child = child};
    } else {
        sum->figures.refused++;
    }
}

/* BUSY: there is no room for its members. */
static int take_front(struct roll_sum *sum, uint32_t child, const struct roll_digest_front *f)
{
    if (f->size == 0 || f->members > f->size || f->low > f->high) {
        sum->figures.refused++;
        return ROLL_E_ARG;
    }
    struct roll_sum_level *c = roll_sum_level_of(sum, child, f->key);
    struct roll_sum_cell *cell = c ? roll_sum_cell_of(sum, c, child) : NULL;
    if (!cell) {
        return ROLL_E_NOMEM;
    }
    uint32_t others = c->members - cell->members;
    if (c->size != 0 && c->size != f->size) {
        sum->figures.refused++;
        return ROLL_E_ARG;
    }
    if (f->members > f->size - others) {
        return ROLL_E_BUSY;
    }
    c->size = f->size;
    c->members = others + f->members;
    cell->members = f->members;
    cell->low = f->low;
    cell->high = f->high;
    cell->hash = f->hash;
    cell->differs = f->differs;
    cell->gone = f->gone;
    cell->fronted = true;
    c->past = c->past && (f->gone || f->members == 0);
    c->moved = true;
    return 0;
}

void roll_sum_front_retry(struct roll_sum *sum, uint64_t now_ns)
{
    for (size_t i = sum->waitings; i-- > 0;) {
        struct roll_sum_waiting *w = &sum->waiting[i];
        if (w->expired) {
            continue;
        }
        if (take_front(sum, w->child, &w->front) != ROLL_E_BUSY) {
            *w = sum->waiting[--sum->waitings];
        } else if (now_ns - w->since_ns > WAITING_NS) { /* nobody has moved: these are more members than there can be */
            w->expired = true;
            sum->figures.refused++;
        }
    }
}

bool roll_sum_front_expired(struct roll_sum *sum, uint32_t child)
{
    bool any = false;
    for (size_t i = sum->waitings; i-- > 0;) {
        if (sum->waiting[i].child == child && sum->waiting[i].expired) {
            sum->waiting[i] = sum->waiting[--sum->waitings];
            any = true;
        }
    }
    return any;
}

void roll_sum_front_forget(struct roll_sum *sum, uint32_t child, uint64_t key)
{
    for (size_t i = sum->waitings; i-- > 0;) {
        if (sum->waiting[i].child == child && (key == 0 || sum->waiting[i].front.key == key)) {
            sum->waiting[i] = sum->waiting[--sum->waitings];
        }
    }
}

int roll_sum_front_take(struct roll_sum *sum, uint32_t child, const struct roll_digest_front *f)
{
    int err = take_front(sum, child, f);
    if (err == ROLL_E_BUSY) {
        wait_for_room(sum, child, f);
        return 0;
    }
    if (sum->waitings > 0) {
        roll_sum_front_forget(sum, child, f->key);
    }
    return err;
}
