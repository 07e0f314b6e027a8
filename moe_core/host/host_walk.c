/*
 * host_walk.c: the tokens of a map in order, looked up before their turn.
 *
 * What a token needs lies in several places: its cells in the map, the probability of each of its rows, and the rows
 * themselves. One leads to the next, so a loop that looks a token up when it moves its rows waits for memory two or
 * three times for each token, and with rows of 2 KiB waits longer than it moves. Here cells are asked for before they
 * are looked up, and probabilities before they are used; the rows themselves are fetched by those who sum them
 * (host_rows.h). A table of all rows, made when the map is checked, was rejected: it is as large as the map.
 */
#include "moe_core/host/host_walk.h"

#include "moe_core/base/fail.h"

#include <stdlib.h>

int moe_host_walk_open(const struct moe_host_map *map, enum moe_prob_layout layout, struct moe_host_walk *out)
{
    size_t most = (size_t)map->most + 1;
    *out = (struct moe_host_walk){.map = map, .layout = layout};
    out->place = calloc(most, sizeof(*out->place));
    out->stop = calloc(MOE_WALK_RING * most, sizeof(*out->stop));
    if (out->place == NULL || out->stop == NULL) {
        moe_host_walk_close(out);
        return MOE_E_NOMEM;
    }
    return 0;
}

void moe_host_walk_close(struct moe_host_walk *walk)
{
    free(walk->place);
    free(walk->stop);
    walk->place = NULL;
    walk->stop = NULL;
}

void moe_host_walk_begin(struct moe_host_walk *walk, int64_t first, int64_t end)
{
    walk->looked = first;
    walk->end = end;
}

static struct moe_host_stop *stops_of(const struct moe_host_walk *walk, int64_t t)
{
    return walk->stop + t % MOE_WALK_RING * (walk->map->most + 1);
}

static void look_up(struct moe_host_walk *walk, int64_t t)
{
    const struct moe_map_view *v = &walk->map->view;
    struct moe_host_stop *stop = stops_of(walk, t);
    int64_t n = moe_host_map_places(walk->map, t, walk->place);
    for (int64_t i = 0; i < n; i++) {
        const struct moe_host_place *p = &walk->place[i];
        stop[i].row = p->row;
        stop[i].cell = walk->layout == MOE_PROBS_BY_EXPERT ? t * v->experts + p->expert : t * v->k + p->choice;
        if (walk->by_cell != NULL) {
            __builtin_prefetch(walk->by_cell + stop[i].cell);
        }
        if (walk->by_row != NULL) {
            __builtin_prefetch(walk->by_row + stop[i].row);
        }
    }
    walk->n[t % MOE_WALK_RING] = n;
}

int64_t moe_host_walk_token(struct moe_host_walk *walk, int64_t t, const struct moe_host_stop **out)
{
    int64_t until = t + MOE_WALK_AHEAD < walk->end ? t + MOE_WALK_AHEAD : walk->end;
    for (; walk->looked < until; walk->looked++) {
        moe_host_map_fetch(walk->map, walk->looked + MOE_WALK_AHEAD);
        look_up(walk, walk->looked);
    }
    *out = stops_of(walk, t);
    return t < walk->end ? walk->n[t % MOE_WALK_RING] : 0;
}
