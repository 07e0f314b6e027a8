/* text_pool.c: texts in an array, found by their hash; and UTF-8. */
#include "daemon/stack/text_pool.h"

#include "daemon/base/array.h"
#include "trace/ident.h"

#include <stdlib.h>
#include <string.h>

const char *roll_text_keep(struct roll_text_pool *pool, const char *text)
{
    uint64_t key = roll_hash64(0, text, strlen(text));
    size_t step = 0;
    for (uint32_t number; (number = roll_map_each(&pool->index, key, &step)) != ROLL_MAP_NONE;) {
        if (strcmp(pool->text[number], text) == 0) {
            return pool->text[number];
        }
    }
    char *copy = strdup(text);
    if (!copy || ROLL_GROW(pool->text, pool->room, pool->used + 1) != 0 ||
        roll_map_add(&pool->index, key, (uint32_t)pool->used) != 0) {
        free(copy);
        return "";
    }
    pool->text[pool->used++] = copy;
    return copy;
}

void roll_text_pool_fini(struct roll_text_pool *pool)
{
    for (size_t i = 0; i < pool->used; i++) {
        free(pool->text[i]);
    }
    free(pool->text);
    roll_map_fini(&pool->index);
    *pool = (struct roll_text_pool){0};
}
