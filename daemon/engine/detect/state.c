/*
 * state.c: the tables of the detectors' states: made when a detector keeps something, freed with their objects.
 */
#include "daemon/engine/detect/state.h"

#include <stdlib.h>

void *state_make(void ***table, uint32_t places, uint32_t at, size_t bytes)
{
    if (!*table) {
        *table = calloc(places, sizeof(**table));
    }
    if (*table && !(*table)[at]) {
        (*table)[at] = calloc(1, bytes);
    }
    return *table ? (*table)[at] : NULL;
}

void state_free(void ***table, uint32_t places)
{
    for (uint32_t i = 0; *table && i < places; i++) {
        free((*table)[i]);
    }
    free(*table);
    *table = NULL;
}
