/*
 * field.h: how the ranks of a run stand, in a form that is small at any size: the field of the web page and of reports.
 *
 * One letter a rank, in an order that is told once: 16,384 ranks are 16 KiB. An object for each rank, as in the status,
 * was rejected: that is 6 MiB. One thread.
 */
#ifndef ROLL_DAEMON_FEED_FIELD_H
#define ROLL_DAEMON_FEED_FIELD_H

#include "daemon/engine/engine.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Where a rank has its place, and how it stands there. */
struct roll_field_place {
    const char *host; /* borrowed from the engine */
    int32_t rank;
    uint32_t source; /* its number among the sources that were looked at */
    char state;      /* what the letters mean stands in docs/WEB.md, and once more in dashboards/web/js/ranks.js */
};

/* How a rank stands, in one letter: the page, reports, `top` and the status say the same because they all ask here.
 * waiting: those of whom a finding that stands says that they wait (roll_verdict_waiting); awaited: those who are in
 * their own code while others wait for them (roll_verdict_awaited, and what the caller knows besides). */
char roll_field_letter(const struct roll_view_source *v, const struct roll_rankset *waiting,
                       const struct roll_rankset *awaited);
const char *roll_field_name(char letter); /* the word of the page's legend for it: "waiting" */
/* The place of a source, with its letter. */
struct roll_field_place roll_field_place(const struct roll_view_source *v, uint32_t source,
                                         const struct roll_rankset *waiting, const struct roll_rankset *awaited);
/* Brings places into their order: by host, node2 before node10; then by rank. A rank that was started again on its host
 * has one place there. Returns how many are left. */
size_t roll_field_sort(struct roll_field_place *list, size_t n);
/* {"ranks": N, "hosts": [{"host", "ranks": [first, last, ...]}]} and {"states": "rrwd..."}; owned; NULL: no memory. */
json_t *roll_field_places_json(const struct roll_field_place *list, size_t n);
json_t *roll_field_states_json(const struct roll_field_place *list, size_t n);

#endif
