/*
 * text_pool.h: strings that many frames share, each kept once until the pool ends.
 */
#ifndef ROLL_DAEMON_STACK_TEXT_POOL_H
#define ROLL_DAEMON_STACK_TEXT_POOL_H

#include "daemon/base/map.h"

#include <stddef.h>
#include <stdint.h>

struct roll_text_pool {
    char **text; /* owned, each by itself: it stays where it is */
    size_t used, room;
    struct roll_map index; /* from hashes to numbers of texts */
};

/* The pool's copy of a text (UTF-8 or not); "" when out of memory. Borrowed until fini. */
const char *roll_text_keep(struct roll_text_pool *pool, const char *text);
void roll_text_pool_fini(struct roll_text_pool *pool);

#endif
