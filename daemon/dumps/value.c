/*
 * value.c: see value.h.
 *
 * JSON comes by jansson, which checks all of it first, and is then copied into the arena: one form for those who read.
 */
#include "daemon/dumps/value.h"

#include "trace/err.h"
#include "trace/plain.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_FIRST (64u * 1024u)
#define BLOCK_MOST  (8u * 1024u * 1024u)
#define KEPT_MOST   BLOCK_MOST
#define ALIGN       16u
#define DEPTH_MAX   16 /* of JSON: a dump has five levels */

struct arena_block {
    struct arena_block *next;
    size_t used, room;
    _Alignas(ALIGN) unsigned char bytes[];
};

void roll_arena_init(struct roll_arena *arena, size_t most)
{
    *arena = (struct roll_arena){.left = most};
}

void roll_arena_fini(struct roll_arena *arena)
{
    while (arena->block != NULL) {
        struct arena_block *next = arena->block->next;
        free(arena->block);
        arena->block = next;
    }
    *arena = (struct roll_arena){.left = 0};
}

void roll_arena_reset(struct roll_arena *arena, size_t most)
{
    struct arena_block *kept = arena->block;
    if (kept != NULL && kept->room <= KEPT_MOST) {
        arena->block = kept->next; /* the newest block is the largest one */
        kept->next = NULL;
        kept->used = 0;
    } else {
        kept = NULL;
    }
    roll_arena_fini(arena);
    *arena = (struct roll_arena){.block = kept, .left = most};
}

void *roll_arena_take(struct roll_arena *arena, size_t bytes)
{
    if (bytes > arena->left || bytes > SIZE_MAX / 4) {
        return NULL;
    }
    bytes = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    struct arena_block *b = arena->block;
    if (b == NULL || b->room - b->used < bytes) {
        size_t room = b == NULL ? BLOCK_FIRST : b->room < BLOCK_MOST ? b->room * 2 : b->room;
        room = room < bytes ? bytes : room;
        b = malloc(sizeof(*b) + room);
        if (b == NULL) {
            return NULL;
        }
        *b = (struct arena_block){.next = arena->block, .room = room};
        arena->block = b;
    }
    void *at = b->bytes + b->used;
    b->used += bytes;
    arena->used += bytes;
    arena->left -= bytes < arena->left ? bytes : arena->left;
    return at;
}

struct roll_value_list *roll_value_list_new(struct roll_arena *arena)
{
    struct roll_value_list *list = roll_arena_take(arena, sizeof(*list));
    if (list != NULL) {
        *list = (struct roll_value_list){.used = 0};
    }
    return list;
}

int roll_value_append(struct roll_arena *arena, struct roll_value_list *list, const struct roll_value *value, size_t n)
{
    if (n > UINT32_MAX / 4 - list->used) {
        return ROLL_E_LIMIT;
    }
    size_t want = list->used + n;
    if (want > list->room) {
        size_t room = list->used == 0 ? n : want * 2; /* most lists are filled at once */
        struct roll_value *at = roll_arena_take(arena, room * sizeof(*at));
        if (at == NULL) {
            return ROLL_E_NOMEM;
        }
        if (list->used > 0) {
            memcpy(at, list->at, list->used * sizeof(*at));
        }
        list->at = at;
        list->room = (uint32_t)room;
    }
    if (n > 0) {
        memcpy(list->at + list->used, value, n * sizeof(*value));
    }
    list->used = (uint32_t)want;
    return 0;
}

/* JSON */

static int from_json(struct roll_arena *arena, const json_t *json, int depth, struct roll_value *out);

static int text_of(struct roll_arena *arena, const char *text, size_t bytes, struct roll_value *out)
{
    char *copy = bytes > UINT32_MAX ? NULL : roll_arena_take(arena, bytes + 1);
    if (copy == NULL) {
        return ROLL_E_NOMEM;
    }
    memcpy(copy, text, bytes);
    *out = (struct roll_value){.kind = ROLL_VALUE_TEXT, .bytes = (uint32_t)bytes, .text = copy};
    return 0;
}

