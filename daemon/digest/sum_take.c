/*
 * sum_take.c: what a child tells, taken or refused (sum.h).
 *
 * A window needs no count of who has filled it: what a child tells of one is compared at once with what was told of it
 * first, and the fronts say who has got past it. To count members by hash was rejected: a message that comes twice
 * would be counted twice, and each level would have to remember who has told what.
 */
#include "daemon/digest/sum_state.h"

#define WINDOWS_MOST (UINT32_MAX / ROLL_DIGEST_WINDOW) /* a higher number than collectives can have */

/* What the child speaks of: a communicator of which it has told a front. NULL: it has not, so it lies. */
static struct roll_sum_cell *spoken_cell(struct roll_sum *sum, uint32_t child, uint64_t key, struct roll_sum_level **c)
{
    uint32_t at = roll_map_get(&sum->at, key);
    *c = at != ROLL_MAP_NONE ? &sum->level[at] : NULL;
    struct roll_sum_cell *cell = *c ? roll_sum_cell_known(sum, *c, child) : NULL;
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
    const struct roll_sum_level *c = at != ROLL_MAP_NONE ? &sum->level[at] : NULL;
    const struct roll_sum_cell *cell = c ? roll_sum_cell_known(sum, c, child) : NULL;
    return c && c->size != 0 && c->members == c->size && !(cell && cell->fronted);
}

/* The key of a communicator that is over is used again: by a new one, which begins at its first call. */
static void begin_anew(struct roll_sum *sum, const struct roll_digest_front *f)
{
    uint32_t at = roll_map_get(&sum->at, f->key);
    const struct roll_sum_level *c = at != ROLL_MAP_NONE ? &sum->level[at] : NULL;
    if (c && c->over && c->members != 0 && f->members != 0 && !f->gone && (f->high < c->low || f->size != c->size)) {
        roll_sum_level_drop(sum, at);
    }
}

/* How far the child says that its first member is, before its windows are taken. */
static void note_ahead(struct roll_sum *sum, uint32_t child, const struct roll_digest_front *f)
{
    struct roll_sum_level *c = roll_sum_level_of(sum, child, f->key);
    struct roll_sum_cell *cell = c ? roll_sum_cell_of(sum, c, child) : NULL;
    if (cell) {
        cell->ahead = f->high;
        cell->fronted = cell->fronted || (f->size != 0 && f->members <= f->size);
    }
}

/* A hint has been about the calls before this check point already. */
static bool is_hinted(const struct roll_sum_level *c, uint32_t window, uint32_t at)
{
    bool by_point = roll_digest_window_of(c->differs_at) == window * ROLL_DIGEST_WINDOW && c->differs_at != 0;
    return c->differed == window + 1 && (!by_point || at > roll_digest_first(c->differs_at));
}

/* All check points behind a call that differs differ. The first one of a window is told of, and then the whole window:
 * a second such call may have been made in it, when the first one was looked at already. So may one before it, by a
 * member that comes later: that is told of at once. */
static int take_point(struct roll_sum *sum, const struct roll_sum_cell *cell, struct roll_sum_level *c,
                      const struct roll_digest_window *w)
{
    uint64_t at = (uint64_t)w->window * ROLL_DIGEST_WINDOW + w->calls;
    if (w->calls >= ROLL_DIGEST_WINDOW || at > cell->ahead) { /* nobody has come so far */
        sum->figures.refused++;
        return ROLL_E_ARG;
    }
    if (roll_points_take(&c->points, (uint32_t)at, w->hash) && !is_hinted(c, w->window, (uint32_t)at)) {
        c->differed = w->window + 1;
        roll_sum_level_differs(c, (uint32_t)at);
        roll_sum_hint(sum, w->key, ROLL_HINT_DIFFERS, (uint32_t)at);
    }
    return 0;
}

/* A window far behind what the child's fronts say is made up, and would take the place of those that will come. */
static int take_window(struct roll_sum *sum, uint32_t child, const struct roll_digest_window *w)
{
    struct roll_sum_level *c;
    const struct roll_sum_cell *cell = spoken_cell(sum, child, w->key, &c);
    if (!cell) {
        return ROLL_E_ARG;
    }
    if (w->window >= WINDOWS_MOST || w->window >= cell->ahead / ROLL_DIGEST_WINDOW + ROLL_SUM_OPEN) {
        sum->figures.refused++;
        return ROLL_E_ARG;
    }
    if (w->calls != 0) {
        return take_point(sum, cell, c, w);
    }
    struct roll_sum_first *first = &c->first[w->window % ROLL_SUM_OPEN];
    if (first->window > w->window + 1) {
        sum->figures.late++;
    } else if (first->window < w->window + 1) {
        *first = (struct roll_sum_first){.hash = w->hash, .window = w->window + 1};
        c->moved = true;
    } else if (first->hash != w->hash && !first->differs) {
        first->differs = true;
        c->differed = w->window + 1;
        roll_sum_hint(sum, w->key, ROLL_HINT_DIFFERS, w->window * ROLL_DIGEST_WINDOW);
    }
    return 0;
}

static int take_messages(struct roll_sum *sum, uint32_t child, const struct roll_digest_messages *m, uint64_t now_ns)
{
    struct roll_sum_level *c;
    struct roll_sum_cell *cell = spoken_cell(sum, child, m->key, &c);
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
    struct roll_sum_level *c;
    if (!spoken_cell(sum, child, like->key, &c)) {
        return ROLL_E_ARG;
    }
    int news = roll_likes_take(&sum->likes, like, sum->config.likes);
    if (news > 0) {
        roll_sum_hint(sum, like->key, (enum roll_digest_why)like->why, like->seq);
    }
    return news < 0 ? news : 0;
}

static int take_share(struct roll_sum *sum, uint32_t child, const struct roll_digest_share *share)
{
    struct roll_sum_level *c;
    return spoken_cell(sum, child, share->key, &c) ? roll_shares_take(&sum->shares, child, share, sum->config.shares)
                                                   : ROLL_E_ARG;
}

/* Of a communicator that a child judges by itself, nothing may be known here but its hints. */
static int take_hint(struct roll_sum *sum, uint32_t child, const struct roll_digest_hint *h)
{
    if (is_elsewhere(sum, child, h->key)) {
        sum->figures.refused++;
        return ROLL_E_ARG;
    }
    roll_sum_hint(sum, h->key, (enum roll_digest_why)h->why, h->seq);
    return 0;
}

int roll_sum_take(roll_sum_t *sum, uint32_t child, const struct roll_digest *d, uint64_t now_ns)
{
    int err = roll_sum_front_expired(sum, child) ? ROLL_E_ARG : 0, one;
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
        one = roll_sum_front_take(sum, child, &d->front[i]);
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
