/*
 * host_map.c: maps are checked before any function follows them, and what is found is kept: the rows of each token.
 *
 * A check is a pass over the cells and a bit per row. The lines of a mask map are 8 E bytes apart, of which a token
 * needs three, so each pass over them waits for memory; the movement itself then takes the rows from one end of an
 * array to the other. Reading the cells twice instead, which needs no array, was measured: with rows of 2 KiB it took a
 * fifth of an unpermute's time.
 */
#include "moe_core/host/host_map.h"

#include "moe_core/base/fail.h"

#include <stdlib.h>

bool moe_host_map_has_row(const struct moe_host_map *map, int64_t row)
{
    return (map->seen[row / 8] >> (row % 8) & 1) != 0;
}

static bool in_range(int32_t number, int64_t count)
{
    return (uint64_t)(int64_t)number < (uint64_t)count;
}

static bool header_fits(const struct moe_map_view *v)
{
    const struct moe_map_header *h = v->map;
    return h->magic == MOE_MAP_MAGIC && h->kind == (int32_t)v->kind && h->tokens == v->tokens &&
           h->experts == v->experts && h->k == v->k && h->rows == v->rows && h->routed >= 0 && h->routed <= v->rows;
}

/*
 * The lines of a mask map lie so far apart that the processor does not fetch the next one by itself: asks for both ends
 * of what a token with the usual number of rows has there, for either may be the one beyond a cache line. The arrays of
 * the other kinds are read from one end to the other. Always inline: a compiler takes a function that does nothing but
 * ask for one without effect, and leaves the call out.
 */
static inline __attribute__((always_inline)) void fetch(const struct moe_host_map *map, int64_t t, int64_t usual)
{
    if (map->view.kind == MOE_MAP_MASK && t < map->view.tokens) {
        const int32_t *rows = map->cells + t * (2 * map->view.experts + 1), *experts = rows + map->view.experts;
        __builtin_prefetch(rows);
        __builtin_prefetch(rows + usual);
        __builtin_prefetch(experts);
        __builtin_prefetch(experts + usual);
        __builtin_prefetch(experts + map->view.experts);
    }
}

/* Reads the rows of token t, of which there may be `room`; returns their number, or MAP for what no builder writes. */
static int64_t read_mask(const struct moe_host_map *map, int64_t t, bool by_expert, int64_t room,
                         struct moe_host_stop *stop)
{
    const struct moe_map_view *v = &map->view;
    const int32_t *rows = map->cells + t * (2 * v->experts + 1), *experts = rows + v->experts;
    int32_t n = rows[2 * v->experts];
    bool good = n >= 0 && n <= v->experts && n <= room;
    for (int32_t i = 0; good && i < n; i++) {
        stop[i] = (struct moe_host_stop){.row = rows[i], .column = by_expert ? experts[i] : i};
        good = in_range(rows[i], v->rows) && in_range(experts[i], v->experts);
    }
    return good ? n : MOE_E_MAP;
}

/* The same for the other kinds, whose choices are in the order in which they were made. */
static int64_t read_index(const struct moe_host_map *map, int64_t t, bool by_expert, int64_t room,
                          struct moe_host_stop *stop)
{
    const struct moe_map_view *v = &map->view;
    const bool sorted = v->kind == MOE_MAP_SORTED;
    const int32_t *rows = map->cells + (sorted ? v->rows : 0), *experts = rows + v->k * v->tokens;
    int64_t n = 0;
    for (int32_t j = 0; j < v->k; j++) {
        const int32_t row = rows[j * v->tokens + t], expert = experts[j * v->tokens + t];
        if (row == -1) {
            continue;
        }
        if (n == room || !in_range(row, v->rows) || !in_range(expert, v->experts) ||
            (sorted && map->cells[row] != t * v->k + j)) {
            return MOE_E_MAP;
        }
        int64_t at = n++;
        for (; at > 0 && stop[at - 1].row < row; at--) {
            stop[at] = stop[at - 1];
        }
        stop[at] = (struct moe_host_stop){.row = row, .column = by_expert ? expert : j};
    }
    return n;
}

