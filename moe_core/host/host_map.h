/*
 * host_map.h: a row map or chunk map on the host, checked, and the rows of each token.
 */
#ifndef MOE_CORE_HOST_HOST_MAP_H
#define MOE_CORE_HOST_HOST_MAP_H

#include "moe_core/host/device_host.h"

#pragma GCC visibility push(hidden)

/* One row of a token. */
struct moe_host_stop {
    int32_t row;
    int32_t column; /* of its probability among the token's: its expert, or the number of the choice */
};

/* A map that has been checked: every row number is in range and none comes twice. */
struct moe_host_map {
    struct moe_map_view view;
    const int32_t *cells;
    int64_t most;               /* the most rows of a token */
    int32_t *first;             /* [tokens + 1]: where the rows of each token begin in `stop`; of row maps */
    struct moe_host_stop *stop; /* [rows with a token]: token after token, highest row first */
    uint8_t *seen;              /* one bit per row, set where a token maps to the row */
};

/*
 * Checks the map against the view; `layout` says which column a probability has. *out holds memory until closed, after
 * an error none. Errors: MAP, NOMEM.
 */
int moe_host_map_open(const struct moe_map_view *view, enum moe_prob_layout layout, struct moe_host_map *out);
int moe_host_chunks_open(const struct moe_map_header *map, int64_t rows, struct moe_host_map *out);
void moe_host_map_close(struct moe_host_map *map);

bool moe_host_map_has_row(const struct moe_host_map *map, int64_t row);

#pragma GCC visibility pop

#endif
