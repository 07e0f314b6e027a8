/*
 * sum.c: see sum.h.
 *
 * A window needs no count of who has filled it: what a child tells of one is compared at once with what was told of it
 * first, and the fronts say who has got past it. To count members by hash was rejected: a message that comes twice
 * would be counted twice, and each level would have to remember who has told what.
 */
#include "daemon/digest/sum.h"

#include "daemon/base/array.h"
#include "daemon/base/map.h"
#include "daemon/digest/like.h"
#include "daemon/digest/points.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WINDOWS_MOST (UINT32_MAX / ROLL_DIGEST_WINDOW) /* a higher number than collectives can have */
#define LIKES        (1u << 14) /* places of which is remembered what was told first: 1 MiB, when there are any */
#define SHARES       (1u << 11) /* sums of shares that may be under way */
#define WAITING      1024u      /* fronts that wait for room */
#define WAITING_NS   UINT64_C(10000000000) /* so long */
#define FORGET_NS    UINT64_C(1000000000)  /* between two looks for what may be forgotten */
#define CELLS        (1u << 22)            /* communicators of all children together: 700 MiB; a child may be hostile */
#define OPEN         128u /* windows of a communicator that are remembered: its members may be 8,192 calls apart */

/* What one child tells of one communicator. */
struct cell {
    uint64_t hash;
    uint64_t sum[ROLL_DIGEST_CLASSES];
    uint32_t child, members, low, high;
    uint32_t ahead; /* `high` of the newest front, taken or not */
    bool fronted;   /* the child has told a front of it: it has members, or has had some */
    bool differs, gone;
};

/* A front for which there was no room, because another child still speaks for its members: an agent has moved, and both
 * are heard of in any order. */
struct waiting {
    struct roll_digest_front front;
    uint64_t since_ns;
    uint32_t child;
    bool expired; /* it was refused, which its sender's next digest is answered with */
};

/* The hash that was told first of a window. */
struct first {
    uint64_t hash;
    uint32_t window; /* its number + 1; 0: nothing was told */
    bool differs;    /* that other calls were made there was told */
};

struct level {
    uint64_t key;
    struct cell *cell; /* owned */
    size_t cells, room;
    struct first first[OPEN];
    struct roll_points points;
    uint64_t sum[ROLL_DIGEST_CLASSES];   /* of messages: of all cells */
    uint64_t known[ROLL_DIGEST_CLASSES]; /* what the sums were when somebody was told that they are not zero */
    uint64_t low_since_ns, sums_since_ns;
    uint64_t told_ns; /* when a child told something of it last */
    uint64_t hash;
    uint32_t size, members, low, high;
    uint32_t judged;   /* windows below it are done or passed on */
    uint32_t pointed;  /* how far the first member was when a check point was passed on */
    uint32_t differed; /* the window of which was told last that calls in it differ; its number + 1 */
    uint32_t stands;   /* that the last member stands at this call has been told; its number + 1 */
    uint32_t alike;    /* the same of all members, at one call and not alike */
    bool differs, moved, sums_moved;
    bool over;  /* no member that is known uses it any more */
    bool past;  /* and none did when it was first heard of: who is not heard of need not come any more */
    bool apart; /* it is judged here, and the level above was told that its members stand apart */
    bool told;  /* the level above believes that it has to judge this communicator */
};

struct roll_sum {
    struct roll_sum_config config;
    struct level *level; /* owned */
    size_t levels, room;
    struct roll_map at;   /* key of a communicator -> its number */
    struct roll_map cell; /* cell_key -> number of the cell */
    struct roll_likes likes;
    struct roll_shares shares;
    struct roll_digest hints;
    struct waiting *waiting; /* owned */
    size_t waitings, waiting_room;
    uint64_t now_ns, forgot_ns;
    struct roll_sum_figures figures;
};

roll_sum_t *roll_sum_new(const struct roll_sum_config *config)
{
    roll_sum_t *sum = calloc(1, sizeof(*sum));
    if (sum) {
        sum->config = *config;
        sum->config.most = config->most ? config->most : 1u << 17;
    }
    return sum;
}

