/*
 * like.c: see like.h. A place may stand in two slots, and takes the one that was filled longer ago: with one slot each
 * a table that is half full forgets every third place.
 *
 * A sum of shares may stand in one of eight. Whoever has told a share does not tell it again, so one that loses its
 * slot while its members tell theirs is never whole, and what is wrong with it is hinted at a step late or not at all.
 * With one slot each that befell one sum of a hundred already where four members told the 24 sums of some steps in one
 * look.
 */
#include "daemon/digest/like.h"

#include "daemon/base/array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDING 1e-4     /* as detect_numbers.c: the share of all absolute values that rounding may change */
#define PER_RANK 0x1p-24  /* and that each addition of the reduction may lose */
#define SMALLEST 1e-30    /* below this, sums lose more than a share of themselves */
#define LEANS    0.999999 /* the shares are added up in another order here: in doubt it is a hint */
#define WAYS     8u       /* slots in which a sum of shares may stand; a power of two */

static size_t slot_of(uint64_t key, uint64_t place, size_t slots)
{
    uint64_t x = (key ^ place) * 0x9e3779b97f4a7c15u;
    return (size_t)(x >> 32) & (slots - 1);
}

static int note_fresh(uint32_t **list, size_t *news, size_t *room, size_t at)
{
    int err = ROLL_GROW(*list, *room, *news + 1);
    if (!err) {
        (*list)[(*news)++] = (uint32_t)at;
    }
    return err;
}

/* places */

int roll_likes_take(struct roll_likes *t, const struct roll_digest_like *like, size_t slots)
{
    if (!t->slot) {
        t->slot = calloc(slots, sizeof(*t->slot));
        t->slots = t->slot ? slots : 0;
    }
    if (!t->slot) {
        return ROLL_E_NOMEM;
    }
    size_t at = slot_of(like->key, like->place, t->slots), other = at ^ 1;
    struct roll_like *s = NULL;
    for (size_t i = 0; i < 2 && !s; i++) {
        struct roll_like *one = &t->slot[i == 0 ? at : other];
        s = one->any && one->first.place == like->place && one->first.key == like->key ? one : NULL;
    }
    if (s) {
        bool news = s->first.hash != like->hash && !s->differs;
        s->differs = s->differs || news;
        return news;
    }
    const struct roll_like *a = &t->slot[at], *b = &t->slot[other];
    at = b->any && (!a->any || t->age - a->age > t->age - b->age) ? at : other;
    s = &t->slot[at];
    bool listed = s->fresh;
    *s = (struct roll_like){.first = *like, .age = ++t->age, .any = true, .fresh = true};
    return listed ? 0 : note_fresh(&t->fresh, &t->news, &t->room, at);
}

struct roll_like *roll_likes_next(struct roll_likes *t)
{
    while (t->news > 0) {
        struct roll_like *s = &t->slot[t->fresh[--t->news]];
        s->fresh = false;
        if (s->any && !s->told) {
            return s;
        }
    }
    return NULL;
}

void roll_likes_again(struct roll_likes *t)
{
    for (size_t i = 0; i < t->slots; i++) {
        struct roll_like *s = &t->slot[i];
        s->told = false;
        if (s->any && !s->fresh) {
            s->fresh = note_fresh(&t->fresh, &t->news, &t->room, i) == 0;
        }
    }
}

void roll_likes_fini(struct roll_likes *t)
{
    free(t->slot);
    free(t->fresh);
    *t = (struct roll_likes){0};
}

/* sums of shares */

/* The slot of a sum, or the one that it is to take: one that has nothing to wait for, else the one that has waited
 * longest. So members may be steps apart, and one that never comes holds no room for ever. */
static struct roll_share *share_slot(const struct roll_shares *t, uint64_t key, uint64_t place)
{
    size_t ways = t->slots < WAYS ? t->slots : WAYS, begin = slot_of(key, place, t->slots) & ~(ways - 1);
    struct roll_share *take = NULL;
    for (size_t i = 0; i < ways; i++) {
        struct roll_share *s = &t->slot[begin + i];
        bool idle = s->over || s->parts == 0, taken_idle = take && (take->over || take->parts == 0);
        if (s->parts != 0 && s->key == key && s->place == place) {
            return s;
        }
        if (!take || (idle != taken_idle ? idle : t->age - s->age > t->age - take->age)) {
            take = s;
        }
    }
    return take;
}

int roll_shares_take(struct roll_shares *t, uint32_t child, const struct roll_digest_share *share, size_t slots)
{
    if (!t->slot) {
        t->slot = calloc(slots, sizeof(*t->slot));
        t->slots = t->slot ? slots : 0;
    }
    if (!t->slot) {
        return ROLL_E_NOMEM;
    }
    size_t i = 0;
    struct roll_share *s = share_slot(t, share->key, share->place);
    if (s->key != share->key || s->place != share->place) {
        s->key = share->key;
        s->place = share->place;
        s->age = ++t->age;
        s->parts = 0;
        s->over = false;
    }
    while (i < s->parts && s->part[i].child != child) {
        i++;
    }
    if (i == s->parts && ROLL_GROW(s->part, s->room, s->parts + 1) != 0) {
        return ROLL_E_NOMEM;
    }
    s->over = s->over && i < s->parts; /* another child has come: what was told above is not all */
    s->parts += i == s->parts;
    s->part[i] = (struct roll_share_part){*share, child};
    if (!s->fresh && !s->over) {
        s->fresh = note_fresh(&t->fresh, &t->news, &t->room, (size_t)(s - t->slot)) == 0;
    }
    return 0;
}

struct roll_share *roll_shares_next(struct roll_shares *t, struct roll_digest_share *all)
{
    while (t->news > 0) {
        struct roll_share *s = &t->slot[t->fresh[--t->news]];
        s->fresh = false;
        if (s->over || s->parts == 0) {
            continue;
        }
        *all = s->part[0].said;
        for (size_t i = 1; i < s->parts; i++) {
            const struct roll_digest_share *one = &s->part[i].said;
            all->part += one->part;
            all->size += one->size;
            all->least = one->least < all->least ? one->least : all->least;
            all->most = one->most > all->most ? one->most : all->most;
            all->members = one->members < UINT32_MAX - all->members ? all->members + one->members : UINT32_MAX;
        }
        return s;
    }
    return NULL;
}

void roll_shares_again(struct roll_shares *t)
{
    for (size_t i = 0; i < t->slots; i++) {
        struct roll_share *s = &t->slot[i];
        s->over = false;
        if (s->parts != 0 && !s->fresh) {
            s->fresh = note_fresh(&t->fresh, &t->news, &t->room, i) == 0;
        }
    }
}

void roll_shares_fini(struct roll_shares *t)
{
    for (size_t i = 0; i < t->slots; i++) {
        free(t->slot[i].part);
    }
    free(t->slot);
    free(t->fresh);
    *t = (struct roll_shares){0};
}

bool roll_share_is_wrong(const struct roll_digest_share *all, uint32_t size)
{
    double bound = ((ROUNDING + PER_RANK * size) * all->size + SMALLEST) * LEANS;
    return size > 1 && all->least <= all->most &&
           (fabs(all->least - all->part) > bound || fabs(all->most - all->part) > bound);
}
