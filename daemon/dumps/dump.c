/*
 * dump.c: one dump: its life, and how a file becomes one.
 *
 * What kind of file it is, its first bytes say. Which rank wrote it, the file says itself where its tool is so kind;
 * else the number at the end of its name does, which is how all tools name these files.
 */
#include "daemon/dumps/dump.h"

#include "daemon/dumps/flight.h"
#include "daemon/dumps/value.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* JSON is held twice, and its own values are larger: a number of one digit takes 50 bytes in all. */
#define JSON_MOST    (32u << 20)
#define JSON_VALUES  (1u << 21) /* an empty object takes 270 bytes, of three in the file */
#define PICKLE_PROTO 0x80
#define LONG_OPCODE  0x8a /* the only number of any length */
#define PROTO_MOST   5
/* Of one byte of a file at most one value of 16 bytes is made; lists that grow take as much again. */
#define ARENA_PER_BYTE 64u
#define ARENA_MOST     ((size_t)1 << 30)
#define ARENA_LEAST    (1024u * 1024u)

struct roll_dump_reader {
    struct roll_arena arena; /* of the values of the file that is being read */
    struct roll_rank_lists lists;
};

roll_dump_reader_t *roll_dump_reader_new(void)
{
    roll_dump_reader_t *reader = calloc(1, sizeof(*reader));
    if (reader != NULL) {
        roll_rank_lists_init(&reader->lists);
    }
    return reader;
}

void roll_dump_reader_destroy(roll_dump_reader_t **reader)
{
    if (*reader != NULL) {
        roll_arena_fini(&(*reader)->arena);
        roll_rank_lists_fini(&(*reader)->lists);
        free(*reader);
        *reader = NULL;
    }
}

struct roll_dump *roll_dump_new(void)
{
    struct roll_dump *d = calloc(1, sizeof(*d));
    if (d != NULL) {
        d->rank = ROLL_DUMP_RANK_UNKNOWN;
    }
    return d;
}

void roll_dump_destroy(struct roll_dump **dump)
{
    struct roll_dump *d = *dump;
    *dump = NULL;
    if (d == NULL) {
        return;
    }
    free(d->group);
    free(d->call);
    free(d->unknown);
    free(d->site);
    free(d->line);
    free(d->text);
    free(d);
}

static bool is_pickle(const uint8_t *data, size_t bytes)
{
    return bytes >= 2 && data[0] == PICKLE_PROTO && data[1] >= 2 && data[1] <= PROTO_MOST;
}

bool roll_dump_is_likely(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    size_t i = 0;
    while (i < bytes && (p[i] == ' ' || p[i] == '\t' || p[i] == '\n' || p[i] == '\r')) {
        i++;
    }
    return is_pickle(data, bytes) || (i < bytes && p[i] == '{');
}

int32_t roll_dump_rank_in(const char *path, size_t *begin, size_t *end)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    const char *dot = strrchr(name, '.');
    *end = strlen(path);
    if (dot != NULL && dot > name && (dot[1] < '0' || dot[1] > '9')) {
        *end = (size_t)(dot - path);
    }
    *begin = *end;
    while (*begin > (size_t)(name - path) && path[*begin - 1] >= '0' && path[*begin - 1] <= '9') {
        --*begin;
    }
    if (*begin == *end || *end - *begin > 7) {
        return ROLL_DUMP_RANK_UNKNOWN;
    }
    int32_t rank = 0;
    for (size_t i = *begin; i < *end; i++) {
        rank = rank * 10 + (path[i] - '0');
    }
    return (uint32_t)rank < ROLL_DUMP_RANKS_MAX ? rank : ROLL_DUMP_RANK_UNKNOWN;
}

static uint64_t folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *p = path; slash != NULL && p < slash; p++) {
        h = (h ^ (unsigned char)*p) * 0x100000001b3u;
    }
    return h;
}

static uint64_t key_of(const struct roll_dump_group *g)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (const char *p = g->name; *p != '\0'; p++) {
        h = (h ^ (unsigned char)*p) * 0x100000001b3u;
    }
    h = (h ^ g->members.hash) * 0x9e3779b97f4a7c15u; /* groups of a split may share a name */
    h ^= h >> 31;
    return h != 0 ? h : 1;
}