void roll_sum_destroy(roll_sum_t **pointer)
{
    roll_sum_t *sum = *pointer;
    if (!sum) {
        return;
    }
    for (size_t i = 0; i < sum->levels; i++) {
        free(sum->level[i].cell);
    }
    free(sum->level);
    roll_map_fini(&sum->at);
    roll_map_fini(&sum->cell);
    roll_likes_fini(&sum->likes);
    roll_shares_fini(&sum->shares);
    roll_digest_fini(&sum->hints);
    free(sum->waiting);
    free(sum);
    *pointer = NULL;
}

/* The communicator with this key, which is made if it is new; NULL: no memory. */
static struct level *level_of(struct roll_sum *sum, uint64_t key)
{
    uint32_t at = roll_map_get(&sum->at, key);
    if (at != ROLL_MAP_NONE) {
        sum->level[at].told_ns = sum->now_ns;
        return &sum->level[at];
    }
    if (sum->levels == sum->config.most) {
        sum->figures.refused++;
        return NULL;
    }
    if (ROLL_GROW(sum->level, sum->room, sum->levels + 1) != 0 ||
        roll_map_add(&sum->at, key, (uint32_t)sum->levels) != 0) {
        return NULL;
    }
    struct level *c = &sum->level[sum->levels++];
    memset(c, 0, sizeof(*c));
    c->key = key;
    c->told_ns = sum->now_ns;
    c->past = true;
    sum->figures.comms++;
    return c;
}

