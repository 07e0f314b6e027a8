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

size_t roll_put_utf8(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)(c < 0x20 || c == 0x7f ? '?' : c);
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 63));
        return 2;
    }
    if (c < 0x10000) {
        if (c >= 0xd800 && c < 0xe000) { /* half of a surrogate pair, from a file name that is no valid text */
            out[0] = '?';
            return 1;
        }
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 63));
        out[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | (c >> 18 & 7));
    out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
    return 4;
}
