/*
 * value.h: what a dump of another tool holds, before anybody has asked what it means: null, booleans, numbers, texts,
 * lists and mappings, whether they came as a pickle or as JSON.
 *
 * All values of a file live in one arena and end with it. A list or mapping may hold itself (a pickle can say so):
 * whoever reads values goes down by a fixed number of steps and never follows what it finds.
 *
 * jansson's values were rejected for pickles: each of them is an allocation, and a job of 1,024 ranks has some million.
 * One thread per arena.
 */
#ifndef ROLL_DAEMON_DUMPS_VALUE_H
#define ROLL_DAEMON_DUMPS_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum roll_value_kind {
    ROLL_VALUE_NULL = 0,
    ROLL_VALUE_FALSE,
    ROLL_VALUE_TRUE,
    ROLL_VALUE_INT,
    ROLL_VALUE_REAL,
    ROLL_VALUE_TEXT,
    ROLL_VALUE_LIST, /* tuples as well */
    ROLL_VALUE_MAP,  /* items are keys and values by turns */
};

struct roll_value_list;

struct roll_value {
    enum roll_value_kind kind;
    uint32_t bytes; /* of a text */
    union {
        int64_t integer;
        double real;
        const char *text; /* not terminated; borrows the file's bytes, or the arena */
        struct roll_value_list *list;
    };
};

struct roll_value_list {
    struct roll_value *at; /* in the arena */
    uint32_t used, room;
};

struct roll_arena {
    struct arena_block *block; /* newest first; owned */
    size_t used, left;         /* bytes given out in all, and bytes that may still be given out */
};

/* An arena that gives out at most `most` bytes. */
void roll_arena_init(struct roll_arena *arena, size_t most);
void roll_arena_fini(struct roll_arena *arena);
/* All that was given out is gone; what can be kept of the memory is kept for the next use. */
void roll_arena_reset(struct roll_arena *arena, size_t most);
/* So many bytes, aligned for any value; NULL: no memory, or the bound is reached. */
void *roll_arena_take(struct roll_arena *arena, size_t bytes);

/* A new empty list or mapping; NULL: no memory. */
struct roll_value_list *roll_value_list_new(struct roll_arena *arena);
/* Appends n values, which are copied. 0, NOMEM, LIMIT. */
int roll_value_append(struct roll_arena *arena, struct roll_value_list *list, const struct roll_value *value, size_t n);

/*
 * Decodes a pickle of plain data: protocols 2 to 5 with null, booleans, numbers, texts, lists, tuples and mappings.
 * There is no opcode here that loads a name, calls, or builds an object: such a pickle is refused. Nothing recurses,
 * and memory is bounded by the arena. *out borrows `data` and the arena. Pure. 0; SHORT: the pickle ends too early;
 * CORRUPT: it is none; UNSUPPORTED: it would run code, or holds what no dump holds; NOMEM, LIMIT. *where: the offset of
 * the opcode that was refused.
 */
int roll_pickle_decode(struct roll_arena *arena, const void *data, size_t bytes, struct roll_value *out, size_t *where);

/* Decodes JSON into the same. 0; CORRUPT, with the line of the mistake in *where; NOMEM, LIMIT. */
int roll_json_decode(struct roll_arena *arena, const void *data, size_t bytes, struct roll_value *out, size_t *where);

/* Readers. All of them take any value, NULL as well, and say "not there" for one of another kind. */

static inline bool roll_value_is(const struct roll_value *v, enum roll_value_kind kind)
{
    return v != NULL && v->kind == kind;
}

/* The text is this word, of so many bytes. */
static inline bool roll_value_is_word(const struct roll_value *v, const char *word, size_t bytes)
{
    return roll_value_is(v, ROLL_VALUE_TEXT) && v->bytes == bytes && memcmp(v->text, word, bytes) == 0;
}
/* The text is this word. */
static inline bool roll_value_says(const struct roll_value *v, const char *word)
{
    return roll_value_is_word(v, word, strlen(word));
}
/* What a mapping holds under a key; NULL: nothing. Where a key stands twice, the last one holds, as in Python. */
const struct roll_value *roll_value_get(const struct roll_value *map, const char *key);
/* The i-th element of a list; NULL: there is none. */
const struct roll_value *roll_value_at(const struct roll_value *list, size_t i);
/* Elements of a list, pairs of a mapping; 0 for all else. */
size_t roll_value_count(const struct roll_value *v);
/* An integer, also where it is written as a text (the two formats differ in that); `otherwise` for all else. */
int64_t roll_value_integer(const struct roll_value *v, int64_t otherwise);
/* Copies a text, cut where it is too long, and terminated; "" for all else. Control characters become blanks. */
void roll_value_copy(const struct roll_value *v, char *out, size_t size);

#endif
