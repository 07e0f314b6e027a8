/*
 * host_walk.c: the tokens of a map in order, and what each will need.
 *
 * The rows of a token are in the array that the check of the map has left; their probabilities lie somewhere in a line
 * of all experts. A loop that looks a probability up when it moves the row waits for memory once for each token, and
 * with rows of 2 KiB as long as a row takes, so they are asked for some tokens before. The rows themselves are fetched
 * by those who sum them (host_rows.h).
 */
#include "moe_core/host/host_walk.h"

void moe_host_walk_begin(struct moe_host_walk *walk, const struct moe_host_map *map, enum moe_prob_layout layout,
                         int64_t first, int64_t end)
{
    walk->map = map;
    walk->columns = layout == MOE_PROBS_BY_EXPERT ? map->view.experts : map->view.k;
    walk->asked = first;
    walk->end = end;
}

/* Always inline, or the call is left out: see host_map.c. */
static inline __attribute__((always_inline)) void ask(const struct moe_host_walk *walk, int64_t t)
{
    const struct moe_host_map *map = walk->map;
    for (int32_t i = map->first[t]; i < map->first[t + 1]; i++) {
        if (walk->by_cell != NULL) {
            __builtin_prefetch(walk->by_cell + moe_host_cell(walk, t, &map->stop[i]));
        }
        if (walk->by_row != NULL) {
            __builtin_prefetch(walk->by_row + map->stop[i].row);
        }
    }
}

int64_t moe_host_walk_token(struct moe_host_walk *walk, int64_t t, const struct moe_host_stop **out)
{
    const struct moe_host_map *map = walk->map;
    if (walk->by_cell != NULL || walk->by_row != NULL) {
        for (; walk->asked < walk->end && walk->asked < t + MOE_WALK_AHEAD; walk->asked++) {
            ask(walk, walk->asked);
        }
    }
    *out = t < walk->end ? map->stop + map->first[t] : NULL;
    return t < walk->end ? map->first[t + 1] - map->first[t] : 0;
}