static void find_self(struct roll_dump *d)
{
    for (size_t i = 0; i < d->groups; i++) {
        struct roll_dump_group *g = &d->group[i];
        g->key = key_of(g);
        g->self = roll_ranks_find(&g->members, (uint32_t)d->rank);
    }
}

/* No more values than the signs in front of which one may stand; those inside strings are counted as well. */
static bool has_too_many_values(const uint8_t *data, size_t bytes)
{
    size_t values = 0;
    for (size_t i = 0; i < bytes; i++) {
        values += data[i] == '{' || data[i] == '[' || data[i] == ',';
    }
    return values > JSON_VALUES;
}

static int read_values(struct roll_arena *arena, const uint8_t *data, size_t bytes, struct roll_value *top, char *why,
                       size_t size)
{
    size_t where;
    bool pickle = is_pickle(data, bytes);
    bool large = !pickle && bytes > JSON_MOST, many = !pickle && !large && has_too_many_values(data, bytes);
    int err = pickle          ? roll_pickle_decode(arena, data, bytes, top, &where)
              : large || many ? ROLL_E_LIMIT
                              : roll_json_decode(arena, data, bytes, top, &where);
    if (large) {
        snprintf(why, size, "JSON larger than %u MiB: no rank's dump is", JSON_MOST >> 20);
    } else if (many) {
        snprintf(why, size, "JSON of more than %u values: no rank's dump has so many", JSON_VALUES);
    } else if (err == ROLL_E_UNSUPPORTED && data[where] == LONG_OPCODE) {
        snprintf(why, size, "a number of more than 64 bits (byte %zu): no dump has one", where);
    } else if (err == ROLL_E_UNSUPPORTED) {
        snprintf(why, size,
                 "a pickle that asks for code (opcode 0x%02x at byte %zu): refused, and nothing of it was run",
                 data[where], where);
    } else if (err == ROLL_E_SHORT) {
        snprintf(why, size, "cut short after %zu bytes, in the middle of a pickle", bytes);
    } else if (err == ROLL_E_CORRUPT && pickle) {
        snprintf(why, size, "a damaged pickle (byte %zu)", where);
    } else if (err == ROLL_E_CORRUPT) {
        snprintf(why, size, "damaged or cut JSON (line %zu)", where);
    }
    return err;
}

int roll_dump_parse(roll_dump_reader_t *reader, const char *name, const void *data, size_t bytes,
                    struct roll_dump **out, char *why, size_t size)
{
    struct roll_value top;
    size_t begin, end;
    *out = NULL;
    *why = '\0';
    size_t most = ARENA_LEAST + bytes * ARENA_PER_BYTE;
    roll_arena_reset(&reader->arena, most < ARENA_MOST ? most : ARENA_MOST);
    struct roll_dump *d = roll_dump_new();
    int err = d == NULL ? ROLL_E_NOMEM : read_values(&reader->arena, data, bytes, &top, why, size);
    if (err == 0 && !roll_flight_is(&top)) {
        snprintf(why, size, "neither a trace nor a ring of rollcall nor a dump of a tool that is known here");
        err = ROLL_E_MAGIC;
    }
    err = err != 0 ? err : roll_flight_read(&top, bytes, &reader->lists, d, why, size);
    if (err != 0) {
        roll_dump_destroy(&d);
        return err;
    }
    d->rank = d->rank == ROLL_DUMP_RANK_UNKNOWN ? roll_dump_rank_in(name, &begin, &end) : d->rank;
    if (d->rank == ROLL_DUMP_RANK_UNKNOWN) {
        snprintf(why, size, "whose rank is not known: a dump does not say it, and the file's name ends with no number");
        roll_dump_destroy(&d);
        return ROLL_E_ARG;
    }
    size_t n = strlen(name);
    snprintf(d->path, sizeof(d->path), "%s", n < sizeof(d->path) ? name : name + n + 1 - sizeof(d->path));
    d->folder = folder_of(name);
    find_self(d);
    *out = d;
    return 0;
}
