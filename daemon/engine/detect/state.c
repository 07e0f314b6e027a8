/*
 * state.c: the tables of the detectors' states. They are made when a detector first keeps something of an object, and
 * freed with the object.
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