static uint64_t cell_key(uint64_t key, uint32_t child)
{
    uint64_t x = (key ^ ((uint64_t)child + 1) * 0x9e3779b97f4a7c15u) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

/* What the child has told of the communicator; NULL: nothing. */
static struct cell *known_cell(const struct roll_sum *sum, const struct level *c, uint32_t child)
{
    uint64_t hash = cell_key(c->key, child);
    size_t step = 0;
    for (uint32_t i; (i = roll_map_each(&sum->cell, hash, &step)) != ROLL_MAP_NONE;) {
        if (i < c->cells && c->cell[i].child == child) {
            return &c->cell[i];
        }
    }
    return NULL;
}

/* The same, made if there is nothing; NULL: no memory. */
static struct cell *cell_of(struct roll_sum *sum, struct level *c, uint32_t child)
{
    struct cell *known = known_cell(sum, c, child);
    uint64_t hash = cell_key(c->key, child);
    if (known) {
        return known;
    }
    if (sum->figures.cells == CELLS) {
        sum->figures.refused++;
        return NULL;
    }
    if (ROLL_GROW(c->cell, c->room, c->cells + 1) != 0 || roll_map_add(&sum->cell, hash, (uint32_t)c->cells) != 0) {
        return NULL;
    }
    c->cell[c->cells] = (struct cell){.child = child};
    sum->figures.cells++;
    return &c->cell[c->cells++];
}

static void hint(struct roll_sum *sum, uint64_t key, enum roll_digest_why why, uint32_t seq)
{
    roll_digest_add_hint(&sum->hints, key, why, seq);
}

static void drop_level(struct roll_sum *sum, size_t at)
{
    struct level *c = &sum->level[at];
    size_t last = --sum->levels;
    for (size_t i = 0; i < c->cells; i++) {
        roll_map_remove(&sum->cell, cell_key(c->key, c->cell[i].child), (uint32_t)i);
    }
    sum->figures.cells -= (uint32_t)c->cells;
    sum->figures.comms--;
    sum->figures.forgotten++;
    free(c->cell);
    roll_map_remove(&sum->at, c->key, (uint32_t)at);
    if (at != last) {
        roll_map_renumber(&sum->at, sum->level[last].key, (uint32_t)last, (uint32_t)at);
        *c = sum->level[last];
    }
}

/* taking */

/* What the child speaks of: a communicator of which it has told a front. NULL: it has not, so it lies. */
static struct cell *spoken_cell(struct roll_sum *sum, uint32_t child, uint64_t key, struct level **c)
{
    uint32_t at = roll_map_get(&sum->at, key);
    *c = at != ROLL_MAP_NONE ? &sum->level[at] : NULL;
    struct cell *cell = *c ? known_cell(sum, *c, child) : NULL;
    if (!cell || !cell->fronted) {
        sum->figures.refused++;
        return NULL;
    }
    (*c)->told_ns = sum->now_ns;
    return cell;
}

/* The members of the communicator that are heard of are all of it, and none is the child's. */
static bool is_elsewhere(const struct roll_sum *sum, uint32_t child, uint64_t key)
{
    uint32_t at = key ? roll_map_get(&sum->at, key) : ROLL_MAP_NONE;
    const struct level *c = at != ROLL_MAP_NONE ? &sum->level[at] : NULL;
    const struct cell *cell = c ? known_cell(sum, c, child) : NULL;
    return c && c->size != 0 && c->members == c->size && !(cell && cell->fronted);
}

/* The key of a communicator that is over is used again: by a new one, which begins at its first call. */
static void begin_anew(struct roll_sum *sum, const struct roll_digest_front *f)
{
    uint32_t at = roll_map_get(&sum->at, f->key);
    const struct level *c = at != ROLL_MAP_NONE ? &sum->level[at] : NULL;
    if (c && c->over && c->members != 0 && f->members != 0 && !f->gone && (f->high < c->low || f->size != c->size)) {
        drop_level(sum, at);
    }
}

/* How far the child says that its first member is, before its windows are taken. */
static void note_ahead(struct roll_sum *sum, uint32_t child, const struct roll_digest_front *f)
{
    struct level *c = level_of(sum, f->key);
    struct cell *cell = c ? cell_of(sum, c, child) : NULL;
    if (cell) {
        cell->ahead = f->high;
        cell->fronted = cell->fronted || (f->size != 0 && f->members <= f->size);
    }
}

static void wait_for_room(struct roll_sum *sum, uint32_t child, const struct roll_digest_front *f)
{
    size_t i = 0;
    while (i < sum->waitings && (sum->waiting[i].child != child || sum->waiting[i].front.key != f->key)) {
        i++;
    }
    if (i < sum->waitings) {
        sum->waiting[i].front = *f;
    } else if (sum->waitings < WAITING && ROLL_GROW(sum->waiting, sum->waiting_room, sum->waitings + 1) == 0) {
        sum->waiting[sum->waitings++] = (struct waiting){.front = *f, .since_ns = sum->now_ns, .child = child};
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
    struct level *c = level_of(sum, f->key);
    struct cell *cell = c ? cell_of(sum, c, child) : NULL;
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

static void try_waiting(struct roll_sum *sum, uint64_t now_ns)
{
    for (size_t i = sum->waitings; i-- > 0;) {
        struct waiting *w = &sum->waiting[i];
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

/* Whether a front of this child has waited in vain, which is said once. */
static bool has_waited(struct roll_sum *sum, uint32_t child)
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

/* A front that has come makes an earlier one that waits void. */
static void forget_waiting(struct roll_sum *sum, uint32_t child, uint64_t key)
{
    for (size_t i = sum->waitings; i-- > 0;) {
        if (sum->waiting[i].child == child && (key == 0 || sum->waiting[i].front.key == key)) {
            sum->waiting[i] = sum->waiting[--sum->waitings];
        }
    }
}

/* All check points behind a call that differs differ. The first one of a window is told of, and then the whole window:
 * a second such call may have been made in it, when the first one was looked at already. */
static int take_point(struct roll_sum *sum, const struct cell *cell, struct level *c,
                      const struct roll_digest_window *w)
{
    uint64_t at = (uint64_t)w->window * ROLL_DIGEST_WINDOW + w->calls;
    if (w->calls >= ROLL_DIGEST_WINDOW || at > cell->ahead) { /* nobody has come so far */
        sum->figures.refused++;
        return ROLL_E_ARG;
    }
    if (roll_points_take(&c->points, (uint32_t)at, w->hash) && c->differed != w->window + 1) {
        c->differed = w->window + 1;
        hint(sum, w->key, ROLL_HINT_DIFFERS, w->window * ROLL_DIGEST_WINDOW);
    }
    return 0;
}

/* A window far behind what the child's fronts say is made up, and would take the place of those that will come. */
static int take_window(struct roll_sum *sum, uint32_t child, const struct roll_digest_window *w)
{
    struct level *c;
    const struct cell *cell = spoken_cell(sum, child, w->key, &c);
    if (!cell) {
        return ROLL_E_ARG;
    }
    if (w->window >= WINDOWS_MOST || w->window >= cell->ahead / ROLL_DIGEST_WINDOW + OPEN) {
        sum->figures.refused++;
        return ROLL_E_ARG;
    }
    if (w->calls != 0) {
        return take_point(sum, cell, c, w);
    }
    struct first *first = &c->first[w->window % OPEN];
    if (first->window > w->window + 1) {
        sum->figures.late++;
    } else if (first->window < w->window + 1) {
        *first = (struct first){.hash = w->hash, .window = w->window + 1};
        c->moved = true;
    } else if (first->hash != w->hash && !first->differs) {
        first->differs = true;
        c->differed = w->window + 1;
        hint(sum, w->key, ROLL_HINT_DIFFERS, w->window * ROLL_DIGEST_WINDOW);
    }
    return 0;
}

static int take_messages(struct roll_sum *sum, uint32_t child, const struct roll_digest_messages *m, uint64_t now_ns)
{
    struct level *c;
    struct cell *cell = spoken_cell(sum, child, m->key, &c);
    if (!cell) {
        return ROLL_E_ARG;
    }
    for (unsigned i = 0; i < ROLL_DIGEST_CLASSES; i++) {
        c->sum[i] += m->sum[i] - cell->sum[i];
        cell->sum[i] = m->sum[i];
    }
    c->sums_moved = true;
    c->sums_since_ns = now_ns;
    return 0;
}

static int take_like(struct roll_sum *sum, uint32_t child, const struct roll_digest_like *like)
{
    struct level *c;
    if (!spoken_cell(sum, child, like->key, &c)) {
        return ROLL_E_ARG;
    }
    int news = roll_likes_take(&sum->likes, like, LIKES);
    if (news > 0) {
        hint(sum, like->key, (enum roll_digest_why)like->why, like->seq);
    }
    return news < 0 ? news : 0;
}

static int take_share(struct roll_sum *sum, uint32_t child, const struct roll_digest_share *share)
{
    struct level *c;
    return spoken_cell(sum, child, share->key, &c) ? roll_shares_take(&sum->shares, child, share, SHARES) : ROLL_E_ARG;
}

/* Of a communicator that a child judges by itself, nothing may be known here but its hints. */
static int take_hint(struct roll_sum *sum, uint32_t child, const struct roll_digest_hint *h)
{
    if (is_elsewhere(sum, child, h->key)) {
        sum->figures.refused++;
        return ROLL_E_ARG;
    }
    hint(sum, h->key, (enum roll_digest_why)h->why, h->seq);
    return 0;
}

int roll_sum_take(roll_sum_t *sum, uint32_t child, const struct roll_digest *d, uint64_t now_ns)
{
    int err = has_waited(sum, child) ? ROLL_E_ARG : 0, one;
    sum->now_ns = now_ns;
    for (size_t i = 0; i < d->fronts; i++) {
        begin_anew(sum, &d->front[i]);
    }
    for (size_t i = 0; i < d->fronts && d->windows > 0; i++) {
        note_ahead(sum, child, &d->front[i]);
    }
    /* The windows come first: a front says that they have been told. */
    for (size_t i = 0; i < d->windows; i++) {
        one = take_window(sum, child, &d->window[i]);
        err = err ? err : one;
        sum->figures.windows += d->window[i].calls == 0;
    }
    for (size_t i = 0; i < d->fronts; i++) {
        one = take_front(sum, child, &d->front[i]);
        if (one == ROLL_E_BUSY) {
            wait_for_room(sum, child, &d->front[i]);
            one = 0;
        } else if (sum->waitings > 0) {
            forget_waiting(sum, child, d->front[i].key);
        }
        err = err ? err : one;
    }
    for (size_t i = 0; i < d->sums; i++) {
        one = take_messages(sum, child, &d->messages[i], now_ns);
        err = err ? err : one;
    }
    for (size_t i = 0; i < d->likes; i++) {
        one = take_like(sum, child, &d->like[i]);
        err = err ? err : one;
    }
    for (size_t i = 0; i < d->shares; i++) {
        one = take_share(sum, child, &d->share[i]);
        err = err ? err : one;
    }
    for (size_t i = 0; i < d->hints; i++) {
        one = take_hint(sum, child, &d->hint[i]);
        err = err ? err : one;
    }
    sum->figures.fronts += d->fronts;
    sum->figures.hints += d->hints;
    return err;
}

/* cutting */

/* How far the members have come, from what all children tell. */
static void look(struct level *c, uint64_t now_ns)
{
    uint32_t low = UINT32_MAX, high = 0;
    uint64_t hash = 0;
    bool differs = false, over = true;
    for (size_t i = 0; i < c->cells; i++) {
        const struct cell *cell = &c->cell[i];
        /* Of members that a child judges by itself it is told where they stand apart. */
        bool apart = c->members == 0 && cell->low < cell->high;
        over = over && (cell->members == 0 || cell->gone) && !apart;
        if (cell->members != 0 || apart) { /* else only messages were told of it */
            differs = differs || cell->differs || (low != UINT32_MAX && hash != cell->hash);
            hash = cell->hash;
            low = cell->low < low ? cell->low : low;
            high = cell->high > high ? cell->high : high;
        }
    }
    low = low == UINT32_MAX ? 0 : low;
    if (low != c->low || low == high || c->low == c->high) {
        c->low_since_ns = now_ns;
    }
    c->differs = low == high && differs;
    c->over = over;
    c->hash = hash;
    c->low = low;
    c->high = high;
}

static void judge_place(struct roll_sum *sum, struct level *c, uint64_t now_ns)
{
    bool absent = c->members < c->size && c->high > 0 && !c->past;
    if (c->differs && c->alike != c->low + 1) {
        c->alike = c->low + 1;
        hint(sum, c->key, ROLL_HINT_DIFFERS, c->low - c->low % ROLL_DIGEST_WINDOW);
    }
    if ((c->low < c->high || absent) && c->stands != c->low + 1 && now_ns - c->low_since_ns >= sum->config.stand_ns) {
        c->stands = c->low + 1;
        hint(sum, c->key, ROLL_HINT_STANDS, c->low);
    }
    uint32_t full = c->low / ROLL_DIGEST_WINDOW;
    if (full - c->judged > OPEN && c->judged < full) {
        c->judged = full - OPEN; /* what lies before has been forgotten, or was judged by a sum before this one */
    }
    for (; c->judged < full && !absent; c->judged++) {
        const struct first *first = &c->first[c->judged % OPEN];
        sum->figures.done += first->window == c->judged + 1 && !first->differs;
    }
}

static void judge_messages(struct roll_sum *sum, struct level *c, uint64_t now_ns)
{
    if (!c->sums_moved || now_ns - c->sums_since_ns < sum->config.stand_ns) {
        return;
    }
    uint32_t classes = 0;
    for (unsigned i = 0; i < ROLL_DIGEST_CLASSES; i++) {
        classes |= (uint32_t)(c->sum[i] != c->known[i]) << i;
    }
    c->sums_moved = false;
    if (classes != 0) {
        memcpy(c->known, c->sum, sizeof(c->sum));
        hint(sum, c->key, ROLL_HINT_MESSAGES, classes);
    }
}

static void tell_sums(const struct level *c, const uint64_t *sum, struct roll_digest *up)
{
    struct roll_digest_messages sums = {.key = c->key};
    memcpy(sums.sum, sum, sizeof(sums.sum));
    roll_digest_add_messages(up, &sums);
}

/* All members have turned out to stand below this level: nobody above need judge any more. */
static void take_over(struct level *c, struct roll_digest *up)
{
    static const uint64_t none[ROLL_DIGEST_CLASSES];
    roll_digest_add_front(up, &(struct roll_digest_front){.key = c->key, .size = c->size});
    tell_sums(c, none, up);
    c->told = c->apart = false;
    c->sums_moved = true;
}

/* Members of the communicator stand elsewhere: those that stand below this level are told of as one. */
static void pass_on(struct level *c, struct roll_digest *up)
{
    uint32_t full = c->low / ROLL_DIGEST_WINDOW;
    if (full - c->judged > OPEN && c->judged < full) {
        c->judged = full - OPEN;
    }
    for (; c->judged < full; c->judged++) {
        const struct first *first = &c->first[c->judged % OPEN];
        if (first->window == c->judged + 1) {
            roll_digest_add_window(
                up, &(struct roll_digest_window){.key = c->key, .hash = first->hash, .window = c->judged});
        }
    }
    /* That of the first member, also where others come later: they are compared with it here. */
    const struct roll_point *point = c->moved ? roll_points_roundest(&c->points, c->pointed, c->high) : NULL;
    if (point) {
        roll_digest_add_window(up, &(struct roll_digest_window){.key = c->key,
                                                                .hash = point->hash,
                                                                .window = point->at / ROLL_DIGEST_WINDOW,
                                                                .calls = point->at % ROLL_DIGEST_WINDOW});
        c->pointed = c->high;
    }
    if (c->moved) {
        roll_digest_add_front(up, &(struct roll_digest_front){.key = c->key,
                                                              .hash = c->hash,
                                                              .size = c->size,
                                                              .members = c->members,
                                                              .low = c->low,
                                                              .high = c->high,
                                                              .differs = c->differs,
                                                              .gone = c->over && c->members != 0});
    }
    if (c->sums_moved) {
        tell_sums(c, c->sum, up);
        c->sums_moved = false;
    }
    c->told = true;
    c->moved = c->apart = false;
}

/* The communicator of this key, if all its members, or some of them, are below this level; else NULL. */
static const struct level *known_level(const struct roll_sum *sum, uint64_t key)
{
    uint32_t at = roll_map_get(&sum->at, key);
    return at != ROLL_MAP_NONE && sum->level[at].members != 0 ? &sum->level[at] : NULL;
}

/* A level above that judges nothing of it hears where the members stand apart, and when they do no more: people ask
 * there, and whether a hint still holds is seen there. */
static void tell_apart(struct level *c, bool apart, struct roll_digest *up)
{
    if (apart != c->apart) {
        roll_digest_add_front(up, &(struct roll_digest_front){
                                      .key = c->key, .size = c->size, .low = c->low, .high = apart ? c->high : c->low});
        c->apart = apart;
    }
}

/* What must be alike was compared when it came. The level above gets what members elsewhere may tell, too; and of a sum
 * of shares, when all members below have told theirs. */
static void cut_likes(struct roll_sum *sum, struct roll_digest *up)
{
    struct roll_like *l;
    struct roll_share *s;
    struct roll_digest_share all;
    while ((l = roll_likes_next(&sum->likes)) != NULL) {
        const struct level *c = known_level(sum, l->first.key);
        l->told = true;
        if (!sum->config.is_root && !(c && c->members == c->size)) {
            roll_digest_add_like(up, &l->first);
        }
    }
    while ((s = roll_shares_next(&sum->shares, &all)) != NULL) {
        const struct level *c = known_level(sum, s->key);
        if (!c || all.members < c->members || !isfinite(all.part) || !isfinite(all.size)) {
            continue;
        }
        s->over = true;
        if (c->members != c->size && !sum->config.is_root) {
            roll_digest_add_share(up, &all);
        } else if (all.members == c->size && roll_share_is_wrong(&all, c->size)) {
            hint(sum, s->key, ROLL_HINT_OBSERVED, all.seq);
        }
    }
}

void roll_sum_cut(roll_sum_t *sum, uint64_t now_ns, struct roll_digest *up)
{
    cut_likes(sum, up);
    try_waiting(sum, now_ns);
    for (size_t i = 0; i < sum->levels; i++) {
        struct level *c = &sum->level[i];
        if (c->moved) {
            look(c, now_ns);
        }
        bool complete = c->members == c->size && c->size != 0;
        if (complete && c->told && !sum->config.is_root) {
            take_over(c, up);
        }
        if (c->members == 0 && (sum->config.is_root || !c->told)) { /* a level below judges it */
            c->moved = false;
            if (!sum->config.is_root) {
                tell_apart(c, c->low < c->high, up);
            }
        } else if (complete || sum->config.is_root) {
            judge_place(sum, c, now_ns);
            judge_messages(sum, c, now_ns);
            c->moved = false;
            if (!sum->config.is_root) {
                tell_apart(c, c->stands == c->low + 1 && c->low < c->high, up);
            }
        } else {
            pass_on(c, up);
        }
    }
    for (size_t i = 0; i < sum->hints.hints; i++) {
        const struct roll_digest_hint *h = &sum->hints.hint[i];
        roll_digest_add_hint(up, h->key, (enum roll_digest_why)h->why, h->seq);
    }
    roll_digest_clear(&sum->hints);
}

void roll_sum_forget(roll_sum_t *sum, uint64_t now_ns)
{
    if (now_ns - sum->forgot_ns < FORGET_NS) {
        return;
    }
    sum->forgot_ns = now_ns;
    for (size_t i = sum->levels; i-- > 0;) {
        const struct level *c = &sum->level[i];
        bool settled = !c->moved && (c->members == 0 || !c->sums_moved) && !c->apart;
        if (c->over && settled && now_ns - c->told_ns >= ROLL_DIGEST_KEEP_NS) {
            drop_level(sum, i);
        }
    }
}

void roll_sum_leave(roll_sum_t *sum, uint32_t child, uint64_t now_ns)
{
    for (size_t i = 0; i < sum->levels; i++) {
        struct level *c = &sum->level[i];
        struct cell *cell = known_cell(sum, c, child);
        if (!cell) {
            continue;
        }
        c->members -= cell->members;
        for (unsigned k = 0; k < ROLL_DIGEST_CLASSES; k++) {
            c->sum[k] -= cell->sum[k];
        }
        *cell = (struct cell){.child = child};
        c->moved = c->sums_moved = true;
        c->told_ns = c->sums_since_ns = now_ns;
    }
    forget_waiting(sum, child, 0);
}

void roll_sum_again(roll_sum_t *sum)
{
    for (size_t i = 0; i < sum->levels; i++) {
        struct level *c = &sum->level[i];
        c->moved = c->sums_moved = true;
        c->apart = false;
        c->judged = c->judged > OPEN ? c->judged - OPEN : 0;
        c->pointed = c->high - c->high % ROLL_DIGEST_WINDOW;
    }
    roll_likes_again(&sum->likes);
    roll_shares_again(&sum->shares);
}

void roll_sum_figures(const roll_sum_t *sum, struct roll_sum_figures *out)
{
    *out = sum->figures;
}

bool roll_sum_at(const roll_sum_t *sum, size_t i, uint64_t *key, struct roll_sum_place *out)
{
    *key = i < sum->levels ? sum->level[i].key : 0;
    return i < sum->levels && roll_sum_place(sum, *key, out);
}

bool roll_sum_place(const roll_sum_t *sum, uint64_t key, struct roll_sum_place *out)
{
    uint32_t at = roll_map_get(&sum->at, key);
    if (at == ROLL_MAP_NONE) {
        return false;
    }
    const struct level *c = &sum->level[at];
    *out = (struct roll_sum_place){.low = c->low, .high = c->high, .size = c->size, .members = c->members};
    return true;
}
