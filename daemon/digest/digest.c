/*
 * digest.c: the memory of a digest. Encoding stands apart, so that the pure parts can be tested without any bytes.
 */
#include "daemon/digest/digest.h"

#include "daemon/base/array.h"

#include <stdlib.h>
#include <string.h>

#define HINTS 256 /* that are kept to be told again */

void roll_digest_clear(struct roll_digest *d)
{
    d->fronts = d->windows = d->sums = d->likes = d->shares = d->hints = 0;
    d->short_of_memory = false;
}

void roll_digest_fini(struct roll_digest *d)
{
    free(d->front);
    free(d->window);
    free(d->messages);
    free(d->like);
    free(d->share);
    free(d->hint);
    *d = (struct roll_digest){0};
}

void roll_digest_add_front(struct roll_digest *d, const struct roll_digest_front *front)
{
    if (ROLL_GROW(d->front, d->front_room, d->fronts + 1) != 0) {
        d->short_of_memory = true;
        return;
    }
    d->front[d->fronts++] = *front;
}

void roll_digest_add_window(struct roll_digest *d, const struct roll_digest_window *window)
{
    if (ROLL_GROW(d->window, d->window_room, d->windows + 1) != 0) {
        d->short_of_memory = true;
        return;
    }
    d->window[d->windows++] = *window;
}

void roll_digest_add_messages(struct roll_digest *d, const struct roll_digest_messages *messages)
{
    if (ROLL_GROW(d->messages, d->sum_room, d->sums + 1) != 0) {
        d->short_of_memory = true;
        return;
    }
    d->messages[d->sums++] = *messages;
}

void roll_digest_add_like(struct roll_digest *d, const struct roll_digest_like *like)
{
    if (ROLL_GROW(d->like, d->like_room, d->likes + 1) != 0) {
        d->short_of_memory = true;
        return;
    }
    d->like[d->likes++] = *like;
}

void roll_digest_add_share(struct roll_digest *d, const struct roll_digest_share *share)
{
    if (ROLL_GROW(d->share, d->share_room, d->shares + 1) != 0) {
        d->short_of_memory = true;
        return;
    }
    d->share[d->shares++] = *share;
}

void roll_digest_add_hint(struct roll_digest *d, uint64_t key, enum roll_digest_why why, uint32_t seq)
{
    if (ROLL_GROW(d->hint, d->hint_room, d->hints + 1) != 0) {
        d->short_of_memory = true;
        return;
    }
    d->hint[d->hints++] = (struct roll_digest_hint){.key = key, .why = why, .seq = seq};
}

size_t roll_digest_leave_out(struct roll_digest *d, size_t rings)
{
    size_t fronts = 0, shares = 0;
    for (size_t i = 0; i < d->fronts; i++) {
        if (d->front[i].members <= rings) {
            d->front[fronts++] = d->front[i];
        }
    }
    for (size_t i = 0; i < d->shares; i++) {
        if (d->share[i].members <= rings) {
            d->share[shares++] = d->share[i];
        }
    }
    size_t out = d->fronts - fronts + d->shares - shares;
    d->fronts = fronts;
    d->shares = shares;
    return out;
}

void roll_digest_keep_hints(struct roll_digest *said, struct roll_digest *up, bool again)
{
    size_t new = up->hints;
    for (size_t i = 0; again && i < said->hints; i++) {
        const struct roll_digest_hint *h = &said->hint[i];
        roll_digest_add_hint(up, h->key, (enum roll_digest_why)h->why, h->seq);
    }
    for (size_t i = 0; i < new; i++) {
        const struct roll_digest_hint *h = &up->hint[i];
        if (said->hints == HINTS) {
            memmove(said->hint, said->hint + 1, (HINTS - 1) * sizeof(*h));
            said->hints--;
        }
        roll_digest_add_hint(said, h->key, (enum roll_digest_why)h->why, h->seq);
    }
}
