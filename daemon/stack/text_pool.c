/* text_pool.c: a hash table of texts with open addressing; and UTF-8. */
#include "daemon/stack/text_pool.h"

#include "trace/ident.h"

#include <stdlib.h>
#include <string.h>

static size_t place(char *const *slot, size_t slots, const char *text)
{
    size_t i = (size_t)roll_hash64(0, text, strlen(text)) & (slots - 1);
    while (slot[i] && strcmp(slot[i], text) != 0) {
        i = (i + 1) & (slots - 1);
    }
    return i;
}

static int grow(struct roll_text_pool *pool)
{
    size_t slots = pool->slots ? pool->slots * 2 : 256;
    char **slot = calloc(slots, sizeof(*slot));
    if (!slot) {
        return -1;
    }
    for (size_t i = 0; i < pool->slots; i++) {
        if (pool->slot[i]) {
            slot[place(slot, slots, pool->slot[i])] = pool->slot[i];
        }
    }
    free(pool->slot);
    pool->slot = slot;
    pool->slots = slots;
    return 0;
}

const char *roll_text_keep(struct roll_text_pool *pool, const char *text)
{
    if (pool->used * 2 >= pool->slots && grow(pool) != 0) {
        return "";
    }
    size_t i = place(pool->slot, pool->slots, text);
    if (!pool->slot[i]) {
        if (!(pool->slot[i] = strdup(text))) {
            return "";
        }
        pool->used++;
    }
    return pool->slot[i];
}

void roll_text_pool_fini(struct roll_text_pool *pool)
{
    for (size_t i = 0; i < pool->slots; i++) {
        free(pool->slot[i]);
    }
    free(pool->slot);
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
