/*
 * nearest.h: the word of a list that somebody meant who typed another one. Any thread.
 */
#ifndef ROLL_DAEMON_BASE_NEAREST_H
#define ROLL_DAEMON_BASE_NEAREST_H

#include <stddef.h>

#define ROLL_NEAREST_BYTES 32u /* longer words are looked at so far */

/* How many letters have to be put in, left out, replaced or exchanged with their neighbour to make one word of the
 * other. */
size_t roll_nearest_distance(const char *one, const char *other);

/* A search: begin with {.typed = word}, offer each word of the list, and take `found`, NULL when none is near. */
struct roll_nearest {
    const char *typed; /* borrowed, as is `found` */
    const char *found;
    size_t distance;
};
void roll_nearest_offer(struct roll_nearest *search, const char *word);

#endif
