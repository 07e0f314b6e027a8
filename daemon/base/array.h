/*
 * array.h: the one way in which an array grows.
 *
 * An array stays what C has for it: a pointer, a number of elements in use, and a number of elements for which there
 * is room, all members of whoever owns the array and zero at first. Only the growing is common to all of them, because
 * that is where mistakes are made. A type that wraps the three was rejected: it would cost the element's type, or one
 * generated set of functions for each type.
 *
 * The functions take memory and do nothing else. Any thread, for arrays of its own. The engine, which links no library
 * of the daemon, includes this header as well (CONTRIBUTING.md, "base containers").
 */
#ifndef ROLL_DAEMON_BASE_ARRAY_H
#define ROLL_DAEMON_BASE_ARRAY_H

#include "trace/err.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ROLL_ARRAY_FIRST 8u /* elements for which an array that grows gets room at first */

/*
 * Gives the array at `*array` room for at least `want` elements of `element_bytes`; `array` points to the pointer, and
 * `*room` is for how many there is room now. Room doubles, so that adding one after the other costs little in all. 0;
 * NOMEM; LIMIT: so many bytes cannot be counted. After an error the array is what it was, and stays usable.
 */
static inline int roll_array_grow(void *array, size_t *room, size_t want, size_t element_bytes)
{
    if (want <= *room) {
        return 0;
    }
    const size_t most = PTRDIFF_MAX / element_bytes;
    if (want > most) {
        return ROLL_E_LIMIT;
    }
    size_t more = *room < ROLL_ARRAY_FIRST / 2 ? ROLL_ARRAY_FIRST : *room > most / 2 ? most : *room * 2;
    more = more > most ? most : more;
    more = more < want ? want : more;
    void *old, *grown;
    memcpy(&old, array, sizeof(old)); /* whatever it points to: C has no type for that */
    grown = realloc(old, more * element_bytes);
    if (!grown) {
        return ROLL_E_NOMEM;
    }
    memcpy(array, &grown, sizeof(grown));
    *room = more;
    return 0;
}

/*
 * The same for a table whose elements are found by number and are all in use: `*room` is the length of the table, and
 * the elements that it gains are zero. 0, NOMEM, LIMIT: then nothing has changed.
 */
static inline int roll_array_grow_zero(void *array, size_t *room, size_t want, size_t element_bytes)
{
    size_t before = *room;
    int err = roll_array_grow(array, room, want, element_bytes);
    if (!err && *room > before) {
        unsigned char *bytes;
        memcpy(&bytes, array, sizeof(bytes)); /* as above */
        memset(bytes + before * element_bytes, 0, (*room - before) * element_bytes);
    }
    return err;
}

/* roll_array_grow for a pointer and a size_t as they are named where they stand; ROLL_GROW_ZERO for a table. */
#define ROLL_GROW(array, room, want)      roll_array_grow(&(array), &(room), (want), sizeof(*(array)))
#define ROLL_GROW_ZERO(array, room, want) roll_array_grow_zero(&(array), &(room), (want), sizeof(*(array)))

#endif
