/*
 * host_map.h: a row map or chunk map on the host, checked, and read token by token.
 */
#ifndef MOE_CORE_HOST_HOST_MAP_H
#define MOE_CORE_HOST_HOST_MAP_H

#include "moe_core/host/device_host.h"

#pragma GCC visibility push(hidden)

/* One row of a token. */
struct moe_host_place {
    int64_t row;
    int32_t expert;
    int32_t choice; /* number of the choice among the token's choices */
};

/* A map that has been checked: every row number is in range and none comes twice. */
struct moe_host_map {
    struct moe_map_view view;
    const int32_t *cells;
    int64_t most;  /* the most places of a token */
    uint8_t *seen; /* one bit per row, set where a token maps to the row */
};

/* Checks the map against the view. *out holds memory until closed. Errors: MAP, NOMEM. */
int moe_host_map_open(const struct moe_map_view *view, struct moe_host_map *out);
int moe_host_chunks_open(const struct moe_map_header *map, int64_t rows, struct moe_host_map *out);
void moe_host_map_close(struct moe_host_map *map);

/* Puts the rows of token t, highest first, into place [most]; returns their number. */
int64_t moe_host_map_places(const struct moe_host_map *map, int64_t t, struct moe_host_place *place);
/* Asks for the cells of token t, which is looked up soon; does nothing for a token beyond the last. */
void moe_host_map_fetch(const struct moe_host_map *map, int64_t t);

bool moe_host_map_has_row(const struct moe_host_map *map, int64_t row);

#pragma GCC visibility pop

#endif