static int members_of(struct roll_arena *arena, const json_t *json, int depth, struct roll_value_list *list)
{
    int err = 0;
    const char *key;
    json_t *value, *object = (json_t *)(uintptr_t)json; /* jansson's iterators take no const */
    size_t i;
    struct roll_value pair[2];
    if (json_is_object(json)) {
        json_object_foreach(object, key, value)
        {
            err = err != 0 ? err : text_of(arena, key, strlen(key), &pair[0]);
            err = err != 0 ? err : from_json(arena, value, depth + 1, &pair[1]);
            err = err != 0 ? err : roll_value_append(arena, list, pair, 2);
        }
    } else {
        json_array_foreach(json, i, value)
        {
            err = err != 0 ? err : from_json(arena, value, depth + 1, &pair[0]);
            err = err != 0 ? err : roll_value_append(arena, list, pair, 1);
        }
    }
    return err;
}

static int from_json(struct roll_arena *arena, const json_t *json, int depth, struct roll_value *out)
{
    if (depth > DEPTH_MAX) {
        return ROLL_E_LIMIT;
    }
    switch (json_typeof(json)) {
    case JSON_OBJECT:
    case JSON_ARRAY:
        *out = (struct roll_value){.kind = json_is_object(json) ? ROLL_VALUE_MAP : ROLL_VALUE_LIST,
                                   .list = roll_value_list_new(arena)};
        return out->list == NULL ? ROLL_E_NOMEM : members_of(arena, json, depth, out->list);
    case JSON_STRING:
        return text_of(arena, json_string_value(json), json_string_length(json), out);
    case JSON_INTEGER:
        *out = (struct roll_value){.kind = ROLL_VALUE_INT, .integer = json_integer_value(json)};
        return 0;
    case JSON_REAL:
        *out = (struct roll_value){.kind = ROLL_VALUE_REAL, .real = json_real_value(json)};
        return 0;
    default:
        *out = (struct roll_value){.kind = json_is_true(json)    ? ROLL_VALUE_TRUE
                                           : json_is_false(json) ? ROLL_VALUE_FALSE
                                                                 : ROLL_VALUE_NULL};
        return 0;
    }
}

int roll_json_decode(struct roll_arena *arena, const void *data, size_t bytes, struct roll_value *out, size_t *where)
{
    json_error_t error;
    json_t *json = json_loadb(data, bytes, 0, &error);
    *where = 0;
    if (json == NULL) {
        *where = error.line > 0 ? (size_t)error.line : 0;
        return json_error_code(&error) == json_error_out_of_memory ? ROLL_E_NOMEM : ROLL_E_CORRUPT;
    }
    int err = from_json(arena, json, 0, out);
    json_decref(json);
    return err;
}

/* readers */

const struct roll_value *roll_value_get(const struct roll_value *map, const char *key)
{
    size_t bytes = strlen(key);
    for (uint32_t i = roll_value_is(map, ROLL_VALUE_MAP) ? map->list->used : 0; i >= 2; i -= 2) {
        if (roll_value_is_word(&map->list->at[i - 2], key, bytes)) {
            return &map->list->at[i - 1];
        }
    }
    return NULL;
}

const struct roll_value *roll_value_at(const struct roll_value *list, size_t i)
{
    return roll_value_is(list, ROLL_VALUE_LIST) && i < list->list->used ? &list->list->at[i] : NULL;
}

size_t roll_value_count(const struct roll_value *v)
{
    return roll_value_is(v, ROLL_VALUE_LIST) ? v->list->used : roll_value_is(v, ROLL_VALUE_MAP) ? v->list->used / 2 : 0;
}

int64_t roll_value_integer(const struct roll_value *v, int64_t otherwise)
{
    char digits[24];
    if (roll_value_is(v, ROLL_VALUE_INT)) {
        return v->integer;
    }
    if (!roll_value_is(v, ROLL_VALUE_TEXT) || v->bytes == 0 || v->bytes >= sizeof(digits)) {
        return otherwise;
    }
    memcpy(digits, v->text, v->bytes);
    digits[v->bytes] = '\0';
    char *end;
    long long number = strtoll(digits, &end, 10);
    return *end == '\0' ? number : otherwise;
}

void roll_value_copy(const struct roll_value *v, char *out, size_t size)
{
    size_t n = roll_value_is(v, ROLL_VALUE_TEXT) ? v->bytes : 0;
    n = n < size - 1 ? n : size - 1;
    size_t used = 0;
    for (size_t i = 0, odd; i<n; i += odd> 0 ? odd : 1) {
        odd = roll_plain_odd(v->text + i, n - i);
        out[used++] = odd > 0 ? ' ' : v->text[i];
    }
    out[used] = '\0';
}