/* Marks rows as taken; false where one was before. */
static bool take(uint8_t *seen, const struct moe_host_stop *stop, int64_t n)
{
    unsigned twice = 0;
    for (int64_t i = 0; i < n; i++) {
        const unsigned bit = 1u << (stop[i].row % 8);
        uint8_t *byte = &seen[stop[i].row / 8];
        twice |= *byte & bit;
        *byte = (uint8_t)(*byte | bit);
    }
    return twice == 0;
}

/* Reads and checks all tokens. */
static int read_tokens(struct moe_host_map *map, bool by_expert)
{
    enum { AHEAD = 16 }; /* tokens: what they need is there when their turn comes, and has not left the cache again */
    const struct moe_map_view *v = &map->view;
    int64_t routed = 0, usual = v->tokens > 0 ? v->map->routed / v->tokens : 0;
    for (int64_t t = 0; t < v->tokens; t++) {
        struct moe_host_stop *stop = map->stop + routed;
        fetch(map, t + AHEAD, usual);
        int64_t room = v->map->routed - routed, n = v->kind == MOE_MAP_MASK ? read_mask(map, t, by_expert, room, stop)
                                                                            : read_index(map, t, by_expert, room, stop);
        if (n < 0 || !take(map->seen, stop, n)) {
            return MOE_E_MAP;
        }
        map->first[t] = (int32_t)routed;
        map->most = n > map->most ? n : map->most;
        routed += n;
    }
    map->first[v->tokens] = (int32_t)routed;
    for (int64_t r = 0; v->kind == MOE_MAP_SORTED && r < v->rows; r++) {
        if (map->cells[r] != -1 && !moe_host_map_has_row(map, r)) {
            return MOE_E_MAP;
        }
    }
    return routed == v->map->routed ? 0 : MOE_E_MAP;
}

int moe_host_map_open(const struct moe_map_view *view, enum moe_prob_layout layout, struct moe_host_map *out)
{
    *out = (struct moe_host_map){.view = *view};
    if (!header_fits(view)) {
        return MOE_E_MAP;
    }
    out->cells = (const int32_t *)(view->map + 1);
    out->first = malloc(((size_t)view->tokens + 1) * sizeof(*out->first));
    out->stop = malloc(((size_t)view->map->routed + 1) * sizeof(*out->stop));
    out->seen = calloc((size_t)view->rows / 8 + 1, 1);
    int rc = out->first == NULL || out->stop == NULL || out->seen == NULL ? MOE_E_NOMEM : 0;
    rc = rc ? rc : read_tokens(out, layout == MOE_PROBS_BY_EXPERT);
    if (rc != 0) {
        moe_host_map_close(out);
    }
    return rc;
}

int moe_host_chunks_open(const struct moe_map_header *map, int64_t rows, struct moe_host_map *out)
{
    *out = (struct moe_host_map){.view = {.kind = MOE_MAP_CHUNK, .rows = rows, .map = map}};
    if (!header_fits(&out->view)) {
        return MOE_E_MAP;
    }
    out->cells = (const int32_t *)(map + 1);
    out->seen = calloc((size_t)rows / 8 + 1, 1);
    if (out->seen == NULL) {
        return MOE_E_NOMEM;
    }
    for (int64_t r = 0; r < rows; r++) {
        const struct moe_host_stop stop = {.row = out->cells[r]};
        if (stop.row != -1 && !(in_range(stop.row, rows) && take(out->seen, &stop, 1))) {
            moe_host_map_close(out);
            return MOE_E_MAP;
        }
    }
    return 0;
}

void moe_host_map_close(struct moe_host_map *map)
{
    free(map->first);
    free(map->stop);
    free(map->seen);
    map->first = NULL;
    map->stop = NULL;
    map->seen = NULL;
}
